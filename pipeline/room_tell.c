/* SPDX-License-Identifier: Apache-2.0 */
/* What a room says to its engine and, again, to its ranks, and how it
 * describes itself. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/log.h"
#include "pipeline/attach_msg.h"
#include "pipeline/layout.h"
#include "pipeline/room_internal.h"
#include "pipeline/worker.h"

#define KVS_REASK_MIN KVS_NSEC_PER_MSEC /* a peer is not flooded */

unsigned int kvs_error_class(int err)
{
	switch (err < 0 ? -err : err) {
	case E2BIG:
	case EINVAL:
	case EEXIST:
	case EPROTOTYPE:
	case EACCES:
	case ERANGE:
	case ENXIO:
	case EOPNOTSUPP:
		return 400;
	default:
		return 503;
	}
}

void kvs_refuse_fill(struct kvs_msg *ret, uint64_t room, uint64_t generation,
		     uint32_t rank, int err, const char *text)
{
	ret->type = KVS_WIRE_REFUSE;
	ret->refuse = (struct kvs_msg_refuse){
		.room = room,
		.generation = generation,
		.rank = rank,
		.err = (uint32_t)err,
		.class = kvs_error_class(err),
	};
	snprintf(ret->refuse.text, sizeof(ret->refuse.text), "%s", text);
}

void kvs_failed_fill(struct kvs_packet_failed *ret, uint32_t slot,
		     uint64_t generation, int err, uint32_t retry_ms,
		     const char *text)
{
	*ret = (struct kvs_packet_failed){
		.h = { KVS_ATTACH_MAGIC, KVS_PACKET_FAILED },
		.generation = generation,
		.slot = slot,
		.err = (uint32_t)err,
		.class = kvs_error_class(err),
		.retry_ms = retry_ms,
	};
	snprintf(ret->text, sizeof(ret->text), "%s", text);
}

uint32_t kvs_worker_retry(const struct kvs_worker *w, int err, uint64_t bytes)
{
	switch (err) {
	case EAGAIN:
	case ETIME:
		return kvs_admission_retry(w, bytes);
	case ESHUTDOWN:
		return (uint32_t)(w->set->shutdown_timeout / KVS_NSEC_PER_MSEC);
	default:
		return 0;
	}
}

void kvs_worker_tell_failed(struct kvs_worker *w, uint32_t engine,
			    uint32_t slot, uint64_t generation, int err,
			    uint32_t retry_ms, const char *text)
{
	struct kvs_packet_failed p;

	kvs_failed_fill(&p, slot, generation, err, retry_ms, text);
	w->o.out->to_engine(w->o.arg, engine, slot,
			    KVS_WORD(generation, err, KVS_STATUS_FAILED), &p.h,
			    sizeof(p));
}

void kvs_room_tell_failed(struct kvs_room *r, int err, const char *text)
{
	for (uint32_t i = 0; i < r->n_members; i++) {
		const struct kvs_room_member *m = &r->members[i];

		if (m->engine->gone || m->slot == KVS_SLOT_NONE)
			continue;
		kvs_worker_tell_failed(r->w, m->engine->number, m->slot,
				       r->generation, err,
				       kvs_worker_retry(r->w, err, r->need),
				       text);
	}
}

/* Once for each member and layout. */
static int tell_layout(const struct kvs_room_member *m)
{
	const struct kvs_room *r = m->room;
	uint64_t bit = 1ULL << (m - r->members);
	struct kvs_host *h = r->host;
	struct kvs_packet_layout *p;
	const struct kvs_layout *l;
	size_t buffers, cuts, len;

	if (!h || h->told & bit)
		return 0;
	l = h->layout;
	buffers = l->n_buffers * sizeof(l->buffers[0]);
	cuts = l->n_buffers * sizeof(l->cuts[0]);
	len = sizeof(*p) + buffers + cuts;
	p = calloc(1, len);
	if (!p)
		return -ENOMEM;
	p->h.magic = KVS_ATTACH_MAGIC;
	p->h.type = KVS_PACKET_LAYOUT;
	p->id = h->id;
	p->page_size = l->page_size;
	p->tp = l->tp;
	p->n_buffers = l->n_buffers;
	memcpy(p->buffers, l->buffers, buffers);
	memcpy((char *)p->buffers + buffers, l->cuts, cuts);
	r->w->o.out->to_engine(r->w->o.arg, m->engine->number, m->slot,
			       KVS_WORD(r->generation, 0, KVS_STATUS_SEALING),
			       &p->h, len);
	h->told |= bit;
	free(p);
	return 0;
}

