/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "lib/assert.h"
#include "pipeline/digest.h"
#include "pipeline/geometry.h"
#include "pipeline/layout.h"
#include "tests/unit/pipeline/wire_random.h"

static uint32_t kvs_u32(struct kvs_rng *r, uint64_t lo, uint64_t hi)
{
	return (uint32_t)(lo + kvs_rng_below(r, hi - lo + 1));
}

static uint64_t kvs_nonzero(struct kvs_rng *r)
{
	uint64_t v = kvs_rng_next(r);

	return v ? v : 1;
}

static void kvs_random_bytes(struct kvs_rng *r, unsigned char *to, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = (unsigned char)kvs_rng_next(r);
}

static void kvs_random_text(struct kvs_rng *r, char *text, size_t size,
			    bool may_be_empty)
{
	static const char *const chars[] = { "a",
					     "Z",
					     "0",
					     " ",
					     "-",
					     "/",
					     "\"",
					     "\\",
					     "~",
					     "\303\266",
					     "\342\202\254",
					     "\360\237\230\200" };
	size_t want = kvs_rng_below(r, size);
	size_t used = 0;

	memset(text, 0, size);
	while (used < want || (!used && !may_be_empty)) {
		const char *c = chars[kvs_rng_below(r, KVS_ARRAY_SIZE(chars))];

		if (used + strlen(c) >= size)
			break;
		while (*c)
			text[used++] = *c++;
	}
}

static void kvs_random_hello(struct kvs_rng *r, struct kvs_msg_hello *m)
{
	m->version_min = (uint16_t)kvs_u32(r, 1, 9);
	m->version_max = (uint16_t)kvs_u32(r, m->version_min, 65535);
	m->role = (uint16_t)kvs_u32(r, KVS_ROLE_CONTROL, KVS_ROLE_DATA);
	m->caps = kvs_rng_next(r);
	m->instance = kvs_nonzero(r);
	m->session = kvs_nonzero(r);
	m->n_ranks = kvs_u32(r, 1, KVS_RANKS_MAX);
	m->rank = kvs_u32(r, 0, m->n_ranks - 1);
	if (m->role == KVS_ROLE_DATA)
		m->worker = kvs_u32(r, 0, KVS_WORKERS_MAX - 1);
	if (m->caps & KVS_CAP_PATHS)
		m->paths = (uint16_t)kvs_u32(r, 0, KVS_PATHS_MAX - 1);
	m->keepalive_ms = (uint32_t)kvs_rng_next(r);
	kvs_random_text(r, m->name, sizeof(m->name), false);
}

static void kvs_random_layout(struct kvs_rng *r, uint32_t most,
			      struct kvs_layer_buffer *buffers,
			      struct kvs_layout *l)
{
	uint32_t i, j;

	if (most > KVS_LAYOUT_BUFFERS_MAX)
		most = KVS_LAYOUT_BUFFERS_MAX;
	l->size = sizeof(*l);
	l->page_size = kvs_u32(r, 1, KVS_PAGE_SIZE_MAX);
	l->dtype = kvs_u32(r, 1, KVS_DTYPE_MAX - 1);
	l->n_buffers = kvs_u32(r, 1, most);
	l->buffers = buffers;
	l->aux_max = kvs_u32(r, 0, KVS_AUX_MAX);
	l->capacity = kvs_rng_next(r);
	l->max_context = kvs_rng_next(r);
	for (i = 0; i < l->n_buffers; i++) {
		struct kvs_layer_buffer *b = &buffers[i];

		memset(b, 0, sizeof(*b));
		b->kind = (uint16_t)(i % KVS_BUFFER_KIND_MAX);
		b->layer = (uint16_t)(i / KVS_BUFFER_KIND_MAX * 128);
		b->item_len = kvs_u32(r, 1, 1 << 20);
		if (!kvs_buffer_kind_is_paged(b->kind))
			b->items = kvs_u32(r, 1, 1024);
	}
	for (i = l->n_buffers - 1; i > 0; i--) {
		struct kvs_layer_buffer b = buffers[i];

		j = kvs_u32(r, 0, i);
		buffers[i] = buffers[j];
		buffers[j] = b;
	}
}

static uint64_t kvs_random_place(struct kvs_rng *r)
{
	return (kvs_rng_next(r) & UINT32_MAX) * KVS_RUN_ALIGN;
}

/* As many keys for each. */
static void kvs_random_paths(struct kvs_rng *r, struct kvs_wire_scratch *s,
			     struct kvs_msg_grant *m)
{
	uint32_t most = KVS_WIRE_GRANT_KEYS_MAX / m->n_extents;
	uint32_t first = kvs_u32(r, 0, KVS_PATHS_MAX - 1);
	uint32_t i;

