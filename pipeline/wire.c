/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "lib/assert.h"
#include "pipeline/digest.h"
#include "pipeline/geometry.h"
#include "pipeline/layout.h"
#include "pipeline/wire.h"
#include "pipeline/wire_check.h"
#include "pipeline/wire_structs.h"
#include "pipeline/wire_text.h"

static_assert(KVS_WIRE_GRANT_KEYS_MAX == KVS_EXTENTS_MAX, "a key an extent");

/* Reasons of decoding alone, in the order the checks are made; those that are
 * of values too are in wire_check.c. */
static const char kvs_short[] = "short";
static const char kvs_magic[] = "magic";
static const char kvs_length[] = "length";
static const char kvs_flags[] = "flags";
static const char kvs_payload[] = "payload";

#define KVS_NAME_(n, v) [v] = #n,
static const char *const kvs_type_names[] = { [0] = "?",
					      KVS_WIRE_TYPES(KVS_NAME_) };
#undef KVS_NAME_
static_assert(KVS_ARRAY_SIZE(kvs_type_names) == KVS_WIRE_TYPE_MAX,
	      "every type");

const char *kvs_wire_type_name(unsigned int type)
{
	return type < KVS_WIRE_TYPE_MAX ? kvs_type_names[type] : "?";
}

/* Fixed part of each message, frame header included. */
static const uint16_t kvs_sizes[] = {
	[KVS_WIRE_HELLO] = sizeof(struct kvs_wire_hello),
	[KVS_WIRE_LAYOUT] = sizeof(struct kvs_wire_layout),
	[KVS_WIRE_OPEN] = sizeof(struct kvs_wire_open),
	[KVS_WIRE_GRANT] = sizeof(struct kvs_wire_grant),
	[KVS_WIRE_REFUSE] = sizeof(struct kvs_wire_refuse),
	[KVS_WIRE_CHUNK] = sizeof(struct kvs_wire_chunk),
	[KVS_WIRE_CHUNK_DONE] = sizeof(struct kvs_wire_chunk),
	[KVS_WIRE_LAST] = sizeof(struct kvs_wire_last),
	[KVS_WIRE_COMPLETE] = sizeof(struct kvs_wire_complete),
	[KVS_WIRE_ABORT] = sizeof(struct kvs_wire_abort),
	[KVS_WIRE_ABORT_ACK] = sizeof(struct kvs_wire_abort),
	[KVS_WIRE_ABORT_NAK] = sizeof(struct kvs_wire_abort),
	[KVS_WIRE_ERROR] = sizeof(struct kvs_wire_error),
	[KVS_WIRE_KEEPALIVE] = sizeof(struct kvs_wire_keepalive),
	[KVS_WIRE_CHALLENGE] = sizeof(struct kvs_wire_challenge),
	[KVS_WIRE_RESPONSE] = sizeof(struct kvs_wire_response),
	[KVS_WIRE_PROOF] = sizeof(struct kvs_wire_proof),
};
static_assert(KVS_ARRAY_SIZE(kvs_sizes) == KVS_WIRE_TYPE_MAX, "every type");

/* The body of any message at an address fit for its 64-bit fields. */
union kvs_wire_any {
	struct kvs_frame frame;
	struct kvs_wire_hello hello;
	struct kvs_wire_layout layout;
	struct kvs_wire_open open;
	struct kvs_wire_grant grant;
	struct kvs_wire_refuse refuse;
	struct kvs_wire_chunk chunk;
	struct kvs_wire_last last;
	struct kvs_wire_complete complete;
	struct kvs_wire_abort abort;
	struct kvs_wire_error error;
	struct kvs_wire_keepalive keepalive;
	struct kvs_wire_challenge challenge;
	struct kvs_wire_response response;
	struct kvs_wire_proof proof;
};

/* Decoding: each takes the copied fixed part and, for arrays, what follows. */

