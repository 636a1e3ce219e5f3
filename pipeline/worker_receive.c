/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data side of a worker: which bytes of which extent a chunk may be
 * written to, and what its end means. Every field of a chunk is checked here
 * before a byte of it is received.
 */
#include <errno.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/rule.h"
#include "pipeline/layout.h"
#include "pipeline/room_internal.h"
#include "pipeline/worker.h"

/* The only thing that writes on TCP: told to stop, its end is the proof. */
static int receive_revoke(struct kvs_party *p)
{
	struct kvs_receive *rx = kvs_container_of(p, struct kvs_receive, party);
	struct kvs_worker *w = rx->room->w;

	w->o.out->stop_receive(w->o.arg, rx);
	return 0;
}

static const struct kvs_party_ops receive_party_ops = {
	.name = "receive",
	.kind = KVS_PARTY_RECEIVE,
	.revoke = receive_revoke,
};

/* A launched read cannot be called back; without its connection it ends. */
static int read_revoke(struct kvs_party *p)
{
	struct kvs_receive *rx = kvs_container_of(p, struct kvs_receive, party);
	struct kvs_worker *w = rx->room->w;

	w->o.out->tear_down(w->o.arg, rx->rank->session_id);
	return 0;
}

static const struct kvs_party_ops read_party_ops = {
	.name = "read",
	.kind = KVS_PARTY_READ,
	.revoke = read_revoke,
};

/* Where a chunk lies: offset in the extent. 0 or -ERANGE. */
static int chunk_place(const struct kvs_room *r, const struct kvs_room_rank *k,
		       const struct kvs_msg_chunk *m, uint64_t *ret_off)
{
	uint64_t off, run;
	int b;

	if (m->extent >= r->geo.n_extents)
		return -ERANGE;
	if (m->kind == KVS_KIND_AUX) {
		if (m->layer != k->rank || m->extent != r->geo.n_extents - 1 ||
		    kvs_geometry_aux(&r->geo, k->rank, &off, &run))
			return -ERANGE;
	} else {
		b = kvs_slice_find(&k->slice, r->geo.layout, m->kind, m->layer);
		if (b < 0 || kvs_geometry_run(&r->geo, m->extent, (uint32_t)b,
					      &off, &run))
			return -ERANGE;
	}
	if (m->len == 0 || m->offset > run || m->len > run - m->offset)
		return -ERANGE;
	*ret_off = off + m->offset;
	return 0;
}

/* R9: of what a rank wrote by itself only the last bytes of each item are
 * looked at, and they stand for an item that was written at once. */
static bool chunk_whole(const struct kvs_room *r, const struct kvs_room_rank *k,
			const struct kvs_msg_chunk *m)
{
	const struct kvs_layout *l = r->geo.layout;
	uint32_t item;

	if (m->kind == KVS_KIND_AUX)
		return m->len == r->geo.aux_len;
	item = l->buffers[kvs_slice_find(&k->slice, r->geo.layout, m->kind,
					 m->layer)]
		       .item_len;
	return m->offset % item == 0 && m->len % item == 0;
}

/* Where the same chunk lies in the stream that the rank's digest is of. */
static int chunk_stream(const struct kvs_room_rank *k,
			const struct kvs_msg_chunk *m, uint64_t *ret_at)
{
	if (k->digest.kind == KVS_DIGEST_NONE)
		return 0;
	if (m->kind == KVS_KIND_AUX)
		return kvs_digest_map_aux(&k->map, m->offset, m->len, ret_at);
	return kvs_digest_map_run(&k->map, m->extent,
				  (uint32_t)kvs_slice_find(&k->slice,
							   k->map.layout,
							   m->kind, m->layer),
				  m->offset, m->len, ret_at);
}

static int receive_violation(struct kvs_worker *w, uint64_t session,
			     enum kvs_proto_error reason, const char *why,
			     enum kvs_proto_error *ret_reason)
{
	w->stats.protocol_errors[reason]++;
	*ret_reason = reason;
	w->o.out->close_session(w->o.arg, session, -EPROTO, why);
	return -EPROTO;
}

/*
 * Claim the bytes of a chunk for the rank that sends it. *ret_k is NULL when
 * the room is over, which is nobody's fault. 0; -EPROTO the session is closed.
 */
static int chunk_claim(struct kvs_worker *w, uint64_t session,
		       const struct kvs_msg_chunk *m, bool written,
		       struct kvs_room_rank **ret_k, uint64_t *ret_off,
		       uint64_t *ret_stream, enum kvs_proto_error *ret_reason)
{
	struct kvs_worker_session *s = kvs_u64map_get(&w->sessions, session);
	struct kvs_room *r = kvs_u64map_get(&w->rooms, m->generation);
	struct kvs_room_rank *k;
	int ret;

	*ret_k = NULL;
	if (!r || !s || r->state != KVS_ROOM_RECEIVING) {
		/* R10: the bytes of a room that is over land nowhere. */
		w->stats.late_bytes += m->len;
		return 0;
	}
	if (s->one_sided != written)
		return receive_violation(w, session, KVS_PROTO_ORDER,
					 written ? "CHUNK_DONE on a transport "
						   "that is not one-sided"
						 : "CHUNK of a rank that "
						   "writes by itself",
					 ret_reason);
	if (r->id != m->room || m->rank >= r->n_ranks ||
	    r->ranks[m->rank].session != s)
		return receive_violation(w, session, KVS_PROTO_FOREIGN,
					 "chunk for a room of somebody else",
					 ret_reason);
	/* LAST may have come already: it travels on the control connection
	 * and overtakes chunks. Its total is what was granted, so a byte too
	 * many lies outside, or overlaps. */
	k = &r->ranks[m->rank];
	if (chunk_place(r, k, m, ret_off) || chunk_stream(k, m, ret_stream))
		return receive_violation(w, session, KVS_PROTO_RANGE,
					 "chunk outside what was granted",
					 ret_reason);
	if (written && !chunk_whole(r, k, m))
		return receive_violation(w, session, KVS_PROTO_RANGE,
					 "a page was written in pieces",
					 ret_reason);
	ret = kvs_ranges_add(&r->claimed,
			     kvs_room_linear(r, m->extent, *ret_off), m->len);
	if (ret == -EEXIST &&
	    kvs_ranges_covers(&r->claimed,
			      kvs_room_linear(r, m->extent, *ret_off),
			      m->len)) {
		/* A piece that came before: the first one counts, and this
		 * one lands nowhere. */
		w->stats.chunks_repeated++;
		return 0;
	}
	if (ret == -EEXIST)
		return receive_violation(w, session, KVS_PROTO_OVERLAP,
					 "a chunk overlaps another",
					 ret_reason);
	if (ret) {
		kvs_room_fail(r, KVS_CAUSE_INTERNAL,
			      ret == -E2BIG ? EPROTO : -ret,
			      "rank %u: more than transfer.max_ranges separate "
			      "pieces, or no memory for them",
			      k->rank);
		w->stats.late_bytes += m->len;
		return 0;
	}
	*ret_k = k;
	return 0;
}

