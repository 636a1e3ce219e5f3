/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/pipeline/worker_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/log.h"

#define PAGE_BYTES 1024
#define PAGE_TOKENS 4
#define EXTENT_PAGES 16

static struct rig_event *rig_add(struct rig *g, int what)
{
	struct rig_event *e = &g->log[g->n++];

	assert_true(g->n <= RIG_LOG);
	memset(e, 0, sizeof(*e));
	e->what = what;
	return e;
}

static void out_to_peer(void *arg, uint64_t session, const struct kvs_msg *m)
{
	struct rig_event *e = rig_add(arg, RIG_PEER);
	_Alignas(8) unsigned char buf[2048];

	/* Whatever is sent can be encoded. */
	assert_true(kvs_wire_encode(m, buf, sizeof(buf)) > 0);
	e->session = session;
	e->msg = *m;
}

static void out_to_engine(void *arg, uint32_t engine, uint32_t slot,
			  uint64_t word, const struct kvs_packet *p, size_t len)
{
	struct rig_event *e = rig_add(arg, RIG_WORD);
	struct rig *g = arg;

	assert_true(engine >= RIG_ENGINE && engine < RIG_ENGINE + RIG_MEMBERS);
	assert_true(slot < RIG_SLOTS);
	e->slot = slot;
	e->word = word;
	g->words[slot] = word;
	if (p && p->type == KVS_PACKET_CACHED) {
		const struct kvs_packet_cached *c = (const void *)p;

		assert_int_equal(len, sizeof(*c));
		e->cached = true;
		e->blocks = c->blocks;
	}
	if (p && p->type == KVS_PACKET_FAILED) {
		assert_int_equal(len, sizeof(e->failed));
		memcpy(&e->failed, p, len);
	}
	if (p &&
	    (p->type == KVS_PACKET_READY || p->type == KVS_PACKET_PLACED)) {
		const struct kvs_packet_ready *r = (const void *)p;

		e->n_extents = r->n_extents;
		assert_true(r->n_extents <= 8);
		memcpy(e->off, r->off, r->n_extents * sizeof(r->off[0]));
		e->n_segs = r->n_segs;
		assert_true(r->n_segs <= KVS_ARRAY_SIZE(e->segs));
		memcpy(e->segs, r->off + r->n_extents,
		       r->n_segs * sizeof(e->segs[0]));
	}
}

static void out_room_over(void *arg, uint64_t room, uint64_t generation,
			  int err, const char *text)
{
	(void)text;
	struct rig_event *e = rig_add(arg, RIG_OVER);

	e->room = room;
	e->generation = generation;
	e->err = err;
}

static void out_stop_receive(void *arg, struct kvs_receive *rx)
{
	rig_add(arg, RIG_STOP)->rx = rx;
}

static void out_close_session(void *arg, uint64_t session, int err,
			      const char *why)
{
	assert_true(err < 0);
	assert_non_null(why);
	rig_add(arg, RIG_CLOSE)->session = session;
}

static const struct kvs_worker_out rig_out = {
	.to_peer = out_to_peer,
	.to_engine = out_to_engine,
	.room_over = out_room_over,
	.stop_receive = out_stop_receive,
	.close_session = out_close_session,
};

static void rig_pool(struct rig *g, const char *name, unsigned int pages,
		     unsigned char **ret_base, struct kvs_pool **ret)
{
	struct kvs_pool_opts po = {
		.name = name,
		.size = (uint64_t)pages * 4 * PAGE_BYTES,
		.clock = &g->clock.clk,
		.overtake_max = g->set.overtake,
		.overtake_ns = g->set.overtake_time,
	};

	po.base = *ret_base = aligned_alloc(4096, po.size);
	assert_non_null(po.base);
	memset(po.base, 0xee, po.size);
	assert_int_equal(kvs_pool_create(&po, ret), 0);
}