	if (most > KVS_PATHS_MAX)
		most = KVS_PATHS_MAX;
	m->n_paths = kvs_u32(r, 0, most < 4 ? most : 4);
	m->paths = m->n_paths ? s->paths : NULL;
	if (m->n_paths)
		m->n_keys = m->n_extents * m->n_paths;
	for (i = 0; i < m->n_paths; i++)
		s->paths[i] = (uint16_t)((first + 7 * i) % KVS_PATHS_MAX);
}

static void kvs_random_grant(struct kvs_rng *r, uint32_t most,
			     struct kvs_wire_scratch *s,
			     struct kvs_msg_grant *m)
{
	uint64_t pages, extent_pages;
	uint32_t i;

	if (most > KVS_WIRE_GRANT_KEYS_MAX)
		most = KVS_WIRE_GRANT_KEYS_MAX;
	m->worker = kvs_u32(r, 0, KVS_WORKERS_MAX - 1);
	m->page_size = kvs_u32(r, 1, 256);
	extent_pages = kvs_u32(r, 1, 64);
	m->extent_tokens = (uint32_t)(extent_pages * m->page_size);
	m->n_extents = kvs_u32(r, 1, most);
	pages = (uint64_t)(m->n_extents - 1) * extent_pages +
		kvs_u32(r, 1, extent_pages);
	m->tokens = (pages - 1) * m->page_size + kvs_u32(r, 1, m->page_size);
	if (m->tokens > KVS_TOKENS_MAX) {
		m->n_extents = 1;
		m->tokens = 1;
	}
	m->first_layer = kvs_u32(r, 0, 65536);
	m->n_layers = kvs_u32(r, 0, 65536 - m->first_layer);
	m->aux_len = kvs_u32(r, 0, KVS_AUX_MAX);
	m->call_timeout_ms = kvs_u32(r, 0, UINT32_MAX);
	m->batch_bytes = kvs_rng_next(r);
	if (kvs_rng_below(r, 2)) {
		m->n_keys = m->n_extents;
		m->keys = s->keys;
		m->n_places = kvs_u32(r, 0, most);
		m->places = m->n_places ? s->places : NULL;
		m->aux_at = kvs_random_place(r);
		kvs_random_paths(r, s, m);
	}
	for (i = 0; i < m->n_keys; i++) {
		s->keys[i].addr = kvs_rng_next(r);
		s->keys[i].rkey = (uint32_t)kvs_rng_next(r);
	}
	for (i = 0; i < m->n_places; i++) {
		s->places[i].full = kvs_random_place(r);
		s->places[i].last = kvs_random_place(r);
	}
}

static void kvs_random_chunk(struct kvs_rng *r, struct kvs_msg_chunk *m)
{
	uint64_t most = KVS_PAYLOAD_MAX;

	m->kind = (uint16_t)kvs_u32(r, 0, KVS_BUFFER_KIND_MAX - 1);
	m->layer = (uint16_t)kvs_rng_next(r);
	if (!kvs_rng_below(r, 4)) {
		m->kind = KVS_KIND_AUX;
		m->layer = (uint16_t)m->rank;
		most = KVS_AUX_MAX;
	}
	m->extent = kvs_u32(r, 0, KVS_EXTENTS_MAX - 1);
	m->len = kvs_u32(r, 1, most);
	m->offset = kvs_rng_below(r, most - m->len + 1);
}

void kvs_wire_random(struct kvs_rng *r, enum kvs_wire_type type, uint32_t most,
		     struct kvs_wire_scratch *s, struct kvs_msg *m)
{
	uint64_t room = kvs_nonzero(r), generation = kvs_nonzero(r);
	uint32_t rank = kvs_u32(r, 0, KVS_RANKS_MAX - 1);

