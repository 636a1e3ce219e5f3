/* SPDX-License-Identifier: Apache-2.0 */
#include "hicache/key.h"

#include <errno.h>
#include <sodium.h>

#include "lib/assert.h"
#include "lib/le.h"

/* A new way to make keys gets a new label: none of the old ones fits then. */
#define KVS_KEY_LABEL "kvstage page key 1"

enum kvs_key_kind { KVS_KEY_HASH = 1, KVS_KEY_TOKENS = 2 };

int kvs_key_space_init(struct kvs_key_space *s,
		       const struct kvs_fingerprint *layout, const void *salt,
		       size_t salt_len)
{
	crypto_generichash_state st;

	if (salt_len > KVS_KEY_SALT_MAX)
		return -EINVAL;
	if (sodium_init() < 0)
		return -ENOSYS;
	crypto_generichash_init(&st, NULL, 0, sizeof(s->b));
	crypto_generichash_update(&st, (const uint8_t *)KVS_KEY_LABEL,
				  sizeof(KVS_KEY_LABEL));
	crypto_generichash_update(&st, layout->b, sizeof(layout->b));
	/* The salt is last, so its length needs no place of its own. */
	if (salt_len)
		crypto_generichash_update(&st, salt, salt_len);
	crypto_generichash_final(&st, s->b, sizeof(s->b));
	return 0;
}

static void key_begin(crypto_generichash_state *st,
		      const struct kvs_key_space *s, enum kvs_key_kind kind)
{
	const uint8_t tag = (uint8_t)kind;

	crypto_generichash_init(st, s->b, sizeof(s->b), KVS_KEY_LEN);
	crypto_generichash_update(st, &tag, 1);
}

void kvs_key_of_hash(const struct kvs_key_space *s, const uint8_t hash[16],
		     struct kvs_key *ret_key)
{
	crypto_generichash_state st;

	key_begin(&st, s, KVS_KEY_HASH);
	crypto_generichash_update(&st, hash, 16);
	crypto_generichash_final(&st, ret_key->b, KVS_KEY_LEN);
}

void kvs_key_chain(const struct kvs_key_space *s, const struct kvs_key *before,
		   const uint32_t *tokens, size_t n, struct kvs_key *ret_key)
{
	static const struct kvs_key first;
	crypto_generichash_state st;
	kvs_le32 le[64];

	key_begin(&st, s, KVS_KEY_TOKENS);
	crypto_generichash_update(&st, before ? before->b : first.b,
				  KVS_KEY_LEN);
	while (n) {
		size_t k = n < KVS_ARRAY_SIZE(le) ? n : KVS_ARRAY_SIZE(le);

		for (size_t i = 0; i < k; i++)
			le[i] = kvs_put32(tokens[i]);
		crypto_generichash_update(&st, (const uint8_t *)le,
					  k * sizeof(le[0]));
		tokens += k;
		n -= k;
	}
	crypto_generichash_final(&st, ret_key->b, KVS_KEY_LEN);
}

size_t kvs_key_prefix(const struct kvs_key_space *s, const uint32_t *tokens,
		      size_t n_tokens, uint32_t page, struct kvs_key *keys,
		      size_t max)
{
	size_t n = n_tokens / page;

	if (n > max)
		n = max;
	for (size_t i = 0; i < n; i++)
		kvs_key_chain(s, i ? &keys[i - 1] : NULL, tokens + i * page,
			      page, &keys[i]);
	return n;
}

const char *kvs_key_format(const struct kvs_key *k, char *buf)
{
	return sodium_bin2hex(buf, KVS_KEY_TEXT, k->b, KVS_KEY_LEN);
}
