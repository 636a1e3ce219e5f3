/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a step to calls of the driver: see cuda_internal.h for the order.
 */
#include <errno.h>
#include <string.h>

#include "gpu/cuda/cuda_internal.h"
#include "lib/assert.h"

/*
 * Without a batch call from 13.0 or 12.8, and for pageable memory, which the
 * driver copies through a buffer of its own, one call a piece.
 */
static int flush(struct kvs_cuda *k, enum kvs_cuda_lane lane)
{
	struct kvs_cuda_copy_attr attr = { .order = KVS_CUDA_ORDER_STREAM };
	size_t at = 0, failed = 0;
	uint32_t n = k->n_batch;
	uint32_t i;
	int r = 0;

	k->n_batch = 0;
	if (!n)
		return 0;
	if (n > 1 && k->api->copy_batch)
		return k->api->copy_batch(k->batch_dst, k->batch_src,
					  k->batch_len, n, &attr, &at, 1,
					  k->lane[lane]);
	if (n > 1 && k->api->copy_batch_12)
		return k->api->copy_batch_12(k->batch_dst, k->batch_src,
					     k->batch_len, n, &attr, &at, 1,
					     &failed, k->lane[lane]);
	for (i = 0; i < n && !r; i++)
		r = k->api->copy(k->batch_dst[i], k->batch_src[i],
				 k->batch_len[i], k->lane[lane]);
	return r;
}

static int add(struct kvs_cuda *k, enum kvs_cuda_lane lane, kvs_cuda_ptr dst,
	       kvs_cuda_ptr src, uint64_t len)
{
	int r = 0;

	if (k->n_batch == KVS_CUDA_BATCH)
		r = flush(k, lane);
	k->batch_dst[k->n_batch] = dst;
	k->batch_src[k->n_batch] = src;
	k->batch_len[k->n_batch++] = len;
	return r;
}

/* A piece, cut where registrations end: no call may lie in two. */
static int add_piece(struct kvs_cuda *k, enum kvs_cuda_lane lane,
		     const struct kvs_plan_piece *p)
{
	uint64_t host = p->host, dev = p->dev, len = p->len, n;
	kvs_cuda_ptr h;
	bool pinned;
	int r = 0;

	for (; len && !r; host += n, dev += n, len -= n) {
		pinned = kvs_cuda_host_at(k, host, len, &h, &n);
		if (lane == KVS_CUDA_UP)
			r = pinned ? add(k, lane, dev, h, n)
				   : k->api->copy(dev, h, n, k->lane[lane]);
		else
			r = pinned ? add(k, lane, h, dev, n)
				   : k->api->copy(h, dev, n, k->lane[lane]);
	}
	return r;
}

static int add_pieces(struct kvs_cuda *k, enum kvs_cuda_lane lane)
{
	uint32_t i;
	int r = 0;

	(void)pthread_mutex_lock(&k->lock);
	for (i = 0; i < k->step.n_pieces && !r; i++)
		r = add_piece(k, lane, &k->step.pieces[i]);
	(void)pthread_mutex_unlock(&k->lock);
	return r;
}

/* The table of the launch, to its image on the device. */
static int add_table(struct kvs_cuda *k, const struct kvs_cuda_flight *f)
{
	const struct kvs_plan_step *s = &k->step;
	uint64_t pages = (uint64_t)((char *)s->pages - (char *)f->table);
	int r;

	r = add(k, KVS_CUDA_UP, f->table_dev, (uintptr_t)f->table,
		s->n_runs * sizeof(*s->runs));
	if (!r && s->n_pages)
		r = add(k, KVS_CUDA_UP, f->table_dev + pages,
			(uintptr_t)s->pages, s->n_pages * sizeof(*s->pages));
	return r;
}

