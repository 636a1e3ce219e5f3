/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/regress/onesided_peers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/log.h"
#include "lib/rng.h"
#include "pipeline/node_internal.h"

#define OP_ENGINE 1

static struct kvs_layer_buffer op_buffers[] = {
	{ KVS_BUFFER_KV, 0, OP_PAGE, 0 },
};
static const struct kvs_layout op_layout = {
	.size = sizeof(op_layout),
	.page_size = OP_TOKENS,
	.dtype = KVS_DTYPE_BF16,
	.n_buffers = 1,
	.buffers = op_buffers,
};

/* ---- what the node says ---------------------------------------------------- */

static struct op_writer *writer_of(struct op_rig *g, uint64_t session)
{
	for (unsigned int i = 0; i < OP_WRITERS; i++)
		if (g->w[i].session == session)
			return &g->w[i];
	return NULL;
}

static void take_grant(struct op_writer *w, const struct kvs_msg_grant *m)
{
	struct op_grant *r = w->grant;

	while (r->room && r->room != m->room)
		r++;
	assert_true(r < w->grant + OP_ROOMS);
	assert_true(m->n_keys && m->n_keys <= OP_KEYS);
	assert_int_equal(m->n_places, 1);
	r->room = m->room;
	r->generation = m->generation;
	r->n_keys = m->n_keys;
	memcpy(r->keys, m->keys, m->n_keys * sizeof(r->keys[0]));
	r->place = m->places[0];
}

static void up_to_peer(void *arg, uint64_t session, const struct kvs_msg *m)
{
	struct op_writer *w = writer_of(arg, session);

	if (!w)
		return;
	if (m->type == KVS_WIRE_GRANT)
		take_grant(w, &m->grant);
	w->aborts += m->type == KVS_WIRE_ABORT;
	w->completes += m->type == KVS_WIRE_COMPLETE;
}

static void up_to_engine(void *arg, uint32_t engine, uint32_t slot,
			 uint64_t word, const struct kvs_packet *p, size_t len)
{
	const struct kvs_packet_ready *y = (const void *)p;
	struct op_rig *g = arg;

	assert_int_equal(engine, OP_ENGINE);
	assert_true(slot < OP_SLOTS);
	g->words[slot] = word;
	if (!p || p->type != KVS_PACKET_READY)
		return;
	assert_true(len >= sizeof(*y) && y->n_extents <= OP_KEYS);
	memcpy(g->off[slot], y->off, y->n_extents * sizeof(y->off[0]));
}

static void up_room_over(void *arg, uint64_t room, uint64_t generation, int err,
			 const char *text)
{
	(void)text;
	(void)arg;
	(void)room;
	(void)generation;
	(void)err;
}

static void up_close_session(void *arg, uint64_t session, int err,
			     const char *why)
{
	struct op_rig *g = arg;

	(void)why;
	g->to_close = session;
	g->to_close_err = err;
	g->closes++;
}

static const struct kvs_node_up op_node_up = {
	.to_peer = up_to_peer,
	.to_engine = up_to_engine,
	.room_over = up_room_over,
	.close_session = up_close_session,
};

/* ---- the door -------------------------------------------------------------- */

static int door_frame(struct kvs_conn *c, const struct kvs_frame *f)
{
	struct op_rig *g = kvs_conn_user(c);
	struct kvs_msg m = { .type = KVS_WIRE_KEEPALIVE };
	int fd;

	(void)f;
	m.keepalive.reply = 1;
	fd = kvs_conn_detach(c);
	assert_true(fd >= 0);
	assert_int_equal(kvs_node_adopt_here(&g->node, fd, g->adopt, &m, NULL),
			 0);
	return 0;
}

static void door_closed(struct kvs_conn *c, int err)
{
	(void)c;
	(void)err;
}

static const struct kvs_conn_ops door_ops = {
	.frame = door_frame,
	.closed = door_closed,
};

static int door_accept(struct kvs_conn *c, void *arg)
{
	kvs_conn_set_ops(c, KVS_CONN_DATA, &door_ops, arg);
	return 0;
}

/* ---- a writer -------------------------------------------------------------- */

