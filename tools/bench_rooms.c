/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvstage-bench rooms: what a room costs the daemon's worker in CPU, and what
 * a poll of all rooms costs an engine, while many are live.
 *
 * A worker is driven through its public calls, as its node drives it, over
 * addresses with no memory behind: no payload is moved. N rooms are kept
 * live and are spread over their lives, as those of a busy node are: each
 * step admits one, opens that which was admitted N/4 steps ago, receives that
 * of N/2 steps ago, and commits and releases the oldest. So a room's memory is
 * as cold at each stage as N makes it. Chunks under way at a time are bounded
 * by the data connections, which no number of rooms multiplies.
 */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "lib/assert.h"
#include "lib/clock.h"
#include "lib/log.h"
#include "lib/units.h"
#include "pipeline/engine_internal.h"
#include "pipeline/worker.h"
#include "tools/arg.h"
#include "tools/bench.h"
#include "tools/count_syscalls.h"
#include "tools/median.h"
#include "tools/output.h"
#include "tools/table.h"

#define EXIT_USAGE 2
#define LIST_MAX 16u
#define LIVE_MAX (1u << 20)
#define ROOMS_MAX (1u << 30)
#define ROOM_BYTES 65536u
#define PAGE_TOKENS 16
#define ENGINE 1
#define SESSION 1
#define PEER "bench"
#define CONNECTIONS 64u /* chunks under way at most */
#define BATCHES 31u /* of rooms, with a poll after each; odd */

struct args {
	uint64_t live[LIST_MAX];
	unsigned int n;
	uint64_t rooms; /* measured */
	bool json;
};

struct bench {
	uint32_t live;
	struct kvs_settings set;
	struct kvs_layer_buffer buffer;
	struct kvs_layout layout;
	void *base;
	uint64_t base_len;
	struct kvs_pool *pool;
	struct kvs_worker *w;
	uint64_t *generation; /* by slot */
	struct kvs_receive rx[CONNECTIONS];
	uint32_t under_way; /* chunks */
	uint64_t admitted;
	uint64_t done; /* rooms over */
	uint64_t failed;

	/* the engine's side: its tables, without a daemon */
	_Atomic uint64_t *words;
	struct kvs_engine *e;
	kvs_handle *handles;
	uint8_t *status;

	uint64_t at; /* next step */
	uint64_t heap; /* bytes of all rooms */
	double cpu_us[BATCHES];
	double poll_us[BATCHES];
	double wall_us[BATCHES];
};

/* ---- what the worker asks for ---- */

static void out_to_peer(void *arg, uint64_t session, const struct kvs_msg *m)
{
	(void)arg;
	(void)session;
	(void)m;
}

/* What the daemon's front does with it, less the packet. */
static void out_to_engine(void *arg, uint32_t engine, uint32_t slot,
			  uint64_t word, const struct kvs_packet *p, size_t len)
{
	struct bench *b = arg;

	(void)engine;
	(void)p;
	(void)len;
	b->failed += KVS_WORD_STATUS(word) == KVS_STATUS_FAILED;
	atomic_store_explicit(&b->words[slot], word, memory_order_release);
}

static void out_room_over(void *arg, uint64_t room, uint64_t generation,
			  int err, const char *text)
{
	struct bench *b = arg;

	(void)room;
	(void)generation;
	(void)err;
	(void)text;
	b->done++;
}

static void out_stop_receive(void *arg, struct kvs_receive *rx)
{
	(void)arg;
	(void)rx;
}

static void out_close_session(void *arg, uint64_t session, int err,
			      const char *why)
{
	struct bench *b = arg;

	(void)session;
	(void)err;
	(void)why;
	b->failed++;
}

static const struct kvs_worker_out bench_out = {
	.to_peer = out_to_peer,
	.to_engine = out_to_engine,
	.room_over = out_room_over,
	.stop_receive = out_stop_receive,
	.close_session = out_close_session,
};

/* ---- the life of a room ---- */

static void stage_admit(struct bench *b, uint32_t slot)
{
	const struct kvs_rank_slice slice = { .first_layer = 0, .n_layers = 1 };
	const struct kvs_room_request q = {
		.room = ++b->admitted,
		.generation = b->admitted,
		.engine = ENGINE,
		.slot = slot,
		.peer = PEER,
		.tokens = PAGE_TOKENS,
		.n_ranks = 1,
		.ranks = &slice,
	};
	kvs_handle *h = &b->handles[slot];

	/* The engine's bookkeeping of kvs_engine_admit(). */
	h->slot = slot + 1;
	h->generation = 0;
	h->previous =
		atomic_load_explicit(&b->words[slot], memory_order_relaxed);
	b->e->previous[slot] = h->previous;
	b->e->local[slot] = KVS_ENG_WORD;
	b->generation[slot] = q.generation;
	kvs_worker_admit(b->w, &q);
}

