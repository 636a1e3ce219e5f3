/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, over the double: whichever call fails, at whichever time, the two
 * sides end it with an error that says so, everything that was asked for is
 * answered exactly once, nothing stays behind, nothing crashes. Failing to
 * register says what could not be registered.
 *
 * The life that is failed: two transports, memory registered with one, a
 * connection, two grants, writes from memory that is registered and from other,
 * frames of several messages, a read, the grants closed, both ended.
 */
#include "tests/unit/rdma/verbs_double.h"

#include <sys/socket.h>
#include <unistd.h>

#include "lib/log.h"

#define LEN (256 * KIB)
#define OWNER 7

static uint64_t count[FV_CALLS_MAX]; /* of a whole life */
static uint64_t trial[FV_CALLS_MAX]; /* until its devices were tried out */

/* What there is of a life, as far as it came. */
struct life {
	struct vrig r;
	struct vpair p;
	struct vgrant v[2];
	bool asked[2];
	struct vwrite w[3];
	bool wrote[3];
	struct kvs_read rd;
	bool reads;
	int read_status;
	int read_done;
	struct kvs_mem *mem; /* of the near side's */
	struct kvs_mem *pool;
	bool refused; /* an error was returned by a call */
	unsigned char *src;
	unsigned char *dst;
};

static void read_done(struct kvs_conn *c, struct kvs_read *rd, int status)
{
	struct life *l = rd->user;

	(void)c;
	l->read_status = status;
	l->read_done++;
}

static bool make(struct kvs_transport **ret)
{
	struct kvs_transport_opts o = { .engine = "sock" };
	struct kvs_verbs_opts v = {
		.node = -1,
		.gid_index = -1,
		.grant = vd_kind,
	};
	char err[1024] = "";
	int rc = kvs_verbs_create(&o, &v, ret, err, sizeof(err));

	assert_true(!rc || err[0]);
	return !rc;
}

#define step_until(l, cond) \
	vrig_until(&(l)->r, (cond) || (l)->p.near.closed || (l)->p.far.closed)

static bool alive(const struct life *l)
{
	return !l->p.near.closed && !l->p.far.closed;
}

static bool connected(struct life *l)
{
	int fd;

	vrig_connect(&l->r, &l->p.near);
	fd = accept4(l->r.listener, NULL, NULL, SOCK_CLOEXEC);
	assert_true(fd >= 0);
	l->r.owner = 0; /* the rig would insist that it works */
	vrig_adopt(&l->r, fd, &l->p.far);
	kvs_conn_set_owner(l->p.far.c, OWNER);
	(void)vside_send(&l->p.far, 1, 100);
	step_until(l, l->p.near.frames == 1);
	return alive(l);
}

static void grant(struct life *l, unsigned int i)
{
	struct kvs_grant_range range = {
		.addr = l->dst + i * LEN / 2,
		.len = LEN / 2,
	};

	vgrant_begin(&l->r, &l->v[i], OWNER, range.addr, range.len);
	l->asked[i] = true;
	/* one by windows waits for a connection, which is not to come */
	vrig_until(&l->r, l->v[i].opened || !alive(l));
	if (!l->v[i].opened) {
		kvs_grant_close(l->v[i].g);
		vrig_until(&l->r, l->v[i].opened || l->v[i].closed);
		l->asked[i] = false;
		l->refused = true;
	}
}

static void write_one(struct life *l, unsigned int i, const unsigned char *src,
		      unsigned int g)
{
	if (!alive(l) || !l->asked[g] || l->v[g].open_status)
		return;
	l->wrote[i] = !vside_write(&l->p.near, &l->w[i], (void *)src, 100000,
				   kvs_grant_keys(l->v[g].g), 0);
	if (l->wrote[i])
		vrig_until(&l->r, l->w[i].done);
}

static void read_one(struct life *l)
{
	if (!alive(l) || !l->asked[1] || l->v[1].open_status)
		return;
	l->rd.addr = l->src;
	l->rd.len = 50000;
	l->rd.remote = *kvs_grant_keys(l->v[1].g);
	l->rd.done = read_done;
	l->rd.user = l;
	l->reads = !kvs_conn_read(l->p.near.c, &l->rd);
	if (l->reads)
		vrig_until(&l->r, l->read_done);
}

