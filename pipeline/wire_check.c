/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/digest.h"
#include "pipeline/geometry.h"
#include "pipeline/wire.h"
#include "pipeline/wire_check.h"
#include "pipeline/wire_text.h"

#define KVS_ERRNO_MAX 4095 /* as the kernel has it */
#define KVS_LAYERS_MAX 65536 /* layer numbers are 16 bits */

const char kvs_wire_bad_type[] = "type";
const char kvs_wire_bad_count[] = "count";
const char kvs_wire_bad_text[] = "text";
const char kvs_wire_bad_value[] = "value";

static const char *kvs_check_room(uint64_t room, uint64_t generation,
				  bool gen_known, uint32_t rank)
{
	if (!room || (gen_known && !generation) || rank >= KVS_RANKS_MAX)
		return kvs_wire_bad_value;
	return NULL;
}

static const char *kvs_check_err(uint32_t err)
{
	return err && err <= KVS_ERRNO_MAX ? NULL : kvs_wire_bad_value;
}

static const char *kvs_check_hello(const struct kvs_msg_hello *m)
{
	if (!kvs_wire_text_ok(m->name, sizeof(m->name)) || !m->name[0])
		return kvs_wire_bad_text;
	if (!m->version_min || m->version_min > m->version_max ||
	    m->role > KVS_ROLE_DATA || !m->instance || !m->n_ranks ||
	    m->n_ranks > KVS_RANKS_MAX || m->rank >= m->n_ranks ||
	    m->worker >= KVS_WORKERS_MAX)
		return kvs_wire_bad_value;
	/* only a reply names a session, or workers, on a control connection */
	if (!m->session && (m->role == KVS_ROLE_DATA || m->worker || m->paths))
		return kvs_wire_bad_value;
	if (m->paths && !(m->caps & KVS_CAP_PATHS))
		return kvs_wire_bad_value;
	if (m->role == KVS_ROLE_DATA ? m->paths >= KVS_PATHS_MAX
				     : m->paths > KVS_PATHS_MAX)
		return kvs_wire_bad_value;
	return NULL;
}

/* Each once; the keys of one behind those of another. */
static const char *kvs_check_paths(const struct kvs_msg_grant *m)
{
	uint64_t seen = 0;

	static_assert(KVS_PATHS_MAX <= 64, "a bit each");
	if (m->n_paths > KVS_PATHS_MAX ||
	    m->n_keys != (uint64_t)m->n_extents * m->n_paths)
		return kvs_wire_bad_count;
	for (uint32_t i = 0; m->paths && i < m->n_paths; i++) {
		if (m->paths[i] >= KVS_PATHS_MAX || seen & 1ULL << m->paths[i])
			return kvs_wire_bad_value;
		seen |= 1ULL << m->paths[i];
	}
	return NULL;
}

static const char *kvs_check_grant(const struct kvs_msg_grant *m)
{
	const char *reason;
	uint64_t pages, extent_pages;

	reason = kvs_check_room(m->room, m->generation, true, m->rank);
	if (reason)
		return reason;
	if (m->worker >= KVS_WORKERS_MAX || !m->tokens ||
	    m->tokens > KVS_TOKENS_MAX || !m->page_size ||
	    m->page_size > KVS_PAGE_SIZE_MAX || !m->extent_tokens ||
	    m->extent_tokens > KVS_TOKENS_MAX ||
	    m->extent_tokens % m->page_size || m->aux_len > KVS_AUX_MAX ||
	    m->tp > KVS_TP_MAX || m->tp_rank >= (m->tp ? m->tp : 1) ||
	    m->first_layer > KVS_LAYERS_MAX || m->n_layers > KVS_LAYERS_MAX ||
	    m->first_layer + m->n_layers > KVS_LAYERS_MAX)
		return kvs_wire_bad_value;
	pages = (m->tokens + m->page_size - 1) / m->page_size;
	extent_pages = m->extent_tokens / m->page_size;
	if (m->n_extents > KVS_EXTENTS_MAX ||
	    m->n_extents != (pages + extent_pages - 1) / extent_pages)
		return kvs_wire_bad_value;
	if (m->n_paths) {
		reason = kvs_check_paths(m);
		if (reason)
			return reason;
	} else if (m->n_keys ? m->n_keys != m->n_extents : m->n_places != 0) {
		return kvs_wire_bad_count;
	}
	return m->aux_at && !m->n_keys ? kvs_wire_bad_value : NULL;
}

