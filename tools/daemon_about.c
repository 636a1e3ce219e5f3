/* SPDX-License-Identifier: Apache-2.0 */
/* What a report of a fault needs beside the daemon's own numbers: how it was
 * built, what the system lets it have, and its metrics. */
#include <errno.h>
#include <event2/event.h>
#include <glob.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include "lib/assert.h"
#include "pipeline/metrics.h"
#include "tools/daemon_report.h"

static void kvs_about_put(struct kvs_report *r, const char *name,
			  const char *value)
{
	/* JSON is UTF-8, and so is not every file of the system */
	json_t *v = json_string(value);

	kvs_report_line(r, json_pack("{s:s, s:o}", "name", name, "value",
				     v ? v : json_string("?")));
}

void kvs_report_build(struct kvs_report *r)
{
	struct utsname u;
	char text[512];

	kvs_about_put(r, "kvstaged", KVS_VERSION);
#ifdef __clang__
	kvs_about_put(r, "compiler", __VERSION__);
#else
	kvs_about_put(r, "compiler", "gcc " __VERSION__);
#endif
	kvs_about_put(r, "options", KVS_BUILD_OPTIONS);
#ifdef NDEBUG
	kvs_about_put(r, "NDEBUG", "yes");
#else
	kvs_about_put(r, "NDEBUG", "no");
#endif
	kvs_about_put(r, "jansson", jansson_version_str());
	kvs_about_put(r, "libevent", event_get_version());
	if (!uname(&u)) {
		snprintf(text, sizeof(text), "%s %s %s", u.sysname, u.release,
			 u.machine);
		kvs_about_put(r, "system", text);
	}
}

/* The first line of a small file. */
static int kvs_about_line(const char *path, char *buf, size_t len)
{
	FILE *f = fopen(path, "re");
	int ret = 0;

	if (!f)
		return -errno;
	if (!fgets(buf, (int)len, f))
		ret = -EIO;
	(void)fclose(f);
	if (!ret)
		buf[strcspn(buf, "\n")] = '\0';
	return ret;
}

static const char *kvs_about_rlim(rlim_t v, char *buf, size_t len)
{
	if (v == RLIM_INFINITY)
		return "unlimited";
	snprintf(buf, len, "%" PRIu64, (uint64_t)v);
	return buf;
}

static void kvs_about_rlimits(struct kvs_report *r)
{
	static const struct {
		int resource;
		const char *name;
	} v[] = {
		{ RLIMIT_MEMLOCK, "memlock" }, { RLIMIT_NOFILE, "nofile" },
		{ RLIMIT_AS, "as" },	       { RLIMIT_CORE, "core" },
		{ RLIMIT_NPROC, "nproc" },     { RLIMIT_RTPRIO, "rtprio" },
	};
	char soft[32], hard[32], text[96];
	struct rlimit l;
	size_t i;

	for (i = 0; i < KVS_ARRAY_SIZE(v); i++) {
		if (getrlimit(v[i].resource, &l))
			continue;
		snprintf(text, sizeof(text), "%s, hard %s",
			 kvs_about_rlim(l.rlim_cur, soft, sizeof(soft)),
			 kvs_about_rlim(l.rlim_max, hard, sizeof(hard)));
		kvs_about_put(r, v[i].name, text);
	}
}

/* Files that say what memory can be had; those that are there. */
static void kvs_about_files(struct kvs_report *r)
{
	static const char *const patterns[] = {
		"/sys/kernel/mm/hugepages/hugepages-*/nr_hugepages",
		"/sys/kernel/mm/hugepages/hugepages-*/free_hugepages",
		"/sys/kernel/mm/transparent_hugepage/shmem_enabled",
		"/sys/fs/cgroup/memory.max",
		"/proc/self/cgroup",
		"/proc/sys/kernel/io_uring_disabled",
		"/proc/sys/kernel/numa_balancing",
		"/proc/sys/net/ipv4/tcp_rmem",
		"/proc/sys/vm/overcommit_memory",
	};
	char line[256];
	size_t i, k;
	glob_t g;

	for (i = 0; i < KVS_ARRAY_SIZE(patterns); i++) {
		if (glob(patterns[i], 0, NULL, &g))
			continue;
		for (k = 0; k < g.gl_pathc; k++)
			if (!kvs_about_line(g.gl_pathv[k], line, sizeof(line)))
				kvs_about_put(r, g.gl_pathv[k], line);
		globfree(&g);
	}
}

void kvs_report_limits(struct kvs_report *r)
{
	kvs_about_rlimits(r);
	kvs_about_files(r);
}

void kvs_report_metrics(struct kvs_report *r)
{
	struct kvs_snapshot *s;
	char *text = NULL;
	size_t len;
	int ret;

	ret = kvs_daemon_snapshot(r->d, &s);
	if (!ret) {
		ret = kvs_metrics_text(s, &text, &len);
		free(s);
	}
	if (ret) {
		kvs_report_fail(r, ret, "%s", strerror(-ret));
		return;
	}
	kvs_report_line(r, json_pack("{s:s}", "text", text));
	free(text);
}
