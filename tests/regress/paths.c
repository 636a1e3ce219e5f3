/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, over queue pairs of the double, for each kind of grant, with one
 * device and with two: the rooms of a rank are spread over its data
 * connections, and GRANT names the one of each. A write that is refused costs
 * what is on its connection, and no other room; afterwards new rooms avoid it,
 * so that the same room's next late write costs nobody anything, unless
 * rdma.avoid is 0. Where no other connection is left they use it all the same.
 * A large room gets keys for several connections, on as many devices as there
 * are, and not for all connections; its bytes count whichever they come by.
 * Writes that were launched for it on each device before its end land on none
 * after it. A rank that has only some of its connections gets grants on those;
 * further ones leave room for the first of other ranks.
 * A peer that knows nothing of this gets what it knows.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rdma/verbs_internal.h"
#include "tests/fake_verbs/fake_verbs.h"
#include "tests/regress/puppet_engine.h"
#include "tests/regress/puppet_sender.h"
#include "tests/regress/service_rig.h"

#define PAGES 8u /* of a room */
#define TOKENS ((uint64_t)PAGES * PS_TOKENS)
#define ROOM_BYTES (PAGES * PS_PAGE)
#define POOL (4u << 20)
#define CONNS 16u

/* One data connection. */
struct path {
	struct kvs_conn *c; /* NULL: closed */
	bool up; /* HELLO was answered */
	uint16_t number;
};

struct room {
	uint64_t id;
	struct pe_room e;
	struct ps_room w;
	uint16_t path; /* of the first of its grant's */
	uint32_t written; /* chunks */
};

struct write {
	struct kvs_tx tx;
	struct iovec iov;
	unsigned char *bytes;
	bool done;
	int status;
};

static unsigned int devices;
static struct rig g[1];
static struct ps p[1];
static struct pe e[1];
static struct kvs_transport *net;
static struct path path[CONNS];
static uint64_t next_id;
static uint32_t next_slot;

/* ---- connections ---- */

static void conn_opened(struct kvs_conn *c)
{
	_Alignas(8) unsigned char buf[KVS_HELLO_FRAME];
	struct path *d = kvs_conn_user(c);
	struct kvs_msg m;

	ps_hello_msg(p, KVS_ROLE_DATA, &m);
	m.hello.paths = d->number;
	assert_int_equal(kvs_wire_encode(&m, buf, sizeof(buf)), sizeof(buf));
	assert_int_equal(kvs_conn_send(c, (const struct kvs_frame *)buf), 0);
}

static int conn_frame(struct kvs_conn *c, const struct kvs_frame *f)
{
	struct path *d = kvs_conn_user(c);

	d->up |= kvs_get16(f->type) == KVS_WIRE_HELLO;
	return 0;
}

static void conn_closed(struct kvs_conn *c, int err)
{
	struct path *d = kvs_conn_user(c);

	(void)err;
	d->c = NULL;
	d->up = false;
}

static const struct kvs_conn_ops conn_ops = {
	.opened = conn_opened,
	.frame = conn_frame,
	.closed = conn_closed,
};

