/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: kvstage-send
 *
 * Plays one rank of a prefill instance against a kvstaged: real connections,
 * real bytes, made-up computing.
 */
#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/clock.h"
#include "lib/err.h"
#include "lib/log.h"
#include "lib/units.h"
#include "pipeline/auth_key.h"
#include "pipeline/presets.h"
#include "pipeline/room.h"
#include "rdma/addr.h"
#include "tools/output.h"
#include "tools/send_run.h"

#define KVS_SEND_TIME_MAX (24 * 3600 * KVS_NSEC_PER_SEC)
#define KVS_SEND_POOL (256ULL << 20)
#define KVS_SEND_CHUNK_TOKENS 8192
#define KVS_SEND_CONCURRENCY 16
#define KVS_SEND_CONNECT_TIMEOUT (10 * KVS_NSEC_PER_SEC)
#define KVS_SEND_OPEN_TIMEOUT (60 * KVS_NSEC_PER_SEC)

enum {
	KEY_DAEMON = 0x1000,
	KEY_RANK,
	KEY_RATE,
	KEY_CHUNK_TOKENS,
	KEY_CONCURRENCY,
	KEY_DATA_CONNECTIONS,
	KEY_STRIPE_MIN,
	KEY_FILE,
	KEY_POOL_SIZE,
	KEY_KV_CAPACITY,
	KEY_MAX_CONTEXT,
	KEY_OPEN_TIMEOUT,
	KEY_CONNECT_TIMEOUT,
	KEY_MAX_BATCH_BYTES,
	KEY_CALL_TIMEOUT,
	KEY_IO,
	KEY_TRANSPORT,
	KEY_RDMA_DEVICE,
	KEY_RDMA_GID_INDEX,
	KEY_KEY_FILE,
	KEY_DEVICE,
	KEY_SOURCE,
	KEY_BOUNCE_SIZE,
	KEY_VERBOSE,
};

static const struct argp_option send_options[] = {
	{ "daemon", KEY_DAEMON, "HOST:PORT", 0, "The kvstaged to send to", 0 },
	{ "rank", KEY_RANK, "R", 0, "Which rank this is (default 0)", 0 },
	{ "rate", KEY_RATE, "TOKENS", 0,
	  "Tokens computed a second (default 0: as fast as possible)", 0 },
	{ "chunk-tokens", KEY_CHUNK_TOKENS, "N", 0,
	  "Tokens computed at a time (default 8192)", 0 },
	{ "concurrency", KEY_CONCURRENCY, "C", 0,
	  "Rooms open at a time (default 16)", 0 },
	{ "data-connections", KEY_DATA_CONNECTIONS, "D", 0,
	  "To each worker of the daemon (default 2)", 0 },
	{ "stripe-min", KEY_STRIPE_MIN, "SIZE", 0,
	  "Bytes of a room from which on it is sent over all of them, where "
	  "that is RDMA (default 64M)",
	  0 },
	{ "file", KEY_FILE, "FILE", 0,
	  "Send these bytes, over and over, instead of the pattern", 0 },
	{ "pool-size", KEY_POOL_SIZE, "SIZE", 0,
	  "Memory of source pages (default 256M)", 0 },
	{ "kv-capacity", KEY_KV_CAPACITY, "TOKENS", 0,
	  "Tokens that its KV pool holds, as the daemon is told (default: it "
	  "is not)",
	  0 },
	{ "max-context", KEY_MAX_CONTEXT, "TOKENS", 0,
	  "Longest request, likewise", 0 },
	{ "open-timeout", KEY_OPEN_TIMEOUT, "TIME", 0,
	  "How long a room waits for memory (default 60s)", 0 },
	{ "connect-timeout", KEY_CONNECT_TIMEOUT, "TIME", 0,
	  "How long to look for the daemon (default 10s)", 0 },
	{ "max-batch-bytes", KEY_MAX_BATCH_BYTES, "SIZE", 0,
	  "Bytes of a room launched and not completed (default: what the "
	  "daemon says)",
	  0 },
	{ "call-timeout", KEY_CALL_TIMEOUT, "TIME", 0,
	  "How long one chunk may take (default: what the daemon says)", 0 },
	{ "transport", KEY_TRANSPORT, "NAME", 0,
	  "What carries the bytes: auto (RDMA where both sides have it, else "
	  "TCP), tcp or verbs (default auto)",
	  0 },
	{ "rdma-device", KEY_RDMA_DEVICE, "NAME,...", 0,
	  "Verbs devices, auto or off (default auto)", 0 },
	{ "rdma-gid-index", KEY_RDMA_GID_INDEX, "N", 0,
	  "Address of their port (default auto)", 0 },
	{ "io", KEY_IO, "ENGINE", 0, "auto, uring or sock (default auto)", 0 },
	{ "key-file", KEY_KEY_FILE, "FILE", 0,
	  "Key of the cluster, as the daemon's auth.key_file (default none)",
	  0 },
	{ "device", KEY_DEVICE, "NAME", 0,
	  "What has the source pages: soft, cuda or cuda:N (default: host "
	  "memory)",
	  0 },
	{ "source", KEY_SOURCE, "HOW", 0,
	  "How the network gets at them: auto, host, peer-mem, dma-buf or "
	  "bounce (default auto)",
	  0 },
	{ "bounce-size", KEY_BOUNCE_SIZE, "SIZE", 0,
	  "Ring that bounce copies to (default 64M)", 0 },
	{ "json", 'j', NULL, 0, "Print JSON objects, one a line", 0 },
	{ "verbose", KEY_VERBOSE, NULL, 0, "Log what the sender does", 0 },
	{ 0 },
};

