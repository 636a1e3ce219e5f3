/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's process, which begins the others. See ttft_real.h. */
#include "tools/ttft/ttft_real.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kvstage/device.h"
#include "tools/pattern.h"
#include "tools/ttft/ttft_crash.h"
#include "tools/ttft/ttft_decode.h"

#define PATIENCE (30 * KVS_NSEC_PER_SEC) /* to come up */
#define NAP_BUSY (200 * KVS_NSEC_PER_USEC) /* copies and words are silent */
#define NAP_IDLE KVS_NSEC_PER_MSEC
#define PROCESSES_MAX (256 + TTFT_RX)

struct real {
	const struct ttft_opts *o;
	const struct ttft_plan *p;
	struct ttft_run *r;
	struct ttft_shared *sh;
	struct kvs_timerq timers;
	struct kvs_layout *layout;
	struct ttft_decode d;
	pid_t pid[PROCESSES_MAX]; /* 0: it is dead */
	unsigned int n_pids;
	unsigned int first_prefill; /* of ->pid */
	struct ttft_crashes crashes;
	char dir[64]; /* that of ->sh */
	unsigned char *scratch;
};

static uint64_t now(void)
{
	return kvs_clock_now(&kvs_clock_real);
}

static void nap(uint64_t ns)
{
	struct timespec ts = { .tv_nsec = (long)ns };

	(void)nanosleep(&ts, NULL);
}

/* 0 in the child. */
static int start(pid_t *ret_pid)
{
	pid_t parent = getpid(), pid;

	(void)fflush(NULL);
	pid = fork();
	if (pid < 0)
		return -errno;
	if (pid) {
		*ret_pid = pid;
		return 1;
	}
	/* what the engine has open is not theirs: it would outlive it */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent ||
	    close_range(STDERR_FILENO + 1, ~0u, 0))
		_exit(EXIT_FAILURE);
	return 0;
}

static int fail(struct real *w, int err, const char *what, const char *why)
{
	if (!w->r->why[0])
		snprintf(w->r->why, sizeof(w->r->why), "%s: %.200s", what,
			 why && why[0] ? why : strerror(-err));
	return err;
}

static bool stopped(const struct real *w)
{
	return atomic_load_explicit(&w->r->stop, memory_order_relaxed);
}

/* ---- others -------------------------------------------------------------- */

static int daemon_begin(struct real *w, enum ttft_rx rx)
{
	struct ttft_real_daemon *d = &w->sh->daemon[rx];
	uint64_t until = now() + PATIENCE;
	int r = start(&w->pid[w->n_pids]);

	if (!r)
		_exit(ttft_real_daemon(w->o, w->r, w->sh, rx));
	if (r < 0)
		return fail(w, r, "the daemon", NULL);
	w->n_pids++;
	while (!atomic_load(&d->state)) {
		if (now() > until)
			return fail(w, -ETIMEDOUT, "the daemon", NULL);
		nap(NAP_IDLE);
	}
	r = atomic_load(&d->state);
	return r < 0 ? fail(w, r, "the daemon", d->why) : 0;
}

static int prefill_begin(struct real *w, uint32_t i)
{
	int r = start(&w->pid[w->first_prefill + i]);

	if (!r)
		_exit(ttft_real_prefill(w->o, w->p, w->r, w->sh, i));
	return r < 0 ? fail(w, r, "a prefill instance", NULL) : 0;
}

static void reap(pid_t *pid)
{
	while (*pid && waitpid(*pid, NULL, 0) < 0 && errno == EINTR)
		;
	*pid = 0;
}

static void crash_down(void *arg, uint32_t i)
{
	struct real *w = arg;
	pid_t *pid = &w->pid[w->first_prefill + i];

	if (*pid)
		(void)kill(*pid, SIGKILL);
	reap(pid);
}

static int crash_up(void *arg, uint32_t i)
{
	return prefill_begin(arg, i);
}

static int prefills_begin(struct real *w)
{
	uint64_t until = now() + PATIENCE;
	int r;

	w->first_prefill = w->n_pids;
	for (uint32_t i = 0; i < w->o->s.prefills; i++) {
		r = prefill_begin(w, i);
		if (r)
			return r;
		w->n_pids++;
	}
	while (atomic_load(&w->sh->n_ready) < w->o->s.prefills) {
		if (atomic_load(&w->sh->failed))
			return fail(w, -EIO, "a prefill instance", w->sh->why);
		if (now() > until)
			return fail(w, -ETIMEDOUT, "prefill instances", NULL);
		nap(NAP_IDLE);
	}
	return 0;
}

