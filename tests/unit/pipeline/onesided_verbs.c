/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rooms over the verbs transport, on devices of the double: what
 * tests/unit/pipeline/onesided.c claims over loop, with the keys, the late
 * writes and the failures of a device:
 *  - READY with every byte, by one to three ranks;
 *  - a write that comes after an aborted room's memory is free changes no byte
 *    of it, and costs its writer the connection, not other peers' rooms;
 *  - a rank with several queue pairs loses one with each room whose writer does
 *    not stop, as often as that happens, and the rooms on it; its rooms on
 *    others go on, byte by byte;
 *  - where a registration cannot be taken back, the connections go, flushes or
 *    not; where a queue pair cannot be destroyed either, the memory is
 *    quarantined until it can (kvcache-ai/Mooncake#1903, ai-dynamo/nixl#2044,
 *    spdk/spdk#3859);
 *  - out of registrations, a room fails before it has anything, and a node
 *    does not start.
 *
 * The transport's blocking calls run at once, as where no thread can be made:
 * what happens is the same each time.
 */
#include "tests/unit/pipeline/onesided_rig.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "lib/log.h"
#include "pinned/poison.h"
#include "rdma/verbs.h"
#include "tests/fake_verbs/fake_verbs.h"

#define PAGES 40u
#define MS KVS_NSEC_PER_MSEC
#define STEP (50 * MS)
#define MIB (1ull << 20)

static struct os_rig g;
static struct kvs_addr front;
static unsigned char *copy; /* of the pool, twice as large */
static enum kvs_verbs_grant_kind kind;
static uint64_t registrations; /* of the last start */

/* Linked in the place of pthread_create(). */
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr,
			  void *(*run)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr,
			  void *(*run)(void *), void *arg)
{
	(void)thread, (void)attr, (void)run, (void)arg;
	return EAGAIN;
}

/* The rig's clock, and the real one on top: who waits for an end without the
 * rig, as kvs_transport_destroy() does, sees it come. */
static uint64_t both_clocks(const struct kvs_clock *c)
{
	(void)c;
	return kvs_clock_now(&g.clock.clk) + kvs_clock_now(&kvs_clock_real);
}

static const struct kvs_clock net_clock = { .now = both_clocks };

static uint64_t device_clock(void)
{
	return both_clocks(NULL);
}

static int net_create(struct os_rig *r, const char *name,
		      struct kvs_transport **ret)
{
	struct kvs_transport_opts o = { .engine = "sock", .clock = &net_clock };
	struct kvs_verbs_opts v = { .node = -1,
				    .gid_index = -1,
				    .grant = kind };
	char err[256];

	(void)r;
	if (!strcmp(name, "front"))
		return kvs_tcp_create(&o, ret, err, sizeof(err));
	return kvs_verbs_create(&o, &v, ret, err, sizeof(err));
}

static int net_listen(struct os_rig *r, struct kvs_transport *t,
		      int (*accepted)(struct kvs_conn *c, void *arg))
{
	struct sockaddr_in *sin = (void *)&front.a[0].ss;
	struct kvs_listener *l;
	socklen_t len = sizeof(front.a[0].ss);
	int rc;

	memset(&front, 0, sizeof(front));
	sin->sin_family = AF_INET;
	sin->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	front.n = 1;
	front.a[0].len = sizeof(*sin);
	rc = kvs_transport_listen(t, &front, accepted, r, &l);
	if (!rc)
		rc = kvs_listener_addr(l, &front.a[0].ss, &len);
	return rc;
}

static int net_connect(struct os_rig *r, struct kvs_transport *t,
		       const struct kvs_conn_ops *ops, void *user,
		       struct kvs_conn **ret)
{
	(void)r;
	return kvs_transport_connect(t, &front, KVS_CONN_DATA, ops, user, ret);
}

/* The transport does not tell its deadlines. */
static uint64_t net_next(const struct os_rig *r)
{
	return kvs_clock_now(&r->clock.clk) + STEP;
}

static const struct os_net net = {
	.create = net_create,
	.listen = net_listen,
	.connect = net_connect,
	.next = net_next,
	.turns = 24,
	.until_idle = true,
};

static const enum kvs_verbs_grant_kind kinds[] = {
	KVS_VERBS_GRANT_WINDOW,
	KVS_VERBS_GRANT_MR,
	KVS_VERBS_GRANT_QP,
};

