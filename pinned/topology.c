/* SPDX-License-Identifier: Apache-2.0 */
#include "pinned/topology.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "pinned/topology_internal.h"

struct kvs_topology_node *kvs_topology_node_add(struct kvs_topology *topo)
{
	struct kvs_topology_node *p;

	p = reallocarray(topo->nodes, topo->n_nodes + 1, sizeof(*p));
	if (!p)
		return NULL;
	topo->nodes = p;
	p += topo->n_nodes++;
	memset(p, 0, sizeof(*p));
	p->cpu_node = -1;
	return p;
}

static int node_cmp(const void *a, const void *b)
{
	const struct kvs_topology_node *x = a, *y = b;

	return x->os_index < y->os_index ? -1 : x->os_index > y->os_index;
}

static int topology_new(const char *root, struct kvs_topology **ret_topo)
{
	struct kvs_topology *topo = calloc(1, sizeof(*topo));

	if (!topo)
		return -ENOMEM;
	topo->magic = KVS_TOPOLOGY_MAGIC;
	topo->root = strdup(root);
	if (!topo->root) {
		free(topo);
		return -ENOMEM;
	}
	*ret_topo = topo;
	return 0;
}

/*
 * Where memory is brought up lazily a node's own file shows too little at
 * first. With one node the machine's total is the node's.
 */
static void fix_single_node(struct kvs_topology *topo)
{
	uint64_t kb;
	char *text;

	if (!topo->sysfs || topo->n_nodes != 1 ||
	    kvs_sysfs_read(topo->root, "/proc/meminfo", &text) < 0)
		return;
	if (!kvs_sysfs_field(text, "MemTotal:", &kb) &&
	    kb <= UINT64_MAX / 1024 && kb * 1024 > topo->nodes[0].bytes)
		topo->nodes[0].bytes = kb * 1024;
	free(text);
}

static int topology_finish(struct kvs_topology *topo, int r,
			   struct kvs_topology **ret_topo)
{
	if (!r && !topo->n_nodes)
		r = -EINVAL;
	if (r < 0) {
		kvs_topology_destroy(topo);
		return r;
	}
	fix_single_node(topo);
	qsort(topo->nodes, topo->n_nodes, sizeof(*topo->nodes), node_cmp);
	*ret_topo = topo;
	return 0;
}

int kvs_topology_load(const char *xml, struct kvs_topology **ret_topo)
{
	struct kvs_topology *topo;
	int r = topology_new("", &topo);

	if (r < 0)
		return r;
	return topology_finish(topo, kvs_topology_hw_load(topo, xml), ret_topo);
}

int kvs_topology_load_sysfs(const char *root, struct kvs_topology **ret_topo)
{
	struct kvs_topology *topo;
	int r = topology_new(root ? root : "", &topo);

	if (r < 0)
		return r;
	return topology_finish(topo, kvs_topology_sysfs_read(topo), ret_topo);
}

void kvs_topology_destroy(struct kvs_topology *topo)
{
	if (!topo)
		return;
	KVS_CHECK_MAGIC(topo, KVS_TOPOLOGY_MAGIC);
	topo->magic = 0;
	kvs_topology_hw_free(topo);
	free(topo->nodes);
	free(topo->root);
	free(topo);
}

bool kvs_topology_is_thissystem(const struct kvs_topology *topo)
{
	KVS_CHECK_MAGIC(topo, KVS_TOPOLOGY_MAGIC);
	return topo->thissystem;
}

size_t kvs_topology_node_count(const struct kvs_topology *topo)
{
	KVS_CHECK_MAGIC(topo, KVS_TOPOLOGY_MAGIC);
	return topo->n_nodes;
}

const struct kvs_topology_node *
kvs_topology_node_at(const struct kvs_topology *topo, size_t i)
{
	KVS_CHECK_MAGIC(topo, KVS_TOPOLOGY_MAGIC);
	KVS_ASSERT(i < topo->n_nodes);
	return &topo->nodes[i];
}

