/* SPDX-License-Identifier: Apache-2.0 */
/* kvstagectl verify: what became of reading all that is on disk. */
#ifndef KVS_TOOLS_CTL_VERIFY_H
#define KVS_TOOLS_CTL_VERIFY_H

#include <jansson.h>
#include <stdbool.h>

/**
 * struct kvs_ctl_verify - a round over each node's disk tier
 * @begun: what "verify" answered: an object for each node that has one
 * @now: what "cache" answers
 * @json: print an object a line
 */
struct kvs_ctl_verify {
	json_t *begun;
	json_t *now;
	bool json;
};

/* The round is over on every node. */
bool kvs_ctl_verify_over(const struct kvs_ctl_verify *v);
/* Prints a line for each node. Return: exit status: 0; 1 something did not
 * match or could not be read, or a node has no tier any more. */
int kvs_ctl_verify_print(const struct kvs_ctl_verify *v);

#endif /* KVS_TOOLS_CTL_VERIFY_H */
