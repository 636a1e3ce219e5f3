/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: verbs
 *
 * The RDMA transport. Control connections are TCP. A data connection begins
 * as TCP as well; when the side that adopted it gives it an owner
 * (kvs_conn_set_owner()), the two make a reliable queue pair, and frames and
 * one-sided writes travel on that. Nothing of the pipeline's protocol changes:
 * a data connection that never gets an owner stays what it is, so one
 * transport serves peers with and without RDMA.
 *
 * On a queue pair a data connection carries frames (of any length) and
 * one-sided writes and reads, but no payloads: kvs_conn_write() of one answers
 * -EOPNOTSUPP. The owner cannot be changed once it was given.
 *
 * Grants (rdma/grant.h) come in kinds, chosen by what is known of the device's
 * driver: see kvstage-verbs(7). The build without verbs answers -EOPNOTSUPP,
 * so that callers need no condition.
 */
#ifndef KVS_RDMA_VERBS_H
#define KVS_RDMA_VERBS_H

#include "rdma/transport.h"

#define KVS_VERBS_DEVS_MAX 64

enum kvs_verbs_grant_kind {
	KVS_VERBS_GRANT_AUTO, /* what the driver is known for */
	KVS_VERBS_GRANT_WINDOW, /* type-2 memory windows over the pool */
	KVS_VERBS_GRANT_MR, /* a registration of its own for each range */
	KVS_VERBS_GRANT_QP, /* a queue pair for each; confines nobody */
	KVS_VERBS_GRANT_KINDS,
};

extern const char *const kvs_verbs_grant_name[KVS_VERBS_GRANT_KINDS];

/**
 * struct kvs_verbs_opts - which devices, and how
 * @devices: "auto": those nearest to @node, or all when it is -1; else a list
 *           of names: "mlx5_0,mlx5_1"; NULL: auto
 * @node: NUMA node of the memory; -1: not known
 * @port: 0: the first that is up
 * @gid_index: -1: RoCE v2 by an IPv4 address before others; InfiniBand: 0
 * @mtu: bytes, 256..4096; 0: what the port has
 * @grant: kind
 * @no_grants: none will be opened: the devices are not tried for them
 * @busy: ns of polling for completions before sleeping; 0: 10 us
 */
struct kvs_verbs_opts {
	const char *devices;
	int node;
	unsigned int port;
	int gid_index;
	unsigned int mtu;
	enum kvs_verbs_grant_kind grant;
	bool no_grants;
	uint64_t busy;
};

/* What can be shown of one device; texts are never empty. */
struct kvs_verbs_info {
	char device[64];
	char driver[32];
	unsigned int port;
	char link[16]; /* "InfiniBand", "RoCE v1", "RoCE v2" */
	int gid_index;
	char gid[48];
	unsigned int mtu; /* bytes */
	int node; /* NUMA; -1: not known */
	bool windows; /* says it has type-2 ones */
	char grant[16]; /* kind in use */
	/* of each kind: "none", "not tried", "passed", "failed: why" */
	char kind[KVS_VERBS_GRANT_KINDS][160];
	const char *trial; /* what was tried of the one in use; static */
	char why[224]; /* it is that one */
	char proof[256]; /* what proves that a grant is closed, and why */
	char note[160]; /* "in use", or why not */
	bool used;
};

/* Counters; any thread may read them a little late. */
struct kvs_verbs_counts {
	uint64_t qps; /* made */
	uint64_t broken; /* ended with an error, or with their other side */
	uint64_t wr_errors; /* completions with an error, flushes aside */
	uint64_t lost_flushes; /* queue pairs that did not drain in time */
	uint64_t stuck; /* queue pairs that cannot be destroyed */
	uint64_t writes; /* work requests */
	uint64_t write_bytes;
	uint64_t staged_bytes; /* copied: the source was not registered */
	uint64_t msgs_out;
	uint64_t msgs_in;
	uint64_t grants; /* opened */
	uint64_t grant_ns_max; /* of one ibv_reg_mr() for a grant */
	uint64_t close_ns_max; /* of one ibv_dereg_mr() for a grant */
};

/**
 * kvs_verbs_create() - event loop over RDMA verbs
 * @o: options of the TCP side; NULL: defaults
 * @v: options; NULL: defaults
 * @ret: the loop
 * @err: buffer for a message
 * @errlen: its size
 *
 * Context: opens devices and tries them out: some milliseconds.
 * Return: 0; -EOPNOTSUPP not built; -ENODEV no device that can be used (@err
 * says why each cannot); -EINVAL; -ENOMEM; -EMFILE.
 */
int kvs_verbs_create(const struct kvs_transport_opts *o,
		     const struct kvs_verbs_opts *v, struct kvs_transport **ret,
		     char *err, size_t errlen);

/**
 * kvs_verbs_devices() - what a transport made of this machine's devices
 * @t: any transport
 * @ret: room for @n
 * Return: how many were filled; 0 when @t is none of kvs_verbs_create().
 */
unsigned int kvs_verbs_devices(const struct kvs_transport *t,
			       struct kvs_verbs_info *ret, unsigned int n);
/* Zeroes when @t is none of kvs_verbs_create(). */
void kvs_verbs_counters(const struct kvs_transport *t,
			struct kvs_verbs_counts *ret);

#endif /* KVS_RDMA_VERBS_H */
