/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, over devices of the double: which of them are used, and what is said
 * of those that are not; kind of grant by driver; node, list, port, GID index
 * and MTU as asked for; small limits of a device are kept to, and one whose
 * limits leave no room for a queue pair of ours is refused; owners are
 * spread over devices, and both ends meet on one network; sides whose networks
 * differ do not get a connection; the credits keep every message from finding
 * no receive.
 */
#include "tests/unit/rdma/verbs_double.h"

#include <sys/socket.h>

#include "lib/log.h"

#define LEN (256 * KIB)

static struct kvs_verbs_info info[KVS_VERBS_DEVS_MAX];
static char message[1024];

/* Return: what kvs_verbs_create() did; @info of all when it is 0. */
static int look(const struct fv_spec *s, unsigned int n,
		const struct kvs_verbs_opts *v)
{
	struct kvs_transport_opts o = { .engine = "sock" };
	struct kvs_transport *t;
	int rc;

	vd_begin_with(s, n);
	memset(info, 0, sizeof(info));
	message[0] = '\0';
	rc = kvs_verbs_create(&o, v, &t, message, sizeof(message));
	if (!rc) {
		assert_int_equal(kvs_verbs_devices(t, info, KVS_VERBS_DEVS_MAX),
				 n);
		kvs_transport_destroy(t);
	}
	vd_end(false);
	return rc;
}

static void by_driver(void **state)
{
	static const struct {
		const char *driver;
		const char *grant; /* NULL: not used */
	} all[] = {
		{ "rxe", "mr" },	   { "mlx5_core", "window" },
		{ "mlx4_core", "window" }, { "ice", "window" },
		{ "ionic", "window" },	   { "bnxt_en", "mr" },
		{ "hns3", "mr" },	   { "mana", "mr" },
		{ "never_seen", "mr" },	   { NULL, "mr" },
		{ "efa", NULL },	   { "siw", NULL },
		{ "i40e", NULL },	   { "cxgb4", NULL },
	};
	unsigned int i;

	(void)state;
	for (i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct fv_spec s = { .name = "x0", .driver = all[i].driver };
		int rc = look(&s, 1, NULL);

		assert_int_equal(rc, all[i].grant ? 0 : -ENODEV);
		if (rc) {
			assert_non_null(strstr(message, "x0: "));
			continue;
		}
		assert_string_equal(info[0].grant, all[i].grant);
		assert_string_equal(info[0].driver,
				    all[i].driver ? all[i].driver : "?");
		assert_non_null(
			strstr(info[0].proof, strcmp(all[i].grant, "mr")
						      ? "LOCAL_INV completed"
						      : "ibv_dereg_mr"));
		assert_true(info[0].used);
		assert_non_null(strstr(info[0].why, "auto: "));
		assert_non_null(strstr(info[0].why, info[0].driver));
	}
}

static void says(const char *window, const char *mr, const char *qp)
{
	static const enum kvs_verbs_grant_kind kinds[] = {
		KVS_VERBS_GRANT_WINDOW,
		KVS_VERBS_GRANT_MR,
		KVS_VERBS_GRANT_QP,
	};
	const char *const want[] = { window, mr, qp };
	unsigned int i;

	for (i = 0; i < 3; i++)
		if (strncmp(info[0].kind[kinds[i]], want[i], strlen(want[i])))
			fail_msg("%s: %s, not %s",
				 kvs_verbs_grant_name[kinds[i]],
				 info[0].kind[kinds[i]], want[i]);
}

