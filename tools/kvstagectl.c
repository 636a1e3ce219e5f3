/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: kvstagectl
 *
 * Asks a running kvstaged, by its control socket (daemon_ctl.c says how), and
 * prints the answer: as tables, or with --json as it came. A report of a fault
 * (bugreport) is several such questions; what cannot be answered is said in
 * its place, since a daemon that is worth a report may not be well.
 */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "lib/clock.h"
#include "lib/units.h"
#include "pipeline/settings.h"
#include "tools/ctl_key.h"
#include "tools/ctl_selftest.h"
#include "tools/ctl_verify.h"
#include "tools/output.h"
#include "tools/selftest.h"
#include "tools/table.h"

#define KVS_CTL_SECONDS 10 /* the daemon may be busy, but not that long */
#define KVS_CTL_SECONDS_MAX 3600
#define KVS_CTL_KEY_TIMEOUT 0x100
#define KVS_CTL_KEY_BYTES 0x101
#define KVS_CTL_KEY_ROUNDS 0x102
#define KVS_CTL_KEY_FILE 0x103
#define KVS_CTL_BYTES (16ULL << 20) /* of a selftest */
#define KVS_CTL_ROUNDS 8
#define KVS_CTL_ROUNDS_MAX 1000000

enum kvs_ctl_format {
	KVS_CTL_PLAIN, /* text, number or yes/no, as it is */
	KVS_CTL_SIZE, /* bytes */
	KVS_CTL_SECONDS_REAL,
	KVS_CTL_LIST, /* numbers or words with commas between */
};

struct kvs_ctl_column {
	const char *key;
	const char *head; /* '<' in front: to the left */
	enum kvs_ctl_format format;
};

struct kvs_ctl_command {
	const char *name;
	const char *argument; /* name of the only one, or NULL; "[X]": it may
			       * be left out */
	bool record; /* one object, printed as a list of keys */
	const struct kvs_ctl_column *columns; /* ends with an empty one */
	const char *none; /* said when there is nothing to list */
};

static const struct kvs_ctl_column kvs_ctl_status[] = {
	{ "status", "status", KVS_CTL_PLAIN },
	{ "version", "version", KVS_CTL_PLAIN },
	{ "pid", "process", KVS_CTL_PLAIN },
	{ "instance", "instance", KVS_CTL_PLAIN },
	{ "uptime_s", "uptime", KVS_CTL_SECONDS_REAL },
	{ "listen", "prefill ranks connect to", KVS_CTL_PLAIN },
	{ "engine_socket", "engines attach at", KVS_CTL_PLAIN },
	{ "http", "metrics at", KVS_CTL_PLAIN },
	{ "tcp_engine", "transport", KVS_CTL_PLAIN },
	{ "auth_keys", "keys accepted", KVS_CTL_PLAIN },
	{ "auth_fingerprints", "their fingerprints", KVS_CTL_LIST },
	{ "sessions", "prefill ranks", KVS_CTL_PLAIN },
	{ "engines", "engines", KVS_CTL_PLAIN },
	{ "connections", "connections", KVS_CTL_PLAIN },
	{ "rooms_live", "rooms live", KVS_CTL_PLAIN },
	{ "rooms_waiting", "rooms waiting for memory", KVS_CTL_PLAIN },
	{ "rooms_held", "rooms held", KVS_CTL_PLAIN },
	{ "held_bytes", "bytes held", KVS_CTL_SIZE },
	{ "rooms_done", "rooms done", KVS_CTL_PLAIN },
	{ "rooms_failed", "rooms failed", KVS_CTL_PLAIN },
	{ "received_bytes", "bytes received", KVS_CTL_SIZE },
	{ 0 },
};

static const struct kvs_ctl_column kvs_ctl_rooms[] = {
	{ "room", "room", KVS_CTL_PLAIN },
	{ "generation", "generation", KVS_CTL_PLAIN },
	{ "state", "<state", KVS_CTL_PLAIN },
	{ "age_s", "age", KVS_CTL_SECONDS_REAL },
	{ "peer", "<peer", KVS_CTL_PLAIN },
	{ "node", "node", KVS_CTL_PLAIN },
	{ "engine", "engine", KVS_CTL_PLAIN },
	{ "tokens", "tokens", KVS_CTL_PLAIN },
	{ "bytes", "memory", KVS_CTL_SIZE },
	{ "received", "received", KVS_CTL_SIZE },
	{ "expected", "expected", KVS_CTL_SIZE },
	{ "parties", "parties", KVS_CTL_PLAIN },
	{ "cause", "<cause", KVS_CTL_PLAIN },
	{ 0 },
};

