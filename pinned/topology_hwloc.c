/* SPDX-License-Identifier: Apache-2.0 */
/* Topology by hwloc 2.x: this machine, or a recorded XML of any machine. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <hwloc.h>

#include "lib/assert.h"
#include "pinned/topology_internal.h"

/*
 * Plugins that would open GPU drivers (and with cuda make a context) or an X
 * display: PCI locality needs none of them. Without "pci" hwloc reads sysfs
 * itself, where libpciaccess would leak its device list.
 */
static const char *const blacklist[] = { "cuda", "nvml",      "opencl", "rsmi",
					 "gl",	 "levelzero", "pci" };

static bool is_gpu_memory(hwloc_obj_t obj)
{
	return obj->subtype && !strncasecmp(obj->subtype, "GPU", 3);
}

/*
 * hwloc gives a node without CPUs the CPUs it is close to, in the worst case
 * all of the machine. So of the nodes that share CPUs the one with the fewest
 * owns them; of equal ones the first, as kernels number the nodes that have
 * CPUs first.
 */
static bool has_own_cpus(hwloc_topology_t hw, hwloc_obj_t obj)
{
	int mine = hwloc_bitmap_weight(obj->cpuset), theirs;
	hwloc_obj_t o = NULL;

	if (is_gpu_memory(obj) || mine <= 0)
		return false;
	while ((o = hwloc_get_next_obj_by_type(hw, HWLOC_OBJ_NUMANODE, o))) {
		if (o == obj || is_gpu_memory(o) ||
		    !hwloc_bitmap_intersects(o->cpuset, obj->cpuset))
			continue;
		theirs = hwloc_bitmap_weight(o->cpuset);
		if (theirs < mine ||
		    (theirs == mine && o->os_index < obj->os_index))
			return false;
	}
	return true;
}

/*
 * hwloc's allowed CPUs are those of the cgroup; a mask (taskset, CPUAffinity=
 * of a unit) may leave less.
 */
static void fill_cpus(hwloc_topology_t hw, hwloc_obj_t obj, cpu_set_t *set)
{
	hwloc_const_cpuset_t allowed = hwloc_topology_get_allowed_cpuset(hw);
	cpu_set_t mine;
	bool masked = hwloc_topology_is_thissystem(hw) &&
		      !sched_getaffinity(0, sizeof(mine), &mine);
	int i = -1;

	while ((i = hwloc_bitmap_next(obj->cpuset, i)) >= 0 && i < CPU_SETSIZE)
		if (hwloc_bitmap_isset(allowed, (unsigned int)i) &&
		    (!masked || CPU_ISSET(i, &mine)))
			CPU_SET(i, set);
}

static int add_node(struct kvs_topology *topo, hwloc_obj_t obj)
{
	hwloc_topology_t hw = topo->hw;
	struct kvs_topology_node *n;
	uint64_t bytes = obj->attr->numanode.local_memory;

	if (!bytes || obj->os_index >= KVS_MAX_NODES)
		return 0;
	n = kvs_topology_node_add(topo);
	if (!n)
		return -ENOMEM;
	n->os_index = (int)obj->os_index;
	n->bytes = bytes;
	n->gpu_memory = is_gpu_memory(obj);
	n->has_cpus = has_own_cpus(hw, obj);
	n->allowed = hwloc_bitmap_isset(hwloc_topology_get_allowed_nodeset(hw),
					obj->os_index);
	if (n->has_cpus) {
		n->cpu_node = n->os_index;
		fill_cpus(hw, obj, &n->cpus);
	}
	return 0;
}

static hwloc_obj_t numa_obj(hwloc_topology_t hw, int os_index)
{
	return hwloc_get_numanode_obj_by_os_index(hw, (unsigned int)os_index);
}

/* Latency between two nodes; UINT64_MAX when the matrix does not say. */
static uint64_t latency(const struct hwloc_distances_s *d, hwloc_obj_t from,
			hwloc_obj_t to)
{
	int i, j;

	if (!d)
		return UINT64_MAX;
	i = hwloc_distances_obj_index((struct hwloc_distances_s *)d, from);
	j = hwloc_distances_obj_index((struct hwloc_distances_s *)d, to);
	if (i < 0 || j < 0)
		return UINT64_MAX;
	return d->values[(unsigned int)i * d->nbobjs + (unsigned int)j];
}

static void find_cpu_node(struct kvs_topology *topo,
			  const struct hwloc_distances_s *d,
			  struct kvs_topology_node *n)
{
	hwloc_topology_t hw = topo->hw;
	hwloc_obj_t self = numa_obj(hw, n->os_index), obj;
	uint64_t cost, best = UINT64_MAX;
	bool local, best_local = false;
	size_t i;

