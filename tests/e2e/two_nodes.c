/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claim: on a machine with two NUMA nodes each has its own pool, worker and
 * data connections; rooms land on the node their engine asks for, from one
 * sender that learns the worker from the grant; bytes are exact and both pools
 * are free afterwards. The machine is a recorded one (nothing can be bound
 * here, so placement is only preferred); the threads, sockets and bytes are
 * real.
 */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "kvstage/device.h"
#include "kvstage/engine.h"
#include "kvstage/sender.h"
#include "lib/clock.h"
#include "lib/log.h"
#include "pinned/topology.h"
#include "pipeline/service.h"

#define PAGE 1024u
#define PAGE_TOKENS 4u
#define PAGES 50u
#define ROOMS 40u
#define DEADLINE (30 * KVS_NSEC_PER_SEC)

static struct kvs_layer_buffer buffers[] = {
	{ KVS_BUFFER_KV, 0, PAGE, 0 },
	{ KVS_BUFFER_KV, 1, PAGE, 0 },
};
static const struct kvs_layout layout = {
	.size = sizeof(layout),
	.page_size = PAGE_TOKENS,
	.dtype = KVS_DTYPE_BF16,
	.n_buffers = 2,
	.buffers = buffers,
};

static unsigned char *source[2]; /* every room sends the same pages */
static atomic_uint done_ok;

static void on_granted(struct kvs_send_room *r, uint64_t generation)
{
	(void)r;
	(void)generation;
}

static void on_pages_free(struct kvs_send_room *r, void *cookie, int status)
{
	(void)r;
	(void)cookie;
	(void)status;
}

static void on_done(struct kvs_send_room *r, int status, const char *text)
{
	(void)r;
	if (!status)
		atomic_fetch_add(&done_ok, 1);
	else
		print_message("room failed: %s\n", text);
}

static const struct kvs_send_ops send_ops = {
	.granted = on_granted,
	.pages_free = on_pages_free,
	.done = on_done,
};

static struct kvs_service *service_up(struct kvs_topology *topo,
				      const char *dir)
{
	static const char *const set[][2] = {
		{ "listen.address", "127.0.0.1:0" },
		{ "http.address", "off" },
		{ "pool.size", "1M" },
		{ "pool.nodes", "auto" },
		{ "pool.strict", "no" },
		{ "engine.slots", "64" },
	};
	struct kvs_service *svc;
	struct kvs_settings s;
	char err[512];

	kvs_settings_init(&s);
	for (size_t i = 0; i < sizeof(set) / sizeof(set[0]); i++)
		assert_int_equal(kvs_settings_set(&s, set[i][0], set[i][1], err,
						  sizeof(err)),
				 0);
	snprintf(s.engine_socket, sizeof(s.engine_socket), "%s/engine.sock",
		 dir);
	if (kvs_service_create(&s, topo, NULL, NULL, &svc, err, sizeof(err)))
		fail_msg("service: %s", err);
	return svc;
}

/* Progress until the room is at @want or failed. */
static void until(struct kvs_engine *e, kvs_handle *h, enum kvs_status want)
{
	uint64_t end = kvs_clock_now(&kvs_clock_real) + DEADLINE;
	enum kvs_status st;
	int err = 0;

	while ((st = kvs_engine_poll(e, h, &err)) < want) {
		struct pollfd p = { kvs_engine_fd(e), POLLIN, 0 };

		assert_int_not_equal(st, KVS_STATUS_FAILED);
		assert_true(kvs_clock_now(&kvs_clock_real) < end);
		poll(&p, 1, 1);
		assert_true(kvs_engine_progress(e) >= 0);
	}
}