static const char *kvs_get_hello(const struct kvs_wire_hello *w,
				 struct kvs_msg_hello *m)
{
	m->paths = kvs_get16(w->paths);
	m->version_min = kvs_get16(w->version_min);
	m->version_max = kvs_get16(w->version_max);
	m->role = kvs_get16(w->role);
	m->caps = kvs_get64(w->caps);
	m->instance = kvs_get64(w->instance);
	m->session = kvs_get64(w->session);
	m->rank = kvs_get32(w->rank);
	m->n_ranks = kvs_get32(w->n_ranks);
	m->worker = kvs_get32(w->worker);
	m->keepalive_ms = kvs_get32(w->keepalive_ms);
	memcpy(m->name, w->name, sizeof(m->name));
	return NULL;
}

static void kvs_get_cuts(const unsigned char *at, uint32_t n,
			 struct kvs_buffer_cut *ret)
{
	for (uint32_t i = 0; i < n; i++) {
		struct kvs_wire_cut c;

		memcpy(&c, at + i * sizeof(c), sizeof(c));
		ret[i] = (struct kvs_buffer_cut){ .heads = c.heads,
						  .planes = c.planes };
	}
}

static const char *kvs_get_layout(const struct kvs_wire_layout *w,
				  const unsigned char *array, size_t left,
				  struct kvs_wire_scratch *s,
				  struct kvs_layout *l)
{
	struct kvs_layer_buffer *buffers = s->buffers;
	uint32_t n = kvs_get16(w->n_buffers), i;
	size_t each = sizeof(struct kvs_wire_buffer);
	char err[KVS_WIRE_TEXT];

	l->tp = kvs_get16(w->tp);
	l->tp_rank = kvs_get16(w->tp_rank);
	if (l->tp)
		each += sizeof(struct kvs_wire_cut);
	else if (l->tp_rank)
		return kvs_wire_bad_value;
	if (!n || n > KVS_LAYOUT_BUFFERS_MAX || left != n * each)
		return kvs_wire_bad_count;
	l->size = sizeof(*l);
	l->page_size = kvs_get32(w->page_size);
	l->dtype = kvs_get16(w->dtype);
	l->n_buffers = n;
	l->buffers = buffers;
	l->aux_max = kvs_get32(w->aux_max);
	l->capacity = kvs_get64(w->capacity);
	l->max_context = kvs_get64(w->max_context);
	for (i = 0; i < n; i++) {
		struct kvs_wire_buffer b;

		memcpy(&b, array + i * sizeof(b), sizeof(b));
		buffers[i].kind = kvs_get16(b.kind);
		buffers[i].layer = kvs_get16(b.layer);
		buffers[i].item_len = kvs_get32(b.item_len);
		buffers[i].items = kvs_get32(b.items);
	}
	l->cuts = l->tp ? s->cuts : NULL;
	if (l->tp)
		kvs_get_cuts(array + n * sizeof(struct kvs_wire_buffer), n,
			     s->cuts);
	return kvs_layout_check_foreign(l, err, sizeof(err))
		       ? kvs_wire_bad_value
		       : NULL;
}

static const char *kvs_get_open(const struct kvs_wire_open *w,
				struct kvs_msg_open *m)
{
	if (kvs_get32(w->reserved))
		return kvs_wire_bad_value;
	m->room = kvs_get64(w->room);
	m->generation = kvs_get64(w->generation);
	memcpy(m->nonce, w->nonce, sizeof(m->nonce));
	m->tokens = kvs_get64(w->tokens);
	m->rank = kvs_get32(w->rank);
	return NULL;
}

static void kvs_get_keys(const unsigned char *array, uint32_t n,
			 struct kvs_grant_key *ret)
{
	struct kvs_wire_key k;

	for (uint32_t i = 0; i < n; i++) {
		memcpy(&k, array + i * sizeof(k), sizeof(k));
		ret[i].addr = (uint64_t)kvs_get32(k.addr_high) << 32 |
			      kvs_get32(k.addr_low);
		ret[i].rkey = kvs_get32(k.rkey);
	}
}

static void kvs_get_places(const unsigned char *array, uint32_t n,
			   struct kvs_grant_place *ret)
{
	struct kvs_wire_place p;

	for (uint32_t i = 0; i < n; i++) {
		memcpy(&p, array + i * sizeof(p), sizeof(p));
		ret[i].full = (uint64_t)kvs_get32(p.full) * KVS_RUN_ALIGN;
		ret[i].last = (uint64_t)kvs_get32(p.last) * KVS_RUN_ALIGN;
	}
}

