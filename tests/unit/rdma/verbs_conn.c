/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, on a verbs device:
 *  - a data connection with an owner becomes a queue pair, one without stays
 *    TCP and carries payloads;
 *  - frames of any length arrive whole and in order, more of them than either
 *    side has receives posted, without RNR;
 *  - closing in order delivers what was sent and says 0; a connection that is
 *    cut, or whose process is killed, says -ECONNRESET;
 *  - destroying a transport ends its connections, whatever they do.
 */
#include "tests/unit/rdma/verbs_rig.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void frames_travel(void **state)
{
	static const uint32_t lens[] = { 16, 64, 1000, 1008, 1009, 5000, 65536 };
	struct vside near = { 0 }, far = { 0 };
	struct vrig *r = vrig_new(NULL, NULL);
	struct kvs_verbs_counts counts;
	unsigned int i;

	(void)state;
	vrig_pair(r, &near, &far);
	for (i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		assert_int_equal(vside_send(&near, (uint16_t)(10 + i), lens[i]),
				 0);
		vrig_until(r, far.frames == (int)i + 1);
		assert_int_equal(far.last_len, lens[i]);
		assert_int_equal(far.last_type, 10 + i);
	}
	/* none of it came over TCP */
	kvs_verbs_counters(r->far, &counts);
	assert_int_equal(counts.qps, 1);
	assert_true(counts.msgs_in >= i);
	assert_false(near.bad || far.bad);
	vrig_free(r);
	assert_int_equal(near.closed, 1);
	assert_int_equal(near.err, -ESHUTDOWN);
	assert_int_equal(far.closed, 1);
}

struct order {
	int next;
	bool wrong;
};

static int in_order(struct vside *s, const struct kvs_frame *f)
{
	struct order *o = s->arg;

	if (kvs_get16(f->type) != o->next % 900)
		o->wrong = true;
	o->next++;
	return 0;
}

static void frames_outnumber_receives(void **state)
{
	struct order a = { 0 }, b = { 0 };
	struct vside near = { 0 }, far = { 0 };
	struct vrig *r = vrig_new(NULL, NULL);
	int i;

	(void)state;
	vrig_pair(r, &near, &far);
	near.on_frame = far.on_frame = in_order;
	near.arg = &a;
	far.arg = &b;
	for (i = 0; i < 2000; i++) {
		assert_int_equal(vside_send(&near, (uint16_t)(i % 900), 64), 0);
		assert_int_equal(vside_send(&far, (uint16_t)(i % 900), 200), 0);
	}
	vrig_until(r, a.next == 2000 && b.next == 2000);
	assert_false(a.wrong || b.wrong || near.bad || far.bad);
	vrig_free(r);
}

static void stays_tcp(void **state)
{
	struct vside near = { 0 }, far = { 0 };
	struct vrig *r = vrig_new(NULL, NULL);
	struct kvs_grant_key none = { 0 };
	unsigned char *src = vmem(4096, 0);
	struct vwrite w;

	(void)state;
	r->owner = 0;
	vrig_pair(r, &near, &far);
	assert_int_equal(vside_send(&near, 3, 500), 0);
	assert_int_equal(vside_send(&far, 4, 70), 0);
	vrig_until(r, near.frames == 1 && far.frames == 1);
	/* a one-sided write has nowhere to go: the connection ends */
	assert_int_equal(vside_write(&near, &w, src, 64, &none, 0), -EPIPE);
	vrig_until(r, near.closed && far.closed);
	assert_int_equal(near.err, -EPROTO);
	assert_int_equal(w.done, 0);
	vrig_free(r);
	free(src);
}

static void payloads_over_tcp(void **state)
{
	struct vside near = { 0 }, far = { 0 };
	struct vrig *r = vrig_new(NULL, NULL);
	unsigned char *src = vmem(300000, 0);
	unsigned char *dst = vmem(300000, 0);
	struct vwrite w;

	(void)state;
	r->owner = 0;
	vrig_pair(r, &near, &far);
	far.mem = dst;
	vfill(src, 5, 300000);
	assert_int_equal(vside_payload(&near, &w, src, 300000), 0);
	vrig_until(r, w.done && far.payloads == 1);
	assert_int_equal(w.status, 0);
	assert_true(vmatches(dst, 5, 300000));
	kvs_conn_close(near.c, 0, true);
	vrig_until(r, near.closed && far.closed);
	assert_int_equal(far.err, 0);
	vrig_free(r);
	free(src);
	free(dst);
}

