/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kvstagectl(1) is told. Ids of 64 bits (room, generation, instance) are
 * texts: many readers of JSON keep numbers as doubles.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/clock.h"
#include "lib/err.h"
#include "lib/units.h"
#include "tools/daemon_report.h"

#define KVS_REPORT_SCRUB (64ULL << 20) /* bytes/s, without hicache.scrub */

void kvs_report_fail(struct kvs_report *r, int ret, const char *fmt, ...)
{
	va_list ap;

	r->ret = ret;
	va_start(ap, fmt);
	vsnprintf(r->err, sizeof(r->err), fmt, ap);
	va_end(ap);
}

void kvs_report_line(struct kvs_report *r, json_t *o)
{
	char *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(12))
		       : NULL;

	if (text)
		fprintf(r->f, "%s\n", text);
	else if (!r->ret)
		kvs_report_fail(r, -ENOMEM, "%s", strerror(ENOMEM));
	free(text);
	json_decref(o);
}

json_t *kvs_json_u64(uint64_t v)
{
	return json_integer(v > INT64_MAX ? INT64_MAX : (json_int_t)v);
}

json_t *kvs_json_id(uint64_t v)
{
	char text[32];

	snprintf(text, sizeof(text), "%" PRIu64, v);
	return json_string(text);
}

json_t *kvs_json_seconds(uint64_t ns)
{
	return json_real((double)ns / (double)KVS_NSEC_PER_SEC);
}

static void kvs_report_status(struct kvs_report *r)
{
	struct kvs_daemon *d = r->d;
	uint64_t live = 0, waiting = 0, held = 0, held_bytes = 0, bytes = 0;
	uint64_t done = 0, failed = 0;
	struct kvs_snapshot *s;
	json_t *names = json_array();
	char status[256];
	unsigned int w, i;

	if (kvs_daemon_snapshot(d, &s)) {
		json_decref(names);
		kvs_report_fail(r, -ENOMEM, "%s", strerror(ENOMEM));
		return;
	}
	for (i = 0; i < s->auth_keys; i++)
		json_array_append_new(names, json_string(s->auth_prints[i]));
	for (w = 0; w < s->n_workers; w++) {
		const struct kvs_worker_snapshot *ws = &s->workers[w];

		live += ws->rooms_live;
		waiting += ws->rooms_waiting;
		held += ws->rooms_held;
		bytes += ws->stats.received_bytes;
		done += ws->stats.rooms_done;
		for (i = 0; i < KVS_CAUSE_MAX; i++) {
			held_bytes += ws->held_bytes[i];
			failed += ws->stats.failures[i];
		}
	}
	kvs_report_line(
		r,
		json_pack(
			"{s:s, s:s, s:s, s:i, s:o, s:o, s:s, s:s, s:s, s:s, "
			"s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
			"s:o}",
			"state", kvs_daemon_state_name[d->state], "status",
			kvs_daemon_status(d, s, status, sizeof(status)),
			"version", KVS_VERSION, "pid", (int)getpid(),
			"instance", kvs_json_id(s->instance), "uptime_s",
			kvs_json_seconds(s->uptime), "listen", d->listen,
			"http", d->http_bound, "engine_socket",
			d->settings.engine_socket, "tcp_engine",
			s->tcp_engine ? s->tcp_engine : "", "auth_keys",
			kvs_json_u64(s->auth_keys), "auth_fingerprints", names,
			"sessions", kvs_json_u64(s->sessions), "engines",
			kvs_json_u64(s->engines), "connections",
			kvs_json_u64(s->connections), "rooms_live",
			kvs_json_u64(live), "rooms_waiting",
			kvs_json_u64(waiting), "rooms_held", kvs_json_u64(held),
			"held_bytes", kvs_json_u64(held_bytes),
			"received_bytes", kvs_json_u64(bytes), "rooms_done",
			kvs_json_u64(done), "rooms_failed",
			kvs_json_u64(failed)));
	free(s);
}

