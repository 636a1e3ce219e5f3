/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, of the library's own sender and engine against a daemon core, over
 * real connections: rooms that are aborted while their chunks are under way
 * for 300 ms are acknowledged when those have ended, each of a hundred, none
 * by the clock (sgl-project/sglang#38961, #40645); one chunk that fails costs
 * its own room, and the hundred after it succeed on the same sender
 * (sgl-project/sglang#13054, #15674); a room that is READY and not claimed in
 * time is free then and counted, and a claim that comes later fails and copies
 * nothing (llm-d/llm-d#1138, vllm-project/vllm#21570); a room number that
 * wrapped round to 0 is refused (sgl-project/sglang#26486).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kvstage/device.h"
#include "kvstage/engine.h"
#include "kvstage/sender.h"
#include "tests/regress/puppet_engine.h"
#include "tests/regress/puppet_sender.h"
#include "tests/regress/relay.h"
#include "tests/regress/service_rig.h"

#define SOURCE_PAGES 24u
#define BIG (1u << 20) /* bytes of a page that sockets do not hide */
#define MEDIUM (1u << 19)
#define SMALL (1u << 16)
#define SEED 5u
#define BATCH 25u
#define BATCHES 4u

/* Far below hold.timeout, 30 s, which is what the clock would give; far above
 * the 300 ms of a chunk, for a machine with other work. */
#define HOLD_MAX (10 * KVS_NSEC_PER_SEC)

static struct kvs_layer_buffer buffers[1];
static const struct kvs_layout layout = {
	.size = sizeof(layout),
	.page_size = PS_TOKENS,
	.dtype = KVS_DTYPE_BF16,
	.n_buffers = 1,
	.buffers = buffers,
};

static struct rig g[1];
static struct pe e[1];
static struct relay relay[1];
static struct kvs_sender *s;
static unsigned char *source;
static uint32_t pages[SOURCE_PAGES];

/* What the callbacks have said about a room. */
struct told {
	struct kvs_send_room *r;
	atomic_uint done;
	atomic_int status;
};

static void on_pages_free(struct kvs_send_room *r, void *cookie, int status)
{
	(void)r;
	(void)cookie;
	(void)status;
}

static void on_done(struct kvs_send_room *r, int status, const char *text)
{
	struct told *t = kvs_send_user(r);

	(void)text;
	atomic_store(&t->status, status);
	atomic_fetch_add(&t->done, 1);
}

static const struct kvs_send_ops ops = {
	.pages_free = on_pages_free,
	.done = on_done,
};

/* A daemon, a puppet engine, a sender with one data connection through the
 * relay; each source page is what SEED makes of a room's first page. */
static void start(uint32_t item_len, const char *pool)
{
	void *base;
	char daemon[32], err[512] = "";
	struct kvs_sender_opts o = {
		.size = sizeof(o),
		.daemon = daemon,
		.peer = "p",
		.n_ranks = 1,
		.layout = &layout,
		.buffers = &base,
		.data_connections = 1,
		.engine = rig_engine(),
		.ops = &ops,
	};

	buffers[0] = (struct kvs_layer_buffer){ KVS_BUFFER_KV, 0, item_len, 0 };
	rig_init(g, rig_engine(), pool);
	rig_set(g, "hold.require_ack", "yes");
	rig_set(g, "hold.reask", "0");
	rig_up(g);
	pe_up(e, g->set.engine_socket, &layout);
	relay_up(relay, g->port);
	source = malloc((size_t)SOURCE_PAGES * item_len);
	assert_non_null(source);
	for (uint32_t i = 0; i < item_len; i++)
		source[i] = ps_byte(SEED, 0, KVS_BUFFER_KV, 0, i);
	for (uint32_t i = 0; i < SOURCE_PAGES; i++) {
		pages[i] = i;
		if (i)
			memcpy(source + (size_t)i * item_len, source, item_len);
	}
	base = source;
	snprintf(daemon, sizeof(daemon), "127.0.0.1:%u", relay->port);
	if (kvs_sender_create(&o, &s, err, sizeof(err)))
		fail_msg("%s", err);
}

static void stop(void)
{
	kvs_sender_destroy(s);
	relay_down(relay);
	pe_down(e);
	rig_down(g);
	free(source);
}

/* Admitted, opened, @n pages handed over. */
static void begin(struct pe_room *r, struct told *t, uint32_t slot,
		  uint64_t room, uint32_t n)
{
	memset(t, 0, sizeof(*t));
	pe_admit(e, r, slot, room, n * PS_TOKENS, 1);
	assert_int_equal(kvs_send_open(s, room, NULL, n * PS_TOKENS, t, &t->r),
			 0);
	assert_int_equal(kvs_send_pages(t->r, 0, pages, n, NULL), 0);
}

static void wait_outstanding(struct told *t)
{
	uint64_t until = rig_until();

	while (!kvs_send_outstanding(t->r))
		rig_pause(until, "a chunk under way", __FILE__, __LINE__);
}

static int wait_done(struct told *t)
{
	uint64_t until = rig_until();

	while (!atomic_load(&t->done))
		rig_pause(until, "the sender's end", __FILE__, __LINE__);
	kvs_send_close(t->r);
	return atomic_load(&t->status);
}

/* From admit to done. */
static void whole_room(uint64_t room)
{
	struct pe_room r;
	struct told t;

	begin(&r, &t, 100, room, 1);
	assert_int_equal(kvs_send_finish(t.r), 0);
	pe_take(e, &r, PS_TOKENS, 1, SEED);
	assert_int_equal(wait_done(&t), 0);
}

/* ---- a chunk under way when ABORT comes ------------------------------------ */

/* One room fills the sockets, so that chunks of the others stay with us. */
static void abort_batch(uint64_t first)
{
	const struct timespec under_way = { 0, 300 * 1000 * 1000 };
	struct pe_room r[1 + BATCH];
	struct told t[1 + BATCH];

	relay_hold(relay, true);
	for (uint32_t i = 0; i <= BATCH; i++) {
		begin(&r[i], &t[i], i, first + i, i ? 1 : SOURCE_PAGES);
		wait_outstanding(&t[i]);
	}
	for (uint32_t i = 0; i <= BATCH; i++)
		assert_int_equal(pe_say(e, KVS_PACKET_ABORT, &r[i], 0), 0);
	for (uint32_t i = 0; i <= BATCH; i++)
		pe_wait_failed(e, &r[i], ECANCELED);
	nanosleep(&under_way, NULL);
	rig_refresh(g);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_HELD),
			 (uint64_t)(SOURCE_PAGES + BATCH) * BIG);
	for (uint32_t i = 0; i <= BATCH; i++)
		assert_true(kvs_send_outstanding(t[i].r) > 0);
	relay_hold(relay, false);
	for (uint32_t i = 0; i <= BATCH; i++)
		assert_int_equal(wait_done(&t[i]), -ECANCELED);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_HELD) == 0);
}

