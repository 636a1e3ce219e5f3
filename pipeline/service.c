/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/service.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "lib/assert.h"
#include "lib/log.h"
#include "lib/random.h"
#include "lib/units.h"
#include "pipeline/descriptors.h"
#include "pipeline/front.h"
#include "pipeline/service_pools.h"

struct kvs_service {
	struct kvs_front front;
	struct kvs_node nodes[KVS_NODES_MAX];
	uint64_t secret;
	unsigned int port;
	const char *tcp_engine;
};

/* Every node says the same on most machines: once, then. */
static void tell_network(const struct kvs_service *s,
			 const struct kvs_service_events *ev)
{
	const struct kvs_node *v = s->nodes;
	unsigned int n = s->front.n_nodes;
	unsigned int same = 1;

	if (!ev || !ev->network)
		return;
	while (same < n && !strcmp(v[same].network, v[0].network))
		same++;
	for (unsigned int i = 0; i < (same == n ? 1 : n); i++)
		ev->network(ev->arg, same == n ? -1 : v[i].numa, v[i].network);
}

static int service_nodes(struct kvs_service *s, struct kvs_topology *topo,
			 const struct kvs_service_events *ev, char *err,
			 size_t errlen)
{
	struct kvs_front *f = &s->front;
	int ret;

	for (unsigned int i = 0; i < f->n_nodes; i++) {
		struct kvs_node *n = &s->nodes[i];
		/* A recorded topology's CPUs are not this machine's. */
		const struct kvs_topology_node *t =
			kvs_topology_is_thissystem(topo)
				? kvs_topology_node_find(topo, n->numa)
				: NULL;

		/* as ATTACHED has them: receive pools first */
		n->offload_index = f->n_nodes + i;
		n->up = &kvs_front_up;
		n->up_arg = f;
		ret = kvs_node_start(n, &f->settings, s->secret,
				     t ? &t->cpus : NULL, err, errlen);
		if (ret)
			return ret;
		s->tcp_engine = kvs_transport_name(n->transport);
	}
	tell_network(s, ev);
	return 0;
}

static int service_port(struct kvs_service *s)
{
	struct sockaddr_storage ss;
	socklen_t len;
	int ret;

	ret = kvs_listener_addr(s->front.listener, &ss, &len);
	if (ret)
		return ret;
	s->port = ntohs(ss.ss_family == AF_INET6
				? ((struct sockaddr_in6 *)&ss)->sin6_port
				: ((struct sockaddr_in *)&ss)->sin_port);
	return 0;
}

/* Idle connections must not lock out engines and the operator. */
static void service_descriptors(struct kvs_front *f)
{
	uint32_t most = f->settings.listen_max_connections;
	struct rlimit rl;
	uint64_t want;

	if (getrlimit(RLIMIT_NOFILE, &rl))
		return;
	f->settings.listen_max_connections = kvs_descriptors_connections(
		&f->settings, f->n_nodes, rl.rlim_cur, &want);
	if (f->settings.listen_max_connections < most)
		kvs_log_warn("%llu files may be open: no more than %u control "
			     "connections, and as many data connections on "
			     "each node, are let in; for "
			     "listen.max_connections = %u and engine.max = %u "
			     "raise LimitNOFILE (ulimit -n) to %llu",
			     (unsigned long long)rl.rlim_cur,
			     f->settings.listen_max_connections, most,
			     f->settings.engine_max, (unsigned long long)want);
}

int kvs_service_create(const struct kvs_settings *set,
		       struct kvs_topology *topo,
		       const struct kvs_service_events *ev, atomic_bool *cancel,
		       struct kvs_service **ret, char *err, size_t errlen)
{
	struct kvs_service *s = calloc(1, sizeof(*s));
	struct kvs_front_opts fo = { .settings = set, .topo = topo };
	struct kvs_front *f;
	int res;

