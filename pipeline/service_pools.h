/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_PIPELINE_SERVICE_POOLS_H
#define KVS_PIPELINE_SERVICE_POOLS_H

#include "pipeline/node.h"
#include "pipeline/service.h"

/**
 * kvs_service_pools() - choose the nodes and get their memory
 * @nodes: KVS_NODES_MAX of them; index, numa, region, offload are filled in
 * @ret_n: nodes that may own something, also on failure
 *
 * Context: blocks while memory is populated.
 * Return: 0; -EINVAL pool.nodes; -ENXIO a node that is not there; what
 * kvs_region_create() returns. @err names the setting.
 */
int kvs_service_pools(struct kvs_node *nodes, unsigned int *ret_n,
		      const struct kvs_settings *s, struct kvs_topology *topo,
		      const struct kvs_service_events *ev, atomic_bool *cancel,
		      char *err, size_t errlen);

#endif /* KVS_PIPELINE_SERVICE_POOLS_H */
