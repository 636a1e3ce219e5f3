/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, on a verbs device, for grants by registration:
 *  - a write lands where its key says, from registered sources and others,
 *    in one piece and in thousands, and its frame comes behind it;
 *  - a key of another owner, a closed one, one byte too many on either side:
 *    not one byte changes, done(-EREMOTEIO), closed(-EREMOTEIO) on the
 *    writer's side and closed(-EACCES) on the other, and nobody else's
 *    connection notices;
 *  - a read brings the bytes, but from what was granted for writing only;
 *  - closing is proven by invalidation while the owner is connected, by its
 *    absence else.
 */
#include "tests/unit/rdma/verbs_rig.h"

#include "lib/rng.h"

#define MIB (1u << 20)

struct pair {
	struct vside near, far;
};

static struct vrig *start(struct pair *p, uint64_t owner)
{
	static const struct kvs_verbs_opts mr = {
		.node = -1,
		.gid_index = -1,
		.grant = KVS_VERBS_GRANT_MR,
	};
	struct vrig *r = vrig_new(NULL, &mr);

	memset(p, 0, sizeof(*p));
	r->owner = owner;
	vrig_pair(r, &p->near, &p->far);
	return r;
}

static const struct kvs_grant_key *key(const struct vgrant *v)
{
	return kvs_grant_keys(v->g);
}

static void write_lands(void **state)
{
	struct pair p;
	struct vrig *r = start(&p, 7);
	unsigned char *dst = vmem(4 * MIB, 0xee);
	unsigned char *src = vmem(4 * MIB, 0);
	struct kvs_verbs_counts before, after;
	struct kvs_mem *m;
	struct vgrant v;
	struct vwrite w;
	char err[256];
	int i;

	(void)state;
	vfill(src, 3, 4 * MIB);
	vgrant_open(r, &v, 7, dst + 4096, 3 * MIB);
	/* first from memory nobody told of, then from registered */
	for (i = 0; i < 2; i++) {
		memset(dst, 0xee, 4 * MIB);
		kvs_verbs_counters(r->near, &before);
		assert_int_equal(
			vside_write(&p.near, &w, src, 3 * MIB, key(&v), 0), 0);
		vrig_until(r, w.done && p.far.frames == i + 1);
		assert_int_equal(w.done, 1);
		assert_int_equal(w.status, 0);
		assert_false(p.far.bad);
		assert_true(vmatches(dst + 4096, 3, 3 * MIB));
		assert_true(vall(dst, 0xee, 4096));
		assert_true(vall(dst + 4096 + 3 * MIB, 0xee, MIB - 4096));
		kvs_verbs_counters(r->near, &after);
		assert_int_equal(after.staged_bytes - before.staged_bytes,
				 i ? 0 : 3 * MIB);
		if (!i)
			assert_int_equal(
				kvs_transport_register(r->near, src, 4 * MIB,
						       &m, err, sizeof(err)),
				0);
	}
	assert_int_equal(kvs_transport_register(r->near, src + 4096, 4096, &m,
						err, sizeof(err)),
			 -EEXIST);
	/* a write of nothing is its frame */
	assert_int_equal(vside_write(&p.near, &w, src, 0, key(&v), 0), 0);
	vrig_until(r, w.done && p.far.frames == 3);
	assert_int_equal(w.status, 0);
	kvs_mem_release(m);
	vgrant_close(r, &v);
	assert_int_equal(v.close_status, 0);
	assert_int_equal(v.proof, KVS_GRANT_INVALIDATED);
	vrig_free(r);
	free(src);
	free(dst);
}

#define PIECES 5000

static void scattered(void **state)
{
	struct pair p;
	struct vrig *r = start(&p, 7);
	unsigned char *src = vmem(8 * MIB, 0);
	unsigned char *dst = vmem(8 * MIB, 0xee);
	unsigned char *want = vmem(8 * MIB, 0xee);
	struct iovec *iov = calloc(PIECES, sizeof(*iov));
	struct kvs_mem *m;
	struct kvs_rng rng;
	struct vgrant v;
	struct vwrite w;
	uint64_t total = 0;
	char err[256];
	const char *env = getenv("KVS_TEST_SEED");
	uint64_t seed = env ? strtoull(env, NULL, 0) : vrig_now();
	int i;

	(void)state;
	printf("seed %llu\n", (unsigned long long)seed);
	kvs_rng_init(&rng, seed);
	vfill(src, 9, 8 * MIB);
	/* half of the source is registered, so pieces are of both kinds */
	assert_int_equal(kvs_transport_register(r->near, src, 4 * MIB, &m, err,
						sizeof(err)),
			 0);
	for (i = 0; i < PIECES; i++) {
		uint64_t n = kvs_rng_below(&rng, 1500);
		uint64_t at = kvs_rng_below(&rng, 8 * MIB - n);

		iov[i].iov_base = src + at;
		iov[i].iov_len = n;
		memcpy(want + 64 + total, src + at, n);
		total += n;
	}
	vgrant_open(r, &v, 7, dst, 8 * MIB);
	assert_int_equal(vside_write_v(&p.near, &w, iov, PIECES, key(&v), 64),
			 0);
	vrig_until(r, w.done && p.far.frames == 1);
	assert_int_equal(w.status, 0);
	assert_memory_equal(dst, want, 8 * MIB);
	vrig_free(r);
	free(src);
	free(dst);
	free(want);
	free(iov);
}

