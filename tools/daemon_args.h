/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: daemon arguments
 *
 * Every setting is an option too: pool.page_size is --pool-page-size. Options
 * win over the file, wherever they stand, and again at every reload.
 */
#ifndef KVS_TOOLS_DAEMON_ARGS_H
#define KVS_TOOLS_DAEMON_ARGS_H

#include <stdbool.h>
#include <stddef.h>

#include "pipeline/settings.h"

struct kvs_daemon_option {
	unsigned int setting; /* index, kvs_setting_info() */
	const char *value;
};

struct kvs_daemon_args {
	const char *config; /* file, or NULL */
	bool check;
	bool print;
	struct kvs_daemon_option *options; /* in the order they were given */
	unsigned int n_options;
};

/**
 * kvs_daemon_args_parse() - read the command line
 * @ret_args: kvs_daemon_args_fini() when done; points into @argv
 *
 * Exits with 2 on a usage error, with 0 after --help and --version.
 * Return: 0 or -ENOMEM.
 */
int kvs_daemon_args_parse(int argc, char **argv,
			  struct kvs_daemon_args *ret_args);
void kvs_daemon_args_fini(struct kvs_daemon_args *args);

/**
 * kvs_daemon_args_settings() - defaults, file, options; all checked
 * @args: what was parsed
 * @ret_s: written only on success
 * @err: message that names where the wrong value came from
 * @errlen: bytes of @err
 *
 * Context: reads the file, may block in the resolver.
 * Return: 0; -EINVAL, -ERANGE, -ENOENT; what opening the file gave.
 */
int kvs_daemon_args_settings(const struct kvs_daemon_args *args,
			     struct kvs_settings *ret_s, char *err,
			     size_t errlen);

#endif /* KVS_TOOLS_DAEMON_ARGS_H */
