/* SPDX-License-Identifier: Apache-2.0 */
/* Slots and rooms of an engine: admit, give up, forget. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pinned/arena.h"
#include "pipeline/engine_internal.h"
#include "pipeline/room.h"

struct kvs_eng_room *kvs_eng_room_of(struct kvs_engine *e, const kvs_handle *h)
{
	uint32_t i = h->slot - 1;

	if (i >= e->n_slots || e->local[i] == KVS_ENG_FREE ||
	    e->previous[i] != h->previous)
		return NULL;
	return e->rooms[i];
}

uint64_t kvs_eng_room_word(struct kvs_engine *e, struct kvs_eng_room *r)
{
	uint64_t w = kvs_eng_word(e, r->slot);

	if (w == e->previous[r->slot])
		return 0;
	if (!r->generation)
		r->generation = KVS_WORD_GEN(w);
	return w;
}

bool kvs_eng_room_final(struct kvs_engine *e, struct kvs_eng_room *r)
{
	uint64_t w = kvs_eng_room_word(e, r);

	return w && KVS_WORD_GEN(w) == r->generation &&
	       (KVS_WORD_STATUS(w) == KVS_STATUS_FAILED ||
		KVS_WORD_STATUS(w) == KVS_STATUS_DONE);
}

void kvs_eng_room_fail(struct kvs_engine *e, struct kvs_eng_room *r, int err,
		       const char *text)
{
	if (e->local[r->slot] == KVS_ENG_FREE ||
	    e->local[r->slot] == KVS_ENG_FAILED)
		return;
	e->local[r->slot] = KVS_ENG_FAILED;
	r->failure.err = err;
	r->failure.http_class = 503;
	snprintf(r->failure.text, sizeof(r->failure.text), "%s", text);
	if (r->phase == KVS_ENG_PHASE_CLAIMED ||
	    r->phase == KVS_ENG_PHASE_LEAVING) {
		kvs_list_del(&r->node);
		r->phase = KVS_ENG_PHASE_OPEN;
	}
}

void kvs_eng_room_give_up(struct kvs_engine *e, struct kvs_eng_room *r)
{
	(void)kvs_eng_room_word(e, r);
	r->owed &= ~KVS_ENG_OWE_COMMIT;
	/* From the COMMIT on the daemon counts a copy; one that has not begun
	 * now never will. */
	if (r->phase == KVS_ENG_PHASE_OPEN && r->commit_sent)
		kvs_eng_owe(e, r, KVS_ENG_OWE_ABORT | KVS_ENG_OWE_COPY_OVER);
	else
		kvs_eng_owe(e, r, KVS_ENG_OWE_ABORT);
	if (r->out)
		kvs_eng_out_end(e, r);
}

void kvs_eng_room_free(struct kvs_engine *e, struct kvs_eng_room *r)
{
	kvs_list_del(&r->node);
	kvs_list_del(&r->out_node);
	e->rooms[r->slot] = NULL;
	e->local[r->slot] = KVS_ENG_FREE;
	e->free[e->n_free++] = r->slot;
	kvs_geometry_fini(&r->geo);
	if (r->host)
		r->host->refs--;
	free(r->off);
	free(r->runs);
	free(r->segs);
	free(r->out);
	free(r);
}

/* May the slot be used again? */
static bool room_over(struct kvs_engine *e, struct kvs_eng_room *r)
{
	return !r->owed && kvs_eng_room_final(e, r);
}

void kvs_eng_reap(struct kvs_engine *e)
{
	struct kvs_eng_room *r, *tmp;

	kvs_list_for_each_entry_safe(r, tmp, &e->lingering, node)
		if (room_over(e, r))
			kvs_eng_room_free(e, r);
}

static int ready_places(const struct kvs_engine *e,
			const struct kvs_packet_ready *p,
			const struct kvs_geometry *g)
{
	uint64_t size = e->pools[p->pool].size;

	for (uint32_t i = 0; i < g->n_extents; i++) {
		uint64_t len = kvs_geometry_len(g, i);

		if (p->off[i] % KVS_ARENA_ALIGN || len > size ||
		    p->off[i] > size - len)
			return -EPROTO;
	}
	return 0;
}