static void knock(struct kvs_conn *c)
{
	_Alignas(8) unsigned char buf[64];
	struct kvs_msg m = { .type = KVS_WIRE_KEEPALIVE };

	assert_true(kvs_wire_encode(&m, buf, sizeof(buf)) > 0);
	assert_int_equal(kvs_conn_send(c, (const struct kvs_frame *)buf), 0);
}

static int writer_frame(struct kvs_conn *c, const struct kvs_frame *f)
{
	(void)c;
	(void)f;
	return 0;
}

static void writer_closed(struct kvs_conn *c, int err)
{
	struct op_writer *w = kvs_conn_user(c);

	w->c = NULL;
	w->close_err = err;
	w->completed_at_close = w->completed;
}

static const struct kvs_conn_ops writer_ops = {
	.opened = knock,
	.frame = writer_frame,
	.closed = writer_closed,
};

void op_connect(struct op_writer *w)
{
	w->g->adopt = w->session;
	assert_int_equal(kvs_loop_connect(w->t, "door", KVS_CONN_DATA,
					  &writer_ops, w, &w->c),
			 0);
	op_run(w->g);
	assert_non_null(w->c);
	assert_true(kvs_node_has_conns(&w->g->node, w->session));
}

struct op_writer *op_writer(struct op_rig *g, unsigned int i)
{
	static uint64_t session = 100;
	struct op_writer *w = &g->w[i];
	char name[8];

	snprintf(name, sizeof(name), "w%u", i);
	if (!w->t)
		assert_int_equal(kvs_loop_create(g->fabric, name, &w->t), 0);
	w->g = g;
	w->session = ++session;
	memset(w->grant, 0, sizeof(w->grant));
	assert_int_equal(kvs_node_session_add(&g->node, w->session, name, 0,
					      KVS_CAP_GENERATION |
						      KVS_CAP_DRAIN_ACK |
						      KVS_CAP_ONE_SIDED),
			 0);
	op_run(g);
	op_connect(w);
	return w;
}

static void write_done(struct kvs_conn *c, struct kvs_tx *tx, int status)
{
	struct op_writer *w = kvs_conn_user(c);
	struct op_write *x = tx->user;

	x->done++;
	x->status = status;
	x->nr = w->completed++;
}

void op_write(struct op_writer *w, const struct op_grant *r, uint32_t first,
	      uint32_t n, const void *from, struct op_write *x)
{
	_Alignas(8) unsigned char frame[KVS_DATA_FRAME];
	uint32_t extent = first / OP_EXTENT_PAGES;
	uint64_t off = (uint64_t)(first % OP_EXTENT_PAGES) * OP_PAGE;
	struct kvs_msg m = {
		.type = KVS_WIRE_CHUNK_DONE,
		.chunk = { .room = r->room,
			   .generation = r->generation,
			   .extent = extent,
			   .kind = KVS_BUFFER_KV,
			   .offset = off,
			   .len = n * OP_PAGE },
	};

	assert_true(extent < r->n_keys);
	assert_int_equal(kvs_wire_encode(&m, frame, sizeof(frame)),
			 KVS_DATA_FRAME);
	memset(x, 0, sizeof(*x));
	memcpy(x->tx.frame, frame, sizeof(frame));
	x->iov.iov_base = (void *)(uintptr_t)from;
	x->iov.iov_len = (size_t)n * OP_PAGE;
	x->tx.iov = &x->iov;
	x->tx.n_iov = 1;
	x->tx.done = write_done;
	x->tx.user = x;
	x->tx.one_sided = true;
	x->tx.remote = r->keys[extent];
	x->tx.remote.addr +=
		off + (extent == r->n_keys - 1 ? r->place.last : r->place.full);
	assert_int_equal(kvs_conn_write(w->c, &x->tx), 0);
}

/* ---- posts ----------------------------------------------------------------- */

void op_admit(struct op_rig *g, uint32_t slot, uint64_t room, unsigned int w,
	      uint32_t pages)
{
	const struct kvs_rank_slice all = { 0, 1 };
	struct kvs_room_request q = {
		.room = room,
		.generation = g->generation += 32,
		.engine = OP_ENGINE,
		.slot = slot,
		.tokens = (uint64_t)pages * OP_TOKENS,
		.n_ranks = 1,
		.ranks = &all,
	};

	snprintf(q.peer, sizeof(q.peer), "w%u", w);
	g->words[slot] = 0;
	assert_int_equal(kvs_node_admit(&g->node, &q), 0);
	op_run(g);
}

