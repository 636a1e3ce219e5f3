/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: under any sequence of calls the index answers as a model that keeps
 * plain lists and searches them from end to end: which pages are found and
 * where, every return value, all books, which units are victims and in which
 * order, under S3-FIFO and under LRU; handles that have become stale are told
 * as that.
 *
 * A random seed is printed; KVS_TEST_SEED replays it, KVS_TEST_ROUNDS makes
 * it longer.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "hicache/index.h"
#include "tests/unit/hicache/model.h"
#include "tests/unit/pinned/seed.h"

static void victim(void *arg, const struct kvs_victim *v)
{
	struct rig *r = arg;

	assert_true(r->n_got < UNITS);
	r->got[r->n_got++] = *v;
	if (r->gone_at_once)
		assert_int_equal(kvs_index_gone(r->ix, v->unit), 0);
}

static const struct kvs_index_ops ops = { .victim = victim };

static int below(struct rig *r, int n)
{
	return (int)kvs_rng_below(&r->rng, (uint64_t)n);
}

/* A unit that is there, or -1; four times of five one in that state. */
static int pick(struct rig *r, unsigned int state)
{
	int from = below(r, UNITS), any = -1;
	bool wrong = !below(r, 5);

	for (int i = 0; i < UNITS; i++) {
		int u = (from + i) % UNITS;

		if (!r->m.unit[u].there)
			continue;
		any = u;
		if (wrong || r->m.unit[u].state == state)
			return u;
	}
	return any;
}

static void compare_victims(struct rig *r)
{
	assert_int_equal(r->n_got, r->n_want);
	for (int i = 0; i < r->n_got; i++) {
		const struct kvs_victim *g = &r->got[i], *w = &r->want[i];

		assert_int_equal(g->unit, w->unit);
		assert_int_equal(g->cookie, w->cookie);
		assert_int_equal(g->bytes, w->bytes);
		assert_int_equal(g->tier, w->tier);
		assert_int_equal(g->pages, w->pages);
		assert_int_equal(g->only_copy, w->only_copy);
		assert_int_equal(g->evicted, w->evicted);
	}
}

static void compare_books(struct rig *r)
{
	struct kvs_index_account a;

	kvs_index_account(r->ix, &a);
	assert_int_equal(a.entries, m_entries(&r->m));
	for (unsigned int t = 0; t < KVS_TIER_MAX; t++) {
		const struct kvs_tier_account *w = &r->m.a[t];
		const struct kvs_tier_account *g = &a.tier[t];
		uint64_t pinned = 0, units = 0, pages = 0;

		for (int i = 0; i < UNITS; i++) {
			const struct m_unit *u = &r->m.unit[i];

			if (!u->there || u->tier != t)
				continue;
			units++;
			pages += (uint64_t)m_pages(u);
			if (u->pins && u->state != KVS_UNIT_FILLING)
				pinned += u->bytes;
		}
		for (unsigned int s = 0; s < KVS_UNIT_STATE_MAX; s++)
			assert_int_equal(g->bytes[s], m_bytes(&r->m, t, s));
		assert_int_equal(g->pinned, pinned);
		assert_int_equal(g->units, units);
		assert_int_equal(g->pages, pages);
		assert_int_equal(g->quota, r->m.limits[t].quota);
		assert_int_equal(g->hits, w->hits);
		assert_int_equal(g->added, w->added);
		assert_int_equal(g->evicted, w->evicted);
		assert_int_equal(g->evicted_pages, w->evicted_pages);
		assert_int_equal(g->lost_pages, w->lost_pages);
		assert_int_equal(g->dropped, w->dropped);
		assert_int_equal(g->duplicates, w->duplicates);
		assert_int_equal(g->again, w->again);
	}
	kvs_index_check(r->ix);
}

/* ---- one call each ---- */

static void make_room(struct rig *r, unsigned int t, uint64_t bytes)
{
	uint64_t quota = r->m.limits[t].quota;
	int want = 0;

	if (!quota)
		want = -ENXIO;
	else if (bytes > quota)
		want = -E2BIG;
	while (!want && m_staying(&r->m, t) + bytes > quota)
		if (!m_evict_one(r, t))
			want = -EBUSY;
	if (!want &&
	    m_staying(&r->m, t) + m_bytes(&r->m, t, KVS_UNIT_LEAVING) + bytes >
		    quota)
		want = -EAGAIN;
	assert_int_equal(kvs_index_make_room(r->ix, t, bytes), want);
}

