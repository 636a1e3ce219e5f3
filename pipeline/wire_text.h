/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: wire text
 *
 * What a name or a message from the other side may look like. It ends up in
 * logs, terminals and metric labels, so control characters and broken UTF-8
 * stop here.
 */
#ifndef KVS_PIPELINE_WIRE_TEXT_H
#define KVS_PIPELINE_WIRE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/**
 * kvs_wire_text_ok() - may this field be accepted?
 * @s: field, @size bytes
 * @size: bytes
 *
 * True when a NUL lies within @size, everything before it is UTF-8 without
 * control characters (C0, DEL, C1), and everything after it is zero.
 */
bool kvs_wire_text_ok(const char *s, size_t size);

/**
 * kvs_wire_text_put() - write a message field that kvs_wire_text_ok() accepts
 * @dst: field, @size bytes, fully written
 * @size: bytes, at least 1
 * @src: NUL-terminated text; each byte that must not be sent becomes '?', and
 *       what does not fit is cut between two characters
 */
void kvs_wire_text_put(char *dst, size_t size, const char *src);

#endif /* KVS_PIPELINE_WIRE_TEXT_H */
