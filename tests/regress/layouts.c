/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: two sides that keep their KV differently are told so at the
 * handshake, with the field and both values, before anything is granted
 * (sgl-project/sglang#19398), also when the sender was there first: then at
 * its first OPEN; a state that only one side has is a difference; a request
 * whose state did not come is not complete and says which part is missing
 * (sgl-project/sglang#23773); a KV pool smaller than the longest request is
 * told at attach.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/presets.h"
#include "pipeline/wire_structs.h"
#include "tests/regress/puppet_engine.h"
#include "tests/regress/puppet_sender.h"
#include "tests/regress/service_rig.h"

#define LAYERS 6u
#define MAMBA_LAYER LAYERS

static struct rig g[1];

/* K and V of 8 heads of 64 elements of 2 bytes; one recurrent state. */
struct model {
	struct kvs_layout l;
	struct kvs_layer_buffer b[2 * (LAYERS + 1) + 2];
};

static void model_init(struct model *m, uint32_t layers, uint32_t page,
		       uint32_t heads)
{
	uint32_t n = 0, item = page * heads * 64 * 2;

	memset(m, 0, sizeof(*m));
	for (uint32_t i = 0; i < 2 * layers; i++)
		m->b[n++] = (struct kvs_layer_buffer){
			.kind = i < layers ? KVS_BUFFER_K : KVS_BUFFER_V,
			.layer = (uint16_t)(i % layers),
			.item_len = item,
		};
	m->b[n++] = (struct kvs_layer_buffer){ KVS_BUFFER_MAMBA, MAMBA_LAYER,
					       1536, 1 };
	m->l = (struct kvs_layout){
		.size = sizeof(m->l),
		.page_size = page,
		.dtype = KVS_DTYPE_BF16,
		.n_buffers = n,
		.buffers = m->b,
		.aux_max = 64,
	};
}

static void start(void)
{
	rig_init(g, "sock", "4M");
	rig_set(g, "transfer.timeout", "400ms");
	rig_up(g);
}

/* A prefill side that differs from the engine's in one thing. */
struct difference {
	const char *what;
	void (*make)(struct model *m);
	const char *text[3]; /* each must be in the message */
};

static void other_dtype(struct model *m)
{
	m->l.dtype = KVS_DTYPE_FP8_E4M3;
}

static void other_page(struct model *m)
{
	m->l.page_size = 48; /* neither divides the other */
}

static void fewer_heads(struct model *m)
{
	for (uint32_t i = 0; i < 2 * LAYERS; i++)
		m->b[i].item_len /= 2;
}

static void one_item_len(struct model *m)
{
	m->b[3].item_len += 128;
}

static void one_layer_less(struct model *m)
{
	/* the last V, then the last K: the state moves up */
	memmove(&m->b[2 * LAYERS - 1], &m->b[2 * LAYERS], sizeof(m->b[0]));
	memmove(&m->b[LAYERS - 1], &m->b[LAYERS],
		(LAYERS + 1) * sizeof(m->b[0]));
	m->l.n_buffers -= 2;
}

static void one_layer_more(struct model *m)
{
	m->b[m->l.n_buffers++] =
		(struct kvs_layer_buffer){ KVS_BUFFER_K, MAMBA_LAYER + 1,
					   m->b[0].item_len, 0 };
	m->b[m->l.n_buffers++] =
		(struct kvs_layer_buffer){ KVS_BUFFER_V, MAMBA_LAYER + 1,
					   m->b[0].item_len, 0 };
}

static void interleaved(struct model *m)
{
	for (uint32_t i = 0; i < LAYERS; i++) {
		m->b[i].kind = KVS_BUFFER_KV;
		m->b[i].item_len *= 2;
	}
	m->b[LAYERS] = m->b[2 * LAYERS];
	m->l.n_buffers = LAYERS + 1;
}

static void no_state(struct model *m)
{
	m->l.n_buffers--;
}

static void more_state(struct model *m)
{
	m->b[m->l.n_buffers++] = (struct kvs_layer_buffer){ KVS_BUFFER_MAMBA,
							    MAMBA_LAYER + 1,
							    1536, 1 };
}

static void other_state_items(struct model *m)
{
	m->b[2 * LAYERS].items = 2;
}

static void other_state_kind(struct model *m)
{
	m->b[2 * LAYERS].kind = KVS_BUFFER_OTHER;
}

static const struct difference differences[] = {
	{ "dtype", other_dtype, { "dtype", "fp8_e4m3", "bfloat16" } },
	{ "page size", other_page, { "page_size", "48", "64" } },
	{ "heads", fewer_heads, { "item_len", "32768", "65536" } },
	{ "one item_len",
	  one_item_len,
	  { "item_len of k layer 3", "65664", "65536" } },
	{ "layer less", one_layer_less, { "layer 5", "prefill", "decode" } },
	{ "layer more", one_layer_more, { "layer 7", "prefill", "decode" } },
	{ "interleaved", interleaved, { "k", "prefill", "decode" } },
	{ "state missing",
	  no_state,
	  { "mamba layer 6", "prefill 0", "decode 1" } },
	{ "state extra", more_state, { "mamba", "prefill 2", "decode 1" } },
	{ "state items", other_state_items, { "mamba", "2", "1" } },
	{ "state kind", other_state_kind, { "layer 6", "prefill", "decode" } },
};

static void check_text(const struct difference *d, const char *text)
{
	print_message("# %s: %s\n", d->what, text);
	for (unsigned int i = 0; i < KVS_ARRAY_SIZE(d->text); i++)
		if (!strstr(text, d->text[i]))
			fail_msg("%s: \"%s\" is not in \"%s\"", d->what,
				 d->text[i], text);
}

static void refused_at_the_handshake(void **state)
{
	struct model decode, prefill;
	char text[KVS_WIRE_TEXT];
	struct pe_room r;
	struct ps p;
	struct pe e;

	(void)state;
	start();
	model_init(&decode, LAYERS, 64, 8);
	pe_up(&e, g->set.engine_socket, &decode.l);
	pe_admit(&e, &r, 0, 1, 64, 1);
	pe_wait(&e, &r, KVS_STATUS_ADMITTED);
	for (unsigned int i = 0; i < KVS_ARRAY_SIZE(differences); i++) {
		model_init(&prefill, LAYERS, 64, 8);
		differences[i].make(&prefill);
		ps_init(&p, g->port, "p", 0, 1, &prefill.l);
		assert_int_equal(ps_hello(&p), 0);
		assert_int_equal(ps_layout(&p, text, sizeof(text)), EPROTOTYPE);
		check_text(&differences[i], text);
		/* closed, and no data connection either */
		assert_int_equal(ps_open(&p, 1, 64), 0);
		assert_int_equal(ps_data(&p), -ESTALE);
		ps_down(&p);
	}
	/* nothing was granted: the room waits for a rank that fits */
	assert_int_equal(pe_status(&e, &r), KVS_STATUS_ADMITTED);
	ps_up(&p, g->port, "p", 0, 1, &decode.l);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

/* A value that our encoder would not send. */
static void refused_raw(const struct model *m, void (*spoil)(void *frame),
			const char *const *want)
{
	_Alignas(8) unsigned char buf[4096];
	struct kvs_msg msg = { .type = KVS_WIRE_LAYOUT };
	struct ps p;
	int len;

	ps_init(&p, g->port, "p", 0, 1, &m->l);
	assert_int_equal(ps_hello(&p), 0);
	msg.layout.l = m->l;
	len = kvs_wire_encode(&msg, buf, sizeof(buf));
	assert_true(len > 0);
	spoil(buf);
	assert_int_equal(ps_write(p.ctl, buf, (size_t)len), len);
	ps_expect(&p, KVS_WIRE_ERROR, &msg);
	assert_int_equal(msg.error.err, EPROTOTYPE);
	print_message("# %s\n", msg.error.text);
	for (unsigned int i = 0; want[i]; i++)
		if (!strstr(msg.error.text, want[i]))
			fail_msg("\"%s\" is not in \"%s\"", want[i],
				 msg.error.text);
	ps_down(&p);
}

static void unknown_dtype(void *frame)
{
	struct kvs_wire_layout *w = frame;

	w->dtype = kvs_put16(99);
}

static void unknown_kind(void *frame)
{
	struct kvs_wire_layout *w = frame;
	struct kvs_wire_buffer *b = (struct kvs_wire_buffer *)(w + 1);

	b[2 * LAYERS].kind = kvs_put16(99);
}

static void unknown_things_are_differences(void **state)
{
	static const char *const dtype[] = { "dtype", "99", "bfloat16", NULL };
	static const char *const kind[] = { "layer 6", "prefill", "decode",
					    NULL };
	struct model m;
	struct pe e;

	(void)state;
	start();
	model_init(&m, LAYERS, 64, 8);
	pe_up(&e, g->set.engine_socket, &m.l);
	refused_raw(&m, unknown_dtype, dtype);
	refused_raw(&m, unknown_kind, kind);
	pe_down(&e);
	rig_down(g);
}

/* Nobody to compare with at the handshake; the engine comes later. */
static void refused_at_open(void **state)
{
	struct model decode, prefill;
	char text[KVS_WIRE_TEXT];
	struct pe_room r;
	struct kvs_msg m;
	struct ps p;
	struct pe e;

	(void)state;
	model_init(&decode, LAYERS, 64, 8);
	for (unsigned int i = 0; i < KVS_ARRAY_SIZE(differences); i++) {
		start();
		model_init(&prefill, LAYERS, 64, 8);
		differences[i].make(&prefill);
		ps_init(&p, g->port, "p", 0, 1, &prefill.l);
		assert_int_equal(ps_hello(&p), 0);
		assert_int_equal(ps_layout(&p, text, sizeof(text)), 0);
		pe_up(&e, g->set.engine_socket, &decode.l);
		pe_admit(&e, &r, 0, 1, 64, 1);
		assert_int_equal(ps_open(&p, 1, 64), 0);
		ps_expect(&p, KVS_WIRE_REFUSE, &m);
		assert_int_equal(m.refuse.err, EPROTOTYPE);
		assert_int_equal(m.refuse.class, 400);
		check_text(&differences[i], m.refuse.text);
		pe_wait_failed(&e, &r, EPROTOTYPE);
		check_text(&differences[i], r.failure.text);
		rig_wait(g, rig_failures(g, KVS_CAUSE_LAYOUT) == 1);
		assert_int_equal(rig_received(g), 0);
		ps_quiet(&p);
		ps_down(&p);
		pe_down(&e);
		rig_down(g);
	}
}

/* Of two engines one fits: that one is served, the other is not. */
static void each_engine_is_compared(void **state)
{
	struct model big, small;
	struct pe_room r, s;
	struct pe e, f;
	struct kvs_msg m;
	struct ps_room w;
	struct ps p;

	(void)state;
	start();
	model_init(&big, LAYERS, 64, 8);
	model_init(&small, LAYERS, 64, 8);
	fewer_heads(&small);
	pe_up(&e, g->set.engine_socket, &big.l);
	pe_up(&f, g->set.engine_socket, &small.l);
	ps_up(&p, g->port, "p", 0, 1, &small.l);
	pe_admit(&e, &r, 0, 1, 64, 1);
	pe_admit(&f, &s, 0, 2, 64, 1);
	pe_wait(&f, &s, KVS_STATUS_ADMITTED);
	assert_int_equal(ps_open(&p, 2, 64), 0);
	ps_granted(&p, &w, 1, 65536);
	assert_int_equal(ps_open(&p, 1, 64), 0);
	ps_expect(&p, KVS_WIRE_REFUSE, &m);
	assert_int_equal(m.refuse.err, EPROTOTYPE);
	pe_wait_failed(&e, &r, EPROTOTYPE);
	assert_int_equal(ps_last(&p, &w, ps_send_all(&p, &w)), 0);
	pe_wait(&f, &s, KVS_STATUS_READY);
	assert_int_equal(pe_differ(&f, &s, 64, 1, 1), 0);
	pe_commit(&f, &s);
	ps_room_fini(&w);
	ps_down(&p);
	pe_down(&e);
	pe_down(&f);
	rig_down(g);
}

/* ---- state and aux that do not come -------------------------------------- */

static uint64_t send_but(struct ps *p, const struct ps_room *w, uint16_t kind,
			 uint16_t layer)
{
	uint64_t sent = 0;

	for (uint32_t i = 0; i < w->n_chunks; i++) {
		if (w->chunks[i].kind == kind && w->chunks[i].layer == layer)
			continue;
		assert_true(ps_send_part(p, 0, w, i, 0, 0) > 0);
		sent += w->chunks[i].len;
	}
	return sent;
}

static void missing_part_is_named(void **state)
{
	static const struct {
		uint16_t kind;
		uint16_t layer;
		const char *text;
	} parts[] = {
		{ KVS_BUFFER_MAMBA, 0, "mamba layer 0" },
		{ KVS_BUFFER_MAMBA, 1, "mamba layer 1" },
		{ KVS_BUFFER_MAMBA, 2, "mamba layer 2" },
		{ KVS_BUFFER_K, 3, "k layer 3" },
		{ KVS_BUFFER_V, 3, "v layer 3" },
		{ KVS_KIND_AUX, 0, "aux block of rank 0" },
	};
	struct kvs_layout *l;
	struct pe_room r;
	struct ps_room w;
	struct kvs_msg m;
	uint64_t sent;
	char err[256];
	struct ps p;
	struct pe e;

	(void)state;
	start();
	assert_int_equal(kvs_preset_layout("tiny-hybrid", NULL, &l, err,
					   sizeof(err)),
			 0);
	pe_up(&e, g->set.engine_socket, l);
	e.aux_len = 100;
	ps_up(&p, g->port, "p", 0, 1, l);
	for (unsigned int i = 0; i < KVS_ARRAY_SIZE(parts); i++) {
		for (int lie = 0; lie < 2; lie++) {
			pe_admit(&e, &r, 0, 1, 100, 1);
			pe_wait(&e, &r, KVS_STATUS_ADMITTED);
			assert_int_equal(ps_open(&p, 1, 100), 0);
			ps_granted(&p, &w, 1, 65536);
			sent = send_but(&p, &w, parts[i].kind, parts[i].layer);
			assert_true(sent < w.bytes);
			/* it says what it sent, or that it sent all */
			assert_int_equal(ps_last(&p, &w, lie ? w.bytes : sent),
					 0);
			pe_wait_failed(&e, &r, lie ? ETIMEDOUT : ENODATA);
			if (!lie && !strstr(r.failure.text, parts[i].text))
				fail_msg("\"%s\" is not in \"%s\"",
					 parts[i].text, r.failure.text);
			assert_false(r.ready);
			ps_expect(&p, KVS_WIRE_ABORT, &m);
			ps_room_fini(&w);
		}
	}
	rig_refresh(g);
	assert_int_equal(rig_failures(g, KVS_CAUSE_MISSING_BYTES),
			 KVS_ARRAY_SIZE(parts));
	assert_int_equal(rig_failures(g, KVS_CAUSE_TRANSFER_TIMEOUT),
			 KVS_ARRAY_SIZE(parts));
	assert_int_equal(rig_done(g), 0);
	ps_down(&p);
	pe_down(&e);
	free(l);
	rig_down(g);
}

/* More than was asked for is a lie about the totals. */
static void too_large_totals(void **state)
{
	struct kvs_layout *l;
	struct pe_room r;
	struct ps_room w;
	struct kvs_msg m;
	char err[256];
	struct ps p;
	struct pe e;

	(void)state;
	start();
	assert_int_equal(kvs_preset_layout("tiny-hybrid", NULL, &l, err,
					   sizeof(err)),
			 0);
	pe_up(&e, g->set.engine_socket, l);
	ps_up(&p, g->port, "p", 0, 1, l);
	pe_admit(&e, &r, 0, 1, 100, 1);
	pe_wait(&e, &r, KVS_STATUS_ADMITTED);
	assert_int_equal(ps_open(&p, 1, 100), 0);
	ps_granted(&p, &w, 1, 65536);
	assert_int_equal(ps_last(&p, &w, w.bytes + 1), 0);
	ps_expect(&p, KVS_WIRE_ERROR, &m);
	assert_int_equal(m.error.err, EPROTO);
	pe_wait_failed(&e, &r, EPROTO);
	rig_wait(g, rig_proto(g, KVS_PROTO_TOTALS) == 1);
	ps_room_fini(&w);
	ps_down(&p);
	pe_down(&e);
	free(l);
	rig_down(g);
}

/* ---- capacities ------------------------------------------------------------ */

static void capacities_are_compared(void **state)
{
	struct model decode, prefill;
	char text[KVS_WIRE_TEXT];
	struct ps p;
	struct pe e;

	(void)state;
	start();
	model_init(&decode, LAYERS, 64, 8);
	/* 12 KiB a token: the pool of 4 MiB holds 341 */
	decode.l.max_context = 400;
	assert_int_equal(pe_attach(&e, g->set.engine_socket, &decode.l, text,
				   sizeof(text)),
			 EPROTOTYPE);
	assert_non_null(strstr(text, "pool.size"));
	assert_non_null(strstr(text, "400"));
	decode.l.max_context = 300;
	decode.l.capacity = 299;
	assert_int_equal(pe_attach(&e, g->set.engine_socket, &decode.l, text,
				   sizeof(text)),
			 EPROTOTYPE);
	assert_non_null(strstr(text, "299"));
	decode.l.capacity = 300;
	pe_up(&e, g->set.engine_socket, &decode.l);

	prefill = decode;
	prefill.l.buffers = prefill.b;
	prefill.l.capacity = 200;
	ps_init(&p, g->port, "p", 0, 1, &prefill.l);
	assert_int_equal(ps_hello(&p), 0);
	assert_int_equal(ps_layout(&p, text, sizeof(text)), EPROTOTYPE);
	assert_non_null(strstr(text, "200"));
	assert_non_null(strstr(text, "300"));
	ps_down(&p);
	/* a side that accepts no longer requests needs no larger pool */
	prefill.l.max_context = 200;
	ps_up(&p, g->port, "p", 0, 1, &prefill.l);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refused_at_the_handshake),
		cmocka_unit_test(unknown_things_are_differences),
		cmocka_unit_test(refused_at_open),
		cmocka_unit_test(each_engine_is_compared),
		cmocka_unit_test(missing_part_is_named),
		cmocka_unit_test(too_large_totals),
		cmocka_unit_test(capacities_are_compared),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
