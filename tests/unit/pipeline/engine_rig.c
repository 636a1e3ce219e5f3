/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/pipeline/engine_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "pipeline/layout.h"

#define CLEAR 0xa5

static int rig_memfd(const char *name, uint64_t len, bool sealed)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)len), 0);
	if (sealed)
		assert_int_equal(
			fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	return fd;
}

static void rig_layout(struct rig *g)
{
	static const struct kvs_layer_buffer v[] = {
		{ KVS_BUFFER_K, 0, 512, 0 },  { KVS_BUFFER_K, 1, 512, 0 },
		{ KVS_BUFFER_V, 0, 256, 0 },  { KVS_BUFFER_V, 1, 256, 0 },
		{ KVS_BUFFER_SWA, 2, 96, 3 }, { KVS_BUFFER_MAMBA, 3, 1000, 2 },
	};

	memcpy(g->buffers, v, sizeof(v));
	g->layout = (struct kvs_layout){
		.size = sizeof(g->layout),
		.page_size = RIG_PAGE_SIZE,
		.dtype = KVS_DTYPE_BF16,
		.n_buffers = g->hybrid ? 6 : 4,
		.buffers = g->buffers,
		.aux_max = 64,
	};
}

static pid_t rig_pid_of(int pidfd)
{
	char path[64], line[128];
	long pid = -1;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pidfd);
	f = fopen(path, "r");
	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "Pid: %ld", &pid) == 1)
			break;
	fclose(f);
	return (pid_t)pid;
}

static void rig_read_attach(struct rig *g)
{
	union {
		struct kvs_packet_attach p;
		unsigned char b[KVS_PACKET_MAX];
	} *buf = malloc(sizeof(*buf));
	union {
		struct cmsghdr h;
		char b[CMSG_SPACE(sizeof(int))];
	} ctl = { 0 };
	struct iovec iov = { buf, sizeof(*buf) };
	struct msghdr mh = { .msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = &ctl,
			     .msg_controllen = sizeof(ctl) };
	int pidfd;

	if (recvmsg(g->fd, &mh, MSG_CMSG_CLOEXEC) >= (ssize_t)sizeof(buf->p) &&
	    buf->p.h.type == KVS_PACKET_ATTACH && CMSG_FIRSTHDR(&mh)) {
		memcpy(&pidfd, CMSG_DATA(&ctl.h), sizeof(pidfd));
		g->attached = rig_pid_of(pidfd);
		close(pidfd);
	}
	free(buf);
}

static void rig_answer(struct rig *g)
{
	const struct rig_script *s = &g->script;
	struct kvs_packet_attached p = {
		.h = { s->bad_magic ? 1 : KVS_ATTACH_MAGIC,
		       KVS_PACKET_ATTACHED },
		.instance = 1,
		.engine = 1,
		.n_slots = s->say_slots ? s->say_slots : g->n_slots,
		.n_pools = s->say_pools ? s->say_pools : 2,
		.extent_tokens = RIG_EXTENT_TOKENS,
	};
	union {
		struct cmsghdr h;
		char b[CMSG_SPACE(3 * sizeof(int))];
	} ctl = { 0 };
	struct iovec iov = { &p, s->cut ? 32 : sizeof(p) };
	struct msghdr mh = { .msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = &ctl,
			     .msg_controllen = sizeof(ctl) };
	int fds[3] = { g->status_fd, g->pool_fd, g->offload_fd };
	int pipe_fd[2] = { -1, -1 };

	if (s->no_memfd && !pipe(pipe_fd))
		fds[1] = pipe_fd[0];
	p.pools[0].size = s->say_size ? s->say_size : RIG_POOL;
	p.pools[0].page_size = 4096;
	p.pools[1].size = RIG_OFFLOAD;
	p.pools[1].page_size = 4096;
	p.pools[1].writable = 1;
	ctl.h.cmsg_level = SOL_SOCKET;
	ctl.h.cmsg_type = SCM_RIGHTS;
	ctl.h.cmsg_len = CMSG_LEN(sizeof(fds));
	memcpy(CMSG_DATA(&ctl.h), fds, sizeof(fds));
	(void)sendmsg(g->fd, &mh, MSG_NOSIGNAL);
	if (pipe_fd[0] >= 0) {
		close(pipe_fd[0]);
		close(pipe_fd[1]);
	}
}

/* No assertions here: cmocka's jump from another thread's. */
static void *rig_handshake(void *arg)
{
	struct rig *g = arg;
	struct kvs_packet_refused r = {
		.h = { KVS_ATTACH_MAGIC, KVS_PACKET_REFUSED },
		.err = g->script.refuse,
	};

	g->fd = accept4(g->listen_fd, NULL, NULL, SOCK_CLOEXEC);
	if (g->fd < 0)
		return NULL;
	rig_read_attach(g);
	if (g->script.hang_up) {
		close(g->fd);
		g->fd = -1;
	} else if (g->script.refuse) {
		snprintf(r.text, sizeof(r.text), "%s", g->script.text);
		(void)send(g->fd, &r, sizeof(r), MSG_NOSIGNAL);
	} else {
		rig_answer(g);
	}
	return NULL;
}

