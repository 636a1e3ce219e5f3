/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections of sender ranks: handshake, identity, life signs, end. A
 * connection is a session from accept on; one whose HELLO says "data" is
 * handed to the node it names.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/err.h"
#include "lib/log.h"
#include "lib/random.h"
#include "lib/rule.h"
#include "pipeline/front.h"
#include "pipeline/layout.h"

static void session_timer(struct kvs_session *s, uint64_t after)
{
	(void)kvs_timer_set(&s->f->timers, &s->timer,
			    kvs_clock_now(s->f->clock) + after);
}

int kvs_session_send(struct kvs_session *s, const struct kvs_msg *m)
{
	_Alignas(8) static _Thread_local unsigned char buf[KVS_FRAME_MAX];
	int ret;

	ret = kvs_wire_encode(m, buf, sizeof(buf));
	if (ret < 0)
		return ret;
	return kvs_conn_send(s->c, (const struct kvs_frame *)buf);
}

/* It has been answered, and is in the table. */
static bool session_is_known(const struct kvs_session *s)
{
	return s->state == KVS_SESSION_LAYOUT || s->state == KVS_SESSION_UP;
}

/* Its rooms fail, and its data connections go, now: a peer that does not
 * close its side would keep them for as long as the goodbye takes. */
static void session_lost(struct kvs_session *s)
{
	struct kvs_front *f = s->f;

	if (s->state != KVS_SESSION_UP || s->lost)
		return;
	s->lost = true;
	for (unsigned int i = 0; i < f->n_nodes; i++)
		(void)kvs_node_session_lost(&f->nodes[i], s->id, s->end_err,
					    s->end_why);
}

void kvs_session_end(struct kvs_session *s, int err, const char *why)
{
	struct kvs_msg m = { .type = KVS_WIRE_ERROR };

	if (s->end_why)
		return;
	s->end_err = err;
	s->end_why = why;
	if (err) {
		if (!s->trusted && err != -ESHUTDOWN)
			kvs_session_auth_failed(s, why);
		else
			/* Our own end is nobody's fault. */
			kvs_log(err == -ESHUTDOWN ? KVS_LOG_INFO : KVS_LOG_WARN,
				"%s rank %u (%s): %s, closing",
				*s->peer ? s->peer : "new connection", s->rank,
				kvs_conn_peer(s->c), why);
		m.error.err = (uint32_t)-err;
		snprintf(m.error.text, sizeof(m.error.text), "%s", why);
		(void)kvs_session_send(s, &m);
	}
	session_lost(s);
	kvs_conn_close(s->c, err, true);
}

void kvs_session_refuse(struct kvs_session *s, const struct kvs_msg_open *m,
			uint64_t generation, int err, const char *text)
{
	struct kvs_msg out;

	kvs_refuse_fill(&out, m->room, generation, m->rank, err, text);
	if (kvs_session_send(s, &out))
		kvs_session_end(s, -ENOBUFS, "peer does not read its answers");
}

static void session_timer_fired(struct kvs_timer *t)
{
	struct kvs_session *s = kvs_container_of(t, struct kvs_session, timer);
	uint64_t every = s->f->settings.keepalive;
	uint64_t quiet = kvs_clock_now(s->f->clock) - s->heard;
	struct kvs_msg m = { .type = KVS_WIRE_KEEPALIVE };

	if (s->state != KVS_SESSION_UP) {
		s->f->protocol_errors[KVS_PROTO_HANDSHAKE]++;
		s->failing = KVS_AUTH_TIMEOUT;
		kvs_session_end(s, -ETIMEDOUT,
				"no handshake within listen.handshake_timeout");
		return;
	}
	if (quiet >= 3 * every) {
		kvs_session_end(s, -ETIMEDOUT, "silent for three keepalives");
		return;
	}
	if (quiet >= every)
		(void)kvs_session_send(s, &m);
	session_timer(s, every);
}

/* A rank that comes back (restart, new instance) takes the place of its
 * former self: the old connection's rooms fail and drain. */
