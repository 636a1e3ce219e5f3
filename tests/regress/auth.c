/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: a daemon with a key lets in who shows it, on control and data
 * connections, and nobody else (vllm-project/vllm#17192): not without a key,
 * with a wrong one, with a handshake seen before, reflected, or moved to
 * another rank, role or session; refused before there is a session
 * (InternLM/lmdeploy#4804). Failures are counted by reason, told once for an
 * address and limited for it, in bounded memory, while a rank that is well,
 * even at the same address, is not slowed, nor loses its place to them. Keys are exchanged under a running
 * transfer. A room that needs a token is granted to who has it, and to nobody
 * else.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pipeline/auth.h"
#include "tests/regress/misbehave.h"

static struct rig g[1];
static char path[128];
static struct kvs_auth_keys key; /* as the file has it */
static atomic_uint told; /* lines about failed handshakes */
static atomic_uint blocked, spared, refused; /* what lines say */

static void log_line(enum kvs_log_level level, const char *line, void *arg)
{
	(void)arg;
	if (level <= KVS_LOG_WARN &&
	    (strstr(line, "no handshake") || strstr(line, "handshakes failed")))
		atomic_fetch_add(&told, 1);
	if (strstr(line, "this address is not heard for"))
		atomic_fetch_add(&blocked, 1);
	if (strstr(line, "this address is still heard"))
		atomic_fetch_add(&spared, 1);
	if (level <= KVS_LOG_WARN && strstr(line, "listen.max_connections"))
		atomic_fetch_add(&refused, 1);
}

static void write_keys(const struct kvs_auth_keys *k)
{
	char tmp[160];
	FILE *f;

	snprintf(tmp, sizeof(tmp), "%s.new", path);
	f = fopen(tmp, "we");
	assert_non_null(f);
	for (unsigned int i = 0; i < k->n; i++) {
		for (int b = 0; b < KVS_AUTH_KEY; b++)
			fprintf(f, "%02x", k->key[i][b]);
		fputc('\n', f);
	}
	assert_int_equal(fchmod(fileno(f), 0600), 0);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(rename(tmp, path), 0);
}

static struct kvs_auth_keys make_keys(unsigned int n, unsigned char first)
{
	struct kvs_auth_keys k = { .n = n };

	for (unsigned int i = 0; i < n; i++)
		for (int b = 0; b < KVS_AUTH_KEY; b++)
			k.key[i][b] = (unsigned char)(first + 50 * i + b);
	return k;
}

/* Set before up(): what differs from the defaults. */
static void prepare(void)
{
	rig_init(g, rig_engine(), "2M");
	rig_set(g, "extent.tokens", "128");
	snprintf(path, sizeof(path), "%s/key", g->dir);
	key = make_keys(1, 1);
	write_keys(&key);
	rig_set(g, "auth.key_file", path);
	atomic_store(&told, 0);
	atomic_store(&blocked, 0);
	atomic_store(&spared, 0);
	atomic_store(&refused, 0);
	g->log = log_line;
}

static void up(struct pe *e)
{
	rig_up(g);
	pe_up(e, g->set.engine_socket, &mis_layout);
	e->aux_len = MIS_AUX;
	ps_use_keys(&key);
}

static void down(struct pe *e)
{
	pe_down(e);
	ps_use_keys(NULL);
	assert_int_equal(unlink(path), 0);
	rig_down(g);
}

static uint64_t failures(enum kvs_auth_failure f)
{
	return g->snap->auth_failures[f];
}

/* Nothing is left of those who were refused. */
static void nobody(void)
{
	rig_refresh(g);
	assert_int_equal(g->snap->sessions, 0);
	assert_int_equal(rig_data_connections(g), 0);
	assert_int_equal(rig_rooms(g), 0);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_FREE),
			 g->snap->workers[0].pools[0].account.configured);
}

static void one_room(struct pe *e, struct ps *p, uint64_t room)
{
	struct ps_room w;
	struct pe_room r;

	mis_admit(e, &r, 0, "p", room, 1);
	mis_open(p, &w, room, room);
	ps_finish(p, &w, 0);
	pe_take(e, &r, MIS_PAGES * PS_TOKENS, 1, room);
}

