/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claim: equal options make equal workloads, whoever opens them; the ranks of
 * an instance send every layer once, whatever their number; a rank's layout
 * has the buffers of its layers and no others; no two rooms or buffers carry
 * the same bytes; the default geometry is 4,608 bytes a token.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/layout.h"
#include "tools/pattern.h"
#include "tools/workload.h"

static struct kvs_workload make(const char *model, uint32_t n_ranks)
{
	struct kvs_workload_opts o;
	struct kvs_workload w;
	char err[256];

	kvs_workload_defaults(&o);
	o.model = model;
	o.n_ranks = n_ranks;
	o.requests = 50;
	if (kvs_workload_open(&o, &w, err, sizeof(err)))
		fail_msg("%s", err);
	return w;
}

static void test_default_geometry(void **state)
{
	struct kvs_workload w = make(NULL, 1);

	(void)state;
	assert_int_equal(kvs_layout_bytes_per_token(w.layout), 4608);
	assert_int_equal(w.n_layers, KVS_WORKLOAD_LAYERS);
	assert_int_equal(w.trace.n, 50);
	assert_int_equal(kvs_workload_room(&w, 0), 1);
	assert_int_equal(kvs_workload_room(&w, 49), 50);
	kvs_workload_close(&w);
}

static void test_equal_options_equal_workloads(void **state)
{
	struct kvs_workload a = make("tiny-hybrid", 3);
	struct kvs_workload b = make("tiny-hybrid", 3);
	unsigned char x[16], y[16], z[16];

	(void)state;
	assert_int_equal(a.trace.n, b.trace.n);
	for (size_t i = 0; i < a.trace.n; i++) {
		assert_int_equal(kvs_workload_tokens(&a, i),
				 kvs_workload_tokens(&b, i));
		kvs_workload_nonce(&a, i, x);
		kvs_workload_nonce(&b, i, y);
		assert_memory_equal(x, y, sizeof(x));
		kvs_workload_nonce(&a, (i + 1) % a.trace.n, z);
		assert_memory_not_equal(x, z, sizeof(x));
	}
	assert_int_equal(kvs_workload_seed(&a, 7, KVS_BUFFER_K, 1),
			 kvs_workload_seed(&b, 7, KVS_BUFFER_K, 1));
	kvs_workload_close(&a);
	kvs_workload_close(&b);
}

static void test_bytes_depend_on_everything(void **state)
{
	struct kvs_workload w = make(NULL, 1);
	uint64_t s = kvs_workload_seed(&w, 7, KVS_BUFFER_K, 1);

	(void)state;
	assert_int_not_equal(s, kvs_workload_seed(&w, 8, KVS_BUFFER_K, 1));
	assert_int_not_equal(s, kvs_workload_seed(&w, 7, KVS_BUFFER_V, 1));
	assert_int_not_equal(s, kvs_workload_seed(&w, 7, KVS_BUFFER_K, 2));
	assert_int_not_equal(s, kvs_workload_seed(&w, 7, KVS_PATTERN_AUX, 1));
	w.o.seed++;
	assert_int_not_equal(s, kvs_workload_seed(&w, 7, KVS_BUFFER_K, 1));
	kvs_workload_close(&w);
}

static void test_ranks_send_every_layer_once(void **state)
{
	static const char *const models[] = { NULL, "tiny-mla", "tiny-hybrid",
					      "gpt-oss-20b", "qwen3-32b" };

	(void)state;
	for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
		for (uint32_t n = 1; n <= 70; n += n < 9 ? 1 : 7) {
			struct kvs_workload w = make(models[m], n);
			unsigned int *owners =
				calloc(w.n_layers, sizeof(*owners));
			uint32_t buffers = 0;

			assert_non_null(owners);
			for (uint32_t r = 0; r < n; r++) {
				struct kvs_rank_slice s =
					kvs_workload_slice(&w, r);
				struct kvs_layout *l;

				assert_true(s.first_layer + s.n_layers <=
					    w.n_layers);
				for (uint32_t i = 0; i < s.n_layers; i++)
					owners[s.first_layer + i]++;
				assert_int_equal(
					kvs_workload_rank_layout(&w, r, &l), 0);
				for (uint32_t b = 0; b < l->n_buffers; b++)
					if (s.n_layers)
						assert_in_range(
							l->buffers[b].layer,
							s.first_layer,
							s.first_layer +
								s.n_layers - 1);
				if (s.n_layers)
					buffers += l->n_buffers;
				else
					assert_int_equal(l->n_buffers, 1);
				free(l);
			}
			for (uint32_t i = 0; i < w.n_layers; i++)
				assert_int_equal(owners[i], 1);
			assert_int_equal(buffers, w.layout->n_buffers);
			free(owners);
			kvs_workload_close(&w);
		}
	}
}

static void test_what_cannot_be_opened(void **state)
{
	struct kvs_workload_opts o;
	struct kvs_workload w;
	char err[1024];

	(void)state;
	kvs_workload_defaults(&o);
	o.model = "no-such-model";
	assert_int_equal(kvs_workload_open(&o, &w, err, sizeof(err)), -ENOENT);
	assert_non_null(strstr(err, "tiny-mla"));
	kvs_workload_defaults(&o);
	o.trace = "/nonexistent/trace";
	assert_int_equal(kvs_workload_open(&o, &w, err, sizeof(err)), -ENOENT);
	kvs_workload_defaults(&o);
	o.layers = 60000;
	assert_int_equal(kvs_workload_open(&o, &w, err, sizeof(err)), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_default_geometry),
		cmocka_unit_test(test_equal_options_equal_workloads),
		cmocka_unit_test(test_bytes_depend_on_everything),
		cmocka_unit_test(test_ranks_send_every_layer_once),
		cmocka_unit_test(test_what_cannot_be_opened),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