static void session_supersede(struct kvs_session *s)
{
	struct kvs_session *o;

	kvs_list_for_each_entry(o, &s->f->sessions, node)
		if (o != s && session_is_known(o) && !o->end_why &&
		    o->rank == s->rank && !strcmp(o->peer, s->peer))
			kvs_session_end(o, -ESTALE,
					"a newer connection of this rank came");
}

static uint64_t digest_cap(const char *kind)
{
	if (!strcmp(kind, "crc32c"))
		return KVS_CAP_CRC32C;
	return !strcmp(kind, "adler32") ? KVS_CAP_ADLER32 : 0;
}

/* Can every node's memory be written to by the senders themselves? */
static bool session_one_sided(const struct kvs_front *f)
{
	for (unsigned int i = 0; i < f->n_nodes; i++)
		if (!f->nodes[i].one_sided)
			return false;
	return true;
}

/* Where a key works on one connection, that must be there before the grant. */
static uint32_t session_at_once(const struct kvs_front *f)
{
	for (unsigned int i = 0; i < f->n_nodes; i++)
		if (f->nodes[i].key_per_conn)
			return f->n_nodes;
	return 0;
}

/* How many data connections a rank is to make to each node; 0: as it likes,
 * as one or the other knows nothing of their numbers. */
static uint16_t session_paths(const struct kvs_front *f,
			      const struct kvs_session *s)
{
	uint64_t most = 0;

	if (~s->caps & (KVS_CAP_ONE_SIDED | KVS_CAP_PATHS))
		return 0;
	for (unsigned int i = 0; i < f->n_nodes; i++) {
		uint64_t n = (uint64_t)f->settings.rdma_connections *
			     f->nodes[i].rails;

		if (!n)
			return 0;
		if (n > most)
			most = n;
	}
	return (uint16_t)(most < KVS_PATHS_MAX ? most : KVS_PATHS_MAX);
}

static int session_hello_control(struct kvs_session *s,
				 const struct kvs_msg_hello *h)
{
	struct kvs_front *f = s->f;
	struct kvs_msg m = { .type = KVS_WIRE_HELLO };
	struct kvs_msg proof;
	int ret;

	if (!(h->caps & KVS_CAP_GENERATION)) {
		f->protocol_errors[KVS_PROTO_VERSION]++;
		kvs_session_end(s, -EPROTONOSUPPORT,
				"peer does not carry generations");
		return 0;
	}
	if (!kvs_session_place(s, h))
		return 0;
	memcpy(s->peer, h->name, sizeof(s->peer));
	s->rank = h->rank;
	s->n_ranks = h->n_ranks;
	s->caps = h->caps;
	s->instance = h->instance;
	if (kvs_random_id(&s->id))
		return -EIO;
	if (kvs_u64map_add(&f->by_id, s->id, s))
		return -ENOMEM;
	s->state = KVS_SESSION_LAYOUT;
	f->n_sessions++;
	session_supersede(s);
	m.hello.version_min = KVS_WIRE_VERSION_MAX;
	m.hello.version_max = KVS_WIRE_VERSION_MAX;
	/* From here on only the digest in use, if both sides have it. */
	s->caps &= ~(KVS_CAP_CRC32C | KVS_CAP_ADLER32);
	s->caps |= h->caps & digest_cap(f->settings.checksum_kind);
	if (!session_one_sided(f))
		s->caps &= ~KVS_CAP_ONE_SIDED;
	m.hello.paths = session_paths(f, s);
	if (!m.hello.paths)
		s->caps &= ~KVS_CAP_PATHS;
	m.hello.caps = KVS_CAP_GENERATION | KVS_CAP_DRAIN_ACK |
		       (s->caps & (KVS_CAP_ONE_SIDED | KVS_CAP_PATHS)) |
		       digest_cap(f->settings.checksum_kind);
	m.hello.instance = f->instance;
	m.hello.session = s->id;
	m.hello.rank = h->rank;
	m.hello.n_ranks = h->n_ranks;
	m.hello.keepalive_ms =
		(uint32_t)(f->settings.keepalive / KVS_NSEC_PER_MSEC);
	m.hello.worker = s->caps & KVS_CAP_PATHS       ? f->n_nodes
			 : s->caps & KVS_CAP_ONE_SIDED ? session_at_once(f)
						       : 0;
	snprintf(m.hello.name, sizeof(m.hello.name), "kvstaged");
	ret = kvs_session_prove(s, &m.hello, &proof);
	if (ret > 0)
		ret = kvs_session_send(s, &proof);
	kvs_session_auth_fini(s);
	return ret ? ret : kvs_session_send(s, &m);
}

