/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/ctl_verify.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "lib/units.h"

static uint64_t number(const json_t *o, const char *key)
{
	return (uint64_t)json_integer_value(json_object_get(o, key));
}

static const char *text(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s ? s : "";
}

/* The disk tier of the same node; NULL: it is off. */
static const json_t *same(const json_t *now, const json_t *begun)
{
	const json_t *o;
	size_t i;

	for (i = 0; i < json_array_size(now); i++) {
		o = json_array_get(now, i);
		if (number(o, "node") == number(begun, "node") &&
		    !strcmp(text(o, "tier"), "nvme") &&
		    strcmp(text(o, "health"), "off"))
			return o;
	}
	return NULL;
}

bool kvs_ctl_verify_over(const struct kvs_ctl_verify *v)
{
	const json_t *begun, *o;
	size_t i;

	for (i = 0; i < json_array_size(v->begun); i++) {
		begun = json_array_get(v->begun, i);
		o = same(v->now, begun);
		if (o &&
		    number(o, "scrub_rounds") <= number(begun, "scrub_rounds"))
			return false;
	}
	return true;
}

int kvs_ctl_verify_print(const struct kvs_ctl_verify *v)
{
	uint64_t bad, errors;
	char size[KVS_UNITS_BUF];
	const json_t *begun, *o;
	int status = 0;
	size_t i;

	for (i = 0; i < json_array_size(v->begun); i++) {
		begun = json_array_get(v->begun, i);
		o = same(v->now, begun);
		bad = number(o, "bad_blocks") - number(begun, "bad_blocks");
		errors =
			number(o, "read_errors") - number(begun, "read_errors");
		if (!o || bad || errors)
			status = 1;
		if (!o && !v->json)
			printf("node %" PRIu64 ": the tier is off\n",
			       number(begun, "node"));
		else if (!v->json)
			printf("node %" PRIu64 ": %" PRIu64
			       " blocks, %s, read: "
			       "%" PRIu64
			       " did not match and are gone, %" PRIu64
			       " read errors\n",
			       number(begun, "node"), number(begun, "blocks"),
			       kvs_format_size(number(begun, "bytes"), size),
			       bad, errors);
		else
			printf("{\"node\":%" PRIu64 ",\"tier\":\"nvme\","
			       "\"on\":%s,\"blocks\":%" PRIu64
			       ",\"bytes\":%" PRIu64
			       ",\"damaged_blocks\":%" PRIu64
			       ",\"read_errors\":%" PRIu64 "}\n",
			       number(begun, "node"), o ? "true" : "false",
			       number(begun, "blocks"), number(begun, "bytes"),
			       o ? bad : 0, o ? errors : 0);
	}
	return status;
}
