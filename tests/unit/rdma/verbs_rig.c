/* SPDX-License-Identifier: Apache-2.0 */
/* See verbs_rig.h. */
#include "tests/unit/rdma/verbs_rig.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/clock.h"
#include "lib/log.h"

static int make(const struct kvs_verbs_opts *v, struct kvs_transport **ret,
		char *err, size_t errlen)
{
	struct kvs_transport_opts o = { .engine = "sock" };

	return kvs_verbs_create(&o, v, ret, err, errlen);
}

bool vrig_main(void)
{
	bool soft = false;
	struct kvs_verbs_info info[KVS_VERBS_DEVS_MAX];
	struct kvs_transport *t;
	unsigned int i, n;
	char err[1024];
	int rc;

	vrig_world();
	rc = make(NULL, &t, err, sizeof(err));
	if (getenv("KVS_TEST_VERBOSE"))
		kvs_log_set_level(KVS_LOG_DEBUG);
	if (rc == -EOPNOTSUPP || rc == -ENODEV) {
		printf("skip: %s\n", err);
		exit(77);
	}
	if (rc) {
		printf("%s\n", err);
		exit(1);
	}
	n = kvs_verbs_devices(t, info, KVS_VERBS_DEVS_MAX);
	for (i = 0; i < n; i++) {
		soft |= info[i].used && !strcmp(info[i].driver, "rxe");
		printf("%s (%s) port %u %s gid %d %s mtu %u node %d windows %d "
		       "grant %s: %s\n",
		       info[i].device, info[i].driver, info[i].port,
		       info[i].link, info[i].gid_index, info[i].gid,
		       info[i].mtu, info[i].node, info[i].windows,
		       info[i].grant, info[i].note);
	}
	kvs_transport_destroy(t);
	return soft;
}

uint64_t vrig_now(void)
{
	return kvs_clock_now(&kvs_clock_real);
}

void vrig_listen(struct vrig *r)
{
	struct sockaddr_in sin = { .sin_family = AF_INET };
	socklen_t len = sizeof(r->addr.a[0].ss);

	sin.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	r->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(r->listener >= 0);
	assert_int_equal(
		bind(r->listener, (struct sockaddr *)&sin, sizeof(sin)), 0);
	assert_int_equal(listen(r->listener, 128), 0);
	assert_int_equal(getsockname(r->listener,
				     (struct sockaddr *)&r->addr.a[0].ss, &len),
			 0);
	r->addr.n = 1;
	r->addr.a[0].len = len;
}

struct vrig *vrig_new(const struct kvs_verbs_opts *near,
		      const struct kvs_verbs_opts *far)
{
	struct vrig *r = calloc(1, sizeof(*r));
	char err[1024];

	assert_non_null(r);
	if (make(near, &r->near, err, sizeof(err)) ||
	    make(far, &r->far, err, sizeof(err)))
		fail_msg("%s", err);
	vrig_listen(r);
	r->owner = 1;
	return r;
}

void vrig_free(struct vrig *r)
{
	kvs_transport_destroy(r->near);
	kvs_transport_destroy(r->far);
	close(r->listener);
	free(r);
}

void vrig_poll(struct vrig *r)
{
	if (r->near)
		assert_true(kvs_transport_poll(r->near, 200000) >= 0);
	if (r->far)
		assert_true(kvs_transport_poll(r->far, 200000) >= 0);
}

void vrig_for(struct vrig *r, uint64_t ns)
{
	uint64_t until = vrig_now() + ns;

	while (vrig_now() < until)
		vrig_poll(r);
}

static void on_opened(struct kvs_conn *c)
{
	struct vside *s = kvs_conn_user(c);

	s->opened++;
}

static int on_frame(struct kvs_conn *c, const struct kvs_frame *f)
{
	struct vside *s = kvs_conn_user(c);

	assert_int_equal(s->closed, 0);
	assert_ptr_equal(s->c, c);
	s->frames++;
	s->last_type = kvs_get16(f->type);
	s->last_len = kvs_get32(f->len);
	if (s->last_type < 1000 &&
	    !vmatches(f + 1, s->last_type, s->last_len - sizeof(*f)))
		s->bad = true;
	return s->on_frame ? s->on_frame(s, f) : 0;
}