static const struct kvs_ctl_column kvs_ctl_holds[] = {
	{ "room", "room", KVS_CTL_PLAIN },
	{ "generation", "generation", KVS_CTL_PLAIN },
	{ "bytes", "memory", KVS_CTL_SIZE },
	{ "age_s", "age", KVS_CTL_SECONDS_REAL },
	{ "state", "<state", KVS_CTL_PLAIN },
	{ "cause", "<cause", KVS_CTL_PLAIN },
	{ "node", "node", KVS_CTL_PLAIN },
	{ "peer", "<peer", KVS_CTL_PLAIN },
	{ "waits_for", "<waits-for", KVS_CTL_PLAIN },
	{ "next", "<next", KVS_CTL_PLAIN },
	{ 0 },
};

static const struct kvs_ctl_column kvs_ctl_pools[] = {
	{ "pool", "<pool", KVS_CTL_PLAIN },
	{ "node", "node", KVS_CTL_PLAIN },
	{ "page_size", "page", KVS_CTL_SIZE },
	{ "bound", "bound", KVS_CTL_PLAIN },
	{ "configured", "size", KVS_CTL_SIZE },
	{ "high_water", "most-used", KVS_CTL_SIZE },
	{ "free", "free", KVS_CTL_SIZE },
	{ "reserved", "reserved", KVS_CTL_SIZE },
	{ "granted", "granted", KVS_CTL_SIZE },
	{ "staged", "staged", KVS_CTL_SIZE },
	{ "committing", "committing", KVS_CTL_SIZE },
	{ "held", "held", KVS_CTL_SIZE },
	{ "quarantined", "quarantined", KVS_CTL_SIZE },
	{ "cached", "cached", KVS_CTL_SIZE },
	{ "retracted", "retracted", KVS_CTL_SIZE },
	{ 0 },
};

static const struct kvs_ctl_column kvs_ctl_cache[] = {
	{ "node", "node", KVS_CTL_PLAIN },
	{ "tier", "<tier", KVS_CTL_PLAIN },
	{ "bytes", "memory", KVS_CTL_SIZE },
	{ "pinned_bytes", "in-use", KVS_CTL_SIZE },
	{ "blocks", "blocks", KVS_CTL_PLAIN },
	{ "asked_blocks", "asked", KVS_CTL_PLAIN },
	{ "hit_blocks", "hits", KVS_CTL_PLAIN },
	{ "hit_bytes", "not-received", KVS_CTL_SIZE },
	{ "kept_bytes", "kept", KVS_CTL_SIZE },
	{ "offloaded_bytes", "offloaded", KVS_CTL_SIZE },
	{ "recalled_bytes", "recalled", KVS_CTL_SIZE },
	{ "evicted_bytes", "evicted", KVS_CTL_SIZE },
	{ "duplicate_blocks", "twice", KVS_CTL_PLAIN },
	{ "bad_blocks", "bad", KVS_CTL_PLAIN },
	{ "aside_files", "aside", KVS_CTL_PLAIN },
	{ "health", "<health", KVS_CTL_PLAIN },
	{ "why", "<why", KVS_CTL_PLAIN },
	{ 0 },
};

static const struct kvs_ctl_column kvs_ctl_evict[] = {
	{ "evicted_bytes", "evicted", KVS_CTL_SIZE },
	{ 0 },
};

static const struct kvs_ctl_column kvs_ctl_scrub[] = {
	{ "node", "node", KVS_CTL_PLAIN },
	{ "tier", "<tier", KVS_CTL_PLAIN },
	{ "blocks", "blocks", KVS_CTL_PLAIN },
	{ "bytes", "to-read", KVS_CTL_SIZE },
	{ 0 },
};

static const struct kvs_ctl_column kvs_ctl_topo[] = {
	{ "node", "node", KVS_CTL_PLAIN },
	{ "bytes", "memory", KVS_CTL_SIZE },
	{ "allowed", "allowed", KVS_CTL_PLAIN },
	{ "eligible", "eligible", KVS_CTL_PLAIN },
	{ "pool", "pool", KVS_CTL_PLAIN },
	{ "gpu_memory", "gpu-memory", KVS_CTL_PLAIN },
	{ "cpu_node", "cpu-node", KVS_CTL_PLAIN },
	{ "cpus", "<cpus", KVS_CTL_LIST },
	{ "devices", "<devices", KVS_CTL_LIST },
	{ 0 },
};