static void acknowledged_when_it_has_ended(void **state)
{
	uint64_t ignored = 0, p99;

	(void)state;
	start(BIG, "64M");
	whole_room(1000); /* the data connection is there */
	for (uint32_t i = 0; i < BATCHES; i++)
		abort_batch(1 + 100 * i);
	for (int i = 0; i < KVS_ACK_IGNORED_MAX; i++)
		ignored += rig_acks_ignored(g, i);
	assert_int_equal(ignored, 0);
	assert_int_equal(rig_drains(g, KVS_DRAIN_DRAINED,
				    KVS_PROOF_ALL_ACKNOWLEDGED) +
				 rig_drains(g, KVS_DRAIN_DRAINED,
					    KVS_PROOF_RECEIVE_REAPED),
			 BATCHES * (1 + BATCH));
	p99 = kvs_hist_quantile(&g->snap->workers[0].stats.drain_seconds, 0.99);
	print_message("# p99 of %u holds: %llu ms\n", BATCHES * (1 + BATCH),
		      (unsigned long long)(p99 / KVS_NSEC_PER_MSEC));
	assert_true(p99 < HOLD_MAX);
	stop();
}

/* ---- one failure, a hundred successes -------------------------------------- */

static void one_failed_chunk(void **state)
{
	struct pe_room r;
	struct told t;

	(void)state;
	start(MEDIUM, "16M");
	whole_room(1000);
	/* more than sockets hold, and cut off in the middle */
	relay_hold(relay, true);
	begin(&r, &t, 0, 1, SOURCE_PAGES);
	wait_outstanding(&t);
	pe_wait(e, &r, KVS_STATUS_RECEIVING);
	relay_cut(relay);
	relay_hold(relay, false);
	pe_wait_failed(e, &r, ECONNRESET);
	assert_true(wait_done(&t) < 0);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_HELD) == 0);
	for (uint64_t room = 2; room < 102; room++)
		whole_room(room);
	rig_refresh(g);
	assert_int_equal(rig_failures(g, KVS_CAUSE_PEER_LOST) +
				 rig_failures(g, KVS_CAUSE_SENDER_ABORT),
			 1);
	assert_int_equal(rig_done(g), 1 + 100);
	assert_int_equal(g->snap->sessions, 1);
	assert_int_equal(rig_data_connections(g), 1);
	stop();
}

