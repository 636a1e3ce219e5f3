/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claim: a room's status is its word from the first one on that differs from
 * the word before the admit, and reading it makes no system call; a handle
 * means one room for ever; nothing that a READY packet says is used before it
 * was checked (a bad one fails its room, a malformed packet the connection,
 * and neither touches the device); slots come back only after the daemon's
 * last word; packets that the socket did not take are sent later, in order.
 */
#include "tests/unit/pipeline/engine_rig.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static enum kvs_status poll_of(struct rig *g, struct rig_room *m, int *ret_err)
{
	return kvs_engine_poll(g->engine, &m->h, ret_err);
}

static void test_status_follows_the_word(void **state)
{
	static const enum kvs_status up[] = {
		KVS_STATUS_WAITING, KVS_STATUS_ADMITTED, KVS_STATUS_RECEIVING,
		KVS_STATUS_SEALING, KVS_STATUS_READY,	 KVS_STATUS_COMMITTING,
		KVS_STATUS_DONE,
	};
	struct rig g = { 0 };
	struct rig_room m;
	int err = 0;

	(void)state;
	rig_start(&g);
	rig_admit(&g, &m, 10);
	assert_int_equal(poll_of(&g, &m, NULL), KVS_STATUS_PENDING);
	assert_int_equal(m.h.generation, 0);
	for (size_t i = 0; i < sizeof(up) / sizeof(up[0]); i++) {
		rig_word(&g, &m, 0, up[i]);
		assert_int_equal(poll_of(&g, &m, NULL), up[i]);
		assert_int_equal(m.h.generation, m.generation);
	}
	/* No such status: not trusted. */
	rig_word(&g, &m, 0, (enum kvs_status)200);
	assert_int_equal(poll_of(&g, &m, &err), KVS_STATUS_FAILED);
	assert_int_equal(err, EPROTO);
	rig_word(&g, &m, ENODATA, KVS_STATUS_FAILED);
	assert_int_equal(poll_of(&g, &m, &err), KVS_STATUS_FAILED);
	assert_int_equal(err, ENODATA);
	rig_room_fini(&g, &m);
	rig_stop(&g);
}

static void test_a_handle_means_one_room(void **state)
{
	struct rig g = { .n_slots = 1 };
	struct rig_room a, b;
	kvs_handle zero = { 0 }, wild = { .slot = 77 };
	int err = 0;

	(void)state;
	rig_start(&g);
	rig_admit(&g, &a, 10);
	assert_int_equal(kvs_engine_poll(g.engine, &zero, &err),
			 KVS_STATUS_FAILED);
	assert_int_equal(err, ENOENT);
	assert_int_equal(kvs_engine_abort(g.engine, &zero), -ENOENT);
	assert_int_equal(kvs_engine_release(g.engine, &wild), -ENOENT);
	assert_int_equal(kvs_engine_poll(g.engine, &wild, NULL),
			 KVS_STATUS_FAILED);
	assert_int_equal(kvs_engine_release(g.engine, &a.h), -EBUSY);
	rig_word(&g, &a, 0, KVS_STATUS_DONE);
	rig_room_fini(&g, &a);
	/* The same slot, another room: the old handle is not it. */
	rig_admit(&g, &b, 10);
	assert_int_equal(b.slot, a.slot);
	assert_int_equal(poll_of(&g, &b, NULL), KVS_STATUS_PENDING);
	assert_int_equal(poll_of(&g, &a, &err), KVS_STATUS_FAILED);
	assert_int_equal(err, ENOENT);
	assert_int_equal(kvs_engine_abort(g.engine, &a.h), -ENOENT);
	rig_word(&g, &b, 0, KVS_STATUS_RECEIVING);
	assert_int_equal(poll_of(&g, &b, NULL), KVS_STATUS_RECEIVING);
	assert_int_equal(poll_of(&g, &a, NULL), KVS_STATUS_FAILED);
	rig_quiet(&g);
	rig_stop(&g);
}

