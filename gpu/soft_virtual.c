/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The soft device under a clock of the caller's: see soft.h. A job is a copy
 * on the device. The first of ->line is being made; ->aside has those that let
 * others pass (LATE: with a due time; NEVER: without).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/shape.h"
#include "gpu/soft_internal.h"
#include "lib/assert.h"
#include "lib/list.h"
#include "lib/rng.h"
#include "pinned/poison.h"

#define DELAY_MAX KVS_NSEC_PER_MSEC
#define AT_UNSET UINT64_MAX
#define PHANTOM_FROM ((uintptr_t)1 << 60) /* no address of a process */

struct job {
	struct kvs_list node;
	struct kvs_copy *c;
	enum kvs_soft_fault fault;
	uint64_t at;
	uint64_t ready; /* ns; submitted + latency */
	uint64_t due; /* ns; of the next piece, while first or aside */
	uint64_t len;
	uint64_t pos; /* bytes moved */
	uint64_t stop; /* acts at this many */
	size_t run; /* where pos is */
	uint64_t off;
	bool begun;
	bool held;
};

struct kvs_soft_virtual {
	const struct kvs_clock *clock;
	struct kvs_soft_chances p;
	int (*fault)(void *arg, const struct kvs_soft_event *e);
	void *arg;
	struct kvs_rng rng;
	struct kvs_list line;
	struct kvs_list aside;
	uint64_t free_at; /* ns; the last piece was moved */
	uint64_t n[KVS_SOFT_FAULT_MAX];
	bool dead;
	bool phantom;
	uintptr_t next_addr; /* phantom: of the next allocation */
};

static const char *const fault_names[] = { [KVS_SOFT_NO_FAULT] = "none",
#define X(name, text) [KVS_SOFT_##name] = text,
					   KVS_SOFT_FAULTS(X)
#undef X
};

_Static_assert(KVS_ARRAY_SIZE(fault_names) == KVS_SOFT_FAULT_MAX,
	       "every fault has its name");

const char *kvs_soft_fault_name(enum kvs_soft_fault k)
{
	return (size_t)k < KVS_SOFT_FAULT_MAX ? fault_names[k] : "?";
}

static struct kvs_soft_virtual *virtual_of(const struct kvs_device *d)
{
	KVS_CHECK_MAGIC(d, KVS_DEVICE_MAGIC);
	KVS_ASSERT(d->ops == &kvs_soft_virtual_ops);
	return kvs_container_of(d, struct kvs_soft, dev)->v;
}

static struct job *first(const struct kvs_list *l)
{
	return kvs_list_empty(l) ? NULL : kvs_list_first(l, struct job, node);
}

/* ---- what strikes ---- */

static enum kvs_soft_fault draw(struct kvs_soft_virtual *v)
{
	const struct {
		enum kvs_soft_fault k;
		double p;
	} chance[] = {
		{ KVS_SOFT_DELAY, v->p.delay },
		{ KVS_SOFT_HOLD, v->p.hold },
		{ KVS_SOFT_FAIL, v->p.fail },
		{ KVS_SOFT_PARTIAL, v->p.partial },
		{ KVS_SOFT_REORDER, v->p.reorder },
		{ KVS_SOFT_LATE, v->p.late },
		{ KVS_SOFT_STICKY, v->p.sticky },
		{ KVS_SOFT_NEVER, v->p.never },
	};
	size_t i;

	for (i = 0; i < KVS_ARRAY_SIZE(chance); i++)
		if (chance[i].p > 0 && kvs_rng_double(&v->rng) < chance[i].p)
			return chance[i].k;
	return KVS_SOFT_NO_FAULT;
}

static uint64_t draw_at(struct kvs_soft_virtual *v, const struct job *j)
{
	uint64_t max = v->p.delay_max ? v->p.delay_max : DELAY_MAX;

	switch (j->fault) {
	case KVS_SOFT_DELAY:
	case KVS_SOFT_LATE:
		return 1 + kvs_rng_below(&v->rng, max);
	case KVS_SOFT_HOLD:
	case KVS_SOFT_PARTIAL:
	case KVS_SOFT_NEVER:
		return j->len ? kvs_rng_below(&v->rng, j->len) : 0;
	case KVS_SOFT_NO_FAULT:
	case KVS_SOFT_FAIL:
	case KVS_SOFT_REORDER:
	case KVS_SOFT_STICKY:
	case KVS_SOFT_FAULT_MAX:
		break;
	}
	return 0;
}

