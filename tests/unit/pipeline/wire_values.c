/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: every value of a message is checked before anybody sees it: ranges,
 * counts, reserved fields, texts, identities; sums do not wrap.
 */
#include "tests/unit/pipeline/wire_bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/le.h"
#include "pipeline/digest.h"
#include "pipeline/geometry.h"
#include "pipeline/layout.h"
#include "pipeline/wire_text.h"

/* Lengths and offsets at every border, offset + len wrapping included. */
static void wire_chunk_ranges(void **state)
{
	static const struct {
		uint64_t offset;
		uint32_t len;
	} bad[] = {
		{ 0, 0 },
		{ 0, 1u << 31 },
		{ 0, UINT32_MAX },
		{ 1ULL << 31, 4096 },
		{ 1ULL << 32, 4096 },
		{ 1ULL << 63, 4096 },
		{ UINT64_MAX, 1 },
		{ UINT64_MAX - 4095, 4096 },
		{ (1u << 30) - 4095, 4096 },
		{ 1u << 30, 1 },
	};
	struct bench *b = *state;
	size_t i, len;

	for (i = 0; i < KVS_ARRAY_SIZE(bad); i++) {
		do {
			len = (size_t)encode_random(b, KVS_WIRE_CHUNK_DONE, 1);
		} while (b->m.chunk.kind == KVS_KIND_AUX);
		put(b, 32, bad[i].offset, 8);
		put(b, 52, bad[i].len, 4);
		expect(b, len, "value");
	}
	put(b, 32, (1u << 30) - 4096, 8);
	put(b, 52, 4096, 4);
	assert_int_equal(decode_exact(b, b->buf, len), 0);
	put(b, 44, KVS_EXTENTS_MAX, 4);
	expect(b, len, "value");
	put(b, 44, 0, 4);
	put(b, 48, KVS_BUFFER_KIND_MAX, 2);
	expect(b, len, "value");
	/* an aux block: its own limit, and only one's own */
	put(b, 40, 3, 4);
	put(b, 48, KVS_KIND_AUX, 2);
	put(b, 50, 3, 2);
	put(b, 32, KVS_AUX_MAX - 4096, 8);
	assert_int_equal(decode_exact(b, b->buf, len), 0);
	put(b, 32, KVS_AUX_MAX - 4095, 8);
	expect(b, len, "value");
	put(b, 32, 0, 8);
	put(b, 50, 4, 2);
	expect(b, len, "value");
}

static void wire_counts_lie(void **state)
{
	static const uint32_t counts[] = { 0,	     1,		3,
					   5,	     4097,	0x15555556,
					   1u << 31, UINT32_MAX };
	struct bench *b = *state;
	size_t i, len;

	do {
		len = (size_t)encode_random(b, KVS_WIRE_LAYOUT, 4);
	} while (b->m.layout.l.n_buffers != 4);
	for (i = 0; i < KVS_ARRAY_SIZE(counts); i++) {
		put(b, 24, counts[i], 4);
		expect(b, len, "count");
	}
	do {
		len = (size_t)encode_random(b, KVS_WIRE_GRANT, 4);
	} while (b->m.grant.n_keys != 4 || b->m.grant.n_places != 2 ||
		 b->m.grant.n_paths);
	for (i = 0; i < KVS_ARRAY_SIZE(counts); i++) {
		put(b, 72, counts[i], 4);
		expect(b, len, "count");
	}
	put(b, 72, 0x40000000, 4); /* times 12 is 0 in 32 bits */
	expect(b, len, "count");
	put(b, 72, 4, 4);
	for (i = 0; i < KVS_ARRAY_SIZE(counts); i++) {
		put(b, 76, counts[i], 4);
		expect(b, len, "count");
	}
	put(b, 76, 0x20000000, 4); /* times 8 is 0 in 32 bits */
	expect(b, len, "count");
	put(b, 76, KVS_LAYOUT_BUFFERS_MAX + 1, 4);
	expect(b, len, "count");
	/* as many keys as said, but not one an extent */
	put(b, 72, 2, 4);
	put(b, 76, 5, 4);
	expect(b, len, "count");
	/* places, but no keys */
	put(b, 72, 0, 4);
	put(b, 76, 8, 4);
	expect(b, len, "count");
}

