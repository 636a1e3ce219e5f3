/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: however a stream is cut, whatever the order its pieces come in and
 * however many digests they are spread over, the value is that of a plain
 * bitwise CRC-32C and a bytewise Adler-32 over the whole of it, published
 * vectors and streams over 2^32 bytes included; a bit flipped, a piece left
 * out or two exchanged is seen (the last by Adler-32 only if their sums
 * differ); nothing outside the stream is taken; no byte outside a piece is
 * read.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "lib/assert.h"
#include "lib/clock.h"
#include "lib/rng.h"
#include "pipeline/digest.h"

#define MIB (1ULL << 20)
#define PIECES 512

static const enum kvs_digest_kind kinds[] = { KVS_DIGEST_CRC32C,
					      KVS_DIGEST_ADLER32 };

/* The definitions, as slow as they are plain. */
static uint32_t naive_crc32c(const unsigned char *p, size_t len)
{
	uint32_t crc = 0xffffffff;
	size_t i;
	int bit;

	for (i = 0; i < len; i++) {
		crc ^= p[i];
		for (bit = 0; bit < 8; bit++)
			crc = crc & 1 ? crc >> 1 ^ 0x82f63b78 : crc >> 1;
	}
	return crc ^ 0xffffffff;
}

static uint32_t naive_adler32(const unsigned char *p, size_t len)
{
	uint32_t a = 1, b = 0;
	size_t i;

	for (i = 0; i < len; i++) {
		a = (a + p[i]) % 65521;
		b = (b + a) % 65521;
	}
	return b << 16 | a;
}

static uint32_t naive(enum kvs_digest_kind kind, const void *p, size_t len)
{
	return kind == KVS_DIGEST_CRC32C ? naive_crc32c(p, len)
					 : naive_adler32(p, len);
}

static uint32_t whole(enum kvs_digest_kind kind, const void *p, size_t len)
{
	struct kvs_digest d;

	kvs_digest_init(&d, kind, len);
	assert_int_equal(kvs_digest_add(&d, 0, p, len), 0);
	assert_true(d.bytes == len);
	return kvs_digest_value(&d);
}

static void fill(struct kvs_rng *r, unsigned char *p, size_t len)
{
	size_t i;

	for (i = 0; i < len; i++)
		p[i] = (unsigned char)kvs_rng_next(r);
}

static void seed(struct kvs_rng *r)
{
	uint64_t s = kvs_clock_now(&kvs_clock_real);

	print_message("seed %llu\n", (unsigned long long)s);
	kvs_rng_init(r, s);
}

static void digest_vectors(void **state)
{
	static const unsigned char digits[] = "123456789";
	unsigned char v[32];
	size_t i;

	(void)state;
	assert_int_equal(whole(KVS_DIGEST_CRC32C, "", 0), 0);
	assert_int_equal(whole(KVS_DIGEST_ADLER32, "", 0), 1);
	assert_int_equal(whole(KVS_DIGEST_CRC32C, digits, 9), 0xe3069283);
	assert_int_equal(whole(KVS_DIGEST_ADLER32, digits, 9), 0x091e01de);
	assert_int_equal(whole(KVS_DIGEST_ADLER32, "Wikipedia", 9), 0x11e60398);
	/* RFC 3720, B.4 */
	memset(v, 0, sizeof(v));
	assert_int_equal(whole(KVS_DIGEST_CRC32C, v, 32), 0x8a9136aa);
	memset(v, 0xff, sizeof(v));
	assert_int_equal(whole(KVS_DIGEST_CRC32C, v, 32), 0x62a8ab43);
	for (i = 0; i < sizeof(v); i++)
		v[i] = (unsigned char)i;
	assert_int_equal(whole(KVS_DIGEST_CRC32C, v, 32), 0x46dd794e);
	for (i = 0; i < sizeof(v); i++)
		v[i] = (unsigned char)(31 - i);
	assert_int_equal(whole(KVS_DIGEST_CRC32C, v, 32), 0x113fdb5c);
	/* the model is held to the same vectors */
	assert_int_equal(naive_crc32c(digits, 9), 0xe3069283);
	assert_int_equal(naive_adler32(digits, 9), 0x091e01de);
}

