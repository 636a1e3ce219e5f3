/* SPDX-License-Identifier: Apache-2.0 */
/* ATTACH of an engine: what it says of itself is checked, then it gets the
 * status page and the pools. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/log.h"
#include "pipeline/front.h"
#include "pipeline/layout.h"
#include "pipeline/wire_text.h"

static void attach_refuse(struct kvs_front_engine *e, int err, const char *text)
{
	struct kvs_packet_refused p = {
		.h = { KVS_ATTACH_MAGIC, KVS_PACKET_REFUSED },
		.err = err,
	};

	snprintf(p.text, sizeof(p.text), "%s", text);
	(void)e->port->send(e, &p, sizeof(p));
	kvs_log_warn("engine %s (pid %d) refused: %s", e->name, (int)e->pid,
		     text);
	kvs_front_engine_lost(e, "refused");
}

static int attach_layout(struct kvs_front_engine *e,
			 const struct kvs_packet_attach *a, size_t len,
			 char *err, size_t errlen)
{
	struct kvs_layout l = {
		.size = sizeof(l),
		.page_size = a->page_size,
		.dtype = a->dtype,
		.n_buffers = a->n_buffers,
		.aux_max = a->aux_max,
		.capacity = a->capacity,
		.max_context = a->max_context,
		.tp = a->tp,
		.tp_rank = a->tp_rank,
	};
	size_t each = sizeof(a->buffers[0]);
	int ret;

	if (a->cut > 1 || a->reserved2) {
		snprintf(err, errlen, "cut: %u is not 0 or 1", a->cut);
		return -EINVAL;
	}
	if (a->cut)
		each += sizeof(l.cuts[0]);

	if (a->n_buffers > KVS_LAYOUT_BUFFERS_MAX ||
	    len != sizeof(*a) + a->n_buffers * each) {
		snprintf(err, errlen,
			 "n_buffers: %u does not agree with the "
			 "packet's %zu bytes",
			 a->n_buffers, len);
		return -EINVAL;
	}
	l.buffers = (struct kvs_layer_buffer *)a->buffers;
	if (a->cut)
		l.cuts = (const void *)(a->buffers + a->n_buffers);
	ret = kvs_layout_check(&l, err, errlen);
	if (ret)
		return ret;
	return kvs_layout_dup(&l, &e->layout);
}

static int attach_group(struct kvs_front_engine *e,
			const struct kvs_packet_attach *a, char *err,
			size_t errlen)
{
	char group[KVS_ENGINE_NAME];

	if (!*a->group) {
		if (!a->rank && !a->n_ranks)
			return 0;
		snprintf(err, errlen, "group: none, but rank %u of %u", a->rank,
			 a->n_ranks);
		return -EINVAL;
	}
	kvs_wire_text_put(group, sizeof(group), a->group);
	if (strcmp(group, a->group) != 0) {
		snprintf(err, errlen,
			 "group: has control characters or is not UTF-8");
		return -EINVAL;
	}
	if (!a->n_ranks || a->n_ranks > KVS_GROUP_MAX ||
	    a->rank >= a->n_ranks) {
		snprintf(err, errlen, "group %s: rank %u of %u, at most %d",
			 group, a->rank, a->n_ranks, KVS_GROUP_MAX);
		return -EINVAL;
	}
	memcpy(e->group, group, sizeof(e->group));
	e->rank = a->rank;
	e->n_ranks = a->n_ranks;
	return kvs_front_group_check(e, err, errlen);
}

/*
 * The node asked for must have a pool; next to the GPU there may be none, and
 * then the nearest one serves.
 */
static int attach_home(struct kvs_front_engine *e, int node, const char *pci,
		       char *err, size_t errlen)
{
	struct kvs_front *f = e->f;
	int near = node, pools[KVS_NODES_MAX];
	size_t home;

	if (node < 0 && *pci)
		(void)kvs_topology_pci_node(f->topo, pci, &near);
	if (near < 0)
		return 0;
	for (unsigned int i = 0; i < f->n_nodes; i++)
		pools[i] = f->nodes[i].numa;
	home = kvs_topology_nearest(f->topo, near, pools, f->n_nodes);
	if (node >= 0 && pools[home] != node) {
		snprintf(err, errlen, "node: %d has no pool (pool.nodes)",
			 node);
		return -ENXIO;
	}
	e->home = (unsigned int)home;
	return 0;
}

static int attach_slots(struct kvs_front_engine *e)
{
	e->n_slots = e->f->settings.engine_slots;
	e->slots = calloc(e->n_slots, sizeof(e->slots[0]));
	return e->slots ? e->port->pages(e) : -ENOMEM;
}

