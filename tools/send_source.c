/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/send_source.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpu/device.h"
#include "lib/assert.h"
#include "lib/err.h"
#include "pipeline/layout.h"
#include "tools/pattern.h"

#define KVS_SOURCE_PAGES_MIN 2u
#define KVS_SOURCE_PAGES_MAX (1u << 22)

static int source_open_file(struct kvs_send_source *s, const char *path,
			    char *err, size_t errlen)
{
	struct stat st;
	void *p;
	int fd, ret = 0;

	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st)) {
		ret = -errno;
		snprintf(err, errlen, "%s: %s", path, kvs_err_name(ret));
	} else if (!S_ISREG(st.st_mode) || st.st_size <= 0) {
		ret = -EINVAL;
		snprintf(err, errlen, "%s: not a file with bytes in it", path);
	} else {
		p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd,
			 0);
		if (p == MAP_FAILED) {
			ret = -errno;
			snprintf(err, errlen, "%s: mmap: %s", path,
				 kvs_err_name(ret));
		} else {
			s->file = p;
			s->file_len = (size_t)st.st_size;
		}
	}
	if (fd >= 0)
		close(fd);
	return ret;
}

/*
 * A rank without layers still has a pool, and the daemon compares what of it
 * lies in layers it has: the whole model's passes.
 */
static int source_layout(const struct kvs_workload *w, uint32_t rank,
			 struct kvs_layout **ret)
{
	struct kvs_layout whole = *w->prefill;

	if (kvs_workload_slice(w, rank).n_layers)
		return kvs_workload_rank_layout(w, rank, ret);
	whole.size = sizeof(whole);
	return kvs_layout_dup(&whole, ret);
}

static int source_device(struct kvs_send_source *s, const char *backend,
			 int ordinal, char *err, size_t errlen)
{
	const struct kvs_device_opts o = {
		.size = sizeof(o),
		.backend = backend,
		.device = ordinal,
		.hidden = true,
	};
	int res = kvs_device_open(&o, &s->device, err, errlen);
	char why[256];
	uint32_t b;

	if (res) {
		snprintf(why, sizeof(why), "%s", err);
		if (strcmp(backend, "cuda") == 0)
			snprintf(err, errlen, "--device cuda:%d: %s", ordinal,
				 why);
		else
			snprintf(err, errlen, "--device %s: %s", backend, why);
	}
	for (b = 0; !res && b < s->layout->n_buffers; b++) {
		res = kvs_device_alloc(s->device, s->len[b], &s->buffers[b]);
		if (res)
			snprintf(err, errlen,
				 "device %s: no memory for the source pool: %s",
				 backend, kvs_err_name(res));
	}
	return res;
}

