/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rooms whose ranks write by themselves: grants from OPEN to proof, what each
 * abort does to them, the ladder when one cannot be closed, and what a rank
 * may say of its writes. What the rules promise is in tests/claim/.
 */
#include "tests/unit/pipeline/onesided_rig.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "pipeline/digest_map.h"

#define PAGES 40u
#define MS KVS_NSEC_PER_MSEC

static struct os_rig g;

static uint64_t late_bytes(void)
{
	return g.n.worker->stats.late_bytes;
}

static struct kvs_loop_faults faults(void)
{
	struct kvs_loop_faults f;

	kvs_fabric_faults(g.f, &f);
	return f;
}

static uint64_t refused(void)
{
	return faults().refused;
}

static void finish(unsigned int slot)
{
	os_packet(&g, slot, KVS_PACKET_COMMIT);
	os_packet(&g, slot, KVS_PACKET_COMMITTED);
	assert_int_equal(os_status(&g, slot), KVS_STATUS_DONE);
}

/* Ranks share the layers; with three, the first writes nothing. */
static void ready_by_all_ranks(void **state)
{
	(void)state;
	for (unsigned int ranks = 1; ranks <= OS_RANKS; ranks++) {
		os_up(&g, PAGES, ranks, NULL);
		os_admit(&g, 1, 1, PAGES - 3);
		for (unsigned int k = 0; k < ranks; k++) {
			assert_int_equal(os_status(&g, 1),
					 KVS_STATUS_RECEIVING);
			os_write_all(&g, 1, k, 5, 0, 0);
		}
		assert_int_equal(os_status(&g, 1), KVS_STATUS_READY);
		assert_int_equal(os_wrong(&g, 1, 5), 0);
		assert_int_equal(os_room_of(&g, 1)->drain.live, 0);
		finish(1);
		assert_int_equal(refused(), 0);
		os_down(&g);
	}
}

/* A rank without bytes gets no key, and is asked all the same. */
static void zero_byte_rank(void **state)
{
	(void)state;
	os_up(&g, PAGES, 3, NULL);
	os_admit(&g, 1, 1, 4);
	assert_false(os_room_of(&g, 1)->ranks[0].slice.n_layers);
	assert_int_equal(os_room_of(&g, 1)->ranks[0].grant, KVS_RANK_NONE);
	g.w[0].acks = false;
	os_packet(&g, 1, KVS_PACKET_ABORT);
	assert_int_equal(g.w[0].aborts, 1);
	assert_true(os_bytes(&g, KVS_EXTENT_HELD) > 0);
	os_say(&g, 1, 0, KVS_WIRE_ABORT_ACK);
	assert_int_equal(os_bytes(&g, KVS_EXTENT_HELD), 0);
	assert_int_equal(os_drains(&g, KVS_DRAIN_DRAINED,
				   KVS_PROOF_ALL_ACKNOWLEDGED),
			 1);
	os_down(&g);
}

/* Nobody answers: held for hold.timeout, then the key is closed. What the
 * writer still sends lands nowhere. */
static void revoked_at_hold_timeout(void **state)
{
	uint64_t landed;

	(void)state;
	os_up(&g, PAGES, 1, NULL);
	g.n.settings.hold_reask = 0;
	g.w[0].acks = false;
	os_admit(&g, 1, 1, PAGES);
	os_write(&g, 1, 0, 0, 0, 1);
	os_run(&g, 0);
	os_packet(&g, 1, KVS_PACKET_ABORT);
	os_run(&g, g.n.settings.hold_timeout - MS);
	assert_int_equal(os_bytes(&g, KVS_EXTENT_HELD), g.region.size);
	os_run(&g, 2 * MS);
	assert_int_equal(os_bytes(&g, KVS_EXTENT_FREE), g.region.size);
	assert_int_equal(os_drains(&g, KVS_DRAIN_REVOKED,
				   KVS_PROOF_GRANT_INVALIDATED),
			 1);
	landed = faults().landed;
	os_write(&g, 1, 0, 0, 1, 1);
	os_run(&g, MS);
	assert_int_equal(refused(), 1);
	assert_int_equal(faults().landed, landed);
	os_down(&g);
}

/* Late bytes that are reported, not written, are counted. */
static void late_reports(void **state)
{
	(void)state;
	os_up(&g, PAGES, 1, NULL);
	os_admit(&g, 1, 1, PAGES);
	os_packet(&g, 1, KVS_PACKET_ABORT);
	os_claim(&g, 1, 0, 0, 0);
	os_run(&g, 0);
	assert_int_equal(late_bytes(), OS_ITEM);
	os_down(&g);
}

