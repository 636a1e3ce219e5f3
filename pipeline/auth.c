/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/auth.h"

#include <assert.h>
#include <errno.h>
#include <sodium.h>
#include <string.h>

#include "lib/random.h"

#define KVS_AUTH_LABEL 16 /* bytes, the NULs at the end included */

static_assert(KVS_AUTH_KEY == crypto_generichash_KEYBYTES, "a key");
static_assert(KVS_AUTH_MAC == crypto_generichash_BYTES, "a code");

/* Different, so that nobody's code can be sent back to its maker. */
static const unsigned char label_sender[KVS_AUTH_LABEL] = "kvstage1 sender";
static const unsigned char label_daemon[KVS_AUTH_LABEL] = "kvstage1 daemon";

static int hello_bytes(const struct kvs_msg_hello *h,
		       unsigned char ret[KVS_HELLO_FRAME])
{
	_Alignas(8) unsigned char buf[KVS_HELLO_FRAME];
	const struct kvs_msg m = { .type = KVS_WIRE_HELLO, .hello = *h };
	int len = kvs_wire_encode(&m, buf, sizeof(buf));

	if (len != KVS_HELLO_FRAME)
		return len < 0 ? len : -EINVAL;
	memcpy(ret, buf, sizeof(buf));
	return 0;
}

static void code(const unsigned char key[KVS_AUTH_KEY],
		 const unsigned char label[KVS_AUTH_LABEL],
		 const struct kvs_auth_exchange *x, const unsigned char *answer,
		 unsigned char ret[KVS_AUTH_MAC])
{
	crypto_generichash_state st;

	/* Every part has one length, so no two inputs run together. */
	crypto_generichash_init(&st, key, KVS_AUTH_KEY, KVS_AUTH_MAC);
	crypto_generichash_update(&st, label, KVS_AUTH_LABEL);
	crypto_generichash_update(&st, x->hello, sizeof(x->hello));
	crypto_generichash_update(&st, x->daemon, sizeof(x->daemon));
	crypto_generichash_update(&st, x->sender, sizeof(x->sender));
	if (answer)
		crypto_generichash_update(&st, answer, KVS_HELLO_FRAME);
	crypto_generichash_final(&st, ret, KVS_AUTH_MAC);
	sodium_memzero(&st, sizeof(st));
}

void kvs_auth_sender_code(const unsigned char key[KVS_AUTH_KEY],
			  const struct kvs_auth_exchange *x,
			  unsigned char ret_code[KVS_AUTH_MAC])
{
	code(key, label_sender, x, NULL, ret_code);
}

int kvs_auth_daemon_code(const unsigned char key[KVS_AUTH_KEY],
			 const struct kvs_auth_exchange *x,
			 const struct kvs_msg_hello *answer,
			 unsigned char ret_code[KVS_AUTH_MAC])
{
	unsigned char bytes[KVS_HELLO_FRAME];
	int ret = hello_bytes(answer, bytes);

	if (!ret)
		code(key, label_daemon, x, bytes, ret_code);
	return ret;
}

/* ---- the daemon's side ---- */

int kvs_auth_challenge(const struct kvs_msg_hello *h,
		       struct kvs_auth_exchange *x, struct kvs_msg *ret)
{
	int err;

	memset(x, 0, sizeof(*x));
	err = hello_bytes(h, x->hello);
	if (!err)
		err = kvs_random_fill(x->daemon, sizeof(x->daemon));
	if (err)
		return err;
	memset(ret, 0, sizeof(*ret));
	ret->type = KVS_WIRE_CHALLENGE;
	memcpy(ret->challenge.nonce, x->daemon, sizeof(x->daemon));
	return 0;
}

int kvs_auth_verify(const struct kvs_auth_keys *k, struct kvs_auth_exchange *x,
		    const struct kvs_msg_response *r)
{
	unsigned char want[KVS_AUTH_MAC];
	int ret = -EACCES;

	memcpy(x->sender, r->nonce, sizeof(x->sender));
	for (unsigned int i = 0; i < k->n; i++) {
		kvs_auth_sender_code(k->key[i], x, want);
		if (!sodium_memcmp(want, r->mac, sizeof(want)) && ret < 0)
			ret = (int)i;
	}
	return ret;
}

/* ---- the sender's side ---- */

int kvs_auth_sender_init(struct kvs_auth_sender *a,
			 const struct kvs_auth_keys *k,
			 const struct kvs_msg_hello *h)
{
	memset(a, 0, sizeof(*a));
	if (!k || !k->n)
		return 0;
	a->has_key = true;
	memcpy(a->key, k->key[0], sizeof(a->key));
	return hello_bytes(h, a->x.hello);
}

void kvs_auth_sender_fini(struct kvs_auth_sender *a)
{
	sodium_memzero(a, sizeof(*a));
}

int kvs_auth_sender_answer(struct kvs_auth_sender *a,
			   const struct kvs_msg_challenge *m,
			   struct kvs_msg *ret, const char **ret_why)
{
	int err;

	if (!a->has_key) {
		*ret_why = "it asks for a key, and none is given here: a key "
			   "file is needed";
		return -EACCES;
	}
	if (a->answered) {
		*ret_why = "it asks for a key twice";
		return -EPROTO;
	}
	memcpy(a->x.daemon, m->nonce, sizeof(a->x.daemon));
	err = kvs_random_fill(a->x.sender, sizeof(a->x.sender));
	if (err) {
		*ret_why = "no random numbers can be had";
		return err;
	}
	a->answered = true;
	memset(ret, 0, sizeof(*ret));
	ret->type = KVS_WIRE_RESPONSE;
	memcpy(ret->response.nonce, a->x.sender, sizeof(a->x.sender));
	kvs_auth_sender_code(a->key, &a->x, ret->response.mac);
	return 0;
}

int kvs_auth_sender_proof(struct kvs_auth_sender *a,
			  const struct kvs_msg_proof *m, const char **ret_why)
{
	if (!a->answered || a->proven) {
		*ret_why = "it sent PROOF out of place";
		return -EPROTO;
	}
	memcpy(a->proof, m->mac, sizeof(a->proof));
	a->proven = true;
	return 0;
}

int kvs_auth_sender_check(struct kvs_auth_sender *a,
			  const struct kvs_msg_hello *answer,
			  const char **ret_why)
{
	unsigned char want[KVS_AUTH_MAC];

	if (!a->has_key)
		return 0;
	if (!a->proven) {
		*ret_why = "it does not show that it knows the key: it has "
			   "none, or is not kvstaged";
		return -EACCES;
	}
	if (kvs_auth_daemon_code(a->key, &a->x, answer, want) ||
	    sodium_memcmp(want, a->proof, sizeof(want))) {
		*ret_why = "its proof of the key is wrong";
		return -EACCES;
	}
	return 0;
}
