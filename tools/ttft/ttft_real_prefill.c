/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/pattern.h"
#include "tools/ttft/ttft_prefill.h"
#include "tools/ttft/ttft_real.h"

/* How long a turn may wait: routes come without a sound, and the senders wait
 * one after the other. */
#define NAP_ONE KVS_NSEC_PER_MSEC
#define NAP_TWO (200 * KVS_NSEC_PER_USEC)

static void fill(struct ttft_prefill *f, size_t i, uint32_t first,
		 const uint32_t *pages, uint32_t n)
{
	void **base = f->arg;

	for (uint32_t b = 0; b < f->layout->n_buffers; b++) {
		const struct kvs_layer_buffer *lb = &f->layout->buffers[b];
		uint64_t seed = kvs_pattern_seed(f->o->seed, ttft_room_id(i),
						 lb->kind, lb->layer);

		for (uint32_t k = 0; k < n; k++)
			kvs_pattern_fill((char *)base[b] + (size_t)pages[k] *
								   lb->item_len,
					 lb->item_len, seed,
					 (uint64_t)(first + k) * lb->item_len);
	}
}

static int way_begin(struct ttft_way *w, struct ttft_shared *sh, char *err,
		     size_t errlen)
{
	struct kvs_sender_place p = { 0 };
	struct kvs_sender_opts o;
	char daemon[64];
	int r;

	snprintf(daemon, sizeof(daemon), "127.0.0.1:%u",
		 sh->daemon[w->rx].port);
	ttft_prefill_sender(w, &o, &p);
	o.daemon = daemon;
	o.buffers = w->f->arg;
	r = kvs_addr_parse(daemon, false, &p.addr, err, errlen);
	if (!r)
		r = kvs_tcp_create(NULL, &p.t, err, errlen);
	if (r)
		return r;
	r = kvs_sender_init(&o, &p, &w->s, err, errlen);
	if (r) {
		kvs_transport_destroy(p.t);
		return r;
	}
	kvs_sender_begin(w->s);
	return 0;
}

/* False: it cannot go on. */
static bool turn(struct ttft_prefill *f, struct ttft_shared *sh, bool ready)
{
	uint64_t now = kvs_clock_now(f->clock), next, wait;
	struct ttft_way *only = NULL;
	bool two = f->way[0].s && f->way[1].s;

	if (ready) {
		(void)kvs_timerq_run(f->timers, now);
		ttft_prefill_turn(f);
	}
	next = kvs_timerq_next(f->timers);
	wait = two ? NAP_TWO : NAP_ONE;
	if (next != KVS_TIME_NEVER && next < now + wait)
		wait = next > now ? next - now : 0;
	for (int x = 0; x < TTFT_RX; x++) {
		struct ttft_way *w = &f->way[x];

		if (!w->s)
			continue;
		only = w;
		/* mail waits for nobody; what a turn completes is taken up by
		 * the next one */
		if (!kvs_sender_turn(w->s, w->dirty ? 0 : wait) ||
		    (w->s->agreed && w->s->agreed_err)) {
			snprintf(sh->why, sizeof(sh->why), "%s",
				 w->s->agreed_text);
			return false;
		}
		w->dirty = false;
	}
	return only;
}

static bool agreed(const struct ttft_prefill *f)
{
	for (int x = 0; x < TTFT_RX; x++)
		if (f->way[x].s && !f->way[x].s->agreed)
			return false;
	return true;
}

static int work(struct ttft_prefill *f, struct ttft_shared *sh)
{
	bool told = false;

	while (!atomic_load(&sh->quit)) {
		f->start = atomic_load(&sh->start);
		if (!turn(f, sh, f->start))
			return -ECONNREFUSED;
		if (told || !agreed(f))
			continue;
		told = true;
		atomic_fetch_add(&sh->n_ready, 1);
	}
	return 0;
}

static int buffers(struct ttft_prefill *f)
{
	void **base = calloc(f->layout->n_buffers, sizeof(*base));

	f->arg = base;
	if (!base)
		return -ENOMEM;
	for (uint32_t b = 0; b < f->layout->n_buffers; b++) {
		base[b] = malloc((size_t)f->n_pages *
				 f->layout->buffers[b].item_len);
		if (!base[b])
			return -ENOMEM;
	}
	return 0;
}

int ttft_real_prefill(const struct ttft_opts *o, const struct ttft_plan *p,
		      struct ttft_run *r, struct ttft_shared *sh, uint32_t nr)
{
	struct ttft_prefill *f = calloc(1, sizeof(*f));
	struct kvs_layout *layout = NULL;
	struct kvs_timerq timers;
	char err[256] = "no memory";
	int ret = f ? 0 : -ENOMEM;

	kvs_timerq_init(&timers);
	if (!ret)
		ret = ttft_layout(o, &layout, err, sizeof(err));
	if (!ret) {
		f->o = o;
		f->p = p;
		f->r = r;
		f->nr = nr;
		f->clock = &kvs_clock_real;
		f->timers = &timers;
		f->layout = layout;
		f->fill = fill;
		ret = ttft_prefill_init(f);
	}
	if (!ret)
		ret = buffers(f);
	for (int x = 0; x < TTFT_RX && !ret; x++)
		if (ttft_uses(r->mode, (enum ttft_rx)x))
			ret = way_begin(&f->way[x], sh, err, sizeof(err));
	if (!ret)
		ret = work(f, sh);
	else
		snprintf(sh->why, sizeof(sh->why), "%s", err);
	if (ret)
		atomic_store(&sh->failed, true);
	/* memory and sockets go with the process */
	return ret ? EXIT_FAILURE : EXIT_SUCCESS;
}
