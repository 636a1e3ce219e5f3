/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/registration.h"

#include <stdio.h>
#include <string.h>

#include "lib/units.h"

#define SHOW_EVERY (5 * KVS_NSEC_PER_SEC)

static void sum(const struct kvs_registering *g, struct kvs_registration *ret)
{
	struct kvs_registration k;

	*ret = (struct kvs_registration){ .over = true };
	for (uint32_t i = 0; i < g->n; i++) {
		if (kvs_engine_registration(g->engine[i], g->kv[i].device, &k))
			continue;
		ret->total += k.total;
		ret->settled += k.settled;
		ret->pinned += k.pinned;
		ret->over = ret->over && k.over;
		if (!ret->err)
			ret->err = k.err;
	}
}

static void say(const struct kvs_registering *g,
		const struct kvs_registration *k, uint64_t now)
{
	char total[KVS_UNITS_BUF], pinned[KVS_UNITS_BUF];

	kvs_format_size(k->total, total);
	kvs_format_size(k->pinned, pinned);
	if (k->over)
		fprintf(stderr, "registered: %s of %s in %.1f s", pinned, total,
			(double)(now - g->from) / 1e9);
	else
		fprintf(stderr, "registering: %u %% of %s",
			(unsigned int)((double)k->settled * 100 /
				       (double)k->total),
			total);
	if (k->err)
		fprintf(stderr, "; what failed stays pageable: %s",
			strerror(k->err));
	fputc('\n', stderr);
}

static void look(struct kvs_registering *g, struct kvs_progress *p, bool due)
{
	uint64_t now = kvs_clock_now(&kvs_clock_real);
	struct kvs_registration k;

	if (g->over)
		return;
	sum(g, &k);
	g->pinned = k.pinned;
	g->over = k.over;
	if (!k.over && !due && now - g->shown < SHOW_EVERY)
		return;
	if (p)
		kvs_progress_clear(p);
	say(g, &k, now);
	g->shown = now;
}

int kvs_registering_begin(struct kvs_registering *g, struct kvs_engine **engine,
			  const struct kvs_kv *kv, uint32_t n)
{
	struct kvs_registration k;
	int r;

	*g = (struct kvs_registering){
		.engine = engine,
		.kv = kv,
		.n = n,
		.from = kvs_clock_now(&kvs_clock_real),
	};
	for (uint32_t i = 0; i < n; i++) {
		r = kvs_engine_register(engine[i], kv[i].device);
		if (r)
			return r;
	}
	sum(g, &k);
	g->pinned = k.pinned;
	g->over = !strcmp(kvs_device_name(kv[0].device), "soft");
	look(g, NULL, true);
	return 0;
}

void kvs_registering_turn(struct kvs_registering *g, struct kvs_progress *p)
{
	look(g, p, false);
}

void kvs_registering_end(struct kvs_registering *g)
{
	look(g, NULL, true);
}