static void with_the_key(void **state)
{
	struct pe e;
	struct ps p;

	(void)state;
	prepare();
	up(&e);
	ps_up(&p, g->port, "p", 0, 1, &mis_layout);
	assert_int_equal(ps_data(&p), 1);
	one_room(&e, &p, 5);
	rig_refresh(g);
	assert_int_equal(g->snap->auth_keys, 1);
	assert_int_equal(g->snap->auth_handshakes[0], 3);
	for (int i = 0; i < KVS_AUTH_FAILURE_MAX; i++)
		assert_int_equal(failures(i), 0);
	ps_down(&p);
	down(&e);
}

static void without_it(void **state)
{
	struct kvs_auth_keys wrong = make_keys(1, 2);
	struct kvs_msg m;
	struct pe e;
	struct ps p;
	int fd;

	(void)state;
	prepare();
	rig_set(g, "listen.handshake_timeout", "200ms");
	up(&e);
	/* none: asked, and gone */
	ps_init(&p, g->port, "p", 0, 1, &mis_layout);
	p.keys = NULL;
	assert_int_equal(ps_hello(&p), -EACCES);
	ps_down(&p);
	rig_wait(g, failures(KVS_AUTH_CLOSED) == 1);
	/* a wrong one */
	ps_init(&p, g->port, "p", 0, 1, &mis_layout);
	p.keys = &wrong;
	assert_int_equal(ps_hello(&p), -EACCES);
	ps_down(&p);
	rig_wait(g, failures(KVS_AUTH_CODE) == 1);
	nobody();
	/* goes on as if it had been let in */
	ps_init(&p, g->port, "p", 0, 1, &mis_layout);
	p.ctl = ps_dial(g->port);
	assert_true(p.ctl >= 0);
	ps_hello_msg(&p, KVS_ROLE_CONTROL, &m);
	assert_int_equal(ps_write_msg(p.ctl, &m), 0);
	ps_expect(&p, KVS_WIRE_CHALLENGE, &m);
	m = (struct kvs_msg){ .type = KVS_WIRE_LAYOUT };
	m.layout.l = mis_layout;
	assert_int_equal(ps_say(&p, &m), 0);
	ps_expect(&p, KVS_WIRE_ERROR, &m);
	ps_down(&p);
	rig_wait(g, failures(KVS_AUTH_ORDER) == 1);
	/* says HELLO, and then nothing; says nothing at all */
	ps_init(&p, g->port, "p", 0, 1, &mis_layout);
	p.ctl = ps_dial(g->port);
	ps_hello_msg(&p, KVS_ROLE_CONTROL, &m);
	assert_int_equal(ps_write_msg(p.ctl, &m), 0);
	fd = ps_dial(g->port);
	rig_wait(g, failures(KVS_AUTH_TIMEOUT) == 2);
	ps_down(&p);
	close(fd);
	/* something else; and a look whether we are there, which is none */
	fd = ps_dial(g->port);
	assert_true(ps_write(fd, "GET / HTTP/1.1\r\n\r\n", 18) > 0);
	rig_wait(g, failures(KVS_AUTH_MALFORMED) == 1);
	close(fd);
	fd = ps_dial(g->port);
	close(fd);
	/* another version */
	ps_init(&p, g->port, "p", 0, 1, &mis_layout);
	p.ctl = ps_dial(g->port);
	ps_hello_msg(&p, KVS_ROLE_CONTROL, &m);
	m.hello.version_min = m.hello.version_max = KVS_WIRE_VERSION_MAX + 1;
	assert_int_equal(ps_write_msg(p.ctl, &m), 0);
	ps_expect(&p, KVS_WIRE_ERROR, &m);
	assert_int_equal(m.error.err, EPROTONOSUPPORT);
	ps_down(&p);
	rig_wait(g, failures(KVS_AUTH_VERSION) == 1);
	nobody();
	/* seven of one address: one line */
	assert_int_equal(atomic_load(&told), 1);
	down(&e);
}

