/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/front.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/log.h"

/* ---- posts from nodes --------------------------------------------------- */

struct front_post {
	struct kvs_post post;
	uint64_t id; /* session, room */
	uint64_t word; /* word, generation */
	uint32_t engine;
	uint32_t slot;
	int err;
	const char *why; /* static */
	size_t len;
	_Alignas(8) unsigned char bytes[]; /* frame or packet */
};

static struct front_post *post_new(size_t len,
				   void (*run)(struct kvs_post *p, void *ctx))
{
	struct front_post *p = malloc(sizeof(*p) + len);

	if (!p) {
		/* A lost message to a peer or engine ends in its timeout;
		 * nothing is freed by it. */
		KVS_WARN_ONCE(true, "out of memory for a message");
		return NULL;
	}
	p->post.run = run;
	p->len = len;
	return p;
}

static void run_to_peer(struct kvs_post *post, void *ctx)
{
	struct front_post *p = kvs_container_of(post, struct front_post, post);
	struct kvs_front *f = ctx;
	struct kvs_session *s = kvs_u64map_get(&f->by_id, p->id);
	int ret;

	if (s && !s->end_why) {
		ret = kvs_conn_send(s->c, (const struct kvs_frame *)p->bytes);
		if (ret && ret != -EPIPE)
			kvs_session_end(s, ret,
					"peer does not read its answers");
	}
	free(p);
}

static void up_to_peer(void *arg, uint64_t session, const struct kvs_msg *m)
{
	_Alignas(8) unsigned char buf[1024];
	struct kvs_front *f = arg;
	struct front_post *p;
	int len;

	len = kvs_wire_encode(m, buf, sizeof(buf));
	if (KVS_WARN_ONCE(len < 0, "message %s cannot be encoded: %d",
			  kvs_wire_type_name(m->type), len))
		return;
	p = post_new((size_t)len, run_to_peer);
	if (!p)
		return;
	p->id = session;
	memcpy(p->bytes, buf, (size_t)len);
	kvs_mailbox_post(&f->mailbox, &p->post);
}

static void run_to_engine(struct kvs_post *post, void *ctx)
{
	struct front_post *p = kvs_container_of(post, struct front_post, post);
	struct kvs_front *f = ctx;
	struct kvs_front_engine *e = kvs_front_engine(f, p->engine);

	if (e)
		kvs_front_engine_word(e, p->slot, p->word,
				      (const struct kvs_packet *)p->bytes,
				      p->len);
	free(p);
}

static void up_to_engine(void *arg, uint32_t engine, uint32_t slot,
			 uint64_t word, const struct kvs_packet *pk, size_t len)
{
	struct front_post *p = post_new(len, run_to_engine);
	struct kvs_front *f = arg;

	if (!p)
		return;
	p->engine = engine;
	p->slot = slot;
	p->word = word;
	if (len)
		memcpy(p->bytes, pk, len);
	kvs_mailbox_post(&f->mailbox, &p->post);
}

static void run_room_over(struct kvs_post *post, void *ctx)
{
	struct front_post *p = kvs_container_of(post, struct front_post, post);

	kvs_directory_end(ctx, p->id, p->word, p->err);
	free(p);
}

static void up_room_over(void *arg, uint64_t room, uint64_t generation, int err)
{
	struct front_post *p = post_new(0, run_room_over);
	struct kvs_front *f = arg;

	if (!p)
		return;
	p->id = room;
	p->word = generation;
	p->err = err;
	kvs_mailbox_post(&f->mailbox, &p->post);
}

static void run_close_session(struct kvs_post *post, void *ctx)
{
	struct front_post *p = kvs_container_of(post, struct front_post, post);
	struct kvs_front *f = ctx;
	struct kvs_session *s = kvs_u64map_get(&f->by_id, p->id);

	if (s)
		kvs_session_end(s, p->err, p->why);
	free(p);
}

static void up_close_session(void *arg, uint64_t session, int err,
			     const char *why)
{
	struct front_post *p = post_new(0, run_close_session);
	struct kvs_front *f = arg;

	if (!p)
		return;
	p->id = session;
	p->err = err;
	p->why = why;
	kvs_mailbox_post(&f->mailbox, &p->post);
}

static void run_engine_over(struct kvs_post *post, void *ctx)
{
	struct front_post *p = kvs_container_of(post, struct front_post, post);

	kvs_front_engine_over(ctx, p->engine);
	free(p);
}

static void up_engine_over(void *arg, uint32_t engine)
{
	struct front_post *p = post_new(0, run_engine_over);
	struct kvs_front *f = arg;

	if (!p)
		return;
	p->engine = engine;
	kvs_mailbox_post(&f->mailbox, &p->post);
}

const struct kvs_node_up kvs_front_up = {
	.to_peer = up_to_peer,
	.to_engine = up_to_engine,
	.room_over = up_room_over,
	.close_session = up_close_session,
	.engine_over = up_engine_over,
};

