/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of kvstage-bench ttft. */
#ifndef KVS_TOOLS_BENCH_TTFT_H
#define KVS_TOOLS_BENCH_TTFT_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/ttft/ttft.h"

#define TTFT_ABORTS_MAX 16u
#define TTFT_JOBS_MAX 64u
#define TTFT_POOL_UNIT (2ULL << 20) /* bytes; a huge page */

enum ttft_pool {
	TTFT_POOL_BOTH,
	TTFT_POOL_PLANNED,
	TTFT_POOL_HALF,
	TTFT_POOL_BYTES,
};

struct ttft_args {
	struct ttft_opts o;
	bool real;
	bool modes[TTFT_MODES];
	double abort[TTFT_ABORTS_MAX];
	unsigned int n_aborts;
	enum ttft_pool pool;
	uint64_t pool_bytes;
	bool pool_given;
	unsigned int jobs;
	bool prefills_given;
	bool buffers_given;
	const char *out;
	bool json;
};

/* Exits with 2 and a message where they are wrong. */
void ttft_args_parse(int argc, char **argv, struct ttft_args *ret);

#endif /* KVS_TOOLS_BENCH_TTFT_H */
