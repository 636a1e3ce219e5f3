/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claim, over the double of the CUDA driver: pools are made known to a device
 * in the background, so neither attach nor commit waits for the driver; how far
 * it is can be read; a room that is committed meanwhile waits for its own
 * memory, and neither the poll loop nor another room waits with it; so does one
 * that leaves the device. Memory that the driver refuses is copied all the
 * same, and a context that dies fails the room and says so to the daemon. A
 * detach, and a daemon that dies, end the registration at the piece under way;
 * what was taken on before that is copied.
 */
#include "tests/unit/pipeline/engine_rig.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kvstage/cache.h"
#include "tests/fake_cuda/fake_cuda.h"

#define PIECE (256u << 10)
#define ALL (RIG_POOL + RIG_OFFLOAD)

static const struct kvs_device_opts cuda = {
	.size = sizeof(cuda),
	.backend = "cuda",
	.copy = { .batch_min = 4096 },
	.register_chunk = PIECE,
};

/* Attached, and the driver is asked for the first piece, and does not say. */
static void start(struct rig *g)
{
	struct fake_cuda_config c;
	struct fake_cuda_counts n;

	memset(g, 0, sizeof(*g));
	g->opts = &cuda;
	fake_cuda_config_init(&c);
	fake_cuda_reset(&c);
	fake_cuda_register_only(0);
	rig_start(g);
	assert_int_equal(kvs_engine_register(g->engine, g->device), 0);
	assert_int_equal(kvs_engine_register(g->engine, g->device), 0);
	do {
		(void)sched_yield();
		fake_cuda_counts(&n);
	} while (!n.registering);
}

static void stop(struct rig *g)
{
	struct fake_cuda_counts n;

	fake_cuda_register_only(UINT64_MAX);
	rig_stop(g);
	fake_cuda_counts(&n);
	assert_int_equal(
		n.registrations + n.streams + n.allocations + n.contexts, 0);
}

static struct kvs_registration known(const struct rig *g)
{
	struct kvs_registration k;

	assert_int_equal(kvs_engine_registration(g->engine, g->device, &k), 0);
	assert_int_equal(k.total, ALL);
	assert_true(k.pinned <= k.settled && k.settled <= k.total);
	return k;
}

static struct kvs_registration over(const struct rig *g)
{
	struct kvs_registration k;

	for (k = known(g); !k.over; k = known(g))
		(void)sched_yield();
	assert_int_equal(k.settled, ALL);
	return k;
}

/* The engine does all it can. */
static void turn(struct rig *g)
{
	for (int i = 0; i < 50; i++)
		assert_true(kvs_engine_progress(g->engine) >= 0);
}

static void copied(struct rig *g, struct rig_room *m)
{
	while (kvs_engine_copy_live(g->engine, &m->h)) {
		(void)sched_yield();
		(void)kvs_engine_progress(g->engine);
	}
	(void)kvs_engine_progress(g->engine);
}

static void done(struct rig *g, struct rig_room *m)
{
	copied(g, m);
	assert_int_equal(rig_expect_room(g, KVS_PACKET_COMMITTED, m), 0);
	rig_check_device(g, m);
	rig_word(g, m, 0, KVS_STATUS_DONE);
	rig_room_fini(g, m);
	rig_clear_device(g);
}

static void test_nobody_waits_for_the_driver(void **state)
{
	struct kvs_registration k;
	struct rig_room m, other;
	struct rig g;

	(void)state;
	start(&g);
	k = known(&g);
	assert_int_equal(k.settled, 0);
	assert_false(k.over);
	assert_int_equal(kvs_engine_registration(g.engine, NULL, &k), -ENOENT);
	assert_int_equal(kvs_engine_register(g.engine, NULL), -EINVAL);

	rig_admit(&g, &m, 1000);
	rig_claim(&g, &m); /* and the commit has returned */
	rig_take(&g, &m);
	turn(&g);
	assert_int_equal(kvs_engine_poll(g.engine, &m.h, NULL),
			 KVS_STATUS_COMMITTING);
	assert_true(kvs_engine_copy_live(g.engine, &m.h));
	assert_int_equal(kvs_engine_copied_layers(g.engine, &m.h), 0);
	/* one behind it: comes, is claimed, is given up, is over */
	rig_admit(&g, &other, 300);
	rig_claim(&g, &other);
	rig_take(&g, &other);
	assert_int_equal(kvs_engine_abort(g.engine, &other.h), 0);
	assert_false(kvs_engine_copy_live(g.engine, &other.h));
	(void)rig_expect_room(&g, KVS_PACKET_ABORT, &other);
	(void)rig_expect_room(&g, KVS_PACKET_COPY_OVER, &other);
	rig_word(&g, &other, ECANCELED, KVS_STATUS_FAILED);
	rig_room_fini(&g, &other);
	rig_quiet(&g);
	for (uint32_t b = 0; b < g.layout.n_buffers; b++)
		for (uint64_t n = 0; n < g.dev_len[b]; n++)
			assert_int_equal(((unsigned char *)g.dev[b])[n], 0xa5);

	fake_cuda_register_only(UINT64_MAX);
	done(&g, &m);
	k = over(&g);
	assert_int_equal(k.pinned, ALL);
	assert_int_equal(k.err, 0);
	rig_admit(&g, &m, 2048);
	rig_claim(&g, &m);
	rig_take(&g, &m);
	done(&g, &m);
	stop(&g);
}