static int attach_answer(struct kvs_front_engine *e)
{
	struct kvs_packet_attached p = {
		.h = { KVS_ATTACH_MAGIC, KVS_PACKET_ATTACHED },
		.instance = e->f->instance,
		.engine = e->number,
		.n_slots = e->n_slots,
		.extent_tokens = e->f->settings.extent_tokens,
	};
	const struct kvs_region *pools[KVS_ATTACH_POOLS_MAX];

	/* Receive pools first: their place is the node's index. */
	for (int off = 0; off < 2; off++) {
		for (unsigned int i = 0; i < e->f->n_nodes; i++) {
			const struct kvs_node *nd = &e->f->nodes[i];
			const struct kvs_region *g = off ? nd->offload
							 : nd->region;

			if (!g || p.n_pools == KVS_ATTACH_POOLS_MAX)
				continue;
			p.pools[p.n_pools].size = g->size;
			p.pools[p.n_pools].page_size = g->page_size;
			p.pools[p.n_pools].node = nd->numa;
			p.pools[p.n_pools].writable = (uint32_t)off;
			pools[p.n_pools++] = g;
		}
	}
	return e->port->answer(e, &p, pools);
}

static unsigned int engines_attached(const struct kvs_front *f)
{
	const struct kvs_front_engine *e;
	unsigned int n = 0;

	kvs_list_for_each_entry(e, &f->engines, node)
		n += e->attached && e->open;
	return n;
}

/* Everything that can be refused, with a text for the engine. */
static int attach_check(struct kvs_front_engine *e,
			const struct kvs_packet_attach *a, size_t len,
			char *err, size_t errlen)
{
	int ret;

	snprintf(err, errlen, "out of memory");
	if (len < sizeof(*a) || a->h.type != KVS_PACKET_ATTACH ||
	    !memchr(a->name, 0, sizeof(a->name)) ||
	    !memchr(a->group, 0, sizeof(a->group)) ||
	    !memchr(a->space, 0, sizeof(a->space)) ||
	    !memchr(a->pci, 0, sizeof(a->pci))) {
		snprintf(err, errlen, "malformed ATTACH");
		return -EPROTO;
	}
	/* it goes to the log and to terminals */
	kvs_wire_text_put(e->name, sizeof(e->name), a->name);
	if (a->version != KVS_ATTACH_VERSION) {
		snprintf(err, errlen,
			 "attach protocol version %u offered, %u spoken here",
			 a->version, KVS_ATTACH_VERSION);
		return -EPROTONOSUPPORT;
	}
	if (e->f->draining) {
		snprintf(err, errlen, "the daemon is going down");
		return -ESHUTDOWN;
	}
	if (e->port->identify(e)) {
		snprintf(err, errlen,
			 "the descriptor passed is not a pidfd of "
			 "the attaching process");
		return -EACCES;
	}
	if (engines_attached(e->f) >= e->f->settings.engine_max) {
		snprintf(err, errlen, "engine.max (%u) engines are attached",
			 e->f->settings.engine_max);
		return -EAGAIN;
	}
	ret = attach_layout(e, a, len, err, errlen);
	if (ret)
		return ret;
	ret = attach_group(e, a, err, errlen);
	if (ret)
		return ret;
	ret = attach_home(e, a->node, a->pci, err, errlen);
	if (ret)
		return ret;
	ret = kvs_capacity_engine(e, err, errlen);
	if (ret)
		return ret;
	return attach_slots(e);
}

void kvs_front_attach(struct kvs_front_engine *e, const void *buf, size_t len)
{
	const struct kvs_packet_attach *a = buf;
	char text[256];
	int ret;

	ret = attach_check(e, a, len, text, sizeof(text));
	if (ret) {
		e->f->protocol_errors[KVS_PROTO_ENGINE] += ret == -EPROTO;
		attach_refuse(e, -ret, text);
		return;
	}
	if (e->port->watch_exit(e)) {
		attach_refuse(e, ENOMEM, "out of memory");
		return;
	}
	for (unsigned int i = 0; i < e->f->n_nodes; i++)
		if (kvs_node_engine_add(&e->f->nodes[i], e->number,
					e->layout)) {
			attach_refuse(e, ENOMEM, "out of memory");
			return;
		}
	for (unsigned int i = 0; *a->space && i < e->f->n_nodes; i++)
		if (kvs_node_engine_cache(&e->f->nodes[i], e->number, a->space,
					  a->cache_block))
			kvs_log_err("engine %u: out of memory, its rooms are "
				    "not kept",
				    e->number);
	kvs_timer_cancel(&e->f->timers, &e->handshake);
	e->nodes_left = e->f->n_nodes;
	e->attached = true;
	ret = attach_answer(e);
	if (ret) {
		kvs_front_engine_lost(e, "could not be answered");
		return;
	}
	kvs_log_notice("engine %u: %s (pid %d) attached, %u buffers, page size "
		       "%u, rooms on node %d",
		       e->number, e->name, (int)e->pid, e->layout->n_buffers,
		       e->layout->page_size, e->f->nodes[e->home].numa);
	kvs_capacity_sessions(e->f);
}