static void begin(const char *driver, enum kvs_verbs_grant_kind k,
		  unsigned int n_ranks)
{
	struct fv_spec s = {
		.name = "fake0",
		.driver = driver,
		.model = strcmp(driver, "rxe") ? FV_STRICT : FV_RXE,
	};

	kind = k;
	fv_begin();
	fv_clock(device_clock);
	fv_device_add(&s);
	os_up_on(&g, &net, PAGES, n_ranks);
	copy = malloc(2 * g.region.size);
	assert_non_null(copy);
	g.n.settings.hold_reask = 0;
}

/* Everything is free again, but what goes with its device. */
static void end(bool left_behind)
{
	struct fv_counts n;

	os_down(&g);
	free(copy);
	fv_counts(&n);
	assert_int_equal(n.rnr, 0);
	if (!left_behind)
		assert_int_equal(n.left_behind, 0);
	assert_int_equal(fv_end(), 0);
}

/* Free memory is poisoned: this looks as a device does. */
static void look(unsigned char *to)
{
	kvs_dma_move(to, g.region.base, g.region.size);
}

static bool changed(void)
{
	look(copy + g.region.size);
	return memcmp(copy, copy + g.region.size, g.region.size);
}

static void receive(unsigned int slot, unsigned int ranks)
{
	for (unsigned int k = 0; k < ranks; k++)
		os_write_all(&g, slot, k, 5, 0, 0);
	/* where a queue pair is the proof, it takes 20 ms */
	os_run(&g, 2 * STEP);
	assert_int_equal(os_status(&g, slot), KVS_STATUS_READY);
	assert_int_equal(os_wrong(&g, slot, 5), 0);
	os_packet(&g, slot, KVS_PACKET_COMMIT);
	os_packet(&g, slot, KVS_PACKET_COMMITTED);
	assert_int_equal(os_status(&g, slot), KVS_STATUS_DONE);
}

static void ready_by_all_ranks(void **state)
{
	(void)state;
	for (unsigned int i = 0; i < 3 * OS_RANKS; i++) {
		unsigned int ranks = 1 + i / 3;

		begin("mlx5_core", kinds[i % 3], ranks);
		os_admit(&g, 1, 1, PAGES - 3);
		receive(1, ranks);
		end(false);
	}
}

/* A room that is aborted with a write of it on the wire. */
static struct fv_flight *abort_in_flight(unsigned int slot)
{
	fv_hold(1, 1);
	os_write(&g, slot, 0, 0, 0, 1);
	os_run(&g, 0);
	assert_int_equal(fv_held(), 1);
	os_packet(&g, slot, KVS_PACKET_ABORT);
	assert_true(os_bytes(&g, KVS_EXTENT_HELD) > 0);
	return fv_flight(0);
}

static void late_write(const char *driver, enum kvs_verbs_grant_kind k,
		       bool in_hand)
{
	bool by_key = k != KVS_VERBS_GRANT_WINDOW || strcmp(driver, "rxe");
	struct fv_flight *f;

	begin(driver, k, 1);
	os_second_peer(&g);
	g.w[0].acks = false;
	os_admit(&g, 1, 1, 20);
	os_admit_of(&g, 2, 2, 16, 1);
	f = abort_in_flight(1);
	if (in_hand)
		assert_int_equal(fv_take(f), 0);
	/* nobody says that it is over, so it is not */
	os_run(&g, g.n.settings.hold_timeout - 4 * STEP);
	assert_int_equal(os_bytes(&g, KVS_EXTENT_HELD), 20 * OS_PAGE);
	os_run(&g, 8 * STEP);
	assert_int_equal(os_bytes(&g, KVS_EXTENT_HELD), 0);
	assert_int_equal(os_drains(&g, KVS_DRAIN_REVOKED,
				   by_key ? KVS_PROOF_GRANT_INVALIDATED
					  : KVS_PROOF_CONNECTION_TORN_DOWN),
			 1);
	look(copy);
	assert_int_equal(fv_place(f), 0);
	if (in_hand) /* all of it was placed before the proof */
		assert_int_equal(fv_land(f, UINT64_MAX), 0);
	else
		assert_true(fv_land(f, UINT64_MAX) < 0);
	assert_false(changed());
	os_run(&g, 4 * STEP);
	/* a write that was refused costs the connection; where it has a queue
	 * pair of its own there is none to refuse it */
	if (k == KVS_VERBS_GRANT_QP)
		assert_non_null(g.w[0].c);
	else if (!in_hand)
		assert_null(g.w[0].c);
	/* the other peer goes on */
	g.room[2].first = 1;
	receive(2, 1);
	end(false);
}

