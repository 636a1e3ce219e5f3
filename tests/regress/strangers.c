/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: who does not shake hands in time, speaks something else, or says
 * the right thing at the wrong time is closed, with a counted reason
 * (vllm-project/vllm#17192); messages about rooms that were never granted
 * make nothing grow and keep nobody waiting (sgl-project/sglang#39428); a
 * peer that does not read is bounded; the stream may be cut anywhere
 * (kvcache-ai/Mooncake#609).
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pipeline/wire_structs.h"
#include "tests/regress/misbehave.h"

static struct rig g[1];

/* ---- handshakes ------------------------------------------------------------ */

static void wait_closed(int fd)
{
	uint64_t until = rig_until();

	while (!ps_is_closed(fd))
		rig_pause(until, "a connection to be closed", __FILE__,
			  __LINE__);
	close(fd);
}

static void no_handshake_in_time(void **state)
{
	static const char *const words[] = {
		"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
		"\x16\x03\x01\x02\x01\x01\xfc\x03\x03 hello, a server?",
	};
	struct kvs_wire_hello hello = { 0 };
	unsigned char junk[4096];
	struct ps p;
	struct pe e;
	int fd;

	(void)state;
	rig_init(g, rig_engine(), "2M");
	rig_set(g, "listen.handshake_timeout", "100ms");
	rig_up(g);
	pe_up(&e, g->set.engine_socket, &mis_layout);
	/* nothing at all */
	fd = ps_dial(g->port);
	wait_closed(fd);
	rig_wait(g, rig_proto(g, KVS_PROTO_HANDSHAKE) == 1);
	/* half a HELLO */
	hello.frame.magic = kvs_put32(KVS_FRAME_MAGIC);
	hello.frame.type = kvs_put16(KVS_WIRE_HELLO);
	hello.frame.len = kvs_put32(sizeof(hello));
	fd = ps_dial(g->port);
	assert_int_equal(ps_write(fd, &hello, 100), 100);
	wait_closed(fd);
	rig_wait(g, rig_proto(g, KVS_PROTO_HANDSHAKE) == 2);
	/* HELLO and no LAYOUT */
	ps_init(&p, g->port, "p", 0, 1, &mis_layout);
	assert_int_equal(ps_hello(&p), 0);
	rig_wait(g, rig_proto(g, KVS_PROTO_HANDSHAKE) == 3);
	rig_wait(g, g->snap->sessions == 0);
	wait_closed(p.ctl);
	p.ctl = -1;
	ps_down(&p);
	/* something else */
	for (unsigned int i = 0; i < KVS_ARRAY_SIZE(words); i++) {
		fd = ps_dial(g->port);
		assert_true(ps_write(fd, words[i], strlen(words[i])) > 0);
		wait_closed(fd);
	}
	memset(junk, 0xff, sizeof(junk));
	fd = ps_dial(g->port);
	(void)ps_write(fd, junk, sizeof(junk));
	wait_closed(fd);
	rig_wait(g, rig_proto(g, KVS_PROTO_MAGIC) == 3);
	/* a good one is served after all that, and not closed later */
	ps_up(&p, g->port, "p", 0, 1, &mis_layout);
	ps_quiet(&p);
	rig_refresh(g);
	assert_int_equal(g->snap->sessions, 1);
	assert_int_equal(rig_proto(g, KVS_PROTO_HANDSHAKE), 3);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

/* A message that is right, at a wrong time. */
static void order_matters(void **state)
{
	static const struct kvs_msg early[] = {
		{ .type = KVS_WIRE_OPEN, .open = { .room = 1, .tokens = 1 } },
		{ .type = KVS_WIRE_LAST,
		  .last = { .room = 1, .generation = 32 } },
		{ .type = KVS_WIRE_ABORT,
		  .abort = { .room = 1, .generation = 32, .err = EIO } },
		{ .type = KVS_WIRE_KEEPALIVE },
	};
	struct kvs_msg m;
	struct ps p;
	struct pe e;
	int fd;

	(void)state;
	mis_start(g, &e);
	for (unsigned int i = 0; i < KVS_ARRAY_SIZE(early); i++) {
		fd = ps_dial(g->port);
		assert_int_equal(ps_write_msg(fd, &early[i]), 0);
		wait_closed(fd);
		rig_wait(g, rig_proto(g, KVS_PROTO_ORDER) == i + 1);
	}
	/* what only a daemon says */
	ps_up(&p, g->port, "p", 0, 1, &mis_layout);
	m = (struct kvs_msg){ .type = KVS_WIRE_COMPLETE,
			      .complete = { .room = 1, .generation = 32 } };
	assert_int_equal(ps_say(&p, &m), 0);
	ps_expect(&p, KVS_WIRE_ERROR, &m);
	rig_wait(g, rig_proto(g, KVS_PROTO_ORDER) == KVS_ARRAY_SIZE(early) + 1);
	ps_down(&p);
	/* a second HELLO on one connection */
	ps_init(&p, g->port, "p", 0, 1, &mis_layout);
	assert_int_equal(ps_hello(&p), 0);
	ps_hello_msg(&p, KVS_ROLE_CONTROL, &m);
	assert_int_equal(ps_say(&p, &m), 0);
	ps_expect(&p, KVS_WIRE_ERROR, &m);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

/* ---- rooms that were never granted ---------------------------------------- */

struct drinker {
	int fd;
	atomic_bool stop;
	pthread_t thread;
};

/* Reads and forgets, so that our side does not block. */
static void *drink(void *arg)
{
	struct drinker *d = arg;
	char buf[65536];

	while (recv(d->fd, buf, sizeof(buf), 0) > 0)
		;
	return NULL;
}

#define FLOOD 100000

static void flood(struct ps *p, struct kvs_rng *rng)
{
	_Alignas(8) unsigned char ctl[512];
	_Alignas(8) unsigned char data[KVS_DATA_FRAME + 64];
	static const enum kvs_wire_type types[] = {
		KVS_WIRE_OPEN,	    KVS_WIRE_ABORT, KVS_WIRE_ABORT_ACK,
		KVS_WIRE_ABORT_NAK, KVS_WIRE_LAST,
	};
	struct kvs_msg m;
	int len;

	for (uint32_t i = 0; i < FLOOD; i++) {
		/* a counter that was never reached, on a node that is there */
		uint64_t room = kvs_rng_next(rng) | 1;
		uint64_t generation = (1ull << 40 | kvs_rng_below(rng, 1 << 20))
				      << 5;

		memset(&m, 0, sizeof(m));
		m.type = types[i % KVS_ARRAY_SIZE(types)];
		if (m.type == KVS_WIRE_OPEN) {
			m.open.room = room;
			m.open.tokens = 1;
		} else if (m.type == KVS_WIRE_LAST) {
			m.last.room = room;
			m.last.generation = generation;
			m.last.bytes = 1;
		} else {
			m.abort.room = room;
			m.abort.generation = generation;
			m.abort.err = EIO;
		}
		len = kvs_wire_encode(&m, ctl, sizeof(ctl));
		assert_true(len > 0);
		assert_int_equal(ps_write(p->ctl, ctl, (size_t)len), len);
		memset(&m, 0, sizeof(m));
		m.type = KVS_WIRE_CHUNK;
		m.chunk.room = room;
		m.chunk.generation = generation;
		m.chunk.len = 64;
		len = kvs_wire_encode(&m, data, sizeof(data));
		assert_int_equal(len, KVS_DATA_FRAME);
		assert_int_equal(ps_write(p->data[0], data, sizeof(data)),
				 sizeof(data));
	}
}

static void rooms_never_granted(void **state)
{
	struct kvs_rng rng;
	struct drinker d;
	struct pe_room r;
	struct ps_room w;
	struct ps bad, good;
	uint64_t rss;
	struct pe e;

	(void)state;
	kvs_rng_init(&rng, rig_seed());
	mis_start(g, &e);
	ps_up(&good, g->port, "good", 0, 1, &mis_layout);
	mis_admit(&e, &r, 0, "good", 1, 1);
	mis_open(&good, &w, 1, 5);
	ps_up(&bad, g->port, "bad", 0, 1, &mis_layout);
	d.fd = bad.ctl;
	assert_int_equal(pthread_create(&d.thread, NULL, drink, &d), 0);
	rss = rig_rss();
	flood(&bad, &rng);
	/* behind all of it */
	assert_int_equal(ps_last(&good, &w, ps_send_all(&good, &w)), 0);
	pe_wait(&e, &r, KVS_STATUS_READY);
	assert_int_equal(pe_differ(&e, &r, MIS_PAGES * PS_TOKENS, 1, 5), 0);
	pe_commit(&e, &r);
	rig_wait(g, rig_late_bytes(g) == FLOOD * 64ull &&
			    rig_acks_ignored(g, KVS_ACK_IGNORED_UNKNOWN_ROOM) ==
				    2 * FLOOD / 5);
	if (MIS_RSS_COUNTS) {
		uint64_t now = rig_rss();

		print_message("# %llu KiB more\n",
			      now > rss ? (unsigned long long)(now - rss) >> 10
					: 0ull);
		assert_true(now < rss + (16 << 20));
	}
	assert_int_equal(rig_rooms(g), 0);
	assert_int_equal(mis_errors(g), 0);
	/* it is still a good connection */
	assert_int_equal(g->snap->sessions, 2);
	shutdown(bad.ctl, SHUT_RDWR);
	assert_int_equal(pthread_join(d.thread, NULL), 0);
	ps_room_fini(&w);
	ps_down(&bad);
	ps_down(&good);
	pe_down(&e);
	rig_down(g);
}

/* One that does not read its answers is bounded and loses its connection. */
static void never_reads(void **state)
{
	struct kvs_msg m = {
		.type = KVS_WIRE_OPEN,
		.open = { .room = 7, .tokens = 1 },
	};
	uint64_t rss;
	struct ps p;
	struct pe e;
	int ret = 0;

	(void)state;
	mis_start(g, &e);
	ps_up(&p, g->port, "p", 0, 1, &mis_layout);
	rss = rig_rss();
	/* at 304 bytes an answer, far over what may be queued */
	for (uint32_t i = 0; i < 400000 && !ret; i++)
		ret = ps_say(&p, &m);
	rig_wait(g, g->snap->sessions == 0);
	rig_wait(g, ps_is_closed(p.ctl));
	if (MIS_RSS_COUNTS)
		assert_true(rig_rss() < rss + (32 << 20));
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

/* ---- pieces ----------------------------------------------------------------- */

static void write_pieces(int fd, const unsigned char *buf, size_t len,
			 size_t piece)
{
	for (size_t at = 0; at < len; at += piece)
		assert_true(ps_write(fd, buf + at,
				     len - at < piece ? len - at : piece) > 0);
}

static size_t put(unsigned char *buf, size_t at, const struct kvs_msg *m)
{
	_Alignas(8) unsigned char one[4096];
	int len = kvs_wire_encode(m, one, sizeof(one));

	assert_true(len > 0);
	memcpy(buf + at, one, (size_t)len);
	return at + (size_t)len;
}

/* The whole conversation of a rank, control and data, cut into pieces of
 * @piece bytes; 0: one write a connection and step. */
static void converse(struct pe *e, uint64_t room, size_t piece)
{
	static unsigned char buf[1 << 20];
	unsigned char *one;
	struct pe_room r;
	struct ps_room w;
	struct kvs_msg m;
	size_t len, n;
	struct ps p;

	if (!piece)
		piece = sizeof(buf);
	mis_admit(e, &r, 0, "p", room, 1);
	ps_init(&p, g->port, "p", 0, 1, &mis_layout);
	p.ctl = ps_dial(g->port);
	ps_hello_msg(&p, KVS_ROLE_CONTROL, &m);
	/* HELLO, LAYOUT, OPEN in a row: nothing of it waits for an answer */
	n = put(buf, 0, &m);
	m = (struct kvs_msg){ .type = KVS_WIRE_LAYOUT };
	m.layout.l = mis_layout;
	n = put(buf, n, &m);
	m = (struct kvs_msg){ .type = KVS_WIRE_OPEN,
			      .open = { .room = room,
					.tokens = MIS_PAGES * PS_TOKENS } };
	n = put(buf, n, &m);
	write_pieces(p.ctl, buf, n, piece);
	ps_expect(&p, KVS_WIRE_HELLO, &m);
	p.token = m.hello.session;
	ps_expect(&p, KVS_WIRE_LAYOUT, &m);
	ps_granted(&p, &w, room, 64 * PS_PAGE);

	/* HELLO and every chunk behind it */
	ps_hello_msg(&p, KVS_ROLE_DATA, &m);
	n = put(buf, 0, &m);
	for (uint32_t i = 0; i < w.n_chunks; i++) {
		one = ps_chunk_bytes(&p, &w, i, &len);
		assert_true(n + len <= sizeof(buf));
		memcpy(buf + n, one, len);
		n += len;
		free(one);
	}
	p.data[0] = ps_dial(g->port);
	write_pieces(p.data[0], buf, n, piece);
	assert_int_equal(ps_last(&p, &w, w.bytes), 0);
	ps_expect(&p, KVS_WIRE_COMPLETE, &m);
	pe_wait(e, &r, KVS_STATUS_READY);
	assert_int_equal(pe_differ(e, &r, MIS_PAGES * PS_TOKENS, 1, room), 0);
	pe_commit(e, &r);
	ps_room_fini(&w);
	ps_down(&p);
}

static void any_pieces(void **state)
{
	static const size_t pieces[] = { 0, 7, 63, 64, 65, 4096, 1 };
	struct pe e;

	(void)state;
	mis_start(g, &e);
	for (unsigned int i = 0; i < KVS_ARRAY_SIZE(pieces); i++)
		converse(&e, i + 1, pieces[i]);
	rig_refresh(g);
	assert_int_equal(mis_errors(g), 0);
	pe_down(&e);
	rig_down(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_handshake_in_time),
		cmocka_unit_test(order_matters),
		cmocka_unit_test(rooms_never_granted),
		cmocka_unit_test(never_reads),
		cmocka_unit_test(any_pieces),
	};

	return rig_run_both(tests);
}
