/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: arg
 *
 * Values of options, for tools with many of them. What is wrong is said with
 * the option and what it may be, and ends the program as argp_error() does.
 */
#ifndef KVS_TOOLS_ARG_H
#define KVS_TOOLS_ARG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct argp_state;

#define KVS_ARG_SIZE_MAX (1ULL << 50) /* bytes */
#define KVS_ARG_TIME_MAX (86400ULL * 1000000000ULL) /* ns */

/* A number from @min to @max. */
double kvs_arg_number(struct argp_state *st, const char *name, const char *arg,
		      double min, double max);
/* Likewise, whole. */
uint64_t kvs_arg_whole(struct argp_state *st, const char *name, const char *arg,
		       uint64_t min, uint64_t max);
/* "25GB": bytes, from @min to KVS_ARG_SIZE_MAX. */
uint64_t kvs_arg_size(struct argp_state *st, const char *name, const char *arg,
		      uint64_t min);
/* "500ms": ns, from @min to KVS_ARG_TIME_MAX. */
uint64_t kvs_arg_time(struct argp_state *st, const char *name, const char *arg,
		      uint64_t min);
/* "30s", as the setting @setting ("hold.timeout") takes it: ns. */
uint64_t kvs_arg_setting_time(struct argp_state *st, const char *name,
			      const char *arg, const char *setting);

/**
 * kvs_arg_list() - take a list apart at its commas
 * @arg: list
 * @buf: room for a copy
 * @len: its size
 * @ret: elements, in @buf
 * @max: of these
 *
 * Return: how many; 0 where one is empty, or there is no room.
 */
unsigned int kvs_arg_list(const char *arg, char *buf, size_t len, char **ret,
			  unsigned int max);
/* Is one of them there twice? What is measured twice is taken for two things. */
bool kvs_arg_repeats(const uint64_t *v, unsigned int n);

#endif /* KVS_TOOLS_ARG_H */
