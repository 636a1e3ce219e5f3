/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/registrar.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "gpu/shape.h"

/*
 * Far below what a driver takes in one call (64 GiB): a commit waits for one
 * of these at most before its own comes. A multiple of a pool's segments.
 */
#define PIECE_MAX ((uint64_t)4 << 30) /* bytes */
#define NONE UINT64_MAX

enum piece_state {
	PIECE_WAITING,
	PIECE_PINNED,
	PIECE_PAGEABLE, /* and the device knows it as such */
	PIECE_UNKNOWN, /* to the device; it is pageable all the same */
};

struct range {
	struct kvs_registrar_range r;
	uint64_t first; /* its pieces */
	uint64_t n;
};

struct piece {
	char *addr;
	uint64_t len;
	const struct range *of;
	_Atomic int state; /* release by who settles it, acquire by askers */
};

struct kvs_registrar {
	struct kvs_device *dev;
	pthread_t thread;
	bool threaded;
	_Atomic bool stop;
	_Atomic bool over; /* release behind the last piece */
	_Atomic uint64_t wanted; /* piece that comes next, or NONE */
	_Atomic uint64_t settled; /* bytes */
	_Atomic uint64_t pinned;
	_Atomic int err;
	uint64_t total; /* bytes */
	uint64_t piece; /* bytes; the last of a range may have fewer */
	struct range *ranges;
	uint32_t n_ranges;
	uint64_t n;
	struct piece v[]; /* by range, then by address */
};

static int state_of(const struct piece *p)
{
	/* pairs with the release in settle() */
	return atomic_load_explicit(&p->state, memory_order_acquire);
}

static void settle(struct kvs_registrar *g, struct piece *p,
		   enum piece_state state)
{
	/* pairs with the acquire in state_of() */
	atomic_store_explicit(&p->state, state, memory_order_release);
	atomic_fetch_add_explicit(&g->settled, p->len, memory_order_relaxed);
	/* pairs with the acquire in kvs_registrar_state() */
	if (state == PIECE_PINNED)
		atomic_fetch_add_explicit(&g->pinned, p->len,
					  memory_order_release);
}

static void note(struct kvs_registrar *g, int err)
{
	int none = 0;

	(void)atomic_compare_exchange_strong(&g->err, &none, err);
}

static unsigned int flags_of(const struct piece *p)
{
	return p->of->r.read_only ? KVS_HOST_READ_ONLY : 0;
}

/* Pageable, so that copies are cut where it begins and ends. */
static void leave_pageable(struct kvs_registrar *g, struct piece *p, int err)
{
	int r;

	note(g, err);
	r = kvs_device_register_host(g->dev, p->addr, p->len,
				     flags_of(p) | KVS_HOST_PAGEABLE);
	settle(g, p, r < 0 ? PIECE_UNKNOWN : PIECE_PAGEABLE);
}

/* What ails all pieces of a range alike need not be asked for each. */
static bool same_for_all(int err)
{
	return err == -EPERM || err == -EOPNOTSUPP;
}

static bool dead(struct kvs_registrar *g)
{
	struct kvs_device_info info;

	kvs_device_info(g->dev, &info);
	return info.sticky;
}

/* Return: the error that ends everything, or 0. */
static int do_piece(struct kvs_registrar *g, uint64_t i)
{
	struct piece *p = &g->v[i];
	int r;

	r = kvs_device_register_host(g->dev, p->addr, p->len, flags_of(p));
	if (!r) {
		settle(g, p, PIECE_PINNED);
		return 0;
	}
	if (r == 1) {
		note(g, -EOPNOTSUPP);
		settle(g, p, PIECE_PAGEABLE);
		return 0;
	}
	leave_pageable(g, p, r);
	if (dead(g))
		return -EIO;
	for (uint64_t k = 0; same_for_all(r) && k < g->n; k++)
		if (g->v[k].of == p->of && state_of(&g->v[k]) == PIECE_WAITING)
			leave_pageable(g, &g->v[k], r);
	return 0;
}

/* What is wanted, else the first that is left. */
static uint64_t next_piece(struct kvs_registrar *g)
{
	uint64_t i = atomic_exchange_explicit(&g->wanted, NONE,
					      memory_order_relaxed);

	if (i < g->n && state_of(&g->v[i]) == PIECE_WAITING)
		return i;
	for (i = 0; i < g->n; i++)
		if (state_of(&g->v[i]) == PIECE_WAITING)
			return i;
	return NONE;
}

static void all_pieces(struct kvs_registrar *g)
{
	uint64_t i;
	int err = 0;

	while (!err && !atomic_load_explicit(&g->stop, memory_order_relaxed)) {
		i = next_piece(g);
		if (i == NONE)
			break;
		err = do_piece(g, i);
	}
	if (!err)
		err = -ECANCELED; /* if there is anything left */
	for (i = 0; i < g->n; i++)
		if (state_of(&g->v[i]) == PIECE_WAITING)
			leave_pageable(g, &g->v[i], err);
	/* pairs with the acquire in kvs_registrar_ready() */
	atomic_store_explicit(&g->over, true, memory_order_release);
}

static void *registrar_main(void *arg)
{
	(void)pthread_setname_np(pthread_self(), "kvs-register");
	all_pieces(arg);
	return NULL;
}

