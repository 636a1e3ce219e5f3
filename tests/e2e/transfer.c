/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claim: two pipeline ranks of the library's sender, the daemon core and the
 * library's engine with a soft device, in one process with real threads and
 * sockets, move hundreds of rooms at a time-shared pool: KV pages, a partial
 * last page, one-token prompts, recurrent state and an aux block a rank; pages
 * 1, 16 and 64 tokens long; over IPv4 and IPv6, sockets and io_uring. A third
 * of the rooms is given up by one side or the other at a random moment. Every
 * byte of every room that is DONE is right on the device; every room ends once
 * for each side; every source page is given back once; nothing is left.
 *
 * With KVS_TEST_SOURCE the source pages are in memory of the device that
 * KVS_TEST_DEVICE names, and the senders must get at them in that way.
 */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "kvstage/device.h"
#include "kvstage/engine.h"
#include "kvstage/sender.h"
#include "gpu/device.h"
#include "pipeline/layout.h"
#include "pipeline/presets.h"
#include "tests/regress/service_rig.h"
#include "tools/pattern.h"

#define ROOMS 200u
#define LIVE 8u /* at a time */
#define TOKENS_MAX 1500u
#define AUX 100u
#define RANKS 2u
#define BUFFERS_MAX 16u

enum end {
	END_NONE,
	END_ENGINE, /* the engine aborts after some turns */
	END_COMMITTING, /* it does so while its copy runs */
	END_SENDER, /* a rank aborts after some turns */
	END_CLOSE, /* a rank closes without having finished */
	END_MAX,
};

/* A prefill rank: its buffers, and a part of each for every live room. */
struct rank {
	struct kvs_sender *s;
	struct kvs_layout *l;
	unsigned char *mem[BUFFERS_MAX];
	struct kvs_device *device; /* NULL: sent from @mem */
	void *on[BUFFERS_MAX]; /* the same there */
	uint32_t first_layer;
	uint32_t n_layers;
};

/* One rank's side of a room; callbacks come from that sender's thread. */
struct side {
	struct kvs_send_room *r;
	unsigned char aux[AUX];
	atomic_uint granted;
	atomic_uint freed; /* pages_free() calls */
	atomic_uint done; /* done() calls */
	atomic_int status; /* of done() */
	unsigned int queued; /* calls that promised a pages_free() */
	bool closed;
};

struct live {
	bool used;
	uint32_t index; /* of this struct: which pages are its */
	uint64_t room;
	uint64_t tokens;
	uint32_t pages;
	enum end end;
	uint32_t turns; /* until it is given up */
	uint32_t by; /* rank that gives up */
	bool given_up;
	bool committed;
	bool over; /* engine's side: DONE or FAILED and checked */
	kvs_handle h;
	uint32_t *src; /* source pages, in order of the request */
	uint32_t *dst; /* device pages */
	struct side side[RANKS];
};

static struct rig g[1];
static struct kvs_rng rng;
static struct kvs_layout *whole;
static struct rank ranks[RANKS];
static struct live live[LIVE];
static struct kvs_device *device;
static struct kvs_engine *engine;
static void *dev[BUFFERS_MAX];
static uint32_t slot_pages; /* of one live room */
static uint64_t salt;
static unsigned int n_done, n_failed, bytes_wrong;

/* ---- callbacks ------------------------------------------------------------ */

static void on_granted(struct kvs_send_room *r, uint64_t generation)
{
	struct side *s = kvs_send_user(r);

	(void)generation;
	atomic_fetch_add(&s->granted, 1);
}

static void on_pages_free(struct kvs_send_room *r, void *cookie, int status)
{
	struct side *s = kvs_send_user(r);

	(void)cookie;
	(void)status;
	atomic_fetch_add(&s->freed, 1);
}

static void on_done(struct kvs_send_room *r, int status, const char *text)
{
	struct side *s = kvs_send_user(r);

	(void)text;
	atomic_store(&s->status, status);
	atomic_fetch_add(&s->done, 1);
}

static const struct kvs_send_ops send_ops = {
	.granted = on_granted,
	.pages_free = on_pages_free,
	.done = on_done,
};

/* ---- both ends ------------------------------------------------------------ */

static bool paged(const struct kvs_layer_buffer *b)
{
	return kvs_buffer_kind_is_paged(b->kind);
}

static uint64_t buffer_bytes(const struct kvs_layer_buffer *b)
{
	return (uint64_t)b->item_len * LIVE *
	       (paged(b) ? slot_pages : b->items);
}

