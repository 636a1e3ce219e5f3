/* SPDX-License-Identifier: Apache-2.0 */
#include "kvstage/engine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/assert.h"
#include "lib/clock.h"
#include "pipeline/engine_internal.h"
#include "pipeline/layout.h"

#define ENGINE_MAGIC 0x4b56454eu
#define ENGINE_SOCKET "/run/kvstage/kvstaged.sock"
#define ENGINE_TIMEOUT (10 * KVS_NSEC_PER_SEC)
#define ENGINE_NAP (100 * KVS_NSEC_PER_USEC)
#define ENGINE_GOODBYE KVS_NSEC_PER_SEC

static int attach_opts(const struct kvs_engine_opts *o, char *err,
		       size_t errlen)
{
	if (!o || o->size < sizeof(*o)) {
		snprintf(err, errlen, "attach options: size is %zu, not %zu",
			 o ? o->size : 0, sizeof(*o));
		return -EINVAL;
	}
	if (!o->layout) {
		snprintf(err, errlen, "attach options: layout is missing");
		return -EINVAL;
	}
	if (o->name && strlen(o->name) >= KVS_ENGINE_NAME) {
		snprintf(err, errlen, "name: longer than %d bytes",
			 KVS_ENGINE_NAME - 1);
		return -EINVAL;
	}
	if (o->cache_space && strlen(o->cache_space) >= KVS_SPACE_TEXT) {
		snprintf(err, errlen, "cache_space: longer than %d bytes",
			 KVS_SPACE_TEXT - 1);
		return -EINVAL;
	}
	if (o->pci &&
	    strlen(o->pci) >= sizeof(((struct kvs_packet_attach *)0)->pci)) {
		snprintf(err, errlen, "pci: %s is not a PCI address", o->pci);
		return -EINVAL;
	}
	if (o->group && (!*o->group || strlen(o->group) >= KVS_ENGINE_NAME)) {
		snprintf(err, errlen, "group: not 1 to %d bytes",
			 KVS_ENGINE_NAME - 1);
		return -EINVAL;
	}
	if (o->group && (!o->n_ranks || o->n_ranks > KVS_GROUP_MAX ||
			 o->rank >= o->n_ranks)) {
		snprintf(err, errlen, "group: rank %u of %u, at most %d ranks",
			 o->rank, o->n_ranks, KVS_GROUP_MAX);
		return -EINVAL;
	}
	return kvs_layout_check(o->layout, err, errlen);
}

static int attach_slots(struct kvs_engine *e)
{
	e->previous = calloc(e->n_slots, sizeof(*e->previous));
	e->local = calloc(e->n_slots, sizeof(*e->local));
	e->rooms = calloc(e->n_slots, sizeof(*e->rooms));
	e->free = calloc(e->n_slots, sizeof(*e->free));
	if (!e->previous || !e->local || !e->rooms || !e->free)
		return -ENOMEM;
	for (uint32_t i = 0; i < e->n_slots; i++)
		e->free[i] = e->n_slots - 1 - i;
	e->n_free = e->n_slots;
	return 0;
}

void kvs_eng_free(struct kvs_engine *e)
{
	for (uint32_t i = 0; e->rooms && i < e->n_slots; i++)
		if (e->rooms[i])
			kvs_eng_room_free(e, e->rooms[i]);
	kvs_eng_hosts_free(e);
	kvs_eng_devices_forget(e, false);
	if (e->port)
		e->port->free(e);
	free(e->previous);
	free(e->local);
	free(e->rooms);
	free(e->free);
	free(e->order);
	free(e->layout);
	e->magic = 0;
	free(e);
}

static int by_layer(const void *a, const void *b, void *arg)
{
	const struct kvs_layout *l = arg;
	const struct kvs_layer_buffer *x = &l->buffers[*(const uint32_t *)a];
	const struct kvs_layer_buffer *y = &l->buffers[*(const uint32_t *)b];

	if (x->layer != y->layer)
		return x->layer < y->layer ? -1 : 1;
	return (x->kind > y->kind) - (x->kind < y->kind);
}

/* By layer, so that a decode step can begin with the first while the others
 * are still copied. */
static int layer_order(struct kvs_engine *e)
{
	uint32_t n = e->layout->n_buffers;

	e->order = calloc(2 * (size_t)n, sizeof(*e->order));
	if (!e->order)
		return -ENOMEM;
	e->items_at = e->order + n;
	for (uint32_t i = 0; i < n; i++)
		e->order[i] = i;
	qsort_r(e->order, n, sizeof(e->order[0]), by_layer, e->layout);
	return 0;
}