/* A lost sender cannot acknowledge: revoked at once, not at the timeout. */
static void lost_session(void **state)
{
	(void)state;
	os_up(&g, PAGES, 1, NULL);
	os_admit(&g, 1, 1, PAGES);
	os_write(&g, 1, 0, 0, 0, 1);
	os_run(&g, 0);
	kvs_node_session_lost(&g.n, 100, -ECONNRESET, "gone");
	os_run(&g, MS);
	assert_int_equal(os_errno(&g, 1), ECONNRESET);
	assert_int_equal(os_bytes(&g, KVS_EXTENT_FREE), g.region.size);
	os_down(&g);
}

/* NAK: the rank says that it cannot tell; the key decides. */
static void negative_answer(void **state)
{
	(void)state;
	os_up(&g, PAGES, 1, NULL);
	g.w[0].acks = false;
	os_admit(&g, 1, 1, PAGES);
	os_packet(&g, 1, KVS_PACKET_ABORT);
	os_say(&g, 1, 0, KVS_WIRE_ABORT_NAK);
	assert_int_equal(os_drains(&g, KVS_DRAIN_REVOKED,
				   KVS_PROOF_GRANT_INVALIDATED),
			 1);
	os_down(&g);
}

/* A key that cannot be closed costs its session the connections; the other
 * room on them fails and drains by itself. */
static void torn_down(void **state)
{
	const struct kvs_loop_plan plan = { .close_fails = 1.0,
					    .close_fails_n = 1 };
	const struct kvs_loop_plan none = { 0 };

	(void)state;
	os_up(&g, PAGES, 1, NULL);
	os_admit(&g, 1, 1, 8);
	os_admit(&g, 2, 2, 8);
	assert_int_equal(kvs_fabric_set_plan(g.f, &plan), 0);
	kvs_node_packet(&g.n, 1, KVS_PACKET_ABORT,
			&(struct kvs_packet_room){ .generation =
							   g.room[1].generation,
						   .slot = 1 });
	kvs_node_turn(&g.n, 0);
	kvs_node_turn(&g.n, 0);
	assert_int_equal(kvs_fabric_set_plan(g.f, &none), 0);
	os_run(&g, MS);
	assert_int_equal(g.closed_sessions, 1);
	assert_null(g.w[0].c);
	assert_int_equal(os_status(&g, 2), KVS_STATUS_FAILED);
	assert_int_equal(os_errno(&g, 2), ECONNABORTED);
	assert_int_equal(os_bytes(&g, KVS_EXTENT_FREE), g.region.size);
	assert_int_equal(os_drains(&g, KVS_DRAIN_REVOKED,
				   KVS_PROOF_CONNECTION_TORN_DOWN),
			 2);
	os_down(&g);
}

/* A sender connects again while its connections are torn down, and before the
 * front knows: with a new one it would be no use that the old ones are gone. */
static void torn_down_stays_down(void **state)
{
	const struct kvs_loop_plan fails = { .latency_min = MS,
					     .close_fails = 1.0,
					     .close_fails_n = 2 };
	const struct kvs_loop_plan none = { 0 };

	(void)state;
	os_up(&g, PAGES, 1, NULL);
	g.slow_front = true;
	os_admit(&g, 1, 1, 8);
	assert_int_equal(kvs_fabric_set_plan(g.f, &fails), 0);
	os_packet(&g, 1, KVS_PACKET_ABORT);
	os_run(&g, MS);
	assert_int_equal(g.closed_sessions, 1);
	assert_int_equal(os_bytes(&g, KVS_EXTENT_HELD), 8 * OS_PAGE);
	assert_int_equal(kvs_fabric_set_plan(g.f, &none), 0);
	os_try_connect(&g, 0);
	os_run(&g, MS);
	assert_null(g.w[0].c);
	assert_int_equal(os_bytes(&g, KVS_EXTENT_QUARANTINED), 0);
	assert_int_equal(os_drains(&g, KVS_DRAIN_REVOKED,
				   KVS_PROOF_CONNECTION_TORN_DOWN),
			 1);
	os_down(&g);
}

