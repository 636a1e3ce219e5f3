/* SPDX-License-Identifier: Apache-2.0 */
/* Packets of an attached engine. Each was copied out of the socket; every
 * field is checked here before it is used (nothing from an engine is
 * trusted). */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/log.h"
#include "pipeline/front.h"
#include "pipeline/wire_text.h"

static void packet_bad(struct kvs_front_engine *e, const char *why)
{
	e->f->protocol_errors[KVS_PROTO_ENGINE]++;
	kvs_front_engine_lost(e, why);
}

/* The front's own reasons pass by themselves. */
static uint32_t admit_retry(const struct kvs_front *f, int err)
{
	if (err == ESHUTDOWN)
		return (uint32_t)(f->settings.shutdown_timeout /
				  KVS_NSEC_PER_MSEC);
	return err == EAGAIN ? 1000 : 0;
}

static void admit_refuse(struct kvs_front_engine *e,
			 const struct kvs_packet_admit *p, uint64_t generation,
			 enum kvs_admit_result res, int err, const char *text)
{
	struct kvs_packet_failed out;

	e->f->admits[res]++;
	kvs_log_info("engine %u: room %llu refused (%s): %s", e->number,
		     (unsigned long long)p->room, kvs_admit_result_name[res],
		     text);
	kvs_failed_fill(&out, p->slot, generation, err, admit_retry(e->f, err),
			text);
	kvs_front_engine_word(e, p->slot,
			      KVS_WORD(generation, err, KVS_STATUS_FAILED),
			      &out.h, sizeof(out));
}

static const char *admit_invalid(const struct kvs_front_engine *e,
				 const struct kvs_packet_admit *p)
{
	static const unsigned char none[sizeof(p->nonce)];
	char clean[sizeof(p->peer)];

	if (!p->room)
		return "room: 0 is not a room id";
	if (!p->n_ranks || p->n_ranks > KVS_RANKS_MAX)
		return "n_ranks: 1 to 256";
	if (!p->tokens)
		return "tokens: 0";
	if (p->aux_len > e->layout->aux_max)
		return "aux_len: larger than the layout's aux_max";
	if (!*p->peer)
		return "peer: empty";
	if (p->flags & ~(KVS_ADMIT_HEALTH | KVS_ADMIT_CACHED))
		return "flags: unknown";
	if (!strcmp(e->f->settings.auth_room_token, "required") &&
	    !memcmp(p->nonce, none, sizeof(p->nonce)))
		return "nonce: none, and auth.room_token = required asks for "
		       "one";
	if (e->n_ranks > 1 && !memcmp(p->nonce, none, sizeof(p->nonce)))
		return "nonce: none, and a group of several ranks asks for one";
	kvs_wire_text_put(clean, sizeof(clean), p->peer);
	if (strcmp(clean, p->peer))
		return "peer: has control characters or is not UTF-8";
	return NULL;
}

/* Index of the node a room goes to; -ENXIO when it names one without a pool. */
static int admit_node(const struct kvs_front_engine *e, int node)
{
	if (node < 0)
		return (int)e->home;
	for (unsigned int i = 0; i < e->f->n_nodes; i++)
		if (e->f->nodes[i].numa == node)
			return (int)i;
	return -ENXIO;
}

/* R11: the engine's own limits come first; nothing exists of the room yet. */
static int admit_limits(const struct kvs_front_engine *e, uint64_t tokens,
			char *text, size_t len)
{
	const struct kvs_layout *l = e->layout;

	if (l->max_context && tokens > l->max_context)
		snprintf(text, len,
			 "%llu tokens, the engine's max_context is %llu",
			 (unsigned long long)tokens,
			 (unsigned long long)l->max_context);
	else if (l->capacity && tokens > l->capacity)
		snprintf(text, len,
			 "%llu tokens, the engine's device KV capacity is %llu",
			 (unsigned long long)tokens,
			 (unsigned long long)l->capacity);
	else
		return 0;
	return -E2BIG;
}

