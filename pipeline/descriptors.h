/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: descriptors
 *
 * Who may use the file descriptors of the process. Peers, which anybody who
 * reaches the daemon can be, get what is left when engines, the control socket,
 * HTTP and the daemon's own files have theirs, so that a flood of connections
 * never shuts those out.
 */
#ifndef KVS_PIPELINE_DESCRIPTORS_H
#define KVS_PIPELINE_DESCRIPTORS_H

#include <stdint.h>

#include "pipeline/settings.h"

/**
 * kvs_descriptors_connections() - what listen.max_connections can be
 * @n_nodes: each has as many data connections as the front has of ranks; with
 *           auth.key_file the front has half as many of strangers besides
 * @limit: descriptors that the process may have open
 * @ret_want: the limit that the setting needs
 *
 * Return: the setting, or what @limit allows if that is less; at least 1.
 */
uint32_t kvs_descriptors_connections(const struct kvs_settings *s,
				     unsigned int n_nodes, uint64_t limit,
				     uint64_t *ret_want);

#endif /* KVS_PIPELINE_DESCRIPTORS_H */