/* A chunk ended: one of those that hold.timeout has to outlast? */
static void chunk_late(struct kvs_worker *w, uint64_t generation, uint32_t rank)
{
	uint64_t ns;

	if (kvs_aborts_chunk(&w->aborts, generation, rank,
			     kvs_clock_now(w->clock), &ns))
		kvs_hist_record(&w->stats.abort_remaining, ns);
}

int kvs_worker_written(struct kvs_worker *w, uint64_t session, uint64_t conn,
		       const struct kvs_msg_chunk *m,
		       enum kvs_proto_error *ret_reason)
{
	struct kvs_room_rank *k;
	uint64_t off, stream;
	int ret;

	ret = chunk_claim(w, session, m, true, &k, &off, &stream, ret_reason);
	if (k) {
		k->conns |= conn;
		kvs_room_placed(k->room, k, m->len);
	} else if (!ret) {
		chunk_late(w, m->generation, m->rank);
	}
	return ret;
}

int kvs_worker_receive_begin(struct kvs_worker *w, uint64_t session,
			     const struct kvs_msg_chunk *m,
			     struct kvs_receive *rx, void **ret_addr,
			     enum kvs_proto_error *ret_reason)
{
	struct kvs_room_rank *k;
	struct kvs_room *r;
	uint64_t off;
	int ret;

	rx->room = NULL;
	rx->len = m->len;
	rx->generation = m->generation;
	rx->sender = m->rank;
	rx->begun = kvs_clock_now(w->clock);
	*ret_addr = NULL;
	ret = chunk_claim(w, session, m, false, &k, &off, &rx->stream_at,
			  ret_reason);
	if (!k)
		return ret;
	r = k->room;
	kvs_party_init(&rx->party,
		       rx->read ? &read_party_ops : &receive_party_ops,
		       k->rank);
	if (KVS_RULE(R1, RECEIVE))
		KVS_ASSERT(!kvs_drain_join(&r->drain, &rx->party));
	rx->room = r;
	rx->rank = k;
	kvs_list_add_tail(&r->receives, &rx->node);
	*ret_addr = (char *)kvs_extent_addr(&r->ext, m->extent) + off;
	rx->addr = *ret_addr;
	return 0;
}

static bool rank_receiving(const struct kvs_room_rank *k)
{
	const struct kvs_receive *rx;

	kvs_list_for_each_entry(rx, &k->room->receives, node)
		if (rx->rank == k)
			return true;
	return false;
}

void kvs_worker_receive_end(struct kvs_worker *w, struct kvs_receive *rx,
			    int status, uint64_t got)
{
	struct kvs_room *r = rx->room;
	struct kvs_room_rank *k = rx->rank;

	if (!r) {
		/* counted when it began, and dropped */
		chunk_late(w, rx->generation, rx->sender);
		return;
	}
	rx->room = NULL;
	kvs_list_del(&rx->node);
	if (r->failed) {
		chunk_late(w, rx->generation, rx->sender);
		w->stats.late_bytes += rx->len;
		/* A revoked rank is finished once nothing of it is received;
		 * its party leaves first, as the drain may end the room. */
		if (k->party.drain && k->party.revoking && !rank_receiving(k))
			kvs_party_leave(&k->party, KVS_PROOF_GRANT_INVALIDATED);
		kvs_party_leave(&rx->party, KVS_PROOF_RECEIVE_REAPED);
		return;
	}
	kvs_party_leave(&rx->party, KVS_PROOF_RECEIVE_REAPED);
	if (!status && got == rx->len) {
		kvs_hist_record(&w->stats.call,
				kvs_clock_now(w->clock) - rx->begun);
		/* While the bytes are hot; the place was checked before. */
		if (k->digest.kind != KVS_DIGEST_NONE)
			(void)kvs_digest_add(&k->digest, rx->stream_at,
					     rx->addr, rx->len);
		kvs_room_placed(r, k, got);
		return;
	}
	if (!KVS_RULE(R7, RECEIVE_FAILED))
		return;
	kvs_room_fail(r, KVS_CAUSE_PEER_LOST, ECONNRESET,
		      "rank %u: connection ended %llu bytes into a chunk of "
		      "%llu",
		      k->rank, (unsigned long long)got,
		      (unsigned long long)rx->len);
}
