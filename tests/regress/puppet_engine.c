/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/regress/puppet_engine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/regress/service_rig.h"

#define PE_FDS (1 + KVS_ATTACH_POOLS_MAX)

static int pe_connect(int fd, const struct sockaddr_un *sa)
{
	while (connect(fd, (const struct sockaddr *)sa, sizeof(*sa)))
		if (errno != EINTR)
			return errno == EISCONN ? 0 : -errno;
	return 0;
}

int pe_dial(const char *path)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	struct timeval tv = { 10, 0 };
	int fd, ret = 0;

	assert_true(strlen(path) < sizeof(sa.sun_path));
	memcpy(sa.sun_path, path, strlen(path));
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)) ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)) ||
	    (ret = pe_connect(fd, &sa))) {
		ret = ret ? ret : -errno;
		close(fd);
		return ret;
	}
	return fd;
}

size_t pe_attach_packet(const struct kvs_layout *l, void *buf)
{
	struct kvs_packet_attach *a = buf;
	size_t len = sizeof(*a) + l->n_buffers * sizeof(a->buffers[0]);

	assert_true(len <= KVS_PACKET_MAX);
	memset(a, 0, sizeof(*a));
	a->h.magic = KVS_ATTACH_MAGIC;
	a->h.type = KVS_PACKET_ATTACH;
	a->version = KVS_ATTACH_VERSION;
	a->node = -1;
	snprintf(a->name, sizeof(a->name), "puppet-%d", (int)getpid());
	a->page_size = l->page_size;
	a->dtype = l->dtype;
	a->aux_max = l->aux_max;
	a->n_buffers = l->n_buffers;
	a->capacity = l->capacity;
	a->max_context = l->max_context;
	memcpy(a->buffers, l->buffers, l->n_buffers * sizeof(a->buffers[0]));
	return len;
}

int pe_send(int fd, const void *buf, size_t len, const int *fds,
	    unsigned int n_fds)
{
	union {
		struct cmsghdr h;
		char b[CMSG_SPACE(16 * sizeof(int))];
	} ctl = { 0 };
	struct iovec iov = { (void *)buf, len };
	struct msghdr mh = { .msg_iov = &iov, .msg_iovlen = 1 };

	assert_true(n_fds <= 16);
	if (n_fds) {
		mh.msg_control = &ctl;
		mh.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		ctl.h.cmsg_level = SOL_SOCKET;
		ctl.h.cmsg_type = SCM_RIGHTS;
		ctl.h.cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(&ctl.h), fds, n_fds * sizeof(int));
	}
	for (;;) {
		if (sendmsg(fd, &mh, MSG_NOSIGNAL) >= 0)
			return 0;
		if (errno != EINTR)
			return -errno;
	}
}

