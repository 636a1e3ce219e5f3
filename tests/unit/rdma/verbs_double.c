/* SPDX-License-Identifier: Apache-2.0 */
/* See verbs_double.h. */
#include "tests/unit/rdma/verbs_double.h"

enum kvs_verbs_grant_kind vd_kind = KVS_VERBS_GRANT_MR;

bool vrig_is_double(void)
{
	return true;
}

void vrig_world(void)
{
}

void vd_begin_with(const struct fv_spec *s, unsigned int n)
{
	unsigned int i;

	fv_begin();
	for (i = 0; i < n; i++)
		fv_device_add(&s[i]);
}

void vd_begin(const char *driver)
{
	struct fv_spec s = {
		.name = "fake0",
		.driver = driver,
		.model = strcmp(driver, "rxe") ? FV_STRICT : FV_RXE,
	};

	vd_begin_with(&s, 1);
}

void vd_end(bool left_behind)
{
	struct fv_counts n;

	fv_counts(&n);
	assert_int_equal(n.rnr, 0);
	if (!left_behind)
		assert_int_equal(n.left_behind, 0);
	assert_int_equal(n.async, n.async_acked);
	assert_int_equal(fv_end(), 0);
}

struct vrig *vd_rig(void)
{
	struct kvs_verbs_opts far = {
		.node = -1,
		.gid_index = -1,
		.grant = vd_kind,
	};

	return vrig_new(NULL, &far);
}

struct vrig *vd_start(struct vpair *p, uint64_t owner)
{
	struct vrig *r = vd_rig();

	vrig_pair_as(r, p, owner);
	return r;
}

struct fv_flight *vd_hold(struct vrig *r, struct vpair *p, struct vwrite *w,
			  void *src, uint64_t len,
			  const struct kvs_grant_key *key)
{
	unsigned int before = fv_held();

	fv_hold(1, 1);
	assert_int_equal(vside_write(&p->near, w, src, len, key, 0), 0);
	vrig_until(r, fv_held() == before + 1);
	return fv_flight(before);
}