/* Until @cond, with our side polled; @cond sees fresh numbers. */
#define net_wait(cond)                                            \
	for (uint64_t until_ = rig_until();                       \
	     kvs_transport_poll(net, 0), rig_refresh(g), !(cond); \
	     rig_pause(until_, #cond, __FILE__, __LINE__))

static void begin(unsigned int i)
{
	struct kvs_addr a;
	char at[32], err[128];

	path[i] = (struct path){ .number = (uint16_t)i };
	snprintf(at, sizeof(at), "127.0.0.1:%u", p->port);
	assert_int_equal(kvs_addr_parse(at, false, &a, err, sizeof(err)), 0);
	assert_int_equal(kvs_transport_connect(net, &a, KVS_CONN_DATA,
					       &conn_ops, &path[i], &path[i].c),
			 0);
}

static void dial(unsigned int i)
{
	begin(i);
	net_wait(path[i].up);
}

/* All that the daemon wants, and it has them all. */
static void dial_all(void)
{
	for (unsigned int i = 0; i < p->paths; i++)
		dial(i);
	net_wait(rig_data_connections(g) == p->paths);
}

/* @caps: besides the usual */
static void up(const char *const set[][2], uint64_t caps)
{
	static const struct kvs_transport_opts o = { .engine = "sock" };
	static const struct kvs_verbs_opts v = {
		.node = -1,
		.gid_index = -1,
		.no_grants = true,
	};
	char err[256];

	rig_init(g, "sock", "4M");
	rig_set(g, "transport.data", "verbs");
	rig_set(g, "hold.reask", "0");
	for (unsigned int i = 0; set[i][0]; i++)
		rig_set(g, set[i][0], set[i][1]);
	rig_up(g);
	pe_up(e, g->set.engine_socket, &ps_one_layer);
	ps_init(p, g->port, "p", 0, 1, &ps_one_layer);
	p->caps |= KVS_CAP_ONE_SIDED | caps;
	ps_control_up(p);
	if (kvs_verbs_create(&o, &v, &net, err, sizeof(err)))
		fail_msg("%s", err);
	next_id = 1;
	next_slot = 0;
}

static void down(void)
{
	kvs_transport_destroy(net);
	ps_down(p);
	pe_down(e);
	rig_down(g);
}

/* ---- rooms ---- */

static void admit(struct room *r)
{
	struct kvs_msg m = { .type = KVS_WIRE_OPEN };

	memset(r, 0, sizeof(*r));
	r->id = next_id++;
	pe_admit(e, &r->e, next_slot++, r->id, TOKENS, 1);
	m.open.room = r->id;
	m.open.tokens = TOKENS;
	memcpy(m.open.nonce, e->nonce, sizeof(m.open.nonce));
	assert_int_equal(ps_say(p, &m), 0);
}

static void granted(struct room *r)
{
	ps_granted(p, &r->w, r->id, PS_PAGE);
	r->path = r->w.remote.path[0];
}

static void open_room(struct room *r)
{
	admit(r);
	granted(r);
}

static void write_done(struct kvs_conn *c, struct kvs_tx *tx, int status)
{
	struct write *w = kvs_container_of(tx, struct write, tx);

	(void)c;
	w->status = status;
	w->done = true;
}

/* Chunk @i of @r over connection @at. */
static void launch(struct write *w, const struct room *r, uint32_t i,
		   unsigned int at)
{
	struct kvs_msg m;
	size_t len;

	memset(w, 0, sizeof(*w));
	ps_chunk_msg(p, &r->w, i, &m);
	w->bytes = ps_chunk_bytes(p, &r->w, i, &len);
	memcpy(w->tx.frame, w->bytes, KVS_DATA_FRAME);
	assert_int_equal(kvs_send_remote_key(&r->w.remote, &r->w.l, &m.chunk,
					     at, &w->tx.remote),
			 0);
	w->iov.iov_base = w->bytes + KVS_DATA_FRAME;
	w->iov.iov_len = m.chunk.len;
	w->tx.iov = &w->iov;
	w->tx.n_iov = 1;
	w->tx.done = write_done;
	w->tx.one_sided = true;
	assert_int_equal(kvs_conn_write(path[at].c, &w->tx), 0);
}

static int write_chunk(const struct room *r, uint32_t i, unsigned int at)
{
	struct write w;

	launch(&w, r, i, at);
	net_wait(w.done);
	free(w.bytes);
	return w.status;
}

/* Its next @n chunks, over its own connection. */
static void write_some(struct room *r, uint32_t n)
{
	for (; n; n--, r->written++)
		assert_int_equal(write_chunk(r, r->written, r->path), 0);
}

static void finish(struct room *r)
{
	struct kvs_msg m;

	write_some(r, r->w.n_chunks - r->written);
	assert_int_equal(ps_last(p, &r->w, r->w.bytes), 0);
	ps_expect(p, KVS_WIRE_COMPLETE, &m);
	pe_take(e, &r->e, TOKENS, 1, r->id);
	ps_room_fini(&r->w);
}

/* By the engine; the rank says that it cannot promise anything. */
static void abort_room(struct room *r)
{
	struct kvs_msg m;

	pe_abort(e, &r->e);
	ps_expect(p, KVS_WIRE_ABORT, &m);
	assert_int_equal(m.abort.room, r->id);
	assert_int_equal(ps_answer(p, KVS_WIRE_ABORT_NAK, r->id,
				   r->w.grant.generation),
			 0);
	net_wait(rig_parties(g, r->id) < 0);
}

static bool receiving(const struct room *r)
{
	return rig_room_in(g, r->id, "receiving");
}

/* The writer of an ended room does not stop: one write, by its old key. */
static void late_write(const struct room *r, unsigned int at)
{
	struct fv_counts before, after;

	fv_counts(&before);
	assert_int_not_equal(write_chunk(r, r->written, at), 0);
	fv_counts(&after);
	assert_true(after.refused > before.refused);
	net_wait(!path[at].c && rig_data_connections(g) == p->paths - 1);
}

static void redial(unsigned int at)
{
	dial(at);
	net_wait(rig_data_connections(g) == p->paths);
}

/* ---- the claims ---- */

#define KIND                            \
	{                               \
		"rdma.connections", "4" \
	}
static const char *const usual[][2] = { KIND, { NULL, NULL } };

static uint64_t bits(const struct room *r, unsigned int n)
{
	uint64_t seen = 0;

	for (unsigned int i = 0; i < n; i++)
		seen |= 1ULL << r[i].path;
	return seen;
}

static void rooms_are_spread(void **state)
{
	struct room r[CONNS];
	unsigned int n;

	(void)state;
	up(usual, KVS_CAP_PATHS);
	n = 4 * devices;
	assert_int_equal(p->paths, n);
	dial_all();
	for (unsigned int i = 0; i < n; i++) {
		open_room(&r[i]);
		assert_int_equal(r[i].w.remote.n_paths, 1);
	}
	/* as many as there are */
	assert_int_equal(bits(r, n), (1ULL << n) - 1);
	for (unsigned int i = 0; i < n; i++)
		finish(&r[i]);
	/* and what has ended counts no more */
	for (unsigned int i = 0; i < n; i++)
		open_room(&r[i]);
	assert_int_equal(bits(r, n), (1ULL << n) - 1);
	for (unsigned int i = 0; i < n; i++)
		finish(&r[i]);
	down();
}

/* The first room's writer does not stop. Returns with as many rooms received
 * as there are other connections, half written, and its own back. */
static void offend(struct room *r)
{
	unsigned int n = p->paths;

	for (unsigned int i = 0; i < n; i++) {
		open_room(&r[i]);
		write_some(&r[i], PAGES / 2);
	}
	assert_int_equal(bits(r, n), (1ULL << n) - 1);
	abort_room(&r[0]);
	/* its grant has gone, and nobody else noticed */
	net_wait(rig_data_connections(g) == n);
	late_write(&r[0], r[0].path);
	for (unsigned int i = 1; i < n; i++)
		assert_true(receiving(&r[i]));
	redial(r[0].path);
}

static void one_abuser(void **state)
{
	struct room r[CONNS], more[CONNS];
	unsigned int n;

	(void)state;
	up(usual, KVS_CAP_PATHS);
	dial_all();
	n = p->paths;
	offend(r);
	/* nobody is placed where it was, though that has the least to do */
	for (unsigned int i = 0; i < n; i++) {
		open_room(&more[i]);
		assert_int_not_equal(more[i].path, r[0].path);
		write_some(&more[i], 1);
	}
	for (unsigned int again = 0; again < 2; again++) {
		late_write(&r[0], r[0].path);
		for (unsigned int i = 0; i < n; i++)
			assert_true(receiving(&more[i]) &&
				    (!i || receiving(&r[i])));
		redial(r[0].path);
	}
	for (unsigned int i = 0; i < n; i++) {
		finish(&more[i]);
		if (i)
			finish(&r[i]);
	}
	ps_room_fini(&r[0].w);
	assert_int_equal(rig_failures(g, KVS_CAUSE_PEER_LOST), 0);
	down();
}

static void not_avoided(void **state)
{
	static const char *const set[][2] = { KIND,
					      { "rdma.avoid", "0" },
					      { NULL, NULL } };
	struct room r[CONNS], more;
	struct kvs_msg m;
	unsigned int n;

	(void)state;
	up(set, KVS_CAP_PATHS);
	dial_all();
	n = p->paths;
	offend(r);
	open_room(&more);
	assert_int_equal(more.path, r[0].path);
	write_some(&more, 1);
	late_write(&r[0], r[0].path);
	ps_expect(p, KVS_WIRE_ABORT, &m);
	assert_int_equal(m.abort.room, more.id);
	assert_int_equal(ps_answer(p, KVS_WIRE_ABORT_ACK, more.id,
				   more.w.grant.generation),
			 0);
	assert_int_equal(rig_failures(g, KVS_CAUSE_PEER_LOST), 1);
	for (unsigned int i = 1; i < n; i++)
		finish(&r[i]);
	ps_room_fini(&r[0].w);
	ps_room_fini(&more.w);
	down();
}

/* Each connection has its offender: the one whose offence is the longest ago
 * is used. */
static void all_avoided(void **state)
{
	struct room r[CONNS], more;
	unsigned int n;

	(void)state;
	up(usual, KVS_CAP_PATHS);
	dial_all();
	n = p->paths;
	for (unsigned int i = 0; i < n; i++)
		open_room(&r[i]);
	for (unsigned int i = 0; i < n; i++)
		abort_room(&r[i]);
	for (unsigned int i = 0; i < n; i++) {
		late_write(&r[i], r[i].path);
		redial(r[i].path);
	}
	open_room(&more);
	assert_int_equal(more.path, r[0].path);
	finish(&more);
	for (unsigned int i = 0; i < n; i++)
		ps_room_fini(&r[i].w);
	down();
}

static const char *const striped[][2] = { KIND,
					  { "rdma.stripe_min", "32K" },
					  { NULL, NULL } };

/* Devices of the daemon's that its connections @bits are on. */
static unsigned int devices_of(uint64_t paths)
{
	const struct kvs_verbs_conn *seen[CONNS];
	unsigned int n = 0, k;

	for (unsigned int i = 0; i < CONNS; i++) {
		const struct kvs_verbs_conn *vc;

		if (!(paths & 1ULL << i))
			continue;
		vc = kvs_verbs_conn_of(path[i].c);
		for (k = 0; k < n; k++)
			if (!memcmp(seen[k]->far.gid, vc->far.gid,
				    sizeof(vc->far.gid)))
				break;
		if (k == n)
			seen[n++] = vc;
	}
	return n;
}

static void large_rooms(void **state)
{
	struct room r, other, more;
	struct kvs_msg m;
	unsigned int n;

	(void)state;
	up(striped, KVS_CAP_PATHS);
	dial_all();
	n = p->paths;
	open_room(&r);
	assert_int_equal(r.w.remote.n_paths, n / 2);
	assert_int_equal(devices_of(r.w.remote.paths), devices);
	assert_int_equal(r.w.grant.n_keys,
			 r.w.grant.n_extents * r.w.remote.n_paths);
	open_room(&other);
	assert_int_equal(r.w.remote.paths & other.w.remote.paths, 0);
	/* every piece over another one of them */
	for (uint32_t i = 0; i < r.w.n_chunks - 1; i++)
		assert_int_equal(
			write_chunk(&r, i,
				    r.w.remote.path[i % r.w.remote.n_paths]),
			0);
	net_wait(rig_received(g) == ROOM_BYTES - PS_PAGE);
	assert_true(receiving(&r));
	assert_int_equal(write_chunk(&r, r.w.n_chunks - 1,
				     r.w.remote.path[1 % (n / 2)]),
			 0);
	assert_int_equal(ps_last(p, &r.w, r.w.bytes), 0);
	ps_expect(p, KVS_WIRE_COMPLETE, &m);
	pe_take(e, &r.e, TOKENS, 1, r.id);
	/* its writer did not stop: that costs no room on the others */
	for (unsigned int i = 0; i < r.w.remote.n_paths; i++) {
		late_write(&r, r.w.remote.path[i]);
		assert_true(receiving(&other));
		redial(r.w.remote.path[i]);
	}
	/* nor any that comes after it */
	open_room(&more);
	assert_int_equal(r.w.remote.paths & more.w.remote.paths, 0);
	finish(&other);
	finish(&more);
	ps_room_fini(&r.w);
	down();
}

/* A write is under way on each of its connections when it ends: none changes
 * a byte once its memory is free. */
static void closed_on_each(void **state)
{
	unsigned char *was = malloc(POOL);
	struct write w[CONNS];
	struct fv_counts c;
	unsigned int n;
	struct room r;

	(void)state;
	assert_non_null(was);
	up(striped, KVS_CAP_PATHS);
	dial_all();
	open_room(&r);
	n = r.w.remote.n_paths;
	fv_hold(1, n);
	for (unsigned int i = 0; i < n; i++) {
		launch(&w[i], &r, i, r.w.remote.path[i]);
		net_wait(fv_held() == i + 1);
	}
	abort_room(&r);
	net_wait(rig_bytes(g, KVS_EXTENT_FREE) == POOL);
	assert_int_equal(e->pool_size, POOL);
	memcpy(was, e->pool, POOL);
	fv_counts(&c);
	for (unsigned int i = 0; i < n; i++)
		assert_int_not_equal(fv_land(fv_flight(0), UINT64_MAX), 0);
	assert_int_equal(fv_held(), 0);
	assert_memory_equal(was, e->pool, POOL);
	for (unsigned int i = 0; i < n; i++) {
		net_wait(w[i].done);
		assert_int_not_equal(w[i].status, 0);
		free(w[i].bytes);
	}
	ps_room_fini(&r.w);
	free(was);
	down();
}

/* Connections may be missing, and come later. */
static void some_are_missing(void **state)
{
	struct room r, more;

	(void)state;
	up(usual, KVS_CAP_PATHS);
	/* none: it waits */
	admit(&r);
	ps_quiet(p);
	rig_refresh(g);
	assert_int_equal(rig_parties(g, r.id), 1);
	dial(2);
	granted(&r);
	assert_int_equal(r.path, 2);
	open_room(&more);
	assert_int_equal(more.path, 2);
	finish(&r);
	finish(&more);
	down();
}

/* A rank's further ones do not take the place of another's first. */
static void too_many(void **state)
{
	static const char *const set[][2] = { KIND,
					      { "listen.max_connections", "4" },
					      { NULL, NULL } };
	struct room r[4];

	(void)state;
	up(set, KVS_CAP_PATHS);
	for (unsigned int i = 0; i < 3; i++)
		dial(i);
	begin(3);
	net_wait(!path[3].c);
	assert_int_equal(rig_data_connections(g), 3);
	for (unsigned int i = 0; i < 4; i++) {
		open_room(&r[i]);
		assert_int_not_equal(r[i].path, 3);
	}
	assert_int_equal(bits(r, 4), 7);
	for (unsigned int i = 0; i < 4; i++)
		finish(&r[i]);
	down();
}

/* None ever comes: its end does not wait for one. */
static void none_comes(void **state)
{
	struct kvs_msg m;
	struct room r;

	(void)state;
	up(usual, KVS_CAP_PATHS);
	admit(&r);
	ps_quiet(p);
	pe_abort(e, &r.e);
	ps_expect(p, KVS_WIRE_REFUSE, &m); /* it has no grant */
	net_wait(rig_bytes(g, KVS_EXTENT_FREE) == POOL &&
		 rig_parties(g, r.id) < 0);
	/* nor does the end of its rank */
	admit(&r);
	ps_quiet(p);
	ps_fin(&p->ctl);
	net_wait(rig_bytes(g, KVS_EXTENT_FREE) == POOL);
	down();
}

static void peers_of_before(void **state)
{
	struct room r;

	(void)state;
	up(striped, 0);
	assert_int_equal(p->paths, 0);
	dial(0);
	open_room(&r);
	assert_int_equal(r.w.remote.n_paths, 0);
	assert_int_equal(r.w.grant.n_keys, r.w.grant.n_extents);
	finish(&r);
	down();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rooms_are_spread),
		cmocka_unit_test(one_abuser),
		cmocka_unit_test(not_avoided),
		cmocka_unit_test(all_avoided),
		cmocka_unit_test(large_rooms),
		cmocka_unit_test(closed_on_each),
		cmocka_unit_test(some_are_missing),
		cmocka_unit_test(too_many),
		cmocka_unit_test(none_comes),
		cmocka_unit_test(peers_of_before),
	};
	const char *d = getenv("KVS_TEST_DEVICES");

	devices = d ? (unsigned int)strtoul(d, NULL, 10) : 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
