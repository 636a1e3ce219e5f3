/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims about the double's held writes:
 *  - the chosen write waits, and what is behind it; others pass;
 *  - it lands piece by piece, each piece by a key that must be good then;
 *  - it outlives its writer;
 *  - after LOCAL_INV, dealloc_mw, dereg_mr, ERR and destruction it changes no
 *    byte, but for the packet that rxe has in hand, which lands after the
 *    first two and ERR, and not after dereg_mr, nor 20 ms into ERR;
 *  - a device that does what none may is caught by comparing bytes.
 */
#include "tests/unit/fake_verbs/ends.h"

#include <time.h>

#define LEN 10000u
#define MTU 1024u

enum stop {
	BY_INVALIDATE,
	BY_DEALLOC,
	BY_DEREG,
	BY_ERR,
	BY_DESTROY, /* in ERR for 20 ms before */
	STOPS,
};

static struct fv_flight *hold_one(struct ends *e, uint32_t rkey)
{
	fv_hold(1, 1);
	assert_int_equal(post_write(&e->a, 1, 0, LEN, at(&e->b, 0), rkey), 0);
	expect_no_wc(&e->a);
	assert_int_equal(fv_held(), 1);
	return fv_flight(0);
}

static void waits_and_lands(void **state)
{
	struct fv_flight *f;
	struct ends e;

	(void)state;
	ends_start(&e, FV_STRICT, 'B');
	/* the second of three */
	fv_hold(2, 1);
	assert_int_equal(
		post_write(&e.a, 1, 0, 8, at(&e.b, 20000), e.b.mr->rkey), 0);
	expect_wc(&e.a, 1, IBV_WC_SUCCESS);
	assert_int_equal(post_write(&e.a, 2, 0, LEN, at(&e.b, 0), e.b.mr->rkey),
			 0);
	assert_int_equal(
		post_write(&e.a, 3, 0, 8, at(&e.b, 30000), e.b.mr->rkey), 0);
	expect_no_wc(&e.a);
	assert_int_equal(fv_held(), 1);
	f = fv_flight(0);
	assert_int_equal(fv_flight_len(f), LEN);
	assert_int_equal(e.b.mem[1], 0);
	/* by pieces that are none of the packets' */
	assert_int_equal(fv_land(f, 700), 0);
	assert_memory_equal(e.b.mem, e.a.mem, 700);
	assert_int_equal(e.b.mem[701], 0);
	assert_int_equal(fv_land(f, 5000), 0);
	assert_memory_equal(e.b.mem, e.a.mem, 5700);
	assert_int_equal(e.b.mem[5701], 0);
	assert_int_equal(fv_flight_at(f), 5700);
	expect_no_wc(&e.a);
	assert_int_equal(fv_land(f, UINT64_MAX), 0);
	assert_memory_equal(e.b.mem, e.a.mem, LEN);
	expect_wc(&e.a, 2, IBV_WC_SUCCESS);
	expect_wc(&e.a, 3, IBV_WC_SUCCESS);
	assert_int_equal(fv_held(), 0);
	ends_stop(&e);
}

