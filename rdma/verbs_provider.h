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
 * @why: what that rests on; shown by kvstagectl topo
 */
struct kvs_verbs_provider {
	const char *driver;
	const char *unusable;
	enum kvs_verbs_grant_kind grant;
	bool invalidate_proof;
	uint64_t settle;
	const char *why;
};

/* Never NULL: one of its own for drivers that are not known. */
const struct kvs_verbs_provider *kvs_verbs_provider_find(const char *driver);

#endif /* KVS_RDMA_VERBS_PROVIDER_H */
