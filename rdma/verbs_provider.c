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
};

static const struct kvs_verbs_provider providers[] = {
	{
		.driver = "rxe",
		.grant = KVS_VERBS_GRANT_MR,
		.settle = RXE_SETTLE,
		.why = "ibv_dereg_mr: it waits for the packet being placed "
		       "(rxe_dereg_mr, rxe_cleanup; measured). Windows: "
		       "bounds are not enforced (rxe_resp.c check_rkey), and "
		       "LOCAL_INV completes before that packet is placed",
	},
	{
		.driver = "siw",
		.unusable = "iWARP needs rdma_cm, which is not used here",
		.why = "-",
	},
	{
		.driver = "mlx5_core",
		.grant = KVS_VERBS_GRANT_MR,
		.invalidate_proof = true,
		.why = "ibv_dereg_mr: the key is revoked with all DMA fenced "
		       "(mlx5r_umr_revoke_mr) or destroyed (read, not run)",
	},
	{
		.driver = "mlx4_core",
		.grant = KVS_VERBS_GRANT_MR,
		.invalidate_proof = true,
		.why = "ibv_dereg_mr: the key is taken out of the device's "
		       "table before the pages go (read, not run)",
	},
	{
		.driver = "ice", /* irdma sits on it */
		.grant = KVS_VERBS_GRANT_MR,
		.invalidate_proof = true,
		.why = "ibv_dereg_mr: irdma deallocates the key by its "
		       "control queue first (read, not run)",
	},
	{
		.driver = "i40e",
		.unusable = "iWARP needs rdma_cm, which is not used here",
		.why = "-",
	},
	{
		.driver = "ionic",
		.grant = KVS_VERBS_GRANT_MR,
		.invalidate_proof = true,
		.why = "ibv_dereg_mr: the key is destroyed by an admin command "
		       "(read, not run)",
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

static const struct kvs_verbs_provider unknown = {
	.driver = "?",
	.grant = KVS_VERBS_GRANT_MR,
	.settle = RXE_SETTLE,
	.why = "ibv_dereg_mr: this driver is not known, so the step that rests "
	       "on least: the kernel frees the pages after it",
};

const struct kvs_verbs_provider *kvs_verbs_provider_find(const char *driver)
{
	size_t i;

	for (i = 0; i < KVS_ARRAY_SIZE(providers); i++)
		if (!strcmp(driver, providers[i].driver))
			return &providers[i];
	return &unknown;
}