int kvs_room_tell_member_ready(const struct kvs_room_member *m)
{
	const struct kvs_room *r = m->room;
	size_t len =
		sizeof(struct kvs_packet_ready) + r->ext.n * sizeof(uint64_t);
	struct kvs_packet_ready *p;
	uint32_t n_segs = r->prefix ? r->prefix->n_segs : 0;

	if (m->engine->gone || m->slot == KVS_SLOT_NONE)
		return 0;
	if (tell_layout(m))
		return -ENOMEM;
	len += n_segs * sizeof(struct kvs_packet_seg);
	p = calloc(1, len);
	if (!p)
		return -ENOMEM;
	p->h.magic = KVS_ATTACH_MAGIC;
	p->h.type = KVS_PACKET_READY;
	p->layout = r->host ? r->host->id : 0;
	p->generation = r->generation;
	p->slot = m->slot;
	p->pool = r->w->o.pool_index;
	p->extent_tokens = r->geo.extent_pages * r->geo.layout->page_size;
	p->n_extents = r->ext.n;
	for (uint32_t i = 0; i < r->ext.n; i++)
		p->off[i] = r->ext.v[i].off;
	p->n_segs = n_segs;
	if (n_segs)
		kvs_cache_segs(r->prefix,
			       (struct kvs_packet_seg *)(p->off + r->ext.n));
	r->w->o.out->to_engine(r->w->o.arg, m->engine->number, m->slot,
			       KVS_WORD(r->generation, 0, KVS_STATUS_READY),
			       &p->h, len);
	free(p);
	return 0;
}

void kvs_room_tell_ready(struct kvs_room *r)
{
	for (uint32_t i = 0; i < r->n_members; i++) {
		if (!kvs_room_tell_member_ready(&r->members[i]))
			continue;
		kvs_room_fail(r, KVS_CAUSE_INTERNAL, ENOMEM,
			      "no memory to hand the room over");
		return;
	}
}

/* Its acknowledgement is awaited and can still come. */
static bool rank_awaited(const struct kvs_room_rank *k)
{
	return k->party.drain && !k->party.poisoned && !k->party.acked &&
	       k->session;
}

void kvs_room_ask_later(struct kvs_room *r)
{
	uint64_t after = r->w->set->hold_reask;
	uint32_t i = 0;

	while (i < r->n_ranks && !rank_awaited(&r->ranks[i]))
		i++;
	if (!after || i == r->n_ranks)
		return;
	if (after < KVS_REASK_MIN)
		after = KVS_REASK_MIN;
	if (kvs_timer_set(&r->w->timers, &r->deadline,
			  kvs_clock_now(r->w->clock) + after))
		KVS_WARN_ONCE(true, "room %llu: no memory to ask again",
			      (unsigned long long)r->id);
}

void kvs_room_ask_again(struct kvs_room *r)
{
	uint32_t n = 0;

	for (uint32_t i = 0; r->w->set->hold_reask && i < r->n_ranks; i++) {
		struct kvs_room_rank *k = &r->ranks[i];
		struct kvs_msg m = {
			.type = KVS_WIRE_ABORT,
			.abort = { .room = r->id,
				   .generation = r->generation,
				   .rank = k->rank,
				   .err = (uint32_t)r->err },
		};

		if (!rank_awaited(k))
			continue;
		snprintf(m.abort.text, sizeof(m.abort.text), "asked again: %s",
			 kvs_cause_name[r->cause]);
		/* It answers each: all but one are not waited for. */
		k->asked_again++;
		k->session->acks_not_awaited++;
		r->w->o.out->to_peer(r->w->o.arg, k->session->id, &m);
		n++;
	}
	if (n)
		kvs_log_info("room %llu gen %llu: %u ranks asked again to "
			     "acknowledge its abort",
			     (unsigned long long)r->id,
			     (unsigned long long)r->generation, n);
	kvs_room_ask_later(r);
}

void kvs_room_log_admitted(const struct kvs_room *r)
{
	uint64_t waited = kvs_clock_now(r->w->clock) - r->admit_at;

	kvs_log_debug("room %llu gen %llu admitted: %llu bytes after %llu us",
		      (unsigned long long)r->id,
		      (unsigned long long)r->generation,
		      (unsigned long long)r->ext.bytes,
		      (unsigned long long)(waited / KVS_NSEC_PER_USEC));
	for (uint32_t i = 0; i < r->ext.n; i++)
		kvs_log_debug("room %llu gen %llu extent %u: %llu bytes at "
			      "%llu",
			      (unsigned long long)r->id,
			      (unsigned long long)r->generation, i,
			      (unsigned long long)r->ext.v[i].len,
			      (unsigned long long)r->ext.v[i].off);
}

