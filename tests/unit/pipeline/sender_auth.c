/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: a sender with a key agrees with a daemon that proves the same key,
 * on both kinds of connection, and with no other: not one that does not ask,
 * that asks and proves nothing, that proves another key, that sends the
 * sender's own code back or another HELLO than it proved; it does not say its
 * LAYOUT to those. A sender without a key does not go on where it is asked
 * for one. The key file is checked when the sender is made, and read again for
 * each connection.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/clock.h"
#include "pipeline/auth.h"
#include "tests/unit/pipeline/sender_rig.h"

static const struct kvs_layer_buffer buffers[] = { { KVS_BUFFER_K, 0, 64, 0 },
						   { KVS_BUFFER_V, 0, 64, 0 } };
static char dir[] = "/tmp/kvs-sender-auth-XXXXXX";
static char path[64];
static struct kvs_auth_keys keys; /* of the file */

static int setup(void **state)
{
	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/key", dir);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	(void)unlink(path);
	return rmdir(dir);
}

static void new_key(void)
{
	char err[256];

	(void)unlink(path);
	assert_int_equal(kvs_auth_key_create(path, err, sizeof(err)), 0);
	assert_int_equal(kvs_auth_keys_load(path, &keys, err, sizeof(err)), 0);
}

static struct rig *new_rig(void)
{
	struct kvs_rng rng;
	struct rig *g;

	kvs_rng_init(&rng, 1);
	g = rig_new(buffers, 2, 16, 8, &rng);
	g->o.key_file = path;
	g->o.data_connections = 1;
	return g;
}

/* What a daemon does with the HELLO it got, up to the proof. */
struct asked {
	struct kvs_msg hello;
	struct kvs_auth_exchange x;
	struct kvs_msg response;
};

static void ask(struct rig *g, struct asked *a)
{
	struct kvs_msg m;

	rig_create_begin(g);
	rig_accept_control(g);
	rig_expect(g, KVS_WIRE_HELLO, &a->hello);
	assert_int_equal(kvs_auth_challenge(&a->hello.hello, &a->x, &m), 0);
	rig_send(g->control, &m);
	rig_expect(g, KVS_WIRE_RESPONSE, &a->response);
	assert_int_equal(kvs_auth_verify(&keys, &a->x, &a->response.response),
			 0);
}

static struct kvs_msg answer_to(const struct kvs_msg *hello)
{
	struct kvs_msg m = *hello;

	m.hello.version_min = m.hello.version_max = 1;
	m.hello.instance = 77;
	if (m.hello.role == KVS_ROLE_CONTROL)
		m.hello.session = RIG_SESSION;
	m.hello.keepalive_ms = 0;
	return m;
}

static void prove(int fd, const struct kvs_auth_keys *k,
		  const struct kvs_auth_exchange *x,
		  const struct kvs_msg *answer)
{
	struct kvs_msg m = { .type = KVS_WIRE_PROOF };

	assert_int_equal(kvs_auth_daemon_code(k->key[0], x, &answer->hello,
					      m.proof.mac),
			 0);
	rig_send(fd, &m);
}

static void up(struct rig *g)
{
	struct kvs_msg m;
	struct asked a;

	ask(g, &a);
	m = answer_to(&a.hello);
	prove(g->control, &keys, &a.x, &m);
	rig_send(g->control, &m);
	rig_expect(g, KVS_WIRE_LAYOUT, &m);
	rig_send(g->control, &m);
	rig_create_end(g);
	if (g->create_err)
		fail_msg("%s", g->err);
}

static void refused(struct rig *g, const char *part)
{
	rig_create_end(g);
	assert_int_equal(g->create_err, -EACCES);
	if (!strstr(g->err, part))
		fail_msg("\"%s\" is not in \"%s\"", part, g->err);
	/* and no LAYOUT came */
	rig_expect_end(g);
	rig_free(g);
}

static void agrees(void **state)
{
	struct rig *g;

	(void)state;
	new_key();
	g = new_rig();
	up(g);
	rig_quiet(g);
	rig_free(g);
}

static void a_daemon_that_does_not_ask(void **state)
{
	struct rig *g;

	(void)state;
	new_key();
	g = new_rig();
	rig_create_begin(g);
	rig_accept_control(g);
	rig_reply_hello(g, 1);
	refused(g, "does not show that it knows the key");
}

static void no_proof(void **state)
{
	struct kvs_msg m;
	struct asked a;
	struct rig *g;

	(void)state;
	new_key();
	g = new_rig();
	ask(g, &a);
	m = answer_to(&a.hello);
	rig_send(g->control, &m);
	refused(g, "does not show that it knows the key");
}