static void test_poll_many(void **state)
{
	struct rig g = { 0 };
	struct rig_room m[4];
	kvs_handle h[5] = { 0 };
	uint8_t st[5];

	(void)state;
	rig_start(&g);
	for (int i = 0; i < 4; i++) {
		rig_admit(&g, &m[i], 10);
		h[i] = m[i].h;
	}
	rig_word(&g, &m[1], 0, KVS_STATUS_READY);
	rig_word(&g, &m[2], ETIME, KVS_STATUS_FAILED);
	rig_word(&g, &m[3], 0, KVS_STATUS_DONE);
	assert_int_equal(kvs_engine_poll_many(g.engine, h, 5, st), 2);
	assert_int_equal(st[0], KVS_STATUS_PENDING);
	assert_int_equal(st[1], KVS_STATUS_READY);
	assert_int_equal(st[2], KVS_STATUS_FAILED);
	assert_int_equal(st[3], KVS_STATUS_DONE);
	assert_int_equal(st[4], KVS_STATUS_FAILED);
	rig_stop(&g);
}

/* Only exit_group(2) is left; anything else is the end. */
static int forbid_syscalls(void)
{
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_exit_group, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_fprog p = { sizeof(f) / sizeof(f[0]), f };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return -errno;
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p) ? -errno : 0;
}

/* Not _exit(3): a sanitizer hooks it and has work to do there. */
static void leave(int code)
{
	for (;;)
		(void)syscall(SYS_exit_group, code);
}

#define QUIET_ROOMS 50

/* The child is the engine, for a fork would not inherit the mapping. */
static void quiet_child(struct rig *g, bool cheat)
{
	const struct kvs_rank_slice rank = { 0, 4 };
	kvs_handle h[QUIET_ROOMS];
	uint8_t st[QUIET_ROOMS];

	if (rig_attach(g))
		_exit(3);
	for (unsigned int i = 0; i < QUIET_ROOMS; i++) {
		struct kvs_admit a = { .size = sizeof(a),
				       .room = i + 1,
				       .peer = "p",
				       .tokens = 1,
				       .n_ranks = 1,
				       .ranks = &rank,
				       .node = -1 };

		if (kvs_engine_admit(g->engine, &a, &h[i]))
			_exit(4);
	}
	if (forbid_syscalls())
		_exit(77);
	if (cheat)
		(void)syscall(SYS_getpid);
	while (kvs_engine_poll_many(g->engine, h, QUIET_ROOMS, st) <
	       QUIET_ROOMS)
		;
	for (unsigned int i = 0; i < QUIET_ROOMS; i++)
		if (kvs_engine_poll(g->engine, &h[i], NULL) !=
			    KVS_STATUS_READY ||
		    h[i].generation != i + 1)
			leave(5);
	leave(42);
}

static int quiet_run(bool cheat)
{
	struct rig g = { 0 };
	union {
		struct kvs_packet_admit p;
		unsigned char b[4096];
	} u;
	int status;
	pid_t pid;

	rig_listen(&g);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		quiet_child(&g, cheat);
	rig_answered(&g);
	for (unsigned int i = 0; i < QUIET_ROOMS; i++) {
		(void)rig_expect(&g, KVS_PACKET_ADMIT, &u, sizeof(u));
		atomic_store_explicit(&g.words[u.p.slot],
				      KVS_WORD(i + 1, 0, KVS_STATUS_READY),
				      memory_order_release);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	rig_stop(&g);
	return status;
}

static void test_poll_makes_no_system_call(void **state)
{
	int status = quiet_run(false);

	(void)state;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
		print_message("seccomp filters are not allowed here\n");
		skip();
	}
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 42);
	/* The filter does kill who makes one. */
	status = quiet_run(true);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGSYS);
}

struct ready_buf {
	union {
		struct kvs_packet_ready p;
		unsigned char b[KVS_PACKET_MAX];
	};
};