static bool kvs_get_paths(const unsigned char *array, uint32_t n, uint16_t *ret)
{
	struct kvs_wire_path p;

	for (uint32_t i = 0; i < n; i++) {
		memcpy(&p, array + i * sizeof(p), sizeof(p));
		ret[i] = kvs_get16(p.path);
		if (kvs_get16(p.reserved))
			return false;
	}
	return true;
}

static const char *kvs_get_grant(const struct kvs_wire_grant *w,
				 const unsigned char *array, size_t left,
				 struct kvs_wire_scratch *s,
				 struct kvs_msg_grant *m)
{
	uint32_t n = kvs_get32(w->n_keys);
	uint32_t n_places = kvs_get16(w->n_places);
	uint32_t n_paths = kvs_get16(w->n_paths);

	if (n > KVS_WIRE_GRANT_KEYS_MAX || n_places > KVS_LAYOUT_BUFFERS_MAX ||
	    n_paths > KVS_PATHS_MAX ||
	    left != (uint64_t)n * sizeof(struct kvs_wire_key) +
			    n_places * sizeof(struct kvs_wire_place) +
			    n_paths * sizeof(struct kvs_wire_path))
		return kvs_wire_bad_count;
	m->room = kvs_get64(w->room);
	m->generation = kvs_get64(w->generation);
	m->tokens = kvs_get64(w->tokens);
	m->rank = kvs_get16(w->rank);
	m->tp_rank = kvs_get16(w->tp_rank);
	m->worker = kvs_get16(w->worker);
	m->tp = kvs_get16(w->tp);
	m->page_size = kvs_get32(w->page_size);
	m->extent_tokens = kvs_get32(w->extent_tokens);
	m->n_extents = kvs_get32(w->n_extents);
	m->first_layer = kvs_get32(w->first_layer);
	m->n_layers = kvs_get32(w->n_layers);
	m->aux_len = kvs_get32(w->aux_len);
	m->call_timeout_ms = kvs_get32(w->call_timeout_ms);
	m->batch_bytes = kvs_get64(w->batch_bytes);
	m->n_keys = n;
	m->n_places = n_places;
	m->n_paths = n_paths;
	m->aux_at = (uint64_t)kvs_get32(w->aux_at) * KVS_RUN_ALIGN;
	m->keys = n ? s->keys : NULL;
	m->places = n_places ? s->places : NULL;
	m->paths = n_paths ? s->paths : NULL;
	kvs_get_keys(array, n, s->keys);
	array += n * sizeof(struct kvs_wire_key);
	kvs_get_places(array, n_places, s->places);
	array += n_places * sizeof(struct kvs_wire_place);
	return kvs_get_paths(array, n_paths, s->paths) ? NULL
						       : kvs_wire_bad_value;
}

static const char *kvs_get_refuse(const struct kvs_wire_refuse *w,
				  struct kvs_msg_refuse *m)
{
	if (!kvs_wire_text_ok(w->text, sizeof(w->text)))
		return kvs_wire_bad_text;
	if (kvs_get32(w->reserved))
		return kvs_wire_bad_value;
	m->room = kvs_get64(w->room);
	m->generation = kvs_get64(w->generation);
	m->rank = kvs_get32(w->rank);
	m->err = kvs_get32(w->err);
	m->class = kvs_get32(w->class);
	memcpy(m->text, w->text, sizeof(m->text));
	return NULL;
}

static const char *kvs_get_chunk(const struct kvs_wire_chunk *w,
				 enum kvs_wire_type type,
				 struct kvs_msg_chunk *m)
{
	m->room = kvs_get64(w->room);
	m->generation = kvs_get64(w->generation);
	m->offset = kvs_get64(w->offset);
	m->rank = kvs_get32(w->rank);
	m->extent = kvs_get32(w->extent);
	m->kind = kvs_get16(w->kind);
	m->layer = kvs_get16(w->layer);
	m->len = kvs_get32(w->len);
	if (type == KVS_WIRE_CHUNK && kvs_get32(w->frame.payload) != m->len)
		return kvs_payload;
	return kvs_get64(w->reserved) ? kvs_wire_bad_value : NULL;
}

