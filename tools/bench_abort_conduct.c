/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conductor of kvstage-bench abort: the decode engine, which admits rooms,
 * ends them while their bytes are under way, and sees when the next room has
 * the memory. See bench_abort.h.
 *
 * One abort:
 *   admit the next room: it waits, as the pool holds just one
 *   let the writer of the room, which has the memory, send
 *   until the daemon says that a chunk of the room is being received
 *   acks: abort; killed: SIGKILL the writer; stalled: SIGSTOP it; what it had
 *   given to the kernel arrives, up to the middle of a chunk; abort
 *   until the next room is ADMITTED
 *   what the daemon has counted meanwhile: outcome, proof, late bytes
 *   stalled: the next room arrives whole; SIGCONT the writer, which sends what
 *   it still had; when all of that is discarded the next room's bytes in the
 *   pool are compared
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lib/clock.h"
#include "pipeline/engine_internal.h"
#include "tools/bench_abort.h"
#include "tools/pattern.h"

#define PATIENCE_MS 20000 /* nothing happens for so long: an error */
#define NAP (50 * KVS_NSEC_PER_USEC) /* between two looks at a status word */
#define STALL_NAPS 40 /* without a byte: nothing is left in the kernel */
#define MISSES_MAX 20 /* beyond --count; each was not mid-transfer */
#define CHILD_FD 3

const struct kvs_abort_kind kvs_abort_kinds[KVS_ABORT_KINDS] = {
	[KVS_ABORT_ACKS] = { "acks", KVS_DRAIN_DRAINED, ECANCELED,
			     30 * KVS_NSEC_PER_SEC, 100 * KVS_NSEC_PER_MSEC },
	[KVS_ABORT_KILLED] = { "killed", KVS_DRAIN_REVOKED, ECONNRESET,
			       30 * KVS_NSEC_PER_SEC, 50 * KVS_NSEC_PER_MSEC },
	[KVS_ABORT_STALLED] = { "stalled", KVS_DRAIN_REVOKED, ECANCELED,
				300 * KVS_NSEC_PER_MSEC, 0 },
};

struct room {
	uint64_t id;
	kvs_handle h;
	struct kvs_abort_child *w;
};

/* ---- processes ---- */

static int complain(const char *what, const char *why, int r)
{
	fprintf(stderr, "abort: %s: %s\n", what,
		why && why[0] ? why : strerror(-r));
	return r;
}

/* 0 in the child, which has its socket at CHILD_FD and nothing else of ours;
 * otherwise its pid, or -errno. */
static pid_t start(int *ret_fd)
{
	pid_t parent = getpid(), pid;
	int sv[2], r;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv) < 0)
		return -errno;
	(void)fflush(NULL);
	pid = fork();
	if (!pid) {
		if (dup2(sv[1], CHILD_FD) < 0 ||
		    close_range(CHILD_FD + 1, ~0u, 0) ||
		    prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
			_exit(EXIT_FAILURE);
		return 0;
	}
	r = pid < 0 ? -errno : 0;
	close(sv[1]);
	if (r) {
		close(sv[0]);
		return r;
	}
	*ret_fd = sv[0];
	return pid;
}

static int join(pid_t pid, int *fd)
{
	int status = 0;

	if (*fd >= 0)
		close(*fd);
	*fd = -1;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) && !WEXITSTATUS(status) ? 0 : -ECHILD;
}

static int start_daemon(struct kvs_abort_bench *b)
{
	struct kvs_abort_daemon_opts o = {
		.pool = b->args.room,
		.extent_tokens = kvs_abort_extent_tokens(b->tokens),
		.hold_timeout = b->hold_timeout,
		.engine = b->args.engine,
	};
	struct kvs_abort_answer a;
	int r;

	snprintf(o.dir, sizeof(o.dir), "%s", b->dir);
	r = b->daemon = start(&b->ask);
	if (r < 0)
		return complain("daemon", NULL, r);
	if (!r)
		_exit(kvs_abort_daemon(CHILD_FD, &o));
	r = kvs_abort_hear(b->ask, PATIENCE_MS, &a, sizeof(a));
	if (r || a.err) {
		r = r ? r : a.err;
		complain("daemon", a.err ? a.why : NULL, r);
		/* Memory that may not be had is no fault of ours. */
		return a.err == -ENOMEM || a.err == -EPERM ? -EOPNOTSUPP : r;
	}
	b->port = a.port;
	snprintf(b->engine, sizeof(b->engine), "%s", a.engine);
	return 0;
}