/* The three identities of the grant's geometry; all must be consistent. */
static void wire_grant_geometry(void **state)
{
	struct bench *b = *state;
	struct kvs_msg_grant *g = &b->m.grant;
	size_t len;

	do {
		len = (size_t)encode_random(b, KVS_WIRE_GRANT, 4);
	} while (g->n_keys || g->n_extents != 3);
	put(b, 56, 2, 4);
	expect(b, len, "value");
	put(b, 56, 4, 4);
	expect(b, len, "value");
	put(b, 56, 3, 4);
	put(b, 48, 0, 4);
	expect(b, len, "value");
	put(b, 48, UINT32_MAX, 4);
	expect(b, len, "value");
	put(b, 48, g->page_size, 4);
	put(b, 52, 0, 4);
	expect(b, len, "value");
	put(b, 52, UINT32_MAX, 4);
	expect(b, len, "value");
	put(b, 52, g->extent_tokens, 4);
	put(b, 32, 0, 8);
	expect(b, len, "value");
	put(b, 32, UINT64_MAX, 8);
	expect(b, len, "value");
	put(b, 32, g->tokens, 8);
	put(b, 60, UINT32_MAX, 4);
	put(b, 64, 2, 4);
	expect(b, len, "value");
	put(b, 60, 65535, 4);
	expect(b, len, "value");
	put(b, 64, 1, 4);
	assert_int_equal(decode_exact(b, b->buf, len), 0);
}

static void wire_layout_values(void **state)
{
	struct bench *b = *state;
	size_t len;

	do {
		len = (size_t)encode_random(b, KVS_WIRE_LAYOUT, 4);
	} while (b->m.layout.l.n_buffers != 4);
	put(b, 16, 0, 4);
	expect(b, len, "value");
	put(b, 16, KVS_PAGE_SIZE_MAX + 1, 4);
	expect(b, len, "value");
	put(b, 16, 64, 4);
	put(b, 28, KVS_AUX_MAX + 1, 4);
	expect(b, len, "value");
	put(b, 28, 0, 4);
	put(b, 48 + 4, 0, 4);
	expect(b, len, "value");
	put(b, 48 + 4, UINT32_MAX, 4);
	expect(b, len, "value");
	put(b, 48 + 4, 4096, 4);
	/* a kind of the future: taken, for the comparison to name it */
	put(b, 48, 99, 2);
	assert_int_equal(decode_exact(b, b->buf, len), 0);
	assert_int_equal(b->got.layout.l.buffers[0].kind, 99);
	assert_int_equal(kvs_wire_encode(&b->got, b->again, sizeof(b->again)),
			 -EINVAL);
	/* one buffer twice */
	memcpy(b->buf + 48, b->buf + 60, 12);
	expect(b, len, "value");
}

static void wire_identity(void **state)
{
	static const struct {
		unsigned int type;
		size_t rank_at;
		bool gen_known;
	} v[] = {
		{ KVS_WIRE_OPEN, 56, false },
		{ KVS_WIRE_GRANT, 40, true },
		{ KVS_WIRE_REFUSE, 32, false },
		{ KVS_WIRE_CHUNK, 40, true },
		{ KVS_WIRE_CHUNK_DONE, 40, true },
		{ KVS_WIRE_LAST, 40, true },
		{ KVS_WIRE_COMPLETE, 32, true },
		{ KVS_WIRE_ABORT, 32, true },
		{ KVS_WIRE_ABORT_ACK, 32, false },
		{ KVS_WIRE_ABORT_NAK, 32, true },
	};
	struct bench *b = *state;
	size_t i, len;

	for (i = 0; i < KVS_ARRAY_SIZE(v); i++) {
		len = (size_t)encode_random(b, v[i].type, 4);
		put(b, 16, 0, 8);
		expect(b, len, "value");
		len = (size_t)encode_random(b, v[i].type, 4);
		put(b, 24, 0, 8);
		if (v[i].gen_known)
			expect(b, len, "value");
		else
			assert_int_equal(decode_exact(b, b->buf, len), 0);
		len = (size_t)encode_random(b, v[i].type, 4);
		put(b, v[i].rank_at, KVS_RANKS_MAX, 4);
		expect(b, len, "value");
	}
}

