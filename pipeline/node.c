/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/node.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/err.h"
#include "lib/log.h"
#include "lib/rule.h"
#include "lib/units.h"
#include "pipeline/node_internal.h"

/* ---- connections ------------------------------------------------------ */

void kvs_node_drop_conns(struct kvs_node *n, uint64_t session)
{
	struct kvs_data_conn *dc;

	kvs_list_for_each_entry(dc, &n->conns, node)
		if (dc->session == session)
			dc->close = true;
	n->deferred = true;
}

bool kvs_node_has_conns(const struct kvs_node *n, uint64_t session)
{
	const struct kvs_data_conn *dc;

	kvs_list_for_each_entry(dc, &n->conns, node)
		if (dc->session == session)
			return true;
	return false;
}

/* The last one is that of all that are too many. */
static uint64_t free_bit(const struct kvs_node *n, uint64_t session)
{
	const struct kvs_data_conn *dc;
	uint64_t used = 0;

	kvs_list_for_each_entry(dc, &n->conns, node)
		if (dc->session == session)
			used |= dc->bit;
	return ~used ? ~used & -~used : 1ULL << 63;
}

static void node_close_session(void *arg, uint64_t session, int err,
			       const char *why)
{
	struct kvs_node *n = arg;

	kvs_node_drop_conns(n, session);
	n->up->close_session(n->up_arg, session, err, why);
}

static int data_violation(struct kvs_data_conn *dc, enum kvs_proto_error e,
			  const char *why)
{
	struct kvs_node *n = dc->n;

	n->worker->stats.protocol_errors[e]++;
	node_close_session(n, dc->session, -EPROTO, why);
	return -EPROTO;
}

static int data_frame(struct kvs_conn *c, const struct kvs_frame *f)
{
	_Alignas(8) unsigned char buf[64];
	struct kvs_data_conn *dc = kvs_conn_user(c);
	struct kvs_node *n = dc->n;
	enum kvs_proto_error why;
	const char *reason;
	struct kvs_msg m;

	if (kvs_wire_decode(f, kvs_get32(f->len), n->scratch, &m, &reason))
		return data_violation(dc, kvs_proto_error_of(reason), reason);
	if (m.type == KVS_WIRE_CHUNK_DONE)
		return kvs_worker_written(n->worker, dc->session, dc->bit,
					  &m.chunk, &why);
	if (m.type != KVS_WIRE_KEEPALIVE)
		return data_violation(dc, KVS_PROTO_ORDER,
				      "unexpected frame on a data connection");
	if (m.keepalive.reply)
		return 0;
	m.keepalive.reply = 1;
	if (kvs_wire_encode(&m, buf, sizeof(buf)) < 0)
		return 0;
	return kvs_conn_send(c, (const struct kvs_frame *)buf);
}

static int data_payload(struct kvs_conn *c, const struct kvs_frame *f,
			struct kvs_rx *rx)
{
	struct kvs_data_conn *dc = kvs_conn_user(c);
	struct kvs_node *n = dc->n;
	enum kvs_proto_error why = KVS_PROTO_PAYLOAD;
	const char *reason;
	struct kvs_msg m;
	int ret;

	/* The decoder lets nothing but a chunk have a payload. */
	if (kvs_wire_decode(f, kvs_get32(f->len), n->scratch, &m, &reason))
		return data_violation(dc, kvs_proto_error_of(reason), reason);
	ret = kvs_worker_receive_begin(n->worker, dc->session, &m.chunk,
				       &dc->rx, &rx->addr, &why);
	if (ret)
		return ret;
	dc->rx.conn = dc;
	dc->receiving = true;
	return 0;
}

static int data_payload_done(struct kvs_conn *c, struct kvs_rx *rx, int status)
{
	struct kvs_data_conn *dc = kvs_conn_user(c);

	dc->receiving = false;
	dc->stop = false;
	kvs_worker_receive_end(dc->n->worker, &dc->rx, status, rx->got);
	return 0;
}

