/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of the soft device made by plans, with a ring in ordinary memory and
 * the scatter kernel run thread by thread: what a plan says is what moves.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/plan.h"
#include "gpu/soft_internal.h"

#define SOFT_SLOT_ALIGN 4096u /* bytes */

struct kvs_soft_ring {
	struct kvs_plan_tuning tuning;
	struct kvs_plan_step step;
	enum kvs_copy_way way;
	uint32_t slots;
	uint32_t threads; /* of a launch */
	uint32_t next;
	char *mem; /* of the slots; NULL: there are none */
	void *table;
};

void kvs_soft_plan_free(struct kvs_soft *s)
{
	struct kvs_soft_ring *r = s->ring;

	if (!r)
		return;
	kvs_plan_step_fini(&r->step);
	free(r->mem);
	free(r->table);
	free(r);
	s->ring = NULL;
}

int kvs_soft_plan_copies(struct kvs_soft *s, const struct kvs_copy_opts *o)
{
	struct kvs_soft_ring *r = calloc(1, sizeof(*r));
	size_t table;

	if (!r)
		return -ENOMEM;
	s->ring = r;
	r->way = o->way;
	kvs_plan_tuning_init(&r->tuning, o, o->way);
	r->slots = o->slots ? o->slots : KVS_PLAN_SLOTS;
	r->threads =
		(o->blocks ? o->blocks : KVS_PLAN_BLOCKS) * KVS_SCATTER_BLOCK;
	table = kvs_plan_table_bytes(&r->tuning);
	if (table && posix_memalign(&r->table, SOFT_SLOT_ALIGN, table))
		return -ENOMEM;
	if (r->tuning.slot_bytes &&
	    posix_memalign((void **)&r->mem, SOFT_SLOT_ALIGN,
			   r->slots * r->tuning.slot_bytes))
		return -ENOMEM;
	return kvs_plan_step_init(&r->step, &r->tuning, r->table);
}

void kvs_soft_plan_info(const struct kvs_soft *s, struct kvs_device_info *ret)
{
	const struct kvs_soft_ring *r = s->ring;

	if (!r)
		return;
	ret->way = r->way;
	ret->batch_min = r->tuning.batch_min;
	ret->few = r->tuning.few;
	ret->slots = r->mem ? r->slots : 0;
	ret->slot_bytes = r->tuning.slot_bytes;
	ret->blocks = r->threads / KVS_SCATTER_BLOCK;
}

static void make_pieces(struct kvs_soft *s, enum kvs_copy_dir dir,
			const struct kvs_plan_step *st)
{
	uint32_t i;

	for (i = 0; i < st->n_pieces; i++)
		kvs_soft_move(s, dir, (char *)(uintptr_t)st->pieces[i].host,
			      (char *)(uintptr_t)st->pieces[i].dev,
			      st->pieces[i].len);
}

static void make_launch(struct kvs_soft *s, enum kvs_copy_dir dir,
			const struct kvs_plan_step *st)
{
	const struct kvs_scatter_launch l = {
		.runs = st->runs,
		.pages = st->pages,
		.units = st->units,
		.n_runs = st->n_runs,
	};
	uint32_t t;

	if (!st->n_runs)
		return;
	for (t = 0; t < s->ring->threads; t++)
		kvs_scatter_thread(&l, t, s->ring->threads,
				   dir == KVS_COPY_D2H);
	kvs_soft_count(&s->launches, 1);
}

int kvs_soft_make_plan(struct kvs_soft *s, struct kvs_copy *c, bool half)
{
	struct kvs_soft_ring *r = s->ring;
	struct kvs_plan_step *st = &r->step;
	struct kvs_plan p;

	(void)pthread_mutex_lock(&s->lock);
	kvs_plan_init(&p, c, &r->tuning, &s->hosts);
	while (kvs_plan_next(&p, st)) {
		(void)pthread_mutex_unlock(&s->lock);
		kvs_plan_place(st, (uintptr_t)r->mem +
					   r->next * r->tuning.slot_bytes);
		r->next = (r->next + 1) % r->slots;
		if (c->dir == KVS_COPY_H2D)
			make_pieces(s, c->dir, st);
		if (half)
			return -EIO;
		make_launch(s, c->dir, st);
		if (c->dir == KVS_COPY_D2H)
			make_pieces(s, c->dir, st);
		kvs_soft_count(&s->steps, 1);
		kvs_soft_run_done(c, st->runs_done);
		(void)pthread_mutex_lock(&s->lock);
	}
	(void)pthread_mutex_unlock(&s->lock);
	return half ? -EIO : 0;
}