static void shuffle(uint32_t *v, uint32_t n, uint32_t first)
{
	for (uint32_t i = 0; i < n; i++)
		v[i] = first + i;
	for (uint32_t i = n; i > 1; i--) {
		uint32_t j = (uint32_t)kvs_rng_below(&rng, i);
		uint32_t t = v[i - 1];

		v[i - 1] = v[j];
		v[j] = t;
	}
}

/* What was computed for a room, to the device; all of it at once. */
struct upload {
	struct kvs_copy_run run[BUFFERS_MAX * TOKENS_MAX];
	size_t n;
};

static void computed(struct upload *u, const struct rank *r, uint32_t b,
		     uint64_t off, uint64_t len)
{
	if (!r->device)
		return;
	u->run[u->n++] = (struct kvs_copy_run){
		.host = r->mem[b] + off,
		.dev = (unsigned char *)r->on[b] + off,
		.item_len = len,
		.n = 1,
	};
}

static void upload(const struct upload *u, const struct rank *r)
{
	const struct timespec nap = { .tv_nsec = 20000 };
	struct kvs_copy c = { .runs = u->run,
			      .n_runs = u->n,
			      .dir = KVS_COPY_H2D };

	if (!r->device)
		return;
	assert_int_equal(kvs_device_copy(r->device, &c), 0);
	while (kvs_device_query(r->device, &c) == -EINPROGRESS)
		nanosleep(&nap, NULL);
	assert_int_equal(kvs_device_query(r->device, &c), 0);
}

/* From memory of a device, as the environment says; or not. */
static void rank_source(struct rank *r, struct kvs_sender_opts *o,
			uint64_t *len)
{
	const char *source = getenv("KVS_TEST_SOURCE");
	struct kvs_device_opts d = { .size = sizeof(d),
				     .backend = getenv("KVS_TEST_DEVICE") };
	char err[512];
	int i;

	for (uint32_t b = 0; b < r->l->n_buffers; b++)
		len[b] = buffer_bytes(&r->l->buffers[b]);
	if (!source)
		return;
	for (i = KVS_SOURCE_BOUNCE; i > KVS_SOURCE_AUTO; i--)
		if (!strcmp(source, kvs_source_name((enum kvs_source)i)))
			break;
	o->source = (enum kvs_source)i;
	o->buffer_len = len;
	o->bounce_bytes = 65536;
	/* who looks there dies, but RDMA must get at it */
	d.hidden = o->source == KVS_SOURCE_BOUNCE;
	if (kvs_device_open(&d, &r->device, err, sizeof(err)))
		fail_msg("%s", err);
	for (uint32_t b = 0; b < r->l->n_buffers; b++)
		assert_int_equal(kvs_device_alloc(r->device, len[b], &r->on[b]),
				 0);
	/* of each room the pages pass through the device first */
	o->open_timeout = 20 * KVS_NSEC_PER_SEC;
	o->device = r->device;
	o->buffers = r->on;
}

static void rank_up(uint32_t k, const char *address, const char *tcp)
{
	struct kvs_sender_stats st = { .size = sizeof(st) };
	uint64_t len[BUFFERS_MAX];
	struct kvs_layer_buffer own[BUFFERS_MAX];
	struct kvs_sender_opts o = {
		.size = sizeof(o),
		.daemon = address,
		.peer = "prefill",
		.rank = k,
		.n_ranks = RANKS,
		.engine = tcp,
		.ops = &send_ops,
		.chunk_max = 3000,
		.window = 1 << 20,
		.open_timeout = 4 * KVS_NSEC_PER_SEC,
	};
	struct rank *r = &ranks[k];
	struct kvs_layout l = *whole;
	char err[512];

	r->first_layer = k * 2;
	r->n_layers = 2;
	l.size = sizeof(l);
	l.n_buffers = 0;
	l.buffers = own;
	for (uint32_t b = 0; b < whole->n_buffers; b++)
		if (whole->buffers[b].layer / 2 == k)
			own[l.n_buffers++] = whole->buffers[b];
	assert_int_equal(kvs_layout_dup(&l, &r->l), 0);
	for (uint32_t b = 0; b < l.n_buffers; b++) {
		r->mem[b] = malloc(buffer_bytes(&own[b]));
		assert_non_null(r->mem[b]);
	}
	o.layout = &l;
	o.buffers = (void *const *)r->mem;
	rank_source(r, &o, len);
	if (kvs_sender_create(&o, &r->s, err, sizeof(err)))
		fail_msg("sender: %s", err);
	assert_int_equal(kvs_sender_stats(r->s, &st), 0);
	assert_int_equal(st.source, o.source ? o.source : KVS_SOURCE_HOST);
}