/* Which kinds there are, which was taken, by what trial and why. */
static void kinds_are_told(void **state)
{
	struct fv_spec s = { .name = "x0", .driver = "mlx5_core" };
	struct kvs_verbs_opts v = { .node = -1, .gid_index = -1 };

	(void)state;
	assert_int_equal(look(&s, 1, &v), 0);
	says("passed", "not tried", "not tried");
	assert_string_equal(info[0].why, "auto: as is known of mlx5_core");
	assert_non_null(strstr(info[0].trial, "invalidated"));
	/* another than would be best: why not that one */
	s.windows = '-';
	assert_int_equal(look(&s, 1, &v), 0);
	says("none", "passed", "not tried");
	assert_non_null(strstr(info[0].why, "it has no windows"));
	assert_non_null(strstr(info[0].trial, "registration"));
	s.windows = 'B';
	s.model = FV_RXE;
	assert_int_equal(look(&s, 1, &v), 0);
	says("failed: windows are not held", "passed", "not tried");
	assert_non_null(strstr(info[0].why, "bounds"));
	/* as it is set, whatever was found */
	v.grant = KVS_VERBS_GRANT_WINDOW;
	assert_int_equal(look(&s, 1, &v), 0);
	says("failed: windows are not held", "not tried", "not tried");
	assert_non_null(strstr(info[0].why, "rdma.grant = window, although"));
	v.grant = KVS_VERBS_GRANT_QP;
	assert_int_equal(look(&s, 1, &v), 0);
	says("not tried", "not tried", "passed");
	assert_string_equal(info[0].why, "rdma.grant = qp");
	assert_non_null(strstr(info[0].trial, "destroyed"));
	/* nobody is let in */
	v.no_grants = true;
	assert_int_equal(look(&s, 1, &v), 0);
	says("not tried", "not tried", "not tried");
	assert_string_equal(info[0].why, "-");
	/* one that is not used, and one that cannot be */
	v.no_grants = false;
	s.driver = "efa";
	assert_int_equal(look(&s, 1, &v), -ENODEV);
}

/* What a driver promises is tried; what does not hold is not used. */
static void windows_are_tried(void **state)
{
	struct fv_spec s = { .name = "x0", .driver = "mlx5_core" };
	struct kvs_verbs_opts v = {
		.node = -1,
		.gid_index = -1,
		.grant = KVS_VERBS_GRANT_WINDOW,
	};

	(void)state;
	assert_int_equal(look(&s, 1, NULL), 0);
	assert_string_equal(info[0].grant, "window");
	/* none at all; none that lets a page through; no bounds */
	s.windows = '-';
	assert_int_equal(look(&s, 1, NULL), 0);
	assert_string_equal(info[0].grant, "mr");
	assert_false(info[0].windows);
	s.windows = 'B';
	s.max_mw_len = 64;
	assert_int_equal(look(&s, 1, NULL), 0);
	assert_string_equal(info[0].grant, "mr");
	assert_non_null(strstr(info[0].note, "cannot be bound"));
	s.max_mw_len = 0;
	s.model = FV_RXE;
	assert_int_equal(look(&s, 1, NULL), 0);
	assert_string_equal(info[0].grant, "mr");
	assert_non_null(strstr(info[0].note, "bounds"));
	/* who asks for them gets them where they work at all */
	assert_int_equal(look(&s, 1, &v), 0);
	assert_string_equal(info[0].grant, "window");
}

static void which_are_used(void **state)
{
	struct fv_spec s[] = {
		{ .name = "mlx5_0", .driver = "mlx5_core", .numa = 1 },
		{ .name = "mlx5_1", .driver = "mlx5_core", .numa = 2 },
		{ .name = "mlx5_2",
		  .driver = "mlx5_core",
		  .numa = 2,
		  .down = true },
		{ .name = "iw0", .driver = "siw", .iwarp = true },
	};
	struct kvs_verbs_opts v = { .node = -1, .gid_index = -1 };

	(void)state;
	assert_int_equal(look(s, 4, &v), 0);
	assert_true(info[0].used && info[1].used);
	assert_false(info[2].used || info[3].used);
	assert_int_equal(info[0].node, 0);
	assert_int_equal(info[1].node, 1);
	assert_string_equal(info[2].note, "no port is up");
	assert_non_null(strstr(info[3].note, "rdma_cm"));
	/* the nearest; where none is near, all */
	v.node = 1;
	assert_int_equal(look(s, 4, &v), 0);
	assert_false(info[0].used);
	assert_true(info[1].used);
	v.node = 3;
	assert_int_equal(look(s, 4, &v), 0);
	assert_true(info[0].used && info[1].used);
	/* by name */
	v.devices = "mlx5_0";
	assert_int_equal(look(s, 4, &v), 0);
	assert_true(info[0].used && !info[1].used);
	v.devices = "mlx5_0,mlx5_9";
	assert_int_equal(look(s, 4, &v), -ENODEV);
	assert_non_null(strstr(message, "mlx5_9"));
	v.devices = "mlx5_2";
	assert_int_equal(look(s, 4, &v), -ENODEV);
	assert_non_null(strstr(message, "no port is up"));
	/* none at all */
	assert_int_equal(look(s, 0, NULL), -ENODEV);
	assert_string_equal(message, "no verbs device");
}

