/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, for each engine:
 *  - the same stream gives the same frames and bytes in any split
 *    (kvcache-ai/Mooncake#609, #602);
 *  - a connection cut after any byte of a header or of a payload ends the
 *    same way by FIN and by RST, and a payload is never called whole
 *    (kvcache-ai/Mooncake#736, #274);
 *  - lies in a header close that connection only, counted;
 *  - a stopped payload is not written to after payload_done(), and later
 *    frames are unaffected (axboe/liburing#1375, netty/netty#17238).
 */
#include "tests/unit/rdma/rig.h"

#include <netinet/in.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/rng.h"

#define BODY 5000u

/* hello (40 B), data + payload, bare data frame (64 B), hello (300 B) */
static size_t make_stream(unsigned char *b)
{
	size_t n = 0;

	mkframe(b + n, 1, 64, 0);
	n += 64;
	mkframe(b + n, 2, KVS_DATA_FRAME, BODY);
	n += KVS_DATA_FRAME;
	fill(b + n, 77, BODY);
	n += BODY;
	mkframe(b + n, 3, 40, 0); /* shorter than a data frame */
	n += 40;
	mkframe(b + n, 4, 16, 0);
	n += 16;
	mkframe(b + n, 5, 300, 0);
	n += 300;
	return n;
}

static void play(size_t piece)
{
	static const uint16_t types[] = { 1, 3, 4, 5 };
	static unsigned char stream[8192];
	static unsigned char mem[BODY];
	static uint64_t sum;
	struct rig *r = rig_new(NULL);
	size_t n = make_stream(stream);
	size_t off;
	int fd;

	memset(mem, 0, sizeof(mem));
	r->kind = KVS_CONN_DATA;
	r->mem = mem;
	fd = puppet(r);
	rig_until(r, r->n_sides == 1);
	for (off = 0; off < n; off += piece) {
		puppet_send(r, fd, stream + off,
			    piece < n - off ? piece : n - off);
		/* each piece alone, so that it is a read of its own */
		while (piece < n && kvs_transport_poll(r->t, 0) > 0)
			;
	}
	rig_until(r, r->side[0].frames == 4);
	assert_memory_equal(r->side[0].types, types, sizeof(types));
	assert_int_equal(r->side[0].done, 1);
	assert_int_equal(r->side[0].status, 0);
	assert_int_equal(r->side[0].got, BODY);
	assert_true(matches(mem, 77, BODY));
	if (!sum)
		sum = r->side[0].frame_sum;
	assert_int_equal(r->side[0].frame_sum, sum);
	assert_int_equal(rig_stats(r).rx_bytes, BODY);
	close(fd);
	rig_until(r, r->side[0].closed);
	assert_int_equal(r->side[0].err, 0);
	rig_free(r);
}

static void any_split(void **state)
{
	(void)state;
	play(1 << 20); /* all in one */
	play(1);
	play(7);
	play(63);
	play(64);
	play(65);
	play(1000);
}

/* A message shorter than a data frame does not wait for what comes next. */
static void short_frame_alone(void **state)
{
	static unsigned char mem[BODY];
	unsigned char b[KVS_DATA_FRAME + BODY];
	struct rig *r = rig_new(NULL);
	int fd;

	(void)state;
	r->kind = KVS_CONN_DATA;
	r->mem = mem;
	fd = puppet(r);
	for (int i = 1; i <= 3; i++) {
		mkframe(b, 1, i == 2 ? 16 : 40, 0);
		puppet_send(r, fd, b, i == 2 ? 16 : 40);
		rig_until(r, r->n_sides == 1 && r->side[0].frames == i);
	}
	mkframe(b, 2, KVS_DATA_FRAME, BODY);
	fill(b + KVS_DATA_FRAME, 78, BODY);
	puppet_send(r, fd, b, sizeof(b));
	rig_until(r, r->side[0].done == 1);
	assert_true(matches(mem, 78, BODY));
	mkframe(b, 1, 40, 0);
	puppet_send(r, fd, b, 40);
	rig_until(r, r->side[0].frames == 4);
	close(fd);
	rig_until(r, r->side[0].closed);
	rig_free(r);
}

static void control_split(void **state)
{
	unsigned char b[16 + 200 + 65536];
	struct rig *r = rig_new(NULL);
	size_t off;
	size_t n;
	int fd = puppet(r);

	(void)state;
	mkframe(b, 9, 16, 0);
	mkframe(b + 16, 10, 200, 0);
	mkframe(b + 216, 11, 65536, 0);
	n = 216 + 65536;
	for (off = 0; off < n; off += 1021)
		puppet_send(r, fd, b + off, n - off < 1021 ? n - off : 1021);
	rig_until(r, r->n_sides == 1 && r->side[0].frames == 3);
	assert_int_equal(r->side[0].types[0], 9);
	assert_int_equal(r->side[0].types[1], 10);
	assert_int_equal(r->side[0].types[2], 11);
	close(fd);
	rig_until(r, r->side[0].closed);
	rig_free(r);
}

static void cut_at(size_t n, bool rst, int *ret_done, int *ret_status,
		   int *ret_err)
{
	static unsigned char stream[KVS_DATA_FRAME + BODY];
	static unsigned char mem[BODY];
	struct rig *r = rig_new(NULL);
	int fd;

	mkframe(stream, 2, KVS_DATA_FRAME, BODY);
	fill(stream + KVS_DATA_FRAME, 5, BODY);
	r->kind = KVS_CONN_DATA;
	r->mem = mem;
	fd = puppet(r);
	rig_until(r, r->n_sides == 1);
	if (n)
		puppet_send(r, fd, stream, n);
	if (rst)
		puppet_reset(fd);
	else
		close(fd);
	rig_until(r, r->side[0].closed);
	assert_int_equal(r->side[0].closed, 1);
	assert_int_equal(r->side[0].payloads, n >= KVS_DATA_FRAME);
	*ret_done = r->side[0].done;
	*ret_status = r->side[0].status;
	*ret_err = r->side[0].err;
	rig_free(r);
}

static void cut_anywhere(void **state)
{
	size_t at[KVS_DATA_FRAME + 4];
	size_t n = 0;
	size_t i;
	int rst;

	(void)state;
	for (i = 0; i < KVS_DATA_FRAME; i++)
		at[n++] = i;
	at[n++] = KVS_DATA_FRAME;
	at[n++] = KVS_DATA_FRAME + 1;
	at[n++] = KVS_DATA_FRAME + BODY / 2;
	at[n++] = KVS_DATA_FRAME + BODY - 1;
	for (i = 0; i < n; i++) {
		for (rst = 0; rst < 2; rst++) {
			bool body = at[i] >= KVS_DATA_FRAME;
			int done;
			int status;
			int err;

			cut_at(at[i], rst, &done, &status, &err);
			assert_int_equal(done, body);
			if (body)
				assert_int_equal(status, -ECONNRESET);
			/* only between frames is a FIN an orderly end */
			assert_int_equal(err, at[i] || rst ? -ECONNRESET : 0);
		}
	}
}

struct lie {
	uint32_t magic;
	uint32_t len;
	uint32_t payload;
	enum kvs_conn_kind kind;
};

static void lies(void **state)
{
	static const struct lie l[] = {
		{ KVS_FRAME_MAGIC + 1, 64, 0, KVS_CONN_DATA },
		{ 0, 64, 0, KVS_CONN_CONTROL },
		{ KVS_FRAME_MAGIC, 15, 0, KVS_CONN_CONTROL },
		{ KVS_FRAME_MAGIC, 0, 0, KVS_CONN_DATA },
		{ KVS_FRAME_MAGIC, KVS_FRAME_MAX + 1, 0, KVS_CONN_CONTROL },
		{ KVS_FRAME_MAGIC, UINT32_MAX, 0, KVS_CONN_DATA },
		/* payload on control, too large, after a frame not 64 long */
		{ KVS_FRAME_MAGIC, 64, 1, KVS_CONN_CONTROL },
		{ KVS_FRAME_MAGIC, 64, KVS_PAYLOAD_MAX + 1, KVS_CONN_DATA },
		{ KVS_FRAME_MAGIC, 64, UINT32_MAX, KVS_CONN_DATA },
		{ KVS_FRAME_MAGIC, 63, 1, KVS_CONN_DATA },
		{ KVS_FRAME_MAGIC, 16, 1, KVS_CONN_DATA },
		{ KVS_FRAME_MAGIC, 65, 1, KVS_CONN_DATA },
	};
	size_t n = sizeof(l) / sizeof(l[0]);
	struct rig *r = rig_new(NULL);
	int fd[32];
	size_t i;
	int good;

	(void)state;
	good = puppet(r);
	rig_until(r, r->n_sides == 1);
	for (i = 0; i < n; i++) {
		unsigned char b[64] = { 0 };
		struct kvs_frame f = {
			.magic = kvs_put32(l[i].magic),
			.len = kvs_put32(l[i].len),
			.payload = kvs_put32(l[i].payload),
		};

		memcpy(b, &f, sizeof(f));
		r->kind = l[i].kind;
		fd[i] = puppet(r);
		puppet_send(r, fd[i], b, sizeof(b));
		rig_until(r, r->n_sides == i + 2 && r->side[i + 1].closed);
		assert_int_equal(r->side[i + 1].err, -EPROTO);
		assert_int_equal(r->side[i + 1].frames, 0);
		assert_int_equal(r->side[i + 1].payloads, 0);
		assert_int_equal(rig_stats(r).bad_frames, i + 1);
	}
	/* nobody else noticed */
	assert_int_equal(r->side[0].closed, 0);
	for (i = 0; i < n; i++)
		close(fd[i]);
	close(good);
	rig_free(r);
}

static void no_payload_ops(void **state)
{
	static const struct kvs_conn_ops bare = { 0 };
	unsigned char b[64];
	struct rig *r = rig_new(NULL);
	int fd;

	(void)state;
	r->kind = KVS_CONN_DATA;
	fd = puppet(r);
	rig_until(r, r->n_sides == 1);
	kvs_conn_set_ops(r->side[0].c, KVS_CONN_DATA, &bare, &r->side[0]);
	mkframe(b, 1, 64, 100);
	puppet_send(r, fd, b, 64);
	rig_until(r, rig_stats(r).bad_frames == 1);
	rig_settle(r);
	/* and it is closed: the raw socket sees the end */
	assert_true(recv(fd, b, 1, 0) <= 0);
	close(fd);
	rig_free(r);
}

static void refused_payload(void **state)
{
	unsigned char b[64];
	struct rig *r = rig_new(NULL);
	int fd;

	(void)state;
	r->kind = KVS_CONN_DATA;
	fd = puppet(r);
	rig_until(r, r->n_sides == 1);
	r->side[0].refuse = -EACCES;
	mkframe(b, 1, 64, 100);
	puppet_send(r, fd, b, 64);
	rig_until(r, r->side[0].closed);
	assert_int_equal(r->side[0].err, -EACCES);
	assert_int_equal(r->side[0].done, 0);
	close(fd);
	rig_free(r);
}

static int refuse_done(struct side *s, int status)
{
	(void)s;
	(void)status;
	return -EILSEQ;
}

static void done_closes(void **state)
{
	static unsigned char mem[64];
	unsigned char b[128];
	struct rig *r = rig_new(NULL);
	int fd;

	(void)state;
	r->kind = KVS_CONN_DATA;
	r->mem = mem;
	fd = puppet(r);
	rig_until(r, r->n_sides == 1);
	r->side[0].on_done = refuse_done;
	mkframe(b, 1, 64, 64);
	puppet_send(r, fd, b, 128);
	rig_until(r, r->side[0].closed);
	assert_int_equal(r->side[0].err, -EILSEQ);
	assert_int_equal(r->side[0].done, 1);
	assert_int_equal(r->side[0].status, 0);
	close(fd);
	rig_free(r);
}

/* One payload is stopped after @sent bytes; the next one must be whole. */
static void stop_after(size_t sent)
{
	size_t n = 1 << 20;
	unsigned char *a = calloc(1, n);
	unsigned char *b = calloc(1, n);
	unsigned char *src = malloc(n);
	unsigned char f[64];
	struct rig *r = rig_new(NULL);
	uint64_t got;
	int fd;

	r->kind = KVS_CONN_DATA;
	r->mem = a;
	fd = puppet(r);
	rig_until(r, r->n_sides == 1);
	r->side[0].mem_step = (size_t)(b - a);
	fill(src, 1, n);
	mkframe(f, 1, 64, (uint32_t)n);
	puppet_send(r, fd, f, 64);
	puppet_send(r, fd, src, sent);
	/*
	 * A ring places bytes without telling: look at the memory. The other
	 * engine may leave a few in the socket until more have come.
	 */
	rig_until(r, r->side[0].payloads == 1 &&
			     (!sent || !strcmp(rig_engine, "sock") ||
			      a[sent - 1] == pattern(1, sent - 1)));
	assert_int_equal(r->side[0].done, 0);
	kvs_conn_stop_payload(r->side[0].c);
	kvs_conn_stop_payload(r->side[0].c); /* harmless */
	rig_until(r, r->side[0].done == 1);
	assert_int_equal(r->side[0].status, -ECANCELED);
	got = r->side[0].got;
	assert_true(got <= sent);
	if (strcmp(rig_engine, "sock"))
		assert_int_equal(got, sent);

	/* The slot is someone else's now. */
	memset(a, 0xee, n);
	puppet_send(r, fd, src + sent, n - sent);
	fill(src, 2, n);
	mkframe(f, 2, 64, (uint32_t)n);
	puppet_send(r, fd, f, 64);
	puppet_send(r, fd, src, n);
	rig_until(r, r->side[0].done == 2);
	assert_int_equal(r->side[0].status, 0);
	assert_true(all_are(a, 0xee, n));
	assert_true(matches(b, 2, n));
	assert_int_equal(rig_stats(r).rx_dropped, n - got);
	assert_int_equal(rig_stats(r).rx_bytes, n + got);
	assert_int_equal(r->side[0].closed, 0);
	close(fd);
	rig_free(r);
	free(a);
	free(b);
	free(src);
}

static void stop_payload(void **state)
{
	(void)state;
	stop_after(5000);
	stop_after(0);
	stop_after(1);
	stop_after((1 << 20) - 1);
}

/* The connection dies, or is closed, while a stop is on its way. */
static void stop_then_end(void **state)
{
	static unsigned char mem[100000];
	unsigned char f[64];
	int how;

	(void)state;
	for (how = 0; how < 4; how++) {
		struct rig *r = rig_new(NULL);
		int fd;

		r->kind = KVS_CONN_DATA;
		r->mem = mem;
		fd = puppet(r);
		rig_until(r, r->n_sides == 1);
		mkframe(f, 1, 64, sizeof(mem));
		puppet_send(r, fd, f, 64);
		puppet_send(r, fd, f, 64);
		rig_until(r, r->side[0].payloads == 1);
		kvs_conn_stop_payload(r->side[0].c);
		if (how == 0)
			puppet_reset(fd);
		else if (how == 1)
			close(fd);
		else
			kvs_conn_close(r->side[0].c, -EBADMSG, how == 3);
		if (how >= 2) {
			/* closed() needs no help from the peer for long */
			rig_until(r, r->side[0].done);
			close(fd);
		}
		rig_until(r, r->side[0].closed);
		assert_int_equal(r->side[0].done, 1);
		assert_true(r->side[0].status < 0);
		assert_int_equal(r->side[0].err,
				 how >= 2 ? -EBADMSG : -ECONNRESET);
		rig_free(r);
	}
}

/* Payloads of random size, stopped at random moments, many in a row. */
static void stop_storm(void **state)
{
	enum { N = 200, SLOT = 200000 };
	unsigned char *mem = calloc(N, SLOT);
	unsigned char *src = malloc(64 + SLOT);
	struct rig *r = rig_new(NULL);
	uint64_t seed = rig_now();
	unsigned int stops = 0;
	struct kvs_rng rng;
	size_t len[N];
	int fd;
	int i;

	(void)state;
	printf("seed %llu\n", (unsigned long long)seed);
	kvs_rng_init(&rng, seed);
	r->kind = KVS_CONN_DATA;
	r->mem = mem;
	fd = puppet(r);
	rig_until(r, r->n_sides == 1);
	r->side[0].mem_step = SLOT;
	for (i = 0; i < N; i++) {
		size_t part;
		int polls;

		len[i] = 1 + kvs_rng_below(&rng, SLOT);
		part = 64 + kvs_rng_below(&rng, len[i] + 1);
		mkframe(src, 1, 64, (uint32_t)len[i]);
		fill(src + 64, (uint64_t)i, len[i]);
		puppet_send(r, fd, src, part);
		for (polls = (int)kvs_rng_below(&rng, 4); polls; polls--)
			kvs_transport_poll(r->t, 0);
		if (kvs_rng_below(&rng, 2) && r->side[0].in_rx) {
			kvs_conn_stop_payload(r->side[0].c);
			rig_until(r, !r->side[0].in_rx);
			if (r->side[0].status) {
				stops++;
				memset(mem + (size_t)i * SLOT, 0xee, SLOT);
			}
		}
		puppet_send(r, fd, src + part, 64 + len[i] - part);
		rig_until(r, r->side[0].done == i + 1);
		if (!r->side[0].status)
			assert_true(matches(mem + (size_t)i * SLOT, (uint64_t)i,
					    len[i]));
		else
			len[i] = 0;
	}
	/* bytes still to be dropped are in flight: one more whole payload */
	rig_settle(r);
	assert_true(stops > 0);
	for (i = 0; i < N; i++)
		if (!len[i])
			assert_true(
				all_are(mem + (size_t)i * SLOT, 0xee, SLOT));
	assert_int_equal(r->side[0].closed, 0);
	close(fd);
	rig_free(r);
	free(mem);
	free(src);
}

static void dropped_payload(void **state)
{
	size_t n = 700000;
	unsigned char *b = malloc(n);
	unsigned char f[64];
	struct rig *r = rig_new(NULL);
	int fd;

	(void)state;
	r->kind = KVS_CONN_DATA; /* mem NULL: read and drop */
	fd = puppet(r);
	rig_until(r, r->n_sides == 1);
	fill(b, 1, n);
	mkframe(f, 1, 64, (uint32_t)n);
	puppet_send(r, fd, f, 64);
	puppet_send(r, fd, b, n);
	mkframe(f, 2, 64, 0);
	puppet_send(r, fd, f, 64);
	rig_until(r, r->side[0].frames == 1);
	assert_int_equal(r->side[0].done, 1);
	assert_int_equal(r->side[0].status, 0);
	assert_int_equal(r->side[0].got, 0);
	assert_int_equal(rig_stats(r).rx_dropped, n);
	assert_int_equal(rig_stats(r).rx_bytes, 0);
	close(fd);
	rig_free(r);
	free(b);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_split),
		cmocka_unit_test(control_split),
		cmocka_unit_test(short_frame_alone),
		cmocka_unit_test(cut_anywhere),
		cmocka_unit_test(lies),
		cmocka_unit_test(no_payload_ops),
		cmocka_unit_test(refused_payload),
		cmocka_unit_test(done_closes),
		cmocka_unit_test(stop_payload),
		cmocka_unit_test(stop_then_end),
		cmocka_unit_test(stop_storm),
		cmocka_unit_test(dropped_payload),
	};

	rig_main(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