/* A token alone is not enough: it must be the same rank that opens it. */
static bool session_owns(const struct kvs_session *owner,
			 const struct kvs_msg_hello *h)
{
	return owner && owner->state == KVS_SESSION_UP && !owner->end_why &&
	       owner->rank == h->rank && owner->instance == h->instance &&
	       !strcmp(owner->peer, h->name);
}

/* A data connection: goes to its node, this session object ends. */
static int session_hello_data(struct kvs_session *s,
			      const struct kvs_msg_hello *h)
{
	struct kvs_front *f = s->f;
	struct kvs_session *owner = kvs_u64map_get(&f->by_id, h->session);
	struct kvs_msg_hello reply = *h;
	struct kvs_msg proof;
	int fd, ret, proven;

	if (!session_owns(owner, h) || h->worker >= f->n_nodes ||
	    (h->paths && h->paths >= session_paths(f, owner))) {
		f->protocol_errors[KVS_PROTO_FOREIGN]++;
		kvs_session_end(s, -ESTALE,
				"data connection without a live session");
		return 0;
	}
	reply.version_min = KVS_WIRE_VERSION_MAX;
	reply.version_max = KVS_WIRE_VERSION_MAX;
	reply.instance = f->instance;
	proven = kvs_session_prove(s, &reply, &proof);
	if (proven < 0)
		return proven;
	fd = kvs_conn_detach(s->c);
	if (fd < 0)
		return fd;
	ret = kvs_node_adopt(&f->nodes[h->worker], fd, owner->id, &reply,
			     proven ? proof.proof.mac : NULL);
	if (ret)
		close(fd);
	/* Detached: closed() will not come for it. */
	kvs_session_auth_fini(s);
	kvs_timer_cancel(&f->timers, &s->timer);
	kvs_list_del(&s->node);
	free(s);
	return 0;
}

int kvs_session_welcome(struct kvs_session *s, const struct kvs_msg_hello *h)
{
	return h->role == KVS_ROLE_DATA ? session_hello_data(s, h)
					: session_hello_control(s, h);
}

static int session_hello(struct kvs_session *s, const struct kvs_msg_hello *h)
{
	char text[128];

	if (h->version_min > KVS_WIRE_VERSION_MAX ||
	    h->version_max < KVS_WIRE_VERSION_MIN) {
		s->f->protocol_errors[KVS_PROTO_VERSION]++;
		snprintf(text, sizeof(text),
			 "protocol versions %u..%u offered, %u..%u spoken here",
			 h->version_min, h->version_max, KVS_WIRE_VERSION_MIN,
			 KVS_WIRE_VERSION_MAX);
		kvs_log(s->trusted ? KVS_LOG_WARN : KVS_LOG_DEBUG, "%s: %s",
			kvs_conn_peer(s->c), text);
		s->failing = KVS_AUTH_VERSION;
		kvs_session_end(s, -EPROTONOSUPPORT,
				"no common protocol version");
		return 0;
	}
	if (s->f->draining) {
		kvs_session_end(s, -ESHUTDOWN, "the daemon is going down");
		return 0;
	}
	if (!s->trusted)
		return kvs_session_challenge(s, h);
	return kvs_session_welcome(s, h);
}

static void session_order(struct kvs_session *s)
{
	s->f->protocol_errors[KVS_PROTO_ORDER]++;
	s->failing = KVS_AUTH_ORDER;
	kvs_session_end(s, -EPROTO, "message out of order");
}

