/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/ttft/ttft_crash.h"

#include <errno.h>
#include <stdlib.h>

static uint64_t planned_at(const struct ttft_crashes *c, size_t i)
{
	return c->start + c->p->crash[i].at;
}

static void come_back(struct ttft_crashes *c, uint64_t now)
{
	for (uint32_t i = 0; i < c->o->s.prefills; i++) {
		if (!c->back_at[i] || c->back_at[i] > now)
			continue;
		c->back_at[i] = 0;
		if (!c->err)
			c->err = c->up(c->arg, i);
	}
}

static void die(struct ttft_crashes *c, uint64_t now)
{
	uint64_t down = (uint64_t)((double)TTFT_CRASH_DOWN / c->o->scale);

	while (c->next < c->p->n_crashes && planned_at(c, c->next) <= now) {
		uint32_t i = c->p->crash[c->next++].prefill;

		if (c->back_at[i])
			continue;
		c->down(c->arg, i);
		c->back_at[i] = now + down;
	}
}

static void due(struct kvs_timer *t)
{
	struct ttft_crashes *c = kvs_container_of(t, struct ttft_crashes, t);
	uint64_t now = kvs_clock_now(c->clock), next = KVS_TIME_NEVER;

	come_back(c, now);
	die(c, now);
	if (c->next < c->p->n_crashes)
		next = planned_at(c, c->next);
	for (uint32_t i = 0; i < c->o->s.prefills; i++)
		if (c->back_at[i] && c->back_at[i] < next)
			next = c->back_at[i];
	if (next != KVS_TIME_NEVER)
		(void)kvs_timer_set(c->timers, t, next);
}

int ttft_crashes_begin(struct ttft_crashes *c)
{
	kvs_timer_init(&c->t, due);
	c->back_at = calloc(c->o->s.prefills, sizeof(*c->back_at));
	if (!c->back_at)
		return -ENOMEM;
	if (c->p->n_crashes)
		(void)kvs_timer_set(c->timers, &c->t, planned_at(c, 0));
	return 0;
}

void ttft_crashes_end(struct ttft_crashes *c)
{
	if (c->back_at)
		kvs_timer_cancel(c->timers, &c->t);
	free(c->back_at);
	c->back_at = NULL;
}