/* Whose rooms it is that a broken one ends, see kvs_worker_conn_lost(). */
static uint64_t lost_bit(const struct kvs_data_conn *dc)
{
	const struct kvs_worker_session *s =
		kvs_u64map_get(&dc->n->worker->sessions, dc->session);
	const struct kvs_data_conn *other;

	if (dc->n->key_per_conn && (!s || !s->numbered))
		return KVS_CONN_ALL;
	kvs_list_for_each_entry(other, &dc->n->conns, node)
		if (other != dc && other->session == dc->session)
			return dc->bit;
	return KVS_CONN_ALL;
}

static void data_closed(struct kvs_conn *c, int err)
{
	struct kvs_data_conn *dc = kvs_conn_user(c);

	kvs_log_debug("data connection of session %llx: %s",
		      (unsigned long long)dc->session, kvs_err_name(err));
	KVS_ASSERT(!dc->receiving);
	kvs_node_path_lost(dc->n, dc, err);
	/* In order between two frames (0): all that was sent is here. */
	if (err == -EPROTO && !dc->closing)
		node_close_session(dc->n, dc->session, err,
				   "broken frame on a data connection");
	else if (err && err != -ESHUTDOWN && !dc->closing)
		kvs_worker_conn_lost(dc->n->worker, dc->session, lost_bit(dc),
				     err);
	kvs_list_del(&dc->node);
	dc->n->n_conns--;
	free(dc);
}

static const struct kvs_conn_ops data_ops = {
	.frame = data_frame,
	.payload = data_payload,
	.payload_done = data_payload_done,
	.closed = data_closed,
};

/* What is said first: the proof, if there is one, and the answer to HELLO. */
static int data_welcome(struct kvs_conn *c, const struct kvs_msg *reply,
			const unsigned char *proof)
{
	_Alignas(8) unsigned char buf[KVS_HELLO_FRAME];
	struct kvs_msg m = { .type = KVS_WIRE_PROOF };
	int ret;

	if (proof) {
		memcpy(m.proof.mac, proof, sizeof(m.proof.mac));
		ret = kvs_wire_encode(&m, buf, sizeof(buf));
		if (ret > 0)
			ret = kvs_conn_send(c, (const struct kvs_frame *)buf);
		if (ret)
			return ret;
	}
	ret = kvs_wire_encode(reply, buf, sizeof(buf));
	return ret < 0 ? ret : kvs_conn_send(c, (const struct kvs_frame *)buf);
}

int kvs_node_adopt_here(struct kvs_node *n, int fd, uint64_t session,
			const struct kvs_msg *reply, const unsigned char *proof)
{
	struct kvs_worker_session *s =
		kvs_u64map_get(&n->worker->sessions, session);
	struct kvs_data_conn *dc;
	uint32_t most;
	int ret;

	/* With a new one it could write where the old ones were to be the
	 * last that did. */
	if (!s || s->torn)
		return -ENOENT;
	most = n->settings.listen_max_connections;
	/* the last quarter is for ranks that have none yet */
	if (kvs_node_path_further(s))
		most -= most / 4;
	if (n->n_conns >= most) {
		n->refused++;
		return -EAGAIN;
	}
	dc = calloc(1, sizeof(*dc));
	if (!dc)
		return -ENOMEM;
	dc->n = n;
	dc->session = session;
	dc->bit = free_bit(n, session);
	dc->path = reply->hello.paths;
	if (s->numbered && !s->paths) {
		s->paths = calloc(1, sizeof(*s->paths));
		if (!s->paths) {
			free(dc);
			return -ENOMEM;
		}
	}
	ret = kvs_transport_adopt(n->transport, fd, KVS_CONN_DATA, &data_ops,
				  dc, &dc->c);
	if (ret) {
		free(dc);
		return ret;
	}
	/* on verbs this makes it a queue pair, so not for a peer without */
	if (s->numbered)
		kvs_conn_set_owner_on(dc->c, session, dc->path);
	else if (s->one_sided)
		kvs_conn_set_owner(dc->c, session);
	kvs_node_path_add(s, dc);
	kvs_list_add_tail(&n->conns, &dc->node);
	n->n_conns++;
	if (data_welcome(dc->c, reply, proof)) {
		dc->close = true;
		n->deferred = true;
	}
	return 0;
}