	snprintf(err, errlen, "out of memory");
	if (!s)
		return -ENOMEM;
	f = &s->front;
	res = kvs_random_fill(&s->secret, sizeof(s->secret));
	fo.nodes = s->nodes;
	fo.secret = s->secret;
	if (kvs_front_init(f, &fo) || res) {
		res = res ? res : -ENOMEM;
		goto out;
	}
	res = kvs_settings_check(set, err, errlen);
	if (res)
		goto out;
	res = kvs_service_nodes(s->nodes, &f->n_nodes, set, topo, err, errlen);
	if (res)
		goto out;
	service_descriptors(f);
	/* Sockets before pools: a wrong address or a second daemon is told
	 * at once, not after minutes of populating memory. */
	res = kvs_front_start(f, err, errlen);
	if (res)
		goto out;
	res = kvs_service_pools(s->nodes, f->n_nodes, set, topo, ev, cancel,
				err, errlen);
	if (res)
		goto out;
	res = service_nodes(s, topo, ev, err, errlen);
	if (!res)
		res = service_port(s);
	if (!res)
		res = kvs_front_run(f);
	if (res)
		goto out;
	if (errlen)
		err[0] = '\0';
	*ret = s;
	return 0;
out:
	kvs_service_destroy(s);
	return res;
}

void kvs_service_destroy(struct kvs_service *s)
{
	struct kvs_front *f;
	unsigned int n_nodes;

	if (!s)
		return;
	f = &s->front;
	n_nodes = f->n_nodes;
	kvs_front_forget_nodes(f);
	for (unsigned int i = 0; i < n_nodes; i++)
		kvs_node_stop(&s->nodes[i]);
	kvs_front_stop(f);
	for (unsigned int i = 0; i < KVS_NODES_MAX; i++) {
		kvs_region_destroy(s->nodes[i].region);
		kvs_region_destroy(s->nodes[i].offload);
	}
	kvs_front_fini(f);
	free(s);
}

/* Made at the start and never changed. */
int kvs_service_devices(const struct kvs_service *s, unsigned int i,
			struct kvs_verbs_info *ret, unsigned int n,
			int *ret_node)
{
	if (i >= s->front.n_nodes)
		return -ENOENT;
	*ret_node = s->nodes[i].numa;
	return (int)kvs_verbs_devices(s->nodes[i].transport, ret, n);
}

unsigned int kvs_service_port(const struct kvs_service *s)
{
	return s->port;
}

/* ---- calls from other threads ------------------------------------------- */

static void front_set_draining(void *ctx, void *arg)
{
	struct kvs_front *f = ctx;

	(void)arg;
	f->draining = true;
}

static void node_shutdown(void *ctx, void *arg)
{
	struct kvs_node *n = ctx;

	(void)arg;
	kvs_worker_shutdown(n->worker);
}

static void node_live(void *ctx, void *arg)
{
	const struct kvs_node *n = ctx;

	*(uint32_t *)arg += n->worker->live;
}

static uint32_t service_live(struct kvs_service *s)
{
	uint32_t live = 0;

	for (unsigned int i = 0; i < s->front.n_nodes; i++)
		kvs_mailbox_call(&s->nodes[i].mailbox, node_live, &live);
	return live;
}

static void node_behind(void *ctx, void *arg)
{
	const struct kvs_node *n = ctx;

	*(bool *)arg |= kvs_cache_disk_behind(n->worker);
}

/* What is in memory alone is lost with it. */
static bool service_behind(struct kvs_service *s)
{
	bool behind = false;

	for (unsigned int i = 0; i < s->front.n_nodes; i++)
		kvs_mailbox_call(&s->nodes[i].mailbox, node_behind, &behind);
	return behind;
}

int kvs_service_drain(struct kvs_service *s)
{
	const struct timespec nap = { 0, 10 * 1000 * 1000 };
	uint64_t until = kvs_clock_now(&kvs_clock_real) +
			 s->front.settings.shutdown_timeout;
	uint32_t live;

	kvs_mailbox_call(&s->front.mailbox, front_set_draining, NULL);
	for (unsigned int i = 0; i < s->front.n_nodes; i++)
		kvs_mailbox_call(&s->nodes[i].mailbox, node_shutdown, NULL);
	while (((live = service_live(s)) || service_behind(s)) &&
	       kvs_clock_now(&kvs_clock_real) < until)
		nanosleep(&nap, NULL);
	return (int)live;
}

