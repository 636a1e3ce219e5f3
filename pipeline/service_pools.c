/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/service_pools.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/units.h"

static int add_node(struct kvs_node *nodes, unsigned int *n, int numa,
		    char *err, size_t errlen)
{
	for (unsigned int i = 0; i < *n; i++) {
		if (nodes[i].numa != numa)
			continue;
		snprintf(err, errlen, "pool.nodes: %d is named twice", numa);
		return -EINVAL;
	}
	if (*n == KVS_NODES_MAX) {
		snprintf(err, errlen, "pool.nodes: more than %d nodes",
			 KVS_NODES_MAX);
		return -EINVAL;
	}
	nodes[*n].numa = numa;
	nodes[*n].index = *n;
	(*n)++;
	return 0;
}

/*
 * Every node that automatic placement may use and whose CPUs we may run on;
 * where there is none, the nearest one to where we run. A machine whose nodes
 * cannot be told apart gets one unbound pool.
 */
static int choose_auto(struct kvs_node *nodes, unsigned int *n,
		       struct kvs_topology *topo, char *err, size_t errlen)
{
	unsigned int here;
	int near = -1, ret = 0;

	for (size_t i = 0; i < kvs_topology_node_count(topo) && !ret; i++) {
		const struct kvs_topology_node *t =
			kvs_topology_node_at(topo, i);

		if (kvs_topology_node_eligible(t) && t->has_cpus &&
		    CPU_COUNT(&t->cpus))
			ret = add_node(nodes, n, t->os_index, err, errlen);
	}
	if (ret || *n)
		return ret;
	if (kvs_topology_is_thissystem(topo) && !getcpu(NULL, &here))
		near = (int)here;
	if (kvs_topology_auto_node(topo, near, &near))
		near = -1;
	return add_node(nodes, n, near, err, errlen);
}

static int choose_list(struct kvs_node *nodes, unsigned int *n,
		       struct kvs_topology *topo, const char *list, char *err,
		       size_t errlen)
{
	char buf[KVS_STRING_MAX];
	char *save = NULL, *p;
	uint64_t v;
	int ret;

	snprintf(buf, sizeof(buf), "%s", list);
	for (p = strtok_r(buf, ",", &save); p; p = strtok_r(NULL, ",", &save)) {
		if (kvs_parse_u64(p, &v) || v > 1023) {
			snprintf(err, errlen,
				 "pool.nodes: %s: not \"auto\" or a list of "
				 "node numbers",
				 list);
			return -EINVAL;
		}
		if (!kvs_topology_node_find(topo, (int)v)) {
			snprintf(err, errlen,
				 "pool.nodes: node %s has no memory or is not "
				 "there",
				 p);
			return -ENXIO;
		}
		ret = add_node(nodes, n, (int)v, err, errlen);
		if (ret)
			return ret;
	}
	if (*n)
		return 0;
	snprintf(err, errlen, "pool.nodes: empty list");
	return -EINVAL;
}

static uint64_t page_size_max(const char *choice)
{
	if (!strcmp(choice, "1G"))
		return KVS_PAGE_1G;
	if (!strcmp(choice, "2M"))
		return KVS_PAGE_2M;
	if (!strcmp(choice, "4K"))
		return (uint64_t)sysconf(_SC_PAGESIZE);
	return 0;
}

struct pool_progress {
	const struct kvs_service_events *ev;
	const char *name;
	int node;
};

static void pool_progress(void *arg, const struct kvs_prefault_progress *p)
{
	const struct pool_progress *g = arg;

	if (g->ev && g->ev->prefault)
		g->ev->prefault(g->ev->arg, g->name, g->node, p->done,
				p->total);
}

static int make_region(const struct kvs_node *n, bool offload,
		       const struct kvs_settings *s, struct kvs_topology *topo,
		       const struct kvs_service_events *ev, atomic_bool *cancel,
		       char *err, size_t errlen, struct kvs_region **ret)
{
	struct pool_progress g = {
		.ev = ev,
		.name = offload ? "offload" : "receive",
		.node = n->numa,
	};
	struct kvs_region_opts o = {
		.name = offload ? "kvstage-offload" : "kvstage-receive",
		.setting = offload ? "pool.offload_size" : "pool.size",
		.size = offload ? s->offload_size : s->pool_size,
		.node = n->numa,
		.strict = s->pool_strict && n->numa >= 0,
		.page_size_max = page_size_max(s->pool_page_size),
		.kind = offload ? KVS_REGION_OFFLOAD : KVS_REGION_RECEIVE,
		.allow_smaller = s->pool_allow_smaller,
		.lock = true,
		.threads = s->prefault_threads,
		.progress = pool_progress,
		.progress_arg = &g,
		.cancel = cancel,
		.topology = topo,
		.err = err,
		.err_len = errlen,
	};
	int res = kvs_region_create(&o, ret);

	if (!res && ev && ev->pool)
		ev->pool(ev->arg, g.name, n->numa, (*ret)->why);
	return res;
}

int kvs_service_nodes(struct kvs_node *nodes, unsigned int *ret_n,
		      const struct kvs_settings *s, struct kvs_topology *topo,
		      char *err, size_t errlen)
{
	if (!strcmp(s->pool_nodes, "auto"))
		return choose_auto(nodes, ret_n, topo, err, errlen);
	return choose_list(nodes, ret_n, topo, s->pool_nodes, err, errlen);
}

int kvs_service_pools(struct kvs_node *nodes, unsigned int n,
		      const struct kvs_settings *s, struct kvs_topology *topo,
		      const struct kvs_service_events *ev, atomic_bool *cancel,
		      char *err, size_t errlen)
{
	int ret = 0;

	for (unsigned int i = 0; i < n && !ret; i++) {
		ret = make_region(&nodes[i], false, s, topo, ev, cancel, err,
				  errlen, &nodes[i].region);
		if (!ret && s->offload_size)
			ret = make_region(&nodes[i], true, s, topo, ev, cancel,
					  err, errlen, &nodes[i].offload);
	}
	return ret;
}
