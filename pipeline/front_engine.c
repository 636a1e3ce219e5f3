/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engine processes, however they are reached (struct kvs_front_port): packets,
 * status words, death. An engine is dead when its process has exited AND its
 * connection is at end of file: a forked child may still hold the device.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/log.h"
#include "pipeline/front.h"

/* Rooms of an engine that is gone end in a moment, unless it left copies. */
#define KVS_ENGINE_LINGER KVS_NSEC_PER_SEC

struct kvs_front_engine *kvs_front_engine(struct kvs_front *f, uint32_t number)
{
	struct kvs_front_engine *e;

	kvs_list_for_each_entry(e, &f->engines, node)
		if (e->number == number && e->attached)
			return e;
	return NULL;
}

void kvs_front_engine_free(struct kvs_front_engine *e)
{
	struct kvs_engine_out *o;

	kvs_timer_cancel(&e->f->timers, &e->handshake);
	if (e->open)
		e->port->close(e);
	e->port->free(e);
	while (!kvs_list_empty(&e->out)) {
		o = kvs_list_first(&e->out, struct kvs_engine_out, node);
		kvs_list_del(&o->node);
		free(o);
	}
	kvs_list_del(&e->node);
	kvs_host_forget(&e->f->hosts, e->number);
	e->f->n_engines--;
	free(e->layout);
	free(e->slots);
	free(e);
}

void kvs_engines_reap(struct kvs_front *f)
{
	struct kvs_front_engine *e, *tmp;

	if (!f->reap)
		return;
	f->reap = false;
	kvs_list_for_each_entry_safe(e, tmp, &f->engines, node)
		if (e->dead)
			kvs_front_engine_free(e);
}

static void engine_post_lost(struct kvs_front_engine *e, bool proof)
{
	for (unsigned int i = 0; i < e->f->n_nodes; i++)
		if (kvs_node_engine_lost(&e->f->nodes[i], e->number, proof))
			kvs_log_err("engine %u: out of memory, its rooms stay",
				    e->number);
}

static void engine_check_dead(struct kvs_front_engine *e)
{
	if (e->dead || e->open)
		return;
	if (e->attached && !e->exited && e->nodes_left)
		return;
	if (e->attached)
		engine_post_lost(e, true);
	e->dead = true;
	e->f->reap = true;
}

void kvs_front_engine_over(struct kvs_front *f, uint32_t number)
{
	struct kvs_front_engine *e = kvs_front_engine(f, number);

	if (!e || !e->nodes_left)
		return;
	e->nodes_left--;
	engine_check_dead(e);
}

void kvs_front_engine_lost(struct kvs_front_engine *e, const char *why)
{
	if (!e->open)
		return;
	e->open = false;
	e->port->close(e);
	kvs_timer_cancel(&e->f->timers, &e->handshake);
	if (e->attached) {
		kvs_log_notice("engine %u (%s, pid %d): %s", e->number, e->name,
			       (int)e->pid, why);
		/* Room ids of its live rooms are free again at once. */
		for (uint32_t i = 0; i < e->n_slots; i++)
			if (e->slots[i].generation && e->slots[i].room)
				kvs_directory_end(e->f, e->slots[i].room,
						  e->slots[i].generation,
						  ECONNRESET,
						  "the engine is gone");
		engine_post_lost(e, false);
		/* without the timer only a line of the log is missing */
		(void)kvs_timer_set(&e->f->timers, &e->handshake,
				    kvs_clock_now(e->f->clock) +
					    KVS_ENGINE_LINGER);
	}
	engine_check_dead(e);
}

void kvs_front_engine_exited(struct kvs_front_engine *e)
{
	e->exited = true;
	if (e->open)
		kvs_log_warn("engine %u: pid %d has exited but its socket is "
			     "open in another process (ss -xp shows which); "
			     "its copies are held until that closes",
			     e->number, (int)e->pid);
	engine_check_dead(e);
}

void kvs_front_engine_flush(struct kvs_front_engine *e)
{
	struct kvs_engine_out *o;
	int ret;

	while (e->open && !kvs_list_empty(&e->out)) {
		o = kvs_list_first(&e->out, struct kvs_engine_out, node);
		ret = o->len ? e->port->send(e, o->packet, o->len) : 0;
		if (ret == -EAGAIN)
			return;
		if (ret) {
			kvs_front_engine_lost(e, "socket error");
			return;
		}
		if (o->has_word)
			atomic_store_explicit(&e->words[o->slot], o->word,
					      memory_order_release);
		kvs_list_del(&o->node);
		e->n_out--;
		free(o);
	}
	if (e->open)
		e->port->want(e, false);
}

