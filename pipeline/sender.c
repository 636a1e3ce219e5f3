/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/err.h"
#include "lib/log.h"
#include "lib/random.h"
#include "pipeline/layout.h"
#include "pipeline/network.h"
#include "pipeline/sender_internal.h"
#include "pipeline/wire_text.h"

#define KVS_SEND_SLOTS_DEFAULT 2
#define KVS_SEND_WINDOW_DEFAULT (64ULL << 20)
#define KVS_SEND_CHUNK_DEFAULT (16ULL << 20)
#define KVS_SEND_STRIPE_DEFAULT (64ULL << 20)
#define KVS_SEND_CONNECT_DEFAULT (10 * KVS_NSEC_PER_SEC)
#define KVS_SEND_OPEN_DEFAULT (60 * KVS_NSEC_PER_SEC)
#define KVS_SEND_PAST_CLEAN 4096
#define KVS_SEND_PAST_POISONED 65536

void kvs_sender_mail(struct kvs_sender *s, struct kvs_send_mail *m)
{
	kvs_mpsc_push(&s->mail, &m->node);
	kvs_transport_wake(s->t);
}

void kvs_sender_agree(struct kvs_sender *s, int err, const char *text)
{
	pthread_mutex_lock(&s->lock);
	if (!s->agreed) {
		s->agreed = true;
		s->agreed_err = err;
		snprintf(s->agreed_text, sizeof(s->agreed_text), "%s", text);
		pthread_cond_signal(&s->cond);
	}
	pthread_mutex_unlock(&s->lock);
}

/* Its own deadlines only: what the transport has is the transport's to say. */
uint64_t kvs_sender_next(const struct kvs_sender *s)
{
	return kvs_timerq_next(&s->timers);
}

static void read_mail(struct kvs_sender *s)
{
	struct kvs_mpsc_node *n;

	while ((n = kvs_mpsc_pop(&s->mail))) {
		struct kvs_send_mail *m =
			kvs_container_of(n, struct kvs_send_mail, node);

		if (m->type != KVS_SEND_MAIL_STOP) {
			kvs_send_room_mail(m);
			continue;
		}
		s->stopping = true;
		atomic_store(&s->gone, true);
		kvs_send_room_fail_all(s, ECANCELED,
				       "the sender is shutting down", true);
		/* what is with the transport is let out, for a second */
		kvs_sender_data_close(s, -ECANCELED, true);
	}
}

/* Every room is over and nothing is left to close. */
static bool stopped(struct kvs_sender *s)
{
	struct kvs_send_room *r;
	bool over = true;

	if (!s->stopping || s->n_conns)
		return false;
	pthread_mutex_lock(&s->lock);
	kvs_list_for_each_entry(r, &s->all, all_node) {
		if (r->live)
			over = false;
	}
	pthread_mutex_unlock(&s->lock);
	if (!over)
		return false;
	/* last: it carries the answers */
	kvs_sender_control_stop(s);
	return !s->control;
}

/* The transport belongs to this thread to its end. Whoever asked to stop may
 * still be about to wake it. */
static void thread_end(struct kvs_sender *s)
{
	pthread_mutex_lock(&s->lock);
	while (!s->released)
		pthread_cond_wait(&s->cond, &s->lock);
	pthread_mutex_unlock(&s->lock);
	kvs_transport_destroy(s->t);
	s->t = NULL;
}

void kvs_sender_begin(struct kvs_sender *s)
{
	kvs_sender_control_start(s);
}

bool kvs_sender_turn(struct kvs_sender *s, uint64_t wait)
{
	uint64_t now, next;
	int r;

	read_mail(s);
	kvs_send_room_settle_all(s);
	if (stopped(s))
		return false;
	kvs_sender_pump(s);
	/* pumping may fail rooms (no memory, no connection) */
	kvs_send_room_settle_all(s);

	now = kvs_sender_now(s);
	next = kvs_timerq_next(&s->timers);
	if (next != KVS_TIME_NEVER)
		next = next > now ? next - now : 0;
	r = kvs_transport_poll(s->t, next < wait ? next : wait);
	if (r < 0 && r != -EINTR)
		kvs_log_debug("sender: poll: %s", kvs_err_name(r));
	if (kvs_send_bounces(s))
		(void)kvs_send_ring_poll(&s->ring);
	/* completions first, then deadlines */
	kvs_send_room_settle_all(s);
	kvs_timerq_run(&s->timers, kvs_sender_now(s));
	return true;
}

