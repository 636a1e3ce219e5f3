/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims about the double's type-2 windows:
 *  - a bound one admits its range, on the queue pair it was bound on, by its
 *    tag of now; on rxe its whole registration;
 *  - the registration's own key stays shut; a registration with a window
 *    bound is not taken back;
 *  - a window must be free to be bound, with another tag, of the same domain;
 *  - 256 bindings later an old key is the key again;
 *  - a second LOCAL_INV is an error, and on rxe the end of the test.
 */
#include "tests/unit/fake_verbs/ends.h"

static struct ibv_mw *window(struct ends *e, uint32_t off, uint32_t len)
{
	struct ibv_mw *mw = ibv_alloc_mw(e->b.pd, IBV_MW_TYPE_2);

	assert_non_null(mw);
	assert_int_equal(bind_on(&e->b, e->b.qp, mw, ibv_inc_rkey(mw->rkey),
				 off, len),
			 IBV_WC_SUCCESS);
	return mw;
}

static enum ibv_wc_status try_write(struct ends *e, uint32_t off, uint32_t len,
				    uint32_t rkey)
{
	struct ibv_wc wc;

	assert_int_equal(post_write(&e->a, 1, 0, len, at(&e->b, off), rkey), 0);
	assert_int_equal(ibv_poll_cq(e->a.cq, 1, &wc), 1);
	return wc.status;
}

static void in_range(void **state)
{
	struct ibv_mw *mw;
	struct ends e;
	unsigned int m;

	(void)state;
	for (m = FV_STRICT; m <= FV_RXE; m++) {
		ends_start(&e, m, 'B');
		mw = window(&e, 4096, 4096);
		assert_int_equal(try_write(&e, 4096, 4096, mw->rkey),
				 IBV_WC_SUCCESS);
		assert_memory_equal(e.b.mem + 4096, e.a.mem, 4096);
		assert_int_equal(try_write(&e, 4095, 16, mw->rkey),
				 m == FV_STRICT ? IBV_WC_REM_ACCESS_ERR
						: IBV_WC_SUCCESS);
		assert_int_equal(e.b.mem[4096],
				 m == FV_STRICT ? 0 : e.a.mem[1]);
		if (m == FV_RXE) /* but no further than its registration */
			assert_int_equal(try_write(&e, MEM - 8, 9, mw->rkey),
					 IBV_WC_REM_ACCESS_ERR);
		assert_int_equal(ibv_dereg_mr(e.b.mr),
				 m == FV_STRICT ? EBUSY : EINVAL);
		assert_int_equal(ibv_dealloc_mw(mw), 0);
		ends_stop(&e);
	}
}

static void of_its_queue_pair(void **state)
{
	static const char types[] = { 'A', 'B' };
	struct ibv_qp *qa, *qb, *keep;
	struct ibv_mw *mw;
	struct ends e;
	unsigned int i;

	(void)state;
	for (i = 0; i < 2; i++) {
		ends_start(&e, FV_STRICT, types[i]);
		ends_qps(&e, &qa, &qb);
		mw = window(&e, 0, 4096);
		keep = e.a.qp;
		e.a.qp = qa;
		assert_int_equal(try_write(&e, 0, 16, mw->rkey),
				 types[i] == 'B' ? IBV_WC_REM_ACCESS_ERR
						 : IBV_WC_SUCCESS);
		e.a.qp = keep;
		/* which is that queue pair's trouble only */
		assert_int_equal(try_write(&e, 0, 16, mw->rkey),
				 IBV_WC_SUCCESS);
		assert_int_equal(ibv_dealloc_mw(mw), 0);
		assert_int_equal(ibv_destroy_qp(qa), 0);
		assert_int_equal(ibv_destroy_qp(qb), 0);
		ends_stop(&e);
	}
}

