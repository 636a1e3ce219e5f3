/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, on a verbs device, for grants by queue pairs over memory that was
 * registered once:
 *  - a grant waits for its owner's connection, or for being given up; memory
 *    nobody registered cannot be granted;
 *  - writes land where the keys say, with their frames behind them, on as many
 *    grants of one connection as there are; a closed one's key lets none in,
 *    and costs its writer that write and nothing else: not the connection, not
 *    what it writes by other grants;
 *  - closing is proven while the connection lives, and by its end;
 *  - by the connection's own queue pair nothing comes in, whatever the key: who
 *    leaves out the number of the grant is refused and loses the connection;
 *  - a connection that ends takes its grants with it.
 *
 * What this kind does not do is asserted as well: a writer that has a grant
 * reaches all that was registered.
 */
#include "tests/unit/rdma/verbs_rig.h"

#define MIB (1u << 20)
#define NUMBER (~0ull << 48) /* of a grant, in its key's address */

static const struct kvs_verbs_opts by_qp = {
	.node = -1,
	.gid_index = -1,
	.grant = KVS_VERBS_GRANT_QP,
};

static unsigned char *pool;

static struct vrig *start(void)
{
	return vrig_new_pool(&by_qp, 4 * MIB, &pool);
}

static void finish(struct vrig *r)
{
	vrig_free(r);
	free(pool);
}

static void lands(struct vrig *r, struct vpair *p, const struct vgrant *v,
		  unsigned char *src, unsigned char *at, uint64_t len)
{
	int frames = p->far.frames;
	struct vwrite w;

	assert_int_equal(vside_write(&p->near, &w, src, len, vgrant_key(v), 0),
			 0);
	vrig_until(r, w.done && p->far.frames == frames + 1);
	assert_int_equal(w.status, 0);
	assert_false(p->far.bad);
	assert_memory_equal(at, src, len);
}

static void waits(void **state)
{
	static unsigned char other[8192];
	struct vrig *r = start();
	struct vgrant v, gone;
	struct vpair p;

	(void)state;
	vgrant_begin(r, &v, 7, pool, MIB);
	vgrant_begin(r, &gone, 8, pool, MIB);
	vrig_for(r, 20000000);
	assert_int_equal(v.opened + gone.opened, 0);
	vrig_pair_as(r, &p, 7);
	vrig_until(r, v.opened);
	assert_int_equal(v.open_status, 0);
	lands(r, &p, &v, pool + 3 * MIB, pool, 4096);
	kvs_grant_close(gone.g);
	vrig_until(r, gone.closed);
	assert_int_equal(gone.opened, 0);
	assert_int_equal(gone.close_status, 0);
	vgrant_begin(r, &gone, 7, other, sizeof(other));
	vrig_until(r, gone.opened);
	assert_int_equal(gone.open_status, -EFAULT);
	/* one that is closed while it opens */
	vgrant_begin(r, &gone, 7, pool, MIB);
	kvs_grant_close(gone.g);
	vrig_until(r, gone.closed);
	assert_int_equal(gone.opened, 0);
	assert_int_equal(gone.close_status, 0);
	lands(r, &p, &v, pool + 3 * MIB, pool, 4096);
	finish(r);
	assert_int_equal(v.closed, 1);
	assert_int_equal(v.proof, KVS_GRANT_TORN_DOWN);
}

static void closing_costs_nobody_else(void **state)
{
	struct vrig *r = start();
	unsigned char *src = vmem(MIB, 0);
	struct kvs_grant_key stale;
	struct vgrant v[3];
	struct vwrite w;
	struct vpair p;
	int i, frames;

	(void)state;
	vfill(src, 6, MIB);
	vrig_pair_as(r, &p, 7);
	for (i = 0; i < 3; i++)
		vgrant_open(r, &v[i], 7, pool + (size_t)i * MIB, MIB);
	for (i = 2; i >= 0; i--)
		lands(r, &p, &v[i], src, pool + (size_t)i * MIB, MIB);
	stale = *vgrant_key(&v[1]);
	vgrant_close(r, &v[1]);
	assert_int_equal(v[1].close_status, 0);
	assert_int_equal(v[1].proof, KVS_GRANT_INVALIDATED);
	/* the writer hears of it, and uses it all the same */
	memset(pool, 0xee, 3 * MIB);
	frames = p.far.frames;
	assert_int_equal(vside_write(&p.near, &w, src, 4096, &stale, 0), 0);
	vrig_until(r, w.done);
	assert_true(w.status < 0);
	assert_true(vall(pool, 0xee, 3 * MIB));
	assert_int_equal(p.far.frames, frames);
	assert_int_equal(p.near.closed + p.far.closed, 0);
	lands(r, &p, &v[0], src, pool, MIB);
	lands(r, &p, &v[2], src, pool + 2 * MIB, MIB);
	/* and there is room for more */
	vgrant_open(r, &v[1], 7, pool + MIB, MIB);
	lands(r, &p, &v[1], src, pool + MIB, MIB);
	/* what is behind it comes first when the writer leaves in order */
	frames = p.far.frames;
	assert_int_equal(
		vside_write(&p.near, &w, src, MIB, vgrant_key(&v[2]), 0), 0);
	kvs_conn_close(p.near.c, 0, true);
	vrig_until(r, p.near.closed && p.far.closed);
	assert_int_equal(w.status, 0);
	assert_int_equal(p.far.frames, frames + 1);
	assert_int_equal(p.far.err, 0);
	for (i = 0; i < 3; i++) {
		vgrant_close(r, &v[i]);
		assert_int_equal(v[i].close_status, 0);
		assert_int_equal(v[i].proof, KVS_GRANT_TORN_DOWN);
	}
	finish(r);
	free(src);
}