static void rank_down(uint32_t k)
{
	kvs_sender_destroy(ranks[k].s);
	for (uint32_t b = 0; b < ranks[k].l->n_buffers; b++)
		free(ranks[k].mem[b]);
	for (uint32_t b = 0; ranks[k].device && b < ranks[k].l->n_buffers; b++)
		kvs_device_free(ranks[k].device, ranks[k].on[b]);
	kvs_device_close(ranks[k].device);
	free(ranks[k].l);
	memset(&ranks[k], 0, sizeof(ranks[k]));
}

static void both_up(const char *host, const char *tcp, uint32_t page_size,
		    const char *require_ack)
{
	struct kvs_preset_opts po = { .page_size = page_size };
	struct kvs_device_opts dopts = { .size = sizeof(dopts),
					 .backend = "soft" };
	struct kvs_engine_opts eo = { .size = sizeof(eo),
				      .name = "decode",
				      .node = -1 };
	char address[64], err[512];

	assert_int_equal(kvs_preset_layout("tiny-hybrid", &po, &whole, err,
					   sizeof(err)),
			 0);
	assert_true(whole->n_buffers <= BUFFERS_MAX);
	slot_pages = (TOKENS_MAX + page_size - 1) / page_size;
	rig_init(g, tcp, "384K");
	snprintf(address, sizeof(address), "%s:0", host);
	rig_set(g, "listen.address", address);
	rig_set(g, "extent.tokens", "256");
	rig_set(g, "engine.slots", "64");
	rig_set(g, "hold.require_ack", require_ack);
	/* an OPEN that comes after its room was given up waits this long */
	rig_set(g, "open.timeout", "2s");
	rig_up(g);
	assert_int_equal(kvs_device_open(&dopts, &device, err, sizeof(err)), 0);
	for (uint32_t b = 0; b < whole->n_buffers; b++)
		assert_int_equal(
			kvs_device_alloc(device,
					 buffer_bytes(&whole->buffers[b]),
					 &dev[b]),
			0);
	eo.socket = g->set.engine_socket;
	eo.layout = whole;
	if (kvs_engine_attach(&eo, &engine, err, sizeof(err)))
		fail_msg("attach: %s", err);
	snprintf(address, sizeof(address), "%s:%u", host, g->port);
	for (uint32_t k = 0; k < RANKS; k++)
		rank_up(k, address, tcp);
	for (uint32_t i = 0; i < LIVE; i++) {
		memset(&live[i], 0, sizeof(live[i]));
		live[i].index = i;
		live[i].src = calloc(slot_pages, sizeof(uint32_t));
		live[i].dst = calloc(slot_pages, sizeof(uint32_t));
		assert_non_null(live[i].src);
		assert_non_null(live[i].dst);
	}
	n_done = 0;
	n_failed = 0;
	bytes_wrong = 0;
}

static void both_down(void)
{
	for (uint32_t k = 0; k < RANKS; k++)
		rank_down(k);
	kvs_engine_detach(engine);
	for (uint32_t i = 0; i < LIVE; i++) {
		free(live[i].src);
		free(live[i].dst);
	}
	rig_wait(g, g->snap->sessions == 0 && g->snap->engines == 0);
	rig_down(g);
	for (uint32_t b = 0; b < whole->n_buffers; b++)
		kvs_device_free(device, dev[b]);
	kvs_device_close(device);
	free(whole);
}

/* ---- a room ---------------------------------------------------------------- */

static uint64_t some_tokens(uint32_t page)
{
	const uint64_t edges[] = { 1,	page - 1u, page,	  page + 1u,
				   256, 257,	   2 * page - 1u, TOKENS_MAX };
	uint64_t n = edges[kvs_rng_below(&rng, KVS_ARRAY_SIZE(edges))];

	if (!n || kvs_rng_below(&rng, 2))
		n = 1 + kvs_rng_below(&rng, TOKENS_MAX);
	return n;
}

