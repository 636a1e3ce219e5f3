/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: registration
 *
 * Has the pools made known to the devices of an engine's ranks, and says on
 * stderr how far that is: at the beginning, every five seconds, and what came
 * of it. Nothing is said of devices that need no time for it.
 */
#ifndef KVS_TOOLS_REGISTRATION_H
#define KVS_TOOLS_REGISTRATION_H

#include <stdbool.h>
#include <stdint.h>

#include "kvstage/engine.h"
#include "tools/engine_kv.h"
#include "tools/progress.h"

struct kvs_registering {
	struct kvs_engine **engine; /* by rank, as kv */
	const struct kvs_kv *kv;
	uint32_t n; /* ranks */
	uint64_t from; /* ns */
	uint64_t shown; /* ns, last line */
	uint64_t pinned; /* bytes, of all ranks */
	bool over;
};

/* Begin. Return: 0; what kvs_engine_register() gave. */
int kvs_registering_begin(struct kvs_registering *g, struct kvs_engine **engine,
			  const struct kvs_kv *kv, uint32_t n);
/* A line if one is due, @p being taken off the terminal first. */
void kvs_registering_turn(struct kvs_registering *g, struct kvs_progress *p);

/* How far it came, if that was not said. */
void kvs_registering_end(struct kvs_registering *g);

#endif /* KVS_TOOLS_REGISTRATION_H */
