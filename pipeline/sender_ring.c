/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "lib/assert.h"
#include "lib/err.h"
#include "lib/log.h"
#include "lib/rule.h"
#include "lib/units.h"
#include "pipeline/sender_ring.h"

#define LOOK_NS (50 * KVS_NSEC_PER_USEC) /* between two looks at a copy */
#define LOOK_LOST_NS (100 * KVS_NSEC_PER_MSEC) /* at one given up */
#define HEALTH_NS (10 * KVS_NSEC_PER_MSEC) /* between looks at the device */
#define HOLD_NS (30 * KVS_NSEC_PER_SEC)

/* Memory that a device may still write to must not be anybody else's, nor may
 * the copies in it: the device looks at them when it is closed. */
static struct {
	pthread_mutex_t lock;
	struct kvs_list pieces;
} left = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void leave_behind(struct kvs_send_piece *p)
{
	pthread_mutex_lock(&left.lock);
	if (!left.pieces.next)
		kvs_list_init(&left.pieces);
	kvs_list_add_tail(&left.pieces, &p->node);
	pthread_mutex_unlock(&left.lock);
}

/* ---- blocks ---- */

static void give(struct kvs_send_piece *p)
{
	struct kvs_send_ring *r = p->ring;
	size_t i;

	if (p->given)
		return;
	p->given = true;
	for (i = 0; i < p->n_iov; i++) {
		unsigned char *m = p->iov[i].iov_base;
		size_t at = (size_t)(m - r->mem) / KVS_SEND_RING_BLOCK;
		size_t n = (p->iov[i].iov_len + KVS_SEND_RING_BLOCK - 1) /
			   KVS_SEND_RING_BLOCK;

		memset(r->used + at, 0, n);
	}
	r->n_free += p->blocks;
}

/* How many stretches the next @n free blocks lie in. */
static size_t stretches(const struct kvs_send_ring *r, uint32_t n)
{
	uint32_t at = r->cursor;
	size_t found = 0;
	bool on = false;

	for (; n; at = (at + 1) % r->blocks) {
		if (!at)
			on = false;
		if (!r->used[at]) {
			found += !on;
			n--;
		}
		on = !r->used[at];
	}
	return found;
}

static void take(struct kvs_send_ring *r, struct kvs_send_piece *p)
{
	uint64_t left_over = p->len;
	uint32_t n = p->blocks;
	struct iovec *v = NULL;

	r->n_free -= n;
	for (; n; r->cursor = (r->cursor + 1) % r->blocks) {
		unsigned char *m =
			r->mem + (size_t)r->cursor * KVS_SEND_RING_BLOCK;
		uint64_t len = left_over < KVS_SEND_RING_BLOCK
				       ? left_over
				       : KVS_SEND_RING_BLOCK;

		if (r->used[r->cursor])
			continue;
		r->used[r->cursor] = 1;
		left_over -= len;
		n--;
		if (v && (unsigned char *)v->iov_base + v->iov_len == m) {
			v->iov_len += len;
			continue;
		}
		v = &p->iov[p->n_iov++];
		v->iov_base = m;
		v->iov_len = len;
	}
}

/* ---- life ---- */

static void look_at(struct kvs_send_ring *r)
{
	uint64_t ns = LOOK_NS;

	if (kvs_list_empty(&r->copying)) {
		if (kvs_list_empty(&r->lost))
			return;
		ns = LOOK_LOST_NS;
	}
	if (kvs_timer_set(r->o.timers, &r->look,
			  kvs_clock_now(r->o.clock) + ns))
		kvs_log_debug("sender: timer: out of memory");
}

static void look_due(struct kvs_timer *t)
{
	struct kvs_send_ring *r =
		kvs_container_of(t, struct kvs_send_ring, look);

	(void)kvs_send_ring_poll(r);
	look_at(r);
}

