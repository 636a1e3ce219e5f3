/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: what the ends of a queue pair tell each other survives its encoding;
 * each field out of range is refused; random bytes never do more than that
 * (and what is accepted is within the ranges the rest relies on).
 */
/* clang-format off: cmocka wants these first */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/rng.h"
#include "rdma/verbs_wire.h"

static const struct kvs_verbs_blob good = {
	.what = KVS_VERBS_OFFER,
	.link = KVS_VERBS_ROCE_V2,
	.mtu = 5,
	.lid = 77,
	.qpn = 0x123456,
	.psn = 0xffffff,
	.gid = { 0xfe, 0x80, 1, 2, 3, [15] = 9 },
	.slots = 64,
	.msg = 1024,
	.rd_in = 16,
	.rd_out = 8,
	.number = 513,
	.err = 5,
	.sent = 1ull << 40,
};

static int code(const struct kvs_verbs_blob *b, struct kvs_verbs_blob *ret)
{
	_Alignas(8) unsigned char buf[KVS_VERBS_BLOB];

	kvs_verbs_blob_encode(b, buf);
	return kvs_verbs_blob_decode((const struct kvs_frame *)buf, ret);
}

static void round_trip(void **state)
{
	struct kvs_verbs_blob b;

	(void)state;
	memset(&b, 0xff, sizeof(b));
	assert_int_equal(code(&good, &b), 0);
	assert_int_equal(b.what, good.what);
	assert_int_equal(b.link, good.link);
	assert_int_equal(b.mtu, good.mtu);
	assert_int_equal(b.lid, good.lid);
	assert_int_equal(b.qpn, good.qpn);
	assert_int_equal(b.psn, good.psn);
	assert_memory_equal(b.gid, good.gid, 16);
	assert_int_equal(b.slots, good.slots);
	assert_int_equal(b.msg, good.msg);
	assert_int_equal(b.rd_in, good.rd_in);
	assert_int_equal(b.rd_out, good.rd_out);
	assert_int_equal(b.number, good.number);
	assert_int_equal(b.err, good.err);
	assert_int_equal(b.sent, good.sent);
}

#define REFUSED(field, value)                              \
	do {                                               \
		struct kvs_verbs_blob b_ = good;           \
		struct kvs_verbs_blob r_;                  \
                                                           \
		b_.field = (value);                        \
		assert_int_equal(code(&b_, &r_), -EPROTO); \
	} while (0)

static void ranges(void **state)
{
	struct kvs_verbs_blob b = good;
	_Alignas(8) unsigned char buf[KVS_VERBS_BLOB];
	struct kvs_frame *f = (struct kvs_frame *)buf;

	(void)state;
	REFUSED(what, 0);
	REFUSED(what, 4);
	REFUSED(link, 0);
	REFUSED(link, 4);
	REFUSED(mtu, 0);
	REFUSED(mtu, 6);
	REFUSED(qpn, 0);
	REFUSED(qpn, 1u << 24);
	REFUSED(psn, 1u << 24);
	REFUSED(number, KVS_VERBS_BRANCH_MAX + 1);
	REFUSED(slots, 0);
	REFUSED(slots, KVS_VERBS_SLOTS_MAX + 1);
	REFUSED(msg, KVS_VERBS_MSG_MIN - 1);
	REFUSED(msg, KVS_VERBS_MSG_MAX + 1);
	/* an end has no address */
	b = (struct kvs_verbs_blob){ .what = KVS_VERBS_FIN, .err = 4095 };
	assert_int_equal(code(&b, &b), 0);
	b.err = 4096;
	assert_int_equal(code(&b, &b), -EPROTO);
	/* the frame around it */
	kvs_verbs_blob_encode(&good, buf);
	f->flags = kvs_put16(1);
	assert_int_equal(kvs_verbs_blob_decode(f, &b), -EPROTO);
	kvs_verbs_blob_encode(&good, buf);
	f->len = kvs_put32(KVS_VERBS_BLOB - 1);
	assert_int_equal(kvs_verbs_blob_decode(f, &b), -EPROTO);
	kvs_verbs_blob_encode(&good, buf);
	f->type = kvs_put16(KVS_FRAME_OWN);
	assert_int_equal(kvs_verbs_blob_decode(f, &b), -EPROTO);
	kvs_verbs_blob_encode(&good, buf);
	buf[sizeof(*f)]++; /* its version */
	assert_int_equal(kvs_verbs_blob_decode(f, &b), -EPROTONOSUPPORT);
}

