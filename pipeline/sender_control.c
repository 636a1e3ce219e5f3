/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/err.h"
#include "lib/log.h"
#include "pipeline/sender_internal.h"
#include "pipeline/wire_text.h"

#define KVS_SEND_KEEPALIVE_MS 5000 /* what we ask for; the daemon decides */
#define KVS_SEND_KEEPALIVE_MIN (100 * KVS_NSEC_PER_MSEC)
#define KVS_SEND_KEEPALIVES_LOST 3 /* silent intervals: gone */
#define KVS_SEND_RETRY_MIN (10 * KVS_NSEC_PER_MSEC)
#define KVS_SEND_RETRY_MAX (500 * KVS_NSEC_PER_MSEC)
#define HUNG_UP                                                \
	": it hangs up without a word; it may not hear this "  \
	"address for a while (auth.backoff), or have as many " \
	"connections as it takes (listen.max_connections)"

static const char *state_waits_for(enum kvs_sender_state st)
{
	switch (st) {
	case KVS_SENDER_CONNECTING:
		return "a connection";
	case KVS_SENDER_HELLO:
		return "an answer to HELLO";
	case KVS_SENDER_LAYOUT:
		return "an answer to LAYOUT";
	case KVS_SENDER_UP:
	case KVS_SENDER_GONE:
		break;
	}
	return "nothing";
}

/* The one way to GONE. @err positive. */
static void gone(struct kvs_sender *s, int err, const char *text)
{
	char why[512];

	if (s->state == KVS_SENDER_GONE)
		return;
	s->state = KVS_SENDER_GONE;
	atomic_store(&s->gone, true);
	kvs_timer_cancel(&s->timers, &s->control_timer);
	kvs_timer_cancel(&s->timers, &s->keepalive_timer);
	if (s->control)
		kvs_conn_close(s->control, -err, false);
	snprintf(why, sizeof(why), "kvstaged at %s: %s", s->daemon, text);
	kvs_log_debug("sender %s/%u: %s", s->peer, s->rank, why);
	kvs_sender_agree(s, -err, why);
	kvs_send_room_fail_all(s, ECONNRESET, why, false);
	kvs_sender_data_close(s, -ECONNRESET, false);
}

int kvs_sender_say_on(struct kvs_sender *s, struct kvs_conn *c,
		      const struct kvs_msg *m)
{
	int r;

	r = kvs_wire_encode(m, s->frame, sizeof(s->frame));
	if (r >= 0)
		r = kvs_conn_send(c, (struct kvs_frame *)s->frame);
	if (r) {
		kvs_log_debug("sender %s/%u: %s not sent: %s", s->peer, s->rank,
			      kvs_wire_type_name(m->type), kvs_err_name(r));
		kvs_conn_close(c, r, false);
	}
	return r;
}

int kvs_sender_say(struct kvs_sender *s, const struct kvs_msg *m)
{
	if (!s->control || s->state == KVS_SENDER_GONE)
		return -EPIPE;
	if (s->lose && s->lose(s->lose_arg, m))
		return 0;
	return kvs_sender_say_on(s, s->control, m);
}

void kvs_sender_hello(struct kvs_sender *s, struct kvs_msg *ret,
		      unsigned int role, uint32_t worker, uint32_t path)
{
	*ret = (struct kvs_msg){
		.type = KVS_WIRE_HELLO,
		.hello = {
			.version_min = KVS_WIRE_VERSION_MIN,
			.version_max = KVS_WIRE_VERSION_MAX,
			.role = (uint16_t)role,
			.caps = KVS_CAP_DRAIN_ACK | KVS_CAP_GENERATION |
				KVS_CAP_CRC32C | KVS_CAP_ADLER32 |
				(kvs_transport_one_sided(s->t) ?
					 KVS_CAP_ONE_SIDED | KVS_CAP_PATHS :
					 0),
			.instance = s->instance,
			.session = role == KVS_ROLE_DATA ? s->session : 0,
			.rank = s->rank,
			.n_ranks = s->n_ranks,
			.worker = worker,
			.paths = s->paths ? (uint16_t)path : 0,
			.keepalive_ms = role == KVS_ROLE_CONTROL ?
						KVS_SEND_KEEPALIVE_MS :
						0,
		},
	};
	memcpy(ret->hello.name, s->peer, sizeof(ret->hello.name));
}