static const struct kvs_ctl_column kvs_ctl_rdma[] = {
	{ "pool_node", "pool", KVS_CTL_PLAIN },
	{ "device", "<device", KVS_CTL_PLAIN },
	{ "used", "used", KVS_CTL_PLAIN },
	{ "driver", "<driver", KVS_CTL_PLAIN },
	{ "port", "port", KVS_CTL_PLAIN },
	{ "link", "<link", KVS_CTL_PLAIN },
	{ "gid_index", "index", KVS_CTL_PLAIN },
	{ "gid", "<gid", KVS_CTL_PLAIN },
	{ "mtu", "mtu", KVS_CTL_PLAIN },
	{ "node", "node", KVS_CTL_PLAIN },
	{ "grant", "<grants", KVS_CTL_PLAIN },
	{ "note", "<note", KVS_CTL_PLAIN },
	{ "proof", "<proof", KVS_CTL_PLAIN },
	{ 0 },
};

/* How each device of a node lets writers in, and why so. */
static const struct kvs_ctl_column kvs_ctl_grants[] = {
	{ "pool_node", "pool", KVS_CTL_PLAIN },
	{ "device", "<device", KVS_CTL_PLAIN },
	{ "used", "used", KVS_CTL_PLAIN },
	{ "grant", "<grants", KVS_CTL_PLAIN },
	{ "window", "<window", KVS_CTL_PLAIN },
	{ "mr", "<mr", KVS_CTL_PLAIN },
	{ "qp", "<qp", KVS_CTL_PLAIN },
	{ "why", "<why", KVS_CTL_PLAIN },
	{ "trial", "<trial", KVS_CTL_PLAIN },
	{ 0 },
};

static const struct kvs_ctl_column kvs_ctl_settings[] = {
	{ "setting", "<setting", KVS_CTL_PLAIN },
	{ "value", "<value", KVS_CTL_PLAIN },
	{ "default", "<default", KVS_CTL_PLAIN },
	{ "range", "<range", KVS_CTL_PLAIN },
	{ "reload", "<reload", KVS_CTL_PLAIN },
	{ 0 },
};

static const struct kvs_ctl_column kvs_ctl_about[] = {
	{ "name", "<name", KVS_CTL_PLAIN },
	{ "value", "<value", KVS_CTL_PLAIN },
	{ 0 },
};

static const struct kvs_ctl_column kvs_ctl_abort[] = {
	{ "room", "aborted room", KVS_CTL_PLAIN },
	{ 0 },
};

#define KVS_CTL_STATUS 0 /* in the next table */
#define KVS_CTL_POOLS 3
#define KVS_CTL_CACHE 4
static const struct kvs_ctl_command kvs_ctl_commands[] = {
	{ "status", NULL, true, kvs_ctl_status, "" },
	{ "rooms", NULL, false, kvs_ctl_rooms, "no rooms" },
	{ "holds", NULL, false, kvs_ctl_holds, "no holds" },
	{ "pools", NULL, false, kvs_ctl_pools, "no pools" },
	{ "cache", NULL, false, kvs_ctl_cache, "no nodes" },
	{ "evict", "[TIER]", true, kvs_ctl_evict, "" },
	{ "scrub", NULL, false, kvs_ctl_scrub, "" },
	{ "verify", NULL, false, kvs_ctl_scrub, "" },
	{ "topo", NULL, false, kvs_ctl_topo, "no nodes" },
	{ "rdma", NULL, false, kvs_ctl_rdma, "no verbs device, TCP only" },
	{ "settings", NULL, false, kvs_ctl_settings, "" },
	{ "abort", "ROOM", true, kvs_ctl_abort, "" },
	{ "bugreport", NULL, false, NULL, "" },
	{ "selftest", NULL, false, NULL, "" },
	{ "genkey", "FILE", false, NULL, "" },
	{ "fingerprint", "FILE", false, NULL, "" },
};

