/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "pipeline/front.h"

int kvs_directory_add(struct kvs_front *f, const struct kvs_room_request *q,
		      uint32_t node, struct kvs_host *host)
{
	struct kvs_entry *e =
		calloc(1, sizeof(*e) + q->n_ranks * sizeof(e->ranks[0]) +
				  q->n_members * sizeof(e->members[0]) +
				  q->n_ranks * sizeof(e->tp_ranks[0]));
	int ret;

	if (!e)
		return -ENOMEM;
	e->members = (struct kvs_entry_member *)(e->ranks + q->n_ranks);
	e->n_members = q->n_members;
	for (uint32_t i = 0; i < q->n_members; i++) {
		e->members[i].engine = q->members[i];
		e->members[i].slot = q->members[i] == q->engine ? q->slot
								: KVS_SLOT_NONE;
	}
	if (q->tp_ranks) {
		e->tp_ranks = (uint16_t *)(e->members + q->n_members);
		memcpy(e->tp_ranks, q->tp_ranks,
		       q->n_ranks * sizeof(e->tp_ranks[0]));
	}
	e->tp = q->tp;
	e->page_size = q->page_size;
	e->tokens = q->tokens;
	e->aux_len = q->aux_len;
	e->flags = q->health ? KVS_ADMIT_HEALTH : 0;
	e->room = q->room;
	e->generation = q->generation;
	e->engine = q->engine;
	e->node = node;
	memcpy(e->nonce, q->nonce, sizeof(e->nonce));
	snprintf(e->peer, sizeof(e->peer), "%s", q->peer);
	e->n_ranks = q->n_ranks;
	memcpy(e->ranks, q->ranks, q->n_ranks * sizeof(e->ranks[0]));
	ret = kvs_u64map_add(&f->rooms, q->room, e);
	if (ret)
		free(e);
	else
		e->host = host;
	return ret;
}

struct kvs_entry *kvs_directory_get(struct kvs_front *f, uint64_t room)
{
	return kvs_u64map_get(&f->rooms, room);
}

static bool has_nonce(const unsigned char nonce[16])
{
	static const unsigned char none[16];

	return memcmp(nonce, none, sizeof(none)) != 0;
}

/* The OPEN of an attempt that has failed may still be on its way. */
static void remember_ended(struct kvs_front *f, const struct kvs_entry *e,
			   int err, const char *text)
{
	struct kvs_ended *n = &f->ended_ring[f->ended_next];

	if (n->room && kvs_u64map_get(&f->ended, n->room) == n)
		kvs_u64map_del(&f->ended, n->room);
	kvs_u64map_del(&f->ended, e->room);
	n->room = e->room;
	memcpy(n->nonce, e->nonce, sizeof(n->nonce));
	n->err = err;
	snprintf(n->text, sizeof(n->text), "%s", text);
	/* Not remembered for want of memory: its OPEN waits, and expires. */
	(void)kvs_u64map_add(&f->ended, n->room, n);
	f->ended_next = (f->ended_next + 1) % f->ended_max;
}

int kvs_directory_ended(struct kvs_front *f, uint64_t room,
			const unsigned char nonce[16], char *text, size_t len)
{
	const struct kvs_ended *n = kvs_u64map_get(&f->ended, room);

	if (!n || memcmp(n->nonce, nonce, sizeof(n->nonce)) != 0)
		return 0;
	snprintf(text, len, "this attempt has ended%s%s", *n->text ? ": " : "",
		 n->text);
	return n->err;
}

void kvs_directory_end(struct kvs_front *f, uint64_t room, uint64_t generation,
		       int err, const char *text)
{
	struct kvs_entry *e = kvs_u64map_get(&f->rooms, room);

	if (!e || e->generation != generation)
		return;
	kvs_u64map_del(&f->rooms, room);
	if (err && has_nonce(e->nonce))
		remember_ended(f, e, err, text);
	kvs_host_put(e->host);
	free(e);
}

void kvs_unpark(struct kvs_parked *p)
{
	struct kvs_front *f = p->s->f;

	if (kvs_u64map_get(&f->parked, p->m.room) == p) {
		kvs_u64map_del(&f->parked, p->m.room);
		if (!kvs_list_empty(&p->by_room)) {
			struct kvs_parked *next = kvs_list_first(
				&p->by_room, struct kvs_parked, by_room);

			/* The deletion above made room for it. */
			KVS_ASSERT(
				!kvs_u64map_add(&f->parked, p->m.room, next));
		}
	}
	kvs_list_del(&p->by_room);
	kvs_list_del(&p->node);
	p->s->n_parked--;
	free(p->withdrawn);
	free(p);
}

/* This session has changed its mind about a room. */
static void unpark_withdrawn(struct kvs_session *s, uint64_t room)
{
	struct kvs_parked *first = kvs_u64map_get(&s->f->parked, room);
	struct kvs_parked *p, *tmp;

	if (!first)
		return;
	kvs_list_for_each_entry_safe(p, tmp, &first->by_room, by_room)
		if (p->s == s && p->withdrawn)
			kvs_unpark(p);
	if (first->s == s && first->withdrawn)
		kvs_unpark(first);
}

