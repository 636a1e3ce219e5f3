/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers that the receiver pulls: a rank whose chunks, instead of being
 * sent, are granted where they lie, and read from there into the room by the
 * daemon's side. The product has no driver for this; its worker has the party
 * (KVS_PARTY_READ), and its rules are the same.
 *
 *   the sender gives a chunk to its connection -> a grant over its pieces
 *   the grant is open -> a while later the daemon begins to receive it
 *   READs, one after the other -> the receive ends, the sender is told
 *   the grant is closed -> forgotten
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rdma/loop_internal.h"
#include "tools/sim/sim.h"

#define SIM_PULL_TRIES 16

struct sim_pull {
	struct kvs_list node; /* on w->pulls */
	struct sim *w;
	struct sim_rank *k;
	unsigned int instance; /* of the rank */
	struct kvs_conn *c; /* the sender's end; see alive() */
	struct kvs_send_slot *slot;
	struct kvs_tx *tx; /* NULL: the sender was told, or is gone */
	uint64_t session;
	struct kvs_msg_chunk m;
	struct kvs_grant *g; /* NULL: none, or closed */
	struct kvs_timer act;
	bool asked; /* the daemon has been */
	bool told; /* how it ended is decided */
	int status;
	unsigned int tries; /* of closing the grant */
	struct kvs_receive rx;
	bool receiving;
	struct kvs_read rd;
	bool reading;
	unsigned char *to;
	uint64_t got;
	size_t piece;
};

static bool alive(const struct sim_pull *p)
{
	return p->tx && p->k->s && p->k->instance == p->instance &&
	       p->slot->conn == p->c;
}

static void pull_put(struct sim_pull *p)
{
	if (p->tx || p->g || p->reading || p->receiving ||
	    kvs_timer_is_set(&p->act))
		return;
	kvs_list_del(&p->node);
	free(p);
}

/* From now on it is only to be told. */
static void pull_end(struct sim_pull *p, int status)
{
	p->told = true;
	p->status = status;
	sim_act(p->w, &p->act, sim_between(p->w, 0, p->w->plan.gap));
}

static void receive_end(struct sim_pull *p, int status)
{
	p->receiving = false;
	kvs_worker_receive_end(p->w->node.worker, &p->rx, status, p->got);
	pull_end(p, status ? -ECONNRESET : 0);
}

static void pull_read(struct kvs_conn *c, struct kvs_read *rd, int status);

/* The daemon's end of the connection, or NULL. */
static struct kvs_conn *far_end(const struct sim_pull *p)
{
	struct loop_conn *peer;

	if (!alive(p) || !p->w->daemon_up)
		return NULL;
	peer = kvs_loop_conn_of(p->c)->peer;
	if (!peer || !peer->ep || &peer->ep->t != p->w->node_t)
		return NULL;
	return &peer->c;
}

static void read_next(struct sim_pull *p)
{
	struct kvs_conn *c = far_end(p);

	p->rd = (struct kvs_read){
		.addr = p->to + p->got,
		.done = pull_read,
		.user = p,
	};
	if (c) {
		p->rd.len = p->tx->iov[p->piece].iov_len;
		p->rd.remote = kvs_grant_keys(p->g)[p->piece];
		p->reading = !kvs_conn_read(c, &p->rd);
	}
	if (!p->reading)
		receive_end(p, -ECONNRESET);
}

static void pull_read(struct kvs_conn *c, struct kvs_read *rd, int status)
{
	struct sim_pull *p = rd->user;

	(void)c;
	p->reading = false;
	if (!status) {
		p->got += rd->len;
		p->piece++;
	}
	if (!status && p->got < p->m.len)
		read_next(p);
	else
		receive_end(p, status);
}

/* What the sender said has come to the daemon. */
static void pull_asked(struct sim_pull *p)
{
	enum kvs_proto_error why;
	void *to = NULL;

	p->asked = true;
	if (!far_end(p)) {
		pull_end(p, -ECONNRESET);
		return;
	}
	p->rx = (struct kvs_receive){ .read = true };
	if (kvs_worker_receive_begin(p->w->node.worker, p->session, &p->m,
				     &p->rx, &to, &why)) {
		pull_end(p, -EPROTO);
		return;
	}
	p->w->look = true;
	p->receiving = true;
	p->to = to;
	sim_fault(p->w, SIM_FAULT_PULLED);
	if (to)
		read_next(p);
	else
		receive_end(p, 0);
}