bool kvs_report_has_service(struct kvs_report *r)
{
	char status[256];

	if (r->d->state == KVS_DAEMON_RUNNING ||
	    r->d->state == KVS_DAEMON_DRAINING)
		return true;
	kvs_report_fail(r, -EAGAIN, "the daemon is not ready: %s",
			kvs_daemon_status(r->d, NULL, status, sizeof(status)));
	return false;
}

static void kvs_report_rooms(struct kvs_report *r)
{
	struct kvs_room_info *v = NULL;
	int n, i;

	if (!kvs_report_has_service(r))
		return;
	n = kvs_service_rooms(r->d->svc, &v);
	if (n < 0) {
		kvs_report_fail(r, n, "cannot list the rooms: %s",
				strerror(-n));
		return;
	}
	for (i = 0; i < n && !r->ret; i++)
		kvs_report_line(
			r,
			json_pack("{s:o, s:o, s:s, s:s, s:i, s:i, s:o, s:o, "
				  "s:o, s:o, s:o, s:o, s:s, s:o}",
				  "room", kvs_json_id(v[i].room), "generation",
				  kvs_json_id(v[i].generation), "state",
				  v[i].state, "peer", v[i].peer, "worker",
				  (int)v[i].worker, "node", v[i].node, "engine",
				  kvs_json_u64(v[i].engine), "tokens",
				  kvs_json_u64(v[i].tokens), "bytes",
				  kvs_json_u64(v[i].bytes), "expected",
				  kvs_json_u64(v[i].expected), "received",
				  kvs_json_u64(v[i].received), "age_s",
				  kvs_json_seconds(v[i].age), "cause",
				  v[i].cause ? v[i].cause : "", "parties",
				  kvs_json_u64(v[i].parties)));
	free(v);
}

static void kvs_report_pools(struct kvs_report *r)
{
	struct kvs_snapshot *s;
	unsigned int w, p, i;

	if (!kvs_report_has_service(r))
		return;
	if (kvs_daemon_snapshot(r->d, &s)) {
		kvs_report_fail(r, -ENOMEM, "%s", strerror(ENOMEM));
		return;
	}
	for (w = 0; w < s->n_workers; w++) {
		for (p = 0; p < s->workers[w].n_pools; p++) {
			const struct kvs_pool_snapshot *pool =
				&s->workers[w].pools[p];
			json_t *o = json_pack(
				"{s:s, s:i, s:o, s:b, s:o, s:o}", "pool",
				pool->name, "node", pool->node, "page_size",
				kvs_json_u64(pool->page_size), "bound",
				pool->bound > 0, "configured",
				kvs_json_u64(pool->account.configured),
				"high_water",
				kvs_json_u64(pool->account.high_water));

			for (i = 0; o && i < KVS_EXTENT_STATE_MAX; i++)
				if (json_object_set_new(
					    o, kvs_extent_state_name[i],
					    kvs_json_u64(
						    pool->account.bytes[i])))
					kvs_report_fail(r, -ENOMEM, "%s",
							strerror(ENOMEM));
			kvs_report_line(r, o);
		}
	}
	free(s);
}

/* Names of devices under the number of the node they are next to. */
static void kvs_report_device(void *arg, const char *name, int node)
{
	json_t *all = arg, *names;
	char key[16];

	snprintf(key, sizeof(key), "%d", node);
	names = json_object_get(all, key);
	if (!names) {
		json_object_set_new(all, key, json_array());
		names = json_object_get(all, key);
	}
	json_array_append_new(names, json_string(name));
}

static json_t *kvs_report_devices_of(const json_t *all, int node)
{
	json_t *names;
	char key[16];

	snprintf(key, sizeof(key), "%d", node);
	names = json_object_get(all, key);
	return names ? json_incref(names) : json_array();
}

static bool kvs_report_has_pool(const struct kvs_snapshot *s, int node)
{
	unsigned int w, p;

	for (w = 0; w < s->n_workers; w++)
		for (p = 0; p < s->workers[w].n_pools; p++)
			if (s->workers[w].pools[p].node == node)
				return true;
	return false;
}