static void port_and_address(void **state)
{
	struct fv_spec s = {
		.name = "mlx5_0",
		.driver = "mlx5_core",
		.ports = 2,
		.mtu = 2048,
		.n_gids = 5,
		.gids = {
			{ "fe80::1", IBV_GID_TYPE_ROCE_V1, 1, 0 },
			{ "fe80::1", IBV_GID_TYPE_ROCE_V2, 1, 1 },
			{ "fd00::7", IBV_GID_TYPE_ROCE_V2, 1, 2 },
			{ "10.1.0.7", IBV_GID_TYPE_ROCE_V2, 1, 5 },
			{ "fe80::2", IBV_GID_TYPE_ROCE_V2, 2, 0 },
		},
	};
	struct fv_spec ib = { .name = "ib0", .infiniband = true };
	struct kvs_verbs_opts v = { .node = -1, .gid_index = -1 };

	(void)state;
	assert_int_equal(look(&s, 1, &v), 0);
	assert_int_equal(info[0].port, 1);
	assert_int_equal(info[0].gid_index, 5);
	assert_string_equal(info[0].gid, "::ffff:10.1.0.7");
	assert_string_equal(info[0].link, "RoCE v2");
	assert_int_equal(info[0].mtu, 2048);
	v.gid_index = 0;
	v.mtu = 1024;
	assert_int_equal(look(&s, 1, &v), 0);
	assert_string_equal(info[0].link, "RoCE v1");
	assert_int_equal(info[0].mtu, 1024);
	v.mtu = 4096; /* more than there is */
	assert_int_equal(look(&s, 1, &v), 0);
	assert_int_equal(info[0].mtu, 2048);
	v.gid_index = 3;
	assert_int_equal(look(&s, 1, &v), -ENODEV);
	assert_non_null(strstr(message, "GID index 3"));
	v.gid_index = -1;
	v.port = 2;
	assert_int_equal(look(&s, 1, &v), 0);
	assert_string_equal(info[0].gid, "fe80::2");
	v.port = 3;
	assert_int_equal(look(&s, 1, &v), -ENODEV);
	assert_non_null(strstr(message, "2 ports"));
	assert_int_equal(look(&ib, 1, NULL), 0);
	assert_string_equal(info[0].link, "InfiniBand");
}

/* A write of many pieces and a frame, as a device's limits allow. */
static void carries(const struct fv_spec *near, const struct fv_spec *far)
{
	struct fv_spec s[2] = { *near, far ? *far : *near };
	struct kvs_verbs_opts a = { .devices = s[0].name,
				    .node = -1,
				    .gid_index = -1 };
	struct kvs_verbs_opts b = { .devices = s[1].name,
				    .node = -1,
				    .gid_index = -1,
				    .grant = vd_kind };
	unsigned char *src, *dst;
	struct iovec iov[64];
	struct kvs_mem *m;
	struct vgrant v;
	struct vwrite w;
	struct vrig *r;
	struct vpair p;
	unsigned int i;

	vd_begin_with(s, far ? 2 : 1);
	src = vmem(LEN, 0);
	dst = vmem(LEN, 0xee);
	vfill(src, 6, LEN);
	r = vrig_new(&a, &b);
	vrig_pair_as(r, &p, 4);
	vrig_pool(r, dst, LEN);
	assert_int_equal(kvs_transport_register(r->near, src, LEN, &m, NULL, 0),
			 0);
	vgrant_open(r, &v, 4, dst, LEN);
	for (i = 0; i < 64; i++) {
		iov[i].iov_base = src + i * LEN / 64;
		iov[i].iov_len = LEN / 64;
	}
	assert_int_equal(
		vside_write_v(&p.near, &w, iov, 64, kvs_grant_keys(v.g), 0), 0);
	vrig_until(r, w.done && p.far.frames == 1);
	assert_int_equal(w.status, 0);
	assert_memory_equal(src, dst, LEN);
	kvs_mem_release(m);
	vgrant_close(r, &v);
	vrig_free(r);
	free(src);
	free(dst);
	vd_end(false);
}

