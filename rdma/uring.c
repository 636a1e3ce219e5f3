/* SPDX-License-Identifier: Apache-2.0 */
#include "rdma/uring.h"

#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/assert.h"

#ifndef IORING_SETUP_SINGLE_ISSUER
#define IORING_SETUP_SINGLE_ISSUER (1U << 12)
#endif
#ifndef IORING_SETUP_DEFER_TASKRUN
#define IORING_SETUP_DEFER_TASKRUN (1U << 13)
#endif

int kvs_uring_refuse(const char *call, int rc, const char *instead, char *err,
		     size_t errlen)
{
	snprintf(err, errlen,
		 "%s: %s: either io_uring is forbidden here (a seccomp "
		 "filter, or sysctl kernel.io_uring_disabled) or this kernel "
		 "does not have it; %s works without",
		 call, strerror(-rc), instead);
	return rc == -ENOMEM || rc == -EMFILE ? rc : -EOPNOTSUPP;
}

int kvs_uring_trial(const int *ops, size_t n, const char *instead, char *err,
		    size_t errlen)
{
	struct io_uring_probe *probe;
	struct io_uring_cqe *cqe;
	struct io_uring_sqe *sqe;
	struct io_uring ring;
	size_t i;
	int rc = io_uring_queue_init(4, &ring, 0);

	if (rc)
		return kvs_uring_refuse("io_uring_setup", rc, instead, err,
					errlen);
	sqe = io_uring_get_sqe(&ring);
	io_uring_prep_nop(sqe);
	rc = io_uring_submit_and_wait(&ring, 1);
	if (rc >= 0)
		rc = io_uring_peek_cqe(&ring, &cqe);
	if (rc < 0) {
		rc = kvs_uring_refuse("io_uring_enter", rc, instead, err,
				      errlen);
		goto out;
	}
	io_uring_cqe_seen(&ring, cqe);
	if (!(ring.features & IORING_FEAT_NODROP) ||
	    !(ring.features & IORING_FEAT_EXT_ARG) ||
	    !(ring.features & IORING_FEAT_FAST_POLL)) {
		rc = kvs_uring_refuse("io_uring features", -EOPNOTSUPP, instead,
				      err, errlen);
		goto out;
	}
	probe = io_uring_get_probe_ring(&ring);
	if (!probe) {
		rc = kvs_uring_refuse("io_uring_register", -EPERM, instead, err,
				      errlen);
		goto out;
	}
	for (i = 0; i < n && !rc; i++)
		if (!io_uring_opcode_supported(probe, ops[i]))
			rc = kvs_uring_refuse("io_uring operations",
					      -EOPNOTSUPP, instead, err,
					      errlen);
	io_uring_free_probe(probe);
out:
	io_uring_queue_exit(&ring);
	return rc;
}

int kvs_uring_init(struct io_uring *ring, unsigned int entries,
		   unsigned int cq_entries)
{
	static const unsigned int wish[] = {
		IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER |
			IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
		IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER |
			IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
		IORING_SETUP_R_DISABLED | IORING_SETUP_COOP_TASKRUN |
			IORING_SETUP_TASKRUN_FLAG,
		IORING_SETUP_R_DISABLED,
	};
	struct io_uring_params p;
	int rc = -EINVAL;
	size_t i;

	for (i = 0; i < KVS_ARRAY_SIZE(wish) && rc == -EINVAL; i++) {
		memset(&p, 0, sizeof(p));
		p.flags = wish[i] | IORING_SETUP_CLAMP | IORING_SETUP_CQSIZE;
		p.cq_entries = cq_entries;
		rc = io_uring_queue_init_params(entries, ring, &p);
	}
	return rc;
}

int kvs_uring_enable(struct io_uring *ring)
{
	/* liburing 2.3 declares io_uring_enable_rings() but exports it not. */
	if (syscall(__NR_io_uring_register, ring->ring_fd,
		    IORING_REGISTER_ENABLE_RINGS, NULL, 0))
		return -errno;
	io_uring_register_ring_fd(ring); /* saves a look-up; optional */
	return 0;
}
