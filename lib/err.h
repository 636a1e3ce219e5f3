/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: errors
 *
 * One convention everywhere, the public API included: int, 0 or a count on
 * success, -errno on failure. include/kvstage/errors.h is the list of values
 * a caller may branch on.
 */
#ifndef KVS_LIB_ERR_H
#define KVS_LIB_ERR_H

/**
 * kvs_err_name() - symbolic name of an errno value
 * @err: errno value, either sign
 *
 * Context: any thread, does not block, async-signal safe.
 * Return: static string such as "ENOENT"; "OK" for 0; "E?" when unknown.
 */
const char *kvs_err_name(int err);

#endif /* KVS_LIB_ERR_H */
