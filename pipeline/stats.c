/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/stats.h"

#include <string.h>

#define KVS_NAME_(n, s) s,

const char *const kvs_cause_name[KVS_CAUSE_MAX] = { KVS_ROOM_CAUSES(
	KVS_NAME_) };
const char *const kvs_admit_result_name[KVS_ADMIT_MAX] = { KVS_ADMIT_RESULTS(
	KVS_NAME_) };
const char *const kvs_proto_error_name[KVS_PROTO_MAX] = { KVS_PROTOCOL_ERRORS(
	KVS_NAME_) };
const char *const kvs_ack_impossible_name[KVS_ACK_IMPOSSIBLE_MAX] = {
	KVS_ACK_IMPOSSIBLE(KVS_NAME_)
};
const char *const kvs_stray_name[KVS_STRAY_MAX] = { KVS_STRAYS(KVS_NAME_) };
const char *const kvs_offload_result_name[KVS_OFFLOAD_RESULT_MAX] = {
	KVS_OFFLOAD_RESULTS(KVS_NAME_)
};
const char *const kvs_recall_result_name[KVS_RECALL_RESULT_MAX] = {
	KVS_RECALL_RESULTS(KVS_NAME_)
};
const char *const kvs_retract_result_name[KVS_RETRACT_RESULT_MAX] = {
	KVS_RETRACT_RESULTS(KVS_NAME_)
};
const char *const kvs_auth_failure_name[KVS_AUTH_FAILURE_MAX] = {
	KVS_AUTH_FAILURES(KVS_NAME_)
};
const char *const kvs_auth_key_name[KVS_AUTH_KEYS_MAX] = { "first", "second" };

enum kvs_proto_error kvs_proto_error_of(const char *reason)
{
	for (unsigned int i = 0; i < KVS_PROTO_MAX; i++)
		if (!strcmp(reason, kvs_proto_error_name[i]))
			return (enum kvs_proto_error)i;
	return KVS_PROTO_VALUE;
}