static void layer_span(const struct kvs_layout *l, uint32_t *first,
		       uint32_t *end)
{
	for (uint32_t b = 0; b < l->n_buffers; b++) {
		if (l->buffers[b].layer < *first)
			*first = l->buffers[b].layer;
		if (l->buffers[b].layer + 1u > *end)
			*end = l->buffers[b].layer + 1u;
	}
}

static bool is_cut(const struct kvs_layout *l)
{
	for (uint32_t b = 0; l->cuts && b < l->n_buffers; b++)
		if (l->cuts[b].heads)
			return true;
	return false;
}

/* Could a room be resharded from this rank to that engine, or its group? That
 * it is asked for so is seen when it opens one. */
static int session_reshards(const struct kvs_session *s,
			    const struct kvs_front_engine *e, uint32_t first,
			    uint32_t end, char *err, size_t errlen)
{
	const struct kvs_layout *layouts[KVS_GROUP_MAX];
	uint32_t n = kvs_front_group_layouts(e, layouts);
	bool cut = is_cut(s->layout);
	struct kvs_slice k = {
		.first_layer = first,
		.n_layers = end - first,
		.tp = cut ? kvs_layout_tp(s->layout) : 1,
		.tp_rank = cut ? s->layout->tp_rank : 0,
	};
	struct kvs_reshard_prefill p = { k.tp, s->layout->page_size, 1, &k };
	struct kvs_layout *room;
	uint32_t b = 0;
	int ret;

	/* one whose heads another rank sends has nothing to be compared */
	while (b < s->layout->n_buffers && !kvs_slice_has(&k, s->layout, b))
		b++;
	if (b == s->layout->n_buffers)
		return 0;
	ret = kvs_reshard_layout(layouts, n, &p, true, &room, err, errlen);
	if (ret)
		return ret == -E2BIG ? -EPROTOTYPE : ret;
	ret = kvs_layout_match_slice(s->layout, room, &k, err, errlen);
	free(room);
	return ret;
}

/* Everything this rank has must be known to the engine, and a rank that is
 * alone has to have everything. */
int kvs_session_layouts(const struct kvs_session *s,
			const struct kvs_front_engine *e, char *err,
			size_t errlen)
{
	uint32_t first = UINT32_MAX, end = 0;

	layer_span(s->layout, &first, &end);
	if (s->n_ranks == 1)
		layer_span(e->layout, &first, &end);
	if (*e->group || is_cut(e->layout) || is_cut(s->layout) ||
	    s->layout->page_size != e->layout->page_size)
		return session_reshards(s, e, first, end, err, errlen);
	return kvs_layout_match(s->layout, e->layout, first, end - first, err,
				errlen);
}

static int session_match_engine(struct kvs_session *s,
				const struct kvs_front_engine *e, char *err,
				size_t errlen)
{
	int ret = kvs_session_layouts(s, e, err, errlen);

	return ret ? ret : kvs_capacity_session(s, e, err, errlen);
}

/* Compare with the engines attached now; one that fits is enough. */
static int session_check_layout(struct kvs_session *s, char *err, size_t errlen)
{
	struct kvs_front_engine *e;
	int ret = 0;

	kvs_list_for_each_entry(e, &s->f->engines, node) {
		if (!e->attached || e->dead)
			continue;
		ret = session_match_engine(s, e, err, errlen);
		if (!ret)
			return 0;
	}
	return ret;
}

static struct kvs_slice entry_slice(const struct kvs_entry *x, uint32_t rank)
{
	return (struct kvs_slice){
		.first_layer = x->ranks[rank].first_layer,
		.n_layers = x->ranks[rank].n_layers,
		.tp = x->tp ? x->tp : 1,
		.tp_rank = x->tp_ranks ? x->tp_ranks[rank] : 0,
	};
}