/* Dial, say @hello, take the challenge, say @response; what comes then. */
static int try_response(struct ps *p, const struct kvs_msg *hello,
			const struct kvs_msg *response,
			struct kvs_msg *ret_challenge)
{
	struct kvs_msg m;
	int fd = ps_dial(g->port);
	int ret;

	assert_true(fd >= 0);
	assert_int_equal(ps_write_msg(fd, hello), 0);
	assert_int_equal(ps_read(p, fd, &m), 0);
	assert_int_equal(m.type, KVS_WIRE_CHALLENGE);
	*ret_challenge = m;
	assert_int_equal(ps_write_msg(fd, response), 0);
	assert_int_equal(ps_read(p, fd, &m), 0);
	ret = m.type == KVS_WIRE_ERROR ? -(int)m.error.err : (int)m.type;
	close(fd);
	return ret;
}

/* Somebody saw every byte of a good handshake, and has no key. */
static void what_was_seen_before(void **state)
{
	struct kvs_msg hello, other, challenge, response, reflected, m, proof;
	struct kvs_auth_sender a;
	const char *why;
	struct pe e;
	struct ps p;
	int fd;

	(void)state;
	prepare();
	up(&e);
	ps_init(&p, g->port, "p", 0, 2, &mis_layout);
	ps_hello_msg(&p, KVS_ROLE_CONTROL, &hello);
	assert_int_equal(kvs_auth_sender_init(&a, &key, &hello.hello), 0);
	fd = ps_dial(g->port);
	assert_int_equal(ps_write_msg(fd, &hello), 0);
	assert_int_equal(ps_read(&p, fd, &challenge), 0);
	assert_int_equal(kvs_auth_sender_answer(&a, &challenge.challenge,
						&response, &why),
			 0);
	assert_int_equal(ps_write_msg(fd, &response), 0);
	assert_int_equal(ps_read(&p, fd, &proof), 0);
	assert_int_equal(proof.type, KVS_WIRE_PROOF);
	assert_int_equal(ps_read(&p, fd, &m), 0);
	assert_int_equal(m.type, KVS_WIRE_HELLO);
	rig_wait(g, g->snap->sessions == 1);

	/* replayed while the first is connected, and when it is gone */
	assert_int_equal(try_response(&p, &hello, &response, &m), -EACCES);
	assert_memory_not_equal(&m.challenge, &challenge.challenge,
				sizeof(m.challenge));
	rig_refresh(g);
	assert_int_equal(g->snap->sessions, 1);
	close(fd);
	rig_wait(g, g->snap->sessions == 0);
	assert_int_equal(try_response(&p, &hello, &response, &m), -EACCES);
	/* reflected: the daemon's code, its own number */
	reflected = response;
	memcpy(reflected.response.mac, proof.proof.mac, KVS_AUTH_MAC);
	assert_int_equal(try_response(&p, &hello, &reflected, &m), -EACCES);
	memcpy(reflected.response.nonce, challenge.challenge.nonce,
	       KVS_AUTH_NONCE);
	assert_int_equal(try_response(&p, &hello, &reflected, &m), -EACCES);
	/* another rank, another name, another role */
	other = hello;
	other.hello.rank = 1;
	assert_int_equal(try_response(&p, &other, &response, &m), -EACCES);
	other = hello;
	snprintf(other.hello.name, sizeof(other.hello.name), "q");
	assert_int_equal(try_response(&p, &other, &response, &m), -EACCES);
	other = hello;
	other.hello.role = KVS_ROLE_DATA;
	other.hello.session = 5;
	assert_int_equal(try_response(&p, &other, &response, &m), -EACCES);
	rig_wait(g, failures(KVS_AUTH_CODE) == 7);
	nobody();
	/* cut in the middle of the answer */
	fd = ps_dial(g->port);
	assert_int_equal(ps_write_msg(fd, &hello), 0);
	assert_int_equal(ps_read(&p, fd, &m), 0);
	{
		_Alignas(8) unsigned char bytes[80];

		assert_int_equal(
			kvs_wire_encode(&response, bytes, sizeof(bytes)), 80);
		assert_int_equal(ps_write(fd, bytes, 79), 79);
	}
	close(fd);
	rig_wait(g, failures(KVS_AUTH_CLOSED) == 1);
	/* an answer to nothing */
	fd = ps_dial(g->port);
	assert_int_equal(ps_write_msg(fd, &response), 0);
	rig_wait(g, failures(KVS_AUTH_ORDER) == 1);
	close(fd);
	nobody();
	ps_down(&p);
	down(&e);
}

