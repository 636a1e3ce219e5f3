/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/hicache/model.h"

#include <string.h>

int m_pages(const struct m_unit *u)
{
	int n = 0;

	for (uint32_t i = 0; i < u->n; i++)
		n += u->key[i] >= 0;
	return n;
}

/* Where a key is in a tier: unit, or -1. */
int m_where(const struct model *m, unsigned int tier, int key, int *at)
{
	for (int i = 0; i < UNITS; i++) {
		const struct m_unit *u = &m->unit[i];

		if (!u->there || u->tier != tier ||
		    u->state > KVS_UNIT_RESIDENT)
			continue;
		for (uint32_t p = 0; p < u->n; p++) {
			if (u->key[p] != key)
				continue;
			if (at)
				*at = (int)p;
			return i;
		}
	}
	return -1;
}

unsigned int m_mask(const struct model *m, int key, unsigned int state)
{
	unsigned int mask = 0;

	for (unsigned int t = 0; t < KVS_TIER_MAX; t++) {
		int u = m_where(m, t, key, NULL);

		if (u >= 0 && m->unit[u].state == state)
			mask |= 1u << t;
	}
	return mask;
}

uint32_t m_entries(const struct model *m)
{
	uint32_t n = 0;

	for (int k = 0; k < KEYS; k++)
		n += m_mask(m, k, KVS_UNIT_FILLING) ||
		     m_mask(m, k, KVS_UNIT_RESIDENT);
	return n;
}

uint64_t m_bytes(const struct model *m, unsigned int tier, unsigned int state)
{
	uint64_t n = 0;

	for (int i = 0; i < UNITS; i++)
		if (m->unit[i].there && m->unit[i].tier == tier &&
		    m->unit[i].state == state)
			n += m->unit[i].bytes;
	return n;
}

uint64_t m_staying(const struct model *m, unsigned int tier)
{
	return m_bytes(m, tier, KVS_UNIT_FILLING) +
	       m_bytes(m, tier, KVS_UNIT_RESIDENT) +
	       m_bytes(m, tier, KVS_UNIT_DOOMED);
}

static void m_unqueue(struct model *m, int u)
{
	struct m_list *l;

	if (m->unit[u].queue == ASIDE)
		return;
	l = &m->q[m->unit[u].tier][m->unit[u].queue];
	for (int i = 0; i < l->n; i++) {
		if (l->v[i] != u)
			continue;
		memmove(&l->v[i], &l->v[i + 1],
			(size_t)(l->n - i - 1) * sizeof(l->v[0]));
		l->n--;
		break;
	}
	m->unit[u].queue = ASIDE;
}

static void m_push(struct model *m, int u, int queue)
{
	struct m_list *l = &m->q[m->unit[u].tier][queue];

	m_unqueue(m, u);
	l->v[l->n++] = u;
	m->unit[u].queue = queue;
}

void m_gone(struct rig *r, int u)
{
	r->m.unit[u].there = false;
	r->stale[r->n_stale++ % UNITS] = r->m.unit[u].handle;
}

static void m_hand_over(struct rig *r, int u, bool evicted)
{
	struct m_unit *x = &r->m.unit[u];

	x->state = KVS_UNIT_LEAVING;
	r->want[r->n_want++] = (struct kvs_victim){
		.unit = x->handle,
		.cookie = x->cookie,
		.bytes = x->bytes,
		.tier = x->tier,
		.pages = x->pages,
		.only_copy = x->only_copy,
		.evicted = evicted,
	};
	if (r->gone_at_once)
		m_gone(r, u);
}