void rig_listen(struct rig *g)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };

	if (!g->n_slots)
		g->n_slots = RIG_SLOTS;
	rig_layout(g);
	kvs_rng_init(&g->rng, 20260101);
	snprintf(g->dir, sizeof(g->dir), "/tmp/kvs-engine-XXXXXX");
	assert_non_null(mkdtemp(g->dir));
	snprintf(g->path, sizeof(g->path), "%s/s", g->dir);
	memcpy(sa.sun_path, g->path, strlen(g->path) + 1);
	g->status_fd =
		rig_memfd("status", g->n_slots * 8, !g->script.unsealed_status);
	g->pool_fd = rig_memfd("pool", RIG_POOL, !g->script.unsealed_pool);
	g->offload_fd = rig_memfd("offload", RIG_OFFLOAD, true);
	g->words = mmap(NULL, g->n_slots * 8, PROT_READ | PROT_WRITE,
			MAP_SHARED, g->status_fd, 0);
	g->pool = mmap(NULL, RIG_POOL, PROT_READ | PROT_WRITE, MAP_SHARED,
		       g->pool_fd, 0);
	assert_true(g->words != MAP_FAILED && g->pool != MAP_FAILED);
	/* As the daemon does: from here on nobody else may write. */
	if (!g->script.unsealed_pool)
		assert_int_equal(fcntl(g->pool_fd, F_ADD_SEALS, 0x10), 0);
	g->fd = -1;
	g->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_true(g->listen_fd >= 0);
	assert_int_equal(bind(g->listen_fd, (struct sockaddr *)&sa, sizeof(sa)),
			 0);
	assert_int_equal(listen(g->listen_fd, 4), 0);
	assert_int_equal(pthread_create(&g->thread, NULL, rig_handshake, g), 0);
}

void rig_answered(struct rig *g)
{
	assert_int_equal(pthread_join(g->thread, NULL), 0);
}

int rig_attach(struct rig *g)
{
	struct kvs_engine_opts o = {
		.size = sizeof(o),
		.socket = g->path,
		.name = "rig",
		.layout = &g->layout,
		.node = -1,
		.timeout = RIG_WAIT_MS * 1000000ULL,
	};

	return kvs_engine_attach(&o, &g->engine, g->err, sizeof(g->err));
}

void rig_clear_device(struct rig *g)
{
	for (uint32_t b = 0; b < g->layout.n_buffers; b++)
		memset(g->dev[b], CLEAR, g->dev_len[b]);
}

static void rig_device(struct rig *g)
{
	struct kvs_device_opts o = {
		.size = sizeof(o),
		.backend = "soft",
		.plan = g->plan,
	};

	if (g->virtual)
		assert_int_equal(kvs_soft_open_virtual(g->virtual, &g->device),
				 0);
	else
		assert_int_equal(kvs_device_open(g->opts ? g->opts : &o,
						 &g->device, g->err,
						 sizeof(g->err)),
				 0);
	for (uint32_t b = 0; b < g->layout.n_buffers; b++) {
		const struct kvs_layer_buffer *lb = &g->buffers[b];
		uint64_t n = kvs_buffer_kind_is_paged(lb->kind)
				     ? RIG_DEVICE_PAGES
				     : RIG_DEVICE_STATES;

		g->dev_len[b] = n * lb->item_len;
		assert_int_equal(kvs_device_alloc(g->device, g->dev_len[b],
						  &g->dev[b]),
				 0);
	}
	rig_clear_device(g);
}

void rig_start(struct rig *g)
{
	rig_listen(g);
	if (rig_attach(g))
		fail_msg("attach: %s", g->err);
	assert_string_equal(g->err, "");
	rig_answered(g);
	rig_device(g);
}

void rig_die(struct rig *g)
{
	close(g->fd);
	g->fd = -1;
}

void rig_stop(struct rig *g)
{
	kvs_engine_detach(g->engine);
	for (uint32_t b = 0; g->device && b < g->layout.n_buffers; b++)
		kvs_device_free(g->device, g->dev[b]);
	kvs_device_close(g->device);
	if (g->fd >= 0)
		close(g->fd);
	close(g->listen_fd);
	(void)munmap((void *)g->words, g->n_slots * 8);
	(void)munmap(g->pool, RIG_POOL);
	close(g->status_fd);
	close(g->pool_fd);
	close(g->offload_fd);
	(void)unlink(g->path);
	(void)rmdir(g->dir);
}