/* Of a bugreport; some only there. */
static const struct kvs_ctl_section {
	const char *title;
	struct kvs_ctl_command command;
	bool changed; /* only settings that are not at their default */
} kvs_ctl_sections[] = {
	{ "version", { "status", NULL, true, kvs_ctl_status, "" }, false },
	{ "build", { "build", NULL, false, kvs_ctl_about, "" }, false },
	{ "settings",
	  { "settings", NULL, false, kvs_ctl_settings,
	    "all at their defaults" },
	  true },
	{ "topology", { "topo", NULL, false, kvs_ctl_topo, "no nodes" }, false },
	{ "rdma",
	  { "rdma", NULL, false, kvs_ctl_rdma, "no verbs device, TCP only" },
	  false },
	{ "limits", { "limits", NULL, false, kvs_ctl_about, "" }, false },
	{ "pools", { "pools", NULL, false, kvs_ctl_pools, "no pools" }, false },
	{ "cache", { "cache", NULL, false, kvs_ctl_cache, "no nodes" }, false },
	{ "rooms", { "rooms", NULL, false, kvs_ctl_rooms, "no rooms" }, false },
	{ "holds", { "holds", NULL, false, kvs_ctl_holds, "no holds" }, false },
	{ "metrics", { "metrics", NULL, false, NULL, "" }, false },
};

struct kvs_ctl_args {
	const char *socket;
	unsigned int seconds; /* to wait for an answer */
	uint64_t bytes; /* selftest; 0: not given */
	unsigned int rounds; /* likewise */
	bool json;
	const struct kvs_ctl_command *command;
	const struct kvs_ctl_section *section; /* of a bugreport, or NULL */
	const char *argument;
	const char *key_file; /* selftest; NULL: none */
};

static const struct argp_option kvs_ctl_options[] = {
	{ "socket", 's', "PATH", 0, "Control socket of the daemon", 0 },
	{ "json", 'j', NULL, 0, "Print a JSON object a line", 0 },
	{ "timeout", KVS_CTL_KEY_TIMEOUT, "SECONDS", 0,
	  "Wait this long for an answer (default 10)", 0 },
	{ "bytes", KVS_CTL_KEY_BYTES, "SIZE", 0,
	  "selftest: use this much of each pool (default 16M)", 0 },
	{ "rounds", KVS_CTL_KEY_ROUNDS, "N", 0,
	  "selftest: rounds on each node (default 8)", 0 },
	{ "key-file", KVS_CTL_KEY_FILE, "FILE", 0,
	  "selftest: key to connect with, the daemon's auth.key_file", 0 },
	{ 0 },
};

static void kvs_ctl_take(struct kvs_ctl_args *a, char *arg,
			 struct argp_state *state)
{
	const size_t n = sizeof(kvs_ctl_commands) / sizeof(kvs_ctl_commands[0]);
	uint64_t room;
	size_t i;

	if (a->command) {
		if (!a->command->argument || a->argument)
			argp_error(state, "unexpected argument \"%s\"", arg);
		else if (!strcmp(a->command->argument, "ROOM") &&
			 kvs_parse_u64(arg, &room))
			argp_error(state,
				   "\"%s\" is not a room: a 64-bit "
				   "number, decimal or with 0x",
				   arg);
		a->argument = arg;
		return;
	}
	for (i = 0; i < n; i++)
		if (!strcmp(kvs_ctl_commands[i].name, arg))
			a->command = &kvs_ctl_commands[i];
	if (!a->command)
		argp_error(state, "there is no command \"%s\"", arg);
}