static void decide(struct kvs_soft_virtual *v, struct job *j)
{
	struct kvs_soft_event e = {
		.order = j->c->order,
		.dir = j->c->dir,
		.bytes = j->len,
		.at = &j->at,
	};
	int r = -1;

	j->at = AT_UNSET;
	if (v->fault)
		r = v->fault(v->arg, &e);
	if (r < 0)
		j->fault = draw(v);
	else if (r < KVS_SOFT_FAULT_MAX)
		j->fault = (enum kvs_soft_fault)r;
	if (j->at == AT_UNSET)
		j->at = draw_at(v, j);
	j->stop = j->len;
	if (j->fault == KVS_SOFT_HOLD || j->fault == KVS_SOFT_PARTIAL ||
	    j->fault == KVS_SOFT_NEVER)
		j->stop = j->at < j->len ? j->at : j->len;
}

/* ---- time ---- */

static uint64_t piece_len(const struct kvs_soft_virtual *v, const struct job *j)
{
	uint64_t n = (j->pos < j->stop ? j->stop : j->len) - j->pos;

	return v->p.piece && n > v->p.piece ? v->p.piece : n;
}

/* The first of the line: when is its next piece there? */
static void schedule(struct kvs_soft_virtual *v)
{
	struct job *j = first(&v->line);
	uint64_t n;

	if (!j || j->held)
		return;
	j->due = j->ready > v->free_at ? j->ready : v->free_at;
	if (v->p.bytes_per_sec) {
		n = piece_len(v, j);
		j->due += (uint64_t)((double)n * 1e9 /
				     (double)v->p.bytes_per_sec);
	}
}

static void finish(struct kvs_soft *s, struct job *j, int status)
{
	struct kvs_copy *c = j->c;

	kvs_list_del(&j->node);
	free(j);
	schedule(s->v);
	kvs_soft_finish(s, c, status);
}

static void set_aside(struct kvs_soft_virtual *v, struct job *j, uint64_t due)
{
	kvs_list_del(&j->node);
	kvs_list_add_tail(&v->aside, &j->node);
	j->due = due;
	schedule(v);
}

/* ---- bytes ---- */

/* On to the run that has bytes left, and tell of those that have none. */
static void pass_runs(struct job *j)
{
	const struct kvs_copy *c = j->c;

	while (j->run < c->n_runs &&
	       j->off == c->runs[j->run].n * c->runs[j->run].item_len) {
		j->run++;
		j->off = 0;
	}
	/* one that comes late moves all of it twice */
	if (j->fault != KVS_SOFT_LATE)
		kvs_soft_run_done(j->c, j->run);
}

static void move_nothing(struct kvs_soft *s, struct job *j, uint64_t n)
{
	const struct kvs_copy_run *r;
	uint64_t part;

	kvs_soft_count(&s->bytes, n);
	j->pos += n;
	for (; n; n -= part) {
		pass_runs(j);
		r = &j->c->runs[j->run];
		part = r->n * r->item_len - j->off;
		if (part > n)
			part = n;
		j->off += part;
	}
	pass_runs(j);
}

static void move(struct kvs_soft *s, struct job *j, uint64_t n)
{
	struct kvs_copy_shape shape;
	const struct kvs_copy_run *r;
	uint64_t part;
	char *host;
	char *dev;

	if (s->v->phantom) {
		move_nothing(s, j, n);
		return;
	}
	while (n) {
		r = &j->c->runs[j->run];
		if (j->off == r->n * r->item_len) {
			pass_runs(j);
			continue;
		}
		shape = kvs_copy_shape_of(j->c, j->run);
		part = kvs_copy_locate(r, &shape, j->off, &host, &dev);
		if (part > n)
			part = n;
		if (j->c->dir == KVS_COPY_H2D)
			kvs_dma_move(dev, host, part);
		else
			kvs_dma_move(host, dev, part);
		kvs_soft_count(&s->moves, 1);
		kvs_soft_count(&s->bytes, part);
		j->off += part;
		j->pos += part;
		n -= part;
	}
	pass_runs(j);
}

static void rewind_job(struct job *j)
{
	j->pos = 0;
	j->run = 0;
	j->off = 0;
}

/* Return: false when it is over, or waits. */
static bool begin(struct kvs_soft *s, struct job *j)
{
	struct kvs_soft_virtual *v = s->v;
	int sticky = atomic_load_explicit(&s->sticky, memory_order_relaxed);

	j->begun = true;
	if (sticky) {
		finish(s, j, sticky);
		return false;
	}
	if (j->fault == KVS_SOFT_STICKY)
		atomic_store_explicit(&s->sticky, -EIO, memory_order_relaxed);
	if (j->fault == KVS_SOFT_STICKY || j->fault == KVS_SOFT_FAIL) {
		v->n[j->fault]++;
		finish(s, j, -EIO);
		return false;
	}
	return true;
}

