/* SPDX-License-Identifier: Apache-2.0 */
#include "pinned/prefault.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "lib/clock.h"

/* Headers older than the kernel do not name it. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define CHUNK_MAX (64ULL << 20)
#define CHUNK_MIN (2ULL << 20)
#define CHUNKS_PER_THREAD 16
#define THREADS_MAX 1024

/**
 * struct prefault - shared by the threads
 * @base: start of the mapping
 * @len: bytes
 * @chunk: bytes a thread takes at a time
 * @opts: caller's options
 * @page: bytes of a page
 * @next: offset of the next chunk nobody has taken
 * @done: bytes populated
 * @error: first -errno, or 0; set once, stops everyone
 * @lock: protects @running and pairs with @cond; taken alone
 * @cond: signalled when @running falls to zero; CLOCK_MONOTONIC
 * @running: threads that have not finished
 */
struct prefault {
	char *base;
	uint64_t len;
	uint64_t chunk;
	const struct kvs_prefault_opts *opts;
	uint64_t page;
	_Atomic uint64_t next;
	_Atomic uint64_t done;
	atomic_int error;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	unsigned int running;
};

static bool stopped(struct prefault *p)
{
	const atomic_bool *cancel = p->opts->cancel;
	int none = 0;

	if (cancel && atomic_load_explicit(cancel, memory_order_relaxed))
		atomic_compare_exchange_strong(&p->error, &none, -ECANCELED);
	return atomic_load_explicit(&p->error, memory_order_relaxed);
}

static int touch(struct prefault *p, uint64_t off, uint64_t n)
{
	volatile char *byte;
	uint64_t i;

	/* Where pages are short, let a call fail rather than a store. */
	if (p->opts->file_set && p->opts->file >= 0 &&
	    fallocate(p->opts->file, 0, (off_t)off, (off_t)n) < 0 &&
	    errno != EOPNOTSUPP)
		return errno == ENOSPC ? -ENOMEM : -errno;
	for (i = 0; i < n; i += p->page) {
		byte = p->base + off + i;
		*byte = *byte; /* an atomic OR of 0 may become a mere load */
	}
	return 0;
}

static int populate(struct prefault *p, uint64_t off, uint64_t n)
{
	for (;;) {
		if (!madvise(p->base + off, n, MADV_POPULATE_WRITE))
			return 0;
		if (errno == EINVAL)
			return touch(p, off, n);
		if (errno != EINTR && errno != EAGAIN)
			return -errno;
		if (stopped(p))
			return 0;
	}
}