static void late_writes(void **state)
{
	(void)state;
	for (unsigned int i = 0; i < 6; i++) {
		late_write("mlx5_core", kinds[i % 3], i / 3);
		late_write("rxe", kinds[i % 3], i / 3);
	}
}

/* The ladder's last step: what it costs, and whom not. */
static void cannot_be_deregistered(void **state)
{
	struct fv_flight *f;

	(void)state;
	begin("mlx5_core", KVS_VERBS_GRANT_MR, 1);
	os_second_peer(&g);
	g.w[0].acks = false;
	os_admit(&g, 1, 1, 8);
	os_admit(&g, 2, 2, 8); /* the same peer's */
	os_admit_of(&g, 3, 3, 16, 1);
	f = abort_in_flight(1);
	fv_fail(FV_DEREG_MR, 1, UINT64_MAX, EBUSY);
	fv_lose_flushes(UINT64_MAX);
	os_run(&g, g.n.settings.hold_timeout + 80 * STEP);
	assert_true(g.closed_sessions > 0);
	assert_null(g.w[0].c);
	assert_int_equal(os_status(&g, 2), KVS_STATUS_FAILED);
	assert_int_equal(os_bytes(&g, KVS_EXTENT_HELD), 0);
	assert_int_equal(os_bytes(&g, KVS_EXTENT_QUARANTINED), 0);
	assert_true(os_drains(&g, KVS_DRAIN_REVOKED,
			      KVS_PROOF_CONNECTION_TORN_DOWN) > 0);
	look(copy);
	assert_true(fv_land(f, UINT64_MAX) < 0);
	assert_false(changed());
	fv_heal();
	fv_lose_flushes(0);
	receive(3, 1);
	end(true);
}

static void not_destroyed(enum kvs_verbs_grant_kind k)
{
	struct fv_flight *f;

	begin("mlx5_core", k, 1);
	g.w[0].acks = false;
	os_admit(&g, 1, 1, 8);
	f = abort_in_flight(1);
	fv_fail(FV_DEREG_MR, 1, UINT64_MAX, EBUSY);
	fv_fail(FV_DESTROY_QP, 1, UINT64_MAX, EBUSY);
	if (k == KVS_VERBS_GRANT_WINDOW)
		fv_fail(FV_POST_SEND, 1, 1, EIO); /* the invalidation */
	os_run(&g, 3 * g.n.settings.hold_timeout);
	assert_int_equal(os_bytes(&g, KVS_EXTENT_QUARANTINED), 8 * OS_PAGE);
	assert_int_equal(os_drains(&g, KVS_DRAIN_QUARANTINED,
				   KVS_PROOF_CANNOT_REVOKE),
			 1);
	assert_int_equal(os_bytes(&g, KVS_EXTENT_FREE),
			 g.region.size - 8 * OS_PAGE);
	assert_true(fv_land(f, 512) < 0);
	/* a late proof frees it */
	fv_heal();
	os_run(&g, 2 * g.n.settings.hold_timeout);
	assert_int_equal(os_bytes(&g, KVS_EXTENT_FREE), g.region.size);
	end(true);
}

static void cannot_be_destroyed_either(void **state)
{
	(void)state;
	not_destroyed(KVS_VERBS_GRANT_WINDOW);
	not_destroyed(KVS_VERBS_GRANT_MR);
	not_destroyed(KVS_VERBS_GRANT_QP);
}

static void cannot_be_registered(void **state)
{
	(void)state;
	begin("mlx5_core", KVS_VERBS_GRANT_MR, 1);
	/* the second of three extents */
	fv_fail(FV_REG_MR, 2, 1, ENOMEM);
	os_admit(&g, 1, 1, PAGES);
	os_run(&g, STEP);
	assert_int_equal(fv_failed(), 1);
	assert_int_equal(os_status(&g, 1), KVS_STATUS_FAILED);
	assert_int_equal(os_bytes(&g, KVS_EXTENT_FREE), g.region.size);
	/* the next one may */
	os_admit(&g, 1, 2, PAGES);
	receive(1, 1);
	end(false);
}

