/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: kvs_sender_create() agrees on version and layout or says what was
 * tried and what the daemon said, in bounded time; waits for a daemon that is
 * not up yet; refuses bad options; keepalives are sent, answered, and their
 * absence ends the sender.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/clock.h"
#include "tests/unit/pipeline/sender_rig.h"

static const struct kvs_layer_buffer buffers[] = { { KVS_BUFFER_K, 0, 64, 0 },
						   { KVS_BUFFER_V, 0, 64, 0 } };

static struct rig *new_rig(void)
{
	struct kvs_rng rng;

	kvs_rng_init(&rng, 1);
	return rig_new(buffers, 2, 16, 8, &rng);
}

static void agrees(void **state)
{
	struct rig *g = new_rig();

	(void)state;
	rig_start(g);
	assert_non_null(g->s);
	rig_quiet(g);
	rig_free(g);
}

static void version_refused_by_the_daemon(void **state)
{
	struct kvs_msg m, e = { .type = KVS_WIRE_ERROR,
				.error = { .err = EPROTONOSUPPORT,
					   .text = "I speak version 7 to 9" } };
	struct rig *g = new_rig();

	(void)state;
	rig_create_begin(g);
	rig_accept_control(g);
	rig_expect(g, KVS_WIRE_HELLO, &m);
	rig_send(g->control, &e);
	rig_create_end(g);
	assert_int_equal(g->create_err, -EPROTONOSUPPORT);
	assert_non_null(strstr(g->err, "I speak version 7 to 9"));
	rig_expect_end(g);
	rig_free(g);
}

static void version_not_ours(void **state)
{
	struct rig *g = new_rig();

	(void)state;
	rig_create_begin(g);
	rig_accept_control(g);
	rig_reply_hello(g, 2);
	rig_create_end(g);
	assert_int_equal(g->create_err, -EPROTONOSUPPORT);
	assert_non_null(strstr(g->err, "version"));
	rig_expect_end(g);
	rig_free(g);
}

static void layout_refused(void **state)
{
	struct kvs_msg m, e = { .type = KVS_WIRE_ERROR,
				.error = { .err = EPROTOTYPE,
					   .text = "page_size: prefill 16, "
						   "decode 64" } };
	struct rig *g = new_rig();

	(void)state;
	rig_create_begin(g);
	rig_accept_control(g);
	rig_reply_hello(g, 1);
	rig_expect(g, KVS_WIRE_LAYOUT, &m);
	assert_int_equal(m.layout.l.page_size, 16);
	assert_int_equal(m.layout.l.buffers[1].kind, KVS_BUFFER_V);
	rig_send(g->control, &e);
	rig_create_end(g);
	assert_int_equal(g->create_err, -EPROTOTYPE);
	assert_non_null(strstr(g->err, "page_size: prefill 16, decode 64"));
	assert_non_null(strstr(g->err, "127.0.0.1:"));
	rig_free(g);
}

/* As a daemon does that does not hear this address for a while. */
static void closed_before_a_word(void **state)
{
	struct rig *g = new_rig();
	struct kvs_msg m;

	(void)state;
	rig_create_begin(g);
	for (int i = 0; i < 2; i++) {
		rig_accept_control(g);
		rig_expect(g, KVS_WIRE_HELLO, &m);
		close(g->control);
		g->control = -1;
	}
	rig_accept_control(g);
	rig_reply_hello(g, 1);
	rig_expect(g, KVS_WIRE_LAYOUT, &m);
	rig_send(g->control, &m);
	rig_create_end(g);
	assert_int_equal(g->create_err, 0);
	rig_free(g);
}

static void closed_during_the_handshake(void **state)
{
	struct rig *g = new_rig();
	struct kvs_msg m;

	(void)state;
	rig_create_begin(g);
	rig_accept_control(g);
	rig_reply_hello(g, 1);
	rig_expect(g, KVS_WIRE_LAYOUT, &m);
	close(g->control);
	g->control = -1;
	rig_create_end(g);
	assert_int_equal(g->create_err, -ECONNRESET);
	rig_free(g);
}

static void garbage_is_refused(void **state)
{
	unsigned char junk[64];
	struct rig *g = new_rig();

	(void)state;
	memset(junk, 0xa5, sizeof(junk));
	rig_create_begin(g);
	rig_accept_control(g);
	assert_int_equal(send(g->control, junk, sizeof(junk), MSG_NOSIGNAL),
			 sizeof(junk));
	rig_create_end(g);
	assert_int_equal(g->create_err, -EPROTO);
	rig_free(g);
}

static void message_out_of_place(void **state)
{
	struct kvs_msg m = { .type = KVS_WIRE_COMPLETE,
			     .complete = { .room = 1, .generation = 1 } };
	struct rig *g = new_rig();

	(void)state;
	rig_create_begin(g);
	rig_accept_control(g);
	rig_send(g->control, &m);
	rig_create_end(g);
	assert_int_equal(g->create_err, -EPROTO);
	assert_non_null(strstr(g->err, "COMPLETE"));
	rig_free(g);
}

static void nobody_there(void **state)
{
	struct rig *g = new_rig();
	uint64_t start = kvs_clock_now(&kvs_clock_real);

	(void)state;
	close(g->listener);
	g->listener = -1;
	g->o.connect_timeout = 300 * KVS_NSEC_PER_MSEC;
	rig_create_begin(g);
	rig_create_end(g);
	assert_int_equal(g->create_err, -ECONNREFUSED);
	assert_non_null(strstr(g->err, "ECONNREFUSED"));
	assert_true(kvs_clock_now(&kvs_clock_real) - start >=
		    300 * KVS_NSEC_PER_MSEC);
	rig_free(g);
}

