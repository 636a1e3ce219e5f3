/* SPDX-License-Identifier: Apache-2.0 */
/* Topology without hwloc: this machine by sysfs, nothing recorded. */
#include <errno.h>

#include "pinned/topology_internal.h"

int kvs_topology_hw_load(struct kvs_topology *topo, const char *xml)
{
	return xml ? -EOPNOTSUPP : kvs_topology_sysfs_read(topo);
}

void kvs_topology_hw_free(struct kvs_topology *topo)
{
	(void)topo;
}

int kvs_topology_hw_pci_node(const struct kvs_topology *topo,
			     const struct kvs_topology_pci *pci, int *ret_node)
{
	(void)topo;
	(void)pci;
	(void)ret_node;
	return -ENOENT;
}

int kvs_topology_hw_nic_node(const struct kvs_topology *topo, const char *name,
			     int *ret_node)
{
	(void)topo;
	(void)name;
	(void)ret_node;
	return -ENOENT;
}
