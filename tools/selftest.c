/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/selftest.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kvstage/device.h"
#include "kvstage/engine.h"
#include "lib/clock.h"
#include "lib/err.h"
#include "lib/random.h"
#include "tools/selftest_writer.h"

#define LAYERS 2u /* a rank sends one */
#define ITEM (64u << 10) /* bytes of a page in a layer */
#define TOKENS 16u /* of a page */
#define ROOMS 4u /* of a round: two victims, two survivors */
#define VICTIMS 2u

/* conn 0 of each rank stops in the middle of a chunk, conn 1 never does */
#define STUCK 0u
#define FREE 1u

static struct kvs_layer_buffer buffers[LAYERS] = {
	{ KVS_BUFFER_KV, 0, ITEM, 0 },
	{ KVS_BUFFER_KV, 1, ITEM, 0 },
};
static const struct kvs_layout layout = {
	.size = sizeof(layout),
	.page_size = TOKENS,
	.dtype = KVS_DTYPE_BF16,
	.n_buffers = LAYERS,
	.buffers = buffers,
};

struct room {
	uint64_t id;
	unsigned char nonce[16];
	uint32_t number; /* in the run */
	bool admitted;
	kvs_handle h;
	struct kvs_writer_room w[LAYERS]; /* by rank */
};

struct selftest {
	const struct kvs_selftest_opts *o;
	struct kvs_selftest_result *res;
	char peer[KVS_PEER_NAME];
	uint64_t run;
	uint32_t pages; /* of a room */
	uint32_t numbers; /* rooms so far */
	struct kvs_engine *engine;
	struct kvs_device *device;
	void *tensors[LAYERS]; /* pages of both survivors */
	unsigned char *page;
	struct kvs_writer writers[LAYERS];
	struct room rooms[ROOMS];
	char *err;
	size_t errlen;
};

static int say(struct selftest *t, int ret, const char *text)
{
	snprintf(t->err, t->errlen, "%s", text);
	return ret;
}

/* A writer's call: its message is ours. */
static int wrote(struct selftest *t, unsigned int rank, int ret)
{
	return ret < 0 ? say(t, ret, t->writers[rank].err) : 0;
}

/* ---- the engine's side ---- */

/* Daemon's answers to rooms it has no place for now, or ever. */
static bool no_place(int err)
{
	return err == EAGAIN || err == E2BIG || err == ETIME || err == ENXIO ||
	       err == ESHUTDOWN;
}

static int room_failed(struct selftest *t, struct room *r)
{
	struct kvs_failure why = { .err = EIO };

	if (kvs_engine_failure(t->engine, &r->h, &why))
		return say(t, -EIO, "a room failed and nobody says why");
	snprintf(t->err, t->errlen, "room %llu: %s", (unsigned long long)r->id,
		 why.text);
	return no_place(why.err) ? -EAGAIN : -why.err;
}

/* Until the room is in @want or beyond. */
static int await(struct selftest *t, struct room *r, enum kvs_status want)
{
	struct pollfd p = { .fd = kvs_engine_fd(t->engine), .events = POLLIN };
	uint64_t until = kvs_clock_now(&kvs_clock_real) +
			 t->o->seconds * KVS_NSEC_PER_SEC;
	enum kvs_status st;

	for (;;) {
		if (kvs_engine_progress(t->engine) < 0)
			return say(t, -ECONNRESET, "the daemon is gone");
		st = kvs_engine_poll(t->engine, &r->h, NULL);
		if (st == want)
			return 0;
		if (st == KVS_STATUS_FAILED)
			return room_failed(t, r);
		/* others wait as well: not our place to take */
		if (st == KVS_STATUS_WAITING)
			return say(t, -EAGAIN,
				   "no memory is free: rooms wait for it");
		if (want != KVS_STATUS_FAILED && st > want)
			return 0;
		if (kvs_clock_now(&kvs_clock_real) > until) {
			snprintf(t->err, t->errlen,
				 "room %llu: nothing happened for %u s",
				 (unsigned long long)r->id, t->o->seconds);
			return -ETIMEDOUT;
		}
		(void)poll(&p, 1, 1);
	}
}

static int room_admit(struct selftest *t, struct room *r)
{
	static const struct kvs_rank_slice ranks[LAYERS] = { { 0, 1 },
							     { 1, 1 } };
	struct kvs_admit a = { .size = sizeof(a),
			       .peer = t->peer,
			       .tokens = (uint64_t)t->pages * TOKENS,
			       .n_ranks = LAYERS,
			       .ranks = ranks,
			       .node = t->o->node };
	int ret;

	*r = (struct room){ .number = ++t->numbers };
	ret = kvs_random_id(&r->id);
	if (!ret)
		ret = kvs_random_fill(r->nonce, sizeof(r->nonce));
	if (ret)
		return say(t, ret, "no random numbers");
	a.room = r->id;
	memcpy(a.nonce, r->nonce, sizeof(a.nonce));
	ret = kvs_engine_admit(t->engine, &a, &r->h);
	if (ret)
		return say(t, ret, "admit");
	r->admitted = true;
	ret = await(t, r, KVS_STATUS_ADMITTED);
	for (unsigned int i = 0; !ret && i < LAYERS; i++)
		ret = wrote(t, i,
			    kvs_writer_room(&t->writers[i], r->id, r->nonce,
					    r->number, a.tokens, &r->w[i]));
	return ret;
}

