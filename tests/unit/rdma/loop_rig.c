/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/rdma/loop_rig.h"

static void __attribute__((format(printf, 2, 3)))
note(struct lr *r, const char *fmt, ...)
{
	va_list ap;

	fprintf(r->log_file, "%llu ", (unsigned long long)lr_now(r));
	va_start(ap, fmt);
	vfprintf(r->log_file, fmt, ap);
	va_end(ap);
	fputc('\n', r->log_file);
}

const char *lr_log(struct lr *r)
{
	fflush(r->log_file);
	return r->log;
}

uint64_t lr_now(const struct lr *r)
{
	return kvs_clock_now(&r->clk.clk);
}

static struct lr_end *end_of(struct kvs_conn *c)
{
	return kvs_conn_user(c);
}

static void on_opened(struct kvs_conn *c)
{
	struct lr_end *e = end_of(c);

	e->opened++;
	note(e->r, "%d opened", e->id);
}

static int on_frame(struct kvs_conn *c, const struct kvs_frame *f)
{
	struct lr_end *e = end_of(c);
	uint32_t len = kvs_get32(f->len);
	const unsigned char *p = (const void *)f;
	unsigned int sum = 0;
	uint32_t i;

	/* every byte that the header promises can be read */
	for (i = 0; i < len; i++)
		sum = sum * 31 + p[i];
	assert_int_equal(e->closed, 0);
	if (e->frames < LR_TYPES)
		e->types[e->frames] = kvs_get16(f->type);
	e->frames++;
	note(e->r, "%d frame %u of %u, %x", e->id, kvs_get16(f->type), len,
	     sum);
	return e->on_frame ? e->on_frame(e, f) : 0;
}

static int on_payload(struct kvs_conn *c, const struct kvs_frame *f,
		      struct kvs_rx *rx)
{
	struct lr_end *e = end_of(c);

	note(e->r, "%d payload of %llu", e->id, (unsigned long long)rx->len);
	assert_int_equal(kvs_get32(f->payload), rx->len);
	if (rx->len > sizeof(e->rx))
		return -EMSGSIZE;
	e->payloads++;
	rx->addr = e->rx;
	return 0;
}

static int on_payload_done(struct kvs_conn *c, struct kvs_rx *rx, int status)
{
	struct lr_end *e = end_of(c);

	e->payloads_done++;
	e->payload_status = status;
	note(e->r, "%d payload done %d, %llu", e->id, status,
	     (unsigned long long)rx->got);
	return 0;
}

static void on_closed(struct kvs_conn *c, int err)
{
	struct lr_end *e = end_of(c);

	e->closed++;
	e->err = err;
	e->c = NULL;
	note(e->r, "%d closed %d", e->id, err);
}

const struct kvs_conn_ops lr_ops = {
	.opened = on_opened,
	.frame = on_frame,
	.payload = on_payload,
	.payload_done = on_payload_done,
	.closed = on_closed,
};

static int accepted(struct kvs_conn *c, void *arg)
{
	struct lr *r = arg;
	struct lr_end *e = &r->eb[r->n_accepted];

	assert_true(r->n_accepted < LR_CONNS);
	e->r = r;
	e->id = 100 + r->n_accepted++;
	e->c = c;
	kvs_conn_set_ops(c, KVS_CONN_DATA, &lr_ops, e);
	return 0;
}

static int on_event(void *arg, const struct kvs_loop_event_info *e)
{
	struct lr *r = arg;
	unsigned int n = ++r->seen[e->kind];

	note(r, "event %llu kind %d of %llu %s>%s len %llu key %x+%llx",
	     (unsigned long long)e->nr, (int)e->kind,
	     (unsigned long long)e->conn, e->from, e->to,
	     (unsigned long long)e->len, e->remote.rkey,
	     (unsigned long long)e->remote.addr);
	if (r->script.fault == KVS_LOOP_NO_FAULT || e->kind != r->script.kind ||
	    n != r->script.nth)
		return -1;
	if (r->script.at_set)
		*e->at = r->script.at;
	return (int)r->script.fault;
}

static void on_crash(void *arg, struct kvs_transport *t)
{
	struct lr *r = arg;

	assert_true(kvs_fabric_killed(t));
	r->crashes++;
	r->crashed = t;
	note(r, "crash of %s", t == r->a ? "a" : "b");
}

