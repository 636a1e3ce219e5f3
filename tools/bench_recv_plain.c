/* SPDX-License-Identifier: Apache-2.0 */
/* The baseline of kvstage-bench recv: what a program does that knows nothing
 * but recv(MSG_WAITALL). */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "lib/clock.h"
#include "pipeline/wire.h"
#include "tools/bench_recv.h"

struct plain {
	const struct kvs_recv_run *run;
	int fd;
	int err;
	_Atomic uint64_t bytes; /* of whole payloads */
	pthread_t thread;
};

/* @len bytes, or 0 at the end between two frames. */
static ssize_t take(int fd, void *to, size_t len)
{
	size_t got = 0;
	ssize_t n;

	while (got < len) {
		n = recv(fd, (char *)to + got, len - got, MSG_WAITALL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			return got ? -ECONNRESET : 0;
		got += (size_t)n;
	}
	return (ssize_t)len;
}

static void *plain_main(void *arg)
{
	struct plain *p = arg;
	const struct kvs_region *g = p->run->region;
	_Alignas(8) unsigned char buf[KVS_DATA_FRAME];
	const struct kvs_frame *f = (const void *)buf;
	uint64_t at = 0;
	uint32_t len;
	ssize_t n;

	while ((n = take(p->fd, buf, sizeof(buf))) > 0) {
		len = kvs_get32(f->payload);
		if (kvs_get32(f->magic) != KVS_FRAME_MAGIC || len > g->size) {
			n = -EPROTO;
			break;
		}
		if (at + len > g->size)
			at = 0;
		n = take(p->fd, (char *)g->base + at, len);
		if (n <= 0) {
			n = n ? n : -ECONNRESET;
			break;
		}
		at += len;
		atomic_fetch_add(&p->bytes, len);
	}
	p->err = (int)n;
	return NULL;
}

static void sample(struct plain *p, clockid_t cpu, struct kvs_recv_sample *ret)
{
	struct timespec ts = { 0 };

	ret->now = kvs_clock_now(&kvs_clock_real);
	ret->bytes = atomic_load(&p->bytes);
	(void)clock_gettime(cpu, &ts);
	ret->cpu =
		(uint64_t)ts.tv_sec * KVS_NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

/* The sender says nothing in between, unless it breaks. */
static int run_for(const struct kvs_recv_run *run, double seconds)
{
	struct kvs_recv_order o;
	int r = kvs_recv_await(run->orders, (int)(seconds * 1000), &o);

	return r == -ETIMEDOUT ? 0 : r ? r : -EPROTO;
}

static int measure(struct plain *p, struct kvs_recv_rate *ret)
{
	const struct kvs_recv_run *run = p->run;
	struct kvs_recv_sample a, b;
	struct kvs_recv_order o = { .op = KVS_RECV_STOP };
	clockid_t cpu;
	int r = -pthread_getcpuclockid(p->thread, &cpu);

	if (!r)
		r = run_for(run, run->seconds / 5);
	if (r)
		return r;
	sample(p, cpu, &a);
	r = run_for(run, run->seconds);
	if (r)
		return r;
	sample(p, cpu, &b);
	kvs_recv_rate_between(&a, &b, ret);
	r = kvs_recv_order(run->orders, &o);
	if (!r)
		r = kvs_recv_await(run->orders, KVS_RECV_PATIENCE_MS, &o);
	return r;
}

int kvs_recv_plain(const struct kvs_recv_run *run, struct kvs_recv_rate *ret,
		   char *why, size_t len)
{
	struct kvs_recv_order o = {
		.op = KVS_RECV_START,
		.connections = 1,
		.port = run->port,
		.endless = true,
		.size = run->size,
		.chunks = run->chunks,
		.extent_chunks = run->chunks,
	};
	struct plain p = { .run = run };
	int r = kvs_recv_order(run->orders, &o);

	memset(ret, 0, sizeof(*ret));
	if (!r)
		r = p.fd = kvs_recv_accept(run->listener);
	if (r < 0) {
		snprintf(why, len, "sender: %s", strerror(-r));
		return r;
	}
	kvs_recv_tune(p.fd);
	r = -pthread_create(&p.thread, NULL, plain_main, &p);
	if (!r) {
		r = measure(&p, ret);
		/* Else the sender has closed it, and the thread reads on
		 * to the end. */
		if (r)
			(void)shutdown(p.fd, SHUT_RDWR);
		pthread_join(p.thread, NULL);
		r = r ? r : p.err;
	}
	close(p.fd);
	if (r)
		snprintf(why, len, "plain receiver: %s", strerror(-r));
	return r;
}