int kvs_session_match(struct kvs_session *s, const struct kvs_front_engine *e,
		      const struct kvs_entry *x, uint32_t rank, char *err,
		      size_t errlen)
{
	const struct kvs_layout *l = x->host ? x->host->layout : e->layout;
	struct kvs_slice k = entry_slice(x, rank);
	uint32_t host = x->host ? x->host->id : 0;
	int ret = 0;

	if (s->matched_engine == e->number && s->matched_host == host &&
	    !memcmp(&s->matched, &k, sizeof(k)))
		return 0;
	/* An engine that came after the handshake. */
	if (s->matched_engine != e->number)
		ret = session_match_engine(s, e, err, errlen);
	if (!ret)
		ret = kvs_layout_match_slice(s->layout, l, &k, err, errlen);
	if (!ret) {
		s->matched_engine = e->number;
		s->matched_host = host;
		s->matched = k;
	}
	return ret;
}

void kvs_session_refuse_layout(struct kvs_session *s, const char *text)
{
	struct kvs_msg e = { .type = KVS_WIRE_ERROR };

	/* The text names the field and both values: it goes out as it is,
	 * before the connection closes. */
	e.error.err = EPROTOTYPE;
	snprintf(e.error.text, sizeof(e.error.text), "%s", text);
	(void)kvs_session_send(s, &e);
	kvs_log_warn("%s rank %u: layout refused: %s", s->peer, s->rank, text);
	s->end_err = -EPROTOTYPE;
	s->end_why = "layout refused";
	kvs_conn_close(s->c, -EPROTOTYPE, true);
}

static int session_layout(struct kvs_session *s, const struct kvs_msg_layout *m)
{
	struct kvs_front *f = s->f;
	struct kvs_msg reply = { .type = KVS_WIRE_LAYOUT, .layout = *m };
	char text[KVS_WIRE_TEXT];

	snprintf(text, sizeof(text), "out of memory");
	/* What we do not know ourselves differs from an engine's, and is told
	 * as a difference where there is one. */
	if (kvs_layout_dup(&m->l, &s->layout) ||
	    session_check_layout(s, text, sizeof(text)) ||
	    kvs_layout_check(&m->l, text, sizeof(text))) {
		kvs_session_refuse_layout(s, text);
		return 0;
	}
	s->state = KVS_SESSION_UP;
	for (unsigned int i = 0; i < f->n_nodes; i++)
		if (kvs_node_session_add(&f->nodes[i], s->id, s->peer, s->rank,
					 s->caps))
			return -ENOMEM;
	session_timer(s, f->settings.keepalive);
	kvs_log_info("%s rank %u of %u attached from %s", s->peer, s->rank,
		     s->n_ranks, kvs_conn_peer(s->c));
	return kvs_session_send(s, &reply);
}

/* Until it is known, nothing is read but what is due, and that has one size:
 * no memory for others, and no waiting for what will be refused. */
static int session_head(struct kvs_conn *c, const struct kvs_frame *fr)
{
	struct kvs_session *s = kvs_conn_user(c);
	bool hello = s->state == KVS_SESSION_HELLO;
	uint32_t want = hello ? KVS_HELLO_FRAME : KVS_RESPONSE_FRAME;

	if (s->end_why || session_is_known(s))
		return 0;
	if (kvs_get16(fr->type) != (hello ? KVS_WIRE_HELLO : KVS_WIRE_RESPONSE))
		session_order(s);
	else if (kvs_get32(fr->len) != want) {
		s->f->protocol_errors[KVS_PROTO_LENGTH]++;
		s->failing = KVS_AUTH_MALFORMED;
		kvs_session_end(s, -EPROTO, "length of the message");
	}
	return 0;
}

