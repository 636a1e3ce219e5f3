/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of kvstage-bench recv. */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/units.h"
#include "pipeline/canary.h"
#include "rdma/frame.h"
#include "tools/arg.h"
#include "tools/bench_recv.h"

#define EXIT_USAGE 2
#define REPEATS_MAX 999
#define SECONDS_MAX 3600
#define SIZE_MIN 4096
#define PAGE_DEFAULT 65536 /* bytes, over verbs */

static const struct argp_option options[] = {
	{ "size", 's', "LIST", 0, "Sizes of a chunk (default 1M,4M,16M)", 0 },
	{ "connections", 'c', "LIST", 0,
	  "Data connections of ours (default 1,2,4)", 0 },
	{ "seconds", 't', "S", 0, "Length of one measurement (default 3)", 0 },
	{ "repeats", 'n', "N", 0, "Pairs, odd (default 5)", 0 },
	{ "engine", 'e', "NAME", 0, "How ours drives TCP: auto, uring, sock",
	  0 },
	{ "pool", 'p', "SIZE", 0, "Memory of each side (default 512M)", 0 },
	{ "transport", 'T', "NAME", 0, "tcp, or verbs (RDMA)", 0 },
	{ "device", 'd', "NAME", 0, "Verbs device (default: the nearest)", 0 },
	{ "checksum", 'C', "NAME", 0,
	  "Of each room of ours: none, crc32c, adler32", 0 },
	{ "item-len", 'i', "SIZE", 0,
	  "Page of a layer buffer, for its canaries; over verbs also what the "
	  "sender gathers (default: the chunk; over verbs at most 64K)",
	  0 },
	{ "json", 'j', NULL, 0, "One JSON object per size and count", 0 },
	{ 0 }
};

static int parse_list(const char *arg, bool sizes, uint64_t lo, uint64_t hi,
		      uint64_t v[KVS_RECV_LIST_MAX], unsigned int *ret_n)
{
	char buf[256], *save = NULL, *p;
	unsigned int n = 0;

	if (strlen(arg) >= sizeof(buf) || strstr(arg, ",,") || arg[0] == ',' ||
	    (arg[0] && arg[strlen(arg) - 1] == ','))
		return -EINVAL;
	snprintf(buf, sizeof(buf), "%s", arg);
	for (p = strtok_r(buf, ",", &save); p; p = strtok_r(NULL, ",", &save)) {
		if (n == KVS_RECV_LIST_MAX ||
		    (sizes ? kvs_parse_size(p, &v[n])
			   : kvs_parse_u64(p, &v[n])) ||
		    v[n] < lo || v[n] > hi)
			return -EINVAL;
		n++;
	}
	*ret_n = n;
	return n && !kvs_arg_repeats(v, n) ? 0 : -EINVAL;
}

static void parse_seconds(const char *arg, double *ret,
			  struct argp_state *state)
{
	char *end;
	double v = strtod(arg, &end);

	if (end == arg || *end || !(v >= 0.01 && v <= SECONDS_MAX))
		argp_error(state, "--seconds %s: from 0.01 to %d", arg,
			   SECONDS_MAX);
	*ret = v;
}

static bool one_of(const char *arg, const char *const *names)
{
	for (; *names; names++)
		if (!strcmp(arg, *names))
			return true;
	return false;
}

static void check_verbs(struct kvs_recv_args *a, struct argp_state *state)
{
	for (unsigned int i = 0; i < a->n_sizes; i++) {
		uint64_t item = a->item_len		    ? a->item_len
				: a->size[i] < PAGE_DEFAULT ? a->size[i]
							    : PAGE_DEFAULT;

		if (!item || a->size[i] % item ||
		    a->size[i] / item > KVS_RECV_RUN_PAGES)
			argp_error(state,
				   "--size %" PRIu64 ": over verbs a chunk is "
				   "1 to %u whole pages of %" PRIu64 " bytes "
				   "(--item-len)",
				   a->size[i], KVS_RECV_RUN_PAGES, item);
	}
	if (!a->item_len)
		a->item_len = PAGE_DEFAULT;
}

