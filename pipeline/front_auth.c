/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may connect, where there is a key: a connection is a stranger from
 * accept on, until it has shown that it knows one (auth.h). Strangers are few
 * (auth.pending), have no session, and those that fail cost a table entry and
 * maybe a line in the log (auth_source.h). They have places of their own, so
 * that they never take those of ranks, nor the way of a rank's data
 * connections through here.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/log.h"
#include "lib/units.h"
#include "pipeline/front.h"

#define KVS_REFUSED_EVERY (60 * KVS_NSEC_PER_SEC)

/* Healthy ranks must not suffer from one beside them that has a wrong key. */
static bool has_session(const struct kvs_front *f, uint64_t source)
{
	const struct kvs_session *s;

	kvs_list_for_each_entry(s, &f->sessions, node)
		if (s->source == source && s->state == KVS_SESSION_UP &&
		    !s->end_why)
			return true;
	return false;
}

static void no_stranger(struct kvs_session *s)
{
	if (kvs_list_empty(&s->stranger))
		return;
	kvs_list_del(&s->stranger);
	s->f->n_strangers--;
}

static uint32_t strangers_max(const struct kvs_settings *set)
{
	return set->listen_max_connections / 2 +
	       set->listen_max_connections % 2;
}

unsigned int kvs_front_connections(const struct kvs_settings *set)
{
	return set->listen_max_connections +
	       (*set->auth_key_file ? strangers_max(set) : 0);
}

bool kvs_session_place(struct kvs_session *s, const struct kvs_msg_hello *h)
{
	struct kvs_msg m = { .type = KVS_WIRE_ERROR, .error.err = EAGAIN };
	struct kvs_front *f = s->f;
	const struct kvs_session *o;
	uint32_t n = 0;

	/* without a key the transport counts them, as they come */
	if (!f->keys.n)
		return true;
	kvs_list_for_each_entry(o, &f->sessions, node)
		n += o != s && o->trusted && !o->end_why &&
		     (o->rank != h->rank || strcmp(o->peer, h->name) != 0);
	if (n < f->settings.listen_max_connections)
		return true;
	f->refused++;
	snprintf(m.error.text, sizeof(m.error.text),
		 "no place: listen.max_connections = %u ranks are connected",
		 f->settings.listen_max_connections);
	kvs_log_debug("%s rank %u (%s): %s", h->name, h->rank,
		      kvs_conn_peer(s->c), m.error.text);
	(void)kvs_session_send(s, &m);
	s->end_err = -EAGAIN;
	s->end_why = "no place";
	kvs_conn_close(s->c, -EAGAIN, true);
	return false;
}

void kvs_front_tell_refused(struct kvs_front *f)
{
	struct kvs_transport_stats st;
	uint64_t n, now;

	kvs_transport_stats(f->transport, &st);
	n = st.refused_limit + f->refused;
	if (n == f->refused_told)
		return;
	now = kvs_clock_now(f->clock);
	if (f->refused_at && now - f->refused_at < KVS_REFUSED_EVERY)
		return;
	kvs_log_warn("listen.max_connections = %u are connected: %llu more "
		     "refused; further ones are only counted for a minute",
		     f->settings.listen_max_connections,
		     (unsigned long long)(n - f->refused_told));
	f->refused_told = n;
	f->refused_at = now;
}

/* Room for one more. */
static void end_oldest(struct kvs_front *f)
{
	uint32_t max = strangers_max(&f->settings);
	struct kvs_session *s;

	if (max > f->settings.auth_pending)
		max = f->settings.auth_pending;
	if (f->n_strangers < max)
		return;
	s = kvs_list_first(&f->strangers, struct kvs_session, stranger);
	no_stranger(s);
	if (!s->end_why) {
		f->auth_failures[KVS_AUTH_CROWDED]++;
		s->end_err = -EAGAIN;
		s->end_why = "cut off: too many connections that have not "
			     "shown a key";
	}
	kvs_conn_close(s->c, -EAGAIN, false);
}