static void small_limits(void **state)
{
	struct fv_spec few_sge = { .name = "a", .qp_sge = 3 };
	struct fv_spec one_sge = { .name = "b", .max_sge = 1 };
	struct fv_spec short_wr = { .name = "c", .max_msg = 4096 };
	struct fv_spec few_wr = { .name = "d", .max_wr = 68, .max_sge = 2 };
	/* fewer than we like best: of requests and receives, of one, of none;
	 * a completion queue that makes both give way */
	static const unsigned int wr[] = { 32, 33, 47, 67, 69, 255 };
	static const unsigned int cqe[] = { 65, 66, 101, 324 };
	struct fv_spec shallow = { .name = "i" };
	struct fv_spec too_few = { .name = "e", .max_wr = 31 };
	struct fv_spec no_room = { .name = "j", .max_cqe = 64 };
	struct fv_spec small_mtu = { .name = "f", .mtu = 256 };
	struct fv_spec large_mtu = { .name = "g", .mtu = 4096 };
	struct fv_spec ib = { .name = "h", .infiniband = true };
	size_t i;

	(void)state;
	for (vd_kind = KVS_VERBS_GRANT_WINDOW; vd_kind <= KVS_VERBS_GRANT_MR;
	     vd_kind++) {
		carries(&few_sge, NULL);
		carries(&one_sge, NULL);
		carries(&short_wr, NULL);
		carries(&few_wr, NULL);
		carries(&ib, NULL);
		/* of unlike devices the smaller of each */
		carries(&small_mtu, &large_mtu);
		carries(&large_mtu, &small_mtu);
		carries(&short_wr, &one_sge);
		for (i = 0; i < sizeof(wr) / sizeof(wr[0]); i++) {
			shallow = (struct fv_spec){ .name = "i",
						    .max_wr = wr[i] };
			carries(&shallow, NULL);
			carries(&shallow, &few_sge);
			carries(&few_sge, &shallow);
		}
		for (i = 0; i < sizeof(cqe) / sizeof(cqe[0]); i++) {
			shallow = (struct fv_spec){ .name = "i",
						    .max_cqe = cqe[i] };
			carries(&shallow, NULL);
		}
	}
	vd_kind = KVS_VERBS_GRANT_MR;
	assert_int_equal(look(&too_few, 1, NULL), -ENODEV);
	assert_non_null(strstr(message, "31 requests, not 32"));
	assert_int_equal(look(&no_room, 1, NULL), -ENODEV);
	assert_non_null(strstr(message, "64 entries, not 65"));
}

static void other_networks(void **state)
{
	struct fv_spec s[] = {
		{ .name = "ib0", .infiniband = true },
		{ .name = "eth0" },
	};
	struct kvs_verbs_opts a = { .devices = "ib0",
				    .node = -1,
				    .gid_index = -1 };
	struct kvs_verbs_opts b = { .devices = "eth0",
				    .node = -1,
				    .gid_index = -1 };
	struct vpair p = { 0 };
	struct vrig *r;
	int fd;

	(void)state;
	vd_begin_with(s, 2);
	r = vrig_new(&a, &b);
	vrig_connect(r, &p.near);
	fd = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC);
	assert_true(fd >= 0);
	vrig_adopt(r, fd, &p.far);
	vrig_until(r, p.near.closed && p.far.closed);
	assert_int_equal(p.near.err, -ENETUNREACH);
	assert_true(p.far.err < 0);
	vrig_free(r);
	vd_end(false);
}