long pe_recv(int fd, void *buf, size_t len)
{
	ssize_t n;

	do {
		n = recv(fd, buf, len, 0);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == EAGAIN ? -ETIMEDOUT : -errno;
	return n;
}

/* ATTACHED with its descriptors. */
static int attach_answer(struct pe *e, char *text, size_t textlen)
{
	union {
		struct kvs_packet h;
		struct kvs_packet_attached a;
		struct kvs_packet_refused r;
	} p;
	union {
		struct cmsghdr h;
		char b[CMSG_SPACE(PE_FDS * sizeof(int))];
	} ctl = { 0 };
	struct iovec iov = { &p, sizeof(p) };
	struct msghdr mh = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &ctl,
		.msg_controllen = sizeof(ctl),
	};
	int fds[PE_FDS];
	size_t n_fds = 0;
	ssize_t n;

	do {
		n = recvmsg(e->fd, &mh, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	if (!n)
		return -ENODATA;
	if ((size_t)n == sizeof(p.r) && p.h.type == KVS_PACKET_REFUSED) {
		snprintf(text, textlen, "%s", p.r.text);
		return p.r.err;
	}
	if ((size_t)n != sizeof(p.a) || p.h.type != KVS_PACKET_ATTACHED)
		return -EPROTO;
	if (CMSG_FIRSTHDR(&mh)) {
		n_fds = (ctl.h.cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(fds, CMSG_DATA(&ctl.h), n_fds * sizeof(int));
	}
	assert_int_equal(n_fds, 1 + p.a.n_pools);
	assert_true(p.a.n_pools >= 1);
	e->number = p.a.engine;
	e->n_slots = p.a.n_slots;
	assert_true(e->n_slots <= PE_SLOTS);
	e->words = mmap(NULL, e->n_slots * sizeof(uint64_t), PROT_READ,
			MAP_SHARED, fds[0], 0);
	assert_true((const void *)e->words != MAP_FAILED);
	e->pool_size = p.a.pools[0].size;
	e->pool = mmap(NULL, e->pool_size, PROT_READ, MAP_SHARED, fds[1], 0);
	assert_true((const void *)e->pool != MAP_FAILED);
	for (size_t i = 0; i < n_fds; i++)
		close(fds[i]);
	return 0;
}

int pe_attach(struct pe *e, const char *path, const struct kvs_layout *l,
	      char *text, size_t len)
{
	return pe_attach_rank(e, path, l, NULL, 0, 0, text, len);
}

int pe_attach_rank(struct pe *e, const char *path, const struct kvs_layout *l,
		   const char *group, uint32_t rank, uint32_t n_ranks,
		   char *text, size_t len)
{
	static unsigned char buf[KVS_PACKET_MAX] __attribute__((aligned(8)));
	struct kvs_packet_attach *a = (void *)buf;
	size_t bytes = pe_attach_packet(l, buf);
	int ret;

	if (group) {
		snprintf(a->group, sizeof(a->group), "%s", group);
		a->rank = rank;
		a->n_ranks = n_ranks;
	}

	memset(e, 0, sizeof(*e));
	e->layout = l;
	snprintf(e->peer, sizeof(e->peer), "p");
	e->pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	assert_true(e->pidfd >= 0);
	e->fd = pe_dial(path);
	if (e->fd < 0)
		return e->fd;
	ret = pe_send(e->fd, buf, bytes, &e->pidfd, 1);
	if (!ret)
		ret = attach_answer(e, text, len);
	if (ret)
		pe_down(e);
	return ret;
}

void pe_up(struct pe *e, const char *path, const struct kvs_layout *l)
{
	char text[256] = "";
	int ret = pe_attach(e, path, l, text, sizeof(text));

	if (ret)
		fail_msg("ATTACH: %d %s", ret, text);
}

void pe_rank_up(struct pe *e, const char *path, const struct kvs_layout *l,
		const char *group, uint32_t rank, uint32_t n_ranks)
{
	char text[256] = "";
	int ret = pe_attach_rank(e, path, l, group, rank, n_ranks, text,
				 sizeof(text));

	if (ret)
		fail_msg("ATTACH of rank %u: %d %s", rank, ret, text);
}

void pe_down(struct pe *e)
{
	if (e->fd >= 0)
		close(e->fd);
	if (e->pidfd >= 0)
		close(e->pidfd);
	e->fd = -1;
	e->pidfd = -1;
	if (e->words)
		munmap((void *)e->words, e->n_slots * sizeof(uint64_t));
	if (e->pool)
		munmap((void *)e->pool, e->pool_size);
	e->words = NULL;
	e->pool = NULL;
}

static uint32_t engine_layers(const struct pe *e)
{
	uint32_t end = 0;

	for (uint32_t b = 0; b < e->layout->n_buffers; b++)
		if (e->layout->buffers[b].layer >= end)
			end = e->layout->buffers[b].layer + 1u;
	return end;
}

void pe_admit(struct pe *e, struct pe_room *r, uint32_t slot, uint64_t room,
	      uint64_t tokens, uint32_t n_ranks)
{
	size_t len = sizeof(struct kvs_packet_admit) +
		     n_ranks * sizeof(struct kvs_rank_slice);
	struct kvs_packet_admit *p = calloc(1, len);
	uint32_t layers = engine_layers(e);

	assert_non_null(p);
	assert_true(slot < e->n_slots);
	p->h.magic = KVS_ATTACH_MAGIC;
	p->h.type = KVS_PACKET_ADMIT;
	p->room = room;
	memcpy(p->nonce, e->nonce, sizeof(p->nonce));
	memcpy(p->peer, e->peer, sizeof(p->peer));
	p->tokens = tokens;
	p->slot = slot;
	p->node = -1;
	p->aux_len = e->aux_len;
	p->flags = e->flags;
	p->n_ranks = n_ranks;
	for (uint32_t i = 0; i < n_ranks; i++) {
		p->ranks[i].first_layer = layers * i / n_ranks;
		p->ranks[i].n_layers =
			layers * (i + 1) / n_ranks - p->ranks[i].first_layer;
	}
	memset(r, 0, sizeof(*r));
	r->slot = slot;
	r->previous = KVS_WORD_GEN(
		atomic_load_explicit(&e->words[slot], memory_order_acquire));
	e->rooms[slot] = r;
	assert_int_equal(pe_send(e->fd, p, len, NULL, 0), 0);
	free(p);
}

int pe_say(struct pe *e, enum kvs_packet_type type, const struct pe_room *r,
	   int err)
{
	struct kvs_packet_room p = {
		.h = { KVS_ATTACH_MAGIC, type },
		.generation = r->generation,
		.slot = r->slot,
		.err = err,
	};

	return pe_send(e->fd, &p, sizeof(p), NULL, 0);
}

static void pump_one(struct pe *e, const void *buf, size_t len)
{
	const struct kvs_packet_ready *y = buf;
	const struct kvs_packet_failed *f = buf;
	struct pe_room *r;

	if (y->h.type == KVS_PACKET_READY) {
		r = y->slot < PE_SLOTS ? e->rooms[y->slot] : NULL;
		if (!r)
			return;
		assert_int_equal(len,
				 sizeof(*y) + y->n_extents * sizeof(y->off[0]));
		assert_true(y->n_extents <= KVS_ARRAY_SIZE(r->off));
		r->ready = true;
		r->generation = y->generation;
		r->n_extents = y->n_extents;
		r->extent_tokens = y->extent_tokens;
		memcpy(r->off, y->off, y->n_extents * sizeof(y->off[0]));
		return;
	}
	assert_int_equal(y->h.type, KVS_PACKET_FAILED);
	assert_int_equal(len, sizeof(*f));
	r = f->slot < PE_SLOTS ? e->rooms[f->slot] : NULL;
	if (!r || f->generation <= r->previous)
		return;
	assert_false(r->failed); /* told once */
	r->failed = true;
	r->failure = *f;
}

bool pe_pump(struct pe *e)
{
	static unsigned char buf[KVS_PACKET_MAX] __attribute__((aligned(8)));
	ssize_t n;

	for (;;) {
		n = recv(e->fd, buf, sizeof(buf), MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN;
		if (!n)
			return false;
		pump_one(e, buf, (size_t)n);
	}
}

enum kvs_status pe_status(struct pe *e, struct pe_room *r)
{
	uint64_t w =
		atomic_load_explicit(&e->words[r->slot], memory_order_acquire);

	if (KVS_WORD_GEN(w) <= r->previous)
		return KVS_STATUS_PENDING;
	r->generation = KVS_WORD_GEN(w);
	return KVS_WORD_STATUS(w);
}

/* The word comes after the packet that explains it. */
static enum kvs_status pe_look(struct pe *e, struct pe_room *r)
{
	enum kvs_status st = pe_status(e, r);

	assert_true(pe_pump(e));
	if (st == KVS_STATUS_FAILED)
		assert_true(r->failed);
	if (st == KVS_STATUS_READY)
		assert_true(r->ready);
	return st;
}

void pe_wait(struct pe *e, struct pe_room *r, enum kvs_status st)
{
	uint64_t until = rig_until();
	enum kvs_status got;

	while ((got = pe_look(e, r)) != st) {
		if (got == KVS_STATUS_FAILED)
			fail_msg("wanted status %d, room failed: %u %s", st,
				 r->failure.err, r->failure.text);
		rig_pause(until, "status of a room", __FILE__, __LINE__);
	}
}

void pe_wait_failed(struct pe *e, struct pe_room *r, int err)
{
	uint64_t until = rig_until();

	while (pe_look(e, r) != KVS_STATUS_FAILED)
		rig_pause(until, "failure of a room", __FILE__, __LINE__);
	if (r->failure.err != (uint32_t)err)
		fail_msg("wanted errno %d, got %u: %s", err, r->failure.err,
			 r->failure.text);
}

void pe_commit(struct pe *e, struct pe_room *r)
{
	assert_int_equal(pe_say(e, KVS_PACKET_COMMIT, r, 0), 0);
	assert_int_equal(pe_say(e, KVS_PACKET_COMMITTED, r, 0), 0);
	pe_wait(e, r, KVS_STATUS_DONE);
}

static uint64_t run_differ(const unsigned char *at, uint64_t run, uint64_t seed,
			   uint32_t extent, uint16_t kind, uint16_t layer)
{
	uint64_t bad = 0;

	for (uint64_t i = 0; i < run; i++)
		bad += at[i] != ps_byte(seed, extent, kind, layer, i);
	return bad;
}

uint64_t pe_differ(const struct pe *e, const struct pe_room *r, uint64_t tokens,
		   uint32_t n_ranks, uint64_t seed)
{
	struct kvs_geometry geo;
	uint64_t off, run, bad = 0;

	assert_true(r->ready);
	assert_int_equal(
		kvs_geometry_init(&geo, e->layout, tokens, r->extent_tokens,
				  KVS_ARENA_SEGMENT_MAX, n_ranks, e->aux_len),
		0);
	assert_int_equal(geo.n_extents, r->n_extents);
	for (uint32_t x = 0; x < geo.n_extents; x++) {
		const unsigned char *at = e->pool + r->off[x];

		assert_true(r->off[x] + kvs_geometry_len(&geo, x) <=
			    e->pool_size);
		for (uint32_t b = 0; b < e->layout->n_buffers; b++) {
			const struct kvs_layer_buffer *lb =
				&e->layout->buffers[b];

			kvs_geometry_run(&geo, x, b, &off, &run);
			bad += run_differ(at + off, run, seed, x, lb->kind,
					  lb->layer);
		}
	}
	for (uint32_t k = 0; k < n_ranks && e->aux_len; k++) {
		kvs_geometry_aux(&geo, k, &off, &run);
		bad += run_differ(e->pool + r->off[geo.n_extents - 1] + off,
				  run, seed, geo.n_extents - 1, KVS_KIND_AUX,
				  (uint16_t)k);
	}
	kvs_geometry_fini(&geo);
	return bad;
}

void pe_take(struct pe *e, struct pe_room *r, uint64_t tokens, uint32_t n_ranks,
	     uint64_t seed)
{
	pe_wait(e, r, KVS_STATUS_READY);
	assert_int_equal(pe_differ(e, r, tokens, n_ranks, seed), 0);
	pe_commit(e, r);
}

void pe_abort(struct pe *e, struct pe_room *r)
{
	assert_int_equal(pe_say(e, KVS_PACKET_ABORT, r, 0), 0);
	pe_wait_failed(e, r, ECANCELED);
}
