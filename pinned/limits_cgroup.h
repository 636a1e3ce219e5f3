/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: limits of control groups
 *
 * Finds our groups of one controller (v1, v2 or both on a hybrid machine, in
 * a container with or without a cgroup namespace) and the tightest limit from
 * our group up to the top of the mount.
 */
#ifndef KVS_PINNED_LIMITS_CGROUP_H
#define KVS_PINNED_LIMITS_CGROUP_H

#include "pinned/limits.h"

/**
 * kvs_limits_cgroup_memory() - the memory controller
 * @root: prefix
 * @ret: filled; @ret->path is owned by the caller
 * @ret_hugetlb: huge pages are charged here too
 *
 * Return: 0, also when there is no such controller; -ENOMEM.
 */
int kvs_limits_cgroup_memory(const char *root, struct kvs_limits_cgroup *ret,
			     bool *ret_hugetlb);

/**
 * kvs_limits_cgroup_hugetlb() - the hugetlb controller, one page size
 * @root: prefix
 * @size: "2MB" or "1GB"
 * @ret: filled; @ret->path is owned by the caller
 *
 * Return: 0, also when there is no such controller; -ENOMEM.
 */
int kvs_limits_cgroup_hugetlb(const char *root, const char *size,
			      struct kvs_limits_cgroup *ret);

#endif /* KVS_PINNED_LIMITS_CGROUP_H */
