/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: sysfs
 *
 * Small readers of the text files the kernel shows under /proc and /sys.
 * Every path is taken below a root prefix, so that tests hand in a recorded
 * or hand-made tree. The prefix of the running machine is "".
 */
#ifndef KVS_PINNED_SYSFS_H
#define KVS_PINNED_SYSFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* NUMA node numbers are below this (the kernel's largest NODES_SHIFT). */
#define KVS_MAX_NODES 1024
#define KVS_MASK_WORDS(bits) (((bits) + 63) / 64)

static inline bool kvs_mask_test(const uint64_t *mask, unsigned int bit)
{
	return mask[bit / 64] >> (bit % 64) & 1;
}

static inline void kvs_mask_set(uint64_t *mask, unsigned int bit)
{
	mask[bit / 64] |= 1ULL << (bit % 64);
}

/**
 * kvs_sysfs_read() - a whole small file as a string
 * @root: prefix, "" for this machine
 * @path: absolute path below it
 * @ret_buf: receives the text, always terminated; owned by the caller, who
 *	frees it
 *
 * Context: any thread, may block on the file.
 * Return: 0; -ENOENT and what else open and read give; -EFBIG above 4 MiB;
 * -ENAMETOOLONG; -ENOMEM.
 */
int kvs_sysfs_read(const char *root, const char *path, char **ret_buf);

/**
 * kvs_sysfs_u64() - a file that holds one decimal number
 * @root: prefix
 * @path: absolute path below it
 * @ret: the number; "max" reads as UINT64_MAX, a negative one is refused
 *
 * Return: 0; as kvs_sysfs_read(); -EINVAL when it is not a number.
 */
int kvs_sysfs_u64(const char *root, const char *path, uint64_t *ret);

/* The same for a file with a signed number (numa_node says -1). */
int kvs_sysfs_int(const char *root, const char *path, int *ret);

/**
 * kvs_sysfs_field() - the number after a key at the start of a line
 * @text: text such as /proc/meminfo or memory.stat
 * @key: the key with its separator, for example "MemAvailable:"
 * @ret: the number as written (no unit applied)
 *
 * A key matches at the start of a line after optional blanks only.
 * Return: 0; -ENOENT; -EINVAL when no number follows.
 */
int kvs_sysfs_field(const char *text, const char *key, uint64_t *ret);

/* As above, but the position of the value in @text, NULL when not there. */
const char *kvs_sysfs_value(const char *text, const char *key);

/**
 * kvs_sysfs_list() - "0-3,8" into a bit mask
 * @text: list; ends at a newline or the end of the string
 * @mask: @bits bits, cleared first
 * @bits: numbers at or above are left out
 *
 * Return: 0 (an empty list is fine); -EINVAL.
 */
int kvs_sysfs_list(const char *text, uint64_t *mask, unsigned int bits);

/**
 * kvs_sysfs_list_print() - the reverse, for messages
 * @mask: mask of @bits bits
 * @bits: size of @mask
 * @buf: receives the list, cut when it does not fit; "none" when empty
 * @len: size of @buf in bytes, at least 8
 *
 * Return: @buf.
 */
const char *kvs_sysfs_list_print(const uint64_t *mask, unsigned int bits,
				 char *buf, size_t len);

#endif /* KVS_PINNED_SYSFS_H */
