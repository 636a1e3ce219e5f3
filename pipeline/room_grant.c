/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-sided ranks of a room: what lets them write, how that ends with proof,
 * and how it is seen that they did write (R9). The CPU sees nothing of their
 * writes; what they say of them is their word.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/log.h"
#include "lib/rule.h"
#include "pipeline/layout.h"
#include "pipeline/room_internal.h"
#include "pipeline/worker.h"

/* Begin to close; the answer is kvs_worker_grant_closed(). */
static void grant_close(struct kvs_room_rank *k)
{
	struct kvs_worker *w = k->room->w;

	k->grant = KVS_RANK_CLOSING;
	w->o.out->grant_close(w->o.arg, k);
}

static int grant_revoke(struct kvs_party *p)
{
	struct kvs_room_rank *k =
		kvs_container_of(p, struct kvs_room_rank, party);

	switch (k->grant) {
	case KVS_RANK_OPENING: /* nobody knows its key; closed when open */
	case KVS_RANK_CLOSING:
		return 0;
	case KVS_RANK_OPEN:
	case KVS_RANK_DOUBT:
		grant_close(k);
		return 0;
	case KVS_RANK_NONE:
	case KVS_RANK_CLOSED:
		break;
	}
	KVS_ASSERT(!"a party without a grant");
	return -EINVAL;
}

static const struct kvs_party_ops grant_party_ops = {
	.name = "one-sided rank",
	.kind = KVS_PARTY_RANK,
	.ack_closes = true,
	.revoke = grant_revoke,
};

void kvs_room_canaries(struct kvs_room *r)
{
	struct kvs_worker *w = r->w;

	if (!w->o.one_sided)
		return;
	r->canary.key[0] = kvs_rng_next(&w->rng);
	r->canary.key[1] = kvs_rng_next(&w->rng);
	kvs_canary_write(&r->ext, &r->geo, &r->canary);
	r->canaries = true;
}

int kvs_room_grant_open(struct kvs_room *r, struct kvs_room_rank *k)
{
	struct kvs_worker *w = r->w;
	int ret;

	kvs_party_init(&k->party, &grant_party_ops, k->rank);
	k->grant = KVS_RANK_OPENING;
	ret = w->o.out->grant_open(w->o.arg, k);
	if (ret) {
		k->grant = KVS_RANK_NONE;
		kvs_room_fail(r, KVS_CAUSE_INTERNAL, -ret,
			      "rank %u cannot be granted the memory: %s",
			      k->rank, strerror(-ret));
		return ret;
	}
	KVS_ASSERT(!kvs_drain_join(&r->drain, &k->party));
	return 0;
}

/* Where the rank's buffers begin in an extent, in the order both sides know. */
static int grant_places(const struct kvs_room *r, const struct kvs_room_rank *k,
			struct kvs_msg_grant *g)
{
	const struct kvs_geometry *geo = &r->geo;
	const struct kvs_layout *l = geo->layout;
	struct kvs_grant_place *v = calloc(l->n_buffers, sizeof(*v));
	uint32_t *order = calloc(l->n_buffers, sizeof(*order));
	uint64_t len;
	int ret = -ENOMEM;

	if (!v || !order || kvs_layout_order(l, order))
		goto out_free;
	for (uint32_t i = 0; i < l->n_buffers; i++) {
		struct kvs_grant_place *p = &v[g->n_places];

		if (!kvs_slice_has(&k->slice, l, order[i]))
			continue;
		(void)kvs_geometry_run(geo, 0, order[i], &p->full, &len);
		(void)kvs_geometry_run(geo, geo->n_extents - 1, order[i],
				       &p->last, &len);
		g->n_places++;
	}
	if (geo->aux_len)
		(void)kvs_geometry_aux(geo, k->rank, &g->aux_at, &len);
	g->places = v;
	v = NULL;
	ret = 0;
out_free:
	free(order);
	free(v);
	return ret;
}

/* Its keys may be told, or it must be closed again at once. */
void kvs_worker_grant_opened(struct kvs_worker *w, struct kvs_room_rank *k,
			     int status, const struct kvs_granted *what)
{
	struct kvs_room *r = k->room;
	struct kvs_msg m;

	KVS_ASSERT(k->grant == KVS_RANK_OPENING);
	if (status) {
		k->grant = KVS_RANK_CLOSED;
		kvs_party_leave(&k->party, KVS_PROOF_NEVER_GRANTED);
		kvs_room_fail(r, KVS_CAUSE_INTERNAL, -status,
			      "rank %u cannot be granted the memory: %s",
			      k->rank, strerror(-status));
		return;
	}
	k->grant = KVS_RANK_OPEN;
	if (r->failed || !k->session) {
		grant_close(k);
		return;
	}
	kvs_room_grant_fill(r, k, &m);
	m.grant.keys = what->keys;
	m.grant.n_keys = what->n_keys;
	m.grant.paths = what->paths;
	m.grant.n_paths = what->n_paths;
	if (grant_places(r, k, &m.grant)) {
		kvs_room_fail(r, KVS_CAUSE_INTERNAL, ENOMEM,
			      "no memory for a grant");
		return;
	}
	k->granted = true;
	w->o.out->to_peer(w->o.arg, k->session->id, &m);
	free((void *)m.grant.places);
}

