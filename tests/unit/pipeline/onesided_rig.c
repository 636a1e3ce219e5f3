/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/pipeline/onesided_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/log.h"

#define OS_SESSION 100u /* plus the rank */
#define OS_ENGINE 1u
#define OS_PAGE_TOKENS 4u

/* A write under way: its source must stay. */
struct os_tx {
	struct kvs_tx tx;
	struct iovec iov;
	unsigned char bytes[OS_ITEM];
};

/* ---- what the node tells the front ---- */

static struct os_room *room_of(struct os_rig *g, uint64_t generation)
{
	for (unsigned int i = 0; i < OS_ROOMS; i++)
		if (g->room[i].generation == generation)
			return &g->room[i];
	fail_msg("no room of generation %llu", (unsigned long long)generation);
	return NULL;
}

static void take_grant(struct os_rig *g, const struct kvs_msg_grant *m)
{
	struct os_room *r = room_of(g, m->generation);

	assert_int_equal(m->n_keys, m->n_layers ? m->n_extents : 0);
	assert_true(m->n_extents <= OS_EXTENTS);
	assert_true(m->n_places <= OS_BUFFERS);
	r->granted[m->rank] = true;
	r->n_extents = m->n_extents;
	r->n_places[m->rank] = m->n_places;
	if (!m->n_keys)
		return;
	memcpy(r->keys[m->rank], m->keys, m->n_keys * sizeof(m->keys[0]));
	memcpy(r->places[m->rank], m->places,
	       m->n_places * sizeof(m->places[0]));
}

static void up_to_peer(void *arg, uint64_t session, const struct kvs_msg *m)
{
	struct os_rig *g = arg;
	struct os_writer *w = &g->w[session - OS_SESSION];

	if (m->type == KVS_WIRE_GRANT)
		take_grant(g, &m->grant);
	if (m->type != KVS_WIRE_ABORT)
		return;
	w->aborts++;
	if (w->acks && !g->ending) {
		struct kvs_msg a = *m;

		a.type = KVS_WIRE_ABORT_ACK;
		kvs_node_message(&g->n, session, &a);
	}
}

static void up_to_engine(void *arg, uint32_t engine, uint32_t slot,
			 uint64_t word, const struct kvs_packet *p, size_t len)
{
	struct os_rig *g = arg;
	struct os_room *r = &g->room[slot];

	(void)len;
	assert_int_equal(engine, OS_ENGINE);
	if (KVS_WORD_GEN(word) != r->generation)
		return; /* of the room that had the slot before */
	r->word = word;
	if (p && p->type == KVS_PACKET_FAILED)
		snprintf(r->text, sizeof(r->text), "%s",
			 ((const struct kvs_packet_failed *)p)->text);
	if (p && p->type == KVS_PACKET_READY) {
		const struct kvs_packet_ready *q = (const void *)p;

		r->n_off = q->n_extents;
		memcpy(r->off, q->off, q->n_extents * sizeof(q->off[0]));
	}
}

static void up_room_over(void *arg, uint64_t room, uint64_t generation, int err,
			 const char *text)
{
	(void)text;
	(void)arg, (void)room, (void)generation, (void)err;
}

/* As the front does: the session ends. */
static void up_close_session(void *arg, uint64_t session, int err,
			     const char *why)
{
	struct os_rig *g = arg;

	g->closed_sessions++;
	if (g->ending || g->slow_front)
		return;
	kvs_node_session_lost(&g->n, session, err, why);
}

static const struct kvs_node_up os_node_up = {
	.to_peer = up_to_peer,
	.to_engine = up_to_engine,
	.room_over = up_room_over,
	.close_session = up_close_session,
};

/* ---- connections ---- */

static int front_frame(struct kvs_conn *c, const struct kvs_frame *f)
{
	struct os_rig *g = kvs_conn_user(c);
	unsigned int writer = kvs_get16(f->flags);
	struct kvs_msg_hello reply = {
		.version_min = 1,
		.version_max = 1,
		.role = KVS_ROLE_DATA,
		.instance = 1,
		.session = OS_SESSION + writer,
		.n_ranks = OS_RANKS,
		.name = "p",
	};
	int fd = kvs_conn_detach(c);

	assert_true(fd >= 0);
	assert_int_equal(kvs_node_adopt(&g->n, fd, OS_SESSION + writer, &reply,
					NULL),
			 0);
	return 0;
}

static void front_closed(struct kvs_conn *c, int err)
{
	(void)c, (void)err;
}

