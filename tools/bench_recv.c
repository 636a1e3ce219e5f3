/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvstage-bench recv: how fast payloads arrive in a pool through the receive
 * path of the daemon, against a plain recv(MSG_WAITALL) loop on one
 * connection. The two take turns; each pair of runs gives a ratio; medians are
 * shown. With a checksum ours takes a turn without it as well. See bench_recv.h
 * for who is who.
 *
 * What canaries would cost a one-sided transport on the same pages is measured
 * beside it; TCP writes none.
 */
#include "tools/bench_recv.h"

#include <argp.h>
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/clock.h"
#include "lib/log.h"
#include "lib/units.h"
#include "pipeline/canary.h"
#include "rdma/frame.h"
#include "tools/bench.h"
#include "tools/median.h"
#include "tools/table.h"

#define EXIT_USAGE 2
#define EXIT_CANNOT 77
#define LIST_MAX 16u
#define REPEATS_MAX 999
#define SECONDS_MAX 3600
#define SIZE_MIN 4096
#define ROOM_CHUNKS_MAX 1024
#define POOL_SHARE 4 /* rooms that the pool holds */
#define CANARY_MAX (256ULL << 20) /* bytes that canaries are measured in */
#define GIB (1ULL << 30)

struct args {
	uint64_t size[LIST_MAX];
	unsigned int n_sizes;
	uint64_t connections[LIST_MAX];
	unsigned int n_connections;
	double seconds;
	uint64_t repeats;
	uint64_t pool;
	const char *pool_text; /* as it was given */
	uint64_t item_len; /* of canaries; 0: the chunk's */
	const char *engine;
	const char *transport;
	enum kvs_digest_kind checksum;
	bool json;
};

/* Who takes a turn; the last two only with a checksum. */
enum side {
	SIDE_OURS,
	SIDE_PLAIN,
	SIDE_BARE, /* ours without the checksum */
	SIDE_KEPT, /* ours, the sender does not compute it */
	SIDES
};

static const char *const side_name[SIDES] = { "ours", "baseline",
					      "ours without checksum",
					      "ours with kept checksums" };

struct bench {
	struct args args;
	pid_t sender;
	int orders;
	int listener;
	uint16_t port;
	struct kvs_region *ours;
	struct kvs_region *plain;
	struct kvs_table *table; /* NULL with --json */
	struct kvs_table *canaries; /* likewise */
};

void kvs_recv_rate_between(const struct kvs_recv_sample *a,
			   const struct kvs_recv_sample *b,
			   struct kvs_recv_rate *ret)
{
	double ns = b->now > a->now ? (double)(b->now - a->now) : 1;

	ret->bytes = b->bytes - a->bytes;
	ret->gbps = (double)ret->bytes / ns;
	ret->cpus = (double)(b->cpu - a->cpu) / ns;
}

