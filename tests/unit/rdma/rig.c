/* SPDX-License-Identifier: Apache-2.0 */
/* See rig.h. */
#include "tests/unit/rdma/rig.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include "lib/clock.h"

const char *rig_engine = "sock";

void rig_main(int argc, char **argv)
{
	struct kvs_transport_opts o = { 0 };
	struct kvs_transport *t;
	char err[256];

	if (argc > 1)
		rig_engine = argv[1];
	o.engine = rig_engine;
	if (kvs_tcp_create(&o, &t, err, sizeof(err)) == -EOPNOTSUPP) {
		printf("skip: %s\n", err);
		exit(77);
	}
	kvs_transport_destroy(t);
	printf("engine %s\n", rig_engine);
}

uint64_t rig_now(void)
{
	return kvs_clock_now(&kvs_clock_real);
}

static struct side *side_of(struct kvs_conn *c)
{
	return kvs_conn_user(c);
}

static void on_opened(struct kvs_conn *c)
{
	side_of(c)->opened++;
}

static int on_frame(struct kvs_conn *c, const struct kvs_frame *f)
{
	struct side *s = side_of(c);
	uint32_t i;

	assert_int_equal(s->closed, 0);
	if (s->frames < RIG_TYPES)
		s->types[s->frames] = kvs_get16(f->type);
	s->frames++;
	for (i = 0; i < kvs_get32(f->len); i++)
		s->frame_sum = s->frame_sum * 31 + ((const uint8_t *)f)[i];
	if (s->echo)
		assert_int_equal(kvs_conn_send(c, f), 0);
	return s->on_frame ? s->on_frame(s, f) : 0;
}

static int on_payload(struct kvs_conn *c, const struct kvs_frame *f,
		      struct kvs_rx *rx)
{
	struct side *s = side_of(c);

	assert_int_equal(s->closed, 0);
	assert_false(s->in_rx);
	assert_int_equal(rx->len, kvs_get32(f->payload));
	s->payloads++;
	if (s->refuse)
		return s->refuse;
	rx->addr = s->mem;
	rx->user = s;
	if (s->mem)
		s->mem += s->mem_step;
	s->in_rx = true;
	return 0;
}

static int on_payload_done(struct kvs_conn *c, struct kvs_rx *rx, int status)
{
	struct side *s = side_of(c);

	assert_int_equal(s->closed, 0);
	assert_true(s->in_rx);
	assert_ptr_equal(rx->user, s);
	assert_true(status <= 0);
	assert_true(rx->got <= rx->len);
	s->in_rx = false;
	s->done++;
	s->status = status;
	s->got = rx->got;
	return s->on_done ? s->on_done(s, status) : 0;
}

static void on_closed(struct kvs_conn *c, int err)
{
	struct side *s = side_of(c);

	assert_false(s->in_rx);
	s->closed++;
	s->err = err;
	s->c = NULL;
}

const struct kvs_conn_ops rig_ops = {
	.opened = on_opened,
	.frame = on_frame,
	.payload = on_payload,
	.payload_done = on_payload_done,
	.closed = on_closed,
};

static int accepted(struct kvs_conn *c, void *arg)
{
	struct rig *r = arg;
	struct side *s;

	if (r->n_sides == sizeof(r->side) / sizeof(r->side[0]))
		return -ENOSPC;
	s = &r->side[r->n_sides++];
	s->c = c;
	s->kind = r->kind;
	s->mem = r->mem;
	s->echo = r->echo;
	kvs_conn_set_ops(c, r->kind, &rig_ops, s);
	return 0;
}

struct rig *rig_new(const struct kvs_transport_opts *o)
{
	struct kvs_transport_opts opts = { 0 };
	struct rig *r = calloc(1, sizeof(*r));
	char err[256] = "";
	socklen_t len;
	int rc;

	assert_non_null(r);
	if (o)
		opts = *o;
	opts.engine = rig_engine;
	rc = kvs_tcp_create(&opts, &r->t, err, sizeof(err));
	if (rc)
		fail_msg("%s", err);
	assert_int_equal(kvs_addr_parse("127.0.0.1:0", true, &r->addr, err,
					sizeof(err)),
			 0);
	assert_int_equal(
		kvs_transport_listen(r->t, &r->addr, accepted, r, &r->l), 0);
	assert_int_equal(kvs_listener_addr(r->l, &r->addr.a[0].ss, &len), 0);
	return r;
}

void rig_free(struct rig *r)
{
	unsigned int i;

	kvs_transport_destroy(r->t);
	for (i = 0; i < r->n_sides; i++) {
		/* closed() exactly once, unless it was given away */
		assert_false(r->side[i].in_rx);
		assert_true(r->side[i].closed <= 1);
	}
	free(r);
}

struct kvs_transport_stats rig_stats(struct rig *r)
{
	struct kvs_transport_stats st;

	kvs_transport_stats(r->t, &st);
	return st;
}

void rig_settle(struct rig *r)
{
	int quiet = 0;

	while (quiet < 5) {
		int n = kvs_transport_poll(r->t, 10000000);

		assert_true(n >= 0);
		quiet = n ? 0 : quiet + 1;
	}
}

int puppet(struct rig *r)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int on = 1;

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&r->addr.a[0].ss,
				 r->addr.a[0].len),
			 0);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	return fd;
}

void puppet_send(struct rig *r, int fd, const void *p, size_t n)
{
	uint64_t until = rig_now() + 20000000000ull;
	const char *b = p;

	while (n) {
		ssize_t m = send(fd, b, n, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (m > 0) {
			b += m;
			n -= (size_t)m;
			continue;
		}
		assert_true(m < 0 && errno == EAGAIN);
		assert_true(rig_now() < until);
		assert_true(kvs_transport_poll(r->t, 1000000) >= 0);
	}
}

void puppet_recv(struct rig *r, int fd, void *p, size_t n)
{
	uint64_t until = rig_now() + 20000000000ull;
	char *b = p;

	while (n) {
		ssize_t m = recv(fd, b, n, MSG_DONTWAIT);

		assert_true(m != 0);
		if (m > 0) {
			b += m;
			n -= (size_t)m;
			continue;
		}
		assert_int_equal(errno, EAGAIN);
		assert_true(rig_now() < until);
		assert_true(kvs_transport_poll(r->t, 1000000) >= 0);
	}
}

void puppet_reset(int fd)
{
	struct linger l = { .l_onoff = 1, .l_linger = 0 };

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
	close(fd);
}

void mkframe(void *p, uint16_t type, uint32_t len, uint32_t payload)
{
	struct kvs_frame f = {
		.magic = kvs_put32(KVS_FRAME_MAGIC),
		.type = kvs_put16(type),
		.len = kvs_put32(len),
		.payload = kvs_put32(payload),
	};

	memcpy(p, &f, sizeof(f));
	fill((char *)p + sizeof(f), type, len - sizeof(f));
}

unsigned char pattern(uint64_t seed, uint64_t i)
{
	uint64_t x =
		(seed + 1) * 0x9e3779b97f4a7c15ull + i * 0xff51afd7ed558ccd;

	return (unsigned char)(x >> 56 ^ x >> 24);
}

void fill(void *p, uint64_t seed, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		((unsigned char *)p)[i] = pattern(seed, i);
}

bool matches(const void *p, uint64_t seed, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		if (((const unsigned char *)p)[i] != pattern(seed, i))
			return false;
	return true;
}

bool all_are(const void *p, unsigned char v, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		if (((const unsigned char *)p)[i] != v)
			return false;
	return true;
}