static const struct kvs_conn_ops front_ops = {
	.frame = front_frame,
	.closed = front_closed,
};

static int front_accept(struct kvs_conn *c, void *arg)
{
	kvs_conn_set_ops(c, KVS_CONN_CONTROL, &front_ops, arg);
	return 0;
}

static int writer_frame(struct kvs_conn *c, const struct kvs_frame *f)
{
	struct os_writer *w = kvs_conn_user(c);

	(void)f;
	w->c = c;
	return 0;
}

static void writer_closed(struct kvs_conn *c, int err)
{
	struct os_writer *w = kvs_conn_user(c);

	(void)err;
	if (w->c == c)
		w->c = NULL;
}

static void writer_opened(struct kvs_conn *c)
{
	struct os_writer *w = kvs_conn_user(c);
	struct kvs_frame f = {
		.magic = kvs_put32(KVS_FRAME_MAGIC),
		.type = kvs_put16(KVS_WIRE_HELLO),
		.flags = kvs_put16((uint16_t)w->number),
		.len = kvs_put32(sizeof(f)),
	};

	assert_int_equal(kvs_conn_send(c, &f), 0);
}

static const struct kvs_conn_ops writer_ops = {
	.opened = writer_opened,
	.frame = writer_frame,
	.closed = writer_closed,
};

void os_try_connect(struct os_rig *g, unsigned int writer)
{
	struct os_writer *w = &g->w[writer];
	struct kvs_conn *c;

	assert_int_equal(g->net->connect(g, w->t, &writer_ops, w, &c), 0);
	os_run(g, 0);
}

void os_connect(struct os_rig *g, unsigned int writer)
{
	struct kvs_conn *before = g->w[writer].c;

	os_try_connect(g, writer);
	assert_true(g->w[writer].c && g->w[writer].c != before);
}

static void writers_start(struct os_rig *g, const char *peer)
{
	for (unsigned int rank = 0; rank < g->n_ranks; rank++) {
		unsigned int i = g->n_writers++;
		struct os_writer *w = &g->w[i];
		char name[16];

		snprintf(name, sizeof(name), "writer%u", i);
		w->g = g;
		w->number = i;
		w->acks = true;
		assert_int_equal(g->net->create(g, name, &w->t), 0);
		assert_int_equal(
			kvs_node_session_add(&g->n, OS_SESSION + i, peer, rank,
					     KVS_CAP_GENERATION |
						     KVS_CAP_DRAIN_ACK |
						     KVS_CAP_ONE_SIDED),
			0);
		os_connect(g, i);
	}
}

void os_second_peer(struct os_rig *g)
{
	writers_start(g, "q");
}

static void make_layout(struct os_rig *g)
{
	for (unsigned int i = 0; i < OS_BUFFERS; i++) {
		g->buffers[i].kind = i < 2 ? KVS_BUFFER_K : KVS_BUFFER_V;
		g->buffers[i].layer = i % 2;
		g->buffers[i].item_len = OS_ITEM;
	}
	g->layout.size = sizeof(g->layout);
	g->layout.page_size = OS_PAGE_TOKENS;
	g->layout.dtype = KVS_DTYPE_BF16;
	g->layout.n_buffers = OS_BUFFERS;
	g->layout.buffers = g->buffers;
}

/* ---- the network: loop ---- */

static int loop_create(struct os_rig *g, const char *name,
		       struct kvs_transport **ret)
{
	return kvs_loop_create(g->f, name, ret);
}

static int loop_listen(struct os_rig *g, struct kvs_transport *t,
		       int (*accepted)(struct kvs_conn *c, void *arg))
{
	struct kvs_listener *l;

	return kvs_loop_listen(t, accepted, g, &l);
}

static int loop_connect(struct os_rig *g, struct kvs_transport *t,
			const struct kvs_conn_ops *ops, void *user,
			struct kvs_conn **ret)
{
	(void)g;
	return kvs_loop_connect(t, "front", KVS_CONN_DATA, ops, user, ret);
}

static uint64_t loop_next(const struct os_rig *g)
{
	return kvs_fabric_next(g->f);
}

static const struct os_net os_loop = {
	.create = loop_create,
	.listen = loop_listen,
	.connect = loop_connect,
	.next = loop_next,
	.turns = 8,
};

static void prepare(struct os_rig *g)
{
	kvs_log_set_level(KVS_LOG_ERR);
	memset(g, 0, sizeof(*g));
	kvs_vclock_init(&g->clock, KVS_NSEC_PER_SEC);
}