static void another_key(void **state)
{
	struct kvs_auth_keys other;
	struct kvs_msg m;
	struct asked a;
	struct rig *g;

	(void)state;
	new_key();
	other = keys;
	other.key[0][31] ^= 1;
	g = new_rig();
	ask(g, &a);
	m = answer_to(&a.hello);
	prove(g->control, &other, &a.x, &m);
	rig_send(g->control, &m);
	refused(g, "proof of the key is wrong");
}

static void its_own_code(void **state)
{
	struct kvs_msg m, p = { .type = KVS_WIRE_PROOF };
	struct asked a;
	struct rig *g;

	(void)state;
	new_key();
	g = new_rig();
	ask(g, &a);
	m = answer_to(&a.hello);
	memcpy(p.proof.mac, a.response.response.mac, KVS_AUTH_MAC);
	rig_send(g->control, &p);
	rig_send(g->control, &m);
	refused(g, "proof of the key is wrong");
}

static void another_answer(void **state)
{
	struct kvs_msg m;
	struct asked a;
	struct rig *g;

	(void)state;
	new_key();
	g = new_rig();
	ask(g, &a);
	m = answer_to(&a.hello);
	prove(g->control, &keys, &a.x, &m);
	m.hello.session ^= 1;
	rig_send(g->control, &m);
	refused(g, "proof of the key is wrong");
}

static void asked_without_a_key(void **state)
{
	struct kvs_auth_exchange x;
	struct rig *g = new_rig();
	struct kvs_msg h, m;

	(void)state;
	g->o.key_file = NULL;
	rig_create_begin(g);
	rig_accept_control(g);
	rig_expect(g, KVS_WIRE_HELLO, &h);
	assert_int_equal(kvs_auth_challenge(&h.hello, &x, &m), 0);
	rig_send(g->control, &m);
	refused(g, "it asks for a key, and none is given");
}

static void asked_twice(void **state)
{
	struct kvs_msg m;
	struct asked a;
	struct rig *g;

	(void)state;
	new_key();
	g = new_rig();
	ask(g, &a);
	assert_int_equal(kvs_auth_challenge(&a.hello.hello, &a.x, &m), 0);
	rig_send(g->control, &m);
	rig_create_end(g);
	assert_int_equal(g->create_err, -EPROTO);
	rig_expect_end(g);
	rig_free(g);
}

static void the_file_is_checked(void **state)
{
	struct rig *g;

	(void)state;
	new_key();
	assert_int_equal(chmod(path, 0644), 0);
	g = new_rig();
	rig_create_begin(g);
	rig_create_end(g);
	assert_int_equal(g->create_err, -EPERM);
	assert_non_null(strstr(g->err, path));
	assert_non_null(strstr(g->err, "0644"));
	rig_free(g);
	assert_int_equal(unlink(path), 0);
	g = new_rig();
	rig_create_begin(g);
	rig_create_end(g);
	assert_int_equal(g->create_err, -ENOENT);
	rig_free(g);
}