	memset(m, 0, sizeof(*m));
	m->type = type;
	switch (type) {
	case KVS_WIRE_HELLO:
		kvs_random_hello(r, &m->hello);
		break;
	case KVS_WIRE_LAYOUT:
		kvs_random_layout(r, most, s->buffers, &m->layout.l);
		break;
	case KVS_WIRE_OPEN:
		m->open.room = room;
		m->open.generation = kvs_rng_below(r, 2) ? generation : 0;
		m->open.rank = rank;
		m->open.tokens = kvs_u32(r, 1, KVS_TOKENS_MAX);
		kvs_random_bytes(r, m->open.nonce, sizeof(m->open.nonce));
		break;
	case KVS_WIRE_GRANT:
		m->grant.room = room;
		m->grant.generation = generation;
		m->grant.rank = rank;
		kvs_random_grant(r, most, s, &m->grant);
		break;
	case KVS_WIRE_REFUSE:
		m->refuse.room = room;
		m->refuse.generation = kvs_rng_below(r, 2) ? generation : 0;
		m->refuse.rank = rank;
		m->refuse.err = kvs_u32(r, 1, 4095);
		m->refuse.class = kvs_rng_below(r, 2) ? 400 : 503;
		kvs_random_text(r, m->refuse.text, KVS_WIRE_TEXT, true);
		break;
	case KVS_WIRE_CHUNK:
	case KVS_WIRE_CHUNK_DONE:
		m->chunk.room = room;
		m->chunk.generation = generation;
		m->chunk.rank = rank;
		kvs_random_chunk(r, &m->chunk);
		break;
	case KVS_WIRE_LAST:
		m->last.room = room;
		m->last.generation = generation;
		m->last.rank = rank;
		m->last.bytes = kvs_rng_below(r, 1ULL << 41);
		m->last.digest_kind =
			(uint16_t)kvs_rng_below(r, KVS_DIGEST_KIND_MAX);
		if (m->last.digest_kind != KVS_DIGEST_NONE)
			m->last.digest = (uint32_t)kvs_rng_next(r);
		break;
	case KVS_WIRE_COMPLETE:
		m->complete.room = room;
		m->complete.generation = generation;
		m->complete.rank = rank;
		break;
	case KVS_WIRE_ABORT:
	case KVS_WIRE_ABORT_ACK:
	case KVS_WIRE_ABORT_NAK:
		m->abort.room = room;
		m->abort.generation = generation;
		m->abort.rank = rank;
		m->abort.err = kvs_u32(r, type != KVS_WIRE_ABORT_ACK, 4095);
		kvs_random_text(r, m->abort.text, KVS_WIRE_TEXT, true);
		break;
	case KVS_WIRE_ERROR:
		m->error.err = kvs_u32(r, 1, 4095);
		kvs_random_text(r, m->error.text, KVS_WIRE_TEXT, true);
		break;
	case KVS_WIRE_KEEPALIVE:
		m->keepalive.seq = kvs_rng_next(r);
		m->keepalive.reply = kvs_u32(r, 0, 1);
		break;
	case KVS_WIRE_CHALLENGE:
		kvs_random_bytes(r, m->challenge.nonce, KVS_AUTH_NONCE);
		break;
	case KVS_WIRE_RESPONSE:
		kvs_random_bytes(r, m->response.nonce, KVS_AUTH_NONCE);
		kvs_random_bytes(r, m->response.mac, KVS_AUTH_MAC);
		break;
	case KVS_WIRE_PROOF:
		kvs_random_bytes(r, m->proof.mac, KVS_AUTH_MAC);
		break;
	case KVS_WIRE_TYPE_MAX:
		KVS_ASSERT(0);
	}
}

static bool kvs_equal_layout(const struct kvs_layout *a,
			     const struct kvs_layout *b)
{
	uint32_t i;

	if (a->size != b->size || a->page_size != b->page_size ||
	    a->dtype != b->dtype || a->n_buffers != b->n_buffers ||
	    a->aux_max != b->aux_max || a->capacity != b->capacity ||
	    a->max_context != b->max_context)
		return false;
	for (i = 0; i < a->n_buffers; i++) {
		const struct kvs_layer_buffer *x = &a->buffers[i];
		const struct kvs_layer_buffer *y = &b->buffers[i];

		if (x->kind != y->kind || x->layer != y->layer ||
		    x->item_len != y->item_len || x->items != y->items)
			return false;
	}
	return true;
}

static bool kvs_equal_grant(const struct kvs_msg_grant *a,
			    const struct kvs_msg_grant *b)
{
	uint32_t i;

	if (a->room != b->room || a->generation != b->generation ||
	    a->rank != b->rank || a->worker != b->worker ||
	    a->tokens != b->tokens || a->page_size != b->page_size ||
	    a->extent_tokens != b->extent_tokens ||
	    a->n_extents != b->n_extents || a->first_layer != b->first_layer ||
	    a->n_layers != b->n_layers || a->aux_len != b->aux_len ||
	    a->call_timeout_ms != b->call_timeout_ms ||
	    a->batch_bytes != b->batch_bytes || a->n_keys != b->n_keys ||
	    a->n_places != b->n_places || a->n_paths != b->n_paths ||
	    a->aux_at != b->aux_at)
		return false;
	for (i = 0; i < a->n_paths; i++)
		if (a->paths[i] != b->paths[i])
			return false;
	for (i = 0; i < a->n_places; i++) {
		if (a->places[i].full != b->places[i].full ||
		    a->places[i].last != b->places[i].last)
			return false;
	}
	for (i = 0; i < a->n_keys; i++) {
		if (a->keys[i].addr != b->keys[i].addr ||
		    a->keys[i].rkey != b->keys[i].rkey)
			return false;
	}
	return true;
}

