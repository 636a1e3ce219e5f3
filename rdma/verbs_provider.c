/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of each kernel driver: which kind of grant confines a writer
 * there, and which step proves that it is closed. "measured" means in this
 * project's virtual machine, with writes in flight; the others were read, not
 * run. A driver that is not listed gets the kind whose proof rests on least:
 * after ibv_dereg_mr() the kernel gives the pages back, so a driver whose
 * device still wrote to them would corrupt the kernel's own memory.
 */
#include "rdma/verbs_provider.h"

#include <string.h>

#include "lib/assert.h"

#define RXE_SETTLE (20 * KVS_NSEC_PER_MSEC)

const char *const kvs_verbs_grant_name[KVS_VERBS_GRANT_KINDS] = {
	[KVS_VERBS_GRANT_AUTO] = "auto",
	[KVS_VERBS_GRANT_WINDOW] = "window",
	[KVS_VERBS_GRANT_MR] = "mr",
	[KVS_VERBS_GRANT_QP] = "qp",
};

#define UNCONFINED \
	"A writer reaches the whole pool while any room of its is open"

static const struct kvs_verbs_provider providers[] = {
	{
		.driver = "rxe",
		.grant = KVS_VERBS_GRANT_MR,
		.settle = RXE_SETTLE,
		.why = "ibv_dereg_mr: it waits for the packet being placed "
		       "(rxe_dereg_mr, rxe_cleanup; measured)",
		.why_window = "the queue pair destroyed: LOCAL_INV completes "
			      "before the packet in hand is placed (measured); "
			      "and bounds are not enforced (rxe_resp.c "
			      "check_rkey): a writer reaches the whole pool",
		.why_qp = "the queue pair stopped, its requests back, 20 ms "
			  "later destroyed: nothing is placed by it any more "
			  "(rxe_qp_do_cleanup; measured). " UNCONFINED,
	},
	{
		.driver = "siw",
		.unusable = "iWARP needs rdma_cm, which is not used here",
		.why = "-",
	},
	{
		.driver = "mlx5_core",
		.grant = KVS_VERBS_GRANT_WINDOW,
		.invalidate_proof = true,
		.why = "ibv_dereg_mr: the key is revoked with all DMA fenced "
		       "(mlx5r_umr_revoke_mr) or destroyed (read, not run)",
		.why_window = "LOCAL_INV completed: the device fences the key, "
			      "as NFS and NVMe over RDMA rely on "
			      "(frwr_unmap_sync; read, not run)",
	},
	{
		.driver = "mlx4_core",
		.grant = KVS_VERBS_GRANT_WINDOW,
		.invalidate_proof = true,
		.why = "ibv_dereg_mr: the key is taken out of the device's "
		       "table before the pages go (read, not run)",
		.why_window = "LOCAL_INV completed: as NFS and NVMe over RDMA "
			      "rely on (frwr_unmap_sync; read, not run)",
	},
	{
		.driver = "ice", /* irdma sits on it */
		.grant = KVS_VERBS_GRANT_WINDOW,
		.invalidate_proof = true,
		.why = "ibv_dereg_mr: irdma deallocates the key by its "
		       "control queue first (read, not run)",
		.why_window = "LOCAL_INV completed: as NFS and NVMe over RDMA "
			      "rely on (frwr_unmap_sync; read, not run)",
	},
	{
		.driver = "i40e",
		.unusable = "iWARP needs rdma_cm, which is not used here",
		.why = "-",
	},
	{
		.driver = "ionic",
		.grant = KVS_VERBS_GRANT_WINDOW,
		.invalidate_proof = true,
		.why = "ibv_dereg_mr: the key is destroyed by an admin command "
		       "(read, not run)",
		.why_window = "LOCAL_INV completed: as NFS and NVMe over RDMA "
			      "rely on (frwr_unmap_sync; read, not run)",
	},
	{
		.driver = "bnxt_en",
		.grant = KVS_VERBS_GRANT_MR,
		.why = "ibv_dereg_mr: no windows in this driver's provider "
		       "(read, not run)",
	},
	{
		.driver = "hns3",
		.grant = KVS_VERBS_GRANT_MR,
		.why = "ibv_dereg_mr: local invalidation is disabled in the "
		       "driver (read, not run)",
	},
	{
		.driver = "mana",
		.grant = KVS_VERBS_GRANT_MR,
		.why = "ibv_dereg_mr: windows cannot be bound in this driver's "
		       "provider (read, not run)",
	},
	{
		.driver = "efa",
		.unusable = "no reliable connected queue pairs",
		.why = "-",
	},
	{
		.driver = "cxgb4",
		.unusable = "iWARP needs rdma_cm, which is not used here",
		.why = "-",
	},
};

#define WINDOW_UNPROVEN                                                        \
	"the queue pair destroyed: it is not known that LOCAL_INV is a proof " \
	"here"

#define QP_READ                                                              \
	"the queue pair destroyed: by the specification what comes for one " \
	"in the error state, or for none, is dropped (read, not run). " UNCONFINED

static const struct kvs_verbs_provider unknown = {
	.driver = "?",
	.grant = KVS_VERBS_GRANT_MR,
	.settle = RXE_SETTLE,
	.why = "ibv_dereg_mr: this driver is not known, so the step that rests "
	       "on least: the kernel frees the pages after it",
};

const char *kvs_verbs_provider_why(const struct kvs_verbs_provider *p,
				   enum kvs_verbs_grant_kind kind)
{
	if (kind == KVS_VERBS_GRANT_QP)
		return p->why_qp ? p->why_qp : QP_READ;
	if (kind != KVS_VERBS_GRANT_WINDOW)
		return p->why;
	return p->why_window ? p->why_window : WINDOW_UNPROVEN;
}

const struct kvs_verbs_provider *kvs_verbs_provider_find(const char *driver)
{
	size_t i;

	for (i = 0; i < KVS_ARRAY_SIZE(providers); i++)
		if (!strcmp(driver, providers[i].driver))
			return &providers[i];
	return &unknown;
}