static int accept_data(struct rig *g, struct kvs_msg *ret_hello)
{
	_Alignas(8) unsigned char buf[KVS_HELLO_FRAME];
	const char *why;
	int fd = accept4(g->listener, NULL, NULL, SOCK_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(recv(fd, buf, sizeof(buf), MSG_WAITALL), sizeof(buf));
	assert_int_equal(kvs_wire_decode((struct kvs_frame *)buf, sizeof(buf),
					 &g->scratch, ret_hello, &why),
			 0);
	assert_int_equal(ret_hello->type, KVS_WIRE_HELLO);
	assert_int_equal(ret_hello->hello.role, KVS_ROLE_DATA);
	return fd;
}

static void take_response(struct rig *g, int fd, struct kvs_msg *ret)
{
	_Alignas(8) unsigned char buf[80];
	const char *why;

	assert_int_equal(recv(fd, buf, sizeof(buf), MSG_WAITALL), sizeof(buf));
	assert_int_equal(kvs_wire_decode((struct kvs_frame *)buf, sizeof(buf),
					 &g->scratch, ret, &why),
			 0);
	assert_int_equal(ret->type, KVS_WIRE_RESPONSE);
}

/* The first bytes of a chunk, or the end of the connection. */
static bool chunk_comes(int fd)
{
	unsigned char buf[KVS_DATA_FRAME];
	ssize_t n = recv(fd, buf, sizeof(buf), MSG_WAITALL);

	close(fd);
	return n == sizeof(buf) && buf[4] == KVS_WIRE_CHUNK;
}

static struct kvs_send_room *granted_room(struct rig *g)
{
	static const uint32_t pages[1];
	struct kvs_send_room *r;
	struct rig_room *d;
	struct kvs_msg m;

	d = rig_room_new(g, 5, 32, 16, 16, 0, 1, 0);
	assert_int_equal(kvs_send_open(g->s, 5, NULL, 16, g, &r), 0);
	rig_expect(g, KVS_WIRE_OPEN, &m);
	assert_int_equal(kvs_send_pages(r, 0, pages, 1, NULL), 0);
	rig_grant(g, d);
	return r;
}

static void data_connections_too(void **state)
{
	struct kvs_msg h, m, response;
	struct kvs_send_room *r;
	struct kvs_auth_exchange x;
	struct rig *g;
	int fd;

	(void)state;
	new_key();
	g = new_rig();
	up(g);
	/* the key is exchanged while it is connected */
	new_key();
	r = granted_room(g);
	/* one that does not ask gets no byte, and is tried again */
	fd = accept_data(g, &h);
	m = answer_to(&h);
	rig_send(fd, &m);
	assert_false(chunk_comes(fd));
	/* one that proves the old HELLO: nor that */
	fd = accept_data(g, &h);
	assert_int_equal(kvs_auth_challenge(&h.hello, &x, &m), 0);
	rig_send(fd, &m);
	take_response(g, fd, &response);
	assert_int_equal(kvs_auth_verify(&keys, &x, &response.response), 0);
	m = answer_to(&h);
	prove(fd, &keys, &x, &m);
	m.hello.worker++;
	rig_send(fd, &m);
	assert_false(chunk_comes(fd));
	/* with all that is right the bytes come */
	fd = accept_data(g, &h);
	assert_int_equal(h.hello.session, RIG_SESSION);
	assert_int_equal(kvs_auth_challenge(&h.hello, &x, &m), 0);
	rig_send(fd, &m);
	take_response(g, fd, &response);
	assert_int_equal(kvs_auth_verify(&keys, &x, &response.response), 0);
	m = answer_to(&h);
	prove(fd, &keys, &x, &m);
	rig_send(fd, &m);
	assert_true(chunk_comes(fd));
	kvs_send_close(r);
	rig_free(g);
}

/* A file that is broken just now changes nothing. */
static void the_last_good_keys_stay(void **state)
{
	struct kvs_msg h, m, response;
	struct kvs_send_room *r;
	struct kvs_auth_exchange x;
	struct rig *g;
	int fd;

	(void)state;
	new_key();
	g = new_rig();
	up(g);
	assert_int_equal(truncate(path, 10), 0);
	r = granted_room(g);
	fd = accept_data(g, &h);
	assert_int_equal(kvs_auth_challenge(&h.hello, &x, &m), 0);
	rig_send(fd, &m);
	take_response(g, fd, &response);
	assert_int_equal(kvs_auth_verify(&keys, &x, &response.response), 0);
	m = answer_to(&h);
	prove(fd, &keys, &x, &m);
	rig_send(fd, &m);
	assert_true(chunk_comes(fd));
	kvs_send_close(r);
	rig_free(g);
}

static void no_pages_free(struct kvs_send_room *r, void *cookie, int status)
{
	(void)r;
	(void)cookie;
	(void)status;
}

static void no_done(struct kvs_send_room *r, int status, const char *text)
{
	(void)r;
	(void)status;
	(void)text;
}

/* A program that was built before there were keys: what lies behind its
 * options is none of them. */
static void older_options(void **state)
{
	static const struct kvs_send_ops ops = { .pages_free = no_pages_free,
						 .done = no_done };
	struct rig *g = new_rig();
	struct kvs_sender_opts o = g->o;
	char err[256], daemon[32];
	struct kvs_sender *s;

	(void)state;
	o.size = offsetof(struct kvs_sender_opts, key_file);
	o.key_file = "/nonexistent";
	o.connect_timeout = KVS_NSEC_PER_MSEC;
	snprintf(daemon, sizeof(daemon), "127.0.0.1:%u", g->port);
	o.daemon = daemon;
	o.peer = "p";
	o.layout = g->layout;
	o.buffers = g->buffers;
	o.ops = &ops;
	/* nobody answers there */
	assert_int_equal(kvs_sender_create(&o, &s, err, sizeof(err)),
			 -ETIMEDOUT);
	o.size = sizeof(o);
	assert_int_equal(kvs_sender_create(&o, &s, err, sizeof(err)), -ENOENT);
	rig_free(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(agrees),
		cmocka_unit_test(a_daemon_that_does_not_ask),
		cmocka_unit_test(no_proof),
		cmocka_unit_test(another_key),
		cmocka_unit_test(its_own_code),
		cmocka_unit_test(another_answer),
		cmocka_unit_test(asked_without_a_key),
		cmocka_unit_test(asked_twice),
		cmocka_unit_test(the_file_is_checked),
		cmocka_unit_test(data_connections_too),
		cmocka_unit_test(the_last_good_keys_stay),
		cmocka_unit_test(older_options),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