static void wire_hello_values(void **state)
{
	struct bench *b = *state;
	size_t len;

	do {
		len = (size_t)encode_random(b, KVS_WIRE_HELLO, 1);
	} while (b->m.hello.role != KVS_ROLE_DATA);
	put(b, 40, 0, 8); /* data without a token */
	expect(b, len, "value");
	put(b, 40, 7, 8);
	put(b, 32, 0, 8); /* instance */
	expect(b, len, "value");
	put(b, 32, 7, 8);
	put(b, 16, 0, 2); /* version_min */
	expect(b, len, "value");
	put(b, 16, 3, 2);
	put(b, 18, 2, 2);
	expect(b, len, "value");
	put(b, 18, 3, 2);
	assert_int_equal(decode_exact(b, b->buf, len), 0);
	put(b, 48, 2, 4); /* rank 2 of 2 */
	put(b, 52, 2, 4);
	expect(b, len, "value");
	put(b, 48, 1, 4);
	put(b, 52, KVS_RANKS_MAX + 1, 4);
	expect(b, len, "value");
	put(b, 52, 2, 4);
	put(b, 56, KVS_WORKERS_MAX, 4);
	expect(b, len, "value");
	put(b, 56, 1, 4);
	put(b, 20, KVS_ROLE_CONTROL, 2); /* a reply may name workers */
	assert_int_equal(decode_exact(b, b->buf, len), 0);
	put(b, 40, 0, 8); /* what begins a connection does not */
	expect(b, len, "value");
	put(b, 56, 0, 4);
	put(b, 22, 0, 2);
	put(b, 40, 0, 8);
	assert_int_equal(decode_exact(b, b->buf, len), 0);
	put(b, 20, 2, 2);
	expect(b, len, "value");
}

/* Numbers of data connections: only where both sides have them. */
static void wire_hello_paths(void **state)
{
	struct bench *b = *state;
	size_t len;

	do {
		len = (size_t)encode_random(b, KVS_WIRE_HELLO, 1);
	} while (b->m.hello.role != KVS_ROLE_DATA);
	put(b, 24, KVS_CAP_PATHS, 8);
	put(b, 22, KVS_PATHS_MAX - 1, 2);
	assert_int_equal(decode_exact(b, b->buf, len), 0);
	assert_int_equal(b->got.hello.paths, KVS_PATHS_MAX - 1);
	put(b, 22, KVS_PATHS_MAX, 2);
	expect(b, len, "value");
	put(b, 22, 1, 2);
	put(b, 24, 0, 8);
	expect(b, len, "value");
	/* an answer says how many there are to be */
	put(b, 24, KVS_CAP_PATHS, 8);
	put(b, 20, KVS_ROLE_CONTROL, 2);
	put(b, 22, KVS_PATHS_MAX, 2);
	assert_int_equal(decode_exact(b, b->buf, len), 0);
	put(b, 22, KVS_PATHS_MAX + 1, 2);
	expect(b, len, "value");
	put(b, 22, 1, 2);
	put(b, 56, 0, 4);
	put(b, 40, 0, 8);
	expect(b, len, "value");
}

static void wire_grant_paths(void **state)
{
	struct bench *b = *state;
	uint32_t n, places;
	size_t len, at;

	do {
		len = (size_t)encode_random(b, KVS_WIRE_GRANT, 4);
	} while (b->m.grant.n_paths < 2);
	n = b->m.grant.n_paths;
	places = b->m.grant.n_places;
	at = len - n * 4;
	assert_int_equal(decode_exact(b, b->buf, len), 0);
	assert_int_equal(b->got.grant.n_keys, n * b->got.grant.n_extents);
	/* one twice; one there is not; what is reserved */
	put(b, at + 4, b->m.grant.paths[0], 4);
	expect(b, len, "value");
	put(b, at + 4, KVS_PATHS_MAX, 4);
	expect(b, len, "value");
	put(b, at + 4, b->m.grant.paths[1] | 1u << 16, 4);
	expect(b, len, "value");
	put(b, at + 4, b->m.grant.paths[1], 4);
	assert_int_equal(decode_exact(b, b->buf, len), 0);
	/* more than are there, or than there may be; not as many keys */
	put(b, 78, n + 1, 2);
	expect(b, len, "count");
	put(b, 78, KVS_PATHS_MAX + 1, 2);
	expect(b, len, "count");
	/* as many bytes: a place is two of them */
	put(b, 76, places + 1, 2);
	put(b, 78, n - 2, 2);
	expect(b, len, "count");
}

static void wire_reserved(void **state)
{
	static const struct {
		unsigned int type;
		size_t at, width;
	} v[] = {
		{ KVS_WIRE_OPEN, 60, 4 },      { KVS_WIRE_REFUSE, 44, 4 },
		{ KVS_WIRE_CHUNK, 56, 8 },     { KVS_WIRE_CHUNK_DONE, 56, 8 },
		{ KVS_WIRE_COMPLETE, 36, 4 },  { KVS_WIRE_ERROR, 20, 4 },
		{ KVS_WIRE_KEEPALIVE, 28, 4 }, { KVS_WIRE_CHALLENGE, 48, 16 },
		{ KVS_WIRE_PROOF, 48, 16 },
	};
	struct bench *b = *state;
	size_t i, j, len;

	for (i = 0; i < KVS_ARRAY_SIZE(v); i++) {
		for (j = 0; j < v[i].width; j++) {
			len = (size_t)encode_random(b, v[i].type, 4);
			b->buf[v[i].at + j] = 1;
			expect(b, len, "value");
		}
	}
	do {
		len = (size_t)encode_random(b, KVS_WIRE_GRANT, 1);
	} while (b->m.grant.n_keys);
	put(b, 80, 1, 4); /* an aux place without keys */
	expect(b, len, "value");
}