static void keepalive_due(struct kvs_timer *t)
{
	struct kvs_sender *s =
		kvs_container_of(t, struct kvs_sender, keepalive_timer);
	uint64_t now = kvs_sender_now(s);
	struct kvs_msg m = {
		.type = KVS_WIRE_KEEPALIVE,
		.keepalive = { .seq = ++s->keepalive_seq },
	};

	if (now - s->heard_at > KVS_SEND_KEEPALIVES_LOST * s->keepalive) {
		gone(s, ETIMEDOUT, "it does not answer KEEPALIVE");
		return;
	}
	if (kvs_sender_say(s, &m))
		return;
	if (kvs_timer_set(&s->timers, t, now + s->keepalive))
		gone(s, ENOMEM, "out of memory");
}

static int got_hello(struct kvs_sender *s, const struct kvs_msg_hello *h)
{
	struct kvs_msg m = { .type = KVS_WIRE_LAYOUT };
	char text[256];
	int r;

	if (h->version_min != h->version_max ||
	    h->version_min < KVS_WIRE_VERSION_MIN ||
	    h->version_min > KVS_WIRE_VERSION_MAX) {
		snprintf(
			text, sizeof(text),
			"it speaks protocol version %u to %u, this side %d to %d",
			h->version_min, h->version_max, KVS_WIRE_VERSION_MIN,
			KVS_WIRE_VERSION_MAX);
		gone(s, EPROTONOSUPPORT, text);
		return 0;
	}
	if (!(h->caps & KVS_CAP_GENERATION)) {
		gone(s, EPROTONOSUPPORT, "it does not carry generations");
		return 0;
	}
	if (h->role != KVS_ROLE_CONTROL || !h->session)
		return -EPROTO;
	s->session = h->session;
	s->digest = kvs_caps_digest(h->caps);
	s->one_sided = h->caps & KVS_CAP_ONE_SIDED &&
		       kvs_transport_one_sided(s->t);
	if (s->one_sided && h->worker) {
		/* a key of this daemon works on one connection */
		s->at_once = h->worker;
		s->paths = h->caps & KVS_CAP_PATHS && h->paths;
		s->slots = s->paths ? h->paths : 1;
	}
	r = kvs_sender_source_begin(s, text, sizeof(text));
	if (r) {
		gone(s, -r, text);
		return 0;
	}
	s->keepalive = (uint64_t)h->keepalive_ms * KVS_NSEC_PER_MSEC;
	if (s->keepalive && s->keepalive < KVS_SEND_KEEPALIVE_MIN)
		s->keepalive = KVS_SEND_KEEPALIVE_MIN;
	s->state = KVS_SENDER_LAYOUT;
	m.layout.l = *s->layout;
	m.layout.l.size = sizeof(m.layout.l);
	kvs_sender_say(s, &m);
	return 0;
}

static int got_layout(struct kvs_sender *s)
{
	s->state = KVS_SENDER_UP;
	kvs_timer_cancel(&s->timers, &s->control_timer);
	for (uint32_t i = 0; i < s->at_once; i++)
		if (!kvs_send_worker_get(s, i))
			return -ENOMEM;
	if (s->keepalive && kvs_timer_set(&s->timers, &s->keepalive_timer,
					  s->heard_at + s->keepalive))
		return -ENOMEM;
	kvs_sender_agree(s, 0, "");
	return 0;
}

static int got_keepalive(struct kvs_sender *s,
			 const struct kvs_msg_keepalive *k)
{
	struct kvs_msg m = {
		.type = KVS_WIRE_KEEPALIVE,
		.keepalive = { .seq = k->seq, .reply = 1 },
	};

	if (!k->reply)
		kvs_sender_say(s, &m);
	return 0;
}