void rig_word(struct rig *g, const struct rig_room *m, int err,
	      enum kvs_status st)
{
	atomic_store_explicit(&g->words[m->slot],
			      KVS_WORD(m->generation, err, st),
			      memory_order_release);
}

void rig_send(struct rig *g, const void *p, size_t len)
{
	assert_int_equal(send(g->fd, p, len, MSG_NOSIGNAL), len);
}

size_t rig_expect(struct rig *g, enum kvs_packet_type type, void *buf,
		  size_t len)
{
	struct pollfd p = { .fd = g->fd, .events = POLLIN };
	const struct kvs_packet *h = buf;
	ssize_t n;

	assert_int_equal(poll(&p, 1, RIG_WAIT_MS), 1);
	n = recv(g->fd, buf, len, 0);
	assert_true(n >= (ssize_t)sizeof(*h));
	assert_int_equal(h->magic, KVS_ATTACH_MAGIC);
	assert_int_equal(h->type, type);
	return (size_t)n;
}

int rig_expect_room(struct rig *g, enum kvs_packet_type type,
		    const struct rig_room *m)
{
	struct kvs_packet_room p;

	assert_int_equal(rig_expect(g, type, &p, sizeof(p)), sizeof(p));
	assert_int_equal(p.slot, m->slot);
	if (p.generation || type != KVS_PACKET_ABORT)
		assert_int_equal(p.generation, m->generation);
	return p.err;
}

void rig_quiet(struct rig *g)
{
	unsigned char b[64];

	assert_int_equal(recv(g->fd, b, sizeof(b), MSG_DONTWAIT), -1);
	assert_int_equal(errno, EAGAIN);
}

void rig_admit(struct rig *g, struct rig_room *m, uint64_t tokens)
{
	const struct kvs_rank_slice ranks[RIG_RANKS] = { { 0, 1 }, { 1, 3 } };
	union {
		struct kvs_packet_admit p;
		unsigned char b[4096];
	} u;
	struct kvs_admit a = {
		.size = sizeof(a),
		.room = 1000 + g->generation,
		.peer = "prefill",
		.tokens = tokens,
		.n_ranks = RIG_RANKS,
		.ranks = ranks,
		.aux_len = RIG_AUX,
		.node = -1,
	};

	memset(m, 0, sizeof(*m));
	m->tokens = tokens;
	m->generation = ++g->generation;
	assert_int_equal(kvs_engine_admit(g->engine, &a, &m->h), 0);
	assert_int_equal(rig_expect(g, KVS_PACKET_ADMIT, &u, sizeof(u)),
			 sizeof(u.p) + sizeof(ranks));
	assert_int_equal(u.p.room, a.room);
	assert_int_equal(u.p.tokens, tokens);
	assert_string_equal(u.p.peer, "prefill");
	assert_int_equal(u.p.n_ranks, RIG_RANKS);
	assert_memory_equal(u.p.ranks, ranks, sizeof(ranks));
	assert_true(u.p.slot < g->n_slots);
	m->slot = u.p.slot;
}

static void rig_shuffle(struct rig *g, uint32_t *v, uint32_t n)
{
	for (uint32_t i = n; i > 1; i--) {
		uint32_t j = (uint32_t)kvs_rng_below(&g->rng, i);
		uint32_t x = v[i - 1];

		v[i - 1] = v[j];
		v[j] = x;
	}
}

size_t rig_make_ready(struct rig *g, struct rig_room *m,
		      struct kvs_packet_ready *p)
{
	uint32_t place[64];
	uint64_t step;

	if (!m->geo.n_extents)
		assert_int_equal(kvs_geometry_init(&m->geo, &g->layout,
						   m->tokens, RIG_EXTENT_TOKENS,
						   1u << 30, RIG_RANKS,
						   RIG_AUX),
				 0);
	assert_true(m->geo.n_extents <= 64);
	step = RIG_POOL / 64;
	for (uint32_t i = 0; i < 64; i++)
		place[i] = i;
	rig_shuffle(g, place, 64);
	memset(p, 0, sizeof(*p));
	p->h.magic = KVS_ATTACH_MAGIC;
	p->h.type = KVS_PACKET_READY;
	p->generation = m->generation;
	p->slot = m->slot;
	p->extent_tokens = RIG_EXTENT_TOKENS;
	p->n_extents = m->geo.n_extents;
	for (uint32_t i = 0; i < m->geo.n_extents; i++) {
		unsigned char *at;

		m->off[i] = place[i] * step;
		p->off[i] = m->off[i];
		at = g->pool + m->off[i];
		assert_true(kvs_geometry_len(&m->geo, i) <= step);
		for (uint64_t n = 0; n < kvs_geometry_len(&m->geo, i); n++)
			at[n] = (unsigned char)kvs_rng_next(&g->rng);
	}
	return sizeof(*p) + m->geo.n_extents * sizeof(p->off[0]);
}