static const char *kvs_check_chunk(const struct kvs_msg_chunk *m)
{
	uint64_t most = KVS_PAYLOAD_MAX;
	const char *reason;

	reason = kvs_check_room(m->room, m->generation, true, m->rank);
	if (reason)
		return reason;
	if (m->kind == KVS_KIND_AUX) {
		if (m->layer != m->rank)
			return kvs_wire_bad_value;
		most = KVS_AUX_MAX;
	} else if (m->kind >= KVS_BUFFER_KIND_MAX) {
		return kvs_wire_bad_value;
	}
	/* subtracting cannot wrap where adding could */
	if (m->extent >= KVS_EXTENTS_MAX || !m->len || m->len > most ||
	    m->offset > most - m->len)
		return kvs_wire_bad_value;
	return NULL;
}

static const char *kvs_check_last(const struct kvs_msg_last *m)
{
	if (m->bytes > (uint64_t)KVS_EXTENTS_MAX * KVS_PAYLOAD_MAX)
		return kvs_wire_bad_value;
	if (m->digest_kind >= KVS_DIGEST_KIND_MAX ||
	    (m->digest_kind == KVS_DIGEST_NONE && m->digest))
		return kvs_wire_bad_value;
	return kvs_check_room(m->room, m->generation, true, m->rank);
}

static const char *kvs_check_open(const struct kvs_msg_open *m)
{
	if (!m->tokens || m->tokens > KVS_TOKENS_MAX)
		return kvs_wire_bad_value;
	return kvs_check_room(m->room, m->generation, false, m->rank);
}

static const char *kvs_check_refuse(const struct kvs_msg_refuse *m)
{
	if (m->class != 400 && m->class != 503)
		return kvs_wire_bad_value;
	if (kvs_check_err(m->err))
		return kvs_wire_bad_value;
	return kvs_check_room(m->room, m->generation, false, m->rank);
}

static const char *kvs_check_abort(const struct kvs_msg_abort *m,
				   enum kvs_wire_type type)
{
	/* an acknowledgement has nothing to complain of */
	if ((type != KVS_WIRE_ABORT_ACK || m->err) && kvs_check_err(m->err))
		return kvs_wire_bad_value;
	/* one without a generation proves nothing, and is counted as such */
	return kvs_check_room(m->room, m->generation,
			      type != KVS_WIRE_ABORT_ACK, m->rank);
}

const char *kvs_wire_check(const struct kvs_msg *m)
{
	switch (m->type) {
	case KVS_WIRE_HELLO:
		return kvs_check_hello(&m->hello);
	case KVS_WIRE_LAYOUT:
		return NULL; /* the two directions differ */
	case KVS_WIRE_OPEN:
		return kvs_check_open(&m->open);
	case KVS_WIRE_GRANT:
		return kvs_check_grant(&m->grant);
	case KVS_WIRE_REFUSE:
		return kvs_check_refuse(&m->refuse);
	case KVS_WIRE_CHUNK:
	case KVS_WIRE_CHUNK_DONE:
		return kvs_check_chunk(&m->chunk);
	case KVS_WIRE_LAST:
		return kvs_check_last(&m->last);
	case KVS_WIRE_COMPLETE:
		return kvs_check_room(m->complete.room, m->complete.generation,
				      true, m->complete.rank);
	case KVS_WIRE_ABORT:
	case KVS_WIRE_ABORT_ACK:
	case KVS_WIRE_ABORT_NAK:
		return kvs_check_abort(&m->abort, m->type);
	case KVS_WIRE_ERROR:
		return kvs_check_err(m->error.err);
	case KVS_WIRE_KEEPALIVE:
		return m->keepalive.reply <= 1 ? NULL : kvs_wire_bad_value;
	case KVS_WIRE_CHALLENGE:
	case KVS_WIRE_RESPONSE:
	case KVS_WIRE_PROOF:
		return NULL; /* any bytes may be random, or a code */
	case KVS_WIRE_TYPE_MAX:
		break;
	}
	return kvs_wire_bad_type;
}
