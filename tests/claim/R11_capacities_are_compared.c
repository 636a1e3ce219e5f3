/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R11, at attach: a pool on the path that is smaller than one maximum-length
 * request is an error when its owner attaches, not at the first long prompt
 * (unless capacity.check = warn), whoever came first; and a reload under which
 * it would be one changes nothing. Each message has both numbers, those of the
 * published incident among them: a prefill pool of 681,280 tokens under a
 * context of 1,048,576.
 */
#include <errno.h>
#include <string.h>

#include "tests/regress/puppet_engine.h"
#include "tests/regress/puppet_sender.h"
#include "tests/regress/service_rig.h"

static struct rig g[1];
static struct kvs_layer_buffer buffers[2] = { { KVS_BUFFER_K, 0, 65536, 0 },
					      { KVS_BUFFER_V, 0, 65536, 0 } };
/* 2 KiB a token: a pool of 4 MiB holds 2048 */
static struct kvs_layout layout = { .size = sizeof(layout),
				    .page_size = 64,
				    .dtype = KVS_DTYPE_BF16,
				    .n_buffers = 2,
				    .buffers = buffers };

static void start(const char *check)
{
	rig_init(g, "sock", "4M");
	rig_set(g, "capacity.check", check);
	rig_up(g);
}

static int attach(struct pe *e, uint64_t max_context, uint64_t capacity)
{
	struct kvs_layout l = layout;
	char text[KVS_WIRE_TEXT];

	l.max_context = max_context;
	l.capacity = capacity;
	return pe_attach(e, g->set.engine_socket, &l, text, sizeof(text));
}

static void engines(void **state)
{
	struct pe e;

	(void)state;
	start("error");
	assert_int_equal(attach(&e, 2049, 0), EPROTOTYPE);
	assert_int_equal(attach(&e, 1000, 999), EPROTOTYPE);
	assert_int_equal(attach(&e, 1000, 1000), 0);
	pe_down(&e);
	rig_down(g);
	start("warn");
	assert_int_equal(attach(&e, 2049, 0), 0);
	pe_down(&e);
	rig_down(g);
}

