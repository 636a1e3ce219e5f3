/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "lib/log.h"
#include "pipeline/sender_internal.h"

/* The file may have been exchanged since; one that is not right just now may
 * be right again soon, so the keys that were stay. */
static void read_keys(struct kvs_sender *s)
{
	struct kvs_auth_keys k;
	char err[512];

	if (!s->key_file)
		return;
	if (kvs_auth_keys_load(s->key_file, &k, err, sizeof(err))) {
		kvs_log_debug("sender %s/%u: %s", s->peer, s->rank, err);
		return;
	}
	s->keys = k;
	kvs_auth_keys_clear(&k);
}

int kvs_sender_greet(struct kvs_sender *s, struct kvs_conn *c,
		     struct kvs_auth_sender *a, unsigned int role,
		     uint32_t worker, uint32_t path)
{
	struct kvs_msg m;
	int ret;

	read_keys(s);
	kvs_sender_hello(s, &m, role, worker, path);
	ret = kvs_auth_sender_init(a, &s->keys, &m.hello);
	if (ret) {
		kvs_conn_close(c, ret, false);
		return ret;
	}
	return kvs_sender_say_on(s, c, &m);
}

int kvs_sender_greeted(struct kvs_sender *s, struct kvs_conn *c,
		       struct kvs_auth_sender *a, const struct kvs_msg *m,
		       const char **ret_why)
{
	struct kvs_msg out;
	int ret;

	if (m->type == KVS_WIRE_CHALLENGE) {
		ret = kvs_auth_sender_answer(a, &m->challenge, &out, ret_why);
		if (!ret)
			/* a failure closes it, and that is told */
			(void)kvs_sender_say_on(s, c, &out);
		return ret;
	}
	if (m->type == KVS_WIRE_PROOF)
		return kvs_auth_sender_proof(a, &m->proof, ret_why);
	if (m->type != KVS_WIRE_HELLO) {
		*ret_why = "it sent another message than HELLO";
		return -EPROTO;
	}
	ret = kvs_auth_sender_check(a, &m->hello, ret_why);
	kvs_auth_sender_fini(a);
	return ret ? ret : 1;
}
