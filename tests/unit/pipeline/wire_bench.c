/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/pipeline/wire_bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/clock.h"

int wire_bench_setup(void **state)
{
	uint64_t seed = kvs_clock_now(&kvs_clock_real);
	struct bench *b = calloc(1, sizeof(*b));

	assert_non_null(b);
	print_message("seed %llu\n", (unsigned long long)seed);
	kvs_rng_init(&b->rng, seed);
	*state = b;
	return 0;
}

int wire_bench_teardown(void **state)
{
	free(*state);
	return 0;
}

int encode_random(struct bench *b, unsigned int type, uint32_t most)
{
	kvs_wire_random(&b->rng, (enum kvs_wire_type)type, most, &b->in, &b->m);
	return kvs_wire_encode(&b->m, b->buf, sizeof(b->buf));
}

int decode_exact(struct bench *b, const void *bytes, size_t len)
{
	unsigned char *copy = malloc(len ? len : 1);
	int ret;

	assert_non_null(copy);
	memcpy(copy, bytes, len);
	b->reason = NULL;
	ret = kvs_wire_decode((const struct kvs_frame *)copy, len, &b->out,
			      &b->got, &b->reason);
	free(copy);
	return ret;
}

void expect(struct bench *b, size_t len, const char *reason)
{
	assert_int_equal(decode_exact(b, b->buf, len), -EPROTO);
	assert_string_equal(b->reason, reason);
}

void put(struct bench *b, size_t at, uint64_t v, size_t width)
{
	size_t i;

	for (i = 0; i < width; i++)
		b->buf[at + i] = (unsigned char)(v >> (8 * i));
}