static void senders(void **state)
{
	struct kvs_layout prefill = layout;
	char text[KVS_WIRE_TEXT];
	struct pe e;
	struct ps p;

	(void)state;
	start("error");
	assert_int_equal(attach(&e, 1000, 1000), 0);
	prefill.max_context = 1000;
	prefill.capacity = 999;
	ps_init(&p, g->port, "p", 0, 1, &prefill);
	assert_int_equal(ps_hello(&p), 0);
	assert_int_equal(ps_layout(&p, text, sizeof(text)), EPROTOTYPE);
	ps_down(&p);
	prefill.capacity = 1000;
	ps_up(&p, g->port, "p", 0, 1, &prefill);
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

/* 4 bytes a token: a context of a million fits a pool of 4 MiB */
static struct kvs_layer_buffer thin_buffers[] = { { KVS_BUFFER_KV, 0, 256,
						    0 } };
static const struct kvs_layout thin = { .size = sizeof(thin),
					.page_size = 64,
					.dtype = KVS_DTYPE_BF16,
					.n_buffers = 1,
					.buffers = thin_buffers };

#define CONTEXT 1048576u
#define INCIDENT 681280u

static void each_pool_is_named(void **state)
{
	struct kvs_layout l = thin;
	char text[KVS_WIRE_TEXT];
	struct pe e;
	struct ps p;

	(void)state;
	start("error");
	l.max_context = CONTEXT;
	l.capacity = INCIDENT;
	assert_int_equal(pe_attach(&e, g->set.engine_socket, &l, text,
				   sizeof(text)),
			 EPROTOTYPE);
	assert_string_equal(text,
			    "one maximum-length request has 1048576 tokens, "
			    "the decode engine's KV pool holds 681280");
	l.capacity = 0;
	l.max_context = CONTEXT + 1;
	assert_int_equal(pe_attach(&e, g->set.engine_socket, &l, text,
				   sizeof(text)),
			 EPROTOTYPE);
	assert_string_equal(text,
			    "one maximum-length request has 1048577 tokens, "
			    "the host pool of node 0 (pool.size, 4194304 "
			    "bytes) holds 1048576");
	l.max_context = CONTEXT;
	pe_up(&e, g->set.engine_socket, &l);
	l.capacity = INCIDENT;
	ps_init(&p, g->port, "p", 3, 8, &l);
	assert_int_equal(ps_hello(&p), 0);
	assert_int_equal(ps_layout(&p, text, sizeof(text)), EPROTOTYPE);
	assert_string_equal(text,
			    "one maximum-length request has 1048576 tokens, "
			    "the KV pool of prefill p rank 3 holds 681280");
	ps_down(&p);
	pe_down(&e);
	rig_down(g);
}

/* The prefill instance was there before the engine. */
static void whoever_came_first(void **state)
{
	struct kvs_layout l = thin, other = layout;
	struct kvs_msg m;
	struct ps small, enough, foreign;
	struct pe e, f;

	(void)state;
	start("error");
	l.max_context = CONTEXT;
	l.capacity = INCIDENT;
	ps_up(&small, g->port, "small", 0, 1, &l);
	l.capacity = CONTEXT;
	ps_up(&enough, g->port, "enough", 0, 1, &l);
	/* of another model: another engine's affair */
	other.max_context = 1000;
	other.capacity = 10;
	ps_up(&foreign, g->port, "foreign", 0, 1, &other);
	pe_up(&e, g->set.engine_socket, &l);
	ps_expect(&small, KVS_WIRE_ERROR, &m);
	assert_int_equal(m.error.err, EPROTOTYPE);
	assert_non_null(strstr(m.error.text, "small rank 0 holds 681280"));
	ps_quiet(&enough);
	ps_quiet(&foreign);
	ps_down(&small);
	rig_wait(g, g->snap->sessions == 2);
	/* one engine that is content is enough */
	l.max_context = 1000;
	l.capacity = 1000;
	pe_up(&f, g->set.engine_socket, &l);
	ps_up(&small, g->port, "small", 0, 1, &l);
	pe_down(&e);
	l.max_context = CONTEXT;
	l.capacity = CONTEXT;
	pe_up(&e, g->set.engine_socket, &l);
	ps_quiet(&small);
	ps_down(&small);
	ps_down(&enough);
	ps_down(&foreign);
	pe_down(&f);
	pe_down(&e);
	rig_down(g);
}

static void a_reload_is_checked(void **state)
{
	struct kvs_layout l = thin;
	struct kvs_settings set;
	char text[512];
	struct pe e;

	(void)state;
	start("error");
	l.max_context = CONTEXT;
	pe_up(&e, g->set.engine_socket, &l);
	set = g->set;
	assert_int_equal(
		kvs_service_check_reload(g->svc, &set, text, sizeof(text)), 0);
	/* less than one request for a peer */
	set.peer_bytes = 4194304 - 1;
	assert_int_equal(kvs_service_check_reload(g->svc, &set, text,
						  sizeof(text)),
			 -EPROTOTYPE);
	assert_non_null(strstr(text, "1048576 tokens and takes 4194304 bytes, "
				     "admission.peer_bytes is 4194303"));
	set.peer_bytes = 4194304;
	assert_int_equal(
		kvs_service_check_reload(g->svc, &set, text, sizeof(text)), 0);
	/* what the next start would take */
	set.pool_size = 1 << 20;
	assert_int_equal(kvs_service_check_reload(g->svc, &set, text,
						  sizeof(text)),
			 -EPROTOTYPE);
	assert_non_null(strstr(text, "1048576 tokens, the host pool of node 0 "
				     "(pool.size, 1048576 bytes) holds "
				     "262144"));
	snprintf(set.capacity_check, sizeof(set.capacity_check), "warn");
	assert_int_equal(
		kvs_service_check_reload(g->svc, &set, text, sizeof(text)), 0);
	pe_down(&e);
	rig_down(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(engines),
		cmocka_unit_test(senders),
		cmocka_unit_test(each_pool_is_named),
		cmocka_unit_test(whoever_came_first),
		cmocka_unit_test(a_reload_is_checked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
