/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: sources of failed handshakes
 *
 * How often each address has failed lately: who fails too often is not heard
 * for a while, and no more than a few lines are logged about it. A table of
 * fixed size; who has not failed for longest is forgotten first, so that an
 * attacker with many addresses gets no memory, only his memory of himself
 * lost. An IPv6 source is its /64 network: one host has all of that.
 *
 * One owner thread; its clock is the caller's.
 */
#ifndef KVS_PIPELINE_AUTH_SOURCE_H
#define KVS_PIPELINE_AUTH_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

struct kvs_auth_sources;

struct kvs_auth_limits {
	uint32_t failures; /* in a window, then it is blocked; 0: never */
	uint64_t window; /* ns */
	uint64_t backoff; /* ns, blocked */
};

/* @max: sources remembered, not 0. @secret: for the hash table. */
int kvs_auth_sources_create(uint32_t max, uint64_t secret,
			    struct kvs_auth_sources **ret);
/* NULL ok. */
void kvs_auth_sources_destroy(struct kvs_auth_sources *t);

/* Number of a source, never 0, by the text of its address
 * (kvs_conn_peer()): "192.0.2.7:1234", "[2001:db8::1]:99", or any other. */
uint64_t kvs_auth_source(const char *peer);

/* Is it not to be heard now? */
bool kvs_auth_source_blocked(const struct kvs_auth_sources *t, uint64_t source,
			     uint64_t now);

enum kvs_auth_tell {
	KVS_AUTH_TELL_NOTHING, /* only count it */
	KVS_AUTH_TELL_FAILURE, /* the first of its window: log it */
	KVS_AUTH_TELL_BLOCKED, /* that was one too many: log that */
	KVS_AUTH_TELL_SPARED, /* likewise, but it is heard all the same */
	KVS_AUTH_TELL_LAST, /* log that no more will be logged for a while */
};

/* It has failed; what to log. Lines about all sources are few as well.
 * @spare: it is not to be blocked, whatever it does; once it is not spared any
 * more, its next failure counts with those that it had. */
enum kvs_auth_tell kvs_auth_source_failed(struct kvs_auth_sources *t,
					  uint64_t source, uint64_t now,
					  const struct kvs_auth_limits *l,
					  bool spare);
/* Sources remembered now. */
uint32_t kvs_auth_sources_used(const struct kvs_auth_sources *t);

#endif /* KVS_PIPELINE_AUTH_SOURCE_H */
