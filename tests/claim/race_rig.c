/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/claim/race_rig.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const race_moment_name[RACE_MOMENTS] = {
	[RACE_BEFORE_READY] = "before B is READY",
	[RACE_BEFORE_COPY] = "between READY and the copy",
	[RACE_DURING_COPY] = "during the copy",
};

const char *const race_end_name[RACE_ENDS] = {
	[RACE_ACK] = "acknowledged",
	[RACE_NAK] = "revoked",
};

static pthread_mutex_t lines_lock = PTHREAD_MUTEX_INITIALIZER;

void race_room_init(struct race_room *r, unsigned int index, uint64_t id,
		    const struct race_shape *s)
{
	*r = (struct race_room){
		.index = index,
		.id = id,
		.seed = index ? RACE_OWN : RACE_LATE,
		.pages = index ? s->b : s->a,
		.peer = index && s->two_peers,
	};
}

void race_up(struct race *x, const struct race_transport *t,
	     const struct race_shape *s, bool hold_copy)
{
	struct kvs_device_opts o = {
		.size = sizeof(o),
		.backend = "soft",
		.plan.hold_nth = hold_copy ? 1 : 0,
	};
	char err[256];

	*x = (struct race){ .t = t, .shape = *s };
	assert_true(t->item <= RACE_ITEM_MAX);
	x->page = (uint64_t)t->item * RACE_BUFFERS;
	x->lines = malloc(RACE_LINES * sizeof(x->lines[0]));
	x->slots = malloc(s->b * sizeof(x->slots[0]));
	assert_non_null(x->lines);
	assert_non_null(x->slots);
	/* last page first: neighbours there are none here */
	for (unsigned int p = 0; p < s->b; p++)
		x->slots[p] = s->b - 1 - p;
	if (kvs_device_open(&o, &x->device, err, sizeof(err)))
		fail_msg("device: %s", err);
	for (unsigned int b = 0; b < RACE_BUFFERS; b++)
		assert_int_equal(kvs_device_alloc(x->device,
						  (uint64_t)s->b * t->item,
						  &x->dev[b]),
				 0);
	t->up(x);
}

void race_down(struct race *x)
{
	x->t->down(x);
	for (unsigned int b = 0; b < RACE_BUFFERS; b++)
		kvs_device_free(x->device, x->dev[b]);
	kvs_device_close(x->device);
	free(x->slots);
	free(x->lines);
}

/* ---- the log -------------------------------------------------------------- */

void race_log(enum kvs_log_level level, const char *line, void *arg)
{
	struct race *x = arg;

	(void)level;
	pthread_mutex_lock(&lines_lock);
	if (x->n_lines < RACE_LINES)
		snprintf(x->lines[x->n_lines++], RACE_LINE, "%s", line);
	pthread_mutex_unlock(&lines_lock);
}

/* Behind "room N gen N ", when the line is about this room. */
static const char *about(const char *line, const struct race_room *r)
{
	unsigned long long id, gen;
	int len = 0;

	if (sscanf(line, "room %llu gen %llu %n", &id, &gen, &len) < 2 ||
	    !len || id != r->id)
		return NULL;
	return line + len;
}

int race_line(struct race *x, const struct race_room *r, const char *what,
	      unsigned int from)
{
	const char *rest;
	int found = -1;

	pthread_mutex_lock(&lines_lock);
	for (unsigned int i = from; i < x->n_lines && found < 0; i++) {
		rest = about(x->lines[i], r);
		if (rest && !strncmp(rest, what, strlen(what)))
			found = (int)i;
	}
	pthread_mutex_unlock(&lines_lock);
	return found;
}

unsigned int race_count(struct race *x, const struct race_room *r,
			const char *what)
{
	unsigned int n = 0;

	for (int i = -1;
	     (i = race_line(x, r, what, (unsigned int)(i + 1))) >= 0;)
		n++;
	return n;
}