static void start(struct os_rig *g, unsigned int pages, unsigned int n_ranks)
{
	struct kvs_transport *t;
	struct kvs_mem *m;
	char err[256];

	kvs_settings_init(&g->set);
	g->set.extent_tokens = OS_EXTENT * OS_PAGE_TOKENS;
	g->region.size = (uint64_t)pages * OS_PAGE;
	g->region.base = aligned_alloc(4096, g->region.size);
	assert_non_null(g->region.base);
	memset(g->region.base, 0xee, g->region.size);
	g->n.region = &g->region;
	g->n.up = &os_node_up;
	g->n.up_arg = g;
	assert_int_equal(g->net->create(g, "node", &t), 0);
	/* its end releases it */
	assert_int_equal(kvs_transport_register(t, g->region.base,
						g->region.size, &m, err,
						sizeof(err)),
			 0);
	assert_int_equal(kvs_node_init(&g->n, &g->set, &g->clock.clk, t, 7, err,
				       sizeof(err)),
			 0);
	assert_int_equal(g->net->create(g, "front", &g->front), 0);
	assert_int_equal(g->net->listen(g, g->front, front_accept), 0);
	make_layout(g);
	assert_int_equal(kvs_node_engine_add(&g->n, OS_ENGINE, &g->layout), 0);
	g->n_ranks = n_ranks;
	writers_start(g, "p");
}

void os_up(struct os_rig *g, unsigned int pages, unsigned int n_ranks,
	   const struct kvs_loop_plan *plan)
{
	struct kvs_fabric_opts fo = { .seed = 1, .one_sided = true };

	prepare(g);
	g->net = &os_loop;
	fo.clock = &g->clock.clk;
	if (plan)
		fo.plan = *plan;
	assert_int_equal(kvs_fabric_create(&fo, &g->f), 0);
	start(g, pages, n_ranks);
}

void os_up_on(struct os_rig *g, const struct os_net *net, unsigned int pages,
	      unsigned int n_ranks)
{
	prepare(g);
	g->net = net;
	start(g, pages, n_ranks);
}

void os_down(struct os_rig *g)
{
	os_run(g, 0);
	assert_int_equal(g->n.worker->rooms.n, 0);
	kvs_pool_check(g->n.pool);
	assert_int_equal(os_bytes(g, KVS_EXTENT_FREE), g->region.size);
	os_end(g);
}

void os_end(struct os_rig *g)
{
	g->ending = true;
	kvs_node_stop(&g->n);
	for (unsigned int i = 0; i < g->n_writers; i++)
		kvs_transport_destroy(g->w[i].t);
	kvs_transport_destroy(g->front);
	if (g->f)
		kvs_fabric_destroy(g->f);
	free(g->region.base);
}

/* Return: events, but for the node's own. */
static int turn(struct os_rig *g)
{
	int n;

	kvs_node_turn(&g->n, 0);
	n = kvs_transport_poll(g->front, 0);
	for (unsigned int i = 0; i < g->n_writers; i++)
		if (g->w[i].t)
			n += kvs_transport_poll(g->w[i].t, 0);
	return n;
}

void os_run(struct os_rig *g, uint64_t ns)
{
	uint64_t end = kvs_clock_now(&g->clock.clk) + ns;
	uint64_t now, next;

	for (;;) {
		/* posts and answers of this moment, each in a turn */
		for (unsigned int i = 0; i < g->net->turns; i++)
			if (turn(g) && g->net->until_idle)
				i = 0;
		now = kvs_clock_now(&g->clock.clk);
		next = g->net->next(g);
		if (kvs_worker_next(g->n.worker) < next)
			next = kvs_worker_next(g->n.worker);
		if (next > end)
			break;
		if (next > now)
			kvs_vclock_advance(&g->clock, next - now);
	}
	if (end > now)
		kvs_vclock_advance(&g->clock, end - now);
	turn(g);
}

/* ---- rooms ---- */

void os_admit(struct os_rig *g, unsigned int slot, uint64_t room,
	      unsigned int pages)
{
	os_admit_of(g, slot, room, pages, 0);
}