static void front_reload(void *ctx, void *arg)
{
	struct kvs_front *f = ctx;
	char names[256];

	kvs_settings_reload(&f->settings, arg, names, sizeof(names));
}

static void front_rekey(void *ctx, void *arg)
{
	kvs_front_keys(ctx, arg);
}

/* What is wrong with the file now changes nothing. */
static void service_rekey(struct kvs_service *s, const char *path)
{
	char names[KVS_AUTH_PRINTS];
	struct kvs_auth_keys k;
	char err[512];

	if (!*path)
		return;
	if (kvs_auth_keys_load(path, &k, err, sizeof(err))) {
		kvs_log_err("%s; the keys in use stay", err);
		return;
	}
	kvs_mailbox_call(&s->front.mailbox, front_rekey, &k);
	kvs_auth_fingerprints(&k, names);
	kvs_log_notice("%s: %u %s accepted: %s", path, k.n,
		       k.n == 1 ? "key is" : "keys are", names);
	kvs_auth_keys_clear(&k);
}

static void node_reload(void *ctx, void *arg)
{
	struct kvs_node *n = ctx;
	char names[256];

	kvs_settings_reload(&n->settings, arg, names, sizeof(names));
	n->worker->released = true; /* limits of who may have memory changed */
}

struct capacity_arg {
	const struct kvs_settings *set;
	char *err;
	size_t errlen;
	int ret;
};

static void front_capacity(void *ctx, void *arg)
{
	struct capacity_arg *a = arg;

	a->ret = kvs_capacity_reload(ctx, a->set, a->err, a->errlen);
}

int kvs_service_check_reload(struct kvs_service *s,
			     const struct kvs_settings *set, char *err,
			     size_t errlen)
{
	struct capacity_arg a = { .set = set, .err = err, .errlen = errlen };

	kvs_mailbox_call(&s->front.mailbox, front_capacity, &a);
	return a.ret;
}

void kvs_service_reload(struct kvs_service *s, const struct kvs_settings *set)
{
	void *arg = (void *)set; /* read only by the two above */

	/* the file itself cannot change while we run */
	service_rekey(s, s->front.settings.auth_key_file);
	kvs_mailbox_call(&s->front.mailbox, front_reload, arg);
	for (unsigned int i = 0; i < s->front.n_nodes; i++)
		kvs_mailbox_call(&s->nodes[i].mailbox, node_reload, arg);
}

/* What the framing refused before any decoder saw it. */
static void add_bad_frames(uint64_t to[KVS_PROTO_MAX],
			   const struct kvs_transport_stats *st)
{
	to[KVS_PROTO_MAGIC] += st->bad_magic;
	to[KVS_PROTO_LENGTH] += st->bad_length;
	to[KVS_PROTO_PAYLOAD] += st->bad_payload;
}

static void front_snapshot(void *ctx, void *arg)
{
	struct kvs_front *f = ctx;
	struct kvs_snapshot *r = arg;
	struct kvs_transport_stats st;
	const struct kvs_front_engine *e;

	r->instance = f->instance;
	r->uptime = kvs_clock_now(f->clock) - f->started;
	r->ready = !f->draining;
	r->health_quarantined = f->settings.health_quarantined;
	r->sessions = f->n_sessions;
	kvs_list_for_each_entry(e, &f->engines, node)
		r->engines += e->attached && e->open;
	kvs_transport_stats(f->transport, &st);
	r->connections_refused = st.refused_limit + st.refused_fds + f->refused;
	memcpy(r->protocol_errors, f->protocol_errors,
	       sizeof(r->protocol_errors));
	memcpy(r->admits, f->admits, sizeof(r->admits));
	memcpy(r->strays, f->strays, sizeof(r->strays));
	memcpy(r->auth_failures, f->auth_failures, sizeof(r->auth_failures));
	memcpy(r->auth_handshakes, f->auth_handshakes,
	       sizeof(r->auth_handshakes));
	r->auth_keys = f->keys.n;
	for (unsigned int i = 0; i < f->keys.n; i++)
		kvs_auth_fingerprint(f->keys.key[i], r->auth_prints[i]);
	add_bad_frames(r->protocol_errors, &st);
	r->n_workers = f->n_nodes;
}

