/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, over the double, for grants by windows:
 *  - of a thousand grants one after another, with windows that are used again,
 *    no key is ever the key of another: a window is replaced before its tag
 *    wraps. The first one's key, kept, changes no byte;
 *  - a window that cannot be bound, or that there is none of, is no grant, and
 *    what a failed bind costs is its connection;
 *  - an invalidation is posted once. Where it does not come back, or comes back
 *    flushed, the connection is given up, and its end is the proof;
 *  - windows that cannot be deallocated keep the connection, and the grant,
 *    from being closed, until they can.
 */
#include "tests/unit/rdma/verbs_double.h"

#include "lib/log.h"

#define LEN (64 * KIB)
#define OWNER 7
#define SEC 1000000000ull
#define GRANTS 1000

struct win {
	struct vpair p;
	struct vrig *r;
	struct vgrant v;
	unsigned char *src;
	unsigned char *dst;
};

static void start_on(struct win *w, const struct fv_spec *s)
{
	vd_begin_with(s, 1);
	memset(w, 0, sizeof(*w));
	w->src = vmem(LEN, 0x55);
	w->dst = vmem(LEN, 0xee);
	w->r = vd_start(&w->p, OWNER);
	vrig_pool(w->r, w->dst, LEN);
}

static void start(struct win *w, const char *driver)
{
	struct fv_spec s = {
		.name = "fake0",
		.driver = driver,
		.model = strcmp(driver, "rxe") ? FV_STRICT : FV_RXE,
	};

	start_on(w, &s);
}

static void finish(struct win *w, bool left_behind)
{
	vrig_free(w->r);
	free(w->src);
	free(w->dst);
	vd_end(left_behind);
}

static void expect_refused(struct win *w, const struct kvs_grant_key *key)
{
	struct vwrite x;

	assert_int_equal(vside_write(&w->p.near, &x, w->src, 64, key, 0), 0);
	vrig_until(w->r, x.done && w->p.near.closed && w->p.far.closed);
	assert_int_equal(x.status, -EREMOTEIO);
	assert_true(vall(w->dst, 0xee, LEN));
}

static void no_key_twice(void **state)
{
	static uint32_t seen[GRANTS];
	struct kvs_grant_key first = { 0 };
	struct fv_counts n;
	struct win w;
	int i, k;

	(void)state;
	start(&w, "mlx5_core");
	for (i = 0; i < GRANTS; i++) {
		vgrant_open(w.r, &w.v, OWNER, w.dst, LEN);
		seen[i] = kvs_grant_keys(w.v.g)->rkey;
		if (!i)
			first = *kvs_grant_keys(w.v.g);
		for (k = 0; k < i; k++)
			assert_int_not_equal(seen[i], seen[k]);
		vgrant_close(w.r, &w.v);
		assert_int_equal(w.v.proof, KVS_GRANT_INVALIDATED);
	}
	fv_counts(&n);
	assert_true(n.binds >= GRANTS);
	assert_int_equal(n.invalidates + 2, n.binds); /* two of the trials */
	/* windows were used again, and replaced */
	assert_true(fv_calls(FV_ALLOC_MW) < GRANTS / 100);
	vgrant_open(w.r, &w.v, OWNER, w.dst, LEN);
	expect_refused(&w, &first);
	finish(&w, false);
}

static void cannot_be_bound(void **state)
{
	struct fv_spec s = {
		.name = "fake0",
		.driver = "mlx5_core",
		.max_mw_len = 8192,
	};
	struct win w;

	(void)state;
	start_on(&w, &s);
	vgrant_begin(w.r, &w.v, OWNER, w.dst, LEN);
	vrig_until(w.r, w.v.opened && w.p.near.closed && w.p.far.closed);
	assert_true(w.v.open_status < 0);
	/* a smaller one on the next connection */
	vrig_pair_as(w.r, &w.p, OWNER);
	vgrant_open(w.r, &w.v, OWNER, w.dst, 8192);
	vgrant_close(w.r, &w.v);
	assert_int_equal(w.v.close_status, 0);
	finish(&w, false);
}

static void there_is_none(void **state)
{
	struct win w;

	(void)state;
	start(&w, "mlx5_core");
	fv_fail(FV_ALLOC_MW, 1, 1, ENOMEM);
	vgrant_begin(w.r, &w.v, OWNER, w.dst, LEN);
	vrig_until(w.r, w.v.opened);
	assert_int_equal(w.v.open_status, -ENOMEM);
	/* which costs nobody anything */
	vgrant_open(w.r, &w.v, OWNER, w.dst, LEN);
	assert_int_equal(w.p.near.closed + w.p.far.closed, 0);
	vgrant_close(w.r, &w.v);
	finish(&w, false);
}