void os_admit_of(struct os_rig *g, unsigned int slot, uint64_t room,
		 unsigned int pages, unsigned int peer)
{
	struct kvs_rank_slice ranks[OS_RANKS];
	struct os_room *r = &g->room[slot];
	struct kvs_room_request q = {
		.room = room,
		.generation = ++g->generation,
		.engine = OS_ENGINE,
		.slot = slot,
		.peer = { peer ? 'q' : 'p' },
		.tokens = (uint64_t)pages * OS_PAGE_TOKENS,
		.n_ranks = g->n_ranks,
		.ranks = ranks,
	};

	memset(r, 0, sizeof(*r));
	r->id = room;
	r->generation = q.generation;
	r->pages = pages;
	r->first = peer * g->n_ranks;
	for (unsigned int i = 0; i < g->n_ranks; i++) {
		ranks[i].first_layer = 2 * i / g->n_ranks;
		ranks[i].n_layers =
			2 * (i + 1) / g->n_ranks - ranks[i].first_layer;
	}
	assert_int_equal(kvs_node_admit(&g->n, &q), 0);
	for (unsigned int i = 0; i < g->n_ranks; i++) {
		struct kvs_msg_open m = { .room = room, .rank = i };

		assert_int_equal(kvs_node_open(&g->n, OS_SESSION + r->first + i,
					       q.generation, &m),
				 0);
	}
	os_run(g, 0);
}

enum kvs_status os_status(const struct os_rig *g, unsigned int slot)
{
	return KVS_WORD_STATUS(g->room[slot].word);
}

int os_errno(const struct os_rig *g, unsigned int slot)
{
	return KVS_WORD_ERR(g->room[slot].word);
}

struct kvs_room *os_room_of(const struct os_rig *g, unsigned int slot)
{
	return kvs_u64map_get(&g->n.worker->rooms, g->room[slot].generation);
}

void os_packet(struct os_rig *g, unsigned int slot, enum kvs_packet_type type)
{
	struct kvs_packet_room p = { .generation = g->room[slot].generation,
				     .slot = slot };

	assert_int_equal(kvs_node_packet(&g->n, OS_ENGINE, type, &p), 0);
	os_run(g, 0);
}

void os_say(struct os_rig *g, unsigned int slot, unsigned int rank,
	    enum kvs_wire_type type)
{
	struct kvs_msg m = {
		.type = type,
		.abort = { .room = g->room[slot].id,
			   .generation = g->room[slot].generation,
			   .rank = rank },
	};

	assert_int_equal(
		kvs_node_message(&g->n, OS_SESSION + g->room[slot].first + rank,
				 &m),
		0);
	os_run(g, 0);
}

static unsigned int first_layer(const struct os_rig *g, unsigned int rank)
{
	return 2 * rank / g->n_ranks;
}

static unsigned int layers(const struct os_rig *g, unsigned int rank)
{
	return 2 * (rank + 1) / g->n_ranks - first_layer(g, rank);
}

void os_last(struct os_rig *g, unsigned int slot, unsigned int rank)
{
	const struct os_room *r = &g->room[slot];
	struct kvs_msg m = {
		.type = KVS_WIRE_LAST,
		.last = { .room = r->id,
			  .generation = r->generation,
			  .rank = rank,
			  .bytes = (uint64_t)r->pages * layers(g, rank) * 2 *
				   OS_ITEM },
	};

	assert_int_equal(
		kvs_node_message(&g->n, OS_SESSION + g->room[slot].first + rank,
				 &m),
		0);
	os_run(g, 0);
}

/* ---- writes ---- */

unsigned char os_byte(unsigned int seed, unsigned int buffer, unsigned int page)
{
	return (unsigned char)(seed * 37 + buffer * 5 + page + 1);
}

static void tx_done(struct kvs_conn *c, struct kvs_tx *tx, int status)
{
	struct os_tx *t = kvs_container_of(tx, struct os_tx, tx);
	struct os_writer *w = tx->user;

	(void)c;
	w->written += !status;
	w->refused += status < 0;
	w->err = status;
	free(t);
}

static void chunk_msg(const struct os_rig *g, unsigned int slot,
		      unsigned int rank, unsigned int buffer, unsigned int page,
		      struct kvs_msg *m)
{
	const struct os_room *r = &g->room[slot];

	*m = (struct kvs_msg){
		.type = KVS_WIRE_CHUNK_DONE,
		.chunk = {
			.room = r->id,
			.generation = r->generation,
			.rank = rank,
			.extent = page / OS_EXTENT,
			.kind = buffer < 2 ? KVS_BUFFER_K : KVS_BUFFER_V,
			.layer = (uint16_t)(buffer % 2),
			.offset = (uint64_t)(page % OS_EXTENT) * OS_ITEM,
			.len = OS_ITEM,
		},
	};
}

