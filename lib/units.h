/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: units
 *
 * Sizes and durations as people write them. Sizes: K M G T (or Ki.. KiB..)
 * are powers of 1024, kB KB MB GB TB powers of 1000, bare numbers bytes.
 * Durations: ns us ms s m h; a bare number is refused except 0.
 */
#ifndef KVS_LIB_UNITS_H
#define KVS_LIB_UNITS_H

#include <stddef.h>
#include <stdint.h>

/**
 * kvs_parse_size() - "8G" -> bytes
 * Return: 0; -EINVAL when not of the form (signs, spaces inside, trailing
 * letters, empty); -ERANGE when it does not fit 64 bits. @ret_bytes is
 * written only on success.
 */
int kvs_parse_size(const char *s, uint64_t *ret_bytes);
/* "30s" -> ns; same returns. */
int kvs_parse_duration(const char *s, uint64_t *ret_ns);
/* Unsigned decimal or 0x hex, nothing else; same returns. */
int kvs_parse_u64(const char *s, uint64_t *ret);

#define KVS_UNITS_BUF 32
/* "4.0 GiB"; returns buf (at least KVS_UNITS_BUF bytes). */
const char *kvs_format_size(uint64_t bytes, char *buf);
/* "1.25 s", "830 us"; returns buf. */
const char *kvs_format_duration(uint64_t ns, char *buf);

#endif /* KVS_LIB_UNITS_H */