const struct kvs_topology_node *
kvs_topology_node_find(const struct kvs_topology *topo, int os_index)
{
	size_t i;

	KVS_CHECK_MAGIC(topo, KVS_TOPOLOGY_MAGIC);
	for (i = 0; i < topo->n_nodes; i++)
		if (topo->nodes[i].os_index == os_index)
			return &topo->nodes[i];
	return NULL;
}

bool kvs_topology_node_eligible(const struct kvs_topology_node *node)
{
	return node->allowed && node->bytes && !node->gpu_memory;
}

int kvs_topology_pick(const struct kvs_topology *topo, const uint64_t *mask)
{
	const struct kvs_topology_node *n;
	size_t i, in = 0, out = 0;
	int best = -1, best_cpu = -1;
	bool near;

	for (i = 0; i < topo->n_nodes; i++) {
		n = &topo->nodes[i];
		if (n->gpu_memory)
			continue;
		near = kvs_mask_test(mask, (unsigned int)n->os_index);
		/* Memory-only nodes must not make "all of them" look less. */
		if (!n->has_cpus) {
			if (near && best < 0)
				best = n->os_index;
			continue;
		}
		if (near && best_cpu < 0)
			best_cpu = n->os_index;
		in += near;
		out += !near;
	}
	if (!out && in > 1)
		return -1;
	return best_cpu >= 0 ? best_cpu : best;
}

/* Reads up to @max hex digits, at least one. */
static const char *hex(const char *s, int max, unsigned int *ret)
{
	unsigned int v = 0;
	int i, c;

	for (i = 0; i < max && isxdigit((unsigned char)*s); i++, s++) {
		c = tolower((unsigned char)*s);
		v = v << 4 | (unsigned int)(c <= '9' ? c - '0' : c - 'a' + 10);
	}
	*ret = v;
	return i ? s : NULL;
}

static int pci_parse(const char *s, struct kvs_topology_pci *pci)
{
	const char *p = s;

	pci->domain = 0;
	if (strchr(s, ':') != strrchr(s, ':')) {
		p = hex(p, 8, &pci->domain);
		if (!p || *p++ != ':')
			return -EINVAL;
	}
	p = hex(p, 2, &pci->bus);
	if (!p || *p++ != ':')
		return -EINVAL;
	p = hex(p, 2, &pci->dev);
	if (!p || *p++ != '.' || pci->dev > 31)
		return -EINVAL;
	p = hex(p, 1, &pci->func);
	if (!p || *p || pci->func > 7)
		return -EINVAL;
	return 0;
}

static int distance(const struct kvs_topology *topo, int from, int to)
{
	if (from < 0 || !topo->sysfs)
		return INT_MAX;
	return from == to ? 0 : kvs_topology_sysfs_distance(topo, from, to);
}

size_t kvs_topology_nearest(const struct kvs_topology *topo, int from,
			    const int *nodes, size_t n)
{
	const struct kvs_topology_node *f = kvs_topology_node_find(topo, from);
	int d, best_d = INT_MAX;
	size_t i, best = 0;

	KVS_ASSERT(n);
	for (i = 0; i < n; i++)
		if (nodes[i] == from)
			return i;
	for (i = 0; i < n; i++) {
		d = distance(topo, from, nodes[i]);
		if (d > best_d ||
		    (d == best_d && i && (!f || f->cpu_node != nodes[i])))
			continue;
		best_d = d;
		best = i;
	}
	return best;
}

/* Nearest to @from of the nodes that pass, those with CPUs first. */
static const struct kvs_topology_node *
nearest_passing(const struct kvs_topology *topo, int from,
		bool (*pass)(const struct kvs_topology_node *n))
{
	const struct kvs_topology_node *n;
	int nodes[KVS_MAX_NODES];
	size_t i, used;
	bool cpus;

	for (cpus = true;; cpus = false) {
		used = 0;
		for (i = 0; i < topo->n_nodes; i++) {
			n = &topo->nodes[i];
			if (pass(n) && (n->has_cpus || !cpus))
				nodes[used++] = n->os_index;
		}
		if (used)
			break;
		if (!cpus)
			return NULL;
	}
	return kvs_topology_node_find(
		topo, nodes[kvs_topology_nearest(topo, from, nodes, used)]);
}

static bool of_the_host(const struct kvs_topology_node *n)
{
	return !n->gpu_memory;
}