int kvs_eng_room_ready(struct kvs_engine *e, struct kvs_eng_room *r,
		       const struct kvs_packet_ready *p, size_t len)
{
	const struct kvs_layout *l = e->layout;
	struct kvs_eng_host *h = NULL;
	struct kvs_geometry g;
	uint64_t *off;
	int ret;

	if (p->layout) {
		h = kvs_eng_host_find(e, p->layout);
		if (!h || r->out)
			return -EPROTO;
		l = h->layout;
	}
	if (r->ready_generation || p->pool >= e->n_pools || !p->extent_tokens ||
	    p->extent_tokens % l->page_size ||
	    p->extent_tokens % e->layout->page_size ||
	    p->n_extents > KVS_EXTENTS_MAX || p->n_segs > KVS_SEGS_MAX ||
	    len != sizeof(*p) + p->n_extents * sizeof(p->off[0]) +
			    p->n_segs * sizeof(struct kvs_packet_seg))
		return -EPROTO;
	if (p->layout && p->n_segs)
		return -EPROTO;
	ret = kvs_eng_segs(
		e, r, p->pool,
		(const struct kvs_packet_seg *)(p->off + p->n_extents),
		p->n_segs);
	if (ret)
		return ret;
	ret = kvs_geometry_init(&g, l,
				r->tokens - (uint64_t)r->seg_pages *
						    e->layout->page_size,
				p->extent_tokens, KVS_ARENA_SEGMENT_MAX,
				r->n_ranks, r->aux_len);
	if (ret)
		return ret == -ENOMEM ? ret : -EPROTO;
	ret = -EPROTO;
	if (g.n_extents != p->n_extents || ready_places(e, p, &g))
		goto out_geometry;
	ret = -ENOMEM;
	off = malloc(g.n_extents * sizeof(*off));
	if (!off)
		goto out_geometry;
	memcpy(off, p->off, g.n_extents * sizeof(*off));
	r->off = off;
	r->host = h;
	if (h)
		h->refs++;
	r->geo = g;
	r->pool = p->pool;
	r->ready_generation = p->generation;
	return 0;

out_geometry:
	kvs_geometry_fini(&g);
	return ret;
}

/* Slots that only health checks get: load must not make them fail. */
static uint32_t admit_spare(const struct kvs_engine *e, uint32_t flags)
{
	return flags & KVS_ADMIT_HEALTH ? 0 : e->n_slots / KVS_ENG_SPARE_PART;
}

static int admit_check(const struct kvs_engine *e, const struct kvs_admit *a)
{
	if (!a || a->size < sizeof(*a) || !a->room || !a->tokens || !a->peer ||
	    !*a->peer || strlen(a->peer) >= KVS_ENGINE_NAME || !a->n_ranks ||
	    a->n_ranks > KVS_RANKS_MAX || !a->ranks ||
	    a->aux_len > e->layout->aux_max ||
	    a->flags & ~(KVS_ADMIT_HEALTH | KVS_ADMIT_CACHED) ||
	    a->n_hashes > KVS_CACHE_BLOCKS_MAX || (a->n_hashes && !a->hashes))
		return -EINVAL;
	return 0;
}

static int admit_send(struct kvs_engine *e, const struct kvs_admit *a,
		      uint32_t slot)
{
	size_t ranks = a->n_ranks * sizeof(a->ranks[0]);
	size_t hashes = a->n_hashes * (size_t)16;
	uint32_t tp = a->tp_ranks && !a->tp ? 1 : a->tp;
	size_t tp_ranks = tp ? a->n_ranks * sizeof(a->tp_ranks[0]) : 0;
	size_t len =
		sizeof(struct kvs_packet_admit) + ranks + hashes + tp_ranks;
	struct kvs_packet_admit *p = calloc(1, len);
	int ret;

	if (!p)
		return -ENOMEM;
	p->h.magic = KVS_ATTACH_MAGIC;
	p->h.type = KVS_PACKET_ADMIT;
	p->room = a->room;
	memcpy(p->nonce, a->nonce, sizeof(p->nonce));
	snprintf(p->peer, sizeof(p->peer), "%s", a->peer);
	p->tokens = a->tokens;
	p->slot = slot;
	p->node = a->node;
	p->aux_len = a->aux_len;
	p->flags = a->flags;
	p->n_hashes = a->n_hashes;
	p->n_ranks = a->n_ranks;
	p->page_size = a->page_size;
	p->tp = tp;
	memcpy(p->ranks, a->ranks, ranks);
	if (hashes)
		memcpy(p->ranks + a->n_ranks, a->hashes, hashes);
	if (tp && a->tp_ranks)
		memcpy((char *)(p->ranks + a->n_ranks) + hashes, a->tp_ranks,
		       tp_ranks);
	ret = kvs_eng_send(e, p, len);
	free(p);
	return ret;
}

int kvs_eng_slot(struct kvs_engine *e, uint32_t flags,
		 struct kvs_eng_room **ret)
{
	uint32_t spare = admit_spare(e, flags);
	struct kvs_eng_room *r;

	/* An ABORT that waits must not be overtaken: it may be of this id. */
	kvs_eng_flush(e);
	if (e->n_free <= spare)
		kvs_eng_reap(e);
	if (e->gone)
		return -ECONNRESET;
	if (!kvs_list_empty(&e->out) || e->n_free <= spare)
		return -EAGAIN;
	r = calloc(1, sizeof(*r));
	if (!r)
		return -ENOMEM;
	r->slot = e->free[e->n_free - 1];
	kvs_list_init(&r->node);
	kvs_list_init(&r->out_node);
	/* Before the packet: its answer may be in the word already after. */
	e->previous[r->slot] = kvs_eng_word(e, r->slot);
	*ret = r;
	return 0;
}

