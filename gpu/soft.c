/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: soft device, how it works
 *
 * Device memory is ordinary memory. One thread per device takes copies off a
 * queue in order and moves the bytes; the submitter never waits for it. As a
 * real device would, it refuses (-EINVAL) device addresses that were not
 * allocated here, writes to host memory registered read-only, and host runs
 * that lie only partly in one registered range. Host memory that was never
 * registered works, as pageable memory does.
 *
 * Ordering. Submit fills the copy, pushes it (release; the pop acquires) and
 * posts ->work. The thread moves the bytes and then stores the copy's status
 * (release) in kvs_soft_finish(); kvs_soft_query() loads it (acquire): who
 * sees a status other than -EINPROGRESS sees the bytes, and the device will
 * not touch either end again. ->runs_done is stored (release) after each run
 * and loaded by kvs_soft_progress() in the same way. ->sticky is stored before the status of the
 * copy that set it, so who saw that copy fail has its next one refused.
 *
 * The virtual one (soft_virtual.c) is the same device without the thread.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "gpu/device_internal.h"
#include "gpu/shape.h"
#include "gpu/soft.h"
#include "gpu/soft_internal.h"
#include "lib/assert.h"
#include "lib/clock.h"

#define KVS_SOFT_ALIGN 256u /* bytes, as device allocators give */
#define KVS_SOFT_HUGE (2u << 20) /* bytes */
#define KVS_SOFT_SLICE (256u << 10) /* bytes moved between looks at the rate */
#define KVS_SOFT_NAP (10 * KVS_NSEC_PER_MSEC) /* close waits no longer */

/*
 * Measured on a Xeon with 2 MiB of L2: stores that bypass the cache move
 * memory 30 % faster from the first page on. Below 1 MiB, though, who reads
 * the copy soon loses more than that.
 */
#define KVS_SOFT_STREAM_MIN (1u << 20) /* bytes */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KVS_SOFT_STREAM 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define KVS_SOFT_STREAM 0
#endif
#endif
#ifndef KVS_SOFT_STREAM
#ifdef __SSE2__
#define KVS_SOFT_STREAM 1
#else
#define KVS_SOFT_STREAM 0
#endif
#endif

#if KVS_SOFT_STREAM
#include <emmintrin.h>
#endif

struct kvs_soft *kvs_to_soft(struct kvs_device *d)
{
	KVS_CHECK_MAGIC(d, KVS_DEVICE_MAGIC);
	KVS_ASSERT(d->ops == &kvs_soft_ops || d->ops == &kvs_soft_virtual_ops);
	return kvs_container_of(d, struct kvs_soft, dev);
}

void kvs_soft_count(_Atomic uint64_t *c, uint64_t n)
{
	/* one writer, and the status publishes it */
	atomic_store_explicit(c,
			      atomic_load_explicit(c, memory_order_relaxed) + n,
			      memory_order_relaxed);
}

static void kvs_soft_wait(sem_t *sem)
{
	while (sem_wait(sem))
		KVS_ASSERT(errno == EINTR);
}

#if KVS_SOFT_STREAM
static void kvs_soft_stream(char *dst, const char *src, size_t len)
{
	size_t head = -(uintptr_t)dst & 15;
	__m128i a, b, c, d;

	memcpy(dst, src, head);
	dst += head;
	src += head;
	len -= head;
	for (; len >= 64; len -= 64, dst += 64, src += 64) {
		a = _mm_loadu_si128((const __m128i *)src);
		b = _mm_loadu_si128((const __m128i *)src + 1);
		c = _mm_loadu_si128((const __m128i *)src + 2);
		d = _mm_loadu_si128((const __m128i *)src + 3);
		_mm_stream_si128((__m128i *)dst, a);
		_mm_stream_si128((__m128i *)dst + 1, b);
		_mm_stream_si128((__m128i *)dst + 2, c);
		_mm_stream_si128((__m128i *)dst + 3, d);
	}
	memcpy(dst, src, len);
	/* streaming stores are not ordered by the release of the status */
	_mm_sfence();
}
#endif