/* What kvs_node_start() says of a pool of 6 MiB and a device that takes
 * @most bytes. With no threads to be had that is its last step. */
static int start_of(uint64_t most, uint64_t page, const char *grant, char *err,
		    size_t errlen)
{
	struct fv_spec s = { .name = "fake0",
			     .driver = "mlx5_core",
			     .max_mr_size = most };
	struct kvs_region region = { .size = 6 * MIB, .page_size = page };
	struct kvs_settings set;
	struct kvs_node n = { .region = &region };
	uint64_t before;
	struct fv_live live;
	int ret;

	fv_clock(device_clock);
	fv_device_add(&s);
	kvs_settings_init(&set);
	assert_int_equal(kvs_settings_set(&set, "transport.data", "verbs", err,
					  errlen),
			 0);
	assert_int_equal(
		kvs_settings_set(&set, "rdma.grant", grant, err, errlen), 0);
	region.base = aligned_alloc(4096, region.size);
	assert_non_null(region.base);
	before = fv_calls(FV_REG_MR);
	ret = kvs_node_start(&n, &set, 1, NULL, err, errlen);
	registrations = fv_calls(FV_REG_MR) - before;
	kvs_node_stop(&n);
	fv_live(&live);
	assert_int_equal(live.mrs + live.pds + live.contexts, 0);
	free(region.base);
	return ret;
}

/* A pool that is registered as far as it went is no pool: kvcache-ai/
 * Mooncake#364, ROCm/ATOM#690. One whose pages are larger than what a device
 * takes is none either: kvcache-ai/Mooncake#3845. */
static void pool_or_none(void **state)
{
	char err[512] = "";
	uint64_t all;

	(void)state;
	/* six pieces */
	fv_begin();
	assert_int_equal(start_of(MIB, 4096, "window", err, sizeof(err)),
			 -EAGAIN);
	assert_non_null(strstr(err, "thread of node"));
	all = registrations;
	assert_int_equal(fv_end(), 0);
	fv_begin();
	fv_fail(FV_REG_MR, all - 6 + 4, 1, ENOMEM);
	assert_int_equal(start_of(MIB, 4096, "window", err, sizeof(err)),
			 -ENOMEM);
	if (!strstr(err, "pool of node 0: piece 4 of it: fake0: cannot "
			 "register 1.0 MiB at 0x") ||
	    !strstr(err, strerror(ENOMEM)))
		fail_msg("not said: %s", err);
	assert_int_equal(registrations, all - 2);
	assert_int_equal(fv_end(), 0);
	/* both kinds of grants */
	for (unsigned int i = 0; i < 2; i++) {
		fv_begin();
		assert_int_equal(start_of(MIB, 2 * MIB, i ? "mr" : "window",
					  err, sizeof(err)),
				 -EINVAL);
		if (!strstr(err, "1.0 MiB") || !strstr(err, "2.0 MiB") ||
		    !strstr(err, "pool.page_size"))
			fail_msg("not said: %s", err);
		assert_int_equal(fv_end(), 0);
	}
}

/* As its upper layer would: each side takes it for lost. */
static void break_conn(void)
{
	kvs_conn_close(g.w[0].c, -EIO, false);
	os_run(&g, 4 * STEP);
	assert_null(g.w[0].c);
}

static void lost(unsigned int slot)
{
	assert_int_equal(os_status(&g, slot), KVS_STATUS_FAILED);
	assert_int_equal(os_errno(&g, slot), ECONNRESET);
}

