/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon may ask about a room long after this side is through with it.
 * Nothing is outstanding then, so the answer is an acknowledgement, unless a
 * send of that attempt failed: such attempts are kept. When they cannot be
 * kept, everything unknown is answered as if it were one of them: that costs
 * a revocation, never a wrong proof. Clean attempts are kept only to tell a
 * late ABORT of an earlier attempt from one for the attempt being opened.
 */
#include <stdlib.h>

#include "lib/rng.h"
#include "pipeline/sender_internal.h"

struct past {
	struct kvs_list hash_node;
	struct kvs_list age_node;
	uint64_t room;
	uint64_t generation;
	int err;
};

static struct kvs_list *bucket_of(const struct kvs_send_past *p, uint64_t room)
{
	return &p->bucket[kvs_mix64(room) & (KVS_SEND_BUCKETS - 1)];
}

static struct past *find(const struct kvs_send_past *p, uint64_t room,
			 uint64_t generation)
{
	struct kvs_list *head = bucket_of(p, room);
	struct past *e;

	kvs_list_for_each_entry(e, head, hash_node) {
		if (e->room == room && e->generation == generation)
			return e;
	}
	return NULL;
}

static void drop(struct past *e)
{
	kvs_list_del(&e->hash_node);
	kvs_list_del(&e->age_node);
	free(e);
}

int kvs_send_past_init(struct kvs_send_past *p, uint32_t max_clean,
		       uint32_t max_poisoned)
{
	size_t i;

	*p = (struct kvs_send_past){
		.max_clean = max_clean,
		.max_poisoned = max_poisoned,
	};
	kvs_list_init(&p->clean);
	kvs_list_init(&p->poisoned);
	p->bucket = calloc(KVS_SEND_BUCKETS, sizeof(*p->bucket));
	if (!p->bucket)
		return -ENOMEM;
	for (i = 0; i < KVS_SEND_BUCKETS; i++)
		kvs_list_init(&p->bucket[i]);
	return 0;
}

void kvs_send_past_fini(struct kvs_send_past *p)
{
	if (!p->bucket)
		return;
	while (!kvs_list_empty(&p->clean))
		drop(kvs_list_first(&p->clean, struct past, age_node));
	while (!kvs_list_empty(&p->poisoned))
		drop(kvs_list_first(&p->poisoned, struct past, age_node));
	free(p->bucket);
	p->bucket = NULL;
}

void kvs_send_past_add(struct kvs_send_past *p, uint64_t room,
		       uint64_t generation, int err)
{
	struct past *e = find(p, room, generation);

	if (e && (e->err || !err))
		return;
	if (err && p->n_poisoned == p->max_poisoned) {
		p->overflow = true;
		if (e) {
			drop(e);
			p->n_clean--;
		}
		return;
	}
	if (e) {
		kvs_list_del(&e->age_node);
		p->n_clean--;
	} else {
		e = calloc(1, sizeof(*e));
		if (!e) {
			p->overflow |= err != 0;
			return;
		}
		e->room = room;
		e->generation = generation;
		kvs_list_add(bucket_of(p, room), &e->hash_node);
	}
	e->err = err;
	if (err) {
		kvs_list_add_tail(&p->poisoned, &e->age_node);
		p->n_poisoned++;
		return;
	}
	kvs_list_add_tail(&p->clean, &e->age_node);
	if (++p->n_clean > p->max_clean) {
		drop(kvs_list_first(&p->clean, struct past, age_node));
		p->n_clean--;
	}
}

bool kvs_send_past_known(const struct kvs_send_past *p, uint64_t room,
			 uint64_t generation)
{
	return find(p, room, generation) != NULL;
}

int kvs_send_past_poison(const struct kvs_send_past *p, uint64_t room,
			 uint64_t generation)
{
	const struct past *e = find(p, room, generation);

	if (e)
		return e->err;
	return p->overflow ? EIO : 0;
}