static void op_make_room(struct rig *r)
{
	make_room(r, (unsigned int)below(r, KVS_TIER_MAX),
		  (uint64_t)below(r, below(r, 8) ? 150 : QUOTA + 50));
}

static void op_add(struct rig *r)
{
	unsigned int t = (unsigned int)below(r, KVS_TIER_MAX);
	uint64_t bytes = 10 * (uint64_t)below(r, 12);
	uint64_t cookie = kvs_rng_next(&r->rng);
	uint64_t sum =
		m_staying(&r->m, t) + m_bytes(&r->m, t, KVS_UNIT_LEAVING);
	int want = 0, u;
	uint64_t handle = 0;

	for (u = 0; u < UNITS && r->m.unit[u].there; u++)
		;
	if (u == UNITS)
		return;
	if (below(r, 8))
		make_room(r, t, bytes);
	sum = m_staying(&r->m, t) + m_bytes(&r->m, t, KVS_UNIT_LEAVING);
	if (!bytes)
		want = -EINVAL;
	else if (!r->m.limits[t].quota)
		want = -ENXIO;
	else if (sum + bytes > r->m.limits[t].quota)
		want = -ENOSPC;
	assert_int_equal(kvs_index_add(r->ix, t, bytes, cookie, &handle), want);
	if (want) {
		assert_int_equal(handle, 0);
		return;
	}
	r->m.unit[u] = (struct m_unit){
		.there = true,
		.handle = handle,
		.cookie = cookie,
		.bytes = bytes,
		.tier = t,
		.state = KVS_UNIT_FILLING,
		.queue = ASIDE,
	};
	r->m.a[t].added++;
}

static void op_put(struct rig *r)
{
	int u = pick(r, KVS_UNIT_FILLING), k = below(r, KEYS), want = 0;
	uint32_t place = (uint32_t)below(r, 1000);
	struct m_unit *x;

	if (u < 0)
		return;
	x = &r->m.unit[u];
	if (x->state == KVS_UNIT_FILLING && x->n == PAGES)
		return;
	if (x->state != KVS_UNIT_FILLING)
		want = -EINVAL;
	else if (m_where(&r->m, x->tier, k, NULL) >= 0)
		want = -EEXIST;
	else if (!m_mask(&r->m, k, KVS_UNIT_FILLING) &&
		 !m_mask(&r->m, k, KVS_UNIT_RESIDENT) &&
		 m_entries(&r->m) == r->m.max_entries)
		want = -ENOSPC;
	assert_int_equal(kvs_index_put(r->ix, x->handle, &r->key[k], place),
			 want);
	if (want == -EEXIST)
		r->m.a[x->tier].duplicates++;
	if (want)
		return;
	x->key[x->n] = k;
	x->place[x->n++] = place;
}

static void op_publish(struct rig *r)
{
	int u = pick(r, KVS_UNIT_FILLING), want = 0;
	struct m_unit *x;

	if (u < 0)
		return;
	x = &r->m.unit[u];
	if (x->state != KVS_UNIT_FILLING)
		want = -EINVAL;
	assert_int_equal(kvs_index_publish(r->ix, x->handle), want);
	if (want)
		return;
	if (!m_pages(x)) {
		m_leave(r, u, false);
		return;
	}
	x->state = KVS_UNIT_RESIDENT;
	m_enqueue(&r->m, u);
}

static void op_drop(struct rig *r)
{
	int u = pick(r, KVS_UNIT_RESIDENT), want = 0;

	if (u < 0 || below(r, 6))
		return;
	if (r->m.unit[u].state > KVS_UNIT_RESIDENT)
		want = -EALREADY;
	assert_int_equal(kvs_index_drop(r->ix, r->m.unit[u].handle), want);
	if (!want)
		m_leave(r, u, false);
}

static void op_gone(struct rig *r)
{
	int u = pick(r, KVS_UNIT_LEAVING), want = 0;

	if (u < 0)
		return;
	if (r->m.unit[u].state != KVS_UNIT_LEAVING)
		want = -EBUSY;
	assert_int_equal(kvs_index_gone(r->ix, r->m.unit[u].handle), want);
	if (!want)
		m_gone(r, u);
}

static void op_forget(struct rig *r)
{
	unsigned int t = (unsigned int)below(r, KVS_TIER_MAX);
	int k = below(r, KEYS), at = 0;
	int u = m_where(&r->m, t, k, &at);

	if (below(r, 3))
		return;
	assert_int_equal(kvs_index_forget(r->ix, t, &r->key[k]),
			 u < 0 ? -ENOENT : 0);
	if (u < 0)
		return;
	if (r->m.unit[u].state == KVS_UNIT_RESIDENT &&
	    m_pages(&r->m.unit[u]) == 1)
		m_leave(r, u, false);
	else
		r->m.unit[u].key[at] = -1;
}