void kvs_eng_slot_undo(struct kvs_eng_room *r)
{
	free(r->out);
	free(r);
}

void kvs_eng_slot_take(struct kvs_engine *e, struct kvs_eng_room *r,
		       kvs_handle *ret)
{
	e->n_free--;
	e->rooms[r->slot] = r;
	e->local[r->slot] = KVS_ENG_WORD;
	*ret = (kvs_handle){ .slot = r->slot + 1,
			     .previous = e->previous[r->slot] };
}

int kvs_engine_admit(struct kvs_engine *e, const struct kvs_admit *a,
		     kvs_handle *ret)
{
	struct kvs_eng_room *r;
	int res;

	res = admit_check(e, a);
	if (!res)
		res = kvs_eng_slot(e, a->flags, &r);
	if (res)
		return res;
	r->id = a->room;
	r->tokens = a->tokens;
	r->n_ranks = a->n_ranks;
	r->aux_len = a->aux_len;
	res = admit_send(e, a, r->slot);
	if (res) {
		kvs_eng_slot_undo(r);
		return res;
	}
	kvs_eng_slot_take(e, r, ret);
	return 0;
}

int kvs_engine_abort(struct kvs_engine *e, const kvs_handle *h)
{
	struct kvs_eng_room *r = kvs_eng_room_of(e, h);

	if (!r)
		return -ENOENT;
	if (r->aborted)
		return 0;
	if (r->phase == KVS_ENG_PHASE_COPYING)
		(void)kvs_eng_advance(e, r);
	/* COPIED: its bytes are on the device, too late; unless other ranks
	 * still wait for theirs. */
	if (e->local[r->slot] == KVS_ENG_FAILED ||
	    (r->phase == KVS_ENG_PHASE_COPIED && !e->grouped) ||
	    kvs_eng_room_final(e, r))
		return -EALREADY;
	r->aborted = true;
	kvs_eng_room_fail(e, r, ECANCELED, "aborted by the engine");
	kvs_eng_room_give_up(e, r);
	return 0;
}

int kvs_engine_release(struct kvs_engine *e, const kvs_handle *h)
{
	struct kvs_eng_room *r = kvs_eng_room_of(e, h);
	kvs_handle copy = *h;
	enum kvs_status st;

	if (!r)
		return -ENOENT;
	(void)kvs_eng_advance(e, r);
	st = kvs_engine_poll(e, &copy, NULL);
	if ((st != KVS_STATUS_FAILED && st != KVS_STATUS_DONE) ||
	    kvs_eng_room_live(e, r))
		return -EBUSY;
	if (r->out)
		kvs_eng_out_end(e, r);
	e->local[r->slot] = KVS_ENG_FREE;
	if (room_over(e, r))
		kvs_eng_room_free(e, r);
	else
		kvs_list_add_tail(&e->lingering, &r->node);
	return 0;
}

int kvs_engine_failure(struct kvs_engine *e, const kvs_handle *h,
		       struct kvs_failure *ret)
{
	struct kvs_eng_room *r = kvs_eng_room_of(e, h);
	kvs_handle copy = *h;
	int err;

	if (!r)
		return -ENOENT;
	if (kvs_engine_poll(e, &copy, &err) != KVS_STATUS_FAILED)
		return -EAGAIN;
	if (e->local[r->slot] != KVS_ENG_FAILED && !r->failure_generation)
		(void)kvs_eng_receive(e);
	/* The packet may have been read before there was a word. */
	(void)kvs_eng_room_word(e, r);
	if (e->local[r->slot] == KVS_ENG_FAILED ||
	    (r->failure_generation && r->failure_generation == r->generation)) {
		*ret = r->failure;
		return 0;
	}
	*ret = (struct kvs_failure){ .err = err,
				     .http_class = kvs_error_class(err) };
	snprintf(ret->text, sizeof(ret->text), "%s", strerror(err));
	return 0;
}

int kvs_engine_aux(struct kvs_engine *e, const kvs_handle *h, uint32_t rank,
		   const void **ret, uint32_t *ret_len)
{
	struct kvs_eng_room *r = kvs_eng_room_of(e, h);
	kvs_handle copy = *h;
	uint64_t off, len;

	if (!r)
		return -ENOENT;
	if (rank >= r->n_ranks)
		return -ERANGE;
	if (kvs_engine_poll(e, &copy, NULL) != KVS_STATUS_READY)
		return -EAGAIN;
	if (!r->ready_generation)
		(void)kvs_eng_receive(e);
	(void)kvs_eng_room_word(e, r);
	if (r->ready_generation != r->generation ||
	    kvs_geometry_aux(&r->geo, rank, &off, &len))
		return -EAGAIN;
	*ret = e->pools[r->pool].base + r->off[r->geo.n_extents - 1] + off;
	*ret_len = (uint32_t)len;
	return 0;
}