/* Harmless for one that is over or was never admitted. */
static void room_end(struct selftest *t, struct room *r)
{
	for (unsigned int i = 0; i < LAYERS; i++)
		kvs_writer_room_fini(&r->w[i]);
	if (!r->admitted)
		return;
	(void)kvs_engine_abort(t->engine, &r->h);
	(void)kvs_engine_progress(t->engine);
	(void)kvs_engine_release(t->engine, &r->h);
	r->admitted = false;
}

static int room_commit(struct selftest *t, struct room *r, unsigned int nth)
{
	uint32_t *pages = calloc(t->pages, sizeof(*pages));
	struct kvs_commit c = { .size = sizeof(c),
				.device = t->device,
				.buffers = t->tensors,
				.pages = pages,
				.n_pages = t->pages };
	int ret;

	if (!pages)
		return say(t, -ENOMEM, "out of memory");
	for (uint32_t p = 0; p < t->pages; p++)
		pages[p] = nth * t->pages + p;
	ret = kvs_engine_commit(t->engine, &r->h, &c);
	free(pages);
	return ret ? say(t, ret, "commit") : await(t, r, KVS_STATUS_DONE);
}

/* ---- marks ---- */

static void fault(struct selftest *t, const struct room *r, uint32_t layer,
		  uint32_t page)
{
	const struct kvs_marks_found *f = &t->res->found;
	uint32_t first = (layer * t->pages + page) * (ITEM / KVS_MARK);
	size_t n;

	snprintf(t->res->where, sizeof(t->res->where),
		 "room %llu buffer %u page %u offset %u: %s mark",
		 (unsigned long long)r->id, layer, page,
		 (f->first_at - first) * KVS_MARK,
		 kvs_mark_fault_name[f->first]);
	n = strlen(t->res->where);
	if (f->first == KVS_MARK_FOREIGN)
		snprintf(t->res->where + n, sizeof(t->res->where) - n,
			 ", of the test's room number %u (this is %u)",
			 f->first_room, r->number);
}

static int room_check(struct selftest *t, const struct room *r,
		      unsigned int nth)
{
	uint32_t at = 0;

	for (uint32_t l = 0; l < LAYERS; l++) {
		for (uint32_t p = 0; p < t->pages; p++, at += ITEM / KVS_MARK) {
			uint64_t from = (uint64_t)(nth * t->pages + p) * ITEM;
			int ret = kvs_device_peek(
				t->device, t->page,
				(const char *)t->tensors[l] + from, ITEM);

			if (ret)
				return say(t, ret, "read of what was copied");
			if (kvs_marks_check(t->page, ITEM, t->run, r->number,
					    at, &t->res->found) &&
			    !t->res->where[0])
				fault(t, r, l, p);
			t->res->bytes += ITEM;
		}
	}
	t->res->checked++;
	return 0;
}

/* ---- a round ---- */

/* Both ranks write both victims, and each stops in a chunk of another one. */
static int stop_in_the_middle(struct selftest *t)
{
	const struct timespec nap = { 0, 10 * 1000 * 1000 };
	int ret = 0;

	for (unsigned int i = 0; !ret && i < LAYERS; i++) {
		struct kvs_writer *w = &t->writers[i];

		ret = wrote(t, i,
			    kvs_writer_chunk(w, &t->rooms[i].w[i], STUCK, 50));
		if (!ret)
			ret = wrote(t, i,
				    kvs_writer_chunk(w, &t->rooms[!i].w[i],
						     FREE, 100));
		if (!ret)
			ret = wrote(t, i, kvs_writer_sync(w, FREE));
	}
	/* nobody tells that half a chunk was received */
	if (!ret)
		(void)nanosleep(&nap, NULL);
	return ret;
}

static int go_on(struct selftest *t, unsigned int part)
{
	int ret = 0;

	for (unsigned int i = 0; !ret && i < LAYERS; i++)
		ret = wrote(t, i,
			    kvs_writer_go_on(&t->writers[i], &t->rooms[i].w[i],
					     part));
	return ret;
}

/* A whole chunk for a room that is over, then all of it is out. */
static int late(struct selftest *t)
{
	int ret = go_on(t, 100);

	for (unsigned int i = 0; !ret && i < LAYERS; i++) {
		struct kvs_writer *w = &t->writers[i];

		ret = wrote(t, i,
			    kvs_writer_chunk(w, &t->rooms[!i].w[i], FREE, 100));
		if (!ret)
			ret = wrote(t, i, kvs_writer_sync(w, STUCK));
		if (!ret)
			ret = wrote(t, i, kvs_writer_sync(w, FREE));
		for (unsigned int k = 0; !ret && k < VICTIMS; k++)
			ret = wrote(t, i,
				    kvs_writer_acknowledge(w,
							   &t->rooms[k].w[i]));
	}
	return ret;
}

