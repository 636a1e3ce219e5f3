/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A frame to encode into, to damage and to decode from, shared by the tests of
 * the wire protocol.
 */
#ifndef KVS_TESTS_WIRE_BENCH_H
#define KVS_TESTS_WIRE_BENCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "pipeline/wire.h"
#include "tests/unit/pipeline/wire_random.h"

struct bench {
	struct kvs_rng rng;
	struct kvs_wire_scratch in, out;
	_Alignas(8) unsigned char buf[KVS_FRAME_MAX];
	_Alignas(8) unsigned char again[KVS_FRAME_MAX];
	struct kvs_msg m, got;
	const char *reason;
};

/* For cmocka_run_group_tests_name(); prints the seed. */
int wire_bench_setup(void **state);
int wire_bench_teardown(void **state);
/* A random message of a type, encoded to buf: its length. */
int encode_random(struct bench *b, unsigned int type, uint32_t most);
/* Decode from an allocation of just this size: ASan sees one byte too far. */
int decode_exact(struct bench *b, const void *bytes, size_t len);
/* The first @len bytes of buf are refused, with this reason. */
void expect(struct bench *b, size_t len, const char *reason);
/* Little-endian into buf. */
void put(struct bench *b, size_t at, uint64_t v, size_t width);

#endif /* KVS_TESTS_WIRE_BENCH_H */
