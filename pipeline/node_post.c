/* SPDX-License-Identifier: Apache-2.0 */
/* Calls into a node from other threads: each copies its arguments into a
 * post that the node's thread runs and frees. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/log.h"
#include "pipeline/layout.h"
#include "pipeline/node.h"
#include "pipeline/node_internal.h"

struct node_post {
	struct kvs_post post;
	uint64_t id; /* session, generation */
	uint64_t caps;
	uint32_t number; /* engine, rank */
	int err;
	int fd;
	bool flag;
	unsigned char proof[KVS_AUTH_MAC];
	enum kvs_room_cause cause;
	enum kvs_packet_type type;
	struct kvs_layout *layout;
	union {
		char text[KVS_WIRE_TEXT];
		struct kvs_msg msg;
		struct kvs_packet_room packet;
		struct kvs_room_request request;
		struct kvs_retract_request retract;
		struct kvs_lookup_request lookup; /* hashes: ranks */
	};
	struct kvs_rank_slice ranks[]; /* of request; then its members */
};

static struct node_post *post_new(void (*run)(struct kvs_post *p, void *ctx),
				  size_t tail)
{
	struct node_post *p = calloc(1, sizeof(*p) + tail);

	if (p)
		p->post.run = run;
	return p;
}

static struct node_post *to_post(struct kvs_post *p)
{
	return kvs_container_of(p, struct node_post, post);
}

static int post_send(struct kvs_node *n, struct node_post *p)
{
	kvs_mailbox_post(&n->mailbox, &p->post);
	return 0;
}

static void run_engine_add(struct kvs_post *post, void *ctx)
{
	struct node_post *p = to_post(post);
	struct kvs_node *n = ctx;

	if (kvs_worker_engine_add(n->worker, p->number, p->layout))
		kvs_log_err("engine %u: out of memory on node %d", p->number,
			    n->numa);
	free(p->layout);
	free(p);
}

int kvs_node_engine_add(struct kvs_node *n, uint32_t number,
			const struct kvs_layout *l)
{
	struct node_post *p = post_new(run_engine_add, 0);

	if (!p)
		return -ENOMEM;
	p->number = number;
	if (kvs_layout_dup(l, &p->layout)) {
		free(p);
		return -ENOMEM;
	}
	return post_send(n, p);
}

static void run_engine_lost(struct kvs_post *post, void *ctx)
{
	struct node_post *p = to_post(post);
	struct kvs_node *n = ctx;

	kvs_worker_engine_lost(n->worker, p->number, p->flag);
	free(p);
}

int kvs_node_engine_lost(struct kvs_node *n, uint32_t number, bool proof)
{
	struct node_post *p = post_new(run_engine_lost, 0);

	if (!p)
		return -ENOMEM;
	p->number = number;
	p->flag = proof;
	return post_send(n, p);
}

static void run_session_add(struct kvs_post *post, void *ctx)
{
	struct node_post *p = to_post(post);
	struct kvs_node *n = ctx;

	if (kvs_worker_session_add(n->worker, p->id, p->text, p->number,
				   p->caps))
		kvs_log_err("session of %s rank %u: out of memory on node %d",
			    p->text, p->number, n->numa);
	free(p);
}

int kvs_node_session_add(struct kvs_node *n, uint64_t id, const char *peer,
			 uint32_t rank, uint64_t caps)
{
	struct node_post *p = post_new(run_session_add, 0);

	if (!p)
		return -ENOMEM;
	p->id = id;
	p->number = rank;
	p->caps = caps;
	snprintf(p->text, sizeof(p->text), "%s", peer);
	return post_send(n, p);
}

static void run_session_lost(struct kvs_post *post, void *ctx)
{
	struct node_post *p = to_post(post);
	struct kvs_node *n = ctx;

	kvs_node_drop_conns(n, p->id);
	kvs_worker_session_lost(n->worker, p->id, p->err, p->text);
	free(p);
}

int kvs_node_session_lost(struct kvs_node *n, uint64_t id, int err,
			  const char *why)
{
	struct node_post *p = post_new(run_session_lost, 0);

	if (!p)
		return -ENOMEM;
	p->id = id;
	p->err = err;
	snprintf(p->text, sizeof(p->text), "%s", why);
	return post_send(n, p);
}

static void run_admit(struct kvs_post *post, void *ctx)
{
	struct node_post *p = to_post(post);
	struct kvs_node *n = ctx;

	kvs_worker_admit(n->worker, &p->request);
	free(p);
}

int kvs_node_admit(struct kvs_node *n, const struct kvs_room_request *q)
{
	size_t ranks = q->n_ranks * sizeof(q->ranks[0]);
	size_t members = q->n_members * sizeof(q->members[0]);
	size_t hashes = q->n_hashes * sizeof(q->hashes[0]);
	size_t tp = q->tp_ranks ? q->n_ranks * sizeof(q->tp_ranks[0]) : 0;
	struct node_post *p =
		post_new(run_admit, ranks + members + hashes + tp);
	uint32_t *to;

	if (!p)
		return -ENOMEM;
	p->request = *q;
	memcpy(p->ranks, q->ranks, ranks);
	p->request.ranks = p->ranks;
	to = (uint32_t *)(p->ranks + q->n_ranks);
	if (q->n_members)
		memcpy(to, q->members, members);
	p->request.members = to;
	p->request.hashes = (const uint8_t(*)[16])(to + q->n_members);
	if (q->n_hashes)
		memcpy(to + q->n_members, q->hashes, hashes);
	if (tp)
		p->request.tp_ranks = memcpy(
			(char *)(to + q->n_members) + hashes, q->tp_ranks, tp);
	return post_send(n, p);
}