static int victims(struct selftest *t)
{
	int ret = 0;

	for (unsigned int i = 0; !ret && i < VICTIMS; i++)
		ret = room_admit(t, &t->rooms[i]);
	if (!ret)
		ret = stop_in_the_middle(t);
	for (unsigned int i = 0; !ret && i < VICTIMS; i++) {
		ret = kvs_engine_abort(t->engine, &t->rooms[i].h);
		if (ret)
			return say(t, ret, "abort");
		t->res->aborted++;
	}
	return ret;
}

static int survivors(struct selftest *t)
{
	unsigned int i, k;
	int ret = 0;

	for (i = VICTIMS; !ret && i < ROOMS; i++)
		ret = room_admit(t, &t->rooms[i]);
	if (!ret)
		ret = go_on(t, 75);
	for (i = VICTIMS; !ret && i < ROOMS; i++) {
		for (k = 0; !ret && k < LAYERS; k++)
			ret = wrote(t, k,
				    kvs_writer_finish(&t->writers[k],
						      &t->rooms[i].w[k], FREE));
	}
	for (i = VICTIMS; !ret && i < ROOMS; i++)
		ret = await(t, &t->rooms[i], KVS_STATUS_READY);
	if (!ret)
		ret = late(t);
	for (i = VICTIMS; !ret && i < ROOMS; i++)
		ret = room_commit(t, &t->rooms[i], i - VICTIMS);
	for (i = VICTIMS; !ret && i < ROOMS; i++)
		ret = room_check(t, &t->rooms[i], i - VICTIMS);
	return ret;
}

static int one_round(struct selftest *t)
{
	int ret = victims(t);

	if (!ret)
		ret = survivors(t);
	for (unsigned int i = 0; i < ROOMS; i++)
		room_end(t, &t->rooms[i]);
	if (!ret)
		t->res->rounds++;
	return ret;
}

/* ---- life ---- */

static int open_device(struct selftest *t)
{
	struct kvs_device_opts o = { .size = sizeof(o), .backend = "soft" };
	uint64_t len = (uint64_t)(ROOMS - VICTIMS) * t->pages * ITEM;
	int ret;

	ret = kvs_device_open(&o, &t->device, t->err, t->errlen);
	for (unsigned int i = 0; !ret && i < LAYERS; i++) {
		ret = kvs_device_alloc(t->device, len, &t->tensors[i]);
		if (ret)
			say(t, ret, "no memory to copy to");
	}
	return ret;
}

/* The first, so that its layout is known when the ranks come. */
static int attach(struct selftest *t)
{
	struct kvs_engine_opts o = { .size = sizeof(o),
				     .socket = t->o->engine_socket,
				     .name = t->peer,
				     .layout = &layout,
				     .node = -1,
				     .timeout =
					     t->o->seconds * KVS_NSEC_PER_SEC };
	int ret = kvs_engine_attach(&o, &t->engine, t->err, t->errlen);

	/* whatever it is, nothing was found out about the daemon's memory */
	return ret ? -EAGAIN : 0;
}

static int connect_ranks(struct selftest *t)
{
	for (unsigned int i = 0; i < LAYERS; i++) {
		struct kvs_writer *w = &t->writers[i];

		w->layout = &layout;
		w->peer = t->peer;
		w->run = t->run;
		w->rank = i;
		w->n_ranks = LAYERS;
		w->seconds = t->o->seconds;
		w->key_file = t->o->key_file;
		if (wrote(t, i, kvs_writer_open(w, t->o->daemon)))
			return -EAGAIN;
	}
	return 0;
}

static void tear_down(struct selftest *t)
{
	for (unsigned int i = 0; i < LAYERS; i++)
		kvs_writer_close(&t->writers[i]);
	kvs_engine_detach(t->engine);
	kvs_device_close(t->device);
	free(t->page);
}

int kvs_selftest(const struct kvs_selftest_opts *o,
		 struct kvs_selftest_result *ret, char *err, size_t errlen)
{
	struct selftest t = { .o = o, .res = ret, .err = err, .errlen = errlen };
	int r;

	*ret = (struct kvs_selftest_result){ 0 };
	for (unsigned int i = 0; i < LAYERS; i++) {
		t.writers[i].control = -1;
		for (unsigned int c = 0; c < KVS_WRITER_CONNS; c++)
			t.writers[i].data[c] = -1;
	}
	t.pages = (uint32_t)(o->bytes / ROOMS / (LAYERS * ITEM));
	t.page = malloc(ITEM);
	if (!t.page || !t.pages)
		r = say(&t, -ENOMEM, "out of memory");
	else
		r = kvs_random_id(&t.run);
	if (!r) {
		snprintf(t.peer, sizeof(t.peer), "kvstagectl-selftest-%d-%08x",
			 (int)getpid(), (unsigned int)t.run);
		r = open_device(&t);
	}
	if (!r)
		r = attach(&t);
	if (!r)
		r = connect_ranks(&t);
	for (unsigned int i = 0; !r && i < o->rounds; i++)
		r = one_round(&t);
	tear_down(&t);
	return r;
}