struct send_args {
	struct kvs_workload_opts w; /* first: the child's input */
	struct kvs_send_run_opts run;
	bool json;
};

static volatile sig_atomic_t send_stop;
static bool send_json;

static uint64_t number(struct argp_state *state, const char *name,
		       const char *arg, uint64_t min, uint64_t max)
{
	uint64_t v;

	if (kvs_parse_u64(arg, &v) || v < min || v > max)
		argp_error(state, "--%s: %s is not a number from %llu to %llu",
			   name, arg, (unsigned long long)min,
			   (unsigned long long)max);
	return v;
}

static uint64_t duration(struct argp_state *state, const char *name,
			 const char *arg)
{
	uint64_t v;

	if (kvs_parse_duration(arg, &v) || !v || v > KVS_SEND_TIME_MAX)
		argp_error(state, "--%s: %s is not a time from 1ns to 24h",
			   name, arg);
	return v;
}

static void parse_device(struct argp_state *state, struct send_args *a,
			 const char *arg)
{
	uint64_t v;

	a->run.device = arg;
	if (!strcmp(arg, "soft") || !strcmp(arg, "cuda"))
		return;
	a->run.device = "cuda";
	if (strncmp(arg, "cuda:", 5) || kvs_parse_u64(arg + 5, &v) || v > 1023)
		argp_error(state, "--device: %s is not soft, cuda or cuda:N",
			   arg);
	else
		a->run.ordinal = (int)v;
}

static void parse_source(struct argp_state *state, struct send_args *a,
			 const char *arg)
{
	int i;

	for (i = KVS_SOURCE_AUTO; i <= KVS_SOURCE_BOUNCE; i++) {
		if (!strcmp(arg, kvs_source_name((enum kvs_source)i))) {
			a->run.source = (enum kvs_source)i;
			return;
		}
	}
	argp_error(state,
		   "--source: %s is not auto, host, peer-mem, dma-buf or "
		   "bounce",
		   arg);
}

static void parse_bounce(struct argp_state *state, struct send_args *a,
			 const char *arg)
{
	if (kvs_parse_size(arg, &a->run.bounce_bytes))
		argp_error(state, "--bounce-size: \"%s\" is not a size", arg);
	if (a->run.bounce_bytes < KVS_BOUNCE_MIN ||
	    a->run.bounce_bytes > KVS_BOUNCE_MAX || a->run.bounce_bytes % 4096)
		argp_error(state,
			   "--bounce-size: %s: a multiple of 4096 from 64K to "
			   "64G is allowed",
			   arg);
}

