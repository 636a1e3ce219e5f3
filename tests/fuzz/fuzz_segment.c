/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claim: whatever lies in a cache directory under the name of a segment, the
 * store opens, serves only pages whose checksum is right, goes on writing, and
 * ends. The first byte of an input says how far its checksums are made right,
 * so that what is behind them is reached: 1 the head's, 2 every entry's,
 * 4 the file has the size that its head says. The rest is the file.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "hicache/disk_store.h"
#include "lib/assert.h"
#include "lib/crc32c.h"
#include "tests/unit/hicache/fake_fs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_FILE (64u << 10) /* bytes of an input's file */
#define FUZZ_SIZE (256u << 10) /* bytes it may be made */
#define FUZZ_PAGES 64u
#define FUZZ_NAME "seg-0000000000000001.kvs"

struct fuzz_found {
	struct kvs_key key;
	kvs_disk_loc loc;
	uint32_t len;
};

static struct fake_fs fs;
static struct fuzz_found pages[FUZZ_PAGES];
static unsigned int npages;

static void found(void *arg, const struct kvs_key *key,
		  const struct kvs_fingerprint *layout, uint32_t page_bytes,
		  kvs_disk_loc loc)
{
	(void)arg;
	(void)layout;
	if (npages < FUZZ_PAGES)
		pages[npages++] = (struct fuzz_found){ *key, loc, page_bytes };
}

static void tell(void *arg, const char *line)
{
	(void)arg;
	(void)line;
}

static void done(struct kvs_disk_req *r, int result)
{
	*(int *)r->arg = result;
}

static void run(struct kvs_disk_store *store, const int *result)
{
	int i;

	for (i = 0; i < 1000 && *result == 1; i++)
		kvs_disk_store_turn(store);
	KVS_ASSERT(*result != 1);
}

static int transfer(struct kvs_disk_store *store, struct kvs_disk_req *r,
		    bool put)
{
	int result = 1, rc;

	r->done = done;
	r->arg = &result;
	rc = put ? kvs_disk_store_put(store, r) : kvs_disk_store_get(store, r);
	if (rc)
		return rc;
	run(store, &result);
	return result;
}

static void make_file(const uint8_t *data, size_t size)
{
	static uint8_t file[FUZZ_FILE];
	uint8_t how = data[0];
	uint64_t want;
	uint32_t crc;
	size_t i;

	data++;
	size = size - 1 < FUZZ_FILE ? size - 1 : FUZZ_FILE;
	memcpy(file, data, size);
	if (how & 1 && size >= 128) {
		crc = kvs_crc32c(file, 124);
		memcpy(file + 124, &crc, 4);
	}
	for (i = 4096; how & 2 && i + 64 <= size; i += 64) {
		crc = kvs_crc32c(file + i, 60);
		memcpy(file + i + 60, &crc, 4);
	}
	fake_make(&fs, FUZZ_NAME, file, size);
	if (how & 4 && size >= 128) {
		memcpy(&want, file + 88, 8);
		if (want <= FUZZ_SIZE)
			fake_resize(&fs, fake_find(&fs, FUZZ_NAME), want);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char instance[] = "01020304050607080900000000000000\n";
	struct kvs_disk_opts io = { .engine = "virtual", .fs = &fs.fs };
	struct kvs_disk_store_opts o = {
		.dir = "/fuzz",
		.segment_bytes = 64 << 10,
		.found = found,
		.tell = tell,
	};
	static uint8_t mem[FUZZ_SIZE];
	struct iovec iov = { mem, 0 };
	struct kvs_disk_req r = { .iov = &iov, .niov = 1 };
	struct kvs_disk_store *store;
	struct kvs_disk *disk;
	unsigned int i;
	char err[256];

	if (!size)
		return 0;
	fake_init(&fs, 1);
	fake_make(&fs, "instance", instance, sizeof(instance) - 1);
	make_file(data, size);
	npages = 0;
	KVS_ASSERT(!kvs_disk_create(&io, &disk, err, sizeof(err)));
	o.disk = disk;
	KVS_ASSERT(!kvs_disk_store_open(&o, &store, err, sizeof(err)));
	for (i = 0; i < npages; i++) {
		r.key = pages[i].key;
		r.loc = pages[i].loc;
		r.len = pages[i].len;
		iov.iov_len = r.len;
		KVS_ASSERT(r.len <= FUZZ_SIZE);
		(void)transfer(store, &r, false);
	}
	r.len = 4096;
	iov.iov_len = 4096;
	memset(&r.key, 9, sizeof(r.key));
	memset(mem, 9, 4096);
	KVS_ASSERT(!transfer(store, &r, true));
	memset(mem, 0, 4096);
	KVS_ASSERT(!transfer(store, &r, false));
	KVS_ASSERT(mem[0] == 9 && mem[4095] == 9);
	KVS_ASSERT(!kvs_disk_store_close(store));
	kvs_disk_destroy(disk);
	fake_fini(&fs);
	return 0;
}