void rig_up_offload(struct rig *g, unsigned int pages, unsigned int offload)
{
	struct kvs_worker_opts wo = { .out = &rig_out, .arg = g };

	kvs_log_set_level(KVS_LOG_ERR);
	memset(g, 0, sizeof(*g));
	kvs_settings_init(&g->set);
	g->set.extent_tokens = EXTENT_PAGES * PAGE_TOKENS;
	kvs_vclock_init(&g->clock, KVS_NSEC_PER_SEC);
	rig_pool(g, "receive", pages, &g->base, &g->pool);
	if (offload)
		rig_pool(g, "offload", offload, &g->offload_base, &g->offload);
	wo.settings = &g->set;
	wo.clock = &g->clock.clk;
	wo.pool = g->pool;
	wo.offload = g->offload;
	wo.offload_index = 1;
	assert_int_equal(kvs_worker_create(&wo, &g->w), 0);
	for (unsigned int i = 0; i < 4; i++) {
		g->buffers[i].kind = i < 2 ? KVS_BUFFER_K : KVS_BUFFER_V;
		g->buffers[i].layer = i % 2;
		g->buffers[i].item_len = PAGE_BYTES;
	}
	g->layout.size = sizeof(g->layout);
	g->layout.page_size = PAGE_TOKENS;
	g->layout.dtype = KVS_DTYPE_BF16;
	g->layout.n_buffers = 4;
	g->layout.buffers = g->buffers;
	g->layout.aux_max = 1024;
	assert_int_equal(kvs_worker_engine_add(g->w, RIG_ENGINE, &g->layout),
			 0);
}

void rig_up(struct rig *g, unsigned int pages)
{
	rig_up_offload(g, pages, 0);
}

void rig_down(struct rig *g)
{
	kvs_worker_turn(g->w);
	assert_int_equal(g->w->rooms.n, 0);
	assert_int_equal(g->w->live, 0);
	kvs_pool_check(g->pool);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_FREE), kvs_pool_size(g->pool));
	if (g->offload) {
		assert_int_equal(g->w->retracts.map.n, 0);
		kvs_pool_check(g->offload);
		assert_int_equal(rig_offload_bytes(g, KVS_EXTENT_FREE),
				 kvs_pool_size(g->offload));
	}
	kvs_worker_destroy(g->w);
	kvs_pool_destroy(g->pool);
	kvs_pool_destroy(g->offload);
	free(g->base);
	free(g->offload_base);
}

uint64_t rig_admit_shared(struct rig *g, uint64_t room, unsigned int pages,
			  unsigned int members)
{
	static const struct kvs_rank_slice all = { 0, 2 };
	static const uint32_t numbers[RIG_MEMBERS] = { 1, 2, 3 };
	struct kvs_room_request q = {
		.room = room,
		.generation = ++g->generation,
		.engine = RIG_ENGINE,
		.peer = "p",
		.tokens = (uint64_t)pages * PAGE_TOKENS,
		.n_ranks = 1,
		.ranks = &all,
		.n_members = members,
		.members = numbers,
	};

	assert_true(members <= RIG_MEMBERS);
	for (uint32_t i = 1; i < members; i++)
		assert_int_equal(
			kvs_worker_engine_add(g->w, numbers[i], &g->layout), 0);
	kvs_worker_admit(g->w, &q);
	for (uint32_t i = 1; i < members; i++)
		kvs_worker_join(g->w, q.generation, numbers[i], i);
	return q.generation;
}

void rig_packet_of(struct rig *g, uint32_t member, enum kvs_packet_type type,
		   uint64_t generation, int err)
{
	struct kvs_packet_room p = {
		.h = { KVS_ATTACH_MAGIC, type },
		.generation = generation,
		.slot = member,
		.err = err,
	};

	kvs_worker_packet(g->w, RIG_ENGINE + member, type, &p);
}