/* It has moved ->stop bytes. Return: false when it is over, or waits. */
static bool act(struct kvs_soft *s, struct job *j)
{
	struct kvs_soft_virtual *v = s->v;

	j->stop = j->len;
	switch (j->fault) {
	case KVS_SOFT_HOLD:
		v->n[j->fault]++;
		j->fault = KVS_SOFT_NO_FAULT;
		j->held = true;
		return false;
	case KVS_SOFT_PARTIAL:
		v->n[j->fault]++;
		finish(s, j, -EIO);
		return false;
	case KVS_SOFT_NEVER:
		v->n[j->fault]++;
		set_aside(v, j, KVS_TIME_NEVER);
		return false;
	case KVS_SOFT_LATE:
		v->n[j->fault]++;
		set_aside(v, j, kvs_clock_now(v->clock) + j->at);
		return false;
	case KVS_SOFT_NO_FAULT:
	case KVS_SOFT_DELAY:
	case KVS_SOFT_FAIL:
	case KVS_SOFT_REORDER:
	case KVS_SOFT_STICKY:
	case KVS_SOFT_FAULT_MAX:
		break;
	}
	return true;
}

/* One piece of the first of the line. */
static void step(struct kvs_soft *s, struct job *j)
{
	struct kvs_soft_virtual *v = s->v;

	v->free_at = j->due;
	if (!j->begun && !begin(s, j))
		return;
	/* zero: it stops before its first byte, or has none */
	if (j->pos < j->stop)
		move(s, j, piece_len(v, j));
	if (j->pos == j->stop && !act(s, j))
		return;
	if (j->pos == j->len)
		finish(s, j, 0);
	else
		schedule(v);
}

/* The device touches both ends up to the moment it says that it is done. */
static void come_late(struct kvs_soft *s, struct job *j)
{
	rewind_job(j);
	move(s, j, j->len);
	finish(s, j, 0);
}

static struct job *next_job(struct kvs_soft_virtual *v)
{
	struct job *best = first(&v->line);
	struct job *j;

	if (best && best->held)
		best = NULL;
	kvs_list_for_each_entry(j, &v->aside, node)
		if (j->due != KVS_TIME_NEVER && (!best || j->due < best->due))
			best = j;
	return best;
}

unsigned int kvs_soft_run(struct kvs_device *d)
{
	struct kvs_soft *s = kvs_to_soft(d);
	struct kvs_soft_virtual *v = virtual_of(d);
	uint64_t now = kvs_clock_now(v->clock);
	unsigned int n = 0;
	struct job *j;

	while (!v->dead && (j = next_job(v)) && j->due <= now) {
		if (j == first(&v->line))
			step(s, j);
		else
			come_late(s, j);
		n++;
	}
	return n;
}

uint64_t kvs_soft_next(const struct kvs_device *d)
{
	struct kvs_soft_virtual *v = virtual_of(d);
	struct job *j = v->dead ? NULL : next_job(v);

	return j ? j->due : KVS_TIME_NEVER;
}

void kvs_soft_virtual_release(struct kvs_soft *s)
{
	struct kvs_soft_virtual *v = s->v;
	struct job *j;

	/* it need not have come up yet: as the semaphore does */
	kvs_list_for_each_entry(j, &v->line, node) {
		if (!j->held && j->fault != KVS_SOFT_HOLD)
			continue;
		if (j->held)
			v->free_at = kvs_clock_now(v->clock);
		j->held = false;
		j->fault = KVS_SOFT_NO_FAULT;
		j->stop = j->len;
		break;
	}
	schedule(v);
}

void kvs_soft_kill(struct kvs_device *d)
{
	virtual_of(d)->dead = true;
}

const uint64_t *kvs_soft_faults(const struct kvs_device *d)
{
	return virtual_of(d)->n;
}

/* ---- the device ---- */

int kvs_soft_open_virtual(const struct kvs_soft_virtual_opts *o,
			  struct kvs_device **ret)
{
	struct kvs_soft_virtual *v;
	struct kvs_soft *s;
	int r;

	if (!o->clock || (o->chances.latency_max &&
			  o->chances.latency_max < o->chances.latency_min))
		return -EINVAL;
	v = calloc(1, sizeof(*v));
	if (!v)
		return -ENOMEM;
	r = kvs_soft_new(&kvs_soft_virtual_ops, &s);
	if (r) {
		free(v);
		return r;
	}
	v->clock = o->clock;
	v->p = o->chances;
	v->fault = o->fault;
	v->arg = o->arg;
	v->phantom = o->phantom;
	v->next_addr = PHANTOM_FROM;
	kvs_rng_init(&v->rng, o->seed);
	kvs_list_init(&v->line);
	kvs_list_init(&v->aside);
	s->v = v;
	*ret = &s->dev;
	return 0;
}

/* Opened by kvs_soft_open_virtual() only: it has no name in the table. */
static int virtual_open(const struct kvs_device_opts *o,
			struct kvs_device **ret, char *err, size_t errlen)
{
	(void)o;
	(void)ret;
	(void)err;
	(void)errlen;
	return -EOPNOTSUPP;
}

