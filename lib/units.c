/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "lib/assert.h"
#include "lib/clock.h"
#include "lib/units.h"

struct kvs_unit {
	const char *suffix;
	uint64_t scale;
};

static const struct kvs_unit kvs_size_units[] = {
	{ "", 1 },
	{ "K", 1ULL << 10 },
	{ "Ki", 1ULL << 10 },
	{ "KiB", 1ULL << 10 },
	{ "kB", 1000ULL },
	{ "KB", 1000ULL },
	{ "M", 1ULL << 20 },
	{ "Mi", 1ULL << 20 },
	{ "MiB", 1ULL << 20 },
	{ "MB", 1000000ULL },
	{ "G", 1ULL << 30 },
	{ "Gi", 1ULL << 30 },
	{ "GiB", 1ULL << 30 },
	{ "GB", 1000000000ULL },
	{ "T", 1ULL << 40 },
	{ "Ti", 1ULL << 40 },
	{ "TiB", 1ULL << 40 },
	{ "TB", 1000000000000ULL },
};

static const struct kvs_unit kvs_duration_units[] = {
	{ "ns", 1 },
	{ "us", KVS_NSEC_PER_USEC },
	{ "ms", KVS_NSEC_PER_MSEC },
	{ "s", KVS_NSEC_PER_SEC },
	{ "m", 60 * KVS_NSEC_PER_SEC },
	{ "h", 3600 * KVS_NSEC_PER_SEC },
};

/*
 * Digits in front of *@s. strtoull() is of no use: it takes blanks, signs and
 * the locale. Runs on past an overflow, because what follows the digits
 * decides between -EINVAL and -ERANGE.
 */
static int kvs_take_digits(const char **s, unsigned int base, uint64_t *ret_v,
			   bool *ret_over)
{
	const char *p = *s;
	uint64_t v = 0;
	bool over = false;

	for (;; p++) {
		unsigned int d;

		if (*p >= '0' && *p <= '9')
			d = (unsigned int)(*p - '0');
		else if (base == 16 && *p >= 'a' && *p <= 'f')
			d = (unsigned int)(*p - 'a') + 10;
		else if (base == 16 && *p >= 'A' && *p <= 'F')
			d = (unsigned int)(*p - 'A') + 10;
		else
			break;
		over |= __builtin_mul_overflow(v, (uint64_t)base, &v);
		over |= __builtin_add_overflow(v, (uint64_t)d, &v);
	}
	if (p == *s)
		return -EINVAL;
	*s = p;
	*ret_v = v;
	*ret_over = over;
	return 0;
}

static const struct kvs_unit *kvs_unit_find(const struct kvs_unit *u, size_t n,
					    const char *suffix)
{
	size_t i;

	for (i = 0; i < n; i++)
		if (!strcmp(u[i].suffix, suffix))
			return &u[i];
	return NULL;
}

int kvs_parse_size(const char *s, uint64_t *ret_bytes)
{
	const struct kvs_unit *u;
	uint64_t v;
	bool over;
	int ret;

	if (!s)
		return -EINVAL;
	ret = kvs_take_digits(&s, 10, &v, &over);
	if (ret)
		return ret;
	u = kvs_unit_find(kvs_size_units, KVS_ARRAY_SIZE(kvs_size_units), s);
	if (!u)
		return -EINVAL;
	if (over || __builtin_mul_overflow(v, u->scale, &v))
		return -ERANGE;
	*ret_bytes = v;
	return 0;
}

int kvs_parse_duration(const char *s, uint64_t *ret_ns)
{
	const struct kvs_unit *u;
	uint64_t v;
	bool over;
	int ret;

	if (!s)
		return -EINVAL;
	ret = kvs_take_digits(&s, 10, &v, &over);
	if (ret)
		return ret;
	/* nought is nought in any unit */
	if (!*s && !v && !over) {
		*ret_ns = 0;
		return 0;
	}
	u = kvs_unit_find(kvs_duration_units,
			  KVS_ARRAY_SIZE(kvs_duration_units), s);
	if (!u)
		return -EINVAL;
	if (over || __builtin_mul_overflow(v, u->scale, &v))
		return -ERANGE;
	*ret_ns = v;
	return 0;
}

int kvs_parse_u64(const char *s, uint64_t *ret)
{
	unsigned int base = 10;
	uint64_t v;
	bool over;
	int err;

	if (!s)
		return -EINVAL;
	if (s[0] == '0' && s[1] == 'x') {
		base = 16;
		s += 2;
	}
	err = kvs_take_digits(&s, base, &v, &over);
	if (err)
		return err;
	if (*s)
		return -EINVAL;
	if (over)
		return -ERANGE;
	*ret = v;
	return 0;
}

const char *kvs_format_size(uint64_t bytes, char *buf)
{
	static const char *const unit[] = { "KiB", "MiB", "GiB",
					    "TiB", "PiB", "EiB" };
	double v = (double)bytes / 1024;
	size_t i = 0;

	if (bytes < 1024) {
		snprintf(buf, KVS_UNITS_BUF, "%u B", (unsigned int)bytes);
		return buf;
	}
	/* what would print as 1024.0 belongs to the next unit */
	while (v >= 1023.95 && i + 1 < KVS_ARRAY_SIZE(unit)) {
		v /= 1024;
		i++;
	}
	snprintf(buf, KVS_UNITS_BUF, "%.1f %s", v, unit[i]);
	return buf;
}

const char *kvs_format_duration(uint64_t ns, char *buf)
{
	static const char *const unit[] = { "us", "ms", "s" };
	double v = (double)ns / 1000;
	size_t i = 0;
	int digits;

	if (ns < 1000) {
		snprintf(buf, KVS_UNITS_BUF, "%u ns", (unsigned int)ns);
		return buf;
	}
	while (v >= 999.5 && i + 1 < KVS_ARRAY_SIZE(unit)) {
		v /= 1000;
		i++;
	}
	/* three digits, so that 9.996 prints as 10.0 and not as 10.00 */
	digits = v < 9.995 ? 2 : v < 99.95 ? 1 : 0;
	snprintf(buf, KVS_UNITS_BUF, "%.*f %s", digits, v, unit[i]);
	return buf;
}