static void digest_none(void **state)
{
	struct kvs_digest d;

	(void)state;
	kvs_digest_init(&d, KVS_DIGEST_NONE, 4);
	assert_int_equal(kvs_digest_add(&d, 1, "abc", 3), 0);
	assert_int_equal(kvs_digest_add(&d, 2, "abc", 3), -ERANGE);
	assert_true(d.bytes == 3);
	assert_int_equal(kvs_digest_value(&d), 0);
}

static void digest_names(void **state)
{
	static const char *const bad[] = { "", "crc", "CRC32C", "crc32c ",
					   "?" };
	enum kvs_digest_kind k = KVS_DIGEST_KIND_MAX;
	unsigned int i;

	(void)state;
	for (i = 0; i < KVS_DIGEST_KIND_MAX; i++) {
		assert_int_equal(
			kvs_digest_kind_parse(kvs_digest_kind_name(i), &k), 0);
		assert_int_equal(k, i);
	}
	assert_string_equal(kvs_digest_kind_name(KVS_DIGEST_KIND_MAX), "?");
	assert_string_equal(kvs_digest_kind_name(UINT32_MAX), "?");
	k = KVS_DIGEST_KIND_MAX;
	for (i = 0; i < KVS_ARRAY_SIZE(bad); i++)
		assert_int_equal(kvs_digest_kind_parse(bad[i], &k), -EINVAL);
	assert_int_equal(k, KVS_DIGEST_KIND_MAX);
}

/* Cut @len bytes into up to PIECES pieces; ret_end[i] is where piece i ends. */
static size_t cut(struct kvs_rng *r, size_t len, size_t *ret_end)
{
	size_t most = 1 + kvs_rng_below(r, PIECES);
	size_t n = 0, at = 0;

	while (at < len) {
		size_t left = len - at;
		size_t piece = 1 + kvs_rng_below(r, 2 * (len / most + 1));

		at += n + 1 == PIECES || piece > left ? left : piece;
		ret_end[n++] = at;
	}
	return n;
}

static void shuffle(struct kvs_rng *r, size_t *v, size_t n)
{
	size_t i, j, t;

	for (i = 0; i < n; i++)
		v[i] = i;
	for (i = n; i > 1; i--) {
		j = kvs_rng_below(r, i);
		t = v[i - 1];
		v[i - 1] = v[j];
		v[j] = t;
	}
}

static void digest_any_order(void **state)
{
	static unsigned char v[65536];
	size_t end[PIECES], order[PIECES];
	unsigned int round, k;
	struct kvs_rng r;

	(void)state;
	seed(&r);
	for (round = 0; round < 300; round++) {
		size_t len = kvs_rng_below(&r, round < 100 ? 200 : sizeof(v));
		size_t n, i, parts = 1 + kvs_rng_below(&r, 4);

		fill(&r, v, len);
		if (round % 5 == 0)
			memset(v, round % 2 ? 0xff : 0, len);
		n = cut(&r, len, end);
		shuffle(&r, order, n);
		for (k = 0; k < KVS_ARRAY_SIZE(kinds); k++) {
			struct kvs_digest d[4];
			uint32_t want = naive(kinds[k], v, len);

			for (i = 0; i < parts; i++)
				kvs_digest_init(&d[i], kinds[k], len);
			for (i = 0; i < n; i++) {
				size_t at = order[i] ? end[order[i] - 1] : 0;

				assert_int_equal(
					kvs_digest_add(&d[i % parts], at,
						       v + at,
						       end[order[i]] - at),
					0);
			}
			for (i = 1; i < parts; i++)
				assert_int_equal(
					kvs_digest_combine(&d[0], &d[i]), 0);
			assert_true(d[0].bytes == len);
			assert_int_equal(kvs_digest_value(&d[0]), want);
			assert_int_equal(whole(kinds[k], v, len), want);
		}
	}
}

