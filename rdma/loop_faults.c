/* SPDX-License-Identifier: Apache-2.0 */
/* What strikes which event of a fabric. See loop.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "rdma/loop_internal.h"

#define DELAY_MAX KVS_NSEC_PER_MSEC
#define AT_UNSET UINT64_MAX

static const char *const fault_names[] = { [KVS_LOOP_NO_FAULT] = "none",
#define X(name, text) [KVS_LOOP_##name] = text,
					   KVS_LOOP_FAULTS(X)
#undef X
};

_Static_assert(KVS_ARRAY_SIZE(fault_names) == KVS_LOOP_FAULT_MAX,
	       "every fault has its name");

const char *kvs_loop_fault_name(enum kvs_loop_fault k)
{
	return (size_t)k < KVS_LOOP_FAULT_MAX ? fault_names[k] : "?";
}

void kvs_fabric_faults(const struct kvs_fabric *f, struct kvs_loop_faults *ret)
{
	*ret = f->faults;
}

void kvs_loop_count(struct kvs_fabric *f, enum kvs_loop_fault k)
{
	f->faults.n[k]++;
}

bool kvs_loop_chance(struct kvs_fabric *f, double p)
{
	return p > 0 && kvs_rng_double(&f->rng) < p;
}

/* Kinds of event, as a set. */
#define ON(kind) (1u << (kind))
#define ON_FRAME ON(KVS_LOOP_FRAME)
#define ON_PAYLOAD ON(KVS_LOOP_PAYLOAD)
#define ON_WRITE ON(KVS_LOOP_WRITE)
#define ON_READ ON(KVS_LOOP_READ)
#define ON_CONN (ON_FRAME | ON_PAYLOAD | ON_WRITE | ON_READ)

static const unsigned int strikes[KVS_LOOP_FAULT_MAX] = {
	[KVS_LOOP_DELAY] = ON_CONN | ON(KVS_LOOP_OPEN) | ON(KVS_LOOP_CLOSE),
	[KVS_LOOP_STALL] = ON_PAYLOAD | ON_WRITE | ON_READ,
	[KVS_LOOP_REORDER] = ON_WRITE,
	[KVS_LOOP_DUPLICATE] = ON_FRAME | ON_WRITE,
	[KVS_LOOP_REPEAT] = ON_WRITE,
	[KVS_LOOP_DROP] = ON_FRAME | ON_WRITE | ON_READ,
	[KVS_LOOP_SHORT] = ON_WRITE | ON_READ,
	[KVS_LOOP_OVERTAKE] = ON_WRITE,
	[KVS_LOOP_LATE] = ON_WRITE,
	[KVS_LOOP_CRASH] = ON_CONN,
	[KVS_LOOP_LIE] = ON_FRAME | ON_PAYLOAD | ON_WRITE,
	[KVS_LOOP_RESET] = ON_CONN,
	[KVS_LOOP_OPEN_FAILS] = ON(KVS_LOOP_OPEN),
	[KVS_LOOP_CLOSE_FAILS] = ON(KVS_LOOP_CLOSE),
};

/* A payload of one byte or none has no part way. */
static bool can_strike(enum kvs_loop_fault k,
		       const struct kvs_loop_event_info *i)
{
	if (!(strikes[k] & ON(i->kind)))
		return false;
	return k != KVS_LOOP_STALL || i->len > 1;
}

