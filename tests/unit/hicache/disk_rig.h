/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: disk_rig
 *
 * A store over the double of the files and the virtual engine, under a clock
 * that the test moves, and pages whose bytes follow from their number.
 */
#ifndef KVS_TESTS_UNIT_HICACHE_DISK_RIG_H
#define KVS_TESTS_UNIT_HICACHE_DISK_RIG_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include <cmocka.h>

#include "hicache/disk_store.h"
#include "tests/unit/hicache/fake_fs.h"

#define RIG_PAGES 4096u
#define RIG_PAGE 8192u /* bytes, unless a test wants another */
#define RIG_PIECES 8u
#define RIG_LINES 64u

/* One put or get of the rig. */
struct rig_req {
	struct kvs_disk_req r;
	unsigned char *mem; /* aligned to 4096 */
	struct iovec iov[RIG_PIECES];
	uint32_t n; /* page */
	bool over;
	int result;
};

struct disk_rig {
	struct fake_fs f;
	struct kvs_vclock clock;
	struct kvs_disk *disk;
	struct kvs_disk_store *store;
	struct kvs_disk_opts io; /* of the engine */
	struct kvs_disk_store_opts o;
	uint32_t page_bytes;
	uint64_t seed;
	kvs_disk_loc loc[RIG_PAGES]; /* of each page that is there; 0 */
	uint32_t found; /* told at open and refresh */
	uint32_t gone[KVS_GONE_REASON_MAX];
	char line[RIG_LINES][256]; /* that the operator was told */
	uint32_t lines;
};

void disk_rig_init(struct disk_rig *g, uint64_t seed);
/* Options in @g->io and @g->o may be changed before. */
void disk_rig_open(struct disk_rig *g);
int disk_rig_try_open(struct disk_rig *g, char *err, size_t errlen);
/* End it in order. */
void disk_rig_close(struct disk_rig *g);
/* End it as SIGKILL would, or the loss of power. */
void disk_rig_crash(struct disk_rig *g, bool power);
void disk_rig_fini(struct disk_rig *g);

struct kvs_key disk_rig_key(uint32_t n);
void disk_rig_bytes(void *to, uint32_t len, uint32_t n);
/* How many bytes are not those of page @n. */
uint32_t disk_rig_wrong(const void *bytes, uint32_t len, uint32_t n);

/* Page @n in @pieces pieces, as even as they can be, @skew bytes off. */
struct rig_req *disk_rig_req(struct disk_rig *g, uint32_t n,
			     unsigned int pieces, unsigned int skew);
void disk_rig_req_free(struct rig_req *q);
/* Turn until @q is over, at most @turns times. */
bool disk_rig_run(struct disk_rig *g, const struct rig_req *q,
		  unsigned int turns);
/* Until nothing is under way. */
void disk_rig_quiet(struct disk_rig *g);

/* Put page @n and wait. Return: of put(), or of ->done. */
int disk_rig_put(struct disk_rig *g, uint32_t n);
/* Get page @n from where it is, wait and check its bytes. -EILSEQ: success
 * was said and the bytes are wrong. */
int disk_rig_get(struct disk_rig *g, uint32_t n);
/* The operator was told a line with @text in it. */
bool disk_rig_told(const struct disk_rig *g, const char *text);
struct kvs_disk_store_stats disk_rig_stats(const struct disk_rig *g);

#endif /* KVS_TESTS_UNIT_HICACHE_DISK_RIG_H */