int kvs_recv_accept(int listener)
{
	struct pollfd p = { .fd = listener, .events = POLLIN };
	int r = poll(&p, 1, KVS_RECV_PATIENCE_MS);
	int fd;

	if (r <= 0)
		return r ? -errno : -ETIMEDOUT;
	fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* ---- command line ---- */

static const struct argp_option options[] = {
	{ "size", 's', "LIST", 0, "Sizes of a chunk (default 1M,4M,16M)", 0 },
	{ "connections", 'c', "LIST", 0,
	  "Data connections of ours (default 1,2,4)", 0 },
	{ "seconds", 't', "S", 0, "Length of one measurement (default 3)", 0 },
	{ "repeats", 'n', "N", 0, "Pairs, odd (default 5)", 0 },
	{ "engine", 'e', "NAME", 0, "How ours drives TCP: auto, uring, sock",
	  0 },
	{ "pool", 'p', "SIZE", 0, "Memory of each side (default 512M)", 0 },
	{ "transport", 'T', "NAME", 0, "tcp (verbs is not built yet)", 0 },
	{ "checksum", 'C', "NAME", 0,
	  "Of each room of ours: none, crc32c, adler32", 0 },
	{ "item-len", 'i', "SIZE", 0,
	  "Page whose canaries are measured (default: the chunk)", 0 },
	{ "json", 'j', NULL, 0, "One JSON object per size and count", 0 },
	{ 0 }
};

static int parse_list(const char *arg, bool sizes, uint64_t lo, uint64_t hi,
		      uint64_t v[LIST_MAX], unsigned int *ret_n)
{
	char buf[256], *save = NULL, *p;
	unsigned int n = 0;

	if (strlen(arg) >= sizeof(buf) || strstr(arg, ",,") || arg[0] == ',' ||
	    (arg[0] && arg[strlen(arg) - 1] == ','))
		return -EINVAL;
	snprintf(buf, sizeof(buf), "%s", arg);
	for (p = strtok_r(buf, ",", &save); p; p = strtok_r(NULL, ",", &save)) {
		if (n == LIST_MAX ||
		    (sizes ? kvs_parse_size(p, &v[n])
			   : kvs_parse_u64(p, &v[n])) ||
		    v[n] < lo || v[n] > hi)
			return -EINVAL;
		n++;
	}
	*ret_n = n;
	return n ? 0 : -EINVAL;
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

static void check_together(const struct args *a, struct argp_state *state)
{
	uint64_t max = 0;

	for (unsigned int i = 0; i < a->n_sizes; i++)
		if (a->size[i] > max)
			max = a->size[i];
	if (a->pool / POOL_SHARE < max)
		argp_error(
			state,
			"--pool %s: must hold %d chunks of the largest --size: "
			"at least %" PRIu64,
			a->pool_text, POOL_SHARE, max * POOL_SHARE);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	static const char *const engines[] = { "auto", "uring", "sock", NULL };
	static const char *const transports[] = { "tcp", "verbs", NULL };
	struct args *a = state->input;

	switch (key) {
	case 's':
		if (parse_list(arg, true, SIZE_MIN,
			       KVS_PAYLOAD_MAX / POOL_SHARE, a->size,
			       &a->n_sizes))
			argp_error(state,
				   "--size %s: up to %u sizes from 4K to 256M",
				   arg, LIST_MAX);
		return 0;
	case 'c':
		if (parse_list(arg, false, 1, KVS_RECV_CONNECTIONS_MAX,
			       a->connections, &a->n_connections))
			argp_error(state,
				   "--connections %s: up to %u counts from 1 "
				   "to %u",
				   arg, LIST_MAX, KVS_RECV_CONNECTIONS_MAX);
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
		    a->item_len > KVS_PAYLOAD_MAX / POOL_SHARE)
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

/* ---- one size and count ---- */

static uint32_t room_chunks(const struct bench *b, uint64_t size)
{
	uint64_t n = b->ours->size / POOL_SHARE / size;

	return n > ROOM_CHUNKS_MAX ? ROOM_CHUNKS_MAX : (uint32_t)n;
}

static int one_run(struct bench *b, enum side side, uint64_t size,
		   uint64_t connections, struct kvs_recv_rate *ret)
{
	bool ours = side != SIDE_PLAIN;
	struct kvs_recv_run run = {
		.size = size,
		.connections = ours ? (uint32_t)connections : 1,
		.seconds = b->args.seconds,
		.engine = b->args.engine,
		.region = ours ? b->ours : b->plain,
		.chunks = room_chunks(b, size),
		.digest = side == SIDE_OURS || side == SIDE_KEPT
				  ? b->args.checksum
				  : KVS_DIGEST_NONE,
		.keep_digests = side == SIDE_KEPT,
		.listener = b->listener,
		.port = b->port,
		.orders = b->orders,
	};
	char why[KVS_RECV_WHY_MAX] = "";
	int r = ours ? kvs_recv_ours(&run, ret, why, sizeof(why))
		     : kvs_recv_plain(&run, ret, why, sizeof(why));

	if (!r && !ret->bytes) {
		snprintf(why, sizeof(why), "not one chunk in %g s",
			 run.seconds);
		r = -ETIME;
	}
	if (r)
		fprintf(stderr, "recv: %s: %s\n", side_name[side],
			why[0] ? why : strerror(-r));
	return r;
}

/* Medians over the pairs. */
struct result {
	double ours;
	double plain;
	double ratio;
	double ours_cpus;
	double plain_cpus;
	double bare; /* ours without the checksum */
	double checksum_ratio; /* ours to that */
	double receive_ratio; /* the same, of which the sender has no share */
	uint64_t bytes; /* of the last run of ours */
	char engine[32];
	struct kvs_canary_cost canary; /* its times are those of a GiB */
	double canary_share; /* of the time that a GiB takes to arrive */
};

static uint32_t canary_item(const struct bench *b, uint64_t size)
{
	return (uint32_t)(b->args.item_len ? b->args.item_len : size);
}

/* Canaries of a room like ours, cut into pages of the same length. */
static int measure_canaries(const struct bench *b, uint64_t size,
			    struct result *m)
{
	uint64_t bytes = room_chunks(b, size) * size;
	uint32_t item = canary_item(b, size);
	size_t n = b->args.repeats;
	double *v = calloc(2 * n, sizeof(*v));
	int r = v ? 0 : -ENOMEM;

	if (bytes > CANARY_MAX)
		bytes = CANARY_MAX;
	if (bytes < item)
		bytes = item;
	for (size_t i = 0; i < n && !r; i++) {
		r = kvs_canary_bench(bytes, 1, item, &m->canary);
		if (r)
			break;
		v[i] = (double)m->canary.write_ns * (double)GIB /
		       (double)m->canary.bytes;
		v[n + i] = (double)m->canary.scan_ns * (double)GIB /
			   (double)m->canary.bytes;
	}
	if (!r) {
		m->canary.write_ns = (uint64_t)(kvs_median(v, n) + 0.5);
		m->canary.scan_ns = (uint64_t)(kvs_median(v + n, n) + 0.5);
		m->canary_share =
			(double)(m->canary.write_ns + m->canary.scan_ns) *
			m->ours / (double)GIB;
	} else {
		fprintf(stderr, "recv: canaries: %s\n", strerror(-r));
	}
	free(v);
	return r;
}

static void show_json(const struct bench *b, uint64_t size,
		      uint64_t connections, const struct result *m)
{
	const struct args *a = &b->args;

	printf("{\"bench\": \"recv\", \"size\": %" PRIu64
	       ", \"connections\": %" PRIu64 ", \"transport\": \"%s\", "
	       "\"checksum\": \"%s\", \"ours_gbps\": %.3f, "
	       "\"baseline_gbps\": %.3f, \"ratio\": %.4f, "
	       "\"repeats\": %" PRIu64 ", \"seconds\": %g, "
	       "\"engine\": \"%s\", \"ours_cpus\": %.3f, "
	       "\"baseline_cpus\": %.3f, \"bytes\": %" PRIu64 ", "
	       "\"pool\": %" PRIu64 ", \"page_size\": %" PRIu64,
	       size, connections, a->transport,
	       kvs_digest_kind_name(a->checksum), m->ours, m->plain, m->ratio,
	       a->repeats, a->seconds, m->engine, m->ours_cpus, m->plain_cpus,
	       m->bytes, b->ours->size, b->ours->page_size);
	if (a->checksum != KVS_DIGEST_NONE)
		printf(", \"none_gbps\": %.3f, \"checksum_ratio\": %.4f, "
		       "\"receive_checksum_ratio\": %.4f, "
		       "\"wrong_checksums_caught\": %" PRIu64,
		       m->bare, m->checksum_ratio, m->receive_ratio,
		       2 * a->repeats);
	printf(", \"canary_item_len\": %" PRIu32 ", \"canary_items\": %" PRIu64
	       ", \"canary_bytes\": %" PRIu64
	       ", \"canary_write_ns_per_gib\": %" PRIu64
	       ", \"canary_scan_ns_per_gib\": %" PRIu64
	       ", \"canary_share\": %.6f}\n",
	       canary_item(b, size), m->canary.items, m->canary.bytes,
	       m->canary.write_ns, m->canary.scan_ns, m->canary_share);
	(void)fflush(stdout);
}

static void show(const struct bench *b, uint64_t size, uint64_t connections,
		 const struct result *m)
{
	const struct args *a = &b->args;
	char text[KVS_UNITS_BUF];

	if (!b->table) {
		show_json(b, size, connections, m);
		return;
	}
	kvs_table_cell(b->table, "%s", kvs_format_size(size, text));
	kvs_table_cell(b->table, "%" PRIu64, connections);
	kvs_table_cell(b->table, "%s", m->engine);
	kvs_table_cell(b->table, "%s", kvs_digest_kind_name(a->checksum));
	kvs_table_cell(b->table, "%.2f", m->ours);
	kvs_table_cell(b->table, "%.2f", m->plain);
	kvs_table_cell(b->table, "%.3f", m->ratio);
	if (a->checksum != KVS_DIGEST_NONE) {
		kvs_table_cell(b->table, "%.3f", m->checksum_ratio);
		kvs_table_cell(b->table, "%.3f", m->receive_ratio);
	}
	kvs_table_cell(b->table, "%" PRIu64, a->repeats);
	kvs_table_cell(b->table, "%.2f", m->ours_cpus);
	kvs_table_cell(b->table, "%.2f", m->plain_cpus);
	kvs_table_cell(b->canaries, "%s", kvs_format_size(size, text));
	kvs_table_cell(b->canaries, "%" PRIu64, connections);
	kvs_table_cell(b->canaries, "%" PRIu32, canary_item(b, size));
	kvs_table_cell(b->canaries, "%" PRIu64, m->canary.items);
	kvs_table_cell(b->canaries, "%" PRIu64, m->canary.write_ns);
	kvs_table_cell(b->canaries, "%" PRIu64, m->canary.scan_ns);
	kvs_table_cell(b->canaries, "%.6f", m->canary_share);
}

static int take_turns(struct bench *b, uint64_t size, uint64_t connections,
		      size_t i, struct kvs_recv_rate rate[SIDES])
{
	size_t n = b->args.checksum == KVS_DIGEST_NONE ? SIDE_BARE : SIDES;
	char text[KVS_UNITS_BUF];
	int r = 0;

	/* Who goes first changes: a drift favours none. */
	for (size_t k = 0; k < n && !r; k++) {
		enum side side = (enum side)((i + k) % n);

		r = one_run(b, side, size, connections, &rate[side]);
	}
	if (r)
		return r;
	fprintf(stderr,
		"recv: %s x %" PRIu64 ", pair %zu of %" PRIu64 ": ours %.2f, "
		"baseline %.2f GB/s, ratio %.3f",
		kvs_format_size(size, text), connections, i + 1,
		b->args.repeats, rate[SIDE_OURS].gbps, rate[SIDE_PLAIN].gbps,
		rate[SIDE_OURS].gbps / rate[SIDE_PLAIN].gbps);
	if (n == SIDES)
		fprintf(stderr,
			"; without checksum %.2f, ratio %.3f, of the receiver "
			"%.3f",
			rate[SIDE_BARE].gbps,
			rate[SIDE_OURS].gbps / rate[SIDE_BARE].gbps,
			rate[SIDE_KEPT].gbps / rate[SIDE_BARE].gbps);
	fputc('\n', stderr);
	return 0;
}

static int measure(struct bench *b, uint64_t size, uint64_t connections)
{
	size_t n = b->args.repeats;
	double *v = calloc(8 * n, sizeof(*v));
	struct kvs_recv_rate rate[SIDES] = { 0 };
	struct result m = { 0 };
	int r = 0;

	if (!v)
		return -ENOMEM;
	for (size_t i = 0; i < n && !r; i++) {
		r = take_turns(b, size, connections, i, rate);
		if (r)
			break;
		v[i] = rate[SIDE_OURS].gbps;
		v[n + i] = rate[SIDE_PLAIN].gbps;
		v[2 * n + i] = rate[SIDE_OURS].gbps / rate[SIDE_PLAIN].gbps;
		v[3 * n + i] = rate[SIDE_OURS].cpus;
		v[4 * n + i] = rate[SIDE_PLAIN].cpus;
		if (b->args.checksum != KVS_DIGEST_NONE) {
			v[5 * n + i] = rate[SIDE_BARE].gbps;
			v[6 * n + i] =
				rate[SIDE_OURS].gbps / rate[SIDE_BARE].gbps;
			v[7 * n + i] =
				rate[SIDE_KEPT].gbps / rate[SIDE_BARE].gbps;
		}
		m.bytes = rate[SIDE_OURS].bytes;
		snprintf(m.engine, sizeof(m.engine), "%s",
			 rate[SIDE_OURS].engine);
	}
	if (!r) {
		m.ours = kvs_median(v, n);
		m.plain = kvs_median(v + n, n);
		m.ratio = kvs_median(v + 2 * n, n);
		m.ours_cpus = kvs_median(v + 3 * n, n);
		m.plain_cpus = kvs_median(v + 4 * n, n);
		m.bare = kvs_median(v + 5 * n, n);
		m.checksum_ratio = kvs_median(v + 6 * n, n);
		m.receive_ratio = kvs_median(v + 7 * n, n);
		r = measure_canaries(b, size, &m);
	}
	if (!r)
		show(b, size, connections, &m);
	free(v);
	return r;
}

/* ---- what all need ---- */

/* Before any thread exists here: the child is a whole process. */
static int start_sender(struct bench *b)
{
	pid_t parent = getpid();
	int sv[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv) < 0)
		return -errno;
	b->sender = fork();
	if (b->sender < 0) {
		int r = -errno;

		close(sv[0]);
		close(sv[1]);
		return r;
	}
	if (!b->sender) {
		close(sv[0]);
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(getppid() == parent ? kvs_recv_sender(sv[1])
					  : EXIT_FAILURE);
	}
	close(sv[1]);
	b->orders = sv[0];
	return 0;
}

static int start_listener(struct bench *b)
{
	struct sockaddr_in sin = {
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	socklen_t len = sizeof(sin);

	b->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (b->listener < 0 ||
	    bind(b->listener, (struct sockaddr *)&sin, sizeof(sin)) ||
	    listen(b->listener, (int)KVS_RECV_CONNECTIONS_MAX) ||
	    getsockname(b->listener, (struct sockaddr *)&sin, &len))
		return -errno;
	b->port = ntohs(sin.sin_port);
	return 0;
}

static int make_regions(struct bench *b, char *why, size_t len)
{
	struct kvs_topology *topo;
	struct kvs_region_opts o = {
		.name = "kvstage-bench-recv",
		.setting = "--pool",
		.size = b->args.pool,
		.node = -1,
		.err = why,
		.err_len = len,
	};
	int r = kvs_topology_load(NULL, &topo);

	if (r)
		return r;
	o.topology = topo;
	(void)kvs_topology_auto_node(topo, -1, &o.node);
	r = kvs_region_create(&o, &b->ours);
	if (!r) {
		/* No better pages than ours got. */
		o.page_size_max = b->ours->page_size;
		r = kvs_region_create(&o, &b->plain);
	}
	if (!r && b->plain->page_size != b->ours->page_size) {
		snprintf(why, len, "the two sides got different page sizes");
		r = -ENOMEM;
	}
	if (!r)
		fprintf(stderr, "recv: pool %s\n", b->ours->why);
	kvs_topology_destroy(topo);
	return r;
}

static int measure_all(struct bench *b)
{
	const struct args *a = &b->args;
	char why[KVS_REGION_ERR_MAX] = "";
	int r = start_listener(b);

	if (!r)
		r = make_regions(b, why, sizeof(why));
	if (r) {
		fprintf(stderr, "recv: %s\n", why[0] ? why : strerror(-r));
		return r;
	}
	for (unsigned int i = 0; i < a->n_sizes; i++) {
		for (unsigned int k = 0; k < a->n_connections; k++) {
			r = measure(b, a->size[i], a->connections[k]);
			if (r)
				return r;
		}
	}
	if (!b->table)
		return 0;
	r = kvs_table_print(b->table, stdout);
	putchar('\n');
	return r ? r : kvs_table_print(b->canaries, stdout);
}

static int not_built(const struct args *a)
{
	if (!strcmp(a->transport, "tcp"))
		return 0;
	fprintf(stderr, "recv: --transport %s: not built yet\n", a->transport);
	return EXIT_CANNOT;
}

static int make_tables(struct bench *b)
{
	int r = kvs_table_create(
		b->args.checksum == KVS_DIGEST_NONE
			? "size connections engine checksum ours_gbps "
			  "baseline_gbps ratio repeats ours_cpus baseline_cpus"
			: "size connections engine checksum ours_gbps "
			  "baseline_gbps ratio checksum_ratio "
			  "receive_checksum_ratio repeats ours_cpus "
			  "baseline_cpus",
		&b->table);

	return r ? r
		 : kvs_table_create("size connections canary_item_len "
				    "canary_items canary_write_ns_per_gib "
				    "canary_scan_ns_per_gib canary_share",
				    &b->canaries);
}

int kvs_bench_recv(int argc, char **argv)
{
	const struct argp argp = {
		.options = options,
		.parser = parse,
		.doc = "How fast payloads arrive in a pool, against a plain "
		       "recv(MSG_WAITALL) loop on one connection.",
	};
	struct bench b = {
		.args = {
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
		},
		.orders = -1,
		.listener = -1,
	};
	int r;

	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, 0, NULL, &b.args);
	r = not_built(&b.args);
	if (r)
		return r;
	kvs_log_set_level(KVS_LOG_WARN);
	r = start_sender(&b);
	if (!r && !b.args.json)
		r = make_tables(&b);
	if (r)
		fprintf(stderr, "recv: %s\n", strerror(-r));
	else
		r = measure_all(&b);
	if (b.orders >= 0)
		close(b.orders);
	if (b.sender > 0)
		(void)waitpid(b.sender, NULL, 0);
	if (b.listener >= 0)
		close(b.listener);
	kvs_region_destroy(b.ours);
	kvs_region_destroy(b.plain);
	kvs_table_destroy(b.table);
	kvs_table_destroy(b.canaries);
	return r == -EOPNOTSUPP ? EXIT_CANNOT : r ? EXIT_FAILURE : EXIT_SUCCESS;
}