/* The connection ended in between: flushed, or not even posted. */
static void flushed(const char *driver, bool posted)
{
	struct fv_flight *f;
	struct vwrite x;
	struct win w;

	start(&w, driver);
	vgrant_open(w.r, &w.v, OWNER, w.dst, LEN);
	f = vd_hold(w.r, &w.p, &x, w.src, LEN, kvs_grant_keys(w.v.g));
	if (posted) {
		/* it breaks with the invalidation in the queue */
		fv_fail(FV_POST_SEND, 1, 1, ENOMEM);
		kvs_grant_close(w.v.g);
	} else {
		kvs_conn_close(w.p.far.c, -ECONNABORTED, false);
		kvs_grant_close(w.v.g);
	}
	vrig_until(w.r, w.v.closed);
	assert_int_equal(w.v.close_status, 0);
	assert_int_equal(w.v.proof, KVS_GRANT_TORN_DOWN);
	assert_int_equal(w.p.far.closed, 1);
	assert_true(fv_land(f, UINT64_MAX) < 0);
	assert_true(vall(w.dst, 0xee, LEN));
	vrig_until(w.r, x.done && w.p.near.closed);
	finish(&w, false);
}

static void flushed_is_no_proof(void **state)
{
	(void)state;
	flushed("mlx5_core", true);
	flushed("mlx5_core", false);
	flushed("rxe", true);
	flushed("rxe", false);
}

/* Behind a message that nobody takes it does not complete. */
static void does_not_come_back(void **state)
{
	struct fv_spec s = { .name = "fake0", .driver = "mlx5_core" };
	struct fv_device *d;
	struct fv_flight *f;
	struct vwrite x;
	struct win w;
	uint64_t t0;

	(void)state;
	fv_begin();
	d = fv_device_add(&s);
	memset(&w, 0, sizeof(w));
	w.src = vmem(LEN, 0x55);
	w.dst = vmem(LEN, 0xee);
	w.r = vd_start(&w.p, OWNER);
	vrig_pool(w.r, w.dst, LEN);
	vgrant_open(w.r, &w.v, OWNER, w.dst, LEN);
	f = vd_hold(w.r, &w.p, &x, w.src, LEN, kvs_grant_keys(w.v.g));
	fv_port_set(d, 1, false);
	assert_int_equal(vside_send(&w.p.far, 9, 64), 0);
	vrig_for(w.r, 5000000);
	t0 = vrig_now();
	vgrant_close(w.r, &w.v);
	assert_true(vrig_now() - t0 < 20 * SEC);
	assert_int_equal(w.v.close_status, 0);
	assert_int_equal(w.v.proof, KVS_GRANT_TORN_DOWN);
	fv_port_set(d, 1, true);
	assert_true(fv_land(f, UINT64_MAX) < 0);
	assert_true(vall(w.dst, 0xee, LEN));
	fv_retries_expire();
	vrig_until(w.r, x.done && w.p.near.closed && w.p.far.closed);
	finish(&w, false);
}

static void cannot_be_deallocated(void **state)
{
	struct fv_flight *f;
	struct vwrite x;
	struct win w;
	int i;

	(void)state;
	start(&w, "rxe");
	vgrant_open(w.r, &w.v, OWNER, w.dst, LEN);
	f = vd_hold(w.r, &w.p, &x, w.src, LEN, kvs_grant_keys(w.v.g));
	fv_fail(FV_DEALLOC_MW, 1, UINT64_MAX, EBUSY);
	for (i = 0; i < 3; i++) {
		vgrant_close(w.r, &w.v);
		assert_int_equal(w.v.close_status, -EBUSY);
		assert_int_equal(w.p.far.closed, 0);
	}
	fv_heal();
	vrig_until(w.r, w.p.far.closed);
	vgrant_close(w.r, &w.v);
	assert_int_equal(w.v.close_status, 0);
	assert_int_equal(w.v.proof, KVS_GRANT_TORN_DOWN);
	assert_true(fv_land(f, UINT64_MAX) < 0);
	assert_true(vall(w.dst, 0xee, LEN));
	vrig_until(w.r, x.done && w.p.near.closed);
	finish(&w, false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_key_twice),
		cmocka_unit_test(cannot_be_bound),
		cmocka_unit_test(there_is_none),
		cmocka_unit_test(flushed_is_no_proof),
		cmocka_unit_test(does_not_come_back),
		cmocka_unit_test(cannot_be_deallocated),
	};

	vd_kind = KVS_VERBS_GRANT_WINDOW;
	kvs_log_set_level(KVS_LOG_ERR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