static error_t kvs_ctl_arg(int key, char *arg, struct argp_state *state)
{
	struct kvs_ctl_args *a = state->input;
	uint64_t v = 0;

	switch (key) {
	case 's':
		a->socket = arg;
		return 0;
	case 'j':
		a->json = true;
		return 0;
	case KVS_CTL_KEY_TIMEOUT:
		if (kvs_parse_u64(arg, &v) || !v || v > KVS_CTL_SECONDS_MAX)
			argp_error(state,
				   "--timeout: %s is not a number from 1 to %d",
				   arg, KVS_CTL_SECONDS_MAX);
		a->seconds = (unsigned int)v;
		return 0;
	case KVS_CTL_KEY_BYTES:
		if (kvs_parse_size(arg, &v) || v < KVS_SELFTEST_BYTES_MIN ||
		    v > KVS_SELFTEST_BYTES_MAX)
			argp_error(state, "--bytes: %s is not from 1M to 1G",
				   arg);
		a->bytes = v;
		return 0;
	case KVS_CTL_KEY_ROUNDS:
		if (kvs_parse_u64(arg, &v) || !v || v > KVS_CTL_ROUNDS_MAX)
			argp_error(state,
				   "--rounds: %s is not a number from 1 to %d",
				   arg, KVS_CTL_ROUNDS_MAX);
		a->rounds = (unsigned int)v;
		return 0;
	case KVS_CTL_KEY_FILE:
		a->key_file = arg;
		return 0;
	case ARGP_KEY_ARG:
		kvs_ctl_take(a, arg, state);
		return 0;
	case ARGP_KEY_END:
		if (!a->command)
			argp_error(state, "which command?");
		if (a->command && a->command->argument && !a->argument &&
		    *a->command->argument != '[')
			argp_error(state, "%s needs %s", a->command->name,
				   a->command->argument);
		if (a->command && (a->bytes || a->rounds || a->key_file) &&
		    strcmp(a->command->name, "selftest"))
			argp_error(state, "--bytes, --rounds and --key-file "
					  "are for selftest");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static int kvs_ctl_connect(const char *path, unsigned int seconds)
{
	const struct timeval tv = { .tv_sec = seconds };
	struct sockaddr_un sun = { .sun_family = AF_UNIX };
	size_t n = strlen(path);
	int fd, ret;

	if (!n || n >= sizeof(sun.sun_path))
		return -ENAMETOOLONG;
	memcpy(sun.sun_path, path, n);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)) ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)) ||
	    connect(fd, (struct sockaddr *)&sun, sizeof(sun))) {
		ret = -errno;
		close(fd);
		return ret;
	}
	return fd;
}

static void kvs_ctl_no_daemon(const char *path, int ret, char *buf, size_t len)
{
	const char *hint = "";

	if (ret == -ENOENT || ret == -ECONNREFUSED)
		hint = "; kvstaged is not running, or its ctl.socket is "
		       "another path (--socket)";
	else if (ret == -EACCES)
		hint = "; only root and the user kvstaged runs as may";
	else if (ret == -EAGAIN)
		hint = ": the daemon does not accept in time (--timeout)";
	snprintf(buf, len, "cannot connect to %s: %s%s", path, strerror(-ret),
		 hint);
}

static int kvs_ctl_ask(int fd, const struct kvs_ctl_args *a)
{
	json_t *request = json_pack(
		"{s:s, s:s*}", "command", a->command->name,
		kvs_ctl_evict == a->command->columns ? "tier" : "room",
		a->argument);
	char *text = request ? json_dumps(request, JSON_COMPACT) : NULL;
	int ret = 0;

	json_decref(request);
	if (!text)
		return -ENOMEM;
	/* a daemon that is busy says so and closes: its answer is there */
	if (dprintf(fd, "%s\n", text) < 0 && errno != EPIPE)
		ret = -errno;
	free(text);
	return ret;
}

/* Returns the bytes written. */
static size_t kvs_ctl_item(const json_t *v, bool more, char *buf, size_t len)
{
	const char *comma = more ? "," : "";
	int n;

	if (json_is_string(v))
		n = snprintf(buf, len, "%s%s", comma, json_string_value(v));
	else
		n = snprintf(buf, len, "%s%" JSON_INTEGER_FORMAT, comma,
			     json_integer_value(v));
	if (n < 0)
		return 0;
	return (size_t)n < len ? (size_t)n : len - 1;
}

static const char *kvs_ctl_cell(const json_t *o, const struct kvs_ctl_column *c,
				char *buf, size_t len)
{
	const json_t *v = json_object_get(o, c->key);
	size_t i, used = 0;

	buf[0] = '\0';
	if (c->format == KVS_CTL_SIZE && json_is_integer(v)) {
		char size[KVS_UNITS_BUF];
		json_int_t n = json_integer_value(v);

		snprintf(buf, len, "%s",
			 kvs_format_size(n < 0 ? 0 : (uint64_t)n, size));
	} else if (c->format == KVS_CTL_SECONDS_REAL && json_is_number(v)) {
		char time[KVS_UNITS_BUF];
		double s = json_number_value(v);

		if (s < 0 || s > 1e9)
			s = 0;
		snprintf(buf, len, "%s",
			 kvs_format_duration((uint64_t)(s * 1e9), time));
	} else if (c->format == KVS_CTL_LIST && json_is_array(v)) {
		for (i = 0; i < json_array_size(v) && used + 16 < len; i++)
			used += kvs_ctl_item(json_array_get(v, i), i > 0,
					     buf + used, len - used);
	} else if (json_is_string(v)) {
		snprintf(buf, len, "%s", json_string_value(v));
	} else if (json_is_integer(v)) {
		snprintf(buf, len, "%" JSON_INTEGER_FORMAT,
			 json_integer_value(v));
	} else if (json_is_boolean(v)) {
		snprintf(buf, len, "%s", json_is_true(v) ? "yes" : "no");
	}
	return buf;
}

