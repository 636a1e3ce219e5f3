/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: nothing that an engine process sends, of any type, length or
 * content, at any time, ends the daemon or touches another engine's rooms; a
 * packet that breaks the protocol costs its sender the connection, with a
 * counted reason; who cannot show a pidfd of its own process is refused; who
 * does not read its socket, or connects and says nothing, is bounded.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/regress/puppet_engine.h"
#include "tests/regress/puppet_sender.h"
#include "tests/regress/service_rig.h"

#define PAGE 4096u /* bytes */
#define TOKENS 16u /* of a page */
#define PAGES 4u /* of a room */

static struct kvs_layer_buffer buffers[] = {
	{ KVS_BUFFER_KV, 0, PAGE, 0 },
	{ KVS_BUFFER_MAMBA, 1, 512, 1 },
};
static const struct kvs_layout layout = {
	.size = sizeof(layout),
	.page_size = TOKENS,
	.dtype = KVS_DTYPE_BF16,
	.n_buffers = KVS_ARRAY_SIZE(buffers),
	.buffers = buffers,
	.aux_max = 256,
};

static struct rig g[1];
static struct pe good[1];
static struct ps p[1];

static void start(const char *slots)
{
	rig_init(g, "sock", "1M");
	rig_set(g, "engine.slots", slots);
	rig_set(g, "engine.max", "4");
	rig_set(g, "listen.handshake_timeout", "200ms");
	rig_up(g);
	pe_up(good, g->set.engine_socket, &layout);
	ps_up(p, g->port, "p", 0, 1, &layout);
}

/* A room of the good engine, from admit to done. */
static void serve(uint64_t room)
{
	struct pe_room r;
	struct ps_room w;

	pe_admit(good, &r, room % 16, room, PAGES * TOKENS, 1);
	assert_int_equal(ps_open(p, room, PAGES * TOKENS), 0);
	ps_granted(p, &w, room, 2 * PAGE);
	ps_finish(p, &w, 0);
	pe_take(good, &r, PAGES * TOKENS, 1, room);
}

static void stop(void)
{
	rig_wait(g, g->snap->engines == 1);
	serve(1);
	ps_down(p);
	pe_down(good);
	rig_down(g);
}

/* ---- attach --------------------------------------------------------------- */

/* errno of the REFUSED that answers; 0: closed without a word. */
static int attach_raw(const void *buf, size_t len, const int *fds,
		      unsigned int n_fds, char *text, size_t textlen)
{
	union {
		struct kvs_packet_refused r;
		unsigned char b[KVS_PACKET_MAX];
	} a;
	int fd = pe_dial(g->set.engine_socket);
	long n;

	assert_true(fd >= 0);
	assert_int_equal(pe_send(fd, buf, len, fds, n_fds), 0);
	n = pe_recv(fd, &a, sizeof(a));
	close(fd);
	snprintf(text, textlen, "%s", "");
	if (n == 0 || n == -ECONNRESET)
		return 0;
	assert_int_equal(n, sizeof(a.r));
	assert_int_equal(a.r.h.type, KVS_PACKET_REFUSED);
	assert_int_not_equal(a.r.err, 0);
	snprintf(text, textlen, "%s", a.r.text);
	return a.r.err;
}

static void not_its_own_pidfd(void **state)
{
	static unsigned char buf[KVS_PACKET_MAX];
	const char *const args[] = { "idle", NULL };
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	size_t len = pe_attach_packet(&layout, buf);
	int mine, child, both[2], fd;
	char text[256];
	pid_t pid;

	(void)state;
	start("16");
	mine = (int)syscall(SYS_pidfd_open, getpid(), 0);
	pid = rig_spawn(args, &fd);
	rig_child_said(fd);
	child = (int)syscall(SYS_pidfd_open, pid, 0);
	assert_true(null >= 0 && mine >= 0 && child >= 0);
	assert_int_equal(attach_raw(buf, len, NULL, 0, text, sizeof(text)),
			 EACCES);
	assert_non_null(strstr(text, "pidfd"));
	assert_int_equal(attach_raw(buf, len, &null, 1, text, sizeof(text)),
			 EACCES);
	assert_int_equal(attach_raw(buf, len, &child, 1, text, sizeof(text)),
			 EACCES);
	both[0] = mine;
	both[1] = mine;
	assert_int_equal(attach_raw(buf, len, both, 2, text, sizeof(text)),
			 EACCES);
	rig_kill(pid, &fd);
	/* the number may be anybody's by now */
	assert_int_equal(attach_raw(buf, len, &child, 1, text, sizeof(text)),
			 EACCES);
	close(null);
	close(mine);
	close(child);
	stop();
}