/* Whatever the reason: the other side has all that was queued, as on TCP. */
static void close_with(int err)
{
	struct vside near = { 0 }, far = { 0 };
	struct vrig *r = vrig_new(NULL, NULL);
	struct kvs_verbs_counts n;
	int i;

	vrig_pair(r, &near, &far);
	for (i = 0; i < 300; i++)
		assert_int_equal(vside_send(&near, 20, 1200), 0);
	kvs_conn_close(near.c, err, true);
	assert_int_equal(vside_send(&near, 20, 64), -EPIPE);
	vrig_until(r, near.closed && far.closed);
	assert_int_equal(far.frames, 300);
	assert_int_equal(far.err, 0);
	assert_int_equal(near.err, err);
	kvs_verbs_counters(r->far, &n);
	assert_int_equal(n.broken, 0);
	vrig_free(r);
}

static void close_in_order(void **state)
{
	(void)state;
	close_with(0);
	close_with(-ECANCELED);
}

static void close_with_a_reason(void **state)
{
	struct vside near = { 0 }, far = { 0 };
	struct vrig *r = vrig_new(NULL, NULL);

	(void)state;
	vrig_pair(r, &near, &far);
	kvs_conn_close(far.c, -EPROTO, false);
	vrig_until(r, near.closed && far.closed);
	assert_int_equal(far.err, -EPROTO);
	assert_int_equal(near.err, -ECONNRESET);
	vrig_free(r);
}

static int refuse(struct vside *s, const struct kvs_frame *f)
{
	(void)s;
	(void)f;
	return -EBADMSG;
}

static void frame_refused(void **state)
{
	struct vside near = { 0 }, far = { 0 };
	struct vrig *r = vrig_new(NULL, NULL);

	(void)state;
	vrig_pair(r, &near, &far);
	far.on_frame = refuse;
	assert_int_equal(vside_send(&near, 7, 64), 0);
	vrig_until(r, near.closed && far.closed);
	assert_int_equal(far.err, -EBADMSG);
	vrig_free(r);
}

/* The far side in a process of its own, so that it can be killed. */
static void peer_killed(void **state)
{
	struct vside near = { 0 }, far = { 0 };
	struct vrig *r;
	uint64_t t0;
	int status;
	pid_t pid;
	int fd;

	(void)state;
	if (vrig_is_double())
		skip();
	r = vrig_new(NULL, NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		/* the parent's devices are not ours: a transport of our own */
		struct vrig *mine = vrig_new(NULL, NULL);

		fd = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC);
		vrig_adopt(mine, fd, &far);
		for (;;)
			vrig_poll(mine);
	}
	vrig_connect(r, &near);
	vrig_until(r, near.frames == 1 || near.closed);
	assert_int_equal(near.closed, 0);
	kill(pid, SIGKILL);
	t0 = vrig_now();
	vrig_until(r, near.closed);
	/* by its TCP connection, not by retries running out */
	assert_true(vrig_now() - t0 < 1500000000ull);
	assert_int_equal(near.err, -ECONNRESET);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	vrig_free(r);
}

static void destroyed_meanwhile(void **state)
{
	struct vside near = { 0 }, far = { 0 };
	struct vrig *r = vrig_new(NULL, NULL);
	int i;

	(void)state;
	/* in the middle of becoming a queue pair */
	r->owner = 0;
	vrig_pair(r, &near, &far);
	kvs_conn_set_owner(far.c, 9);
	vrig_poll(r);
	kvs_transport_destroy(r->far);
	r->far = NULL;
	assert_int_equal(far.closed, 1);
	assert_int_equal(far.err, -ESHUTDOWN);
	vrig_until(r, near.closed);
	vrig_free(r);
	/* with frames under way */
	memset(&near, 0, sizeof(near));
	memset(&far, 0, sizeof(far));
	r = vrig_new(NULL, NULL);
	vrig_pair(r, &near, &far);
	for (i = 0; i < 100; i++)
		assert_int_equal(vside_send(&near, 20, 3000), 0);
	kvs_transport_destroy(r->near);
	r->near = NULL;
	assert_int_equal(near.closed, 1);
	vrig_until(r, far.closed);
	vrig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(frames_travel),
		cmocka_unit_test(frames_outnumber_receives),
		cmocka_unit_test(stays_tcp),
		cmocka_unit_test(payloads_over_tcp),
		cmocka_unit_test(close_in_order),
		cmocka_unit_test(close_with_a_reason),
		cmocka_unit_test(frame_refused),
		cmocka_unit_test(peer_killed),
		cmocka_unit_test(destroyed_meanwhile),
	};

	vrig_main();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
