/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, over the double, for registrations that fail or that a device makes
 * shorter than was asked for:
 *  - a device that takes so many bytes is never asked for more: memory is
 *    registered in pieces, each with a key of its own, and its last page can be
 *    granted, and sent from (kvcache-ai/Mooncake#2017, #2644, ROCm/mori#251);
 *    what lies in two pieces is no grant, nor is what is larger than one
 *    (taco-project/FlexKV#275);
 *  - of six pieces the fourth fails: three are undone, the message names size,
 *    address and reason, and the same call works afterwards
 *    (ROCm/ATOM#690, kvcache-ai/Mooncake#364);
 *  - where it fails at the first use of a device, the connection that wanted it
 *    ends and says why; the next one finds everything registered;
 *  - a grant of three ranges whose second cannot be registered is none, and
 *    leaves no key.
 */
#include "tests/unit/rdma/verbs_double.h"

#include <sys/socket.h>

#include "lib/log.h"

#define PIECE (1024 * KIB)
#define OWNER 7

static unsigned int mrs(void)
{
	struct fv_live n;

	fv_live(&n);
	return n.mrs;
}

static void begin(uint64_t most)
{
	const struct fv_spec s = {
		.name = "mlx5_0",
		.driver = "mlx5_core",
		.max_mr_size = most,
	};

	vd_begin_with(&s, 1);
}

/* A page at @at of granted memory, written and seen there. */
static void write_page(struct vrig *r, struct vpair *p, unsigned char *dst,
		       const struct vgrant *v, uint64_t at)
{
	static unsigned char src[4096];
	struct vwrite w;

	memset(src, 0x55, sizeof(src));
	assert_int_equal(vside_write(&p->near, &w, src, sizeof(src),
				     kvs_grant_keys(v->g), at),
			 0);
	vrig_until(r, w.done);
	assert_int_equal(w.status, 0);
	assert_true(vall(dst + at, 0x55, sizeof(src)));
	memset(dst + at, 0xee, sizeof(src));
}

/* 5 of what a device takes 2 of: three pieces. */
static void never_cut(void **state)
{
	const uint64_t len = 5 * PIECE, most = 2 * PIECE;
	struct vgrant v, last;
	unsigned char *dst;
	unsigned int before;
	struct kvs_mem *m;
	struct vpair p;
	struct vrig *r;
	char err[256];

	(void)state;
	vd_kind = KVS_VERBS_GRANT_WINDOW;
	begin(most);
	r = vd_start(&p, OWNER);
	dst = vmem(len, 0xee);
	assert_int_equal(kvs_transport_register_max(r->far), most);
	before = mrs();
	assert_int_equal(kvs_transport_register(r->far, dst, len, &m, err,
						sizeof(err)),
			 0);
	assert_int_equal(mrs(), before + 3);
	/* its last page first */
	vgrant_open(r, &last, OWNER, dst + len - 4096, 4096);
	write_page(r, &p, dst + len - 4096, &last, 0);
	vgrant_open(r, &v, OWNER, dst + most, most);
	write_page(r, &p, dst + most, &v, 0);
	write_page(r, &p, dst + most, &v, most - 4096);
	vgrant_close(r, &v);
	vgrant_close(r, &last);
	/* one page in each of two */
	vgrant_begin(r, &v, OWNER, dst + most - 4096, 8192);
	vrig_until(r, v.opened);
	assert_int_equal(v.open_status, -EFAULT);
	assert_true(vall(dst, 0xee, len));
	/* the writer has one more by now, of what it copies from */
	before = mrs();
	kvs_mem_release(m);
	assert_int_equal(mrs(), before - 3);
	vrig_free(r);
	free(dst);
	vd_end(false);
	vd_kind = KVS_VERBS_GRANT_MR;
}

static void no_range_is_cut(void **state)
{
	unsigned char *dst = vmem(2 * PIECE, 0xee);
	struct vgrant v;
	struct vpair p;
	struct vrig *r;

	(void)state;
	begin(PIECE);
	r = vd_start(&p, OWNER);
	vgrant_open(r, &v, OWNER, dst, PIECE);
	write_page(r, &p, dst, &v, PIECE - 4096);
	vgrant_close(r, &v);
	vgrant_begin(r, &v, OWNER, dst, PIECE + 1);
	vrig_until(r, v.opened);
	assert_int_equal(v.open_status, -EFBIG);
	vrig_free(r);
	free(dst);
	vd_end(false);
}

/* A source in pieces: sent from each, across their borders, and not copied. */
static void sent_from_pieces(void **state)
{
	const uint64_t len = 5 * PIECE / 2;
	unsigned char *src, *dst;
	struct kvs_verbs_counts n;
	struct kvs_mem *m;
	struct vgrant v;
	struct vwrite w;
	struct vpair p;
	struct vrig *r;
	char err[256];

	(void)state;
	begin(PIECE);
	r = vd_start(&p, OWNER);
	src = vmem(len, 0);
	dst = vmem(PIECE, 0xee);
	vfill(src, 11, len);
	assert_int_equal(kvs_transport_register(r->near, src, len, &m, err,
						sizeof(err)),
			 0);
	vgrant_open(r, &v, OWNER, dst, PIECE);
	assert_int_equal(vside_write(&p.near, &w, src + PIECE / 2, PIECE,
				     kvs_grant_keys(v.g), 0),
			 0);
	vrig_until(r, w.done);
	assert_int_equal(w.status, 0);
	assert_memory_equal(dst, src + PIECE / 2, PIECE);
	kvs_verbs_counters(r->near, &n);
	assert_int_equal(n.staged_bytes, 0);
	kvs_mem_release(m);
	vgrant_close(r, &v);
	vrig_free(r);
	free(src);
	free(dst);
	vd_end(false);
}

static void fourth_of_six(void **state)
{
	unsigned char *mem = vmem(6 * PIECE, 0);
	char err[256], where[32];
	unsigned int before;
	struct kvs_mem *m;
	struct vpair p;
	struct vrig *r;

	(void)state;
	begin(PIECE);
	r = vd_start(&p, OWNER);
	before = mrs();
	fv_fail(FV_REG_MR, 4, 1, ENOMEM);
	assert_int_equal(kvs_transport_register(r->near, mem, 6 * PIECE, &m,
						err, sizeof(err)),
			 -ENOMEM);
	assert_int_equal(fv_failed(), 1);
	assert_int_equal(mrs(), before);
	snprintf(where, sizeof(where),
		 "1.0 MiB at %p:", (void *)(mem + 3 * PIECE));
	if (!strstr(err, where) || !strstr(err, "mlx5_0") ||
	    !strstr(err, strerror(ENOMEM)))
		fail_msg("not said: %s", err);
	/* nothing of it is in the way, nor is its error */
	assert_int_equal(kvs_transport_register(r->near, mem, 6 * PIECE, &m,
						err, sizeof(err)),
			 0);
	assert_int_equal(mrs(), before + 6);
	kvs_mem_release(m);
	assert_int_equal(mrs(), before);
	vrig_free(r);
	free(mem);
	vd_end(false);
}

/* Two memories told of before there is a device in use. */
static void fails_at_first_use(void **state)
{
	const struct kvs_verbs_opts sender = {
		.node = -1,
		.gid_index = -1,
		.no_grants = true,
	}, daemon = {
		.node = -1,
		.gid_index = -1,
		.grant = KVS_VERBS_GRANT_MR,
	};
	unsigned char *src = vmem(2 * PIECE, 0x55), *dst = vmem(PIECE, 0xee);
	struct kvs_verbs_counts n;
	struct kvs_mem *m[2];
	struct vgrant v;
	struct vwrite w;
	struct vpair p;
	struct vrig *r;
	char err[256];
	int i;

	(void)state;
	begin(0);
	/* as a sender: it grants nothing */
	r = vrig_new(&sender, &daemon);
	memset(&p, 0, sizeof(p));
	for (i = 0; i < 2; i++)
		assert_int_equal(
			kvs_transport_register(r->near, src + i * PIECE, PIECE,
					       &m[i], err, sizeof(err)),
			0);
	/* the other side's messages, the first of these, the second */
	fv_fail(FV_REG_MR, 3, 1, ENOMEM);
	r->owner = OWNER;
	vrig_connect(r, &p.near);
	vrig_adopt(r, accept4(r->listener, NULL, NULL, SOCK_CLOEXEC), &p.far);
	vrig_until(r, p.near.closed && p.far.closed);
	assert_int_equal(fv_failed(), 1);
	assert_int_equal(p.near.err, -ENOMEM);
	vrig_pair_as(r, &p, OWNER);
	vgrant_open(r, &v, OWNER, dst, PIECE);
	for (i = 0; i < 2; i++) {
		assert_int_equal(vside_write(&p.near, &w, src + i * PIECE,
					     PIECE, kvs_grant_keys(v.g), 0),
				 0);
		vrig_until(r, w.done);
		assert_int_equal(w.status, 0);
	}
	kvs_verbs_counters(r->near, &n);
	assert_int_equal(n.staged_bytes, 0);
	vgrant_close(r, &v);
	for (i = 0; i < 2; i++)
		kvs_mem_release(m[i]);
	vrig_free(r);
	free(src);
	free(dst);
	vd_end(false);
}

static void opened(struct kvs_grant *g, int status)
{
	*(int *)kvs_grant_user(g) = status;
}

static void closed(struct kvs_grant *g, int status, enum kvs_grant_proof proof)
{
	(void)g, (void)status, (void)proof;
}

/* Less than a connection needs for itself. */
static void takes_too_little(void **state)
{
	struct kvs_transport_opts o = { .engine = "sock" };
	struct kvs_transport *t;
	char err[256];

	(void)state;
	begin(64 * KIB);
	assert_int_equal(kvs_verbs_create(&o, NULL, &t, err, sizeof(err)),
			 -ENODEV);
	assert_non_null(strstr(err, "a registration takes 65536 bytes"));
	vd_end(false);
}

static void second_of_three_ranges(void **state)
{
	static const struct kvs_grant_ops ops = { .opened = opened,
						  .closed = closed };
	unsigned char *dst = vmem(3 * PIECE, 0xee);
	struct kvs_grant_range v[3];
	unsigned int before, i;
	struct kvs_grant *g;
	struct vpair p;
	struct vrig *r;
	int status = 1;

	(void)state;
	begin(0);
	r = vd_start(&p, OWNER);
	for (i = 0; i < 3; i++)
		v[i] = (struct kvs_grant_range){ dst + i * PIECE, PIECE };
	before = mrs();
	fv_fail(FV_REG_MR, 2, 1, ENOMEM);
	assert_int_equal(kvs_grant_open(r->far, OWNER, v, 3, &ops, &status, &g),
			 0);
	vrig_until(r, status != 1);
	assert_int_equal(status, -ENOMEM);
	assert_int_equal(mrs(), before);
	vrig_free(r);
	free(dst);
	vd_end(false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(never_cut),
		cmocka_unit_test(no_range_is_cut),
		cmocka_unit_test(sent_from_pieces),
		cmocka_unit_test(fourth_of_six),
		cmocka_unit_test(fails_at_first_use),
		cmocka_unit_test(second_of_three_ranges),
		cmocka_unit_test(takes_too_little),
	};

	kvs_log_set_level(0 /* none */);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