int kvs_eng_new(const struct kvs_engine_opts *o, struct kvs_engine **ret,
		char *err, size_t errlen)
{
	struct kvs_engine *e;
	int res;

	res = attach_opts(o, err, errlen);
	if (res)
		return res;
	e = calloc(1, sizeof(*e));
	if (!e) {
		snprintf(err, errlen, "out of memory");
		return -ENOMEM;
	}
	e->magic = ENGINE_MAGIC;
	e->fd = -1;
	e->grouped = o->group && o->n_ranks > 1;
	kvs_list_init(&e->active);
	kvs_list_init(&e->lingering);
	kvs_list_init(&e->hosts);
	kvs_list_init(&e->out);
	res = kvs_layout_dup(o->layout, &e->layout);
	if (!res)
		res = layer_order(e);
	if (res) {
		snprintf(err, errlen, "out of memory");
		kvs_eng_free(e);
		return res;
	}
	e->block_pages = o->cache_block ? o->cache_block / e->layout->page_size
					: 1;
	for (uint32_t b = 0; b < e->layout->n_buffers; b++)
		e->fixed_buffers +=
			!kvs_buffer_kind_is_paged(e->layout->buffers[b].kind);
	*ret = e;
	return 0;
}

static int attach_refused(const struct kvs_packet_refused *p, size_t len,
			  char *err, size_t errlen)
{
	if (len != sizeof(*p) || p->err <= 0 || p->err > 4095) {
		snprintf(err, errlen, "the daemon sent a malformed refusal");
		return -EPROTO;
	}
	snprintf(err, errlen, "%.*s", (int)sizeof(p->text) - 1, p->text);
	return -p->err;
}

int kvs_eng_answer(struct kvs_engine *e, size_t len, char *err, size_t errlen)
{
	const struct kvs_packet_attached *p = (const void *)&e->buf;
	int ret;

	if (len >= sizeof(p->h) && p->h.magic == KVS_ATTACH_MAGIC &&
	    p->h.type == KVS_PACKET_REFUSED)
		return attach_refused((const void *)&e->buf, len, err, errlen);
	if (len != sizeof(*p) || p->h.magic != KVS_ATTACH_MAGIC ||
	    p->h.type != KVS_PACKET_ATTACHED) {
		snprintf(err, errlen, "the daemon's answer is malformed");
		return -EPROTO;
	}
	ret = e->port->map(e, p, err, errlen);
	if (ret)
		return ret;
	ret = attach_slots(e);
	if (ret)
		snprintf(err, errlen, "out of memory");
	return ret;
}

int kvs_engine_attach(const struct kvs_engine_opts *o, struct kvs_engine **ret,
		      char *err, size_t errlen)
{
	uint64_t now = kvs_clock_now(&kvs_clock_real);
	uint64_t timeout, deadline;
	struct kvs_engine *e;
	int res;

	res = kvs_eng_new(o, &e, err, errlen);
	if (res)
		return res;
	timeout = o->timeout ? o->timeout : ENGINE_TIMEOUT;
	deadline = timeout > KVS_TIME_NEVER - now ? KVS_TIME_NEVER
						  : now + timeout;
	res = kvs_eng_connect(e, o->socket ? o->socket : ENGINE_SOCKET,
			      deadline, err, errlen);
	if (!res)
		res = kvs_eng_handshake(e, o, deadline, err, errlen);
	if (res) {
		kvs_eng_free(e);
		return res;
	}
	*ret = e;
	return 0;
}

/* True: it is said, or there is nobody to say it to. */
bool kvs_eng_goodbye(struct kvs_engine *e)
{
	struct kvs_packet p = { KVS_ATTACH_MAGIC, KVS_PACKET_DETACH };

	kvs_eng_flush(e);
	return kvs_list_empty(&e->out) &&
	       kvs_eng_send(e, &p, sizeof(p)) != -EAGAIN;
}

/* What it still owes, for a moment: a daemon that does not read is told by
 * the end of file. */
static void detach_goodbye(struct kvs_engine *e)
{
	const struct timespec nap = { .tv_nsec = (long)ENGINE_NAP };
	uint64_t end = kvs_clock_now(&kvs_clock_real) + ENGINE_GOODBYE;

	while (!kvs_eng_goodbye(e)) {
		if (kvs_clock_now(&kvs_clock_real) >= end)
			return;
		(void)nanosleep(&nap, NULL);
	}
}

