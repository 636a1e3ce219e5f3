/* SPDX-License-Identifier: Apache-2.0 */
/* A request's blocks leave the device to be cached. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/log.h"
#include "pipeline/cache_internal.h"
#include "pipeline/retract_internal.h"
#include "pipeline/room_internal.h"
#include "pipeline/worker.h"

static void refuse(struct kvs_worker *w, const struct kvs_lookup_request *q,
		   int err, const char *text)
{
	w->stats.offloads[err == ENOSPC	     ? KVS_OFFLOAD_RESULT_NOSPACE
			  : err == ESHUTDOWN ? KVS_OFFLOAD_RESULT_FAILED
					     : KVS_OFFLOAD_RESULT_NOFIT]++;
	kvs_log_info("offload %llu refused: %s", (unsigned long long)q->id,
		     text);
	kvs_worker_tell_failed(w, q->engine, q->slot, q->generation, err,
			       kvs_worker_retry(w, err, 0), text);
}

/* Names of all, and how many of the first ones are here. */
static int name(struct kvs_worker *w, const struct kvs_worker_engine *e,
		const struct kvs_lookup_request *q, struct kvs_keep **ret,
		uint32_t *ret_known)
{
	struct kvs_key *keys = kvs_cache_keys(e, q->hashes, q->n_hashes);
	struct kvs_keep *o = NULL;
	uint32_t known;

	if (!keys)
		return -ENOMEM;
	known = kvs_cache_known(w, keys, q->n_hashes);
	o = calloc(1, sizeof(*o) + (q->n_hashes - known) * sizeof(o->keys[0]));
	if (!o) {
		free(keys);
		return -ENOMEM;
	}
	o->block_pages = e->cache.block_pages;
	o->n = q->n_hashes - known;
	memcpy(o->keys, keys + known, o->n * sizeof(o->keys[0]));
	free(keys);
	*ret = o;
	*ret_known = known;
	return 0;
}

void kvs_worker_offload(struct kvs_worker *w,
			const struct kvs_lookup_request *q)
{
	struct kvs_worker_engine *e = kvs_worker_engine_find(w, q->engine);
	struct kvs_retract_request out = {
		.id = q->id,
		.generation = q->generation,
		.engine = q->engine,
		.slot = q->slot,
	};
	char text[KVS_WIRE_TEXT] = "out of memory";
	struct kvs_retraction *t;
	struct kvs_keep *o;
	uint32_t known;
	int ret;

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
	if (name(w, e, q, &o, &known)) {
		refuse(w, q, ENOMEM, text);
		return;
	}
	w->cache.stats.duplicates += known;
	if (!o->n) {
		free(o);
		w->stats.offloads[KVS_OFFLOAD_RESULT_KEPT]++;
		kvs_worker_tell_cached(w, q, KVS_STATUS_DONE, known);
		return;
	}
	out.tokens = (uint64_t)o->n * o->block_pages * e->layout->page_size;
	ret = kvs_retract_create(w, e, &out, o, &t, text, sizeof(text));
	if (ret) {
		free(o);
		refuse(w, q, -ret, text);
		return;
	}
	kvs_worker_tell_cached(w, q, KVS_STATUS_PENDING, known);
	if (kvs_retract_tell_places(t))
		kvs_retract_fail(t, KVS_CAUSE_INTERNAL, ENOMEM, "%s", text);
}

void kvs_offload_copied(struct kvs_retraction *t)
{
	struct kvs_keep *o = t->keep;
	int ret;

	kvs_retract_move(t, KVS_RETRACT_KEEPING);
	ret = kvs_fill_begin(&o->fill, t->w, t->generation, &t->geo,
			     o->block_pages, o->keys, o->n);
	if (ret) {
		kvs_retract_fail(t, KVS_CAUSE_INTERNAL, -ret,
				 "there is no memory to keep it in");
		return;
	}
	kvs_retract_tell(t);
	kvs_list_add_tail(&t->w->retracts.keeps, &t->sum_node);
}

uint64_t kvs_offload_some(struct kvs_retraction *t)
{
	struct kvs_keep *o = t->keep;
	uint64_t bytes = kvs_fill_some(&o->fill, &t->ext);

	if (!kvs_fill_over(&o->fill))
		return bytes;
	kvs_fill_end(&o->fill);
	kvs_list_del(&t->sum_node);
	kvs_retract_move(t, KVS_RETRACT_DONE);
	t->w->live--;
	t->w->stats.offloads[KVS_OFFLOAD_RESULT_KEPT]++;
	kvs_retract_tell(t);
	kvs_drain_arm(&t->drain);
	return bytes;
}