/* Each device of each node with a pool, until @each says no. */
static void kvs_report_each_device(struct kvs_report *r,
				   bool (*each)(struct kvs_report *r, void *arg,
						int node,
						const struct kvs_verbs_info *v),
				   void *arg)
{
	struct kvs_verbs_info *v = calloc(KVS_VERBS_DEVS_MAX, sizeof(*v));
	unsigned int i;
	int n, k, node;

	if (!v) {
		kvs_report_fail(r, -ENOMEM, "%s", strerror(ENOMEM));
		return;
	}
	for (i = 0; (n = kvs_service_devices(r->d->svc, i, v,
					     KVS_VERBS_DEVS_MAX, &node)) >= 0;
	     i++)
		for (k = 0; k < n; k++)
			if (!each(r, arg, node, &v[k]))
				break;
	free(v);
}

/* False: no memory for it, and it was said. */
static bool kvs_report_rdma_line(struct kvs_report *r, void *arg, int node,
				 const struct kvs_verbs_info *v)
{
	(void)arg;
	kvs_report_line(
		r, json_pack("{s:i, s:s, s:b, s:s, s:i, s:s, s:i, s:s, s:i, "
			     "s:i, s:b, s:s, s:s, s:s}",
			     "pool_node", node, "device", v->device, "used",
			     v->used, "driver", v->driver, "port", (int)v->port,
			     "link", v->link, "gid_index", v->gid_index, "gid",
			     v->gid, "mtu", (int)v->mtu, "node", v->node,
			     "windows", v->windows, "grant", v->grant, "proof",
			     v->proof, "note", v->note));
	return !r->ret;
}

static void kvs_report_rdma(struct kvs_report *r)
{
	if (kvs_report_has_service(r))
		kvs_report_each_device(r, kvs_report_rdma_line, NULL);
}

/* What a node's devices grant by goes into @arg, an array of each node. */
static bool kvs_report_grants(struct kvs_report *r, void *arg, int node,
			      const struct kvs_verbs_info *v)
{
	char key[16];
	json_t *o = json_pack("{s:i, s:s, s:b, s:s, s:s, s:s, s:s, s:s, s:s}",
			      "pool_node", node, "device", v->device, "used",
			      v->used, "grant", v->grant, "window",
			      v->kind[KVS_VERBS_GRANT_WINDOW], "mr",
			      v->kind[KVS_VERBS_GRANT_MR], "qp",
			      v->kind[KVS_VERBS_GRANT_QP], "why",
			      v->used ? v->why : v->note, "trial", v->trial);

	snprintf(key, sizeof(key), "%d", node);
	if (!json_object_get(arg, key))
		json_object_set_new(arg, key, json_array());
	if (json_array_append_new(json_object_get(arg, key), o))
		kvs_report_fail(r, -ENOMEM, "%s", strerror(ENOMEM));
	return !r->ret;
}

static void kvs_report_topo(struct kvs_report *r)
{
	size_t i, n = kvs_topology_node_count(r->d->topo);
	json_t *devices = json_object();
	json_t *grants = json_object();
	struct kvs_snapshot *s = NULL;

	if (!devices || !grants || kvs_daemon_snapshot(r->d, &s) ||
	    kvs_topology_each_nic(r->d->topo, kvs_report_device, devices))
		kvs_report_fail(r, -ENOMEM, "%s", strerror(ENOMEM));
	if (!r->ret && r->d->svc)
		kvs_report_each_device(r, kvs_report_grants, grants);
	for (i = 0; i < n && !r->ret; i++) {
		const struct kvs_topology_node *node =
			kvs_topology_node_at(r->d->topo, i);
		json_t *cpus = json_array();
		int cpu;

		for (cpu = 0; cpu < CPU_SETSIZE; cpu++)
			if (CPU_ISSET(cpu, &node->cpus))
				json_array_append_new(cpus, json_integer(cpu));
		kvs_report_line(
			r,
			json_pack(
				"{s:i, s:o, s:b, s:b, s:b, s:b, s:b, s:i, "
				"s:o, s:o, s:o}",
				"node", node->os_index, "bytes",
				kvs_json_u64(node->bytes), "allowed",
				node->allowed, "eligible",
				kvs_topology_node_eligible(node), "pool",
				kvs_report_has_pool(s, node->os_index),
				"gpu_memory", node->gpu_memory, "has_cpus",
				node->has_cpus, "cpu_node", node->cpu_node,
				"cpus", cpus, "devices",
				kvs_report_devices_of(devices, node->os_index),
				"rdma",
				kvs_report_devices_of(grants, node->os_index)));
	}
	json_decref(devices);
	json_decref(grants);
	free(s);
}