static void pull_tell(struct sim_pull *p)
{
	struct kvs_tx *tx = p->tx;

	p->tx = NULL;
	if (tx && p->k->s && p->k->instance == p->instance) {
		p->k->dirty = true;
		tx->done(p->c, tx, p->status);
	}
	if (p->g)
		kvs_grant_close(p->g);
}

static void pull_act(struct kvs_timer *t)
{
	struct sim_pull *p = kvs_container_of(t, struct sim_pull, act);

	if (p->told) {
		p->w->actor = "rank";
		pull_tell(p);
	} else if (!p->asked) {
		p->w->actor = "node";
		pull_asked(p);
	}
	pull_put(p);
}

static void grant_opened(struct kvs_grant *g, int status)
{
	struct sim_pull *p = kvs_grant_user(g);

	if (status) {
		p->g = NULL;
		pull_end(p, status);
		return;
	}
	for (size_t i = 0; i < p->tx->n_iov; i++) {
		struct sim_key *k = &p->w->key[p->w->n_keys++ % SIM_KEYS];

		k->rkey = kvs_grant_keys(g)[i].rkey;
		k->generation = p->m.generation;
	}
	sim_act(p->w, &p->act, sim_between(p->w, 0, 2 * p->w->plan.gap));
}

static void grant_closed(struct kvs_grant *g, int status,
			 enum kvs_grant_proof proof)
{
	struct sim_pull *p = kvs_grant_user(g);

	(void)proof;
	if (!status) {
		p->g = NULL;
		pull_put(p);
	} else if (!kvs_timer_is_set(&p->act)) {
		/* Again, less and less often: the rank's own memory waits for
		 * it, and nobody else. */
		if (p->tries < SIM_PULL_TRIES)
			p->tries++;
		sim_act(p->w, &p->act, sim_patience(p->w) << p->tries);
	}
}

static const struct kvs_grant_ops grant_ops = {
	.opened = grant_opened,
	.closed = grant_closed,
};

int sim_pull_start(struct sim_rank *k, struct kvs_conn *c, struct kvs_tx *tx)
{
	const struct kvs_send_chunk *chunk =
		kvs_container_of(tx, struct kvs_send_chunk, tx);
	static struct kvs_wire_scratch scratch;
	const struct kvs_frame *f = (const void *)tx->frame;
	struct kvs_grant_range range[SIM_PAGES];
	const char *reason;
	struct sim_pull *p;
	struct kvs_msg m;

	if (tx->n_iov > SIM_PAGES ||
	    kvs_wire_decode(f, kvs_get32(f->len), &scratch, &m, &reason) ||
	    m.type != KVS_WIRE_CHUNK)
		return -EINVAL;
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	for (size_t i = 0; i < tx->n_iov; i++) {
		range[i].addr = tx->iov[i].iov_base;
		range[i].len = tx->iov[i].iov_len;
	}
	p->w = k->w;
	p->k = k;
	p->instance = k->instance;
	p->c = c;
	p->slot = chunk->slot;
	p->tx = tx;
	p->session = k->s->session;
	p->m = m.chunk;
	kvs_timer_init(&p->act, pull_act);
	kvs_conn_set_owner(c, k->nr + 1);
	if (kvs_grant_open(k->t, k->nr + 1, range, tx->n_iov, &grant_ops, p,
			   &p->g)) {
		free(p);
		return -EPIPE;
	}
	kvs_list_add_tail(&k->w->pulls, &p->node);
	return 0;
}

void sim_pull_abandon(struct sim_rank *k, struct kvs_sender *s)
{
	struct sim_pull *p, *tmp;

	kvs_list_for_each_entry_safe(p, tmp, &k->w->pulls, node) {
		struct kvs_tx *tx = p->tx;

		if (p->k != k || p->instance != k->instance || !tx)
			continue;
		/* frees what belongs to the chunk */
		s->state = KVS_SENDER_GONE;
		p->tx = NULL;
		p->told = true;
		tx->done(p->c, tx, -ECONNABORTED);
	}
}

bool sim_pull_reads(const struct sim *w, uint64_t generation)
{
	const struct sim_pull *p;

	kvs_list_for_each_entry(p, &w->pulls, node)
		if (p->reading && p->m.generation == generation)
			return true;
	return false;
}

void sim_pull_free(struct sim *w)
{
	while (!kvs_list_empty(&w->pulls)) {
		struct sim_pull *p =
			kvs_list_first(&w->pulls, struct sim_pull, node);

		kvs_timer_cancel(&w->acts, &p->act);
		kvs_list_del(&p->node);
		free(p);
	}
}
