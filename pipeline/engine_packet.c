/* SPDX-License-Identifier: Apache-2.0 */
/* Packets between an engine and the daemon, both ways. What the daemon sends
 * is checked as if it were hostile: a wrong offset would end on the device. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "pipeline/engine_internal.h"

void kvs_eng_lost(struct kvs_engine *e, const char *why)
{
	if (e->gone)
		return;
	e->gone = true;
	e->port->shut(e);
	kvs_eng_devices_stop(e);
	for (uint32_t i = 0; i < e->n_slots; i++) {
		struct kvs_eng_room *r = e->rooms[i];
		uint64_t w;

		if (!r)
			continue;
		w = kvs_eng_room_word(e, r);
		r->owed = 0;
		kvs_list_del(&r->out_node);
		if (e->local[i] == KVS_ENG_FREE ||
		    e->local[i] == KVS_ENG_FAILED || kvs_eng_room_final(e, r))
			continue;
		if (r->phase == KVS_ENG_PHASE_COPIED && !r->copy_err)
			e->local[i] = KVS_ENG_DONE;
		else if (r->phase == KVS_ENG_PHASE_COPIED)
			kvs_eng_room_fail(e, r, r->copy_err,
					  "the copy to the device failed");
		else if (r->phase == KVS_ENG_PHASE_OPEN ||
			 r->phase == KVS_ENG_PHASE_LEAVING ||
			 r->phase == KVS_ENG_PHASE_LEAVING_COPY ||
			 (r->phase == KVS_ENG_PHASE_CLAIMED &&
			  KVS_WORD_STATUS(w) != KVS_STATUS_COMMITTING))
			kvs_eng_room_fail(e, r, ECONNRESET, why);
	}
}

int kvs_eng_send(struct kvs_engine *e, const void *p, size_t len)
{
	int ret;

	if (e->gone)
		return -ECONNRESET;
	ret = e->port->send(e, p, len);
	if (!ret || ret == -EAGAIN)
		return ret;
	kvs_eng_lost(e, "the daemon closed the connection");
	return -ECONNRESET;
}

static const struct {
	unsigned int owed;
	enum kvs_packet_type type;
} owed_order[] = {
	{ KVS_ENG_OWE_RETRACTED, KVS_PACKET_RETRACTED },
	{ KVS_ENG_OWE_COMMIT, KVS_PACKET_COMMIT },
	{ KVS_ENG_OWE_COMMITTED, KVS_PACKET_COMMITTED },
	{ KVS_ENG_OWE_ABORT, KVS_PACKET_ABORT },
	{ KVS_ENG_OWE_COPY_OVER, KVS_PACKET_COPY_OVER },
};

static int flush_room(struct kvs_engine *e, struct kvs_eng_room *r)
{
	/* its generation: it may have become known */
	(void)kvs_eng_room_word(e, r);
	for (size_t i = 0; i < KVS_ARRAY_SIZE(owed_order); i++) {
		struct kvs_packet_room p = {
			.h = { KVS_ATTACH_MAGIC, owed_order[i].type },
			.generation = r->generation,
			.slot = r->slot,
		};
		int ret;

		if (!(r->owed & owed_order[i].owed))
			continue;
		if (owed_order[i].owed &
		    (KVS_ENG_OWE_COMMITTED | KVS_ENG_OWE_RETRACTED))
			p.err = r->copy_err;
		ret = kvs_eng_send(e, &p, sizeof(p));
		if (ret)
			return ret;
		r->owed &= ~owed_order[i].owed;
		if (owed_order[i].owed == KVS_ENG_OWE_COMMIT)
			r->commit_sent = true;
	}
	return 0;
}

void kvs_eng_flush(struct kvs_engine *e)
{
	while (!kvs_list_empty(&e->out)) {
		struct kvs_eng_room *r =
			kvs_list_first(&e->out, struct kvs_eng_room, out_node);

		if (flush_room(e, r))
			return; /* full, or lost and the list is empty */
		kvs_list_del(&r->out_node);
	}
}

void kvs_eng_owe(struct kvs_engine *e, struct kvs_eng_room *r,
		 unsigned int packet)
{
	if (e->gone)
		return;
	r->owed |= packet;
	if (kvs_list_empty(&r->out_node))
		kvs_list_add_tail(&e->out, &r->out_node);
	kvs_eng_flush(e);
}

/* The room a packet is about. Its generation must be that of the word, once
 * there is a word; before, it must at least be a new one. */
static struct kvs_eng_room *packet_room(struct kvs_engine *e, uint32_t slot,
					uint64_t generation)
{
	struct kvs_eng_room *r;

	if (slot >= e->n_slots || !e->rooms[slot] || !generation ||
	    generation > KVS_GENERATION_MAX)
		return NULL;
	r = e->rooms[slot];
	(void)kvs_eng_room_word(e, r);
	if (r->generation ? r->generation != generation
			  : KVS_WORD_GEN(e->previous[slot]) == generation)
		return NULL;
	return r;
}