/* @p's write was refused, and that is all that happened. */
static void expect_refused(struct vrig *r, struct pair *p, struct vwrite *w,
			   struct pair *other)
{
	int frames = other->far.frames;

	vrig_until(r, w->done && p->near.closed && p->far.closed);
	assert_int_equal(w->status, -EREMOTEIO);
	assert_int_equal(p->near.err, -EREMOTEIO);
	assert_int_equal(p->far.err, -EACCES);
	assert_int_equal(p->far.frames, 0);
	assert_int_equal(vside_send(&other->near, 3, 64), 0);
	vrig_until(r, other->far.frames == frames + 1);
	assert_int_equal(other->near.closed + other->far.closed, 0);
}

static void refused(void **state)
{
	struct pair a, b;
	struct vrig *r = start(&a, 7);
	unsigned char *src = vmem(MIB, 0x55);
	unsigned char *dst = vmem(3 * MIB, 0xee);
	struct kvs_grant_key gone;
	struct vgrant v, other;
	struct vwrite w;

	(void)state;
	memset(&b, 0, sizeof(b));
	r->owner = 8;
	vrig_pair(r, &b.near, &b.far);
	vgrant_open(r, &v, 7, dst + MIB, MIB);
	vgrant_open(r, &other, 8, dst, MIB);

	/* the key of another owner */
	assert_int_equal(vside_write(&a.near, &w, src, 4096, key(&other), 0),
			 0);
	expect_refused(r, &a, &w, &b);
	assert_true(vall(dst, 0xee, 3 * MIB));

	/* its owner may, up to the last byte */
	assert_int_equal(vside_write(&b.near, &w, src, MIB, key(&other), 0), 0);
	vrig_until(r, w.done);
	assert_int_equal(w.status, 0);
	assert_true(vall(dst, 0x55, MIB));
	memset(dst, 0xee, MIB);

	/* one byte behind, one before, all behind */
	r->owner = 7;
	memset(&a, 0, sizeof(a));
	vrig_pair(r, &a.near, &a.far);
	assert_int_equal(
		vside_write(&a.near, &w, src, 4096, key(&v), MIB - 4095), 0);
	expect_refused(r, &a, &w, &b);
	assert_true(vall(dst + 2 * MIB, 0xee, MIB));
	memset(&a, 0, sizeof(a));
	vrig_pair(r, &a.near, &a.far);
	assert_int_equal(
		vside_write(&a.near, &w, src, 2, key(&v), (uint64_t)-1), 0);
	expect_refused(r, &a, &w, &b);
	memset(&a, 0, sizeof(a));
	vrig_pair(r, &a.near, &a.far);
	assert_int_equal(vside_write(&a.near, &w, src, 1, key(&v), MIB), 0);
	expect_refused(r, &a, &w, &b);
	assert_true(vall(dst, 0xee, MIB));
	assert_true(vall(dst + 2 * MIB, 0xee, MIB));

	/* a closed one, its memory granted anew or not */
	memset(&a, 0, sizeof(a));
	vrig_pair(r, &a.near, &a.far);
	gone = *key(&v);
	vgrant_close(r, &v);
	assert_int_equal(v.close_status, 0);
	assert_int_equal(v.proof, KVS_GRANT_INVALIDATED);
	memset(dst + MIB, 0xee, MIB);
	assert_int_equal(vside_write(&a.near, &w, src, 64, &gone, 0), 0);
	expect_refused(r, &a, &w, &b);
	assert_true(vall(dst, 0xee, 3 * MIB));

	/* nobody of that owner is left */
	vgrant_open(r, &v, 7, dst + MIB, MIB);
	vgrant_close(r, &v);
	assert_int_equal(v.proof, KVS_GRANT_TORN_DOWN);
	vrig_free(r);
	assert_int_equal(other.closed, 1);
	assert_int_equal(other.proof, KVS_GRANT_TORN_DOWN);
	free(src);
	free(dst);
}

