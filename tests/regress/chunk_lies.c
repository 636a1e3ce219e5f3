/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: a chunk whose place is not wholly inside what its own rank was
 * granted in its own room is refused before a byte of it is received
 * (kvcache-ai/Mooncake#2313), however its offset and length wrap (#1513);
 * whoever sends one loses its connections, with a counted reason, and only
 * its own rooms; not one byte of the pool changes. The same for bytes that
 * are sent twice, sent after LAST, or sent to a room that has ended.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/wire_structs.h"
#include "tests/regress/misbehave.h"

static struct rig g[1];

/* ---- lies about a chunk --------------------------------------------------- */

#define RUN (8ull * PS_PAGE) /* of a buffer in the first extent */

/* What a lie may turn; the payload that follows is p->len bytes, at most. */
static void patch64(void *at, uint64_t v)
{
	kvs_le64 x = kvs_put64(v);

	memcpy(at, &x, sizeof(x));
}

static void patch32(void *at, uint32_t v)
{
	kvs_le32 x = kvs_put32(v);

	memcpy(at, &x, sizeof(x));
}

static void lie_extent(struct kvs_wire_chunk *c)
{
	patch32(&c->extent, 2);
}

static void lie_extent_max(struct kvs_wire_chunk *c)
{
	patch32(&c->extent, UINT32_MAX);
}

static void lie_end_of_run(struct kvs_wire_chunk *c)
{
	patch64(&c->offset, RUN);
}

static void lie_over_the_end(struct kvs_wire_chunk *c)
{
	patch64(&c->offset, RUN - PS_PAGE + 1);
}

static void lie_offset_max(struct kvs_wire_chunk *c)
{
	patch64(&c->offset, UINT64_MAX);
}

static void lie_offset_wraps(struct kvs_wire_chunk *c)
{
	patch64(&c->offset, UINT64_MAX - PS_PAGE + 1);
}

static void lie_offset_wraps_to_inside(struct kvs_wire_chunk *c)
{
	patch64(&c->offset, UINT64_MAX - PS_PAGE / 2);
}

static void lie_offset_half(struct kvs_wire_chunk *c)
{
	patch64(&c->offset, 1ull << 63);
}

static void lie_offset_32(struct kvs_wire_chunk *c)
{
	patch64(&c->offset, 1ull << 32);
}

static void set_len(struct kvs_wire_chunk *c, uint32_t len)
{
	patch32(&c->len, len);
	patch32(&c->frame.payload, len);
}

static void lie_len_over(struct kvs_wire_chunk *c)
{
	set_len(c, RUN + 1);
}

static void lie_len_largest(struct kvs_wire_chunk *c)
{
	set_len(c, KVS_PAYLOAD_MAX);
}

static void lie_len_31(struct kvs_wire_chunk *c)
{
	set_len(c, 1u << 31);
}

static void lie_len_max(struct kvs_wire_chunk *c)
{
	set_len(c, UINT32_MAX);
}

static void lie_len_zero(struct kvs_wire_chunk *c)
{
	set_len(c, 0);
}

static void lie_len_differs(struct kvs_wire_chunk *c)
{
	patch32(&c->len, PS_PAGE - 1);
}

static void lie_layer_of_other_rank(struct kvs_wire_chunk *c)
{
	c->layer = kvs_put16(2);
}

static void lie_layer_max(struct kvs_wire_chunk *c)
{
	c->layer = kvs_put16(0xffff);
}

static void lie_kind(struct kvs_wire_chunk *c)
{
	c->kind = kvs_put16(KVS_BUFFER_K);
}

static void lie_kind_unknown(struct kvs_wire_chunk *c)
{
	c->kind = kvs_put16(1234);
}

static void lie_state_in_first_extent(struct kvs_wire_chunk *c)
{
	c->kind = kvs_put16(KVS_BUFFER_MAMBA);
	c->layer = kvs_put16(3);
}

static void lie_aux_of_other_rank(struct kvs_wire_chunk *c)
{
	c->kind = kvs_put16(KVS_KIND_AUX);
	c->layer = kvs_put16(1);
	patch32(&c->extent, 1);
	set_len(c, MIS_AUX);
}

static void lie_aux_extent(struct kvs_wire_chunk *c)
{
	c->kind = kvs_put16(KVS_KIND_AUX);
	c->layer = kvs_put16(0);
	set_len(c, MIS_AUX);
}

static void lie_aux_len(struct kvs_wire_chunk *c)
{
	c->kind = kvs_put16(KVS_KIND_AUX);
	c->layer = kvs_put16(0);
	patch32(&c->extent, 1);
	set_len(c, MIS_AUX + 1);
}

static void lie_rank(struct kvs_wire_chunk *c)
{
	patch32(&c->rank, 1);
}

static void lie_rank_max(struct kvs_wire_chunk *c)
{
	patch32(&c->rank, KVS_RANKS_MAX - 1);
}

static uint64_t canary_generation;

static void lie_room(struct kvs_wire_chunk *c)
{
	patch64(&c->room, 1);
	patch64(&c->generation, canary_generation);
}

static void lie_room_own_generation(struct kvs_wire_chunk *c)
{
	patch64(&c->room, 1);
}

static void lie_generation(struct kvs_wire_chunk *c)
{
	patch64(&c->generation, canary_generation);
}

static void lie_reserved(struct kvs_wire_chunk *c)
{
	patch64(&c->reserved, 1);
}

static void lie_magic(struct kvs_wire_chunk *c)
{
	patch32(&c->frame.magic, 0);
}

static void lie_frame_len(struct kvs_wire_chunk *c)
{
	patch32(&c->frame.len, KVS_DATA_FRAME - 1);
}

static void lie_frame_len_max(struct kvs_wire_chunk *c)
{
	patch32(&c->frame.len, UINT32_MAX);
}

static void lie_type(struct kvs_wire_chunk *c)
{
	c->frame.type = kvs_put16(KVS_WIRE_LAST);
}

static const struct {
	const char *what;
	void (*tell)(struct kvs_wire_chunk *c);
	enum kvs_proto_error reason;
} lies[] = {
	{ "extent beyond the last", lie_extent, KVS_PROTO_RANGE },
	{ "extent 2^32 - 1", lie_extent_max, KVS_PROTO_VALUE },
	{ "offset at the end", lie_end_of_run, KVS_PROTO_RANGE },
	{ "one byte over the end", lie_over_the_end, KVS_PROTO_RANGE },
	{ "offset 2^64 - 1", lie_offset_max, KVS_PROTO_VALUE },
	{ "offset + len = 2^64", lie_offset_wraps, KVS_PROTO_VALUE },
	{ "offset + len wraps", lie_offset_wraps_to_inside, KVS_PROTO_VALUE },
	{ "offset 2^63", lie_offset_half, KVS_PROTO_VALUE },
	{ "offset 2^32", lie_offset_32, KVS_PROTO_VALUE },
	{ "len over the run", lie_len_over, KVS_PROTO_RANGE },
	{ "len 2^30", lie_len_largest, KVS_PROTO_RANGE },
	{ "len 2^31", lie_len_31, KVS_PROTO_PAYLOAD },
	{ "len 2^32 - 1", lie_len_max, KVS_PROTO_PAYLOAD },
	{ "len 0", lie_len_zero, KVS_PROTO_PAYLOAD },
	{ "len and payload differ", lie_len_differs, KVS_PROTO_PAYLOAD },
	{ "layer of the other rank", lie_layer_of_other_rank, KVS_PROTO_RANGE },
	{ "layer 65535", lie_layer_max, KVS_PROTO_RANGE },
	{ "kind not in the layout", lie_kind, KVS_PROTO_RANGE },
	{ "unknown kind", lie_kind_unknown, KVS_PROTO_VALUE },
	{ "state of the other rank", lie_state_in_first_extent,
	  KVS_PROTO_RANGE },
	{ "aux of the other rank", lie_aux_of_other_rank, KVS_PROTO_VALUE },
	{ "aux in the first extent", lie_aux_extent, KVS_PROTO_RANGE },
	{ "aux too long", lie_aux_len, KVS_PROTO_RANGE },
	{ "rank 1", lie_rank, KVS_PROTO_FOREIGN },
	{ "rank 255", lie_rank_max, KVS_PROTO_FOREIGN },
	{ "room of another peer", lie_room, KVS_PROTO_FOREIGN },
	{ "room of another peer, own generation", lie_room_own_generation,
	  KVS_PROTO_FOREIGN },
	{ "generation of another peer's room", lie_generation,
	  KVS_PROTO_FOREIGN },
	{ "reserved field", lie_reserved, KVS_PROTO_VALUE },
	{ "magic", lie_magic, KVS_PROTO_MAGIC },
	{ "frame of 63 bytes", lie_frame_len, KVS_PROTO_LENGTH },
	{ "frame of 2^32 - 1 bytes", lie_frame_len_max, KVS_PROTO_LENGTH },
	{ "not a chunk", lie_type, KVS_PROTO_LENGTH },
};

/* Sends one page of 0xee under a header that @i spoils. */
static void tell_lie(struct pe *e, unsigned int i, uint64_t room)
{
	_Alignas(8) unsigned char buf[KVS_DATA_FRAME + PS_PAGE];
	uint64_t errors, reason, sent;
	struct pe_room r;
	struct ps_room w;
	struct kvs_msg m;
	struct ps p;

	ps_up(&p, g->port, "bad", 0, 2, &mis_layout);
	mis_admit(e, &r, 1, "bad", room, 2);
	mis_open(&p, &w, room, room);
	rig_refresh(g);
	errors = mis_errors(g);
	reason = rig_proto(g, lies[i].reason);
	sent = rig_received(g);
	ps_chunk_msg(&p, &w, 0, &m);
	m.chunk.len = PS_PAGE;
	assert_int_equal(kvs_wire_encode(&m, buf, sizeof(buf)), KVS_DATA_FRAME);
	lies[i].tell((struct kvs_wire_chunk *)buf);
	memset(buf + KVS_DATA_FRAME, 0xee, PS_PAGE);
	(void)ps_write(p.data[0], buf, sizeof(buf));

	/* its rooms end, its connections close */
	pe_wait_failed(e, &r, EPROTO);
	ps_expect(&p, KVS_WIRE_ERROR, &m);
	assert_int_equal(m.error.err, EPROTO);
	rig_wait(g, rig_data_connections(g) == 1);
	if (rig_proto(g, lies[i].reason) != reason + 1)
		fail_msg("%s is not counted as %s", lies[i].what,
			 kvs_proto_error_name[lies[i].reason]);
	assert_int_equal(mis_errors(g), errors + 1);
	assert_int_equal(rig_received(g), sent);
	ps_room_fini(&w);
	ps_down(&p);
	rig_wait(g, g->snap->sessions == 1);
}

static void chunks_that_lie(void **state)
{
	unsigned char *before;
	struct pe_room canary;
	uint64_t rss, room = 100;
	struct ps_room w;
	struct ps good;
	struct pe e;

	(void)state;
	mis_start(g, &e);
	/* another peer's room, half arrived */
	ps_up(&good, g->port, "good", 0, 1, &mis_layout);
	mis_admit(&e, &canary, 0, "good", 1, 1);
	mis_open(&good, &w, 1, 5);
	canary_generation = canary.generation;
	for (uint32_t i = 0; i < w.n_chunks / 2; i++)
		assert_true(ps_send_part(&good, 0, &w, i, 0, 0) > 0);
	rig_wait(g, rig_parties(g, 1) == 0 && rig_received(g) > 0);
	before = malloc(e.pool_size);
	assert_non_null(before);
	memcpy(before, e.pool, e.pool_size);
	rss = rig_rss();
	for (unsigned int i = 0; i < KVS_ARRAY_SIZE(lies); i++) {
		tell_lie(&e, i, room++);
		if (memcmp(before, e.pool, e.pool_size) != 0)
			fail_msg("\"%s\" changed memory", lies[i].what);
	}
	if (MIS_RSS_COUNTS)
		assert_true(rig_rss() < rss + (4 << 20));
	free(before);
	for (uint32_t i = w.n_chunks / 2; i < w.n_chunks; i++)
		assert_true(ps_send_part(&good, 0, &w, i, 0, 0) > 0);
	assert_int_equal(ps_last(&good, &w, w.bytes), 0);
	pe_wait(&e, &canary, KVS_STATUS_READY);
	assert_int_equal(pe_differ(&e, &canary, MIS_PAGES * PS_TOKENS, 1, 5),
			 0);
	pe_commit(&e, &canary);
	ps_room_fini(&w);
	ps_down(&good);
	pe_down(&e);
	rig_down(g);
}

/* Bytes of a run that were sent are not sent again with others, not even one;
 * alone they are thrown away. */
static void bytes_sent_twice(void **state)
{
	/* offset and length of a second chunk after [PS_PAGE, 2 PS_PAGE) */
	static const uint32_t again[][2] = {
		{ 2 * PS_PAGE - 1, PS_PAGE },
		{ 0, PS_PAGE + 1 },
		{ 0, 4 * PS_PAGE },
	};
	static const uint32_t alone[][2] = {
		{ PS_PAGE, PS_PAGE },
		{ PS_PAGE + 7, 1 },
		{ PS_PAGE, 1 },
		{ 2 * PS_PAGE - 1, 1 },
	};
	struct pe_room r;
	struct ps_room w;
	struct kvs_msg m;
	struct ps p;
	struct pe e;

	(void)state;
	mis_start(g, &e);
	for (uint32_t i = 0; i < KVS_ARRAY_SIZE(again); i++) {
		ps_up(&p, g->port, "p", 0, 1, &mis_layout);
		assert_int_equal(ps_data(&p), 1);
		mis_admit(&e, &r, 0, "p", 1, 1);
		mis_open(&p, &w, 1, i);
		w.chunks[0].off = PS_PAGE;
		w.chunks[0].len = PS_PAGE;
		assert_true(ps_send_part(&p, 0, &w, 0, 0, 0) > 0);
		rig_wait(g, rig_received(g) == (i + 1ull) * PS_PAGE);
		w.seed = 0xbad;
		for (uint32_t k = 0; k < KVS_ARRAY_SIZE(alone); k++) {
			w.chunks[0].off = alone[k][0];
			w.chunks[0].len = alone[k][1];
			assert_true(ps_send_part(&p, k % 2, &w, 0, 0, 0) > 0);
			rig_wait(g, rig_repeated(g) ==
					    i * KVS_ARRAY_SIZE(alone) + k + 1);
		}
		w.chunks[0].off = again[i][0];
		w.chunks[0].len = again[i][1];
		(void)ps_send_part(&p, i % 2, &w, 0, 0, 0);
		pe_wait_failed(&e, &r, EPROTO);
		ps_expect(&p, KVS_WIRE_ERROR, &m);
		rig_wait(g, rig_proto(g, KVS_PROTO_OVERLAP) == i + 1);
		assert_int_equal(rig_received(g), (i + 1ull) * PS_PAGE);
		ps_room_fini(&w);
		ps_down(&p);
	}
	pe_down(&e);
	rig_down(g);
}

/* A generation of a room that has ended: late, and nothing else. */
static void own_room_after_release(void **state)
{
	struct pe_room r, s;
	struct ps_room w, v;
	struct kvs_msg m;
	struct ps p;
	struct pe e;

	(void)state;
	mis_start(g, &e);
	ps_up(&p, g->port, "p", 0, 1, &mis_layout);
	mis_admit(&e, &r, 0, "p", 1, 1);
	mis_open(&p, &w, 1, 1);
	assert_int_equal(ps_last(&p, &w, ps_send_all(&p, &w)), 0);
	ps_expect(&p, KVS_WIRE_COMPLETE, &m);
	pe_wait(&e, &r, KVS_STATUS_READY);
	/* complete: nothing changes it any more */
	w.seed = 2;
	assert_true(ps_send_part(&p, 0, &w, 0, 0, 0) > 0);
	rig_wait(g, rig_late_bytes(g) == w.chunks[0].len);
	assert_int_equal(pe_differ(&e, &r, MIS_PAGES * PS_TOKENS, 1, 1), 0);
	pe_commit(&e, &r);
	mis_admit(&e, &s, 0, "p", 2, 1);
	mis_open(&p, &v, 2, 3);
	assert_true(ps_send_part(&p, 0, &w, 0, 0, 0) > 0);
	assert_int_equal(ps_last(&p, &w, w.bytes), 0);
	assert_int_equal(ps_last(&p, &v, ps_send_all(&p, &v)), 0);
	pe_wait(&e, &s, KVS_STATUS_READY);
	assert_int_equal(pe_differ(&e, &s, MIS_PAGES * PS_TOKENS, 1, 3), 0);
	rig_refresh(g);
	assert_int_equal(rig_late_bytes(g), 2 * w.chunks[0].len);
	assert_int_equal(mis_errors(g), 0);
	pe_commit(&e, &s);
	ps_room_fini(&w);
	ps_room_fini(&v);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

/* Chunks of a rank that has said LAST, while the other rank's are missing. */
static void chunk_after_last(void **state)
{
	struct pe_room r;
	struct ps_room w;
	struct ps p;
	struct pe e;

	(void)state;
	mis_start(g, &e);
	ps_up(&p, g->port, "p", 0, 2, &mis_layout);
	mis_admit(&e, &r, 0, "p", 1, 2);
	mis_open(&p, &w, 1, 1);
	assert_int_equal(ps_last(&p, &w, ps_send_all(&p, &w)), 0);
	rig_wait(g, rig_received(g) == w.bytes);
	w.seed = 0xbad;
	assert_true(ps_send_part(&p, 0, &w, 0, 0, 0) > 0);
	rig_wait(g, rig_repeated(g) == 1);
	assert_true(rig_room_in(g, 1, "receiving"));
	assert_int_equal(mis_errors(g), 0);
	assert_int_equal(rig_received(g), w.bytes);
	pe_abort(&e, &r);
	ps_room_fini(&w);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(chunks_that_lie),
		cmocka_unit_test(bytes_sent_twice),
		cmocka_unit_test(own_room_after_release),
		cmocka_unit_test(chunk_after_last),
	};

	return rig_run_both(tests);
}
