/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/retract.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/log.h"
#include "lib/rule.h"
#include "pipeline/retract_internal.h"
#include "pipeline/room_internal.h"
#include "pipeline/worker.h"

#define KVS_NAME_(n, s) s,
const char *const kvs_retract_state_name[KVS_RETRACT_STATE_MAX] = {
	KVS_RETRACT_STATES(KVS_NAME_)
};
#undef KVS_NAME_

#define TO(s) (1u << KVS_RETRACT_##s)
static const unsigned int edges[] = {
	[KVS_RETRACT_LEAVING] = TO(SUMMING) | TO(KEEPING) | TO(DRAINING),
	[KVS_RETRACT_SUMMING] = TO(RETRACTED) | TO(DRAINING),
	[KVS_RETRACT_KEEPING] = TO(DONE) | TO(DRAINING),
	[KVS_RETRACT_VERIFYING] = TO(PINNED) | TO(DRAINING),
	[KVS_RETRACT_RETRACTED] = TO(CHECKING) | TO(DRAINING),
	[KVS_RETRACT_CHECKING] = TO(RESUMING) | TO(DRAINING),
	[KVS_RETRACT_PINNED] = TO(RESUMING) | TO(DRAINING),
	[KVS_RETRACT_RESUMING] = TO(DONE) | TO(DRAINING),
	[KVS_RETRACT_DONE] = TO(FREE),
	[KVS_RETRACT_DRAINING] = TO(QUARANTINED) | TO(FREE),
	[KVS_RETRACT_QUARANTINED] = TO(FREE),
	[KVS_RETRACT_FREE] = 0,
};
static_assert(KVS_ARRAY_SIZE(edges) == KVS_RETRACT_STATE_MAX,
	      "every state has its edges");

/* What the engine sees. */
static const enum kvs_status status[] = {
	[KVS_RETRACT_LEAVING] = KVS_STATUS_ADMITTED,
	[KVS_RETRACT_SUMMING] = KVS_STATUS_SEALING,
	[KVS_RETRACT_KEEPING] = KVS_STATUS_SEALING,
	[KVS_RETRACT_VERIFYING] = KVS_STATUS_SEALING,
	[KVS_RETRACT_RETRACTED] = KVS_STATUS_READY,
	[KVS_RETRACT_CHECKING] = KVS_STATUS_READY,
	[KVS_RETRACT_PINNED] = KVS_STATUS_READY,
	[KVS_RETRACT_RESUMING] = KVS_STATUS_COMMITTING,
	[KVS_RETRACT_DONE] = KVS_STATUS_DONE,
	[KVS_RETRACT_DRAINING] = KVS_STATUS_FAILED,
	[KVS_RETRACT_QUARANTINED] = KVS_STATUS_FAILED,
	[KVS_RETRACT_FREE] = KVS_STATUS_FAILED,
};
static_assert(KVS_ARRAY_SIZE(status) == KVS_RETRACT_STATE_MAX,
	      "every state has a status");

/* The one place where a state changes. */
void kvs_retract_move(struct kvs_retraction *t, enum kvs_retract_state to)
{
	KVS_ASSERT(edges[t->state] & (1u << to));
	t->state = to;
	t->since = kvs_clock_now(t->w->clock);
}

void kvs_retract_tell(struct kvs_retraction *t)
{
	if (t->engine->gone)
		return;
	t->w->o.out->to_engine(t->w->o.arg, t->engine->number, t->slot,
			       KVS_WORD(t->generation, 0, status[t->state]),
			       NULL, 0);
}

/* ---- drain ------------------------------------------------------------ */

static struct kvs_retraction *of_drain(struct kvs_drain *d)
{
	return kvs_container_of(d, struct kvs_retraction, drain);
}

