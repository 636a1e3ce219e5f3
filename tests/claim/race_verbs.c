/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The race over RDMA, on a device of this machine: real one-sided writes into
 * the pool of a daemon core. Rank 1 of A's peer is a liar with a thread and
 * connections of its own: from its launch on it writes A's first K again and
 * again, by A's key, whatever it is told. Each ABORT goes unheard, also the one
 * that its own control connection acknowledged; when it is refused and loses
 * its connection, it makes another one and goes on.
 *
 * Where ranks have several connections (race_verbs_paths), one on each device,
 * each room is granted on all of them, and the liar takes them in turn.
 *
 * An attempt that begins after A's memory was proven out of reach must not
 * succeed: it is refused by the device, or cut off with its connection.
 */
#include "tests/claim/race_service.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rdma/verbs.h"

#define LIAR 1u /* rank, of peer 0 */
#define PATHS 2u /* connections of a rank at most */

/* One data connection, of the liar's transport or of the others'. */
struct vconn {
	const struct ps *p;
	struct kvs_conn *c; /* NULL: closed */
	uint32_t path; /* number */
	_Atomic bool up; /* HELLO was answered, on the queue pair */
};

/* A write under way, and its source. */
struct vwrite {
	struct kvs_tx tx;
	struct iovec iov;
	_Atomic bool done;
	int status;
};

static bool soft; /* a device whose invalidations prove nothing */
static struct kvs_transport *net; /* of those that do as they are told */
static pthread_t net_thread;
static pthread_mutex_t net_mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic unsigned int net_wanted;
static _Atomic bool net_stop;
static struct vconn conns[RACE_SERVICE_PEERS][RACE_RANKS][PATHS];

static struct {
	struct kvs_transport *t;
	struct vconn conn[PATHS];
	unsigned int n_conns;
	pthread_t thread;
	struct vwrite w;
	/* of A; set before @go */
	struct ps_room *side;
	unsigned char *bytes;
	_Atomic bool go;
	_Atomic bool stop;
	/* attempts: begun, ended, and how those of after the proof ended */
	_Atomic unsigned int begun;
	_Atomic unsigned int ended;
	/* begun before the proof; UINT_MAX: none yet */
	_Atomic unsigned int proven;
	_Atomic unsigned int refused, cut, landed;
} liar;

/* ---- connections ---- */

static void conn_opened(struct kvs_conn *c)
{
	_Alignas(8) unsigned char buf[KVS_FRAME_MAX];
	struct vconn *v = kvs_conn_user(c);
	struct kvs_msg m;

	ps_hello_msg(v->p, KVS_ROLE_DATA, &m);
	m.hello.paths = (uint16_t)v->path;
	assert_true(kvs_wire_encode(&m, buf, sizeof(buf)) > 0);
	assert_int_equal(kvs_conn_send(c, (const struct kvs_frame *)buf), 0);
}

static int conn_frame(struct kvs_conn *c, const struct kvs_frame *f)
{
	struct vconn *v = kvs_conn_user(c);

	if (kvs_get16(f->type) == KVS_WIRE_HELLO)
		v->up = true;
	return 0;
}

static void conn_closed(struct kvs_conn *c, int err)
{
	struct vconn *v = kvs_conn_user(c);

	(void)err;
	v->c = NULL;
	v->up = false;
}

static const struct kvs_conn_ops conn_ops = {
	.opened = conn_opened,
	.frame = conn_frame,
	.closed = conn_closed,
};

static unsigned int paths(const struct ps *p)
{
	assert_true(p->paths <= PATHS);
	return p->paths ? p->paths : 1;
}

static void dial(struct kvs_transport *t, struct vconn *v, const struct ps *p,
		 uint32_t path)
{
	struct kvs_addr a;
	char at[32], err[128];

	v->p = p;
	v->path = path;
	snprintf(at, sizeof(at), "127.0.0.1:%u", p->port);
	assert_int_equal(kvs_addr_parse(at, false, &a, err, sizeof(err)), 0);
	assert_int_equal(kvs_transport_connect(t, &a, KVS_CONN_DATA, &conn_ops,
					       v, &v->c),
			 0);
}

/* Those that do as they are told are polled by a thread: they have a part in
 * what the daemon does, whatever the test waits for. */
static void net_lock(void)
{
	net_wanted++;
	pthread_mutex_lock(&net_mutex);
	net_wanted--;
}

static void net_unlock(void)
{
	pthread_mutex_unlock(&net_mutex);
}

static void *net_main(void *arg)
{
	(void)arg;
	while (!net_stop) {
		while (net_wanted)
			sched_yield();
		pthread_mutex_lock(&net_mutex);
		assert_true(kvs_transport_poll(net, 1000000) >= 0);
		pthread_mutex_unlock(&net_mutex);
	}
	return NULL;
}