/* The word is stored after the packet that explains it is in the socket:
 * an engine that sees READY (acquire) can read the packet at once. */
static void engine_hand_over(struct kvs_front_engine *e, uint32_t slot,
			     uint64_t word, const void *p, size_t len)
{
	struct kvs_engine_out *o;
	int ret = -EAGAIN;

	if (kvs_list_empty(&e->out))
		ret = len ? e->port->send(e, p, len) : 0;
	if (!ret) {
		atomic_store_explicit(&e->words[slot], word,
				      memory_order_release);
		return;
	}
	if (ret != -EAGAIN) {
		kvs_front_engine_lost(e, "socket error");
		return;
	}
	/* Bounded by the rooms an engine may have: three words and two
	 * packets each. */
	o = malloc(sizeof(*o) + len);
	if (!o || e->n_out >= 8 * e->n_slots) {
		free(o);
		kvs_front_engine_lost(e, "it does not read its socket");
		return;
	}
	o->slot = slot;
	o->word = word;
	o->has_word = true;
	o->len = len;
	if (len)
		memcpy(o->packet, p, len);
	kvs_list_add_tail(&e->out, &o->node);
	e->n_out++;
	e->port->want(e, true);
}

void kvs_front_engine_word(struct kvs_front_engine *e, uint32_t slot,
			   uint64_t word, const struct kvs_packet *p,
			   size_t len)
{
	enum kvs_status st = KVS_WORD_STATUS(word);

	if (!e->open || slot >= e->n_slots)
		return;
	if ((st == KVS_STATUS_FAILED || st == KVS_STATUS_DONE) &&
	    e->slots[slot].generation == KVS_WORD_GEN(word)) {
		e->slots[slot].before = KVS_WORD_GEN(word);
		e->slots[slot].generation = 0;
	}
	engine_hand_over(e, slot, word, p, len);
}

static void engine_handshake_fired(struct kvs_timer *t)
{
	struct kvs_front_engine *e =
		kvs_container_of(t, struct kvs_front_engine, handshake);

	if (e->attached) {
		/* lost a while ago, and a node still has rooms of it */
		if (!e->dead && !e->exited && e->nodes_left)
			kvs_log_notice("engine %u: it left copies that may "
				       "still run; their memory is held until "
				       "pid %d is gone",
				       e->number, (int)e->pid);
		return;
	}
	e->f->protocol_errors[KVS_PROTO_HANDSHAKE]++;
	kvs_front_engine_lost(e, "did not attach in time");
}

void kvs_front_engine_receive(struct kvs_front_engine *e, const void *buf,
			      size_t len, bool cut)
{
	const struct kvs_packet *h = buf;

	if (len < sizeof(*h) || h->magic != KVS_ATTACH_MAGIC || cut) {
		e->f->protocol_errors[KVS_PROTO_ENGINE]++;
		kvs_front_engine_lost(e, "sent a malformed packet");
	} else if (!e->attached) {
		kvs_front_attach(e, buf, len);
	} else {
		kvs_front_engine_packet(e, buf, len);
	}
}

int kvs_front_engine_new(struct kvs_front *f, const struct kvs_front_port *port,
			 pid_t pid, struct kvs_front_engine **ret)
{
	struct kvs_front_engine *e;

	if (f->n_engines >= 2 * f->settings.engine_max)
		return -EAGAIN;
	e = calloc(1, sizeof(*e));
	if (!e)
		return -ENOMEM;
	e->f = f;
	e->port = port;
	e->open = true;
	e->fd = -1;
	e->pidfd = -1;
	e->status_fd = -1;
	e->pid = pid;
	e->number = ++f->next_engine;
	kvs_list_init(&e->out);
	kvs_timer_init(&e->handshake, engine_handshake_fired);
	if (kvs_timer_set(&f->timers, &e->handshake,
			  kvs_clock_now(f->clock) +
				  f->settings.handshake_timeout)) {
		free(e);
		return -ENOMEM;
	}
	kvs_list_add_tail(&f->engines, &e->node);
	f->n_engines++;
	*ret = e;
	return 0;
}