void kvs_eng_give_up(struct kvs_engine *e)
{
	for (uint32_t i = 0; i < e->n_slots; i++) {
		kvs_handle h = { .slot = i + 1, .previous = e->previous[i] };

		if (e->rooms[i])
			(void)kvs_engine_abort(e, &h);
	}
}

void kvs_engine_detach(struct kvs_engine *e)
{
	const struct timespec nap = { .tv_nsec = (long)ENGINE_NAP };

	if (!e)
		return;
	KVS_CHECK_MAGIC(e, ENGINE_MAGIC);
	kvs_eng_give_up(e);
	for (;;) {
		(void)kvs_engine_progress(e);
		if (kvs_list_empty(&e->active))
			break;
		(void)nanosleep(&nap, NULL);
	}
	detach_goodbye(e);
	kvs_eng_devices_forget(e, true);
	kvs_eng_free(e);
}

static enum kvs_status poll_failed(int err, int *ret_err)
{
	*ret_err = err;
	return KVS_STATUS_FAILED;
}

/* The hot path of an engine's scheduler: three loads, no call. */
static inline enum kvs_status poll_one(struct kvs_engine *e, kvs_handle *h,
				       int *ret_err)
{
	uint32_t i = h->slot - 1;
	enum kvs_status st;
	uint8_t local;
	uint64_t w;

	if (__builtin_expect(i >= e->n_slots, 0))
		return poll_failed(ENOENT, ret_err);
	local = e->local[i];
	if (__builtin_expect(
		    local == KVS_ENG_FREE || e->previous[i] != h->previous, 0))
		return poll_failed(ENOENT, ret_err);
	w = kvs_eng_word(e, i);
	if (w != h->previous) {
		uint64_t gen = KVS_WORD_GEN(w);

		if (!h->generation)
			h->generation = gen;
		st = KVS_WORD_STATUS(w);
		if (__builtin_expect(
			    h->generation != gen || st > KVS_STATUS_DONE, 0))
			return poll_failed(EPROTO, ret_err);
	} else {
		st = KVS_STATUS_PENDING;
	}
	if (local == KVS_ENG_FAILED)
		return poll_failed(e->rooms[i]->failure.err, ret_err);
	if (local == KVS_ENG_DONE)
		return KVS_STATUS_DONE;
	if (st == KVS_STATUS_FAILED)
		return poll_failed(KVS_WORD_ERR(w), ret_err);
	if (local == KVS_ENG_CLAIMED && st < KVS_STATUS_COMMITTING)
		st = KVS_STATUS_COMMITTING;
	return st;
}

enum kvs_status kvs_engine_poll(struct kvs_engine *e, kvs_handle *h,
				int *ret_err)
{
	enum kvs_status st;
	int err = 0;

	st = poll_one(e, h, &err);
	if (st == KVS_STATUS_FAILED && ret_err)
		*ret_err = err ? err : EPROTO;
	return st;
}

size_t kvs_engine_poll_many(struct kvs_engine *e, kvs_handle *h, size_t n,
			    uint8_t *ret)
{
	size_t ready = 0;
	int err;

	for (size_t i = 0; i < n; i++) {
		enum kvs_status st = poll_one(e, &h[i], &err);

		ret[i] = (uint8_t)st;
		ready += st >= KVS_STATUS_READY;
	}
	return ready;
}

int kvs_engine_progress(struct kvs_engine *e)
{
	struct kvs_eng_room *r;
	struct kvs_list todo;
	int n;

	KVS_CHECK_MAGIC(e, ENGINE_MAGIC);
	n = kvs_eng_receive(e);
	/* A lost connection takes rooms off the list in the middle of it. */
	kvs_list_init(&todo);
	kvs_list_splice_tail(&todo, &e->active);
	while (!kvs_list_empty(&todo)) {
		r = kvs_list_first(&todo, struct kvs_eng_room, node);
		kvs_list_del(&r->node);
		kvs_list_add_tail(&e->active, &r->node);
		n += kvs_eng_advance(e, r);
	}
	kvs_eng_flush(e);
	kvs_eng_reap(e);
	return e->gone ? -ECONNRESET : n;
}

int kvs_engine_fd(const struct kvs_engine *e)
{
	return e->fd;
}

bool kvs_should_stage(double use, double threshold)
{
	/* A use nobody could measure (NaN) is staged: that is always right,
	 * receiving into a full device is not. */
	return threshold < 1.0 && !(use < threshold);
}