static void silent_daemon_times_out(void **state)
{
	struct rig *g = new_rig();

	(void)state;
	g->o.connect_timeout = 200 * KVS_NSEC_PER_MSEC;
	rig_create_begin(g);
	rig_create_end(g);
	assert_int_equal(g->create_err, -ETIMEDOUT);
	assert_non_null(strstr(g->err, "HELLO"));
	rig_free(g);
}

static void bad_options(void **state)
{
	struct kvs_layer_buffer twice[] = { { KVS_BUFFER_K, 0, 64, 0 },
					    { KVS_BUFFER_K, 0, 64, 0 } };
	struct kvs_layout l;
	struct rig *g;
	int i;

	(void)state;
	for (i = 0; i < 6; i++) {
		g = new_rig();
		l = *g->layout;
		if (i == 0)
			g->o.rank = 2;
		else if (i == 1)
			g->o.n_ranks = KVS_RANKS_MAX + 1;
		else if (i == 2)
			g->o.peer = "";
		else if (i == 3)
			g->o.data_connections = 1000;
		else if (i == 4)
			g->o.daemon = "no port here";
		else
			g->layout->buffers = twice;
		rig_create_begin(g);
		rig_create_end(g);
		if (g->create_err != -EINVAL)
			fail_msg("case %d: %d", i, g->create_err);
		assert_true(g->err[0]);
		g->layout->buffers = l.buffers;
		rig_free(g);
	}
}

static void no_pages_free(struct kvs_send_room *r, void *cookie, int status)
{
	(void)r;
	(void)cookie;
	(void)status;
}

static void missing_options_are_named(void **state)
{
	static const struct kvs_send_ops no_done = {
		.pages_free = no_pages_free,
	};
	static const char *const names[] = { "daemon",	"peer",	  "layout",
					     "buffers", "ops is", "ops.done" };
	struct kvs_sender_opts o = { .size = sizeof(o) };
	struct rig *g = new_rig();
	struct kvs_sender *s = NULL;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		char err[128] = "";

		assert_int_equal(kvs_sender_create(&o, &s, err, sizeof(err)),
				 -EINVAL);
		assert_non_null(strstr(err, names[i]));
		assert_non_null(strstr(err, "missing"));
		if (i == 0)
			o.daemon = "127.0.0.1:1";
		else if (i == 1)
			o.peer = "p";
		else if (i == 2)
			o.layout = g->layout;
		else if (i == 3)
			o.buffers = g->buffers;
		else
			o.ops = &no_done;
	}
	assert_null(s);
	rig_free(g);
}

static void keepalives_are_sent(void **state)
{
	struct rig *g = new_rig();
	uint64_t seq;
	struct kvs_msg m;
	int i;

	(void)state;
	g->keepalive_ms = 100;
	rig_start(g);
	for (i = 0; i < 3; i++) {
		rig_expect(g, KVS_WIRE_KEEPALIVE, &m);
		assert_int_equal(m.keepalive.reply, 0);
		if (i)
			assert_true(m.keepalive.seq > seq);
		seq = m.keepalive.seq;
		m.keepalive.reply = 1;
		rig_send(g->control, &m);
	}
	rig_free(g);
}

static void dead_daemon_is_noticed(void **state)
{
	struct kvs_send_room *r;
	struct rig *g = new_rig();
	struct rig_event e;

	(void)state;
	g->keepalive_ms = 100;
	rig_start(g);
	assert_int_equal(kvs_send_open(g->s, 5, NULL, 16, g, &r), 0);
	e = rig_wait(g, RIG_DONE, 5, 0);
	assert_int_equal(e.status, -ECONNRESET);
	assert_non_null(strstr(e.text, "KEEPALIVE"));
	kvs_send_close(r);
	assert_int_equal(kvs_send_open(g->s, 6, NULL, 16, g, &r), -ECONNRESET);
	rig_free(g);
}

static void waits_for_the_daemon(void **state)
{
	struct rig *g = new_rig();
	struct kvs_msg m;
	int fd;

	(void)state;
	/* a bound socket that does not listen refuses */
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(fd >= 0);
	{
		struct sockaddr_storage a = { 0 };
		socklen_t len = sizeof(a);
		struct sockaddr *sa = (struct sockaddr *)&a;
		int one = 1;

		assert_int_equal(getsockname(g->listener, sa, &len), 0);
		close(g->listener);
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		assert_int_equal(bind(fd, sa, len), 0);
	}
	g->listener = fd;
	rig_create_begin(g);
	assert_int_equal(listen(fd, 8), 0);
	rig_accept_control(g);
	rig_reply_hello(g, 1);
	rig_expect(g, KVS_WIRE_LAYOUT, &m);
	rig_send(g->control, &m);
	rig_create_end(g);
	assert_int_equal(g->create_err, 0);
	rig_free(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(agrees),
		cmocka_unit_test(version_refused_by_the_daemon),
		cmocka_unit_test(version_not_ours),
		cmocka_unit_test(layout_refused),
		cmocka_unit_test(closed_before_a_word),
		cmocka_unit_test(closed_during_the_handshake),
		cmocka_unit_test(garbage_is_refused),
		cmocka_unit_test(message_out_of_place),
		cmocka_unit_test(nobody_there),
		cmocka_unit_test(silent_daemon_times_out),
		cmocka_unit_test(waits_for_the_daemon),
		cmocka_unit_test(bad_options),
		cmocka_unit_test(missing_options_are_named),
		cmocka_unit_test(keepalives_are_sent),
		cmocka_unit_test(dead_daemon_is_noticed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