int kvs_session_auth_accept(struct kvs_session *s)
{
	struct kvs_front *f = s->f;

	s->source = kvs_auth_source(kvs_conn_peer(s->c));
	s->trusted = !f->keys.n;
	if (s->trusted)
		return 0;
	if (kvs_auth_source_blocked(f->sources, s->source,
				    kvs_clock_now(f->clock)) &&
	    !has_session(f, s->source)) {
		f->auth_failures[KVS_AUTH_BLOCKED]++;
		return -EACCES;
	}
	end_oldest(f);
	kvs_list_add_tail(&f->strangers, &s->stranger);
	f->n_strangers++;
	return 0;
}

int kvs_session_challenge(struct kvs_session *s, const struct kvs_msg_hello *h)
{
	struct kvs_auth_attempt *a = calloc(1, sizeof(*a));
	struct kvs_msg m;
	int ret;

	if (!a)
		return -ENOMEM;
	s->attempt = a;
	a->hello = *h;
	ret = kvs_auth_challenge(h, &a->x, &m);
	if (ret)
		return ret;
	s->state = KVS_SESSION_AUTH;
	return kvs_session_send(s, &m);
}

int kvs_session_response(struct kvs_session *s,
			 const struct kvs_msg_response *r)
{
	struct kvs_auth_attempt *a = s->attempt;
	struct kvs_front *f = s->f;
	int key = kvs_auth_verify(&f->keys, &a->x, r);

	if (key < 0) {
		s->failing = KVS_AUTH_CODE;
		kvs_session_end(s, -EACCES,
				"not authenticated: the key is not accepted "
				"here");
		return 0;
	}
	a->key = (unsigned int)key;
	f->auth_handshakes[key]++;
	s->trusted = true;
	no_stranger(s);
	return kvs_session_welcome(s, &a->hello);
}

int kvs_session_prove(struct kvs_session *s, const struct kvs_msg_hello *answer,
		      struct kvs_msg *ret)
{
	const struct kvs_auth_attempt *a = s->attempt;
	int err;

	if (!a)
		return 0;
	*ret = (struct kvs_msg){ .type = KVS_WIRE_PROOF };
	err = kvs_auth_daemon_code(s->f->keys.key[a->key], &a->x, answer,
				   ret->proof.mac);
	return err ? err : 1;
}

void kvs_session_auth_failed(struct kvs_session *s, const char *why)
{
	struct kvs_front *f = s->f;
	const struct kvs_auth_limits l = {
		.failures = f->settings.auth_failures,
		.window = f->settings.auth_window,
		.backoff = f->settings.auth_backoff,
	};
	const char *peer = kvs_conn_peer(s->c);
	char time[KVS_UNITS_BUF];

	f->auth_failures[s->failing]++;
	if (s->failing == KVS_AUTH_LEFT)
		return;
	switch (kvs_auth_source_failed(f->sources, s->source,
				       kvs_clock_now(f->clock), &l,
				       has_session(f, s->source))) {
	case KVS_AUTH_TELL_FAILURE:
		kvs_log_warn("%s: no handshake (%s): %s; more of this address "
			     "are only counted for a while",
			     peer, kvs_auth_failure_name[s->failing], why);
		return;
	case KVS_AUTH_TELL_BLOCKED:
		kvs_log_warn("%s: %u handshakes failed, at last (%s): %s; "
			     "this address is not heard for %s",
			     peer, l.failures,
			     kvs_auth_failure_name[s->failing], why,
			     kvs_format_duration(l.backoff, time));
		return;
	case KVS_AUTH_TELL_SPARED:
		kvs_log_warn("%s: %u handshakes failed, at last (%s): %s; "
			     "this address is still heard, as a rank from "
			     "there is connected",
			     peer, l.failures,
			     kvs_auth_failure_name[s->failing], why);
		return;
	case KVS_AUTH_TELL_LAST:
		kvs_log_warn("many addresses fail to shake hands: no more of "
			     "them are named for a while");
		return;
	case KVS_AUTH_TELL_NOTHING:
		break;
	}
	kvs_log_debug("%s: no handshake (%s): %s", peer,
		      kvs_auth_failure_name[s->failing], why);
}

void kvs_session_auth_fini(struct kvs_session *s)
{
	no_stranger(s);
	free(s->attempt);
	s->attempt = NULL;
}
