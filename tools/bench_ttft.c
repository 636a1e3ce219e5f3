/* SPDX-License-Identifier: Apache-2.0 */
/* kvstage-bench ttft: runs side by side. See tools/ttft/ttft.h. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lib/log.h"
#include "lib/units.h"
#include "tools/bench.h"
#include "tools/bench_ttft.h"
#include "tools/output.h"
#include "tools/progress.h"
#include "tools/ttft/ttft_stat.h"

#define RUNS_MAX (TTFT_ABORTS_MAX * (TTFT_MODES + 2))

static volatile sig_atomic_t interrupted;

static void on_signal(int sig)
{
	interrupted = sig;
}

/* ---- runs ---------------------------------------------------------------- */

static int planned_pool(const struct ttft_args *a, const struct ttft_plan *p,
			double abort, uint64_t *ret)
{
	const struct ttft_opts *o = &a->o;
	struct kvs_serving_load l = p->load;
	struct kvs_serving_size z;
	int r;

	*ret = a->pool_bytes;
	if (a->pool == TTFT_POOL_BYTES)
		return 0;
	l.abort = abort;
	l.acked = o->acks.dist == TTFT_FAST;
	if (o->storm && l.abort < TTFT_STORM_SHARE)
		l.abort = TTFT_STORM_SHARE;
	r = kvs_serving_size(&o->s, &l, 1, KVS_SERVING_HORIZON, &z);
	*ret = z.pool;
	return r;
}

/* Whatever is planned, the longest prompt fits. */
static uint64_t at_least(const struct ttft_set *s, uint64_t pool)
{
	const struct kvs_serving *v = &s->o->s;
	uint64_t longest = (uint64_t)s->p->max_input + 2 * v->page_size;

	if (pool < longest * v->token_bytes)
		pool = longest * v->token_bytes;
	return (pool + TTFT_POOL_UNIT - 1) & ~(TTFT_POOL_UNIT - 1);
}

static int add(struct ttft_set *s, enum ttft_mode mode, double abort,
	       uint64_t pool, bool half, bool given)
{
	struct ttft_run *r = ttft_run_new(s->p);

	if (!r)
		return -ENOMEM;
	r->mode = mode;
	r->abort = abort;
	r->host_pool = half ? at_least(s, pool / 2) : pool;
	r->half = half;
	r->given = given;
	if (!ttft_uses(mode, TTFT_HOST))
		r->host_pool = 0;
	s->run[s->n++] = r;
	return 0;
}

static int make_runs(const struct ttft_args *a, struct ttft_set *s)
{
	int r = 0;

	s->run = calloc(RUNS_MAX, sizeof(struct ttft_run *));
	if (!s->run)
		return -ENOMEM;
	for (unsigned int k = 0; k < a->n_aborts; k++) {
		uint64_t pool;

		r = planned_pool(a, s->p, a->abort[k], &pool);
		if (r)
			return r;
		pool = a->pool == TTFT_POOL_BYTES ? pool & ~(TTFT_POOL_UNIT - 1)
						  : at_least(s, pool);

		for (int m = 0; m < TTFT_MODES && !r; m++) {
			if (!a->modes[m])
				continue;
			r = add(s, (enum ttft_mode)m, a->abort[k], pool,
				a->pool == TTFT_POOL_HALF,
				a->pool == TTFT_POOL_BYTES);
			if (a->pool == TTFT_POOL_BOTH && !r &&
			    (m == TTFT_STAGED || m == TTFT_AUTO))
				r = add(s, (enum ttft_mode)m, a->abort[k], pool,
					true, false);
		}
	}
	return r;
}

static int run_one(const struct ttft_args *a, const struct ttft_plan *p,
		   struct ttft_run *r)
{
	int ret = a->real ? ttft_real(&a->o, p, r) : ttft_virtual(&a->o, p, r);

	if (ret)
		atomic_store(&r->state, ret);
	else
		atomic_store(&r->state, atomic_load(&r->stop) ? 2 : 1);
	return ret;
}

static pid_t begin(const struct ttft_args *a, const struct ttft_plan *p,
		   struct ttft_run *r)
{
	pid_t parent = getpid(), pid;

	(void)fflush(NULL);
	pid = fork();
	if (pid)
		return pid;
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
		_exit(EXIT_FAILURE);
	/* the parent says when to stop */
	(void)signal(SIGINT, SIG_IGN);
	_exit(run_one(a, p, r) ? EXIT_FAILURE : EXIT_SUCCESS);
}

static uint64_t settled(const struct ttft_set *s)
{
	uint64_t n = 0;

	for (size_t k = 0; k < s->n; k++)
		n += atomic_load(&s->run[k]->settled);
	return n;
}

static void stop_all(const struct ttft_set *s)
{
	for (size_t k = 0; k < s->n; k++)
		atomic_store(&s->run[k]->stop, true);
}