static const char *kvs_get_last(const struct kvs_wire_last *w,
				struct kvs_msg_last *m)
{
	m->room = kvs_get64(w->room);
	m->generation = kvs_get64(w->generation);
	m->bytes = kvs_get64(w->bytes);
	m->rank = kvs_get16(w->rank);
	m->digest_kind = kvs_get16(w->digest_kind);
	m->digest = kvs_get32(w->digest);
	return NULL;
}

static const char *kvs_get_complete(const struct kvs_wire_complete *w,
				    struct kvs_msg_complete *m)
{
	m->room = kvs_get64(w->room);
	m->generation = kvs_get64(w->generation);
	m->rank = kvs_get32(w->rank);
	return kvs_get32(w->reserved) ? kvs_wire_bad_value : NULL;
}

static const char *kvs_get_abort(const struct kvs_wire_abort *w,
				 struct kvs_msg_abort *m)
{
	if (!kvs_wire_text_ok(w->text, sizeof(w->text)))
		return kvs_wire_bad_text;
	m->room = kvs_get64(w->room);
	m->generation = kvs_get64(w->generation);
	m->rank = kvs_get32(w->rank);
	m->err = kvs_get32(w->err);
	memcpy(m->text, w->text, sizeof(m->text));
	return NULL;
}

static const char *kvs_get_error(const struct kvs_wire_error *w,
				 struct kvs_msg_error *m)
{
	if (!kvs_wire_text_ok(w->text, sizeof(w->text)))
		return kvs_wire_bad_text;
	m->err = kvs_get32(w->err);
	memcpy(m->text, w->text, sizeof(m->text));
	return kvs_get32(w->reserved) ? kvs_wire_bad_value : NULL;
}

static const char *kvs_get_keepalive(const struct kvs_wire_keepalive *w,
				     struct kvs_msg_keepalive *m)
{
	m->seq = kvs_get64(w->seq);
	m->reply = kvs_get32(w->reply);
	return kvs_get32(w->reserved) ? kvs_wire_bad_value : NULL;
}

static bool kvs_reserved_ok(const kvs_le64 reserved[2])
{
	return !kvs_get64(reserved[0]) && !kvs_get64(reserved[1]);
}

static const char *kvs_get_challenge(const struct kvs_wire_challenge *w,
				     struct kvs_msg_challenge *m)
{
	memcpy(m->nonce, w->nonce, sizeof(m->nonce));
	return kvs_reserved_ok(w->reserved) ? NULL : kvs_wire_bad_value;
}

static const char *kvs_get_response(const struct kvs_wire_response *w,
				    struct kvs_msg_response *m)
{
	memcpy(m->nonce, w->nonce, sizeof(m->nonce));
	memcpy(m->mac, w->mac, sizeof(m->mac));
	return NULL;
}

static const char *kvs_get_proof(const struct kvs_wire_proof *w,
				 struct kvs_msg_proof *m)
{
	memcpy(m->mac, w->mac, sizeof(m->mac));
	return kvs_reserved_ok(w->reserved) ? NULL : kvs_wire_bad_value;
}

