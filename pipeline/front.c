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
#include "lib/random.h"

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
	/* on the node's thread; a GRANT has keys */
	static _Thread_local _Alignas(8) unsigned char buf[KVS_FRAME_MAX];
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

	kvs_directory_end(ctx, p->id, p->word, p->err, (const char *)p->bytes);
	free(p);
}

static void up_room_over(void *arg, uint64_t room, uint64_t generation, int err,
			 const char *text)
{
	struct front_post *p = post_new(KVS_ENDED_TEXT, run_room_over);
	struct kvs_front *f = arg;

	if (!p)
		return;
	p->id = room;
	p->word = generation;
	p->err = err;
	snprintf((char *)p->bytes, KVS_ENDED_TEXT, "%s", text);
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

void kvs_front_close(struct kvs_front *f)
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
	kvs_front_close(ctx);
}

void kvs_front_forget_nodes(struct kvs_front *f)
{
	if (f->running)
		kvs_mailbox_call(&f->mailbox, run_forget_nodes, NULL);
}

static void front_teardown(struct kvs_front *f)
{
	kvs_front_close(f);
	kvs_transport_destroy(f->transport);
	f->transport = NULL;
}

void kvs_front_turn(struct kvs_front *f, uint64_t wait)
{
	kvs_transport_poll(f->transport, wait);
	kvs_mailbox_run(&f->mailbox);
	kvs_timerq_run(&f->timers, kvs_clock_now(f->clock));
	kvs_engines_reap(f);
	kvs_front_tell_refused(f);
}

uint64_t kvs_front_next(const struct kvs_front *f)
{
	return kvs_timerq_next(&f->timers);
}

static void *front_main(void *arg)
{
	struct kvs_front *f = arg;
	uint64_t now, next, wait;

	pthread_setname_np(pthread_self(), "kvs-front");
	while (!atomic_load_explicit(&f->stop, memory_order_acquire)) {
		now = kvs_clock_now(f->clock);
		next = kvs_front_next(f);
		wait = next == KVS_TIME_NEVER ? KVS_TIME_NEVER
		       : next > now	      ? next - now
					      : 0;
		kvs_front_turn(f, wait);
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

void kvs_front_keys(struct kvs_front *f, const struct kvs_auth_keys *k)
{
	f->keys = *k;
}

static int front_load_keys(struct kvs_front *f, char *err, size_t errlen)
{
	char names[KVS_AUTH_PRINTS];
	struct kvs_auth_keys k;
	int ret;

	if (!*f->settings.auth_key_file)
		return 0;
	ret = kvs_auth_keys_load(f->settings.auth_key_file, &k, err, errlen);
	if (ret)
		return ret;
	kvs_front_keys(f, &k);
	kvs_auth_fingerprints(&k, names);
	kvs_log_notice("%s: %u %s accepted: %s", f->settings.auth_key_file, k.n,
		       k.n == 1 ? "key is" : "keys are", names);
	kvs_auth_keys_clear(&k);
	return 0;
}

static int front_listen(struct kvs_front *f, char *err, size_t errlen)
{
	struct kvs_addr addr;
	int ret;

	ret = front_load_keys(f, err, errlen);
	if (ret)
		return ret;
	ret = kvs_addr_parse(f->settings.listen_address, true, &addr, err,
			     errlen);
	if (ret)
		return ret;
	for (unsigned int i = 0; i < addr.n && !f->keys.n; i++) {
		if (kvs_addr_is_loopback(
			    (const struct sockaddr *)&addr.a[i].ss))
			continue;
		snprintf(err, errlen,
			 "listen.address: %s is not a loopback address, and "
			 "without auth.key_file whoever reached it could "
			 "connect",
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

int kvs_front_init(struct kvs_front *f, const struct kvs_front_opts *o)
{
	*f = (struct kvs_front){
		.settings = *o->settings,
		.clock = o->clock ? o->clock : &kvs_clock_real,
		.topo = o->topo,
		.nodes = o->nodes,
		.attach_fd = -1,
		.ended_max = o->ended_max ? o->ended_max : KVS_ENDED_MAX,
	};
	f->started = kvs_clock_now(f->clock);
	atomic_init(&f->stop, false);
	sem_init(&f->woken, 0, 0);
	kvs_list_init(&f->strangers);
	kvs_list_init(&f->sessions);
	kvs_list_init(&f->engines);
	kvs_host_cache_init(&f->hosts, 1);
	kvs_timerq_init(&f->timers);
	kvs_timer_init(&f->sweep, front_sweep);
	kvs_u64map_init(&f->by_id, o->secret);
	kvs_u64map_init(&f->rooms, o->secret);
	kvs_u64map_init(&f->parked, o->secret);
	kvs_u64map_init(&f->ended, o->secret);
	f->scratch = malloc(sizeof(*f->scratch));
	f->ended_ring = calloc(f->ended_max, sizeof(*f->ended_ring));
	if (!f->scratch || !f->ended_ring ||
	    kvs_auth_sources_create(f->settings.auth_sources, o->secret,
				    &f->sources))
		return -ENOMEM;
	return kvs_random_fill(&f->instance, sizeof(f->instance)) ? -EIO : 0;
}

void kvs_front_fini(struct kvs_front *f)
{
	struct kvs_entry *e;
	size_t pos = 0;

	while ((e = kvs_u64map_next(&f->rooms, &pos))) {
		kvs_host_put(e->host);
		free(e);
	}
	kvs_host_cache_fini(&f->hosts);
	kvs_u64map_fini(&f->rooms);
	kvs_u64map_fini(&f->by_id);
	kvs_u64map_fini(&f->parked);
	kvs_u64map_fini(&f->ended);
	free(f->ended_ring);
	kvs_auth_sources_destroy(f->sources);
	kvs_auth_keys_clear(&f->keys);
	kvs_timerq_fini(&f->timers);
	free(f->scratch);
	sem_destroy(&f->woken);
}

void kvs_front_bind(struct kvs_front *f, struct kvs_transport *t)
{
	f->transport = t;
	kvs_mailbox_init(&f->mailbox, t, f);
}

int kvs_front_start(struct kvs_front *f, char *err, size_t errlen)
{
	struct kvs_transport_opts to = {
		.engine = f->settings.tcp_engine,
		.max_conns = kvs_front_connections(&f->settings),
		.clock = f->clock,
	};
	struct kvs_transport *t;
	int ret;

	ret = kvs_tcp_create(&to, &t, err, errlen);
	if (ret)
		return ret;
	kvs_front_bind(f, t);
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