static void run_room(struct kvs_sender *s, struct kvs_engine *e,
		     struct kvs_device *d, unsigned char *const dev[2],
		     uint64_t room, int node)
{
	static const struct kvs_rank_slice all = { 0, 2 };
	uint32_t src[PAGES], dst[PAGES];
	struct kvs_admit a = { .size = sizeof(a),
			       .room = room,
			       .peer = "p",
			       .tokens = PAGES * PAGE_TOKENS,
			       .n_ranks = 1,
			       .ranks = &all,
			       .node = node };
	struct kvs_commit c = { .size = sizeof(c),
				.device = d,
				.buffers = (void *const *)dev,
				.pages = dst,
				.n_pages = PAGES };
	struct kvs_send_room *r;
	unsigned char page[PAGE];
	kvs_handle h;

	for (uint32_t i = 0; i < PAGES; i++) {
		src[i] = (i * 7 + (uint32_t)room) % PAGES;
		dst[i] = PAGES - 1 - i;
	}
	assert_int_equal(kvs_engine_admit(e, &a, &h), 0);
	assert_int_equal(
		kvs_send_open(s, room, NULL, PAGES * PAGE_TOKENS, NULL, &r), 0);
	assert_int_equal(kvs_send_pages(r, 0, src, PAGES, NULL), 0);
	assert_int_equal(kvs_send_finish(r), 0);
	until(e, &h, KVS_STATUS_READY);
	assert_int_equal(kvs_engine_commit(e, &h, &c), 0);
	until(e, &h, KVS_STATUS_DONE);
	for (unsigned int b = 0; b < 2; b++) {
		for (uint32_t i = 0; i < PAGES; i++) {
			assert_int_equal(kvs_device_peek(d, page,
							 dev[b] + dst[i] * PAGE,
							 PAGE),
					 0);
			assert_memory_equal(page, source[b] + src[i] * PAGE,
					    PAGE);
		}
	}
	assert_int_equal(kvs_engine_release(e, &h), 0);
	kvs_send_close(r);
}

static void test_two_nodes(void **state)
{
	struct kvs_device_opts dopts = { .size = sizeof(dopts),
					 .backend = "soft" };
	struct kvs_engine_opts eo = {
		.size = sizeof(eo), .name = "e", .layout = &layout, .node = -1
	};
	struct kvs_sender_opts so = { .size = sizeof(so),
				      .peer = "p",
				      .n_ranks = 1,
				      .layout = &layout,
				      .buffers = (void *const *)source,
				      .ops = &send_ops };
	char dir[] = "/tmp/kvs-two-nodes-XXXXXX", path[64], addr[64];
	struct kvs_snapshot *snap = calloc(1, sizeof(*snap));
	unsigned char *dev[2];
	struct kvs_topology *topo;
	struct kvs_service *svc;
	struct kvs_sender *s;
	struct kvs_engine *e;
	struct kvs_device *d;
	char err[512];

	(void)state;
	assert_non_null(snap);
	assert_non_null(mkdtemp(dir));
	if (kvs_topology_load(KVS_TOPOLOGY_DATA "/two-nodes.xml", &topo)) {
		print_message("skipped: built without hwloc\n");
		rmdir(dir);
		free(snap);
		skip();
	}
	svc = service_up(topo, dir);
	kvs_service_snapshot(svc, snap);
	assert_int_equal(snap->n_workers, 2);
	snprintf(path, sizeof(path), "%s/engine.sock", dir);
	eo.socket = path;
	snprintf(addr, sizeof(addr), "127.0.0.1:%u", kvs_service_port(svc));
	so.daemon = addr;
	for (unsigned int b = 0; b < 2; b++) {
		source[b] = malloc(PAGES * PAGE);
		assert_non_null(source[b]);
		for (uint32_t i = 0; i < PAGES * PAGE; i++)
			source[b][i] =
				(unsigned char)(i / PAGE * 31 + i * 7 + b * 13);
	}
	assert_int_equal(kvs_device_open(&dopts, &d, err, sizeof(err)), 0);
	for (unsigned int b = 0; b < 2; b++)
		assert_int_equal(
			kvs_device_alloc(d, PAGES * PAGE, (void **)&dev[b]), 0);
	if (kvs_engine_attach(&eo, &e, err, sizeof(err)))
		fail_msg("attach: %s", err);
	if (kvs_sender_create(&so, &s, err, sizeof(err)))
		fail_msg("sender: %s", err);
	for (uint64_t room = 1; room <= ROOMS; room++)
		run_room(s, e, d, dev, room, room % 2);
	kvs_sender_destroy(s);
	kvs_engine_detach(e);
	kvs_service_snapshot(svc, snap);
	for (unsigned int i = 0; i < 2; i++) {
		const struct kvs_worker_snapshot *w = &snap->workers[i];

		assert_int_equal(w->stats.rooms_done, ROOMS / 2);
		assert_int_equal(w->stats.received_bytes,
				 (uint64_t)ROOMS / 2 * 2 * PAGES * PAGE);
		assert_int_equal(w->pools[0].node, i);
		assert_int_equal(w->pools[0].account.bytes[KVS_EXTENT_FREE],
				 w->pools[0].account.configured);
	}
	assert_int_equal(atomic_load(&done_ok), ROOMS);
	kvs_service_destroy(svc);
	for (unsigned int b = 0; b < 2; b++) {
		kvs_device_free(d, dev[b]);
		free(source[b]);
	}
	kvs_device_close(d);
	kvs_topology_destroy(topo);
	free(snap);
	rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_two_nodes),
	};

	kvs_log_set_level(KVS_LOG_WARN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