void rig_ready(struct rig *g, struct rig_room *m)
{
	union {
		struct kvs_packet_ready p;
		unsigned char b[4096];
	} u;
	size_t len = rig_make_ready(g, m, &u.p);

	rig_send(g, &u, len);
	rig_word(g, m, 0, KVS_STATUS_READY);
}

void rig_say_failed(struct rig *g, const struct rig_room *m, int err,
		    unsigned int class, const char *text)
{
	struct kvs_packet_failed p = {
		.h = { KVS_ATTACH_MAGIC, KVS_PACKET_FAILED },
		.generation = m->generation,
		.slot = m->slot,
		.err = (uint32_t)err,
		.class = class,
		.retry_ms = RIG_RETRY,
	};

	snprintf(p.text, sizeof(p.text), "%s", text);
	rig_send(g, &p, sizeof(p));
}

void rig_failed(struct rig *g, const struct rig_room *m, int err,
		unsigned int class, const char *text)
{
	rig_say_failed(g, m, err, class, text);
	rig_word(g, m, err, KVS_STATUS_FAILED);
}

void rig_commit_args(struct rig *g, struct rig_room *m, struct kvs_commit *c)
{
	uint32_t all[RIG_DEVICE_PAGES];
	uint64_t off, len;

	for (uint32_t i = 0; i < RIG_DEVICE_PAGES; i++)
		all[i] = i;
	rig_shuffle(g, all, RIG_DEVICE_PAGES);
	memcpy(m->pages, all, sizeof(all));
	m->n_items = 0;
	for (uint32_t b = 0; b < g->layout.n_buffers; b++) {
		uint32_t state[RIG_DEVICE_STATES];

		if (kvs_buffer_kind_is_paged(g->buffers[b].kind))
			continue;
		for (uint32_t i = 0; i < RIG_DEVICE_STATES; i++)
			state[i] = i;
		rig_shuffle(g, state, RIG_DEVICE_STATES);
		assert_int_equal(kvs_geometry_run(&m->geo, m->geo.n_extents - 1,
						  b, &off, &len),
				 0);
		for (uint32_t i = 0; i < len / g->buffers[b].item_len; i++)
			m->items[m->n_items++] = state[i];
	}
	*c = (struct kvs_commit){
		.size = sizeof(*c),
		.device = g->device,
		.buffers = g->dev,
		.pages = m->pages,
		.n_pages = m->geo.pages,
		.items = m->items,
		.n_items = m->n_items,
	};
}

void rig_claim(struct rig *g, struct rig_room *m)
{
	struct kvs_commit c;

	rig_ready(g, m);
	rig_commit_args(g, m, &c);
	assert_int_equal(kvs_engine_commit(g->engine, &m->h, &c), 0);
}

void rig_take(struct rig *g, struct rig_room *m)
{
	assert_int_equal(rig_expect_room(g, KVS_PACKET_COMMIT, m), 0);
	rig_word(g, m, 0, KVS_STATUS_COMMITTING);
	assert_true(kvs_engine_progress(g->engine) >= 0);
}

void rig_copied(struct rig *g, struct rig_room *m)
{
	while (kvs_engine_copy_live(g->engine, &m->h))
		(void)sched_yield();
	(void)kvs_engine_progress(g->engine);
}

void rig_check_device(struct rig *g, const struct rig_room *m)
{
	const uint32_t *items = m->items;
	uint64_t off, len;

	for (uint32_t b = 0; b < g->layout.n_buffers; b++) {
		uint32_t item = g->buffers[b].item_len;
		bool paged = kvs_buffer_kind_is_paged(g->buffers[b].kind);
		unsigned char *want = malloc(g->dev_len[b]);
		const uint32_t *place = paged ? m->pages : items;

		assert_non_null(want);
		memset(want, CLEAR, g->dev_len[b]);
		for (uint32_t x = 0; x < m->geo.n_extents; x++) {
			assert_int_equal(
				kvs_geometry_run(&m->geo, x, b, &off, &len), 0);
			for (uint64_t i = 0; i < len / item; i++)
				memcpy(want + (uint64_t)*place++ * item,
				       g->pool + m->off[x] + off + i * item,
				       item);
		}
		if (!paged)
			items = place;
		assert_memory_equal(g->dev[b], want, g->dev_len[b]);
		free(want);
	}
}

void rig_room_fini(struct rig *g, struct rig_room *m)
{
	kvs_geometry_fini(&m->geo);
	assert_int_equal(kvs_engine_release(g->engine, &m->h), 0);
}
