/* SPDX-License-Identifier: Apache-2.0 */
/* Devices that know our pools, or are told of them in the background. */
#include <errno.h>

#include "gpu/registrar.h"
#include "pipeline/engine_internal.h"

static struct kvs_registrar *registrar_of(const struct kvs_engine *e,
					  const struct kvs_device *d)
{
	for (uint32_t i = 0; i < e->n_devices; i++)
		if (e->devices[i].device == d)
			return e->devices[i].registrar;
	return NULL;
}

int kvs_eng_devices_know(struct kvs_engine *e, struct kvs_device *d)
{
	struct kvs_registrar_range v[KVS_ATTACH_POOLS_MAX];
	struct kvs_eng_device *new;
	int ret;

	if (registrar_of(e, d))
		return 0;
	if (e->n_devices == KVS_ENG_DEVICES_MAX)
		return -ENOSPC;
	for (uint32_t i = 0; i < e->n_pools; i++)
		v[i] = (struct kvs_registrar_range){
			.addr = e->pools[i].base,
			.len = e->pools[i].size,
			.read_only = !e->pools[i].writable,
		};
	new = &e->devices[e->n_devices];
	ret = kvs_registrar_start(d, v, e->n_pools, &new->registrar);
	if (ret)
		return ret;
	new->device = d;
	e->n_devices++;
	return 0;
}

int kvs_eng_devices_ready(const struct kvs_engine *e,
			  const struct kvs_eng_room *r)
{
	return kvs_registrar_ready(registrar_of(e, r->device), &r->copy);
}

void kvs_eng_devices_stop(struct kvs_engine *e)
{
	for (uint32_t i = 0; i < e->n_devices; i++)
		kvs_registrar_stop(e->devices[i].registrar);
}

void kvs_eng_devices_forget(struct kvs_engine *e, bool undo)
{
	/* all at once, so that we wait for the longest piece only */
	kvs_eng_devices_stop(e);
	while (e->n_devices)
		kvs_registrar_end(e->devices[--e->n_devices].registrar, undo);
}

int kvs_engine_register(struct kvs_engine *e, struct kvs_device *d)
{
	return d ? kvs_eng_devices_know(e, d) : -EINVAL;
}

int kvs_engine_registration(struct kvs_engine *e, struct kvs_device *d,
			    struct kvs_registration *ret)
{
	const struct kvs_registrar *g = registrar_of(e, d);
	struct kvs_registrar_state s;

	if (!g)
		return -ENOENT;
	kvs_registrar_state(g, &s);
	*ret = (struct kvs_registration){
		.total = s.total,
		.settled = s.settled,
		.pinned = s.pinned,
		.err = s.err < -4095 ? EIO : -s.err,
		.over = s.over,
	};
	return 0;
}