static int source_map(struct kvs_send_source *s)
{
	const struct kvs_layout *l = s->layout;
	uint32_t b;
	void *p;

	for (b = 0; b < l->n_buffers; b++) {
		const struct kvs_layer_buffer *lb = &l->buffers[b];
		uint64_t items = s->pages;

		if (!kvs_buffer_kind_is_paged(lb->kind))
			items = (uint64_t)s->sets * lb->items;
		p = mmap(NULL, items * lb->item_len, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (p == MAP_FAILED)
			return -ENOMEM;
		s->host[b] = p;
		s->len[b] = items * lb->item_len;
	}
	return 0;
}

int kvs_send_source_create(const struct kvs_workload *w, uint32_t rank,
			   uint64_t bytes, uint32_t sets, const char *path,
			   const char *device, int ordinal,
			   struct kvs_send_source **ret, char *err,
			   size_t errlen)
{
	struct kvs_send_source *s = calloc(1, sizeof(*s));
	int res = -ENOMEM;
	uint64_t pages, most;
	uint32_t b;

	snprintf(err, errlen, "no memory for the source pool");
	if (!s)
		return -ENOMEM;
	s->w = w;
	s->sets = sets;
	if (source_layout(w, rank, &s->layout))
		goto out;
	for (b = 0; b < s->layout->n_buffers; b++) {
		if (kvs_buffer_kind_is_paged(s->layout->buffers[b].kind))
			s->page_bytes += s->layout->buffers[b].item_len;
	}
	pages = s->page_bytes ? bytes / s->page_bytes : KVS_SOURCE_PAGES_MAX;
	if (pages < KVS_SOURCE_PAGES_MIN) {
		snprintf(err, errlen,
			 "--pool-size %llu: a page of this rank has %llu "
			 "bytes and %u are needed: at least %llu",
			 (unsigned long long)bytes,
			 (unsigned long long)s->page_bytes,
			 KVS_SOURCE_PAGES_MIN,
			 (unsigned long long)s->page_bytes *
				 KVS_SOURCE_PAGES_MIN);
		res = -ERANGE;
		goto out;
	}
	if (pages > KVS_SOURCE_PAGES_MAX)
		pages = KVS_SOURCE_PAGES_MAX;
	/* a page beyond what was declared would be refused */
	most = w->o.capacity / s->layout->page_size;
	if (w->o.capacity && most < KVS_SOURCE_PAGES_MIN) {
		snprintf(err, errlen,
			 "--kv-capacity %llu: two pages of %u tokens are "
			 "needed",
			 (unsigned long long)w->o.capacity,
			 s->layout->page_size);
		res = -ERANGE;
		goto out;
	}
	if (w->o.capacity && pages > most)
		pages = most;
	s->pages = (uint32_t)pages;
	s->free = malloc(pages * sizeof(*s->free));
	s->buffers = calloc(s->layout->n_buffers, sizeof(*s->buffers));
	s->host = calloc(s->layout->n_buffers, sizeof(*s->host));
	s->len = calloc(s->layout->n_buffers, sizeof(*s->len));
	if (!s->free || !s->buffers || !s->host || !s->len || source_map(s))
		goto out;
	res = device ? source_device(s, device, ordinal, err, errlen) : 0;
	if (res)
		goto out;
	if (!device)
		memcpy(s->buffers, s->host,
		       s->layout->n_buffers * sizeof(*s->buffers));
	/* lowest on top: neighbours travel as one piece */
	while (s->n_free < s->pages) {
		s->free[s->n_free] = s->pages - 1 - s->n_free;
		s->n_free++;
	}
	res = path ? source_open_file(s, path, err, errlen) : 0;
out:
	if (res)
		kvs_send_source_destroy(s);
	else
		*ret = s;
	return res;
}

void kvs_send_source_destroy(struct kvs_send_source *s)
{
	uint32_t b;

	if (!s)
		return;
	for (b = 0; s->host && s->len && b < s->layout->n_buffers; b++) {
		if (s->host[b])
			munmap(s->host[b], s->len[b]);
		if (s->device && s->buffers)
			kvs_device_free(s->device, s->buffers[b]);
	}
	kvs_device_close(s->device);
	if (s->file)
		munmap((void *)(uintptr_t)s->file, s->file_len);
	free(s->buffers);
	free(s->host);
	free(s->len);
	free(s->free);
	free(s->layout);
	free(s);
}

void kvs_send_source_take(struct kvs_send_source *s, uint32_t n,
			  uint32_t *ret_pages)
{
	uint32_t i;

	KVS_ASSERT(n <= s->n_free);
	for (i = 0; i < n; i++)
		ret_pages[i] = s->free[--s->n_free];
}

void kvs_send_source_put(struct kvs_send_source *s, const uint32_t *pages,
			 uint32_t n)
{
	KVS_ASSERT(n <= s->pages - s->n_free);
	while (n--)
		s->free[s->n_free++] = pages[n];
}

void kvs_send_source_bytes(const struct kvs_send_source *s, void *dst,
			   size_t len, uint64_t seed, uint64_t off)
{
	unsigned char *p = dst;

	if (!s->file) {
		kvs_pattern_fill(dst, len, seed, off);
		return;
	}
	/* every stream is the file, over and over */
	while (len) {
		size_t at = (size_t)(off % s->file_len);
		size_t n = s->file_len - at < len ? s->file_len - at : len;

		memcpy(p, s->file + at, n);
		p += n;
		off += n;
		len -= n;
	}
}

/* Item @item of buffer @b, where it lies. */
static void source_item(const struct kvs_send_source *s, uint32_t b,
			uint32_t where, uint64_t seed, uint64_t item)
{
	uint32_t n = kvs_workload_n_pieces(s->layout, b);
	unsigned char *dst = (unsigned char *)s->host[b] +
			     (uint64_t)where * s->layout->buffers[b].item_len;

	for (uint32_t k = 0; k < n; k++) {
		struct kvs_workload_piece p =
			kvs_workload_piece(s->layout, b, item, k);

		kvs_send_source_bytes(s, dst + p.off, p.len, seed, p.at);
	}
}

/* Items that were computed, to the device; as they lie there. */
struct upload {
	struct kvs_copy_run *run;
	size_t n;
};

static void upload_item(const struct kvs_send_source *s, struct upload *u,
			uint32_t b, uint32_t where)
{
	uint64_t len = s->layout->buffers[b].item_len;

	if (u->run)
		u->run[u->n++] = (struct kvs_copy_run){
			.host = (unsigned char *)s->host[b] + where * len,
			.dev = (unsigned char *)s->buffers[b] + where * len,
			.item_len = len,
			.n = 1,
		};
}

static int upload_begin(const struct kvs_send_source *s, struct upload *u,
			size_t items)
{
	*u = (struct upload){ 0 };
	if (s->device)
		u->run = calloc(items ? items : 1, sizeof(*u->run));
	return s->device && !u->run ? -ENOMEM : 0;
}

/* Computing takes its time on a device as well: it is waited for. */
static int upload_end(const struct kvs_send_source *s, struct upload *u)
{
	struct kvs_copy c = {
		.runs = u->run,
		.n_runs = u->n,
		.dir = KVS_COPY_H2D,
	};
	int res = 0;

	if (s->device && u->n) {
		res = kvs_device_copy(s->device, &c);
		while (!res && kvs_device_query(s->device, &c) == -EINPROGRESS)
			sched_yield();
		if (!res)
			res = kvs_device_query(s->device, &c);
	}
	free(u->run);
	return res;
}

int kvs_send_source_fill(struct kvs_send_source *s, uint64_t room,
			 uint32_t first, const uint32_t *pages, uint32_t n)
{
	struct upload u;
	uint32_t b, i;

	if (upload_begin(s, &u, (size_t)n * s->layout->n_buffers))
		return -ENOMEM;
	for (b = 0; b < s->layout->n_buffers; b++) {
		const struct kvs_layer_buffer *lb = &s->layout->buffers[b];
		uint64_t seed;

		if (!kvs_buffer_kind_is_paged(lb->kind))
			continue;
		seed = kvs_workload_seed(s->w, room, lb->kind, lb->layer);
		for (i = 0; i < n; i++) {
			source_item(s, b, pages[i], seed, (uint64_t)first + i);
			upload_item(s, &u, b, pages[i]);
		}
	}
	return upload_end(s, &u);
}

int kvs_send_source_fill_state(struct kvs_send_source *s, uint64_t room,
			       uint32_t b, uint32_t set, uint32_t n,
			       uint32_t *ret_items)
{
	const struct kvs_layer_buffer *lb = &s->layout->buffers[b];
	uint64_t seed = kvs_workload_seed(s->w, room, lb->kind, lb->layer);
	struct upload u;
	uint32_t i;

	if (upload_begin(s, &u, n))
		return -ENOMEM;
	for (i = 0; i < n; i++) {
		ret_items[i] = set * lb->items + i;
		source_item(s, b, ret_items[i], seed, i);
		upload_item(s, &u, b, ret_items[i]);
	}
	return upload_end(s, &u);
}
