/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/aborts.h"

#include <stdio.h>
#include <string.h>

#include "lib/rng.h"

/* Generations of one node differ in their upper bits. */
static uint64_t place_of(uint64_t generation)
{
	return kvs_mix64(generation) & (KVS_ABORTS - 1);
}

static struct kvs_abort_entry *find(struct kvs_aborts *a, uint64_t generation,
				    uint64_t now)
{
	struct kvs_abort_entry *e = &a->v[place_of(generation)];

	if (!generation || e->generation != generation || now < e->at)
		return NULL;
	return e;
}

/* Sets the rank's bit; returns what it was. */
static bool mark(struct kvs_abort_ranks *r, uint32_t rank)
{
	uint64_t bit = 1ULL << rank % 64;
	bool was = r->bits[rank / 64] & bit;

	r->bits[rank / 64] |= bit;
	return was;
}

void kvs_aborts_add(struct kvs_aborts *a, uint64_t generation, int err,
		    const char *text, uint64_t now)
{
	struct kvs_abort_entry *e = &a->v[place_of(generation)];

	*e = (struct kvs_abort_entry){
		.generation = generation,
		.at = now,
		.err = err,
	};
	snprintf(e->text, sizeof(e->text), "%s", text);
}

int kvs_aborts_err(const struct kvs_aborts *a, uint64_t generation,
		   const char **ret_text)
{
	const struct kvs_abort_entry *e = &a->v[place_of(generation)];
	bool known = generation && e->generation == generation;

	if (ret_text)
		*ret_text = known ? e->text : "";
	return known ? e->err : 0;
}

bool kvs_aborts_answer(struct kvs_aborts *a, uint64_t generation, uint32_t rank,
		       uint64_t now, uint64_t *ret_ns)
{
	struct kvs_abort_entry *e = find(a, generation, now);

	if (!e || rank >= KVS_RANKS_MAX || mark(&e->answered, rank) ||
	    e->late.bits[rank / 64] & 1ULL << rank % 64)
		return false;
	*ret_ns = now - e->at;
	return true;
}

bool kvs_aborts_chunk(struct kvs_aborts *a, uint64_t generation, uint32_t rank,
		      uint64_t now, uint64_t *ret_ns)
{
	struct kvs_abort_entry *e = find(a, generation, now);

	if (!e || rank >= KVS_RANKS_MAX)
		return false;
	mark(&e->late, rank);
	*ret_ns = now - e->at;
	return true;
}