struct op_grant *op_open(struct op_writer *w, uint64_t room, uint32_t pages)
{
	struct kvs_msg_open m = { .room = room,
				  .tokens = (uint64_t)pages * OP_TOKENS };
	struct op_rig *g = w->g;
	struct kvs_room *r;
	size_t pos = 0;

	while ((r = kvs_u64map_next(&g->node.worker->rooms, &pos)))
		if (r->id == room && kvs_room_live(r))
			break;
	assert_non_null(r);
	assert_int_equal(kvs_node_open(&g->node, w->session, r->generation, &m),
			 0);
	op_run(g);
	for (unsigned int i = 0; i < OP_ROOMS; i++)
		if (w->grant[i].room == room)
			return &w->grant[i];
	return NULL;
}

void op_last(struct op_writer *w, const struct op_grant *r, uint32_t pages)
{
	struct kvs_msg m = {
		.type = KVS_WIRE_LAST,
		.last = { .room = r->room,
			  .generation = r->generation,
			  .bytes = (uint64_t)pages * OP_PAGE },
	};

	assert_int_equal(kvs_node_message(&w->g->node, w->session, &m), 0);
	op_run(w->g);
}

void op_say(struct op_writer *w, enum kvs_wire_type type,
	    const struct op_grant *r)
{
	struct kvs_msg m = {
		.type = type,
		.abort = { .room = r->room,
			   .generation = r->generation,
			   .err = type == KVS_WIRE_ABORT_ACK ? 0 : EIO },
	};

	assert_int_equal(kvs_node_message(&w->g->node, w->session, &m), 0);
	op_run(w->g);
}

void op_packet(struct op_rig *g, enum kvs_packet_type type, uint32_t slot)
{
	struct kvs_packet_room p = {
		.generation = KVS_WORD_GEN(g->words[slot]),
		.slot = slot,
	};

	assert_int_equal(kvs_node_packet(&g->node, OP_ENGINE, type, &p), 0);
	op_run(g);
}

/* ---- time ------------------------------------------------------------------ */

/* A session that the node wants closed is lost then, as the front does it. */
static void run_front(struct op_rig *g)
{
	uint64_t session = g->to_close;
	struct op_writer *w;

	if (!session)
		return;
	g->to_close = 0;
	w = writer_of(g, session);
	if (w)
		w->session = 0;
	assert_int_equal(kvs_node_session_lost(&g->node, session,
					       g->to_close_err, "closed"),
			 0);
}

void op_run(struct op_rig *g)
{
	unsigned int quiet = 0;

	/* posts and their answers take a turn each */
	while (quiet < 6) {
		uint64_t now = kvs_clock_now(&g->clock.clk);

		quiet = kvs_fabric_next(g->fabric) <= now ? 0 : quiet + 1;
		kvs_transport_poll(g->door, 0);
		for (unsigned int i = 0; i < OP_WRITERS; i++)
			if (g->w[i].t)
				kvs_transport_poll(g->w[i].t, 0);
		kvs_node_turn(&g->node, 0);
		run_front(g);
	}
}

void op_advance(struct op_rig *g, uint64_t ns)
{
	kvs_vclock_advance(&g->clock, ns);
	op_run(g);
}

/* ---- numbers --------------------------------------------------------------- */

enum kvs_status op_status(const struct op_rig *g, uint32_t slot)
{
	return KVS_WORD_STATUS(g->words[slot]);
}

const unsigned char *op_page(const struct op_rig *g, uint32_t slot,
			     uint32_t page)
{
	assert_true(op_status(g, slot) >= KVS_STATUS_READY);
	return (const unsigned char *)g->region.base +
	       g->off[slot][page / OP_EXTENT_PAGES] +
	       (size_t)(page % OP_EXTENT_PAGES) * OP_PAGE;
}

uint64_t op_bytes(const struct op_rig *g, enum kvs_extent_state st)
{
	struct kvs_pool_account a;

	kvs_pool_account(g->node.pool, &a);
	return a.bytes[st];
}

