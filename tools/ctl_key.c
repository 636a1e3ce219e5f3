/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/ctl_key.h"

#include <stdio.h>

#include "pipeline/auth_key.h"

int kvs_ctl_genkey(const char *path)
{
	char err[512];

	if (!kvs_auth_key_create(path, err, sizeof(err)))
		return 0;
	fprintf(stderr, "kvstagectl: %s\n", err);
	return 1;
}

int kvs_ctl_fingerprint(const char *path, bool print)
{
	char err[512], name[KVS_AUTH_PRINT];
	struct kvs_auth_keys k;

	if (kvs_auth_keys_load(path, &k, err, sizeof(err))) {
		fprintf(stderr, "kvstagectl: %s\n", err);
		return 2;
	}
	for (unsigned int i = 0; print && i < k.n; i++) {
		kvs_auth_fingerprint(k.key[i], name);
		puts(name);
	}
	kvs_auth_keys_clear(&k);
	return 0;
}