static const char *kvs_get_msg(const union kvs_wire_any *w,
			       const unsigned char *array, size_t left,
			       struct kvs_wire_scratch *s, struct kvs_msg *m)
{
	switch (m->type) {
	case KVS_WIRE_HELLO:
		return kvs_get_hello(&w->hello, &m->hello);
	case KVS_WIRE_LAYOUT:
		return kvs_get_layout(&w->layout, array, left, s, &m->layout.l);
	case KVS_WIRE_OPEN:
		return kvs_get_open(&w->open, &m->open);
	case KVS_WIRE_GRANT:
		return kvs_get_grant(&w->grant, array, left, s, &m->grant);
	case KVS_WIRE_REFUSE:
		return kvs_get_refuse(&w->refuse, &m->refuse);
	case KVS_WIRE_CHUNK:
	case KVS_WIRE_CHUNK_DONE:
		return kvs_get_chunk(&w->chunk, m->type, &m->chunk);
	case KVS_WIRE_LAST:
		return kvs_get_last(&w->last, &m->last);
	case KVS_WIRE_COMPLETE:
		return kvs_get_complete(&w->complete, &m->complete);
	case KVS_WIRE_ABORT:
	case KVS_WIRE_ABORT_ACK:
	case KVS_WIRE_ABORT_NAK:
		return kvs_get_abort(&w->abort, &m->abort);
	case KVS_WIRE_ERROR:
		return kvs_get_error(&w->error, &m->error);
	case KVS_WIRE_KEEPALIVE:
		return kvs_get_keepalive(&w->keepalive, &m->keepalive);
	case KVS_WIRE_CHALLENGE:
		return kvs_get_challenge(&w->challenge, &m->challenge);
	case KVS_WIRE_RESPONSE:
		return kvs_get_response(&w->response, &m->response);
	case KVS_WIRE_PROOF:
		return kvs_get_proof(&w->proof, &m->proof);
	case KVS_WIRE_TYPE_MAX:
		break;
	}
	return kvs_wire_bad_type;
}

static bool kvs_has_array(unsigned int type)
{
	return type == KVS_WIRE_LAYOUT || type == KVS_WIRE_GRANT;
}

/* The frame header; @ret_len: the frame's length, at least the fixed part. */
static const char *kvs_check_frame(const struct kvs_frame *f, size_t avail,
				   uint32_t *ret_len)
{
	uint32_t len = kvs_get32(f->len);
	uint32_t payload = kvs_get32(f->payload);
	unsigned int type = kvs_get16(f->type);

	if (kvs_get32(f->magic) != KVS_FRAME_MAGIC)
		return kvs_magic;
	if (len < sizeof(*f) || len > KVS_FRAME_MAX)
		return kvs_length;
	if (len > avail)
		return kvs_short;
	if (!type || type >= KVS_WIRE_TYPE_MAX)
		return kvs_wire_bad_type;
	if (kvs_get16(f->flags))
		return kvs_flags;
	if (kvs_has_array(type) ? len < kvs_sizes[type]
				: len != kvs_sizes[type])
		return kvs_length;
	if (type == KVS_WIRE_CHUNK ? !payload || payload > KVS_PAYLOAD_MAX
				   : payload != 0)
		return kvs_payload;
	*ret_len = len;
	return NULL;
}

static const char *kvs_decode(const void *bytes, size_t avail,
			      struct kvs_wire_scratch *scratch,
			      struct kvs_msg *m)
{
	union kvs_wire_any w;
	const char *reason;
	uint32_t len, fixed;

	if (avail < sizeof(w.frame))
		return kvs_short;
	memcpy(&w.frame, bytes, sizeof(w.frame));
	reason = kvs_check_frame(&w.frame, avail, &len);
	if (reason)
		return reason;
	m->type = (enum kvs_wire_type)kvs_get16(w.frame.type);
	fixed = kvs_sizes[m->type];
	memcpy(&w, bytes, fixed);
	reason = kvs_get_msg(&w, (const unsigned char *)bytes + fixed,
			     len - fixed, scratch, m);
	return reason ? reason : kvs_wire_check(m);
}

int kvs_wire_decode(const struct kvs_frame *f, size_t avail,
		    struct kvs_wire_scratch *scratch, struct kvs_msg *ret,
		    const char **ret_reason)
{
	struct kvs_msg m = { 0 };
	const char *reason;

	reason = kvs_decode(f, avail, scratch, &m);
	if (reason) {
		*ret_reason = reason;
		return -EPROTO;
	}
	*ret = m;
	return 0;
}

/* Encoding: the fixed part; the arrays follow in kvs_wire_encode(). */