static void bad_attach(void **state)
{
	static _Alignas(8) unsigned char buf[KVS_PACKET_MAX];
	struct kvs_packet_attach *a = (struct kvs_packet_attach *)buf;
	size_t len = pe_attach_packet(&layout, buf);
	char text[256];
	int fd;

	(void)state;
	start("16");
	fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	a->version = 99;
	assert_int_equal(attach_raw(buf, len, &fd, 1, text, sizeof(text)),
			 EPROTONOSUPPORT);
	assert_non_null(strstr(text, "99"));
	len = pe_attach_packet(&layout, buf);
	a->n_buffers = UINT32_MAX;
	assert_int_equal(attach_raw(buf, len, &fd, 1, text, sizeof(text)),
			 EINVAL);
	assert_non_null(strstr(text, "n_buffers"));
	len = pe_attach_packet(&layout, buf);
	a->n_buffers++;
	assert_int_equal(attach_raw(buf, len, &fd, 1, text, sizeof(text)),
			 EINVAL);
	/* times 12 it is what came, modulo 2^32 */
	len = pe_attach_packet(&layout, buf);
	a->n_buffers = (1u << 30) + layout.n_buffers;
	assert_int_equal(attach_raw(buf, len, &fd, 1, text, sizeof(text)),
			 EINVAL);
	len = pe_attach_packet(&layout, buf);
	a->page_size = 0;
	assert_int_equal(attach_raw(buf, len, &fd, 1, text, sizeof(text)),
			 EINVAL);
	assert_non_null(strstr(text, "page_size"));
	len = pe_attach_packet(&layout, buf);
	a->buffers[0].item_len = 0;
	assert_int_equal(attach_raw(buf, len, &fd, 1, text, sizeof(text)),
			 EINVAL);
	len = pe_attach_packet(&layout, buf);
	memset(a->name, 'x', sizeof(a->name));
	assert_int_equal(attach_raw(buf, len, &fd, 1, text, sizeof(text)),
			 EPROTO);
	len = pe_attach_packet(&layout, buf);
	a->h.type = KVS_PACKET_ADMIT;
	assert_int_equal(attach_raw(buf, len, &fd, 1, text, sizeof(text)),
			 EPROTO);
	len = pe_attach_packet(&layout, buf);
	a->h.magic++;
	assert_int_equal(attach_raw(buf, len, &fd, 1, text, sizeof(text)), 0);
	assert_int_equal(attach_raw(buf, 3, &fd, 1, text, sizeof(text)), 0);
	rig_wait(g, rig_proto(g, KVS_PROTO_ENGINE) == 4);
	close(fd);
	stop();
}

