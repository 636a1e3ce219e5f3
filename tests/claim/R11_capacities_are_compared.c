/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R11, at attach: a pool on the path that is smaller than one maximum-length
 * request is an error when its owner attaches, not at the first long prompt
 * (unless capacity.check = warn).
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(engines),
		cmocka_unit_test(senders),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
