/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the sources of topology share: topology.c has the decisions,
 * topology_sysfs.c and topology_hwloc.c (or topology_none.c) the readers.
 */
#ifndef KVS_PINNED_TOPOLOGY_INTERNAL_H
#define KVS_PINNED_TOPOLOGY_INTERNAL_H

#include "pinned/topology.h"

#define KVS_TOPOLOGY_MAGIC 0x4b544f50U

struct kvs_topology_pci {
	unsigned int domain, bus, dev, func;
};

/**
 * struct kvs_topology - see topology.h
 * @magic: KVS_TOPOLOGY_MAGIC
 * @thissystem: describes the machine we run on
 * @sysfs: the tree at @root describes the same machine: ask it for devices
 * @root: prefix for sysfs look-ups, owned
 * @nodes: @n_nodes entries, ascending by os_index
 * @hw: the reader's own state (hwloc_topology_t), or NULL
 */
struct kvs_topology {
	uint32_t magic;
	bool thissystem;
	bool sysfs;
	char *root;
	struct kvs_topology_node *nodes;
	size_t n_nodes;
	void *hw;
};

/*
 * The reader chosen at build time. load fills a zeroed topology and may
 * leave it half built on failure; the look-ups answer -ENOENT for what they
 * do not know and then sysfs is asked.
 */
int kvs_topology_hw_load(struct kvs_topology *topo, const char *xml);
void kvs_topology_hw_free(struct kvs_topology *topo);
int kvs_topology_hw_pci_node(const struct kvs_topology *topo,
			     const struct kvs_topology_pci *pci, int *ret_node);
int kvs_topology_hw_nic_node(const struct kvs_topology *topo, const char *name,
			     int *ret_node);

int kvs_topology_sysfs_read(struct kvs_topology *topo);
int kvs_topology_sysfs_pci_node(const struct kvs_topology *topo,
				const struct kvs_topology_pci *pci,
				int *ret_node);
int kvs_topology_sysfs_nic_node(const struct kvs_topology *topo,
				const char *name, int *ret_node);

/* What the firmware says; INT_MAX where it does not, or none of its files. */
int kvs_topology_sysfs_distance(const struct kvs_topology *topo, int from,
				int to);
int kvs_topology_sysfs_each_nic(const struct kvs_topology *topo,
				void (*fn)(void *arg, const char *name),
				void *arg);

/* Appends a zeroed node with cpu_node -1; NULL when out of memory. */
struct kvs_topology_node *kvs_topology_node_add(struct kvs_topology *topo);

/**
 * kvs_topology_pick() - the one node that stands for a set of near nodes
 * @topo: topology
 * @mask: near nodes, KVS_MAX_NODES bits
 *
 * Return: the lowest node of the set that is not GPU memory, one with CPUs if
 * there is; -1 when the set tells nothing (no such node, or all of several).
 */
int kvs_topology_pick(const struct kvs_topology *topo, const uint64_t *mask);

#endif /* KVS_PINNED_TOPOLOGY_INTERNAL_H */