static void kvs_put_hello(struct kvs_wire_hello *w,
			  const struct kvs_msg_hello *m)
{
	w->version_min = kvs_put16(m->version_min);
	w->version_max = kvs_put16(m->version_max);
	w->role = kvs_put16(m->role);
	w->paths = kvs_put16(m->paths);
	w->caps = kvs_put64(m->caps);
	w->instance = kvs_put64(m->instance);
	w->session = kvs_put64(m->session);
	w->rank = kvs_put32(m->rank);
	w->n_ranks = kvs_put32(m->n_ranks);
	w->worker = kvs_put32(m->worker);
	w->keepalive_ms = kvs_put32(m->keepalive_ms);
	memcpy(w->name, m->name, sizeof(w->name));
}

static void kvs_put_layout(struct kvs_wire_layout *w,
			   const struct kvs_layout *l)
{
	w->page_size = kvs_put32(l->page_size);
	w->dtype = kvs_put16((uint16_t)l->dtype);
	w->n_buffers = kvs_put16((uint16_t)l->n_buffers);
	if (l->cuts) {
		w->tp = kvs_put16((uint16_t)kvs_layout_tp(l));
		w->tp_rank = kvs_put16((uint16_t)l->tp_rank);
	}
	w->aux_max = kvs_put32(l->aux_max);
	w->capacity = kvs_put64(l->capacity);
	w->max_context = kvs_put64(l->max_context);
}

static void kvs_put_grant(struct kvs_wire_grant *w,
			  const struct kvs_msg_grant *m)
{
	w->room = kvs_put64(m->room);
	w->generation = kvs_put64(m->generation);
	w->tokens = kvs_put64(m->tokens);
	w->rank = kvs_put16((uint16_t)m->rank);
	w->tp_rank = kvs_put16((uint16_t)m->tp_rank);
	w->worker = kvs_put16((uint16_t)m->worker);
	w->tp = kvs_put16((uint16_t)m->tp);
	w->page_size = kvs_put32(m->page_size);
	w->extent_tokens = kvs_put32(m->extent_tokens);
	w->n_extents = kvs_put32(m->n_extents);
	w->first_layer = kvs_put32(m->first_layer);
	w->n_layers = kvs_put32(m->n_layers);
	w->aux_len = kvs_put32(m->aux_len);
	w->n_keys = kvs_put32(m->n_keys);
	w->n_places = kvs_put16((uint16_t)m->n_places);
	w->n_paths = kvs_put16((uint16_t)m->n_paths);
	w->aux_at = kvs_put32((uint32_t)(m->aux_at / KVS_RUN_ALIGN));
	w->call_timeout_ms = kvs_put32(m->call_timeout_ms);
	w->batch_bytes = kvs_put64(m->batch_bytes);
}

static void kvs_put_refuse(struct kvs_wire_refuse *w,
			   const struct kvs_msg_refuse *m)
{
	w->room = kvs_put64(m->room);
	w->generation = kvs_put64(m->generation);
	w->rank = kvs_put32(m->rank);
	w->err = kvs_put32(m->err);
	w->class = kvs_put32(m->class);
	kvs_wire_text_put(w->text, sizeof(w->text), m->text);
}

static void kvs_put_chunk(struct kvs_wire_chunk *w,
			  const struct kvs_msg_chunk *m)
{
	w->room = kvs_put64(m->room);
	w->generation = kvs_put64(m->generation);
	w->offset = kvs_put64(m->offset);
	w->rank = kvs_put32(m->rank);
	w->extent = kvs_put32(m->extent);
	w->kind = kvs_put16(m->kind);
	w->layer = kvs_put16(m->layer);
	w->len = kvs_put32(m->len);
}

static void kvs_put_abort(struct kvs_wire_abort *w,
			  const struct kvs_msg_abort *m)
{
	w->room = kvs_put64(m->room);
	w->generation = kvs_put64(m->generation);
	w->rank = kvs_put32(m->rank);
	w->err = kvs_put32(m->err);
	kvs_wire_text_put(w->text, sizeof(w->text), m->text);
}

