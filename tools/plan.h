/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: plan
 *
 * kvstage-plan: what a decode node needs before it is bought. kvstage-plan.c
 * has the command line, plan_make.c works the numbers out of tools/serving.h,
 * plan_report.c says them with their formulas, as JSON, and as a file for
 * kvstaged.
 */
#ifndef KVS_TOOLS_PLAN_H
#define KVS_TOOLS_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kvstage/layout.h"
#include "tools/serving.h"

#define PLAN_WARNINGS 8u
#define PLAN_WARNING_LEN 320u

/**
 * struct plan_opts - as given on the command line
 * @s: the cluster; hold_timeout 0: the advised one
 * @model: preset; NULL: @token_bytes and so on say it
 * @token_bytes: bytes of a token over all layers
 * @page_size: tokens
 * @layers: of the model
 * @replicated: every rank needs all bytes (MLA), not its share of the heads
 * @context: longest request, tokens
 * @trace: requests; NULL: lengths and rate below
 * @speed: arrivals of the trace come so many times as fast
 * @p50, @p99: prompt tokens
 * @rate: requests a second
 * @abort: share that is given up
 * @acked: acknowledgements come
 * @nic_rate: bytes a second into the node
 * @ranks: of the decode engine, on the node
 * @nodes: NUMA nodes with a pool
 * @hicache: bytes of offload pool for the cache, all nodes
 * @retraction: share of the device's KV pool that may be retracted at a time
 * @horizon: seconds
 * @propagation, @remaining, @call: ns; settings of hold.check
 */
struct plan_opts {
	struct kvs_serving s;
	const char *model;
	uint64_t token_bytes;
	uint32_t page_size;
	uint32_t layers;
	bool replicated;
	uint32_t context;
	const char *trace;
	double speed;
	uint32_t p50;
	uint32_t p99;
	double rate;
	double abort;
	bool acked;
	uint64_t nic_rate;
	uint32_t ranks;
	uint32_t nodes;
	uint64_t hicache;
	double retraction;
	double horizon;
	uint64_t propagation;
	uint64_t remaining;
	uint64_t call;
};

/* Bytes and milliseconds of one prompt. */
struct plan_copy {
	const char *name; /* "p50", ... */
	uint32_t tokens;
	uint64_t bytes;
	double whole_ms; /* until DONE */
	double first_ms; /* until layer 0 is there */
};

struct plan {
	struct plan_opts o; /* with what was left open filled in */
	struct kvs_serving_load load;
	struct kvs_serving_size size; /* of one node */
	struct plan_copy copy[3];
	uint64_t context_bytes; /* as a room lies in a pool */
	uint64_t reserve; /* admission.health_reserve */
	uint64_t pool; /* bytes a node: pool.size */
	uint64_t offload; /* bytes a node: pool.offload_size */
	uint64_t hold_least; /* ns; hold.timeout must exceed it */
	uint64_t hold_advised; /* ns */
	double prefill_use; /* shares */
	double nic_use;
	double h2d_use;
	double device_use;
	double step; /* seconds of a decode step */
	unsigned int n_warnings;
	char warning[PLAN_WARNINGS][PLAN_WARNING_LEN];
};

/**
 * plan_make() - work it out
 * Return: 0; -EINVAL, -E2BIG with @err: what of the options cannot be; -EIO,
 * -ENOMEM with @err: what went wrong, with the trace for one.
 */
int plan_make(const struct plan_opts *o, struct plan *ret, char *err,
	      size_t errlen);

void plan_print(const struct plan *p, FILE *out);
int plan_print_json(const struct plan *p, FILE *out);

/**
 * plan_write_ini() - a file for kvstaged, checked as kvstaged does
 * @p: of plan_make()
 * @path: there whole, or as it was; "PATH.new" is written first
 * @force: replace a regular file
 * @err: message on failure
 * @errlen: its size
 * Return: 0; -EEXIST; -EINVAL or -ERANGE what kvstaged would refuse; -EIO and
 * those of open() and rename().
 */
int plan_write_ini(const struct plan *p, const char *path, bool force,
		   char *err, size_t errlen);

#endif /* KVS_TOOLS_PLAN_H */