static void kvs_soft_bytes(void *dst, const void *src, size_t len)
{
#if KVS_SOFT_STREAM
	if (len >= KVS_SOFT_STREAM_MIN) {
		kvs_soft_stream(dst, src, len);
		return;
	}
#endif
	memcpy(dst, src, len);
}

/* Sleep until the bytes moved so far are due at the device's rate. */
static void kvs_soft_pace(struct kvs_soft *s, uint64_t len)
{
	unsigned __int128 due;
	uint64_t now;

	s->pace_bytes += len;
	due = (unsigned __int128)s->pace_bytes * KVS_NSEC_PER_SEC /
		      s->bytes_per_sec +
	      s->pace_from;
	for (;;) {
		struct timespec ts = { 0 };
		uint64_t left;

		now = kvs_clock_now(&kvs_clock_real);
		if (now >= due)
			return;
		if (atomic_load_explicit(&s->stop, memory_order_relaxed))
			return;
		left = due - now > KVS_SOFT_NAP ? KVS_SOFT_NAP
						: (uint64_t)(due - now);
		ts.tv_nsec = (long)left;
		(void)nanosleep(&ts, NULL);
	}
}

/* Where the bytes of a device address are. */
static void *bytes_at(struct kvs_soft *s, const void *dev)
{
	const struct kvs_span *span;
	uintptr_t at = (uintptr_t)dev;

	if (!s->hidden)
		return (void *)at;
	(void)pthread_mutex_lock(&s->lock);
	KVS_ASSERT(!kvs_spans_find(&s->allocs, dev, 1, &span) && span);
	at = span->dev + (at - span->addr);
	(void)pthread_mutex_unlock(&s->lock);
	return (void *)at;
}

void kvs_soft_move(struct kvs_soft *s, enum kvs_copy_dir dir, char *host,
		   char *dev, uint64_t len)
{
	kvs_soft_count(&s->moves, 1);
	dev = bytes_at(s, dev);
	while (len) {
		uint64_t part = len;

		if (s->bytes_per_sec && part > KVS_SOFT_SLICE)
			part = KVS_SOFT_SLICE;
		if (dir == KVS_COPY_H2D)
			kvs_soft_bytes(dev, host, part);
		else
			kvs_soft_bytes(host, dev, part);
		kvs_soft_count(&s->bytes, part);
		if (s->bytes_per_sec)
			kvs_soft_pace(s, part);
		host += part;
		dev += part;
		len -= part;
	}
}

/* Row by row: they are apart on one side at least. */
static void kvs_soft_move_rows(struct kvs_soft *s, enum kvs_copy_dir dir,
			       const struct kvs_copy_run *r,
			       const struct kvs_copy_shape *shape, uint64_t n)
{
	uint64_t len = n * r->item_len;
	uint64_t off;
	uint64_t k;
	char *host;
	char *dev;

	for (off = 0; off < len; off += k) {
		k = kvs_copy_locate(r, shape, off, &host, &dev);
		kvs_soft_move(s, dir, host, dev, k);
	}
}

/* The first @n items of a run, neighbours on the device in one go. */
static void kvs_soft_move_run(struct kvs_soft *s, const struct kvs_copy *c,
			      size_t run, uint64_t n)
{
	const struct kvs_copy_run *r = &c->runs[run];
	enum kvs_copy_dir dir = c->dir;
	uint64_t i;
	uint64_t k;

	if (!n)
		return;
	if (c->shapes && c->shapes[run].rows) {
		kvs_soft_move_rows(s, dir, r, &c->shapes[run], n);
		return;
	}
	if (!r->pages) {
		kvs_soft_move(s, dir, r->host, r->dev, n * r->item_len);
		return;
	}
	for (i = 0; i < n; i += k) {
		for (k = 1; i + k < n; k++)
			if (r->pages[i + k] != (uint64_t)r->pages[i] + k)
				break;
		kvs_soft_move(s, dir, (char *)r->host + i * r->item_len,
			      (char *)r->dev + r->pages[i] * r->item_len,
			      k * r->item_len);
	}
}

void kvs_soft_run_done(struct kvs_copy *c, size_t n)
{
	/* pairs with the acquire in kvs_soft_progress() */
	atomic_store_explicit(&c->runs_done, n, memory_order_release);
}