/* The same when all is there: the room cannot be READY. */
static void cannot_be_sealed(void **state)
{
	const struct kvs_loop_plan plan = { .close_fails = 1.0,
					    .close_fails_n = 1 };

	(void)state;
	os_up(&g, PAGES, 1, NULL);
	os_admit(&g, 1, 1, PAGES);
	os_write_all(&g, 1, 0, 1, 3, 1);
	for (unsigned int b = 0; b < OS_BUFFERS; b++)
		os_write(&g, 1, 0, b, 3, 1);
	os_run(&g, 0);
	assert_int_equal(kvs_fabric_set_plan(g.f, &plan), 0);
	os_last(&g, 1, 0);
	os_run(&g, MS);
	assert_int_equal(os_status(&g, 1), KVS_STATUS_FAILED);
	assert_int_equal(os_errno(&g, 1), EIO);
	assert_int_equal(os_bytes(&g, KVS_EXTENT_FREE), g.region.size);
	os_down(&g);
}

/* Aborted before the keys are there: they are never told, and closed. */
static void aborted_while_opening(void **state)
{
	const struct kvs_loop_plan plan = { .latency_min = MS,
					    .latency_max = MS };

	(void)state;
	os_up(&g, PAGES, 1, NULL);
	assert_int_equal(kvs_fabric_set_plan(g.f, &plan), 0);
	os_admit(&g, 1, 1, PAGES);
	assert_int_equal(os_status(&g, 1), KVS_STATUS_RECEIVING);
	assert_int_equal(os_room_of(&g, 1)->ranks[0].grant, KVS_RANK_OPENING);
	os_packet(&g, 1, KVS_PACKET_ABORT);
	assert_int_equal(os_bytes(&g, KVS_EXTENT_HELD), g.region.size);
	os_run(&g, 4 * MS);
	assert_false(g.room[1].granted[0]);
	assert_int_equal(g.w[0].aborts, 0); /* a REFUSE is its answer */
	assert_int_equal(os_bytes(&g, KVS_EXTENT_FREE), g.region.size);
	os_down(&g);
}

static void cannot_be_granted(void **state)
{
	const struct kvs_loop_plan plan = { .open_fails = 1.0 };

	(void)state;
	os_up(&g, PAGES, 1, NULL);
	assert_int_equal(kvs_fabric_set_plan(g.f, &plan), 0);
	os_admit(&g, 1, 1, PAGES);
	os_run(&g, MS);
	assert_int_equal(os_status(&g, 1), KVS_STATUS_FAILED);
	assert_int_equal(os_bytes(&g, KVS_EXTENT_FREE), g.region.size);
	assert_int_equal(
		os_drains(&g, KVS_DRAIN_DRAINED, KVS_PROOF_NEVER_GRANTED), 1);
	os_down(&g);
}

/* A report that comes twice counts once. */
static void reported_twice(void **state)
{
	(void)state;
	os_up(&g, PAGES, 1, NULL);
	os_admit(&g, 1, 1, PAGES);
	os_write(&g, 1, 0, 0, 0, 5);
	os_run(&g, 0);
	os_claim(&g, 1, 0, 0, 0);
	os_run(&g, 0);
	assert_int_equal(g.n.worker->stats.chunks_repeated, 1);
	assert_int_equal(os_room_of(&g, 1)->received, OS_ITEM);
	os_packet(&g, 1, KVS_PACKET_ABORT);
	os_down(&g);
}

/* What a rank may not say of its writes closes its session. */
static void lies_about_ranges(void **state)
{
	(void)state;
	os_up(&g, PAGES, 2, NULL);
	os_admit(&g, 1, 1, PAGES);
	os_claim(&g, 1, 0, 1, 0); /* a layer of the other rank */
	os_run(&g, MS);
	assert_int_equal(g.n.worker->stats.protocol_errors[KVS_PROTO_RANGE], 1);
	assert_true(g.closed_sessions > 0);
	assert_int_equal(os_errno(&g, 1), EPROTO);
	os_down(&g);
}

static uint32_t digest_of(unsigned int seed, unsigned int pages)
{
	const struct kvs_slice all = { 0, 2, 1, 0 };
	unsigned char page[OS_ITEM];
	struct kvs_digest_map map;
	struct kvs_digest d;
	uint64_t at;

	assert_int_equal(kvs_digest_map_init(&map, &g.layout, pages * 4ULL,
					     OS_EXTENT * 4, &all, 0),
			 0);
	kvs_digest_init(&d, KVS_DIGEST_CRC32C, map.total);
	for (unsigned int p = 0; p < pages; p++) {
		for (unsigned int b = 0; b < OS_BUFFERS; b++) {
			memset(page, os_byte(seed, b, p), sizeof(page));
			assert_int_equal(
				kvs_digest_map_run(&map, p / OS_EXTENT, b,
						   (uint64_t)(p % OS_EXTENT) *
							   OS_ITEM,
						   OS_ITEM, &at),
				0);
			assert_int_equal(kvs_digest_add(&d, at, page, OS_ITEM),
					 0);
		}
	}
	kvs_digest_map_fini(&map);
	return kvs_digest_value(&d);
}