static enum kvs_loop_fault draw(struct kvs_fabric *f,
				const struct kvs_loop_event_info *i)
{
	const struct kvs_loop_plan *p = &f->plan;
	/* RESET is drawn as each piece comes, REPEAT with DUPLICATE */
	const struct {
		enum kvs_loop_fault k;
		double p;
	} chance[] = {
		{ KVS_LOOP_STALL, p->stall },
		{ KVS_LOOP_DELAY, p->delay },
		{ KVS_LOOP_REORDER, p->reorder },
		{ KVS_LOOP_DUPLICATE, p->duplicate },
		{ KVS_LOOP_DROP, p->drop },
		{ KVS_LOOP_SHORT, p->short_end },
		{ KVS_LOOP_OVERTAKE, p->overtake },
		{ KVS_LOOP_LATE, p->late },
		{ KVS_LOOP_CRASH, p->crash },
		{ KVS_LOOP_LIE, p->lie },
		{ KVS_LOOP_OPEN_FAILS, p->open_fails },
		{ KVS_LOOP_CLOSE_FAILS, p->close_fails },
	};
	size_t n;

	for (n = 0; n < KVS_ARRAY_SIZE(chance); n++) {
		if (!can_strike(chance[n].k, i) ||
		    !kvs_loop_chance(f, chance[n].p))
			continue;
		if (chance[n].k == KVS_LOOP_DUPLICATE &&
		    i->kind == KVS_LOOP_WRITE && kvs_rng_below(&f->rng, 2))
			return KVS_LOOP_REPEAT;
		return chance[n].k;
	}
	return KVS_LOOP_NO_FAULT;
}

static uint64_t draw_at(struct kvs_fabric *f, enum kvs_loop_fault k,
			const struct kvs_loop_event_info *i)
{
	const struct kvs_loop_plan *p = &f->plan;

	switch (k) {
	case KVS_LOOP_DELAY:
		return 1 + kvs_rng_below(&f->rng, p->delay_max ? p->delay_max
							       : DELAY_MAX);
	case KVS_LOOP_STALL:
		if (i->kind == KVS_LOOP_PAYLOAD)
			return i->len / 2;
		return kvs_rng_below(&f->rng, i->len);
	case KVS_LOOP_SHORT:
		return i->len ? kvs_rng_below(&f->rng, i->len) : 0;
	case KVS_LOOP_CRASH:
		return kvs_rng_below(&f->rng, 2);
	case KVS_LOOP_LIE:
		return kvs_rng_next(&f->rng) >> 1;
	case KVS_LOOP_CLOSE_FAILS:
		return p->close_fails_n ? p->close_fails_n : 1;
	case KVS_LOOP_NO_FAULT:
	case KVS_LOOP_REORDER:
	case KVS_LOOP_DUPLICATE:
	case KVS_LOOP_REPEAT:
	case KVS_LOOP_DROP:
	case KVS_LOOP_OVERTAKE:
	case KVS_LOOP_LATE:
	case KVS_LOOP_RESET:
	case KVS_LOOP_OPEN_FAILS:
	case KVS_LOOP_FAULT_MAX:
		break;
	}
	return 0;
}

static enum kvs_loop_fault
decide(struct kvs_fabric *f, struct kvs_loop_event_info *i, uint64_t *ret_at)
{
	enum kvs_loop_fault k;
	int r = -1;

	i->nr = ++f->nr;
	*ret_at = AT_UNSET;
	i->at = ret_at;
	if (f->fault)
		r = f->fault(f->arg, i);
	if (r < 0)
		k = draw(f, i);
	else if (r < KVS_LOOP_FAULT_MAX && can_strike(r, i))
		k = (enum kvs_loop_fault)r;
	else
		k = KVS_LOOP_NO_FAULT;
	if (*ret_at == AT_UNSET)
		*ret_at = draw_at(f, k, i);
	return k;
}

void kvs_loop_decide(struct loop_conn *c, struct loop_event *e)
{
	const struct loop_ep *to = c->peer->ep;
	struct kvs_loop_event_info i = {
		.conn = c->slot.id + 1,
		.from = c->ep->name,
		.to = to ? to->name : "",
		.frame = e->size ? (void *)e->frame : NULL,
		.frame_len = e->size,
		.len = e->len,
		.remote = e->remote,
	};

	switch (e->type) {
	case LOOP_FRAME:
		i.kind = KVS_LOOP_FRAME;
		break;
	case LOOP_DATA:
		i.kind = KVS_LOOP_PAYLOAD;
		break;
	case LOOP_WRITE:
		i.kind = KVS_LOOP_WRITE;
		break;
	case LOOP_READ:
		i.kind = KVS_LOOP_READ;
		break;
	case LOOP_ACCEPT:
	case LOOP_OPENED:
	case LOOP_REFUSED:
	case LOOP_FIN:
	case LOOP_RST:
		return;
	}
	e->fault = decide(c->f, &i, &e->at);
	if (e->fault == KVS_LOOP_STALL && e->at < e->len)
		/* a receiver's payload stops once it has begun */
		e->stop_at = !e->at && e->type == LOOP_DATA ? 1 : e->at;
}