static void fill_source(const struct live *v, const struct rank *r)
{
	static struct upload u;

	u.n = 0;
	for (uint32_t b = 0; b < r->l->n_buffers; b++) {
		const struct kvs_layer_buffer *lb = &r->l->buffers[b];
		uint64_t seed =
			kvs_pattern_seed(salt, v->room, lb->kind, lb->layer);

		if (!paged(lb)) {
			uint64_t len = (uint64_t)lb->items * lb->item_len;

			kvs_pattern_fill(r->mem[b] + v->index * len, len, seed,
					 0);
			computed(&u, r, b, v->index * len, len);
			continue;
		}
		for (uint32_t i = 0; i < v->pages; i++) {
			uint64_t off = (uint64_t)v->src[i] * lb->item_len;

			kvs_pattern_fill(r->mem[b] + off, lb->item_len, seed,
					 (uint64_t)i * lb->item_len);
			computed(&u, r, b, off, lb->item_len);
		}
	}
	upload(&u, r);
}

/* Pages in pieces of any size, in any order of the pieces. */
static void queue_pages(struct live *v, struct side *s)
{
	uint32_t first[64], n[64], order[64], pieces = 0, at = 0;

	while (at < v->pages) {
		uint32_t most = v->pages - at;

		first[pieces] = at;
		n[pieces] = pieces == 63
				    ? most
				    : 1 + (uint32_t)kvs_rng_below(&rng, most);
		at += n[pieces++];
	}
	shuffle(order, pieces, 0);
	for (uint32_t i = 0; i < pieces; i++) {
		uint32_t p = order[i];
		int ret = kvs_send_pages(s->r, first[p], v->src + first[p],
					 n[p], NULL);

		if (ret == -ECANCELED)
			return;
		assert_int_equal(ret, 0);
		s->queued++;
	}
}

static void queue_rest(const struct live *v, struct side *s, uint32_t k)
{
	const struct rank *r = &ranks[k];
	uint32_t items[16];
	int ret;

	for (uint32_t b = 0; b < r->l->n_buffers; b++) {
		const struct kvs_layer_buffer *lb = &r->l->buffers[b];

		if (paged(lb))
			continue;
		assert_true(lb->items <= KVS_ARRAY_SIZE(items));
		for (uint32_t i = 0; i < lb->items; i++)
			items[i] = v->index * lb->items + i;
		ret = kvs_send_state(s->r, b, items, lb->items, NULL);
		if (ret == -ECANCELED)
			return;
		assert_int_equal(ret, 0);
		s->queued++;
	}
	kvs_pattern_fill(s->aux, AUX,
			 kvs_pattern_seed(salt, v->room, KVS_PATTERN_AUX, k),
			 0);
	ret = kvs_send_aux(s->r, s->aux, AUX, NULL);
	if (ret == -ECANCELED)
		return;
	assert_int_equal(ret, 0);
	s->queued++;
	if (v->end == END_CLOSE && v->by == k)
		return;
	ret = kvs_send_finish(s->r);
	assert_true(!ret || ret == -ECANCELED);
}

static void start_room(struct live *v, uint64_t room)
{
	struct kvs_rank_slice slices[RANKS];
	struct kvs_admit a = { .size = sizeof(a),
			       .room = room,
			       .peer = "prefill",
			       .n_ranks = RANKS,
			       .ranks = slices,
			       .aux_len = AUX,
			       .node = -1 };
	uint32_t k = (uint32_t)kvs_rng_below(&rng, RANKS);
	bool sender_first = kvs_rng_below(&rng, 2);

	v->used = true;
	v->room = room;
	v->tokens = some_tokens(whole->page_size);
	v->pages = (uint32_t)((v->tokens + whole->page_size - 1) /
			      whole->page_size);
	v->end = kvs_rng_below(&rng, 3)
			 ? END_NONE
			 : (enum end)kvs_rng_below(&rng, END_MAX);
	v->turns = (uint32_t)kvs_rng_below(&rng, 12);
	v->by = (uint32_t)kvs_rng_below(&rng, RANKS);
	v->given_up = false;
	v->committed = false;
	v->over = false;
	shuffle(v->src, slot_pages, v->index * slot_pages);
	shuffle(v->dst, slot_pages, v->index * slot_pages);
	a.tokens = v->tokens;
	for (size_t i = 0; i < sizeof(a.nonce); i++)
		a.nonce[i] = (unsigned char)kvs_rng_next(&rng);
	for (uint32_t i = 0; i < RANKS; i++) {
		slices[i].first_layer = ranks[i].first_layer;
		slices[i].n_layers = ranks[i].n_layers;
	}
	for (int half = 0; half < 2; half++) {
		if (half == (int)sender_first) {
			assert_int_equal(kvs_engine_admit(engine, &a, &v->h),
					 0);
			continue;
		}
		for (uint32_t i = 0; i < RANKS; i++) {
			struct side *s = &v->side[(k + i) % RANKS];

			memset(s, 0, sizeof(*s));
			fill_source(v, &ranks[(k + i) % RANKS]);
			assert_int_equal(kvs_send_open(ranks[(k + i) % RANKS].s,
						       room, a.nonce, v->tokens,
						       s, &s->r),
					 0);
			/* rank 1 has the paged buffers; the other none */
			queue_pages(v, s);
			queue_rest(v, s, (k + i) % RANKS);
		}
	}
}