/* What is queued behind a refused write fails, and is never delivered. */
static void queued_behind(void **state)
{
	struct pair a, b;
	struct vrig *r = start(&a, 7);
	unsigned char *src = vmem(MIB, 0x55);
	unsigned char *dst = vmem(MIB, 0xee);
	struct vwrite w[4];
	struct kvs_grant_key bad;
	struct vgrant v;
	int i;

	(void)state;
	memset(&b, 0, sizeof(b));
	r->owner = 8;
	vrig_pair(r, &b.near, &b.far);
	vgrant_open(r, &v, 7, dst, MIB);
	bad = *key(&v);
	bad.rkey ^= 0x5a00;
	for (i = 0; i < 4; i++)
		assert_int_equal(vside_write(&a.near, &w[i], src, 65536,
					     i == 1 ? &bad : key(&v),
					     (uint64_t)i * 65536),
				 0);
	vrig_until(r, w[0].done && w[1].done && w[2].done && w[3].done &&
			      a.near.closed && a.far.closed);
	assert_int_equal(w[0].status, 0);
	assert_int_equal(w[1].status, -EREMOTEIO);
	assert_true(w[2].status < 0);
	assert_true(w[3].status < 0);
	assert_int_equal(a.far.frames, 1);
	assert_true(vall(dst, 0x55, 65536));
	assert_true(vall(dst + 65536, 0xee, MIB - 65536));
	vrig_free(r);
	free(src);
	free(dst);
}

static void read_done(struct kvs_conn *c, struct kvs_read *rd, int status)
{
	(void)c;
	*(int *)rd->user = status;
}

/* Reads @len bytes from @more behind @rd->remote, and gets none. */
static void expect_unread(struct vrig *r, struct pair *p, struct kvs_read *rd,
			  int *status, uint64_t len, uint64_t more)
{
	*status = 1;
	rd->len = len;
	rd->remote.addr += more;
	assert_int_equal(kvs_conn_read(p->near.c, rd), 0);
	vrig_until(r, *status != 1 && p->near.closed && p->far.closed);
	assert_int_equal(*status, -EREMOTEIO);
}

static void reads(void **state)
{
	struct pair p;
	struct vrig *r = start(&p, 7);
	unsigned char *there = vmem(3 * MIB, 0);
	unsigned char *here = vmem(3 * MIB, 0xee);
	struct kvs_read rd = { 0 };
	struct vgrant v, w;
	int status = 1;

	(void)state;
	vfill(there, 4, 3 * MIB);
	vgrant_open(r, &v, 7, there, 3 * MIB);
	rd.addr = here;
	rd.len = 2 * MIB + 5;
	rd.remote = *key(&v);
	rd.done = read_done;
	rd.user = &status;
	assert_int_equal(kvs_conn_read(p.near.c, &rd), 0);
	vrig_until(r, status != 1);
	assert_int_equal(status, 0);
	assert_true(vmatches(here, 4, 2 * MIB + 5));
	assert_true(vall(here + 2 * MIB + 5, 0xee, MIB - 5));
	expect_unread(r, &p, &rd, &status, 3 * MIB, 1);
	/* what may only be written */
	vgrant_write_only(true);
	memset(&p, 0, sizeof(p));
	vrig_pair(r, &p.near, &p.far);
	vgrant_open(r, &w, 7, there, 4096);
	vgrant_write_only(false);
	rd.remote = *key(&w);
	memset(here, 0xee, 4096);
	expect_unread(r, &p, &rd, &status, 64, 0);
	assert_true(vall(here, 0xee, 4096));
	vrig_free(r);
	free(there);
	free(here);
}

static void closed_while_opening(void **state)
{
	struct pair p;
	struct vrig *r = start(&p, 7);
	unsigned char *dst = vmem(MIB, 0);
	struct vgrant v;

	(void)state;
	vgrant_begin(r, &v, 7, dst, MIB);
	kvs_grant_close(v.g);
	vrig_until(r, v.closed);
	assert_int_equal(v.opened, 0);
	assert_int_equal(v.close_status, 0);
	/* memory that is not there cannot be granted */
	vgrant_begin(r, &v, 7, (void *)4096, MIB);
	vrig_until(r, v.opened);
	assert_true(v.open_status < 0);
	/* what is opening when all ends was opened, and closed, or neither */
	vgrant_begin(r, &v, 7, dst, MIB);
	vrig_free(r);
	assert_int_equal(v.opened, 1);
	assert_int_equal(v.open_status, v.closed ? 0 : -ESHUTDOWN);
	free(dst);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(write_lands),
		cmocka_unit_test(scattered),
		cmocka_unit_test(refused),
		cmocka_unit_test(queued_behind),
		cmocka_unit_test(reads),
		cmocka_unit_test(closed_while_opening),
	};

	vrig_main();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
