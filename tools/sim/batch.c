/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sim/batch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lib/log.h"
#include "tools/progress.h"
#include "tools/sim/sim.h"

#define BATCH_FULL 100000 /* schedules from which on everything must happen */
#define BATCH_REPLAYS 3 /* histories printed */
#define BATCH_FAILURES 1000 /* then it is enough */
#define BATCH_HUNG (20 * KVS_NSEC_PER_SEC)
#define BATCH_NAP (20 * KVS_NSEC_PER_MSEC)

/* What a process and the first one share. */
struct batch_job {
	uint64_t seed; /* in hand */
	uint64_t next; /* where another process goes on */
	uint64_t done;
	uint64_t failed;
	bool finished;
	uint64_t bad[BATCH_REPLAYS];
	char why[BATCH_REPLAYS][512];
	struct sim_cover cover;
	/* the first process's */
	pid_t pid;
	uint64_t seen_seed;
	uint64_t seen_at; /* ns */
};

static struct sim world;

static int schedule(uint64_t seed, struct sim_cover *c, bool verbose)
{
	memset(&world, 0, sizeof(world));
	world.seed = seed;
	world.cover = c;
	world.verbose = verbose;
	return sim_run(&world);
}

static void job_failed(struct batch_job *j, uint64_t seed, const char *why)
{
	if (j->failed < BATCH_REPLAYS) {
		j->bad[j->failed] = seed;
		snprintf(j->why[j->failed], sizeof(j->why[0]), "%s", why);
	}
	j->failed++;
	j->done++;
}

static _Noreturn void job_main(struct batch_job *j, uint64_t last,
			       unsigned int stride)
{
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* an assertion says its line when the schedule is replayed */
	if (null >= 0)
		(void)dup2(null, STDERR_FILENO);
	kvs_log_set_level(KVS_LOG_ERR);
	while (j->next <= last) {
		uint64_t seed = j->next;

		j->seed = seed;
		j->next = seed + stride;
		if (schedule(seed, &j->cover, false)) {
			job_failed(j, seed, world.failure);
			/* what is left of that world is not to be trusted */
			_exit(0);
		}
		j->done++;
	}
	j->finished = true;
	_exit(0);
}

static void job_start(struct batch_job *j, uint64_t last, unsigned int stride)
{
	pid_t pid;

	(void)fflush(NULL);
	pid = fork();
	if (!pid)
		job_main(j, last, stride);
	if (pid < 0) {
		perror("kvstage-sim: fork");
		exit(1);
	}
	j->pid = pid;
}

static void job_ended(struct batch_job *j, int status)
{
	char why[64];

	j->pid = 0;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return;
	if (WIFSIGNALED(status))
		snprintf(why, sizeof(why), "signal %d (%s)", WTERMSIG(status),
			 strsignal(WTERMSIG(status)));
	else
		snprintf(why, sizeof(why), "exit status %d",
			 WEXITSTATUS(status));
	job_failed(j, j->seed, why);
}

static void job_watch(struct batch_job *j)
{
	uint64_t now = kvs_clock_now(&kvs_clock_real);

	if (j->seen_seed != j->seed) {
		j->seen_seed = j->seed;
		j->seen_at = now;
	} else if (j->seen_at && now - j->seen_at > BATCH_HUNG) {
		(void)kill(j->pid, SIGKILL);
	}
}

static void run_jobs(const struct kvs_sim_batch *b, struct batch_job *jobs,
		     struct kvs_progress *p)
{
	const struct timespec nap = { .tv_nsec = (long)BATCH_NAP };
	uint64_t done, failed;
	unsigned int running;
	int status;

	do {
		done = 0;
		failed = 0;
		running = 0;
		for (unsigned int i = 0; i < b->jobs; i++) {
			struct batch_job *j = &jobs[i];

			if (j->pid && waitpid(j->pid, &status, WNOHANG) > 0)
				job_ended(j, status);
			if (j->pid)
				job_watch(j);
			done += j->done;
			failed += j->failed;
		}
		for (unsigned int i = 0; i < b->jobs; i++) {
			struct batch_job *j = &jobs[i];

			if (!j->pid && !j->finished && j->next <= b->last &&
			    failed < BATCH_FAILURES)
				job_start(j, b->last, b->jobs);
			running += j->pid != 0;
		}
		kvs_progress_update(p, done);
		if (running)
			(void)nanosleep(&nap, NULL);
	} while (running);
	kvs_progress_end(p, done);
}