static void queue_pairs_lost(void **state)
{
	struct kvs_conn *other;

	(void)state;
	/* the last one, and one that a room's keys are bound to: whatever was
	 * told */
	for (unsigned int i = 0; i < 2; i++) {
		begin("mlx5_core", kinds[i], 1);
		os_admit(&g, 1, 1, 8);
		if (kinds[i] == KVS_VERBS_GRANT_WINDOW)
			os_connect(&g, 0);
		break_conn();
		lost(1);
		end(false);
	}
	/* of several: 1 was told of over it, 2 over both, 3 over the other one,
	 * 4 not at all */
	begin("mlx5_core", KVS_VERBS_GRANT_MR, 1);
	for (unsigned int slot = 1; slot <= 4; slot++)
		os_admit(&g, slot, slot, 8);
	os_write(&g, 2, 0, 0, 0, 5);
	os_write(&g, 3, 0, 0, 0, 5);
	os_run(&g, 0);
	other = g.w[0].c;
	os_connect(&g, 0);
	os_write(&g, 1, 0, 0, 0, 5);
	os_write(&g, 2, 0, 0, 1, 5);
	os_run(&g, 0);
	break_conn();
	lost(1);
	lost(2);
	assert_int_equal(os_status(&g, 3), KVS_STATUS_RECEIVING);
	assert_int_equal(os_status(&g, 4), KVS_STATUS_RECEIVING);
	/* its bit is free again, and says nothing of rooms before */
	os_connect(&g, 0);
	break_conn();
	g.w[0].c = other;
	receive(3, 1);
	receive(4, 1);
	end(false);
}

/* What is written over both lands where it belongs. */
static void striped(void **state)
{
	struct kvs_conn *conn[2];

	(void)state;
	begin("mlx5_core", KVS_VERBS_GRANT_MR, 1);
	os_admit(&g, 1, 1, PAGES - 3);
	conn[0] = g.w[0].c;
	os_connect(&g, 0);
	conn[1] = g.w[0].c;
	for (unsigned int p = 0; p < PAGES - 3; p++) {
		for (unsigned int b = 0; b < OS_BUFFERS; b++) {
			g.w[0].c = conn[(p * OS_BUFFERS + b) % 3 % 2];
			os_write(&g, 1, 0, b, p, 5);
		}
	}
	os_run(&g, 0);
	os_last(&g, 1, 0);
	os_run(&g, 2 * STEP);
	assert_int_equal(os_status(&g, 1), KVS_STATUS_READY);
	assert_int_equal(os_wrong(&g, 1, 5), 0);
	os_packet(&g, 1, KVS_PACKET_COMMIT);
	os_packet(&g, 1, KVS_PACKET_COMMITTED);
	end(false);
}

static void abusive_rooms(void **state)
{
	struct kvs_verbs_counts n;
	struct kvs_conn *other;
	struct fv_flight *f;

	(void)state;
	begin("mlx5_core", KVS_VERBS_GRANT_MR, 1);
	os_admit(&g, 1, 1, 8);
	os_admit(&g, 2, 2, 8);
	os_write(&g, 1, 0, 0, 0, 5);
	os_run(&g, 0);
	other = g.w[0].c;
	for (unsigned int i = 0; i < 3; i++) {
		unsigned int near = 3 + 2 * i, bad = 4 + 2 * i;

		os_connect(&g, 0);
		os_admit(&g, near, near, 8);
		os_admit(&g, bad, bad, 8);
		os_write(&g, near, 0, 0, 0, 5);
		os_run(&g, 0);
		g.w[0].acks = false;
		f = abort_in_flight(bad);
		os_run(&g, g.n.settings.hold_timeout + 4 * STEP);
		assert_int_equal(os_bytes(&g, KVS_EXTENT_HELD), 0);
		assert_int_equal(os_status(&g, near), KVS_STATUS_RECEIVING);
		g.w[0].acks = true;
		look(copy);
		assert_true(fv_land(f, UINT64_MAX) < 0);
		os_run(&g, 4 * STEP);
		assert_false(changed());
		assert_null(g.w[0].c);
		assert_int_equal(os_status(&g, near), KVS_STATUS_FAILED);
		assert_int_equal(os_status(&g, 1), KVS_STATUS_RECEIVING);
		assert_int_equal(os_status(&g, 2), KVS_STATUS_RECEIVING);
		g.w[0].c = other;
	}
	kvs_verbs_counters(g.n.transport, &n);
	assert_int_equal(n.broken, 3);
	receive(1, 1);
	receive(2, 1);
	end(false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ready_by_all_ranks),
		cmocka_unit_test(late_writes),
		cmocka_unit_test(queue_pairs_lost),
		cmocka_unit_test(striped),
		cmocka_unit_test(abusive_rooms),
		cmocka_unit_test(cannot_be_deregistered),
		cmocka_unit_test(cannot_be_destroyed_either),
		cmocka_unit_test(cannot_be_registered),
		cmocka_unit_test(pool_or_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