/* A child that died says nothing itself. */
static void buried(struct ttft_run *r, int status)
{
	if (atomic_load(&r->state))
		return;
	atomic_store(&r->state, -ECHILD);
	snprintf(r->why, sizeof(r->why), "its process ended with status %d",
		 status);
}

static int conduct(const struct ttft_args *a, const struct ttft_set *s)
{
	const struct timespec nap = { .tv_nsec = 20000000 };
	pid_t pid[RUNS_MAX] = { 0 };
	struct kvs_progress prog;
	unsigned int live = 0;
	size_t next = 0;
	int ret = 0;

	kvs_progress_init(&prog, "ttft", KVS_PROGRESS_COUNT, s->n * s->p->n,
			  NULL, NULL);
	while (live || (next < s->n && !interrupted && !ret)) {
		while (next < s->n && live < a->jobs && !interrupted && !ret) {
			pid[next] = begin(a, s->p, s->run[next]);
			if (pid[next] < 0) {
				ret = -errno;
				pid[next] = 0;
				break;
			}
			next++;
			live++;
		}
		for (size_t k = 0; k < next; k++) {
			int status;

			if (pid[k] <= 0 ||
			    waitpid(pid[k], &status, WNOHANG) != pid[k])
				continue;
			pid[k] = 0;
			live--;
			buried(s->run[k], status);
		}
		if (interrupted)
			stop_all(s);
		kvs_progress_update(&prog, settled(s));
		(void)nanosleep(&nap, NULL);
	}
	kvs_progress_end(&prog, settled(s));
	return ret;
}

static const char *run_name(const struct ttft_run *r, char *buf, size_t len)
{
	snprintf(buf, len, "%s%s", ttft_mode_name[r->mode],
		 r->half ? "-half" : "");
	return buf;
}

/* Latencies are of what all completed, so one run may leave nothing: which? */
static void say_none_common(const struct ttft_set *s, double abort)
{
	const char *sep = "";
	char name[32];

	fprintf(stderr,
		"ttft: abort %.2f: no request was completed in each of the "
		"runs, so there are no latencies to compare; completed were ",
		abort);
	for (size_t k = 0; k < s->n; k++) {
		uint64_t done = 0;

		if (s->run[k]->abort != abort || !ttft_begun(s->run[k]))
			continue;
		for (size_t i = 0; i < s->p->n; i++)
			done += s->run[k]->rec[i].end == TTFT_DONE;
		fprintf(stderr, "%s%s %" PRIu64, sep,
			run_name(s->run[k], name, sizeof(name)), done);
		sep = ", ";
	}
	fprintf(stderr, "\n");
}

/* A 0 that is no latency must not pass for a good one. */
static int no_latencies(const struct ttft_set *s)
{
	int r = 0;

	for (size_t k = 0; k < s->n; k++) {
		if (!ttft_begun(s->run[k]) || ttft_compares(s, k))
			continue;
		if (!k || s->run[k]->abort != s->run[k - 1]->abort)
			say_none_common(s, s->run[k]->abort);
		r = -ENODATA;
	}
	/* who interrupts knows */
	return interrupted ? 0 : r;
}

/* Such a request fails however long anybody waits: no latency shows it. */
static void never_fit(const struct ttft_set *s)
{
	char name[32], pool[KVS_UNITS_BUF], most[KVS_UNITS_BUF];
	const struct kvs_serving *v = &s->o->s;

	for (size_t k = 0; k < s->n; k++) {
		const struct ttft_run *r = s->run[k];

		if (r->t.never_host)
			fprintf(stderr,
				"ttft: %s, abort %.2f: %" PRIu64
				" of %zu requests failed, as a host pool of %s "
				"can never hold them; the longest prompt has "
				"%s\n",
				run_name(r, name, sizeof(name)), r->abort,
				r->t.never_host, s->p->n,
				kvs_format_size(r->host_pool, pool),
				kvs_format_size(s->p->max_input *
							v->token_bytes,
						most));
		if (r->t.never_device)
			fprintf(stderr,
				"ttft: %s, abort %.2f: %" PRIu64
				" of %zu requests failed, as a device of "
				"%" PRIu64 " tokens can never hold them\n",
				run_name(r, name, sizeof(name)), r->abort,
				r->t.never_device, s->p->n, v->device_tokens);
	}
}

static bool any_begun(const struct ttft_set *s)
{
	for (size_t k = 0; k < s->n; k++)
		if (ttft_begun(s->run[k]))
			return true;
	return false;
}

static int show(const struct ttft_args *a, const struct ttft_set *s)
{
	int r;

	r = a->json ? ttft_print_json(s, stdout) : ttft_print_table(s, stdout);
	if (kvs_output_flush())
		r = r ? r : -EIO; /* exit() tells */
	else if (r)
		fprintf(stderr, "ttft: %s\n", strerror(-r));
	return r;
}