static int ask(struct kvs_abort_bench *b, uint64_t room,
	       struct kvs_abort_answer *ret)
{
	const struct kvs_abort_question q = { .room = room };
	int r = kvs_abort_say(b->ask, &q, sizeof(q));

	if (!r)
		r = kvs_abort_hear(b->ask, PATIENCE_MS, ret, sizeof(*ret));
	return r ? complain("daemon", NULL, r) : 0;
}

/* Its next packet must be @op, of @room. */
static int writer_says(const struct kvs_abort_child *w, enum kvs_abort_op op,
		       uint64_t room, int status)
{
	struct kvs_abort_order o;
	int r = kvs_abort_hear(w->fd, PATIENCE_MS, &o, sizeof(o));

	if (r)
		return complain("writer", NULL, r);
	if (o.op == op && o.room == room && o.status == status)
		return 0;
	return complain("writer", o.why, o.status ? o.status : -EPROTO);
}

static int start_writer(struct kvs_abort_bench *b, struct kvs_abort_child *w)
{
	int r;

	w->number = ++b->n_writers;
	w->fd = -1;
	r = w->pid = start(&w->fd);
	if (!r)
		_exit(kvs_abort_writer(CHILD_FD, b->port, w->number,
				       b->args.engine,
				       b->args.writer == KVS_ABORT_STALLED));
	if (r < 0) {
		w->number = 0;
		return complain("writer", NULL, r);
	}
	return writer_says(w, KVS_ABORT_UP, 0, 0);
}

static int end_writer(struct kvs_abort_child *w, bool kill_it)
{
	const struct kvs_abort_order quit = { .op = KVS_ABORT_QUIT };
	int r;

	if (!w->number)
		return 0;
	if (kill_it)
		(void)kill(w->pid, SIGKILL);
	else
		(void)kvs_abort_say(w->fd, &quit, sizeof(quit));
	r = join(w->pid, &w->fd);
	w->number = 0;
	return kill_it || !r ? 0 : complain("writer", NULL, r);
}

/* ---- rooms ---- */

static int admit(struct kvs_abort_bench *b, struct room *m,
		 struct kvs_abort_child *w)
{
	const struct kvs_rank_slice slice = { 0, KVS_ABORT_BUFFERS };
	char peer[KVS_ABORT_PEER_MAX];
	const struct kvs_admit a = {
		.size = sizeof(a),
		.room = ++b->n_rooms,
		.peer = peer,
		.tokens = b->tokens,
		.n_ranks = 1,
		.ranks = &slice,
		.node = -1,
	};
	int r;

	kvs_abort_peer(w->number, peer);
	m->id = a.room;
	m->w = w;
	r = kvs_engine_admit(b->e, &a, &m->h);
	return r ? complain("admit", NULL, r) : 0;
}

static int let_send(struct kvs_abort_bench *b, const struct room *m,
		    bool complete)
{
	const struct kvs_abort_order o = {
		.op = KVS_ABORT_SEND,
		.room = m->id,
		.tokens = b->tokens,
		.complete = complete,
	};
	int r = kvs_abort_say(m->w->fd, &o, sizeof(o));

	return r ? complain("writer", NULL, r) : 0;
}

static void nap(void)
{
	const struct timespec ts = { .tv_nsec = NAP };

	(void)nanosleep(&ts, NULL);
}