enum kvs_loop_fault kvs_loop_decide_grant(struct loop_ep *ep,
					  struct loop_grant *lg,
					  enum kvs_loop_event_kind kind,
					  uint64_t *ret_at)
{
	struct kvs_loop_event_info i = {
		.kind = kind,
		.from = ep->name,
		.to = ep->name,
		.owner = lg->g.owner,
		.remote = lg->g.key[0],
	};

	return decide(ep->f, &i, ret_at);
}

static void crash(struct loop_conn *c, struct loop_event *e)
{
	struct loop_ep *ep = c->peer ? c->peer->ep : NULL;
	struct kvs_fabric *f = c->f;

	if ((e->at & 1) || !ep || ep->dead)
		ep = c->ep;
	/* it is handled yet, by whoever is left */
	e->fault = KVS_LOOP_NO_FAULT;
	if (!ep || ep->dead)
		return;
	kvs_loop_count(f, KVS_LOOP_CRASH);
	kvs_fabric_kill(&ep->t);
	if (f->crashed)
		f->crashed(f->arg, &ep->t);
}

bool kvs_loop_strike(struct loop_conn *c, struct loop_event *e)
{
	struct kvs_fabric *f = c->f;

	switch (e->type) {
	case LOOP_FIN:
	case LOOP_RST:
	case LOOP_REFUSED:
		return false;
	case LOOP_ACCEPT:
	case LOOP_OPENED:
	case LOOP_FRAME:
	case LOOP_DATA:
	case LOOP_WRITE:
	case LOOP_READ:
		break;
	}
	if (e->fault == KVS_LOOP_CRASH) {
		crash(c, e);
		return true;
	}
	if (e->fault != KVS_LOOP_RESET && !kvs_loop_chance(f, f->plan.reset))
		return false;
	kvs_loop_count(f, KVS_LOOP_RESET);
	/* what is left of it finds the connection dying */
	e->fault = KVS_LOOP_NO_FAULT;
	kvs_loop_cut(c, LOOP_RST);
	kvs_loop_die(c, -ECONNRESET);
	return true;
}

int kvs_loop_lie(struct kvs_fabric *f, uint64_t at, const struct kvs_frame *old,
		 struct kvs_frame **ret)
{
	uint32_t size = kvs_get32(old->len);
	uint32_t was = kvs_get32(old->payload);
	uint32_t payload = was;
	uint64_t x = kvs_mix64(at + 1);
	uint32_t len = size;
	uint32_t room;
	struct kvs_frame *n;

	if (at & 1) {
		/* shorter, longer, or one out of nothing */
		do {
			payload =
				1 + (uint32_t)(x % (2 * (uint64_t)was + 4096));
			x = kvs_mix64(x + 1);
		} while (payload == was);
	} else {
		/* now and then less than a header, or more than any frame */
		do {
			len = (uint32_t)(x % 64 ? x >> 8 & 255 : x >> 32);
			x = kvs_mix64(x + 1);
		} while (len == size);
	}
	room = len > size && len <= KVS_FRAME_MAX ? len : size;
	n = malloc(room);
	*ret = n;
	if (!n)
		return -ENOMEM;
	memset(n, 0x5a, room);
	memcpy(n, old, size);
	n->len = kvs_put32(len);
	n->payload = kvs_put32(payload);
	kvs_loop_count(f, KVS_LOOP_LIE);
	return 0;
}