static void got_error(struct kvs_sender *s, const struct kvs_msg_error *e)
{
	/* without text, the errno has to do */
	if (e->text[0])
		gone(s, (int)e->err, e->text);
	else
		gone(s, (int)e->err, kvs_err_name((int)e->err));
}

static int got_room_msg(struct kvs_sender *s, const struct kvs_msg *m)
{
	switch (m->type) {
	case KVS_WIRE_GRANT:
		if (m->grant.rank != s->rank)
			return -EPROTO;
		kvs_send_room_granted(s, &m->grant);
		return 0;
	case KVS_WIRE_REFUSE:
		if (m->refuse.rank != s->rank)
			return -EPROTO;
		kvs_send_room_refused(s, &m->refuse);
		return 0;
	case KVS_WIRE_COMPLETE:
		if (m->complete.rank != s->rank)
			return -EPROTO;
		return kvs_send_room_completed(s, &m->complete);
	case KVS_WIRE_ABORT:
		if (m->abort.rank != s->rank)
			return -EPROTO;
		kvs_send_room_aborted(s, &m->abort);
		return 0;
	case KVS_WIRE_HELLO:
	case KVS_WIRE_LAYOUT:
	case KVS_WIRE_OPEN:
	case KVS_WIRE_CHUNK:
	case KVS_WIRE_CHUNK_DONE:
	case KVS_WIRE_LAST:
	case KVS_WIRE_ABORT_ACK:
	case KVS_WIRE_ABORT_NAK:
	case KVS_WIRE_ERROR:
	case KVS_WIRE_KEEPALIVE:
	case KVS_WIRE_CHALLENGE:
	case KVS_WIRE_RESPONSE:
	case KVS_WIRE_PROOF:
	case KVS_WIRE_TYPE_MAX:
		break;
	}
	return -EPROTO;
}

static int control_frame(struct kvs_conn *c, const struct kvs_frame *f)
{
	struct kvs_sender *s = kvs_conn_user(c);
	const char *reason;
	struct kvs_msg m;
	int r;

	r = kvs_wire_decode(f, kvs_get32(f->len), &s->scratch, &m, &reason);
	if (r) {
		snprintf(s->lost_text, sizeof(s->lost_text),
			 "it sent a message that is not valid (%s)", reason);
		return r;
	}
	s->heard = true;
	s->heard_at = kvs_sender_now(s);
	if (m.type == KVS_WIRE_ERROR) {
		got_error(s, &m.error);
		return 0;
	}
	if (m.type == KVS_WIRE_KEEPALIVE)
		return got_keepalive(s, &m.keepalive);

	r = -EPROTO;
	switch (s->state) {
	case KVS_SENDER_HELLO:
		r = kvs_sender_greeted(s, c, &s->auth, &m, &reason);
		if (r > 0)
			r = got_hello(s, &m.hello);
		else if (r == -EACCES) {
			gone(s, EACCES, reason);
			r = 0;
		}
		break;
	case KVS_SENDER_LAYOUT:
		if (m.type == KVS_WIRE_LAYOUT)
			r = got_layout(s);
		break;
	case KVS_SENDER_UP:
		r = got_room_msg(s, &m);
		break;
	case KVS_SENDER_GONE:
		r = 0;
		break;
	case KVS_SENDER_CONNECTING:
		break;
	}
	if (r == -EPROTO)
		snprintf(s->lost_text, sizeof(s->lost_text),
			 "it sent %s out of place", kvs_wire_type_name(m.type));
	return r;
}

static void control_opened(struct kvs_conn *c)
{
	struct kvs_sender *s = kvs_conn_user(c);

	s->state = KVS_SENDER_HELLO;
	s->heard = false;
	s->heard_at = kvs_sender_now(s);
	(void)kvs_sender_greet(s, c, &s->auth, KVS_ROLE_CONTROL, 0, 0);
}

