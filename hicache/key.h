/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: key
 *
 * The name of a page of KV: 128 bits that say which tokens it is the KV of,
 * with every token before them, and in which form. Two pages with one key are
 * taken for each other, so a collision would hand out a stranger's KV. A key
 * is therefore a cryptographic hash (BLAKE2b of libsodium, cut to 128 bits:
 * 2^64 tries to find any two, 10 million pages collide by chance once in
 * 10^25), not a fast one whose collisions can be made at a desk.
 *
 * It is keyed by a *space*: layout fingerprint and salt. Pages of another
 * model, dtype, page size or TP share are in another space, and no key of one
 * is a key of the other, whoever chose the engine's hashes. A salt does the
 * same for tenants that must not share pages. Keys are the same on every
 * machine and after every restart, as tiers on disk keep them.
 *
 *   space = BLAKE2b-256(label, fingerprint, salt)
 *   key   = BLAKE2b-128 keyed by space of
 *	1, the engine's hash of the page              (kvs_key_of_hash)
 *	2, key of the page before or 16 zero bytes,
 *	   tokens as 32-bit little endian             (kvs_key_chain)
 *
 * An engine's hash must itself be a chain, over its page and all before it;
 * how well it resists collisions is the engine's business.
 */
#ifndef KVS_HICACHE_KEY_H
#define KVS_HICACHE_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define KVS_KEY_LEN 16u /* bytes */
#define KVS_KEY_SALT_MAX 256u /* bytes */
#define KVS_KEY_TEXT (2 * KVS_KEY_LEN + 1) /* bytes of text with its end */

/* On disk and on the wire as it is. */
struct kvs_key {
	uint8_t b[KVS_KEY_LEN];
};

/* What all pages of one layout are the same in; 128 bits, from the layout. */
struct kvs_fingerprint {
	uint8_t b[16];
};

/* Copy freely; no pointers. */
struct kvs_key_space {
	uint8_t b[32];
};

static inline bool kvs_key_equal(const struct kvs_key *a,
				 const struct kvs_key *b)
{
	return !memcmp(a->b, b->b, KVS_KEY_LEN);
}

/**
 * kvs_key_space_init() - the space of one layout and salt
 * @s: written on success
 * @layout: model, dtype, page size, TP share, buffers: whatever must agree
 *	    for one engine to read what another one wrote
 * @salt: tells tenants apart; may be NULL with @salt_len 0
 * @salt_len: bytes, up to KVS_KEY_SALT_MAX
 *
 * Context: any thread; may initialise libsodium.
 * Return: 0; -EINVAL @salt_len; -ENOSYS libsodium does not work here.
 */
int kvs_key_space_init(struct kvs_key_space *s,
		       const struct kvs_fingerprint *layout, const void *salt,
		       size_t salt_len);

/**
 * kvs_key_of_hash() - key of a page that the engine has hashed
 * @s: space
 * @hash: the engine's 128 bits: a chain over this page and all before it
 * @ret_key: key
 *
 * Context: any thread; under a microsecond.
 */
void kvs_key_of_hash(const struct kvs_key_space *s, const uint8_t hash[16],
		     struct kvs_key *ret_key);

/**
 * kvs_key_chain() - key of a page by its tokens
 * @s: space
 * @before: key of the page before it; NULL: it is the first
 * @tokens: token ids of the page
 * @n: how many; all pages of a space have the same number
 * @ret_key: key; may be @before
 *
 * Context: any thread; about 10 ns a token.
 */
void kvs_key_chain(const struct kvs_key_space *s, const struct kvs_key *before,
		   const uint32_t *tokens, size_t n, struct kvs_key *ret_key);

/**
 * kvs_key_prefix() - keys of all whole pages of a prompt
 * @s: space
 * @tokens: token ids
 * @n_tokens: how many
 * @page: tokens a page, > 0
 * @keys: written
 * @max: room in @keys
 *
 * Return: keys written: n_tokens / page, @max at most.
 */
size_t kvs_key_prefix(const struct kvs_key_space *s, const uint32_t *tokens,
		      size_t n_tokens, uint32_t page, struct kvs_key *keys,
		      size_t max);

/* 32 hex digits; returns @buf (KVS_KEY_TEXT bytes). */
const char *kvs_key_format(const struct kvs_key *k, char *buf);

#endif /* KVS_HICACHE_KEY_H */