static void messages(void **state)
{
	struct kvs_verbs_msg m = {
		.type = KVS_VERBS_MSG_FRAME,
		.len = 64,
		.credits = 32,
	};
	unsigned char buf[KVS_VERBS_MSG_HEAD + 64] = { 0 };
	struct kvs_verbs_msg r;

	(void)state;
	kvs_verbs_msg_encode(&m, buf);
	assert_int_equal(kvs_verbs_msg_decode(buf, sizeof(buf), &r), 0);
	assert_int_equal(r.type, m.type);
	assert_int_equal(r.len, 64);
	assert_int_equal(r.credits, 32);
	/* shorter or longer than it says */
	assert_int_equal(kvs_verbs_msg_decode(buf, sizeof(buf) - 1, &r),
			 -EPROTO);
	assert_int_equal(kvs_verbs_msg_decode(buf, KVS_VERBS_MSG_HEAD - 1, &r),
			 -EPROTO);
	m.credits = KVS_VERBS_SLOTS_MAX + 1;
	kvs_verbs_msg_encode(&m, buf);
	assert_int_equal(kvs_verbs_msg_decode(buf, sizeof(buf), &r), -EPROTO);
	/* a frame has bytes, credits have none */
	m = (struct kvs_verbs_msg){ .type = KVS_VERBS_MSG_FRAME };
	kvs_verbs_msg_encode(&m, buf);
	assert_int_equal(kvs_verbs_msg_decode(buf, KVS_VERBS_MSG_HEAD, &r),
			 -EPROTO);
	m.type = KVS_VERBS_MSG_CREDIT;
	kvs_verbs_msg_encode(&m, buf);
	assert_int_equal(kvs_verbs_msg_decode(buf, KVS_VERBS_MSG_HEAD, &r), 0);
	m.len = 64;
	kvs_verbs_msg_encode(&m, buf);
	assert_int_equal(kvs_verbs_msg_decode(buf, sizeof(buf), &r), -EPROTO);
}

static void random_bytes(void **state)
{
	const char *env = getenv("KVS_TEST_SEED");
	uint64_t seed = env ? strtoull(env, NULL, 0) : (uint64_t)time(NULL);
	_Alignas(8) unsigned char buf[KVS_VERBS_BLOB];
	struct kvs_verbs_blob b;
	struct kvs_verbs_msg m;
	struct kvs_rng rng;
	int i, k;

	(void)state;
	printf("seed %llu\n", (unsigned long long)seed);
	kvs_rng_init(&rng, seed);
	for (i = 0; i < 200000; i++) {
		kvs_verbs_blob_encode(&good, buf);
		for (k = (int)kvs_rng_below(&rng, 4); k >= 0; k--)
			buf[kvs_rng_below(&rng, sizeof(buf))] =
				(unsigned char)kvs_rng_next(&rng);
		if (!kvs_verbs_blob_decode((const struct kvs_frame *)buf, &b) &&
		    b.what != KVS_VERBS_FIN) {
			assert_true(b.qpn && b.qpn < 1u << 24);
			assert_true(b.slots && b.slots <= KVS_VERBS_SLOTS_MAX);
			assert_true(b.msg >= KVS_VERBS_MSG_MIN);
			assert_true(b.mtu >= 1 && b.mtu <= 5);
		}
		k = (int)kvs_rng_below(&rng, sizeof(buf) + 1);
		if (!kvs_verbs_msg_decode(buf, (size_t)k, &m))
			assert_int_equal(m.len, k - (int)KVS_VERBS_MSG_HEAD);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(round_trip),
		cmocka_unit_test(ranges),
		cmocka_unit_test(messages),
		cmocka_unit_test(random_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