uint64_t rig_admit(struct rig *g, uint64_t room, uint32_t slot,
		   unsigned int pages, unsigned int n_ranks)
{
	struct kvs_rank_slice ranks[3];
	struct kvs_room_request q = {
		.room = room,
		.generation = ++g->generation,
		.engine = RIG_ENGINE,
		.slot = slot,
		.peer = "p",
		.tokens = (uint64_t)pages * PAGE_TOKENS,
		.n_ranks = n_ranks,
		.ranks = ranks,
	};

	assert_true(n_ranks <= KVS_ARRAY_SIZE(ranks));
	for (unsigned int i = 0; i < n_ranks; i++) {
		ranks[i].first_layer = 2 * i / n_ranks;
		ranks[i].n_layers =
			2 * (i + 1) / n_ranks - ranks[i].first_layer;
	}
	kvs_worker_admit(g->w, &q);
	return q.generation;
}

#define NAMED_MAX 256

static void rig_names(uint8_t (*h)[16], unsigned int prompt, unsigned int n)
{
	assert_true(n <= NAMED_MAX);
	memset(h, 0, n * sizeof(*h));
	for (unsigned int i = 0; i < n; i++) {
		h[i][0] = (uint8_t)prompt;
		h[i][1] = (uint8_t)i;
	}
}

static uint64_t admit_prefix(struct rig *g, uint64_t room, uint32_t slot,
			     unsigned int pages, unsigned int prompt,
			     unsigned int named, bool cached)
{
	static const struct kvs_rank_slice all = { 0, 2 };
	uint8_t h[NAMED_MAX][16];
	struct kvs_room_request q = {
		.room = room,
		.generation = ++g->generation,
		.engine = RIG_ENGINE,
		.slot = slot,
		.peer = "p",
		.tokens = (uint64_t)pages * PAGE_TOKENS,
		.n_ranks = 1,
		.ranks = &all,
		.n_hashes = named,
		.hashes = (const uint8_t(*)[16])h,
		.use_cache = cached,
	};

	rig_names(h, prompt, named);
	kvs_worker_admit(g->w, &q);
	return q.generation;
}

uint64_t rig_admit_named(struct rig *g, uint64_t room, uint32_t slot,
			 unsigned int pages, unsigned int prompt, bool cached)
{
	return admit_prefix(g, room, slot, pages, prompt, pages, cached);
}

uint64_t rig_ask(struct rig *g, uint64_t room, uint32_t slot,
		 unsigned int pages, unsigned int prompt, unsigned int named)
{
	return admit_prefix(g, room, slot, pages, prompt, named, true);
}

uint64_t rig_lookup(struct rig *g, enum kvs_lookup what, uint32_t slot,
		    unsigned int prompt, unsigned int pages)
{
	uint8_t h[NAMED_MAX][16];
	const struct kvs_lookup_request q = {
		.id = 900 + slot,
		.generation = ++g->generation,
		.engine = RIG_ENGINE,
		.slot = slot,
		.what = what,
		.n_hashes = pages,
		.hashes = (const uint8_t(*)[16])h,
	};

	rig_names(h, prompt, pages);
	kvs_worker_lookup(g->w, &q);
	return q.generation;
}

uint32_t rig_cached(struct rig *g, unsigned int prompt, unsigned int pages)
{
	uint8_t h[NAMED_MAX][16];

	rig_names(h, prompt, pages);
	return kvs_cache_find(g->w, kvs_worker_engine_find(g->w, RIG_ENGINE),
			      (const uint8_t(*)[16])h, pages, false);
}

uint64_t rig_retract(struct rig *g, uint32_t slot, unsigned int pages)
{
	const struct kvs_retract_request q = {
		.id = 900 + slot,
		.generation = ++g->generation,
		.engine = RIG_ENGINE,
		.slot = slot,
		.tokens = (uint64_t)pages * PAGE_TOKENS,
	};

	kvs_worker_retract(g->w, &q);
	return q.generation;
}

void rig_sessions(struct rig *g, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++)
		assert_int_equal(
			kvs_worker_session_add(g->w, 100 + i, "p", i,
					       KVS_CAP_GENERATION |
						       KVS_CAP_DRAIN_ACK),
			0);
}

void rig_open(struct rig *g, uint64_t room, uint64_t generation,
	      unsigned int rank)
{
	struct kvs_msg_open m = { .room = room, .rank = rank };

	kvs_worker_open(g->w, 100 + rank, generation, &m);
}