/* ---- what the worker asks for ------------------------------------------ */

static void node_to_peer(void *arg, uint64_t session, const struct kvs_msg *m)
{
	struct kvs_node *n = arg;

	n->up->to_peer(n->up_arg, session, m);
}

static void node_to_engine(void *arg, uint32_t engine, uint32_t slot,
			   uint64_t word, const struct kvs_packet *p,
			   size_t len)
{
	struct kvs_node *n = arg;

	n->up->to_engine(n->up_arg, engine, slot, word, p, len);
}

static void node_room_over(void *arg, uint64_t room, uint64_t generation,
			   int err, const char *text)
{
	struct kvs_node *n = arg;

	n->up->room_over(n->up_arg, room, generation, err, text);
}

/* The transport may finish a receive from inside the call that stops it, so
 * the worker's request is carried out once the worker has returned. */
static void node_stop_receive(void *arg, struct kvs_receive *rx)
{
	struct kvs_data_conn *dc = rx->conn;
	struct kvs_node *n = arg;

	dc->stop = true;
	n->deferred = true;
}

static void node_engine_over(void *arg, uint32_t engine)
{
	struct kvs_node *n = arg;

	if (n->up->engine_over)
		n->up->engine_over(n->up_arg, engine);
}

static const struct kvs_worker_out node_out = {
	.to_peer = node_to_peer,
	.to_engine = node_to_engine,
	.room_over = node_room_over,
	.stop_receive = node_stop_receive,
	.grant_open = kvs_node_grant_open,
	.grant_close = kvs_node_grant_close,
	.tear_down = kvs_node_tear_down,
	.close_session = node_close_session,
	.engine_over = node_engine_over,
};

static void node_deferred(struct kvs_node *n)
{
	struct kvs_data_conn *dc, *tmp;

	while (n->deferred) {
		n->deferred = false;
		kvs_list_for_each_entry_safe(dc, tmp, &n->conns, node) {
			if (dc->close) {
				dc->close = false;
				dc->closing = true;
				kvs_conn_close(dc->c, -EPROTO, false);
			} else if (dc->stop && dc->receiving) {
				dc->stop = false;
				kvs_conn_stop_payload(dc->c);
			}
		}
	}
}

/* ---- thread ------------------------------------------------------------ */

/* The transport belongs to this thread to the end: its connections close
 * here, what is posted last is run here, and the rooms end here. */
static void node_teardown(struct kvs_node *n)
{
	while (n->transport && kvs_mailbox_run(&n->mailbox))
		;
	kvs_watch_remove(n->disk);
	n->disk = NULL;
	kvs_watch_remove(n->shared);
	n->shared = NULL;
	kvs_transport_destroy(n->transport);
	n->transport = NULL;
	(void)kvs_node_grants_pending(n);
	kvs_worker_abandon(n->worker);
	/* here, as the kernel lets no other thread reap its transfers */
	kvs_cache_disk_close(n->worker);
	kvs_cache_shared_close(n->worker);
}

void kvs_node_turn(struct kvs_node *n, uint64_t wait)
{
	if (!KVS_RULE(R14, ORDER))
		kvs_worker_turn(n->worker);
	/* Completions before deadlines (R14): the transport first, then the
	 * posts, then the worker's timers. */
	kvs_transport_poll(n->transport, wait);
	kvs_mailbox_run(&n->mailbox);
	kvs_node_torn_down(n);
	/* A receive that ends in here may free memory that a turn hands on; a
	 * turn may stop further receives. */
	do {
		node_deferred(n);
		kvs_worker_turn(n->worker);
		n->deferred |= kvs_node_grants_pending(n);
	} while (n->deferred);
}