static int on_payload(struct kvs_conn *c, const struct kvs_frame *f,
		      struct kvs_rx *rx)
{
	struct vside *s = kvs_conn_user(c);

	(void)f;
	rx->addr = s->mem;
	return 0;
}

static int on_payload_done(struct kvs_conn *c, struct kvs_rx *rx, int status)
{
	struct vside *s = kvs_conn_user(c);

	(void)rx;
	s->payloads += !status;
	return 0;
}

static void on_closed(struct kvs_conn *c, int err)
{
	struct vside *s = kvs_conn_user(c);

	assert_ptr_equal(s->c, c);
	s->closed++;
	s->err = err;
	s->c = NULL;
}

static const struct kvs_conn_ops ops = {
	.opened = on_opened,
	.frame = on_frame,
	.payload = on_payload,
	.payload_done = on_payload_done,
	.closed = on_closed,
};

void vrig_connect(struct vrig *r, struct vside *near)
{
	assert_int_equal(kvs_transport_connect(r->near, &r->addr, KVS_CONN_DATA,
					       &ops, near, &near->c),
			 0);
}

void vrig_adopt(struct vrig *r, int fd, struct vside *far)
{
	assert_int_equal(kvs_transport_adopt(r->far, fd, KVS_CONN_DATA, &ops,
					     far, &far->c),
			 0);
	if (!r->owner)
		return;
	kvs_conn_set_owner(far->c, r->owner);
	/* arrives when both have their queue pair */
	assert_int_equal(vside_send(far, 1, 100), 0);
}

void vrig_pair(struct vrig *r, struct vside *near, struct vside *far)
{
	int fd;

	vrig_connect(r, near);
	fd = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC);
	assert_true(fd >= 0);
	vrig_adopt(r, fd, far);
	vrig_until(r, near->opened);
	if (!r->owner)
		return;
	vrig_until(r, near->frames == 1 || near->closed);
	assert_int_equal(near->closed, 0);
}

int vside_send(struct vside *s, uint16_t type, uint32_t len)
{
	static _Alignas(8) unsigned char buf[KVS_FRAME_MAX];
	struct kvs_frame f = {
		.magic = kvs_put32(KVS_FRAME_MAGIC),
		.type = kvs_put16(type),
		.len = kvs_put32(len),
	};

	memcpy(buf, &f, sizeof(f));
	vfill(buf + sizeof(f), type, len - sizeof(f));
	return kvs_conn_send(s->c, (const struct kvs_frame *)buf);
}

static void write_done(struct kvs_conn *c, struct kvs_tx *tx, int status)
{
	struct vwrite *w = kvs_container_of(tx, struct vwrite, tx);

	(void)c;
	w->done++;
	w->status = status;
}

static void prepare(struct vwrite *w, void *src, uint64_t len, uint32_t payload)
{
	struct kvs_frame f = {
		.magic = kvs_put32(KVS_FRAME_MAGIC),
		.type = kvs_put16(2),
		.len = kvs_put32(KVS_DATA_FRAME),
		.payload = kvs_put32(payload),
	};

	memset(w, 0, sizeof(*w));
	memcpy(w->tx.frame, &f, sizeof(f));
	vfill(w->tx.frame + sizeof(f), 2, KVS_DATA_FRAME - sizeof(f));
	w->iov.iov_base = src;
	w->iov.iov_len = len;
	w->tx.iov = &w->iov;
	w->tx.n_iov = 1;
	w->tx.done = write_done;
}

int vside_write_v(struct vside *s, struct vwrite *w, const struct iovec *iov,
		  size_t n, const struct kvs_grant_key *key, uint64_t off)
{
	prepare(w, NULL, 0, 0);
	w->tx.iov = iov;
	w->tx.n_iov = n;
	w->tx.one_sided = true;
	w->tx.remote = *key;
	w->tx.remote.addr += off;
	return kvs_conn_write(s->c, &w->tx);
}