static void drop_jobs(struct kvs_list *l)
{
	struct job *j;

	while ((j = first(l))) {
		kvs_list_del(&j->node);
		free(j);
	}
}

static void virtual_close(struct kvs_device *d)
{
	struct kvs_soft *s = kvs_to_soft(d);
	struct kvs_soft_virtual *v = s->v;
	struct job *j;

	while (!v->dead && (j = first(&v->line))) {
		j->held = false;
		if (j->fault == KVS_SOFT_HOLD) {
			j->fault = KVS_SOFT_NO_FAULT;
			j->stop = j->len;
		}
		step(s, j);
	}
	while (!v->dead && (j = first(&v->aside))) {
		if (j->due == KVS_TIME_NEVER)
			finish(s, j, -EIO);
		else
			come_late(s, j);
	}
	drop_jobs(&v->line);
	drop_jobs(&v->aside);
	if (v->phantom) {
		kvs_spans_fini(&s->allocs);
		s->allocs = (struct kvs_spans){ 0 };
	}
	free(v);
	kvs_soft_free_all(s);
}

static int virtual_alloc(struct kvs_device *d, uint64_t len, void **ret)
{
	struct kvs_soft *s = kvs_to_soft(d);
	struct kvs_soft_virtual *v = s->v;
	void *p = (void *)v->next_addr;
	int r;

	if (!v->phantom)
		return kvs_soft_alloc(d, len, ret);
	if (len > UINTPTR_MAX - v->next_addr)
		return -ENOMEM;
	r = kvs_spans_add(&s->allocs, p, len, false);
	if (r)
		return r;
	v->next_addr += len;
	*ret = p;
	return 0;
}

static void virtual_free(struct kvs_device *d, void *p)
{
	struct kvs_soft *s = kvs_to_soft(d);

	if (s->v->phantom)
		KVS_ASSERT(!kvs_spans_del(&s->allocs, p, 0));
	else
		kvs_soft_free(d, p);
}

static int virtual_peek(struct kvs_device *d, void *host, const void *dev,
			uint64_t len)
{
	if (kvs_to_soft(d)->v->phantom)
		return -EINVAL;
	return kvs_soft_peek(d, host, dev, len);
}

static uint64_t latency(struct kvs_soft_virtual *v)
{
	const struct kvs_soft_chances *p = &v->p;

	if (p->latency_max <= p->latency_min)
		return p->latency_min;
	return p->latency_min +
	       kvs_rng_below(&v->rng, p->latency_max - p->latency_min + 1);
}

static void enqueue(struct kvs_soft_virtual *v, struct job *j)
{
	struct job *last;

	j->ready = kvs_clock_now(v->clock) + latency(v);
	if (j->fault == KVS_SOFT_DELAY) {
		j->ready += j->at;
		v->n[j->fault]++;
	}
	if (j->fault == KVS_SOFT_REORDER && !kvs_list_empty(&v->line)) {
		last = kvs_list_entry(v->line.prev, struct job, node);
		if (!last->begun) {
			v->n[j->fault]++;
			kvs_list_add_tail(&last->node, &j->node);
			schedule(v);
			return;
		}
	}
	kvs_list_add_tail(&v->line, &j->node);
	if (first(&v->line) == j)
		schedule(v);
}

static int virtual_copy(struct kvs_device *d, struct kvs_copy *c)
{
	struct kvs_soft *s = kvs_to_soft(d);
	struct job *j;
	size_t i;
	int r;

	if (s->v->dead)
		return -ENODEV;
	r = atomic_load_explicit(&s->sticky, memory_order_relaxed);
	if (!r)
		r = kvs_soft_check(s, c);
	if (r)
		return r;
	j = calloc(1, sizeof(*j));
	if (!j)
		return -ENOMEM;
	c->order = atomic_fetch_add(&s->order, 1) + 1;
	atomic_store_explicit(&c->status, -EINPROGRESS, memory_order_relaxed);
	atomic_store_explicit(&c->runs_done, 0, memory_order_relaxed);
	j->c = c;
	for (i = 0; i < c->n_runs; i++)
		j->len += c->runs[i].n * c->runs[i].item_len;
	decide(s->v, j);
	enqueue(s->v, j);
	return 0;
}

const struct kvs_device_ops kvs_soft_virtual_ops = {
	.name = "soft",
	.open = virtual_open,
	.close = virtual_close,
	.alloc = virtual_alloc,
	.free = virtual_free,
	.register_host = kvs_soft_register,
	.unregister_host = kvs_soft_unregister,
	.copy = virtual_copy,
	.query = kvs_soft_query,
	.progress = kvs_soft_progress,
	.peek = virtual_peek,
	.info = kvs_soft_info,
	.export = kvs_soft_export,
};
