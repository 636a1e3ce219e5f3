/* SPDX-License-Identifier: Apache-2.0 */
/* How a room comes to its memory, and loses it again before anybody knew of
 * it: WAITING and ADMITTED. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/assert.h"
#include "lib/log.h"
#include "pipeline/room_internal.h"
#include "pipeline/worker.h"

int kvs_room_wait_try(struct kvs_wait *wt)
{
	struct kvs_room *r = kvs_container_of(wt, struct kvs_room, wait);

	return kvs_room_take_memory(r);
}

uint64_t kvs_room_need(const struct kvs_geometry *g)
{
	return (g->n_extents - 1) * kvs_pool_round(g->full_len) +
	       kvs_pool_round(g->last_len);
}

int kvs_room_check_fit(struct kvs_worker *w, const struct kvs_geometry *g,
		       char *err, size_t errlen)
{
	bool quarantine = false;
	uint64_t *lens;
	int ret;

	ret = kvs_geometry_lens(g, &lens);
	if (ret)
		return ret;
	ret = kvs_pool_can_fit(w->pool, lens, g->n_extents, &quarantine);
	free(lens);
	if (!ret)
		return 0;
	snprintf(err, errlen,
		 "%llu tokens need %llu bytes of host memory, pool.size is "
		 "%llu%s",
		 (unsigned long long)g->tokens,
		 (unsigned long long)kvs_geometry_total(g),
		 (unsigned long long)kvs_pool_size(w->pool),
		 quarantine ? " and quarantined bytes are in the way" : "");
	return ret;
}

/* Until then some rank must have opened it. */
static void room_deadline_open(struct kvs_room *r)
{
	uint64_t now = kvs_clock_now(r->w->clock);
	uint64_t at = r->memory_at + r->w->set->open_timeout;

	kvs_room_deadline(r, at > now ? at - now : 0);
}

int kvs_room_take_memory(struct kvs_room *r)
{
	struct kvs_worker *w = r->w;
	uint64_t *lens;
	int ret;

	KVS_ASSERT(r->state == KVS_ROOM_WAITING);
	ret = kvs_geometry_lens(&r->geo, &lens);
	if (ret)
		return -EAGAIN;
	ret = kvs_admission_alloc(r, lens);
	free(lens);
	if (ret == -EAGAIN || ret == -ENOMEM)
		return -EAGAIN;
	/* A queued room leaves the queue before anything else may happen. */
	kvs_admission_cancel(r);
	if (ret) {
		kvs_room_fail(r, KVS_CAUSE_INTERNAL, -ret,
			      "host memory cannot be had any more");
		return ret;
	}
	kvs_hist_record(&w->stats.admit_wait,
			kvs_clock_now(w->clock) - r->wait_at);
	kvs_room_log_admitted(r);
	kvs_room_move(r, KVS_ROOM_ADMITTED);
	kvs_admission_lend(r);
	if (!r->memory_at || r->opened)
		r->memory_at = r->since;
	room_deadline_open(r);
	kvs_room_tell_status(r);
	for (uint32_t i = 0; i < r->n_ranks && r->state < KVS_ROOM_SEALING; i++)
		if (r->ranks[i].session)
			kvs_room_grant(r, &r->ranks[i]);
	return 0;
}

void kvs_room_queue(struct kvs_room *r)
{
	kvs_admission_queue(r);
	kvs_room_deadline(r, r->w->set->admission_timeout);
	kvs_room_tell_status(r);
}

void kvs_room_take_back(struct kvs_room *r)
{
	struct kvs_worker *w = r->w;

	KVS_ASSERT(r->state == KVS_ROOM_ADMITTED && !r->opened);
	kvs_log_debug("room %llu gen %llu: nobody has opened it, its %llu "
		      "bytes go to one that is being sent",
		      (unsigned long long)r->id,
		      (unsigned long long)r->generation,
		      (unsigned long long)r->ext.bytes);
	w->stats.loans_called++;
	kvs_admission_take(r);
	/* The deadline stays that of ADMITTED, and so does the word: what an
	 * engine was told only grows. */
	kvs_room_move(r, KVS_ROOM_WAITING);
	r->wait_at = r->since;
	kvs_admission_queue(r);
	w->released = true; /* what is left over of it */
}

void kvs_room_opened(struct kvs_room *r)
{
	bool had = r->memory_at;

	if (r->opened)
		return;
	kvs_admission_cancel(r);
	r->opened = true;
	r->w->released = true; /* those behind it may move up */
	if (kvs_admission_may_pass(r) && kvs_room_take_memory(r) != -EAGAIN) {
		if (r->state != KVS_ROOM_DRAINING)
			kvs_admission_passed(r);
		return;
	}
	kvs_admission_queue(r);
	if (!had)
		return; /* it goes on waiting as before */
	r->wait_at = kvs_clock_now(r->w->clock);
	kvs_room_deadline(r, r->w->set->admission_timeout);
}