/* Combined halfway, an open run at either side, and then added to again. */
static void digest_goes_on_after_combine(void **state)
{
	unsigned char v[3000];
	struct kvs_digest a, b;
	struct kvs_rng r;
	unsigned int k;

	(void)state;
	seed(&r);
	fill(&r, v, sizeof(v));
	for (k = 0; k < KVS_ARRAY_SIZE(kinds); k++) {
		kvs_digest_init(&a, kinds[k], sizeof(v));
		kvs_digest_init(&b, kinds[k], sizeof(v));
		assert_int_equal(kvs_digest_add(&a, 0, v, 700), 0);
		assert_int_equal(kvs_digest_add(&b, 1000, v + 1000, 500), 0);
		assert_int_equal(kvs_digest_combine(&a, &b), 0);
		/* asking does not change it */
		(void)kvs_digest_value(&a);
		assert_int_equal(kvs_digest_add(&a, 700, v + 700, 300), 0);
		assert_int_equal(kvs_digest_add(&a, 1500, v + 1500, 1500), 0);
		assert_true(a.bytes == sizeof(v));
		assert_int_equal(kvs_digest_value(&a),
				 naive(kinds[k], v, sizeof(v)));
	}
}

static bool same_sum(const unsigned char *a, const unsigned char *b, size_t len)
{
	uint64_t x = 0, y = 0;
	size_t i;

	for (i = 0; i < len; i++) {
		x += a[i];
		y += b[i];
	}
	return x % 65521 == y % 65521;
}

static void digest_sees_damage(void **state)
{
	static unsigned char v[8192], w[8192];
	struct kvs_digest d;
	unsigned int round, k;
	struct kvs_rng r;

	(void)state;
	seed(&r);
	for (round = 0; round < 200; round++) {
		size_t page = 1024 * kvs_rng_below(&r, 8);
		size_t other =
			(page + 1024 * (1 + kvs_rng_below(&r, 7))) % 8192;

		fill(&r, v, sizeof(v));
		for (k = 0; k < KVS_ARRAY_SIZE(kinds); k++) {
			uint32_t want = whole(kinds[k], v, sizeof(v));

			/* a bit */
			memcpy(w, v, sizeof(w));
			w[kvs_rng_below(&r, sizeof(w))] ^=
				(unsigned char)(1u << kvs_rng_below(&r, 8));
			assert_true(whole(kinds[k], w, sizeof(w)) != want);
			/* two pages exchanged */
			memcpy(w, v, sizeof(w));
			memcpy(w + page, v + other, 1024);
			memcpy(w + other, v + page, 1024);
			/* Adler-32 is blind to pages of one sum: about one
			 * pair in ten thousand */
			assert_true(whole(kinds[k], w, sizeof(w)) != want ||
				    (kinds[k] == KVS_DIGEST_ADLER32 &&
				     same_sum(v + page, v + other, 1024)));
			/* one that did not come */
			kvs_digest_init(&d, kinds[k], sizeof(v));
			assert_int_equal(kvs_digest_add(&d, page + 1024,
							v + page + 1024,
							7168 - page),
					 0);
			assert_int_equal(kvs_digest_add(&d, 0, v, page), 0);
			assert_true(d.bytes == sizeof(v) - 1024);
			assert_true(kvs_digest_value(&d) != want);
		}
	}
}