static void wrapped_number(void **state)
{
	struct pe_room r[3];
	struct told t[3];
	uint64_t base = UINT64_MAX - 1;

	(void)state;
	start(SMALL, "4M");
	for (uint32_t i = 0; i < 2; i++)
		begin(&r[i], &t[i], i, base + i, 1);
	pe_admit(e, &r[2], 2, base + 2, PS_TOKENS, 1);
	pe_wait_failed(e, &r[2], EINVAL);
	assert_int_equal(r[2].failure.class, 400);
	assert_int_equal(kvs_send_open(s, base + 2, NULL, PS_TOKENS, &t[2],
				       &t[2].r),
			 -EINVAL);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(kvs_send_finish(t[i].r), 0);
		pe_take(e, &r[i], PS_TOKENS, 1, SEED);
		assert_int_equal(wait_done(&t[i]), 0);
	}
	stop();
}

/* ---- never claimed --------------------------------------------------------- */

static void wait_status(struct kvs_engine *engine, kvs_handle *h,
			enum kvs_status st, int *ret_err)
{
	uint64_t until = rig_until();

	while (kvs_engine_poll(engine, h, ret_err) != st) {
		assert_true(kvs_engine_progress(engine) >= 0);
		rig_pause(until, "a status", __FILE__, __LINE__);
	}
	assert_true(kvs_engine_progress(engine) >= 0);
}

static void claimed_too_late(void **state)
{
	struct kvs_device_opts dopts = { .size = sizeof(dopts),
					 .backend = "soft" };
	struct kvs_engine_opts eo = { .size = sizeof(eo),
				      .name = "late",
				      .layout = &ps_one_layer,
				      .node = -1 };
	const struct kvs_rank_slice all = { 0, 1 };
	struct kvs_admit a = { .size = sizeof(a),
			       .room = 1,
			       .peer = "p",
			       .tokens = PS_TOKENS,
			       .n_ranks = 1,
			       .ranks = &all,
			       .node = -1 };
	unsigned char before[PS_PAGE], after[PS_PAGE];
	struct kvs_failure why;
	struct kvs_engine *engine;
	struct kvs_device *device;
	uint32_t page = 0;
	struct kvs_commit c = { .size = sizeof(c),
				.pages = &page,
				.n_pages = 1 };
	void *dev;
	struct ps_room w;
	struct ps p;
	kvs_handle h;
	char err[512];
	int code = 0;

	(void)state;
	rig_init(g, rig_engine(), "64K");
	rig_set(g, "claim.timeout", "200ms");
	rig_up(g);
	eo.socket = g->set.engine_socket;
	assert_int_equal(kvs_device_open(&dopts, &device, err, sizeof(err)), 0);
	assert_int_equal(kvs_device_alloc(device, PS_PAGE, &dev), 0);
	assert_int_equal(kvs_device_peek(device, before, dev, PS_PAGE), 0);
	assert_int_equal(kvs_engine_attach(&eo, &engine, err, sizeof(err)), 0);
	ps_up(&p, g->port, "p", 0, 1, &ps_one_layer);
	assert_int_equal(kvs_engine_admit(engine, &a, &h), 0);
	assert_int_equal(ps_open(&p, 1, PS_TOKENS), 0);
	ps_granted(&p, &w, SEED, PS_PAGE);
	ps_finish(&p, &w, 0);
	wait_status(engine, &h, KVS_STATUS_FAILED, &code);
	assert_int_equal(code, ETIME);
	rig_refresh(g);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_FREE), 64 << 10);
	assert_int_equal(rig_failures(g, KVS_CAUSE_CLAIM_TIMEOUT), 1);

	c.device = device;
	c.buffers = &dev;
	assert_int_equal(kvs_engine_commit(engine, &h, &c), -ECANCELED);
	assert_false(kvs_engine_copy_live(engine, &h));
	assert_int_equal(kvs_engine_failure(engine, &h, &why), 0);
	assert_int_equal(why.err, ETIME);
	assert_int_equal(why.http_class, 503);
	assert_non_null(strstr(why.text, "claim.timeout"));
	assert_int_equal(kvs_engine_release(engine, &h), 0);
	assert_int_equal(kvs_device_peek(device, after, dev, PS_PAGE), 0);
	assert_memory_equal(before, after, PS_PAGE);
	rig_refresh(g);
	assert_int_equal(rig_done(g), 0);
	ps_down(&p);
	kvs_engine_detach(engine);
	kvs_device_free(device, dev);
	kvs_device_close(device);
	rig_down(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(acknowledged_when_it_has_ended),
		cmocka_unit_test(one_failed_chunk),
		cmocka_unit_test(wrapped_number),
		cmocka_unit_test(claimed_too_late),
	};

	return rig_run_both(tests);
}