static void own_key_stays_shut(void **state)
{
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct ends e;

	(void)state;
	ends_start(&e, FV_STRICT, 'B');
	mr = e.b.mr;
	e.b.mr = ibv_reg_mr(e.b.pd, e.b.mem, 8192,
			    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	assert_non_null(e.b.mr);
	mw = window(&e, 0, 4096);
	assert_int_equal(try_write(&e, 0, 4096, mw->rkey), IBV_WC_SUCCESS);
	assert_int_equal(try_write(&e, 0, 16, e.b.mr->rkey),
			 IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(ibv_dealloc_mw(mw), 0);
	assert_int_equal(ibv_dereg_mr(e.b.mr), 0);
	e.b.mr = mr;
	ends_stop(&e);
}

static void binding(void **state)
{
	struct ibv_mw *mw;
	struct ends e;
	unsigned int how;

	(void)state;
	for (how = 0; how < 5; how++) {
		uint32_t key, off = 0, len = 64;

		ends_start(&e, FV_STRICT, 'B');
		mw = ibv_alloc_mw(e.b.pd, IBV_MW_TYPE_2);
		assert_non_null(mw);
		key = ibv_inc_rkey(mw->rkey);
		if (how == 0) /* the same tag */
			key = mw->rkey;
		if (how == 1) /* another's place */
			key += 0x100;
		if (how == 2) /* beyond the registration */
			off = MEM - 63;
		if (how == 3)
			len = 0;
		if (how == 4) { /* bound already */
			assert_int_equal(bind_on(&e.b, e.b.qp, mw, key, 0, 64),
					 IBV_WC_SUCCESS);
			key = ibv_inc_rkey(key);
		}
		assert_int_equal(bind_on(&e.b, e.b.qp, mw, key, off, len),
				 IBV_WC_MW_BIND_ERR);
		/* the queue pair has paid for it */
		assert_int_equal(post_buf(&e.b, 2, 0, 8), 0);
		expect_wc(&e.b, 2, IBV_WC_WR_FLUSH_ERR);
		assert_int_equal(ibv_dealloc_mw(mw), 0);
		ends_stop(&e);
	}
}

static void tag_wraps(void **state)
{
	struct ibv_mw *mw;
	uint32_t old;
	struct ends e;
	int i;

	(void)state;
	ends_start(&e, FV_STRICT, 'B');
	mw = window(&e, 0, 4096);
	old = mw->rkey;
	for (i = 0; i < 256; i++) {
		assert_int_equal(invalidate(&e.b, mw->rkey), IBV_WC_SUCCESS);
		assert_int_equal(bind_on(&e.b, e.b.qp, mw,
					 ibv_inc_rkey(mw->rkey), 8192, 4096),
				 IBV_WC_SUCCESS);
		if (i < 255)
			assert_int_not_equal(mw->rkey, old);
	}
	/* the key of the first room reaches the last one */
	assert_int_equal(mw->rkey, old);
	assert_int_equal(try_write(&e, 8192, 16, old), IBV_WC_SUCCESS);
	assert_int_equal(e.b.mem[8193], e.a.mem[1]);
	assert_int_equal(ibv_dealloc_mw(mw), 0);
	ends_stop(&e);
}

static void closed_by_invalidation(void **state)
{
	struct ibv_mw *mw;
	struct ends e;
	unsigned int m;

	(void)state;
	for (m = FV_STRICT; m <= FV_RXE; m++) {
		ends_start(&e, m, 'B');
		mw = window(&e, 0, 4096);
		assert_int_equal(invalidate(&e.b, mw->rkey), IBV_WC_SUCCESS);
		assert_int_equal(try_write(&e, 0, 16, mw->rkey),
				 IBV_WC_REM_ACCESS_ERR);
		assert_int_equal(e.b.mem[1], 0);
		assert_int_equal(ibv_dealloc_mw(mw), 0);
		ends_stop(&e);
	}
}

static void invalidated_twice(void **state)
{
	struct ibv_mw *mw;
	struct ends e;
	unsigned int m;

	(void)state;
	for (m = FV_STRICT; m <= FV_RXE; m++) {
		ends_start(&e, m, 'B');
		mw = window(&e, 0, 4096);
		assert_int_equal(invalidate(&e.b, mw->rkey), IBV_WC_SUCCESS);
		assert_int_equal(invalidate(&e.b, mw->rkey),
				 IBV_WC_MW_BIND_ERR);
		assert_int_equal(fv_violations(), m == FV_RXE);
		fv_forgive();
		assert_int_equal(ibv_dealloc_mw(mw), 0);
		ends_stop(&e);
	}
}

/* In ERR it is only flushed, and proves nothing: the window is open still. */
static void flushed_invalidation(void **state)
{
	struct ibv_mw *mw;
	struct ends e;

	(void)state;
	ends_start(&e, FV_RXE, 'B');
	mw = window(&e, 0, 4096);
	to_err(e.b.qp);
	assert_int_equal(invalidate(&e.b, mw->rkey), IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(ibv_destroy_qp(e.b.qp), 0);
	e.b.qp = NULL;
	assert_int_equal(fv_violations(), 1); /* 51 s */
	fv_forgive();
	assert_int_equal(ibv_dealloc_mw(mw), 0);
	ends_stop(&e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(in_range),
		cmocka_unit_test(of_its_queue_pair),
		cmocka_unit_test(own_key_stays_shut),
		cmocka_unit_test(binding),
		cmocka_unit_test(tag_wraps),
		cmocka_unit_test(closed_by_invalidation),
		cmocka_unit_test(invalidated_twice),
		cmocka_unit_test(flushed_invalidation),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