static int begin(struct kvs_registrar *g)
{
	sigset_t all, old;
	int r;

	/* signals are for the program's own threads */
	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&g->thread, NULL, registrar_main, g);
	(void)pthread_sigmask(SIG_SETMASK, &old, NULL);
	g->threaded = !r;
	return -r;
}

static void cut(struct kvs_registrar *g)
{
	struct piece *p = g->v;
	uint64_t off, len;

	for (uint32_t i = 0; i < g->n_ranges; i++) {
		const struct range *r = &g->ranges[i];

		g->total += r->r.len;
		for (off = 0; off < r->r.len; off += len, p++) {
			len = r->r.len - off;
			len = len < g->piece ? len : g->piece;
			p->addr = (char *)r->r.addr + off;
			p->len = len;
			p->of = r;
		}
	}
}

static int new_registrar(const struct kvs_registrar_range *v, uint32_t n,
			 uint64_t piece, struct kvs_registrar **ret)
{
	struct kvs_registrar *g;
	uint64_t pieces = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (!v[i].len)
			return -EINVAL;
		pieces += (v[i].len - 1) / piece + 1;
	}
	g = calloc(1, sizeof(*g) + pieces * sizeof(g->v[0]) +
			      n * sizeof(g->ranges[0]));
	if (!g)
		return -ENOMEM;
	g->piece = piece;
	g->n = pieces;
	g->ranges = (struct range *)(g->v + pieces);
	g->n_ranges = n;
	atomic_init(&g->wanted, NONE);
	pieces = 0;
	for (uint32_t i = 0; i < n; i++) {
		g->ranges[i].r = v[i];
		g->ranges[i].first = pieces;
		g->ranges[i].n = (v[i].len - 1) / piece + 1;
		pieces += g->ranges[i].n;
	}
	cut(g);
	*ret = g;
	return 0;
}

int kvs_registrar_start(struct kvs_device *d,
			const struct kvs_registrar_range *v, uint32_t n,
			struct kvs_registrar **ret)
{
	struct kvs_device_info info;
	struct kvs_registrar *g;
	uint64_t piece;
	int r;

	kvs_device_info(d, &info);
	piece = info.register_chunk ? info.register_chunk : UINT64_MAX;
	if (info.register_chunk && piece > PIECE_MAX)
		piece = PIECE_MAX;
	r = new_registrar(v, n, piece, &g);
	if (r)
		return r;
	g->dev = d;
	if (!info.register_chunk) {
		all_pieces(g);
	} else {
		r = begin(g);
		if (r) {
			free(g);
			return r;
		}
	}
	*ret = g;
	return 0;
}

/* The first piece of [addr, addr + len) that is not settled, or NONE. */
static uint64_t unsettled(const struct kvs_registrar *g, const char *addr,
			  uint64_t len)
{
	uintptr_t from = (uintptr_t)addr, last = from + (len - 1);

	for (uint32_t i = 0; i < g->n_ranges; i++) {
		const struct range *r = &g->ranges[i];
		uintptr_t base = (uintptr_t)r->r.addr;
		uint64_t k, to;

		if (last < base || from > base + (r->r.len - 1))
			continue;
		k = from > base ? (from - base) / g->piece : 0;
		to = (last - base) / g->piece;
		for (; k <= to && k < r->n; k++)
			if (state_of(&g->v[r->first + k]) == PIECE_WAITING)
				return r->first + k;
	}
	return NONE;
}

int kvs_registrar_ready(struct kvs_registrar *g, const struct kvs_copy *c)
{
	/* pairs with the release in all_pieces() */
	if (atomic_load_explicit(&g->over, memory_order_acquire))
		return 0;
	for (size_t i = 0; i < c->n_runs; i++) {
		struct kvs_copy_shape s = kvs_copy_shape_of(c, i);
		uint64_t len, k;

		if (!c->runs[i].n || !kvs_copy_reach(s.host_item, c->runs[i].n,
						     s.host_row, &s, &len))
			continue;
		k = unsettled(g, c->runs[i].host, len);
		if (k == NONE)
			continue;
		atomic_store_explicit(&g->wanted, k, memory_order_relaxed);
		return -EINPROGRESS;
	}
	return 0;
}

void kvs_registrar_state(const struct kvs_registrar *g,
			 struct kvs_registrar_state *ret)
{
	ret->over = atomic_load_explicit(&g->over, memory_order_acquire);
	ret->total = g->total;
	/* first: of what is pinned all is settled */
	ret->pinned = atomic_load_explicit(&g->pinned, memory_order_acquire);
	ret->settled = atomic_load_explicit(&g->settled, memory_order_relaxed);
	ret->err = atomic_load_explicit(&g->err, memory_order_relaxed);
}

void kvs_registrar_stop(struct kvs_registrar *g)
{
	atomic_store_explicit(&g->stop, true, memory_order_relaxed);
}

void kvs_registrar_end(struct kvs_registrar *g, bool undo)
{
	if (!g)
		return;
	kvs_registrar_stop(g);
	if (g->threaded)
		(void)pthread_join(g->thread, NULL);
	for (uint64_t i = undo ? g->n : 0; i--;)
		if (state_of(&g->v[i]) != PIECE_UNKNOWN)
			(void)kvs_device_unregister_host(g->dev, g->v[i].addr,
							 g->v[i].len);
	free(g);
}
