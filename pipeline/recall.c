/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of the cache that an engine has pinned, and copies to its device
 * without a room. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/log.h"
#include "lib/rule.h"
#include "pipeline/cache_internal.h"
#include "pipeline/layout.h"
#include "pipeline/retract_internal.h"
#include "pipeline/room_internal.h"
#include "pipeline/worker.h"

#define PIN_PERCENT 100u

static const char pin_share_used[] =
	"as much of the cache is in use as may be pinned (cache.pin_share)";

static void refuse(struct kvs_worker *w, const struct kvs_lookup_request *q,
		   int err, const char *text)
{
	w->stats.recalls[err == ENOENT	 ? KVS_RECALL_RESULT_NOTHING
			 : err == ENOSPC ? KVS_RECALL_RESULT_NOSPACE
					 : KVS_RECALL_RESULT_FAILED]++;
	kvs_log_debug("pin %llu refused: %s", (unsigned long long)q->id, text);
	kvs_worker_tell_failed(w, q->engine, q->slot, q->generation, err,
			       kvs_worker_retry(w, err, 0), text);
}

/* So much may be kept from rooms that want memory. */
static bool too_much(const struct kvs_worker *w)
{
	struct kvs_index_account a;

	kvs_index_account(w->cache.ix, &a);
	return a.tier[KVS_TIER_HOST].pinned >
	       kvs_pool_size(w->pool) / PIN_PERCENT * w->set->cache_pin_share;
}

void kvs_worker_pin(struct kvs_worker *w, const struct kvs_lookup_request *q)
{
	struct kvs_worker_engine *e = kvs_worker_engine_find(w, q->engine);
	const struct kvs_retract_request r = {
		.id = q->id,
		.generation = q->generation,
		.engine = q->engine,
		.slot = q->slot,
	};
	struct kvs_prefix *p;
	struct kvs_retraction *t;

	if (w->shutting_down) {
		refuse(w, q, ESHUTDOWN, "the daemon is going down");
		return;
	}
	if (!e->cache.on) {
		refuse(w, q, EOPNOTSUPP,
		       "nothing of this engine is cached: it named no space, "
		       "or the log says why");
		return;
	}
	p = kvs_prefix_pin(w, e, q->hashes, q->n_hashes);
	if (!p) {
		refuse(w, q, ENOENT, "nothing of it is cached");
		return;
	}
	if (too_much(w)) {
		kvs_cache_put(w, p);
		refuse(w, q, ENOSPC, pin_share_used);
		return;
	}
	if (kvs_retract_new(w, e, &r, &t)) {
		kvs_cache_put(w, p);
		refuse(w, q, ENOMEM, "out of memory");
		return;
	}
	t->state = KVS_RETRACT_VERIFYING;
	t->prefix = p;
	kvs_cache_check(w, p, t);
	kvs_worker_tell_cached(w, q, KVS_STATUS_SEALING, p->n);
}

static void pin_timeout(struct kvs_timer *tm)
{
	struct kvs_retraction *t =
		kvs_container_of(tm, struct kvs_retraction, limit);

	kvs_retract_fail(t, KVS_CAUSE_CLAIM_TIMEOUT, ETIME,
			 "it was not recalled within cache.pin_timeout");
}

static int tell_pinned(struct kvs_retraction *t)
{
	struct kvs_worker *w = t->w;
	size_t len = sizeof(struct kvs_packet_ready) +
		     t->prefix->n_segs * sizeof(struct kvs_packet_seg);
	struct kvs_packet_ready *p = calloc(1, len);

	if (!p)
		return -ENOMEM;
	p->h.magic = KVS_ATTACH_MAGIC;
	p->h.type = KVS_PACKET_READY;
	p->generation = t->generation;
	p->slot = t->slot;
	p->pool = w->o.pool_index;
	p->n_segs = t->prefix->n_segs;
	kvs_cache_segs(t->prefix, (struct kvs_packet_seg *)p->off);
	w->o.out->to_engine(w->o.arg, t->engine->number, t->slot,
			    KVS_WORD(t->generation, 0, KVS_STATUS_READY), &p->h,
			    len);
	free(p);
	return 0;
}

void kvs_pin_verified(struct kvs_retraction *t)
{
	struct kvs_worker *w = t->w;

	/* what came from disk was not in memory when it was asked for */
	if (too_much(w)) {
		kvs_retract_fail(t, KVS_CAUSE_INTERNAL, ENOSPC, "%s",
				 pin_share_used);
		return;
	}
	kvs_timer_init(&t->limit, pin_timeout);
	kvs_retract_move(t, KVS_RETRACT_PINNED);
	/* Whoever pins for ever would keep rooms from memory. */
	if (kvs_timer_set(&w->timers, &t->limit,
			  t->since + w->set->cache_pin_timeout) ||
	    tell_pinned(t)) {
		kvs_retract_fail(t, KVS_CAUSE_INTERNAL, ENOMEM,
				 "out of memory");
		return;
	}
	w->stats.recalls[KVS_RECALL_RESULT_PINNED]++;
}

int kvs_pin_fail(struct kvs_retraction *t, enum kvs_room_cause cause, int err,
		 const char *text)
{
	return kvs_retract_fail(t, cause, err, "%s", text);
}

void kvs_pin_recall(struct kvs_retraction *t)
{
	kvs_timer_cancel(&t->w->timers, &t->limit);
	kvs_retract_move(t, KVS_RETRACT_RESUMING);
	if (KVS_RULE(R13, RESUME))
		KVS_ASSERT(!kvs_drain_join(&t->drain, &t->copy));
	kvs_retract_tell(t);
}

void kvs_pin_recalled(struct kvs_retraction *t)
{
	struct kvs_worker *w = t->w;
	uint64_t page = 0;

	for (uint32_t b = 0; b < t->engine->layout->n_buffers; b++)
		page += t->engine->layout->buffers[b].item_len;
	w->stats.recalls[KVS_RECALL_RESULT_RECALLED]++;
	w->cache.stats.recalled_bytes +=
		page * t->prefix->n * t->engine->cache.block_pages;
}