static void check_together(struct kvs_recv_args *a, struct argp_state *state)
{
	uint64_t least = KVS_RECV_POOL_SHARE;
	uint64_t max = 0;

	if (a->verbs)
		least *= KVS_RECV_BUFFERS;
	for (unsigned int i = 0; i < a->n_sizes; i++)
		if (a->size[i] > max)
			max = a->size[i];
	if (a->pool / least < max)
		argp_error(state,
			   "--pool %s: must hold %" PRIu64 " chunks of the "
			   "largest --size: at least %" PRIu64,
			   a->pool_text, least, max * least);
	if (a->verbs)
		check_verbs(a, state);
	else if (a->device)
		argp_error(state, "--device %s: only with --transport verbs",
			   a->device);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	static const char *const engines[] = { "auto", "uring", "sock", NULL };
	static const char *const transports[] = { "tcp", "verbs", NULL };
	struct kvs_recv_args *a = state->input;

	switch (key) {
	case 's':
		if (parse_list(arg, true, SIZE_MIN,
			       KVS_PAYLOAD_MAX / KVS_RECV_POOL_SHARE, a->size,
			       &a->n_sizes))
			argp_error(state,
				   "--size %s: up to %u different sizes from "
				   "4K to 256M",
				   arg, KVS_RECV_LIST_MAX);
		return 0;
	case 'c':
		if (parse_list(arg, false, 1, KVS_RECV_CONNECTIONS_MAX,
			       a->connections, &a->n_connections))
			argp_error(
				state,
				"--connections %s: up to %u different counts "
				"from 1 to %u",
				arg, KVS_RECV_LIST_MAX,
				KVS_RECV_CONNECTIONS_MAX);
		return 0;
	case 't':
		parse_seconds(arg, &a->seconds, state);
		return 0;
	case 'n':
		if (kvs_parse_u64(arg, &a->repeats) || a->repeats % 2 == 0 ||
		    a->repeats > REPEATS_MAX)
			argp_error(state,
				   "--repeats %s: an odd number up to %d", arg,
				   REPEATS_MAX);
		return 0;
	case 'p':
		if (kvs_parse_size(arg, &a->pool) || a->pool < SIZE_MIN ||
		    a->pool > 1ULL << 40)
			argp_error(state, "--pool %s: a size up to 1T", arg);
		a->pool_text = arg;
		a->pool -= a->pool % SIZE_MIN;
		return 0;
	case 'e':
		if (!one_of(arg, engines))
			argp_error(state, "--engine %s: auto, uring or sock",
				   arg);
		a->engine = arg;
		return 0;
	case 'T':
		if (!one_of(arg, transports))
			argp_error(state, "--transport %s: tcp or verbs", arg);
		a->transport = arg;
		a->verbs = !strcmp(arg, "verbs");
		return 0;
	case 'd':
		if (!*arg || strlen(arg) >= KVS_RECV_DEVICE_MAX ||
		    strchr(arg, ','))
			argp_error(state, "--device %s: one device's name",
				   arg);
		a->device = arg;
		return 0;
	case 'C':
		if (kvs_digest_kind_parse(arg, &a->checksum))
			argp_error(state,
				   "--checksum %s: none, crc32c or adler32",
				   arg);
		return 0;
	case 'i':
		if (kvs_parse_size(arg, &a->item_len) ||
		    a->item_len < KVS_CANARY_LEN ||
		    a->item_len > KVS_PAYLOAD_MAX / KVS_RECV_POOL_SHARE)
			argp_error(state, "--item-len %s: from %d to 256M", arg,
				   KVS_CANARY_LEN);
		return 0;
	case 'j':
		a->json = true;
		return 0;
	case ARGP_KEY_END:
		check_together(a, state);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

void kvs_recv_parse(int argc, char **argv, struct kvs_recv_args *ret)
{
	const struct argp argp = {
		.options = options,
		.parser = parse,
		.doc = "How fast payloads arrive in a pool, against a plain "
		       "recv(MSG_WAITALL) loop on one connection, or over "
		       "RDMA against ib_write_bw.",
	};

	*ret = (struct kvs_recv_args){
		.size = { 1ULL << 20, 4ULL << 20, 16ULL << 20 },
		.n_sizes = 3,
		.connections = { 1, 2, 4 },
		.n_connections = 3,
		.seconds = 3,
		.repeats = 5,
		.pool = 512ULL << 20,
		.pool_text = "512M",
		.engine = "auto",
		.transport = "tcp",
		.checksum = KVS_DIGEST_NONE,
	};
	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, 0, NULL, ret);
}
