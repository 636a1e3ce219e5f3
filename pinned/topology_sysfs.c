/* SPDX-License-Identifier: Apache-2.0 */
/* Topology read from /sys/devices/system/node and the devices' numa_node. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pinned/topology_internal.h"

/* Bonds and VLANs are followed down this many times. */
#define NIC_DEPTH 4

static int read_list(const char *root, const char *path, uint64_t *mask,
		     unsigned int bits)
{
	char *buf;
	int r = kvs_sysfs_read(root, path, &buf);

	if (r < 0)
		return r;
	r = kvs_sysfs_list(buf, mask, bits);
	free(buf);
	return r;
}

/* What this process may use; everything where the kernel does not say. */
static void read_allowed(const char *root, uint64_t *mems, uint64_t *cpus)
{
	const char *v;
	char *buf;

	memset(mems, 0xff, KVS_MASK_WORDS(KVS_MAX_NODES) * sizeof(*mems));
	memset(cpus, 0xff, KVS_MASK_WORDS(CPU_SETSIZE) * sizeof(*cpus));
	if (kvs_sysfs_read(root, "/proc/self/status", &buf) < 0)
		return;
	v = kvs_sysfs_value(buf, "Mems_allowed_list:");
	if (v)
		kvs_sysfs_list(v, mems, KVS_MAX_NODES);
	v = kvs_sysfs_value(buf, "Cpus_allowed_list:");
	if (v)
		kvs_sysfs_list(v, cpus, CPU_SETSIZE);
	free(buf);
}

static int read_node(struct kvs_topology *topo, unsigned int index,
		     const uint64_t *mems, const uint64_t *cpus)
{
	uint64_t own[KVS_MASK_WORDS(CPU_SETSIZE)], kb;
	struct kvs_topology_node *n;
	char path[96], key[32], *buf;
	unsigned int i;
	int r;

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%u/meminfo",
		 index);
	r = kvs_sysfs_read(topo->root, path, &buf);
	if (r < 0)
		return r;
	snprintf(key, sizeof(key), "Node %u MemTotal:", index);
	r = kvs_sysfs_field(buf, key, &kb);
	free(buf);
	if (r < 0 || !kb || kb > UINT64_MAX / 1024)
		return 0; /* a node without memory is not ours to list */
	n = kvs_topology_node_add(topo);
	if (!n)
		return -ENOMEM;
	n->os_index = (int)index;
	n->bytes = kb * 1024;
	n->allowed = kvs_mask_test(mems, index);
	snprintf(path, sizeof(path), "/sys/devices/system/node/node%u/cpulist",
		 index);
	if (read_list(topo->root, path, own, CPU_SETSIZE) < 0)
		return 0;
	for (i = 0; i < CPU_SETSIZE; i++) {
		if (!kvs_mask_test(own, i))
			continue;
		n->has_cpus = true;
		if (kvs_mask_test(cpus, i))
			CPU_SET(i, &n->cpus);
	}
	if (n->has_cpus)
		n->cpu_node = n->os_index;
	return 0;
}

/* The n-th number of nodeN/distance is the distance to the n-th online node. */
static unsigned long distance_to(const char *text, const uint64_t *online,
				 unsigned int node)
{
	unsigned long d = ULONG_MAX;
	unsigned int i;
	char *end;

	for (i = 0; i <= node; i++) {
		if (!kvs_mask_test(online, i))
			continue;
		d = strtoul(text, &end, 10);
		if (end == text)
			return ULONG_MAX;
		text = end;
	}
	return d;
}

int kvs_topology_sysfs_distance(const struct kvs_topology *topo, int from,
				int to)
{
	uint64_t online[KVS_MASK_WORDS(KVS_MAX_NODES)];
	unsigned long d = ULONG_MAX;
	char path[96], *buf;

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/distance",
		 from);
	if (to < 0 || to >= KVS_MAX_NODES ||
	    read_list(topo->root, "/sys/devices/system/node/online", online,
		      KVS_MAX_NODES) < 0 ||
	    !kvs_mask_test(online, (unsigned int)to) ||
	    kvs_sysfs_read(topo->root, path, &buf) < 0)
		return INT_MAX;
	d = distance_to(buf, online, (unsigned int)to);
	free(buf);
	return d < INT_MAX ? (int)d : INT_MAX;
}

