/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pipeline/service.h"
#include "tools/ttft/ttft_real.h"

#define LOOK_EVERY 20000000 /* ns */
#define DEVICE_POOLS 2 /* as many bytes as so many devices */

static int real_settings(const struct ttft_opts *o, const struct ttft_run *r,
			 const struct ttft_shared *sh, enum ttft_rx rx,
			 struct kvs_settings *s, char *why, size_t len)
{
	char pool[32], path[128];
	const char *const more[][2] = {
		{ "listen.address", "127.0.0.1:0" },
		{ "pool.page_size", "4K" },
		{ "pool.strict", "no" },
		/* ranks of TCP are parties too, as those of RDMA are */
		{ "hold.require_ack", "yes" },
		/* nobody checks, and the pool is scaled down */
		{ "admission.health_reserve", "0" },
		{ "pool.size", pool },
		{ "engine.socket", path },
	};
	int ret = ttft_settings(o, s, why, len);

	snprintf(pool, sizeof(pool), "%llu",
		 (unsigned long long)(rx == TTFT_HOST
					      ? r->host_pool
					      : ttft_device_pool(
							o, DEVICE_POOLS)));
	snprintf(path, sizeof(path), "%s/engine-%d", sh->dir, (int)rx);
	for (size_t i = 0; i < sizeof(more) / sizeof(more[0]) && !ret; i++)
		ret = kvs_settings_set(s, more[i][0], more[i][1], why, len);
	return ret ? ret : kvs_settings_check(s, why, len);
}

static void look(struct kvs_service *svc, struct kvs_snapshot *s,
		 struct ttft_real_daemon *d)
{
	uint64_t held = 0, used = 0;

	kvs_service_snapshot(svc, s);
	d->high_water = 0;
	d->received = 0;
	d->late = 0;
	memset(d->drains, 0, sizeof(d->drains));
	for (unsigned int i = 0; i < s->n_workers; i++) {
		const struct kvs_worker_snapshot *w = &s->workers[i];
		const struct kvs_pool_account *a = &w->pools[0].account;

		held += a->bytes[KVS_EXTENT_HELD] +
			a->bytes[KVS_EXTENT_QUARANTINED];
		used += a->configured - a->bytes[KVS_EXTENT_FREE];
		d->high_water += a->high_water;
		d->received += w->stats.received_bytes;
		d->late += w->stats.late_bytes;
		for (int o = 0; o < KVS_DRAIN_OUTCOME_MAX; o++)
			for (int p = 0; p < KVS_PROOF_MAX; p++)
				d->drains[o][p] += w->stats.drains.total[o][p];
	}
	atomic_store(&d->held, held);
	atomic_store(&d->used, used);
}

static int serve(const struct kvs_settings *set, struct ttft_shared *sh,
		 struct ttft_real_daemon *d)
{
	const struct timespec nap = { .tv_nsec = LOOK_EVERY };
	struct kvs_snapshot *snap = calloc(1, sizeof(*snap));
	struct kvs_topology *topo = NULL;
	struct kvs_service *svc = NULL;
	int r = snap ? kvs_topology_load(NULL, &topo) : -ENOMEM;

	if (!r)
		r = kvs_service_create(set, topo, NULL, NULL, &svc, d->why,
				       sizeof(d->why));
	if (!r) {
		d->port = kvs_service_port(svc);
		atomic_store(&d->state, 1);
		while (!atomic_load(&sh->quit)) {
			look(svc, snap, d);
			(void)nanosleep(&nap, NULL);
		}
		look(svc, snap, d);
	}
	kvs_service_destroy(svc);
	kvs_topology_destroy(topo);
	free(snap);
	return r;
}

int ttft_real_daemon(const struct ttft_opts *o, const struct ttft_run *r,
		     struct ttft_shared *sh, enum ttft_rx rx)
{
	struct ttft_real_daemon *d = &sh->daemon[rx];
	struct kvs_settings set;
	int ret;

	ret = real_settings(o, r, sh, rx, &set, d->why, sizeof(d->why));
	if (!ret)
		ret = serve(&set, sh, d);
	if (ret)
		atomic_store(&d->state, ret);
	return ret ? EXIT_FAILURE : EXIT_SUCCESS;
}