static void snapshot_region(struct kvs_pool_snapshot *p,
			    const struct kvs_region *g)
{
	p->page_size = g->page_size;
	p->bound = g->bound;
}

static void node_snapshot(void *ctx, void *arg)
{
	struct kvs_node *n = ctx;
	struct kvs_worker_snapshot *r = arg;
	struct kvs_transport_stats st;

	kvs_worker_snapshot(n->worker, r);
	kvs_transport_stats(n->transport, &st);
	add_bad_frames(r->stats.protocol_errors, &st);
	kvs_verbs_counters(n->transport, &r->verbs);
	r->data_connections = n->n_conns;
	r->data_connections_refused = n->refused;
	snapshot_region(&r->pools[0], n->region);
	if (!n->offload_pool)
		return;
	r->n_pools = 2;
	r->pools[1].name = kvs_pool_name(n->offload_pool);
	r->pools[1].node = n->numa;
	kvs_pool_account(n->offload_pool, &r->pools[1].account);
	snapshot_region(&r->pools[1], n->offload);
}

/* Quarantined memory comes back by a proof only, and one that needs a human
 * as a rule: who sends requests here should know. */
static void snapshot_health(struct kvs_snapshot *r,
			    const struct kvs_worker_snapshot *w, uint32_t most)
{
	for (unsigned int i = 0; i < w->n_pools; i++) {
		const struct kvs_pool_account *a = &w->pools[i].account;
		uint64_t bytes = a->bytes[KVS_EXTENT_QUARANTINED];

		if (bytes / 100.0 <= (double)a->configured * most / 10000.0 ||
		    bytes <= r->degraded_bytes)
			continue;
		r->ready = false;
		r->degraded = true;
		r->degraded_node = w->pools[i].node;
		r->degraded_bytes = bytes;
	}
}

void kvs_service_snapshot(struct kvs_service *s, struct kvs_snapshot *ret)
{
	uint32_t most;

	memset(ret, 0, sizeof(*ret));
	kvs_mailbox_call(&s->front.mailbox, front_snapshot, ret);
	most = ret->health_quarantined;
	ret->tcp_engine = s->tcp_engine;
	ret->connections = ret->sessions;
	for (unsigned int i = 0; i < ret->n_workers; i++) {
		kvs_mailbox_call(&s->nodes[i].mailbox, node_snapshot,
				 &ret->workers[i]);
		ret->connections += ret->workers[i].data_connections;
		ret->connections_refused +=
			ret->workers[i].data_connections_refused;
		snapshot_health(ret, &ret->workers[i], most);
	}
}

struct rooms_arg {
	struct kvs_room_info *v;
	size_t n;
	int err;
};

static void node_rooms(void *ctx, void *arg)
{
	const struct kvs_node *n = ctx;
	struct rooms_arg *a = arg;
	size_t more = n->worker->rooms.n + n->worker->retracts.map.n;
	struct kvs_room_info *v;

	v = realloc(a->v, (a->n + more + 1) * sizeof(*v));
	if (!v) {
		a->err = -ENOMEM;
		return;
	}
	a->v = v;
	a->n += kvs_worker_rooms(n->worker, v + a->n, more);
}

int kvs_service_rooms(struct kvs_service *s, struct kvs_room_info **ret)
{
	struct rooms_arg a = { 0 };

	for (unsigned int i = 0; i < s->front.n_nodes && !a.err; i++)
		kvs_mailbox_call(&s->nodes[i].mailbox, node_rooms, &a);
	if (a.err) {
		free(a.v);
		return a.err;
	}
	*ret = a.v;
	return (int)a.n;
}

struct holds_arg {
	struct kvs_hold_info *v;
	size_t n;
	int err;
};

