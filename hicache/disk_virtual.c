/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engine: in the owner's thread, under a clock that others move. A transfer
 * takes a time that the seed decides, and its bytes are read or written when
 * it ends, as late as a real one's might be. What is held does not end.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "hicache/disk_internal.h"
#include "lib/assert.h"
#include "lib/rng.h"

struct virt {
	const struct kvs_clock *clock;
	uint64_t latency;
	struct kvs_rng rng;
	struct kvs_list slots;
	bool held;
};

static int virt_init(struct kvs_disk *d, const struct kvs_disk_opts *o,
		     char *err, size_t errlen)
{
	struct virt *v = calloc(1, sizeof(*v));

	if (!v) {
		snprintf(err, errlen, "out of memory");
		return -ENOMEM;
	}
	v->clock = o->clock ? o->clock : &kvs_clock_real;
	v->latency = o->latency;
	kvs_rng_init(&v->rng, o->seed);
	kvs_list_init(&v->slots);
	d->engine = v;
	return 0;
}

static void virt_fini(struct kvs_disk *d)
{
	free(d->engine);
}

static void virt_submit(struct kvs_disk *d, struct kvs_disk_slot *s)
{
	struct virt *v = d->engine;

	s->due = kvs_clock_now(v->clock);
	if (v->latency)
		s->due += kvs_rng_below(&v->rng, v->latency + 1);
	kvs_list_add_tail(&v->slots, &s->node);
}

/* Any of those that are due. */
static struct kvs_disk_slot *pick(struct virt *v)
{
	uint64_t now = kvs_clock_now(v->clock), n = 0;
	struct kvs_disk_slot *s;

	if (v->held)
		return NULL;
	kvs_list_for_each_entry(s, &v->slots, node)
		n += s->due <= now;
	if (!n)
		return NULL;
	n = kvs_rng_below(&v->rng, n);
	kvs_list_for_each_entry(s, &v->slots, node) {
		if (s->due <= now && !n--)
			return s;
	}
	return NULL;
}

static void virt_turn(struct kvs_disk *d)
{
	struct virt *v = d->engine;
	struct kvs_disk_slot *s;
	unsigned int n = 0;

	while (n < d->depth && (s = pick(v))) {
		kvs_list_del(&s->node);
		kvs_disk_complete(d, s, kvs_disk_call(d->fs, s));
		n++;
	}
}

static int virt_fd(const struct kvs_disk *d)
{
	(void)d;
	return -1;
}

static uint64_t virt_due(const struct kvs_disk *d)
{
	const struct virt *v = d->engine;
	uint64_t due = KVS_TIME_NEVER;
	struct kvs_disk_slot *s;

	if (v->held)
		return KVS_TIME_NEVER;
	kvs_list_for_each_entry(s, &v->slots, node)
		due = s->due < due ? s->due : due;
	return due;
}

void kvs_disk_hold(struct kvs_disk *d, bool hold)
{
	struct virt *v = d->engine;

	KVS_ASSERT(d->ops == &kvs_disk_virtual);
	v->held = hold;
}

const struct kvs_disk_engine kvs_disk_virtual = {
	.name = "virtual",
	.init = virt_init,
	.fini = virt_fini,
	.submit = virt_submit,
	.turn = virt_turn,
	.fd = virt_fd,
	.due = virt_due,
};