static void find_cpu_node(struct kvs_topology *topo, const uint64_t *online,
			  struct kvs_topology_node *n)
{
	unsigned long d, best = ULONG_MAX;
	char path[96], *buf = NULL;
	size_t i;

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/distance",
		 n->os_index);
	if (kvs_sysfs_read(topo->root, path, &buf) < 0)
		buf = NULL;
	for (i = 0; i < topo->n_nodes; i++) {
		struct kvs_topology_node *c = &topo->nodes[i];

		if (!c->has_cpus)
			continue;
		d = buf ? distance_to(buf, online, (unsigned int)c->os_index)
			: ULONG_MAX;
		if (n->cpu_node >= 0 && d >= best)
			continue;
		best = d;
		n->cpu_node = c->os_index;
		n->cpus = c->cpus;
	}
	free(buf);
}

static void mark_gpu_node(struct kvs_topology *topo, const char *gpu)
{
	char path[PATH_MAX], *buf;
	uint64_t node;
	size_t i;
	int r;

	r = snprintf(path, sizeof(path),
		     "/proc/driver/nvidia/gpus/%s/numa_status", gpu);
	if (r < 0 || (size_t)r >= sizeof(path) ||
	    kvs_sysfs_read(topo->root, path, &buf) < 0)
		return;
	r = kvs_sysfs_field(buf, "Node:", &node);
	free(buf);
	for (i = 0; !r && i < topo->n_nodes; i++)
		if ((uint64_t)topo->nodes[i].os_index == node)
			topo->nodes[i].gpu_memory = true;
}

/* The driver says which node is a GPU's memory; sysfs itself does not. */
static void mark_gpu_nodes(struct kvs_topology *topo)
{
	char path[PATH_MAX];
	struct dirent *e;
	DIR *dir;
	int r;

	r = snprintf(path, sizeof(path), "%s/proc/driver/nvidia/gpus",
		     topo->root);
	if (r < 0 || (size_t)r >= sizeof(path))
		return;
	dir = opendir(path);
	if (!dir)
		return;
	while ((e = readdir(dir)))
		if (e->d_name[0] != '.')
			mark_gpu_node(topo, e->d_name);
	closedir(dir);
}

int kvs_topology_sysfs_read(struct kvs_topology *topo)
{
	uint64_t online[KVS_MASK_WORDS(KVS_MAX_NODES)];
	uint64_t mems[KVS_MASK_WORDS(KVS_MAX_NODES)];
	uint64_t cpus[KVS_MASK_WORDS(CPU_SETSIZE)];
	unsigned int i;
	size_t k;
	int r;

	topo->thissystem = !*topo->root;
	topo->sysfs = true;
	r = read_list(topo->root, "/sys/devices/system/node/online", online,
		      KVS_MAX_NODES);
	if (r < 0)
		return r;
	read_allowed(topo->root, mems, cpus);
	for (i = 0; i < KVS_MAX_NODES; i++) {
		if (!kvs_mask_test(online, i))
			continue;
		r = read_node(topo, i, mems, cpus);
		if (r < 0)
			return r;
	}
	for (k = 0; k < topo->n_nodes; k++)
		if (!topo->nodes[k].has_cpus)
			find_cpu_node(topo, online, &topo->nodes[k]);
	mark_gpu_nodes(topo);
	return 0;
}

static int device_node(const struct kvs_topology *topo, const char *dir,
		       int *ret_node)
{
	uint64_t mask[KVS_MASK_WORDS(KVS_MAX_NODES)] = { 0 };
	char path[PATH_MAX];
	int r, node;

	r = snprintf(path, sizeof(path), "%s/numa_node", dir);
	if (r < 0 || (size_t)r >= sizeof(path))
		return -ENAMETOOLONG;
	r = kvs_sysfs_int(topo->root, path, &node);
	if (r < 0)
		return r;
	if (node < 0 || node >= KVS_MAX_NODES) {
		/* Firmware did not say; with one candidate it is clear. */
		memset(mask, 0xff, sizeof(mask));
		node = kvs_topology_pick(topo, mask);
	}
	*ret_node = node;
	return 0;
}

