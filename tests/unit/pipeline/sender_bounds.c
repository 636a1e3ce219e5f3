/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims about what one hung call can strand, over real TCP: no more bytes of
 * a room are launched and not completed than max_batch_bytes, the smaller of
 * the sender's own and the one that came with the grant, while all of them
 * arrive and other rooms go on; a receiver that stops reading makes the chunk
 * a failed send after call_timeout, with which the connection goes, the room
 * is poisoned and answers a negative acknowledgement, and none of its later
 * chunks leaves the queue; rooms opened later go over new connections.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/clock.h"
#include "tests/unit/pipeline/sender_rig.h"

#define PAGE (1u << 20) /* bytes; far over what socket buffers hold */
#define PAGES 32
#define FEW 12

static const struct kvs_layer_buffer big[] = { { KVS_BUFFER_K, 0, PAGE, 0 } };
static uint32_t map[PAGES];

static struct rig *new_rig(void)
{
	struct kvs_rng rng;
	struct rig *g;
	uint32_t i;

	kvs_rng_init(&rng, 17);
	g = rig_new(big, 1, 16, PAGES, &rng);
	for (i = 0; i < PAGES; i++)
		map[i] = PAGES - 1 - i;
	g->o.chunk_max = PAGE;
	g->o.window = 64ULL * PAGE;
	/* one, so that it is known how much the kernel takes */
	g->o.data_connections = 1;
	g->rcvbuf = 65536;
	return g;
}

static struct kvs_send_room *open_room(struct rig *g, uint64_t id,
				       uint32_t pages, struct rig_room **ret)
{
	struct kvs_send_room *r;
	struct kvs_msg m;

	assert_int_equal(kvs_send_open(g->s, id, NULL, pages * 16, g, &r), 0);
	rig_expect(g, KVS_WIRE_OPEN, &m);
	*ret = rig_room_new(g, id, 100 + id, pages * 16, 4 * 16, 0, 1, 0);
	rig_grant(g, *ret);
	return r;
}

struct bound {
	struct kvs_send_room *r;
	struct rig_room *w;
	uint32_t most; /* chunks outstanding */
};

/* Also: every byte is here. Looks before each piece that is received. */
static bool bounded(struct rig *g, void *arg)
{
	struct bound *b = arg;
	uint32_t n = kvs_send_outstanding(b->r);

	(void)g;
	if (n > b->most)
		b->most = n;
	return b->w->bytes == (uint64_t)FEW * PAGE;
}

/* What the kernel has taken counts as completed, wherever it is. */
static uint64_t kernel_holds(const struct rig *g)
{
	FILE *f = fopen("/proc/sys/net/ipv4/tcp_wmem", "re");
	unsigned long long min, def, max;

	assert_non_null(f);
	assert_int_equal(fscanf(f, "%llu %llu %llu", &min, &def, &max), 3);
	fclose(f);
	/* a kernel doubles what it is asked for */
	return max + 2 * (uint64_t)g->rcvbuf;
}

struct pair {
	struct kvs_send_room *stuck;
	uint32_t want;
};

static bool outstanding_is(struct rig *g, void *arg)
{
	struct pair *p = arg;

	(void)g;
	return kvs_send_outstanding(p->stuck) == p->want;
}

static void batch(uint64_t own, uint64_t told, uint64_t chunk,
		  uint32_t most_chunks, uint32_t most_len)
{
	struct rig *g = new_rig();
	struct bound b = { 0 };
	struct kvs_msg m;
	struct pair p;

	g->o.max_batch_bytes = own;
	g->batch_bytes = told;
	g->o.chunk_max = chunk;
	g->hold = true;
	rig_start(g);
	b.r = open_room(g, 1, FEW, &b.w);
	assert_int_equal(kvs_send_pages(b.r, 0, map, FEW, NULL), 0);
	assert_int_equal(kvs_send_finish(b.r), 0);
	/* all that may be launched is, and no more */
	if (kernel_holds(g) < (FEW - 4ULL) * PAGE) {
		p = (struct pair){ b.r, most_chunks };
		rig_serve_until(g, outstanding_is, &p);
		rig_quiet(g);
		assert_int_equal(kvs_send_outstanding(b.r), most_chunks);
	}
	g->hold = false;
	rig_serve_until(g, bounded, &b);
	rig_expect(g, KVS_WIRE_LAST, &m);
	rig_finish_last(g, b.w, &m);
	assert_int_equal(rig_wait(g, RIG_DONE, 1, 0).status, 0);
	rig_check_pages(g, b.w, map);
	assert_true(b.most <= most_chunks);
	assert_in_range(g->chunk_most, 1, most_len);
	kvs_send_close(b.r);
	rig_free(g);
}

static void never_more_than_the_batch(void **state)
{
	(void)state;
	/* the sender's own, the daemon's, and the smaller of both */
	batch(3 * PAGE, 0, PAGE, 3, PAGE);
	batch(0, 2 * PAGE, PAGE, 2, PAGE);
	batch(5 * PAGE, 2 * PAGE, PAGE, 2, PAGE);
	batch(2 * PAGE, 5 * PAGE, PAGE, 2, PAGE);
	/* a chunk is no larger than a batch */
	batch(0, PAGE, 8 * PAGE, 1, PAGE);
	/* nor need it hold a page */
	batch(0, PAGE / 2 + 1, 8 * PAGE, 1, PAGE / 2 + 1);
	/* what does not fill the batch waits for a whole chunk */
	batch(0, 3 * PAGE / 2, PAGE, 1, PAGE);
}