static int session_frame(struct kvs_conn *c, const struct kvs_frame *fr)
{
	struct kvs_session *s = kvs_conn_user(c);
	const char *reason;
	struct kvs_msg m;

	if (s->end_why)
		return 0;
	s->heard = kvs_clock_now(s->f->clock);
	if (kvs_wire_decode(fr, kvs_get32(fr->len), s->f->scratch, &m,
			    &reason)) {
		s->f->protocol_errors[kvs_proto_error_of(reason)]++;
		s->failing = KVS_AUTH_MALFORMED;
		kvs_session_end(s, -EPROTO, reason);
		return 0;
	}
	switch (s->state) {
	case KVS_SESSION_HELLO:
		if (m.type == KVS_WIRE_HELLO)
			return session_hello(s, &m.hello);
		break;
	case KVS_SESSION_AUTH:
		if (m.type == KVS_WIRE_RESPONSE)
			return kvs_session_response(s, &m.response);
		break;
	case KVS_SESSION_LAYOUT:
		if (m.type == KVS_WIRE_LAYOUT)
			return session_layout(s, &m.layout);
		break;
	case KVS_SESSION_UP:
		return kvs_session_message(s, &m);
	}
	session_order(s);
	return 0;
}

static void session_stranger_closed(struct kvs_session *s, int err)
{
	if (err == -EPROTO)
		s->failing = KVS_AUTH_MALFORMED;
	else if (s->state == KVS_SESSION_AUTH)
		s->failing = KVS_AUTH_CLOSED;
	else
		s->failing = KVS_AUTH_LEFT;
	kvs_session_auth_failed(s, err == -EPROTO ? "broken frame"
						  : "went away when asked "
						    "for the key");
}

/* Whether it ended in order or was killed is not seen here: the kernel closes
 * for both. That rooms were under way is. */
static void session_went(const struct kvs_session *s, int err)
{
	const struct kvs_entry *x;
	unsigned int n = 0;
	size_t pos = 0;
	char why[64];

	while ((x = kvs_u64map_next(&s->f->rooms, &pos)))
		n += s->rank < x->n_ranks && !strcmp(x->peer, s->peer);
	if (err)
		snprintf(why, sizeof(why), "connection lost (%s)",
			 kvs_err_name(err));
	else
		snprintf(why, sizeof(why),
			 "it closed the connection, or was killed");
	kvs_log(n ? KVS_LOG_NOTICE : KVS_LOG_INFO,
		"%s rank %u: %s; %u of its rooms were not over", s->peer,
		s->rank, why, n);
}

static void session_closed(struct kvs_conn *c, int err)
{
	struct kvs_session *s = kvs_conn_user(c);
	struct kvs_front *f = s->f;

	if (!s->end_why) {
		s->end_err = err;
		s->end_why = err ? "connection lost" : "connection closed";
		if (!s->trusted && err != -ESHUTDOWN)
			session_stranger_closed(s, err);
		else if (session_is_known(s))
			session_went(s, err);
	}
	while (!kvs_list_empty(&s->parked))
		kvs_unpark(kvs_list_first(&s->parked, struct kvs_parked, node));
	session_lost(s);
	if (session_is_known(s)) {
		kvs_u64map_del(&f->by_id, s->id);
		f->n_sessions--;
	}
	kvs_timer_cancel(&f->timers, &s->timer);
	kvs_list_del(&s->node);
	kvs_session_auth_fini(s);
	free(s->layout);
	free(s);
}

static const struct kvs_conn_ops session_ops = {
	.head = session_head,
	.frame = session_frame,
	.closed = session_closed,
};

int kvs_session_accept(struct kvs_conn *c, void *front)
{
	struct kvs_session *s = calloc(1, sizeof(*s));
	struct kvs_front *f = front;

	if (!s)
		return -ENOMEM;
	s->f = f;
	s->c = c;
	s->state = KVS_SESSION_HELLO;
	s->heard = kvs_clock_now(s->f->clock);
	kvs_list_init(&s->parked);
	kvs_list_init(&s->stranger);
	kvs_timer_init(&s->timer, session_timer_fired);
	if (kvs_session_auth_accept(s)) {
		free(s);
		return -EACCES;
	}
	kvs_list_add_tail(&f->sessions, &s->node);
	session_timer(s, f->settings.handshake_timeout);
	kvs_conn_set_ops(c, KVS_CONN_CONTROL, &session_ops, s);
	return 0;
}
