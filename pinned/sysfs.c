/* SPDX-License-Identifier: Apache-2.0 */
#include "pinned/sysfs.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SYSFS_MAX (4U << 20)

static int read_all(int fd, char **ret_buf)
{
	size_t cap = 4096, used = 0;
	char *buf = malloc(cap), *p;
	ssize_t n;
	int r;

	if (!buf)
		return -ENOMEM;
	for (;;) {
		/* The files have no useful st_size: read until the end. */
		n = read(fd, buf + used, cap - used - 1);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			r = -errno;
			free(buf);
			return r;
		}
		if (n == 0)
			break;
		used += (size_t)n;
		if (cap - used > 1)
			continue;
		if (cap >= SYSFS_MAX) {
			free(buf);
			return -EFBIG;
		}
		cap *= 2;
		p = realloc(buf, cap);
		if (!p) {
			free(buf);
			return -ENOMEM;
		}
		buf = p;
	}
	buf[used] = '\0';
	*ret_buf = buf;
	return 0;
}

int kvs_sysfs_read(const char *root, const char *path, char **ret_buf)
{
	char full[PATH_MAX];
	int n, fd;

	n = snprintf(full, sizeof(full), "%s%s", root ? root : "", path);
	if (n < 0 || (size_t)n >= sizeof(full))
		return -ENAMETOOLONG;
	fd = open(full, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	n = read_all(fd, ret_buf);
	close(fd);
	return n;
}

static int parse_u64(const char *s, uint64_t *ret)
{
	unsigned long long v;
	char *end;

	while (*s == ' ' || *s == '\t')
		s++;
	if (!strncmp(s, "max", 3)) {
		*ret = UINT64_MAX;
		return 0;
	}
	if (!isdigit((unsigned char)*s))
		return -EINVAL;
	errno = 0;
	v = strtoull(s, &end, 10);
	if (errno)
		return -EINVAL;
	*ret = v;
	return 0;
}

int kvs_sysfs_u64(const char *root, const char *path, uint64_t *ret)
{
	char *buf = NULL;
	int r = kvs_sysfs_read(root, path, &buf);

	if (!buf)
		return r;
	r = parse_u64(buf, ret);
	free(buf);
	return r;
}

int kvs_sysfs_int(const char *root, const char *path, int *ret)
{
	char *buf = NULL, *end;
	long v;
	int r = kvs_sysfs_read(root, path, &buf);

	if (!buf)
		return r;
	errno = 0;
	v = strtol(buf, &end, 10);
	if (errno || end == buf || v < INT_MIN || v > INT_MAX)
		r = -EINVAL;
	else
		*ret = (int)v;
	free(buf);
	return r;
}

const char *kvs_sysfs_value(const char *text, const char *key)
{
	size_t len = strlen(key);
	const char *p = text;

	while (p && *p) {
		p += strspn(p, " \t");
		if (!strncmp(p, key, len)) {
			p += len;
			return p + strspn(p, " \t");
		}
		p = strchr(p, '\n');
		if (p)
			p++;
	}
	return NULL;
}

int kvs_sysfs_field(const char *text, const char *key, uint64_t *ret)
{
	const char *v = kvs_sysfs_value(text, key);

	return v ? parse_u64(v, ret) : -ENOENT;
}

int kvs_sysfs_list(const char *text, uint64_t *mask, unsigned int bits)
{
	unsigned long lo, hi;
	char *end;

	memset(mask, 0, KVS_MASK_WORDS(bits) * sizeof(*mask));
	text += strspn(text, " \t");
	while (*text && *text != '\n') {
		if (!isdigit((unsigned char)*text))
			return -EINVAL;
		errno = 0;
		lo = hi = strtoul(text, &end, 10);
		if (*end == '-') {
			text = end + 1;
			if (!isdigit((unsigned char)*text))
				return -EINVAL;
			hi = strtoul(text, &end, 10);
		}
		if (errno || hi < lo)
			return -EINVAL;
		for (; lo <= hi && lo < bits; lo++)
			kvs_mask_set(mask, (unsigned int)lo);
		text = end;
		if (*text == ',')
			text++;
		else if (*text && *text != '\n')
			return -EINVAL;
	}
	return 0;
}

const char *kvs_sysfs_list_print(const uint64_t *mask, unsigned int bits,
				 char *buf, size_t len)
{
	unsigned int i, first;
	size_t used = 0;
	int n;

	snprintf(buf, len, "none");
	for (i = 0; i < bits; i++) {
		if (!kvs_mask_test(mask, i))
			continue;
		first = i;
		while (i + 1 < bits && kvs_mask_test(mask, i + 1))
			i++;
		n = snprintf(buf + used, len - used, "%s%u", used ? "," : "",
			     first);
		if (n < 0 || (size_t)n >= len - used)
			break;
		used += (size_t)n;
		if (i == first)
			continue;
		n = snprintf(buf + used, len - used, "-%u", i);
		if (n < 0 || (size_t)n >= len - used)
			break;
		used += (size_t)n;
	}
	return buf;
}