static void *node_main(void *arg)
{
	struct kvs_node *n = arg;
	uint64_t now, next, wait;

	pthread_setname_np(pthread_self(), "kvs-node");
	while (!atomic_load_explicit(&n->stop, memory_order_acquire)) {
		now = kvs_clock_now(n->clock);
		next = kvs_worker_next(n->worker);
		wait = next == KVS_TIME_NEVER ? KVS_TIME_NEVER
		       : next > now	      ? next - now
					      : 0;
		kvs_node_turn(n, wait);
	}
	/* The stopper may still be in the wake-up of this transport. */
	while (sem_wait(&n->woken))
		;
	node_teardown(n);
	return NULL;
}

static int node_start_thread(struct kvs_node *n, const cpu_set_t *cpus)
{
	pthread_attr_t attr;
	int ret;

	ret = pthread_attr_init(&attr);
	if (ret)
		return -ret;
	if (cpus && CPU_COUNT(cpus))
		pthread_attr_setaffinity_np(&attr, sizeof(*cpus), cpus);
	ret = pthread_create(&n->thread, &attr, node_main, n);
	pthread_attr_destroy(&attr);
	n->running = !ret;
	return -ret;
}

/* No extent is to lie in two registrations of a device. */
static int node_segment(const struct kvs_node *n, uint64_t *ret, char *err,
			size_t errlen)
{
	uint64_t page = n->region->page_size;
	uint64_t most = n->transport ? kvs_transport_register_max(n->transport)
				     : UINT64_MAX;
	char has[KVS_UNITS_BUF], takes[KVS_UNITS_BUF];

	*ret = kvs_reglist_segment(most, page ? page : KVS_ARENA_ALIGN);
	if (*ret)
		return 0;
	snprintf(err, errlen,
		 "pool of node %d: a registration takes %s at most, less than "
		 "a page of it, %s: pool.page_size",
		 n->numa, kvs_format_size(most, takes),
		 kvs_format_size(page, has));
	return -EINVAL;
}

static int node_pool(struct kvs_node *n, const char *name,
		     const struct kvs_region *g, uint64_t segment,
		     struct kvs_pool **ret)
{
	struct kvs_pool_opts o = {
		.name = name,
		.node = n->numa,
		.base = g->base,
		.size = g->size,
		.segment = segment,
		.clock = n->clock,
		.overtake_max = n->settings.overtake,
		.overtake_ns = n->settings.overtake_time,
	};

	return kvs_pool_create(&o, ret);
}

void kvs_node_bind(struct kvs_node *n, struct kvs_transport *t)
{
	n->transport = t;
	n->one_sided = t && kvs_transport_one_sided(t);
	n->key_per_conn = t && kvs_transport_key_per_conn(t);
	n->rails = t ? kvs_transport_rails(t) : 0;
	if (n->worker)
		n->worker->o.one_sided = n->one_sided;
	kvs_mailbox_init(&n->mailbox, t, n);
}

int kvs_node_init(struct kvs_node *n, const struct kvs_settings *s,
		  const struct kvs_clock *clock, struct kvs_transport *t,
		  uint64_t secret, char *err, size_t errlen)
{
	struct kvs_worker_opts wo = {
		.settings = &n->settings,
		.clock = clock ? clock : &kvs_clock_real,
		.index = n->index,
		.pool_index = n->index,
		.secret = secret,
		.out = &node_out,
		.arg = n,
	};
	uint64_t segment;
	int ret;

	n->settings = *s;
	n->clock = wo.clock;
	kvs_node_bind(n, t);
	kvs_list_init(&n->conns);
	kvs_list_init(&n->grants);
	kvs_list_init(&n->pending);
	wo.one_sided = n->one_sided;
	atomic_init(&n->stop, false);
	sem_init(&n->woken, 0, 0);
	n->scratch = malloc(sizeof(*n->scratch));
	if (!n->scratch)
		return -ENOMEM;
	ret = node_segment(n, &segment, err, errlen);
	if (ret)
		return ret;
	ret = node_pool(n, "receive", n->region, segment, &n->pool);
	if (!ret && n->offload)
		ret = node_pool(n, "offload", n->offload, 0, &n->offload_pool);
	if (ret) {
		snprintf(err, errlen, "pool of node %d: %s", n->numa,
			 strerror(-ret));
		return ret;
	}
	wo.pool = n->pool;
	/* an engine that attaches learns of so many pools only */
	if (n->offload_index < KVS_ATTACH_POOLS_MAX)
		wo.offload = n->offload_pool;
	wo.offload_index = n->offload_index;
	return kvs_worker_create(&wo, &n->worker);
}

