/* SPDX-License-Identifier: Apache-2.0 */
#include "pinned/limits_cgroup.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* v1 writes "no limit" as the largest page count in bytes. */
#define CG_UNLIMITED (1ULL << 62)

/**
 * struct place - our group in one hierarchy
 * @dir: our group's directory, without the root prefix; cut on the way up
 * @floor: length of the mount point: the walk ends there
 * @v2: unified hierarchy
 * @hugetlb: mounted with memory_hugetlb_accounting
 */
struct place {
	char dir[PATH_MAX];
	size_t floor;
	bool v2;
	bool hugetlb;
};

/* Reads one group and narrows @ret; @dir is without the root prefix. */
typedef int (*visit_fn)(const char *root, const struct place *p,
			const char *arg, struct kvs_limits_cgroup *ret);

static bool has_token(const char *list, const char *token)
{
	size_t n = strlen(token);
	const char *p = list;

	while (*p) {
		if (!strncmp(p, token, n) && (!p[n] || p[n] == ','))
			return true;
		p += strcspn(p, ",");
		p += *p == ',';
	}
	return false;
}

/* Mount points write blanks as \040 and the like. */
static void unescape(char *s)
{
	char *out = s;

	for (; *s; s++) {
		if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' &&
		    s[2] <= '7' && s[3] >= '0' && s[3] <= '7') {
			*out++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 |
					(s[3] - '0'));
			s += 3;
		} else {
			*out++ = *s;
		}
	}
	*out = '\0';
}

/* Our path in the hierarchy of @controller, from /proc/self/cgroup. */
static bool own_path(char *text, const char *controller, bool v2, char *path,
		     size_t len)
{
	char *line, *save = NULL, *ctrl, *p;

	for (line = strtok_r(text, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save)) {
		ctrl = strchr(line, ':');
		if (!ctrl)
			continue;
		*ctrl++ = '\0';
		p = strchr(ctrl, ':');
		if (!p || strlen(p + 1) >= len)
			continue;
		*p++ = '\0';
		if (v2 ? strcmp(line, "0") != 0 || *ctrl
		       : !has_token(ctrl, controller))
			continue;
		memcpy(path, p, strlen(p) + 1);
		return true;
	}
	return false;
}

/*
 * What of @path lies below @mnt_root, the part of the hierarchy that is
 * mounted. A path outside of it ("/..", or the host's path seen through a
 * container's mount) leaves the mount point itself.
 */
static const char *below(const char *path, const char *mnt_root)
{
	size_t n = strlen(mnt_root);

	if (n == 1)
		n = 0;
	if (strncmp(path, mnt_root, n) != 0 || (path[n] && path[n] != '/'))
		return NULL;
	if (strstr(path, "/../") || !strncmp(path + n, "/..", 3))
		return NULL;
	return strcmp(path + n, "/") ? path + n : "";
}

/* Fields of one mountinfo line; false when it is of no interest. */
static bool parse_mount(char *line, const char *controller, bool v2,
			char **ret_root, char **ret_point, bool *ret_hugetlb)
{
	char *f[6], *save = NULL, *tail = strstr(line, " - "), *type, *opts;
	int i;

	if (!tail)
		return false;
	*tail = '\0';
	for (i = 0; i < 6; i++) {
		f[i] = strtok_r(i ? NULL : line, " ", &save);
		if (!f[i])
			return false;
	}
	type = strtok_r(tail + 3, " ", &save);
	if (!type || !strtok_r(NULL, " ", &save))
		return false;
	opts = strtok_r(NULL, " ", &save);
	if (strcmp(type, v2 ? "cgroup2" : "cgroup") != 0 ||
	    (!v2 && (!opts || !has_token(opts, controller))))
		return false;
	unescape(f[3]);
	unescape(f[4]);
	*ret_root = f[3];
	*ret_point = f[4];
	*ret_hugetlb = opts && has_token(opts, "memory_hugetlb_accounting");
	return true;
}

static bool locate(const char *root, const char *controller, bool v2,
		   struct place *p)
{
	char path[PATH_MAX], *text, *line, *save = NULL, *mroot, *point;
	bool found = false, exact = false, hugetlb;
	const char *rel;
	int n;

	if (kvs_sysfs_read(root, "/proc/self/cgroup", &text) < 0)
		return false;
	found = own_path(text, controller, v2, path, sizeof(path));
	free(text);
	if (!found || kvs_sysfs_read(root, "/proc/self/mountinfo", &text) < 0)
		return false;
	found = false;
	for (line = strtok_r(text, "\n", &save); line && !exact;
	     line = strtok_r(NULL, "\n", &save)) {
		if (!parse_mount(line, controller, v2, &mroot, &point,
				 &hugetlb))
			continue;
		rel = below(path, mroot);
		/* A later mount is better only when it shows our group. */
		if (found && !rel)
			continue;
		n = snprintf(p->dir, sizeof(p->dir), "%s%s", point,
			     rel ? rel : "");
		if (n < 0 || (size_t)n >= sizeof(p->dir))
			continue;
		p->floor = strlen(point);
		p->v2 = v2;
		p->hugetlb = hugetlb;
		found = true;
		exact = rel;
	}
	free(text);
	return found;
}

static int get_u64(const char *root, const struct place *p, const char *file,
		   uint64_t *ret)
{
	char path[PATH_MAX];
	int n = snprintf(path, sizeof(path), "%s/%s", p->dir, file);

	if (n < 0 || (size_t)n >= sizeof(path))
		return -ENAMETOOLONG;
	return kvs_sysfs_u64(root, path, ret);
}

