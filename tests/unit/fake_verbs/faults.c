/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims about the double's plans: the n-th call fails with that errno and no
 * other does, and nothing is left of it; flushes get lost; a completion queue
 * that overflows, events that nobody acknowledges and limits of a device are
 * seen; a dead device answers EIO and lets itself be taken down; devices
 * reach each other by address, of the same kind of network only.
 */
#include "tests/unit/fake_verbs/ends.h"

#include <stdio.h>
#include <unistd.h>

static void nth_call(void **state)
{
	struct fv_live live, after;
	struct ibv_mr *mr[4];
	struct ends e;
	int i;

	(void)state;
	ends_start(&e, FV_STRICT, 'B');
	fv_live(&live);
	fv_fail(FV_REG_MR, 3, 1, ENOMEM);
	for (i = 0; i < 4; i++) {
		errno = 0;
		mr[i] = ibv_reg_mr(e.a.pd, e.a.mem, 64, RANGE);
		assert_int_equal(mr[i] == NULL, i == 2);
		assert_int_equal(errno, i == 2 ? ENOMEM : 0);
	}
	assert_int_equal(fv_failed(), 1);
	fv_live(&after);
	assert_int_equal(after.mrs, live.mrs + 3);
	for (i = 0; i < 4; i++)
		if (mr[i])
			assert_int_equal(ibv_dereg_mr(mr[i]), 0);
	/* of any kind; and one that fails to destroy stays */
	fv_fail(FV_ANY, 1, 2, EINTR);
	assert_int_equal(ibv_dereg_mr(e.a.mr), EINTR);
	assert_int_equal(post_msg(&e.a, 1, 0, 8), EINTR);
	assert_int_equal(post_msg(&e.a, 2, 0, 8), 0);
	assert_int_equal(fv_failed(), 2);
	ends_stop(&e);
}

static void flushes_get_lost(void **state)
{
	struct fv_counts n;
	struct ends e;

	(void)state;
	ends_start(&e, FV_STRICT, 'B');
	assert_int_equal(post_buf(&e.b, 1, 0, 8), 0);
	assert_int_equal(post_buf(&e.b, 2, 0, 8), 0);
	assert_int_equal(post_buf(&e.b, 3, 0, 8), 0);
	fv_lose_flushes(2);
	to_err(e.b.qp);
	expect_wc(&e.b, 3, IBV_WC_WR_FLUSH_ERR);
	expect_no_wc(&e.b);
	fv_counts(&n);
	assert_int_equal(n.flushes, 3);
	assert_int_equal(n.flushes_lost, 2);
	ends_stop(&e);
}

static void what_nobody_may(void **state)
{
	struct ibv_cq *cq, *small;
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4,
			 .max_send_sge = 1,
			 .max_recv_wr = 4,
			 .max_recv_sge = 1 },
	};
	struct ibv_recv_wr wr = { .wr_id = 1 };
	struct ibv_recv_wr *bad;
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp *qp;
	struct ends e;
	void *user;
	int i;

	(void)state;
	ends_start(&e, FV_STRICT, 'B');
	small = ibv_create_cq(e.b.ctx, 2, NULL, e.b.chan, 0);
	assert_non_null(small);
	init.send_cq = small;
	init.recv_cq = small;
	qp = ibv_create_qp(e.b.pd, &init);
	assert_non_null(qp);
	assert_int_equal(ibv_modify_qp(qp, &a,
				       IBV_QP_STATE | IBV_QP_PKEY_INDEX |
					       IBV_QP_PORT |
					       IBV_QP_ACCESS_FLAGS),
			 0);
	for (i = 0; i < 3; i++)
		assert_int_equal(ibv_post_recv(qp, &wr, &bad), 0);
	assert_int_equal(ibv_req_notify_cq(small, 0), 0);
	to_err(qp);
	assert_int_equal(fv_violations(), 1);
	assert_int_equal(ibv_get_cq_event(e.b.chan, &cq, &user), 0);
	assert_int_equal(ibv_destroy_qp(qp), 0);
	/* waits for the acknowledgement, for ever */
	assert_int_equal(ibv_destroy_cq(small), EBUSY);
	assert_int_equal(fv_violations(), 2);
	ibv_ack_cq_events(cq, 1);
	assert_int_equal(ibv_destroy_cq(small), 0);
	/* a state is reached by its mask and from the one before only */
	a.qp_state = IBV_QPS_RTR;
	assert_int_equal(ibv_modify_qp(e.b.qp, &a, IBV_QP_STATE), EINVAL);
	fv_forgive();
	ends_stop(&e);
}

