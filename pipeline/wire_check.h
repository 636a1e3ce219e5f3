/* SPDX-License-Identifier: Apache-2.0 */
/**
 * DOC: values in messages
 *
 * What a message may say, the same for one that was received and one that is
 * to be sent. Whether its bytes are well formed is the decoder's affair.
 */
#ifndef KVS_PIPELINE_WIRE_CHECK_H
#define KVS_PIPELINE_WIRE_CHECK_H

struct kvs_msg;

/* Why not; the texts are label values of a metric and must not change. */
extern const char kvs_wire_bad_type[];
extern const char kvs_wire_bad_count[];
extern const char kvs_wire_bad_text[];
extern const char kvs_wire_bad_value[];

/**
 * kvs_wire_check() - may a message say this?
 * @m: message
 *
 * Context: any thread; does not block.
 * Return: NULL; otherwise one of the reasons above.
 */
const char *kvs_wire_check(const struct kvs_msg *m);

#endif