/* What it does to a good packet; returns the length to send. */
typedef size_t (*spoil)(struct ready_buf *u, size_t len);

static size_t spoil_off_end(struct ready_buf *u, size_t len)
{
	u->p.off[1] = RIG_POOL - 4096;
	return len;
}

static size_t spoil_off_past(struct ready_buf *u, size_t len)
{
	u->p.off[0] = RIG_POOL;
	return len;
}

static size_t spoil_off_wrap(struct ready_buf *u, size_t len)
{
	u->p.off[1] = UINT64_MAX - 4095;
	return len;
}

static size_t spoil_off_align(struct ready_buf *u, size_t len)
{
	u->p.off[0] += 8;
	return len;
}

static size_t spoil_pool(struct ready_buf *u, size_t len)
{
	u->p.pool = 2;
	return len;
}

static size_t spoil_pool_wild(struct ready_buf *u, size_t len)
{
	u->p.pool = UINT32_MAX;
	return len;
}

static size_t spoil_count_more(struct ready_buf *u, size_t len)
{
	u->p.n_extents++;
	return len + 8;
}

static size_t spoil_count_fewer(struct ready_buf *u, size_t len)
{
	u->p.n_extents--;
	return len - 8;
}

static size_t spoil_count_lie(struct ready_buf *u, size_t len)
{
	u->p.n_extents = 2000;
	return len;
}

static size_t spoil_count_wild(struct ready_buf *u, size_t len)
{
	u->p.n_extents = UINT32_MAX;
	return len;
}

static size_t spoil_count_none(struct ready_buf *u, size_t len)
{
	(void)len;
	u->p.n_extents = 0;
	return sizeof(u->p);
}

static size_t spoil_cut(struct ready_buf *u, size_t len)
{
	(void)u;
	return len - 4;
}

static size_t spoil_tokens(struct ready_buf *u, size_t len)
{
	u->p.extent_tokens = RIG_EXTENT_TOKENS + 1;
	return len;
}

static size_t spoil_tokens_none(struct ready_buf *u, size_t len)
{
	u->p.extent_tokens = 0;
	return len;
}

static size_t spoil_tokens_other(struct ready_buf *u, size_t len)
{
	u->p.extent_tokens = RIG_PAGE_SIZE;
	return len;
}

static size_t spoil_tokens_wild(struct ready_buf *u, size_t len)
{
	u->p.extent_tokens = UINT32_MAX - RIG_PAGE_SIZE + 1;
	return len;
}

static void test_bad_places_fail_the_room(void **state)
{
	static const spoil spoils[] = {
		spoil_off_end,	   spoil_off_past,    spoil_off_wrap,
		spoil_off_align,   spoil_pool,	      spoil_pool_wild,
		spoil_count_more,  spoil_count_fewer, spoil_count_lie,
		spoil_count_wild,  spoil_count_none,  spoil_cut,
		spoil_tokens,	   spoil_tokens_none, spoil_tokens_other,
		spoil_tokens_wild,
	};
	static struct ready_buf u;
	struct rig g = { 0 };
	struct kvs_failure why;
	struct kvs_commit c;
	struct rig_room m;
	int err;

	(void)state;
	rig_start(&g);
	for (size_t i = 0; i < sizeof(spoils) / sizeof(spoils[0]); i++) {
		size_t len;

		rig_admit(&g, &m, 100);
		len = rig_make_ready(&g, &m, &u.p);
		assert_int_equal(u.p.n_extents, 2);
		len = spoils[i](&u, len);
		rig_send(&g, &u, len);
		rig_word(&g, &m, 0, KVS_STATUS_READY);
		print_message("case %zu\n", i);
		assert_true(kvs_engine_progress(g.engine) >= 0);
		assert_int_equal(poll_of(&g, &m, &err), KVS_STATUS_FAILED);
		assert_int_equal(err, EPROTO);
		rig_commit_args(&g, &m, &c);
		assert_int_equal(kvs_engine_commit(g.engine, &m.h, &c),
				 -ECANCELED);
		assert_int_equal(kvs_engine_failure(g.engine, &m.h, &why), 0);
		assert_int_equal(why.err, EPROTO);
		(void)rig_expect_room(&g, KVS_PACKET_ABORT, &m);
		rig_quiet(&g);
		rig_word(&g, &m, ECANCELED, KVS_STATUS_FAILED);
		rig_room_fini(&g, &m);
	}
	rig_stop(&g);
}

