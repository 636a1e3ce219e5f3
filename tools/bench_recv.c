/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvstage-bench recv: how fast payloads arrive in a pool through the receive
 * path of the daemon, against a plain recv(MSG_WAITALL) loop on one
 * connection. The two take turns; each pair of runs gives a ratio; medians are
 * shown. With a checksum ours takes a turn without it as well. Over verbs the
 * other one is ib_write_bw. See bench_recv.h for who is who.
 *
 * What canaries would cost a one-sided transport on the same pages is measured
 * beside it; TCP writes none, verbs does.
 */
#include "tools/bench_recv.h"

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
#include "tools/bench.h"
#include "tools/median.h"
#include "tools/output.h"
#include "tools/table.h"

#define EXIT_CANNOT 77
#define ROOM_CHUNKS_MAX 1024
#define VERBS_PAGE 4096 /* bytes: what bench_recv_verbs.c asks for */
#define CANARY_MAX (256ULL << 20) /* bytes that canaries are measured in */
#define GIB (1ULL << 30)

/* Who takes a turn; the last two only with a checksum, the last only on TCP. */
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
	struct kvs_recv_args args;
	pid_t sender;
	int orders;
	int listener;
	uint16_t port;
	struct kvs_region *ours; /* NULL over verbs: the daemon makes its own */
	struct kvs_region *plain;
	struct kvs_verbs_info device; /* over verbs */
	double expect; /* GB/s of ours in its last run */
	struct kvs_table *table; /* NULL with --json */
	struct kvs_table *canaries; /* likewise */
	struct kvs_table *messages; /* likewise; NULL on TCP */
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

/* ---- one size and count ---- */

static uint32_t room_chunks(const struct bench *b, uint64_t size)
{
	uint64_t n = b->ours->size / KVS_RECV_POOL_SHARE / size;

	return n > ROOM_CHUNKS_MAX ? ROOM_CHUNKS_MAX : (uint32_t)n;
}

static uint32_t verbs_item(const struct bench *b, uint64_t size)
{
	return (uint32_t)(b->args.item_len < size ? b->args.item_len : size);
}

/* Over verbs. */
static uint32_t room_extents(const struct bench *b, uint64_t size)
{
	uint64_t n =
		b->args.pool / KVS_RECV_POOL_SHARE / KVS_RECV_BUFFERS / size;

	return n > ROOM_CHUNKS_MAX / KVS_RECV_BUFFERS
		       ? ROOM_CHUNKS_MAX / KVS_RECV_BUFFERS
		       : (uint32_t)n;
}

static uint64_t room_bytes(const struct bench *b, uint64_t size)
{
	return b->args.verbs ? room_extents(b, size) * KVS_RECV_BUFFERS * size
			     : room_chunks(b, size) * size;
}

static enum kvs_digest_kind side_digest(const struct bench *b, enum side side)
{
	return side == SIDE_OURS || side == SIDE_KEPT ? b->args.checksum
						      : KVS_DIGEST_NONE;
}

static int measure_side(const struct kvs_recv_run *run, enum side side,
			struct kvs_recv_rate *ret, char *why, size_t len)
{
	if (side != SIDE_PLAIN)
		return run->device ? kvs_recv_verbs(run, ret, why, len)
				   : kvs_recv_ours(run, ret, why, len);
	return run->device ? kvs_recv_write_bw(run, ret, why, len)
			   : kvs_recv_plain(run, ret, why, len);
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
		.digest = side_digest(b, side),
		.keep_digests = side == SIDE_KEPT,
		.listener = b->listener,
		.port = b->port,
		.orders = b->orders,
	};
	char why[KVS_RECV_WHY_MAX] = "";
	int r;

	if (b->args.verbs) {
		run.device = &b->device;
		run.pool = b->args.pool;
		run.item_len = verbs_item(b, size);
		run.chunks = (uint32_t)(size / run.item_len);
		run.extents = room_extents(b, size);
		run.expect = b->expect;
	} else {
		run.chunks = room_chunks(b, size);
	}
	r = measure_side(&run, side, ret, why, sizeof(why));
	if (!r && !ret->bytes) {
		snprintf(why, sizeof(why), "not one chunk in %g s",
			 run.seconds);
		r = -ETIME;
	}
	if (r)
		fprintf(stderr, "recv: %s: %s\n", side_name[side],
			why[0] ? why : strerror(-r));
	else if (ours)
		b->expect = ret->gbps;
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
	/* over verbs, of all runs of ours */
	uint64_t rooms;
	uint64_t writes;
	uint64_t messages;
	uint64_t copied; /* bytes */
	struct kvs_canary_cost canary; /* its times are those of a GiB */
	double canary_share; /* of the time that a GiB takes to arrive */
};

