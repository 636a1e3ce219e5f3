/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hugepages.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "pinned/sysfs.h"

static int read_count(uint64_t page_size, const char *file, uint64_t *ret)
{
	char path[128];

	snprintf(path, sizeof(path),
		 "/sys/kernel/mm/hugepages/hugepages-%" PRIu64 "kB/%s",
		 page_size / 1024, file);
	return kvs_sysfs_u64("", path, ret);
}

static int write_count(uint64_t page_size, uint64_t pages)
{
	char path[128], text[32];
	int fd, n, r = 0;

	snprintf(path, sizeof(path),
		 "/sys/kernel/mm/hugepages/hugepages-%" PRIu64
		 "kB/nr_hugepages",
		 page_size / 1024);
	n = snprintf(text, sizeof(text), "%" PRIu64 "\n", pages);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (write(fd, text, (size_t)n) < 0)
		r = -errno;
	close(fd);
	return r;
}

static int unclaimed(uint64_t page_size, uint64_t *ret)
{
	uint64_t freep, resv = 0;
	int r = read_count(page_size, "free_hugepages", &freep);

	if (!r)
		r = read_count(page_size, "resv_hugepages", &resv);
	if (r < 0)
		return r;
	*ret = freep > resv ? freep - resv : 0;
	return 0;
}

int kvs_hugepages_reserve(struct kvs_hugepages *h, uint64_t page_size,
			  uint64_t pages)
{
	uint64_t before, have;
	int r;

	*h = (struct kvs_hugepages){ .page_size = page_size };
	if (read_count(page_size, "nr_hugepages", &before) < 0)
		return -EOPNOTSUPP;
	r = unclaimed(page_size, &have);
	if (r < 0)
		return r;
	if (have >= pages)
		return 0;
	h->before = before;
	h->raised = true;
	r = write_count(page_size, before + pages - have);
	if (!r)
		r = unclaimed(page_size, &have);
	if (!r && have < pages)
		r = -ENOMEM;
	if (r < 0)
		(void)kvs_hugepages_restore(h);
	return r;
}

int kvs_hugepages_restore(struct kvs_hugepages *h)
{
	int r;

	if (!h->raised)
		return 0;
	r = write_count(h->page_size, h->before);
	if (!r)
		h->raised = false;
	return r;
}