static void only_so_many(void **state)
{
	char text[256] = "";
	struct pe e[3], f;
	int idle[16];

	(void)state;
	start("16");
	for (int i = 0; i < 3; i++)
		pe_up(&e[i], g->set.engine_socket, &layout);
	assert_int_equal(pe_attach(&f, g->set.engine_socket, &layout, text,
				   sizeof(text)),
			 EAGAIN);
	assert_non_null(strstr(text, "engine.max"));
	pe_down(&e[0]);
	rig_wait(g, g->snap->engines == 3);
	pe_up(&e[0], g->set.engine_socket, &layout);
	for (int i = 0; i < 3; i++)
		pe_down(&e[i]);
	rig_wait(g, g->snap->engines == 1);
	/* connected and silent: closed in time, and no longer in the way */
	for (int i = 0; i < 16; i++)
		idle[i] = pe_dial(g->set.engine_socket);
	rig_wait(g, rig_proto(g, KVS_PROTO_HANDSHAKE) >= 3);
	for (int i = 0; i < 16; i++) {
		assert_true(pe_recv(idle[i], text, sizeof(text)) <= 0);
		close(idle[i]);
	}
	pe_up(&e[0], g->set.engine_socket, &layout);
	pe_down(&e[0]);
	stop();
}

/* ---- packets -------------------------------------------------------------- */

static void wait_lost(struct pe *e)
{
	unsigned char buf[512];
	long n;

	do {
		n = pe_recv(e->fd, buf, sizeof(buf));
	} while (n > 0);
	assert_int_not_equal(n, -ETIMEDOUT);
	pe_down(e);
	rig_wait(g, g->snap->engines == 1);
}

static void slot_in_use(void **state)
{
	struct pe_room r, s;
	struct pe e;

	(void)state;
	start("16");
	pe_up(&e, g->set.engine_socket, &layout);
	pe_admit(&e, &r, 3, 7, TOKENS, 1);
	pe_wait(&e, &r, KVS_STATUS_ADMITTED);
	pe_admit(&e, &s, 3, 8, TOKENS, 1);
	wait_lost(&e);
	assert_int_equal(rig_proto(g, KVS_PROTO_ENGINE), 1);
	rig_wait(g, rig_bytes(g, KVS_EXTENT_FREE) == 1 << 20);
	stop();
}

/* Packets about a room of somebody else do nothing. */
static void foreign_rooms(void **state)
{
	static const enum kvs_packet_type types[] = {
		KVS_PACKET_COMMIT,
		KVS_PACKET_COMMITTED,
		KVS_PACKET_ABORT,
		KVS_PACKET_COPY_OVER,
	};
	struct pe_room r, forged;
	struct ps_room w;
	struct kvs_msg m;
	struct pe e;

	(void)state;
	start("16");
	pe_up(&e, g->set.engine_socket, &layout);
	pe_admit(good, &r, 3, 7, PAGES * TOKENS, 1);
	pe_wait(good, &r, KVS_STATUS_ADMITTED);
	assert_int_equal(ps_open(p, 7, PAGES * TOKENS), 0);
	ps_granted(p, &w, 7, PAGE);
	forged = r;
	for (int stage = 0; stage < 3; stage++) {
		for (unsigned int i = 0; i < KVS_ARRAY_SIZE(types); i++)
			assert_int_equal(pe_say(&e, types[i], &forged, 0), 0);
		/* behind them in the same queues */
		pe_admit(&e, &forged, 9, 100 + (uint64_t)stage, TOKENS, 1);
		pe_wait(&e, &forged, KVS_STATUS_ADMITTED);
		assert_int_equal(pe_say(&e, KVS_PACKET_ABORT, &forged, 0), 0);
		pe_wait_failed(&e, &forged, ECANCELED);
		forged = r;
		if (stage == 0) {
			assert_int_equal(ps_last(p, &w, ps_send_all(p, &w)), 0);
			ps_expect(p, KVS_WIRE_COMPLETE, &m);
			pe_wait(good, &r, KVS_STATUS_READY);
		} else if (stage == 1) {
			assert_int_equal(pe_say(good, KVS_PACKET_COMMIT, &r, 0),
					 0);
			pe_wait(good, &r, KVS_STATUS_COMMITTING);
		}
	}
	assert_int_equal(pe_status(good, &r), KVS_STATUS_COMMITTING);
	assert_int_equal(pe_differ(good, &r, PAGES * TOKENS, 1, 7), 0);
	assert_int_equal(pe_say(good, KVS_PACKET_COMMITTED, &r, 0), 0);
	pe_wait(good, &r, KVS_STATUS_DONE);
	ps_room_fini(&w);
	pe_down(&e);
	stop();
}