static void place(struct kvs_cuda *k, const struct kvs_cuda_slot *slot)
{
	struct kvs_plan_step *s = &k->step;
	kvs_cuda_ptr h;
	uint64_t n;
	uint32_t i;

	kvs_plan_place(s, slot ? slot->mem : 0);
	if (!s->zero_copy || k->same_pointer)
		return;
	(void)pthread_mutex_lock(&k->lock);
	for (i = 0; i < s->n_runs; i++) {
		if (s->runs[i].flags & KVS_SCATTER_SLOT)
			continue;
		(void)kvs_cuda_host_at(k, s->runs[i].host, 1, &h, &n);
		s->runs[i].host = h;
	}
	(void)pthread_mutex_unlock(&k->lock);
}

static int run_kernel(struct kvs_cuda *k, enum kvs_copy_dir dir,
		      const struct kvs_cuda_flight *f)
{
	const struct kvs_plan_step *s = &k->step;
	uint64_t pages = (uint64_t)((char *)s->pages - (char *)f->table);
	struct kvs_scatter_launch l = {
		.runs = (void *)(uintptr_t)f->table_dev,
		.pages = (void *)(uintptr_t)(f->table_dev + pages),
		.units = s->units,
		.n_runs = s->n_runs,
	};
	uint32_t per_block = KVS_SCATTER_BLOCK * KVS_SCATTER_UNROLL;
	uint32_t blocks = (s->units - 1) / per_block + 1;
	void *args[] = { &l };

	return k->api->launch(k->func[dir],
			      blocks < k->blocks ? blocks : k->blocks, 1, 1,
			      KVS_SCATTER_BLOCK, 1, 1, 0,
			      k->lane[KVS_CUDA_KERNEL], args, NULL);
}

static int wait_for(struct kvs_cuda *k, enum kvs_cuda_lane lane,
		    kvs_cuda_event e)
{
	return k->api->stream_wait(k->lane[lane], e, 0);
}

static int wait_slot(struct kvs_cuda *k, enum kvs_cuda_lane lane,
		     const struct kvs_cuda_slot *slot)
{
	return slot && slot->used ? wait_for(k, lane, slot->free) : 0;
}

static int leave_slot(struct kvs_cuda *k, enum kvs_cuda_lane lane,
		      struct kvs_cuda_slot *slot)
{
	if (!slot)
		return 0;
	slot->used = true;
	return k->api->event_record(slot->free, k->lane[lane]);
}

/* Rows were written by another lane: not before that. */
static int wait_rows(struct kvs_cuda *k, enum kvs_cuda_lane lane)
{
	return k->wrote && k->wrote_lane != lane ? wait_for(k, lane, k->wrote)
						 : 0;
}

static int go_up(struct kvs_cuda *k, struct kvs_cuda_flight *f,
		 struct kvs_cuda_slot *slot)
{
	const struct kvs_plan_step *s = &k->step;
	enum kvs_cuda_lane lane = s->n_runs ? KVS_CUDA_KERNEL : KVS_CUDA_UP;
	int r;

	r = wait_slot(k, KVS_CUDA_UP, slot);
	/* the kernel is behind all that this lane waits for */
	if (!r && (s->direct_bytes || lane == KVS_CUDA_UP))
		r = wait_rows(k, KVS_CUDA_UP);
	if (!r && s->n_runs)
		r = add_table(k, f);
	if (!r)
		r = add_pieces(k, KVS_CUDA_UP);
	if (!r)
		r = flush(k, KVS_CUDA_UP);
	if (!r && s->n_runs) {
		r = k->api->event_record(f->up, k->lane[KVS_CUDA_UP]);
		if (!r)
			r = wait_for(k, lane, f->up);
		if (!r)
			r = run_kernel(k, KVS_COPY_H2D, f);
		if (!r)
			r = leave_slot(k, lane, slot);
	}
	if (!r)
		r = k->api->event_record(f->done, k->lane[lane]);
	if (!r) {
		k->wrote = f->done;
		k->wrote_lane = lane;
	}
	return r;
}

