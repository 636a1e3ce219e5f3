/* SPDX-License-Identifier: Apache-2.0 */
#include "pinned/limits.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/units.h"
#include "pinned/limits_cgroup.h"

#define WANT_MAX (1ULL << 62)

static const struct {
	uint64_t bytes;
	const char *name; /* in messages */
	const char *cgroup; /* in hugetlb cgroup file names */
} huge_sizes[] = {
	[KVS_LIMITS_2M] = { KVS_PAGE_2M, "2M", "2MB" },
	[KVS_LIMITS_1G] = { KVS_PAGE_1G, "1G", "1GB" },
};
_Static_assert(KVS_ARRAY_SIZE(huge_sizes) == KVS_LIMITS_HUGE_MAX,
	       "a row per huge page size");

static uint64_t add_sat(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t field_kb(const char *text, const char *key)
{
	uint64_t kb;

	if (kvs_sysfs_field(text, key, &kb) < 0)
		return 0;
	return kb > UINT64_MAX / 1024 ? UINT64_MAX : kb * 1024;
}

/* "Max locked memory  SOFT  HARD  bytes" of /proc/self/limits */
static void read_memlock(const char *root, struct kvs_limits *lim)
{
	uint64_t *const out[] = { &lim->memlock_soft, &lim->memlock_hard };
	unsigned long long v;
	const char *p;
	char *text, *end;
	size_t i;

	lim->memlock_soft = lim->memlock_hard = KVS_LIMIT_NONE;
	if (kvs_sysfs_read(root, "/proc/self/limits", &text) < 0)
		return;
	p = kvs_sysfs_value(text, "Max locked memory");
	for (i = 0; p && i < KVS_ARRAY_SIZE(out); i++) {
		p += strspn(p, " \t");
		if (!strncmp(p, "unlimited", 9)) {
			p += 9;
			continue;
		}
		errno = 0;
		v = strtoull(p, &end, 10);
		if (errno || end == p)
			break;
		*out[i] = v;
		p = end;
	}
	free(text);
}

/* The kernel asks for the capability in the first user namespace. */
static bool first_userns(const char *root)
{
	unsigned long long in, out, count;
	char *text;
	bool first;

	if (kvs_sysfs_read(root, "/proc/self/uid_map", &text) < 0)
		return true;
	first = sscanf(text, "%llu %llu %llu", &in, &out, &count) == 3 && !in &&
		!out && count == UINT32_MAX;
	free(text);
	return first;
}

static void read_status(const char *root, struct kvs_limits *lim)
{
	uint64_t pinned, locked;
	const char *v;
	char *text;

	memset(lim->mems_allowed, 0xff, sizeof(lim->mems_allowed));
	if (kvs_sysfs_read(root, "/proc/self/status", &text) < 0)
		return;
	v = kvs_sysfs_value(text, "CapEff:");
	lim->memlock_bypass = v &&
			      (strtoull(v, NULL, 16) >> CAP_IPC_LOCK & 1) &&
			      first_userns(root);
	/* mlock and registration each count by themselves. */
	locked = field_kb(text, "VmLck:");
	pinned = field_kb(text, "VmPin:");
	lim->memlock_used = locked > pinned ? locked : pinned;
	v = kvs_sysfs_value(text, "Mems_allowed_list:");
	if (v && kvs_sysfs_list(v, lim->mems_allowed, KVS_MAX_NODES) < 0)
		memset(lim->mems_allowed, 0xff, sizeof(lim->mems_allowed));
	free(text);
}

static uint64_t huge_file(const char *root, uint64_t page_size,
			  const char *file)
{
	char path[128];
	uint64_t v = 0;

	snprintf(path, sizeof(path),
		 "/sys/kernel/mm/hugepages/hugepages-%" PRIu64 "kB/%s",
		 page_size / 1024, file);
	if (kvs_sysfs_u64(root, path, &v) < 0)
		return 0;
	return v;
}

static int read_huge(const char *root, enum kvs_limits_huge_size i,
		     struct kvs_limits_huge *h)
{
	uint64_t freep, resv, over, surplus, total;
	char path[128];

	h->page_size = huge_sizes[i].bytes;
	snprintf(path, sizeof(path),
		 "/sys/kernel/mm/hugepages/hugepages-%" PRIu64
		 "kB/nr_hugepages",
		 h->page_size / 1024);
	h->supported = !kvs_sysfs_u64(root, path, &total);
	freep = huge_file(root, h->page_size, "free_hugepages");
	resv = huge_file(root, h->page_size, "resv_hugepages");
	over = huge_file(root, h->page_size, "nr_overcommit_hugepages");
	surplus = huge_file(root, h->page_size, "surplus_hugepages");
	h->overcommit = over > surplus ? over - surplus : 0;
	h->free = add_sat(freep > resv ? freep - resv : 0, h->overcommit);
	return kvs_limits_cgroup_hugetlb(root, huge_sizes[i].cgroup,
					 &h->cgroup);
}

static void read_node(const char *root, unsigned int index,
		      struct kvs_limits_node *n)
{
	char path[160], key[64], *text;
	uint64_t file;
	size_t i;

	n->node = (int)index;
	for (i = 0; i < KVS_LIMITS_HUGE_MAX; i++) {
		snprintf(path, sizeof(path),
			 "/sys/devices/system/node/node%u/hugepages/"
			 "hugepages-%" PRIu64 "kB/free_hugepages",
			 index, huge_sizes[i].bytes / 1024);
		if (kvs_sysfs_u64(root, path, &n->huge_free[i]) < 0)
			n->huge_free[i] = 0;
	}
	snprintf(path, sizeof(path), "/sys/devices/system/node/node%u/meminfo",
		 index);
	if (kvs_sysfs_read(root, path, &text) < 0)
		return;
	snprintf(key, sizeof(key), "Node %u MemFree:", index);
	n->mem_free = field_kb(text, key);
	snprintf(key, sizeof(key), "Node %u Active(file):", index);
	file = field_kb(text, key);
	snprintf(key, sizeof(key), "Node %u Inactive(file):", index);
	file = add_sat(file, field_kb(text, key));
	snprintf(key, sizeof(key), "Node %u SReclaimable:", index);
	file = add_sat(file, field_kb(text, key));
	n->mem_avail = add_sat(n->mem_free, file);
	free(text);
}

static int read_nodes(const char *root, struct kvs_limits *lim)
{
	uint64_t online[KVS_MASK_WORDS(KVS_MAX_NODES)];
	size_t n = 0;
	unsigned int i;
	char *text;
	int r;

	if (kvs_sysfs_read(root, "/sys/devices/system/node/online", &text) < 0)
		return 0; /* a kernel without NUMA */
	r = kvs_sysfs_list(text, online, KVS_MAX_NODES);
	free(text);
	if (r < 0)
		return 0;
	for (i = 0; i < KVS_MAX_NODES; i++)
		n += kvs_mask_test(online, i);
	if (!n)
		return 0;
	lim->nodes = calloc(n, sizeof(*lim->nodes));
	if (!lim->nodes)
		return -ENOMEM;
	for (i = 0; i < KVS_MAX_NODES; i++)
		if (kvs_mask_test(online, i))
			read_node(root, i, &lim->nodes[lim->n_nodes++]);
	return 0;
}

int kvs_limits_read(const char *root, struct kvs_limits *ret)
{
	struct kvs_limits lim = { 0 };
	char *text;
	size_t i;
	int r;

	if (!root)
		root = "";
	r = kvs_sysfs_read(root, "/proc/meminfo", &text);
	if (r < 0)
		return r;
	lim.mem_available = field_kb(text, "MemAvailable:");
	free(text);
	read_memlock(root, &lim);
	read_status(root, &lim);
	r = kvs_limits_cgroup_memory(root, &lim.memory,
				     &lim.memory_has_hugetlb);
	for (i = 0; i < KVS_LIMITS_HUGE_MAX && !r; i++)
		r = read_huge(root, (enum kvs_limits_huge_size)i, &lim.huge[i]);
	if (!r)
		r = read_nodes(root, &lim);
	if (r < 0) {
		kvs_limits_fini(&lim);
		return r;
	}
	*ret = lim;
	return 0;
}

void kvs_limits_fini(struct kvs_limits *lim)
{
	size_t i;

	free(lim->memory.path);
	for (i = 0; i < KVS_LIMITS_HUGE_MAX; i++)
		free(lim->huge[i].cgroup.path);
	free(lim->nodes);
	memset(lim, 0, sizeof(*lim));
}

/* Context of one check, so that each limit's message is one call. */
struct check {
	const struct kvs_limits *lim;
	const struct kvs_limits_want *want;
	const char *setting;
	char size[KVS_UNITS_BUF];
	char *errbuf;
	size_t len;
};

static int refuse(const struct check *c, int err, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static int refuse(const struct check *c, int err, const char *fmt, ...)
{
	va_list ap;
	int n;

	if (!c->errbuf || !c->len)
		return err;
	n = snprintf(c->errbuf, c->len,
		     "%s: %s (%" PRIu64 " bytes) of host memory requested, ",
		     c->setting, c->size, c->want->bytes);
	if (n < 0 || (size_t)n >= c->len)
		return err;
	va_start(ap, fmt);
	vsnprintf(c->errbuf + n, c->len - (size_t)n, fmt, ap);
	va_end(ap);
	return err;
}

static const struct kvs_limits_node *find_node(const struct kvs_limits *lim,
					       int node)
{
	size_t i;

	for (i = 0; i < lim->n_nodes; i++)
		if (lim->nodes[i].node == node)
			return &lim->nodes[i];
	return NULL;
}

static int check_node(const struct check *c)
{
	int node = c->want->node;
	char list[128];

	if (node < 0 ||
	    (node < KVS_MAX_NODES &&
	     kvs_mask_test(c->lim->mems_allowed, (unsigned int)node)))
		return 0;
	kvs_sysfs_list_print(c->lim->mems_allowed, KVS_MAX_NODES, list,
			     sizeof(list));
	return refuse(c, -ENXIO,
		      "but NUMA node %d is not allowed (ENXIO: %s): "
		      "mems_allowed is %s",
		      node, strerror(ENXIO), list);
}

static int check_memlock(const struct check *c)
{
	const struct kvs_limits *lim = c->lim;
	char soft[24] = "unlimited", hard[24] = "unlimited";

	if (!c->want->needs_lock || lim->memlock_bypass ||
	    lim->memlock_soft == KVS_LIMIT_NONE ||
	    add_sat(c->want->bytes, lim->memlock_used) <= lim->memlock_soft)
		return 0;
	snprintf(soft, sizeof(soft), "%" PRIu64, lim->memlock_soft);
	if (lim->memlock_hard != KVS_LIMIT_NONE)
		snprintf(hard, sizeof(hard), "%" PRIu64, lim->memlock_hard);
	return refuse(c, -EDQUOT,
		      "but the locked-memory limit (RLIMIT_MEMLOCK) is %s "
		      "bytes soft, %s bytes hard, %" PRIu64 " bytes locked "
		      "already; set LimitMEMLOCK=infinity in the unit (ulimit "
		      "-l unlimited) or lower %s",
		      soft, hard, lim->memlock_used, c->setting);
}

/*
 * What else the kernel allocates for shared base pages: page tables (1/512)
 * and the file's index (about 1/450).
 */
static uint64_t with_overhead(uint64_t bytes)
{
	return bytes + bytes / 240;
}

static int check_cgroup(const struct check *c, const char *what,
			const struct kvs_limits_cgroup *cg, uint64_t need)
{
	if (cg->limit == KVS_LIMIT_NONE || need <= cg->room)
		return 0;
	return refuse(c, -EDQUOT,
		      "but the %s cgroup's effective limit is %" PRIu64
		      " bytes (%s), %" PRIu64 " bytes of it in use and not "
		      "reclaimable, %" PRIu64 " needed; raise that limit or "
		      "lower %s",
		      what, cg->limit, cg->path ? cg->path : "?", cg->charge,
		      need, c->setting);
}

static int check_base(const struct check *c)
{
	uint64_t need = with_overhead(c->want->bytes);
	const struct kvs_limits_node *n = NULL;
	int r;

	r = check_cgroup(c, "memory", &c->lim->memory, need);
	if (r < 0)
		return r;
	if (need > c->lim->mem_available)
		return refuse(c, -ENOMEM,
			      "but only %" PRIu64 " bytes of host memory are "
			      "available (MemAvailable); lower %s",
			      c->lim->mem_available, c->setting);
	/*
	 * With one node MemAvailable says it all; kernels that bring up their
	 * memory lazily show too little in the node's own file.
	 */
	if (c->want->node >= 0 && c->lim->n_nodes > 1)
		n = find_node(c->lim, c->want->node);
	if (n && c->want->bytes > n->mem_avail)
		return refuse(c, -ENOMEM,
			      "but only %" PRIu64 " bytes of host memory are "
			      "available on NUMA node %d; lower %s or choose "
			      "another node",
			      n->mem_avail, n->node, c->setting);
	return 0;
}

static int check_huge(const struct check *c, enum kvs_limits_huge_size i)
{
	const struct kvs_limits_huge *h = &c->lim->huge[i];
	const struct kvs_limits_node *n = NULL;
	uint64_t need = c->want->bytes / h->page_size, have = h->free;
	const char *name = huge_sizes[i].name;
	char where[32] = "";
	int r;

	if (!h->supported)
		return refuse(c, -ENOMEM,
			      "but the kernel has no %s huge pages: %" PRIu64
			      " needed, 0 available",
			      name, need);
	if (c->want->node >= 0)
		n = find_node(c->lim, c->want->node);
	if (n && add_sat(n->huge_free[i], h->overcommit) < have) {
		have = add_sat(n->huge_free[i], h->overcommit);
		snprintf(where, sizeof(where), " on NUMA node %d", n->node);
	}
	if (need > have)
		return refuse(c, -ENOMEM,
			      "but %" PRIu64 " huge pages of %s are needed and "
			      "%" PRIu64 " available%s (vm.nr_hugepages)",
			      need, name, have, where);
	r = check_cgroup(c, "hugetlb", &h->cgroup, c->want->bytes);
	if (!r && c->lim->memory_has_hugetlb)
		r = check_cgroup(c, "memory", &c->lim->memory, c->want->bytes);
	return r;
}

int kvs_limits_check(const struct kvs_limits *lim,
		     const struct kvs_limits_want *want, char *errbuf,
		     size_t len)
{
	struct check c = {
		.lim = lim,
		.want = want,
		.setting = want->setting ? want->setting : "pool.size",
		.errbuf = errbuf,
		.len = len,
	};
	uint64_t base = (uint64_t)sysconf(_SC_PAGESIZE);
	size_t i;
	int r;

	if (!want->bytes || want->bytes > WANT_MAX || !want->page_size ||
	    want->bytes % want->page_size)
		return -EINVAL;
	kvs_format_size(want->bytes, c.size);
	r = check_node(&c);
	if (!r)
		r = check_memlock(&c);
	if (r < 0)
		return r;
	if (want->page_size == base)
		return check_base(&c);
	for (i = 0; i < KVS_LIMITS_HUGE_MAX; i++)
		if (want->page_size == huge_sizes[i].bytes)
			return check_huge(&c, (enum kvs_limits_huge_size)i);
	return -EINVAL;
}