static void op_pin(struct rig *r)
{
	int u = pick(r, KVS_UNIT_RESIDENT), want = 0;

	if (u < 0)
		return;
	if (r->m.unit[u].state > KVS_UNIT_RESIDENT)
		want = -EBUSY;
	assert_int_equal(kvs_index_pin(r->ix, r->m.unit[u].handle), want);
	r->m.unit[u].pins += !want;
}

static void op_unpin(struct rig *r)
{
	int u = pick(r, below(r, 2) ? KVS_UNIT_RESIDENT : KVS_UNIT_DOOMED);
	int want;

	for (int i = 0; i < UNITS && u >= 0 && below(r, 50); i++)
		if (r->m.unit[i].there && r->m.unit[i].pins)
			u = i;
	if (u < 0)
		return;
	want = r->m.unit[u].pins ? 0 : -EINVAL;
	assert_int_equal(kvs_index_unpin(r->ix, r->m.unit[u].handle), want);
	if (!want)
		m_unpin(r, u);
}

/* A few are hot: those with low numbers. */
static void op_touch(struct rig *r)
{
	int u = below(r, 2) ? pick(r, KVS_UNIT_RESIDENT) : below(r, 8),
	    want = 0;

	if (u < 0 || !r->m.unit[u].there)
		return;
	if (r->m.unit[u].state != KVS_UNIT_RESIDENT)
		want = -EINVAL;
	for (int i = below(r, 3); i >= 0; i--) {
		assert_int_equal(kvs_index_touch(r->ix, r->m.unit[u].handle),
				 want);
		if (!want)
			m_touch(&r->m, u);
	}
}

static void check_found(struct rig *r, const struct kvs_found *f, int k,
			unsigned int tier)
{
	int at = 0, u = m_where(&r->m, tier, k, &at);

	assert_true(u >= 0);
	assert_int_equal(f->tier, tier);
	assert_int_equal(f->unit, r->m.unit[u].handle);
	assert_int_equal(f->cookie, r->m.unit[u].cookie);
	assert_int_equal(f->place, r->m.unit[u].place[at]);
	assert_int_equal(f->resident, m_mask(&r->m, k, KVS_UNIT_RESIDENT));
	assert_int_equal(f->coming, m_mask(&r->m, k, KVS_UNIT_FILLING));
}

static void op_lookup(struct rig *r)
{
	int n = below(r, 8), from = below(r, KEYS - 8), ready = n, i, pin;
	struct kvs_key keys[8];
	struct kvs_found v[8];
	size_t coming = 99, got;

	for (i = 0; i < n; i++)
		keys[i] = r->key[from + i];
	got = kvs_index_lookup(r->ix, keys, (size_t)n, v, &coming);
	for (i = 0; i < n; i++) {
		unsigned int res = m_mask(&r->m, from + i, KVS_UNIT_RESIDENT);
		unsigned int com = m_mask(&r->m, from + i, KVS_UNIT_FILLING);
		unsigned int t;

		if (!res && !com)
			break;
		t = (unsigned int)__builtin_ctz(res ? res : com);
		if (!res && ready == n)
			ready = i;
		check_found(r, &v[i], from + i, t);
		if (ready == n)
			r->m.a[t].hits++;
	}
	if (ready > i)
		ready = i;
	assert_int_equal(got, ready);
	assert_int_equal(coming, i);
	pin = below(r, 4);
	if (pin || !ready)
		return;
	/* a reader comes and goes */
	assert_int_equal(kvs_index_pin_prefix(r->ix, v, got), 0);
	for (i = 0; i < ready; i++)
		r->m.unit[m_where(&r->m, v[i].tier, from + i, NULL)].pins++;
	for (i = ready - 1; i >= 0; i--)
		if (!i || v[i].unit != v[i - 1].unit)
			m_touch(&r->m,
				m_where(&r->m, v[i].tier, from + i, NULL));
	compare_books(r);
	kvs_index_unpin_prefix(r->ix, v, got);
	for (i = ready - 1; i >= 0; i--)
		m_unpin(r, m_where(&r->m, v[i].tier, from + i, NULL));
}