/* What one room may launch is its own: a full one leaves the window to
 * another, whose chunks are queued behind. */
static void others_go_on(void **state)
{
	struct pair p = { .want = 2 };
	struct rig *g = new_rig();
	struct kvs_send_room *b;
	struct rig_room *wa, *wb;
	struct kvs_msg m;

	(void)state;
	g->batch_bytes = 2 * PAGE;
	g->hold = true;
	rig_start(g);
	p.stuck = open_room(g, 1, FEW, &wa);
	assert_int_equal(kvs_send_pages(p.stuck, 0, map, FEW, NULL), 0);
	rig_serve_until(g, outstanding_is, &p);
	b = open_room(g, 2, FEW, &wb);
	assert_int_equal(kvs_send_pages(b, 0, map, FEW, NULL), 0);
	rig_wait_outstanding(g, b, true);
	assert_int_equal(kvs_send_outstanding(p.stuck), 2);
	g->hold = false;
	assert_int_equal(kvs_send_finish(b), 0);
	assert_int_equal(kvs_send_finish(p.stuck), 0);
	rig_expect(g, KVS_WIRE_LAST, &m);
	rig_finish_last(g, m.last.room == 1 ? wa : wb, &m);
	rig_expect(g, KVS_WIRE_LAST, &m);
	rig_finish_last(g, m.last.room == 1 ? wa : wb, &m);
	assert_int_equal(rig_wait(g, RIG_DONE, 1, 0).status, 0);
	assert_int_equal(rig_wait(g, RIG_DONE, 2, 0).status, 0);
	rig_check_pages(g, wa, map);
	rig_check_pages(g, wb, map);
	kvs_send_close(p.stuck);
	kvs_send_close(b);
	rig_free(g);
}

static void expect_answer(struct rig *g, enum kvs_wire_type type, uint64_t id)
{
	struct kvs_msg m;

	rig_expect(g, type, &m);
	assert_int_equal(m.abort.room, id);
	assert_int_equal(m.abort.generation, 100 + id);
	if (type == KVS_WIRE_ABORT)
		assert_int_equal(m.abort.err, ETIMEDOUT);
	if (type == KVS_WIRE_ABORT_NAK)
		assert_int_equal(m.abort.err, ETIMEDOUT);
}

static bool no_data(struct rig *g, void *arg)
{
	(void)arg;
	return !g->n_data;
}

static void hung(uint64_t own, uint32_t told_ms)
{
	struct rig *g = new_rig();
	struct kvs_send_room *r, *later;
	struct rig_room *w, *wl;
	struct rig_event e;
	unsigned int before;
	uint64_t torn;

	if (kernel_holds(g) > (PAGES - 8ULL) * PAGE) {
		rig_free(g);
		print_message("tcp_wmem is too large here\n");
		skip();
	}
	g->batch_bytes = 2 * PAGE;
	g->o.call_timeout = own;
	g->call_timeout_ms = told_ms;
	g->hold = true;
	rig_start(g);
	r = open_room(g, 1, PAGES, &w);
	assert_int_equal(kvs_send_pages(r, 0, map, PAGES, NULL), 0);
	/* the daemon hears of it, with the reason */
	expect_answer(g, KVS_WIRE_ABORT, 1);
	e = rig_wait(g, RIG_DONE, 1, 0);
	assert_int_equal(e.status, -ETIMEDOUT);
	if (!strstr(e.text, "transfer.call_timeout"))
		fail_msg("\"%s\" does not name the limit", e.text);
	assert_int_equal(kvs_send_outstanding(r), 0);
	assert_int_equal(rig_wait(g, RIG_FREE, 1, 0).status, -ETIMEDOUT);
	/* not a finished send, however often it is asked and for how long */
	rig_abort(g, 1, 101);
	expect_answer(g, KVS_WIRE_ABORT_NAK, 1);
	kvs_send_close(r);
	rig_abort(g, 1, 101);
	expect_answer(g, KVS_WIRE_ABORT_NAK, 1);
	/* reading on finds what was launched at most, and the end */
	g->hold = false;
	rig_serve_until(g, no_data, NULL);
	torn = w->bytes;
	assert_true(torn <= 2 * PAGE + kernel_holds(g));
	assert_true(torn < (uint64_t)PAGES * PAGE);
	if (own && own < KVS_NSEC_PER_SEC)
		goto out; /* a limit that a slow machine breaks */
	before = g->accepted;
	g->call_timeout_ms = 0;
	later = open_room(g, 2, FEW, &wl);
	assert_int_equal(kvs_send_pages(later, 0, map, FEW, NULL), 0);
	assert_int_equal(kvs_send_finish(later), 0);
	rig_finish_room(g, wl);
	assert_int_equal(rig_wait(g, RIG_DONE, 2, 0).status, 0);
	rig_check_pages(g, wl, map);
	assert_true(g->accepted > before);
	assert_int_equal(w->bytes, torn);
	kvs_send_close(later);
out:
	rig_free(g);
}

static void hung_call_is_a_failed_send(void **state)
{
	(void)state;
	hung(100 * KVS_NSEC_PER_MSEC, 0);
	hung(0, 100);
	hung(KVS_NSEC_PER_SEC * 3600, 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(never_more_than_the_batch),
		cmocka_unit_test(others_go_on),
		cmocka_unit_test(hung_call_is_a_failed_send),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