int rig_begin(struct rig *g, struct kvs_receive *rx, uint64_t room,
	      uint64_t generation, unsigned int rank, unsigned int kind,
	      unsigned int layer, unsigned int first, unsigned int n,
	      void **ret_addr)
{
	enum kvs_proto_error why;
	struct kvs_msg_chunk m = {
		.room = room,
		.generation = generation,
		.rank = rank,
		.extent = first / EXTENT_PAGES,
		.kind = (uint16_t)kind,
		.layer = (uint16_t)layer,
		.offset = (uint64_t)(first % EXTENT_PAGES) * PAGE_BYTES,
		.len = n * PAGE_BYTES,
	};

	memset(rx, 0, sizeof(*rx));
	return kvs_worker_receive_begin(g->w, 100 + rank, &m, rx, ret_addr,
					&why);
}

void rig_last(struct rig *g, uint64_t room, uint64_t generation,
	      unsigned int rank, uint64_t bytes)
{
	struct kvs_msg m = {
		.type = KVS_WIRE_LAST,
		.last = { .room = room,
			  .generation = generation,
			  .rank = rank,
			  .bytes = bytes },
	};

	kvs_worker_message(g->w, 100 + rank, &m);
}

void rig_send_all(struct rig *g, uint64_t room, uint64_t generation,
		  unsigned int rank, unsigned int n_ranks, unsigned int pages)
{
	unsigned int layers = 2 / n_ranks;
	struct kvs_receive rx;
	uint64_t bytes = 0;
	void *addr;

	for (unsigned int l = rank * layers; l < (rank + 1) * layers; l++) {
		for (unsigned int p = 0; p < pages; p++) {
			for (unsigned int k = 0; k < 2; k++) {
				assert_int_equal(rig_begin(g, &rx, room,
							   generation, rank, k,
							   l, p, 1, &addr),
						 0);
				assert_non_null(addr);
				memset(addr, (int)(p + k + l), PAGE_BYTES);
				kvs_worker_receive_end(g->w, &rx, 0,
						       PAGE_BYTES);
				bytes += PAGE_BYTES;
			}
		}
	}
	rig_last(g, room, generation, rank, bytes);
}

void rig_packet(struct rig *g, enum kvs_packet_type type, uint32_t slot,
		uint64_t generation, int err)
{
	struct kvs_packet_room p = { .generation = generation,
				     .slot = slot,
				     .err = err };

	kvs_worker_packet(g->w, RIG_ENGINE, type, &p);
}

void rig_advance(struct rig *g, uint64_t ns)
{
	kvs_vclock_advance(&g->clock, ns);
	kvs_worker_turn(g->w);
}

enum kvs_status rig_status(const struct rig *g, uint32_t slot)
{
	return KVS_WORD_STATUS(g->words[slot]);
}

int rig_errno(const struct rig *g, uint32_t slot)
{
	return KVS_WORD_ERR(g->words[slot]);
}

const struct rig_event *rig_find(const struct rig *g, int what,
				 unsigned int *pos)
{
	while (*pos < g->n) {
		const struct rig_event *e = &g->log[(*pos)++];

		if ((int)e->what == what)
			return e;
	}
	return NULL;
}

const struct rig_event *rig_msg(const struct rig *g, uint64_t session,
				enum kvs_wire_type type)
{
	for (unsigned int i = 0; i < g->n; i++)
		if (g->log[i].what == RIG_PEER &&
		    g->log[i].session == session && g->log[i].msg.type == type)
			return &g->log[i];
	return NULL;
}

uint64_t rig_offload_bytes(const struct rig *g, enum kvs_extent_state state)
{
	struct kvs_pool_account a;

	kvs_pool_account(g->offload, &a);
	return a.bytes[state];
}

uint64_t rig_bytes(const struct rig *g, enum kvs_extent_state state)
{
	struct kvs_pool_account a;

	kvs_pool_account(g->pool, &a);
	return a.bytes[state];
}