int vside_write(struct vside *s, struct vwrite *w, void *src, uint64_t len,
		const struct kvs_grant_key *key, uint64_t off)
{
	prepare(w, src, len, 0);
	w->tx.one_sided = true;
	w->tx.remote = *key;
	w->tx.remote.addr += off;
	return kvs_conn_write(s->c, &w->tx);
}

int vside_payload(struct vside *s, struct vwrite *w, void *src, uint64_t len)
{
	prepare(w, src, len, (uint32_t)len);
	return kvs_conn_write(s->c, &w->tx);
}

static void grant_opened(struct kvs_grant *g, int status)
{
	struct vgrant *v = kvs_grant_user(g);

	v->opened++;
	v->open_status = status;
	if (status)
		v->g = NULL;
}

static void grant_closed(struct kvs_grant *g, int status,
			 enum kvs_grant_proof proof)
{
	struct vgrant *v = kvs_grant_user(g);

	v->closed++;
	v->close_status = status;
	v->proof = proof;
	if (!status)
		v->g = NULL;
}

static const struct kvs_grant_ops grant_ops[] = {
	{ .opened = grant_opened, .closed = grant_closed },
	{ .opened = grant_opened, .closed = grant_closed, .write_only = true },
};
static bool write_only;

void vgrant_write_only(bool yes)
{
	write_only = yes;
}

void vgrant_begin(struct vrig *r, struct vgrant *v, uint64_t owner, void *addr,
		  uint64_t len)
{
	struct kvs_grant_range range = { .addr = addr, .len = len };

	memset(v, 0, sizeof(*v));
	assert_int_equal(kvs_grant_open(r->far, owner, &range, 1,
					&grant_ops[write_only], v, &v->g),
			 0);
}

void vgrant_open(struct vrig *r, struct vgrant *v, uint64_t owner, void *addr,
		 uint64_t len)
{
	vgrant_begin(r, v, owner, addr, len);
	vrig_until(r, v->opened);
	assert_int_equal(v->open_status, 0);
}

void vgrant_close(struct vrig *r, struct vgrant *v)
{
	int before = v->closed;

	kvs_grant_close(v->g);
	vrig_until(r, v->closed > before);
}

unsigned char vpattern(uint64_t seed, uint64_t i)
{
	uint64_t x =
		(seed + 1) * 0x9e3779b97f4a7c15ull + i * 0xff51afd7ed558ccdull;

	return (unsigned char)(x >> 56 ^ x >> 24);
}

void vfill(void *p, uint64_t seed, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		((unsigned char *)p)[i] = vpattern(seed, i);
}

bool vmatches(const void *p, uint64_t seed, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		if (((const unsigned char *)p)[i] != vpattern(seed, i))
			return false;
	return true;
}

bool vall(const void *p, unsigned char v, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		if (((const unsigned char *)p)[i] != v)
			return false;
	return true;
}

unsigned char *vmem(size_t n, unsigned char v)
{
	void *p = NULL;

	assert_int_equal(posix_memalign(&p, 4096, n), 0);
	memset(p, v, n);
	return p;
}

void vrig_pool(struct vrig *r, void *addr, uint64_t len)
{
	struct kvs_mem *m;
	char err[256];

	if (kvs_transport_key_per_conn(r->far) &&
	    kvs_transport_register(r->far, addr, len, &m, err, sizeof(err)))
		fail_msg("%s", err);
}

struct vrig *vrig_new_pool(const struct kvs_verbs_opts *far, size_t n,
			   unsigned char **ret_pool)
{
	struct vrig *r = vrig_new(NULL, far);

	*ret_pool = vmem(n, 0xee);
	assert_true(kvs_transport_key_per_conn(r->far));
	vrig_pool(r, *ret_pool, n);
	return r;
}

void vrig_pair_as(struct vrig *r, struct vpair *p, uint64_t owner)
{
	memset(p, 0, sizeof(*p));
	r->owner = owner;
	vrig_pair(r, &p->near, &p->far);
}

const struct kvs_grant_key *vgrant_key(const struct vgrant *v)
{
	return kvs_grant_keys(v->g);
}