	for (i = 0; i < topo->n_nodes; i++) {
		const struct kvs_topology_node *c = &topo->nodes[i];

		if (!c->has_cpus)
			continue;
		obj = numa_obj(hw, c->os_index);
		/* What hwloc found to be local comes first, then latency. */
		local = hwloc_bitmap_intersects(self->cpuset, obj->cpuset);
		cost = latency(d, self, obj);
		if (n->cpu_node >= 0 && (local < best_local ||
					 (local == best_local && cost >= best)))
			continue;
		best = cost;
		best_local = local;
		n->cpu_node = c->os_index;
		n->cpus = c->cpus;
	}
}

static int read_nodes(struct kvs_topology *topo)
{
	hwloc_topology_t hw = topo->hw;
	struct hwloc_distances_s *d = NULL;
	unsigned int nr = 1;
	hwloc_obj_t obj = NULL;
	size_t i;
	int r;

	while ((obj = hwloc_get_next_obj_by_type(hw, HWLOC_OBJ_NUMANODE,
						 obj))) {
		r = add_node(topo, obj);
		if (r < 0)
			return r;
	}
	if (hwloc_distances_get_by_name(hw, "NUMALatency", &nr, &d, 0) < 0 ||
	    !nr)
		d = NULL;
	for (i = 0; i < topo->n_nodes; i++)
		if (!topo->nodes[i].has_cpus)
			find_cpu_node(topo, d, &topo->nodes[i]);
	if (d)
		hwloc_distances_release(hw, d);
	return 0;
}

/* hwloc answers -1 with a vague errno for a file it cannot open. */
static int check_readable(const char *xml)
{
	int fd = open(xml, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	close(fd);
	return 0;
}

int kvs_topology_hw_load(struct kvs_topology *topo, const char *xml)
{
	hwloc_topology_t hw;
	size_t i;
	int r;

	if (xml) {
		r = check_readable(xml);
		if (r < 0)
			return r;
	}
	if (hwloc_topology_init(&hw) < 0)
		return -ENOMEM;
	topo->hw = hw;
	for (i = 0; i < KVS_ARRAY_SIZE(blacklist); i++)
		hwloc_topology_set_components(
			hw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
			blacklist[i]);
	if (hwloc_topology_set_io_types_filter(
		    hw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) < 0 ||
	    hwloc_topology_set_flags(
		    hw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) < 0)
		return -EINVAL;
	if (xml && hwloc_topology_set_xml(hw, xml) < 0)
		return -EINVAL;
	if (hwloc_topology_load(hw) < 0)
		return -EINVAL;
	/* HWLOC_XMLFILE and HWLOC_SYNTHETIC make it another machine too. */
	topo->thissystem = hwloc_topology_is_thissystem(hw);
	topo->sysfs = topo->thissystem;
	return read_nodes(topo);
}

void kvs_topology_hw_free(struct kvs_topology *topo)
{
	if (topo->hw)
		hwloc_topology_destroy(topo->hw);
	topo->hw = NULL;
}

static int near_node(const struct kvs_topology *topo, hwloc_obj_t dev)
{
	hwloc_obj_t obj = hwloc_get_non_io_ancestor_obj(topo->hw, dev);
	uint64_t mask[KVS_MASK_WORDS(KVS_MAX_NODES)] = { 0 };
	int i = -1;

	if (!obj || !obj->nodeset)
		return -1;
	while ((i = hwloc_bitmap_next(obj->nodeset, i)) >= 0 &&
	       i < KVS_MAX_NODES)
		kvs_mask_set(mask, (unsigned int)i);
	return kvs_topology_pick(topo, mask);
}

int kvs_topology_hw_pci_node(const struct kvs_topology *topo,
			     const struct kvs_topology_pci *pci, int *ret_node)
{
	const struct hwloc_pcidev_attr_s *a;
	hwloc_obj_t obj = NULL;

	if (!topo->hw)
		return -ENOENT;
	while ((obj = hwloc_get_next_pcidev(topo->hw, obj))) {
		a = &obj->attr->pcidev;
		if (a->domain != pci->domain || a->bus != pci->bus ||
		    a->dev != pci->dev || a->func != pci->func)
			continue;
		*ret_node = near_node(topo, obj);
		return 0;
	}
	return -ENOENT;
}

int kvs_topology_hw_nic_node(const struct kvs_topology *topo, const char *name,
			     int *ret_node)
{
	hwloc_obj_t obj = NULL;

	if (!topo->hw)
		return -ENOENT;
	while ((obj = hwloc_get_next_osdev(topo->hw, obj))) {
		if (obj->attr->osdev.type != HWLOC_OBJ_OSDEV_NETWORK &&
		    obj->attr->osdev.type != HWLOC_OBJ_OSDEV_OPENFABRICS)
			continue;
		if (!obj->name || strcmp(obj->name, name) != 0)
			continue;
		*ret_node = near_node(topo, obj);
		return 0;
	}
	return -ENOENT;
}