/* A device may be next to GPU memory, or to a node without memory. */
static int settle(const struct kvs_topology *topo, int node)
{
	const struct kvs_topology_node *n = kvs_topology_node_find(topo, node);

	if (n && !n->gpu_memory)
		return node;
	if (n) {
		n = kvs_topology_node_find(topo, n->cpu_node);
		return n && !n->gpu_memory ? n->os_index : -1;
	}
	if (node < 0)
		return -1;
	n = nearest_passing(topo, node, of_the_host);
	return n ? n->os_index : -1;
}

/* A second reader that knows nothing does not take an answer away. */
static int better(int first, int second)
{
	return second < 0 ? first : second;
}

int kvs_topology_pci_node(const struct kvs_topology *topo, const char *bdf,
			  int *ret_node)
{
	struct kvs_topology_pci pci;
	int r, node;

	KVS_CHECK_MAGIC(topo, KVS_TOPOLOGY_MAGIC);
	r = pci_parse(bdf, &pci);
	if (r < 0)
		return r;
	r = kvs_topology_hw_pci_node(topo, &pci, &node);
	/* hwloc lists no nodes without memory, and so nothing next to them */
	if ((r == -ENOENT || (!r && node < 0)) && topo->sysfs)
		r = better(r, kvs_topology_sysfs_pci_node(topo, &pci, &node));
	if (r < 0)
		return r;
	*ret_node = settle(topo, node);
	return 0;
}

int kvs_topology_nic_node(const struct kvs_topology *topo, const char *name,
			  int *ret_node)
{
	int r, node;

	KVS_CHECK_MAGIC(topo, KVS_TOPOLOGY_MAGIC);
	if (!*name || strlen(name) > 63 || strchr(name, '/') || name[0] == '.')
		return -EINVAL;
	r = kvs_topology_hw_nic_node(topo, name, &node);
	if ((r == -ENOENT || (!r && node < 0)) && topo->sysfs)
		r = better(r, kvs_topology_sysfs_nic_node(topo, name, &node));
	if (r < 0)
		return r;
	*ret_node = settle(topo, node);
	return 0;
}

struct each_nic {
	const struct kvs_topology *topo;
	void (*fn)(void *arg, const char *name, int node);
	void *arg;
};

static void each_nic(void *arg, const char *name)
{
	const struct each_nic *e = arg;
	int node;

	if (!kvs_topology_nic_node(e->topo, name, &node))
		e->fn(e->arg, name, node);
}

int kvs_topology_each_nic(const struct kvs_topology *topo,
			  void (*fn)(void *arg, const char *name, int node),
			  void *arg)
{
	struct each_nic e = { topo, fn, arg };

	KVS_CHECK_MAGIC(topo, KVS_TOPOLOGY_MAGIC);
	return topo->sysfs ? kvs_topology_sysfs_each_nic(topo, each_nic, &e)
			   : 0;
}

int kvs_topology_auto_node(const struct kvs_topology *topo, int near,
			   int *ret_node)
{
	const struct kvs_topology_node *n, *best = NULL;
	size_t i;

	KVS_CHECK_MAGIC(topo, KVS_TOPOLOGY_MAGIC);
	n = kvs_topology_node_find(topo, near);
	if (n && !kvs_topology_node_eligible(n))
		n = kvs_topology_node_find(topo, n->cpu_node);
	if (!n || !kvs_topology_node_eligible(n)) {
		n = nearest_passing(topo, near, kvs_topology_node_eligible);
		if (!n)
			return -ENXIO;
		if (distance(topo, near, n->os_index) == INT_MAX)
			n = NULL;
	}
	if (n) {
		*ret_node = n->os_index;
		return 0;
	}
	for (i = 0; i < topo->n_nodes; i++) {
		n = &topo->nodes[i];
		if (!kvs_topology_node_eligible(n))
			continue;
		if (!best || n->has_cpus > best->has_cpus ||
		    (n->has_cpus == best->has_cpus && n->bytes > best->bytes))
			best = n;
	}
	if (!best)
		return -ENXIO;
	*ret_node = best->os_index;
	return 0;
}