static void *worker(void *arg)
{
	struct prefault *p = arg;
	uint64_t off, n;
	int r, none;

	/* CPUs of a recorded topology may not exist here: run anywhere. */
	if (p->opts->cpus && CPU_COUNT(p->opts->cpus))
		(void)pthread_setaffinity_np(
			pthread_self(), sizeof(*p->opts->cpus), p->opts->cpus);
	while (!stopped(p)) {
		off = atomic_fetch_add_explicit(&p->next, p->chunk,
						memory_order_relaxed);
		if (off >= p->len)
			break;
		n = p->len - off < p->chunk ? p->len - off : p->chunk;
		r = populate(p, off, n);
		if (r < 0) {
			none = 0;
			atomic_compare_exchange_strong(&p->error, &none, r);
			break;
		}
		atomic_fetch_add_explicit(&p->done, n, memory_order_relaxed);
	}
	pthread_mutex_lock(&p->lock);
	if (!--p->running)
		pthread_cond_signal(&p->cond);
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

static unsigned int thread_count(const struct prefault *p)
{
	uint64_t n = p->opts->threads, chunks;
	cpu_set_t mine;

	if (!n && p->opts->cpus)
		n = (uint64_t)CPU_COUNT(p->opts->cpus);
	if (!n && !sched_getaffinity(0, sizeof(mine), &mine))
		n = (uint64_t)CPU_COUNT(&mine);
	chunks = (p->len + p->page - 1) / p->page;
	if (n > chunks)
		n = chunks;
	if (n > THREADS_MAX)
		n = THREADS_MAX;
	return n ? (unsigned int)n : 1;
}

static uint64_t chunk_size(const struct prefault *p, unsigned int threads)
{
	uint64_t chunk = p->len / ((uint64_t)threads * CHUNKS_PER_THREAD);

	if (chunk > CHUNK_MAX)
		chunk = CHUNK_MAX;
	if (chunk < CHUNK_MIN)
		chunk = CHUNK_MIN;
	/* Aligned, so that two threads never meet in one huge page. */
	chunk &= ~(CHUNK_MIN - 1);
	return (chunk + p->page - 1) / p->page * p->page;
}

static void report(struct prefault *p, uint64_t start)
{
	struct kvs_prefault_progress pr = { .total = p->len };

	if (!p->opts->progress)
		return;
	pr.done = atomic_load_explicit(&p->done, memory_order_relaxed);
	pr.elapsed_ns = kvs_clock_now(&kvs_clock_real) - start;
	if (pr.elapsed_ns)
		pr.rate = (uint64_t)((double)pr.done * 1e9 /
				     (double)pr.elapsed_ns);
	p->opts->progress(p->opts->progress_arg, &pr);
}

static void wait_all(struct prefault *p, uint64_t start)
{
	struct timespec until;
	int r;

	clock_gettime(CLOCK_MONOTONIC, &until);
	pthread_mutex_lock(&p->lock);
	while (p->running) {
		until.tv_sec++;
		do
			r = pthread_cond_timedwait(&p->cond, &p->lock, &until);
		while (p->running && r != ETIMEDOUT);
		if (!p->running)
			break;
		pthread_mutex_unlock(&p->lock);
		report(p, start);
		pthread_mutex_lock(&p->lock);
	}
	pthread_mutex_unlock(&p->lock);
}

/* Returns how many threads run; they work on @p at once. */
static unsigned int start_all(struct prefault *p, pthread_t *tids,
			      unsigned int n)
{
	sigset_t all, old;
	unsigned int i;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	for (i = 0; i < n; i++) {
		pthread_mutex_lock(&p->lock);
		p->running++;
		pthread_mutex_unlock(&p->lock);
		if (!pthread_create(&tids[i], NULL, worker, p))
			continue;
		pthread_mutex_lock(&p->lock);
		p->running--;
		pthread_mutex_unlock(&p->lock);
		break;
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return i;
}

int kvs_prefault(void *base, uint64_t len, const struct kvs_prefault_opts *opts,
		 uint64_t *ret_ns)
{
	struct prefault p = { .base = base, .len = len, .opts = opts };
	uint64_t start = kvs_clock_now(&kvs_clock_real);
	unsigned int n, started, i;
	pthread_condattr_t attr;
	pthread_t *tids;
	int r;

	p.page = opts->page_size ? opts->page_size
				 : (uint64_t)sysconf(_SC_PAGESIZE);
	if (!len || len > INT64_MAX || len % p.page || (uintptr_t)base % p.page)
		return -EINVAL;
	n = thread_count(&p);
	p.chunk = chunk_size(&p, n);
	tids = calloc(n, sizeof(*tids));
	if (!tids)
		return -ENOMEM;
	pthread_mutex_init(&p.lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&p.cond, &attr);
	pthread_condattr_destroy(&attr);
	started = start_all(&p, tids, n);
	wait_all(&p, start);
	for (i = 0; i < started; i++)
		pthread_join(tids[i], NULL);
	pthread_cond_destroy(&p.cond);
	pthread_mutex_destroy(&p.lock);
	free(tids);
	r = started ? atomic_load(&p.error) : -EAGAIN;
	if (r < 0)
		return r;
	report(&p, start);
	if (ret_ns)
		*ret_ns = kvs_clock_now(&kvs_clock_real) - start;
	return 0;
}