void kvs_room_log_held(const struct kvs_room *r)
{
	unsigned int n[KVS_PARTY_MAX] = { 0 };
	const struct kvs_party *p;
	char who[128];
	size_t len = 0;

	kvs_list_for_each_entry(p, &r->drain.parties, node)
		n[p->ops->kind]++;
	for (int k = 0; k < KVS_PARTY_MAX; k++)
		if (n[k])
			len += (size_t)snprintf(who + len, sizeof(who) - len,
						"%s%u x %s", len ? ", " : "",
						n[k], kvs_party_kind_name[k]);
	if (len)
		kvs_log_info("room %llu gen %llu held: %llu bytes, waiting for "
			     "%s",
			     (unsigned long long)r->id,
			     (unsigned long long)r->generation,
			     (unsigned long long)r->ext.bytes, who);
}

void kvs_room_log_left(const struct kvs_room *r, const struct kvs_party *p,
		       enum kvs_proof proof)
{
	bool revoked = proof == KVS_PROOF_GRANT_INVALIDATED ||
		       proof == KVS_PROOF_CONNECTION_TORN_DOWN;

	kvs_log_info("room %llu gen %llu party %s %llu: %s by %s",
		     (unsigned long long)r->id,
		     (unsigned long long)r->generation,
		     kvs_party_kind_name[p->ops->kind],
		     (unsigned long long)p->id,
		     revoked ? "revoked" : "finished", kvs_proof_name[proof]);
}

void kvs_room_log_abandoned(const struct kvs_room *r)
{
	if (r->ext.bytes)
		kvs_log_info("room %llu gen %llu abandoned: %llu bytes; the "
			     "daemon ends, nothing is handed out again",
			     (unsigned long long)r->id,
			     (unsigned long long)r->generation,
			     (unsigned long long)r->ext.bytes);
}

void kvs_room_log_released(const struct kvs_room *r)
{
	const struct kvs_drain *d = &r->drain;

	if (!r->ext.bytes)
		return;
	kvs_log_info("room %llu gen %llu released: %llu bytes, %s by %s after "
		     "%llu us",
		     (unsigned long long)r->id,
		     (unsigned long long)r->generation,
		     (unsigned long long)r->ext.bytes,
		     kvs_drain_outcome_name[kvs_drain_outcome(d)],
		     kvs_proof_name[d->last_proof],
		     (unsigned long long)((d->over_at - d->armed_at) /
					  KVS_NSEC_PER_USEC));
}

uint64_t kvs_room_linear(const struct kvs_room *r, uint32_t extent,
			 uint64_t off)
{
	return extent * r->geo.full_len + off;
}

void kvs_room_first_missing(const struct kvs_room *r,
			    const struct kvs_room_rank *k, char *buf,
			    size_t len)
{
	const struct kvs_layout *l = r->geo.layout;
	uint64_t off, run, hole;

	for (uint32_t e = 0; e < r->geo.n_extents; e++) {
		for (uint32_t b = 0; b < l->n_buffers; b++) {
			uint32_t layer = l->buffers[b].layer;

			if (!kvs_slice_has(&k->slice, l, b) ||
			    kvs_geometry_run(&r->geo, e, b, &off, &run) || !run)
				continue;
			off = kvs_room_linear(r, e, off);
			hole = kvs_ranges_first_hole(&r->claimed, off,
						     off + run);
			if (hole >= off + run)
				continue;
			snprintf(buf, len, "%s layer %u page %llu",
				 kvs_buffer_kind_name(l->buffers[b].kind),
				 layer,
				 (unsigned long long)e * r->geo.extent_pages +
					 (hole - off) / l->buffers[b].item_len);
			return;
		}
	}
	if (!kvs_geometry_aux(&r->geo, k->rank, &off, &run) && run) {
		off = kvs_room_linear(r, r->geo.n_extents - 1, off);
		if (!kvs_ranges_covers(&r->claimed, off, run)) {
			snprintf(buf, len, "aux block of rank %u", k->rank);
			return;
		}
	}
	snprintf(buf, len, "bytes announced but still under way");
}

void kvs_worker_inject(struct kvs_worker *w, struct kvs_room *r)
{
	const struct kvs_layout *l = r->geo.layout;
	uint64_t off, run, items, at;

	/* A bit in every other page of the first extent, buffer by buffer,
	 * until all are spent; what is left is for the next room. */
	if (!kvs_pool_base(w->pool))
		return;
	for (uint32_t b = 0; b < l->n_buffers && w->flips_left; b++) {
		if (kvs_geometry_run(&r->geo, 0, b, &off, &run))
			return;
		items = run / l->buffers[b].item_len;
		for (uint64_t i = b % 2; i < items && w->flips_left; i += 2) {
			at = i * l->buffers[b].item_len +
			     (w->flips_left * 8191u) % l->buffers[b].item_len;
			((unsigned char *)kvs_extent_addr(&r->ext,
							  0))[off + at] ^=
				1u << w->flips_left % 8;
			w->flips_left--;
		}
	}
}