static void *thread_main(void *arg)
{
	struct kvs_sender *s = arg;

	pthread_setname_np(pthread_self(), "kvs-sender");
	kvs_sender_begin(s);
	while (kvs_sender_turn(s, KVS_TIME_NEVER))
		;
	thread_end(s);
	return NULL;
}

/* The first option that has no default and was not given; NULL: none. */
static const char *missing_opt(const struct kvs_sender_opts *o)
{
	if (!o->daemon)
		return "daemon";
	if (!o->peer)
		return "peer";
	if (!o->layout)
		return "layout";
	if (!o->buffers)
		return "buffers";
	if (!o->ops)
		return "ops";
	if (!o->ops->pages_free)
		return "ops.pages_free";
	return o->ops->done ? NULL : "ops.done";
}

static int check_opts(const struct kvs_sender_opts *o, char *err, size_t errlen)
{
	char name[KVS_PEER_NAME];
	const char *missing;
	uint32_t i;

	if (!o || o->size < offsetof(struct kvs_sender_opts, open_timeout)) {
		snprintf(err, errlen, "sender options: size is %zu, not %zu",
			 o ? o->size : 0, sizeof(*o));
		return -EINVAL;
	}
	missing = missing_opt(o);
	if (missing) {
		snprintf(err, errlen, "sender options: %s is missing", missing);
		return -EINVAL;
	}
	if (!o->peer[0] || strlen(o->peer) >= KVS_PEER_NAME) {
		snprintf(err, errlen,
			 "sender: peer name must have 1 to %d bytes",
			 KVS_PEER_NAME - 1);
		return -EINVAL;
	}
	kvs_wire_text_put(name, sizeof(name), o->peer);
	if (strcmp(name, o->peer)) {
		snprintf(
			err, errlen,
			"sender: peer name has control characters or is not UTF-8");
		return -EINVAL;
	}
	if (!o->n_ranks || o->n_ranks > KVS_RANKS_MAX ||
	    o->rank >= o->n_ranks) {
		snprintf(err, errlen,
			 "sender: rank %u of %u: not below it, or over %d",
			 o->rank, o->n_ranks, KVS_RANKS_MAX);
		return -EINVAL;
	}
	if (o->data_connections > KVS_SEND_SLOTS_MAX) {
		snprintf(err, errlen, "sender: data_connections %u: at most %d",
			 o->data_connections, KVS_SEND_SLOTS_MAX);
		return -EINVAL;
	}
	if (kvs_layout_check(o->layout, err, errlen))
		return -EINVAL;
	for (i = 0; i < o->layout->n_buffers; i++) {
		if (!o->buffers[i]) {
			snprintf(err, errlen, "sender: buffer %u is NULL", i);
			return -EINVAL;
		}
	}
	return kvs_sender_source_check(o, err, errlen);
}

static uint64_t or_default(uint64_t v, uint64_t otherwise)
{
	return v ? v : otherwise;
}

static int init_table(struct kvs_sender *s)
{
	size_t i;

	s->bucket = calloc(KVS_SEND_BUCKETS, sizeof(*s->bucket));
	if (!s->bucket)
		return -ENOMEM;
	for (i = 0; i < KVS_SEND_BUCKETS; i++)
		kvs_list_init(&s->bucket[i]);
	return kvs_send_past_init(&s->past, KVS_SEND_PAST_CLEAN,
				  KVS_SEND_PAST_POISONED);
}

