/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's process of kvstage-bench abort. See bench_abort.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/log.h"
#include "pipeline/service.h"
#include "tools/bench_abort.h"

struct core {
	struct kvs_topology *topo;
	struct kvs_service *svc;
	struct kvs_snapshot *snap;
};

static int set(struct kvs_settings *s, const char *name, const char *value,
	       char *why)
{
	return kvs_settings_set(s, name, value, why, KVS_ABORT_WHY_MAX);
}

static int settings(const struct kvs_abort_daemon_opts *o,
		    struct kvs_settings *s, char *why)
{
	const char *const fixed[][2] = {
		{ "listen.address", "127.0.0.1:0" },
		/* no larger than asked for: one room */
		{ "pool.page_size", "4K" },
		{ "pool.strict", "no" },
		{ "hold.require_ack", "yes" },
		/* a writer that stalls shall be waited for but shortly */
		{ "hold.check", "warn" },
		{ "engine.slots", "64" },
		{ "tcp.engine", o->engine },
	};
	char text[128];
	int r = 0;

	kvs_settings_init(s);
	for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]) && !r; i++)
		r = set(s, fixed[i][0], fixed[i][1], why);
	snprintf(text, sizeof(text), "%llu", (unsigned long long)o->pool);
	if (!r)
		r = set(s, "pool.size", text, why);
	snprintf(text, sizeof(text), "%llu",
		 (unsigned long long)o->extent_tokens);
	if (!r)
		r = set(s, "extent.tokens", text, why);
	snprintf(text, sizeof(text), "%lluns",
		 (unsigned long long)o->hold_timeout);
	if (!r)
		r = set(s, "hold.timeout", text, why);
	snprintf(text, sizeof(text), "%s/engine.sock", o->dir);
	if (!r)
		r = set(s, "engine.socket", text, why);
	return r ? r : kvs_settings_check(s, why, KVS_ABORT_WHY_MAX);
}

static void down(struct core *c)
{
	kvs_service_destroy(c->svc);
	kvs_topology_destroy(c->topo);
	free(c->snap);
}

static int up(struct core *c, const struct kvs_abort_daemon_opts *o, char *why)
{
	struct kvs_settings s;
	int r = settings(o, &s, why);

	if (r)
		return r;
	c->snap = calloc(1, sizeof(*c->snap));
	if (!c->snap)
		return -ENOMEM;
	r = kvs_topology_load(NULL, &c->topo);
	if (r)
		return r;
	return kvs_service_create(&s, c->topo, NULL, NULL, &c->svc, why,
				  KVS_ABORT_WHY_MAX);
}

static void add_worker(const struct kvs_worker_snapshot *w,
		       struct kvs_abort_answer *ret)
{
	const struct kvs_pool_account *a = &w->pools[0].account;

	for (int o = 0; o < KVS_DRAIN_OUTCOME_MAX; o++)
		for (int p = 0; p < KVS_PROOF_MAX; p++)
			ret->drains[o][p] += w->stats.drains.total[o][p];
	for (int i = 0; i < KVS_ACK_IGNORED_MAX; i++)
		ret->acks_ignored += w->stats.drains.ack_ignored[i];
	ret->drain_n += w->stats.drain_seconds.count;
	ret->drain_ns += w->stats.drain_seconds.sum;
	ret->late_bytes += w->stats.late_bytes;
	ret->held +=
		a->bytes[KVS_EXTENT_HELD] + a->bytes[KVS_EXTENT_QUARANTINED];
	ret->used += a->configured - a->bytes[KVS_EXTENT_FREE];
	ret->data_connections += w->data_connections;
}

static void find_room(struct core *c, uint64_t room,
		      struct kvs_abort_answer *ret)
{
	struct kvs_room_info *v = NULL;
	int n = room ? kvs_service_rooms(c->svc, &v) : 0;

	for (int i = 0; i < n; i++) {
		if (v[i].room != room)
			continue;
		ret->found = true;
		ret->expected = v[i].expected;
		ret->received = v[i].received;
		ret->parties = v[i].parties;
	}
	if (n > 0)
		free(v);
}

static void answer(struct core *c, uint64_t room, struct kvs_abort_answer *ret)
{
	memset(ret, 0, sizeof(*ret));
	/* The room first: what is counted after it has all that it had. */
	find_room(c, room, ret);
	kvs_service_snapshot(c->svc, c->snap);
	ret->port = kvs_service_port(c->svc);
	snprintf(ret->engine, sizeof(ret->engine), "%s", c->snap->tcp_engine);
	for (unsigned int i = 0; i < c->snap->n_workers; i++)
		add_worker(&c->snap->workers[i], ret);
}

int kvs_abort_daemon(int fd, const struct kvs_abort_daemon_opts *o)
{
	struct kvs_abort_question q;
	struct kvs_abort_answer a;
	struct core c = { 0 };
	char why[KVS_ABORT_WHY_MAX] = "";
	int r = up(&c, o, why);

	if (!r)
		answer(&c, 0, &a);
	else
		memset(&a, 0, sizeof(a));
	a.err = r;
	snprintf(a.why, sizeof(a.why), "%s", why[0] ? why : strerror(-r));
	/* The conductor's end is its request to stop. */
	while (!kvs_abort_say(fd, &a, sizeof(a)) && !r &&
	       !kvs_abort_hear(fd, -1, &q, sizeof(q)))
		answer(&c, q.room, &a);
	down(&c);
	return r ? EXIT_FAILURE : EXIT_SUCCESS;
}