/* Until the status is @st or beyond. */
static int reach(struct kvs_abort_bench *b, struct room *m, enum kvs_status st)
{
	uint64_t until = kvs_clock_now(&kvs_clock_real) +
			 PATIENCE_MS * KVS_NSEC_PER_MSEC;
	enum kvs_status now;
	int r, err = 0;

	for (;;) {
		r = kvs_engine_progress(b->e);
		if (r < 0)
			return complain("engine", NULL, r);
		now = kvs_engine_poll(b->e, &m->h, &err);
		if (now == KVS_STATUS_FAILED)
			return complain("room", NULL, -err);
		if (now >= st)
			return 0;
		if (kvs_clock_now(&kvs_clock_real) > until)
			return complain("room", NULL, -ETIMEDOUT);
		nap();
	}
}

/* It must have failed with @want. */
static int failed(struct kvs_abort_bench *b, struct room *m, int want)
{
	uint64_t until = kvs_clock_now(&kvs_clock_real) +
			 PATIENCE_MS * KVS_NSEC_PER_MSEC;
	int err = 0;

	while (kvs_engine_poll(b->e, &m->h, &err) != KVS_STATUS_FAILED ||
	       kvs_engine_release(b->e, &m->h)) {
		if (kvs_engine_progress(b->e) < 0 ||
		    kvs_clock_now(&kvs_clock_real) > until)
			return complain("room", "it does not fail", -ETIMEDOUT);
		nap();
	}
	return err == want ? 0 : complain("room", NULL, err ? -err : -EPROTO);
}

/* Until a chunk of it is being received. 0; -EAGAIN there will be none. */
static int mid_transfer(struct kvs_abort_bench *b, const struct room *m,
			struct kvs_abort_answer *ret)
{
	uint64_t until = kvs_clock_now(&kvs_clock_real) +
			 PATIENCE_MS * KVS_NSEC_PER_MSEC;
	int r;

	do {
		r = ask(b, m->id, ret);
		if (r)
			return r;
		if (!ret->found)
			return complain("room", "it is gone", -EPROTO);
		/* the rank is a party, and so is each receive */
		if (ret->parties > 1)
			return 0;
		if (ret->received + KVS_ABORT_PAGE_BYTES == ret->expected)
			return -EAGAIN;
	} while (kvs_clock_now(&kvs_clock_real) < until);
	return complain("room", "no bytes arrive", -ETIMEDOUT);
}

/* Bytes of a READY room in the pool that are not its writer's. */
static uint64_t wrong_bytes(struct kvs_abort_bench *b, const struct room *m)
{
	const struct kvs_eng_room *r = kvs_eng_room_of(b->e, &m->h);
	const unsigned char *base = b->e->pools[r->pool].base;
	uint64_t off, len, wrong = 0;
	size_t first, bad;

	for (uint32_t e = 0; e < r->geo.n_extents; e++) {
		for (uint32_t k = 0; k < KVS_ABORT_BUFFERS; k++) {
			uint32_t page = e * r->geo.extent_pages;

			if (kvs_geometry_run(&r->geo, e, k, &off, &len))
				return UINT64_MAX;
			off += r->off[e];
			for (uint64_t at = 0; at < len;
			     at += KVS_ABORT_ITEM, page++) {
				bad = 0;
				(void)kvs_pattern_check(
					base + off + at, KVS_ABORT_ITEM,
					kvs_abort_seed(m->w->number, k),
					(uint64_t)(page %
						   KVS_ABORT_SOURCE_PAGES) *
						KVS_ABORT_ITEM,
					&first, &bad);
				wrong += bad;
			}
		}
	}
	return wrong;
}

/* ---- one abort ---- */

struct sight {
	struct kvs_abort_answer before;
	struct kvs_abort_answer after;
	uint64_t ns;
	uint64_t loss_ns; /* killed: since its descriptors were closed */
	bool mid; /* it was in the middle of its transfer */
};