static void give_up(struct live *v)
{
	int ret;

	if (v->given_up || v->over || v->end == END_NONE)
		return;
	if (v->end == END_COMMITTING) {
		if (!v->committed)
			return;
	} else if (v->turns) {
		v->turns--;
		return;
	}
	v->given_up = true;
	switch (v->end) {
	case END_ENGINE:
	case END_COMMITTING:
		ret = kvs_engine_abort(engine, &v->h);
		assert_true(!ret || ret == -EALREADY);
		break;
	case END_SENDER:
		ret = kvs_send_abort(v->side[v->by].r, EIO, "out of luck");
		assert_true(ret == 0 || ret == -EALREADY || ret == -ECANCELED);
		break;
	case END_CLOSE:
		kvs_send_close(v->side[v->by].r);
		v->side[v->by].closed = true;
		break;
	case END_NONE:
	case END_MAX:
		break;
	}
}

static void commit(struct live *v)
{
	uint32_t items[64], n = 0;
	struct kvs_commit c = {
		.size = sizeof(c),
		.device = device,
		.buffers = dev,
		.pages = v->dst,
		.n_pages = v->pages,
		.items = items,
	};
	const void *aux;
	uint32_t len;
	int ret;

	for (uint32_t k = 0; k < RANKS; k++) {
		if (kvs_engine_aux(engine, &v->h, k, &aux, &len))
			return; /* it has just failed */
		assert_int_equal(len, AUX);
		assert_int_equal(
			kvs_pattern_check(aux, len,
					  kvs_pattern_seed(salt, v->room,
							   KVS_PATTERN_AUX, k),
					  0, NULL, NULL),
			0);
	}
	for (uint32_t b = 0; b < whole->n_buffers; b++)
		for (uint32_t i = 0;
		     !paged(&whole->buffers[b]) && i < whole->buffers[b].items;
		     i++)
			items[n++] = v->index * whole->buffers[b].items + i;
	c.n_items = n;
	ret = kvs_engine_commit(engine, &v->h, &c);
	if (ret != -EAGAIN && ret != -ECANCELED) {
		assert_int_equal(ret, 0);
		v->committed = true;
	}
}

static void check_device(const struct live *v)
{
	static unsigned char page[1 << 16];

	for (uint32_t b = 0; b < whole->n_buffers; b++) {
		const struct kvs_layer_buffer *lb = &whole->buffers[b];
		uint64_t seed =
			kvs_pattern_seed(salt, v->room, lb->kind, lb->layer);
		uint32_t n = paged(lb) ? v->pages : lb->items;

		assert_true(lb->item_len <= sizeof(page));
		for (uint32_t i = 0; i < n; i++) {
			uint64_t at = paged(lb) ? v->dst[i]
						: v->index * lb->items + i;

			assert_int_equal(
				kvs_device_peek(device, page,
						(char *)dev[b] +
							at * lb->item_len,
						lb->item_len),
				0);
			if (kvs_pattern_check(page, lb->item_len, seed,
					      (uint64_t)i * lb->item_len, NULL,
					      NULL))
				bytes_wrong++;
		}
	}
}

static void step_engine(struct live *v)
{
	struct kvs_failure f;
	enum kvs_status st;
	int err = 0;

	st = kvs_engine_poll(engine, &v->h, &err);
	if (st == KVS_STATUS_READY && !v->committed) {
		commit(v);
	} else if (st == KVS_STATUS_DONE) {
		assert_true(v->committed);
		check_device(v);
		n_done++;
		v->over = true;
	} else if (st == KVS_STATUS_FAILED &&
		   !kvs_engine_copy_live(engine, &v->h)) {
		assert_int_not_equal(err, 0);
		assert_int_equal(kvs_engine_failure(engine, &v->h, &f), 0);
		if (v->end == END_NONE)
			fail_msg("room %llu failed: %d %s",
				 (unsigned long long)v->room, f.err, f.text);
		assert_int_equal(f.err, err);
		n_failed++;
		v->over = true;
	}
	if (v->over)
		assert_int_equal(kvs_engine_release(engine, &v->h), 0);
}

