/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/descriptors.h"

/* an engine: its sockets, pidfd, status page and what it is handed */
#define KVS_DESCRIPTORS_ENGINE 8
/* threads, pools, logs, 32 of kvstagectl and 128 of HTTP */
#define KVS_DESCRIPTORS_OWN 256

uint32_t kvs_descriptors_connections(const struct kvs_settings *s,
				     unsigned int n_nodes, uint64_t limit,
				     uint64_t *ret_want)
{
	uint64_t kept = KVS_DESCRIPTORS_OWN +
			(uint64_t)KVS_DESCRIPTORS_ENGINE * s->engine_max;
	uint64_t most = s->listen_max_connections, n;
	/* halves: with a key, half as many strangers are let in besides */
	uint64_t each = 2 * ((uint64_t)n_nodes + 1) + (*s->auth_key_file != 0);

	*ret_want = kept + (each * most + 1) / 2;
	/* where there are few, peers have a quarter */
	if (kept > limit - limit / 4)
		kept = limit - limit / 4;
	n = (limit - kept) / each * 2 + (limit - kept) % each * 2 / each;
	if (n > most)
		return (uint32_t)most;
	return n ? (uint32_t)n : 1;
}