static void kvs_ctl_print_record(const json_t *o,
				 const struct kvs_ctl_column *c)
{
	char buf[512];

	for (; c->key; c++)
		printf("%-26s %s\n", c->head,
		       kvs_ctl_cell(o, c, buf, sizeof(buf)));
}

static int kvs_ctl_table(const struct kvs_ctl_column *c, struct kvs_table **ret)
{
	char heads[512];
	size_t used = 0;

	heads[0] = '\0';
	for (; c->key && used < sizeof(heads); c++)
		used += (size_t)snprintf(heads + used, sizeof(heads) - used,
					 "%s%s", used ? " " : "", c->head);
	return kvs_table_create(heads, ret);
}

/* What came, line by line, until the outcome. */
struct kvs_ctl_answer {
	const struct kvs_ctl_args *args;
	struct kvs_table *table;
	struct kvs_table *grants; /* topo: the second one */
	json_t *collect; /* instead of printing; or NULL */
	unsigned int n; /* objects */
	bool over; /* the outcome was there */
	int status;
};

/* Also in the report itself, which is read without what was said here. */
static void kvs_ctl_say_failed(const struct kvs_ctl_args *a, const char *error)
{
	fprintf(stderr, "kvstagectl: %s\n", error);
	if (a->section && a->json) {
		json_t *o = json_pack("{s:s, s:s}", "section",
				      a->section->title, "error", error);

		if (o && !json_dumpf(o, stdout, JSON_COMPACT))
			putchar('\n');
		json_decref(o);
	} else if (a->section) {
		printf("not known: %s\n", error);
	}
}

static void kvs_ctl_outcome(struct kvs_ctl_answer *a, const json_t *o)
{
	const char *error = json_string_value(json_object_get(o, "error"));

	a->over = true;
	if (json_is_true(json_object_get(o, "ok")))
		return;
	kvs_ctl_say_failed(a->args, error ? error : "the daemon refused");
	a->status = 1;
}

static bool kvs_ctl_at_default(const json_t *o)
{
	const char *value = json_string_value(json_object_get(o, "value"));
	const char *def = json_string_value(json_object_get(o, "default"));

	return value && def && !strcmp(value, def);
}

static int kvs_ctl_json(const struct kvs_ctl_answer *a, const char *line,
			json_t *o)
{
	if (!a->args->section) {
		fputs(line, stdout);
		return 0;
	}
	if (json_object_set_new(o, "section",
				json_string(a->args->section->title)))
		return -ENOMEM;
	if (json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(12)))
		return -EIO;
	putchar('\n');
	return 0;
}

static int kvs_ctl_row(struct kvs_table **t, const struct kvs_ctl_column *c,
		       const json_t *o)
{
	char buf[512];
	int ret;

	if (!*t) {
		ret = kvs_ctl_table(c, t);
		if (ret)
			return ret;
	}
	for (; c->key; c++)
		kvs_table_cell(*t, "%s", kvs_ctl_cell(o, c, buf, sizeof(buf)));
	return 0;
}

static int kvs_ctl_object(struct kvs_ctl_answer *a, const char *line, json_t *o)
{
	const struct kvs_ctl_column *c = a->args->command->columns;
	const json_t *each;
	size_t i;
	int ret;

	if (json_object_get(o, "ok")) {
		kvs_ctl_outcome(a, o);
		return 0;
	}
	if (a->args->section && a->args->section->changed &&
	    kvs_ctl_at_default(o))
		return 0;
	a->n++;
	if (a->collect)
		return json_array_append(a->collect, o) ? -ENOMEM : 0;
	if (a->args->json)
		return kvs_ctl_json(a, line, o);
	if (!c) {
		const char *text =
			json_string_value(json_object_get(o, "text"));

		fputs(text ? text : "", stdout);
		return 0;
	}
	if (a->args->command->record) {
		kvs_ctl_print_record(o, c);
		return 0;
	}
	ret = kvs_ctl_row(&a->table, c, o);
	each = c == kvs_ctl_topo ? json_object_get(o, "rdma") : NULL;
	for (i = 0; i < json_array_size(each) && !ret; i++)
		ret = kvs_ctl_row(&a->grants, kvs_ctl_grants,
				  json_array_get(each, i));
	return ret;
}