static void test_strangers_are_ignored(void **state)
{
	static struct ready_buf u;
	struct rig g = { 0 };
	struct kvs_packet_failed f = {
		.h = { KVS_ATTACH_MAGIC, KVS_PACKET_FAILED },
		.err = EIO,
	};
	struct rig_room m;
	const void *aux;
	uint32_t n;
	size_t len;

	(void)state;
	rig_start(&g);
	rig_admit(&g, &m, 100);
	rig_word(&g, &m, 0, KVS_STATUS_RECEIVING);
	len = rig_make_ready(&g, &m, &u.p);
	u.p.slot = g.n_slots;
	rig_send(&g, &u, len);
	u.p.slot = UINT32_MAX;
	rig_send(&g, &u, len);
	u.p.slot = (m.slot + 1) % g.n_slots; /* nobody's */
	rig_send(&g, &u, len);
	u.p.slot = m.slot;
	u.p.generation = m.generation + 1;
	u.p.off[0] = 12345; /* looked at, it would fail the room */
	rig_send(&g, &u, len);
	u.p.generation = 0;
	rig_send(&g, &u, len);
	u.p.generation = UINT64_MAX;
	rig_send(&g, &u, len);
	f.slot = m.slot;
	f.generation = m.generation + 7;
	rig_send(&g, &f, sizeof(f));
	assert_true(kvs_engine_progress(g.engine) >= 0);
	assert_int_equal(poll_of(&g, &m, NULL), KVS_STATUS_RECEIVING);
	rig_quiet(&g);
	/* The right one still counts. */
	rig_ready(&g, &m);
	assert_int_equal(kvs_engine_aux(g.engine, &m.h, 0, &aux, &n), 0);
	kvs_geometry_fini(&m.geo);
	rig_stop(&g);
}

static void test_ready_of_another_generation_is_not_used(void **state)
{
	static struct ready_buf u;
	struct rig g = { 0 };
	struct kvs_commit c;
	struct rig_room m;
	size_t len;

	(void)state;
	rig_start(&g);
	rig_admit(&g, &m, 100);
	len = rig_make_ready(&g, &m, &u.p);
	/* Before any word there is nothing to compare it with. */
	u.p.generation = m.generation + 100;
	rig_send(&g, &u, len);
	assert_true(kvs_engine_progress(g.engine) >= 0);
	rig_word(&g, &m, 0, KVS_STATUS_READY);
	rig_commit_args(&g, &m, &c);
	assert_int_equal(kvs_engine_commit(g.engine, &m.h, &c), -ECANCELED);
	(void)rig_expect_room(&g, KVS_PACKET_ABORT, &m);
	assert_int_equal(poll_of(&g, &m, NULL), KVS_STATUS_FAILED);
	rig_word(&g, &m, ECANCELED, KVS_STATUS_FAILED);
	rig_room_fini(&g, &m);
	rig_stop(&g);
}

static void test_ready_word_without_a_packet(void **state)
{
	struct rig g = { 0 };
	struct kvs_commit c;
	struct rig_room m;
	const void *aux;
	uint32_t len;

	(void)state;
	rig_start(&g);
	rig_admit(&g, &m, 100);
	rig_word(&g, &m, 0, KVS_STATUS_READY);
	assert_int_equal(kvs_engine_aux(g.engine, &m.h, 0, &aux, &len),
			 -EAGAIN);
	rig_commit_args(&g, &m, &c);
	assert_int_equal(kvs_engine_commit(g.engine, &m.h, &c), -ECANCELED);
	(void)rig_expect_room(&g, KVS_PACKET_ABORT, &m);
	rig_stop(&g);
}

