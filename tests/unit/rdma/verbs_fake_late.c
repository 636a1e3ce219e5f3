/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, over the double, on a strict device, on one like rxe, and on one of a
 * driver that is not known, for grants by registration, by windows and by
 * queue pairs, for a write that is on the wire when its grant is taken back,
 * whole, in part, or with a packet in hand:
 *  - after closed(0) it changes no byte, by whatever way the grant closed: by
 *    itself, because the writer or this side went, with the transport;
 *  - a write that was reported failed may land until then: a failed send is
 *    not a finished one (sgl-project/sglang#43719, #45973,
 *    kvcache-ai/Mooncake#4247);
 *  - a key from before a restart changes no byte of the new one's memory, and
 *    who had it connects anew and goes on (smg-project/smg#2382);
 *  - the check itself sees a byte that a broken device would write.
 */
#include "tests/unit/rdma/verbs_double.h"

#define LEN (64 * KIB)
#define OWNER 7

enum part {
	NOTHING, /* has landed */
	SOME,
	SOME_IN_HAND, /* and the next packet is checked already */
	PARTS,
};

static const char *const drivers[] = { "mlx5_core", "rxe", "unheard_of" };

struct late {
	struct vpair p;
	struct vrig *r;
	struct vgrant v;
	struct vwrite w;
	struct fv_flight *f;
	unsigned char *src;
	unsigned char *dst;
	unsigned char *copy;
};

static void launch(struct late *l, const char *driver, enum part part)
{
	vd_begin(driver);
	l->src = vmem(LEN, 0x55);
	l->dst = vmem(LEN, 0xee);
	l->copy = vmem(LEN, 0);
	l->r = vd_start(&l->p, OWNER);
	vrig_pool(l->r, l->dst, LEN);
	vgrant_open(l->r, &l->v, OWNER, l->dst, LEN);
	l->f = vd_hold(l->r, &l->p, &l->w, l->src, LEN, kvs_grant_keys(l->v.g));
	assert_true(vall(l->dst, 0xee, LEN));
	if (part == NOTHING)
		return;
	assert_int_equal(fv_land(l->f, 9000), 0);
	assert_true(vall(l->dst, 0x55, 9000));
	assert_true(vall(l->dst + 9000, 0xee, LEN - 9000));
	if (part == SOME_IN_HAND)
		assert_int_equal(fv_take(l->f), 0);
}

/* The grant is closed: nothing changes any more, whatever comes. */
static void nothing_lands(struct late *l)
{
	assert_int_equal(l->v.closed, 1);
	assert_int_equal(l->v.close_status, 0);
	memcpy(l->copy, l->dst, LEN);
	assert_int_equal(fv_place(l->f), 0);
	assert_true(fv_land(l->f, UINT64_MAX) < 0);
	assert_int_equal(fv_held(), 0);
	assert_memory_equal(l->dst, l->copy, LEN);
	assert_int_equal(l->dst[LEN - 1], 0xee);
}

static void finish(struct late *l)
{
	vrig_free(l->r);
	assert_memory_equal(l->dst, l->copy, LEN);
	free(l->src);
	free(l->dst);
	free(l->copy);
	vd_end(false);
}

static void each(void (*one)(const char *driver, enum part part))
{
	unsigned int d, p;

	for (vd_kind = KVS_VERBS_GRANT_WINDOW; vd_kind <= KVS_VERBS_GRANT_QP;
	     vd_kind++)
		for (d = 0; d < sizeof(drivers) / sizeof(drivers[0]); d++)
			for (p = 0; p < PARTS; p++)
				one(drivers[d], p);
	vd_kind = KVS_VERBS_GRANT_MR;
}

/* By its own last step, the connection stays; else that is the last step. */
static bool by_key(const char *driver)
{
	return vd_kind == KVS_VERBS_GRANT_MR || !strcmp(driver, "mlx5_core");
}

/* The writer is told, and loses that queue pair and nothing else. */
static bool by_branch(void)
{
	return vd_kind == KVS_VERBS_GRANT_QP;
}

static void one_closed(const char *driver, enum part part)
{
	struct late l;

	launch(&l, driver, part);
	vgrant_close(l.r, &l.v);
	if (by_branch()) {
		assert_int_equal(l.v.proof, KVS_GRANT_INVALIDATED);
		nothing_lands(&l);
		vrig_until(l.r, l.w.done);
		assert_true(l.w.status < 0);
		assert_int_equal(l.p.near.closed + l.p.far.closed, 0);
		finish(&l);
		return;
	}
	assert_int_equal(l.v.proof, by_key(driver) ? KVS_GRANT_INVALIDATED
						   : KVS_GRANT_TORN_DOWN);
	assert_int_equal(l.p.far.closed, !by_key(driver));
	nothing_lands(&l);
	vrig_until(l.r, l.w.done && l.p.near.closed && l.p.far.closed);
	if (by_key(driver)) {
		assert_int_equal(l.w.status, -EREMOTEIO);
		assert_int_equal(l.p.near.err, -EREMOTEIO);
		assert_int_equal(l.p.far.err, -EACCES);
	}
	assert_true(l.w.status < 0);
	finish(&l);
}

static void closed_by_itself(void **state)
{
	(void)state;
	each(one_closed);
}

/* The writer closed, or died: what it launched is on its way all the same. */
static void one_writer_gone(const char *driver, enum part part)
{
	struct late l;

	launch(&l, driver, part);
	kvs_conn_close(l.p.near.c, -ECONNABORTED, false);
	vrig_until(l.r, l.w.done && l.p.near.closed);
	assert_true(l.w.status < 0);
	/* a failed send, and bytes that land after it */
	if (!l.p.far.closed && part != SOME_IN_HAND) {
		uint64_t at = fv_flight_at(l.f);

		if (!fv_land(l.f, 100))
			assert_int_equal(l.dst[at + 99], 0x55);
	}
	vrig_until(l.r, l.p.far.closed);
	vgrant_close(l.r, &l.v);
	assert_int_equal(l.v.proof, KVS_GRANT_TORN_DOWN);
	memcpy(l.copy, l.dst, LEN);
	if (fv_held()) {
		assert_int_equal(fv_place(l.f), 0);
		assert_true(fv_land(l.f, UINT64_MAX) < 0);
	}
	assert_memory_equal(l.dst, l.copy, LEN);
	finish(&l);
}

static void writer_gone(void **state)
{
	(void)state;
	each(one_writer_gone);
}

/* Before it is told: the send failed at the writer, the bytes come. */
static void failed_is_not_finished(void **state)
{
	struct late l;

	(void)state;
	launch(&l, "mlx5_core", NOTHING);
	/* only the writer's side runs */
	kvs_conn_close(l.p.near.c, -ECONNABORTED, false);
	while (!l.w.done)
		assert_true(kvs_transport_poll(l.r->near, 1000000) >= 0);
	assert_true(l.w.status < 0);
	assert_int_equal(fv_land(l.f, 5000), 0);
	assert_true(vall(l.dst, 0x55, 5000));
	/* what ends it is the grant */
	vgrant_close(l.r, &l.v);
	memcpy(l.copy, l.dst, LEN);
	assert_true(fv_land(l.f, UINT64_MAX) < 0);
	assert_memory_equal(l.dst, l.copy, LEN);
	finish(&l);
}

static void one_reader_closes(const char *driver, enum part part)
{
	struct late l;

	launch(&l, driver, part);
	kvs_conn_close(l.p.far.c, -ECONNABORTED, false);
	vrig_until(l.r, l.p.far.closed);
	vgrant_close(l.r, &l.v);
	assert_int_equal(l.v.proof, KVS_GRANT_TORN_DOWN);
	nothing_lands(&l);
	vrig_until(l.r, l.w.done && l.p.near.closed);
	assert_true(l.w.status < 0);
	finish(&l);
}

static void reader_closes(void **state)
{
	(void)state;
	each(one_reader_closes);
}

static void one_transport_ends(const char *driver, enum part part)
{
	struct late l;

	launch(&l, driver, part);
	kvs_transport_destroy(l.r->far);
	l.r->far = NULL;
	assert_int_equal(l.p.far.closed, 1);
	assert_int_equal(l.v.proof, KVS_GRANT_TORN_DOWN);
	nothing_lands(&l);
	vrig_until(l.r, l.w.done && l.p.near.closed);
	finish(&l);
}

static void transport_ends(void **state)
{
	(void)state;
	each(one_transport_ends);
}

/* What was closed before something else was granted at the same place. */
static void memory_granted_anew(void **state)
{
	struct vgrant again;
	struct late l;

	(void)state;
	launch(&l, "mlx5_core", SOME);
	vgrant_close(l.r, &l.v);
	vgrant_open(l.r, &again, OWNER, l.dst, LEN);
	assert_int_not_equal(kvs_grant_keys(again.g)->rkey, 0);
	nothing_lands(&l);
	vrig_until(l.r, l.p.far.closed);
	vgrant_close(l.r, &again);
	finish(&l);
}

static void restarted(void)
{
	struct fv_spec s = {
		.name = "mlx5_0",
		.driver = "mlx5_core",
		.reuse_keys = true,
	};
	struct vrig *r, *second;
	struct kvs_grant_key old;
	unsigned char *src, *dst;
	struct vgrant v;
	struct vwrite w;
	struct vpair p;

	vd_begin_with(&s, 1);
	src = vmem(LEN, 0x55);
	dst = vmem(LEN, 0xee);
	r = vd_start(&p, OWNER);
	vrig_pool(r, dst, LEN);
	vgrant_open(r, &v, OWNER, dst, LEN);
	old = *kvs_grant_keys(v.g);
	kvs_transport_destroy(r->far);
	r->far = NULL;
	vrig_until(r, p.near.closed);
	/* the same memory, and a key that may lie at the same place */
	second = vd_rig();
	r->far = second->far;
	second->far = NULL;
	vrig_free(second);
	vrig_pair_as(r, &p, OWNER);
	vrig_pool(r, dst, LEN);
	vgrant_open(r, &v, OWNER, dst, LEN);
	assert_int_not_equal(kvs_grant_keys(v.g)->rkey, old.rkey);
	assert_int_equal(vside_write(&p.near, &w, src, LEN, &old, 0), 0);
	vrig_until(r, w.done && p.near.closed && p.far.closed);
	assert_int_equal(w.status, -EREMOTEIO);
	assert_true(vall(dst, 0xee, LEN));
	/* and on it goes; a window's key went with its connection */
	vrig_pair_as(r, &p, OWNER);
	if (vd_kind == KVS_VERBS_GRANT_WINDOW) {
		vgrant_close(r, &v);
		vgrant_open(r, &v, OWNER, dst, LEN);
	}
	assert_int_equal(
		vside_write(&p.near, &w, src, LEN, kvs_grant_keys(v.g), 0), 0);
	vrig_until(r, w.done && p.far.frames == 1);
	assert_int_equal(w.status, 0);
	assert_true(vall(dst, 0x55, LEN));
	vgrant_close(r, &v);
	vrig_free(r);
	free(src);
	free(dst);
	vd_end(false);
}

static void after_a_restart(void **state)
{
	(void)state;
	vd_kind = KVS_VERBS_GRANT_WINDOW;
	restarted();
	vd_kind = KVS_VERBS_GRANT_MR;
	restarted();
}

static void a_broken_device_is_seen(void **state)
{
	struct late l;

	(void)state;
	launch(&l, "mlx5_core", SOME);
	vgrant_close(l.r, &l.v);
	memcpy(l.copy, l.dst, LEN);
	fv_force(l.f, 20000, 1);
	assert_memory_not_equal(l.dst, l.copy, LEN);
	memcpy(l.copy, l.dst, LEN);
	fv_drop(l.f);
	finish(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(closed_by_itself),
		cmocka_unit_test(writer_gone),
		cmocka_unit_test(failed_is_not_finished),
		cmocka_unit_test(reader_closes),
		cmocka_unit_test(transport_ends),
		cmocka_unit_test(memory_granted_anew),
		cmocka_unit_test(after_a_restart),
		cmocka_unit_test(a_broken_device_is_seen),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
