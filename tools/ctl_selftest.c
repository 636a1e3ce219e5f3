/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/ctl_selftest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/clock.h"
#include "lib/units.h"
#include "tools/selftest.h"

#define KVS_CTL_CANNOT 77

/* Half of what is free stays free for those who need it. */
static bool enough(const json_t *pool, uint64_t bytes)
{
	json_int_t n = json_integer_value(json_object_get(pool, "free"));

	return n > 0 && (uint64_t)n / 2 >= bytes;
}

static bool say_result(const struct kvs_ctl_selftest *t, int node,
		       const struct kvs_selftest_result *r, uint64_t ns,
		       const char *outcome)
{
	const uint64_t *f = r->found.faults;
	char size[KVS_UNITS_BUF], time[KVS_UNITS_BUF];
	json_t *o;
	int ret;

	if (!t->json) {
		if (r->where[0])
			printf("fault: %s\n", r->where);
		printf("node %d: %s: %u rounds, %u rooms aborted while they "
		       "were written, %u looked through (%s) in %s; marks "
		       "that are foreign: %" PRIu64 ", moved: %" PRIu64
		       ", changed: %" PRIu64 "\n",
		       node, outcome, r->rounds, r->aborted, r->checked,
		       kvs_format_size(r->bytes, size),
		       kvs_format_duration(ns, time), f[KVS_MARK_FOREIGN],
		       f[KVS_MARK_MOVED], f[KVS_MARK_CHANGED]);
		return true;
	}
	o = json_pack("{s:s, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:f, s:s}",
		      "selftest", outcome, "node", node, "rounds",
		      (int)r->rounds, "rooms_aborted", (int)r->aborted,
		      "rooms_checked", (int)r->checked, "bytes_checked",
		      (json_int_t)r->bytes, "foreign_marks",
		      (json_int_t)f[KVS_MARK_FOREIGN], "moved_marks",
		      (json_int_t)f[KVS_MARK_MOVED], "changed_marks",
		      (json_int_t)f[KVS_MARK_CHANGED], "seconds",
		      (double)ns / 1e9, "fault", r->where);
	ret = o ? json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6))
		: -1;
	json_decref(o);
	return !ret && putchar('\n') != EOF;
}

static int run_node(const struct kvs_ctl_selftest *t, const json_t *status,
		    const json_t *pool)
{
	struct kvs_selftest_opts o = {
		.daemon = json_string_value(json_object_get(status, "listen")),
		.engine_socket = json_string_value(
			json_object_get(status, "engine_socket")),
		.node = (int)json_integer_value(json_object_get(pool, "node")),
		.bytes = t->bytes,
		.rounds = t->rounds,
		.seconds = t->seconds,
		.key_file = t->key_file,
	};
	uint64_t from = kvs_clock_now(&kvs_clock_real);
	const char *outcome = "ok";
	struct kvs_selftest_result r;
	char err[512] = "";
	int ret, rc = 0;

	if (!o.daemon || !o.engine_socket) {
		fprintf(stderr, "kvstagectl: the daemon does not say where "
				"to connect\n");
		return KVS_CTL_CANNOT;
	}
	fprintf(stderr,
		"kvstagectl: selftest on node %d: %u rounds with %" PRIu64
		" bytes of its pool\n",
		o.node, o.rounds, o.bytes);
	ret = kvs_selftest(&o, &r, err, sizeof(err));
	if (r.where[0]) {
		outcome = "fault";
		rc = 1;
	} else if (ret == -EAGAIN) {
		outcome = "cannot run";
		rc = KVS_CTL_CANNOT;
	} else if (ret) {
		outcome = "failed";
		rc = 1;
	}
	if (ret)
		fprintf(stderr, "kvstagectl: selftest on node %d: %s\n", o.node,
			err);
	if (!say_result(t, o.node, &r, kvs_clock_now(&kvs_clock_real) - from,
			outcome))
		return 1;
	return rc;
}

int kvs_ctl_selftest(const struct kvs_ctl_selftest *t)
{
	const json_t *status = json_array_get(t->status, 0);
	json_t *pool;
	int rc = 0, one;
	bool any = false;
	size_t i;

	json_array_foreach(t->pools, i, pool)
	{
		const char *name =
			json_string_value(json_object_get(pool, "pool"));

		if (!name || strcmp(name, "receive"))
			continue;
		any = true;
		if (enough(pool, t->bytes)) {
			one = run_node(t, status, pool);
		} else {
			fprintf(stderr,
				"kvstagectl: selftest: less than twice %" PRIu64
				" bytes (--bytes) of a pool are free\n",
				t->bytes);
			one = KVS_CTL_CANNOT;
		}
		/* a fault counts for more than a node that had no time */
		if (one == 1 || !rc)
			rc = one;
	}
	return any ? rc : KVS_CTL_CANNOT;
}
