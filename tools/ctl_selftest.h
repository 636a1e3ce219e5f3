/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TOOLS_CTL_SELFTEST_H
#define KVS_TOOLS_CTL_SELFTEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct kvs_ctl_selftest {
	uint64_t bytes; /* of each pool */
	unsigned int rounds; /* on each node */
	unsigned int seconds; /* that one step may take */
	const char *key_file; /* NULL: none */
	bool json;
	json_t *status; /* what the daemon answered to these */
	json_t *pools;
};

/* On every node with a receive pool; prints the outcome. Exit status: 0, 1 a
 * fault was found or it went wrong, 77 it cannot run now. */
int kvs_ctl_selftest(const struct kvs_ctl_selftest *t);

#endif /* KVS_TOOLS_CTL_SELFTEST_H */