static void kvs_report_settings(struct kvs_report *r)
{
	const struct kvs_setting_info *info;
	unsigned int i;

	for (i = 0; (info = kvs_setting_info(i)) && !r->ret; i++) {
		char name[128], value[KVS_STRING_MAX];

		snprintf(name, sizeof(name), "%s.%s", info->section, info->key);
		kvs_setting_value(&r->d->settings, i, value, sizeof(value));
		kvs_report_line(
			r, json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:s}",
				     "setting", name, "value", value, "default",
				     info->def, "type", info->type, "range",
				     info->range, "reload", info->reload,
				     "text", info->text));
	}
}

static void kvs_report_abort(struct kvs_report *r)
{
	const char *text =
		json_string_value(json_object_get(r->request, "room"));
	uint64_t room;
	int ret;

	if (!text || kvs_parse_u64(text, &room)) {
		kvs_report_fail(r, -EINVAL,
				"abort needs a room: a 64-bit number, as a "
				"text");
		return;
	}
	if (!kvs_report_has_service(r))
		return;
	ret = kvs_service_abort(r->d->svc, room);
	if (ret == -ENOENT)
		kvs_report_fail(r, ret, "there is no live room %" PRIu64, room);
	else if (ret)
		kvs_report_fail(r, ret, "cannot abort room %" PRIu64 ": %s",
				room, strerror(-ret));
	else
		kvs_report_line(r, json_pack("{s:o, s:b}", "room",
					     kvs_json_id(room), "aborted", 1));
}

static double hit_ratio(uint64_t hits, uint64_t asked)
{
	return asked ? (double)hits / (double)asked : 0.0;
}

static void kvs_report_cache_disk(struct kvs_report *r,
				  const struct kvs_worker_snapshot *w)
{
	const struct kvs_cache_disk_stats *d = &w->disk;

	kvs_report_line(
		r,
		json_pack("{s:i, s:s, s:s, s:s, s:s, s:o, s:i, s:o, s:o, s:o, "
			  "s:f, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
			  "s:o, s:o, s:o, s:o, s:o}",
			  "node", w->pools[0].node, "tier", "nvme", "health",
			  d->health, "why", d->why, "engine",
			  d->engine ? d->engine : "", "bytes",
			  kvs_json_u64(d->bytes), "pinned_bytes", 0, "blocks",
			  kvs_json_u64(d->blocks), "asked_blocks",
			  kvs_json_u64(w->cache.asked), "hit_blocks",
			  kvs_json_u64(d->recalled), "hit_ratio",
			  hit_ratio(d->recalled, w->cache.asked), "hit_bytes",
			  kvs_json_u64(d->recalled_bytes), "kept_bytes",
			  kvs_json_u64(d->written_bytes), "evicted_bytes",
			  kvs_json_u64(d->evicted_bytes), "duplicate_blocks",
			  kvs_json_u64(0), "bad_blocks",
			  kvs_json_u64(d->damaged), "file_bytes",
			  kvs_json_u64(d->file_bytes), "aside_files",
			  kvs_json_u64(d->aside_files), "aside_bytes",
			  kvs_json_u64(d->aside_bytes), "queued_bytes",
			  kvs_json_u64(d->queued_bytes), "found_blocks",
			  kvs_json_u64(d->found), "failed_blocks",
			  kvs_json_u64(d->recall_failed + d->write_failed),
			  "scrubbed_bytes", kvs_json_u64(d->scrubbed_bytes),
			  "scrub_rounds", kvs_json_u64(d->scrub_rounds),
			  "read_errors", kvs_json_u64(d->read_errors)));
}

