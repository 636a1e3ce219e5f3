/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, over the double, for the end of a connection and of a grant
 * (kvcache-ai/Mooncake#1903, ai-dynamo/nixl#2044, spdk/spdk#3859):
 *  - with 64 writes outstanding each is answered once, before closed(), and
 *    the queue pair goes when everything was flushed, not before;
 *  - requests that were executed silently do not hold that up;
 *  - flushes that never come hold it up for two seconds, no longer, and are
 *    counted;
 *  - a queue pair that cannot be destroyed keeps its connection from being
 *    closed, and is tried again until it can: until then nobody is told that
 *    it is gone;
 *  - a registration that cannot be taken back closes nothing, as often as is
 *    asked; the end of its owner's connections does;
 *  - a queue pair that fails by itself, a device that dies, a port that goes
 *    down for good: closed() comes, with an error.
 */
#include "tests/unit/rdma/verbs_double.h"

#include "lib/log.h"

#define LEN (64 * KIB)
#define OWNER 7
#define MANY 64
#define SEC 1000000000ull

struct end {
	struct vpair p;
	struct vrig *r;
	struct vgrant v;
	struct vwrite w[MANY];
	unsigned char *src;
	unsigned char *dst;
};

static void start(struct end *e, const char *driver)
{
	vd_begin(driver);
	memset(e, 0, sizeof(*e));
	e->src = vmem(LEN, 0x55);
	e->dst = vmem(LEN, 0xee);
	e->r = vd_start(&e->p, OWNER);
	vrig_pool(e->r, e->dst, LEN);
	vgrant_open(e->r, &e->v, OWNER, e->dst, LEN);
}

static void finish(struct end *e, bool left_behind)
{
	vrig_free(e->r);
	free(e->src);
	free(e->dst);
	vd_end(left_behind);
}

/* The first is held, so that all wait. */
static void post_many(struct end *e)
{
	unsigned int i;

	fv_hold(1, 1);
	for (i = 0; i < MANY; i++)
		assert_int_equal(vside_write(&e->p.near, &e->w[i], e->src, 512,
					     kvs_grant_keys(e->v.g), 512 * i),
				 0);
	vrig_until(e->r, fv_held());
}

static void all_failed_once(const struct end *e)
{
	unsigned int i;

	for (i = 0; i < MANY; i++) {
		assert_int_equal(e->w[i].done, 1);
		assert_true(e->w[i].status < 0);
	}
}

static void outstanding(const char *driver, bool near)
{
	struct kvs_verbs_counts n;
	struct fv_counts before, after;
	struct end e;

	start(&e, driver);
	post_many(&e);
	fv_counts(&before);
	kvs_conn_close(near ? e.p.near.c : e.p.far.c, -ECONNABORTED, false);
	vrig_until(e.r, e.p.near.closed && e.p.far.closed);
	all_failed_once(&e);
	fv_counts(&after);
	/* each write has a message behind it; and both sides' receives */
	assert_true(after.flushes - before.flushes >= 2 * MANY);
	assert_int_equal(after.flushes_lost, 0);
	kvs_verbs_counters(e.r->near, &n);
	assert_int_equal(n.lost_flushes + n.stuck, 0);
	vgrant_close(e.r, &e.v);
	assert_int_equal(e.v.close_status, 0);
	if (fv_held())
		assert_true(fv_land(fv_flight(0), UINT64_MAX) < 0);
	assert_true(vall(e.dst, 0xee, LEN));
	finish(&e, false);
}

static void sixty_four_outstanding(void **state)
{
	(void)state;
	for (vd_kind = KVS_VERBS_GRANT_WINDOW; vd_kind <= KVS_VERBS_GRANT_MR;
	     vd_kind++) {
		outstanding("mlx5_core", true);
		outstanding("mlx5_core", false);
		outstanding("rxe", true);
		outstanding("rxe", false);
	}
	vd_kind = KVS_VERBS_GRANT_MR;
}

/* Requests that were executed without a signal are not flushed. */
static void silent_requests(void **state)
{
	struct kvs_verbs_counts n;
	struct vwrite w;
	struct end e;
	struct kvs_mem *m;
	uint64_t t0;

	(void)state;
	start(&e, "mlx5_core");
	/* what is copied first tells when it may be reused */
	assert_int_equal(
		kvs_transport_register(e.r->near, e.src, LEN, &m, NULL, 0), 0);
	/* the bytes go out, the message behind them does not */
	fv_fail(FV_POST_SEND, 2, 1, ENOMEM);
	t0 = vrig_now();
	assert_int_equal(vside_write(&e.p.near, &w, e.src, 512,
				     kvs_grant_keys(e.v.g), 0),
			 0);
	vrig_until(e.r, e.p.near.closed && e.p.far.closed);
	assert_int_equal(fv_failed(), 1);
	assert_true(vrig_now() - t0 < SEC);
	assert_true(vall(e.dst, 0x55, 512));
	/* not known, so not finished */
	assert_true(w.status < 0);
	kvs_verbs_counters(e.r->near, &n);
	assert_int_equal(n.lost_flushes, 0);
	kvs_mem_release(m);
	finish(&e, false);
}

static void flushes_that_never_come(void **state)
{
	struct kvs_verbs_counts n;
	struct end e;
	uint64_t t0;

	(void)state;
	start(&e, "mlx5_core");
	post_many(&e);
	fv_lose_flushes(UINT64_MAX);
	t0 = vrig_now();
	kvs_conn_close(e.p.far.c, -ECONNABORTED, false);
	vrig_until(e.r, e.p.near.closed && e.p.far.closed);
	assert_true(vrig_now() - t0 >= 2 * SEC);
	all_failed_once(&e);
	kvs_verbs_counters(e.r->near, &n);
	assert_int_equal(n.lost_flushes, 1);
	kvs_verbs_counters(e.r->far, &n);
	assert_int_equal(n.lost_flushes, 1);
	/* the queue pair is gone all the same, and with it the proof is there */
	vgrant_close(e.r, &e.v);
	assert_int_equal(e.v.proof, KVS_GRANT_TORN_DOWN);
	finish(&e, false);
}

static void not_destroyed(void **state)
{
	struct kvs_verbs_counts n;
	struct end e;

	(void)state;
	start(&e, "mlx5_core");
	fv_fail(FV_DESTROY_QP, 1, 2, EBUSY);
	kvs_conn_close(e.p.far.c, -ECONNABORTED, false);
	vrig_until(e.r, fv_failed() == 2);
	/* one of each side; neither is gone */
	assert_int_equal(e.p.near.closed + e.p.far.closed, 0);
	/* the grant has a proof of its own */
	vgrant_close(e.r, &e.v);
	assert_int_equal(e.v.close_status, 0);
	assert_int_equal(e.v.proof, KVS_GRANT_INVALIDATED);
	vrig_until(e.r, e.p.near.closed && e.p.far.closed);
	kvs_verbs_counters(e.r->far, &n);
	assert_int_equal(n.stuck, 1);
	finish(&e, false);
}

/* Until the device itself is closed. */
static void never_destroyed(void **state)
{
	struct end e;

	(void)state;
	start(&e, "mlx5_core");
	kvs_conn_close(e.p.near.c, 0, true);
	vrig_until(e.r, e.p.near.closed && e.p.far.closed);
	vrig_pair_as(e.r, &e.p, OWNER);
	fv_fail(FV_DESTROY_QP, 1, UINT64_MAX, EBUSY);
	vrig_free(e.r);
	assert_int_equal(e.p.near.closed, 1);
	assert_int_equal(e.p.far.closed, 1);
	assert_int_equal(e.v.closed, 1);
	assert_int_equal(e.v.close_status, 0);
	free(e.src);
	free(e.dst);
	vd_end(true);
}

static void not_deregistered(void **state)
{
	struct vwrite w;
	struct end e;
	int i;

	(void)state;
	start(&e, "mlx5_core");
	fv_fail(FV_DEREG_MR, 1, UINT64_MAX, EBUSY);
	for (i = 0; i < 3; i++) {
		vgrant_close(e.r, &e.v);
		assert_int_equal(e.v.closed, i + 1);
		assert_int_equal(e.v.close_status, -EBUSY);
	}
	/* and it is open, as it says */
	assert_int_equal(vside_write(&e.p.near, &w, e.src, 64,
				     kvs_grant_keys(e.v.g), 0),
			 0);
	vrig_until(e.r, w.done);
	assert_int_equal(w.status, 0);
	assert_true(vall(e.dst, 0x55, 64));
	kvs_conn_close(e.p.far.c, -ECONNABORTED, false);
	vrig_until(e.r, e.p.near.closed && e.p.far.closed);
	vgrant_close(e.r, &e.v);
	assert_int_equal(e.v.close_status, 0);
	assert_int_equal(e.v.proof, KVS_GRANT_TORN_DOWN);
	fv_heal();
	finish(&e, true);
}

/* The key of a registration that could not be taken back. */
static void stuck_key_is_nobodys(void **state)
{
	struct kvs_grant_key stuck;
	struct vwrite w;
	struct end e;

	(void)state;
	start(&e, "mlx5_core");
	stuck = *kvs_grant_keys(e.v.g);
	fv_fail(FV_DEREG_MR, 1, UINT64_MAX, EBUSY);
	vgrant_close(e.r, &e.v);
	kvs_conn_close(e.p.far.c, -ECONNABORTED, false);
	vrig_until(e.r, e.p.near.closed && e.p.far.closed);
	vgrant_close(e.r, &e.v);
	assert_int_equal(e.v.proof, KVS_GRANT_TORN_DOWN);
	fv_heal();
	vrig_pair_as(e.r, &e.p, OWNER);
	assert_int_equal(vside_write(&e.p.near, &w, e.src, 64, &stuck, 0), 0);
	vrig_until(e.r, w.done && e.p.far.closed);
	assert_int_equal(w.status, -EREMOTEIO);
	assert_true(vall(e.dst, 0xee, LEN));
	finish(&e, true);
}

static void cannot_stop(void **state)
{
	struct end e;

	(void)state;
	start(&e, "mlx5_core");
	post_many(&e);
	/* to ERR, of both; destruction does it then */
	fv_fail(FV_MODIFY_QP, 1, 2, EIO);
	kvs_conn_close(e.p.far.c, -ECONNABORTED, false);
	vrig_until(e.r, e.p.near.closed && e.p.far.closed);
	assert_int_equal(fv_failed(), 2);
	all_failed_once(&e);
	vgrant_close(e.r, &e.v);
	assert_int_equal(e.v.close_status, 0);
	finish(&e, false);
}

static void fails_by_itself(void **state)
{
	static const enum ibv_event_type events[] = {
		IBV_EVENT_QP_FATAL,
		IBV_EVENT_QP_REQ_ERR,
		IBV_EVENT_QP_ACCESS_ERR,
	};
	struct fv_spec s = { .name = "mlx5_0", .driver = "mlx5_core" };
	unsigned int i;

	(void)state;
	for (i = 0; i < 3; i++) {
		struct fv_device *d;
		struct vrig *r;
		struct vpair p;

		fv_begin();
		d = fv_device_add(&s);
		r = vd_start(&p, OWNER);
		fv_qp_break(d);
		fv_qp_event(d, events[i]);
		vrig_until(r, p.near.closed && p.far.closed);
		assert_true(p.near.err < 0 && p.far.err < 0);
		vrig_pair_as(r, &p, OWNER);
		vrig_free(r);
		vd_end(false);
	}
}

static void device_dies(void **state)
{
	struct fv_spec s[] = {
		{ .name = "mlx5_0", .driver = "mlx5_core" },
		{ .name = "mlx5_1", .driver = "mlx5_core" },
	};
	struct vpair p, q, next;
	struct fv_device *d;
	struct vgrant v;
	struct vrig *r;
	unsigned char *dst;

	(void)state;
	fv_begin();
	d = fv_device_add(&s[0]);
	fv_device_add(&s[1]);
	dst = vmem(LEN, 0xee);
	r = vd_start(&p, 1);
	vrig_pair_as(r, &q, 2); /* on the other one */
	vgrant_open(r, &v, 1, dst, LEN);
	fv_device_die(d);
	vrig_until(r, p.near.closed && p.far.closed);
	assert_true(p.near.err < 0 && p.far.err < 0);
	vgrant_close(r, &v);
	assert_int_equal(v.close_status, 0);
	assert_int_equal(vside_send(&q.near, 9, 64), 0);
	vrig_until(r, q.far.frames == 1);
	/* whoever comes now gets the one that works */
	vrig_pair_as(r, &next, 3);
	vrig_free(r);
	free(dst);
	vd_end(false);
}

/* Nothing passes; the request's retries run out, and then it is over. */
static void port_stays_down(void **state)
{
	struct fv_spec s = { .name = "mlx5_0", .driver = "mlx5_core" };
	struct fv_device *d;
	struct vrig *r;
	struct vpair p;
	int frames;

	(void)state;
	fv_begin();
	d = fv_device_add(&s);
	r = vd_start(&p, OWNER);
	/* a short one is nobody's end */
	fv_port_set(d, 1, false);
	assert_int_equal(vside_send(&p.near, 9, 64), 0);
	vrig_for(r, 5000000);
	assert_int_equal(p.far.frames, 0);
	assert_int_equal(p.near.closed + p.far.closed, 0);
	fv_port_set(d, 1, true);
	vrig_until(r, p.far.frames == 1);
	fv_port_set(d, 1, false);
	frames = p.far.frames;
	assert_int_equal(vside_send(&p.near, 9, 64), 0);
	vrig_for(r, 5000000);
	fv_retries_expire();
	vrig_until(r, p.near.closed && p.far.closed);
	assert_int_equal(p.near.err, -ETIMEDOUT);
	assert_int_equal(p.far.frames, frames);
	vrig_free(r);
	vd_end(false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sixty_four_outstanding),
		cmocka_unit_test(silent_requests),
		cmocka_unit_test(flushes_that_never_come),
		cmocka_unit_test(not_destroyed),
		cmocka_unit_test(never_destroyed),
		cmocka_unit_test(not_deregistered),
		cmocka_unit_test(stuck_key_is_nobodys),
		cmocka_unit_test(cannot_stop),
		cmocka_unit_test(fails_by_itself),
		cmocka_unit_test(device_dies),
		cmocka_unit_test(port_stays_down),
	};

	kvs_log_set_level(KVS_LOG_ERR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