/* Keeps the tighter of what @ret has and (@limit, @charge). */
static int narrow(struct kvs_limits_cgroup *ret, const struct place *p,
		  const char *file, uint64_t limit, uint64_t charge)
{
	uint64_t room = limit > charge ? limit - charge : 0;
	char *path;

	if (limit >= CG_UNLIMITED)
		return 0;
	if (ret->path &&
	    (room > ret->room || (room == ret->room && limit >= ret->limit)))
		return 0;
	if (asprintf(&path, "%s/%s", p->dir, file) < 0)
		return -ENOMEM;
	free(ret->path);
	ret->path = path;
	ret->limit = limit;
	ret->charge = charge;
	ret->room = room;
	return 0;
}

static int visit_memory(const char *root, const struct place *p,
			const char *arg, struct kvs_limits_cgroup *ret)
{
	const char *const limits[2][2] = {
		{ "memory.limit_in_bytes", NULL },
		{ "memory.max", "memory.high" },
	};
	uint64_t charge = 0, inactive = 0, active = 0, limit;
	char path[PATH_MAX], *stat;
	int i, n, r;

	(void)arg;
	get_u64(root, p, p->v2 ? "memory.current" : "memory.usage_in_bytes",
		&charge);
	n = snprintf(path, sizeof(path), "%s/memory.stat", p->dir);
	if (n < 0 || (size_t)n >= sizeof(path))
		return 0;
	if (kvs_sysfs_read(root, path, &stat) < 0)
		stat = NULL;
	if (stat) {
		kvs_sysfs_field(
			stat, p->v2 ? "inactive_file " : "total_inactive_file ",
			&inactive);
		kvs_sysfs_field(stat,
				p->v2 ? "active_file " : "total_active_file ",
				&active);
	}
	/* The two are read at different times: never below zero. */
	if (inactive > charge)
		inactive = charge;
	charge -= inactive;
	charge -= active < charge ? active : charge;
	r = 0;
	for (i = 0; i < 2 && limits[p->v2][i] && !r; i++)
		if (!get_u64(root, p, limits[p->v2][i], &limit))
			r = narrow(ret, p, limits[p->v2][i], limit, charge);
	/* At the top, v1 tells of parents that a container does not see. */
	if (!r && stat && !p->v2 && strlen(p->dir) <= p->floor &&
	    !kvs_sysfs_field(stat, "hierarchical_memory_limit ", &limit) &&
	    limit < (ret->path ? ret->limit : KVS_LIMIT_NONE))
		r = narrow(ret, p, "memory.stat:hierarchical_memory_limit",
			   limit, charge);
	free(stat);
	return r;
}

static int visit_hugetlb(const char *root, const struct place *p,
			 const char *arg, struct kvs_limits_cgroup *ret)
{
	/* Faults are charged to the first pair, reservations to the second. */
	static const char *const kinds[] = { "", "rsvd." };
	char lim[64], use[64];
	uint64_t limit, charge;
	size_t i;
	int r = 0;

	for (i = 0; i < 2 && !r; i++) {
		snprintf(lim, sizeof(lim), "hugetlb.%s.%s%s", arg, kinds[i],
			 p->v2 ? "max" : "limit_in_bytes");
		snprintf(use, sizeof(use), "hugetlb.%s.%s%s", arg, kinds[i],
			 p->v2 ? "current" : "usage_in_bytes");
		charge = 0;
		get_u64(root, p, use, &charge);
		if (!get_u64(root, p, lim, &limit))
			r = narrow(ret, p, lim, limit, charge);
	}
	return r;
}

static int walk(const char *root, struct place *p, visit_fn visit,
		const char *arg, struct kvs_limits_cgroup *ret)
{
	char *slash;
	int r;

	for (;;) {
		r = visit(root, p, arg, ret);
		if (r < 0 || strlen(p->dir) <= p->floor)
			return r;
		slash = strrchr(p->dir, '/');
		if (!slash)
			return 0;
		*slash = '\0';
	}
}

static int tightest(const char *root, const char *controller, visit_fn visit,
		    const char *arg, struct kvs_limits_cgroup *ret,
		    bool *ret_hugetlb)
{
	struct place *p = malloc(sizeof(*p));
	int i, r = 0;

	if (!p)
		return -ENOMEM;
	*ret = (struct kvs_limits_cgroup){ .limit = KVS_LIMIT_NONE,
					   .room = KVS_LIMIT_NONE };
	*ret_hugetlb = false;
	for (i = 0; i < 2 && !r; i++) {
		if (!locate(root, controller, i, p))
			continue;
		*ret_hugetlb |= p->hugetlb;
		r = walk(root, p, visit, arg, ret);
	}
	free(p);
	if (r < 0) {
		free(ret->path);
		ret->path = NULL;
	}
	return r;
}

int kvs_limits_cgroup_memory(const char *root, struct kvs_limits_cgroup *ret,
			     bool *ret_hugetlb)
{
	return tightest(root, "memory", visit_memory, NULL, ret, ret_hugetlb);
}

int kvs_limits_cgroup_hugetlb(const char *root, const char *size,
			      struct kvs_limits_cgroup *ret)
{
	bool unused;

	return tightest(root, "hugetlb", visit_hugetlb, size, ret, &unused);
}