void m_leave(struct rig *r, int u, bool evicted)
{
	struct model *m = &r->m;
	struct m_unit *x = &m->unit[u];
	struct kvs_tier_account *a = &m->a[x->tier];

	m_unqueue(m, u);
	x->pages = (uint32_t)m_pages(x);
	x->only_copy = 0;
	for (uint32_t i = 0; i < x->n; i++)
		if (x->key[i] >= 0 &&
		    !(m_mask(m, x->key[i], KVS_UNIT_RESIDENT) &
		      ~(1u << x->tier)))
			x->only_copy++;
	if (evicted) {
		a->evicted++;
		a->evicted_pages += x->pages;
		a->lost_pages += x->only_copy;
	} else {
		a->dropped++;
	}
	x->n = 0;
	x->state = KVS_UNIT_DOOMED;
	if (!x->pins)
		m_hand_over(r, u, evicted);
}

static int m_name(const struct m_unit *u)
{
	for (uint32_t i = 0; i < u->n; i++)
		if (u->key[i] >= 0)
			return u->key[i];
	return -1;
}

void m_enqueue(struct model *m, int u)
{
	unsigned int t = m->unit[u].tier;
	int key = m_name(&m->unit[u]);
	int back = (m->q[t][SMALL].n + m->q[t][MAIN].n) *
		   (int)(1000 - m->small_share) / 1000;
	int queue = SMALL;

	for (int i = m->n_ghost[t] - 1; m->policy == KVS_POLICY_S3FIFO &&
					i >= 0 && i >= m->n_ghost[t] - back;
	     i--) {
		if (m->ghost[t][i] != key)
			continue;
		m->ghost[t][i] = -1;
		m->a[t].again++;
		queue = MAIN;
		break;
	}
	m_push(m, u, queue);
}

static void m_set_aside(struct model *m, unsigned int t, int queue)
{
	while (m->q[t][queue].n && m->unit[m->q[t][queue].v[0]].pins)
		m_unqueue(m, m->q[t][queue].v[0]);
}

static uint64_t m_list_bytes(const struct model *m, const struct m_list *l)
{
	uint64_t n = 0;

	for (int i = 0; i < l->n; i++)
		n += m->unit[l->v[i]].bytes;
	return n;
}

static int m_choose(struct model *m, unsigned int t)
{
	struct m_list *s = &m->q[t][SMALL], *b = &m->q[t][MAIN];
	int u;

	for (;;) {
		m_set_aside(m, t, SMALL);
		m_set_aside(m, t, MAIN);
		if (!s->n && !b->n)
			return -1;
		if (m->policy == KVS_POLICY_LRU)
			return s->v[0];
		if (s->n && (!b->n || m_list_bytes(m, s) >=
					      m->limits[t].quota *
						      m->small_share / 1000)) {
			u = s->v[0];
			if (m->unit[u].used < m->promote) {
				int key = m_name(&m->unit[u]);

				/* one shade a key */
				for (int i = 0; i < m->n_ghost[t]; i++)
					if (m->ghost[t][i] == key)
						m->ghost[t][i] = -1;
				m->ghost[t][m->n_ghost[t]++] = key;
				return u;
			}
			m->unit[u].used = 0;
		} else {
			u = b->v[0];
			if (!m->unit[u].used)
				return u;
			m->unit[u].used--;
		}
		m_push(m, u, MAIN);
	}
}

uint64_t m_evict_one(struct rig *r, unsigned int t)
{
	int u = m_choose(&r->m, t);

	if (u < 0)
		return 0;
	m_leave(r, u, true);
	return r->m.unit[u].bytes;
}

void m_unpin(struct rig *r, int u)
{
	struct m_unit *x = &r->m.unit[u];

	if (--x->pins || x->state == KVS_UNIT_FILLING)
		return;
	if (x->state == KVS_UNIT_DOOMED)
		m_hand_over(r, u, false);
	else if (x->queue == ASIDE)
		m_push(&r->m, u, r->m.policy == KVS_POLICY_LRU ? SMALL : MAIN);
}

void m_touch(struct model *m, int u)
{
	struct m_unit *x = &m->unit[u];

	if (m->policy == KVS_POLICY_S3FIFO)
		x->used += x->used < 3;
	else if (x->queue != ASIDE)
		m_push(m, u, SMALL);
}