static int packet_ready(struct kvs_engine *e, size_t len)
{
	const struct kvs_packet_ready *p = (const void *)&e->buf;
	struct kvs_eng_room *r;
	int ret;

	if (len < sizeof(*p))
		return -EPROTO;
	r = packet_room(e, p->slot, p->generation);
	/* Aborted meanwhile, as a rule. */
	if (!r || r->out || e->local[r->slot] == KVS_ENG_FREE ||
	    e->local[r->slot] == KVS_ENG_FAILED ||
	    r->phase == KVS_ENG_PHASE_COPIED || kvs_eng_room_final(e, r))
		return 0;
	ret = r->pin ? kvs_eng_pin_ready(e, r, p, len)
		     : kvs_eng_room_ready(e, r, p, len);
	if (ret) {
		kvs_eng_room_fail(e, r, -ret,
				  "the daemon sent READY with places that "
				  "cannot be");
		kvs_eng_room_give_up(e, r);
	}
	return 0;
}

static int packet_placed(struct kvs_engine *e, size_t len)
{
	const struct kvs_packet_ready *p = (const void *)&e->buf;
	struct kvs_eng_room *r;
	int ret;

	if (len < sizeof(*p))
		return -EPROTO;
	r = packet_room(e, p->slot, p->generation);
	if (!r)
		return 0;
	if (!r->out)
		return -EPROTO;
	if (e->local[r->slot] == KVS_ENG_FREE ||
	    e->local[r->slot] == KVS_ENG_FAILED || kvs_eng_room_final(e, r)) {
		kvs_eng_out_end(e, r);
		return 0;
	}
	ret = p->pool < e->n_pools && !e->pools[p->pool].writable
		      ? -EPROTO
		      : kvs_eng_room_ready(e, r, p, len);
	if (ret) {
		kvs_eng_room_fail(e, r, -ret,
				  "the daemon sent PLACED with places that "
				  "cannot be");
		kvs_eng_room_give_up(e, r);
		return 0;
	}
	kvs_eng_out_placed(e, r);
	return 0;
}

static int packet_cached(struct kvs_engine *e, size_t len)
{
	const struct kvs_packet_cached *p = (const void *)&e->buf;
	struct kvs_eng_room *r;

	if (len != sizeof(*p))
		return -EPROTO;
	r = packet_room(e, p->slot, p->generation);
	if (r)
		kvs_eng_cached(e, r, p);
	return 0;
}

static int packet_failed(struct kvs_engine *e, size_t len)
{
	const struct kvs_packet_failed *p = (const void *)&e->buf;
	struct kvs_eng_room *r;

	if (len != sizeof(*p))
		return -EPROTO;
	r = packet_room(e, p->slot, p->generation);
	if (!r)
		return 0;
	/* What was decided here stays, see kvs_eng_room_fail(). */
	if (e->local[r->slot] == KVS_ENG_FAILED)
		return 0;
	r->failure.err = p->err && p->err <= 4095 ? (int)p->err : EPROTO;
	r->failure.http_class = p->class == 400 ? 400 : 503;
	r->failure.retry_ms = p->class == 400 ? 0 : p->retry_ms;
	snprintf(r->failure.text, sizeof(r->failure.text), "%.*s",
		 (int)sizeof(p->text) - 1, p->text);
	r->failure_generation = p->generation;
	return 0;
}

static int packet_take(struct kvs_engine *e, size_t len, bool cut)
{
	if (len < sizeof(e->buf.h) || cut || e->buf.h.magic != KVS_ATTACH_MAGIC)
		return -EPROTO;
	switch ((enum kvs_packet_type)e->buf.h.type) {
	case KVS_PACKET_READY:
		return packet_ready(e, len);
	case KVS_PACKET_PLACED:
		return packet_placed(e, len);
	case KVS_PACKET_CACHED:
		return packet_cached(e, len);
	case KVS_PACKET_FAILED:
		return packet_failed(e, len);
	case KVS_PACKET_LAYOUT:
		return len < sizeof(struct kvs_packet_layout)
			       ? -EPROTO
			       : kvs_eng_host_add(e, (const void *)&e->buf,
						  len);
	case KVS_PACKET_ATTACH:
	case KVS_PACKET_ATTACHED:
	case KVS_PACKET_REFUSED:
	case KVS_PACKET_ADMIT:
	case KVS_PACKET_COMMIT:
	case KVS_PACKET_COMMITTED:
	case KVS_PACKET_ABORT:
	case KVS_PACKET_COPY_OVER:
	case KVS_PACKET_DETACH:
	case KVS_PACKET_RETRACT:
	case KVS_PACKET_LOOKUP:
	case KVS_PACKET_RETRACTED:
	case KVS_PACKET_TYPE_MAX:
		break;
	}
	return -EPROTO;
}

int kvs_eng_receive(struct kvs_engine *e)
{
	/* Three packets a room are the most an honest daemon has queued. */
	uint64_t most = 3ULL * e->n_slots + 64;
	int n = 0;

	while (!e->gone && most--) {
		bool cut = false;
		ssize_t got = e->port->receive(e, &cut);

		if (got == -EAGAIN)
			break;
		if (got <= 0)
			kvs_eng_lost(e, "the daemon closed the connection");
		else if (packet_take(e, (size_t)got, cut))
			kvs_eng_lost(e, "the daemon sent a malformed packet");
		else
			n++;
	}
	return n;
}
