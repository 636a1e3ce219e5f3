/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims about the double, so that tests over it mean something:
 *  - bytes move where a key allows, in order; messages need a receive;
 *  - an unsignalled request completes silently and frees its place with the
 *    next completion that is polled; a queue of n takes n;
 *  - a foreign domain, a wrong flag, tag or range: refused before a byte
 *    changes, both queue pairs in ERR, everything behind flushed;
 *  - the channel and the events are descriptors that poll() sees, and only
 *    what completes after arming tells;
 *  - objects in use are not destroyed, and what is left is reported.
 */
#include "tests/unit/fake_verbs/ends.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>

static bool readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

static void bytes_move(void **state)
{
	struct fv_counts n;
	struct ends e;

	(void)state;
	ends_start(&e, FV_STRICT, 'B');
	assert_int_equal(
		post_write(&e.a, 1, 100, 5000, at(&e.b, 300), e.b.mr->rkey), 0);
	expect_wc(&e.a, 1, IBV_WC_SUCCESS);
	assert_memory_equal(e.b.mem + 300, e.a.mem + 100, 5000);
	assert_int_equal(e.b.mem[299] | e.b.mem[5300], 0);
	assert_int_equal(
		post_read(&e.b, 2, 20000, 4000, at(&e.a, 7), e.a.mr->rkey), 0);
	expect_wc(&e.b, 2, IBV_WC_SUCCESS);
	assert_memory_equal(e.b.mem + 20000, e.a.mem + 7, 4000);
	/* messages: one waits for a receive, and those behind it */
	assert_int_equal(post_msg(&e.a, 3, 0, 64), 0);
	assert_int_equal(
		post_write(&e.a, 4, 0, 64, at(&e.b, 40000), e.b.mr->rkey), 0);
	expect_no_wc(&e.a);
	assert_int_equal(e.b.mem[40001], 0);
	assert_int_equal(post_buf(&e.b, 5, 50000, 64), 0);
	expect_wc(&e.b, 5, IBV_WC_SUCCESS);
	expect_wc(&e.a, 3, IBV_WC_SUCCESS);
	expect_wc(&e.a, 4, IBV_WC_SUCCESS);
	assert_memory_equal(e.b.mem + 50000, e.a.mem, 64);
	assert_memory_equal(e.b.mem + 40000, e.a.mem, 64);
	fv_counts(&n);
	assert_int_equal(n.rnr, 1);
	assert_int_equal(n.writes, 2);
	assert_int_equal(n.refused, 0);
	ends_stop(&e);
}

static void places_come_back(void **state)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_RDMA_WRITE,
		.sg_list = &sge,
		.num_sge = 1,
	};
	struct ibv_send_wr *bad;
	struct ends e;
	int i;

	(void)state;
	ends_start(&e, FV_STRICT, 'B');
	sge = (struct ibv_sge){
		.addr = at(&e.a, 0),
		.length = 8,
		.lkey = e.a.mr->lkey,
	};
	wr.wr.rdma.remote_addr = at(&e.b, 0);
	wr.wr.rdma.rkey = e.b.mr->rkey;
	for (i = 0; i < 31; i++)
		assert_int_equal(ibv_post_send(e.a.qp, &wr, &bad), 0);
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr_id = 9;
	assert_int_equal(ibv_post_send(e.a.qp, &wr, &bad), 0);
	/* all executed, none given back */
	assert_int_equal(ibv_post_send(e.a.qp, &wr, &bad), ENOMEM);
	assert_ptr_equal(bad, &wr);
	expect_wc(&e.a, 9, IBV_WC_SUCCESS);
	expect_no_wc(&e.a);
	for (i = 0; i < 32; i++)
		assert_int_equal(ibv_post_send(e.a.qp, &wr, &bad), 0);
	for (i = 0; i < 32; i++)
		expect_wc(&e.a, 9, IBV_WC_SUCCESS);
	ends_stop(&e);
}