/* The digest is of the memory as it lies once the keys are closed. */
static void digest_of_what_arrived(void **state)
{
	struct kvs_msg m = { .type = KVS_WIRE_LAST };

	(void)state;
	for (unsigned int wrong = 0; wrong < 2; wrong++) {
		os_up(&g, PAGES, 1, NULL);
		snprintf(g.n.settings.checksum_kind,
			 sizeof(g.n.settings.checksum_kind), "crc32c");
		((struct kvs_worker_session *)kvs_u64map_get(
			 &g.n.worker->sessions, 100))
			->digest = KVS_DIGEST_CRC32C;
		os_admit(&g, 1, 1, PAGES);
		for (unsigned int p = 0; p < PAGES; p++)
			for (unsigned int b = 0; b < OS_BUFFERS; b++)
				os_write(&g, 1, 0, b, p,
					 wrong && p == 17 ? 6 : 5);
		os_run(&g, 0);
		m.last.room = 1;
		m.last.generation = g.room[1].generation;
		m.last.bytes = PAGES * OS_PAGE;
		m.last.digest_kind = KVS_DIGEST_CRC32C;
		m.last.digest = digest_of(5, PAGES);
		assert_int_equal(kvs_node_message(&g.n, 100, &m), 0);
		os_run(&g, 0);
		assert_int_equal(os_status(&g, 1),
				 wrong ? KVS_STATUS_FAILED : KVS_STATUS_READY);
		assert_int_equal(os_errno(&g, 1), wrong ? EBADMSG : 0);
		if (!wrong)
			finish(1);
		os_down(&g);
	}
}

/* The end of a page is looked at for all of it, so that a first half that was
 * lost would not be seen: pages are written whole. */
static void page_in_pieces(void **state)
{
	static const struct {
		uint64_t offset;
		uint32_t len;
	} piece[] = {
		{ 0, OS_ITEM / 2 },
		{ OS_ITEM / 2, OS_ITEM / 2 },
		{ OS_ITEM - 1, OS_ITEM + 1 },
		{ 0, 2 * OS_ITEM - 8 },
	};

	(void)state;
	for (size_t i = 0; i < KVS_ARRAY_SIZE(piece); i++) {
		os_up(&g, PAGES, 1, NULL);
		os_admit(&g, 1, 1, 4);
		os_claim_part(&g, 1, 0, 1, 0, piece[i].offset, piece[i].len);
		os_run(&g, 0);
		assert_true(g.closed_sessions > 0);
		assert_int_equal(
			g.n.worker->stats.protocol_errors[KVS_PROTO_RANGE], 1);
		os_end(&g);
	}
	os_up(&g, PAGES, 1, NULL);
	os_admit(&g, 1, 1, 4);
	os_claim_part(&g, 1, 0, 1, 0, 0, 2 * OS_ITEM);
	os_run(&g, 0);
	assert_int_equal(g.closed_sessions, 0);
	os_end(&g);
}

/* The node ends with a grant open: nothing leaks, nothing asserts. */
static void ends_with_open_grants(void **state)
{
	(void)state;
	os_up(&g, PAGES, 1, NULL);
	os_admit(&g, 1, 1, 8);
	os_admit(&g, 2, 2, 8);
	os_end(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ready_by_all_ranks),
		cmocka_unit_test(zero_byte_rank),
		cmocka_unit_test(revoked_at_hold_timeout),
		cmocka_unit_test(late_reports),
		cmocka_unit_test(lost_session),
		cmocka_unit_test(negative_answer),
		cmocka_unit_test(torn_down),
		cmocka_unit_test(torn_down_stays_down),
		cmocka_unit_test(cannot_be_sealed),
		cmocka_unit_test(aborted_while_opening),
		cmocka_unit_test(cannot_be_granted),
		cmocka_unit_test(reported_twice),
		cmocka_unit_test(lies_about_ranges),
		cmocka_unit_test(page_in_pieces),
		cmocka_unit_test(digest_of_what_arrived),
		cmocka_unit_test(ends_with_open_grants),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