static void stage_open(struct bench *b, uint32_t slot)
{
	uint64_t gen = b->generation[slot];
	const struct kvs_msg_open m = { .room = gen, .tokens = PAGE_TOKENS };

	kvs_worker_open(b->w, SESSION, gen, &m);
}

static void stage_begin(struct bench *b, uint32_t slot, struct kvs_receive *rx)
{
	const struct kvs_msg_chunk m = {
		.room = b->generation[slot],
		.generation = b->generation[slot],
		.kind = KVS_BUFFER_KV,
		.len = ROOM_BYTES,
	};
	enum kvs_proto_error why;
	void *addr;

	b->failed +=
		!!kvs_worker_receive_begin(b->w, SESSION, &m, rx, &addr, &why);
}

static void stage_ready(struct bench *b, uint32_t slot, struct kvs_receive *rx)
{
	const struct kvs_msg m = {
		.type = KVS_WIRE_LAST,
		.last = { .room = b->generation[slot],
			  .generation = b->generation[slot],
			  .bytes = ROOM_BYTES },
	};

	kvs_worker_receive_end(b->w, rx, 0, ROOM_BYTES);
	b->failed += !!kvs_worker_message(b->w, SESSION, &m);
}

static void stage_commit(struct bench *b, uint32_t slot)
{
	const struct kvs_packet_room p = {
		.generation = b->generation[slot],
		.slot = slot,
	};

	kvs_worker_packet(b->w, ENGINE, KVS_PACKET_COMMIT, &p);
	kvs_worker_packet(b->w, ENGINE, KVS_PACKET_COMMITTED, &p);
}

/* Step number @i: the oldest room ends and a new one takes its slot. */
static void step(struct bench *b, uint64_t i)
{
	uint32_t n = b->live, k = b->under_way;
	uint64_t begin = n / 2, ready = begin + k;

	if (i >= n)
		stage_commit(b, (uint32_t)(i % n));
	/* It gives its memory and its id back before the next one comes. */
	kvs_worker_turn(b->w);
	stage_admit(b, (uint32_t)(i % n));
	if (i >= n / 4)
		stage_open(b, (uint32_t)((i - n / 4) % n));
	if (i >= ready)
		stage_ready(b, (uint32_t)((i - ready) % n),
			    &b->rx[(i - ready) % k]);
	if (i >= begin)
		stage_begin(b, (uint32_t)((i - begin) % n),
			    &b->rx[(i - begin) % k]);
}

/* ---- the poll ---- */

static void poll_all(void *arg)
{
	struct bench *b = arg;

	(void)kvs_engine_poll_many(b->e, b->handles, b->live, b->status);
}

/* Does the poll see what the worker wrote? */
static int check_poll(const struct bench *b)
{
	uint32_t ready = 0;

	for (uint32_t i = 0; i < b->live; i++) {
		if (b->status[i] < KVS_STATUS_ADMITTED ||
		    b->status[i] > KVS_STATUS_READY)
			return -EPROTO;
		ready += b->status[i] == KVS_STATUS_READY;
	}
	return ready ? 0 : -EPROTO;
}

/* ---- one count ---- */

static int up_engine(struct bench *b)
{
	size_t n = b->live;

	b->words = calloc(n, sizeof(*b->words));
	b->handles = calloc(n, sizeof(*b->handles));
	b->status = calloc(n, sizeof(*b->status));
	b->generation = calloc(n, sizeof(*b->generation));
	b->e = calloc(1, sizeof(*b->e));
	if (!b->words || !b->handles || !b->status || !b->generation || !b->e)
		return -ENOMEM;
	b->e->n_slots = b->live;
	b->e->words = b->words;
	b->e->previous = calloc(n, sizeof(*b->e->previous));
	b->e->local = calloc(n, sizeof(*b->e->local));
	return b->e->previous && b->e->local ? 0 : -ENOMEM;
}