static void drain_over(struct kvs_drain *d)
{
	struct kvs_retraction *t = of_drain(d);
	struct kvs_worker *w = t->w;

	if (t->failed && !d->abandoned)
		kvs_hist_record(&w->stats.drain_seconds,
				d->over_at - d->armed_at);
	kvs_log_debug("retraction %llu gen %llu: %llu bytes %s",
		      (unsigned long long)t->id,
		      (unsigned long long)t->generation,
		      (unsigned long long)t->ext.bytes,
		      d->abandoned ? "abandoned" : "released");
	if (t->keep)
		w->retracts.kept_bytes -= t->ext.bytes;
	kvs_pool_release(&t->ext, d);
	/* What it has of the cache may go for those that wait. */
	w->released |= t->prefix != NULL;
	kvs_cache_put(w, t->prefix);
	t->prefix = NULL;
	kvs_retract_move(t, KVS_RETRACT_FREE);
	kvs_list_add_tail(&w->retracts.dead, &t->dead_node);
}

static void drain_stuck(struct kvs_drain *d)
{
	struct kvs_retraction *t = of_drain(d);

	if (t->state != KVS_RETRACT_DRAINING)
		return;
	kvs_retract_move(t, KVS_RETRACT_QUARANTINED);
	kvs_extents_set_state(&t->ext, KVS_EXTENT_QUARANTINED);
	kvs_log_err("retraction %llu gen %llu: engine %u has not said that "
		    "its copy ended, %llu bytes quarantined until it does or "
		    "is gone",
		    (unsigned long long)t->id,
		    (unsigned long long)t->generation, t->engine->number,
		    (unsigned long long)t->ext.bytes);
}

static void drain_left(struct kvs_drain *d, const struct kvs_party *p,
		       enum kvs_proof proof)
{
	const struct kvs_retraction *t = of_drain(d);

	kvs_log_info("retraction %llu gen %llu party %s: finished by %s",
		     (unsigned long long)t->id,
		     (unsigned long long)t->generation,
		     kvs_party_kind_name[p->ops->kind], kvs_proof_name[proof]);
}

/* A copy engine of another process cannot be called back. */
static const struct kvs_party_ops copy_ops = {
	.name = "retraction copy",
	.kind = KVS_PARTY_COPY,
	.revoke = NULL,
};

/* ---- ends ------------------------------------------------------------- */

static void count_end(const struct kvs_retraction *t)
{
	struct kvs_worker_stats *st = &t->w->stats;
	bool dropped = t->cause == KVS_CAUSE_ENGINE_ABORT;

	if (t->keep)
		st->offloads[dropped		? KVS_OFFLOAD_RESULT_DROPPED
			     : t->err == ENOSPC ? KVS_OFFLOAD_RESULT_NOSPACE
						: KVS_OFFLOAD_RESULT_FAILED]++;
	else if (t->prefix)
		st->recalls[dropped ? KVS_RECALL_RESULT_UNPINNED
			    : t->cause == KVS_CAUSE_CHECKSUM
				    ? KVS_RECALL_RESULT_CHECKSUM
			    : t->cause == KVS_CAUSE_CLAIM_TIMEOUT
				    ? KVS_RECALL_RESULT_EXPIRED
			    : t->err == ENOSPC ? KVS_RECALL_RESULT_NOSPACE
					       : KVS_RECALL_RESULT_FAILED]++;
	else
		st->retracts[dropped ? KVS_RETRACT_RESULT_DROPPED
			     : t->cause == KVS_CAUSE_CHECKSUM
				     ? KVS_RETRACT_RESULT_CHECKSUM
				     : KVS_RETRACT_RESULT_FAILED]++;
}

