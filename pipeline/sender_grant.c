/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a one-sided rank writes to: the keys of a GRANT, and the place of each
 * of its buffers in the daemon's extents. What is wrong here is refused by the
 * far side, so the checks are for a clear message.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/layout.h"
#include "pipeline/sender_internal.h"

void kvs_send_remote_fini(struct kvs_send_remote *t)
{
	free(t->keys);
	free(t->places);
	*t = (struct kvs_send_remote){ 0 };
}

/* Buffers of the layers that this rank is to send. */
static uint32_t slice_buffers(const struct kvs_layout *l,
			      const struct kvs_msg_grant *g)
{
	const struct kvs_slice s = kvs_send_slice(g);
	uint32_t n = 0;

	for (uint32_t i = 0; i < l->n_buffers; i++)
		n += kvs_slice_has(&s, l, i);
	return n;
}

/* The daemon's places are in the order of kvs_layout_order() of those in the
 * slice; ours are by index in our own layout. */
static int remote_places(struct kvs_send_remote *t, const struct kvs_layout *l,
			 const struct kvs_msg_grant *g)
{
	uint32_t *order = calloc(l->n_buffers, sizeof(*order));
	const struct kvs_slice s = kvs_send_slice(g);
	uint32_t at = 0;

	if (!order || kvs_layout_order(l, order)) {
		free(order);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < l->n_buffers; i++)
		if (kvs_slice_has(&s, l, order[i]))
			t->places[order[i]] = g->places[at++];
	free(order);
	return 0;
}

const char *kvs_send_remote_init(struct kvs_send_remote *t,
				 const struct kvs_layout *l, bool one_sided,
				 const struct kvs_msg_grant *g)
{
	if (!one_sided)
		return g->n_keys ? "GRANT: memory keys on a transport without "
				   "any"
				 : NULL;
	if (!slice_buffers(l, g) && !g->aux_len)
		return NULL; /* a zero-byte rank */
	if (!g->n_keys)
		return "GRANT: no memory keys on a one-sided transport";
	t->n_paths = g->n_paths;
	for (uint32_t i = 0; i < g->n_paths; i++) {
		t->path[i] = g->paths[i];
		t->paths |= 1ULL << g->paths[i];
	}
	if (g->n_places != slice_buffers(l, g))
		return "GRANT: another number of buffers than this rank has "
		       "in its layers";
	t->keys = calloc(g->n_keys, sizeof(*t->keys));
	t->places = calloc(l->n_buffers, sizeof(*t->places));
	if (!t->keys || !t->places || remote_places(t, l, g))
		return "out of memory for the keys of a GRANT";
	memcpy(t->keys, g->keys, g->n_keys * sizeof(*t->keys));
	t->last = g->n_extents - 1;
	t->aux_at = g->aux_at;
	return NULL;
}

int kvs_send_remote_key(const struct kvs_send_remote *t,
			const struct kvs_layout *l,
			const struct kvs_msg_chunk *m, uint32_t path,
			struct kvs_grant_key *ret)
{
	const struct kvs_grant_key *key;
	uint32_t i = 0;
	uint64_t at;
	int b;

	if (!t->keys || m->extent > t->last)
		return -ERANGE;
	while (i < t->n_paths && t->path[i] != path)
		i++;
	if (t->n_paths && i == t->n_paths)
		return -ERANGE;
	if (m->kind == KVS_KIND_AUX) {
		at = t->aux_at;
	} else {
		b = kvs_layout_find(l, m->kind, m->layer);
		if (b < 0)
			return -ERANGE;
		at = m->extent == t->last ? t->places[b].last
					  : t->places[b].full;
	}
	key = &t->keys[(uint64_t)i * (t->last + 1) + m->extent];
	ret->rkey = key->rkey;
	ret->addr = key->addr + at + m->offset;
	return 0;
}