static int up_worker(struct bench *b)
{
	struct kvs_pool_opts po = {
		.name = "receive",
		.node = -1,
		.clock = &kvs_clock_real,
	};
	struct kvs_worker_opts wo = {
		.settings = &b->set,
		.clock = &kvs_clock_real,
		.secret = 0x9e3779b97f4a7c15,
		.out = &bench_out,
		.arg = b,
	};
	int r;

	kvs_settings_init(&b->set);
	b->set.peer_rooms = UINT32_MAX; /* all are of one peer */
	/* A room may wait for its next stage longer than these allow. */
	b->set.open_timeout = b->set.claim_timeout = b->set.transfer_timeout =
		3600 * KVS_NSEC_PER_SEC;
	b->base_len = (uint64_t)b->live * ROOM_BYTES;
	b->base = mmap(NULL, b->base_len, PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (b->base == MAP_FAILED) {
		b->base = NULL;
		return -errno;
	}
	po.base = b->base;
	po.size = b->base_len;
	po.overtake_max = b->set.overtake;
	po.overtake_ns = b->set.overtake_time;
	r = kvs_pool_create(&po, &b->pool);
	if (r)
		return r;
	wo.pool = b->pool;
	r = kvs_worker_create(&wo, &b->w);
	if (r)
		return r;
	b->buffer.kind = KVS_BUFFER_KV;
	b->buffer.item_len = ROOM_BYTES;
	b->layout.size = sizeof(b->layout);
	b->layout.page_size = PAGE_TOKENS;
	b->layout.dtype = KVS_DTYPE_BF16;
	b->layout.n_buffers = 1;
	b->layout.buffers = &b->buffer;
	r = kvs_worker_engine_add(b->w, ENGINE, &b->layout);
	if (r)
		return r;
	return kvs_worker_session_add(b->w, SESSION, PEER, 0,
				      KVS_CAP_GENERATION | KVS_CAP_DRAIN_ACK);
}

static void down(struct bench *b)
{
	if (b->w) {
		/* Receives under way end first, as a transport would. */
		for (uint32_t i = 0; i < b->under_way; i++)
			if (b->rx[i].room)
				kvs_worker_receive_end(b->w, &b->rx[i],
						       -ECANCELED, 0);
		kvs_worker_abandon(b->w);
		kvs_worker_destroy(b->w);
	}
	kvs_pool_destroy(b->pool);
	if (b->base)
		munmap(b->base, b->base_len);
	if (b->e) {
		free(b->e->previous);
		free(b->e->local);
	}
	free(b->e);
	free(b->words);
	free(b->handles);
	free(b->status);
	free(b->generation);
}

struct result {
	double cpu_us;
	double poll_us;
	double wall_us;
	uint64_t rooms;
	int64_t syscalls; /* -1: cannot be counted here */
};

static uint64_t heap(void)
{
	struct mallinfo2 m = mallinfo2();

	return m.uordblks + m.hblkhd;
}

/* -1: they cannot be counted here, and it says why. */
static int64_t count(struct bench *b)
{
	uint64_t n;
	int r = kvs_count_syscalls(poll_all, b, &n);

	if (!r)
		return (int64_t)n;
	fprintf(stderr, "rooms: system calls are not counted: %s\n",
		r == -EOPNOTSUPP ? "no seccomp filter can be set here"
				 : strerror(-r));
	return -1;
}

/* Full, and once over: slots, lists and maps as in steady state. */
static void fill(struct bench *b)
{
	uint64_t before = heap();

	for (; b->at < 2ULL * b->live; b->at++)
		step(b, b->at);
	b->heap = heap() - before;
}

static int batch(struct bench *b, unsigned int k, uint64_t rooms)
{
	uint64_t end = b->at + rooms, cpu, wall;

	wall = kvs_clock_now(&kvs_clock_real);
	cpu = kvs_clock_thread_cpu();
	for (; b->at < end; b->at++)
		step(b, b->at);
	cpu = kvs_clock_thread_cpu() - cpu;
	wall = kvs_clock_now(&kvs_clock_real) - wall;
	b->cpu_us[k] = (double)cpu / (double)rooms / 1000;
	b->wall_us[k] = (double)wall / (double)rooms / 1000;
	wall = kvs_clock_now(&kvs_clock_real);
	poll_all(b);
	wall = kvs_clock_now(&kvs_clock_real) - wall;
	b->poll_us[k] = (double)wall / 1000;
	if (b->failed || check_poll(b))
		return -EPROTO;
	/* Every step but those that filled it up ended a room. */
	return b->done == b->at - b->live && b->w->live == b->live ? 0
								   : -EPROTO;
}

static void show(struct kvs_table *t, const struct bench *b,
		 const struct result *m)
{
	if (!t) {
		printf("{\"bench\": \"rooms\", \"live\": %" PRIu32
		       ", \"cpu_us_per_room\": %.3f, \"poll_us\": %.3f, "
		       "\"poll_syscalls\": %" PRId64 ", \"rooms\": %" PRIu64
		       ", \"wall_us_per_room\": %.3f, "
		       "\"poll_ns_per_room\": %.3f, "
		       "\"heap_bytes_per_room\": %" PRIu64 "}\n",
		       b->live, m->cpu_us, m->poll_us, m->syscalls, m->rooms,
		       m->wall_us, m->poll_us * 1000 / b->live,
		       b->heap / b->live);
		(void)kvs_output_flush();
		return;
	}
	kvs_table_cell(t, "%" PRIu32, b->live);
	kvs_table_cell(t, "%.2f", m->cpu_us);
	kvs_table_cell(t, "%.2f", m->poll_us);
	kvs_table_cell(t, "%" PRId64, m->syscalls);
	kvs_table_cell(t, "%" PRIu64, m->rooms);
	kvs_table_cell(t, "%" PRIu64, b->heap / b->live);
}

static int up(struct bench *b, uint64_t live)
{
	int r;

	b->live = (uint32_t)live;
	b->under_way = live / 4 < CONNECTIONS ? b->live / 4 : CONNECTIONS;
	r = up_engine(b);
	if (!r)
		r = up_worker(b);
	if (!r)
		fill(b);
	return r;
}

/* Batches of all counts take turns: what else the machine does falls on all
 * of them alike, and their proportions stay. */
static int measure(const struct args *a, struct bench *v, struct kvs_table *t)
{
	uint64_t per = a->rooms / BATCHES + 1;
	struct result m;
	int r = 0;

	for (unsigned int i = 0; i < a->n && !r; i++)
		r = up(&v[i], a->live[i]);
	for (unsigned int k = 0; k < BATCHES && !r; k++) {
		fprintf(stderr, "rooms: batch %u of %u\n", k + 1, BATCHES);
		for (unsigned int i = 0; i < a->n && !r; i++)
			r = batch(&v[i], k, per);
	}
	for (unsigned int i = 0; i < a->n && !r; i++) {
		m.syscalls = count(&v[i]);
		m.rooms = per * BATCHES;
		m.cpu_us = kvs_median(v[i].cpu_us, BATCHES);
		m.poll_us = kvs_median(v[i].poll_us, BATCHES);
		m.wall_us = kvs_median(v[i].wall_us, BATCHES);
		show(t, &v[i], &m);
	}
	if (r == -EPROTO)
		fprintf(stderr, "rooms: a room did not do what it should\n");
	return r;
}

/* ---- command line ---- */

static const struct argp_option options[] = {
	{ "live", 'l', "LIST", 0, "Live rooms (default 100,1000,10000,100000)",
	  0 },
	{ "rooms", 'n', "N", 0, "Rooms measured for each (default 400000)", 0 },
	{ "json", 'j', NULL, 0, "One JSON object per count", 0 },
	{ 0 }
};

static void parse_live(char *arg, struct args *a, struct argp_state *state)
{
	char buf[256], *save = NULL, *p;
	bool bad = strlen(arg) >= sizeof(buf) || strstr(arg, ",,") ||
		   arg[0] == ',' || !arg[0] || arg[strlen(arg) - 1] == ',';

	a->n = 0;
	snprintf(buf, sizeof(buf), "%s", arg);
	for (p = strtok_r(buf, ",", &save); p && !bad;
	     p = strtok_r(NULL, ",", &save)) {
		bad = a->n == LIST_MAX || kvs_parse_u64(p, &a->live[a->n]) ||
		      a->live[a->n] < 8 || a->live[a->n] > LIVE_MAX;
		a->n += !bad;
	}
	if (bad || kvs_arg_repeats(a->live, a->n))
		argp_error(state,
			   "--live %s: up to %u different counts from 8 to %u",
			   arg, LIST_MAX, LIVE_MAX);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct args *a = state->input;

	switch (key) {
	case 'l':
		parse_live(arg, a, state);
		return 0;
	case 'n':
		if (kvs_parse_u64(arg, &a->rooms) || !a->rooms ||
		    a->rooms > ROOMS_MAX)
			argp_error(state, "--rooms %s: from 1 to %u", arg,
				   ROOMS_MAX);
		return 0;
	case 'j':
		a->json = true;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

int kvs_bench_rooms(int argc, char **argv)
{
	const struct argp argp = {
		.options = options,
		.parser = parse,
		.doc = "CPU of a room from admit to release in the daemon's "
		       "worker, and the time of one poll of all, while so "
		       "many are live.",
	};
	struct args a = {
		.live = { 100, 1000, 10000, 100000 },
		.n = 4,
		.rooms = 400000,
	};
	struct bench *v;
	struct kvs_table *t = NULL;
	int r = 0;

	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, 0, NULL, &a);
	kvs_log_set_level(KVS_LOG_WARN);
	if (!a.json)
		r = kvs_table_create("live cpu_us_per_room poll_us "
				     "poll_syscalls rooms heap_bytes_per_room",
				     &t);
	v = calloc(a.n, sizeof(*v));
	if (!r)
		r = v ? measure(&a, v, t) : -ENOMEM;
	if (!r && t)
		r = kvs_table_print(t, stdout);
	for (unsigned int i = 0; v && i < a.n; i++)
		down(&v[i]);
	free(v);
	kvs_table_destroy(t);
	if (r)
		fprintf(stderr, "rooms: %s\n", strerror(-r));
	return r ? EXIT_FAILURE : EXIT_SUCCESS;
}