/* R7: whatever ends it, there is this one way. */
int kvs_retract_fail(struct kvs_retraction *t, enum kvs_room_cause cause,
		     int err, const char *fmt, ...)
{
	struct kvs_worker *w = t->w;
	char text[KVS_WIRE_TEXT];
	va_list ap;

	switch (t->state) {
	case KVS_RETRACT_LEAVING:
		/* The engine's copy may still write. */
		kvs_extents_set_state(&t->ext, KVS_EXTENT_HELD);
		break;
	case KVS_RETRACT_SUMMING:
	case KVS_RETRACT_RETRACTED:
	case KVS_RETRACT_CHECKING:
	case KVS_RETRACT_VERIFYING:
	case KVS_RETRACT_PINNED:
		/* Nobody writes, nobody but us reads. */
		break;
	case KVS_RETRACT_KEEPING:
		kvs_fill_end(&t->keep->fill);
		break;
	case KVS_RETRACT_RESUMING:
		/* The engine's copy still reads. */
		kvs_extents_set_state(&t->ext, KVS_EXTENT_HELD);
		break;
	case KVS_RETRACT_DONE:
	case KVS_RETRACT_DRAINING:
	case KVS_RETRACT_QUARANTINED:
	case KVS_RETRACT_FREE:
	case KVS_RETRACT_STATE_MAX:
		return -EALREADY;
	}
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	kvs_log_info("%s %llu gen %llu: %s in state %s: %s",
		     t->keep	 ? "offload"
		     : t->prefix ? "recall"
				 : "retraction",
		     (unsigned long long)t->id,
		     (unsigned long long)t->generation, kvs_cause_name[cause],
		     kvs_retract_state_name[t->state], text);
	kvs_list_del(&t->sum_node);
	kvs_timer_cancel(&w->timers, &t->limit);
	t->failed = true;
	t->cause = cause;
	t->err = err;
	w->live--;
	count_end(t);
	kvs_retract_move(t, KVS_RETRACT_DRAINING);
	/* May be over, and the memory released, on return. */
	kvs_drain_arm(&t->drain);
	if (!t->engine->gone)
		kvs_worker_tell_failed(w, t->engine->number, t->slot,
				       t->generation, err, 0, text);
	return 0;
}

/* ---- beginning -------------------------------------------------------- */

static void refuse(struct kvs_worker *w, const struct kvs_retract_request *q,
		   int err, const char *text)
{
	w->stats.retracts[err == ENOSPC ? KVS_RETRACT_RESULT_NOSPACE
					: KVS_RETRACT_RESULT_NOFIT]++;
	kvs_log_info("retraction %llu refused: %s", (unsigned long long)q->id,
		     text);
	kvs_worker_tell_failed(w, q->engine, q->slot, q->generation, err, 0,
			       text);
}

/* Places for all of it, or none. What may be left out of the cache leaves the
 * reserve to what must leave the device. */
static int place(struct kvs_worker *w, const struct kvs_geometry *g,
		 bool reserve, struct kvs_extents *ret, char *err,
		 size_t errlen)
{
	struct kvs_pool *pool = w->retracts.pool;
	struct kvs_pool_account a;
	uint64_t *lens;
	int res;

	if (reserve && kvs_retracts_room(w) < kvs_room_need(g)) {
		snprintf(err, errlen,
			 "%llu bytes are needed, and of pool.offload_size are "
			 "free %llu beside reserve.retraction: nothing is kept "
			 "of it",
			 (unsigned long long)kvs_room_need(g),
			 (unsigned long long)kvs_retracts_room(w));
		return -ENOSPC;
	}
	res = kvs_geometry_lens(g, &lens);
	if (res)
		return res;
	res = kvs_pool_alloc(pool, lens, g->n_extents, ret);
	free(lens);
	if (!res || res == -ENOMEM)
		return res;
	kvs_pool_account(pool, &a);
	snprintf(err, errlen,
		 "%llu bytes are needed, pool.offload_size is %llu and %llu "
		 "of it are free: the request stays on the device",
		 (unsigned long long)kvs_room_need(g),
		 (unsigned long long)a.configured,
		 (unsigned long long)a.bytes[KVS_EXTENT_FREE]);
	return res == -E2BIG ? -E2BIG : -ENOSPC;
}

static int lay_out(struct kvs_worker *w, const struct kvs_worker_engine *e,
		   uint64_t tokens, uint32_t block_pages,
		   struct kvs_geometry *g, char *err, size_t errlen)
{
	uint32_t extent_tokens;
	int res = -E2BIG;