static uint32_t canary_item(const struct bench *b, uint64_t size)
{
	if (b->args.verbs)
		return verbs_item(b, size);
	return (uint32_t)(b->args.item_len ? b->args.item_len : size);
}

/* Canaries of a room like ours, cut into pages of the same length. */
static int measure_canaries(const struct bench *b, uint64_t size,
			    struct result *m)
{
	uint64_t bytes = room_bytes(b, size);
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

static double per_room(const struct result *m, uint64_t n)
{
	return m->rooms ? (double)n / (double)m->rooms : 0;
}

/* What a room is, and what its rank posted for it. */
static void show_json_verbs(const struct bench *b, uint64_t size,
			    const struct result *m)
{
	uint64_t runs = (uint64_t)room_extents(b, size) * KVS_RECV_BUFFERS;

	printf(", \"device\": \"%s\", \"grant\": \"%s\", \"mtu\": %u, "
	       "\"item_len\": %" PRIu32 ", \"room_bytes\": %" PRIu64
	       ", \"room_pages\": %" PRIu64 ", \"room_runs\": %" PRIu64
	       ", \"room_writes\": %g, \"room_messages\": %g, "
	       "\"rooms\": %" PRIu64 ", \"copied_bytes\": %" PRIu64,
	       b->device.device, b->device.grant, b->device.mtu,
	       verbs_item(b, size), room_bytes(b, size),
	       room_bytes(b, size) / verbs_item(b, size), runs,
	       per_room(m, m->writes), per_room(m, m->messages), m->rooms,
	       m->copied);
}

static void show_json(const struct bench *b, uint64_t size,
		      uint64_t connections, const struct result *m)
{
	const struct kvs_recv_args *a = &b->args;

	printf("{\"bench\": \"recv\", \"size\": %" PRIu64
	       ", \"connections\": %" PRIu64 ", \"transport\": \"%s\", "
	       "\"checksum\": \"%s\", \"ours_gbps\": %.4f, "
	       "\"baseline_gbps\": %.4f, \"ratio\": %.4f, "
	       "\"repeats\": %" PRIu64 ", \"seconds\": %g, "
	       "\"engine\": \"%s\", \"ours_cpus\": %.3f, "
	       "\"baseline_cpus\": %.3f, \"bytes\": %" PRIu64 ", "
	       "\"pool\": %" PRIu64 ", \"page_size\": %" PRIu64,
	       size, connections, a->transport,
	       kvs_digest_kind_name(a->checksum), m->ours, m->plain, m->ratio,
	       a->repeats, a->seconds, m->engine, m->ours_cpus, m->plain_cpus,
	       m->bytes, b->ours ? b->ours->size : a->pool,
	       b->ours ? b->ours->page_size : VERBS_PAGE);
	if (a->verbs)
		show_json_verbs(b, size, m);
	if (a->checksum != KVS_DIGEST_NONE)
		printf(", \"none_gbps\": %.4f, \"checksum_ratio\": %.4f",
		       m->bare, m->checksum_ratio);
	if (a->checksum != KVS_DIGEST_NONE && !a->verbs)
		printf(", \"receive_checksum_ratio\": %.4f, "
		       "\"wrong_checksums_caught\": %" PRIu64,
		       m->receive_ratio, 2 * a->repeats);
	printf(", \"canary_item_len\": %" PRIu32 ", \"canary_items\": %" PRIu64
	       ", \"canary_bytes\": %" PRIu64
	       ", \"canary_write_ns_per_gib\": %" PRIu64
	       ", \"canary_scan_ns_per_gib\": %" PRIu64
	       ", \"canary_share\": %.6f}\n",
	       canary_item(b, size), m->canary.items, m->canary.bytes,
	       m->canary.write_ns, m->canary.scan_ns, m->canary_share);
	(void)kvs_output_flush();
}

static void show_messages(const struct bench *b, uint64_t size,
			  uint64_t connections, const struct result *m)
{
	char text[KVS_UNITS_BUF];

	kvs_table_cell(b->messages, "%s", kvs_format_size(size, text));
	kvs_table_cell(b->messages, "%" PRIu64, connections);
	kvs_table_cell(b->messages, "%s", b->device.device);
	kvs_table_cell(b->messages, "%s",
		       kvs_format_size(room_bytes(b, size), text));
	kvs_table_cell(b->messages, "%" PRIu64,
		       room_bytes(b, size) / verbs_item(b, size));
	kvs_table_cell(b->messages, "%" PRIu64,
		       (uint64_t)room_extents(b, size) * KVS_RECV_BUFFERS);
	kvs_table_cell(b->messages, "%.1f", per_room(m, m->writes));
	kvs_table_cell(b->messages, "%.1f", per_room(m, m->messages));
}

static void show(const struct bench *b, uint64_t size, uint64_t connections,
		 const struct result *m)
{
	const struct kvs_recv_args *a = &b->args;
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
	if (a->checksum != KVS_DIGEST_NONE)
		kvs_table_cell(b->table, "%.3f", m->checksum_ratio);
	if (a->checksum != KVS_DIGEST_NONE && !a->verbs)
		kvs_table_cell(b->table, "%.3f", m->receive_ratio);
	kvs_table_cell(b->table, "%" PRIu64, a->repeats);
	kvs_table_cell(b->table, "%.2f", m->ours_cpus);
	if (a->verbs)
		show_messages(b, size, connections, m);
	else
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
	size_t n = b->args.checksum == KVS_DIGEST_NONE ? SIDE_BARE
		   : b->args.verbs		       ? SIDE_KEPT
						       : SIDES;
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
		"recv: %s x %" PRIu64 ", pair %zu of %" PRIu64 ": ours %.3f, "
		"baseline %.3f GB/s, ratio %.3f",
		kvs_format_size(size, text), connections, i + 1,
		b->args.repeats, rate[SIDE_OURS].gbps, rate[SIDE_PLAIN].gbps,
		rate[SIDE_OURS].gbps / rate[SIDE_PLAIN].gbps);
	if (n > SIDE_BARE)
		fprintf(stderr, "; without checksum %.3f, ratio %.3f",
			rate[SIDE_BARE].gbps,
			rate[SIDE_OURS].gbps / rate[SIDE_BARE].gbps);
	if (n == SIDES)
		fprintf(stderr, ", of the receiver %.3f",
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
		m.rooms += rate[SIDE_OURS].rooms;
		m.writes += rate[SIDE_OURS].writes;
		m.messages += rate[SIDE_OURS].messages;
		m.copied += rate[SIDE_OURS].copied;
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
	const struct kvs_recv_args *a = &b->args;
	char why[KVS_REGION_ERR_MAX] = "";
	int r = 0;

	if (!a->verbs)
		r = start_listener(b);
	if (!r && !a->verbs)
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
	if (!r && b->messages) {
		putchar('\n');
		r = kvs_table_print(b->messages, stdout);
	}
	putchar('\n');
	return r ? r : kvs_table_print(b->canaries, stdout);
}

/* A device, and what to compare with. */
static int look_for_verbs(struct bench *b)
{
	char why[KVS_RECV_WHY_MAX] = "";
	int r = kvs_recv_device(b->args.device, &b->device, why, sizeof(why));

	if (!r)
		r = kvs_recv_write_bw_there(why, sizeof(why));
	if (r)
		fprintf(stderr, "recv: --transport verbs: %s\n",
			why[0] ? why : strerror(-r));
	else
		fprintf(stderr,
			"recv: %s port %u, %s, GID index %d, MTU %u, grants by "
			"%s\n",
			b->device.device, b->device.port, b->device.link,
			b->device.gid_index, b->device.mtu, b->device.grant);
	return r;
}

static int make_tables(struct bench *b)
{
	const char *head =
		b->args.checksum == KVS_DIGEST_NONE
			? "size connections engine checksum ours_gbps "
			  "baseline_gbps ratio repeats ours_cpus baseline_cpus"
			: "size connections engine checksum ours_gbps "
			  "baseline_gbps ratio checksum_ratio "
			  "receive_checksum_ratio repeats ours_cpus "
			  "baseline_cpus";
	int r;

	if (b->args.verbs)
		head = b->args.checksum == KVS_DIGEST_NONE
			       ? "size connections engine checksum ours_gbps "
				 "baseline_gbps ratio repeats ours_cpus"
			       : "size connections engine checksum ours_gbps "
				 "baseline_gbps ratio checksum_ratio repeats "
				 "ours_cpus";
	r = kvs_table_create(head, &b->table);
	if (!r && b->args.verbs)
		r = kvs_table_create("size connections device room_bytes "
				     "room_pages room_runs room_writes "
				     "room_messages",
				     &b->messages);
	return r ? r
		 : kvs_table_create("size connections canary_item_len "
				    "canary_items canary_write_ns_per_gib "
				    "canary_scan_ns_per_gib canary_share",
				    &b->canaries);
}

int kvs_bench_recv(int argc, char **argv)
{
	struct bench b = {
		.orders = -1,
		.listener = -1,
	};
	int r = 0;

	kvs_recv_parse(argc, argv, &b.args);
	kvs_log_set_level(KVS_LOG_WARN);
	/* before any thread exists here: the other is a whole process */
	r = start_sender(&b);
	if (r)
		fprintf(stderr, "recv: %s\n", strerror(-r));
	if (!r && b.args.verbs)
		r = look_for_verbs(&b);
	if (!r && !b.args.json)
		r = make_tables(&b);
	if (!r)
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
	kvs_table_destroy(b.messages);
	return r == -EOPNOTSUPP ? EXIT_CANNOT : r ? EXIT_FAILURE : EXIT_SUCCESS;
}