static int keep(const struct ttft_args *a, const struct ttft_set *s)
{
	char name[NAME_MAX + 2] = "";
	int r = a->out ? ttft_write_dir(s, a->out, name, sizeof(name)) : 0;

	if (r)
		fprintf(stderr, "ttft: --out %s%s: %s\n", a->out, name,
			strerror(-r));
	return r;
}

static int report(const struct ttft_args *a, const struct ttft_set *s)
{
	int r, kept;

	for (size_t k = 0; k < s->n; k++)
		if (atomic_load(&s->run[k]->state) < 0)
			fprintf(stderr, "ttft: %s: %s\n",
				ttft_mode_name[s->run[k]->mode],
				s->run[k]->why);
	if (interrupted && !any_begun(s)) {
		fprintf(stderr, "ttft: interrupted before any request was "
				"over: there are no results\n");
		return -EINTR;
	}
	if (interrupted)
		fprintf(stderr, "ttft: interrupted; what follows is of the "
				"requests that were over by then\n");
	r = show(a, s);
	/* whatever became of the other */
	kept = keep(a, s);
	if (!r)
		r = kept;
	for (size_t k = 0; k < s->n && !r; k++)
		r = atomic_load(&s->run[k]->state) < 0 ? -EIO : 0;
	never_fit(s);
	return r ? r : no_latencies(s);
}

static uint64_t pool_of(const struct ttft_set *s)
{
	for (size_t k = 0; k < s->n; k++)
		if (s->run[k]->host_pool)
			return s->run[k]->host_pool;
	return 0;
}

static void announce(const struct ttft_args *a, const struct ttft_set *s)
{
	static const char *const how[] = {
		[TTFT_POOL_BOTH] = " as planned, and half of it",
		[TTFT_POOL_PLANNED] = " as planned",
		[TTFT_POOL_HALF] = ", half of what is planned",
		[TTFT_POOL_BYTES] = "",
	};
	const struct kvs_serving *v = &a->o.s;
	char pool[KVS_UNITS_BUF], span[KVS_UNITS_BUF], hold[KVS_UNITS_BUF];

	fprintf(stderr,
		"ttft: %zu requests over %s, prompts of %.0f tokens on "
		"average and %" PRIu32 " at most, %" PRIu64
		" bytes a token (%s)\n"
		"ttft: device of %" PRIu64 " tokens, %" PRIu32
		" prefill instances of %.0f tokens/s, links of %.1f GB/s, "
		"host to device %.1f GB/s\n",
		s->p->n, kvs_format_duration(s->p->span, span),
		s->p->mean_input, s->p->max_input, v->token_bytes, a->o.model,
		v->device_tokens, v->prefills, v->prefill_rate,
		(double)v->link_rate / 1e9, (double)v->h2d_rate / 1e9);
	if (pool_of(s))
		fprintf(stderr, "ttft: host pool %s%s, ",
			kvs_format_size(pool_of(s), pool), how[a->pool]);
	else
		fprintf(stderr, "ttft: no host pool, ");
	fprintf(stderr, "hold timeout %s",
		kvs_format_duration(v->hold_timeout, hold));
	if (a->real)
		fprintf(stderr,
			" and all other times: 1/%g of what they are "
			"for (--scale)",
			a->o.scale);
	fprintf(stderr, "\n");
}

static int bench(const struct ttft_args *a)
{
	struct ttft_set s = { .o = &a->o,
			      .clock = a->real ? "real" : "virtual" };
	struct ttft_plan plan;
	char err[512];
	int r;

	r = a->out ? ttft_dir(a->out, err, sizeof(err)) : 0;
	if (r) {
		fprintf(stderr, "ttft: --out %s%s: %s\n", a->out, err,
			strerror(-r));
		return r;
	}
	r = ttft_plan(&a->o, &plan, err, sizeof(err));
	if (r) {
		fprintf(stderr, "ttft: %s\n", err);
		return r;
	}
	s.p = &plan;
	r = make_runs(a, &s);
	if (r) {
		fprintf(stderr, "ttft: %s\n", strerror(-r));
	} else {
		announce(a, &s);
		r = conduct(a, &s);
	}
	if (!r)
		r = report(a, &s);
	for (size_t k = 0; k < s.n; k++)
		ttft_run_free(s.run[k], &plan);
	free(s.run);
	ttft_plan_free(&plan);
	return r;
}

int kvs_bench_ttft(int argc, char **argv)
{
	struct sigaction sa = { .sa_handler = on_signal,
				.sa_flags = (int)SA_RESTART };
	struct ttft_args a;

	/* before anything is begun that it could leave half done */
	(void)sigaction(SIGINT, &sa, NULL);
	(void)sigaction(SIGTERM, &sa, NULL);
	ttft_args_parse(argc, argv, &a);
	kvs_log_set_level(KVS_LOG_ERR);
	return bench(&a) ? EXIT_FAILURE : EXIT_SUCCESS;
}