/* Both sides have let go: the pages may be used again. */
static bool sides_over(struct live *v)
{
	for (uint32_t k = 0; k < RANKS; k++) {
		struct side *s = &v->side[k];

		if (!atomic_load(&s->done) ||
		    atomic_load(&s->freed) < s->queued)
			return false;
	}
	return true;
}

static void end_room(struct live *v, unsigned int done_before)
{
	for (uint32_t k = 0; k < RANKS; k++) {
		struct side *s = &v->side[k];

		assert_int_equal(atomic_load(&s->done), 1);
		assert_int_equal(atomic_load(&s->freed), s->queued);
		if (n_done > done_before && !v->given_up)
			assert_int_equal(atomic_load(&s->status), 0);
		if (!s->closed)
			kvs_send_close(s->r);
	}
	v->used = false;
}

static void turn(struct live *v)
{
	unsigned int before = n_done;

	give_up(v);
	if (!v->over)
		step_engine(v);
	if (v->over && sides_over(v))
		end_room(v, before);
}

static void hang(void)
{
	for (uint32_t i = 0; i < LIVE; i++) {
		struct live *v = &live[i];

		if (!v->used)
			continue;
		print_error("room %llu hangs: status %d, end %d%s%s, ranks",
			    (unsigned long long)v->room,
			    kvs_engine_poll(engine, &v->h, NULL), v->end,
			    v->given_up ? ", given up" : "",
			    v->over ? ", over" : "");
		for (uint32_t k = 0; k < RANKS; k++)
			print_error(" granted %u done %u freed %u of %u;",
				    atomic_load(&v->side[k].granted),
				    atomic_load(&v->side[k].done),
				    atomic_load(&v->side[k].freed),
				    v->side[k].queued);
		print_error("\n");
	}
	fail_msg("rooms hang");
}

static void run(const char *host, const char *tcp, uint32_t page_size,
		const char *require_ack)
{
	uint64_t until, room = 0;
	unsigned int busy;

	print_message("# %s, tcp.engine = %s, pages of %u, require_ack = %s\n",
		      host, tcp, page_size, require_ack);
	both_up(host, tcp, page_size, require_ack);
	salt = kvs_rng_next(&rng);
	until = kvs_clock_now(&kvs_clock_real) + 60 * KVS_NSEC_PER_SEC;
	do {
		struct pollfd p = { kvs_engine_fd(engine), POLLIN, 0 };

		busy = 0;
		for (uint32_t i = 0; i < LIVE; i++) {
			if (!live[i].used && room < ROOMS)
				start_room(&live[i], ++room);
			if (live[i].used)
				turn(&live[i]);
			busy += live[i].used;
		}
		(void)poll(&p, 1, 1);
		assert_true(kvs_engine_progress(engine) >= 0);
		if (kvs_clock_now(&kvs_clock_real) > until)
			hang();
	} while (busy || room < ROOMS);
	print_message("# %u done, %u given up\n", n_done, n_failed);
	assert_int_equal(n_done + n_failed, ROOMS);
	assert_true(n_done > ROOMS / 2);
	assert_true(n_failed > 0);
	assert_int_equal(bytes_wrong, 0);
	rig_wait(g, rig_done(g) == n_done);
	for (int i = 0; i < KVS_PROTO_MAX; i++)
		if (rig_proto(g, i))
			fail_msg("protocol error: %s", kvs_proto_error_name[i]);
	both_down();
}

static bool has_ipv6(void)
{
	struct sockaddr_in6 sa = { .sin6_family = AF_INET6,
				   .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool ok = fd >= 0 && !bind(fd, (struct sockaddr *)&sa, sizeof(sa));

	if (fd >= 0)
		close(fd);
	if (!ok)
		print_message("# no run with IPv6: no ::1 here\n");
	return ok;
}

static void over_ipv4(void **state)
{
	(void)state;
	run("127.0.0.1", rig_engine(), 1, "no");
	run("127.0.0.1", rig_engine(), 64, "no");
	run("127.0.0.1", rig_engine(), 64, "yes");
}

static void over_ipv6(void **state)
{
	(void)state;
	if (!has_ipv6())
		skip();
	run("[::1]", rig_engine(), 16, "yes");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(over_ipv4),
		cmocka_unit_test(over_ipv6),
	};

	kvs_rng_init(&rng, rig_seed());
	return rig_run_both(tests);
}
