/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: every message survives encoding and decoding; the bytes are those
 * of the manual page; whatever else arrives (cut short, one byte changed,
 * counts and lengths that lie, text without an end) is refused with the right
 * reason or is a message with every value in range, and never makes the
 * decoder read past the frame or allocate (kvcache-ai/Mooncake#1513).
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

static void wire_round_trip(void **state)
{
	struct bench *b = *state;
	unsigned int type, i;
	int len;

	for (type = KVS_WIRE_HELLO; type < KVS_WIRE_TYPE_MAX; type++) {
		for (i = 0; i < 400; i++) {
			len = encode_random(b, type, i % 8 ? 40 : UINT32_MAX);
			assert_true(len >= (int)sizeof(struct kvs_frame));
			assert_int_equal(decode_exact(b, b->buf, (size_t)len),
					 0);
			assert_true(kvs_wire_equal(&b->m, &b->got));
			assert_int_equal(kvs_wire_encode(&b->got, b->again,
							 sizeof(b->again)),
					 len);
			assert_memory_equal(b->buf, b->again, len);
		}
	}
}

/* The decoder may not need an aligned frame, nor look past its length. */
static void wire_unaligned_and_more_behind(void **state)
{
	struct bench *b = *state;
	unsigned int type;
	int len;

	for (type = KVS_WIRE_HELLO; type < KVS_WIRE_TYPE_MAX; type++) {
		len = encode_random(b, type, 40);
		assert_true(len > 0);
		memset(b->again, 0xff, sizeof(b->again));
		memcpy(b->again + 1, b->buf, (size_t)len);
		assert_int_equal(kvs_wire_decode((const void *)(b->again + 1),
						 sizeof(b->again) - 1, &b->out,
						 &b->got, &b->reason),
				 0);
		assert_true(kvs_wire_equal(&b->m, &b->got));
	}
}

static void wire_bytes(void **state)
{
	static const unsigned char want[KVS_DATA_FRAME] = {
		'K',  'V',  'S',  'W', /* magic */
		6,    0,    0,	  0, /* CHUNK, flags */
		64,   0,    0,	  0, /* length */
		0x04, 0x03, 0x02, 0x01, /* payload */
		0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, /* room */
		0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21, /* generation */
		0x34, 0x33, 0x32, 0x31, 0,    0,    0,	  0, /* offset */
		0x41, 0,    0,	  0, /* rank */
		0x52, 0x05, 0,	  0, /* extent */
		2,    0,    0x62, 0x61, /* kv, layer */
		0x04, 0x03, 0x02, 0x01, /* len */
		0,    0,    0,	  0,	0,    0,    0,	  0,
	};
	struct bench *b = *state;
	struct kvs_msg m = { .type = KVS_WIRE_CHUNK };

	m.chunk = (struct kvs_msg_chunk){
		.room = 0x1112131415161718,
		.generation = 0x2122232425262728,
		.rank = 0x41,
		.extent = 0x552,
		.kind = KVS_BUFFER_KV,
		.layer = 0x6162,
		.offset = 0x31323334,
		.len = 0x01020304,
	};
	assert_int_equal(kvs_wire_encode(&m, b->buf, sizeof(b->buf)),
			 KVS_DATA_FRAME);
	assert_memory_equal(b->buf, want, sizeof(want));
}

/* Sizes are part of the protocol: a message that grows breaks old peers. */
static void wire_sizes(void **state)
{
	static const int size[] = {
		[KVS_WIRE_HELLO] = 128,	    [KVS_WIRE_LAYOUT] = 48 + 12,
		[KVS_WIRE_OPEN] = 64,	    [KVS_WIRE_GRANT] = 96,
		[KVS_WIRE_REFUSE] = 304,    [KVS_WIRE_CHUNK] = 64,
		[KVS_WIRE_CHUNK_DONE] = 64, [KVS_WIRE_LAST] = 48,
		[KVS_WIRE_COMPLETE] = 40,   [KVS_WIRE_ABORT] = 296,
		[KVS_WIRE_ABORT_ACK] = 296, [KVS_WIRE_ABORT_NAK] = 296,
		[KVS_WIRE_ERROR] = 280,	    [KVS_WIRE_KEEPALIVE] = 32,
		[KVS_WIRE_CHALLENGE] = 64,  [KVS_WIRE_RESPONSE] = 80,
		[KVS_WIRE_PROOF] = 64,
	};
	struct bench *b = *state;
	unsigned int type;
	uint32_t payload;
	int len;

	for (type = KVS_WIRE_HELLO; type < KVS_WIRE_TYPE_MAX; type++) {
		len = encode_random(b, type, 1);
		if (type == KVS_WIRE_GRANT)
			len -= (int)(12 * b->m.grant.n_keys +
				     8 * b->m.grant.n_places +
				     4 * b->m.grant.n_paths);
		assert_int_equal(len, size[type]);
		memcpy(&payload, b->buf + 12, 4);
		if (type == KVS_WIRE_CHUNK)
			assert_int_equal(payload, b->m.chunk.len);
		else
			assert_int_equal(payload, 0);
	}
}

static void wire_every_truncation(void **state)
{
	struct bench *b = *state;
	unsigned int type;
	int len, cut;

	for (type = KVS_WIRE_HELLO; type < KVS_WIRE_TYPE_MAX; type++) {
		len = encode_random(b, type, 20);
		assert_true(len > 0);
		for (cut = 0; cut < len; cut++)
			expect(b, (size_t)cut, "short");
		/* and with a length field that agrees */
		for (cut = sizeof(struct kvs_frame); cut < len; cut++) {
			put(b, 8, (uint64_t)cut, 4);
			assert_int_equal(decode_exact(b, b->buf, (size_t)cut),
					 -EPROTO);
			assert_true(!strcmp(b->reason, "length") ||
				    !strcmp(b->reason, "count"));
		}
	}
}

static void assert_room(uint64_t room, uint64_t gen, uint32_t rank)
{
	assert_true(room != 0);
	assert_true(gen != 0);
	assert_true(rank < KVS_RANKS_MAX);
}

static void assert_layout_in_range(const struct bench *b,
				   const struct kvs_layout *l)
{
	uint32_t i;

	assert_in_range(l->page_size, 1, KVS_PAGE_SIZE_MAX);
	assert_in_range(l->n_buffers, 1, KVS_LAYOUT_BUFFERS_MAX);
	assert_true(l->aux_max <= KVS_AUX_MAX);
	assert_ptr_equal(l->buffers, b->out.buffers);
	for (i = 0; i < l->n_buffers; i++)
		assert_in_range(l->buffers[i].item_len, 1, KVS_ITEM_LEN_MAX);
}

/* What any code behind the decoder may take for granted. */
static void assert_in_bounds(const struct bench *b)
{
	const struct kvs_msg *m = &b->got;

	switch (m->type) {
	case KVS_WIRE_HELLO:
		assert_in_range(m->hello.version_min, 1, m->hello.version_max);
		assert_in_range(m->hello.n_ranks, 1, KVS_RANKS_MAX);
		assert_true(m->hello.rank < m->hello.n_ranks);
		assert_true(m->hello.worker < KVS_WORKERS_MAX);
		assert_true(kvs_wire_text_ok(m->hello.name, KVS_PEER_NAME));
		break;
	case KVS_WIRE_LAYOUT:
		assert_layout_in_range(b, &m->layout.l);
		break;
	case KVS_WIRE_OPEN:
		assert_room(m->open.room, 1, m->open.rank);
		assert_in_range(m->open.tokens, 1, KVS_TOKENS_MAX);
		break;
	case KVS_WIRE_GRANT:
		assert_room(m->grant.room, m->grant.generation, m->grant.rank);
		assert_in_range(m->grant.n_extents, 1, KVS_EXTENTS_MAX);
		assert_int_equal(m->grant.extent_tokens % m->grant.page_size,
				 0);
		assert_true(m->grant.first_layer + m->grant.n_layers <= 65536);
		assert_true(m->grant.aux_len <= KVS_AUX_MAX);
		assert_true(!m->grant.n_keys ||
			    m->grant.n_keys ==
				    m->grant.n_extents *
					    (m->grant.n_paths ? m->grant.n_paths
							      : 1));
		assert_true(m->grant.n_paths <= KVS_PATHS_MAX);
		assert_true(m->grant.n_places <= KVS_LAYOUT_BUFFERS_MAX);
		assert_true(m->grant.n_keys || !m->grant.n_places);
		assert_true(m->grant.aux_at < KVS_GRANT_PLACE_MAX);
		break;
	case KVS_WIRE_REFUSE:
		assert_room(m->refuse.room, 1, m->refuse.rank);
		assert_in_range(m->refuse.err, 1, 4095);
		assert_true(kvs_wire_text_ok(m->refuse.text, KVS_WIRE_TEXT));
		break;
	case KVS_WIRE_CHUNK:
	case KVS_WIRE_CHUNK_DONE:
		assert_room(m->chunk.room, m->chunk.generation, m->chunk.rank);
		assert_true(m->chunk.extent < KVS_EXTENTS_MAX);
		assert_true(m->chunk.kind < KVS_BUFFER_KIND_MAX ||
			    m->chunk.kind == KVS_KIND_AUX);
		assert_in_range(m->chunk.len, 1, KVS_PAYLOAD_MAX);
		assert_true(m->chunk.offset <= KVS_PAYLOAD_MAX - m->chunk.len);
		break;
	case KVS_WIRE_LAST:
		assert_room(m->last.room, m->last.generation, m->last.rank);
		assert_true(m->last.bytes <= 1ULL << 41);
		assert_true(m->last.digest_kind < KVS_DIGEST_KIND_MAX);
		assert_true(m->last.digest_kind || !m->last.digest);
		break;
	case KVS_WIRE_COMPLETE:
		assert_room(m->complete.room, m->complete.generation,
			    m->complete.rank);
		break;
	case KVS_WIRE_ABORT:
	case KVS_WIRE_ABORT_ACK:
	case KVS_WIRE_ABORT_NAK:
		assert_room(m->abort.room, m->abort.generation, m->abort.rank);
		assert_true(m->abort.err <= 4095);
		assert_true(kvs_wire_text_ok(m->abort.text, KVS_WIRE_TEXT));
		break;
	case KVS_WIRE_ERROR:
		assert_in_range(m->error.err, 1, 4095);
		assert_true(kvs_wire_text_ok(m->error.text, KVS_WIRE_TEXT));
		break;
	case KVS_WIRE_KEEPALIVE:
		assert_true(m->keepalive.reply <= 1);
		break;
	case KVS_WIRE_CHALLENGE:
	case KVS_WIRE_RESPONSE:
	case KVS_WIRE_PROOF:
		break;
	case KVS_WIRE_TYPE_MAX:
		fail();
	}
}

static void wire_every_single_byte(void **state)
{
	static const unsigned char flip[] = { 0x01, 0x80, 0xff };
	struct bench *b = *state;
	unsigned int type, refused = 0, taken = 0;
	size_t at, i, len;

	for (type = KVS_WIRE_HELLO; type < KVS_WIRE_TYPE_MAX; type++) {
		len = (size_t)encode_random(b, type, 20);
		for (at = 0; at < len; at++) {
			for (i = 0; i < KVS_ARRAY_SIZE(flip); i++) {
				b->buf[at] ^= flip[i];
				if (decode_exact(b, b->buf, len)) {
					assert_non_null(b->reason);
					refused++;
				} else {
					assert_in_bounds(b);
					taken++;
				}
				b->buf[at] ^= flip[i];
			}
		}
	}
	/* both happen, or the loop tests nothing */
	assert_true(refused > 1000);
	assert_true(taken > 1000);
}

static void wire_frame_header(void **state)
{
	static const uint32_t lens[] = { 0, 1, 15, 65537, 1u << 31, UINT32_MAX };
	struct bench *b = *state;
	size_t i, len;

	len = (size_t)encode_random(b, KVS_WIRE_COMPLETE, 1);
	put(b, 0, 0x5753564c, 4);
	expect(b, len, "magic");
	put(b, 0, KVS_FRAME_MAGIC, 4);
	for (i = 0; i < KVS_ARRAY_SIZE(lens); i++) {
		put(b, 8, lens[i], 4);
		expect(b, len, "length");
	}
	put(b, 8, 41, 4);
	expect(b, 41, "length");
	put(b, 8, len, 4);
	put(b, 4, 0, 2);
	expect(b, len, "type");
	put(b, 4, KVS_WIRE_TYPE_MAX, 2);
	expect(b, len, "type");
	put(b, 4, 0xffff, 2);
	expect(b, len, "type");
	put(b, 4, KVS_WIRE_COMPLETE, 2);
	put(b, 6, 1, 2);
	expect(b, len, "flags");
	put(b, 6, 0, 2);
	put(b, 12, 1, 4);
	expect(b, len, "payload");
	put(b, 12, 0, 4);
	assert_int_equal(decode_exact(b, b->buf, len), 0);
}

static void wire_payload_length(void **state)
{
	struct bench *b = *state;
	size_t len;

	len = (size_t)encode_random(b, KVS_WIRE_CHUNK, 1);
	put(b, 12, b->m.chunk.len + 1, 4);
	expect(b, len, "payload");
	put(b, 12, 0, 4);
	expect(b, len, "payload");
	/* both lie alike: over what a frame may announce */
	put(b, 12, KVS_PAYLOAD_MAX + 1u, 4);
	put(b, 52, KVS_PAYLOAD_MAX + 1u, 4);
	expect(b, len, "payload");
	put(b, 12, UINT32_MAX, 4);
	put(b, 52, UINT32_MAX, 4);
	expect(b, len, "payload");
}

/* The bytes of kvstage-wire(7), and those of a LAST that knows no digest. */
static void wire_last_digest(void **state)
{
	struct bench *b = *state;
	struct kvs_msg m = {
		.type = KVS_WIRE_LAST,
		.last = {
			.room = 1,
			.generation = 2,
			.rank = KVS_RANKS_MAX - 1,
			.bytes = 3,
			.digest_kind = KVS_DIGEST_CRC32C,
			.digest = 0xe3069283,
		},
	};
	static const unsigned char tail[] = { 0xff, 0x00, 0x01, 0x00,
					      0x83, 0x92, 0x06, 0xe3 };
	size_t len;

	len = (size_t)kvs_wire_encode(&m, b->buf, sizeof(b->buf));
	assert_int_equal(len, 48);
	assert_memory_equal(b->buf + 40, tail, sizeof(tail));
	assert_int_equal(decode_exact(b, b->buf, len), 0);
	assert_int_equal(b->got.last.rank, KVS_RANKS_MAX - 1);
	assert_int_equal(b->got.last.digest_kind, KVS_DIGEST_CRC32C);
	assert_int_equal(b->got.last.digest, 0xe3069283);
	put(b, 44, 0, 4); /* a digest that happens to be 0 */
	assert_int_equal(decode_exact(b, b->buf, len), 0);
	put(b, 42, KVS_DIGEST_KIND_MAX, 2);
	expect(b, len, "value");
	put(b, 42, UINT16_MAX, 2);
	expect(b, len, "value");
	put(b, 42, KVS_DIGEST_NONE, 2);
	assert_int_equal(decode_exact(b, b->buf, len), 0);
	put(b, 44, 1, 4); /* none, and yet a value */
	expect(b, len, "value");
	m.last.digest_kind = KVS_DIGEST_NONE;
	assert_int_equal(kvs_wire_encode(&m, b->buf, sizeof(b->buf)), -EINVAL);
	m.last.digest_kind = KVS_DIGEST_KIND_MAX;
	assert_int_equal(kvs_wire_encode(&m, b->buf, sizeof(b->buf)), -EINVAL);
	m.last.digest_kind = KVS_DIGEST_ADLER32;
	m.last.rank = 65536; /* would be 0 in 16 bits */
	assert_int_equal(kvs_wire_encode(&m, b->buf, sizeof(b->buf)), -EINVAL);
}

/* A failed decode leaves the caller's message as it was. */
static void wire_output_only_on_success(void **state)
{
	struct bench *b = *state;
	size_t len = (size_t)encode_random(b, KVS_WIRE_ERROR, 1);

	memset(&b->got, 0x5a, sizeof(b->got));
	memcpy(b->again, &b->got, sizeof(b->got));
	put(b, 16, 0, 4);
	expect(b, len, "value");
	assert_memory_equal(b->again, &b->got, sizeof(b->got));
}

static void wire_encode_refuses(void **state)
{
	struct bench *b = *state;
	unsigned int type;
	int len;

	for (type = KVS_WIRE_HELLO; type < KVS_WIRE_TYPE_MAX; type++) {
		len = encode_random(b, type, 4);
		memset(b->again, 0xa5, sizeof(b->again));
		assert_int_equal(kvs_wire_encode(&b->m, b->again,
						 (size_t)len - 1),
				 -ENOBUFS);
		assert_int_equal(b->again[0], 0xa5);
		assert_int_equal(kvs_wire_encode(&b->m, b->again, (size_t)len),
				 len);
		assert_int_equal(b->again[len], 0xa5);
	}
	b->m.type = (enum kvs_wire_type)0;
	assert_int_equal(kvs_wire_encode(&b->m, b->buf, sizeof(b->buf)),
			 -EINVAL);
	b->m.type = KVS_WIRE_TYPE_MAX;
	assert_int_equal(kvs_wire_encode(&b->m, b->buf, sizeof(b->buf)),
			 -EINVAL);
	encode_random(b, KVS_WIRE_LAYOUT, 4);
	b->m.layout.l.n_buffers = KVS_LAYOUT_BUFFERS_MAX + 1;
	assert_int_equal(kvs_wire_encode(&b->m, b->buf, sizeof(b->buf)),
			 -EINVAL);
	encode_random(b, KVS_WIRE_GRANT, 4);
	b->m.grant.n_keys = b->m.grant.n_extents;
	b->m.grant.keys = NULL;
	assert_int_equal(kvs_wire_encode(&b->m, b->buf, sizeof(b->buf)),
			 -EINVAL);
	do {
		encode_random(b, KVS_WIRE_GRANT, 4);
	} while (!b->m.grant.n_places);
	b->in.places[0].last += 1; /* not on a border */
	assert_int_equal(kvs_wire_encode(&b->m, b->buf, sizeof(b->buf)),
			 -EINVAL);
	b->in.places[0].last = KVS_GRANT_PLACE_MAX;
	assert_int_equal(kvs_wire_encode(&b->m, b->buf, sizeof(b->buf)),
			 -EINVAL);
	encode_random(b, KVS_WIRE_HELLO, 4);
	memcpy(b->m.hello.name, "a\nb", 4);
	assert_int_equal(kvs_wire_encode(&b->m, b->buf, sizeof(b->buf)),
			 -EINVAL);
	encode_random(b, KVS_WIRE_ERROR, 4);
	memset(b->m.error.text, 'x', sizeof(b->m.error.text));
	assert_int_equal(kvs_wire_encode(&b->m, b->buf, sizeof(b->buf)),
			 -EINVAL);
}

/* A message is never lost because of what it quotes. */
static void wire_encode_cleans_text(void **state)
{
	struct bench *b = *state;
	static const char dirty[] = "a\nb\303\266\377c\303";
	struct kvs_msg m = { .type = KVS_WIRE_ERROR, .error.err = EPROTO };
	char small[8];
	int len;

	memcpy(m.error.text, dirty, sizeof(dirty));
	len = kvs_wire_encode(&m, b->buf, sizeof(b->buf));
	assert_true(len > 0);
	assert_int_equal(decode_exact(b, b->buf, (size_t)len), 0);
	assert_string_equal(b->got.error.text, "a?b\303\266?c?");
	/* cut between two characters */
	kvs_wire_text_put(small, sizeof(small), "12345\342\202\254");
	assert_string_equal(small, "12345");
	kvs_wire_text_put(small, sizeof(small), "1234\342\202\254");
	assert_string_equal(small, "1234\342\202\254");
	kvs_wire_text_put(small, 1, "x");
	assert_string_equal(small, "");
}

static void wire_type_names(void **state)
{
	(void)state;
	assert_string_equal(kvs_wire_type_name(KVS_WIRE_HELLO), "HELLO");
	assert_string_equal(kvs_wire_type_name(KVS_WIRE_KEEPALIVE),
			    "KEEPALIVE");
	assert_string_equal(kvs_wire_type_name(0), "?");
	assert_string_equal(kvs_wire_type_name(KVS_WIRE_TYPE_MAX), "?");
	assert_string_equal(kvs_wire_type_name(UINT32_MAX), "?");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wire_round_trip),
		cmocka_unit_test(wire_unaligned_and_more_behind),
		cmocka_unit_test(wire_bytes),
		cmocka_unit_test(wire_sizes),
		cmocka_unit_test(wire_every_truncation),
		cmocka_unit_test(wire_every_single_byte),
		cmocka_unit_test(wire_frame_header),
		cmocka_unit_test(wire_payload_length),
		cmocka_unit_test(wire_last_digest),
		cmocka_unit_test(wire_output_only_on_success),
		cmocka_unit_test(wire_encode_refuses),
		cmocka_unit_test(wire_encode_cleans_text),
		cmocka_unit_test(wire_type_names),
	};

	return cmocka_run_group_tests_name("wire", tests, wire_bench_setup,
					   wire_bench_teardown);
}