static void no_more_queue_pairs(void **state)
{
	struct fv_spec s = { .name = "few", .max_qp = 2 };
	struct vpair p, q = { 0 };
	struct vrig *r;
	int fd;

	(void)state;
	vd_begin_with(&s, 1);
	r = vd_start(&p, 1);
	vrig_connect(r, &q.near);
	fd = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC);
	assert_true(fd >= 0);
	r->owner = 2;
	vrig_adopt(r, fd, &q.far);
	vrig_until(r, q.near.closed && q.far.closed);
	assert_true(q.near.err < 0 && q.far.err < 0);
	/* the one there is does not notice, and its place is free after it */
	assert_int_equal(vside_send(&p.near, 9, 64), 0);
	vrig_until(r, p.far.frames == 1);
	kvs_conn_close(p.near.c, 0, true);
	vrig_until(r, p.near.closed && p.far.closed);
	vrig_pair_as(r, &q, 2);
	vrig_free(r);
	vd_end(false);
}

static void spread_over_devices(void **state)
{
	struct fv_spec s[] = {
		{ .name = "mlx5_0", .driver = "mlx5_core" },
		{ .name = "mlx5_1", .driver = "mlx5_core" },
	};
	struct kvs_verbs_counts n;
	struct fv_device *d[2];
	struct vpair p[4];
	struct vrig *r;
	unsigned int i;

	(void)state;
	fv_begin();
	d[0] = fv_device_add(&s[0]);
	d[1] = fv_device_add(&s[1]);
	r = vd_start(&p[0], 1);
	for (i = 1; i < 4; i++)
		vrig_pair_as(r, &p[i], 1 + i);
	/* every second owner's connection is on the device that fails */
	fv_qp_break(d[0]);
	fv_qp_event(d[0], IBV_EVENT_QP_FATAL);
	for (i = 0; i < 4; i += 2)
		vrig_until(r, p[i].near.closed && p[i].far.closed);
	for (i = 1; i < 4; i += 2) {
		assert_int_equal(vside_send(&p[i].near, 9, 64), 0);
		vrig_until(r, p[i].far.frames == 1);
		assert_int_equal(p[i].near.closed + p[i].far.closed, 0);
	}
	/* they are counted, and one that ends in order is not */
	kvs_conn_close(p[1].near.c, 0, true);
	vrig_until(r, p[1].near.closed && p[1].far.closed);
	kvs_verbs_counters(r->far, &n);
	assert_int_equal(n.qps, 4);
	assert_int_equal(n.broken, 2);
	vrig_free(r);
	vd_end(false);
}

/* Both sides send more than the other takes at a time, while neither, or only
 * one, comes to receive: vd_end() says whether a message found no receive. */
static void credits_of(const struct fv_spec *s)
{
	struct vrig *r;
	struct vpair p;
	int i, k;

	vd_begin_with(s, 1);
	r = vd_start(&p, 1);
	for (k = 0; k < 4; k++) {
		for (i = 0; i < 300; i++) {
			assert_int_equal(vside_send(&p.near, 9, 64), 0);
			if (k % 2)
				assert_int_equal(vside_send(&p.far, 9, 1400),
						 0);
		}
		for (i = 0; i < 10; i++)
			assert_true(kvs_transport_poll(k < 2 ? r->near : r->far,
						       0) >= 0);
	}
	vrig_until(r, p.far.frames == 1200 && p.near.frames == 601);
	assert_false(p.near.bad || p.far.bad);
	vrig_free(r);
	vd_end(false);
}

static void credits(void **state)
{
	struct fv_spec s = { .name = "mlx5_0", .driver = "mlx5_core" };

	(void)state;
	credits_of(&s);
	for (s.max_wr = 32; s.max_wr <= 40; s.max_wr++)
		credits_of(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(by_driver),
		cmocka_unit_test(kinds_are_told),
		cmocka_unit_test(windows_are_tried),
		cmocka_unit_test(which_are_used),
		cmocka_unit_test(port_and_address),
		cmocka_unit_test(small_limits),
		cmocka_unit_test(other_networks),
		cmocka_unit_test(no_more_queue_pairs),
		cmocka_unit_test(spread_over_devices),
		cmocka_unit_test(credits),
	};

	kvs_log_set_level(KVS_LOG_ERR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