void lr_script(struct lr *r, enum kvs_loop_event_kind kind, unsigned int nth,
	       enum kvs_loop_fault fault)
{
	r->script.kind = kind;
	r->script.nth = nth;
	r->script.fault = fault;
	r->script.at_set = false;
}

void lr_script_at(struct lr *r, enum kvs_loop_event_kind kind, unsigned int nth,
		  enum kvs_loop_fault fault, uint64_t at)
{
	lr_script(r, kind, nth, fault);
	r->script.at = at;
	r->script.at_set = true;
}

struct lr *lr_new(uint64_t seed, const struct kvs_loop_plan *plan)
{
	struct kvs_fabric_opts o = { .seed = seed, .one_sided = true };
	struct lr *r = calloc(1, sizeof(*r));

	kvs_vclock_init(&r->clk, 1000);
	r->log_file = open_memstream(&r->log, &r->log_len);
	assert_non_null(r->log_file);
	o.clock = &r->clk.clk;
	if (plan)
		o.plan = *plan;
	o.fault = on_event;
	o.crashed = on_crash;
	o.arg = r;
	assert_int_equal(kvs_fabric_create(&o, &r->f), 0);
	assert_int_equal(kvs_loop_create(r->f, "a", &r->a), 0);
	assert_int_equal(kvs_loop_create(r->f, "b", &r->b), 0);
	assert_true(kvs_transport_one_sided(r->a));
	assert_int_equal(kvs_loop_listen(r->b, accepted, r, &r->l), 0);
	return r;
}

void lr_free(struct lr *r)
{
	kvs_transport_destroy(r->a);
	kvs_transport_destroy(r->b);
	kvs_fabric_destroy(r->f);
	fclose(r->log_file);
	free(r->log);
	free(r);
}

struct kvs_loop_faults lr_faults(const struct lr *r)
{
	struct kvs_loop_faults n;

	kvs_fabric_faults(r->f, &n);
	return n;
}

void lr_run_to(struct lr *r, uint64_t t)
{
	uint64_t next;
	int rounds = 0;

	while ((next = kvs_fabric_next(r->f)) <= t && next != KVS_TIME_NEVER) {
		assert_true(++rounds < 1000000);
		if (next > lr_now(r))
			kvs_vclock_advance(&r->clk, next - lr_now(r));
		assert_true(kvs_transport_poll(r->a, KVS_TIME_NEVER) >= 0);
		assert_true(kvs_transport_poll(r->b, KVS_TIME_NEVER) >= 0);
	}
	if (t != KVS_TIME_NEVER && t > lr_now(r))
		kvs_vclock_advance(&r->clk, t - lr_now(r));
}

void lr_run(struct lr *r)
{
	lr_run_to(r, KVS_TIME_NEVER);
}

void lr_dial(struct lr *r, int i, uint64_t owner)
{
	r->ea[i].r = r;
	r->ea[i].id = i;
	assert_int_equal(kvs_loop_connect(r->a, "b", KVS_CONN_DATA, &lr_ops,
					  &r->ea[i], &r->ea[i].c),
			 0);
	lr_run(r);
	if (r->eb[i].c)
		kvs_conn_set_owner(r->eb[i].c, owner);
}

/* ---- grants ---- */

static void on_grant_opened(struct kvs_grant *g, int status)
{
	struct lr_grant *lg = kvs_grant_user(g);

	assert_ptr_equal(lg->g, g);
	lg->opened++;
	lg->open_status = status;
	note(lg->r, "grant opened %d", status);
	if (status)
		lg->g = NULL;
	else
		memcpy(lg->key, kvs_grant_keys(g), lg->n * sizeof(lg->key[0]));
}

static void on_grant_closed(struct kvs_grant *g, int status,
			    enum kvs_grant_proof proof)
{
	struct lr_grant *lg = kvs_grant_user(g);

	assert_ptr_equal(lg->g, g);
	lg->closed++;
	lg->close_status = status;
	lg->proof = proof;
	note(lg->r, "grant closed %d by %d", status, (int)proof);
	if (!status) {
		lg->g = NULL;
		memcpy(lg->after, lg->r->mem, sizeof(lg->after));
	} else if (lg->again) {
		kvs_grant_close(g);
	}
}