	if (!w->retracts.pool) {
		snprintf(err, errlen,
			 "there is no offload pool (pool.offload_size)");
		return res;
	}
	extent_tokens =
		kvs_geometry_extent_tokens(e->layout, w->set->extent_tokens,
					   kvs_pool_segment(w->retracts.pool));
	/* whole blocks in each extent, as in those of the receive pool */
	if (block_pages && extent_tokens > e->extent_tokens)
		extent_tokens = e->extent_tokens;
	if (block_pages)
		extent_tokens -=
			extent_tokens % (block_pages * e->layout->page_size);
	if (extent_tokens)
		res = kvs_geometry_init(g, e->layout, tokens, extent_tokens,
					kvs_pool_segment(w->retracts.pool), 1,
					0);
	if (res == -E2BIG || res == -EINVAL)
		snprintf(err, errlen,
			 "%llu tokens cannot be laid out in pieces of the "
			 "offload pool",
			 (unsigned long long)tokens);
	return res;
}

int kvs_retract_new(struct kvs_worker *w, struct kvs_worker_engine *e,
		    const struct kvs_retract_request *q,
		    struct kvs_retraction **ret)
{
	struct kvs_drain_opts d = {
		.generation = q->generation,
		.hold_timeout = w->set->hold_timeout,
		.clock = w->clock,
		.timers = &w->timers,
		.stats = &w->stats.drains,
		.over = drain_over,
		.stuck = drain_stuck,
		.left = drain_left,
	};
	struct kvs_retraction *t = calloc(1, sizeof(*t));

	if (!t || kvs_u64map_add(&w->retracts.map, q->generation, t)) {
		free(t);
		return -ENOMEM;
	}
	t->magic = KVS_RETRACT_MAGIC;
	t->id = q->id;
	t->generation = q->generation;
	t->w = w;
	t->engine = e;
	t->slot = q->slot;
	t->since = kvs_clock_now(w->clock);
	kvs_list_init(&t->sum_node);
	kvs_list_init(&t->dead_node);
	kvs_party_init(&t->copy, &copy_ops, 0);
	kvs_drain_init(&t->drain, &d);
	kvs_list_add_tail(&e->retractions, &t->engine_node);
	w->live++;
	*ret = t;
	return 0;
}

/* Nobody has been told of it. */
static void undo(struct kvs_retraction *t)
{
	t->w->live--;
	kvs_list_del(&t->engine_node);
	(void)kvs_u64map_del(&t->w->retracts.map, t->generation);
	kvs_drain_fini(&t->drain);
	kvs_geometry_fini(&t->geo);
	free(t);
}

int kvs_retract_create(struct kvs_worker *w, struct kvs_worker_engine *e,
		       const struct kvs_retract_request *q,
		       struct kvs_keep *keep, struct kvs_retraction **ret,
		       char *err, size_t errlen)
{
	struct kvs_retraction *t;
	int res;

	res = kvs_retract_new(w, e, q, &t);
	if (res)
		return res;
	res = lay_out(w, e, q->tokens, keep ? keep->block_pages : 0, &t->geo,
		      err, errlen);
	/* memory is the last that can fail, and is not taken from a pool to be
	 * given back */
	if (!res)
		res = place(w, &t->geo, keep, &t->ext, err, errlen);
	if (res) {
		undo(t);
		return res;
	}
	t->state = KVS_RETRACT_LEAVING;
	t->keep = keep;
	if (keep)
		w->retracts.kept_bytes += t->ext.bytes;
	*ret = t;
	return 0;
}

