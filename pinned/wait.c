/* SPDX-License-Identifier: Apache-2.0 */
#include "pinned/wait.h"

#include <errno.h>

void kvs_waitq_init(struct kvs_waitq *q, const struct kvs_clock *clock,
		    unsigned int overtake_max, uint64_t overtake_ns)
{
	*q = (struct kvs_waitq){
		.overtake_max = overtake_max,
		.overtake_ns = overtake_ns,
		.clock = clock,
	};
	kvs_list_init(&q->list);
}

void kvs_wait_init(struct kvs_wait *w, int (*try)(struct kvs_wait *w))
{
	*w = (struct kvs_wait){ .try = try };
	kvs_list_init(&w->node);
}

static void new_head(struct kvs_waitq *q)
{
	q->overtaken = 0;
	q->head_since = kvs_clock_now(q->clock);
}

void kvs_waitq_add(struct kvs_waitq *q, struct kvs_wait *w, uint64_t bytes)
{
	KVS_ASSERT(!kvs_wait_queued(w));
	w->bytes = bytes;
	w->since = kvs_clock_now(q->clock);
	if (kvs_list_empty(&q->list))
		new_head(q);
	kvs_list_add_tail(&q->list, &w->node);
	q->len++;
}

void kvs_waitq_cancel(struct kvs_waitq *q, struct kvs_wait *w)
{
	bool head = q->list.next == &w->node;

	if (!kvs_wait_queued(w))
		return;
	kvs_list_del(&w->node);
	q->len--;
	if (head)
		new_head(q);
}

bool kvs_waitq_may_pass(const struct kvs_waitq *q)
{
	if (kvs_list_empty(&q->list))
		return true;
	return q->overtaken < q->overtake_max &&
	       kvs_clock_now(q->clock) - q->head_since < q->overtake_ns;
}

void kvs_waitq_passed(struct kvs_waitq *q)
{
	if (!kvs_list_empty(&q->list))
		q->overtaken++;
}

/*
 * While an entry is tried a placeholder keeps its position: try() may free
 * the entry, cancel its neighbours or add others.
 * Stores the position that follows in @ret_next.
 */
static int try_entry(struct kvs_waitq *q, struct kvs_wait *w,
		     struct kvs_list **ret_next)
{
	struct kvs_list hole;
	bool head;
	int r;

	kvs_list_add(&w->node, &hole);
	kvs_list_del(&w->node);
	q->len--;
	r = w->try(w);
	head = q->list.next == &hole;
	*ret_next = hole.next;
	if (r == -EAGAIN && !kvs_wait_queued(w)) {
		kvs_list_add(&hole, &w->node);
		q->len++;
		head = false;
	}
	kvs_list_del(&hole);
	if (head)
		new_head(q);
	return r;
}

/* One pass; stores whether anybody left the queue. */
static unsigned int one_pass(struct kvs_waitq *q, unsigned int *budget,
			     bool *ret_left)
{
	struct kvs_list *pos = q->list.next;
	/* those that try() adds are not of this pass */
	unsigned int looks = q->len;
	unsigned int served = 0;
	struct kvs_wait *w, *head;
	bool is_head;
	int r;

	*ret_left = false;
	while (pos != &q->list && looks && *budget) {
		w = kvs_list_entry(pos, struct kvs_wait, node);
		head = kvs_list_first(&q->list, struct kvs_wait, node);
		is_head = w == head;
		if (!is_head && !kvs_waitq_may_pass(q))
			break;
		looks--;
		--*budget;
		/* what needs as much as the head would fail as it did */
		if (!is_head && w->bytes >= head->bytes) {
			pos = pos->next;
			continue;
		}
		r = try_entry(q, w, &pos);
		if (r == -EAGAIN)
			continue;
		*ret_left = true;
		if (r)
			continue;
		served++;
		if (!is_head)
			kvs_waitq_passed(q);
	}
	return served;
}

unsigned int kvs_waitq_run(struct kvs_waitq *q, unsigned int max_tries)
{
	unsigned int budget = max_tries ? max_tries : ~0u;
	unsigned int served = 0;
	bool left;

	if (q->running) {
		q->again = true;
		return 0;
	}
	q->running = true;
	do {
		q->again = false;
		served += one_pass(q, &budget, &left);
		/* somebody left in each further pass, so this ends */
	} while (q->again && left && budget);
	q->running = false;
	return served;
}

uint64_t kvs_waitq_deadline(const struct kvs_waitq *q)
{
	uint64_t gone;

	if (kvs_list_empty(&q->list))
		return KVS_TIME_NEVER;
	gone = kvs_clock_now(q->clock) - q->head_since;
	return gone < q->overtake_ns ? q->overtake_ns - gone : 0;
}