/* The turn that follows takes what has ended. */
static void node_disk_ready(struct kvs_watch *w, short revents, void *arg)
{
	(void)w;
	(void)revents;
	(void)arg;
}

static void node_disk(struct kvs_node *n)
{
	int fd;

	kvs_cache_disk_open(n->worker);
	fd = kvs_cache_disk_fd(n->worker);
	if (fd >= 0 && kvs_transport_watch(n->transport, fd, POLLIN,
					   node_disk_ready, n, &n->disk))
		kvs_cache_disk_off(n->worker,
				   "its descriptor cannot be watched");
	kvs_cache_shared_open(n->worker);
	fd = kvs_cache_shared_fd(n->worker);
	if (fd >= 0 && kvs_transport_watch(n->transport, fd, POLLIN,
					   node_disk_ready, n, &n->shared))
		kvs_cache_shared_off(n->worker,
				     "its descriptor cannot be watched");
}

int kvs_node_start(struct kvs_node *n, const struct kvs_settings *s,
		   uint64_t secret, const cpu_set_t *cpus, char *err,
		   size_t errlen)
{
	const struct kvs_network_opts no = {
		.data = s->transport_data,
		.tcp = {
			.engine = s->tcp_engine,
			.max_conns = s->listen_max_connections,
			.rcvbuf = (int)s->tcp_rcvbuf,
			.sndbuf = (int)s->tcp_sndbuf,
		},
		.device = s->rdma_device,
		.gid_index = s->rdma_gid_index,
		.mtu = s->rdma_mtu,
		.port = s->rdma_port,
		.grant = s->rdma_grant,
		.node = n->numa,
	};
	struct kvs_transport *t;
	int ret;

	/* first: how the pool is cut depends on its devices */
	ret = kvs_network_create(&no, &t, n->network, err, errlen);
	if (ret)
		return ret;
	ret = kvs_node_init(n, s, NULL, t, secret, err, errlen);
	if (ret)
		return ret;
	ret = kvs_node_register(n, err, errlen);
	if (ret)
		return ret;
	node_disk(n);
	ret = node_start_thread(n, cpus);
	if (ret)
		snprintf(err, errlen, "thread of node %d: %s", n->numa,
			 strerror(-ret));
	return ret;
}

void kvs_node_stop(struct kvs_node *n)
{
	if (n->running) {
		atomic_store_explicit(&n->stop, true, memory_order_release);
		kvs_transport_wake(n->transport);
		sem_post(&n->woken);
		pthread_join(n->thread, NULL);
		n->running = false;
	} else if (n->worker) {
		node_teardown(n); /* there never was one */
	} else {
		kvs_transport_destroy(n->transport);
		n->transport = NULL;
	}
	kvs_worker_destroy(n->worker);
	n->worker = NULL;
	(void)kvs_reglist_destroy(n->registered);
	n->registered = NULL;
	kvs_pool_destroy(n->pool);
	kvs_pool_destroy(n->offload_pool);
	n->pool = NULL;
	n->offload_pool = NULL;
	free(n->scratch);
	n->scratch = NULL;
	sem_destroy(&n->woken);
}
