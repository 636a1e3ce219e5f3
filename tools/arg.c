/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/arg.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lib/units.h"
#include "pipeline/settings.h"

double kvs_arg_number(struct argp_state *st, const char *name, const char *arg,
		      double min, double max)
{
	char *end;
	double v;

	errno = 0;
	v = strtod(arg, &end);
	/* what is not a number is not within, either */
	if (errno || end == arg || *end || !(v >= min && v <= max))
		argp_error(st, "--%s %s: from %g to %g", name, arg, min, max);
	return v;
}

uint64_t kvs_arg_whole(struct argp_state *st, const char *name, const char *arg,
		       uint64_t min, uint64_t max)
{
	uint64_t v = 0;

	if (kvs_parse_u64(arg, &v) || v < min || v > max)
		argp_error(st, "--%s %s: from %" PRIu64 " to %" PRIu64, name,
			   arg, min, max);
	return v;
}

uint64_t kvs_arg_size(struct argp_state *st, const char *name, const char *arg,
		      uint64_t min)
{
	char least[KVS_UNITS_BUF];
	uint64_t v = 0;

	if (kvs_parse_size(arg, &v) || v < min || v > KVS_ARG_SIZE_MAX)
		argp_error(st, "--%s %s: a size such as 25GB, from %s", name,
			   arg, kvs_format_size(min, least));
	return v;
}

uint64_t kvs_arg_time(struct argp_state *st, const char *name, const char *arg,
		      uint64_t min)
{
	char least[KVS_UNITS_BUF];
	uint64_t v = 0;

	if (kvs_parse_duration(arg, &v) || v < min || v > KVS_ARG_TIME_MAX)
		argp_error(st,
			   "--%s %s: a time such as 500ms or 30s, from %s up "
			   "to 24h",
			   name, arg,
			   min ? kvs_format_duration(min, least) : "0");
	return v;
}

uint64_t kvs_arg_setting_time(struct argp_state *st, const char *name,
			      const char *arg, const char *setting)
{
	struct kvs_settings s;
	char err[512];
	uint64_t v = 0;

	kvs_settings_init(&s);
	if (kvs_settings_set(&s, setting, arg, err, sizeof(err)))
		argp_error(st, "--%s %s: %s", name, arg, err);
	else
		(void)kvs_parse_duration(arg, &v);
	return v;
}

bool kvs_arg_repeats(const uint64_t *v, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++)
		for (unsigned int k = i + 1; k < n; k++)
			if (v[i] == v[k])
				return true;
	return false;
}

unsigned int kvs_arg_list(const char *arg, char *buf, size_t len, char **ret,
			  unsigned int max)
{
	unsigned int n = 0;
	char *at = buf;

	if (strlen(arg) >= len)
		return 0;
	memcpy(buf, arg, strlen(arg) + 1);
	while (at) {
		char *comma = strchr(at, ',');

		if (comma)
			*comma = '\0';
		if (!*at || n == max)
			return 0;
		ret[n++] = at;
		at = comma ? comma + 1 : NULL;
	}
	return n;
}
