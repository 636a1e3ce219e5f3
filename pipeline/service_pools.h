/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_PIPELINE_SERVICE_POOLS_H
#define KVS_PIPELINE_SERVICE_POOLS_H

#include "pipeline/node.h"
#include "pipeline/service.h"

/**
 * kvs_service_nodes() - choose the nodes
 * @nodes: KVS_NODES_MAX of them; index and numa are filled in
 * @ret_n: how many, from 0; nodes of it that may be used, also on failure
 *
 * Return: 0; -EINVAL pool.nodes; -ENXIO a node that is not there. @err names
 * the setting.
 */
int kvs_service_nodes(struct kvs_node *nodes, unsigned int *ret_n,
		      const struct kvs_settings *s, struct kvs_topology *topo,
		      char *err, size_t errlen);

/**
 * kvs_service_pools() - get the memory of the nodes
 * @nodes: @n of them; region and offload are filled in
 *
 * Context: blocks while memory is populated.
 * Return: 0; what kvs_region_create() returns. @err names the setting.
 */
int kvs_service_pools(struct kvs_node *nodes, unsigned int n,
		      const struct kvs_settings *s, struct kvs_topology *topo,
		      const struct kvs_service_events *ev, atomic_bool *cancel,
		      char *err, size_t errlen);

#endif /* KVS_PIPELINE_SERVICE_POOLS_H */
