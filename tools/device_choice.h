/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: device choice
 *
 * The device that a tool's user names: "soft", "cuda", "cuda:N", or "auto",
 * the first GPU where there is one and soft where there is none.
 */
#ifndef KVS_TOOLS_DEVICE_CHOICE_H
#define KVS_TOOLS_DEVICE_CHOICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvstage/device.h"

/* All zero: soft. */
struct kvs_device_choice {
	bool automatic; /* until it is opened */
	bool cuda;
	int ordinal;
	char name[16]; /* "cuda:0"; of one that is open */
};

/* 0; -EINVAL. */
int kvs_device_choice_parse(const char *arg, struct kvs_device_choice *ret);

/**
 * kvs_device_choice_check() - could it be opened?
 * @c: choice; soft, and one that is left to us, always can
 * @err: message on failure, which names the option
 * @errlen: its size
 * Return: as kvs_device_open(). Nothing is left open, or said.
 */
int kvs_device_choice_check(const struct kvs_device_choice *c, char *err,
			    size_t errlen);

/**
 * kvs_device_choice_open() - open it; decide, where that is left to us
 * @c: choice; which it was is said on stderr, for a GPU with what it is
 * @o: how; backend and device are set here
 * @ret: device
 * @err: message on failure, which names the option unless we decided
 * @errlen: its size
 * Return: as kvs_device_open().
 */
int kvs_device_choice_open(struct kvs_device_choice *c,
			   struct kvs_device_opts *o, struct kvs_device **ret,
			   char *err, size_t errlen);

#endif /* KVS_TOOLS_DEVICE_CHOICE_H */