void os_write(struct os_rig *g, unsigned int slot, unsigned int rank,
	      unsigned int buffer, unsigned int page, unsigned int seed)
{
	const struct os_room *r = &g->room[slot];
	struct os_writer *w = &g->w[r->first + rank];
	struct os_tx *t = calloc(1, sizeof(*t));
	unsigned int e = page / OS_EXTENT;
	/* the rank's buffers, k first, in the order of its places */
	unsigned int p = buffer / 2 * layers(g, rank) + buffer % 2 -
			 first_layer(g, rank);
	struct kvs_msg m;

	assert_non_null(t);
	assert_non_null(w->c);
	assert_true(r->granted[rank] && p < r->n_places[rank]);
	memset(t->bytes, os_byte(seed, buffer, page), OS_ITEM);
	t->iov.iov_base = t->bytes;
	t->iov.iov_len = OS_ITEM;
	t->tx.iov = &t->iov;
	t->tx.n_iov = 1;
	t->tx.done = tx_done;
	t->tx.user = w;
	t->tx.one_sided = true;
	t->tx.remote.rkey = r->keys[rank][e].rkey;
	t->tx.remote.addr = r->keys[rank][e].addr +
			    (e == r->n_extents - 1 ? r->places[rank][p].last
						   : r->places[rank][p].full) +
			    (uint64_t)(page % OS_EXTENT) * OS_ITEM;
	chunk_msg(g, slot, rank, buffer, page, &m);
	assert_int_equal(kvs_wire_encode(&m, t->tx.frame, sizeof(t->tx.frame)),
			 KVS_DATA_FRAME);
	assert_int_equal(kvs_conn_write(w->c, &t->tx), 0);
}

void os_claim(struct os_rig *g, unsigned int slot, unsigned int rank,
	      unsigned int buffer, unsigned int page)
{
	os_claim_part(g, slot, rank, buffer, page, 0, OS_ITEM);
}

void os_claim_part(struct os_rig *g, unsigned int slot, unsigned int rank,
		   unsigned int buffer, unsigned int page, uint64_t offset,
		   uint32_t len)
{
	_Alignas(8) unsigned char buf[KVS_DATA_FRAME];
	struct kvs_msg m;

	chunk_msg(g, slot, rank, buffer, page, &m);
	m.chunk.offset += offset;
	m.chunk.len = len;
	assert_int_equal(kvs_wire_encode(&m, buf, sizeof(buf)), KVS_DATA_FRAME);
	assert_int_equal(kvs_conn_send(g->w[g->room[slot].first + rank].c,
				       (const struct kvs_frame *)buf),
			 0);
}

void os_write_all(struct os_rig *g, unsigned int slot, unsigned int rank,
		  unsigned int seed, unsigned int skip, unsigned int n_skip)
{
	unsigned int from = first_layer(g, rank);

	for (unsigned int p = 0; p < g->room[slot].pages; p++) {
		if (p >= skip && p - skip < n_skip)
			continue;
		for (unsigned int b = 0; b < OS_BUFFERS; b++)
			if (b % 2 >= from && b % 2 < from + layers(g, rank))
				os_write(g, slot, rank, b, p, seed);
	}
	os_run(g, 0);
	if (!n_skip)
		os_last(g, slot, rank);
}

uint64_t os_wrong(const struct os_rig *g, unsigned int slot, unsigned int seed)
{
	const struct os_room *r = &g->room[slot];
	const unsigned char *base = g->region.base;
	uint64_t wrong = 0;

	assert_int_equal(r->n_off, (r->pages + OS_EXTENT - 1) / OS_EXTENT);
	for (unsigned int p = 0; p < r->pages; p++) {
		unsigned int e = p / OS_EXTENT;
		unsigned int in = r->pages - e * OS_EXTENT;

		if (in > OS_EXTENT)
			in = OS_EXTENT;
		for (unsigned int b = 0; b < OS_BUFFERS; b++) {
			const unsigned char *at =
				base + r->off[e] +
				((uint64_t)b * in + p % OS_EXTENT) * OS_ITEM;

			for (unsigned int i = 0; i < OS_ITEM; i++)
				wrong += at[i] != os_byte(seed, b, p);
		}
	}
	return wrong;
}

uint64_t os_bytes(const struct os_rig *g, enum kvs_extent_state st)
{
	struct kvs_pool_account a;

	kvs_pool_account(g->n.pool, &a);
	return a.bytes[st];
}

uint64_t os_drains(const struct os_rig *g, enum kvs_drain_outcome o,
		   enum kvs_proof p)
{
	return g->n.worker->stats.drains.total[o][p];
}