static int stopped(const struct kvs_abort_child *w)
{
	uint64_t until = kvs_clock_now(&kvs_clock_real) +
			 PATIENCE_MS * KVS_NSEC_PER_MSEC;
	int status = 0;
	pid_t pid;

	do {
		pid = waitpid(w->pid, &status, WUNTRACED | WNOHANG);
		if (pid > 0)
			break;
		if (pid < 0 && errno != EINTR)
			return complain("writer", NULL, -errno);
		nap();
	} while (kvs_clock_now(&kvs_clock_real) < until);
	return WIFSTOPPED(status)
		       ? 0
		       : complain("writer", "it does not stop", -ETIMEDOUT);
}

/* Bytes that @a's room lacks and no receive has begun to take. */
static uint64_t not_begun(const struct kvs_abort_answer *a, uint64_t chunk)
{
	uint64_t begun = a->received + (a->parties - 1) * chunk;
	uint64_t whole = a->expected - KVS_ABORT_PAGE_BYTES;

	return begun < whole ? whole - begun : 0;
}

/* Stopped: what the kernel still had of it arrives, then nothing. */
static int settle(struct kvs_abort_bench *b, const struct room *m,
		  struct kvs_abort_answer *ret)
{
	struct kvs_abort_answer last;
	int r = ask(b, m->id, ret);

	do {
		last = *ret;
		for (int i = 0; i < STALL_NAPS; i++)
			nap();
		if (!r)
			r = ask(b, m->id, ret);
	} while (!r && (last.received != ret->received ||
			last.parties != ret->parties));
	return r;
}

/* Stop the writer. Where what it had given to the kernel ends with a chunk, it
 * goes on a little. 0; -EAGAIN it never stood within a chunk that had others
 * after it. */
static int stall(struct kvs_abort_bench *b, const struct room *m,
		 struct kvs_abort_answer *ret)
{
	int r;

	for (;;) {
		r = mid_transfer(b, m, ret);
		if (!r && kill(m->w->pid, SIGSTOP))
			r = complain("SIGSTOP", NULL, -errno);
		if (!r)
			r = stopped(m->w);
		if (!r)
			r = settle(b, m, ret);
		if (r)
			return r;
		if (!not_begun(ret, b->chunk))
			return -EAGAIN;
		if (ret->parties > 1)
			return 0;
		if (kill(m->w->pid, SIGCONT))
			return complain("SIGCONT", NULL, -errno);
	}
}

/* Its sockets are closed with the one to us, or right after. */
static int kill_writer(const struct kvs_abort_child *w, uint64_t *ret_lost)
{
	struct pollfd p = { .fd = w->fd };
	int r = kill(w->pid, SIGKILL) ? -errno : 0;

	while (!r) {
		r = poll(&p, 1, PATIENCE_MS);
		if (r > 0) {
			*ret_lost = kvs_clock_now(&kvs_clock_real);
			return 0;
		}
		r = r ? errno == EINTR ? 0 : -errno : -ETIMEDOUT;
	}
	return r;
}

/* End @m while its bytes are under way, until @next has the memory. */
static int end_room(struct kvs_abort_bench *b, struct room *m,
		    struct room *next, struct sight *s)
{
	enum kvs_abort_writer_kind kind = b->args.writer;
	uint64_t start, lost, now;
	int r = kind == KVS_ABORT_STALLED ? stall(b, m, &s->before)
					  : mid_transfer(b, m, &s->before);

	s->mid = !r;
	if (r && r != -EAGAIN)
		return r;
	start = lost = kvs_clock_now(&kvs_clock_real);
	if (kind == KVS_ABORT_KILLED)
		r = kill_writer(m->w, &lost);
	else
		r = kvs_engine_abort(b->e, &m->h);
	if (r)
		return complain("ending the room", NULL, r);
	r = reach(b, next, KVS_STATUS_ADMITTED);
	now = kvs_clock_now(&kvs_clock_real);
	s->ns = now - start;
	s->loss_ns = now - lost;
	if (!r)
		r = ask(b, 0, &s->after);
	return r ? r : failed(b, m, kvs_abort_kinds[kind].err);
}

