/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, of a daemon with real sockets: a request that can never fit is
 * refused in the exchange that asked, before a room, a grant or a message to
 * the peer exists (sgl-project/sglang#30233), and does not wait for a timeout
 * (LMCache/LMCache#4209); one that fits exactly is admitted; one that does
 * not fit now waits or gets "busy"; a head that can never run does not stall
 * those behind it (sgl-project/sglang#31205); a room id that is live is
 * refused whoever asks (sgl-project/sglang#40125), so of 32 requests that
 * share one id a single one runs (ray-project/ray#63741); ids are compared
 * whole, up to the largest (sgl-project/sglang#26486); id 0 is refused. Rooms
 * that nobody sends do not keep those that are sent waiting; a peer that
 * passes its limits hears which, and others do not notice; a health check
 * each time succeeds under any load; memory that is held costs its own bytes
 * and nothing else (sgl-project/sglang#31217).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/regress/puppet_engine.h"
#include "tests/regress/puppet_sender.h"
#include "tests/regress/service_rig.h"

#define PAGE 4096u /* bytes */
#define PAGE_TOKENS 16u
#define PAGES 64u /* of the pool */

static struct kvs_layer_buffer plain_buffers[] = {
	{ KVS_BUFFER_K, 0, PAGE, 0 },
};
static const struct kvs_layout plain = {
	.size = sizeof(plain),
	.page_size = PAGE_TOKENS,
	.dtype = KVS_DTYPE_BF16,
	.n_buffers = 1,
	.buffers = plain_buffers,
};

/* A page of KV and, for every request, a state of two pages. */
static struct kvs_layer_buffer hybrid_buffers[] = {
	{ KVS_BUFFER_K, 0, PAGE, 0 },
	{ KVS_BUFFER_MAMBA, 1, PAGE, 2 },
};
static const struct kvs_layout hybrid = {
	.size = sizeof(hybrid),
	.page_size = PAGE_TOKENS,
	.dtype = KVS_DTYPE_BF16,
	.n_buffers = 2,
	.buffers = hybrid_buffers,
};

static struct rig g[1];

static void start(const char *queue)
{
	rig_init(g, "sock", "256K");
	if (queue)
		rig_set(g, "admission.queue", queue);
	rig_up(g);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_FREE), PAGES * PAGE);
}

/* One rank sends everything, the engine commits. */
static void finish(struct ps *p, struct pe *e, struct pe_room *r, uint64_t room,
		   uint64_t tokens, uint64_t seed)
{
	struct ps_room w;

	assert_int_equal(ps_open(p, room, tokens), 0);
	ps_granted(p, &w, seed, 16384);
	ps_finish(p, &w, 0);
	pe_take(e, r, tokens, 1, seed);
}

static void limit_is_exact(void **state)
{
	uint64_t limit = PAGES * PAGE_TOKENS;
	struct pe_room a, b, c;
	struct ps p;
	struct pe e;

	(void)state;
	start(NULL);
	pe_up(&e, g->set.engine_socket, &plain);
	ps_up(&p, g->port, "p", 0, 1, &plain);

	pe_admit(&e, &a, 0, 7, limit + 1, 1);
	pe_wait_failed(&e, &a, E2BIG);
	assert_int_equal(a.failure.class, 400);
	assert_non_null(strstr(a.failure.text, "pool.size"));
	rig_refresh(g);
	assert_int_equal(rig_admits(g, KVS_ADMIT_NOFIT), 1);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_FREE), PAGES * PAGE);
	assert_int_equal(rig_rooms(g), 0);
	ps_quiet(&p);
	assert_int_equal(rig_received(g), 0);

	/* the id and the slot are free at once */
	pe_admit(&e, &b, 0, 7, limit, 1);
	pe_wait(&e, &b, KVS_STATUS_ADMITTED);
	assert_int_equal(rig_rooms(g), 1);
	finish(&p, &e, &b, 7, limit, 1);

	/* far beyond: neither wraps nor waits */
	pe_admit(&e, &c, 1, 8, UINT64_MAX, 1);
	pe_wait_failed(&e, &c, E2BIG);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

/* sgl-project/sglang#30233: the engine's own limit is exact as well, and it
 * comes before anything of the room exists; so does a node without a pool. */
static void engine_limits_are_exact(void **state)
{
	struct kvs_layout small = plain;
	struct pe_room a, b;
	struct kvs_packet_admit *q;
	unsigned char buf[sizeof(*q) + sizeof(struct kvs_rank_slice)] = { 0 };
	struct pe e;

	(void)state;
	start(NULL);
	small.max_context = 40;
	small.capacity = 100;
	pe_up(&e, g->set.engine_socket, &small);
	pe_admit(&e, &a, 0, 1, 41, 1);
	pe_wait_failed(&e, &a, E2BIG);
	assert_non_null(strstr(a.failure.text, "max_context is 40"));
	pe_admit(&e, &b, 1, 1, 40, 1);
	pe_wait(&e, &b, KVS_STATUS_ADMITTED);
	rig_refresh(g);
	assert_int_equal(rig_admits(g, KVS_ADMIT_NOFIT), 1);
	assert_int_equal(rig_rooms(g), 1);

	q = (void *)buf;
	q->h = (struct kvs_packet){ KVS_ATTACH_MAGIC, KVS_PACKET_ADMIT };
	q->room = 2;
	memcpy(q->peer, "p", 2);
	q->tokens = 16;
	q->slot = 2;
	q->node = 9;
	q->n_ranks = 1;
	q->ranks[0].n_layers = 1;
	a = (struct pe_room){ .slot = 2 };
	e.rooms[2] = &a;
	assert_int_equal(pe_send(e.fd, buf, sizeof(buf), NULL, 0), 0);
	pe_wait_failed(&e, &a, ENXIO);
	assert_non_null(strstr(a.failure.text, "node: 9"));
	pe_down(&e);
	rig_down(g);
}

/* Rounding up to the next page decides, not the token. */
static void limit_counts_pages(void **state)
{
	struct pe_room a, b;
	struct pe e;

	(void)state;
	start(NULL);
	pe_up(&e, g->set.engine_socket, &plain);
	pe_admit(&e, &a, 0, 1, PAGES * PAGE_TOKENS - PAGE_TOKENS + 1, 1);
	pe_wait(&e, &a, KVS_STATUS_ADMITTED);
	rig_refresh(g);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_FREE), 0);
	pe_admit(&e, &b, 1, 2, PAGES * PAGE_TOKENS + 1, 1);
	pe_wait_failed(&e, &b, E2BIG);
	pe_down(&e);
	rig_down(g);
}

static void not_now_waits(void **state)
{
	struct pe_room a, b, c;
	struct ps p;
	struct pe e;

	(void)state;
	start(NULL);
	pe_up(&e, g->set.engine_socket, &plain);
	ps_up(&p, g->port, "p", 0, 1, &plain);
	pe_admit(&e, &a, 0, 1, PAGE_TOKENS, 1);
	pe_wait(&e, &a, KVS_STATUS_ADMITTED);
	pe_admit(&e, &b, 1, 2, PAGES * PAGE_TOKENS, 1);
	pe_wait(&e, &b, KVS_STATUS_WAITING);
	pe_admit(&e, &c, 2, 3, (PAGES + 1) * PAGE_TOKENS, 1);
	pe_wait_failed(&e, &c, E2BIG);
	rig_refresh(g);
	assert_int_equal(rig_admits(g, KVS_ADMIT_QUEUED), 1);
	assert_int_equal(g->snap->workers[0].rooms_waiting, 1);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_FREE), (PAGES - 1) * PAGE);
	finish(&p, &e, &a, 1, PAGE_TOKENS, 5);
	pe_wait(&e, &b, KVS_STATUS_ADMITTED);
	finish(&p, &e, &b, 2, PAGES * PAGE_TOKENS, 6);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

static void not_now_is_busy_without_a_queue(void **state)
{
	struct pe_room a, b;
	struct pe e;

	(void)state;
	start("0");
	pe_up(&e, g->set.engine_socket, &plain);
	pe_admit(&e, &a, 0, 1, PAGE_TOKENS, 1);
	pe_wait(&e, &a, KVS_STATUS_ADMITTED);
	pe_admit(&e, &b, 1, 2, PAGES * PAGE_TOKENS, 1);
	pe_wait_failed(&e, &b, EAGAIN);
	assert_int_equal(b.failure.class, 503);
	pe_abort(&e, &a);
	/* nothing but the memory was in its way */
	pe_admit(&e, &b, 1, 2, PAGES * PAGE_TOKENS, 1);
	pe_wait(&e, &b, KVS_STATUS_ADMITTED);
	pe_down(&e);
	rig_down(g);
}

static void impossible_head_stalls_nobody(void **state)
{
	struct pe_room head, small[20];
	struct ps p;
	struct pe e;

	(void)state;
	start(NULL);
	pe_up(&e, g->set.engine_socket, &hybrid);
	ps_up(&p, g->port, "p", 0, 1, &hybrid);
	/* its KV alone would fit; with its state it never does */
	pe_admit(&e, &head, 0, 1, (PAGES - 1) * PAGE_TOKENS, 1);
	for (uint32_t i = 0; i < 20; i++)
		pe_admit(&e, &small[i], 1 + i, 100 + i, PAGE_TOKENS, 1);
	pe_wait_failed(&e, &head, E2BIG);
	for (uint32_t i = 0; i < 20; i++)
		finish(&p, &e, &small[i], 100 + i, PAGE_TOKENS, i);
	rig_refresh(g);
	assert_int_equal(rig_admits(g, KVS_ADMIT_QUEUED), 0);
	assert_int_equal(rig_done(g), 20);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

static void duplicate_is_refused(void **state)
{
	struct pe_room a, same, other, again;
	struct ps p;
	struct pe e, f;

	(void)state;
	start(NULL);
	pe_up(&e, g->set.engine_socket, &plain);
	pe_up(&f, g->set.engine_socket, &plain);
	ps_up(&p, g->port, "p", 0, 1, &plain);
	pe_admit(&e, &a, 0, 42, 32, 1);
	pe_wait(&e, &a, KVS_STATUS_ADMITTED);
	pe_admit(&e, &same, 1, 42, 16, 1);
	pe_wait_failed(&e, &same, EEXIST);
	assert_int_equal(same.failure.class, 400);
	snprintf(f.peer, sizeof(f.peer), "another peer");
	pe_admit(&f, &other, 0, 42, 16, 1);
	pe_wait_failed(&f, &other, EEXIST);
	rig_refresh(g);
	assert_int_equal(rig_admits(g, KVS_ADMIT_DUPLICATE), 2);
	assert_int_equal(rig_rooms(g), 1);
	/* no grant before, none for the others after */
	ps_quiet(&p);
	finish(&p, &e, &a, 42, 32, 9);
	ps_quiet(&p);
	/* a finished room's id is free again */
	pe_admit(&e, &again, 1, 42, 16, 1);
	pe_wait(&e, &again, KVS_STATUS_ADMITTED);
	assert_true(again.generation > a.generation);
	finish(&p, &e, &again, 42, 16, 10);
	ps_down(&p);
	pe_down(&f);
	pe_down(&e);
	rig_down(g);
}

static void shared_id_runs_once(void **state)
{
	struct pe_room r[32];
	unsigned int admitted = 0, refused = 0;
	struct ps p;
	struct pe e;

	(void)state;
	start(NULL);
	pe_up(&e, g->set.engine_socket, &plain);
	ps_up(&p, g->port, "p", 0, 1, &plain);
	for (uint32_t i = 0; i < 32; i++)
		pe_admit(&e, &r[i], i, 77, PAGE_TOKENS * (1 + i % 3), 1);
	for (uint32_t i = 0; i < 32; i++) {
		uint64_t until = rig_until();
		enum kvs_status st;

		while ((st = pe_status(&e, &r[i])) == KVS_STATUS_PENDING)
			rig_pause(until, "an answer", __FILE__, __LINE__);
		assert_true(pe_pump(&e));
		if (st == KVS_STATUS_FAILED) {
			assert_int_equal(r[i].failure.err, EEXIST);
			refused++;
		} else {
			admitted++;
		}
	}
	assert_int_equal(admitted, 1);
	assert_int_equal(refused, 31);
	finish(&p, &e, &r[0], 77, PAGE_TOKENS, 3);

	for (uint32_t i = 0; i < 32; i++)
		pe_admit(&e, &r[i], i, 0, PAGE_TOKENS, 1);
	for (uint32_t i = 0; i < 32; i++)
		pe_wait_failed(&e, &r[i], EINVAL);
	assert_non_null(strstr(r[0].failure.text, "room: 0"));
	assert_int_equal(rig_rooms(g), 0);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

static void ids_are_whole_numbers(void **state)
{
	/* equal in their low and in their high halves */
	static const uint64_t ids[] = {
		UINT64_MAX, UINT64_MAX - 1, UINT64_MAX >> 32,
		1ULL << 32, 1ULL << 63,	    1,
	};
	struct pe_room r[KVS_ARRAY_SIZE(ids)];
	struct ps p;
	struct pe e;

	(void)state;
	start(NULL);
	pe_up(&e, g->set.engine_socket, &plain);
	ps_up(&p, g->port, "p", 0, 1, &plain);
	for (uint32_t i = 0; i < KVS_ARRAY_SIZE(ids); i++) {
		pe_admit(&e, &r[i], i, ids[i], 16 + i, 1);
		pe_wait(&e, &r[i], KVS_STATUS_ADMITTED);
	}
	for (uint32_t i = KVS_ARRAY_SIZE(ids); i-- > 0;)
		finish(&p, &e, &r[i], ids[i], 16 + i, ids[i]);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

/* sgl-project/sglang#30233, with its numbers: nine tokens over. */
static void limit_at_a_real_context(void **state)
{
	static struct kvs_layer_buffer b[] = { { KVS_BUFFER_KV, 0, PAGE, 0 } };
	static const struct kvs_layout l = { .size = sizeof(l),
					     .page_size = 64,
					     .dtype = KVS_DTYPE_BF16,
					     .n_buffers = 1,
					     .buffers = b };
	struct pe_room over, at;
	struct ps p;
	struct pe e;

	(void)state;
	/* 4,452 pages of 64 tokens */
	rig_init(g, "sock", "18235392");
	/* in so many pieces as a READY of the puppet takes */
	rig_set(g, "extent.tokens", "16384");
	rig_up(g);
	pe_up(&e, g->set.engine_socket, &l);
	ps_up(&p, g->port, "p", 0, 1, &l);
	pe_admit(&e, &over, 0, 1, 284937, 1);
	pe_wait_failed(&e, &over, E2BIG);
	assert_int_equal(over.failure.class, 400);
	assert_non_null(strstr(over.failure.text, "284937 tokens"));
	ps_quiet(&p);
	rig_refresh(g);
	assert_int_equal(rig_admits(g, KVS_ADMIT_NOFIT), 1);
	assert_int_equal(rig_rooms(g), 0);
	assert_int_equal(rig_received(g), 0);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_FREE), 4452 * PAGE);
	pe_admit(&e, &at, 0, 1, 284928, 1);
	finish(&p, &e, &at, 1, 284928, 3);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

/* sgl-project/sglang#31217: one page in the middle is held all the time. */
static void a_hold_costs_its_own_bytes(void **state)
{
	struct pe_room r[PAGES];
	struct ps_room held;
	struct kvs_msg m;
	struct ps p, q;
	struct pe e;

	(void)state;
	rig_init(g, "sock", "256K");
	rig_set(g, "hold.require_ack", "yes");
	rig_set(g, "hold.timeout", "60s");
	rig_up(g);
	pe_up(&e, g->set.engine_socket, &plain);
	ps_up(&p, g->port, "p", 0, 1, &plain);
	ps_up(&q, g->port, "q", 0, 1, &plain);
	for (uint32_t i = 0; i < PAGES; i++) {
		snprintf(e.peer, sizeof(e.peer), "%s",
			 i == PAGES / 2 ? "q" : "p");
		pe_admit(&e, &r[i], i, 1 + i, PAGE_TOKENS, 1);
		pe_wait(&e, &r[i], KVS_STATUS_ADMITTED);
	}
	assert_int_equal(ps_open(&q, 1 + PAGES / 2, PAGE_TOKENS), 0);
	ps_granted(&q, &held, 1, PAGE);
	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(pe_say(&e, KVS_PACKET_ABORT, &r[i], 0), 0);
	for (uint32_t i = 0; i < PAGES; i++)
		pe_wait_failed(&e, &r[i], ECANCELED);
	ps_expect(&q, KVS_WIRE_ABORT, &m);
	rig_wait(g,
		 rig_bytes(g, KVS_EXTENT_HELD) == PAGE &&
			 rig_bytes(g, KVS_EXTENT_FREE) == (PAGES - 1) * PAGE);
	snprintf(e.peer, sizeof(e.peer), "p");
	for (unsigned int round = 0; round < 10; round++) {
		for (uint32_t i = 0; i < PAGES - 1; i++)
			pe_admit(&e, &r[i], i, 1000 + i, PAGE_TOKENS, 1);
		for (uint32_t i = 0; i < PAGES - 1; i++)
			finish(&p, &e, &r[i], 1000 + i, PAGE_TOKENS, i);
	}
	rig_refresh(g);
	assert_int_equal(rig_done(g), 630);
	assert_int_equal(rig_admits(g, KVS_ADMIT_QUEUED), 0);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_HELD), PAGE);
	assert_int_equal(ps_answer(&q, KVS_WIRE_ABORT_ACK, m.abort.room,
				   m.abort.generation),
			 0);
	ps_room_fini(&held);
	ps_down(&q);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

/* An engine admits three pools full and its ranks begin with the last: what is
 * being sent gets the memory of what is not. */
static void unsent_rooms_fill_nothing(void **state)
{
	struct pe_room r[12];
	struct ps p;
	struct pe e;

	(void)state;
	start(NULL);
	pe_up(&e, g->set.engine_socket, &plain);
	ps_up(&p, g->port, "p", 0, 1, &plain);
	for (uint32_t i = 0; i < 12; i++)
		pe_admit(&e, &r[i], i, 1 + i, 16 * PAGE_TOKENS, 1);
	for (uint32_t i = 0; i < 4; i++)
		pe_wait(&e, &r[i], KVS_STATUS_ADMITTED);
	pe_wait(&e, &r[11], KVS_STATUS_WAITING);
	for (uint32_t i = 12; i-- > 0;)
		finish(&p, &e, &r[i], 1 + i, 16 * PAGE_TOKENS, i);
	rig_refresh(g);
	assert_int_equal(rig_done(g), 12);
	assert_true(g->snap->workers[0].stats.loans_called >= 1);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_FREE), PAGES * PAGE);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

static void limits_of_one_peer(void **state)
{
	struct pe_room a, b, c;
	struct ps p;
	struct pe e, f;

	(void)state;
	rig_init(g, "sock", "256K");
	rig_set(g, "admission.peer_rooms", "2");
	rig_set(g, "admission.peer_bytes", "64K");
	rig_up(g);
	pe_up(&e, g->set.engine_socket, &plain);
	pe_admit(&e, &a, 0, 1, 10 * PAGE_TOKENS, 1);
	pe_wait(&e, &a, KVS_STATUS_ADMITTED);
	pe_admit(&e, &b, 1, 2, 7 * PAGE_TOKENS, 1);
	pe_wait_failed(&e, &b, EAGAIN);
	assert_int_equal(b.failure.class, 503);
	assert_string_equal(b.failure.text,
			    "peer p has 40960 bytes and asks for 28672 more, "
			    "admission.peer_bytes is 65536");
	assert_in_range(b.failure.retry_ms, 1, 60000);
	pe_admit(&e, &b, 1, 2, 6 * PAGE_TOKENS, 1);
	pe_wait(&e, &b, KVS_STATUS_ADMITTED);
	pe_admit(&e, &c, 2, 3, PAGE_TOKENS, 1);
	pe_wait_failed(&e, &c, EAGAIN);
	assert_string_equal(c.failure.text,
			    "peer p has 2 rooms, admission.peer_rooms is 2");
	pe_admit(&e, &c, 2, 3, 17 * PAGE_TOKENS, 1);
	pe_wait_failed(&e, &c, E2BIG);
	assert_int_equal(c.failure.class, 400);
	assert_int_equal(c.failure.retry_ms, 0);
	rig_refresh(g);
	assert_int_equal(rig_admits(g, KVS_ADMIT_PEER_LIMIT), 2);
	assert_int_equal(rig_admits(g, KVS_ADMIT_NOFIT), 1);

	/* another peer, and another engine, do not notice */
	pe_up(&f, g->set.engine_socket, &plain);
	snprintf(f.peer, sizeof(f.peer), "q");
	ps_up(&p, g->port, "q", 0, 1, &plain);
	pe_admit(&f, &c, 0, 3, 16 * PAGE_TOKENS, 1);
	finish(&p, &f, &c, 3, 16 * PAGE_TOKENS, 4);
	ps_down(&p);
	pe_down(&f);
	pe_down(&e);
	rig_down(g);
}

/* sgl-project/sglang#31205: the probe of every second, while the pool is full
 * of rooms that are sent, more wait, and a rank gives no sign of life. */
static void probes_never_fail(void **state)
{
	struct pe_room full, waits[8], h;
	struct ps_room w;
	struct ps p, q;
	struct pe e, f;

	(void)state;
	start(NULL);
	pe_up(&e, g->set.engine_socket, &plain);
	pe_up(&f, g->set.engine_socket, &plain);
	f.flags = KVS_ADMIT_HEALTH;
	snprintf(f.peer, sizeof(f.peer), "q");
	ps_up(&p, g->port, "p", 0, 1, &plain);
	ps_up(&q, g->port, "q", 0, 1, &plain);
	pe_admit(&f, &h, 0, 100, PAGE_TOKENS, 1);
	finish(&q, &f, &h, 100, PAGE_TOKENS, 1);
	/* a sixteenth of the pool is the reserve from then on */
	pe_admit(&e, &full, 0, 1, 60 * PAGE_TOKENS, 1);
	assert_int_equal(ps_open(&p, 1, 60 * PAGE_TOKENS), 0);
	ps_granted(&p, &w, 1, PAGE);
	for (uint32_t i = 0; i < 8; i++)
		pe_admit(&e, &waits[i], 1 + i, 2 + i, 4 * PAGE_TOKENS, 1);
	pe_wait(&e, &waits[7], KVS_STATUS_WAITING);
	for (uint32_t i = 0; i < 50; i++) {
		uint32_t pages = 1 + i % 4;

		pe_admit(&f, &h, 0, 101 + i, pages * PAGE_TOKENS, 1);
		finish(&q, &f, &h, 101 + i, pages * PAGE_TOKENS, i);
	}
	rig_refresh(g);
	assert_int_equal(rig_done(g), 51);
	assert_int_equal(pe_status(&e, &waits[0]), KVS_STATUS_WAITING);
	pe_admit(&f, &h, 0, 200, 5 * PAGE_TOKENS, 1);
	pe_wait_failed(&f, &h, E2BIG);
	assert_non_null(strstr(h.failure.text, "admission.health_reserve"));
	ps_room_fini(&w);
	ps_down(&p);
	ps_down(&q);
	pe_down(&e);
	pe_down(&f);
	rig_down(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(limit_is_exact),
		cmocka_unit_test(engine_limits_are_exact),
		cmocka_unit_test(limit_counts_pages),
		cmocka_unit_test(not_now_waits),
		cmocka_unit_test(not_now_is_busy_without_a_queue),
		cmocka_unit_test(impossible_head_stalls_nobody),
		cmocka_unit_test(duplicate_is_refused),
		cmocka_unit_test(shared_id_runs_once),
		cmocka_unit_test(ids_are_whole_numbers),
		cmocka_unit_test(limit_at_a_real_context),
		cmocka_unit_test(a_hold_costs_its_own_bytes),
		cmocka_unit_test(unsent_rooms_fill_nothing),
		cmocka_unit_test(limits_of_one_peer),
		cmocka_unit_test(probes_never_fail),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
