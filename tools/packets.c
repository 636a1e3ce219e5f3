/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/packets.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/front.h"

int kvs_packets_put(struct kvs_list *to, const void *p, size_t len,
		    uint64_t due)
{
	struct kvs_queued_packet *k = malloc(sizeof(*k) + len);

	if (!k)
		return -ENOMEM;
	k->due = due;
	k->len = len;
	memcpy(k->b, p, len);
	kvs_list_add_tail(to, &k->node);
	return 0;
}

static struct kvs_queued_packet *first(const struct kvs_list *from)
{
	if (kvs_list_empty(from))
		return NULL;
	return kvs_list_first(from, struct kvs_queued_packet, node);
}

const struct kvs_queued_packet *kvs_packets_first(const struct kvs_list *from)
{
	return first(from);
}

size_t kvs_packets_take(struct kvs_list *from, void *buf)
{
	struct kvs_queued_packet *k = first(from);
	size_t len;

	if (!k)
		return 0;
	kvs_list_del(&k->node);
	len = k->len;
	memcpy(buf, k->b, len);
	free(k);
	return len;
}

void kvs_packets_deliver(struct kvs_list *from, struct kvs_front_engine *fe)
{
	struct kvs_queued_packet *k = first(from);

	kvs_list_del(&k->node);
	kvs_front_engine_receive(fe, k->b, k->len, false);
	free(k);
}

void kvs_packets_free(struct kvs_list *from)
{
	struct kvs_queued_packet *k;

	while ((k = first(from))) {
		kvs_list_del(&k->node);
		free(k);
	}
}