static void wire_text(void **state)
{
	static const struct {
		unsigned int type;
		size_t at, size;
	} v[] = {
		{ KVS_WIRE_HELLO, 64, KVS_PEER_NAME },
		{ KVS_WIRE_REFUSE, 48, KVS_WIRE_TEXT },
		{ KVS_WIRE_ABORT, 40, KVS_WIRE_TEXT },
		{ KVS_WIRE_ABORT_ACK, 40, KVS_WIRE_TEXT },
		{ KVS_WIRE_ABORT_NAK, 40, KVS_WIRE_TEXT },
		{ KVS_WIRE_ERROR, 24, KVS_WIRE_TEXT },
	};
	static const char *const bad[] = {
		"a\nb",
		"a\tb",
		"\033[2J",
		"\177",
		"\302\205",
		"\302\237",
		"\200",
		"\303",
		"\303(",
		"\300\257",
		"\340\200\257",
		"\355\240\200",
		"\364\220\200\200",
		"\377",
		"\342\200\250",
		"\342\200\256",
	};
	struct bench *b = *state;
	size_t i, j, len;
	char *text;

	for (i = 0; i < KVS_ARRAY_SIZE(v); i++) {
		len = (size_t)encode_random(b, v[i].type, 1);
		text = (char *)b->buf + v[i].at;
		memset(text, 'x', v[i].size);
		expect(b, len, "text");
		text[v[i].size - 1] = 0;
		assert_int_equal(decode_exact(b, b->buf, len), 0);
		text[2] = 0; /* something behind the end */
		expect(b, len, "text");
		for (j = 0; j < KVS_ARRAY_SIZE(bad); j++) {
			memset(text, 0, v[i].size);
			memcpy(text, bad[j], strlen(bad[j]));
			expect(b, len, "text");
		}
		memset(text, 0, v[i].size);
		if (v[i].type == KVS_WIRE_HELLO)
			expect(b, len, "text");
		else
			assert_int_equal(decode_exact(b, b->buf, len), 0);
	}
}

static void wire_errors_and_classes(void **state)
{
	struct bench *b = *state;
	size_t len;

	len = (size_t)encode_random(b, KVS_WIRE_REFUSE, 1);
	put(b, 40, 404, 4);
	expect(b, len, "value");
	put(b, 40, 503, 4);
	put(b, 36, 0, 4);
	expect(b, len, "value");
	put(b, 36, 4096, 4);
	expect(b, len, "value");
	len = (size_t)encode_random(b, KVS_WIRE_ABORT_NAK, 1);
	put(b, 36, 0, 4);
	expect(b, len, "value");
	len = (size_t)encode_random(b, KVS_WIRE_ABORT_ACK, 1);
	put(b, 36, 0, 4);
	assert_int_equal(decode_exact(b, b->buf, len), 0);
	len = (size_t)encode_random(b, KVS_WIRE_LAST, 1);
	put(b, 32, (1ULL << 41) + 1, 8);
	expect(b, len, "value");
	len = (size_t)encode_random(b, KVS_WIRE_KEEPALIVE, 1);
	put(b, 24, 2, 4);
	expect(b, len, "value");
	len = (size_t)encode_random(b, KVS_WIRE_OPEN, 1);
	put(b, 48, 0, 8);
	expect(b, len, "value");
	put(b, 48, KVS_TOKENS_MAX + 1, 8);
	expect(b, len, "value");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wire_chunk_ranges),
		cmocka_unit_test(wire_counts_lie),
		cmocka_unit_test(wire_grant_geometry),
		cmocka_unit_test(wire_layout_values),
		cmocka_unit_test(wire_identity),
		cmocka_unit_test(wire_hello_values),
		cmocka_unit_test(wire_hello_paths),
		cmocka_unit_test(wire_grant_paths),
		cmocka_unit_test(wire_reserved),
		cmocka_unit_test(wire_text),
		cmocka_unit_test(wire_errors_and_classes),
	};

	return cmocka_run_group_tests_name(
		"wire values", tests, wire_bench_setup, wire_bench_teardown);
}