static const struct kvs_grant_ops grant_ops[] = {
	{ .opened = on_grant_opened, .closed = on_grant_closed },
	{ .opened = on_grant_opened,
	  .closed = on_grant_closed,
	  .write_only = true },
};
static bool write_only;

void lr_write_only(bool yes)
{
	write_only = yes;
}

int lr_grant_start(struct lr *r, struct lr_grant *g, uint64_t owner, size_t off,
		   size_t len, size_t n)
{
	struct kvs_grant_range v[8];
	size_t i;
	int rc;

	assert_true(n <= 8);
	memset(g, 0, sizeof(*g));
	g->r = r;
	g->n = n;
	for (i = 0; i < n; i++)
		v[i] = (struct kvs_grant_range){
			.addr = r->mem + off + i * len,
			.len = len,
		};
	rc = kvs_grant_open(r->b, owner, v, n, &grant_ops[write_only], g,
			    &g->g);
	assert_int_equal(g->opened, 0);
	if (!rc)
		memcpy(g->key, kvs_grant_keys(g->g), n * sizeof(g->key[0]));
	return rc;
}

void lr_grant(struct lr *r, struct lr_grant *g, uint64_t owner, size_t off,
	      size_t len, size_t n)
{
	assert_int_equal(lr_grant_start(r, g, owner, off, len, n), 0);
	lr_run(r);
	assert_int_equal(g->opened, 1);
	assert_int_equal(g->open_status, 0);
}

/* ---- writes ---- */

unsigned char lr_pattern(uint64_t seed, size_t i)
{
	return (unsigned char)(kvs_mix64(seed * 131071 + i) | 1);
}

static void on_done(struct kvs_conn *c, struct kvs_tx *tx, int status)
{
	struct lr_write *w = tx->user;

	(void)c;
	w->done++;
	w->status = status;
	if (w->once) {
		free(w->src);
		w->src = NULL;
	}
	note(w->r, "write done %d", status);
}

struct lr_write *lr_write_new(struct lr *r, const struct kvs_grant_key *key,
			      uint64_t off, size_t len, uint16_t type,
			      uint64_t seed)
{
	struct lr_write *w = calloc(1, sizeof(*w));
	struct kvs_frame f = {
		.magic = kvs_put32(KVS_FRAME_MAGIC),
		.type = kvs_put16(type),
		.len = kvs_put32(KVS_DATA_FRAME),
	};
	size_t i;

	w->r = r;
	w->len = len;
	w->src = malloc(len + 1);
	for (i = 0; i < len; i++)
		w->src[i] = lr_pattern(seed, i);
	memcpy(w->tx.frame, &f, sizeof(f));
	w->iov[0].iov_base = w->src;
	w->iov[0].iov_len = len / 3;
	w->iov[1].iov_base = w->src + len / 3;
	w->iov[1].iov_len = len - len / 3;
	w->tx.iov = w->iov;
	w->tx.n_iov = 2;
	w->tx.done = on_done;
	w->tx.user = w;
	w->tx.one_sided = true;
	w->tx.remote = *key;
	w->tx.remote.addr += off;
	return w;
}

int lr_write(struct lr *r, int conn, struct lr_write *w)
{
	int rc = kvs_conn_write(r->ea[conn].c, &w->tx);

	assert_int_equal(w->done, 0);
	return rc;
}

void lr_write_free(struct lr_write *w)
{
	free(w->src);
	free(w);
}

void lr_send(struct kvs_conn *c, uint16_t type, uint32_t len)
{
	unsigned char buf[KVS_DATA_FRAME] = { 0 };
	struct kvs_frame f = {
		.magic = kvs_put32(KVS_FRAME_MAGIC),
		.type = kvs_put16(type),
		.len = kvs_put32(len),
	};

	assert_true(len <= sizeof(buf));
	memcpy(buf, &f, sizeof(f));
	assert_int_equal(kvs_conn_send(c, (const void *)buf), 0);
}

bool lr_is(const struct lr *r, size_t off, size_t len, uint64_t seed)
{
	size_t i;

	for (i = 0; i < len; i++)
		if (r->mem[off + i] != lr_pattern(seed, i))
			return false;
	return true;
}

bool lr_clear(const struct lr *r, size_t off, size_t len)
{
	size_t i;

	for (i = 0; i < len; i++)
		if (r->mem[off + i])
			return false;
	return true;
}