static void op_find(struct rig *r)
{
	unsigned int t = (unsigned int)below(r, KVS_TIER_MAX), res, com;
	int k = below(r, KEYS);
	enum kvs_page_state want = KVS_PAGE_ABSENT;
	struct kvs_found f;

	if (m_where(&r->m, t, k, NULL) < 0) {
		assert_int_equal(kvs_index_find(r->ix, t, &r->key[k], &f),
				 -ENOENT);
	} else {
		assert_int_equal(kvs_index_find(r->ix, t, &r->key[k], &f), 0);
		check_found(r, &f, k, t);
	}
	res = m_mask(&r->m, k, KVS_UNIT_RESIDENT);
	com = m_mask(&r->m, k, KVS_UNIT_FILLING);
	/* on its way to a slower tier than the fastest that has it */
	if (res)
		want = com >> __builtin_ctz(res) ? KVS_PAGE_WRITING_OUT
						 : KVS_PAGE_RESIDENT;
	else if (com)
		want = KVS_PAGE_LOADING;
	assert_int_equal(kvs_index_page_state(r->ix, &r->key[k]), want);
}

static void op_pages(struct rig *r)
{
	struct kvs_unit_page v[PAGES];
	struct kvs_unit_info info;
	int u = pick(r, KVS_UNIT_RESIDENT);
	const struct m_unit *x;
	uint32_t n = 0;

	if (u < 0)
		return;
	x = &r->m.unit[u];
	assert_int_equal(kvs_index_unit(r->ix, x->handle, &info), 0);
	assert_int_equal(info.state, x->state);
	assert_int_equal(info.cookie, x->cookie);
	assert_int_equal(info.bytes, x->bytes);
	assert_int_equal(info.tier, x->tier);
	assert_int_equal(info.pages, x->state > KVS_UNIT_RESIDENT
					     ? x->pages
					     : (uint32_t)m_pages(x));
	assert_int_equal(info.pins, x->pins);
	if (x->state > KVS_UNIT_RESIDENT) {
		assert_int_equal(kvs_index_pages(r->ix, x->handle, v, PAGES),
				 -ESTALE);
		return;
	}
	assert_int_equal(kvs_index_pages(r->ix, x->handle, v, PAGES),
			 m_pages(x));
	for (uint32_t i = 0; i < x->n; i++) {
		if (x->key[i] < 0)
			continue;
		assert_true(kvs_key_equal(&v[n].key, &r->key[x->key[i]]));
		assert_int_equal(v[n].place, x->place[i]);
		assert_int_equal(v[n].resident,
				 m_mask(&r->m, x->key[i], KVS_UNIT_RESIDENT));
		n++;
	}
}

static void op_evict(struct rig *r)
{
	unsigned int t = (unsigned int)below(r, KVS_TIER_MAX);
	uint64_t bytes = (uint64_t)below(r, 80), sum = 0, one;

	while (sum < bytes) {
		one = m_evict_one(r, t);
		if (!one)
			break;
		sum += one;
	}
	assert_int_equal(kvs_index_evict(r->ix, t, bytes), sum);
}

static void op_trim(struct rig *r)
{
	unsigned int t = (unsigned int)below(r, KVS_TIER_MAX);
	const struct kvs_tier_limits *l = &r->m.limits[t];
	uint64_t sum = 0, one, goal = 0;

	if (below(r, 3))
		return;

	if (m_staying(&r->m, t) > l->quota * l->high / 1000)
		goal = m_staying(&r->m, t) - l->quota * l->low / 1000;
	while (sum < goal) {
		one = m_evict_one(r, t);
		if (!one)
			break;
		sum += one;
	}
	assert_int_equal(kvs_index_trim(r->ix, t), sum);
}

static void op_limits(struct rig *r)
{
	unsigned int t = (unsigned int)below(r, KVS_TIER_MAX);
	struct kvs_tier_limits l = {
		.quota = (uint64_t)below(r, 2 * QUOTA),
		.high = (uint32_t)below(r, 1010),
		.low = (uint32_t)below(r, 1010),
	};
	int want = l.low > l.high || l.high > 1000 ? -EINVAL : 0;

	if (below(r, 8))
		return;
	if (below(r, 2))
		l.quota = QUOTA;
	assert_int_equal(kvs_index_set_limits(r->ix, t, &l), want);
	if (!want)
		r->m.limits[t] = l;
}