#define net_wait(cond)                               \
	for (uint64_t until_ = rig_until(); !(cond); \
	     rig_pause(until_, #cond, __FILE__, __LINE__))

/* ---- writes ---- */

static void write_done(struct kvs_conn *c, struct kvs_tx *tx, int status)
{
	struct vwrite *w = kvs_container_of(tx, struct vwrite, tx);

	(void)c;
	w->status = status;
	w->done = true;
}

/* Chunk @i of a granted room from @bytes; of its key's address these bits.
 * false: the connection is no more. */
static bool write_chunk(struct vconn *v, struct vwrite *w,
			const struct ps_room *r, uint32_t i,
			unsigned char *bytes, uint64_t mask)
{
	struct kvs_msg m;

	memset(w, 0, sizeof(*w));
	ps_chunk_msg(v->p, r, i, &m);
	assert_int_equal(kvs_wire_encode(&m, w->tx.frame, sizeof(w->tx.frame)),
			 KVS_DATA_FRAME);
	assert_int_equal(kvs_send_remote_key(&r->remote, &r->l, &m.chunk,
					     v->path, &w->tx.remote),
			 0);
	w->tx.remote.addr &= mask;
	w->iov.iov_base = bytes + KVS_DATA_FRAME;
	w->iov.iov_len = m.chunk.len;
	w->tx.iov = &w->iov;
	w->tx.n_iov = 1;
	w->tx.done = write_done;
	w->tx.one_sided = true;
	return !kvs_conn_write(v->c, &w->tx);
}

/* ---- the liar ---- */

static void liar_ended(void)
{
	if (liar.begun > liar.proven) {
		if (!liar.w.status)
			liar.landed++;
		else if (liar.w.status == -EREMOTEIO)
			liar.refused++;
		else
			liar.cut++;
	}
	liar.ended++;
}

/* A key that names a queue pair which is no more goes nowhere: its library
 * says so. Every other time it takes the name away, and goes by the one that
 * it has. */
static uint64_t liar_mask(void)
{
	return liar.begun > liar.proven && liar.begun % 2 ? ~0ull >> 16 : ~0ull;
}

static void *liar_main(void *arg)
{
	bool flying = false;

	(void)arg;
	while (!liar.stop || flying) {
		struct vconn *v = &liar.conn[liar.begun % liar.n_conns];

		if (flying && liar.w.done) {
			flying = false;
			liar_ended();
		}
		for (uint32_t i = 0; !liar.stop && i < liar.n_conns; i++)
			if (!liar.conn[i].c)
				dial(liar.t, &liar.conn[i],
				     race_service_writer(0, LIAR), i);
		if (!liar.stop && liar.go && v->up && !flying) {
			/* not while it closes */
			flying = write_chunk(v, &liar.w, liar.side, 0,
					     liar.bytes, liar_mask());
			liar.begun += flying;
		}
		assert_true(kvs_transport_poll(liar.t, 1000000) >= 0);
	}
	return NULL;
}

/* One attempt that begins from here on is over. */
static void liar_attempts(void)
{
	unsigned int want = liar.begun + 1;

	for (uint64_t until = rig_until(); liar.ended < want;)
		rig_pause(until, "an attempt of the liar", __FILE__, __LINE__);
}

/* ---- the race's steps ---- */

static void make(struct kvs_transport **ret)
{
	static const struct kvs_transport_opts o = { .engine = "sock" };
	static const struct kvs_verbs_opts v = {
		.node = -1,
		.gid_index = -1,
		.no_grants = true,
	};
	char err[256];

	if (kvs_verbs_create(&o, &v, ret, err, sizeof(err)))
		fail_msg("%s", err);
}

static void verbs_up(struct race *x)
{
	const char *set[][2] = { { "transport.data", "verbs" },
				 { "rdma.grant", x->t->grant_kind },
				 { "rdma.connections", "1" },
				 { "rdma.stripe_min", "1" },
				 { NULL, NULL } };
	bool many = x->t == &race_verbs_paths;

	race_service_up(x, "sock",
			KVS_CAP_ONE_SIDED | (many ? KVS_CAP_PATHS : 0), set);
	x->torn = soft && x->t == &race_verbs_window;
	make(&net);
	memset(conns, 0, sizeof(conns));
	net_stop = false;
	assert_int_equal(pthread_create(&net_thread, NULL, net_main, NULL), 0);
	for (unsigned int p = 0; p < RACE_SERVICE_PEERS; p++) {
		for (unsigned int k = 0; k < RACE_RANKS; k++) {
			const struct ps *writer = race_service_writer(p, k);

			if (!p && k == LIAR)
				continue;
			for (uint32_t i = 0; i < paths(writer); i++) {
				net_lock();
				dial(net, &conns[p][k][i], writer, i);
				net_unlock();
				net_wait(conns[p][k][i].up);
			}
		}
	}
	memset(&liar, 0, sizeof(liar));
	liar.proven = UINT32_MAX;
	liar.n_conns = paths(race_service_writer(0, LIAR));
	make(&liar.t);
	assert_int_equal(pthread_create(&liar.thread, NULL, liar_main, NULL),
			 0);
	for (uint32_t i = 0; i < liar.n_conns; i++)
		net_wait(liar.conn[i].up);
	if (many)
		print_message("# %u connections of each rank\n", liar.n_conns);
}

static void verbs_down(struct race *x)
{
	liar.stop = true;
	pthread_join(liar.thread, NULL);
	kvs_transport_destroy(liar.t);
	free(liar.bytes);
	net_stop = true;
	pthread_join(net_thread, NULL);
	kvs_transport_destroy(net);
	race_service_down(x);
}

static void verbs_launch(struct race *x, struct race_room *r)
{
	size_t len;

	(void)x;
	liar.side = race_service_side(r, LIAR);
	assert_int_equal(liar.side->chunks[0].kind, KVS_BUFFER_K);
	assert_int_equal(liar.side->chunks[0].layer, 1);
	liar.bytes = ps_chunk_bytes(race_service_writer(0, LIAR), liar.side, 0,
				    &len);
	liar.go = true;
	liar_attempts();
}

static void verbs_land(struct race *x, struct race_room *r)
{
	(void)x, (void)r;
	liar_attempts();
}

static void verbs_answer(struct race *x, struct race_room *r, unsigned int rank,
			 enum race_end how)
{
	race_service_answer(x, r, rank, how);
	if (rank != LIAR)
		return;
	/* what began before may have been refused, or not */
	liar.proven = liar.begun;
}

static void verbs_fill(struct race *x, struct race_room *r)
{
	struct kvs_room_info info = { 0 };
	struct vwrite *w;
	unsigned char **bytes;
	uint32_t n = 0, i = 0;
	size_t len;

	for (unsigned int k = 0; k < RACE_RANKS; k++)
		n += race_service_side(r, k)->n_chunks;
	w = calloc(n, sizeof(*w));
	bytes = calloc(n, sizeof(*bytes));
	assert_non_null(w);
	assert_non_null(bytes);
	for (unsigned int k = 0; k < RACE_RANKS; k++) {
		const struct ps_room *s = race_service_side(r, k);
		unsigned int n_conns = paths(race_service_writer(r->peer, k));

		for (uint32_t c = 0; c < s->n_chunks; c++, i++) {
			struct vconn *v = &conns[r->peer][k][c % n_conns];

			bytes[i] = ps_chunk_bytes(v->p, s, c, &len);
			net_lock();
			assert_true(
				write_chunk(v, &w[i], s, c, bytes[i], ~0ull));
			net_unlock();
		}
	}
	for (i = 0; i < n; i++) {
		net_wait(w[i].done);
		assert_int_equal(w[i].status, 0);
		free(bytes[i]);
	}
	free(bytes);
	free(w);
	rig_wait(race_rig, rig_room(race_rig, r->id, &info) &&
				   info.received == r->pages * x->page);
}

static void verbs_late(struct race *x, struct race_late *ret)
{
	(void)x;
	*ret = (struct race_late){
		.n = liar.refused + liar.cut + liar.landed,
		.refused = liar.refused,
		.cut = liar.cut,
		.landed = liar.landed,
	};
}

bool race_verbs_there(void)
{
	static const struct kvs_transport_opts o = { .engine = "sock" };
	struct kvs_verbs_info info[KVS_VERBS_DEVS_MAX];
	struct kvs_transport *t;
	unsigned int n;
	char err[256];
	int rc = kvs_verbs_create(&o, NULL, &t, err, sizeof(err));

	if (rc == -EOPNOTSUPP || rc == -ENODEV) {
		printf("skip: %s\n", err);
		return false;
	}
	if (rc)
		fail_msg("%s", err);
	n = kvs_verbs_devices(t, info, KVS_VERBS_DEVS_MAX);
	for (unsigned int i = 0; i < n; i++) {
		soft |= info[i].used && !strcmp(info[i].driver, "rxe");
		print_message("# %s (%s), %s, windows: %s\n", info[i].device,
			      info[i].driver, info[i].link,
			      info[i].windows ? "type 2" : "none");
	}
	kvs_transport_destroy(t);
	return true;
}

#define RACE_VERBS(kind, what)                                            \
	{                                                                 \
		RACE_SERVICE, .answer = verbs_answer,                     \
			      .name = "verbs, grant " kind what,          \
			      .grant_kind = (kind), .rounds = 1,          \
			      .stubborn = true, .up = verbs_up,           \
			      .down = verbs_down, .launch = verbs_launch, \
			      .land = verbs_land, .fill = verbs_fill,     \
			      .late = verbs_late,                         \
	}
const struct race_transport race_verbs_mr = RACE_VERBS("mr", "");
const struct race_transport race_verbs_paths =
	RACE_VERBS("mr", " on each device");
const struct race_transport race_verbs_window = RACE_VERBS("window", "");
const struct race_transport race_verbs_qp = RACE_VERBS("qp", "");
