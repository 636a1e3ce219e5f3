/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claim, on a verbs device, for the kind of grant named on the command line:
 * once kvs_grant_close() is answered by success, or the transport is
 * destroyed, no byte of a write that was under way changes memory, however
 * long one waits; each of the rounds hits such a write in flight. The writer
 * does not know and does not stop. A grant that is not closed changes bytes
 * after the same moment, so this can be seen.
 *
 * KVS_TEST_ROUNDS: how many rounds (default 20).
 */
#include "tests/unit/rdma/verbs_rig.h"

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#define MIB (1u << 20)
#define LEN (8u * MIB)

static bool soft;
static struct kvs_verbs_opts far_opts = { .node = -1, .gid_index = -1 };

/* The writer on a thread of its own: on the test's own, a soft device would
 * place everything before the call that posts it returns. */
struct writer {
	struct vrig r; /* near only */
	struct vside near;
	struct vwrite w;
	unsigned char *src;
	uint64_t len;
	struct kvs_grant_key key;
	pthread_t thread;
	_Atomic int go; /* 1: connect, 2: write; 0: done with it */
	_Atomic int connected;
	_Atomic int stop;
};

static void *writer_main(void *arg)
{
	struct writer *wr = arg;

	while (!wr->stop) {
		if (wr->go == 1) {
			memset(&wr->near, 0, sizeof(wr->near));
			vrig_connect(&wr->r, &wr->near);
			wr->go = 0;
		} else if (wr->go == 2) {
			assert_int_equal(vside_write(&wr->near, &wr->w, wr->src,
						     wr->len, &wr->key, 0),
					 0);
			wr->go = 3;
		} else if (wr->go == 3 && wr->w.done) {
			wr->go = 0;
		}
		kvs_transport_poll(wr->r.near, 1000000);
		wr->connected = wr->near.frames == 1 && !wr->near.closed;
	}
	return NULL;
}

static void writer_pair(struct vrig *r, struct writer *wr, struct vside *far)
{
	int fd;

	memset(far, 0, sizeof(*far));
	wr->connected = 0;
	wr->go = 1;
	fd = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC);
	vrig_adopt(r, fd, far);
	vrig_until(r, wr->connected);
}