/* ---- thread -------------------------------------------------------------- */

/* Everything that could post to a node. */
static void front_close_inputs(struct kvs_front *f)
{
	struct kvs_front_engine *e, *tmp;
	struct kvs_session *s;

	f->draining = true;
	if (f->listener)
		kvs_listener_close(f->listener);
	f->listener = NULL;
	kvs_watch_remove(f->attach_watch);
	f->attach_watch = NULL;
	if (f->attach_fd >= 0)
		close(f->attach_fd);
	f->attach_fd = -1;
	if (*f->attach_path)
		(void)unlink(f->attach_path);
	*f->attach_path = 0;
	kvs_list_for_each_entry_safe(e, tmp, &f->engines, node)
		kvs_front_engine_free(e);
	f->n_nodes = 0;
	kvs_list_for_each_entry(s, &f->sessions, node)
		kvs_session_end(s, -ESHUTDOWN, "the daemon ends");
}

static void run_forget_nodes(void *ctx, void *arg)
{
	(void)arg;
	front_close_inputs(ctx);
}

void kvs_front_forget_nodes(struct kvs_front *f)
{
	if (f->running)
		kvs_mailbox_call(&f->mailbox, run_forget_nodes, NULL);
}

static void front_teardown(struct kvs_front *f)
{
	front_close_inputs(f);
	kvs_transport_destroy(f->transport);
	f->transport = NULL;
}

static void *front_main(void *arg)
{
	struct kvs_front *f = arg;
	uint64_t now, next, wait;

	pthread_setname_np(pthread_self(), "kvs-front");
	while (!atomic_load_explicit(&f->stop, memory_order_acquire)) {
		now = kvs_clock_now(&kvs_clock_real);
		next = kvs_timerq_next(&f->timers);
		wait = next == KVS_TIME_NEVER ? KVS_TIME_NEVER
		       : next > now	      ? next - now
					      : 0;
		kvs_transport_poll(f->transport, wait);
		kvs_mailbox_run(&f->mailbox);
		kvs_timerq_run(&f->timers, kvs_clock_now(&kvs_clock_real));
		kvs_engines_reap(f);
	}
	/* The stopper may still be in the wake-up of this transport. */
	while (sem_wait(&f->woken))
		;
	while (kvs_mailbox_run(&f->mailbox))
		;
	front_teardown(f);
	return NULL;
}

static void front_sweep(struct kvs_timer *t)
{
	kvs_parked_sweep(kvs_container_of(t, struct kvs_front, sweep));
}

static int front_listen(struct kvs_front *f, char *err, size_t errlen)
{
	struct kvs_addr addr;
	int ret;

	ret = kvs_addr_parse(f->settings.listen_address, true, &addr, err,
			     errlen);
	if (ret)
		return ret;
	for (unsigned int i = 0; i < addr.n; i++) {
		if (kvs_addr_is_loopback(
			    (const struct sockaddr *)&addr.a[i].ss))
			continue;
		snprintf(err, errlen,
			 "listen.address: %s is not a loopback address; peers "
			 "are not authenticated yet",
			 f->settings.listen_address);
		return -EACCES;
	}
	ret = kvs_transport_listen(f->transport, &addr, kvs_session_accept, f,
				   &f->listener);
	if (ret)
		snprintf(err, errlen, "listen.address: %s: %s",
			 f->settings.listen_address, strerror(-ret));
	return ret;
}

int kvs_front_start(struct kvs_front *f, char *err, size_t errlen)
{
	struct kvs_transport_opts to = {
		.engine = f->settings.tcp_engine,
		.max_conns = f->settings.listen_max_connections,
	};
	int ret;

	f->scratch = malloc(sizeof(*f->scratch));
	if (!f->scratch)
		return -ENOMEM;
	ret = kvs_tcp_create(&to, &f->transport, err, errlen);
	if (ret)
		return ret;
	kvs_mailbox_init(&f->mailbox, f->transport, f);
	kvs_timer_init(&f->sweep, front_sweep);
	ret = kvs_engine_listen(f, err, errlen);
	if (ret)
		return ret;
	return front_listen(f, err, errlen);
}

void kvs_front_stop(struct kvs_front *f)
{
	if (f->running) {
		atomic_store_explicit(&f->stop, true, memory_order_release);
		kvs_transport_wake(f->transport);
		sem_post(&f->woken);
		pthread_join(f->thread, NULL);
		f->running = false;
	} else if (f->transport) {
		front_teardown(f); /* the thread never ran */
	}
}

/* Started by service.c once the nodes run. */
int kvs_front_run(struct kvs_front *f)
{
	int ret = pthread_create(&f->thread, NULL, front_main, f);

	f->running = !ret;
	return -ret;
}