/* By the connection itself; and by a number that is none. */
static void not_by_another_way(void **state)
{
	struct vrig *r = start();
	unsigned char *src = vmem(MIB, 0x55);
	struct kvs_grant_key k;
	struct vgrant v, other;
	struct vpair a, b;
	struct vwrite w;

	(void)state;
	vrig_pair_as(r, &a, 7);
	vrig_pair_as(r, &b, 8);
	vgrant_open(r, &v, 7, pool, MIB);
	vgrant_open(r, &other, 8, pool + MIB, MIB);
	k = *vgrant_key(&v);
	k.addr ^= 77ull << 48;
	assert_int_equal(vside_write(&a.near, &w, src, 64, &k, 0), 0);
	vrig_until(r, w.done);
	assert_int_equal(w.status, -EREMOTEIO);
	assert_int_equal(a.near.closed + a.far.closed, 0);
	k = *vgrant_key(&v);
	k.addr &= ~NUMBER;
	assert_int_equal(vside_write(&a.near, &w, src, 64, &k, 0), 0);
	vrig_until(r, w.done && a.near.closed && a.far.closed);
	assert_int_equal(w.status, -EREMOTEIO);
	assert_int_equal(a.near.err, -EREMOTEIO);
	assert_int_equal(a.far.err, -EACCES);
	assert_true(vall(pool, 0xee, 4 * MIB));
	/* nobody else noticed */
	lands(r, &b, &other, src, pool + MIB, 4096);
	/* outside of what was registered: refused by the device */
	vrig_pair_as(r, &a, 7);
	vgrant_close(r, &v);
	vgrant_open(r, &v, 7, pool + 3 * MIB, MIB);
	assert_int_equal(vside_write(&a.near, &w, src, 64, vgrant_key(&v), MIB),
			 0);
	vrig_until(r, w.done && a.near.closed && a.far.closed);
	assert_int_equal(w.status, -EREMOTEIO);
	lands(r, &b, &other, src, pool + MIB, 4096);
	finish(r);
	free(src);
}

static void confines_nobody(void **state)
{
	struct vrig *r = start();
	unsigned char *src = vmem(4096, 0x55);
	struct vgrant v;
	struct vwrite w;
	struct vpair p;

	(void)state;
	vrig_pair_as(r, &p, 7);
	vgrant_open(r, &v, 7, pool, MIB);
	assert_int_equal(vside_write(&p.near, &w, src, 4096, vgrant_key(&v),
				     2 * MIB),
			 0);
	vrig_until(r, w.done);
	printf("known limit of this kind: a writer reaches the whole pool\n");
	assert_int_equal(w.status, 0);
	assert_true(vall(pool + 2 * MIB, 0x55, 4096));
	finish(r);
	free(src);
}

static void read_done(struct kvs_conn *c, struct kvs_read *rd, int status)
{
	(void)c;
	*(int *)rd->user = status;
}

/* A branch lets in what its grant is for. */
static void reads(void **state)
{
	struct vrig *r = start();
	unsigned char *here = vmem(MIB, 0xee);
	struct kvs_read rd = { .addr = here, .len = MIB, .done = read_done };
	struct vgrant v, w;
	int status = 1;
	struct vpair p;

	(void)state;
	vfill(pool, 4, MIB);
	vrig_pair_as(r, &p, 7);
	vgrant_open(r, &v, 7, pool, MIB);
	rd.remote = *vgrant_key(&v);
	rd.user = &status;
	assert_int_equal(kvs_conn_read(p.near.c, &rd), 0);
	vrig_until(r, status != 1);
	assert_int_equal(status, 0);
	assert_true(vmatches(here, 4, MIB));
	vgrant_write_only(true);
	vgrant_open(r, &w, 7, pool, MIB);
	vgrant_write_only(false);
	memset(here, 0xee, MIB);
	rd.remote = *vgrant_key(&w);
	status = 1;
	assert_int_equal(kvs_conn_read(p.near.c, &rd), 0);
	vrig_until(r, status != 1 && p.near.closed && p.far.closed);
	assert_int_equal(status, -EREMOTEIO);
	assert_true(vall(here, 0xee, MIB));
	finish(r);
	free(here);
}

/* Whoever chose it is told what it is. */
static void says_so(void **state)
{
	struct kvs_verbs_info info[KVS_VERBS_DEVS_MAX];
	struct vrig *r = start();
	unsigned int i, n, used = 0;

	(void)state;
	n = kvs_verbs_devices(r->far, info, KVS_VERBS_DEVS_MAX);
	for (i = 0; i < n; i++) {
		if (!info[i].used)
			continue;
		used++;
		assert_string_equal(info[i].grant, "qp");
		assert_non_null(strstr(info[i].note, "not confined"));
		assert_non_null(strstr(info[i].proof, "the queue pair"));
		assert_non_null(strstr(info[i].proof, "the whole pool"));
	}
	assert_true(used > 0);
	finish(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(waits),
		cmocka_unit_test(closing_costs_nobody_else),
		cmocka_unit_test(not_by_another_way),
		cmocka_unit_test(confines_nobody),
		cmocka_unit_test(reads),
		cmocka_unit_test(says_so),
	};

	vrig_main();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