/* It may not be up yet: try again until the time is over. */
static void connect_failed(struct kvs_sender *s, int err)
{
	uint64_t at;

	s->lost_err = -err;
	if (s->stopping) {
		gone(s, ECANCELED, "the sender is shutting down");
		return;
	}
	at = kvs_sender_now(s) + s->backoff;
	s->backoff *= 2;
	if (s->backoff > KVS_SEND_RETRY_MAX)
		s->backoff = KVS_SEND_RETRY_MAX;
	if (at > s->connect_until)
		at = s->connect_until;
	if (kvs_timer_set(&s->timers, &s->control_timer, at))
		gone(s, ENOMEM, "out of memory");
}

static void control_closed(struct kvs_conn *c, int err)
{
	struct kvs_sender *s = kvs_conn_user(c);
	char text[KVS_SEND_TEXT];

	s->control = NULL;
	switch (s->state) {
	case KVS_SENDER_CONNECTING:
		connect_failed(s, err ? err : -ECONNRESET);
		return;
	case KVS_SENDER_HELLO:
		if (!s->heard && (!err || err == -ECONNRESET)) {
			/* as if nobody listened: not now, perhaps soon */
			s->hung_up = true;
			s->state = KVS_SENDER_CONNECTING;
			connect_failed(s, err ? err : -ECONNRESET);
			return;
		}
		break;
	case KVS_SENDER_LAYOUT:
	case KVS_SENDER_UP:
		break;
	case KVS_SENDER_GONE:
		return;
	}
	if (s->lost_text[0])
		snprintf(text, sizeof(text), "%s", s->lost_text);
	else if (err)
		snprintf(text, sizeof(text), "control connection lost: %s",
			 kvs_err_name(err));
	else
		snprintf(text, sizeof(text),
			 "it closed the control connection");
	gone(s, err ? -err : ECONNRESET, text);
}

static const struct kvs_conn_ops control_ops = {
	.opened = control_opened,
	.frame = control_frame,
	.closed = control_closed,
};

static void control_connect(struct kvs_sender *s)
{
	int r;

	if (kvs_timer_set(&s->timers, &s->control_timer, s->connect_until)) {
		gone(s, ENOMEM, "out of memory");
		return;
	}
	s->hung_up = false;
	r = kvs_transport_connect(s->t, &s->addr, KVS_CONN_CONTROL,
				  &control_ops, s, &s->control);
	if (r) {
		s->control = NULL;
		connect_failed(s, r);
	}
}

static void control_due(struct kvs_timer *t)
{
	struct kvs_sender *s =
		kvs_container_of(t, struct kvs_sender, control_timer);
	char text[256];

	if (kvs_sender_now(s) < s->connect_until) {
		control_connect(s);
		return;
	}
	if (s->state == KVS_SENDER_CONNECTING && s->lost_err) {
		snprintf(text, sizeof(text), "cannot connect: %s%s",
			 kvs_err_name(s->lost_err), s->hung_up ? HUNG_UP : "");
		gone(s, s->lost_err, text);
		return;
	}
	snprintf(text, sizeof(text), "no sign of %s in time",
		 state_waits_for(s->state));
	gone(s, ETIMEDOUT, text);
}

void kvs_sender_control_start(struct kvs_sender *s)
{
	s->state = KVS_SENDER_CONNECTING;
	s->backoff = KVS_SEND_RETRY_MIN;
	s->connect_until = kvs_sender_now(s) + s->connect_timeout;
	kvs_timer_init(&s->control_timer, control_due);
	kvs_timer_init(&s->keepalive_timer, keepalive_due);
	control_connect(s);
}

void kvs_sender_control_stop(struct kvs_sender *s)
{
	if (s->state == KVS_SENDER_GONE)
		return;
	s->state = KVS_SENDER_GONE;
	kvs_timer_cancel(&s->timers, &s->control_timer);
	kvs_timer_cancel(&s->timers, &s->keepalive_timer);
	if (s->control)
		kvs_conn_close(s->control, 0, true);
}
