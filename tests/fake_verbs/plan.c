/* SPDX-License-Identifier: Apache-2.0 */
/* The world: its lock, what is alive, which call fails, what went wrong. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/assert.h"
#include "tests/fake_verbs/internal.h"

#define ACK_WAIT_S 5

struct fv_world fv_w = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.acked = PTHREAD_COND_INITIALIZER,
};

static const struct {
	const char *name;
	bool any; /* may fail */
} calls[FV_CALLS_MAX] = {
#define FV_CALL_ROW(n, a) [FV_##n] = { #n, a },
	FV_CALLS(FV_CALL_ROW)
#undef FV_CALL_ROW
};

const char *fv_call_name(enum fv_call c)
{
	return c < FV_CALLS_MAX ? calls[c].name : "ANY";
}

void fv_lock(void)
{
	pthread_mutex_lock(&fv_w.lock);
	KVS_ASSERT(fv_w.begun);
}

void fv_unlock(void)
{
	pthread_mutex_unlock(&fv_w.lock);
}

uint64_t fv_now(void)
{
	struct timespec ts;

	if (fv_w.now)
		return fv_w.now();
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

void fv_violation(const char *fmt, ...)
{
	va_list ap;

	fv_w.violations++;
	fputs("fake_verbs: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

static int strike(struct fv_plan *p)
{
	if (!p->times)
		return 0;
	if (p->nth > 1) {
		p->nth--;
		return 0;
	}
	p->times--;
	fv_w.failed++;
	return p->err;
}

int fv_enter(enum fv_call c)
{
	int rc;

	fv_w.calls[c]++;
	if (!calls[c].any)
		return 0;
	fv_w.calls_any++;
	rc = strike(&fv_w.plan[c]);
	return rc ? rc : strike(&fv_w.plan[FV_ANY]);
}

bool fv_wait_acked(const unsigned int *acked, const unsigned int *given,
		   const char *what)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	ts.tv_sec += ACK_WAIT_S;
	while (*acked < *given)
		if (pthread_cond_timedwait(&fv_w.acked, &fv_w.lock, &ts)) {
			fv_violation("%s: %u of %u events acknowledged: it "
				     "would wait for ever",
				     what, *acked, *given);
			return false;
		}
	return true;
}

void fv_clock(uint64_t (*now)(void))
{
	fv_lock();
	fv_w.now = now;
	fv_unlock();
}

void fv_begin(void)
{
	pthread_mutex_lock(&fv_w.lock);
	KVS_ASSERT(!fv_w.begun);
	kvs_list_init(&fv_w.devices);
	kvs_list_init(&fv_w.flights);
	memset(fv_w.plan, 0, sizeof(fv_w.plan));
	memset(&fv_w.live, 0, sizeof(fv_w.live));
	memset(&fv_w.counts, 0, sizeof(fv_w.counts));
	memset(fv_w.calls, 0, sizeof(fv_w.calls));
	fv_w.calls_any = 0;
	fv_w.failed = 0;
	fv_w.lose_flushes = 0;
	fv_w.hold_nth = 0;
	fv_w.hold_times = 0;
	fv_w.violations = 0;
	fv_w.now = NULL;
	fv_w.root[0] = '\0';
	fv_w.begun = true;
	pthread_mutex_unlock(&fv_w.lock);
}

static bool report_live(void)
{
	const struct {
		const char *what;
		unsigned int n;
	} all[] = {
		{ "device lists", fv_w.live.lists },
		{ "contexts", fv_w.live.contexts },
		{ "protection domains", fv_w.live.pds },
		{ "memory regions", fv_w.live.mrs },
		{ "windows", fv_w.live.mws },
		{ "channels", fv_w.live.channels },
		{ "completion queues", fv_w.live.cqs },
		{ "shared receive queues", fv_w.live.srqs },
		{ "queue pairs", fv_w.live.qps },
	};
	bool any = false;
	size_t i;

	for (i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		if (!all[i].n)
			continue;
		fprintf(stderr, "fake_verbs: %u %s left\n", all[i].n,
			all[i].what);
		any = true;
	}
	return any;
}

int fv_end(void)
{
	int rc = 0;

	fv_lock();
	while (!kvs_list_empty(&fv_w.flights)) {
		struct fv_flight *f =
			kvs_list_first(&fv_w.flights, struct fv_flight, node);

		if (f->wqe)
			f->wqe->flight = NULL;
		kvs_list_del(&f->node);
		free(f);
	}
	if (report_live())
		rc = -EBUSY;
	else if (fv_w.violations)
		rc = -EPROTO;
	/* what is alive points at its device: it stays, for the leak check */
	while (rc != -EBUSY && !kvs_list_empty(&fv_w.devices)) {
		struct fv_device *d =
			kvs_list_first(&fv_w.devices, struct fv_device, node);

		kvs_list_del(&d->node);
		free(d->key);
		free(d->free_key);
		free(d);
	}
	fv_sysfs_remove();
	fv_w.begun = false;
	fv_unlock();
	return rc;
}

void fv_live(struct fv_live *ret)
{
	fv_lock();
	*ret = fv_w.live;
	fv_unlock();
}

void fv_counts(struct fv_counts *ret)
{
	fv_lock();
	*ret = fv_w.counts;
	fv_unlock();
}

uint64_t fv_calls(enum fv_call c)
{
	uint64_t n;

	fv_lock();
	n = fv_w.calls[c];
	fv_unlock();
	return n;
}

uint64_t fv_calls_any(void)
{
	uint64_t n;

	fv_lock();
	n = fv_w.calls_any;
	fv_unlock();
	return n;
}

unsigned int fv_violations(void)
{
	unsigned int n;

	fv_lock();
	n = fv_w.violations;
	fv_unlock();
	return n;
}

void fv_forgive(void)
{
	fv_lock();
	fv_w.violations = 0;
	fv_unlock();
}

void fv_fail(enum fv_call c, uint64_t nth, uint64_t times, int err)
{
	fv_lock();
	fv_w.plan[c] = (struct fv_plan){
		.nth = nth,
		.times = times,
		.err = err,
	};
	fv_w.failed = 0;
	fv_unlock();
}

void fv_heal(void)
{
	fv_lock();
	memset(fv_w.plan, 0, sizeof(fv_w.plan));
	fv_unlock();
}

uint64_t fv_failed(void)
{
	uint64_t n;

	fv_lock();
	n = fv_w.failed;
	fv_unlock();
	return n;
}

void fv_lose_flushes(uint64_t n)
{
	fv_lock();
	fv_w.lose_flushes = n;
	fv_unlock();
}

void fv_hold(uint64_t nth, uint64_t times)
{
	fv_lock();
	fv_w.hold_nth = nth;
	fv_w.hold_times = times;
	fv_unlock();
}