static void close_grant(struct life *l, unsigned int i)
{
	int tries;

	if (!l->asked[i] || l->v[i].open_status || !l->v[i].g)
		return;
	vgrant_close(&l->r, &l->v[i]);
	l->refused |= l->v[i].close_status != 0;
	for (tries = 0; l->v[i].close_status && tries < 40; tries++) {
		/* a queue pair that is stuck is tried again after a second */
		vrig_for(&l->r, 50000000);
		vgrant_close(&l->r, &l->v[i]);
	}
	assert_int_equal(l->v[i].close_status, 0);
}

static void live_on(struct life *l)
{
	char err[256] = "";
	unsigned int c;
	int frames, rc;

	if (!make(&l->r.near) || !make(&l->r.far)) {
		l->refused = true;
		return;
	}
	for (c = 0; !count[FV_OPEN_DEVICE] && c < FV_CALLS_MAX; c++)
		trial[c] = fv_calls(c);
	rc = kvs_transport_register(l->r.near, l->src, LEN, &l->mem, err,
				    sizeof(err));
	l->refused |= rc != 0;
	assert_true(!rc || err[0]);
	rc = kvs_transport_register(l->r.far, l->dst, LEN, &l->pool, err,
				    sizeof(err));
	l->refused |= rc != 0;
	assert_true(!rc || err[0]);
	if (!connected(l))
		return;
	grant(l, 0);
	grant(l, 1);
	write_one(l, 0, l->src, 0);
	write_one(l, 1, l->dst, 1); /* of nobody's registration */
	read_one(l);
	if (alive(l)) {
		frames = l->p.far.frames;
		if (!vside_send(&l->p.near, 30, 9000))
			step_until(l, l->p.far.frames > frames);
	}
	write_one(l, 2, l->src, 1);
	/* the one grant with a connection, the other without */
	close_grant(l, 0);
	if (alive(l)) {
		kvs_conn_close(l->p.near.c, 0, true);
		vrig_until(&l->r, l->p.near.closed && l->p.far.closed);
	}
}

/* Did anybody see an error. */
static bool noticed(const struct life *l)
{
	bool any = l->refused || l->p.near.err || l->p.far.err;
	unsigned int i;

	for (i = 0; i < 3; i++)
		any |= l->wrote[i] && l->w[i].status;
	for (i = 0; i < 2; i++)
		any |= l->asked[i] && l->v[i].open_status;
	return any || (l->reads && l->read_status);
}

static bool live(void)
{
	struct life *l = calloc(1, sizeof(*l));
	struct vrig *r;
	unsigned int i;
	bool any;

	assert_non_null(l);
	l->src = vmem(LEN, 0x55);
	l->dst = vmem(LEN, 0xee);
	/* only the listener of it */
	r = &l->r;
	vrig_listen(r);
	live_on(l);
	if (r->far && !l->p.far.closed && l->p.far.c)
		kvs_conn_close(l->p.far.c, 0, false);
	if (r->near && r->far)
		vrig_until(r, (!l->p.near.c || l->p.near.closed) &&
				      (!l->p.far.c || l->p.far.closed));
	close_grant(l, 0);
	close_grant(l, 1);
	for (i = 0; i < 3; i++)
		assert_int_equal(l->w[i].done, l->wrote[i]);
	assert_int_equal(l->read_done, l->reads);
	kvs_mem_release(l->mem);
	kvs_mem_release(l->pool);
	kvs_transport_destroy(r->near);
	kvs_transport_destroy(r->far);
	close(r->listener);
	any = noticed(l);
	free(l->src);
	free(l->dst);
	free(l);
	return any;
}

static void begin(void)
{
	struct fv_spec s = { .name = "mlx5_0", .driver = "mlx5_core" };

	fv_begin();
	fv_device_add(&s);
}

static void without_failure(void **state)
{
	unsigned int c;

	(void)state;
	begin();
	assert_false(live());
	for (c = 0; c < FV_CALLS_MAX; c++)
		count[c] = fv_calls(c);
	vd_end(false);
}

/* A call that gives back, or may come when all is over already: an error
 * there need not be seen. */