static void test_a_commit_alone_begins_it(void **state)
{
	struct fake_cuda_config c;
	struct kvs_registration k;
	struct rig g = { .opts = &cuda };
	struct rig_room m;

	(void)state;
	fake_cuda_config_init(&c);
	fake_cuda_reset(&c);
	rig_start(&g);
	assert_int_equal(kvs_engine_registration(g.engine, g.device, &k),
			 -ENOENT);
	rig_admit(&g, &m, 100);
	rig_claim(&g, &m);
	(void)known(&g);
	rig_take(&g, &m);
	done(&g, &m);
	stop(&g);
}

/* The memory it leaves to must be known as well. */
static void test_a_retraction_waits_too(void **state)
{
	struct kvs_packet_room said;
	unsigned char b[4096];
	union {
		struct kvs_packet_ready p;
		unsigned char b[256];
	} u;
	uint32_t page = 7;
	uint64_t off, len;
	struct rig_room m = { 0 };
	struct kvs_retract q;
	struct rig g;

	(void)state;
	start(&g);
	memset(g.dev[1], 0x37, g.dev_len[1]);
	q = (struct kvs_retract){
		.size = sizeof(q),
		.id = 5,
		.tokens = RIG_PAGE_SIZE,
		.node = -1,
		.device = g.device,
		.buffers = g.dev,
		.pages = &page,
		.n_pages = 1,
	};
	assert_int_equal(kvs_retract(g.engine, &q, &m.h), 0);
	(void)rig_expect(&g, KVS_PACKET_RETRACT, b, sizeof(b));
	m.slot = m.h.slot - 1;
	m.generation = ++g.generation;
	memset(&u, 0, sizeof(u));
	u.p.h = (struct kvs_packet){ KVS_ATTACH_MAGIC, KVS_PACKET_PLACED };
	u.p.generation = m.generation;
	u.p.slot = m.slot;
	u.p.pool = 1;
	u.p.extent_tokens = RIG_EXTENT_TOKENS;
	u.p.n_extents = 1;
	rig_send(&g, &u, sizeof(u.p) + sizeof(u.p.off[0]));
	rig_word(&g, &m, 0, KVS_STATUS_RECEIVING);
	turn(&g);
	rig_quiet(&g);
	assert_true(kvs_engine_copy_live(g.engine, &m.h));
	/* its piece is the 17th, and comes after the one under way */
	fake_cuda_register_only(2);
	copied(&g, &m);
	assert_int_equal(rig_expect(&g, KVS_PACKET_RETRACTED, &said,
				    sizeof(said)),
			 sizeof(said));
	assert_int_equal(said.err, 0);
	assert_int_equal(kvs_geometry_init(&m.geo, &g.layout, RIG_PAGE_SIZE,
					   RIG_EXTENT_TOKENS, 1u << 30, 1, 0),
			 0);
	assert_int_equal(kvs_geometry_run(&m.geo, 0, 1, &off, &len), 0);
	assert_true(len <= sizeof(b));
	assert_int_equal(pread(g.offload_fd, b, len, (off_t)off), len);
	assert_memory_equal(b, g.dev[1], len);
	kvs_geometry_fini(&m.geo);
	assert_false(known(&g).over);
	rig_word(&g, &m, 0, KVS_STATUS_READY);
	stop(&g);
}

/* What the driver does not take is copied through memory of its own. */
static void test_refused_memory(void **state)
{
	static const int errors[] = { 2, 712, 800, 801 };
	struct kvs_registration k;
	struct rig_room m;
	struct rig g;

	(void)state;
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		start(&g);
		for (uint64_t n = 1; n < 15; n++)
			fake_cuda_fail("cuMemHostRegister", n, errors[i]);
		fake_cuda_register_only(UINT64_MAX);
		for (int rooms = 0; rooms < 3; rooms++) {
			rig_admit(&g, &m, 2048);
			rig_claim(&g, &m);
			rig_take(&g, &m);
			done(&g, &m);
		}
		k = over(&g);
		assert_true(k.err > 0 && k.pinned < ALL);
		print_message("%s: %llu of %u bytes pinned\n", strerror(k.err),
			      (unsigned long long)k.pinned, ALL);
		fake_cuda_reset_faults();
		stop(&g);
	}
}

