/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: the codes are those of kvstage-wire(7), reckoned with another
 * library; a code is good for one HELLO, one pair of random numbers, one
 * direction and one key, so that nothing replayed, reflected, moved to another
 * rank, role or session, or cut passes; either of two keys is accepted and the
 * proof is made with the one that was shown; a sender believes no HELLO
 * without a proof over that very HELLO (vllm-project/vllm#17192).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/random.h"
#include "pipeline/auth.h"

static const struct kvs_msg_hello hello_control = {
	.version_min = 1,
	.version_max = 1,
	.role = KVS_ROLE_CONTROL,
	.caps = 0x1b,
	.instance = 0x1122334455667788,
	.rank = 1,
	.n_ranks = 2,
	.keepalive_ms = 5000,
	.name = "prefill-a",
};
static const struct kvs_msg_hello answer_control = {
	.version_min = 1,
	.version_max = 1,
	.role = KVS_ROLE_CONTROL,
	.caps = 3,
	.instance = 0xaabbccdd,
	.session = 0x0102030405060708,
	.rank = 1,
	.n_ranks = 2,
	.keepalive_ms = 15000,
	.name = "kvstaged",
};
static const struct kvs_msg_hello hello_data = {
	.version_min = 1,
	.version_max = 1,
	.role = KVS_ROLE_DATA,
	.caps = 0x1b,
	.instance = 0x1122334455667788,
	.session = 0x0102030405060708,
	.rank = 1,
	.n_ranks = 2,
	.worker = 3,
	.name = "prefill-a",
};

static struct kvs_auth_keys keys(unsigned int n, unsigned char first)
{
	struct kvs_auth_keys k = { .n = n };

	for (unsigned int i = 0; i < n; i++)
		for (unsigned int b = 0; b < KVS_AUTH_KEY; b++)
			k.key[i][b] = (unsigned char)(first + b + 100 * i);
	return k;
}

/* "Random" numbers that are known: consecutive bytes from *arg on. */
static int known(void *arg, void *buf, size_t len)
{
	unsigned char *next = arg, *p = buf;

	for (size_t i = 0; i < len; i++)
		p[i] = (unsigned char)(*next + i);
	*next = (unsigned char)(*next + 0x40);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	kvs_random_use(NULL, NULL);
	return 0;
}

static void same(const unsigned char code[KVS_AUTH_MAC], const char *hex)
{
	char text[2 * KVS_AUTH_MAC + 1];

	for (int i = 0; i < KVS_AUTH_MAC; i++)
		snprintf(text + 2 * i, 3, "%02x", code[i]);
	assert_string_equal(text, hex);
}

/* A whole handshake; false: the daemon refused the code. */
static bool shake(const struct kvs_auth_keys *ours,
		  const struct kvs_auth_keys *theirs,
		  const struct kvs_msg_hello *h,
		  const struct kvs_msg_hello *answer, unsigned int *ret_key)
{
	struct kvs_msg challenge, response, proof = { .type = KVS_WIRE_PROOF };
	struct kvs_auth_exchange x;
	struct kvs_auth_sender a;
	const char *why = "";
	int key;

	assert_int_equal(kvs_auth_sender_init(&a, theirs, h), 0);
	assert_int_equal(kvs_auth_challenge(h, &x, &challenge), 0);
	assert_int_equal(challenge.type, KVS_WIRE_CHALLENGE);
	assert_int_equal(kvs_auth_sender_answer(&a, &challenge.challenge,
						&response, &why),
			 0);
	assert_int_equal(response.type, KVS_WIRE_RESPONSE);
	key = kvs_auth_verify(ours, &x, &response.response);
	if (key < 0) {
		assert_int_equal(key, -EACCES);
		return false;
	}
	*ret_key = (unsigned int)key;
	assert_int_equal(kvs_auth_daemon_code(ours->key[key], &x, answer,
					      proof.proof.mac),
			 0);
	assert_int_equal(kvs_auth_sender_proof(&a, &proof.proof, &why), 0);
	assert_int_equal(kvs_auth_sender_check(&a, answer, &why), 0);
	kvs_auth_sender_fini(&a);
	return true;
}

static void vectors(void **state)
{
	const struct kvs_auth_keys k = keys(1, 0);
	struct kvs_auth_exchange x;
	unsigned char code[KVS_AUTH_MAC], next = 0x40;
	struct kvs_msg m;

	(void)state;
	kvs_random_use(known, &next);
	assert_int_equal(kvs_auth_challenge(&hello_control, &x, &m), 0);
	assert_int_equal(m.challenge.nonce[0], 0x40);
	assert_int_equal(m.challenge.nonce[31], 0x5f);
	known(&next, x.sender, sizeof(x.sender));
	assert_int_equal(x.sender[0], 0x80);
	kvs_auth_sender_code(k.key[0], &x, code);
	same(code, "36489662f021a1ebc4f24bb60cb4e04a"
		   "7ff4c7e81ce2ca5cc663fab46da62287");
	kvs_auth_daemon_code(k.key[0], &x, &answer_control, code);
	same(code, "f2bc081bcf8cac0473abdbd6520db060"
		   "7984a345cc0a45dfdfea0149ed69bbfe");

	next = 0x40;
	assert_int_equal(kvs_auth_challenge(&hello_data, &x, &m), 0);
	known(&next, x.sender, sizeof(x.sender));
	kvs_auth_sender_code(k.key[0], &x, code);
	same(code, "e13e372e3e02d2374bf191ff6e3fd0ac"
		   "9625d4ed57ceaa1f6fcd959d5f50d311");
	{
		struct kvs_msg_hello answer = hello_data;

		answer.instance = 0xaabbccdd;
		kvs_auth_daemon_code(k.key[0], &x, &answer, code);
	}
	same(code, "149af3a13c764e55d5ce5d7f4d270104"
		   "3e65c8973860ce677130f8d5ff7afe8d");
}

static void two_keys(void **state)
{
	const struct kvs_auth_keys old = keys(1, 1), both = keys(2, 1),
				   other = keys(2, 50);
	struct kvs_auth_keys fresh = { .n = 1 }, turned = both;
	unsigned int key = 9;

	(void)state;
	memcpy(fresh.key[0], both.key[1], KVS_AUTH_KEY);
	memcpy(turned.key[0], both.key[1], KVS_AUTH_KEY);
	memcpy(turned.key[1], both.key[0], KVS_AUTH_KEY);
	/* nobody has exchanged anything */
	assert_true(shake(&old, &old, &hello_control, &answer_control, &key));
	assert_int_equal(key, 0);
	/* the daemon has: old and new senders come in */
	assert_true(shake(&both, &old, &hello_control, &answer_control, &key));
	assert_int_equal(key, 0);
	assert_true(
		shake(&both, &fresh, &hello_control, &answer_control, &key));
	assert_int_equal(key, 1);
	/* a sender shows its first key only */
	assert_true(
		shake(&both, &turned, &hello_control, &answer_control, &key));
	assert_int_equal(key, 1);
	assert_true(
		shake(&turned, &turned, &hello_data, &answer_control, &key));
	assert_int_equal(key, 0);
	/* the old one is out */
	assert_false(
		shake(&fresh, &old, &hello_control, &answer_control, &key));
	assert_false(
		shake(&old, &fresh, &hello_control, &answer_control, &key));
	assert_false(
		shake(&both, &other, &hello_control, &answer_control, &key));
}

/* What an attacker could send again that he has seen. */
static void replayed(void **state)
{
	const struct kvs_auth_keys k = keys(1, 7);
	struct kvs_msg challenge, response;
	struct kvs_auth_exchange x, y;
	struct kvs_auth_sender a;
	struct kvs_msg_response r;
	const char *why = "";

	(void)state;
	assert_int_equal(kvs_auth_sender_init(&a, &k, &hello_control), 0);
	assert_int_equal(kvs_auth_challenge(&hello_control, &x, &challenge), 0);
	assert_int_equal(kvs_auth_sender_answer(&a, &challenge.challenge,
						&response, &why),
			 0);
	assert_int_equal(kvs_auth_verify(&k, &x, &response.response), 0);
	/* the same HELLO, a new connection: another number of the daemon */
	assert_int_equal(kvs_auth_challenge(&hello_control, &y, &challenge), 0);
	assert_memory_not_equal(x.daemon, y.daemon, sizeof(x.daemon));
	assert_int_equal(kvs_auth_verify(&k, &y, &response.response), -EACCES);
	/* reflected: the daemon's own code, or its own number, for ours */
	memcpy(r.nonce, y.daemon, sizeof(r.nonce));
	assert_int_equal(
		kvs_auth_daemon_code(k.key[0], &x, &answer_control, r.mac), 0);
	assert_int_equal(kvs_auth_verify(&k, &y, &r), -EACCES);
	memcpy(r.nonce, x.sender, sizeof(r.nonce));
	assert_int_equal(kvs_auth_verify(&k, &x, &r), -EACCES);
	/* and it was right all the time */
	assert_int_equal(kvs_auth_verify(&k, &x, &response.response), 0);
}

/* A code does not fit another HELLO, nor one bit of anything changed. */
static void moved(void **state)
{
	const struct kvs_auth_keys k = keys(2, 7);
	struct kvs_msg challenge, response;
	struct kvs_auth_exchange x;
	struct kvs_auth_sender a;
	const char *why = "";
	unsigned int n = 0;

	(void)state;
	assert_int_equal(kvs_auth_sender_init(&a, &k, &hello_data), 0);
	assert_int_equal(kvs_auth_challenge(&hello_data, &x, &challenge), 0);
	assert_int_equal(kvs_auth_sender_answer(&a, &challenge.challenge,
						&response, &why),
			 0);
	/* every field: rank, role, session, instance, name, ... */
	for (size_t bit = 0; bit < 8 * sizeof(x.hello); bit++) {
		x.hello[bit / 8] ^= (unsigned char)(1 << bit % 8);
		assert_int_equal(kvs_auth_verify(&k, &x, &response.response),
				 -EACCES);
		x.hello[bit / 8] ^= (unsigned char)(1 << bit % 8);
		n++;
	}
	for (size_t bit = 0; bit < 8 * sizeof(x.daemon); bit++) {
		x.daemon[bit / 8] ^= (unsigned char)(1 << bit % 8);
		assert_int_equal(kvs_auth_verify(&k, &x, &response.response),
				 -EACCES);
		x.daemon[bit / 8] ^= (unsigned char)(1 << bit % 8);
	}
	for (size_t bit = 0; bit < 8 * KVS_AUTH_MAC; bit++) {
		response.response.mac[bit / 8] ^= (unsigned char)(1 << bit % 8);
		assert_int_equal(kvs_auth_verify(&k, &x, &response.response),
				 -EACCES);
		response.response.mac[bit / 8] ^= (unsigned char)(1 << bit % 8);
		response.response.nonce[bit / 8] ^=
			(unsigned char)(1 << bit % 8);
		assert_int_equal(kvs_auth_verify(&k, &x, &response.response),
				 -EACCES);
		response.response.nonce[bit / 8] ^=
			(unsigned char)(1 << bit % 8);
	}
	assert_int_equal(n, 1024);
	assert_int_equal(kvs_auth_verify(&k, &x, &response.response), 0);
}

static void the_daemon_must_prove_itself(void **state)
{
	const struct kvs_auth_keys k = keys(1, 3), other = keys(1, 4);
	struct kvs_msg challenge, response, proof = { .type = KVS_WIRE_PROOF };
	struct kvs_msg_hello changed = answer_control;
	struct kvs_auth_exchange x;
	struct kvs_auth_sender a;
	const char *why = "";

	(void)state;
	/* it asks for nothing, and answers */
	assert_int_equal(kvs_auth_sender_init(&a, &k, &hello_control), 0);
	assert_int_equal(kvs_auth_sender_check(&a, &answer_control, &why),
			 -EACCES);
	assert_non_null(strstr(why, "does not show"));
	/* a proof that nobody asked for */
	assert_int_equal(kvs_auth_sender_proof(&a, &proof.proof, &why),
			 -EPROTO);
	assert_int_equal(kvs_auth_challenge(&hello_control, &x, &challenge), 0);
	assert_int_equal(kvs_auth_sender_answer(&a, &challenge.challenge,
						&response, &why),
			 0);
	/* it asks again: one code a connection */
	assert_int_equal(kvs_auth_sender_answer(&a, &challenge.challenge,
						&response, &why),
			 -EPROTO);
	/* it takes the code and has no key itself */
	assert_int_equal(kvs_auth_sender_check(&a, &answer_control, &why),
			 -EACCES);
	memcpy(x.sender, response.response.nonce, sizeof(x.sender));
	/* our own code comes back */
	memcpy(proof.proof.mac, response.response.mac, KVS_AUTH_MAC);
	assert_int_equal(kvs_auth_sender_proof(&a, &proof.proof, &why), 0);
	assert_int_equal(kvs_auth_sender_proof(&a, &proof.proof, &why),
			 -EPROTO);
	assert_int_equal(kvs_auth_sender_check(&a, &answer_control, &why),
			 -EACCES);
	/* one made with another key */
	a.proven = false;
	kvs_auth_daemon_code(other.key[0], &x, &answer_control,
			     proof.proof.mac);
	assert_int_equal(kvs_auth_sender_proof(&a, &proof.proof, &why), 0);
	assert_int_equal(kvs_auth_sender_check(&a, &answer_control, &why),
			 -EACCES);
	assert_non_null(strstr(why, "wrong"));
	/* a good one, but the HELLO behind it is another */
	a.proven = false;
	kvs_auth_daemon_code(k.key[0], &x, &answer_control, proof.proof.mac);
	assert_int_equal(kvs_auth_sender_proof(&a, &proof.proof, &why), 0);
	changed.session++;
	assert_int_equal(kvs_auth_sender_check(&a, &changed, &why), -EACCES);
	changed = answer_control;
	changed.caps |= KVS_CAP_ONE_SIDED;
	assert_int_equal(kvs_auth_sender_check(&a, &changed, &why), -EACCES);
	assert_int_equal(kvs_auth_sender_check(&a, &answer_control, &why), 0);
	kvs_auth_sender_fini(&a);
}

static void no_key_here(void **state)
{
	const struct kvs_auth_keys none = { 0 };
	struct kvs_msg challenge, response;
	struct kvs_auth_exchange x;
	struct kvs_auth_sender a;
	const char *why = "";

	(void)state;
	assert_int_equal(kvs_auth_sender_init(&a, NULL, &hello_control), 0);
	assert_int_equal(kvs_auth_sender_check(&a, &answer_control, &why), 0);
	assert_int_equal(kvs_auth_sender_init(&a, &none, &hello_control), 0);
	assert_int_equal(kvs_auth_challenge(&hello_control, &x, &challenge), 0);
	assert_int_equal(kvs_auth_sender_answer(&a, &challenge.challenge,
						&response, &why),
			 -EACCES);
	assert_non_null(strstr(why, "a key file is needed"));
	/* no keys: nobody passes */
	memset(&response, 0, sizeof(response));
	assert_int_equal(kvs_auth_verify(&none, &x, &response.response),
			 -EACCES);
}

static int broken(void *arg, void *buf, size_t len)
{
	(void)arg;
	(void)buf;
	(void)len;
	return -ENOSYS;
}

/* Nobody shakes hands with numbers that are not random. */
static void no_random_numbers(void **state)
{
	const struct kvs_auth_keys k = keys(1, 3);
	struct kvs_msg challenge = { 0 }, response = { 0 };
	struct kvs_auth_exchange x;
	struct kvs_auth_sender a;
	const char *why = "";

	(void)state;
	kvs_random_use(broken, NULL);
	assert_int_equal(kvs_auth_challenge(&hello_control, &x, &challenge),
			 -ENOSYS);
	assert_int_equal(kvs_auth_sender_init(&a, &k, &hello_control), 0);
	assert_int_equal(kvs_auth_sender_answer(&a, &challenge.challenge,
						&response, &why),
			 -ENOSYS);
	assert_int_equal(response.type, 0);
}

/* Every HELLO that can be received can be answered for; no other begins. */
static void hello_that_cannot_be(void **state)
{
	const struct kvs_auth_keys k = keys(1, 3);
	struct kvs_msg_hello bad = hello_control;
	struct kvs_auth_exchange x;
	struct kvs_auth_sender a;
	struct kvs_msg m;

	(void)state;
	bad.n_ranks = 0;
	assert_int_equal(kvs_auth_challenge(&bad, &x, &m), -EINVAL);
	assert_int_equal(kvs_auth_sender_init(&a, &k, &bad), -EINVAL);
	bad = hello_control;
	memset(bad.name, 'x', sizeof(bad.name));
	assert_int_equal(kvs_auth_challenge(&bad, &x, &m), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(vectors, teardown),
		cmocka_unit_test(two_keys),
		cmocka_unit_test(replayed),
		cmocka_unit_test(moved),
		cmocka_unit_test(the_daemon_must_prove_itself),
		cmocka_unit_test(no_key_here),
		cmocka_unit_test_teardown(no_random_numbers, teardown),
		cmocka_unit_test(hello_that_cannot_be),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
