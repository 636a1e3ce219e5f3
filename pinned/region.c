/* SPDX-License-Identifier: Apache-2.0 */
#include "pinned/region.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <numaif.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/err.h"
#include "pinned/placement.h"

#ifndef MFD_HUGE_SHIFT
#define MFD_HUGE_SHIFT 26
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define REGION_MAGIC 0x4b524547U
#define REGION_SIZE_MAX (1ULL << 62)
#define SIZE_MIN_DEFAULT (2ULL << 20)
/* Enough pages to notice a stray one, few enough for a terabyte of 4K. */
#define VERIFY_PAGES 65536
#define LOCK_STEP (256ULL << 20)
#define NAME_LEN_MAX 200

static const uint64_t huge_order[] = { KVS_PAGE_1G, KVS_PAGE_2M };

static uint64_t base_page(void)
{
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

const char *kvs_page_size_name(uint64_t page_size, char buf[16])
{
	if (page_size >= KVS_PAGE_1G)
		snprintf(buf, 16, "%uG", (unsigned int)(page_size >> 30));
	else if (page_size >= 1U << 20)
		snprintf(buf, 16, "%uM", (unsigned int)(page_size >> 20));
	else
		snprintf(buf, 16, "%uK", (unsigned int)(page_size >> 10));
	return buf;
}

static void say(char *buf, size_t len, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static void say(char *buf, size_t len, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(buf, len, fmt, ap);
	va_end(ap);
}

static void because(struct kvs_region *g, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

static void because(struct kvs_region *g, const char *fmt, ...)
{
	size_t used = strlen(g->why);
	va_list ap;

	if (used && used + 3 < sizeof(g->why)) {
		memcpy(g->why + used, "; ", 3);
		used += 2;
	}
	va_start(ap, fmt);
	vsnprintf(g->why + used, sizeof(g->why) - used, fmt, ap);
	va_end(ap);
}

static bool cancelled(const struct kvs_region_opts *o)
{
	return o->cancel && atomic_load(o->cancel);
}

static int open_memfd(const char *name, uint64_t page_size)
{
	unsigned int flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	char shown[NAME_LEN_MAX + 1];
	int fd;

	snprintf(shown, sizeof(shown), "%s", name ? name : "kvstage");
	if (page_size != base_page())
		flags |= MFD_HUGETLB | (unsigned int)__builtin_ctzll(page_size)
					       << MFD_HUGE_SHIFT;
	/* vm.memfd_noexec = 2 insists on it; kernels before 6.3 refuse it. */
	fd = memfd_create(shown, flags | MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(shown, flags);
	return fd < 0 ? -errno : fd;
}

static int map_region(struct kvs_region *g, char *err, size_t len)
{
	int r;

	if (ftruncate(g->fd, (off_t)g->size) < 0) {
		r = -errno;
		say(err, len, "cannot size the memfd to %" PRIu64 " bytes: %s",
		    g->size, strerror(-r));
		return r;
	}
	g->base = mmap(NULL, g->size, PROT_READ | PROT_WRITE, MAP_SHARED, g->fd,
		       0);
	if (g->base == MAP_FAILED) {
		r = -errno;
		g->base = NULL;
		say(err, len, "cannot map %" PRIu64 " bytes of host memory: %s",
		    g->size, strerror(-r));
		return r;
	}
	/*
	 * Advice only. A child or a core file must not carry the pool; where
	 * shmem_enabled is "advise", base pages become huge ones after all.
	 */
	(void)madvise(g->base, g->size, MADV_DONTFORK);
	(void)madvise(g->base, g->size, MADV_DONTDUMP);
	if (g->page_size == base_page())
		(void)madvise(g->base, g->size, MADV_HUGEPAGE);
	return 0;
}

static int bind_region(struct kvs_region *g, const struct kvs_region_opts *o,
		       const struct kvs_limits *lim, char *err, size_t len)
{
	unsigned long mask[KVS_MAX_NODES / (8 * sizeof(unsigned long))] = { 0 };
	char allowed[128];
	int e;

	if (g->node < 0)
		return 0;
	mask[(size_t)g->node / (8 * sizeof(long))] |=
		1UL << ((size_t)g->node % (8 * sizeof(long)));
	/* By number, never through the CPUs: a node need not have any. */
	if (!mbind(g->base, g->size, o->strict ? MPOL_BIND : MPOL_PREFERRED,
		   mask, KVS_MAX_NODES + 1, 0)) {
		g->bound = true;
		return 0;
	}
	e = errno;
	kvs_sysfs_list_print(lim->mems_allowed, KVS_MAX_NODES, allowed,
			     sizeof(allowed));
	if (o->strict) {
		say(err, len,
		    "cannot bind to NUMA node %d: mbind: %s (%s), "
		    "mems_allowed is %s",
		    g->node, kvs_err_name(e), strerror(e), allowed);
		return -ENXIO;
	}
	because(g,
		"unbound: preferred NUMA node %d refused by mbind: %s, "
		"mems_allowed is %s",
		g->node, kvs_err_name(e), allowed);
	KVS_WARN_ONCE(true,
		      "memory is not bound to NUMA node %d: mbind: %s (%s), "
		      "mems_allowed is %s",
		      g->node, kvs_err_name(e), strerror(e), allowed);
	return 0;
}

static int fill_region(struct kvs_region *g, const struct kvs_region_opts *o,
		       char *err, size_t len)
{
	const struct kvs_topology_node *n = NULL;
	struct kvs_prefault_opts p = {
		.threads = o->threads,
		.page_size = g->page_size,
		.file = g->fd,
		.file_set = true,
		.progress = o->progress,
		.progress_arg = o->progress_arg,
		.cancel = o->cancel,
	};
	int r;

	if (o->topology && g->node >= 0)
		n = kvs_topology_node_find(o->topology, g->node);
	if (n && CPU_COUNT(&n->cpus)) {
		p.cpus = &n->cpus;
		g->cpu_node = n->cpu_node;
	}
	r = kvs_prefault(g->base, g->size, &p, &g->prefault_ns);
	if (r == -ECANCELED)
		say(err, len, "cancelled while populating");
	else if (r < 0)
		say(err, len,
		    "populating %" PRIu64 " bytes of host memory failed: %s",
		    g->size, strerror(-r));
	return r;
}

static int lock_region(struct kvs_region *g, const struct kvs_region_opts *o,
		       char *err, size_t len)
{
	uint64_t off, n;
	int r;

	g->locked = g->page_size != base_page();
	if (g->locked || !o->lock)
		return 0;
	/* In steps, so that a cancel request is seen. */
	for (off = 0; off < g->size; off += n) {
		if (cancelled(o)) {
			say(err, len, "cancelled while locking");
			return -ECANCELED;
		}
		n = g->size - off < LOCK_STEP ? g->size - off : LOCK_STEP;
		if (!mlock((char *)g->base + off, n))
			continue;
		r = errno == ENOMEM || errno == EPERM ? -EDQUOT : -errno;
		say(err, len,
		    "locking %" PRIu64 " bytes of host memory failed: %s "
		    "(RLIMIT_MEMLOCK)",
		    g->size, strerror(errno));
		return r;
	}
	g->locked = true;
	return 0;
}

/* The seal as others meet it: some kernels take it and do not enforce it. */
static bool others_can_write(const struct kvs_region *g)
{
	void *p = mmap(NULL, g->page_size, PROT_READ | PROT_WRITE, MAP_SHARED,
		       g->fd, 0);

	if (p == MAP_FAILED)
		return false;
	munmap(p, g->page_size);
	return true;
}

static int seal_region(struct kvs_region *g, enum kvs_region_kind kind,
		       char *err, size_t len)
{
	int r, seals = F_SEAL_SHRINK | F_SEAL_GROW;

	if (kind == KVS_REGION_RECEIVE) {
		if (!fcntl(g->fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE))
			g->write_sealed = !others_can_write(g);
		if (!g->write_sealed)
			because(g,
				"this kernel does not seal such memory "
				"against writing: who gets the descriptor is "
				"trusted");
	}
	if (!fcntl(g->fd, F_ADD_SEALS, seals | F_SEAL_SEAL))
		return 0;
	r = -errno;
	say(err, len, "cannot seal the memfd: %s", strerror(-r));
	return r;
}

static int verify_region(struct kvs_region *g, const struct kvs_region_opts *o,
			 char *err, size_t len)
{
	struct kvs_placement *pl;
	int r;

	if (g->node < 0)
		return 0;
	pl = malloc(sizeof(*pl));
	if (!pl)
		return -ENOMEM;
	r = kvs_placement_verify(g->base, g->size, g->page_size, g->node,
				 o->strict, VERIFY_PAGES, pl);
	if (r == -EPERM || r == -ENOSYS || r == -EACCES) {
		/* The policy was taken; a sandbox hides the answer. */
		because(g, "placement not verified: move_pages: %s",
			kvs_err_name(r));
		r = 0;
	} else if (r == -ENXIO) {
		say(err, len,
		    "%" PRIu64 " of %" PRIu64 " pages looked at are not on "
		    "NUMA node %d",
		    pl->checked - pl->per_node[g->node], pl->checked, g->node);
	} else if (!r) {
		g->verified = pl->per_node[g->node] == pl->checked;
		if (!g->verified)
			because(g,
				"%" PRIu64 " of %" PRIu64 " pages looked at "
				"are not on NUMA node %d",
				pl->checked - pl->per_node[g->node],
				pl->checked, g->node);
	} else {
		say(err, len, "cannot ask for page placement: %s",
		    strerror(-r));
	}
	free(pl);
	return r;
}

static void drop_memory(struct kvs_region *g)
{
	if (g->base)
		munmap(g->base, g->size);
	if (g->fd >= 0)
		close(g->fd);
	g->base = NULL;
	g->fd = -1;
	g->bound = g->write_sealed = g->locked = g->verified = false;
	g->cpu_node = -1;
}

/* One size, one page size. Leaves @g without memory on failure. */
static int attempt(struct kvs_region *g, const struct kvs_region_opts *o,
		   uint64_t size, uint64_t page_size, char *err, size_t len)
{
	struct kvs_limits_want want = {
		.page_size = page_size,
		.needs_lock = o->lock,
		.node = o->strict ? o->node : -1,
		.setting = o->setting,
	};
	struct kvs_limits lim;
	size_t said = strlen(g->why);
	int r;

	g->page_size = page_size;
	g->size = (size + page_size - 1) / page_size * page_size;
	want.bytes = g->size;
	r = kvs_limits_read(o->root, &lim);
	if (r < 0) {
		say(err, len, "cannot read limits: %s", strerror(-r));
		return r;
	}
	r = kvs_limits_check(&lim, &want, err, len);
	if (r < 0)
		goto out;
	r = open_memfd(o->name, page_size);
	if (r < 0) {
		say(err, len, "memfd_create: %s", strerror(-r));
		goto out;
	}
	g->fd = r;
	r = map_region(g, err, len);
	if (!r)
		r = bind_region(g, o, &lim, err, len);
	if (!r)
		r = fill_region(g, o, err, len);
	if (!r)
		r = lock_region(g, o, err, len);
	if (!r)
		r = seal_region(g, o->kind, err, len);
	if (!r)
		r = verify_region(g, o, err, len);
	if (r < 0) {
		drop_memory(g);
		g->why[said] = '\0';
	}
	/* Where the kernel says so late what the check looks for early. */
	if (r == -EFAULT)
		r = -ENOMEM;
out:
	kvs_limits_fini(&lim);
	return r;
}

static bool wasteful(uint64_t size, uint64_t page_size)
{
	uint64_t over = size % page_size;

	return over && page_size - over > size / 16;
}

/* All page sizes for one size. @err is about the last one tried. */
static int attempt_pages(struct kvs_region *g, const struct kvs_region_opts *o,
			 uint64_t size, char *err, size_t len)
{
	uint64_t max = o->page_size_max ? o->page_size_max : KVS_PAGE_1G, p;
	const char *why;
	char name[16];
	size_t i;
	int r;

	for (i = 0; i < KVS_ARRAY_SIZE(huge_order); i++) {
		p = huge_order[i];
		kvs_page_size_name(p, name);
		if (p > max)
			continue;
		if (wasteful(size, p)) {
			because(g,
				"no %s pages: rounding up would waste memory",
				name);
			continue;
		}
		r = attempt(g, o, size, p, err, len);
		if (!r || r == -ECANCELED || r == -ENXIO)
			return r;
		why = strstr(err, "but ");
		because(g, "no %s pages: %s", name, why ? why + 4 : err);
	}
	return attempt(g, o, size, base_page(), err, len);
}

static int check_opts(const struct kvs_region_opts *o)
{
	if (!o->size || o->size > REGION_SIZE_MAX || o->node < -1 ||
	    o->node >= KVS_MAX_NODES)
		return -EINVAL;
	if (o->page_size_max && o->page_size_max != KVS_PAGE_1G &&
	    o->page_size_max != KVS_PAGE_2M && o->page_size_max != base_page())
		return -EINVAL;
	if (o->strict && o->node < 0)
		return -EINVAL;
	return 0;
}

static void summary(struct kvs_region *g, const struct kvs_region_opts *o)
{
	char reasons[sizeof(g->why)], page[16], where[64] = "any NUMA node";

	memcpy(reasons, g->why, sizeof(reasons));
	kvs_page_size_name(g->page_size, page);
	if (g->node >= 0 && g->cpu_node >= 0 && g->cpu_node != g->node)
		snprintf(where, sizeof(where),
			 "NUMA node %d (populated from node %d)", g->node,
			 g->cpu_node);
	else if (g->node >= 0)
		snprintf(where, sizeof(where), "NUMA node %d", g->node);
	g->why[0] = '\0';
	because(g, "%" PRIu64 " bytes on %s, %s pages", g->size, where, page);
	if (g->size < o->size)
		because(g, "smaller than the %" PRIu64 " bytes asked for",
			o->size);
	if (reasons[0])
		because(g, "%s", reasons);
}

int kvs_region_create(const struct kvs_region_opts *opts,
		      struct kvs_region **ret_region)
{
	char *err = opts->err, scratch[KVS_REGION_ERR_MAX] = "";
	size_t len = opts->err_len;
	struct kvs_region *g;
	uint64_t size = opts->size, min;
	int r = check_opts(opts);

	if (!err || !len) {
		err = scratch;
		len = sizeof(scratch);
	}
	if (r < 0) {
		say(err, len,
		    "%s: size %" PRIu64 ", node %d or page size %" PRIu64
		    " is out of range",
		    opts->setting ? opts->setting : "pool.size", opts->size,
		    opts->node, opts->page_size_max);
		return r;
	}
	g = calloc(1, sizeof(*g));
	if (!g)
		return -ENOMEM;
	g->fd = -1;
	g->node = opts->node;
	g->cpu_node = -1;
	min = opts->size_min ? opts->size_min : SIZE_MIN_DEFAULT;
	for (;;) {
		r = attempt_pages(g, opts, size, err, len);
		if (!opts->allow_smaller || (r != -ENOMEM && r != -EDQUOT) ||
		    size / 2 < min)
			break;
		size /= 2;
		g->why[0] = '\0';
	}
	if (r < 0) {
		free(g);
		return r;
	}
	g->magic = REGION_MAGIC;
	summary(g, opts);
	*ret_region = g;
	return 0;
}

void kvs_region_destroy(struct kvs_region *region)
{
	if (!region)
		return;
	KVS_CHECK_MAGIC(region, REGION_MAGIC);
	region->magic = 0;
	drop_memory(region);
	free(region);
}