/*
 * Were bytes under way when it ended? Some of them have come since. A writer
 * that stands still was seen to: within a chunk, of which nothing came any
 * more. A connection that broke says it itself: its room was not whole.
 */
static bool under_way(const struct kvs_abort_bench *b, const struct sight *s)
{
	return s->mid && (b->args.writer != KVS_ABORT_ACKS ||
			  s->after.late_bytes > s->before.late_bytes);
}

static void count_outcome(struct kvs_abort_bench *b, const struct sight *s)
{
	uint64_t target = kvs_abort_kinds[b->args.writer].target;
	uint64_t n, all = 0, right = 0;

	for (int o = 0; o < KVS_DRAIN_OUTCOME_MAX; o++) {
		for (int p = 0; p < KVS_PROOF_MAX; p++) {
			n = s->after.drains[o][p] - s->before.drains[o][p];
			b->outcomes[o][p] += n;
			all += n;
			if ((int)kvs_abort_kinds[b->args.writer].outcome == o &&
			    p != KVS_PROOF_NEVER_GRANTED)
				right += n;
		}
	}
	/* one drain, the right end; a stalled writer not before its time */
	n = s->after.drain_ns - s->before.drain_ns;
	if (all != 1 || right != 1 ||
	    (b->args.writer == KVS_ABORT_STALLED && n < b->hold_timeout)) {
		b->unexpected++;
		fprintf(stderr,
			"abort: not the outcome that \"%s\" must have\n",
			kvs_abort_kinds[b->args.writer].name);
	}
	b->over_target += target && s->loss_ns > target;
	b->ms[b->done] = (double)s->ns / (double)KVS_NSEC_PER_MSEC;
	b->loss_ms[b->done] = (double)s->loss_ns / (double)KVS_NSEC_PER_MSEC;
	b->drain_ms[b->done] = (double)n / (double)KVS_NSEC_PER_MSEC;
	b->late += s->after.late_bytes - s->before.late_bytes;
	b->done++;
}

/* Stalled: the writer wakes up with what it still had. */
static int late_writer(struct kvs_abort_bench *b, struct room *m,
		       struct room *next, struct sight *s)
{
	struct kvs_abort_answer a = { 0 };
	uint64_t until;
	int r = let_send(b, next, true);

	if (!r)
		r = reach(b, next, KVS_STATUS_READY);
	if (!r)
		r = writer_says(next->w, KVS_ABORT_DONE, next->id, 0);
	if (!r && kill(m->w->pid, SIGCONT))
		r = complain("SIGCONT", NULL, -errno);
	if (!r)
		r = writer_says(m->w, KVS_ABORT_DONE, m->id, -ECANCELED);
	if (!r)
		r = end_writer(m->w, false);
	/* Until the daemon has read all of its connections to the end. */
	until = kvs_clock_now(&kvs_clock_real) +
		PATIENCE_MS * KVS_NSEC_PER_MSEC;
	while (!r && (r = ask(b, 0, &a)) == 0 &&
	       a.data_connections > KVS_ABORT_CONNECTIONS) {
		if (kvs_clock_now(&kvs_clock_real) > until)
			r = complain("late bytes", NULL, -ETIMEDOUT);
		nap();
	}
	if (r)
		return r;
	if (under_way(b, s)) {
		uint64_t late = a.late_bytes - s->after.late_bytes;

		b->late_after += late;
		b->compared += b->args.room;
		b->wrong += wrong_bytes(b, next);
		if (!late) {
			b->unexpected++;
			fprintf(stderr, "abort: no late byte was counted\n");
		}
	}
	r = kvs_engine_abort(b->e, &next->h);
	return r ? complain("abort", NULL, r) : failed(b, next, ECANCELED);
}