static void kvs_put_msg(union kvs_wire_any *w, const struct kvs_msg *m)
{
	switch (m->type) {
	case KVS_WIRE_HELLO:
		kvs_put_hello(&w->hello, &m->hello);
		break;
	case KVS_WIRE_LAYOUT:
		kvs_put_layout(&w->layout, &m->layout.l);
		break;
	case KVS_WIRE_OPEN:
		w->open.room = kvs_put64(m->open.room);
		w->open.generation = kvs_put64(m->open.generation);
		memcpy(w->open.nonce, m->open.nonce, sizeof(w->open.nonce));
		w->open.tokens = kvs_put64(m->open.tokens);
		w->open.rank = kvs_put32(m->open.rank);
		break;
	case KVS_WIRE_GRANT:
		kvs_put_grant(&w->grant, &m->grant);
		break;
	case KVS_WIRE_REFUSE:
		kvs_put_refuse(&w->refuse, &m->refuse);
		break;
	case KVS_WIRE_CHUNK:
		w->frame.payload = kvs_put32(m->chunk.len);
		kvs_put_chunk(&w->chunk, &m->chunk);
		break;
	case KVS_WIRE_CHUNK_DONE:
		kvs_put_chunk(&w->chunk, &m->chunk);
		break;
	case KVS_WIRE_LAST:
		w->last.room = kvs_put64(m->last.room);
		w->last.generation = kvs_put64(m->last.generation);
		w->last.bytes = kvs_put64(m->last.bytes);
		w->last.rank = kvs_put16((uint16_t)m->last.rank);
		w->last.digest_kind = kvs_put16(m->last.digest_kind);
		w->last.digest = kvs_put32(m->last.digest);
		break;
	case KVS_WIRE_COMPLETE:
		w->complete.room = kvs_put64(m->complete.room);
		w->complete.generation = kvs_put64(m->complete.generation);
		w->complete.rank = kvs_put32(m->complete.rank);
		break;
	case KVS_WIRE_ABORT:
	case KVS_WIRE_ABORT_ACK:
	case KVS_WIRE_ABORT_NAK:
		kvs_put_abort(&w->abort, &m->abort);
		break;
	case KVS_WIRE_ERROR:
		w->error.err = kvs_put32(m->error.err);
		kvs_wire_text_put(w->error.text, sizeof(w->error.text),
				  m->error.text);
		break;
	case KVS_WIRE_KEEPALIVE:
		w->keepalive.seq = kvs_put64(m->keepalive.seq);
		w->keepalive.reply = kvs_put32(m->keepalive.reply);
		break;
	case KVS_WIRE_CHALLENGE:
		memcpy(w->challenge.nonce, m->challenge.nonce, KVS_AUTH_NONCE);
		break;
	case KVS_WIRE_RESPONSE:
		memcpy(w->response.nonce, m->response.nonce, KVS_AUTH_NONCE);
		memcpy(w->response.mac, m->response.mac, KVS_AUTH_MAC);
		break;
	case KVS_WIRE_PROOF:
		memcpy(w->proof.mac, m->proof.mac, KVS_AUTH_MAC);
		break;
	case KVS_WIRE_TYPE_MAX:
		break;
	}
}

static bool kvs_place_ok(uint64_t at)
{
	return at % KVS_RUN_ALIGN == 0 && at < KVS_GRANT_PLACE_MAX;
}

static bool kvs_may_grant(const struct kvs_msg_grant *m)
{
	if ((m->n_keys && !m->keys) || (m->n_places && !m->places) ||
	    (m->n_paths && !m->paths) || m->n_keys > KVS_WIRE_GRANT_KEYS_MAX ||
	    m->n_places > KVS_LAYOUT_BUFFERS_MAX ||
	    m->n_paths > KVS_PATHS_MAX || !kvs_place_ok(m->aux_at))
		return false;
	for (uint32_t i = 0; i < m->n_places; i++)
		if (!kvs_place_ok(m->places[i].full) ||
		    !kvs_place_ok(m->places[i].last))
			return false;
	return true;
}

/* What only the sending side has to look at. */
static bool kvs_may_send(const struct kvs_msg *m)
{
	const char *text = NULL;
	char err[KVS_WIRE_TEXT];

	if (kvs_wire_check(m))
		return false;
	if (m->type == KVS_WIRE_REFUSE)
		text = m->refuse.text;
	else if (m->type == KVS_WIRE_ERROR)
		text = m->error.text;
	else if (m->type == KVS_WIRE_ABORT || m->type == KVS_WIRE_ABORT_ACK ||
		 m->type == KVS_WIRE_ABORT_NAK)
		text = m->abort.text;
	if (text && strnlen(text, KVS_WIRE_TEXT) == KVS_WIRE_TEXT)
		return false;
	if (m->type == KVS_WIRE_LAYOUT)
		return !kvs_layout_check(&m->layout.l, err, sizeof(err));
	return m->type != KVS_WIRE_GRANT || kvs_may_grant(&m->grant);
}