static void kvs_report_cache_shared(struct kvs_report *r,
				    const struct kvs_worker_snapshot *w)
{
	const struct kvs_cache_shared_stats *d = &w->shared;

	kvs_report_line(
		r,
		json_pack("{s:i, s:s, s:s, s:s, s:s, s:o, s:i, s:o, s:o, s:o, "
			  "s:f, s:o, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o, "
			  "s:o}",
			  "node", w->pools[0].node, "tier", "shared", "health",
			  d->health, "why", d->why, "engine",
			  d->engine ? d->engine : "", "bytes",
			  kvs_json_u64(d->bytes), "pinned_bytes", 0, "blocks",
			  kvs_json_u64(d->blocks), "asked_blocks",
			  kvs_json_u64(w->cache.asked), "hit_blocks",
			  kvs_json_u64(d->recalled), "hit_ratio",
			  hit_ratio(d->recalled, w->cache.asked), "hit_bytes",
			  kvs_json_u64(d->recalled_bytes), "kept_bytes", 0,
			  "evicted_bytes", 0, "duplicate_blocks", 0,
			  "bad_blocks", kvs_json_u64(d->damaged), "nodes",
			  kvs_json_u64(d->nodes), "looks",
			  kvs_json_u64(d->looks), "found_blocks",
			  kvs_json_u64(d->found), "vanished_blocks",
			  kvs_json_u64(d->vanished), "failed_blocks",
			  kvs_json_u64(d->recall_failed)));
}

static void kvs_report_cache(struct kvs_report *r)
{
	const struct kvs_cache_stats *c;
	struct kvs_snapshot *s;

	if (!kvs_report_has_service(r))
		return;
	if (kvs_daemon_snapshot(r->d, &s)) {
		kvs_report_fail(r, -ENOMEM, "%s", strerror(ENOMEM));
		return;
	}
	for (unsigned int w = 0; w < s->n_workers; w++) {
		c = &s->workers[w].cache;
		kvs_report_line(
			r,
			json_pack(
				"{s:i, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, "
				"s:f, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
				"node", s->workers[w].pools[0].node, "tier",
				"host", "health", "ok", "why", "", "bytes",
				kvs_json_u64(c->bytes), "pinned_bytes",
				kvs_json_u64(c->pinned_bytes), "blocks",
				kvs_json_u64(c->blocks), "asked_blocks",
				kvs_json_u64(c->asked), "hit_blocks",
				kvs_json_u64(c->hits), "hit_ratio",
				hit_ratio(c->hits, c->asked), "hit_bytes",
				kvs_json_u64(c->hit_bytes), "kept_bytes",
				kvs_json_u64(c->donated_bytes),
				"offloaded_bytes",
				kvs_json_u64(c->offloaded_bytes),
				"recalled_bytes",
				kvs_json_u64(c->recalled_bytes),
				"evicted_bytes", kvs_json_u64(c->evicted_bytes),
				"duplicate_blocks", kvs_json_u64(c->duplicates),
				"bad_blocks", kvs_json_u64(c->bad)));
		if (s->workers[w].disk.wanted)
			kvs_report_cache_disk(r, &s->workers[w]);
		if (s->workers[w].shared.wanted)
			kvs_report_cache_shared(r, &s->workers[w]);
	}
	free(s);
}

static void kvs_report_evict(struct kvs_report *r)
{
	const char *tier =
		json_string_value(json_object_get(r->request, "tier"));
	bool host = !tier || !strcmp(tier, "host") || !strcmp(tier, "all");
	bool disk = tier && (!strcmp(tier, "nvme") || !strcmp(tier, "all"));

	if (!host && !disk) {
		kvs_report_fail(r, -EINVAL,
				"there is no tier \"%.32s\": host, nvme or all",
				tier);
		return;
	}
	if (!kvs_report_has_service(r))
		return;
	kvs_report_line(r, json_pack("{s:o}", "evicted_bytes",
				     kvs_json_u64(kvs_service_evict(
					     r->d->svc, host, disk))));
}