/* From here on the engine may write to the extents: it is a party (R13). */
int kvs_retract_tell_places(struct kvs_retraction *t)
{
	size_t len =
		sizeof(struct kvs_packet_ready) + t->ext.n * sizeof(uint64_t);
	struct kvs_packet_ready *p = calloc(1, len);

	if (!p)
		return -ENOMEM;
	p->h.magic = KVS_ATTACH_MAGIC;
	p->h.type = KVS_PACKET_PLACED;
	p->generation = t->generation;
	p->slot = t->slot;
	p->pool = t->w->retracts.pool_index;
	p->extent_tokens = t->geo.extent_pages * t->geo.layout->page_size;
	p->n_extents = t->ext.n;
	for (uint32_t i = 0; i < t->ext.n; i++)
		p->off[i] = t->ext.v[i].off;
	kvs_extents_set_state(&t->ext, KVS_EXTENT_GRANTED);
	if (KVS_RULE(R13, OFFLOAD))
		KVS_ASSERT(!kvs_drain_join(&t->drain, &t->copy));
	t->w->o.out->to_engine(t->w->o.arg, t->engine->number, t->slot,
			       KVS_WORD(t->generation, 0, status[t->state]),
			       &p->h, len);
	free(p);
	return 0;
}

void kvs_worker_retract(struct kvs_worker *w,
			const struct kvs_retract_request *q)
{
	struct kvs_worker_engine *e = kvs_worker_engine_find(w, q->engine);
	char text[KVS_WIRE_TEXT] = "out of memory";
	struct kvs_retraction *t;
	int res;

	if (!e)
		return;
	if (w->shutting_down) {
		refuse(w, q, ESHUTDOWN, "the daemon is going down");
		return;
	}
	res = kvs_retract_create(w, e, q, NULL, &t, text, sizeof(text));
	if (res) {
		refuse(w, q, -res, text);
		return;
	}
	w->stats.retracts[KVS_RETRACT_RESULT_TAKEN]++;
	if (kvs_retract_tell_places(t))
		kvs_retract_fail(t, KVS_CAUSE_INTERNAL, ENOMEM, "%s", text);
}

/* ---- packets ---------------------------------------------------------- */

/* The copy out has ended, well or not. */
static int copied_out(struct kvs_retraction *t, int err)
{
	if (t->state == KVS_RETRACT_LEAVING && err)
		kvs_retract_fail(
			t, KVS_CAUSE_COPY_FAILED, err,
			"the engine's copy from the device failed; what is there "
			"is whole");
	if (t->state != KVS_RETRACT_LEAVING) {
		if (!t->failed)
			return -EPROTO;
		kvs_party_leave(&t->copy, KVS_PROOF_COPY_EVENT);
		return 0;
	}
	kvs_party_leave(&t->copy, KVS_PROOF_COPY_EVENT);
	kvs_hist_record(&t->w->stats.retract,
			kvs_clock_now(t->w->clock) - t->since);
	kvs_extents_set_state(&t->ext, KVS_EXTENT_STAGED);
	if (t->keep) {
		kvs_offload_copied(t);
		return 0;
	}
	kvs_retract_move(t, KVS_RETRACT_SUMMING);
	kvs_retract_tell(t);
	kvs_retract_sum(t, false);
	return 0;
}

/* Back to the device. It waits for nothing, and before those that leave. */
static int resume(struct kvs_retraction *t)
{
	if (t->state == KVS_RETRACT_PINNED) {
		kvs_pin_recall(t);
		return 0;
	}
	if (t->state != KVS_RETRACT_RETRACTED)
		return -EPROTO;
	kvs_retract_move(t, KVS_RETRACT_CHECKING);
	kvs_retract_sum(t, true);
	return 0;
}

static int resumed(struct kvs_retraction *t, int err)
{
	if (t->state == KVS_RETRACT_RESUMING && err)
		kvs_retract_fail(t, KVS_CAUSE_COPY_FAILED, err,
				 "the engine's copy to the device failed");
	if (t->state != KVS_RETRACT_RESUMING) {
		if (!t->failed)
			return -EPROTO;
		kvs_party_leave(&t->copy, KVS_PROOF_COPY_EVENT);
		return 0;
	}
	kvs_hist_record(&t->w->stats.resume,
			kvs_clock_now(t->w->clock) - t->since);
	kvs_retract_move(t, KVS_RETRACT_DONE);
	t->w->live--;
	if (t->prefix)
		kvs_pin_recalled(t);
	else
		t->w->stats.retracts[KVS_RETRACT_RESULT_RESUMED]++;
	kvs_retract_tell(t);
	kvs_party_leave(&t->copy, KVS_PROOF_COPY_EVENT);
	kvs_drain_arm(&t->drain);
	return 0;
}

