/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_PIPELINE_LAYOUT_H
#define KVS_PIPELINE_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvstage/engine.h"
#include "kvstage/layout.h"

const char *kvs_buffer_kind_name(unsigned int kind); /* "?" if unknown */
const char *kvs_dtype_name(unsigned int dtype);
bool kvs_buffer_kind_is_paged(unsigned int kind);

/**
 * kvs_layout_check() - is a layout from outside sound?
 * @l: layout
 * @err: message that names the field and its value
 * @errlen: size of @err
 * Return: 0 or -EINVAL (zero or excessive sizes, unknown kind, a (kind,
 * layer) twice, items given for a paged kind or missing for another, more
 * than 1 GiB of items in one buffer). @err is untouched on success.
 */
int kvs_layout_check(const struct kvs_layout *l, char *err, size_t errlen);

/**
 * kvs_layout_check_foreign() - the same for a layout of the other side
 *
 * A peer may have kinds and dtypes that this version does not know. They pass
 * here, so that kvs_layout_match() can refuse them by name and with both
 * values. Such a layout is for comparing only.
 * Context: does not allocate.
 */
int kvs_layout_check_foreign(const struct kvs_layout *l, char *err,
			     size_t errlen);

/* The layout of a room (pipeline/reshard.h): of all ranks, not of one. */
#define KVS_TP_RANK_ALL UINT32_MAX

/**
 * struct kvs_slice - what one prefill rank sends of a room
 * @first_layer, @n_layers: of these layers
 * @tp: prefill ranks that the heads are divided between, not 0
 * @tp_rank: of those: its heads; what is not cut is sent by 0 alone
 */
struct kvs_slice {
	uint32_t first_layer;
	uint32_t n_layers;
	uint32_t tp;
	uint32_t tp_rank;
};

/* Does the slice have buffer @b? Of a rank's own layout, or of a room's. */
bool kvs_slice_has(const struct kvs_slice *s, const struct kvs_layout *l,
		   uint32_t b);

/* The buffer (kind, layer) that it has; -ENOENT. O(log n) as below. */
int kvs_slice_find(const struct kvs_slice *s, const struct kvs_layout *l,
		   unsigned int kind, unsigned int layer);

/* Heads and planes of buffer @b: heads 0 not cut; planes 1 at least. */
struct kvs_buffer_cut kvs_layout_cut(const struct kvs_layout *l, uint32_t b);
/* Tokens of an item: a page's, or 1. */
uint32_t kvs_layout_item_tokens(const struct kvs_layout *l, uint32_t b);
static inline uint32_t kvs_layout_tp(const struct kvs_layout *l)
{
	return l->tp ? l->tp : 1;
}

/* What rank @tp_rank of @tp has of @heads heads: [*ret_first, + return). */
uint32_t kvs_cut_heads(uint32_t heads, uint32_t tp, uint32_t tp_rank,
		       uint32_t *ret_first);
/* In how many different pieces @tp ranks have them. */
uint32_t kvs_cut_shards(uint32_t heads, uint32_t tp);
/* Which of those a rank has, if it is the one to send it; -1: another is. */
int kvs_cut_sends(uint32_t heads, uint32_t tp, uint32_t tp_rank);

/* Deep copy; *ret is one allocation, free() it. Its size field is private and
 * says that it is indexed. -ENOMEM. */
int kvs_layout_dup(const struct kvs_layout *l, struct kvs_layout **ret);

/**
 * kvs_layout_match() - can @prefill send what @decode needs?
 * @prefill: one prefill rank's buffers: a subset by layer is fine (PP)
 * @decode: the decode engine's buffers
 * @first_layer: layers this rank is to send: [first_layer, first_layer +
 * @n_layers: n_layers); 0 layers = a zero-byte rank: only page size is
 *            compared
 *
 * Both layouts were checked. Every decode buffer of these layers must be on
 * the prefill side with the same item_len and items, and the other way round:
 * a state that only prefill has would be lost without a word. The first
 * difference is named with both values: "page_size: prefill 64, decode 32",
 * "item_len of k layer 3: ...", "mamba layer 7: missing on prefill (mamba
 * layers: prefill 0, decode 1)".
 * Return: 0, -EPROTOTYPE or -ENOMEM.
 */
int kvs_layout_match(const struct kvs_layout *prefill,
		     const struct kvs_layout *decode, uint32_t first_layer,
		     uint32_t n_layers, char *err, size_t errlen);

/* The same for a slice of the heads as well; @decode is a room's layout. */
int kvs_layout_match_slice(const struct kvs_layout *prefill,
			   const struct kvs_layout *decode,
			   const struct kvs_slice *s, char *err, size_t errlen);

/**
 * kvs_layout_check_owners() - does every layer come from one rank?
 * @decode: the decode engine's buffers
 * @ranks: what each rank is to send
 * @n: entries of @ranks
 * Return: 0, or -EPROTOTYPE when a layer of @decode has no rank or two; @err
 * names it.
 */
int kvs_layout_check_owners(const struct kvs_layout *decode,
			    const struct kvs_rank_slice *ranks, uint32_t n,
			    char *err, size_t errlen);

/* Index of (kind, layer) in l->buffers; -ENOENT. O(log n) after
 * kvs_layout_dup() (which sorts an index), else O(n). */
int kvs_layout_find(const struct kvs_layout *l, unsigned int kind,
		    unsigned int layer);
/* The same in a room's layout, where each shard of (kind, layer) is one. */
int kvs_layout_find_shard(const struct kvs_layout *l, unsigned int kind,
			  unsigned int layer, unsigned int shard);
/**
 * kvs_layout_order() - the buffers by kind and, in a kind, by layer
 * @l: layout
 * @ret_order: l->n_buffers indices into l->buffers
 *
 * The one order of buffers that both sides can know.
 * Context: allocates unless @l is from kvs_layout_dup().
 * Return: 0 or -ENOMEM.
 */
int kvs_layout_order(const struct kvs_layout *l, uint32_t *ret_order);
/* Bytes of one token over all paged buffers, rounded up; 0 never (1 where no
 * buffer is paged). */
uint64_t kvs_layout_bytes_per_token(const struct kvs_layout *l);

#endif /* KVS_PIPELINE_LAYOUT_H */