static int copy_opts(struct kvs_sender *s, const struct kvs_sender_opts *o)
{
	size_t bytes = o->layout->n_buffers * sizeof(*s->buffers);

	s->rank = o->rank;
	s->n_ranks = o->n_ranks;
	kvs_wire_text_put(s->peer, sizeof(s->peer), o->peer);
	s->ops = o->ops;
	s->slots = o->data_connections ? o->data_connections
				       : KVS_SEND_SLOTS_DEFAULT;
	s->window = or_default(o->window, KVS_SEND_WINDOW_DEFAULT);
	s->chunk_max = or_default(o->chunk_max, KVS_SEND_CHUNK_DEFAULT);
	if (s->chunk_max > KVS_PAYLOAD_MAX)
		s->chunk_max = KVS_PAYLOAD_MAX;
	if (s->chunk_max > s->window)
		s->chunk_max = s->window;
	s->connect_timeout =
		or_default(o->connect_timeout, KVS_SEND_CONNECT_DEFAULT);
	s->open_timeout = KVS_SEND_OPEN_DEFAULT;
	if (o->size >= offsetof(struct kvs_sender_opts, max_batch_bytes))
		s->open_timeout = or_default(o->open_timeout, s->open_timeout);
	if (o->size >= offsetof(struct kvs_sender_opts, transport)) {
		s->max_batch = o->max_batch_bytes;
		s->call_timeout = o->call_timeout;
	}
	s->stripe_min = KVS_SEND_STRIPE_DEFAULT;
	if (o->size >= offsetof(struct kvs_sender_opts, device))
		s->stripe_min = or_default(o->stripe_min, s->stripe_min);
	if (o->size >= offsetof(struct kvs_sender_opts, stripe_min) &&
	    o->key_file) {
		s->key_file = strdup(o->key_file);
		if (!s->key_file)
			return -ENOMEM;
	}
	kvs_sender_source_copy_opts(s, o);
	s->daemon = strdup(o->daemon);
	s->buffers = malloc(bytes);
	if (!s->daemon || !s->buffers)
		return -ENOMEM;
	memcpy(s->buffers, o->buffers, bytes);
	return kvs_layout_dup(o->layout, &s->layout);
}

/* Jobs that nobody will ever send. */
static void drop_mail(struct kvs_sender *s)
{
	struct kvs_mpsc_node *n;

	while ((n = kvs_mpsc_pop(&s->mail))) {
		struct kvs_send_mail *m =
			kvs_container_of(n, struct kvs_send_mail, node);

		if (m->type == KVS_SEND_MAIL_JOB)
			free(kvs_container_of(m, struct kvs_send_job, mail));
	}
}

static void drop_jobs(struct kvs_send_room *r)
{
	while (!kvs_list_empty(&r->jobs)) {
		struct kvs_send_job *j =
			kvs_list_first(&r->jobs, struct kvs_send_job, node);

		kvs_list_del(&j->node);
		free(j);
	}
}

void kvs_sender_fini(struct kvs_sender *s)
{
	/* Nobody is told of what it breaks off, if it has not stopped. */
	s->state = KVS_SENDER_GONE;
	s->stopping = true;
	/* before the rooms that its writes belong to */
	kvs_transport_destroy(s->t);
	kvs_sender_staged_drop(s);
	drop_mail(s);
	while (s->bucket && !kvs_list_empty(&s->all)) {
		struct kvs_send_room *r =
			kvs_list_first(&s->all, struct kvs_send_room, all_node);

		kvs_list_del(&r->all_node);
		kvs_list_del(&r->hash_node);
		drop_jobs(r);
		kvs_send_room_free(r);
	}
	kvs_sender_data_free(s);
	kvs_sender_source_end(s);
	kvs_timerq_fini(&s->timers);
	kvs_send_past_fini(&s->past);
	pthread_cond_destroy(&s->cond);
	pthread_mutex_destroy(&s->lock);
	free(s->bucket);
	free(s->layout);
	free(s->buffers);
	free(s->daemon);
	free(s->key_file);
	kvs_auth_keys_clear(&s->keys);
	kvs_auth_sender_fini(&s->auth);
	s->magic = 0;
	free(s);
}

static void agree_wait(struct kvs_sender *s)
{
	/* the thread's own deadline ends this */
	pthread_mutex_lock(&s->lock);
	while (!s->agreed)
		pthread_cond_wait(&s->cond, &s->lock);
	pthread_mutex_unlock(&s->lock);
}

int kvs_sender_init(const struct kvs_sender_opts *o,
		    const struct kvs_sender_place *p, struct kvs_sender **ret,
		    char *err, size_t errlen)
{
	struct kvs_sender *s;
	void *mem;
	int r;

	r = check_opts(o, err, errlen);
	if (r)
		return r;
	if (posix_memalign(&mem, 64, sizeof(*s))) {
		snprintf(err, errlen, "sender: out of memory");
		return -ENOMEM;
	}
	/* the rest is scratch space */
	memset(mem, 0, offsetof(struct kvs_sender, scratch));
	s = mem;
	s->magic = KVS_SENDER_MAGIC;
	s->clock = p->clock ? p->clock : &kvs_clock_real;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->cond, NULL);
	kvs_mpsc_init(&s->mail);
	kvs_timerq_init(&s->timers);
	kvs_list_init(&s->all);
	kvs_list_init(&s->dirty);
	kvs_list_init(&s->workers);
	s->m_stop.type = KVS_SEND_MAIL_STOP;
	if (kvs_random_id(&s->instance))
		s->instance = kvs_sender_now(s) | 1;

	r = copy_opts(s, o);
	if (!r)
		r = init_table(s);
	if (r)
		snprintf(err, errlen, "sender: out of memory");
	else if (s->key_file)
		r = kvs_auth_keys_load(s->key_file, &s->keys, err, errlen);
	if (r) {
		kvs_sender_fini(s);
		return r;
	}
	s->addr = p->addr;
	s->t = p->t;
	s->direct = p->direct;
	memcpy(s->source_note, p->note, sizeof(s->source_note));
	s->lose = p->lose;
	s->lose_arg = p->lose_arg;
	*ret = s;
	return 0;
}