static void limits(void **state)
{
	struct fv_spec s = {
		.name = "small",
		.max_qp = 2,
		.max_mr = 2,
		.qp_sge = 2,
		.max_sge = 8,
	};
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_send_sge = 3 },
	};
	struct ends e = { 0 };

	(void)state;
	fv_begin();
	ends_join(&e, fv_device_add(&s));
	init.send_cq = e.a.cq;
	init.recv_cq = e.a.cq;
	assert_null(ibv_create_qp(e.a.pd, &init));
	assert_int_equal(errno, EINVAL);
	init.cap.max_send_sge = 2;
	assert_null(ibv_create_qp(e.a.pd, &init));
	assert_int_equal(errno, ENOMEM);
	assert_null(ibv_reg_mr(e.a.pd, e.a.mem, 64, RANGE));
	assert_int_equal(errno, ENOMEM);
	ends_stop(&e);
}

static void device_dies(void **state)
{
	struct ibv_async_event ev;
	struct ends e;

	(void)state;
	ends_start(&e, FV_STRICT, 'B');
	fv_device_die(e.dev);
	assert_int_equal(ibv_get_async_event(e.a.ctx, &ev), 0);
	assert_int_equal(ev.event_type, IBV_EVENT_DEVICE_FATAL);
	ibv_ack_async_event(&ev);
	assert_int_equal(post_msg(&e.a, 1, 0, 8), EIO);
	assert_null(ibv_reg_mr(e.a.pd, e.a.mem, 64, RANGE));
	to_err(e.a.qp);
	ends_stop(&e);
}

/* A key's place that is used again has another tag, until that wraps. */
static void keys_used_again(void **state)
{
	struct fv_spec s = { .name = "reuse", .reuse_keys = true };
	struct ends e = { 0 };
	struct ibv_mr *mr;
	uint32_t first = 0;
	int i;

	(void)state;
	fv_begin();
	ends_join(&e, fv_device_add(&s));
	for (i = 0; i <= 256; i++) {
		mr = ibv_reg_mr(e.b.pd, e.b.mem, 64, RANGE);
		assert_non_null(mr);
		if (!i)
			first = mr->rkey;
		assert_int_equal(mr->rkey >> 8, first >> 8);
		assert_int_equal(mr->rkey == first, i % 256 == 0);
		assert_int_equal(ibv_dereg_mr(mr), 0);
	}
	ends_stop(&e);
}

static void described(void **state)
{
	struct fv_spec all[] = {
		{ .name = "rxe0", .driver = "rxe", .model = FV_RXE },
		{ .name = "mlx5_0",
		  .driver = "mlx5_core",
		  .numa = 2,
		  .ports = 2 },
		{ .name = "ib0", .infiniband = true, .down = true },
	};
	struct ibv_gid_entry g[FV_GIDS_MAX];
	struct ibv_device_attr a;
	struct ibv_port_attr p;
	struct ibv_device **list;
	struct ibv_context *c;
	char path[IBV_SYSFS_PATH_MAX + 32], link[64];
	ssize_t len;
	int i, n;

	(void)state;
	fv_begin();
	for (i = 0; i < 3; i++)
		fv_device_add(&all[i]);
	list = ibv_get_device_list(&n);
	assert_int_equal(n, 3);
	assert_null(list[3]);
	assert_string_equal(ibv_get_device_name(list[1]), "mlx5_0");
	snprintf(path, sizeof(path), "%s/device/driver", list[1]->ibdev_path);
	len = readlink(path, link, sizeof(link) - 1);
	assert_true(len > 0);
	link[len] = '\0';
	assert_string_equal(strrchr(link, '/'), "/mlx5_core");
	snprintf(path, sizeof(path), "%s/parent", list[0]->ibdev_path);
	assert_int_equal(access(path, F_OK), 0);
	c = ibv_open_device(list[1]);
	assert_non_null(c);
	assert_int_equal(ibv_query_device(c, &a), 0);
	assert_int_equal(a.phys_port_cnt, 2);
	assert_int_equal(ibv_query_gid_table(c, g, FV_GIDS_MAX, 0), 8);
	assert_int_equal(g[3].gid.raw[12], 10);
	assert_int_equal(g[7].port_num, 2);
	assert_int_equal(ibv_close_device(c), 0);
	c = ibv_open_device(list[2]);
	assert_non_null(c);
	assert_int_equal(ibv_query_port(c, 1, &p), 0);
	assert_int_equal(p.state, IBV_PORT_DOWN);
	assert_int_not_equal(p.lid, 0);
	assert_int_equal(ibv_query_port(c, 2, &p), EINVAL);
	assert_int_equal(ibv_close_device(c), 0);
	ibv_free_device_list(list);
	assert_int_equal(fv_end(), 0);
	assert_int_not_equal(access(path, F_OK), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nth_call),
		cmocka_unit_test(flushes_get_lost),
		cmocka_unit_test(what_nobody_may),
		cmocka_unit_test(limits),
		cmocka_unit_test(device_dies),
		cmocka_unit_test(keys_used_again),
		cmocka_unit_test(described),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
