/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: list
 *
 * Intrusive doubly linked list with a head. An entry that is on no list
 * points at itself after kvs_list_init(); kvs_list_del() leaves it so, hence
 * deleting twice is harmless and kvs_list_empty(entry) says "not queued".
 * Not thread safe: one owner.
 */
#ifndef KVS_LIB_LIST_H
#define KVS_LIB_LIST_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/assert.h"

struct kvs_list {
	struct kvs_list *next;
	struct kvs_list *prev;
};

#define KVS_LIST_HEAD(name) struct kvs_list name = { &(name), &(name) }

static inline void kvs_list_init(struct kvs_list *l)
{
	l->next = l;
	l->prev = l;
}

static inline bool kvs_list_empty(const struct kvs_list *l)
{
	return l->next == l;
}

static inline void kvs_list_insert_(struct kvs_list *n, struct kvs_list *prev,
				    struct kvs_list *next)
{
	next->prev = n;
	n->next = next;
	n->prev = prev;
	prev->next = n;
}

/* Add @n right after @head (first). */
static inline void kvs_list_add(struct kvs_list *head, struct kvs_list *n)
{
	kvs_list_insert_(n, head, head->next);
}

/* Add @n right before @head (last). */
static inline void kvs_list_add_tail(struct kvs_list *head, struct kvs_list *n)
{
	kvs_list_insert_(n, head->prev, head);
}

static inline void kvs_list_del(struct kvs_list *n)
{
	n->prev->next = n->next;
	n->next->prev = n->prev;
	kvs_list_init(n);
}

/* Move everything on @from to the end of @to; @from is empty afterwards. */
static inline void kvs_list_splice_tail(struct kvs_list *to,
					struct kvs_list *from)
{
	if (kvs_list_empty(from))
		return;
	from->next->prev = to->prev;
	to->prev->next = from->next;
	from->prev->next = to;
	to->prev = from->prev;
	kvs_list_init(from);
}

#define kvs_list_entry(ptr, type, member) kvs_container_of(ptr, type, member)
#define kvs_list_first(head, type, member) \
	kvs_list_entry((head)->next, type, member)
#define kvs_list_for_each(pos, head) \
	for (pos = (head)->next; pos != (head); pos = pos->next)
#define kvs_list_for_each_entry(pos, head, member)                         \
	for (pos = kvs_list_entry((head)->next, __typeof__(*pos), member); \
	     &pos->member != (head);                                       \
	     pos = kvs_list_entry(pos->member.next, __typeof__(*pos), member))
#define kvs_list_for_each_entry_safe(pos, tmp, head, member)                  \
	for (pos = kvs_list_entry((head)->next, __typeof__(*pos), member),    \
	    tmp = kvs_list_entry(pos->member.next, __typeof__(*pos), member); \
	     &pos->member != (head); pos = tmp,                               \
	    tmp = kvs_list_entry(tmp->member.next, __typeof__(*tmp), member))

#endif /* KVS_LIB_LIST_H */