/*
 * One of a group admits: the room is there and gets one more handle (0), or is
 * made for all its ranks: how many. -errno with @text.
 */
static int admit_group(struct kvs_front_engine *e,
		       const struct kvs_packet_admit *p,
		       uint32_t members[KVS_GROUP_MAX], char *text, size_t len)
{
	struct kvs_entry *x = kvs_directory_get(e->f, p->room);
	int err;

	if (x)
		return kvs_front_group_join(e, x, p, text, len);
	/* For others of the group it may have ended; it must not begin anew
	 * for this one alone. */
	err = kvs_directory_ended(e->f, p->room, p->nonce, text, len);
	if (err)
		return -err;
	return kvs_front_group_members(e, members, text, len);
}

static void packet_admit(struct kvs_front_engine *e,
			 const struct kvs_packet_admit *p, size_t len)
{
	struct kvs_front *f = e->f;
	uint32_t members[KVS_GROUP_MAX];
	struct kvs_room_request q = { 0 };
	struct kvs_host *host;
	char text[256];
	const char *why;
	int node, ret;

	if (len < sizeof(*p) || p->n_ranks > KVS_RANKS_MAX ||
	    p->n_hashes > KVS_HASHES_MAX ||
	    len != sizeof(*p) +
			    p->n_ranks * (sizeof(p->ranks[0]) +
					  (p->tp ? sizeof(uint16_t) : 0)) +
			    p->n_hashes * sizeof(q.hashes[0]) ||
	    p->slot >= e->n_slots || !memchr(p->peer, 0, sizeof(p->peer))) {
		packet_bad(e, "sent a malformed ADMIT");
		return;
	}
	if (e->slots[p->slot].generation) {
		packet_bad(e, "admitted into a slot that is in use");
		return;
	}
	node = admit_node(e, p->node);
	q.generation = ++f->next_generation << KVS_NODE_BITS |
		       (node < 0 ? e->home : (uint32_t)node);
	why = admit_invalid(e, p);
	if (why) {
		admit_refuse(e, p, q.generation, KVS_ADMIT_INVALID, EINVAL,
			     why);
		return;
	}
	if (node < 0) {
		snprintf(text, sizeof(text), "node: %d has no pool", p->node);
		admit_refuse(e, p, q.generation, KVS_ADMIT_INVALID, ENXIO,
			     text);
		return;
	}
	if (admit_limits(e, p->tokens, text, sizeof(text))) {
		admit_refuse(e, p, q.generation, KVS_ADMIT_NOFIT, E2BIG, text);
		return;
	}
	if (f->draining) {
		admit_refuse(e, p, q.generation, KVS_ADMIT_BUSY, ESHUTDOWN,
			     "the daemon is going down");
		return;
	}
	q.tp = p->tp;
	q.page_size = p->page_size;
	if (p->tp)
		q.tp_ranks =
			(const uint16_t *)((const char *)(p->ranks +
							  p->n_ranks) +
					   p->n_hashes * sizeof(q.hashes[0]));
	if (*e->group) {
		ret = admit_group(e, p, members, text, sizeof(text));
		if (ret < 0)
			admit_refuse(e, p, q.generation,
				     ret == -EEXIST   ? KVS_ADMIT_DUPLICATE
				     : ret == -EINVAL ? KVS_ADMIT_INVALID
						      : KVS_ADMIT_BUSY,
				     -ret, text);
		if (ret <= 0)
			return;
		q.members = members;
		q.n_members = (uint32_t)ret;
	}
	q.room = p->room;
	q.engine = e->number;
	q.slot = p->slot;
	memcpy(q.nonce, p->nonce, sizeof(q.nonce));
	snprintf(q.peer, sizeof(q.peer), "%s", p->peer);
	q.tokens = p->tokens;
	q.aux_len = p->aux_len;
	q.health = p->flags & KVS_ADMIT_HEALTH;
	q.n_ranks = p->n_ranks;
	q.ranks = p->ranks;
	q.n_hashes = p->n_hashes;
	q.hashes = (const uint8_t(*)[16])(p->ranks + p->n_ranks);
	q.use_cache = p->flags & KVS_ADMIT_CACHED;
	ret = kvs_front_host(e, &q, &host, text, sizeof(text));
	if (ret) {
		admit_refuse(e, p, q.generation,
			     ret == -E2BIG	  ? KVS_ADMIT_NOFIT
			     : ret == -EPROTOTYPE ? KVS_ADMIT_LAYOUT
						  : KVS_ADMIT_BUSY,
			     ret == -ENOMEM ? EAGAIN : -ret, text);
		return;
	}
	/* what is cached lies as one engine has it */
	if (host) {
		q.n_hashes = 0;
		q.use_cache = false;
	}
	ret = kvs_directory_add(f, &q, (uint32_t)node, host);
	if (ret)
		kvs_host_put(host);
	if (ret == -EEXIST) {
		admit_refuse(e, p, q.generation, KVS_ADMIT_DUPLICATE, EEXIST,
			     "a live room has this id");
		return;
	}
	if (!ret && kvs_node_admit(&f->nodes[node], &q)) {
		kvs_directory_end(f, q.room, q.generation, EAGAIN,
				  "out of memory");
		ret = -ENOMEM;
	}
	if (ret) {
		admit_refuse(e, p, q.generation, KVS_ADMIT_BUSY, EAGAIN,
			     "out of memory");
		return;
	}
	e->slots[p->slot].generation = q.generation;
	e->slots[p->slot].room = q.room;
	kvs_parked_run(f, kvs_directory_get(f, q.room));
}