static bool may_pass(enum fv_call c)
{
	switch ((int)c) {
	case FV_POLL_CQ:
	case FV_REQ_NOTIFY_CQ:
	case FV_CREATE_QP: /* tried again, smaller */
	case FV_DEALLOC_MW:
	case FV_DEALLOC_PD:
	case FV_DEREG_MR:
	case FV_DESTROY_CHANNEL:
	case FV_DESTROY_CQ:
	case FV_DESTROY_QP:
	case FV_MODIFY_QP:
	case FV_QUERY_GID:
	case FV_GET_CQ_EVENT:
	case FV_GET_ASYNC_EVENT:
		return true;
	default:
		return false;
	}
}

static void each_call(int err)
{
	uint64_t n, by, most;
	unsigned int c, lives = 0;
	bool any;

	for (c = 0; c < FV_CALLS_MAX; c++) {
		/* all of the first, then some: posts and polls repeat */
		most = count[c] < 400 ? count[c] : 400;
		by = most > 24 ? most / 12 : 1;
		for (n = 1; n <= most; n += n < 8 ? 1 : by) {
			begin();
			fv_fail(c, n, 1, err);
			any = live();
			/* one of a trial says that there are no windows */
			if (fv_failed() && !any && n > trial[c] && !may_pass(c))
				fail_msg("nobody noticed: %s, call %llu",
					 fv_call_name(c),
					 (unsigned long long)n);
			fv_heal();
			vd_end(true);
			lives++;
		}
	}
	printf("%u lives\n", lives);
}

static void nth_of_each(void **state)
{
	(void)state;
	each_call(ENOMEM);
}

static void nth_of_each_again(void **state)
{
	(void)state;
	if (vd_kind == KVS_VERBS_GRANT_QP)
		skip(); /* its trial takes long; the errno is told as it is */
	each_call(EIO);
}

/* And from there on all of them. */
static void from_the_nth_on(void **state)
{
	static const enum fv_call calls[] = {
		FV_REG_MR,    FV_CREATE_QP, FV_CREATE_CQ,     FV_ALLOC_PD,
		FV_POST_SEND, FV_POST_RECV, FV_REQ_NOTIFY_CQ, FV_POLL_CQ,
	};
	/* flushes that cannot be polled take 2 s to be given up */
	static const uint64_t most[] = { 12, 12, 12, 12, 12, 12, 12, 2 };
	uint64_t n;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		for (n = 1; n <= most[i] && n <= count[calls[i]]; n++) {
			begin();
			fv_fail(calls[i], n, UINT64_MAX, ENOMEM);
			assert_true(live() || !fv_failed());
			fv_heal();
			vd_end(true);
		}
}

static void registration_says_what(void **state)
{
	struct kvs_transport *t;
	struct kvs_mem *m;
	unsigned char *mem;
	struct vpair p;
	struct vrig *r;
	char err[256];

	(void)state;
	begin();
	r = vd_start(&p, OWNER);
	mem = vmem(LEN, 0);
	t = r->near;
	fv_fail(FV_REG_MR, 1, 1, ENOMEM);
	assert_int_equal(kvs_transport_register(t, mem, LEN, &m, err,
						sizeof(err)),
			 -ENOMEM);
	assert_non_null(strstr(err, "mlx5_0"));
	assert_non_null(strstr(err, "256.0 KiB"));
	assert_non_null(strstr(err, "ulimit -l"));
	/* it left nothing, so it can be asked again */
	assert_int_equal(
		kvs_transport_register(t, mem, LEN, &m, err, sizeof(err)), 0);
	kvs_mem_release(m);
	vrig_free(r);
	free(mem);
	vd_end(false);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_failure),
		cmocka_unit_test(nth_of_each),
		cmocka_unit_test(nth_of_each_again),
		cmocka_unit_test(from_the_nth_on),
		cmocka_unit_test(registration_says_what),
	};

	if (argc > 1 && !strcmp(argv[1], "window"))
		vd_kind = KVS_VERBS_GRANT_WINDOW;
	if (argc > 1 && !strcmp(argv[1], "qp"))
		vd_kind = KVS_VERBS_GRANT_QP;
	kvs_log_set_level(0 /* none */);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