static void data_connections(void **state)
{
	struct ps p, q;
	struct pe e;

	(void)state;
	prepare();
	up(&e);
	ps_up(&p, g->port, "p", 0, 2, &mis_layout);
	ps_up(&q, g->port, "p", 1, 2, &mis_layout);
	/* the token without the key */
	p.keys = NULL;
	assert_int_equal(ps_data(&p), -EACCES);
	rig_wait(g, failures(KVS_AUTH_CLOSED) == 1);
	p.keys = &key;
	/* the key and somebody else's token */
	q.token = p.token;
	assert_int_equal(ps_data(&q), -ESTALE);
	rig_wait(g, rig_proto(g, KVS_PROTO_FOREIGN) == 1);
	/* the key and no token */
	q.token = 77;
	assert_int_equal(ps_data(&q), -ESTALE);
	rig_wait(g, rig_data_connections(g) == 2);
	assert_int_equal(ps_data(&p), 1);
	rig_wait(g, rig_data_connections(g) == 3);
	assert_int_equal(g->snap->sessions, 2);
	ps_down(&p);
	ps_down(&q);
	down(&e);
}

static void keys_are_exchanged(void **state)
{
	struct kvs_auth_keys both = make_keys(2, 1), fresh = { .n = 1 };
	struct kvs_auth_keys old = make_keys(1, 1);
	struct ps p, q;
	struct ps_room w;
	struct pe_room r;
	struct pe e;

	(void)state;
	memcpy(fresh.key[0], both.key[1], KVS_AUTH_KEY);
	prepare();
	up(&e);
	ps_up(&p, g->port, "p", 0, 1, &mis_layout);
	mis_admit(&e, &r, 0, "p", 9, 1);
	mis_open(&p, &w, 9, 9);
	assert_true(ps_send_part(&p, 0, &w, 0, 0, 100) > 0);
	/* not yet */
	ps_init(&q, g->port, "q", 0, 1, &mis_layout);
	q.keys = &fresh;
	assert_int_equal(ps_hello(&q), -EACCES);
	ps_down(&q);
	/* the daemon learns it: both come in */
	write_keys(&both);
	kvs_service_reload(g->svc, &g->set);
	rig_refresh(g);
	assert_int_equal(g->snap->auth_keys, 2);
	ps_init(&q, g->port, "q", 0, 1, &mis_layout);
	q.keys = &fresh;
	assert_int_equal(ps_hello(&q), 0);
	ps_down(&q);
	rig_wait(g, g->snap->auth_handshakes[1] == 1);
	ps_init(&q, g->port, "q", 0, 1, &mis_layout);
	q.keys = &old;
	assert_int_equal(ps_hello(&q), 0);
	ps_down(&q);
	/* the old one goes */
	write_keys(&fresh);
	kvs_service_reload(g->svc, &g->set);
	ps_init(&q, g->port, "q", 0, 1, &mis_layout);
	q.keys = &old;
	assert_int_equal(ps_hello(&q), -EACCES);
	ps_down(&q);
	/* a file that is not right changes nothing, and is told */
	assert_int_equal(truncate(path, 3), 0);
	g->errors_expected = true;
	kvs_service_reload(g->svc, &g->set);
	assert_int_equal(atomic_load(&g->errors), 1);
	assert_non_null(strstr(g->first_error, path));
	assert_non_null(strstr(g->first_error, "stay"));
	assert_int_equal(unlink(path), 0);
	kvs_service_reload(g->svc, &g->set);
	rig_refresh(g);
	assert_int_equal(g->snap->auth_keys, 1);
	/* who was connected all the time goes on, and opens one more */
	p.keys = &fresh;
	assert_int_equal(ps_data(&p), 1);
	assert_true(ps_send_part(&p, 0, &w, 0, 100, 0) > 0);
	ps_finish(&p, &w, 1);
	pe_take(&e, &r, MIS_PAGES * PS_TOKENS, 1, 9);
	write_keys(&fresh); /* for down() */
	ps_down(&p);
	down(&e);
}

