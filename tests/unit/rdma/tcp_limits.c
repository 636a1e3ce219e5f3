/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, for each engine:
 *  - out of descriptors, accepting pauses without spinning and resumes, and
 *    nobody else notices (PADL/IORingSwift#9, axboe/liburing#1275);
 *  - a tiny ring with thousands of connections loses no completion, and
 *    overflows are counted (axboe/liburing#1063, #705);
 *  - short results are continued from where they ended, and counted
 *    (LMCache#2635, agave#6763, rocksdb#6441);
 *  - thousands of transfers use one connection (sgl-project/sglang#31208);
 *  - at most one send of a connection is in the kernel: frames and payloads
 *    never interleave (tokio-rs/io-uring#249);
 *  - destroying with operations in flight gives every buffer back first
 *    (PhotonLibOS#1270, seastar#3610).
 */
#include "tests/unit/rdma/rig.h"

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lib/clock.h"
#include "lib/rng.h"
#include "rdma/tcp_internal.h"

/* ---- descriptors ---- */

static void child_say(int fd, char ch)
{
	if (write(fd, &ch, 1) != 1)
		_exit(3);
}

static void child_wait(int fd)
{
	char ch;

	if (read(fd, &ch, 1) != 1)
		_exit(4);
}

static int child_connect(const struct rig *r)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 ||
	    connect(fd, (const void *)&r->addr.a[0].ss, r->addr.a[0].len))
		_exit(5);
	return fd;
}

static void child_echo(int fd)
{
	unsigned char b[32];
	unsigned char c[32];
	size_t got = 0;

	mkframe(b, 7, sizeof(b), 0);
	if (write(fd, b, sizeof(b)) != (ssize_t)sizeof(b))
		_exit(6);
	while (got < sizeof(c)) {
		ssize_t n = read(fd, c + got, sizeof(c) - got);

		if (n <= 0)
			_exit(7);
		got += (size_t)n;
	}
	if (memcmp(b, c, sizeof(b)))
		_exit(8);
}

/* The other process: it must not be short of descriptors itself. */
static void crowd(const struct rig *r, int in, int out)
{
	int fd[200];
	int i;

	for (i = 0; i < 200; i++)
		fd[i] = child_connect(r);
	child_say(out, 'c');
	child_echo(fd[0]);
	child_say(out, 'e');
	child_wait(in);
	for (i = 0; i < 200; i++)
		close(fd[i]);
	child_say(out, 'x');
	for (i = 0; i < 10; i++) {
		fd[i] = child_connect(r);
		child_echo(fd[i]);
	}
	child_say(out, 'd');
	child_wait(in);
	_exit(0);
}

static bool readable(int fd, char want)
{
	struct timeval tv = { 0 };
	fd_set set;
	char ch;

	FD_ZERO(&set);
	FD_SET(fd, &set);
	if (select(fd + 1, &set, NULL, NULL, &tv) != 1)
		return false;
	assert_int_equal(read(fd, &ch, 1), 1);
	assert_int_equal(ch, want);
	return true;
}

static void few_descriptors(void **state)
{
	struct rig *r = rig_new(NULL);
	struct rlimit old;
	struct rlimit few;
	uint64_t until;
	uint64_t refused;
	uint64_t cpu;
	int to[2];
	int from[2];
	int status;
	pid_t pid;

	(void)state;
	r->echo = true;
	assert_int_equal(pipe(to), 0);
	assert_int_equal(pipe(from), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		close(to[1]);
		close(from[0]);
		crowd(r, to[0], from[1]);
	}
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	few = old;
	few.rlim_cur = 64;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);

	rig_until(r, readable(from[0], 'c'));
	rig_until(r, rig_stats(r).refused_fds > 0);
	/* Those that were let in are served. */
	rig_until(r, readable(from[0], 'e'));
	assert_true(r->n_sides > 30 && r->n_sides < 64);

	/* Half a second in which nothing can be accepted: no spinning. */
	refused = rig_stats(r).refused_fds;
	cpu = kvs_clock_thread_cpu();
	until = rig_now() + 500000000ull;
	while (rig_now() < until)
		assert_true(kvs_transport_poll(r->t, until - rig_now()) >= 0);
	assert_true(rig_stats(r).refused_fds - refused <= 20);
	assert_true(kvs_clock_thread_cpu() - cpu < 250000000ull);

	assert_int_equal(write(to[1], "g", 1), 1);
	rig_until(r, readable(from[0], 'x'));
	rig_until(r, readable(from[0], 'd'));
	assert_int_equal(write(to[1], "g", 1), 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
	close(to[0]);
	close(to[1]);
	close(from[0]);
	close(from[1]);
	rig_free(r);
}

static void max_conns(void **state)
{
	struct kvs_transport_opts o = { .max_conns = 3 };
	struct rig *r = rig_new(&o);
	unsigned char b[16];
	int fd[5];
	int more;
	int i;

	(void)state;
	for (i = 0; i < 5; i++)
		fd[i] = puppet(r);
	rig_until(r, rig_stats(r).refused_limit == 2);
	assert_int_equal(r->n_sides, 3);
	assert_true(recv(fd[4], b, 1, 0) <= 0);
	/* a place becomes free */
	close(fd[0]);
	rig_until(r, r->side[0].closed);
	more = puppet(r);
	rig_until(r, r->n_sides == 4);
	assert_int_equal(rig_stats(r).accepted, 4);
	for (i = 1; i < 5; i++)
		close(fd[i]);
	close(more);
	rig_free(r);
}

/* ---- many connections, small ring ---- */

static void small_ring(void **state)
{
	struct rlimit old;
	struct rlimit lim;
	unsigned int n = 3000;
	unsigned char b[32];
	unsigned char c[32];
	struct rig *r;
	unsigned int i;
	int *fd;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	lim = old;
	lim.rlim_cur = lim.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &lim), 0);
	if (lim.rlim_cur < 2 * n + 100) {
		n = (unsigned int)(lim.rlim_cur - 100) / 2;
		printf("RLIMIT_NOFILE: only %u connections\n", n);
	}
	kvs_tcp_test_ring_entries = 8;
	r = rig_new(NULL);
	kvs_tcp_test_ring_entries = 0;
	r->echo = true;
	fd = calloc(n, sizeof(*fd));
	for (i = 0; i < n; i++) {
		fd[i] = puppet(r);
		if (i % 100 == 99)
			rig_until(r, r->n_sides == i + 1);
	}
	rig_until(r, r->n_sides == n);
	mkframe(b, 3, sizeof(b), 0);
	for (i = 0; i < n; i++)
		assert_int_equal(send(fd[i], b, sizeof(b), 0), sizeof(b));
	for (i = 0; i < n; i++)
		rig_until(r, r->side[i].frames == 1);
	for (i = 0; i < n; i++) {
		puppet_recv(r, fd[i], c, sizeof(c));
		assert_memory_equal(b, c, sizeof(c));
		close(fd[i]);
	}
	for (i = 0; i < n; i++)
		rig_until(r, r->side[i].closed);
	if (!strcmp(rig_engine, "uring"))
		assert_true(rig_stats(r).cq_overflow > 0);
	free(fd);
	rig_free(r);
	setrlimit(RLIMIT_NOFILE, &old);
}

/* ---- short results ---- */

static unsigned int n_calls;
static unsigned int n_short;

/* A third of them, the choice not in step with who calls. */
static size_t halve_a_third(size_t want)
{
	if (kvs_mix64(++n_calls) % 3 || want < 2)
		return want;
	n_short++;
	return want / 2;
}

struct txs {
	struct kvs_tx tx;
	struct iovec iov[3];
	unsigned int *done;
	unsigned int *failed;
};

static void tx_done(struct kvs_conn *c, struct kvs_tx *tx, int status)
{
	struct txs *s = tx->user;

	(void)c;
	assert_true(status <= 0);
	if (status)
		++*s->failed;
	else
		++*s->done;
}

/* Three uneven pieces over @src, framed. */
static void make_tx(struct txs *s, unsigned char *src, size_t n,
		    unsigned int *done, unsigned int *failed)
{
	memset(s, 0, sizeof(*s));
	mkframe(s->tx.frame, 8, KVS_DATA_FRAME, (uint32_t)n);
	s->iov[0].iov_base = src;
	s->iov[0].iov_len = n / 3;
	s->iov[1].iov_base = src + n / 3;
	s->iov[1].iov_len = 0;
	s->iov[2].iov_base = src + n / 3;
	s->iov[2].iov_len = n - n / 3;
	s->tx.iov = s->iov;
	s->tx.n_iov = 3;
	s->tx.done = tx_done;
	s->tx.user = s;
	s->done = done;
	s->failed = failed;
}

/* A connection of the rig to itself: us -> r->side[0]. */
static void self_connect(struct rig *r, struct side *us)
{
	assert_int_equal(kvs_transport_connect(r->t, &r->addr, KVS_CONN_DATA,
					       &rig_ops, us, &us->c),
			 0);
	assert_int_equal(us->opened, 0); /* never from inside the call */
	rig_until(r, us->opened && r->n_sides == 1);
}

static void short_io(void **state)
{
	enum { N = 40 };
	size_t n = 300000;
	unsigned char *src = malloc(n * N);
	unsigned char *dst = calloc(N, n);
	struct side us = { 0 };
	struct txs *s = calloc(N, sizeof(*s));
	unsigned char f[64] __attribute__((aligned(8)));
	unsigned int failed = 0;
	unsigned int done = 0;
	struct rig *r;
	int i;

	(void)state;
	n_calls = 0;
	n_short = 0;
	r = rig_new(NULL);
	r->kind = KVS_CONN_DATA;
	r->mem = dst;
	self_connect(r, &us);
	r->side[0].mem_step = n;
	kvs_tcp_test_shorten = halve_a_third;
	for (i = 0; i < N; i++) {
		fill(src + (size_t)i * n, (uint64_t)i, n);
		make_tx(&s[i], src + (size_t)i * n, n, &done, &failed);
		assert_int_equal(kvs_conn_write(us.c, &s[i].tx), 0);
	}
	rig_until(r, r->side[0].done == N && done == N);
	kvs_tcp_test_shorten = NULL;
	/* The receive waiting for the next frame may be a shortened one. */
	mkframe(f, 9, sizeof(f), 0);
	assert_int_equal(kvs_conn_send(us.c, (void *)f), 0);
	rig_until(r, r->side[0].frames == 1);
	assert_int_equal(failed, 0);
	assert_true(n_short > 10);
	for (i = 0; i < N; i++)
		assert_true(matches(dst + (size_t)i * n, (uint64_t)i, n));
	assert_int_equal(rig_stats(r).rx_bytes, n * N);
	assert_int_equal(rig_stats(r).tx_bytes,
			 (n + KVS_DATA_FRAME) * N + sizeof(f));
	/* A ring asks for all; a socket is short of its own accord as well. */
	if (!strcmp(rig_engine, "uring"))
		assert_int_equal(rig_stats(r).io_short, n_short);
	else
		assert_true(rig_stats(r).io_short >= n_short / 2);
	rig_free(r);
	free(s);
	free(src);
	free(dst);
}

/* ---- one connection for everything ---- */

static void reuse(void **state)
{
	enum { N = 10000, DEPTH = 16, LEN = 4096 };
	unsigned char *src = malloc(LEN);
	unsigned char *dst = malloc(LEN);
	struct txs s[DEPTH];
	unsigned int failed = 0;
	unsigned int done = 0;
	unsigned int sent = 0;
	struct side us = { 0 };
	struct rig *r = rig_new(NULL);

	(void)state;
	r->kind = KVS_CONN_DATA;
	r->mem = dst;
	fill(src, 3, LEN);
	self_connect(r, &us);
	while (done < N) {
		while (sent < N && sent - done < DEPTH) {
			make_tx(&s[sent % DEPTH], src, LEN, &done, &failed);
			assert_int_equal(
				kvs_conn_write(us.c, &s[sent % DEPTH].tx), 0);
			sent++;
		}
		assert_true(kvs_transport_poll(r->t, 1000000) >= 0);
	}
	rig_until(r, r->side[0].done == N);
	assert_int_equal(failed, 0);
	assert_int_equal(rig_stats(r).accepted, 1);
	assert_int_equal(rig_stats(r).rx_bytes, (uint64_t)N * LEN);
	assert_true(matches(dst, 3, LEN));
	rig_free(r);
	free(src);
	free(dst);
}

/* ---- order of bytes on one socket ---- */

static void one_send_at_a_time(void **state)
{
	enum { N = 60 };
	struct kvs_transport_opts o = { .sndbuf = 4096 };
	struct rig *r = rig_new(&o);
	struct txs *s = calloc(N, sizeof(*s));
	unsigned int failed = 0;
	unsigned int done = 0;
	struct kvs_rng rng;
	uint64_t seed = rig_now();
	unsigned char *want;
	unsigned char *got;
	unsigned char f[600];
	unsigned char *src;
	size_t total = 0;
	size_t n;
	int fd;
	int i;

	(void)state;
	printf("seed %llu\n", (unsigned long long)seed);
	kvs_rng_init(&rng, seed);
	want = malloc(N * (70000 + 64 + 600));
	src = malloc(N * 70000);
	r->kind = KVS_CONN_DATA;
	fd = puppet(r);
	rig_until(r, r->n_sides == 1);
	/* Two writers, a chunk stream and frames, on one connection. */
	for (i = 0; i < N; i++) {
		unsigned char *p = src + (size_t)i * 70000;

		n = 1 + kvs_rng_below(&rng, 70000);
		fill(p, (uint64_t)i, n);
		make_tx(&s[i], p, n, &done, &failed);
		assert_int_equal(kvs_conn_write(r->side[0].c, &s[i].tx), 0);
		memcpy(want + total, s[i].tx.frame, 64);
		memcpy(want + total + 64, p, n);
		total += 64 + n;
		n = 16 + kvs_rng_below(&rng, 500);
		mkframe(f, (uint16_t)i, (uint32_t)n, 0);
		assert_int_equal(kvs_conn_send(r->side[0].c, (void *)f), 0);
		memcpy(want + total, f, n);
		total += n;
		if (kvs_rng_below(&rng, 2))
			kvs_transport_poll(r->t, 0);
	}
	got = malloc(total);
	puppet_recv(r, fd, got, total);
	assert_memory_equal(got, want, total);
	rig_until(r, done == N);
	assert_int_equal(failed, 0);
	close(fd);
	rig_free(r);
	free(got);
	free(want);
	free(src);
	free(s);
}

/* The low-water mark must never wait for what the window cannot hold. */
static void tiny_buffers(void **state)
{
	struct kvs_transport_opts o = { .rcvbuf = 2048, .sndbuf = 2048 };
	struct rig *r = rig_new(&o);
	size_t n = 3000001;
	unsigned char *src = malloc(n);
	unsigned char *dst = calloc(1, n);
	unsigned int failed = 0;
	unsigned int done = 0;
	struct side us = { 0 };
	struct txs s;

	(void)state;
	r->kind = KVS_CONN_DATA;
	r->mem = dst;
	fill(src, 4, n);
	self_connect(r, &us);
	make_tx(&s, src, n, &done, &failed);
	assert_int_equal(kvs_conn_write(us.c, &s.tx), 0);
	rig_until(r, r->side[0].done == 1);
	assert_int_equal(r->side[0].status, 0);
	assert_true(matches(dst, 4, n));
	rig_free(r);
	free(src);
	free(dst);
}

/* ---- destroying in full flight ---- */

static void destroy_in_flight(void **state)
{
	enum { N = 100, LEN = 1 << 20, QUEUED = 2 << 20 };
	unsigned char *mem = calloc(N, LEN);
	unsigned char *src = calloc(1, QUEUED);
	struct txs *s = calloc(N, sizeof(*s));
	unsigned int failed = 0;
	unsigned int done = 0;
	unsigned char b[1064];
	struct rig *r = rig_new(NULL);
	int fd[N];
	int i;

	(void)state;
	r->kind = KVS_CONN_DATA;
	mkframe(b, 1, 64, LEN);
	fill(b + 64, 1, 1000);
	for (i = 0; i < N; i++) {
		r->mem = mem + (size_t)i * LEN;
		fd[i] = puppet(r);
		rig_until(r, r->n_sides == (unsigned int)i + 1);
		puppet_send(r, fd[i], b, sizeof(b));
		make_tx(&s[i], src, QUEUED, &done, &failed);
		assert_int_equal(kvs_conn_write(r->side[i].c, &s[i].tx), 0);
	}
	for (i = 0; i < N; i++)
		rig_until(r, r->side[i].payloads == 1);
	/* one is being stopped at that very moment */
	kvs_conn_stop_payload(r->side[7].c);

	kvs_transport_destroy(r->t);
	assert_int_equal(done + failed, N);
	for (i = 0; i < N; i++) {
		assert_int_equal(r->side[i].done, 1);
		assert_true(r->side[i].status < 0);
		assert_int_equal(r->side[i].closed, 1);
		assert_int_equal(r->side[i].err, -ESHUTDOWN);
	}
	/* All of it is ours again: late bytes must not reach it. */
	memset(mem, 0xee, (size_t)N * LEN);
	for (i = 0; i < N; i++) {
		send(fd[i], b, sizeof(b), MSG_NOSIGNAL | MSG_DONTWAIT);
		close(fd[i]);
	}
	assert_true(all_are(mem, 0xee, (size_t)N * LEN));
	free(r);
	free(s);
	free(src);
	free(mem);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(few_descriptors),
		cmocka_unit_test(max_conns),
		cmocka_unit_test(small_ring),
		cmocka_unit_test(short_io),
		cmocka_unit_test(reuse),
		cmocka_unit_test(one_send_at_a_time),
		cmocka_unit_test(tiny_buffers),
		cmocka_unit_test(destroy_in_flight),
	};

	rig_main(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
