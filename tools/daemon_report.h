/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: daemon report
 *
 * The answers to kvstagectl(1), one function each: daemon_report.c what the
 * daemon does, daemon_holds.c what it waits for, daemon_about.c what it is
 * and where it runs.
 */
#ifndef KVS_TOOLS_DAEMON_REPORT_H
#define KVS_TOOLS_DAEMON_REPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "tools/daemon.h"

/* One answer being written; the first error ends it. */
struct kvs_report {
	struct kvs_daemon *d;
	const json_t *request;
	FILE *f;
	int ret;
	char err[512];
};

/* @ret: negative errno; the text is for the asker. */
void kvs_report_fail(struct kvs_report *r, int ret, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* A line. Takes over @o, which may be NULL: json_pack() out of memory. */
void kvs_report_line(struct kvs_report *r, json_t *o);
/* True, or it has failed: the daemon is not ready. */
bool kvs_report_has_service(struct kvs_report *r);

json_t *kvs_json_u64(uint64_t v); /* a number, INT64_MAX at most */
json_t *kvs_json_id(uint64_t v); /* a text */
json_t *kvs_json_seconds(uint64_t ns);

void kvs_report_holds(struct kvs_report *r);
void kvs_report_build(struct kvs_report *r);
void kvs_report_limits(struct kvs_report *r);
void kvs_report_metrics(struct kvs_report *r);

#endif /* KVS_TOOLS_DAEMON_REPORT_H */