int kvs_topology_sysfs_pci_node(const struct kvs_topology *topo,
				const struct kvs_topology_pci *pci,
				int *ret_node)
{
	char path[96];

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%04x:%02x:%02x.%x",
		 pci->domain, pci->bus, pci->dev, pci->func);
	return device_node(topo, path, ret_node);
}

static bool exists(const char *root, const char *path)
{
	char full[PATH_MAX];
	int n = snprintf(full, sizeof(full), "%s%s", root, path);

	return n > 0 && (size_t)n < sizeof(full) && !access(full, F_OK);
}

static int netdev_node(const struct kvs_topology *topo, const char *name,
		       int depth, int *ret_node)
{
	char path[PATH_MAX];
	int r, node, seen = 0, agreed = -1;
	struct dirent *e;
	DIR *dir;

	r = snprintf(path, sizeof(path), "/sys/class/net/%s/device", name);
	if (r < 0 || (size_t)r + 4 >= sizeof(path))
		return -ENAMETOOLONG;
	/* A virtio NIC's numa_node is one level up, at its PCI function. */
	if (!device_node(topo, path, ret_node))
		return 0;
	memcpy(path + r, "/..", sizeof("/.."));
	if (!device_node(topo, path, ret_node))
		return 0;
	snprintf(path, sizeof(path), "/sys/class/net/%s", name);
	if (!exists(topo->root, path))
		return -ENOENT;
	*ret_node = -1;
	r = snprintf(path, sizeof(path), "%s/sys/class/net/%s", topo->root,
		     name);
	if (depth >= NIC_DEPTH || r < 0 || (size_t)r >= sizeof(path))
		return 0;
	dir = opendir(path);
	if (!dir)
		return 0;
	while ((e = readdir(dir))) {
		if (strncmp(e->d_name, "lower_", 6) != 0)
			continue;
		if (netdev_node(topo, e->d_name + 6, depth + 1, &node) < 0)
			continue;
		agreed = seen++ && node != agreed ? -1 : node;
	}
	closedir(dir);
	*ret_node = agreed;
	return 0;
}

int kvs_topology_sysfs_nic_node(const struct kvs_topology *topo,
				const char *name, int *ret_node)
{
	char path[PATH_MAX], *netdev;
	int r;

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/device", name);
	if (!device_node(topo, path, ret_node))
		return 0;
	snprintf(path, sizeof(path), "/sys/class/infiniband/%s", name);
	if (!exists(topo->root, path))
		return netdev_node(topo, name, 0, ret_node);
	/* A soft RDMA device has no slot; its network device may have one. */
	*ret_node = -1;
	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/parent", name);
	if (kvs_sysfs_read(topo->root, path, &netdev) < 0)
		return 0;
	netdev[strcspn(netdev, "\n")] = '\0';
	r = strchr(netdev, '/') ? -EINVAL
				: netdev_node(topo, netdev, 0, ret_node);
	free(netdev);
	if (r < 0)
		*ret_node = -1;
	return 0;
}

static int visible(const struct dirent *e)
{
	return e->d_name[0] != '.';
}

int kvs_topology_sysfs_each_nic(const struct kvs_topology *topo,
				void (*fn)(void *arg, const char *name),
				void *arg)
{
	static const char *const classes[] = { "net", "infiniband" };
	struct dirent **names;
	char path[PATH_MAX];
	size_t c;
	int i, n;

	for (c = 0; c < sizeof(classes) / sizeof(classes[0]); c++) {
		n = snprintf(path, sizeof(path), "%s/sys/class/%s", topo->root,
			     classes[c]);
		if (n < 0 || (size_t)n >= sizeof(path))
			continue;
		n = scandir(path, &names, visible, alphasort);
		if (n < 0 && errno == ENOMEM)
			return -ENOMEM;
		for (i = 0; i < n; i++) {
			fn(arg, names[i]->d_name);
			free(names[i]);
		}
		if (n >= 0)
			free(names);
	}
	return 0;
}