static int gather(struct kvs_cuda *k, struct kvs_cuda_flight *f,
		  struct kvs_cuda_slot *slot)
{
	int r;

	r = add_table(k, f);
	if (!r)
		r = flush(k, KVS_CUDA_UP);
	if (!r)
		r = k->api->event_record(f->up, k->lane[KVS_CUDA_UP]);
	if (!r)
		r = wait_for(k, KVS_CUDA_KERNEL, f->up);
	if (!r)
		r = wait_slot(k, KVS_CUDA_KERNEL, slot);
	if (!r)
		r = wait_rows(k, KVS_CUDA_KERNEL);
	if (!r)
		r = run_kernel(k, KVS_COPY_D2H, f);
	if (!r)
		r = k->api->event_record(f->kernel, k->lane[KVS_CUDA_KERNEL]);
	return r;
}

static int go_down(struct kvs_cuda *k, struct kvs_cuda_flight *f,
		   struct kvs_cuda_slot *slot)
{
	const struct kvs_plan_step *s = &k->step;
	int r = 0;

	if (s->n_runs) {
		r = gather(k, f, slot);
		if (!r)
			r = wait_for(k, KVS_CUDA_DOWN, f->kernel);
	} else {
		r = wait_rows(k, KVS_CUDA_DOWN);
	}
	if (!r)
		r = add_pieces(k, KVS_CUDA_DOWN);
	if (!r)
		r = flush(k, KVS_CUDA_DOWN);
	if (!r)
		r = leave_slot(k, KVS_CUDA_DOWN, slot);
	if (!r)
		r = k->api->event_record(f->done, k->lane[KVS_CUDA_DOWN]);
	return r;
}

/* Some of a step was launched, nobody knows what: an event behind all. */
static int close_off(struct kvs_cuda *k, struct kvs_cuda_flight *f,
		     struct kvs_cuda_slot *slot)
{
	int r;

	k->n_batch = 0;
	r = k->api->event_record(f->up, k->lane[KVS_CUDA_UP]);
	if (!r)
		r = wait_for(k, KVS_CUDA_DOWN, f->up);
	if (!r)
		r = k->api->event_record(f->kernel, k->lane[KVS_CUDA_KERNEL]);
	if (!r)
		r = wait_for(k, KVS_CUDA_DOWN, f->kernel);
	if (!r)
		r = leave_slot(k, KVS_CUDA_DOWN, slot);
	if (!r)
		r = k->api->event_record(f->done, k->lane[KVS_CUDA_DOWN]);
	if (!r) {
		k->wrote = f->done;
		k->wrote_lane = KVS_CUDA_DOWN;
	}
	return r;
}

int kvs_cuda_noted(struct kvs_cuda *k, int error)
{
	if (kvs_cuda_is_sticky(error))
		/* pairs with the acquire in kvs_cuda_copy() */
		atomic_store_explicit(&k->sticky, -EIO, memory_order_release);
	return kvs_cuda_errno(error);
}

int kvs_cuda_launch(struct kvs_cuda *k, struct kvs_copy *c,
		    struct kvs_cuda_flight *f)
{
	struct kvs_cuda_slot *slot = NULL;
	int r, off;

	if (k->step.slot_used) {
		slot = &k->slot[k->next_slot];
		k->next_slot = (k->next_slot + 1) % k->n_slots;
	}
	place(k, slot);
	f->c = c;
	f->runs_done = k->step.runs_done;
	f->last = false;
	r = c->dir == KVS_COPY_H2D ? go_up(k, f, slot) : go_down(k, f, slot);
	if (!r)
		return 0;
	off = kvs_cuda_is_sticky(r) ? r : close_off(k, f, slot);
	if (off) {
		/* not even an event can be had: nothing proves anything */
		(void)kvs_cuda_noted(k, KVS_CUDA_UNKNOWN);
		return -EIO;
	}
	return kvs_cuda_errno(r);
}