static void run_engine_cache(struct kvs_post *post, void *ctx)
{
	struct node_post *p = to_post(post);
	struct kvs_node *n = ctx;
	struct kvs_worker_engine *e =
		kvs_worker_engine_find(n->worker, p->number);

	if (e)
		kvs_cache_engine(n->worker, e, p->text, (uint32_t)p->id);
	free(p);
}

int kvs_node_engine_cache(struct kvs_node *n, uint32_t number,
			  const char *space, uint32_t block)
{
	struct node_post *p = post_new(run_engine_cache, 0);

	if (!p)
		return -ENOMEM;
	p->number = number;
	p->id = block;
	snprintf(p->text, sizeof(p->text), "%s", space);
	return post_send(n, p);
}

static void run_lookup(struct kvs_post *post, void *ctx)
{
	struct node_post *p = to_post(post);
	struct kvs_node *n = ctx;

	p->lookup.hashes = (const uint8_t(*)[16])p->ranks;
	kvs_worker_lookup(n->worker, &p->lookup);
	free(p);
}

int kvs_node_lookup(struct kvs_node *n, const struct kvs_lookup_request *q)
{
	size_t hashes = q->n_hashes * sizeof(q->hashes[0]);
	struct node_post *p = post_new(run_lookup, hashes);

	if (!p)
		return -ENOMEM;
	p->lookup = *q;
	memcpy(p->ranks, q->hashes, hashes);
	return post_send(n, p);
}

static void run_join(struct kvs_post *post, void *ctx)
{
	struct node_post *p = to_post(post);
	struct kvs_node *n = ctx;

	kvs_worker_join(n->worker, p->id, p->number, (uint32_t)p->caps);
	free(p);
}

int kvs_node_join(struct kvs_node *n, uint64_t generation, uint32_t engine,
		  uint32_t slot)
{
	struct node_post *p = post_new(run_join, 0);

	if (!p)
		return -ENOMEM;
	p->id = generation;
	p->number = engine;
	p->caps = slot;
	return post_send(n, p);
}

static void run_open(struct kvs_post *post, void *ctx)
{
	struct node_post *p = to_post(post);
	struct kvs_node *n = ctx;

	kvs_worker_open(n->worker, p->id, p->caps, &p->msg.open);
	free(p);
}

int kvs_node_open(struct kvs_node *n, uint64_t session, uint64_t generation,
		  const struct kvs_msg_open *m)
{
	struct node_post *p = post_new(run_open, 0);

	if (!p)
		return -ENOMEM;
	p->id = session;
	p->caps = generation;
	p->msg.open = *m;
	return post_send(n, p);
}

static void run_message(struct kvs_post *post, void *ctx)
{
	struct node_post *p = to_post(post);
	struct kvs_node *n = ctx;

	(void)kvs_worker_message(n->worker, p->id, &p->msg);
	free(p);
}

int kvs_node_message(struct kvs_node *n, uint64_t session,
		     const struct kvs_msg *m)
{
	struct node_post *p = post_new(run_message, 0);

	if (!p)
		return -ENOMEM;
	p->id = session;
	p->msg = *m;
	return post_send(n, p);
}

static void run_packet(struct kvs_post *post, void *ctx)
{
	struct node_post *p = to_post(post);
	struct kvs_node *n = ctx;

	kvs_worker_packet(n->worker, p->number, p->type, &p->packet);
	free(p);
}

int kvs_node_packet(struct kvs_node *n, uint32_t engine,
		    enum kvs_packet_type type, const struct kvs_packet_room *q)
{
	struct node_post *p = post_new(run_packet, 0);

	if (!p)
		return -ENOMEM;
	p->number = engine;
	p->type = type;
	p->packet = *q;
	return post_send(n, p);
}

static void run_retract(struct kvs_post *post, void *ctx)
{
	struct node_post *p = to_post(post);
	struct kvs_node *n = ctx;

	kvs_worker_retract(n->worker, &p->retract);
	free(p);
}

int kvs_node_retract(struct kvs_node *n, const struct kvs_retract_request *q)
{
	struct node_post *p = post_new(run_retract, 0);

	if (!p)
		return -ENOMEM;
	p->retract = *q;
	return post_send(n, p);
}

static void run_abort(struct kvs_post *post, void *ctx)
{
	struct node_post *p = to_post(post);
	struct kvs_node *n = ctx;

	(void)kvs_worker_abort(n->worker, p->id, p->cause, p->err, p->text);
	free(p);
}

int kvs_node_abort(struct kvs_node *n, uint64_t generation,
		   enum kvs_room_cause cause, int err, const char *why)
{
	struct node_post *p = post_new(run_abort, 0);

	if (!p)
		return -ENOMEM;
	p->id = generation;
	p->cause = cause;
	p->err = err;
	snprintf(p->text, sizeof(p->text), "%s", why);
	return post_send(n, p);
}

static void run_adopt(struct kvs_post *post, void *ctx)
{
	struct node_post *p = to_post(post);
	struct kvs_node *n = ctx;

	if (kvs_node_adopt_here(n, p->fd, p->id, &p->msg,
				p->flag ? p->proof : NULL))
		close(p->fd);
	free(p);
}

int kvs_node_adopt(struct kvs_node *n, int fd, uint64_t session,
		   const struct kvs_msg_hello *reply,
		   const unsigned char *proof)
{
	struct node_post *p = post_new(run_adopt, 0);

	if (!p)
		return -ENOMEM;
	p->fd = fd;
	p->id = session;
	p->msg.type = KVS_WIRE_HELLO;
	p->msg.hello = *reply;
	p->flag = proof;
	if (proof)
		memcpy(p->proof, proof, sizeof(p->proof));
	return post_send(n, p);
}