/* How far rounds have come is told first: whoever waits for the end of this
 * one, waits for one more. */
static void kvs_report_scrub_at(struct kvs_report *r, uint64_t rate)
{
	const struct kvs_cache_disk_stats *d;
	struct kvs_snapshot *s;

	if (!kvs_report_has_service(r))
		return;
	if (kvs_daemon_snapshot(r->d, &s)) {
		kvs_report_fail(r, -ENOMEM, "%s", strerror(ENOMEM));
		return;
	}
	if (!kvs_service_scrub(r->d->svc, rate, s))
		kvs_report_fail(r, -ENOENT,
				"no node keeps anything on disk: hicache.dir "
				"is not set, or could not be used (cache, "
				"status and the log say why)");
	for (unsigned int w = 0; w < s->n_workers && !r->ret; w++) {
		d = &s->workers[w].disk;
		if (!d->on)
			continue;
		kvs_report_line(
			r,
			json_pack("{s:i, s:s, s:o, s:o, s:o, s:o, s:o}", "node",
				  s->workers[w].pools[0].node, "tier", "nvme",
				  "blocks", kvs_json_u64(d->blocks), "bytes",
				  kvs_json_u64(d->bytes), "bad_blocks",
				  kvs_json_u64(d->damaged), "read_errors",
				  kvs_json_u64(d->read_errors), "scrub_rounds",
				  kvs_json_u64(d->scrub_rounds)));
	}
	free(s);
}

static void kvs_report_scrub(struct kvs_report *r)
{
	uint64_t rate = r->d->settings.hicache_scrub;

	kvs_report_scrub_at(r, rate ? rate : KVS_REPORT_SCRUB);
}

static void kvs_report_verify(struct kvs_report *r)
{
	kvs_report_scrub_at(r, UINT64_MAX);
}

static void kvs_report_command(struct kvs_report *r)
{
	static const struct {
		const char *name;
		void (*fn)(struct kvs_report *r);
	} commands[] = {
		{ "status", kvs_report_status },
		{ "rooms", kvs_report_rooms },
		{ "holds", kvs_report_holds },
		{ "pools", kvs_report_pools },
		{ "cache", kvs_report_cache },
		{ "evict", kvs_report_evict },
		{ "scrub", kvs_report_scrub },
		{ "verify", kvs_report_verify },
		{ "topo", kvs_report_topo },
		{ "rdma", kvs_report_rdma },
		{ "settings", kvs_report_settings },
		{ "abort", kvs_report_abort },
		{ "build", kvs_report_build },
		{ "limits", kvs_report_limits },
		{ "metrics", kvs_report_metrics },
	};
	const char *name =
		json_string_value(json_object_get(r->request, "command"));
	size_t i;

	for (i = 0; name && i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (!strcmp(name, commands[i].name)) {
			commands[i].fn(r);
			return;
		}
	}
	kvs_report_fail(
		r, -EINVAL,
		"not a request: want {\"command\":\"status\"} or "
		"rooms, holds, pools, cache, evict, scrub, verify, topo, rdma, "
		"settings, abort, build, limits, metrics");
}

int kvs_ctl_answer(struct kvs_daemon *d, const char *line, char **ret_text,
		   size_t *ret_len)
{
	struct kvs_report r = { .d = d };
	json_t *request = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
	char *text = NULL;
	size_t len = 0;
	bool bad;

	r.request = request;
	r.f = open_memstream(&text, &len);
	if (!r.f) {
		json_decref(request);
		return -ENOMEM;
	}
	kvs_report_command(&r);
	if (r.ret)
		kvs_report_line(&r,
				json_pack("{s:b, s:s, s:s}", "ok", 0, "errno",
					  kvs_err_name(r.ret), "error", r.err));
	else
		kvs_report_line(&r, json_pack("{s:b}", "ok", 1));
	bad = ferror(r.f) != 0;
	bad |= fclose(r.f) != 0;
	json_decref(request);
	if (bad) {
		free(text);
		return -ENOMEM;
	}
	*ret_text = text;
	*ret_len = len;
	return 0;
}
