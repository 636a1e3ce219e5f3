/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: uring
 *
 * Making an io_uring: whether one can be had here at all, and with the best
 * set of flags that this kernel knows. The ring is made disabled and enabled
 * by the thread that will use it, so that this one is its single issuer,
 * whoever created it.
 */
#ifndef KVS_RDMA_URING_H
#define KVS_RDMA_URING_H

#include <stddef.h>

struct io_uring;

/**
 * kvs_uring_trial() - try one operation through a ring of its own
 * @ops: IORING_OP_ that must be there
 * @n: how many
 * @instead: what to say works without, for the message
 * @err: why not, on failure
 * @errlen: bytes of @err
 *
 * Being able to set a ring up proves little: seccomp filters may let some of
 * the calls through.
 * Return: 0; -EOPNOTSUPP forbidden or not there; -ENOMEM, -EMFILE.
 */
int kvs_uring_trial(const int *ops, size_t n, const char *instead, char *err,
		    size_t errlen);

/* The message of a refused call, and what to return for it. liburing answers
 * -errno and leaves errno alone. */
int kvs_uring_refuse(const char *call, int rc, const char *instead, char *err,
		     size_t errlen);

/**
 * kvs_uring_init() - make a ring, disabled
 * @ring: caller's memory
 * @entries: of the submission queue
 * @cq_entries: of the completion queue
 * Return: 0 or -errno.
 */
int kvs_uring_init(struct io_uring *ring, unsigned int entries,
		   unsigned int cq_entries);

/* Context: the thread that will submit and reap. Return: 0 or -errno. */
int kvs_uring_enable(struct io_uring *ring);

#endif /* KVS_RDMA_URING_H */
