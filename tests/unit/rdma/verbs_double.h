/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rig of verbs_rig.h over devices of the double that each test chooses,
 * and what every one of these tests ends with: nothing left, nothing done that
 * none may do, and no message that found no receive.
 */
#ifndef KVS_TESTS_VERBS_DOUBLE_H
#define KVS_TESTS_VERBS_DOUBLE_H

#include "tests/fake_verbs/fake_verbs.h"
#include "tests/unit/rdma/verbs_rig.h"

#define KIB 1024u

/* Kind of the far side's grants in what is started next. */
extern enum kvs_verbs_grant_kind vd_kind;

/* A world with one device of that driver; "rxe" behaves as that. */
void vd_begin(const char *driver);
/* With these. */
void vd_begin_with(const struct fv_spec *s, unsigned int n);
/* Objects may have gone with their devices, if @left_behind. */
void vd_end(bool left_behind);
/* Two transports. */
struct vrig *vd_rig(void);
/* Two transports and a connection of @owner between them. */
struct vrig *vd_start(struct vpair *p, uint64_t owner);
/* A write of @len bytes that is held, and where it is. */
struct fv_flight *vd_hold(struct vrig *r, struct vpair *p, struct vwrite *w,
			  void *src, uint64_t len,
			  const struct kvs_grant_key *key);

#endif /* KVS_TESTS_VERBS_DOUBLE_H */