static void kvs_put_grant_arrays(unsigned char *at,
				 const struct kvs_msg_grant *m)
{
	for (uint32_t i = 0; i < m->n_keys; i++) {
		struct kvs_wire_key w = {
			.addr_low = kvs_put32((uint32_t)m->keys[i].addr),
			.addr_high =
				kvs_put32((uint32_t)(m->keys[i].addr >> 32)),
			.rkey = kvs_put32(m->keys[i].rkey),
		};

		memcpy(at, &w, sizeof(w));
		at += sizeof(w);
	}
	for (uint32_t i = 0; i < m->n_places; i++) {
		const struct kvs_grant_place *p = &m->places[i];
		struct kvs_wire_place w = {
			.full = kvs_put32((uint32_t)(p->full / KVS_RUN_ALIGN)),
			.last = kvs_put32((uint32_t)(p->last / KVS_RUN_ALIGN)),
		};

		memcpy(at, &w, sizeof(w));
		at += sizeof(w);
	}
	for (uint32_t i = 0; i < m->n_paths; i++) {
		struct kvs_wire_path w = { .path = kvs_put16(m->paths[i]) };

		memcpy(at, &w, sizeof(w));
		at += sizeof(w);
	}
}

static void kvs_put_arrays(unsigned char *at, const struct kvs_msg *m)
{
	uint32_t i;

	if (m->type == KVS_WIRE_LAYOUT) {
		for (i = 0; i < m->layout.l.n_buffers; i++) {
			const struct kvs_layer_buffer *b =
				&m->layout.l.buffers[i];
			struct kvs_wire_buffer w = {
				.kind = kvs_put16(b->kind),
				.layer = kvs_put16(b->layer),
				.item_len = kvs_put32(b->item_len),
				.items = kvs_put32(b->items),
			};

			memcpy(at, &w, sizeof(w));
			at += sizeof(w);
		}
		for (i = 0; m->layout.l.cuts && i < m->layout.l.n_buffers;
		     i++) {
			struct kvs_wire_cut w = {
				.heads = m->layout.l.cuts[i].heads,
				.planes = m->layout.l.cuts[i].planes,
			};

			memcpy(at, &w, sizeof(w));
			at += sizeof(w);
		}
	} else if (m->type == KVS_WIRE_GRANT) {
		kvs_put_grant_arrays(at, &m->grant);
	}
}

int kvs_wire_encode(const struct kvs_msg *m, void *buf, size_t cap)
{
	union kvs_wire_any w;
	size_t fixed, len;

	if (!kvs_may_send(m))
		return -EINVAL;
	fixed = kvs_sizes[m->type];
	len = fixed;
	if (m->type == KVS_WIRE_LAYOUT)
		len += m->layout.l.n_buffers *
		       (sizeof(struct kvs_wire_buffer) +
			(m->layout.l.cuts ? sizeof(struct kvs_wire_cut) : 0));
	else if (m->type == KVS_WIRE_GRANT)
		len += m->grant.n_keys * sizeof(struct kvs_wire_key) +
		       m->grant.n_places * sizeof(struct kvs_wire_place) +
		       m->grant.n_paths * sizeof(struct kvs_wire_path);
	if (len > cap)
		return -ENOBUFS;
	memset(&w, 0, sizeof(w));
	w.frame.magic = kvs_put32(KVS_FRAME_MAGIC);
	w.frame.type = kvs_put16((uint16_t)m->type);
	w.frame.len = kvs_put32((uint32_t)len);
	kvs_put_msg(&w, m);
	memcpy(buf, &w, fixed);
	kvs_put_arrays((unsigned char *)buf + fixed, m);
	return (int)len;
}