static void op_cold(struct rig *r)
{
	unsigned int t = (unsigned int)below(r, KVS_TIER_MAX);
	uint64_t unit = 0;

	for (int q = 0; q < 2; q++) {
		for (int i = 0; i < r->m.q[t][q].n; i++) {
			assert_int_equal(kvs_index_next_cold(r->ix, t, &unit),
					 0);
			assert_int_equal(unit,
					 r->m.unit[r->m.q[t][q].v[i]].handle);
		}
	}
	assert_int_equal(kvs_index_next_cold(r->ix, t, &unit), -ENOENT);
}

/* A handle of the past is nobody's. */
static void op_stale(struct rig *r)
{
	struct kvs_unit_info info;
	struct kvs_found f = { 0 };
	uint64_t h;

	if (!r->n_stale)
		return;
	h = r->stale[below(r, r->n_stale < UNITS ? r->n_stale : UNITS)];
	f.unit = h;
	assert_int_equal(kvs_index_put(r->ix, h, &r->key[0], 0), -ESTALE);
	assert_int_equal(kvs_index_publish(r->ix, h), -ESTALE);
	assert_int_equal(kvs_index_drop(r->ix, h), -ESTALE);
	assert_int_equal(kvs_index_gone(r->ix, h), -ESTALE);
	assert_int_equal(kvs_index_pin(r->ix, h), -ESTALE);
	assert_int_equal(kvs_index_unpin(r->ix, h), -ESTALE);
	assert_int_equal(kvs_index_touch(r->ix, h), -ESTALE);
	assert_int_equal(kvs_index_pin_prefix(r->ix, &f, 1), -ESTALE);
	assert_int_equal(kvs_index_unit(r->ix, h, &info), -ESTALE);
	assert_int_equal(kvs_index_next_cold(r->ix, KVS_TIER_HOST, &h),
			 -ESTALE);
}

static void run(struct rig *r, enum kvs_policy policy, uint32_t entries)
{
	static void (*const op[])(struct rig *) = {
		op_add,	  op_add,	op_add,	    op_put,	op_put,
		op_put,	  op_put,	op_put,	    op_put,	op_put,
		op_put,	  op_publish,	op_publish, op_publish, op_publish,
		op_drop,  op_gone,	op_gone,    op_gone,	op_forget,
		op_pin,	  op_unpin,	op_unpin,   op_touch,	op_touch,
		op_touch, op_touch,	op_lookup,  op_lookup,	op_find,
		op_pages, op_make_room, op_evict,   op_trim,	op_limits,
		op_cold,  op_stale,
	};
	struct kvs_index_opts o = {
		.max_entries = entries,
		.policy = policy,
		.small_share = (uint32_t)below(r, 5) * 100,
		.promote = (uint32_t)below(r, 4),
		.secret = kvs_rng_next(&r->rng),
		.ops = &ops,
		.arg = r,
	};

	memset(&r->m, 0, sizeof(r->m));
	r->m.policy = policy;
	r->m.max_entries = entries;
	r->m.small_share = o.small_share ? o.small_share : 500;
	r->m.promote = o.promote ? o.promote : 1;
	r->n_stale = 0;
	for (unsigned int t = 0; t < KVS_TIER_MAX; t++) {
		o.tier[t] = (struct kvs_tier_limits){ QUOTA, 900, 700 };
		r->m.limits[t] = o.tier[t];
	}
	for (int k = 0; k < KEYS; k++)
		for (unsigned int b = 0; b < KVS_KEY_LEN; b++)
			r->key[k].b[b] = (uint8_t)kvs_rng_next(&r->rng);
	assert_int_equal(kvs_index_create(&o, &r->ix), 0);
	for (int i = 0; i < STEPS; i++) {
		r->n_want = 0;
		r->n_got = 0;
		r->gone_at_once = below(r, 2);
		op[below(r, (int)(sizeof(op) / sizeof(op[0])))](r);
		compare_victims(r);
		if (i % 8 == 0)
			compare_books(r);
	}
	compare_books(r);
	kvs_index_destroy(r->ix);
}

static void test_model(void **state)
{
	const char *s = getenv("KVS_TEST_ROUNDS");
	uint64_t rounds = 6;
	static struct rig r;

	(void)state;
	if (s)
		assert_int_equal(kvs_parse_u64(s, &rounds), 0);
	seed_rng(&r.rng);
	for (uint64_t i = 0; i < rounds; i++) {
		run(&r, KVS_POLICY_S3FIFO, BIG);
		run(&r, KVS_POLICY_LRU, BIG);
		run(&r, KVS_POLICY_LRU, KEYS / 2);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_model),
	};

	return cmocka_run_group_tests_name("index_model", tests, NULL, NULL);
}