void kvs_worker_grant_closed(struct kvs_worker *w, struct kvs_room_rank *k,
			     int status, bool torn_down)
{
	struct kvs_room *r = k->room;

	/* one that nobody asked to close goes when the transport ends */
	KVS_ASSERT(k->grant != KVS_RANK_NONE && k->grant != KVS_RANK_CLOSED);
	if (!status) {
		k->grant = KVS_RANK_CLOSED;
		/* may end the room; before that its checks go on */
		kvs_party_leave(&k->party,
				torn_down ? KVS_PROOF_CONNECTION_TORN_DOWN
					  : KVS_PROOF_GRANT_INVALIDATED);
		if (r->state == KVS_ROOM_SEALING)
			kvs_room_check_arrival(r);
		return;
	}
	k->grant = KVS_RANK_DOUBT;
	kvs_log_err("room %llu gen %llu: the grant of rank %u cannot be "
		    "closed: %s%s",
		    (unsigned long long)r->id,
		    (unsigned long long)r->generation, k->rank,
		    strerror(-status),
		    k->torn ? "" : "; its connections are torn down");
	kvs_room_fail(r, KVS_CAUSE_INTERNAL, -status,
		      "the grant of rank %u cannot be closed", k->rank);
	if (k->torn) {
		kvs_party_revoke_failed(&k->party);
		return;
	}
	/* The next step: without connections it has no way to write. */
	k->torn = true;
	w->o.out->tear_down(w->o.arg, k->session_id);
}

void kvs_worker_torn_down(struct kvs_worker *w, struct kvs_room_rank *k)
{
	(void)w;
	if (k->grant == KVS_RANK_OPEN || k->grant == KVS_RANK_DOUBT)
		grant_close(k);
}

void kvs_worker_tear_overdue(struct kvs_worker *w, struct kvs_room_rank *k)
{
	(void)w;
	kvs_log_err("room %llu gen %llu: the connections of rank %u do not "
		    "end; its memory is quarantined until they do",
		    (unsigned long long)k->room->id,
		    (unsigned long long)k->room->generation, k->rank);
	kvs_party_revoke_failed(&k->party);
}

void kvs_room_close_grants(struct kvs_room *r)
{
	for (uint32_t i = 0; i < r->n_ranks; i++) {
		struct kvs_room_rank *k = &r->ranks[i];

		if (k->grant == KVS_RANK_OPEN)
			grant_close(k);
		else if (k->grant != KVS_RANK_CLOSING)
			kvs_party_leave(&k->party, KVS_PROOF_RECEIVE_REAPED);
	}
}

/* Over the bytes of a one-sided rank where they lie: they cannot change any
 * more, and could until now. */
static void digest_placed(struct kvs_room *r, struct kvs_room_rank *k)
{
	const struct kvs_layout *l = r->geo.layout;
	uint64_t off, len, at;

	for (uint32_t e = 0; e < r->geo.n_extents; e++) {
		const char *base = kvs_extent_addr(&r->ext, e);

		for (uint32_t b = 0; base && b < l->n_buffers; b++) {
			if (!kvs_slice_has(&k->slice, l, b) ||
			    kvs_geometry_run(&r->geo, e, b, &off, &len) ||
			    !len ||
			    kvs_digest_map_run(&k->map, e, b, 0, len, &at))
				continue;
			(void)kvs_digest_add(&k->digest, at, base + off, len);
		}
	}
	if (!r->geo.aux_len || kvs_geometry_aux(&r->geo, k->rank, &off, &len) ||
	    kvs_digest_map_aux(&k->map, 0, len, &at))
		return;
	(void)kvs_digest_add(
		&k->digest, at,
		(const char *)kvs_extent_addr(&r->ext, r->geo.n_extents - 1) +
			off,
		len);
}

int kvs_room_check_canaries(struct kvs_room *r)
{
	struct kvs_canary_missing missing;
	char where[128];

	for (uint32_t i = 0; i < r->n_ranks; i++)
		if (r->ranks[i].grant != KVS_RANK_NONE &&
		    r->ranks[i].digest.kind != KVS_DIGEST_NONE)
			digest_placed(r, &r->ranks[i]);
	if (!r->canaries || !KVS_RULE(R9, ARRIVED))
		return 0;
	if (!kvs_canary_scan(&r->ext, &r->geo, &r->canary, &missing))
		return 0;
	kvs_canary_describe(&r->geo, &missing, where, sizeof(where));
	kvs_room_fail(r, KVS_CAUSE_MISSING_BYTES, ENODATA,
		      "reported as written, but never arrived: %s", where);
	return -ENODATA;
}