static void others_end(struct real *w)
{
	atomic_store(&w->sh->quit, true);
	while (w->n_pids)
		reap(&w->pid[--w->n_pids]);
}

/* ---- the engine ---------------------------------------------------------- */

static void host(struct ttft_decode *d, struct ttft_host *ret)
{
	const struct real *w = d->arg;
	const struct ttft_real_daemon *m = &w->sh->daemon[TTFT_HOST];

	ret->held = atomic_load(&m->held);
	ret->used = atomic_load(&m->used);
}

/* Every byte of it, where it lies on the device. */
static void check(struct ttft_decode *d, size_t i, const uint32_t *pages,
		  uint32_t n)
{
	struct real *w = d->arg;
	enum ttft_rx rx = atomic_load(&w->r->rec[i].route) - 1;

	for (uint32_t b = 0; b < w->layout->n_buffers; b++) {
		const struct kvs_layer_buffer *lb = &w->layout->buffers[b];
		uint64_t seed = kvs_pattern_seed(w->o->seed, ttft_room_id(i),
						 lb->kind, lb->layer);

		for (uint32_t k = 0; k < n; k++) {
			const char *at = (const char *)d->buffers[rx][b] +
					 (size_t)pages[k] * lb->item_len;
			size_t bad = 0;

			if (kvs_device_peek(d->dev[rx], w->scratch, at,
					    lb->item_len))
				bad = lb->item_len;
			else
				(void)kvs_pattern_check(
					w->scratch, lb->item_len, seed,
					(uint64_t)k * lb->item_len, NULL, &bad);
			w->r->t.mismatches += bad;
			w->r->t.compared += lb->item_len;
		}
	}
}

static int device_open(struct real *w, enum ttft_rx rx)
{
	struct ttft_decode *d = &w->d;
	uint64_t pages = w->o->s.device_tokens / w->layout->page_size;
	struct kvs_device_opts o = {
		.size = sizeof(o),
		.backend = "soft",
		/* what came directly is there already */
		.bytes_per_sec = rx == TTFT_HOST ? w->o->s.h2d_rate : 0,
	};
	char err[256] = "";
	int r;

	d->buffers[rx] = calloc(w->layout->n_buffers, sizeof(void *));
	if (!d->buffers[rx])
		return -ENOMEM;
	r = kvs_device_open(&o, &d->dev[rx], err, sizeof(err));
	for (uint32_t b = 0; b < w->layout->n_buffers && !r; b++)
		r = kvs_device_alloc(d->dev[rx],
				     pages * w->layout->buffers[b].item_len,
				     &d->buffers[rx][b]);
	return r ? fail(w, r, "the device", err) : 0;
}

static int engine_begin(struct real *w, enum ttft_rx rx)
{
	char path[128], err[256] = "";
	struct kvs_engine_opts o = {
		.size = sizeof(o),
		.socket = path,
		.name = "decode",
		.layout = w->layout,
		.node = -1,
	};
	int r;

	snprintf(path, sizeof(path), "%s/engine-%d", w->sh->dir, (int)rx);
	r = kvs_engine_attach(&o, &w->d.e[rx], err, sizeof(err));
	return r ? fail(w, r, "the engine's attach", err) : 0;
}

static int decode_begin(struct real *w)
{
	struct ttft_decode *d = &w->d;
	uint32_t most = 0;
	int r = 0;

	d->o = w->o;
	d->p = w->p;
	d->r = w->r;
	d->clock = &kvs_clock_real;
	d->timers = &w->timers;
	d->layout = w->layout;
	d->check = check;
	d->arg = w;
	for (uint32_t b = 0; b < w->layout->n_buffers; b++)
		if (w->layout->buffers[b].item_len > most)
			most = w->layout->buffers[b].item_len;
	w->scratch = malloc(most);
	if (!w->scratch)
		return -ENOMEM;
	for (int x = 0; x < TTFT_RX && !r; x++) {
		if (!ttft_uses(w->r->mode, (enum ttft_rx)x))
			continue;
		if (x == TTFT_HOST)
			d->host = host;
		r = device_open(w, (enum ttft_rx)x);
		if (!r)
			r = engine_begin(w, (enum ttft_rx)x);
	}
	return r ? r : ttft_decode_init(d);
}

