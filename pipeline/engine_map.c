/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's memory in this process. Each descriptor must be a memfd that
 * nobody can shrink (or a read would be a SIGBUS), of the size announced. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "pipeline/engine_internal.h"

static int map_check(int fd, const char *what, uint64_t size, bool exact,
		     char *err, size_t errlen)
{
	struct stat st;
	int seals;

	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || fstat(fd, &st)) {
		snprintf(err, errlen, "%s: not a memfd that can be sealed",
			 what);
		return -EPROTO;
	}
	if ((seals & (F_SEAL_SHRINK | F_SEAL_GROW)) !=
	    (F_SEAL_SHRINK | F_SEAL_GROW)) {
		snprintf(err, errlen, "%s: its size is not sealed", what);
		return -EPROTO;
	}
	if (st.st_size < 0 || (uint64_t)st.st_size < size ||
	    (exact && (uint64_t)st.st_size != size)) {
		snprintf(err, errlen, "%s: has %lld bytes, not %llu", what,
			 (long long)st.st_size, (unsigned long long)size);
		return -EPROTO;
	}
	return 0;
}

static int map_one(int fd, uint64_t size, int prot, void **ret)
{
	void *p = mmap(NULL, size, prot, MAP_SHARED, fd, 0);
	int res;

	if (p == MAP_FAILED)
		return -errno;
	/* A forked child would keep the memory, and the daemon would count
	 * it as ours. */
	if (madvise(p, size, MADV_DONTFORK)) {
		res = -errno;
		(void)munmap(p, size);
		return res;
	}
	*ret = p;
	return 0;
}

static int map_status(struct kvs_engine *e, const struct kvs_packet_attached *p,
		      int fd, char *err, size_t errlen)
{
	void *words = NULL;
	int ret;

	if (!p->n_slots || p->n_slots > KVS_ENG_SLOTS_MAX) {
		snprintf(err, errlen, "status page: %u slots", p->n_slots);
		return -EPROTO;
	}
	ret = map_check(fd, "status page", p->n_slots * sizeof(uint64_t), false,
			err, errlen);
	if (ret)
		return ret;
	ret = map_one(fd, p->n_slots * sizeof(uint64_t), PROT_READ, &words);
	if (ret) {
		snprintf(err, errlen, "status page: %s", strerror(-ret));
		return ret;
	}
	e->words = words;
	e->n_slots = p->n_slots;
	return 0;
}

static int map_pool(struct kvs_engine *e, const struct kvs_packet_attached *p,
		    unsigned int i, int fd, char *err, size_t errlen)
{
	struct kvs_eng_pool *pool = &e->pools[i];
	char what[32];
	void *base = NULL;
	int ret;

	snprintf(what, sizeof(what), "pool %u", i);
	if (!p->pools[i].size || p->pools[i].size > PTRDIFF_MAX ||
	    p->pools[i].writable > 1) {
		snprintf(err, errlen, "%s: %llu bytes, writable %u", what,
			 (unsigned long long)p->pools[i].size,
			 p->pools[i].writable);
		return -EPROTO;
	}
	ret = map_check(fd, what, p->pools[i].size, true, err, errlen);
	if (ret)
		return ret;
	ret = map_one(fd, p->pools[i].size,
		      p->pools[i].writable ? PROT_READ | PROT_WRITE : PROT_READ,
		      &base);
	if (ret) {
		snprintf(err, errlen, "%s: cannot map %llu bytes: %s", what,
			 (unsigned long long)p->pools[i].size, strerror(-ret));
		return ret;
	}
	pool->base = base;
	pool->size = p->pools[i].size;
	pool->writable = p->pools[i].writable;
	e->n_pools = i + 1;
	return 0;
}

int kvs_eng_map(struct kvs_engine *e, const struct kvs_packet_attached *p,
		char *err, size_t errlen)
{
	int ret;

	if (!p->n_pools || p->n_pools > KVS_ATTACH_POOLS_MAX ||
	    e->n_fds != 1 + p->n_pools) {
		snprintf(err, errlen, "%u pools announced, %u descriptors came",
			 p->n_pools, e->n_fds);
		return -EPROTO;
	}
	ret = map_status(e, p, e->fds[0], err, errlen);
	for (unsigned int i = 0; !ret && i < p->n_pools; i++)
		ret = map_pool(e, p, i, e->fds[1 + i], err, errlen);
	return ret;
}

void kvs_eng_unmap(struct kvs_engine *e)
{
	for (unsigned int i = 0; i < e->n_pools; i++)
		(void)munmap(e->pools[i].base, e->pools[i].size);
	e->n_pools = 0;
	if (e->words)
		(void)munmap((void *)e->words, e->n_slots * sizeof(uint64_t));
	e->words = NULL;
}
