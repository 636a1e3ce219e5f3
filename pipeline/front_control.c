/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of a sender rank about rooms: checked for form by the decoder,
 * here for time and place, then posted to the room's node. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/front.h"

static int control_open(struct kvs_session *s, const struct kvs_msg_open *m)
{
	const struct kvs_entry *e = kvs_directory_get(s->f, m->room);
	char text[KVS_WIRE_TEXT];
	int ret;

	if (m->rank != s->rank) {
		s->f->protocol_errors[KVS_PROTO_FOREIGN]++;
		kvs_session_end(s, -EPROTO, "OPEN for another rank");
		return 0;
	}
	if (e && (!m->generation || m->generation == e->generation)) {
		kvs_front_open(s, e, m);
		return 0;
	}
	if (m->generation) {
		/* It names an attempt, and that one is no more. */
		kvs_session_refuse(s, m, m->generation, ESTALE,
				   "the generation is that of another attempt");
		return 0;
	}
	ret = kvs_directory_ended(s->f, m->room, m->nonce, text, sizeof(text));
	if (ret) {
		kvs_session_refuse(s, m, 0, ret, text);
		return 0;
	}
	ret = kvs_park(s, m);
	if (ret)
		kvs_session_refuse(s, m, 0, EAGAIN,
				   "open.parked OPENs wait for their admit");
	return 0;
}

static int control_keepalive(struct kvs_session *s,
			     const struct kvs_msg_keepalive *k)
{
	struct kvs_msg m = { .type = KVS_WIRE_KEEPALIVE, .keepalive = *k };

	if (k->reply)
		return 0;
	m.keepalive.reply = 1;
	return kvs_session_send(s, &m);
}

static uint64_t message_generation(const struct kvs_msg *m)
{
	switch (m->type) {
	case KVS_WIRE_LAST:
		return m->last.generation;
	case KVS_WIRE_ABORT:
	case KVS_WIRE_ABORT_ACK:
	case KVS_WIRE_ABORT_NAK:
		return m->abort.generation;
	case KVS_WIRE_REFUSE:
		return m->refuse.generation;
	case KVS_WIRE_HELLO:
	case KVS_WIRE_LAYOUT:
	case KVS_WIRE_OPEN:
	case KVS_WIRE_GRANT:
	case KVS_WIRE_CHUNK:
	case KVS_WIRE_CHUNK_DONE:
	case KVS_WIRE_COMPLETE:
	case KVS_WIRE_ERROR:
	case KVS_WIRE_KEEPALIVE:
	case KVS_WIRE_CHALLENGE:
	case KVS_WIRE_RESPONSE:
	case KVS_WIRE_PROOF:
	case KVS_WIRE_TYPE_MAX:
		break;
	}
	return 0;
}

/* A rank withdraws before it was granted, so it knows no generation: the OPEN
 * still waits for its admit here, or its room waits for memory on a node. */
static int control_withdraw(struct kvs_session *s, const struct kvs_msg *m)
{
	const struct kvs_entry *e = kvs_directory_get(s->f, m->refuse.room);
	bool parked = kvs_parked_withdraw(s, &m->refuse);
	struct kvs_msg q = *m;

	if (!e || strcmp(e->peer, s->peer) != 0 || m->refuse.rank != s->rank) {
		s->f->strays[KVS_STRAY_REFUSE] += !parked;
		return 0;
	}
	q.refuse.generation = e->generation;
	return kvs_node_message(&s->f->nodes[e->node], s->id, &q);
}

int kvs_session_message(struct kvs_session *s, const struct kvs_msg *m)
{
	struct kvs_front *f = s->f;
	uint64_t node;

	switch (m->type) {
	case KVS_WIRE_OPEN:
		return control_open(s, &m->open);
	case KVS_WIRE_KEEPALIVE:
		return control_keepalive(s, &m->keepalive);
	case KVS_WIRE_ERROR:
		kvs_session_end(s, -ECONNRESET, "peer reports an error");
		return 0;
	case KVS_WIRE_LAST:
	case KVS_WIRE_ABORT:
	case KVS_WIRE_ABORT_ACK:
	case KVS_WIRE_ABORT_NAK:
	case KVS_WIRE_REFUSE:
		break;
	case KVS_WIRE_HELLO:
	case KVS_WIRE_LAYOUT:
	case KVS_WIRE_GRANT:
	case KVS_WIRE_CHUNK:
	case KVS_WIRE_CHUNK_DONE:
	case KVS_WIRE_COMPLETE:
	case KVS_WIRE_CHALLENGE:
	case KVS_WIRE_RESPONSE:
	case KVS_WIRE_PROOF:
	case KVS_WIRE_TYPE_MAX:
		f->protocol_errors[KVS_PROTO_ORDER]++;
		kvs_session_end(s, -EPROTO, "message out of order");
		return 0;
	}
	if (m->type == KVS_WIRE_REFUSE && !m->refuse.generation)
		return control_withdraw(s, m);
	node = message_generation(m) & KVS_NODE_MASK;
	if (node >= f->n_nodes) {
		f->protocol_errors[KVS_PROTO_VALUE]++;
		kvs_session_end(s, -EPROTO, "a generation never given out");
		return 0;
	}
	return kvs_node_message(&f->nodes[node], s->id, m);
}