/* A request that leaves the device: it has no room id, only its slot. */
static void packet_retract(struct kvs_front_engine *e,
			   const struct kvs_packet_retract *p, size_t len)
{
	struct kvs_front *f = e->f;
	struct kvs_packet_failed out;
	struct kvs_retract_request q = { 0 };
	const char *why = "out of memory";
	int node, err = EAGAIN;

	if (len != sizeof(*p) || p->slot >= e->n_slots || !p->tokens) {
		packet_bad(e, "sent a malformed RETRACT");
		return;
	}
	if (e->slots[p->slot].generation) {
		packet_bad(e, "retracted into a slot that is in use");
		return;
	}
	node = admit_node(e, p->node);
	q.generation = ++f->next_generation << KVS_NODE_BITS |
		       (node < 0 ? e->home : (uint32_t)node);
	q.id = p->id;
	q.engine = e->number;
	q.slot = p->slot;
	q.tokens = p->tokens;
	if (node < 0) {
		err = ENXIO;
		why = "node: there is no pool on it";
	} else if (!kvs_node_retract(&f->nodes[node], &q)) {
		e->slots[p->slot].generation = q.generation;
		e->slots[p->slot].room = 0; /* not in the directory */
		return;
	}
	kvs_failed_fill(&out, p->slot, q.generation, err, 0, why);
	kvs_front_engine_word(e, p->slot,
			      KVS_WORD(q.generation, err, KVS_STATUS_FAILED),
			      &out.h, sizeof(out));
}

