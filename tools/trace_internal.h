/* SPDX-License-Identifier: Apache-2.0 */
/* How the reader and the generator fill a trace. */
#ifndef KVS_TOOLS_TRACE_INTERNAL_H
#define KVS_TOOLS_TRACE_INTERNAL_H

#include <stdint.h>

#include "tools/trace.h"

/* Ids first, from r->ids = t->n_ids on, then the request; -ENOMEM. */
int kvs_trace_add_id(struct kvs_trace *t, uint64_t id);
int kvs_trace_add(struct kvs_trace *t, const struct kvs_trace_request *r,
		  uint32_t max_input);

#endif /* KVS_TOOLS_TRACE_INTERNAL_H */
