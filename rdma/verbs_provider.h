/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: verbs_provider
 *
 * What is known of a kind of verbs device: a table, the same on every machine.
 */
#ifndef KVS_RDMA_VERBS_PROVIDER_H
#define KVS_RDMA_VERBS_PROVIDER_H

#include "rdma/verbs.h"

/**
 * struct kvs_verbs_provider - one kernel driver
 * @driver: of the device's parent in sysfs; "rxe" is found otherwise
 * @unusable: why not at all; NULL: it is
 * @grant: kind taken for "auto"
 * @invalidate_proof: is a completed LOCAL_INV a proof
 * @settle: ns to wait in ERR before a queue pair is destroyed
 * @why: what proves that a registration is closed, and why so
 * @why_window: what proves it of a window; NULL: nothing is known
 * @why_qp: what proves it where it is a queue pair; NULL: as the specification
 *          has it
 */
struct kvs_verbs_provider {
	const char *driver;
	const char *unusable;
	enum kvs_verbs_grant_kind grant;
	bool invalidate_proof;
	uint64_t settle;
	const char *why;
	const char *why_window;
	const char *why_qp;
};

/* Never NULL: one of its own for drivers that are not known. */
const struct kvs_verbs_provider *kvs_verbs_provider_find(const char *driver);
/* Text for kvstagectl topo: what proves that a grant of that kind is closed. */
const char *kvs_verbs_provider_why(const struct kvs_verbs_provider *p,
				   enum kvs_verbs_grant_kind kind);

#endif /* KVS_RDMA_VERBS_PROVIDER_H */