bool kvs_wire_equal(const struct kvs_msg *a, const struct kvs_msg *b)
{
	if (a->type != b->type)
		return false;
	switch (a->type) {
	case KVS_WIRE_HELLO:
		return a->hello.version_min == b->hello.version_min &&
		       a->hello.version_max == b->hello.version_max &&
		       a->hello.role == b->hello.role &&
		       a->hello.caps == b->hello.caps &&
		       a->hello.instance == b->hello.instance &&
		       a->hello.session == b->hello.session &&
		       a->hello.rank == b->hello.rank &&
		       a->hello.n_ranks == b->hello.n_ranks &&
		       a->hello.worker == b->hello.worker &&
		       a->hello.paths == b->hello.paths &&
		       a->hello.keepalive_ms == b->hello.keepalive_ms &&
		       !strcmp(a->hello.name, b->hello.name);
	case KVS_WIRE_LAYOUT:
		return kvs_equal_layout(&a->layout.l, &b->layout.l);
	case KVS_WIRE_OPEN:
		return a->open.room == b->open.room &&
		       a->open.generation == b->open.generation &&
		       a->open.rank == b->open.rank &&
		       a->open.tokens == b->open.tokens &&
		       !memcmp(a->open.nonce, b->open.nonce,
			       sizeof(a->open.nonce));
	case KVS_WIRE_GRANT:
		return kvs_equal_grant(&a->grant, &b->grant);
	case KVS_WIRE_REFUSE:
		return a->refuse.room == b->refuse.room &&
		       a->refuse.generation == b->refuse.generation &&
		       a->refuse.rank == b->refuse.rank &&
		       a->refuse.err == b->refuse.err &&
		       a->refuse.class == b->refuse.class &&
		       !strcmp(a->refuse.text, b->refuse.text);
	case KVS_WIRE_CHUNK:
	case KVS_WIRE_CHUNK_DONE:
		return a->chunk.room == b->chunk.room &&
		       a->chunk.generation == b->chunk.generation &&
		       a->chunk.rank == b->chunk.rank &&
		       a->chunk.extent == b->chunk.extent &&
		       a->chunk.kind == b->chunk.kind &&
		       a->chunk.layer == b->chunk.layer &&
		       a->chunk.offset == b->chunk.offset &&
		       a->chunk.len == b->chunk.len;
	case KVS_WIRE_LAST:
		return a->last.room == b->last.room &&
		       a->last.generation == b->last.generation &&
		       a->last.rank == b->last.rank &&
		       a->last.bytes == b->last.bytes &&
		       a->last.digest_kind == b->last.digest_kind &&
		       a->last.digest == b->last.digest;
	case KVS_WIRE_COMPLETE:
		return a->complete.room == b->complete.room &&
		       a->complete.generation == b->complete.generation &&
		       a->complete.rank == b->complete.rank;
	case KVS_WIRE_ABORT:
	case KVS_WIRE_ABORT_ACK:
	case KVS_WIRE_ABORT_NAK:
		return a->abort.room == b->abort.room &&
		       a->abort.generation == b->abort.generation &&
		       a->abort.rank == b->abort.rank &&
		       a->abort.err == b->abort.err &&
		       !strcmp(a->abort.text, b->abort.text);
	case KVS_WIRE_ERROR:
		return a->error.err == b->error.err &&
		       !strcmp(a->error.text, b->error.text);
	case KVS_WIRE_KEEPALIVE:
		return a->keepalive.seq == b->keepalive.seq &&
		       a->keepalive.reply == b->keepalive.reply;
	case KVS_WIRE_CHALLENGE:
		return !memcmp(&a->challenge, &b->challenge,
			       sizeof(a->challenge));
	case KVS_WIRE_RESPONSE:
		return !memcmp(&a->response, &b->response, sizeof(a->response));
	case KVS_WIRE_PROOF:
		return !memcmp(&a->proof, &b->proof, sizeof(a->proof));
	case KVS_WIRE_TYPE_MAX:
		break;
	}
	return false;
}