static void outlives_its_writer(void **state)
{
	struct fv_flight *f;
	struct ends e;

	(void)state;
	ends_start(&e, FV_STRICT, 'B');
	f = hold_one(&e, e.b.mr->rkey);
	to_err(e.a.qp);
	expect_wc(&e.a, 1, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(ibv_destroy_qp(e.a.qp), 0);
	e.a.qp = NULL;
	assert_int_equal(fv_land(f, UINT64_MAX), 0);
	assert_memory_equal(e.b.mem, e.a.mem, LEN);
	ends_stop(&e);
}

static void settle(void)
{
	struct timespec t = { .tv_nsec = 21000000 };

	/* the time is what is tested: rxe needs 20 ms in ERR */
	nanosleep(&t, NULL);
}

/* Stop a write of which @in_hand packets are in hand. */
static void stopped(enum fv_model model, enum stop how, bool in_hand)
{
	bool window = how == BY_INVALIDATE || how == BY_DEALLOC;
	bool late = in_hand && model == FV_RXE && how != BY_DEREG &&
		    how != BY_DESTROY;
	unsigned char *copy = malloc(MEM);
	struct ibv_mw *mw = NULL;
	struct fv_flight *f;
	struct ends e;
	uint32_t rkey;

	assert_non_null(copy);
	ends_start(&e, model, 'B');
	rkey = e.b.mr->rkey;
	if (window) {
		mw = ibv_alloc_mw(e.b.pd, IBV_MW_TYPE_2);
		assert_non_null(mw);
		rkey = ibv_inc_rkey(mw->rkey);
		assert_int_equal(bind_on(&e.b, e.b.qp, mw, rkey, 0, LEN),
				 IBV_WC_SUCCESS);
	}
	f = hold_one(&e, rkey);
	assert_int_equal(fv_land(f, 3000), 0);
	if (in_hand)
		assert_int_equal(fv_take(f), 0);
	switch (how) {
	case BY_INVALIDATE:
		assert_int_equal(invalidate(&e.b, rkey), IBV_WC_SUCCESS);
		break;
	case BY_DEALLOC:
		assert_int_equal(ibv_dealloc_mw(mw), 0);
		mw = NULL;
		break;
	case BY_DEREG:
		assert_int_equal(ibv_dereg_mr(e.b.mr), 0);
		e.b.mr = NULL;
		break;
	case BY_DESTROY:
		to_err(e.b.qp);
		settle();
		assert_int_equal(ibv_destroy_qp(e.b.qp), 0);
		e.b.qp = NULL;
		break;
	case BY_ERR:
	case STOPS:
		to_err(e.b.qp);
		break;
	}
	memcpy(copy, e.b.mem, MEM);
	assert_int_equal(fv_place(f), late ? 3 * MTU - 3000 : 0);
	assert_int_equal(memcmp(copy, e.b.mem, MEM) != 0, late);
	memcpy(copy, e.b.mem, MEM);
	assert_int_equal(fv_land(f, UINT64_MAX),
			 how == BY_ERR || how == BY_DESTROY ? -ENOTCONN
							    : -EACCES);
	assert_memory_equal(copy, e.b.mem, MEM);
	assert_int_equal(fv_held(), 0);
	/* who asked learns of it, at the latest when its retries are over */
	fv_retries_expire();
	expect_wc(&e.a, 1,
		  how == BY_ERR || how == BY_DESTROY ? IBV_WC_RETRY_EXC_ERR
						     : IBV_WC_REM_ACCESS_ERR);
	if (mw)
		assert_int_equal(ibv_dealloc_mw(mw), 0);
	free(copy);
	ends_stop(&e);
}

static void nothing_after_the_proof(void **state)
{
	unsigned int m, s;

	(void)state;
	for (m = FV_STRICT; m <= FV_RXE; m++)
		for (s = 0; s < STOPS; s++) {
			stopped(m, s, false);
			stopped(m, s, true);
		}
}

/* Without the wait: what is in hand outlives the queue pair, on rxe. */
static void destroyed_too_soon(void **state)
{
	struct fv_flight *f;
	struct fv_counts n;
	struct ends e;

	(void)state;
	ends_start(&e, FV_RXE, 'B');
	f = hold_one(&e, e.b.mr->rkey);
	assert_int_equal(fv_take(f), 0);
	to_err(e.b.qp);
	assert_int_equal(ibv_destroy_qp(e.b.qp), 0);
	e.b.qp = NULL;
	assert_int_equal(e.b.mem[1], 0);
	assert_int_equal(fv_place(f), MTU);
	assert_int_equal(e.b.mem[1], e.a.mem[1]);
	fv_counts(&n);
	assert_int_equal(n.late, MTU);
	ends_stop(&e);
}

static void destroyed_under_traffic(void **state)
{
	struct fv_flight *f;
	struct ends e;

	(void)state;
	ends_start(&e, FV_RXE, 'B');
	f = hold_one(&e, e.b.mr->rkey);
	assert_int_equal(fv_take(f), 0);
	assert_int_equal(ibv_destroy_qp(e.b.qp), 0);
	e.b.qp = NULL;
	assert_int_equal(fv_violations(), 1);
	fv_forgive();
	ends_stop(&e);
}

static void no_device_may(void **state)
{
	struct fv_flight *f;
	struct ends e;

	(void)state;
	ends_start(&e, FV_STRICT, 'B');
	f = hold_one(&e, e.b.mr->rkey);
	assert_int_equal(ibv_dereg_mr(e.b.mr), 0);
	e.b.mr = NULL;
	fv_force(f, 512, 16);
	assert_memory_equal(e.b.mem + 512, e.a.mem + 512, 16);
	assert_int_equal(e.b.mem[1], 0);
	fv_drop(f);
	assert_int_equal(fv_held(), 0);
	ends_stop(&e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(waits_and_lands),
		cmocka_unit_test(outlives_its_writer),
		cmocka_unit_test(nothing_after_the_proof),
		cmocka_unit_test(destroyed_too_soon),
		cmocka_unit_test(destroyed_under_traffic),
		cmocka_unit_test(no_device_may),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