static size_t written(const unsigned char *p, size_t n)
{
	size_t lo = 0, hi = n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (p[mid] == 0xee)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

static uint64_t differing(const unsigned char *a, const unsigned char *b)
{
	uint64_t n = 0;
	size_t i;

	/* byte by byte takes long in an emulated machine */
	if (!memcmp(a, b, LEN))
		return 0;
	for (i = 0; i < LEN; i++)
		n += a[i] != b[i];
	return n;
}

struct bench {
	struct vrig *r; /* far only */
	struct writer wr;
	struct vside far;
	unsigned char *dst;
	unsigned char *copy;
};

static void begin(struct bench *b)
{
	struct kvs_mem *m;
	char err[256];

	memset(b, 0, sizeof(*b));
	b->r = vrig_new(NULL, &far_opts);
	b->wr.r = *b->r;
	b->wr.r.far = NULL;
	b->r->near = NULL;
	b->r->owner = 7;
	b->dst = vmem(LEN, 0xee);
	b->copy = vmem(LEN, 0);
	b->wr.src = vmem(LEN, 0x55);
	b->wr.len = LEN;
	assert_int_equal(kvs_transport_register(b->wr.r.near, b->wr.src, LEN,
						&m, err, sizeof(err)),
			 0);
	if (kvs_transport_key_per_conn(b->r->far))
		assert_int_equal(kvs_transport_register(b->r->far, b->dst, LEN,
							&m, err, sizeof(err)),
				 0);
	assert_int_equal(
		pthread_create(&b->wr.thread, NULL, writer_main, &b->wr), 0);
	writer_pair(b->r, &b->wr, &b->far);
}

static void end(struct bench *b)
{
	b->wr.stop = 1;
	pthread_join(b->wr.thread, NULL);
	kvs_transport_destroy(b->wr.r.near);
	vrig_free(b->r);
	free(b->dst);
	free(b->copy);
	free(b->wr.src);
}

/* A part of the write has landed, the rest is on its way. */
static void launch(struct bench *b, struct vgrant *v, int round)
{
	size_t want = LEN / 64 * (size_t)(1 + round * 7 % 40);

	memset(b->dst, 0xee, LEN);
	vgrant_open(b->r, v, 7, b->dst, LEN);
	b->wr.key = *kvs_grant_keys(v->g);
	b->wr.go = 2;
	vrig_until(b->r, ((volatile unsigned char *)b->dst)[want] != 0xee);
}

static int by_size(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static void revoked_in_flight(void **state)
{
	const char *env = getenv("KVS_TEST_ROUNDS");
	int rounds = env ? (int)strtol(env, NULL, 10) : 20;
	int middle = rounds / 2; /* of the sorted times */
	uint64_t changed = 0, t0, *took;
	struct vgrant v;
	struct bench b;
	int i, cut = 0;
	bool always;

	(void)state;
	took = calloc((size_t)rounds, sizeof(*took));
	assert_non_null(took);
	begin(&b);
	/* there closing a window ends the connection in any case */
	always = soft && far_opts.grant == KVS_VERBS_GRANT_WINDOW;
	for (i = 0; i < rounds; i++) {
		launch(&b, &v, i);
		t0 = vrig_now();
		vgrant_close(b.r, &v);
		took[i] = vrig_now() - t0;
		memcpy(b.copy, b.dst, LEN);
		assert_int_equal(v.close_status, 0);
		cut += written(b.copy, LEN) < LEN;
		vrig_until(b.r, !b.wr.go);
		vrig_for(b.r, 20000000);
		changed += differing(b.dst, b.copy);
		if (far_opts.grant == KVS_VERBS_GRANT_QP) {
			assert_int_equal(b.far.closed, 0);
			continue; /* nor is the connection in question */
		}
		if (!b.wr.w.status && !always)
			continue;
		/* it paid with its connection */
		vrig_until(b.r, b.far.closed && !b.wr.connected);
		writer_pair(b.r, &b.wr, &b.far);
	}
	printf("revocation rounds: %d (grant %s), bytes changed after proof: "
	       "%llu\n",
	       rounds, kvs_verbs_grant_name[far_opts.grant],
	       (unsigned long long)changed);
	qsort(took, (size_t)rounds, sizeof(*took), by_size);
	printf("%d of them in flight, close: median %.1f ms, longest %.1f ms\n",
	       cut, (double)took[middle] / 1e6, (double)took[rounds - 1] / 1e6);
	free(took);
	assert_int_equal(changed, 0);
	/* else nothing was shown */
	assert_true(cut > rounds / 2);
	end(&b);
}

/* The same without the close: what the rounds above would see of a proof that
 * proves nothing. */
static void goes_on_unless_revoked(void **state)
{
	uint64_t changed = 0;
	struct vgrant v;
	struct bench b;
	int i;

	(void)state;
	begin(&b);
	for (i = 0; i < 3; i++) {
		launch(&b, &v, i);
		memcpy(b.copy, b.dst, LEN);
		vrig_until(b.r, !b.wr.go);
		assert_int_equal(b.wr.w.status, 0);
		changed += differing(b.dst, b.copy);
		vgrant_close(b.r, &v);
		if (!soft || far_opts.grant != KVS_VERBS_GRANT_WINDOW)
			continue;
		vrig_until(b.r, b.far.closed && !b.wr.connected);
		writer_pair(b.r, &b.wr, &b.far);
	}
	printf("without a close, bytes changed after the same moment: %llu\n",
	       (unsigned long long)changed);
	assert_true(changed > 0);
	end(&b);
}

static void destroyed_in_flight(void **state)
{
	struct vgrant v;
	struct bench b;
	int i;

	(void)state;
	for (i = 0; i < 3; i++) {
		begin(&b);
		launch(&b, &v, i);
		kvs_transport_destroy(b.r->far);
		b.r->far = NULL;
		memcpy(b.copy, b.dst, LEN);
		assert_int_equal(b.far.closed, 1);
		assert_int_equal(v.closed, 1);
		assert_int_equal(v.close_status, 0);
		assert_int_equal(v.proof, KVS_GRANT_TORN_DOWN);
		/* its own thread polls */
		while (b.wr.go || b.wr.connected)
			usleep(1000);
		assert_int_equal(differing(b.dst, b.copy), 0);
		assert_true(b.wr.w.status < 0);
		end(&b);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(revoked_in_flight),
		cmocka_unit_test(goes_on_unless_revoked),
		cmocka_unit_test(destroyed_in_flight),
	};
	int i;

	for (i = 0; i < KVS_VERBS_GRANT_KINDS && argc > 1; i++)
		if (!strcmp(argv[1], kvs_verbs_grant_name[i]))
			far_opts.grant = (enum kvs_verbs_grant_kind)i;
	soft = vrig_main();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