static void test_second_ready_fails_the_room(void **state)
{
	static struct ready_buf u;
	struct rig g = { 0 };
	struct rig_room m;
	size_t len;

	(void)state;
	rig_start(&g);
	rig_admit(&g, &m, 100);
	len = rig_make_ready(&g, &m, &u.p);
	rig_send(&g, &u, len);
	rig_send(&g, &u, len);
	rig_word(&g, &m, 0, KVS_STATUS_READY);
	assert_true(kvs_engine_progress(g.engine) >= 0);
	assert_int_equal(poll_of(&g, &m, NULL), KVS_STATUS_FAILED);
	(void)rig_expect_room(&g, KVS_PACKET_ABORT, &m);
	kvs_geometry_fini(&m.geo);
	rig_stop(&g);
}

static void test_malformed_packets_end_the_connection(void **state)
{
	static const struct {
		struct kvs_packet h;
		size_t len;
	} cases[] = {
		{ { 7, KVS_PACKET_READY }, 64 },
		{ { KVS_ATTACH_MAGIC, KVS_PACKET_READY }, 7 },
		{ { KVS_ATTACH_MAGIC, KVS_PACKET_READY }, 24 },
		{ { KVS_ATTACH_MAGIC, KVS_PACKET_FAILED }, 64 },
		{ { KVS_ATTACH_MAGIC, KVS_PACKET_ATTACHED }, 64 },
		{ { KVS_ATTACH_MAGIC, 0 }, 64 },
		{ { KVS_ATTACH_MAGIC, 4000000000u }, 64 },
		{ { KVS_ATTACH_MAGIC, KVS_PACKET_READY }, KVS_PACKET_MAX + 8 },
	};
	static unsigned char b[KVS_PACKET_MAX + 8];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct rig g = { 0 };
		struct rig_room m;
		int err;

		rig_start(&g);
		rig_admit(&g, &m, 100);
		memcpy(b, &cases[i].h, sizeof(cases[i].h));
		rig_send(&g, b, cases[i].len);
		print_message("case %zu\n", i);
		assert_int_equal(kvs_engine_progress(g.engine), -ECONNRESET);
		assert_int_equal(poll_of(&g, &m, &err), KVS_STATUS_FAILED);
		assert_int_equal(err, ECONNRESET);
		rig_stop(&g);
	}
}