static int replay_in_child(uint64_t seed)
{
	int status = 0;
	pid_t pid;

	(void)fflush(NULL);
	pid = fork();
	if (!pid) {
		int ret = kvs_sim_replay(seed);

		(void)fflush(NULL);
		_exit(ret);
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0)
		return -1;
	if (WIFSIGNALED(status))
		printf("the schedule of seed %llu ends by signal %d\n",
		       (unsigned long long)seed, WTERMSIG(status));
	return 0;
}

static void print_failures(const struct kvs_sim_batch *b,
			   const struct batch_job *jobs)
{
	unsigned int shown = 0;

	for (unsigned int i = 0; i < b->jobs; i++) {
		const struct batch_job *j = &jobs[i];

		for (unsigned int k = 0; k < j->failed && k < BATCH_REPLAYS;
		     k++) {
			if (b->json)
				printf("{\"failed\": %llu}\n",
				       (unsigned long long)j->bad[k]);
			else
				printf("seed %llu failed: %s\n",
				       (unsigned long long)j->bad[k],
				       j->why[k]);
			if (!b->json && shown++ < BATCH_REPLAYS)
				(void)replay_in_child(j->bad[k]);
		}
	}
}

int kvs_sim_batch(const struct kvs_sim_batch *b)
{
	uint64_t n = b->last - b->first + 1, failed = 0, done = 0, start, took;
	struct sim_cover total = { 0 };
	struct batch_job *jobs;
	struct kvs_progress p;
	unsigned int missing;
	double rate;

	jobs = mmap(NULL, b->jobs * sizeof(*jobs), PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (jobs == MAP_FAILED) {
		perror("kvstage-sim: mmap");
		return 1;
	}
	if (!b->json)
		printf("seeds %llu..%llu\n", (unsigned long long)b->first,
		       (unsigned long long)b->last);
	for (unsigned int i = 0; i < b->jobs; i++)
		jobs[i].next = b->first + i;
	kvs_progress_init(&p, "simulate", KVS_PROGRESS_COUNT, n, NULL, NULL);
	start = kvs_clock_now(&kvs_clock_real);
	run_jobs(b, jobs, &p);
	took = kvs_clock_now(&kvs_clock_real) - start;
	for (unsigned int i = 0; i < b->jobs; i++) {
		sim_cover_add(&total, &jobs[i].cover);
		failed += jobs[i].failed;
		done += jobs[i].done;
	}
	print_failures(b, jobs);
	missing = sim_cover_print(&total, done, b->json, stdout);
	rate = (double)done * 1e9 / (double)(took ? took : 1);
	if (missing && n >= BATCH_FULL && !b->json)
		printf("%u pairs or faults were never exercised\n", missing);
	if (b->json)
		printf("{\"seeds\": \"%llu..%llu\", \"schedules\": %llu, "
		       "\"failures\": %llu, \"per_second\": %.1f, "
		       "\"never_exercised\": %u}\n",
		       (unsigned long long)b->first,
		       (unsigned long long)b->last, (unsigned long long)done,
		       (unsigned long long)failed, rate, missing);
	else
		printf("seeds %llu..%llu schedules %llu failures %llu "
		       "per_second %.1f\n",
		       (unsigned long long)b->first,
		       (unsigned long long)b->last, (unsigned long long)done,
		       (unsigned long long)failed, rate);
	return failed || (missing && n >= BATCH_FULL);
}

/* Without the time of day: two replays of a seed print the same. */
static void replay_log(enum kvs_log_level level, const char *line, void *arg)
{
	static const char *const names[] = {
		[KVS_LOG_ERR] = "err",	     [KVS_LOG_WARN] = "warn",
		[KVS_LOG_NOTICE] = "notice", [KVS_LOG_INFO] = "info",
		[KVS_LOG_DEBUG] = "debug",
	};

	(void)arg;
	printf("%s: %s\n", names[level], line);
}

int kvs_sim_replay(uint64_t seed)
{
	struct sim_cover c = { 0 };
	int ret;

	/* what the daemon logs belongs between the events */
	(void)setvbuf(stdout, NULL, _IOLBF, 0);
	(void)dup2(STDOUT_FILENO, STDERR_FILENO);
	kvs_log_set_level(KVS_LOG_INFO);
	kvs_log_set_sink(replay_log, NULL);
	ret = schedule(seed, &c, true);
	if (ret)
		printf("seed %llu failed: %s\n", (unsigned long long)seed,
		       world.failure);
	else
		printf("seed %llu passed, %llu steps, %llu rooms done, %llu "
		       "failed\n",
		       (unsigned long long)seed, (unsigned long long)c.steps,
		       (unsigned long long)c.rooms_done,
		       (unsigned long long)c.rooms_failed);
	return ret ? 1 : 0;
}
