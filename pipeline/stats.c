/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/stats.h"

#define KVS_NAME_(n, s) s,

const char *const kvs_cause_name[KVS_CAUSE_MAX] = { KVS_ROOM_CAUSES(
	KVS_NAME_) };
const char *const kvs_admit_result_name[KVS_ADMIT_MAX] = { KVS_ADMIT_RESULTS(
	KVS_NAME_) };
const char *const kvs_proto_error_name[KVS_PROTO_MAX] = { KVS_PROTOCOL_ERRORS(
	KVS_NAME_) };