/* Its own rooms at the wrong time: counted, and the room goes its way. */
static void wrong_time(void **state)
{
	struct pe_room r;
	struct pe e;

	(void)state;
	start("16");
	pe_up(&e, g->set.engine_socket, &layout);
	pe_admit(&e, &r, 3, 7, TOKENS, 1);
	pe_wait(&e, &r, KVS_STATUS_ADMITTED);
	assert_int_equal(pe_say(&e, KVS_PACKET_COMMIT, &r, 0), 0);
	assert_int_equal(pe_say(&e, KVS_PACKET_COMMITTED, &r, 0), 0);
	assert_int_equal(pe_say(&e, KVS_PACKET_COPY_OVER, &r, 0), 0);
	rig_wait(g, rig_proto(g, KVS_PROTO_ENGINE) == 2);
	assert_int_equal(pe_status(&e, &r), KVS_STATUS_ADMITTED);
	assert_int_equal(pe_say(&e, KVS_PACKET_ABORT, &r, 0), 0);
	pe_abort(&e, &r);
	pe_down(&e);
	stop();
}

static void never_reads(void **state)
{
	struct kvs_packet_admit a = {
		.h = { KVS_ATTACH_MAGIC, KVS_PACKET_ADMIT },
		.n_ranks = 0,
		.peer = "p",
	};
	struct pe e;
	int ret = 0;

	(void)state;
	start("16");
	pe_up(&e, g->set.engine_socket, &layout);
	/* each is refused with a packet that nobody takes */
	for (int i = 0; i < 100000 && !ret; i++)
		ret = pe_send(e.fd, &a, sizeof(a), NULL, 0);
	assert_true(ret == -EPIPE || ret == -ECONNRESET);
	rig_wait(g, g->snap->engines == 1);
	pe_down(&e);
	stop();
}

/* ---- anything ------------------------------------------------------------- */

static size_t make_packet(struct kvs_rng *rng, unsigned char *buf)
{
	struct kvs_packet *h = (struct kvs_packet *)buf;
	struct kvs_packet_admit *a = (struct kvs_packet_admit *)buf;
	struct kvs_packet_room *q = (struct kvs_packet_room *)buf;
	struct kvs_packet_lookup *k = (struct kvs_packet_lookup *)buf;
	size_t len;

	memset(buf, 0, KVS_PACKET_MAX);
	h->magic = KVS_ATTACH_MAGIC;
	h->type = (uint32_t)kvs_rng_below(rng, KVS_PACKET_TYPE_MAX + 1);
	if (kvs_rng_below(rng, 2))
		h->type = KVS_PACKET_ADMIT;
	if (h->type == KVS_PACKET_ADMIT) {
		a->room = kvs_rng_below(rng, 8);
		snprintf(a->peer, sizeof(a->peer), "p");
		a->tokens = 1 + kvs_rng_below(rng, 2 * PAGES * TOKENS);
		a->slot = (uint32_t)kvs_rng_below(rng, 17);
		a->node = (int32_t)kvs_rng_below(rng, 3) - 1;
		a->aux_len = (uint32_t)kvs_rng_below(rng, 300);
		a->n_ranks = (uint32_t)kvs_rng_below(rng, 4);
		for (uint32_t i = 0; i < a->n_ranks; i++) {
			a->ranks[i].first_layer = i;
			a->ranks[i].n_layers = i + 1 == a->n_ranks ? 2 : 1;
		}
		len = sizeof(*a) + a->n_ranks * sizeof(a->ranks[0]);
	} else if (h->type == KVS_PACKET_LOOKUP) {
		k->slot = (uint32_t)kvs_rng_below(rng, 17);
		k->node = (int32_t)kvs_rng_below(rng, 3) - 1;
		k->what = (uint32_t)kvs_rng_below(rng, KVS_LOOKUP_MAX + 1);
		k->n_hashes = (uint32_t)kvs_rng_below(rng, 5);
		len = sizeof(*k) + k->n_hashes * sizeof(k->hashes[0]);
	} else {
		q->generation = kvs_rng_below(rng, 3)
					? kvs_rng_below(rng, 4096) * 32
					: 0;
		q->slot = (uint32_t)kvs_rng_below(rng, 17);
		q->err = (int32_t)kvs_rng_below(rng, 200) - 4;
		len = sizeof(*q);
	}
	/* a third as it is, the others damaged */
	switch (kvs_rng_below(rng, 3)) {
	case 0:
		for (uint64_t n = kvs_rng_below(rng, 6); n > 0; n--)
			buf[kvs_rng_below(rng, len)] =
				(unsigned char)kvs_rng_next(rng);
		break;
	case 1:
		if (!kvs_rng_below(rng, 4))
			len = 1 + kvs_rng_below(rng, KVS_PACKET_MAX - 1);
		else if (!kvs_rng_below(rng, 3))
			len = 1 + kvs_rng_below(rng, len);
		break;
	default:
		break;
	}
	return len;
}