void race_locate(struct race *x, struct race_room *r)
{
	unsigned long long len, off;
	unsigned int e;
	int i = -1;

	r->n_extents = 0;
	while ((i = race_line(x, r, "extent ", (unsigned int)(i + 1))) >= 0) {
		assert_int_equal(sscanf(about(x->lines[i], r),
					"extent %u: %llu bytes at %llu", &e,
					&len, &off),
				 3);
		assert_int_equal(e, r->n_extents);
		assert_true(e < RACE_EXTENTS);
		r->off[e] = off;
		r->len[e] = len;
		r->n_extents++;
	}
	assert_true(r->n_extents > 0);
}

uint64_t race_common(const struct race_room *a, const struct race_room *b)
{
	uint64_t from, to, n = 0;

	for (uint32_t i = 0; i < a->n_extents; i++) {
		for (uint32_t k = 0; k < b->n_extents; k++) {
			from = a->off[i] > b->off[k] ? a->off[i] : b->off[k];
			to = a->off[i] + a->len[i];
			if (to > b->off[k] + b->len[k])
				to = b->off[k] + b->len[k];
			n += to > from ? to - from : 0;
		}
	}
	return n;
}

/* ---- bytes ---------------------------------------------------------------- */

/* Pages in one extent: the last may have fewer. */
static unsigned int pages_in(const struct race *x, const struct race_room *r,
			     uint32_t extent)
{
	unsigned int left = r->pages - extent * x->t->extent_pages;

	return left < x->t->extent_pages ? left : x->t->extent_pages;
}

/* Where a page of a room lies in the pool. */
static uint64_t place(const struct race *x, const struct race_room *r,
		      uint32_t buffer, uint32_t page)
{
	uint32_t full = x->t->extent_pages, e = page / full;

	return r->off[e] +
	       ((uint64_t)buffer * pages_in(x, r, e) + page % full) *
		       x->t->item;
}

/* Is the byte in this place of the pool the one of A's late write, which is
 * its K of layer 1 in the first extent? Its page, or -1. */
static int late_page(const struct race *x, const struct race_room *a,
		     uint64_t at, unsigned char have)
{
	uint64_t from = place(x, a, 1, 0);
	uint64_t n = (uint64_t)pages_in(x, a, 0) * x->t->item;
	uint32_t page;

	if (at < from || at - from >= n)
		return -1;
	page = (uint32_t)((at - from) / x->t->item);
	return have == x->t->byte(a, 1, page,
				  (uint32_t)((at - from) % x->t->item))
		       ? (int)page
		       : -1;
}

static void compare_page(const struct race *x, const struct race_room *a,
			 const struct race_room *b, uint32_t buffer,
			 uint32_t page, const unsigned char *have,
			 struct race_wrong *ret)
{
	uint64_t at = place(x, b, buffer, page);
	char whose[64] = "nothing of A's write";
	int late;

	for (uint32_t i = 0; i < x->t->item; i++) {
		if (have[i] == x->t->byte(b, buffer, page, i))
			continue;
		late = late_page(x, a, at + i, have[i]);
		ret->of_a += late >= 0;
		if (ret->bytes++)
			continue;
		if (late >= 0)
			snprintf(whose, sizeof(whose),
				 "A's K of layer 1, page %d", late);
		snprintf(ret->where, sizeof(ret->where),
			 "B's %s of layer %u, page %u (pool page %llu), byte "
			 "%u: %s",
			 buffer < RACE_BUFFERS / 2 ? "K" : "V", buffer % 2,
			 page, (unsigned long long)((at + i) / x->page), i,
			 whose);
	}
}

void race_compare(struct race *x, const struct race_room *a,
		  const struct race_room *b, struct race_wrong *ret)
{
	unsigned char have[RACE_ITEM_MAX];

	memset(ret, 0, sizeof(*ret));
	for (uint32_t n = 0; n < RACE_BUFFERS; n++) {
		for (uint32_t p = 0; p < b->pages; p++) {
			assert_int_equal(
				kvs_device_peek(x->device, have,
						(char *)x->dev[n] +
							(size_t)x->slots[p] *
								x->t->item,
						x->t->item),
				0);
			compare_page(x, a, b, n, p, have, ret);
		}
	}
}