int kvs_retract_packet(struct kvs_worker *w, uint32_t engine,
		       enum kvs_packet_type type,
		       const struct kvs_packet_room *p)
{
	struct kvs_retraction *t =
		kvs_u64map_get(&w->retracts.map, p->generation);

	if (!t || t->engine->number != engine || t->slot != p->slot)
		return 0; /* over already; its status word says so */
	switch (type) {
	case KVS_PACKET_RETRACTED:
		return copied_out(t, p->err);
	case KVS_PACKET_COMMIT:
		return resume(t);
	case KVS_PACKET_COMMITTED:
		return resumed(t, p->err);
	case KVS_PACKET_COPY_OVER:
		/* Of one that ended; sent to be sure, as a rule. */
		if (!t->failed)
			return -EPROTO;
		kvs_party_leave(&t->copy, KVS_PROOF_COPY_EVENT);
		return 0;
	case KVS_PACKET_ABORT:
		(void)kvs_retract_fail(t, KVS_CAUSE_ENGINE_ABORT, ECANCELED,
				       "dropped by the engine");
		return 0;
	case KVS_PACKET_ATTACH:
	case KVS_PACKET_ATTACHED:
	case KVS_PACKET_REFUSED:
	case KVS_PACKET_ADMIT:
	case KVS_PACKET_READY:
	case KVS_PACKET_FAILED:
	case KVS_PACKET_LAYOUT:
	case KVS_PACKET_DETACH:
	case KVS_PACKET_RETRACT:
	case KVS_PACKET_PLACED:
	case KVS_PACKET_LOOKUP:
	case KVS_PACKET_CACHED:
	case KVS_PACKET_TYPE_MAX:
		break;
	}
	return -EPROTO;
}

/* ---- all of them ------------------------------------------------------ */

void kvs_retracts_init(struct kvs_worker *w, uint64_t secret)
{
	kvs_u64map_init(&w->retracts.map, secret);
	kvs_list_init(&w->retracts.sums);
	kvs_list_init(&w->retracts.keeps);
	kvs_list_init(&w->retracts.dead);
}

void kvs_retracts_fini(struct kvs_worker *w)
{
	KVS_ASSERT(w->retracts.map.n == 0);
	kvs_u64map_fini(&w->retracts.map);
}

void kvs_retracts_engine_lost(struct kvs_worker_engine *e, bool proof)
{
	struct kvs_retraction *t, *tmp;

	kvs_list_for_each_entry_safe(t, tmp, &e->retractions, engine_node) {
		(void)kvs_retract_fail(t, KVS_CAUSE_ENGINE_LOST, ECONNRESET,
				       "the decode engine is gone");
		if (proof)
			kvs_party_leave(&t->copy, KVS_PROOF_PROCESS_EXIT);
	}
}

void kvs_retracts_shutdown(struct kvs_worker *w)
{
	struct kvs_retraction *t;
	size_t pos = 0;

	while ((t = kvs_u64map_next(&w->retracts.map, &pos)))
		if (t->state < KVS_RETRACT_RETRACTED)
			(void)kvs_retract_fail(t, KVS_CAUSE_SHUTDOWN, ESHUTDOWN,
					       "the daemon is going down");
}

void kvs_retracts_abandon(struct kvs_worker *w)
{
	struct kvs_retraction *t;
	size_t pos = 0;

	while ((t = kvs_u64map_next(&w->retracts.map, &pos))) {
		(void)kvs_retract_fail(t, KVS_CAUSE_SHUTDOWN, ESHUTDOWN,
				       "the daemon ends");
		kvs_drain_abandon(&t->drain);
	}
}