static void anything(void **state)
{
	static _Alignas(8) unsigned char buf[KVS_PACKET_MAX];
	static _Alignas(8) unsigned char in[KVS_PACKET_MAX];
	uint64_t room = 1000, sent = 0, lost = 0;
	struct kvs_rng rng;
	struct pe e;
	size_t len;
	int ret, fd;

	(void)state;
	kvs_rng_init(&rng, rig_seed());
	start("16");
	for (int round = 0; round < 400; round++) {
		if (kvs_rng_below(&rng, 4)) {
			/* a sound attach, then anything */
			pe_up(&e, g->set.engine_socket, &layout);
		} else {
			memset(&e, 0, sizeof(e));
			e.pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
			e.fd = pe_dial(g->set.engine_socket);
			assert_true(e.fd >= 0);
			len = pe_attach_packet(&layout, buf);
			for (uint64_t n = kvs_rng_below(&rng, 5); n > 0; n--)
				buf[kvs_rng_below(&rng, len)] =
					(unsigned char)kvs_rng_next(&rng);
			(void)pe_send(e.fd, buf, len, &e.pidfd,
				      (unsigned int)kvs_rng_below(&rng, 2));
		}
		ret = 0;
		for (int i = 0; i < 50 && !ret; i++) {
			/* descriptors where none are wanted, too */
			unsigned int n = (unsigned int)kvs_rng_below(&rng, 40);
			int fds[16];

			for (unsigned int k = 0; k < 16; k++)
				fds[k] = e.pidfd;
			len = make_packet(&rng, buf);
			ret = pe_send(e.fd, buf, len, fds, n <= 16 ? n : 0);
			sent++;
			while (recv(e.fd, in, sizeof(in), MSG_DONTWAIT) > 0)
				;
		}
		lost += ret != 0;
		fd = e.fd;
		e.fd = -1;
		close(fd);
		pe_down(&e);
		if (round % 20 == 0)
			serve(room++);
		rig_wait(g, g->snap->engines <= 3);
	}
	print_message("# %llu packets, %llu connections lost\n",
		      (unsigned long long)sent, (unsigned long long)lost);
	rig_wait(g, g->snap->engines == 1);
	assert_true(rig_proto(g, KVS_PROTO_ENGINE) > 0);
	/* what it left behind cannot be proven until this process ends, but
	 * for the rooms that were not being copied */
	stop();
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(not_its_own_pidfd),
		cmocka_unit_test(bad_attach),
		cmocka_unit_test(only_so_many),
		cmocka_unit_test(slot_in_use),
		cmocka_unit_test(foreign_rooms),
		cmocka_unit_test(wrong_time),
		cmocka_unit_test(never_reads),
		cmocka_unit_test(anything),
	};

	if (argc == 2 && !strcmp(argv[1], "idle")) {
		rig_child_say();
		for (;;)
			pause();
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