void kvs_soft_finish(struct kvs_soft *s, struct kvs_copy *c, int status)
{
	kvs_soft_count(&s->copies, 1);
	if (status)
		kvs_soft_count(&s->failed, 1);
	/* pairs with the acquire in kvs_soft_query(); @c may be gone after */
	atomic_store_explicit(&c->status, status, memory_order_release);
}

static void kvs_soft_do(struct kvs_soft *s, struct kvs_copy *c)
{
	const struct kvs_soft_plan *p = &s->plan;
	bool half = c->order == p->fail_late_nth;
	size_t n = half ? c->n_runs / 2 : c->n_runs;
	size_t i;
	int r;

	if (c->order == p->hold_nth) {
		kvs_soft_wait(&s->held);
		s->pace_from = 0;
	}
	if (!s->pace_from) {
		s->pace_from = kvs_clock_now(&kvs_clock_real);
		s->pace_bytes = 0;
	}
	r = atomic_load_explicit(&s->sticky, memory_order_relaxed);
	if (!r && c->order == p->sticky_nth) {
		r = -EIO;
		/* pairs with the acquire in kvs_soft_copy() */
		atomic_store_explicit(&s->sticky, r, memory_order_release);
	}
	if (c->order == p->fail_nth)
		r = -EIO;
	if (r) {
		kvs_soft_finish(s, c, r);
		return;
	}
	if (s->ring) {
		r = kvs_soft_make_plan(s, c, half);
		kvs_soft_finish(s, c, r);
		return;
	}
	for (i = 0; i < n; i++) {
		kvs_soft_move_run(s, c, i, c->runs[i].n);
		kvs_soft_run_done(c, i + 1);
	}
	/* of an odd number of runs the middle one stops half-way too */
	if (half && c->n_runs % 2)
		kvs_soft_move_run(s, c, n, c->runs[n].n / 2);
	kvs_soft_finish(s, c, half ? -EIO : 0);
}

static void *kvs_soft_main(void *arg)
{
	struct kvs_soft *s = arg;
	struct kvs_mpsc_node *node;
	bool stop;

	(void)pthread_setname_np(pthread_self(), "kvs-soft-copy");
	do {
		if (sem_trywait(&s->work)) {
			/* idle time gives no credit for later copies */
			s->pace_from = 0;
			kvs_soft_wait(&s->work);
		}
		/* looked at before the queue: close pushes nothing after it */
		stop = atomic_load_explicit(&s->stop, memory_order_acquire);
		while ((node = kvs_mpsc_pop(&s->queue)))
			kvs_soft_do(s, kvs_container_of(node, struct kvs_copy,
							node));
	} while (!stop);
	return NULL;
}

static int kvs_soft_start(struct kvs_soft *s)
{
	sigset_t all, old;
	int r;

	/* signals are for the program's own threads */
	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&s->thread, NULL, kvs_soft_main, s);
	(void)pthread_sigmask(SIG_SETMASK, &old, NULL);
	return -r;
}

static uint64_t whole_pages(uint64_t len)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	return (len + page - 1) / page * page;
}

