/* SPDX-License-Identifier: Apache-2.0 */
/* Commands of kvstagectl about key files; they need no daemon, and return its
 * exit status. */
#ifndef KVS_TOOLS_CTL_KEY_H
#define KVS_TOOLS_CTL_KEY_H

#include <stdbool.h>

/* Make one. 0; 1 it went wrong, and was said. */
int kvs_ctl_genkey(const char *path);
/* @print: the fingerprint of each key; else only look whether it is right.
 * 0; 2 it is not, and that was said. */
int kvs_ctl_fingerprint(const char *path, bool print);

#endif /* KVS_TOOLS_CTL_KEY_H */