/* @m has the memory. The next room becomes the room. */
static int one(struct kvs_abort_bench *b, struct room *m)
{
	struct kvs_abort_child *other = &b->writers[m->w == b->writers];
	struct kvs_abort_child *w = b->args.writer == KVS_ABORT_ACKS ? m->w
								     : other;
	struct sight s = { 0 };
	struct room next;
	int r = w == m->w ? 0 : start_writer(b, w);

	if (!r)
		r = reach(b, m, KVS_STATUS_ADMITTED);
	if (!r)
		r = admit(b, &next, w);
	if (!r)
		r = reach(b, &next, KVS_STATUS_WAITING);
	if (!r)
		r = let_send(b, m, false);
	if (!r)
		r = end_room(b, m, &next, &s);
	if (r)
		return r;
	if (under_way(b, &s))
		count_outcome(b, &s);
	else if (++b->misses > b->args.count + MISSES_MAX)
		return complain("rooms", "no bytes were under way", -EAGAIN);
	switch (b->args.writer) {
	case KVS_ABORT_ACKS:
		r = writer_says(m->w, KVS_ABORT_DONE, m->id, -ECANCELED);
		break;
	case KVS_ABORT_KILLED:
		r = end_writer(m->w, true);
		break;
	case KVS_ABORT_STALLED:
		r = late_writer(b, m, &next, &s);
		if (!r)
			r = admit(b, &next, w);
		break;
	case KVS_ABORT_KINDS:
		break;
	}
	*m = next;
	return r;
}

/* The room that is left ends too; then nothing may be held. */
static int finish(struct kvs_abort_bench *b, struct room *m)
{
	uint64_t until = kvs_clock_now(&kvs_clock_real) +
			 PATIENCE_MS * KVS_NSEC_PER_MSEC;
	int r = kvs_engine_abort(b->e, &m->h);

	if (!r)
		r = failed(b, m, ECANCELED);
	if (!r)
		r = end_writer(m->w, false);
	while (!r && (r = ask(b, 0, &b->end)) == 0 && b->end.used &&
	       kvs_clock_now(&kvs_clock_real) < until)
		nap();
	if (!r && b->end.held)
		b->unexpected++;
	return r;
}

int kvs_abort_run(struct kvs_abort_bench *b)
{
	char path[80], why[KVS_ABORT_WHY_MAX];
	const struct kvs_engine_opts o = {
		.size = sizeof(o),
		.socket = path,
		.name = "kvstage-bench",
		.layout = &b->layout.l,
		.node = -1,
	};
	struct room m;
	int r = start_daemon(b);

	if (r)
		return r;
	snprintf(path, sizeof(path), "%s/engine.sock", b->dir);
	kvs_abort_layout_init(&b->layout);
	r = kvs_engine_attach(&o, &b->e, why, sizeof(why));
	if (r)
		return complain("attach", why, r);
	/* Nobody else comes: nothing is left behind, however this ends. */
	(void)unlink(path);
	(void)rmdir(b->dir);
	r = start_writer(b, &b->writers[0]);
	if (!r)
		r = admit(b, &m, &b->writers[0]);
	while (!r && b->done < b->args.count) {
		uint64_t done = b->done;

		r = one(b, &m);
		if (!r && b->done > done && b->done % 32 == 0)
			fprintf(stderr, "abort: %" PRIu64 " of %" PRIu64 "\n",
				b->done, b->args.count);
	}
	return r ? r : finish(b, &m);
}

void kvs_abort_down(struct kvs_abort_bench *b, bool clean)
{
	char path[80];

	kvs_engine_detach(b->e);
	for (int i = 0; i < 2; i++)
		(void)end_writer(&b->writers[i], true);
	if (b->daemon > 0 && join(b->daemon, &b->ask) && clean)
		complain("daemon", "it did not end well", -ECHILD);
	/* If it did not come so far that they were removed. */
	snprintf(path, sizeof(path), "%s/engine.sock", b->dir);
	(void)unlink(path);
	if (b->dir[0])
		(void)rmdir(b->dir);
	free(b->ms);
	free(b->loss_ms);
	free(b->drain_ms);
}
