/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: network
 *
 * Which transport data takes, as an operator says it: RDMA where there is a
 * device for it, TCP else. Daemon and sender choose alike; where only one of
 * the two has RDMA, the connection is TCP.
 */
#ifndef KVS_PIPELINE_NETWORK_H
#define KVS_PIPELINE_NETWORK_H

#include <stddef.h>

#include "rdma/verbs.h"

#define KVS_NETWORK_NOTE 512 /* bytes; holds any note */

/**
 * struct kvs_network_opts - what was asked for
 * @data: "auto" (verbs where it can be had), "tcp", "verbs"; NULL: auto
 * @tcp: of the TCP side
 * @device: list of verbs devices, "auto", or "off": as @data = tcp unless that
 *          is "verbs"; NULL: auto
 * @gid_index: number, or "auto"; NULL: auto
 * @mtu: bytes, or "auto"; NULL: auto
 * @port: 0: the first that is up
 * @grant: "auto", "window", "mr"; NULL: auto
 * @node: NUMA node of the memory; -1: not known
 * @no_grants: it will only write to others
 */
struct kvs_network_opts {
	const char *data;
	struct kvs_transport_opts tcp;
	const char *device;
	const char *gid_index;
	const char *mtu;
	unsigned int port;
	const char *grant;
	int node;
	bool no_grants;
};

/**
 * kvs_network_create() - a transport as asked for
 * @ret: the transport
 * @note: KVS_NETWORK_NOTE bytes: what was taken and why, one line
 * @err: message
 * @errlen: its size
 *
 * Return: 0; -EINVAL an option; -ENODEV, -EOPNOTSUPP: verbs was asked for and
 * cannot be had; others of kvs_verbs_create() and kvs_tcp_create().
 */
int kvs_network_create(const struct kvs_network_opts *o,
		       struct kvs_transport **ret, char *note, char *err,
		       size_t errlen);

/* "auto" or a number up to @max: -1 or it. Return: 0; -EINVAL. */
int kvs_network_number(const char *text, unsigned int max, int *ret);

#endif /* KVS_PIPELINE_NETWORK_H */