/* ---- floods --------------------------------------------------------------- */

/* From another address of this machine. */
static int dial_from(uint32_t from)
{
	struct sockaddr_in sa = {
		.sin_family = AF_INET,
		.sin_port = htons((uint16_t)g->port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	struct sockaddr_in me = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(from) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	if (bind(fd, (struct sockaddr *)&me, sizeof(me))) {
		print_message("skip: no other address of 127.0.0.0/8: %s\n",
			      strerror(errno));
		exit(77);
	}
	assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	return fd;
}

/* It says HELLO and a code that is wrong, or is not even heard. */
static void fail_from(struct ps *p, uint32_t from)
{
	struct kvs_msg m, response = { .type = KVS_WIRE_RESPONSE };
	int fd = dial_from(from);

	ps_hello_msg(p, KVS_ROLE_CONTROL, &m);
	if (!ps_write_msg(fd, &m) && !ps_read(p, fd, &m) &&
	    m.type == KVS_WIRE_CHALLENGE && !ps_write_msg(fd, &response))
		(void)ps_read(p, fd, &m);
	close(fd);
}

static void an_address_that_fails_too_often(void **state)
{
	const uint32_t bad = INADDR_LOOPBACK + 1;
	struct kvs_auth_keys wrong = make_keys(1, 2);
	struct ps p, q;
	struct pe e;

	(void)state;
	prepare();
	rig_set(g, "auth.failures", "5");
	rig_set(g, "auth.backoff", "1h");
	up(&e);
	ps_init(&q, g->port, "q", 0, 1, &mis_layout);
	for (int i = 0; i < 40; i++)
		fail_from(&q, bad);
	rig_wait(g, failures(KVS_AUTH_BLOCKED) == 35);
	assert_int_equal(failures(KVS_AUTH_CODE), 5);
	/* the first, and the one too many */
	assert_int_equal(atomic_load(&told), 2);
	nobody();
	/* nobody else suffers */
	ps_up(&p, g->port, "p", 0, 1, &mis_layout);
	one_room(&e, &p, 3);
	/* beside a rank that is well, a wrong key does not block the address */
	for (int i = 0; i < 20; i++) {
		ps_down(&q);
		ps_init(&q, g->port, "q", 0, 1, &mis_layout);
		q.keys = &wrong;
		assert_int_equal(ps_hello(&q), -EACCES);
	}
	rig_wait(g, failures(KVS_AUTH_CODE) == 25);
	assert_int_equal(ps_data(&p), 1);
	one_room(&e, &p, 4);
	rig_refresh(g);
	assert_int_equal(failures(KVS_AUTH_BLOCKED), 35);
	/* and the log says so */
	assert_int_equal(atomic_load(&blocked), 1);
	assert_int_equal(atomic_load(&spared), 1);
	ps_down(&q);
	ps_down(&p);
	/* nor does it when that rank has gone: the next one comes in */
	rig_wait(g, g->snap->sessions == 0);
	ps_init(&q, g->port, "q", 0, 1, &mis_layout);
	assert_int_equal(ps_hello(&q), 0);
	ps_down(&q);
	rig_wait(g, g->snap->sessions == 0);
	/* one more failure, and it is, and the log says that */
	ps_init(&q, g->port, "q", 0, 1, &mis_layout);
	q.keys = &wrong;
	assert_int_equal(ps_hello(&q), -EACCES);
	ps_down(&q);
	rig_wait(g, failures(KVS_AUTH_CODE) == 26);
	assert_int_equal(atomic_load(&blocked), 2);
	ps_init(&q, g->port, "q", 0, 1, &mis_layout);
	assert_true(ps_hello(&q) < 0);
	rig_wait(g, failures(KVS_AUTH_BLOCKED) == 36);
	ps_down(&q);
	down(&e);
}

/* From thousands of addresses, while a rank transfers. */
static void a_flood(void **state)
{
	uint64_t before = 0, took = rig_now();
	const unsigned int n = 3000;
	struct ps p, q;
	struct pe e;

	(void)state;
	prepare();
	rig_set(g, "auth.sources", "64");
	up(&e);
	ps_up(&p, g->port, "p", 0, 1, &mis_layout);
	ps_init(&q, g->port, "q", 0, 1, &mis_layout);
	for (unsigned int i = 0; i < n; i++) {
		fail_from(&q, INADDR_LOOPBACK + 256 + i);
		if (i % 500 == 0)
			one_room(&e, &p, 10 + i);
		if (i == 500)
			before = rig_rss();
	}
	took = rig_now() - took;
	rig_wait(g, failures(KVS_AUTH_CODE) == n);
	print_message("# %u failed handshakes, %.0f us each; %u lines; %lld "
		      "bytes more\n",
		      n, (double)took / 1000 / n, atomic_load(&told),
		      (long long)(rig_rss() - before));
	/* 2500 of them: a connection's memory kept would show */
	if (MIS_RSS_COUNTS)
		assert_true(rig_rss() < before + (1u << 20));
	assert_true(atomic_load(&told) < 40);
	assert_int_equal(g->snap->sessions, 1);
	one_room(&e, &p, 9999);
	ps_down(&q);
	ps_down(&p);
	down(&e);
}

/* Who connects and says nothing keeps nobody out. */
static void a_crowd_of_strangers(void **state)
{
	int fd[40];
	struct ps p;
	struct pe e;
	char c;

	(void)state;
	prepare();
	rig_set(g, "listen.max_connections", "16");
	rig_set(g, "auth.pending", "100");
	rig_set(g, "listen.handshake_timeout", "1h");
	up(&e);
	for (unsigned int i = 0; i < KVS_ARRAY_SIZE(fd); i++) {
		fd[i] = dial_from(INADDR_LOOPBACK + 1 + i);
		/* half of 16 may stay; the oldest goes */
		rig_wait(g, failures(KVS_AUTH_CROWDED) == (i < 8 ? 0 : i - 7));
	}
	for (unsigned int i = 0; i < KVS_ARRAY_SIZE(fd); i++) {
		struct pollfd f = { .fd = fd[i], .events = POLLIN };

		if (i < 32) {
			assert_int_equal(poll(&f, 1, 10000), 1);
			assert_true(recv(fd[i], &c, 1, 0) <= 0);
		} else {
			assert_int_equal(poll(&f, 1, 0), 0);
		}
	}
	ps_up(&p, g->port, "p", 0, 1, &mis_layout);
	one_room(&e, &p, 6);
	/* none of that is held against anybody */
	rig_refresh(g);
	assert_int_equal(atomic_load(&told), 0);
	for (unsigned int i = 0; i < KVS_ARRAY_SIZE(fd); i++)
		close(fd[i]);
	ps_down(&p);
	down(&e);
}

/* Nor do they take the places of ranks, nor the way of their data; those that
 * are too many are told so, and the log has one line for all. */
static void a_full_house(void **state)
{
	struct ps p[4], q;
	struct ps_room w;
	struct pe_room r;
	struct pe e;
	int fd[3];

	(void)state;
	prepare();
	rig_set(g, "listen.max_connections", "4");
	rig_set(g, "listen.handshake_timeout", "1h");
	up(&e);
	for (uint32_t i = 0; i < 3; i++)
		ps_up(&p[i], g->port, "p", i, 4, &mis_layout);
	for (uint32_t i = 0; i < KVS_ARRAY_SIZE(fd); i++)
		fd[i] = dial_from(INADDR_LOOPBACK + 1 + i);
	/* two of them may stay */
	rig_wait(g, failures(KVS_AUTH_CROWDED) == 1);
	/* takes the place of the oldest of the others, with the right key */
	ps_up(&p[3], g->port, "p", 3, 4, &mis_layout);
	rig_wait(g, g->snap->sessions == 4);
	assert_int_equal(rig_data_connections(g), 4);
	assert_int_equal(g->snap->connections_refused, 0);
	assert_int_equal(atomic_load(&refused), 0);
	/* those who are one too many know why */
	for (int i = 0; i < 3; i++) {
		ps_init(&q, g->port, "q", 0, 1, &mis_layout);
		assert_int_equal(ps_hello(&q), -EAGAIN);
		ps_down(&q);
	}
	rig_wait(g, g->snap->connections_refused == 3);
	assert_int_equal(atomic_load(&refused), 1);
	assert_int_equal(g->snap->sessions, 4);
	/* a rank that comes again has its own */
	ps_init(&q, g->port, "p", 3, 4, &mis_layout);
	assert_int_equal(ps_hello(&q), 0);
	ps_down(&q);
	ps_down(&p[3]);
	/* and where one has gone there is one */
	rig_wait(g, g->snap->sessions == 3);
	ps_up(&q, g->port, "q", 0, 1, &mis_layout);
	mis_admit(&e, &r, 0, "q", 8, 1);
	mis_open(&q, &w, 8, 8);
	ps_finish(&q, &w, 0);
	pe_take(&e, &r, MIS_PAGES * PS_TOKENS, 1, 8);
	ps_down(&q);
	for (uint32_t i = 0; i < 3; i++)
		ps_down(&p[i]);
	for (uint32_t i = 0; i < KVS_ARRAY_SIZE(fd); i++)
		close(fd[i]);
	down(&e);
}

/* It goes away, or says by its first 16 bytes that it is none of ours. */
static void cut_short(void **state)
{
	struct kvs_frame f = { 0 };
	struct kvs_msg m;
	struct pe e;
	struct ps p;
	int fd;

	(void)state;
	prepare();
	up(&e);
	ps_init(&p, g->port, "p", 0, 1, &mis_layout);
	/* in the middle of HELLO: counted, and not held against it */
	f.magic = kvs_put32(KVS_FRAME_MAGIC);
	f.type = kvs_put16(KVS_WIRE_HELLO);
	f.len = kvs_put32(KVS_HELLO_FRAME);
	fd = ps_dial(g->port);
	assert_int_equal(ps_write(fd, &f, sizeof(f)), sizeof(f));
	close(fd);
	rig_wait(g, failures(KVS_AUTH_LEFT) == 1);
	fd = ps_dial(g->port);
	assert_int_equal(ps_write(fd, &f, 5), 5);
	close(fd);
	rig_wait(g, failures(KVS_AUTH_LEFT) == 2);
	/* before it */
	fd = ps_dial(g->port);
	close(fd);
	rig_wait(g, failures(KVS_AUTH_LEFT) == 3);
	assert_int_equal(atomic_load(&told), 0);
	/* a length that no HELLO has: nothing of it is waited for */
	for (uint32_t i = 0; i < 3; i++) {
		static const uint32_t len[] = { KVS_FRAME_MAX,
						KVS_HELLO_FRAME + 1,
						KVS_HELLO_FRAME - 1 };

		f.len = kvs_put32(len[i]);
		fd = ps_dial(g->port);
		assert_int_equal(ps_write(fd, &f, sizeof(f)), sizeof(f));
		assert_int_equal(ps_read(&p, fd, &m), 0);
		assert_int_equal(m.type, KVS_WIRE_ERROR);
		assert_int_equal(m.error.err, EPROTO);
		close(fd);
		rig_wait(g, failures(KVS_AUTH_MALFORMED) == i + 1);
		assert_int_equal(rig_proto(g, KVS_PROTO_LENGTH), i + 1);
	}
	/* something else, however long */
	f.type = kvs_put16(KVS_WIRE_LAYOUT);
	f.len = kvs_put32(KVS_FRAME_MAX);
	fd = ps_dial(g->port);
	assert_int_equal(ps_write(fd, &f, sizeof(f)), sizeof(f));
	assert_int_equal(ps_read(&p, fd, &m), 0);
	assert_int_equal(m.type, KVS_WIRE_ERROR);
	close(fd);
	rig_wait(g, failures(KVS_AUTH_ORDER) == 1);
	/* likewise the answer to CHALLENGE */
	p.ctl = ps_dial(g->port);
	ps_hello_msg(&p, KVS_ROLE_CONTROL, &m);
	assert_int_equal(ps_write_msg(p.ctl, &m), 0);
	ps_expect(&p, KVS_WIRE_CHALLENGE, &m);
	f.type = kvs_put16(KVS_WIRE_RESPONSE);
	assert_int_equal(ps_write(p.ctl, &f, sizeof(f)), sizeof(f));
	ps_expect(&p, KVS_WIRE_ERROR, &m);
	rig_wait(g, failures(KVS_AUTH_MALFORMED) == 4);
	ps_down(&p);
	nobody();
	down(&e);
}

/* ---- the token of a room --------------------------------------------------- */

static void a_room_needs_its_token(void **state)
{
	static const unsigned char wrong[16] = { 1, 2, 3 };
	struct ps_room w;
	struct pe_room r;
	struct kvs_msg m;
	struct pe e;
	struct ps p;

	(void)state;
	prepare();
	rig_set(g, "auth.room_token", "required");
	up(&e);
	ps_up(&p, g->port, "p", 0, 1, &mis_layout);
	/* an engine that gives none */
	snprintf(e.peer, sizeof(e.peer), "p");
	pe_admit(&e, &r, 0, 4, MIS_PAGES * PS_TOKENS, 1);
	pe_wait_failed(&e, &r, EINVAL);
	rig_wait(g, rig_admits(g, KVS_ADMIT_INVALID) == 1);
	rig_refresh(g);
	assert_int_equal(rig_rooms(g), 0);
	/* none and a wrong one: no grant */
	memset(e.nonce, 7, sizeof(e.nonce));
	mis_admit(&e, &r, 0, "p", 4, 1);
	assert_int_equal(ps_open(&p, 4, MIS_PAGES * PS_TOKENS), 0);
	ps_expect(&p, KVS_WIRE_REFUSE, &m);
	assert_int_equal(m.refuse.err, ESTALE);
	m = (struct kvs_msg){ .type = KVS_WIRE_OPEN,
			      .open = { .room = 4,
					.tokens = MIS_PAGES * PS_TOKENS } };
	memcpy(m.open.nonce, wrong, sizeof(wrong));
	assert_int_equal(ps_say(&p, &m), 0);
	ps_expect(&p, KVS_WIRE_REFUSE, &m);
	assert_int_equal(m.refuse.err, ESTALE);
	rig_refresh(g);
	assert_int_equal(rig_bytes(g, KVS_EXTENT_GRANTED), 0);
	/* the right one */
	m = (struct kvs_msg){ .type = KVS_WIRE_OPEN,
			      .open = { .room = 4,
					.tokens = MIS_PAGES * PS_TOKENS } };
	memset(m.open.nonce, 7, sizeof(m.open.nonce));
	assert_int_equal(ps_say(&p, &m), 0);
	ps_granted(&p, &w, 4, 8 * PS_PAGE);
	ps_finish(&p, &w, 0);
	pe_take(&e, &r, MIS_PAGES * PS_TOKENS, 1, 4);
	/* optional: again as ever; a reload applies it */
	rig_set(g, "auth.room_token", "optional");
	kvs_service_reload(g->svc, &g->set);
	memset(e.nonce, 0, sizeof(e.nonce));
	one_room(&e, &p, 5);
	ps_down(&p);
	down(&e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(with_the_key),
		cmocka_unit_test(without_it),
		cmocka_unit_test(what_was_seen_before),
		cmocka_unit_test(data_connections),
		cmocka_unit_test(keys_are_exchanged),
		cmocka_unit_test(an_address_that_fails_too_often),
		cmocka_unit_test(a_flood),
		cmocka_unit_test(a_crowd_of_strangers),
		cmocka_unit_test(a_full_house),
		cmocka_unit_test(cut_short),
		cmocka_unit_test(a_room_needs_its_token),
	};

	return rig_run_both(tests);
}