static int kvs_ctl_receive(FILE *f, struct kvs_ctl_answer *a)
{
	char *line = NULL;
	size_t size = 0;
	int err = 0, ret = 0;

	while (!ret && !a->over && getline(&line, &size, f) > 0) {
		json_t *o = json_loads(line, 0, NULL);

		ret = json_is_object(o) ? kvs_ctl_object(a, line, o) : -EPROTO;
		json_decref(o);
	}
	err = errno;
	if (!ret && !a->over)
		ret = ferror(f) ? -err : -ECONNRESET;
	free(line);
	if (!ret && a->table)
		ret = kvs_table_print(a->table, stdout);
	else if (!ret && !a->n && !a->status && !a->args->json && !a->collect)
		printf("%s\n", a->args->command->none);
	if (!ret && a->grants) {
		putchar('\n');
		ret = kvs_table_print(a->grants, stdout);
	}
	kvs_table_destroy(a->table);
	kvs_table_destroy(a->grants);
	return ret;
}

static void kvs_ctl_no_answer(const char *path, unsigned int seconds, int ret,
			      char *buf, size_t len)
{
	if (ret == -EAGAIN)
		snprintf(buf, len,
			 "no answer from %s within %u s (--timeout): the "
			 "daemon is stopped or very busy",
			 path, seconds);
	else if (ret == -ECONNRESET)
		snprintf(buf, len,
			 "no answer from %s: the daemon closed the connection: "
			 "it is busy or ends",
			 path);
	else
		snprintf(buf, len, "no answer from %s: %s", path,
			 strerror(-ret));
}

static const char *kvs_ctl_default_socket(void)
{
	static struct kvs_settings s;

	kvs_settings_init(&s);
	return s.ctl_socket;
}

/* One question and its answer: the exit status. */
static int kvs_ctl_run(const struct kvs_ctl_args *args, json_t *collect)
{
	struct kvs_ctl_answer answer = { .args = args, .collect = collect };
	char text[512];
	int fd, ret;
	FILE *f;

	fd = kvs_ctl_connect(args->socket, args->seconds);
	if (fd < 0) {
		kvs_ctl_no_daemon(args->socket, fd, text, sizeof(text));
		kvs_ctl_say_failed(args, text);
		return 1;
	}
	f = fdopen(fd, "re");
	if (!f) {
		close(fd);
		return 1;
	}
	ret = kvs_ctl_ask(fd, args);
	if (!ret)
		ret = kvs_ctl_receive(f, &answer);
	(void)fclose(f);
	if (ret && ferror(stdout))
		return 1; /* exit() tells */
	if (ret) {
		kvs_ctl_no_answer(args->socket, args->seconds, ret, text,
				  sizeof(text));
		kvs_ctl_say_failed(args, text);
		return 1;
	}
	return answer.status;
}

static int kvs_ctl_bugreport(struct kvs_ctl_args *args)
{
	const size_t n = sizeof(kvs_ctl_sections) / sizeof(kvs_ctl_sections[0]);
	int status = 0;
	size_t i;

	if (!args->json)
		printf("kvstagectl %s\n", KVS_VERSION);
	for (i = 0; i < n; i++) {
		args->section = &kvs_ctl_sections[i];
		args->command = &args->section->command;
		if (!args->json)
			printf("\n== %s ==\n", args->section->title);
		status |= kvs_ctl_run(args, NULL);
	}
	return status;
}

static int kvs_ctl_selftest_run(struct kvs_ctl_args *args)
{
	struct kvs_ctl_selftest t = {
		.bytes = args->bytes ? args->bytes : KVS_CTL_BYTES,
		.rounds = args->rounds ? args->rounds : KVS_CTL_ROUNDS,
		.seconds = args->seconds,
		.key_file = args->key_file,
		.json = args->json,
		.status = json_array(),
		.pools = json_array(),
	};
	int ret = 1;

	args->command = &kvs_ctl_commands[KVS_CTL_STATUS];
	if (t.status && t.pools && !kvs_ctl_run(args, t.status)) {
		args->command = &kvs_ctl_commands[KVS_CTL_POOLS];
		if (!kvs_ctl_run(args, t.pools))
			ret = kvs_ctl_selftest(&t);
	}
	json_decref(t.status);
	json_decref(t.pools);
	return ret;
}

