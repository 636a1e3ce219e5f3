/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker does of its retractions in its turns: sums of those that left
 * and of those that come back, the way of offloads into the cache. */
#include <errno.h>
#include <stdlib.h>

#include "lib/assert.h"
#include "lib/rule.h"
#include "pipeline/retract_internal.h"
#include "pipeline/worker.h"

#define SUM_PIECE (1u << 20) /* bytes in cache at a time */
#define SUM_TURN (8u << 20) /* bytes a turn */

void kvs_retract_sum(struct kvs_retraction *t, bool first)
{
	struct kvs_retracts *all = &t->w->retracts;
	uint64_t total = 0;

	for (uint32_t i = 0; i < t->ext.n; i++)
		total += t->ext.v[i].len;
	kvs_digest_init(&t->digest, KVS_DIGEST_CRC32C, total);
	t->sum_extent = 0;
	t->sum_off = 0;
	t->sum_at = 0;
	if (first)
		kvs_list_add(&all->sums, &t->sum_node);
	else
		kvs_list_add_tail(&all->sums, &t->sum_node);
}

static void sum_done(struct kvs_retraction *t)
{
	uint32_t sum = kvs_digest_value(&t->digest);

	kvs_list_del(&t->sum_node);
	if (t->state == KVS_RETRACT_SUMMING) {
		t->sum = sum;
		kvs_retract_move(t, KVS_RETRACT_RETRACTED);
		kvs_extents_set_state(&t->ext, KVS_EXTENT_RETRACTED);
		t->w->stats.retracts[KVS_RETRACT_RESULT_OUT]++;
		kvs_retract_tell(t);
		return;
	}
	if (sum != t->sum) {
		kvs_retract_fail(
			t, KVS_CAUSE_CHECKSUM, EBADMSG,
			"crc32c of what came out is %08x, of what is to go back "
			"%08x",
			t->sum, sum);
		return;
	}
	kvs_retract_move(t, KVS_RETRACT_RESUMING);
	kvs_extents_set_state(&t->ext, KVS_EXTENT_COMMITTING);
	if (KVS_RULE(R13, RESUME))
		KVS_ASSERT(!kvs_drain_join(&t->drain, &t->copy));
	kvs_retract_tell(t);
}

/* One piece; its length. */
static uint64_t sum_some(struct kvs_retraction *t)
{
	const struct kvs_extent *x;
	uint64_t len = 0;

	while (t->sum_extent < t->ext.n &&
	       t->sum_off == t->ext.v[t->sum_extent].len) {
		t->sum_extent++;
		t->sum_off = 0;
	}
	if (t->sum_extent < t->ext.n) {
		const unsigned char *base =
			kvs_extent_addr(&t->ext, t->sum_extent);

		x = &t->ext.v[t->sum_extent];
		len = x->len - t->sum_off;
		if (len > SUM_PIECE)
			len = SUM_PIECE;
		/* a phantom pool has no bytes */
		if (base)
			(void)kvs_digest_add(&t->digest, t->sum_at,
					     base + t->sum_off, len);
		t->sum_off += len;
		t->sum_at += len;
	}
	if (t->sum_at == t->digest.total)
		sum_done(t);
	return len;
}

void kvs_retracts_turn(struct kvs_worker *w)
{
	struct kvs_retracts *all = &w->retracts;
	struct kvs_retraction *t, *tmp;
	uint64_t bytes = 0;

	while (!kvs_list_empty(&all->sums) && bytes < SUM_TURN)
		bytes += sum_some(kvs_list_first(
			&all->sums, struct kvs_retraction, sum_node));
	while (!kvs_list_empty(&all->keeps) && bytes < SUM_TURN)
		bytes += kvs_offload_some(kvs_list_first(
			&all->keeps, struct kvs_retraction, sum_node));
	kvs_list_for_each_entry_safe(t, tmp, &all->dead, dead_node) {
		KVS_CHECK_MAGIC(t, KVS_RETRACT_MAGIC);
		KVS_ASSERT(t->state == KVS_RETRACT_FREE);
		kvs_list_del(&t->dead_node);
		kvs_list_del(&t->engine_node);
		(void)kvs_u64map_del(&all->map, t->generation);
		kvs_drain_fini(&t->drain);
		kvs_geometry_fini(&t->geo);
		free(t->keep);
		t->magic = 0;
		free(t);
	}
}

bool kvs_retracts_busy(const struct kvs_worker *w)
{
	return !kvs_list_empty(&w->retracts.sums) ||
	       !kvs_list_empty(&w->retracts.keeps);
}
