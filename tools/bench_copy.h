/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: bench_copy
 *
 * What kvstage-bench h2d and commit share: a device, memory on both sides, and
 * copies timed in turns with one large one.
 */
#ifndef KVS_TOOLS_BENCH_COPY_H
#define KVS_TOOLS_BENCH_COPY_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/device.h"
#include "tools/device_choice.h"
#include "tools/table.h"

#define KVS_BENCH_CANNOT 77
#define KVS_BENCH_DEVICE_PAGES(n) ((n) + (n) / 4 + 1) /* of which n are used */

/**
 * struct kvs_copy_bench - device and memory
 * @device: as it was named on the command line
 * @choice: which that is
 * @opts: how copies are made, from the command line
 * @dir: which way
 * @repeats: pairs of runs
 * @json: for machines
 * @d: opened by kvs_copy_bench_open(), as is the rest
 * @host: registered
 * @dev: device memory
 * @table: NULL with @json
 */
struct kvs_copy_bench {
	const char *device;
	struct kvs_device_choice choice;
	struct kvs_copy_opts opts;
	enum kvs_copy_dir dir;
	uint64_t repeats;
	bool json;
	struct kvs_device *d;
	char *host;
	char *dev;
	uint64_t host_len;
	uint64_t dev_len;
	struct kvs_table *table;
};

/**
 * struct kvs_copy_result - medians
 * @gbps, @baseline_gbps: 10^9 bytes a second
 * @ratio: of pairs
 * @ops_per_gib: pieces and launches
 */
struct kvs_copy_result {
	double gbps;
	double baseline_gbps;
	double ratio;
	double ops_per_gib;
};

/* Open the device, print what it is on stderr. Return: 0; -errno, said. */
int kvs_copy_bench_open(struct kvs_copy_bench *b);
/* Memory for a measurement; what there was before is given back. */
int kvs_copy_bench_memory(struct kvs_copy_bench *b, uint64_t host,
			  uint64_t dev);
void kvs_copy_bench_close(struct kvs_copy_bench *b);
/*
 * Time a copy against one piece of as many bytes, and compare what came out
 * with its source. Return: 0; -EILSEQ bytes differ; -errno, said.
 */
int kvs_copy_bench_measure(struct kvs_copy_bench *b, struct kvs_copy *c,
			   struct kvs_copy_result *ret);
/* A random choice of n of KVS_BENCH_DEVICE_PAGES(n) pages, the same each time.
 */
int kvs_copy_bench_pages(uint64_t n, uint32_t **ret);

/* Options that both have, for argp; keys as below. */
#define KVS_COPY_BENCH_OPTIONS                                              \
	{                                                                   \
		"device",                                                   \
		'd',                                                        \
		"DEVICE",                                                   \
		0,                                                          \
		"soft (default), cuda, cuda:N or auto",                     \
		0                                                           \
	},                                                                  \
		{ "direction", 'D', "DIR", 0, "h2d (default) or d2h", 0 },  \
		{ "way",                                                    \
		  'w',                                                      \
		  "WAY",                                                    \
		  0,                                                        \
		  "How small pieces travel: auto (default), direct, "       \
		  "slots, mapped",                                          \
		  0 },                                                      \
		{ "blocks",                                                 \
		  'b',                                                      \
		  "N",                                                      \
		  0,                                                        \
		  "Thread blocks of a launch (default 4)",                  \
		  0 },                                                      \
		{ "repeats", 'n', "N", 0, "Pairs of runs (default 5)", 0 }, \
	{                                                                   \
		"json", 'j', NULL, 0, "One JSON object a line", 0           \
	}

struct argp_state;
/* Return: 0; ARGP_ERR_UNKNOWN. */
int kvs_copy_bench_parse(struct kvs_copy_bench *b, int key, char *arg,
			 struct argp_state *state);

#endif /* KVS_TOOLS_BENCH_COPY_H */