static void packet_lookup(struct kvs_front_engine *e,
			  const struct kvs_packet_lookup *p, size_t len)
{
	struct kvs_front *f = e->f;
	struct kvs_packet_failed out;
	struct kvs_lookup_request q = { 0 };
	int node;

	if (len < sizeof(*p) || !p->n_hashes || p->n_hashes > KVS_HASHES_MAX ||
	    len != sizeof(*p) + p->n_hashes * sizeof(p->hashes[0]) ||
	    p->slot >= e->n_slots || p->what >= KVS_LOOKUP_MAX) {
		packet_bad(e, "sent a malformed LOOKUP");
		return;
	}
	if (e->slots[p->slot].generation) {
		packet_bad(e, "looked up in a slot that is in use");
		return;
	}
	node = admit_node(e, p->node);
	q.generation = ++f->next_generation << KVS_NODE_BITS |
		       (node < 0 ? e->home : (uint32_t)node);
	q.id = p->id;
	q.engine = e->number;
	q.slot = p->slot;
	q.what = (enum kvs_lookup)p->what;
	q.n_hashes = p->n_hashes;
	q.hashes = p->hashes;
	if (node >= 0 && !kvs_node_lookup(&f->nodes[node], &q)) {
		e->slots[p->slot].generation = q.generation;
		e->slots[p->slot].room = 0; /* not in the directory */
		return;
	}
	kvs_failed_fill(
		&out, p->slot, q.generation, node < 0 ? ENXIO : EAGAIN, 0,
		node < 0 ? "node: there is no pool on it" : "out of memory");
	kvs_front_engine_word(
		e, p->slot, KVS_WORD(q.generation, out.err, KVS_STATUS_FAILED),
		&out.h, sizeof(out));
}

static void packet_room(struct kvs_front_engine *e, enum kvs_packet_type type,
			const struct kvs_packet_room *p, size_t len)
{
	struct kvs_front *f = e->f;
	struct kvs_packet_room q;
	uint64_t node;

	if (len != sizeof(*p) || p->slot >= e->n_slots || p->err < 0 ||
	    p->err > 4095) {
		packet_bad(e, "sent a malformed packet");
		return;
	}
	q = *p;
	if (!q.generation)
		q.generation = e->slots[q.slot].generation;
	/* That no copy runs is of use to one that has ended, too: of it, as the
	 * slot is not used again before. */
	if (!q.generation && type == KVS_PACKET_COPY_OVER)
		q.generation = e->slots[q.slot].before;
	if (!q.generation)
		return; /* the room ended meanwhile */
	node = q.generation & KVS_NODE_MASK;
	if (node >= f->n_nodes) {
		packet_bad(e, "named a generation never given out");
		return;
	}
	/* An aborted room's id may be admitted again by the next packet. */
	if (type == KVS_PACKET_ABORT && e->slots[q.slot].room &&
	    e->slots[q.slot].generation == q.generation)
		kvs_directory_end(f, e->slots[q.slot].room, q.generation,
				  ECANCELED, "the engine aborted it");
	if (kvs_node_packet(&f->nodes[node], e->number, type, &q))
		kvs_front_engine_lost(e, "out of memory for its packet");
}

void kvs_front_engine_packet(struct kvs_front_engine *e, const void *buf,
			     size_t len)
{
	const struct kvs_packet *h = buf;

	switch ((enum kvs_packet_type)h->type) {
	case KVS_PACKET_ADMIT:
		packet_admit(e, buf, len);
		return;
	case KVS_PACKET_COMMIT:
	case KVS_PACKET_COMMITTED:
	case KVS_PACKET_ABORT:
	case KVS_PACKET_COPY_OVER:
	case KVS_PACKET_RETRACTED:
		packet_room(e, (enum kvs_packet_type)h->type, buf, len);
		return;
	case KVS_PACKET_RETRACT:
		packet_retract(e, buf, len);
		return;
	case KVS_PACKET_LOOKUP:
		packet_lookup(e, buf, len);
		return;
	case KVS_PACKET_DETACH:
		e->detached = true;
		return;
	case KVS_PACKET_ATTACH:
	case KVS_PACKET_ATTACHED:
	case KVS_PACKET_REFUSED:
	case KVS_PACKET_READY:
	case KVS_PACKET_LAYOUT:
	case KVS_PACKET_FAILED:
	case KVS_PACKET_PLACED:
	case KVS_PACKET_CACHED:
	case KVS_PACKET_TYPE_MAX:
		break;
	}
	packet_bad(e, "sent a packet of an unknown type");
}