/* @rkey at @addr is refused: @len bytes from there. */
static void refused(enum fv_model model, uint32_t delta, int64_t off,
		    uint32_t len, unsigned int access, bool foreign)
{
	struct ibv_pd *pd = NULL;
	struct ibv_mr *mr;
	struct ends e;
	uint32_t i;

	ends_start(&e, model, 'B');
	if (foreign) {
		pd = ibv_alloc_pd(e.b.ctx);
		assert_non_null(pd);
	}
	mr = ibv_reg_mr(pd ? pd : e.b.pd, e.b.mem + 8192, 4096, (int)access);
	assert_non_null(mr);
	assert_int_equal(post_buf(&e.b, 1, 0, 64), 0);
	assert_int_equal(post_buf(&e.b, 2, 0, 64), 0);
	assert_int_equal(post_write(&e.a, 3, 0, len,
				    at(&e.b, 8192) + (uint64_t)off,
				    mr->rkey + delta),
			 0);
	/* behind it; the queue pair is dead already */
	assert_int_equal(post_write(&e.a, 4, 0, 8, at(&e.b, 0), e.b.mr->rkey),
			 0);
	expect_wc(&e.a, 3, IBV_WC_REM_ACCESS_ERR);
	expect_wc(&e.a, 4, IBV_WC_WR_FLUSH_ERR);
	expect_wc(&e.b, 1, IBV_WC_WR_FLUSH_ERR);
	expect_wc(&e.b, 2, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(post_buf(&e.b, 5, 0, 64), 0);
	expect_wc(&e.b, 5, IBV_WC_WR_FLUSH_ERR);
	for (i = 0; i < MEM; i++)
		assert_int_equal(e.b.mem[i], 0);
	/* rxe tells its own side nothing else */
	assert_int_equal(readable(e.b.ctx->async_fd), model == FV_STRICT);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	if (pd)
		assert_int_equal(ibv_dealloc_pd(pd), 0);
	ends_stop(&e);
}

static void keys_confine(void **state)
{
	unsigned int m;

	(void)state;
	for (m = FV_STRICT; m <= FV_RXE; m++) {
		refused(m, 0, 0, 4097, RANGE, false);
		refused(m, 0, -1, 2, RANGE, false);
		refused(m, 0, 4096, 1, RANGE, false);
		refused(m, 1, 0, 16, RANGE, false); /* tag */
		refused(m, 0x1000000, 0, 16, RANGE, false);
		refused(m, 0, 0, 16, IBV_ACCESS_LOCAL_WRITE, false);
		refused(m, 0, 0, 16, RANGE, true);
	}
}

static void local_keys(void **state)
{
	struct ends e;
	struct ibv_mr *mr;

	(void)state;
	ends_start(&e, FV_STRICT, 'B');
	mr = e.a.mr;
	/* of the other side's domain */
	e.a.mr = e.b.mr;
	assert_int_equal(post_write(&e.a, 1, 0, 8, at(&e.b, 0), e.b.mr->rkey),
			 0);
	expect_wc(&e.a, 1, IBV_WC_LOC_PROT_ERR);
	e.a.mr = mr;
	assert_int_equal(post_msg(&e.a, 2, 0, 8), 0);
	expect_wc(&e.a, 2, IBV_WC_WR_FLUSH_ERR);
	/* memory that is not there, and lengths that wrap */
	assert_null(ibv_reg_mr(e.a.pd, (void *)4096, 4096, RANGE));
	assert_int_equal(errno, EFAULT);
	assert_null(ibv_reg_mr(e.a.pd, e.a.mem, 0, RANGE));
	assert_null(ibv_reg_mr(e.a.pd, e.a.mem, SIZE_MAX, RANGE));
	ends_stop(&e);
}

static void events_wake(void **state)
{
	struct ibv_async_event ev;
	struct ibv_cq *cq;
	struct ends e;
	void *user;

	(void)state;
	ends_start(&e, FV_STRICT, 'B');
	assert_int_equal(fcntl(e.b.chan->fd, F_SETFL, O_NONBLOCK), 0);
	assert_int_equal(fcntl(e.b.ctx->async_fd, F_SETFL, O_NONBLOCK), 0);
	assert_int_equal(post_buf(&e.b, 1, 0, 64), 0);
	assert_int_equal(post_buf(&e.b, 2, 0, 64), 0);
	assert_int_equal(post_msg(&e.a, 3, 0, 64), 0);
	assert_false(readable(e.b.chan->fd));
	assert_int_equal(ibv_get_cq_event(e.b.chan, &cq, &user), -1);
	assert_int_equal(errno, EAGAIN);
	/* what is there already does not tell */
	assert_int_equal(ibv_req_notify_cq(e.b.cq, 0), 0);
	assert_false(readable(e.b.chan->fd));
	assert_int_equal(post_msg(&e.a, 4, 0, 64), 0);
	assert_true(readable(e.b.chan->fd));
	assert_int_equal(ibv_get_cq_event(e.b.chan, &cq, &user), 0);
	assert_ptr_equal(cq, e.b.cq);
	assert_ptr_equal(user, &e.b);
	assert_false(readable(e.b.chan->fd));
	ibv_ack_cq_events(cq, 1);
	/* a port, and all of its device's contexts */
	fv_port_set(e.dev, 1, false);
	assert_true(readable(e.a.ctx->async_fd));
	assert_int_equal(ibv_get_async_event(e.b.ctx, &ev), 0);
	assert_int_equal(ev.event_type, IBV_EVENT_PORT_ERR);
	assert_int_equal(ev.element.port_num, 1);
	ibv_ack_async_event(&ev);
	assert_int_equal(post_write(&e.a, 5, 0, 8, at(&e.b, 0), e.b.mr->rkey),
			 0);
	expect_wc(&e.a, 3, IBV_WC_SUCCESS);
	expect_wc(&e.a, 4, IBV_WC_SUCCESS);
	expect_no_wc(&e.a);
	fv_port_set(e.dev, 1, true);
	expect_wc(&e.a, 5, IBV_WC_SUCCESS);
	/* armed, an event unread, destroyed: nothing is left to read */
	assert_int_equal(ibv_req_notify_cq(e.b.cq, 0), 0);
	to_err(e.b.qp);
	assert_int_equal(post_buf(&e.b, 9, 0, 64), 0);
	assert_true(readable(e.b.chan->fd));
	ends_stop(&e);
}

static void *wait_event(void *arg)
{
	struct end *x = arg;
	struct ibv_cq *cq;
	void *user;

	if (ibv_get_cq_event(x->chan, &cq, &user))
		return NULL;
	ibv_ack_cq_events(cq, 1);
	return cq;
}

/* Who waits in another thread is woken, by a descriptor that blocks. */
static void events_wake_threads(void **state)
{
	struct ends e;
	pthread_t t;
	void *got;

	(void)state;
	ends_start(&e, FV_STRICT, 'B');
	assert_int_equal(ibv_req_notify_cq(e.b.cq, 0), 0);
	assert_int_equal(pthread_create(&t, NULL, wait_event, &e.b), 0);
	assert_int_equal(post_buf(&e.b, 1, 0, 64), 0);
	assert_int_equal(post_msg(&e.a, 2, 0, 64), 0);
	assert_int_equal(pthread_join(t, &got), 0);
	assert_ptr_equal(got, e.b.cq);
	ends_stop(&e);
}

static void shared_receives(void **state)
{
	struct ibv_srq_init_attr init = {
		.attr = { .max_wr = 2, .max_sge = 1 },
	};
	struct ibv_qp_init_attr qi = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_send_sge = 1 },
	};
	struct ibv_recv_wr *bad;
	struct ibv_recv_wr wr;
	struct ibv_srq *srq;
	struct ibv_sge sge;
	struct ibv_qp *qp;
	struct ends e;

	(void)state;
	ends_start(&e, FV_STRICT, 'B');
	srq = ibv_create_srq(e.b.pd, &init);
	assert_non_null(srq);
	qi.send_cq = e.b.cq;
	qi.recv_cq = e.b.cq;
	qi.srq = srq;
	qp = ibv_create_qp(e.b.pd, &qi);
	assert_non_null(qp);
	sge = (struct ibv_sge){ at(&e.b, 0), 64, e.b.mr->lkey };
	wr = (struct ibv_recv_wr){ .sg_list = &sge, .num_sge = 1 };
	assert_int_equal(ibv_post_srq_recv(srq, &wr, &bad), 0);
	assert_int_equal(ibv_post_srq_recv(srq, &wr, &bad), 0);
	assert_int_equal(ibv_post_srq_recv(srq, &wr, &bad), ENOMEM);
	assert_int_equal(ibv_post_recv(qp, &wr, &bad), EINVAL);
	assert_int_equal(ibv_destroy_srq(srq), EBUSY);
	assert_int_equal(ibv_destroy_qp(qp), 0);
	assert_int_equal(ibv_destroy_srq(srq), 0);
	ends_stop(&e);
}

static void teardown_order(void **state)
{
	struct fv_counts n;
	struct ends e;

	(void)state;
	ends_start(&e, FV_STRICT, 'B');
	assert_int_equal(ibv_dealloc_pd(e.a.pd), EBUSY);
	assert_int_equal(ibv_destroy_cq(e.a.cq), EBUSY);
	assert_int_equal(ibv_destroy_comp_channel(e.a.chan), EBUSY);
	end_close(&e.a);
	/* what a process forgets its kernel does not */
	assert_int_equal(ibv_close_device(e.b.ctx), 0);
	free(e.b.mem);
	fv_counts(&n);
	assert_int_equal(n.left_behind, 5);
	assert_int_equal(fv_end(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_move),
		cmocka_unit_test(places_come_back),
		cmocka_unit_test(keys_confine),
		cmocka_unit_test(local_keys),
		cmocka_unit_test(events_wake),
		cmocka_unit_test(events_wake_threads),
		cmocka_unit_test(shared_receives),
		cmocka_unit_test(teardown_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