/* ---- memory ---- */

static int flight_init(struct kvs_cuda *k, struct kvs_cuda_flight *f,
		       size_t table)
{
	const unsigned int flags = KVS_CUDA_EVENT_DISABLE_TIMING;
	int r;

	r = k->api->event_create(&f->up, flags);
	if (!r)
		r = k->api->event_create(&f->kernel, flags);
	if (!r)
		r = k->api->event_create(&f->done, flags);
	if (!r && table)
		r = k->api->host_alloc(&f->table, table,
				       KVS_CUDA_HOST_PORTABLE);
	if (!r && table)
		r = k->api->mem_alloc(&f->table_dev, table);
	return r;
}

/* Slots are had all, or none: copies are mapped then. */
static int slots_init(struct kvs_cuda *k)
{
	uint32_t n = k->opts.slots ? k->opts.slots : KVS_PLAN_SLOTS;
	int r = 0;

	while (!r && k->n_slots < n) {
		struct kvs_cuda_slot *s = &k->slot[k->n_slots];

		r = k->api->mem_alloc(&s->mem, k->tuning.slot_bytes);
		if (!r) {
			k->n_slots++;
			r = k->api->event_create(&s->free,
						 KVS_CUDA_EVENT_DISABLE_TIMING);
		}
	}
	return r;
}

static void slots_fini(struct kvs_cuda *k)
{
	while (k->n_slots) {
		struct kvs_cuda_slot *s = &k->slot[--k->n_slots];

		if (s->free)
			(void)k->api->event_destroy(s->free);
		(void)k->api->mem_free(s->mem);
		*s = (struct kvs_cuda_slot){ 0 };
	}
}

int kvs_cuda_steps_init(struct kvs_cuda *k)
{
	int least = 0, greatest = 0;
	uint32_t i;
	size_t table;
	int r;

	/* lower numbers come first; ours come last */
	r = k->api->priority_range(&least, &greatest);
	for (i = 0; i < KVS_CUDA_LANES && !r; i++)
		r = k->api->stream_create(&k->lane[i],
					  KVS_CUDA_STREAM_NON_BLOCKING, least);
	if (!r && k->way == KVS_COPY_SLOTS) {
		kvs_plan_tuning_init(&k->tuning, &k->opts, k->way);
		if (slots_init(k)) {
			slots_fini(k);
			k->way = KVS_COPY_MAPPED;
		}
	}
	kvs_plan_tuning_init(&k->tuning, &k->opts, k->way);
	k->pageable = k->tuning;
	k->pageable.zero_copy = false;
	if (!k->tuning.slot_bytes) {
		k->pageable.runs = 0;
		k->pageable.pages = 0;
	}
	table = kvs_plan_table_bytes(&k->tuning);
	for (i = 0; i < KVS_CUDA_FLIGHTS && !r; i++)
		r = flight_init(k, &k->flight[i], table);
	if (r)
		return kvs_cuda_noted(k, r);
	return kvs_plan_step_init(&k->step, &k->tuning, NULL);
}

void kvs_cuda_steps_fini(struct kvs_cuda *k)
{
	uint32_t i;

	kvs_plan_step_fini(&k->step);
	for (i = 0; i < KVS_CUDA_FLIGHTS; i++) {
		struct kvs_cuda_flight *f = &k->flight[i];

		if (f->table_dev)
			(void)k->api->mem_free(f->table_dev);
		if (f->table)
			(void)k->api->host_free(f->table);
		if (f->up)
			(void)k->api->event_destroy(f->up);
		if (f->kernel)
			(void)k->api->event_destroy(f->kernel);
		if (f->done)
			(void)k->api->event_destroy(f->done);
	}
	slots_fini(k);
	for (i = 0; i < KVS_CUDA_LANES; i++)
		if (k->lane[i])
			(void)k->api->stream_destroy(k->lane[i]);
}
