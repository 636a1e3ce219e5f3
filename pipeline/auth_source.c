/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/auth_source.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/list.h"
#include "lib/rng.h"
#include "lib/u64map.h"

#define KVS_SOURCE_LINES 32 /* logged in a window, whoever it is about */

struct source {
	struct kvs_list node; /* least lately failed first; or free */
	uint64_t number;
	uint64_t since; /* ns; its window began */
	uint64_t blocked; /* ns; until then; 0: not */
	uint32_t failures; /* in the window */
	bool told; /* in the window: that it was blocked */
};

struct kvs_auth_sources {
	struct kvs_u64map map;
	struct kvs_list lru;
	uint32_t max;
	uint32_t used;
	uint64_t lines_since; /* ns */
	uint32_t lines;
	struct source v[];
};

int kvs_auth_sources_create(uint32_t max, uint64_t secret,
			    struct kvs_auth_sources **ret)
{
	struct kvs_auth_sources *t =
		calloc(1, sizeof(*t) + max * sizeof(t->v[0]));

	if (!t)
		return -ENOMEM;
	t->max = max;
	kvs_list_init(&t->lru);
	kvs_u64map_init(&t->map, secret);
	*ret = t;
	return 0;
}

void kvs_auth_sources_destroy(struct kvs_auth_sources *t)
{
	if (!t)
		return;
	kvs_u64map_fini(&t->map);
	free(t);
}

uint32_t kvs_auth_sources_used(const struct kvs_auth_sources *t)
{
	return t->used;
}

/* The host part of "host:port", without brackets and scope. */
static void host_of(const char *peer, char *buf, size_t len)
{
	const char *colon = strrchr(peer, ':');
	size_t n = colon ? (size_t)(colon - peer) : strlen(peer);

	if (n && peer[0] == '[') {
		peer++;
		n = strcspn(peer, "]%");
	}
	snprintf(buf, len, "%.*s", (int)n, peer);
}

uint64_t kvs_auth_source(const char *peer)
{
	struct in6_addr a6;
	struct in_addr a4;
	uint64_t v = 0;
	char host[128];

	host_of(peer, host, sizeof(host));
	if (inet_pton(AF_INET, host, &a4) == 1) {
		/* no network of IPv6 has these upper bits */
		v = 0xffffULL << 32 | ntohl(a4.s_addr);
	} else if (inet_pton(AF_INET6, host, &a6) == 1) {
		for (int i = 0; i < 8; i++)
			v = v << 8 | a6.s6_addr[i];
	} else {
		for (const char *c = host; *c; c++)
			v = kvs_mix64(v ^ (unsigned char)*c);
	}
	return v ? v : 1;
}

bool kvs_auth_source_blocked(const struct kvs_auth_sources *t, uint64_t source,
			     uint64_t now)
{
	const struct source *s = kvs_u64map_get(&t->map, source);

	return s && s->blocked > now;
}

/* Somebody's place: a free one, or of who has not failed for longest. */
static struct source *take(struct kvs_auth_sources *t, uint64_t number)
{
	struct source *s;

	if (t->used < t->max) {
		s = &t->v[t->used];
		kvs_list_init(&s->node);
		t->used++;
	} else {
		s = kvs_list_first(&t->lru, struct source, node);
		kvs_u64map_del(&t->map, s->number);
		kvs_list_del(&s->node);
	}
	*s = (struct source){ .number = number };
	kvs_list_init(&s->node);
	if (kvs_u64map_add(&t->map, number, s)) {
		/* no memory: it is counted alone, and first to go */
		s->number = 0;
		kvs_list_add(&t->lru, &s->node);
		return NULL;
	}
	return s;
}

static bool may_tell(struct kvs_auth_sources *t, uint64_t now,
		     const struct kvs_auth_limits *l)
{
	if (!t->lines || now - t->lines_since >= l->window) {
		t->lines_since = now;
		t->lines = 0;
	}
	if (t->lines > KVS_SOURCE_LINES)
		return false;
	t->lines++;
	return true;
}

enum kvs_auth_tell kvs_auth_source_failed(struct kvs_auth_sources *t,
					  uint64_t source, uint64_t now,
					  const struct kvs_auth_limits *l,
					  bool spare)
{
	enum kvs_auth_tell tell = KVS_AUTH_TELL_NOTHING;
	struct source *s = kvs_u64map_get(&t->map, source);

	if (!s)
		s = take(t, source);
	if (!s)
		return KVS_AUTH_TELL_NOTHING;
	kvs_list_del(&s->node);
	kvs_list_add_tail(&t->lru, &s->node);
	if (!s->failures || now - s->since >= l->window) {
		s->since = now;
		s->failures = 0;
		s->told = false;
		tell = KVS_AUTH_TELL_FAILURE;
	}
	s->failures++;
	if (l->failures && s->failures >= l->failures && spare) {
		if (s->failures == l->failures)
			tell = KVS_AUTH_TELL_SPARED;
	} else if (l->failures && s->failures >= l->failures) {
		/* the block is over, or was not for this one */
		if (s->blocked <= now)
			s->blocked = now + l->backoff;
		if (!s->told)
			tell = KVS_AUTH_TELL_BLOCKED;
		s->told = true;
	}
	if (tell == KVS_AUTH_TELL_NOTHING)
		return tell;
	if (!may_tell(t, now, l))
		return KVS_AUTH_TELL_NOTHING;
	return t->lines > KVS_SOURCE_LINES ? KVS_AUTH_TELL_LAST : tell;
}