static void node_holds(void *ctx, void *arg)
{
	const struct kvs_node *n = ctx;
	struct holds_arg *a = arg;
	size_t more = kvs_worker_holds(n->worker, NULL, 0);
	struct kvs_hold_info *v;

	v = realloc(a->v, (a->n + more + 1) * sizeof(*v));
	if (!v) {
		a->err = -ENOMEM;
		return;
	}
	a->v = v;
	a->n += kvs_worker_holds(n->worker, v + a->n, more);
}

/* Only the front knows the processes behind the engines' numbers. */
static void front_holds(void *ctx, void *arg)
{
	const struct kvs_front *f = ctx;
	const struct kvs_front_engine *e;
	struct holds_arg *a = arg;

	for (size_t i = 0; i < a->n; i++) {
		kvs_list_for_each_entry(e, &f->engines, node) {
			if (!e->attached || e->number != a->v[i].engine)
				continue;
			a->v[i].engine_pid = e->pid;
			a->v[i].engine_exited = e->exited;
		}
	}
}

static int older_first(const void *a, const void *b)
{
	const struct kvs_hold_info *x = a, *y = b;

	return (x->age < y->age) - (x->age > y->age);
}

int kvs_service_holds(struct kvs_service *s, struct kvs_hold_info **ret)
{
	struct holds_arg a = { 0 };

	for (unsigned int i = 0; i < s->front.n_nodes && !a.err; i++)
		kvs_mailbox_call(&s->nodes[i].mailbox, node_holds, &a);
	if (a.err) {
		free(a.v);
		return a.err;
	}
	if (a.n) {
		kvs_mailbox_call(&s->front.mailbox, front_holds, &a);
		qsort(a.v, a.n, sizeof(*a.v), older_first);
	}
	*ret = a.v;
	return (int)a.n;
}

struct abort_arg {
	uint64_t room;
	int ret;
};

static void front_abort(void *ctx, void *arg)
{
	struct kvs_front *f = ctx;
	struct abort_arg *a = arg;
	struct kvs_entry *e = kvs_directory_get(f, a->room);

	a->ret = -ENOENT;
	if (!e)
		return;
	a->ret = -EALREADY;
	if (e->aborted)
		return;
	a->ret = kvs_node_abort(&f->nodes[e->node], e->generation,
				KVS_CAUSE_ENGINE_ABORT, ECANCELED,
				"aborted by the operator");
	e->aborted = !a->ret;
}

int kvs_service_abort(struct kvs_service *s, uint64_t room)
{
	struct abort_arg a = { .room = room };

	kvs_mailbox_call(&s->front.mailbox, front_abort, &a);
	return a.ret;
}

struct evict_arg {
	bool host;
	bool disk;
	uint64_t bytes;
};

static void node_evict(void *ctx, void *arg)
{
	const struct kvs_node *n = ctx;
	struct evict_arg *a = arg;

	if (a->host)
		a->bytes += kvs_cache_flush(n->worker);
	if (a->disk)
		a->bytes += kvs_cache_disk_flush(n->worker);
}

uint64_t kvs_service_evict(struct kvs_service *s, bool host, bool disk)
{
	struct evict_arg a = { .host = host, .disk = disk };

	for (unsigned int i = 0; i < s->front.n_nodes; i++)
		kvs_mailbox_call(&s->nodes[i].mailbox, node_evict, &a);
	return a.bytes;
}

struct scrub_arg {
	uint64_t rate;
	struct kvs_cache_disk_stats *before;
	unsigned int n;
};

static void node_scrub(void *ctx, void *arg)
{
	const struct kvs_node *n = ctx;
	struct scrub_arg *a = arg;

	kvs_cache_disk_stats(n->worker, a->before);
	a->n += kvs_cache_disk_scrub(n->worker, a->rate);
}

unsigned int kvs_service_scrub(struct kvs_service *s, uint64_t bytes_per_sec,
			       struct kvs_snapshot *ret)
{
	struct scrub_arg a = { .rate = bytes_per_sec };

	for (unsigned int i = 0; i < s->front.n_nodes; i++) {
		a.before = &ret->workers[i].disk;
		kvs_mailbox_call(&s->nodes[i].mailbox, node_scrub, &a);
	}
	return a.n;
}