static error_t parse_end(struct send_args *a, struct argp_state *state)
{
	struct kvs_addr addr;
	char err[256];

	if (!a->run.daemon)
		argp_error(state, "--daemon is needed");
	/* a name that is not known now may be so later: no matter of usage */
	else if (kvs_addr_parse(a->run.daemon, false, &addr, err,
				sizeof(err)) == -EINVAL)
		argp_error(state, "--daemon: %s", err);
	if (!a->run.device && a->run.source > KVS_SOURCE_HOST)
		argp_error(state, "--source %s needs a --device",
			   kvs_source_name(a->run.source));
	if (a->run.device && a->run.source == KVS_SOURCE_HOST)
		argp_error(state, "--source host is not for a --device");
	if (a->run.bounce_bytes && !a->run.device)
		argp_error(state, "--bounce-size needs a --device");
	if (a->run.rank >= a->w.n_ranks)
		argp_error(state, "--rank %u is not below --nranks %u",
			   a->run.rank, a->w.n_ranks);
	return 0;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct send_args *a = state->input;

	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &a->w;
		return 0;
	case ARGP_KEY_END:
		return parse_end(a, state);
	case KEY_DAEMON:
		a->run.daemon = arg;
		return 0;
	case KEY_RANK:
		a->run.rank = (uint32_t)number(state, "rank", arg, 0,
					       KVS_RANKS_MAX - 1);
		return 0;
	case KEY_RATE:
		a->run.rate = number(state, "rate", arg, 0, 1000000000000);
		return 0;
	case KEY_CHUNK_TOKENS:
		a->run.chunk_tokens = (uint32_t)number(state, "chunk-tokens",
						       arg, 1, KVS_TOKENS_MAX);
		return 0;
	case KEY_CONCURRENCY:
		a->run.concurrency =
			(uint32_t)number(state, "concurrency", arg, 1, 65536);
		return 0;
	case KEY_DATA_CONNECTIONS:
		a->run.data_connections =
			(uint32_t)number(state, "data-connections", arg, 1, 64);
		return 0;
	case KEY_STRIPE_MIN:
		if (kvs_parse_size(arg, &a->run.stripe_min) ||
		    !a->run.stripe_min)
			argp_error(state, "--stripe-min: %s is not a size",
				   arg);
		return 0;
	case KEY_FILE:
		a->run.file = arg;
		return 0;
	case KEY_POOL_SIZE:
		if (kvs_parse_size(arg, &a->run.pool) || !a->run.pool)
			argp_error(state, "--pool-size: %s is not a size", arg);
		return 0;
	case KEY_KV_CAPACITY:
		a->w.capacity =
			number(state, "kv-capacity", arg, 1, 1ULL << 40);
		return 0;
	case KEY_MAX_CONTEXT:
		a->w.max_context =
			number(state, "max-context", arg, 1, KVS_TOKENS_MAX);
		return 0;
	case KEY_OPEN_TIMEOUT:
		a->run.open_timeout = duration(state, "open-timeout", arg);
		return 0;
	case KEY_CONNECT_TIMEOUT:
		a->run.connect_timeout =
			duration(state, "connect-timeout", arg);
		return 0;
	case KEY_MAX_BATCH_BYTES:
		if (kvs_parse_size(arg, &a->run.max_batch_bytes) ||
		    !a->run.max_batch_bytes)
			argp_error(state, "--max-batch-bytes: %s is not a size",
				   arg);
		return 0;
	case KEY_CALL_TIMEOUT:
		a->run.call_timeout = duration(state, "call-timeout", arg);
		return 0;
	case KEY_TRANSPORT:
		if (strcmp(arg, "auto") && strcmp(arg, "tcp") &&
		    strcmp(arg, "verbs"))
			argp_error(state,
				   "--transport: %s is not auto, tcp or verbs",
				   arg);
		a->run.transport = arg;
		return 0;
	case KEY_RDMA_DEVICE:
		a->run.rdma_device = arg;
		return 0;
	case KEY_RDMA_GID_INDEX:
		if (strcmp(arg, "auto") != 0)
			(void)number(state, "rdma-gid-index", arg, 0, 255);
		a->run.rdma_gid_index = arg;
		return 0;
	case KEY_IO:
		if (strcmp(arg, "auto") && strcmp(arg, "uring") &&
		    strcmp(arg, "sock"))
			argp_error(state, "--io: %s is not auto, uring or sock",
				   arg);
		a->run.io = arg;
		return 0;
	case KEY_KEY_FILE:
		if (!*arg)
			argp_error(state, "--key-file: the name is empty");
		a->run.key_file = arg;
		return 0;
	case KEY_DEVICE:
		parse_device(state, a, arg);
		return 0;
	case KEY_SOURCE:
		parse_source(state, a, arg);
		return 0;
	case KEY_BOUNCE_SIZE:
		parse_bounce(state, a, arg);
		return 0;
	case 'j':
		a->json = true;
		return 0;
	case KEY_VERBOSE:
		kvs_log_set_level(KVS_LOG_DEBUG);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

/* Only whether it can be used; the sender reads it for itself. */
static bool key_file_bad(const char *path, char *err, size_t errlen)
{
	char names[KVS_AUTH_PRINTS];
	struct kvs_auth_keys k;

	if (!path)
		return false;
	if (kvs_auth_keys_load(path, &k, err, errlen))
		return true;
	kvs_auth_fingerprints(&k, names);
	kvs_log_debug("%s: the first key is used: %s", path, names);
	kvs_auth_keys_clear(&k);
	return false;
}

static const struct argp_child send_children[] = {
	{ &kvs_workload_argp, 0, NULL, 0 },
	{ 0 },
};

static const struct argp send_argp = {
	.options = send_options,
	.parser = parse,
	.children = send_children,
	.doc = "Play a rank of a prefill instance: push the KV of a workload's "
	       "requests to a kvstaged.",
};

static void on_signal(int sig)
{
	(void)sig;
	send_stop = 1;
}

/* From here on a signal ends the rooms; the second one ends us. */
static void started(const struct kvs_sender_stats *st)
{
	struct sigaction sa = { .sa_handler = on_signal,
				.sa_flags = (int)SA_RESETHAND };

	sigemptyset(&sa.sa_mask);
	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
	fprintf(stderr, "kvstage-send: the daemon agreed\n");
	fprintf(stderr, "kvstage-send: source %s%s%s\n",
		kvs_source_name(st->source), st->note[0] ? ": " : "", st->note);
}

static void print_json(json_t *j)
{
	if (!j)
		return;
	json_dumpf(j, stdout, JSON_COMPACT);
	putchar('\n');
	(void)kvs_output_flush();
	json_decref(j);
}

static void room_failed(uint64_t room, int err, const char *text)
{
	fprintf(stderr, "kvstage-send: room %llu: %s (class %u): %s\n",
		(unsigned long long)room, kvs_err_name(err),
		kvs_error_class(err), text);
	if (send_json)
		print_json(json_pack("{s:I, s:s, s:i, s:s}", "room",
				     (json_int_t)room, "error",
				     kvs_err_name(err), "class",
				     (int)kvs_error_class(err), "text", text));
}

static void report(const struct send_args *a,
		   const struct kvs_send_run_result *res)
{
	double s = (double)res->ns / 1e9;
	double gbps = res->ns ? (double)res->bytes / (double)res->ns : 0.0;

	if (res->unopened)
		fprintf(stderr, "kvstage-send: %llu rooms were not opened\n",
			(unsigned long long)res->unopened);
	if (send_json) {
		print_json(json_pack(
			"{s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:b, "
			"s:s, s:s, s:I, s:I, s:I, s:I}",
			"rank", (int)a->run.rank, "requests",
			(json_int_t)res->rooms, "ok", (json_int_t)res->ok,
			"failed", (json_int_t)res->failed, "refused_400",
			(json_int_t)res->never, "failed_503",
			(json_int_t)res->later, "bytes", (json_int_t)res->bytes,
			"seconds", s, "gbps", gbps, "stopped", res->stopped,
			"source", kvs_source_name(res->sender.source),
			"source_note", res->sender.note, "bounce_bytes",
			(json_int_t)res->sender.bounce_bytes, "copies",
			(json_int_t)res->sender.copies, "copied_bytes",
			(json_int_t)res->sender.copied_bytes, "ring_waits",
			(json_int_t)res->sender.ring_waits));
		return;
	}
	printf("rank %u: %llu of %llu rooms ok, %llu failed (%llu class 400), "
	       "%llu bytes in %.3f s, %.2f GB/s, source %s%s\n",
	       a->run.rank, (unsigned long long)res->ok,
	       (unsigned long long)res->rooms, (unsigned long long)res->failed,
	       (unsigned long long)res->never, (unsigned long long)res->bytes,
	       s, gbps, kvs_source_name(res->sender.source),
	       res->stopped ? ", stopped" : "");
}

int main(int argc, char **argv)
{
	struct kvs_send_run_result res = { 0 };
	struct kvs_workload w;
	struct send_args a = {
		.run = {
			.chunk_tokens = KVS_SEND_CHUNK_TOKENS,
			.concurrency = KVS_SEND_CONCURRENCY,
			.pool = KVS_SEND_POOL,
			.open_timeout = KVS_SEND_OPEN_TIMEOUT,
			.connect_timeout = KVS_SEND_CONNECT_TIMEOUT,
			.stop = &send_stop,
			.started = started,
			.failed = room_failed,
		},
	};
	char err[KVS_PRESET_ERR];
	int ret;

	kvs_output_watch("kvstage-send");
	argp_program_version = "kvstage-send " KVS_VERSION;
	argp_err_exit_status = 2;
	kvs_log_init("kvstage-send");
	if (argp_parse(&send_argp, argc, argv, 0, NULL, &a))
		return 2;
	send_json = a.json;
	if (key_file_bad(a.run.key_file, err, sizeof(err))) {
		fprintf(stderr, "kvstage-send: option --key-file: %s\n", err);
		return 2;
	}
	ret = kvs_workload_open(&a.w, &w, err, sizeof(err));
	if (ret) {
		fprintf(stderr, "kvstage-send: %s\n", err);
		return ret == -ENOENT || ret == -EINVAL ? 2 : 1;
	}
	a.run.w = &w;
	ret = kvs_send_run(&a.run, &res, err, sizeof(err));
	if (ret)
		fprintf(stderr, "kvstage-send: %s\n", err);
	else
		report(&a, &res);
	kvs_workload_close(&w);
	if (ret == -ERANGE)
		return 2;
	if (ret)
		return ret == -EOPNOTSUPP || ret == -ENODEV ? 77 : 1;
	return res.failed ? 1 : 0;
}
