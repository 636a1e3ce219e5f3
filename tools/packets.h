/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: packets
 *
 * A queue of copied packets, for what stands between an engine and a daemon of
 * one process in the place of their socket. The list is its owner's.
 */
#ifndef KVS_TOOLS_PACKETS_H
#define KVS_TOOLS_PACKETS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/list.h"

struct kvs_front_engine;

struct kvs_queued_packet {
	struct kvs_list node;
	uint64_t due; /* ns; whoever takes it minds it */
	size_t len;
	_Alignas(8) unsigned char b[];
};

/* 0 or -ENOMEM. */
int kvs_packets_put(struct kvs_list *to, const void *p, size_t len,
		    uint64_t due);
/* The first, still there; NULL: none. */
const struct kvs_queued_packet *kvs_packets_first(const struct kvs_list *from);
/* The first into @buf, which has room for any; its length, 0: none. */
size_t kvs_packets_take(struct kvs_list *from, void *buf);
/* The first, of which there is one, to a daemon's engine. */
void kvs_packets_deliver(struct kvs_list *from, struct kvs_front_engine *fe);
void kvs_packets_free(struct kvs_list *from);

#endif /* KVS_TOOLS_PACKETS_H */