static void digest_refuses(void **state)
{
	struct kvs_digest a, b, was;

	(void)state;
	kvs_digest_init(&a, KVS_DIGEST_CRC32C, 10);
	assert_int_equal(kvs_digest_add(&a, 2, "abcd", 4), 0);
	was = a;
	assert_int_equal(kvs_digest_add(&a, 11, "", 0), -ERANGE);
	assert_int_equal(kvs_digest_add(&a, 9, "ab", 2), -ERANGE);
	assert_int_equal(kvs_digest_add(&a, UINT64_MAX, "ab", 2), -ERANGE);
	assert_int_equal(kvs_digest_add(&a, 2, "ab", SIZE_MAX), -ERANGE);
	assert_int_equal(kvs_digest_add(&a, 10, "", 0), 0);
	assert_memory_equal(&a, &was, sizeof(a));
	kvs_digest_init(&b, KVS_DIGEST_ADLER32, 10);
	assert_int_equal(kvs_digest_combine(&a, &b), -EINVAL);
	kvs_digest_init(&b, KVS_DIGEST_CRC32C, 11);
	assert_int_equal(kvs_digest_combine(&a, &b), -EINVAL);
	/* more bytes than there are: some were added twice */
	kvs_digest_init(&b, KVS_DIGEST_CRC32C, 10);
	assert_int_equal(kvs_digest_add(&b, 0, "abcdefg", 7), 0);
	assert_int_equal(kvs_digest_combine(&a, &b), -ERANGE);
	assert_memory_equal(&a, &was, sizeof(a));
}

/*
 * 4.5 GiB, once as a few pages with nothing between and once with every byte:
 * pages moved over 2^32 bytes against the arithmetic walking over them.
 */
static void digest_over_4_gib(void **state)
{
	const uint64_t total = 4608 * MIB + 4321, at_far = 4500 * MIB + 7;
	unsigned char *zero = calloc(1, 64 * MIB);
	struct kvs_digest sparse, full;
	unsigned char page[1000];
	struct kvs_rng r;
	unsigned int k;
	uint64_t at;

	(void)state;
	seed(&r);
	assert_non_null(zero);
	fill(&r, page, sizeof(page));
	for (k = 0; k < KVS_ARRAY_SIZE(kinds); k++) {
		kvs_digest_init(&sparse, kinds[k], total);
		assert_int_equal(kvs_digest_add(&sparse, at_far, page, 1000),
				 0);
		assert_int_equal(kvs_digest_add(&sparse, 0, page, 1000), 0);
		kvs_digest_init(&full, kinds[k], total);
		assert_int_equal(kvs_digest_add(&full, 0, page, 1000), 0);
		for (at = 1000; at < total;) {
			uint64_t end = at < at_far ? at_far : total;
			uint64_t n = end - at < 64 * MIB ? end - at : 64 * MIB;

			if (at == at_far) {
				n = 1000;
				assert_int_equal(
					kvs_digest_add(&full, at, page, n), 0);
			} else {
				assert_int_equal(
					kvs_digest_add(&full, at, zero, n), 0);
			}
			at += n;
		}
		assert_true(full.bytes == total && sparse.bytes == 2000);
		assert_int_equal(kvs_digest_value(&full),
				 kvs_digest_value(&sparse));
	}
	free(zero);
}

