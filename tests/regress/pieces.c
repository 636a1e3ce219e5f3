/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claim: of a transfer in four pieces, each of which ended well, failed, was
 * cancelled, timed out, ended in a way nobody knows, or is still under way, it
 * is complete only when all four ended well; one bad end decides at once, also
 * with others under way, whose memory is held until they have ended too; an
 * end nobody knows is a bad one; and no copy begins in any of the 1295 other
 * cases (ai-dynamo/nixl#1493).
 */
#include <errno.h>
#include <string.h>

#include "tests/unit/pipeline/worker_rig.h"

#define PIECES 4u
#define ITEM 1024u /* bytes of a piece: a page of one buffer */
#define ROOM_BYTES (PIECES * ITEM)

enum { GOOD, FAILED, CANCELLED, TIMED_OUT, UNKNOWN, UNDER_WAY, ENDS };

static const int status_of[ENDS] = {
	[FAILED] = -EIO,
	[CANCELLED] = -ECANCELED,
	[TIMED_OUT] = -ETIMEDOUT,
	[UNKNOWN] = 99,
};

static struct rig g;

static void end(struct kvs_receive *rx, int how)
{
	kvs_worker_receive_end(g.w, rx, status_of[how], ITEM);
	kvs_worker_turn(g.w);
}

static bool copy_begins(uint64_t gen)
{
	rig_packet(&g, KVS_PACKET_COMMIT, 0, gen, 0);
	return rig_status(&g, 0) == KVS_STATUS_COMMITTING;
}

static void one_case(const unsigned int *how, bool backwards)
{
	struct kvs_receive rx[PIECES];
	unsigned int bad = 0, open = 0;
	uint64_t gen;
	void *addr;

	gen = rig_admit(&g, 7, 0, 1, 1);
	rig_open(&g, 7, gen, 0);
	for (unsigned int i = 0; i < PIECES; i++)
		assert_int_equal(rig_begin(&g, &rx[i], 7, gen, 0, i / 2, i % 2,
					   0, 1, &addr),
				 0);
	rig_last(&g, 7, gen, 0, ROOM_BYTES);
	for (unsigned int k = 0; k < PIECES; k++) {
		unsigned int i = backwards ? PIECES - 1 - k : k;

		bad += how[i] != GOOD && how[i] != UNDER_WAY;
		open += how[i] == UNDER_WAY;
		if (how[i] != UNDER_WAY)
			end(&rx[i], (int)how[i]);
		/* a bad end is never forgotten */
		assert_int_equal(rig_status(&g, 0) == KVS_STATUS_FAILED,
				 bad > 0);
	}
	if (bad) {
		assert_int_equal(rig_bytes(&g, KVS_EXTENT_HELD),
				 open ? ROOM_BYTES : 0);
		assert_false(copy_begins(gen));
	} else if (open) {
		assert_int_equal(rig_status(&g, 0), KVS_STATUS_RECEIVING);
		assert_false(copy_begins(gen));
	}
	/* those under way end, well: that changes no failure */
	for (unsigned int i = 0; i < PIECES; i++)
		if (how[i] == UNDER_WAY)
			end(&rx[i], GOOD);
	if (bad) {
		assert_int_equal(rig_status(&g, 0), KVS_STATUS_FAILED);
		assert_false(copy_begins(gen));
	} else {
		assert_int_equal(rig_status(&g, 0), KVS_STATUS_READY);
		assert_true(copy_begins(gen));
		rig_packet(&g, KVS_PACKET_COMMITTED, 0, gen, 0);
		assert_int_equal(rig_status(&g, 0), KVS_STATUS_DONE);
	}
	kvs_worker_turn(g.w);
	assert_int_equal(rig_bytes(&g, KVS_EXTENT_FREE), kvs_pool_size(g.pool));
	g.n = 0; /* the log has room for the next */
}

static void complete_only_when_all_are(void **state)
{
	unsigned int how[PIECES], cases = 0;

	(void)state;
	rig_up(&g, 4);
	rig_sessions(&g, 1);
	for (unsigned int c = 0; c < ENDS * ENDS * ENDS * ENDS; c++) {
		for (unsigned int i = 0, n = c; i < PIECES; i++, n /= ENDS)
			how[i] = n % ENDS;
		one_case(how, false);
		one_case(how, true);
		cases++;
	}
	assert_int_equal(cases, 1296);
	/* complete are those of pieces that ended well, sooner or later */
	assert_int_equal(g.w->stats.rooms_done, 2 * 2 * 2 * 2 * 2);
	assert_int_equal(g.w->stats.failures[KVS_CAUSE_PEER_LOST],
			 2 * (1296 - 16));
	rig_down(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(complete_only_when_all_are),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