/* Ask for a round over all that is on disk, and wait for its end. */
static int kvs_ctl_verify_run(struct kvs_ctl_args *args)
{
	const struct timespec nap = { .tv_nsec = 200 * 1000 * 1000 };
	struct kvs_ctl_verify v = {
		.begun = json_array(),
		.now = json_array(),
		.json = args->json,
	};
	int ret = 1;

	if (!v.begun || !v.now || kvs_ctl_run(args, v.begun))
		goto out;
	args->command = &kvs_ctl_commands[KVS_CTL_CACHE];
	for (;;) {
		if (kvs_ctl_run(args, v.now))
			goto out;
		if (kvs_ctl_verify_over(&v))
			break;
		nanosleep(&nap, NULL);
		json_array_clear(v.now);
	}
	ret = kvs_ctl_verify_print(&v);
out:
	json_decref(v.begun);
	json_decref(v.now);
	return ret;
}

int main(int argc, char **argv)
{
	static const char doc[] =
		"Asks a running kvstaged.\v"
		"status    what it is and what it does\n"
		"rooms     every room, its state, its bytes\n"
		"holds     memory held: who has not answered, what comes next\n"
		"pools     memory by state\n"
		"cache     what is kept of finished rooms, and of what use\n"
		"evict     let all of that go that is not in use, in memory or "
		"in TIER:\n"
		"          host, nvme (on disk) or all\n"
		"scrub     begin to read all that is on disk, to see whether "
		"it matches\n"
		"verify    the same at once, and wait for the outcome\n"
		"topo      NUMA nodes as the daemon sees them; how each verbs "
		"device grants\n"
		"rdma      verbs devices, which are used and how grants end\n"
		"settings  values in force\n"
		"abort     end a room, as its engine would\n"
		"bugreport all of it, and what it was built from\n"
		"selftest  abort rooms of its own while they are written, and "
		"look whether\n"
		"          what was written late is in the next ones\n"
		"genkey    make a key file, for auth.key_file; no daemon is "
		"asked\n"
		"fingerprint  of each key in a key file, to compare nodes; "
		"likewise\n\n"
		"Exit status: 0 done, 1 failed, 2 usage or a bad key file, 77 "
		"selftest\ncannot run now. See kvstagectl(1).";
	static const struct argp argp = {
		.options = kvs_ctl_options,
		.parser = kvs_ctl_arg,
		.args_doc = "status|rooms|holds|pools|cache|topo|rdma|settings|"
			    "bugreport\n"
			    "evict [TIER]\n"
			    "scrub|verify\n"
			    "abort ROOM\n"
			    "selftest\n"
			    "genkey FILE\n"
			    "fingerprint FILE",
		.doc = doc,
	};
	struct kvs_ctl_args args = {
		.socket = kvs_ctl_default_socket(),
		.seconds = KVS_CTL_SECONDS,
	};
	int ret;

	kvs_output_watch("kvstagectl");
	argp_program_version = "kvstagectl " KVS_VERSION;
	argp_err_exit_status = 2;
	ret = argp_parse(&argp, argc, argv, 0, NULL, &args);
	if (ret) {
		fprintf(stderr, "kvstagectl: %s\n", strerror(ret));
		return 1;
	}
	if (signal(SIGPIPE, SIG_IGN) == SIG_ERR)
		return 1;
	if (!strcmp(args.command->name, "bugreport"))
		ret = kvs_ctl_bugreport(&args);
	else if (!strcmp(args.command->name, "selftest"))
		ret = args.key_file && kvs_ctl_fingerprint(args.key_file, false)
			      ? 2
			      : kvs_ctl_selftest_run(&args);
	else if (!strcmp(args.command->name, "verify"))
		ret = kvs_ctl_verify_run(&args);
	else if (!strcmp(args.command->name, "genkey"))
		ret = kvs_ctl_genkey(args.argument);
	else if (!strcmp(args.command->name, "fingerprint"))
		ret = kvs_ctl_fingerprint(args.argument, true);
	else
		ret = kvs_ctl_run(&args, NULL);
	return ret;
}