static void test_random_packets_do_no_harm(void **state)
{
	static struct ready_buf u;
	const char *env = getenv("KVS_TEST_SEED");
	uint64_t seed = env ? strtoull(env, NULL, 0) : (uint64_t)getpid();
	struct kvs_rng rng;

	(void)state;
	print_message("KVS_TEST_SEED=%llu\n", (unsigned long long)seed);
	kvs_rng_init(&rng, seed);
	for (int round = 0; round < 40; round++) {
		struct rig g = { .hybrid = round & 1 };
		struct rig_room m;

		rig_start(&g);
		rig_admit(&g, &m, 200);
		rig_word(&g, &m, 0, KVS_STATUS_RECEIVING);
		for (int i = 0; i < 50; i++) {
			size_t len = rig_make_ready(&g, &m, &u.p);
			uint64_t hits = 1 + kvs_rng_below(&rng, 4);

			while (hits--)
				u.b[8 + kvs_rng_below(&rng, len - 8)] =
					(unsigned char)kvs_rng_next(&rng);
			len -= kvs_rng_below(&rng, 2) *
			       kvs_rng_below(&rng, len);
			if (!len || send(g.fd, &u, len,
					 MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
				break;
			(void)kvs_engine_progress(g.engine);
		}
		/* Whatever it took, it lies within the pool. */
		rig_word(&g, &m, 0, KVS_STATUS_READY);
		for (uint32_t k = 0; k < RIG_RANKS; k++) {
			const void *p;
			uint32_t n;

			if (!kvs_engine_aux(g.engine, &m.h, k, &p, &n)) {
				unsigned char sum = 0;

				for (uint32_t x = 0; x < n; x++)
					sum += ((const unsigned char *)p)[x];
				(void)sum;
			}
		}
		kvs_geometry_fini(&m.geo);
		rig_stop(&g);
	}
}

static void test_admit_checks_its_arguments(void **state)
{
	const struct kvs_rank_slice ranks[1] = { { 0, 4 } };
	const struct kvs_admit good = { .size = sizeof(good),
					.room = 1,
					.peer = "p",
					.tokens = 1,
					.n_ranks = 1,
					.ranks = ranks,
					.node = -1 };
	char name[KVS_ENGINE_NAME + 1];
	struct rig g = { 0 };
	struct kvs_admit a;
	kvs_handle h = { 0 };

	(void)state;
	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = 0;
	rig_start(&g);
#define REFUSED(member, value)                                                 \
	do {                                                                   \
		a = good;                                                      \
		a.member = (value);                                            \
		assert_int_equal(kvs_engine_admit(g.engine, &a, &h), -EINVAL); \
	} while (0)
	REFUSED(size, sizeof(a) - 1);
	REFUSED(room, 0);
	REFUSED(peer, NULL);
	REFUSED(peer, "");
	REFUSED(peer, name);
	REFUSED(tokens, 0);
	REFUSED(n_ranks, 0);
	REFUSED(n_ranks, KVS_RANKS_MAX + 1);
	REFUSED(ranks, NULL);
	REFUSED(aux_len, 65);
	REFUSED(flags, KVS_ADMIT_CACHED << 1);
	REFUSED(n_hashes, 1);
#undef REFUSED
	assert_int_equal(h.slot, 0);
	rig_quiet(&g);
	assert_int_equal(kvs_engine_admit(g.engine, &good, &h), 0);
	rig_stop(&g);
}

static void test_slots_come_back_after_the_last_word(void **state)
{
	struct rig g = { .n_slots = 2 };
	const struct kvs_rank_slice ranks[1] = { { 0, 4 } };
	struct kvs_admit a = { .size = sizeof(a),
			       .room = 9,
			       .peer = "p",
			       .tokens = 1,
			       .n_ranks = 1,
			       .ranks = ranks,
			       .node = -1 };
	struct rig_room m[2], again;
	kvs_handle h;

	(void)state;
	rig_start(&g);
	rig_admit(&g, &m[0], 10);
	rig_admit(&g, &m[1], 10);
	assert_int_equal(kvs_engine_admit(g.engine, &a, &h), -EAGAIN);
	/* Aborted and forgotten here, but the daemon has not said so. */
	assert_int_equal(kvs_engine_abort(g.engine, &m[0].h), 0);
	(void)rig_expect_room(&g, KVS_PACKET_ABORT, &m[0]);
	rig_room_fini(&g, &m[0]);
	assert_int_equal(kvs_engine_admit(g.engine, &a, &h), -EAGAIN);
	rig_word(&g, &m[0], 0, KVS_STATUS_RECEIVING);
	assert_int_equal(kvs_engine_progress(g.engine), 0);
	assert_int_equal(kvs_engine_admit(g.engine, &a, &h), -EAGAIN);
	rig_quiet(&g);
	rig_word(&g, &m[0], ECANCELED, KVS_STATUS_FAILED);
	rig_admit(&g, &again, 10);
	assert_int_equal(again.slot, m[0].slot);
	assert_int_equal(poll_of(&g, &again, NULL), KVS_STATUS_PENDING);
	rig_stop(&g);
}

/* Load cannot take the last slots from a health check. */
static void test_last_slots_are_for_health_checks(void **state)
{
	enum { SLOTS = 8192, SPARE = 2 };
	const struct kvs_rank_slice ranks[1] = { { 0, 4 } };
	struct kvs_admit a = { .size = sizeof(a),
			       .room = 1000000,
			       .peer = "p",
			       .tokens = 1,
			       .n_ranks = 1,
			       .ranks = ranks,
			       .node = -1 };
	struct rig g = { .n_slots = SLOTS };
	union {
		struct kvs_packet_admit p;
		unsigned char b[4096];
	} u;
	struct rig_room m;
	kvs_handle h;

	(void)state;
	rig_start(&g);
	for (unsigned int i = 0; i < SLOTS - SPARE; i++)
		rig_admit(&g, &m, 10);
	assert_int_equal(kvs_engine_admit(g.engine, &a, &h), -EAGAIN);
	a.flags = KVS_ADMIT_HEALTH;
	for (unsigned int i = 0; i < SPARE; i++) {
		a.room++;
		assert_int_equal(kvs_engine_admit(g.engine, &a, &h), 0);
		(void)rig_expect(&g, KVS_PACKET_ADMIT, &u, sizeof(u));
		assert_int_equal(u.p.flags, KVS_ADMIT_HEALTH);
	}
	assert_int_equal(kvs_engine_admit(g.engine, &a, &h), -EAGAIN);
	rig_stop(&g);
}

static void test_failure_says_what_the_daemon_said(void **state)
{
	struct rig g = { 0 };
	struct kvs_failure f = { 0 };
	struct rig_room m;

	(void)state;
	rig_start(&g);
	rig_admit(&g, &m, 10);
	assert_int_equal(kvs_engine_failure(g.engine, &m.h, &f), -EAGAIN);
	rig_failed(&g, &m, E2BIG, 400, "needs 12 of 10 bytes");
	/* No progress() in between: it is read when it is asked for. */
	assert_int_equal(kvs_engine_failure(g.engine, &m.h, &f), 0);
	assert_int_equal(f.err, E2BIG);
	assert_int_equal(f.http_class, 400);
	assert_string_equal(f.text, "needs 12 of 10 bytes");
	assert_int_equal(f.retry_ms, 0); /* never */
	rig_room_fini(&g, &m);
	rig_admit(&g, &m, 10);
	rig_failed(&g, &m, EAGAIN, 503, "admission.queue");
	assert_int_equal(kvs_engine_failure(g.engine, &m.h, &f), 0);
	assert_int_equal(f.retry_ms, RIG_RETRY);
	rig_room_fini(&g, &m);
	/* The packet is there a moment before the word, and read then. */
	rig_admit(&g, &m, 10);
	rig_say_failed(&g, &m, E2BIG, 400, "needs 13 of 10 bytes");
	assert_true(kvs_engine_progress(g.engine) >= 0);
	assert_int_equal(poll_of(&g, &m, NULL), KVS_STATUS_PENDING);
	rig_word(&g, &m, E2BIG, KVS_STATUS_FAILED);
	assert_int_equal(kvs_engine_failure(g.engine, &m.h, &f), 0);
	assert_int_equal(f.http_class, 400);
	assert_string_equal(f.text, "needs 13 of 10 bytes");
	rig_room_fini(&g, &m);
	/* A word without its packet still has an errno and its class. */
	rig_admit(&g, &m, 10);
	rig_word(&g, &m, ETIME, KVS_STATUS_FAILED);
	assert_int_equal(kvs_engine_failure(g.engine, &m.h, &f), 0);
	assert_int_equal(f.err, ETIME);
	assert_int_equal(f.http_class, 503);
	assert_true(strlen(f.text) > 0);
	rig_room_fini(&g, &m);
	rig_admit(&g, &m, 10);
	rig_word(&g, &m, E2BIG, KVS_STATUS_FAILED);
	assert_int_equal(kvs_engine_failure(g.engine, &m.h, &f), 0);
	assert_int_equal(f.http_class, 400);
	rig_room_fini(&g, &m);
	rig_stop(&g);
}

static void test_full_socket_keeps_order_and_loses_nothing(void **state)
{
	enum { ROOMS = 4000 };
	struct rig g = { .n_slots = ROOMS };
	const struct kvs_rank_slice ranks[1] = { { 0, 4 } };
	struct kvs_admit a = { .size = sizeof(a),
			       .peer = "p",
			       .tokens = 1,
			       .n_ranks = 1,
			       .ranks = ranks,
			       .node = -1 };
	static kvs_handle h[ROOMS];
	union {
		struct kvs_packet_admit a;
		struct kvs_packet_room r;
		struct kvs_packet h;
		unsigned char b[4096];
	} u;
	unsigned int admitted = 0, seen = 0, aborts = 0;
	static bool live[ROOMS];
	int ret = 0;

	(void)state;
	rig_start(&g);
	while (admitted < ROOMS) {
		a.room = admitted + 1;
		ret = kvs_engine_admit(g.engine, &a, &h[admitted]);
		if (ret)
			break;
		admitted++;
	}
	assert_int_equal(ret, -EAGAIN);
	assert_true(admitted > 10);
	/* Nothing goes out any more, yet an abort never fails. */
	for (unsigned int i = 0; i < admitted; i++)
		assert_int_equal(kvs_engine_abort(g.engine, &h[i]), 0);
	a.room = 1;
	assert_int_equal(kvs_engine_admit(g.engine, &a, &h[0]), -EAGAIN);
	while (aborts < admitted) {
		ssize_t n = recv(g.fd, &u, sizeof(u), MSG_DONTWAIT);

		if (n < 0) {
			assert_int_equal(errno, EAGAIN);
			assert_true(kvs_engine_progress(g.engine) >= 0);
			continue;
		}
		if (u.h.type == KVS_PACKET_ADMIT) {
			live[u.a.slot] = true;
			seen++;
			continue;
		}
		assert_int_equal(u.h.type, KVS_PACKET_ABORT);
		assert_true(live[u.r.slot]); /* after its ADMIT, once */
		live[u.r.slot] = false;
		aborts++;
	}
	assert_int_equal(seen, admitted);
	rig_quiet(&g);
	rig_stop(&g);
}

static void test_should_stage(void **state)
{
	(void)state;
	assert_true(kvs_should_stage(0.0, 0.0));
	assert_true(kvs_should_stage(1.0, 0.0));
	assert_false(kvs_should_stage(1.0, 1.0));
	assert_false(kvs_should_stage(0.0, 1.0));
	assert_false(kvs_should_stage(0.69, 0.7));
	assert_true(kvs_should_stage(0.7, 0.7));
	assert_true(kvs_should_stage(0.0 / 0.0, 0.7));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_status_follows_the_word),
		cmocka_unit_test(test_a_handle_means_one_room),
		cmocka_unit_test(test_poll_many),
		cmocka_unit_test(test_poll_makes_no_system_call),
		cmocka_unit_test(test_bad_places_fail_the_room),
		cmocka_unit_test(test_strangers_are_ignored),
		cmocka_unit_test(test_ready_of_another_generation_is_not_used),
		cmocka_unit_test(test_ready_word_without_a_packet),
		cmocka_unit_test(test_second_ready_fails_the_room),
		cmocka_unit_test(test_malformed_packets_end_the_connection),
		cmocka_unit_test(test_random_packets_do_no_harm),
		cmocka_unit_test(test_admit_checks_its_arguments),
		cmocka_unit_test(test_slots_come_back_after_the_last_word),
		cmocka_unit_test(test_last_slots_are_for_health_checks),
		cmocka_unit_test(test_failure_says_what_the_daemon_said),
		cmocka_unit_test(
			test_full_socket_keeps_order_and_loses_nothing),
		cmocka_unit_test(test_should_stage),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