int kvs_send_ring_init(struct kvs_send_ring *r,
		       const struct kvs_send_ring_opts *o, char *err,
		       size_t errlen)
{
	char size[KVS_UNITS_BUF];
	void *mem;
	int rc;

	KVS_ASSERT(o->bytes >= KVS_SEND_RING_MIN &&
		   !(o->bytes % KVS_SEND_RING_BLOCK) &&
		   o->bytes / KVS_SEND_RING_BLOCK <= UINT32_MAX);
	*r = (struct kvs_send_ring){ .o = *o };
	kvs_list_init(&r->copying);
	kvs_list_init(&r->lost);
	kvs_timer_init(&r->look, look_due);
	r->blocks = (uint32_t)(o->bytes / KVS_SEND_RING_BLOCK);
	r->n_free = r->blocks;
	r->used = calloc(r->blocks, 1);
	mem = mmap(NULL, o->bytes, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	rc = -ENOMEM;
	if (!r->used || mem == MAP_FAILED) {
		snprintf(err, errlen,
			 "no memory here for a bounce ring of %s "
			 "(bounce_bytes)",
			 kvs_format_size(o->bytes, size));
		goto out;
	}
	/* advice only */
	(void)madvise(mem, o->bytes, MADV_HUGEPAGE);
	rc = kvs_device_register_host(o->device, mem, o->bytes, false);
	if (rc < 0) {
		snprintf(err, errlen,
			 "the device cannot register a bounce ring of %s: %s",
			 kvs_format_size(o->bytes, size), kvs_err_name(rc));
		goto out;
	}
	r->mem = mem;
	return 0;
out:
	if (mem != MAP_FAILED)
		(void)munmap(mem, o->bytes);
	free(r->used);
	*r = (struct kvs_send_ring){ 0 };
	return rc;
}

static void piece_free(struct kvs_send_piece *p)
{
	kvs_drain_fini(&p->drain);
	kvs_list_del(&p->node);
	free((void *)(uintptr_t)p->copy.runs);
	free(p->pages);
	free(p->iov);
	free(p);
}

static void piece_over(struct kvs_drain *d)
{
	struct kvs_send_piece *p =
		kvs_container_of(d, struct kvs_send_piece, drain);

	if (d->abandoned)
		return;
	give(p);
	piece_free(p);
}

static unsigned int abandon(struct kvs_send_ring *r, struct kvs_list *list)
{
	unsigned int n = 0;

	while (!kvs_list_empty(list)) {
		struct kvs_send_piece *p =
			kvs_list_first(list, struct kvs_send_piece, node);

		kvs_list_del(&p->node);
		kvs_drain_abandon(&p->drain);
		leave_behind(p);
		n++;
	}
	(void)r;
	return n;
}

void kvs_send_ring_fini(struct kvs_send_ring *r)
{
	char size[KVS_UNITS_BUF];
	unsigned int n;

	if (!r->mem)
		return;
	kvs_timer_cancel(r->o.timers, &r->look);
	(void)kvs_send_ring_poll(r);
	n = abandon(r, &r->copying) + abandon(r, &r->lost);
	if (n) {
		kvs_log_warn(
			"sender: %u copies from device %s may not be over: a "
			"bounce ring of %s is left until the process ends",
			n, kvs_device_name(r->o.device),
			kvs_format_size(r->o.bytes, size));
	} else {
		(void)kvs_device_unregister_host(r->o.device, r->mem,
						 r->o.bytes);
		(void)munmap(r->mem, r->o.bytes);
	}
	free(r->used);
	*r = (struct kvs_send_ring){ 0 };
}

/* ---- pieces ---- */

/* Nothing stops a copy that was started: no revoke. */
static const struct kvs_party_ops copy_ops = {
	.name = "copy to the bounce ring",
	.kind = KVS_PARTY_COPY,
};

int kvs_send_ring_get(struct kvs_send_ring *r, uint64_t len,
		      struct kvs_send_piece **ret)
{
	const struct kvs_drain_opts o = {
		.hold_timeout = HOLD_NS,
		.clock = r->o.clock,
		.timers = r->o.timers,
		.stats = &r->stats,
		.over = piece_over,
	};
	uint64_t n = (len + KVS_SEND_RING_BLOCK - 1) / KVS_SEND_RING_BLOCK;
	struct kvs_send_piece *p;

	KVS_ASSERT(len);
	if (n > r->blocks - r->n_lost)
		return -ENOSPC;
	if (n > r->n_free) {
		r->waits++;
		return -EAGAIN;
	}
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->iov = calloc(stretches(r, (uint32_t)n), sizeof(*p->iov));
	if (!p->iov) {
		free(p);
		return -ENOMEM;
	}
	p->ring = r;
	p->len = len;
	p->blocks = (uint32_t)n;
	kvs_list_init(&p->node);
	kvs_drain_init(&p->drain, &o);
	kvs_party_init(&p->party, &copy_ops, ++r->next_id);
	take(r, p);
	*ret = p;
	return 0;
}

/* Bytes [@at, @at + @len) of the items, to one stretch: an odd end, whole
 * items, an odd end. Return: behind the last run. */
static struct kvs_copy_run *runs_of(const struct kvs_send_from *f,
				    const uint32_t *pages, uint64_t first,
				    uint64_t at, const struct iovec *v,
				    struct kvs_copy_run *run)
{
	unsigned char *host = v->iov_base;
	uint64_t len = v->iov_len;

	while (len) {
		uint64_t item = at / f->item_len;
		uint64_t in = at % f->item_len;
		uint64_t n = len;

		*run = (struct kvs_copy_run){ .host = host, .n = 1 };
		if (in || len < f->item_len) {
			if (n > f->item_len - in)
				n = f->item_len - in;
			run->dev = (unsigned char *)f->base +
				   (uint64_t)pages[item - first] * f->item_len +
				   in;
			run->item_len = n;
		} else {
			run->n = len / f->item_len;
			n = run->n * f->item_len;
			run->dev = f->base;
			run->item_len = f->item_len;
			run->pages = pages + (item - first);
		}
		run++;
		host += n;
		at += n;
		len -= n;
	}
	return run;
}

/* The device reads its lists until the copy is over, whatever becomes of the
 * chunk: they are the piece's own. */
static int build(struct kvs_send_piece *p, const struct kvs_send_from *f)
{
	uint64_t first = f->at / f->item_len;
	uint64_t n = (f->at + f->len - 1) / f->item_len - first + 1;
	struct kvs_copy_run *runs = calloc(3 * p->n_iov, sizeof(*runs));
	struct kvs_copy_run *end = runs;
	uint64_t at = f->at;
	size_t i;

	p->pages = malloc(n * sizeof(*p->pages));
	p->copy.runs = runs;
	if (!runs || !p->pages)
		return -ENOMEM;
	memcpy(p->pages, f->items + first, n * sizeof(*p->pages));
	for (i = 0; i < p->n_iov; i++) {
		end = runs_of(f, p->pages, first, at, &p->iov[i], end);
		at += p->iov[i].iov_len;
	}
	p->copy.n_runs = (size_t)(end - runs);
	p->copy.dir = KVS_COPY_D2H;
	return 0;
}

int kvs_send_piece_copy(struct kvs_send_piece *p,
			const struct kvs_send_from *from)
{
	struct kvs_send_ring *r = p->ring;
	int rc;

	KVS_ASSERT(from->len == p->len && !p->copy.runs);
	rc = build(p, from);
	if (rc)
		return rc;
	/* before it can write (R13) */
	rc = kvs_drain_join(&p->drain, &p->party);
	KVS_ASSERT(!rc);
	p->copied = r->o.copied;
	rc = kvs_device_copy(r->o.device, &p->copy);
	if (rc) {
		kvs_party_leave(&p->party, KVS_PROOF_NEVER_GRANTED);
		return rc;
	}
	if (kvs_list_empty(&r->copying))
		r->head_at = kvs_clock_now(r->o.clock);
	kvs_list_add_tail(&r->copying, &p->node);
	r->copies++;
	if (!kvs_timer_is_set(&r->look) || r->copying.next == &p->node)
		look_at(r);
	return 0;
}

void kvs_send_piece_put(struct kvs_send_piece *p)
{
	KVS_ASSERT(!p->put);
	p->put = true;
	if (!KVS_RULE(R13, BOUNCE))
		give(p);
	/* may free it */
	kvs_drain_arm(&p->drain);
}

/* ---- polling ---- */

static void copy_over(struct kvs_send_ring *r, struct kvs_send_piece *p, int rc)
{
	void (*copied)(struct kvs_send_piece * p, int status) =
		p->put ? NULL : p->copied;

	kvs_list_del(&p->node);
	if (!rc)
		r->copied_bytes += p->len;
	/* frees a piece that was put */
	kvs_party_leave(&p->party, KVS_PROOF_COPY_EVENT);
	if (copied)
		copied(p, rc);
}

/* Not waited for any more; not over either. */
static void lose(struct kvs_send_ring *r, struct kvs_send_piece *p, int err)
{
	bool put = p->put;

	kvs_list_del(&p->node);
	kvs_list_add_tail(&r->lost, &p->node);
	r->n_lost += p->blocks;
	/* armed or not, it is quarantined then: no proof can be asked for */
	(void)kvs_drain_poison(&p->drain, KVS_PARTY_COPY, p->party.id);
	if (!put)
		p->copied(p, err);
}

static unsigned int late_proofs(struct kvs_send_ring *r)
{
	struct kvs_send_piece *p, *tmp;
	unsigned int n = 0;

	kvs_list_for_each_entry_safe(p, tmp, &r->lost, node) {
		if (kvs_device_query(r->o.device, &p->copy) == -EINPROGRESS)
			continue;
		r->n_lost -= p->blocks;
		kvs_list_del(&p->node);
		kvs_party_leave(&p->party, KVS_PROOF_COPY_EVENT);
		n++;
	}
	return n;
}

/* Why the copy at the head is not to be waited for, or 0. */
static int hopeless(struct kvs_send_ring *r, uint64_t now)
{
	struct kvs_device_info info;

	if (r->limit && now - r->head_at > r->limit)
		return -ETIMEDOUT;
	if (now - r->looked_at < HEALTH_NS)
		return 0;
	r->looked_at = now;
	kvs_device_info(r->o.device, &info);
	return info.sticky ? -EIO : 0;
}

unsigned int kvs_send_ring_poll(struct kvs_send_ring *r)
{
	struct kvs_send_piece *p;
	unsigned int n = 0;
	uint64_t now;
	int rc;

	while (!kvs_list_empty(&r->copying)) {
		p = kvs_list_first(&r->copying, struct kvs_send_piece, node);
		now = kvs_clock_now(r->o.clock);
		rc = kvs_device_query(r->o.device, &p->copy);
		if (rc != -EINPROGRESS) {
			r->head_at = now;
			copy_over(r, p, rc);
			n++;
			continue;
		}
		rc = hopeless(r, now);
		if (!rc)
			break;
		r->head_at = now;
		r->looked_at = 0;
		lose(r, p, rc);
		n++;
	}
	return n + late_proofs(r);
}

uint64_t kvs_send_ring_quarantined(const struct kvs_send_ring *r)
{
	return (uint64_t)r->n_lost * KVS_SEND_RING_BLOCK;
}