uint64_t op_drains(const struct op_rig *g, enum kvs_drain_outcome o,
		   enum kvs_proof p)
{
	return g->node.worker->stats.drains.total[o][p];
}

__attribute__((no_sanitize("address"), noinline)) uint64_t
op_sum(const struct op_rig *g)
{
	const volatile uint64_t *p = g->region.base;
	uint64_t sum = 0;

	for (uint64_t i = 0; i < g->region.size / sizeof(*p); i++)
		sum = kvs_mix64(sum + p[i]);
	return sum;
}

struct kvs_loop_faults op_faults(const struct op_rig *g)
{
	struct kvs_loop_faults f;

	kvs_fabric_faults(g->fabric, &f);
	return f;
}

/* ---- up and down ----------------------------------------------------------- */

static int on_event(void *arg, const struct kvs_loop_event_info *e)
{
	struct op_rig *g = arg;

	if (e->kind != g->script.kind || !g->script.count)
		return KVS_LOOP_NO_FAULT;
	if (g->script.skip) {
		g->script.skip--;
		return KVS_LOOP_NO_FAULT;
	}
	g->script.count--;
	*e->at = g->script.at;
	return (int)g->script.fault;
}

static void node_up(struct op_rig *g)
{
	struct kvs_transport *t;
	char err[256] = "";

	memset(&g->node, 0, sizeof(g->node));
	g->region.base = aligned_alloc(4096, g->region.size);
	assert_non_null(g->region.base);
	memset(g->region.base, 0xee, g->region.size);
	g->node.region = &g->region;
	g->node.up = &op_node_up;
	g->node.up_arg = g;
	assert_int_equal(kvs_loop_create(g->fabric, "node", &t), 0);
	if (kvs_node_init(&g->node, &g->set, &g->clock.clk, t, 1, err,
			  sizeof(err)))
		fail_msg("%s", err);
	assert_true(g->node.one_sided);
	assert_int_equal(kvs_node_engine_add(&g->node, OP_ENGINE, &op_layout),
			 0);
}

static void count_errors(enum kvs_log_level level, const char *line, void *arg)
{
	struct op_rig *g = arg;

	(void)line;
	g->errors += level == KVS_LOG_ERR;
}

void op_up(struct op_rig *g, uint32_t pages)
{
	struct kvs_fabric_opts o = {
		.seed = 7, .one_sided = true, .fault = on_event, .arg = g
	};
	char err[256];

	memset(g, 0, sizeof(*g));
	kvs_log_set_level(KVS_LOG_ERR);
	kvs_log_set_sink(count_errors, g);
	kvs_vclock_init(&g->clock, KVS_NSEC_PER_SEC);
	o.clock = &g->clock.clk;
	assert_int_equal(kvs_fabric_create(&o, &g->fabric), 0);
	kvs_settings_init(&g->set);
	assert_int_equal(kvs_settings_set(&g->set, "hold.reask", "0", err,
					  sizeof(err)),
			 0);
	g->region.size = (uint64_t)pages * OP_PAGE;
	node_up(g);
	assert_int_equal(kvs_loop_create(g->fabric, "door", &g->door), 0);
	assert_int_equal(kvs_loop_listen(g->door, door_accept, g, &g->listener),
			 0);
	op_run(g);
}

void op_restart(struct op_rig *g)
{
	void *old = g->region.base;

	kvs_node_stop(&g->node);
	node_up(g); /* before the old memory is given back: another place */
	free(old);
	for (unsigned int i = 0; i < OP_WRITERS; i++)
		g->w[i].session = 0;
	op_run(g);
}

void op_down(struct op_rig *g)
{
	op_run(g);
	assert_int_equal(op_bytes(g, KVS_EXTENT_FREE), g->region.size);
	assert_int_equal(g->node.worker->rooms.n, 0);
	for (unsigned int i = 0; i < OP_WRITERS; i++)
		kvs_transport_destroy(g->w[i].t);
	kvs_listener_close(g->listener);
	kvs_transport_destroy(g->door);
	kvs_node_stop(&g->node);
	kvs_fabric_destroy(g->fabric);
	free(g->region.base);
	kvs_log_set_sink(NULL, NULL);
	assert_int_equal(g->errors, 0);
}