int kvs_park(struct kvs_session *s, const struct kvs_msg_open *m)
{
	struct kvs_front *f = s->f;
	struct kvs_parked *first, *p;

	unpark_withdrawn(s, m->room);
	if (s->n_parked >= f->settings.open_parked)
		return -EAGAIN;
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->s = s;
	p->m = *m;
	p->since = kvs_clock_now(f->clock);
	kvs_list_init(&p->by_room);
	first = kvs_u64map_get(&f->parked, m->room);
	if (first) {
		kvs_list_add_tail(&first->by_room, &p->by_room);
	} else if (kvs_u64map_add(&f->parked, m->room, p)) {
		free(p);
		return -ENOMEM;
	}
	kvs_list_add_tail(&s->parked, &p->node);
	s->n_parked++;
	if (!kvs_timer_is_set(&f->sweep))
		(void)kvs_timer_set(&f->timers, &f->sweep,
				    p->since + f->settings.open_timeout);
	return 0;
}

bool kvs_parked_withdraw(struct kvs_session *s, const struct kvs_msg_refuse *m)
{
	bool any = false, kept = false;
	struct kvs_parked *p, *tmp;

	kvs_list_for_each_entry_safe(p, tmp, &s->parked, node) {
		if (p->m.room != m->room || p->withdrawn)
			continue;
		any = true;
		if (!kept && has_nonce(p->m.nonce))
			p->withdrawn = malloc(sizeof(*p->withdrawn));
		if (p->withdrawn) {
			*p->withdrawn = *m;
			kept = true;
		} else {
			kvs_unpark(p);
		}
	}
	return any;
}

/* The engine admits what a rank has refused before: it need not wait for an
 * OPEN that does not come. */
static void parked_refused(const struct kvs_parked *p,
			   const struct kvs_entry *e)
{
	const struct kvs_msg_refuse *m = p->withdrawn;
	char text[KVS_WIRE_TEXT];

	if (strcmp(p->s->peer, e->peer) != 0 || m->rank >= e->n_ranks ||
	    m->rank != p->s->rank ||
	    memcmp(p->m.nonce, e->nonce, sizeof(e->nonce)) != 0)
		return;
	snprintf(text, sizeof(text), "rank %u refused: %.200s", m->rank,
		 m->text);
	(void)kvs_node_abort(&p->s->f->nodes[e->node], e->generation,
			     KVS_CAUSE_SENDER_REFUSED,
			     m->err ? (int)m->err : ECANCELED, text);
}

void kvs_parked_run(struct kvs_front *f, const struct kvs_entry *e)
{
	struct kvs_parked *p;

	while ((p = kvs_u64map_get(&f->parked, e->room))) {
		struct kvs_session *s = p->s;
		struct kvs_msg_open m = p->m;
		bool wanted = !p->withdrawn;

		if (!wanted)
			parked_refused(p, e);
		kvs_unpark(p);
		if (wanted)
			kvs_front_open(s, e, &m);
	}
}

void kvs_parked_sweep(struct kvs_front *f)
{
	uint64_t now = kvs_clock_now(f->clock);
	uint64_t limit = f->settings.open_timeout;
	uint64_t next = KVS_TIME_NEVER;
	struct kvs_parked *p, *tmp;
	struct kvs_session *s;

	kvs_list_for_each_entry(s, &f->sessions, node) {
		kvs_list_for_each_entry_safe(p, tmp, &s->parked, node) {
			if (now - p->since < limit) {
				if (p->since + limit < next)
					next = p->since + limit;
				break; /* later ones are younger */
			}
			if (!p->withdrawn)
				kvs_session_refuse(
					s, &p->m, 0, ENOENT,
					"no engine admitted this room within "
					"open.timeout");
			kvs_unpark(p);
		}
	}
	if (next != KVS_TIME_NEVER)
		(void)kvs_timer_set(&f->timers, &f->sweep, next);
}

void kvs_front_open(struct kvs_session *s, const struct kvs_entry *e,
		    const struct kvs_msg_open *m)
{
	struct kvs_front *f = s->f;
	struct kvs_front_engine *engine = kvs_front_engine(f, e->engine);
	struct kvs_node *n = &f->nodes[e->node];
	char text[KVS_WIRE_TEXT];
	int ret = 0;

	/* A foreign peer or rank is the node's to refuse: nothing of its
	 * layout is looked at. */
	if (engine && !strcmp(e->peer, s->peer)) {
		/* Ranks that do not exist could never send their part. */
		if (s->n_ranks < e->n_ranks) {
			snprintf(text, sizeof(text),
				 "n_ranks: prefill %u, the engine asked for %u",
				 s->n_ranks, e->n_ranks);
			ret = -EPROTOTYPE;
		} else if (m->rank < e->n_ranks && m->rank == s->rank) {
			ret = kvs_session_match(s, engine, e, m->rank, text,
						sizeof(text));
		}
	}
	if (ret) {
		kvs_session_refuse(s, m, e->generation, EPROTOTYPE, text);
		kvs_node_abort(n, e->generation, KVS_CAUSE_LAYOUT, EPROTOTYPE,
			       text);
		return;
	}
	if (kvs_node_open(n, s->id, e->generation, m))
		kvs_session_refuse(s, m, e->generation, EAGAIN,
				   "out of memory");
}