void kvs_sender_stop(struct kvs_sender *s)
{
	kvs_sender_mail(s, &s->m_stop);
}

/* RDMA sends from where the bytes are, if it was told of that. */
static int register_buffers(struct kvs_transport *t,
			    const struct kvs_sender_opts *o, char *err,
			    size_t errlen)
{
	struct kvs_mem *m;
	char why[256];
	uint32_t i;
	int r;

	for (i = 0; i < o->layout->n_buffers; i++) {
		if (!o->buffer_len[i])
			continue;
		/* it goes with the transport */
		r = kvs_transport_register(t, o->buffers[i], o->buffer_len[i],
					   &m, why, sizeof(why));
		if (!r || r == -EEXIST)
			continue;
		snprintf(err, errlen, "sender: buffer %u: %s", i, why);
		return r;
	}
	return 0;
}

static int sender_transport(const struct kvs_sender_opts *o,
			    struct kvs_transport **ret, char *err,
			    size_t errlen)
{
	bool rdma = o->size >= offsetof(struct kvs_sender_opts, key_file);
	const struct kvs_network_opts no = {
		.data = rdma ? o->transport : "tcp",
		.tcp = { .engine = o->engine ? o->engine : "auto" },
		.device = rdma ? o->rdma_device : NULL,
		.gid_index = rdma ? o->rdma_gid_index : NULL,
		.node = -1,
		.no_grants = true,
	};
	char note[KVS_NETWORK_NOTE];
	int r;

	r = kvs_network_create(&no, ret, note, err, errlen);
	if (r)
		return r;
	kvs_log_debug("sender %s/%u: %s", o->peer, o->rank, note);
	if (rdma && o->buffer_len && !kvs_sender_has_device(o))
		r = register_buffers(*ret, o, err, errlen);
	if (r)
		kvs_transport_destroy(*ret);
	return r;
}

int kvs_sender_create(const struct kvs_sender_opts *o, struct kvs_sender **ret,
		      char *err, size_t errlen)
{
	struct kvs_sender_place p = { .clock = NULL };
	struct kvs_sender *s;
	int r;

	r = check_opts(o, err, errlen);
	if (r)
		return r;
	r = kvs_addr_parse(o->daemon, false, &p.addr, err, errlen);
	if (r)
		return r;
	r = sender_transport(o, &p.t, err, errlen);
	if (r)
		return r;
	r = kvs_sender_source_probe(o, &p, err, errlen);
	if (!r)
		r = kvs_sender_init(o, &p, &s, err, errlen);
	if (r) {
		kvs_transport_destroy(p.t);
		return r;
	}
	r = -pthread_create(&s->thread, NULL, thread_main, s);
	if (r) {
		snprintf(err, errlen, "sender: pthread_create: %s",
			 kvs_err_name(r));
		kvs_sender_fini(s);
		return r;
	}
	s->started = true;

	agree_wait(s);
	if (s->agreed_err) {
		r = s->agreed_err;
		snprintf(err, errlen, "%s", s->agreed_text);
		kvs_sender_destroy(s);
		return r;
	}
	*ret = s;
	return 0;
}

void kvs_sender_destroy(struct kvs_sender *s)
{
	if (!s)
		return;
	KVS_CHECK_MAGIC(s, KVS_SENDER_MAGIC);
	if (s->started) {
		kvs_sender_stop(s);
		pthread_mutex_lock(&s->lock);
		s->released = true;
		pthread_cond_signal(&s->cond);
		pthread_mutex_unlock(&s->lock);
		pthread_join(s->thread, NULL);
	}
	kvs_sender_fini(s);
}
