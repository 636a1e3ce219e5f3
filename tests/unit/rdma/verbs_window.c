/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, on a verbs device, for grants by memory windows over memory that was
 * registered once:
 *  - a grant waits for its owner's connection, or for being given up; memory
 *    nobody registered cannot be granted;
 *  - writes land where the keys say; a key is refused on the connection of
 *    another owner, of the same owner's next connection, and once its grant is
 *    closed, and not one byte changes;
 *  - closing is proven; where an invalidation is no proof, by the end of the
 *    connection;
 *  - a connection that ends takes its keys with it.
 *
 * What a soft device does not do, and hardware does: hold a window to its
 * bounds. That is why windows are not used there unless asked for; it is
 * asserted, so that it is noticed when it changes.
 */
#include "tests/unit/rdma/verbs_rig.h"

#define MIB (1u << 20)

static const struct kvs_verbs_opts windows = {
	.node = -1,
	.gid_index = -1,
	.grant = KVS_VERBS_GRANT_WINDOW,
};

static bool soft;
static unsigned char *pool;

static struct vrig *start(void)
{
	return vrig_new_pool(&windows, 4 * MIB, &pool);
}

static void finish(struct vrig *r)
{
	vrig_free(r);
	free(pool);
}

static void waits(void **state)
{
	static unsigned char other[8192];
	struct vrig *r = start();
	struct vgrant v, gone;
	struct vwrite w;
	struct vpair p;

	(void)state;
	vgrant_begin(r, &v, 7, pool, MIB);
	vgrant_begin(r, &gone, 8, pool, MIB);
	vrig_for(r, 20000000);
	assert_int_equal(v.opened + gone.opened, 0);
	vrig_pair_as(r, &p, 7);
	vrig_until(r, v.opened);
	assert_int_equal(v.open_status, 0);
	assert_int_equal(vside_write(&p.near, &w, pool + 3 * MIB, 4096,
				     vgrant_key(&v), 0),
			 0);
	vrig_until(r, w.done);
	assert_int_equal(w.status, 0);
	/* the other is given up; then one of memory that nobody told of */
	kvs_grant_close(gone.g);
	vrig_until(r, gone.closed);
	assert_int_equal(gone.opened, 0);
	assert_int_equal(gone.close_status, 0);
	vgrant_begin(r, &gone, 7, other, sizeof(other));
	vrig_until(r, gone.opened);
	assert_int_equal(gone.open_status, -EFAULT);
	finish(r);
	assert_int_equal(v.closed, 1);
	assert_int_equal(v.proof, KVS_GRANT_TORN_DOWN);
}

static void lands_and_closes(void **state)
{
	struct vrig *r = start();
	unsigned char *src = vmem(MIB, 0);
	struct vgrant v[3];
	struct vwrite w;
	struct vpair p;
	int i;

	(void)state;
	vfill(src, 6, MIB);
	vrig_pair_as(r, &p, 7);
	for (i = 0; i < 3; i++)
		vgrant_open(r, &v[i], 7, pool + (size_t)i * MIB, MIB);
	for (i = 0; i < 3; i++) {
		assert_int_equal(vside_write(&p.near, &w, src, MIB - 8,
					     vgrant_key(&v[i]), 4),
				 0);
		vrig_until(r, w.done);
		assert_int_equal(w.status, 0);
		assert_true(vmatches(pool + (size_t)i * MIB + 4, 6, MIB - 8));
		assert_int_equal(p.far.frames, i + 1);
	}
	vgrant_close(r, &v[1]);
	assert_int_equal(v[1].close_status, 0);
	if (soft) {
		/* the invalidation alone would prove nothing */
		assert_int_equal(v[1].proof, KVS_GRANT_TORN_DOWN);
		vrig_until(r, p.far.closed && p.near.closed);
	} else {
		assert_int_equal(v[1].proof, KVS_GRANT_INVALIDATED);
	}
	/* those of the connection that is gone cost nothing any more */
	vgrant_close(r, &v[0]);
	assert_int_equal(v[0].close_status, 0);
	finish(r);
	assert_int_equal(v[2].closed, 1);
	free(src);
}

static void expect_refused(struct vrig *r, struct vpair *p, struct vwrite *w)
{
	vrig_until(r, w->done && p->near.closed && p->far.closed);
	assert_int_equal(w->status, -EREMOTEIO);
	assert_int_equal(p->near.err, -EREMOTEIO);
	assert_int_equal(p->far.err, -EACCES);
	assert_int_equal(p->far.frames, 0);
	assert_true(vall(pool, 0xee, 4 * MIB));
}

static void refused(void **state)
{
	struct vrig *r = start();
	unsigned char *src = vmem(MIB, 0x55);
	struct kvs_grant_key stale;
	struct vgrant v, mine;
	struct vwrite w;
	struct vpair a, b;

	(void)state;
	vrig_pair_as(r, &a, 7);
	vrig_pair_as(r, &b, 8);
	vgrant_open(r, &v, 7, pool, MIB);
	vgrant_open(r, &mine, 8, pool + MIB, MIB);
	/* the key of another owner's connection */
	assert_int_equal(vside_write(&b.near, &w, src, 4096, vgrant_key(&v), 0),
			 0);
	expect_refused(r, &b, &w);
	assert_int_equal(a.near.closed + a.far.closed, 0);
	/* the own one, of a connection that is no more */
	stale = *vgrant_key(&mine);
	vrig_pair_as(r, &b, 8);
	assert_int_equal(vside_write(&b.near, &w, src, 64, &stale, 0), 0);
	expect_refused(r, &b, &w);
	/* a closed one */
	stale = *vgrant_key(&v);
	vgrant_close(r, &v);
	if (a.far.closed || soft) {
		vrig_until(r, a.far.closed && a.near.closed);
		vrig_pair_as(r, &a, 7);
	}
	assert_int_equal(vside_write(&a.near, &w, src, 64, &stale, 0), 0);
	expect_refused(r, &a, &w);
	vgrant_close(r, &mine);
	assert_int_equal(mine.close_status, 0);
	finish(r);
	free(src);
}

/* Bytes before and behind a window, in the same registration. */
static void bounds(void **state)
{
	struct vrig *r = start();
	unsigned char *src = vmem(MIB, 0x55);
	struct vgrant v;
	struct vwrite w;
	struct vpair p;

	(void)state;
	vrig_pair_as(r, &p, 7);
	vgrant_open(r, &v, 7, pool + MIB, MIB);
	assert_int_equal(
		vside_write(&p.near, &w, src, 4096, vgrant_key(&v), MIB), 0);
	vrig_until(r, w.done);
	if (soft) {
		printf("known hole of the soft device: a window's bounds are "
		       "not enforced\n");
		assert_int_equal(w.status, 0);
		assert_true(vall(pool + 2 * MIB, 0x55, 4096));
	} else {
		expect_refused(r, &p, &w);
	}
	finish(r);
	free(src);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(waits),
		cmocka_unit_test(lands_and_closes),
		cmocka_unit_test(refused),
		cmocka_unit_test(bounds),
	};

	soft = vrig_main();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