static void wait_a_bit(struct ttft_decode *d)
{
	bool busy = !kvs_list_empty(&d->copying) ||
		    !kvs_list_empty(&d->leaving) ||
		    !kvs_list_empty(&d->admitting);
	uint64_t t = now(), next = kvs_timerq_next(d->timers);
	uint64_t wait = busy ? NAP_BUSY : NAP_IDLE;
	struct timespec ts = { 0 };
	struct pollfd fd[TTFT_RX];
	nfds_t n = 0;

	if (next < t + wait)
		wait = next > t ? next - t : 0;
	for (int x = 0; x < TTFT_RX; x++)
		if (d->e[x])
			fd[n++] = (struct pollfd){
				.fd = kvs_engine_fd(d->e[x]),
				.events = POLLIN,
			};
	ts.tv_nsec = (long)wait;
	(void)ppoll(fd, n, &ts, NULL);
}

static bool all_free(const struct real *w)
{
	return !w->d.held && !atomic_load(&w->sh->daemon[TTFT_HOST].held) &&
	       !atomic_load(&w->sh->daemon[TTFT_DEVICE].held);
}

static int loop(struct real *w)
{
	struct ttft_decode *d = &w->d;
	uint64_t held_until = 0;
	int r;

	d->start = now() + 10 * KVS_NSEC_PER_MSEC;
	atomic_store(&w->sh->start, d->start);
	nap(10 * KVS_NSEC_PER_MSEC);
	ttft_decode_begin(d);
	w->crashes = (struct ttft_crashes){
		.o = w->o,
		.p = w->p,
		.clock = &kvs_clock_real,
		.timers = &w->timers,
		.start = d->start,
		.down = crash_down,
		.up = crash_up,
		.arg = w,
	};
	r = ttft_crashes_begin(&w->crashes);
	if (r)
		return fail(w, r, "crashes", NULL);
	while (!stopped(w)) {
		if (w->crashes.err)
			return w->crashes.err;
		if (atomic_load(&w->sh->failed))
			return fail(w, -EIO, "a prefill instance", w->sh->why);
		(void)kvs_timerq_run(d->timers, now());
		ttft_decode_turn(d);
		if (ttft_decode_over(d)) {
			/* holds that are left end too */
			if (!held_until)
				held_until = now() + w->o->s.hold_timeout +
					     10 * KVS_NSEC_PER_SEC;
			if (all_free(w) || now() > held_until)
				break;
		}
		wait_a_bit(d);
	}
	ttft_decode_end(d);
	return 0;
}

static void count(struct real *w)
{
	const struct ttft_real_daemon *m = &w->sh->daemon[TTFT_HOST];
	struct ttft_totals *t = &w->r->t;

	t->wire_bytes = m->received + w->sh->daemon[TTFT_DEVICE].received;
	t->high_water = m->high_water;
	t->late_bytes = m->late;
	memcpy(t->drains, m->drains, sizeof(t->drains));
}

static void remove_dir(const char *dir)
{
	char path[128];

	for (int x = 0; x < TTFT_RX; x++) {
		snprintf(path, sizeof(path), "%s/engine-%d", dir, x);
		(void)unlink(path);
		snprintf(path, sizeof(path), "%s/engine-%d.lock", dir, x);
		(void)unlink(path);
	}
	(void)rmdir(dir);
}

static int run(struct real *w)
{
	int r;

	kvs_timerq_init(&w->timers);
	r = ttft_layout(w->o, &w->layout, w->r->why, sizeof(w->r->why));
	for (int x = 0; x < TTFT_RX && !r; x++)
		if (ttft_uses(w->r->mode, (enum ttft_rx)x))
			r = daemon_begin(w, (enum ttft_rx)x);
	if (!r)
		r = prefills_begin(w);
	if (!r)
		r = decode_begin(w);
	/* nobody else comes: nothing is left behind, however this ends */
	remove_dir(w->dir);
	if (!r)
		r = loop(w);
	for (int x = 0; x < TTFT_RX; x++)
		kvs_engine_detach(w->d.e[x]);
	others_end(w);
	if (!r)
		count(w);
	return r;
}

int ttft_real(const struct ttft_opts *o, const struct ttft_plan *p,
	      struct ttft_run *r)
{
	struct real *w = calloc(1, sizeof(*w));
	const char *tmp = getenv("TMPDIR");
	int ret;

	if (!w)
		return -ENOMEM;
	w->o = o;
	w->p = p;
	w->r = r;
	w->sh = mmap(NULL, sizeof(*w->sh), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (w->sh == MAP_FAILED)
		return fail(w, -errno, "shared memory", NULL);
	snprintf(w->dir, sizeof(w->dir), "%.40s/kvs-ttft-XXXXXX",
		 tmp && *tmp ? tmp : "/tmp");
	if (!mkdtemp(w->dir))
		return fail(w, -errno, w->dir, NULL);
	memcpy(w->sh->dir, w->dir, sizeof(w->dir));
	ret = run(w);
	/* the rest goes with the process of the run */
	return ret;
}