static void test_a_context_that_dies(void **state)
{
	struct rig_room m;
	struct rig g;
	int err;

	(void)state;
	start(&g);
	fake_cuda_fail("cuMemHostRegister", 1, 719);
	rig_admit(&g, &m, 1000);
	rig_claim(&g, &m);
	rig_take(&g, &m);
	turn(&g);
	/* the one under way is well, the next is the end */
	fake_cuda_register_only(2);
	copied(&g, &m);
	assert_int_equal(rig_expect_room(&g, KVS_PACKET_COMMITTED, &m), EIO);
	rig_word(&g, &m, EIO, KVS_STATUS_FAILED);
	assert_int_equal(kvs_engine_poll(g.engine, &m.h, &err),
			 KVS_STATUS_FAILED);
	assert_int_equal(err, EIO);
	assert_int_equal(over(&g).err, EIO);
	assert_int_equal(known(&g).pinned, PIECE);
	rig_room_fini(&g, &m);
	fake_cuda_reset_faults();
	stop(&g);
}

/* A room that waits is given up, and nothing stays registered. */
static void test_a_detach_under_way(void **state)
{
	struct fake_cuda_counts n;
	struct rig_room m;
	struct rig g;

	(void)state;
	start(&g);
	rig_admit(&g, &m, 1000);
	rig_claim(&g, &m);
	rig_take(&g, &m);
	fake_cuda_register_only(1);
	while (known(&g).settled != PIECE)
		(void)sched_yield();
	fake_cuda_register_only(UINT64_MAX);
	kvs_engine_detach(g.engine);
	g.engine = NULL;
	fake_cuda_counts(&n);
	assert_int_equal(n.registrations, 0);
	assert_true(n.unregistered > 0);
	kvs_geometry_fini(&m.geo);
	stop(&g);
}

/* What the daemon has counted is finished from the mapping, at once, as no
 * further memory is made known; the rest has failed; and another daemon's
 * pools are made known to the same device. */
static void test_the_daemon_dies_under_way(void **state)
{
	struct rig g, next = { .opts = &cuda };
	struct rig_room taken, claimed;
	int err;

	(void)state;
	start(&g);
	rig_admit(&g, &taken, 1000);
	rig_claim(&g, &taken);
	rig_take(&g, &taken);
	rig_admit(&g, &claimed, 300);
	rig_claim(&g, &claimed);
	turn(&g);
	rig_die(&g);
	assert_int_equal(kvs_engine_progress(g.engine), -ECONNRESET);
	assert_int_equal(kvs_engine_poll(g.engine, &claimed.h, &err),
			 KVS_STATUS_FAILED);
	assert_int_equal(err, ECONNRESET);
	assert_int_equal(kvs_engine_poll(g.engine, &taken.h, NULL),
			 KVS_STATUS_COMMITTING);
	/* the piece under way ends, and the room goes */
	fake_cuda_register_only(1);
	copied(&g, &taken);
	assert_int_equal(kvs_engine_poll(g.engine, &taken.h, NULL),
			 KVS_STATUS_DONE);
	rig_check_device(&g, &taken);
	assert_int_equal(over(&g).err, ECANCELED);
	assert_int_equal(known(&g).pinned, PIECE);
	kvs_geometry_fini(&taken.geo);
	kvs_geometry_fini(&claimed.geo);

	fake_cuda_register_only(UINT64_MAX);
	rig_start(&next);
	assert_int_equal(kvs_engine_register(next.engine, next.device), 0);
	rig_admit(&next, &taken, 2048);
	rig_claim(&next, &taken);
	rig_take(&next, &taken);
	done(&next, &taken);
	rig_stop(&next);
	stop(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nobody_waits_for_the_driver),
		cmocka_unit_test(test_a_commit_alone_begins_it),
		cmocka_unit_test(test_a_retraction_waits_too),
		cmocka_unit_test(test_refused_memory),
		cmocka_unit_test(test_a_context_that_dies),
		cmocka_unit_test(test_a_detach_under_way),
		cmocka_unit_test(test_the_daemon_dies_under_way),
	};

	return cmocka_run_group_tests_name("engine_register", tests, NULL,
					   NULL);
}
