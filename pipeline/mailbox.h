/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: mailbox
 *
 * How threads of the daemon talk: each thread owns its objects; others post
 * it a call. Posts of one thread run in order. A thread that waits in its
 * transport is woken at most once for any number of posts.
 */
#ifndef KVS_PIPELINE_MAILBOX_H
#define KVS_PIPELINE_MAILBOX_H

#include <semaphore.h>
#include <stdatomic.h>

#include "lib/mpsc.h"
#include "rdma/transport.h"

struct kvs_post {
	struct kvs_mpsc_node node;
	/* runs on the owner's thread; owns and frees the post */
	void (*run)(struct kvs_post *p, void *ctx);
};

struct kvs_mailbox {
	struct kvs_mpsc q;
	struct kvs_transport *t; /* of the owner; woken */
	void *ctx; /* handed to run() */
	_Atomic int pending;
};

static inline void kvs_mailbox_init(struct kvs_mailbox *mb,
				    struct kvs_transport *t, void *ctx)
{
	kvs_mpsc_init(&mb->q);
	mb->t = t;
	mb->ctx = ctx;
	atomic_init(&mb->pending, 0);
}

/* Any thread. */
static inline void kvs_mailbox_post(struct kvs_mailbox *mb, struct kvs_post *p)
{
	kvs_mpsc_push(&mb->q, &p->node);
	/* Pairs with the exchange in kvs_mailbox_run(): either the owner sees
	 * this post in its loop, or we see 0 here and wake it. */
	if (!atomic_exchange(&mb->pending, 1))
		kvs_transport_wake(mb->t);
}

/* Posts run at a time: the owner's timers and receives come round in between,
 * however much is posted. */
#define KVS_MAILBOX_BATCH 1024

/* Owner thread: run what was posted, up to a batch; the rest is run after the
 * owner's next poll, which does not wait then. Return: how many. */
static inline unsigned int kvs_mailbox_run(struct kvs_mailbox *mb)
{
	struct kvs_mpsc_node *n;
	struct kvs_post *p;
	unsigned int done = 0;

	atomic_exchange(&mb->pending, 0);
	while (done < KVS_MAILBOX_BATCH && (n = kvs_mpsc_pop(&mb->q))) {
		p = kvs_container_of(n, struct kvs_post, node);
		p->run(p, mb->ctx);
		done++;
	}
	if (done == KVS_MAILBOX_BATCH && !atomic_exchange(&mb->pending, 1))
		kvs_transport_wake(mb->t);
	return done;
}

/* A call that waits for its end; lives on the caller's stack. */
struct kvs_call {
	struct kvs_post post;
	void (*fn)(void *ctx, void *arg);
	void *arg;
	sem_t done;
};

static inline void kvs_call_run(struct kvs_post *p, void *ctx)
{
	struct kvs_call *c = kvs_container_of(p, struct kvs_call, post);

	c->fn(ctx, c->arg);
	sem_post(&c->done);
}

/* Run @fn(ctx, arg) on the owner's thread and wait. Not from that thread. */
static inline void kvs_mailbox_call(struct kvs_mailbox *mb,
				    void (*fn)(void *ctx, void *arg), void *arg)
{
	struct kvs_call c;

	c.post.run = kvs_call_run;
	c.fn = fn;
	c.arg = arg;
	sem_init(&c.done, 0, 0);
	kvs_mailbox_post(mb, &c.post);
	while (sem_wait(&c.done))
		;
	sem_destroy(&c.done);
}

#endif /* KVS_PIPELINE_MAILBOX_H */