/* The address that is told, with nothing there, and the bytes behind it. */
static int mem_alloc_hidden(uint64_t len, void **ret)
{
	uint64_t n = whole_pages(len);
	char *p = mmap(NULL, 2 * n, PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return -ENOMEM;
	if (mprotect(p + n, n, PROT_READ | PROT_WRITE)) {
		(void)munmap(p, 2 * n);
		return -ENOMEM;
	}
	*ret = p;
	return 0;
}

static int mem_alloc(struct kvs_soft *s, uint64_t len, void **ret)
{
	size_t align = len >= KVS_SOFT_HUGE ? KVS_SOFT_HUGE : KVS_SOFT_ALIGN;

	if (len > PTRDIFF_MAX / 4)
		return -ENOMEM;
	if (s->hidden)
		return mem_alloc_hidden(len, ret);
	if (posix_memalign(ret, align, len))
		return -ENOMEM;
	/* advice only: fewer faults on first touch */
	if (len >= KVS_SOFT_HUGE)
		(void)madvise(*ret, len & ~(uint64_t)(KVS_SOFT_HUGE - 1),
			      MADV_HUGEPAGE);
	return 0;
}

static void mem_free(struct kvs_soft *s, void *p, uint64_t len)
{
	if (s->hidden)
		(void)munmap(p, 2 * whole_pages(len));
	else
		free(p);
}

void kvs_soft_free_all(struct kvs_soft *s)
{
	size_t i;

	for (i = 0; i < s->allocs.n; i++)
		mem_free(s, (void *)s->allocs.v[i].addr, s->allocs.v[i].len);
	kvs_spans_fini(&s->allocs);
	kvs_spans_fini(&s->hosts);
	kvs_soft_plan_free(s);
	(void)pthread_mutex_destroy(&s->lock);
	(void)sem_destroy(&s->work);
	(void)sem_destroy(&s->held);
	s->dev.magic = 0;
	free(s);
}

int kvs_soft_new(const struct kvs_device_ops *ops, struct kvs_soft **ret)
{
	struct kvs_soft *s = NULL;
	int r;

	r = -posix_memalign((void **)&s, _Alignof(struct kvs_soft), sizeof(*s));
	if (r)
		return r;
	memset(s, 0, sizeof(*s));
	s->dev.magic = KVS_DEVICE_MAGIC;
	s->dev.ops = ops;
	kvs_mpsc_init(&s->queue);
	(void)pthread_mutex_init(&s->lock, NULL);
	(void)sem_init(&s->work, 0, 0);
	(void)sem_init(&s->held, 0, 0);
	*ret = s;
	return 0;
}

static int kvs_soft_open(const struct kvs_device_opts *o,
			 struct kvs_device **ret, char *err, size_t errlen)
{
	struct kvs_soft *s;
	int r;

	r = kvs_soft_new(&kvs_soft_ops, &s);
	if (r) {
		(void)snprintf(err, errlen, "soft device: out of memory");
		return r;
	}
	s->bytes_per_sec = o->bytes_per_sec;
	s->plan = o->plan;
	s->hidden = o->hidden;
	/* the kernel of a plan would use the addresses */
	if (o->copy.way != KVS_COPY_AUTO && !s->hidden)
		r = kvs_soft_plan_copies(s, &o->copy);
	if (r) {
		(void)snprintf(err, errlen, "soft device: no ring");
		kvs_soft_free_all(s);
		return r;
	}
	r = kvs_soft_start(s);
	if (r) {
		(void)snprintf(err, errlen, "soft device: no copy thread: %s",
			       strerror(-r));
		kvs_soft_free_all(s);
		return r;
	}
	*ret = &s->dev;
	return 0;
}

static void kvs_soft_close(struct kvs_device *d)
{
	struct kvs_soft *s = kvs_to_soft(d);

	/* pairs with the acquire in kvs_soft_main() */
	atomic_store_explicit(&s->stop, true, memory_order_release);
	(void)sem_post(&s->held);
	(void)sem_post(&s->work);
	(void)pthread_join(s->thread, NULL);
	kvs_soft_free_all(s);
}

int kvs_soft_alloc(struct kvs_device *d, uint64_t len, void **ret)
{
	struct kvs_soft *s = kvs_to_soft(d);
	void *p = NULL;
	int r;

	r = mem_alloc(s, len, &p);
	if (r)
		return r;
	(void)pthread_mutex_lock(&s->lock);
	r = kvs_spans_add(&s->allocs, p, len, false);
	if (!r && s->hidden)
		kvs_spans_set_dev(&s->allocs, p,
				  (uintptr_t)p + whole_pages(len));
	(void)pthread_mutex_unlock(&s->lock);
	if (r) {
		mem_free(s, p, len);
		return r;
	}
	*ret = p;
	return 0;
}

void kvs_soft_free(struct kvs_device *d, void *p)
{
	struct kvs_soft *s = kvs_to_soft(d);
	const struct kvs_span *span = NULL;
	uint64_t len;

	(void)pthread_mutex_lock(&s->lock);
	KVS_ASSERT(!kvs_spans_find(&s->allocs, p, 1, &span) && span);
	len = span->len;
	KVS_ASSERT(!kvs_spans_del(&s->allocs, p, 0));
	(void)pthread_mutex_unlock(&s->lock);
	mem_free(s, p, len);
}

int kvs_soft_register(struct kvs_device *d, void *addr, uint64_t len,
		      unsigned int flags)
{
	struct kvs_soft *s = kvs_to_soft(d);
	int r;

	(void)pthread_mutex_lock(&s->lock);
	r = kvs_spans_add(&s->hosts, addr, len, flags & KVS_HOST_READ_ONLY);
	(void)pthread_mutex_unlock(&s->lock);
	return r;
}

int kvs_soft_unregister(struct kvs_device *d, void *addr, uint64_t len)
{
	struct kvs_soft *s = kvs_to_soft(d);
	int r;

	(void)pthread_mutex_lock(&s->lock);
	r = kvs_spans_del(&s->hosts, addr, len);
	(void)pthread_mutex_unlock(&s->lock);
	return r;
}

static uint32_t kvs_soft_max_page(const uint32_t *pages, uint64_t n)
{
	uint32_t max = 0;
	uint64_t i;

	for (i = 0; i < n; i++)
		max = pages[i] > max ? pages[i] : max;
	return max;
}

/* Does the run stay in memory the device may use that way? */
static int kvs_soft_check_run(const struct kvs_soft *s,
			      const struct kvs_copy *c, size_t i,
			      uint64_t items)
{
	const struct kvs_copy_run *r = &c->runs[i];
	struct kvs_copy_shape shape = kvs_copy_shape_of(c, i);
	const struct kvs_span *span;
	uint64_t len;

	if (!kvs_copy_reach(shape.dev_item, items, shape.dev_row, &shape, &len))
		return -EINVAL;
	if (kvs_spans_find(&s->allocs, r->dev, len, &span) || !span)
		return -EINVAL;
	if (!kvs_copy_reach(shape.host_item, r->n, shape.host_row, &shape,
			    &len) ||
	    kvs_spans_find(&s->hosts, r->host, len, &span))
		return -EINVAL;
	if (span && span->read_only && c->dir == KVS_COPY_D2H)
		return -EINVAL;
	return 0;
}

int kvs_soft_check(struct kvs_soft *s, const struct kvs_copy *c)
{
	const uint32_t *pages = NULL;
	uint64_t items = 0; /* highest page number of @pages plus 1 */
	uint64_t n = 0;
	size_t i;
	int r = 0;

	(void)pthread_mutex_lock(&s->lock);
	for (i = 0; i < c->n_runs && !r; i++) {
		const struct kvs_copy_run *run = &c->runs[i];

		if (!run->n)
			continue;
		if (!run->pages) {
			r = kvs_soft_check_run(s, c, i, run->n);
			continue;
		}
		/* the layers of a room use one list: look through it once */
		if (run->pages != pages || run->n != n) {
			pages = run->pages;
			n = run->n;
			items = (uint64_t)kvs_soft_max_page(pages, n) + 1;
		}
		r = kvs_soft_check_run(s, c, i, items);
	}
	(void)pthread_mutex_unlock(&s->lock);
	return r;
}

static int kvs_soft_copy(struct kvs_device *d, struct kvs_copy *c)
{
	struct kvs_soft *s = kvs_to_soft(d);
	int r;

	/* pairs with the release in kvs_soft_do() */
	r = atomic_load_explicit(&s->sticky, memory_order_acquire);
	if (r)
		return r;
	r = kvs_soft_check(s, c);
	if (r)
		return r;
	c->order = atomic_fetch_add(&s->order, 1) + 1;
	atomic_store_explicit(&c->status, -EINPROGRESS, memory_order_relaxed);
	atomic_store_explicit(&c->runs_done, 0, memory_order_relaxed);
	kvs_mpsc_push(&s->queue, &c->node);
	(void)sem_post(&s->work);
	return 0;
}

int kvs_soft_query(struct kvs_device *d, const struct kvs_copy *c)
{
	(void)d;
	/* pairs with the release in kvs_soft_finish() */
	return atomic_load_explicit(&c->status, memory_order_acquire);
}

size_t kvs_soft_progress(struct kvs_device *d, const struct kvs_copy *c)
{
	(void)d;
	/* pairs with the release in kvs_soft_run_done() */
	return atomic_load_explicit(&c->runs_done, memory_order_acquire);
}

int kvs_soft_peek(struct kvs_device *d, void *host, const void *dev,
		  uint64_t len)
{
	struct kvs_soft *s = kvs_to_soft(d);
	const struct kvs_span *span;
	int r;

	(void)pthread_mutex_lock(&s->lock);
	r = kvs_spans_find(&s->allocs, dev, len, &span);
	(void)pthread_mutex_unlock(&s->lock);
	if (r || !span)
		return -EINVAL;
	memcpy(host, bytes_at(s, dev), len);
	return 0;
}

int kvs_soft_release(struct kvs_device *d)
{
	KVS_CHECK_MAGIC(d, KVS_DEVICE_MAGIC);
	if (d->ops == &kvs_soft_virtual_ops) {
		kvs_soft_virtual_release(kvs_to_soft(d));
		return 0;
	}
	if (d->ops != &kvs_soft_ops)
		return -EOPNOTSUPP;
	(void)sem_post(&kvs_to_soft(d)->held);
	return 0;
}

int kvs_soft_stats(struct kvs_device *d, struct kvs_soft_stats *ret)
{
	struct kvs_soft *s;

	KVS_CHECK_MAGIC(d, KVS_DEVICE_MAGIC);
	if (d->ops != &kvs_soft_ops && d->ops != &kvs_soft_virtual_ops)
		return -EOPNOTSUPP;
	s = kvs_to_soft(d);
	ret->copies = atomic_load_explicit(&s->copies, memory_order_relaxed);
	ret->failed = atomic_load_explicit(&s->failed, memory_order_relaxed);
	ret->bytes = atomic_load_explicit(&s->bytes, memory_order_relaxed);
	ret->moves = atomic_load_explicit(&s->moves, memory_order_relaxed);
	ret->launches =
		atomic_load_explicit(&s->launches, memory_order_relaxed);
	ret->steps = atomic_load_explicit(&s->steps, memory_order_relaxed);
	(void)pthread_mutex_lock(&s->lock);
	ret->allocs = s->allocs.n;
	ret->alloc_bytes = s->allocs.bytes;
	ret->registered = s->hosts.n;
	ret->registered_bytes = s->hosts.bytes;
	(void)pthread_mutex_unlock(&s->lock);
	return 0;
}

void kvs_soft_info(struct kvs_device *d, struct kvs_device_info *ret)
{
	struct kvs_soft_stats st = { 0 };

	(void)kvs_soft_stats(d, &st);
	ret->way = KVS_COPY_DIRECT;
	kvs_soft_plan_info(kvs_to_soft(d), ret);
	(void)snprintf(ret->kernels, sizeof(ret->kernels), "host");
	/* ordinary memory, if one can get at it */
	ret->peer_mem = !kvs_to_soft(d)->hidden;
	ret->copies = st.copies;
	ret->failed = st.failed;
	ret->bytes = st.bytes;
	ret->pieces = st.moves;
	ret->launches = st.launches;
	ret->steps = st.steps;
	ret->sticky = atomic_load_explicit(&kvs_to_soft(d)->sticky,
					   memory_order_acquire);
	ret->registered = st.registered;
	ret->registered_bytes = st.registered_bytes;
	ret->pinned_bytes = st.registered_bytes;
}

int kvs_soft_export(struct kvs_device *d, const void *addr, uint64_t len,
		    int *ret_fd, uint64_t *ret_offset)
{
	(void)d, (void)addr, (void)len, (void)ret_fd, (void)ret_offset;
	return -EOPNOTSUPP;
}

const struct kvs_device_ops kvs_soft_ops = {
	.name = "soft",
	.open = kvs_soft_open,
	.close = kvs_soft_close,
	.alloc = kvs_soft_alloc,
	.free = kvs_soft_free,
	.register_host = kvs_soft_register,
	.unregister_host = kvs_soft_unregister,
	.copy = kvs_soft_copy,
	.query = kvs_soft_query,
	.progress = kvs_soft_progress,
	.peek = kvs_soft_peek,
	.info = kvs_soft_info,
	.export = kvs_soft_export,
};
