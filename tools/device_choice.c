/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/device_choice.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "gpu/device.h"
#include "lib/units.h"

#define ORDINAL_MAX 1023

int kvs_device_choice_parse(const char *arg, struct kvs_device_choice *ret)
{
	uint64_t n = 0;

	*ret = (struct kvs_device_choice){ 0 };
	if (!strcmp(arg, "soft"))
		return 0;
	if (!strcmp(arg, "auto")) {
		ret->automatic = true;
		return 0;
	}
	if (!strncmp(arg, "cuda:", 5)) {
		if (kvs_parse_u64(arg + 5, &n) || n > ORDINAL_MAX)
			return -EINVAL;
	} else if (strcmp(arg, "cuda") != 0) {
		return -EINVAL;
	}
	ret->cuda = true;
	ret->ordinal = (int)n;
	return 0;
}

static void say(const struct kvs_device_choice *c, struct kvs_device *d)
{
	struct kvs_device_info info;

	kvs_device_info(d, &info);
	if (info.driver)
		fprintf(stderr,
			"%s: %s at %s, node %d, driver %d.%d, kernels by %s\n",
			c->name, info.name, info.bus, info.numa_node,
			info.driver / 1000, info.driver % 1000 / 10,
			info.kernels);
}

static int open_it(struct kvs_device_choice *c, struct kvs_device_opts *o,
		   struct kvs_device **ret, char *err, size_t errlen)
{
	int r;

	o->backend = c->cuda ? "cuda" : "soft";
	o->device = c->ordinal;
	r = kvs_device_open(o, ret, err, errlen);
	if (r)
		return r;
	if (c->cuda)
		snprintf(c->name, sizeof(c->name), "cuda:%d", c->ordinal);
	else
		snprintf(c->name, sizeof(c->name), "soft");
	say(c, *ret);
	return 0;
}

/* Before @err, as the user said it. */
static void name_option(const struct kvs_device_choice *c, char *err,
			size_t errlen)
{
	char why[256], name[16] = "soft";

	snprintf(why, sizeof(why), "%s", err);
	if (c->cuda)
		snprintf(name, sizeof(name), "cuda:%d", c->ordinal);
	snprintf(err, errlen, "--device %s: %s", name, why);
}

int kvs_device_choice_check(const struct kvs_device_choice *c, char *err,
			    size_t errlen)
{
	struct kvs_device_opts o = { .size = sizeof(o),
				     .backend = "cuda",
				     .device = c->ordinal };
	struct kvs_device *d = NULL;
	int r;

	if (!c->cuda)
		return 0;
	r = kvs_device_open(&o, &d, err, errlen);
	if (r)
		name_option(c, err, errlen);
	kvs_device_close(d);
	return r;
}

int kvs_device_choice_open(struct kvs_device_choice *c,
			   struct kvs_device_opts *o, struct kvs_device **ret,
			   char *err, size_t errlen)
{
	int r;

	if (!c->automatic) {
		r = open_it(c, o, ret, err, errlen);
		if (r)
			name_option(c, err, errlen);
		return r;
	}
	c->automatic = false;
	c->cuda = true;
	r = open_it(c, o, ret, err, errlen);
	if (r != -EOPNOTSUPP)
		return r;
	fprintf(stderr, "device: soft, as there is no GPU (%s)\n", err);
	c->cuda = false;
	return open_it(c, o, ret, err, errlen);
}