/* One piece of more bytes than an int counts; no memory is behind it. */
static void digest_large_piece(void **state)
{
	const uint64_t len = 2048 * MIB + 4097;
	struct kvs_digest once, sparse;
	unsigned char page[100];
	unsigned int k;
	void *zero;

	(void)state;
	zero = mmap(NULL, len, PROT_READ,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	assert_true(zero != MAP_FAILED);
	memset(page, 0x5a, sizeof(page));
	for (k = 0; k < KVS_ARRAY_SIZE(kinds); k++) {
		kvs_digest_init(&once, kinds[k], sizeof(page) + len);
		sparse = once;
		assert_int_equal(kvs_digest_add(&sparse, 0, page, 100), 0);
		assert_int_equal(kvs_digest_add(&once, 0, page, 100), 0);
		assert_int_equal(kvs_digest_add(&once, 100, zero, len), 0);
		assert_true(once.bytes == once.total);
		assert_int_equal(kvs_digest_value(&once),
				 kvs_digest_value(&sparse));
	}
	munmap(zero, len);
}

/* CRC over zero bytes by squaring the matrix of one zero bit. */
static uint32_t matrix_times(const uint32_t *m, uint32_t v)
{
	uint32_t sum = 0;
	size_t i;

	for (i = 0; v; i++, v >>= 1)
		sum ^= v & 1 ? m[i] : 0;
	return sum;
}

static uint32_t crc_zeros(uint32_t crc, uint64_t zero_bytes)
{
	uint32_t m[32], square[32];
	uint64_t bits;
	size_t i;
	int skip = 3;

	m[0] = 0x82f63b78;
	for (i = 1; i < 32; i++)
		m[i] = 1u << (i - 1);
	for (bits = zero_bytes; bits;) {
		if (skip) {
			skip--;
		} else {
			if (bits & 1)
				crc = matrix_times(m, crc);
			bits >>= 1;
		}
		for (i = 0; i < 32; i++)
			square[i] = matrix_times(m, m[i]);
		memcpy(m, square, sizeof(m));
	}
	return crc;
}

/* One piece in the largest stream and beyond, against other arithmetic. */
static void digest_far_places(void **state)
{
	unsigned char v[777];
	struct kvs_digest d;
	struct kvs_rng r;
	unsigned int i;

	(void)state;
	seed(&r);
	for (i = 0; i < 500; i++) {
		uint64_t total = UINT64_MAX >> kvs_rng_below(&r, 48);
		uint64_t at, after;
		uint32_t crc;
		__uint128_t a = 1, b = 0, all = total;
		size_t j;

		fill(&r, v, sizeof(v));
		at = kvs_rng_below(&r, total - sizeof(v));
		after = total - at - sizeof(v);
		kvs_digest_init(&d, KVS_DIGEST_CRC32C, total);
		assert_int_equal(kvs_digest_add(&d, at, v, sizeof(v)), 0);
		crc = crc_zeros(0xffffffff, at);
		for (j = 0; j < sizeof(v); j++)
			crc = crc_zeros(crc ^ v[j], 1);
		crc = ~crc_zeros(crc, after);
		assert_int_equal(kvs_digest_value(&d), crc);

		kvs_digest_init(&d, KVS_DIGEST_ADLER32, total);
		assert_int_equal(kvs_digest_add(&d, at, v, sizeof(v)), 0);
		for (j = 0; j < sizeof(v); j++) {
			a += v[j];
			b += v[j] * (all - at - j);
		}
		b = (b + all) % 65521;
		assert_int_equal(kvs_digest_value(&d),
				 (uint32_t)b << 16 | (uint32_t)(a % 65521));
	}
}

/* A piece that ends, or begins, at the edge of what is mapped. */
static void digest_reads_only_the_piece(void **state)
{
	unsigned char *map, *p;
	unsigned int k;
	size_t len;

	(void)state;
	map = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(map != MAP_FAILED);
	memset(map, 0x5a, 3 * 4096);
	assert_int_equal(mprotect(map, 4096, PROT_NONE), 0);
	assert_int_equal(mprotect(map + 8192, 4096, PROT_NONE), 0);
	for (len = 1; len <= 2048; len++) {
		for (k = 0; k < KVS_ARRAY_SIZE(kinds); k++) {
			p = map + 8192 - len;
			assert_int_equal(whole(kinds[k], p, len),
					 whole(kinds[k], map + 4096, len));
		}
	}
	munmap(map, 3 * 4096);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(digest_vectors),
		cmocka_unit_test(digest_none),
		cmocka_unit_test(digest_names),
		cmocka_unit_test(digest_any_order),
		cmocka_unit_test(digest_goes_on_after_combine),
		cmocka_unit_test(digest_sees_damage),
		cmocka_unit_test(digest_refuses),
		cmocka_unit_test(digest_over_4_gib),
		cmocka_unit_test(digest_large_piece),
		cmocka_unit_test(digest_far_places),
		cmocka_unit_test(digest_reads_only_the_piece),
	};

	return cmocka_run_group_tests_name("digest", tests, NULL, NULL);
}
