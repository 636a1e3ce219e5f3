/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/hicache/disk_rig.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/rng.h"

struct kvs_key disk_rig_key(uint32_t n)
{
	struct kvs_key k = { { 0 } };

	memcpy(k.b, &n, sizeof(n));
	k.b[15] = 0x5a;
	return k;
}

static uint32_t page_of(const struct kvs_key *k)
{
	uint32_t n;

	memcpy(&n, k->b, sizeof(n));
	assert_true(n < RIG_PAGES && k->b[15] == 0x5a);
	return n;
}

static uint8_t byte_of(uint32_t n, uint32_t at)
{
	uint64_t word = kvs_mix64((uint64_t)n << 32 | at / 8);

	return (uint8_t)(word >> at % 8 * 8);
}

void disk_rig_bytes(void *to, uint32_t len, uint32_t n)
{
	uint8_t *p = to;
	uint32_t i;

	for (i = 0; i < len; i++)
		p[i] = byte_of(n, i);
}

uint32_t disk_rig_wrong(const void *bytes, uint32_t len, uint32_t n)
{
	const uint8_t *p = bytes;
	uint32_t i, wrong = 0;

	for (i = 0; i < len; i++)
		wrong += p[i] != byte_of(n, i);
	return wrong;
}

/* ---- what the store says ---- */

static void found(void *arg, const struct kvs_key *key,
		  const struct kvs_fingerprint *layout, uint32_t page_bytes,
		  kvs_disk_loc loc)
{
	struct disk_rig *g = arg;

	(void)layout;
	assert_int_not_equal(page_bytes, 0);
	g->found++;
	g->loc[page_of(key)] = loc;
}

static void gone(void *arg, const struct kvs_key *key, kvs_disk_loc loc,
		 enum kvs_gone_reason reason)
{
	struct disk_rig *g = arg;
	uint32_t n = page_of(key);

	g->gone[reason]++;
	if (g->loc[n] == loc)
		g->loc[n] = 0;
}

static void tell(void *arg, const char *line)
{
	struct disk_rig *g = arg;

	snprintf(g->line[g->lines++ % RIG_LINES], sizeof(g->line[0]), "%s",
		 line);
}

bool disk_rig_told(const struct disk_rig *g, const char *text)
{
	uint32_t i;

	for (i = 0; i < g->lines && i < RIG_LINES; i++) {
		if (strstr(g->line[i], text))
			return true;
	}
	return false;
}

struct kvs_disk_store_stats disk_rig_stats(const struct disk_rig *g)
{
	struct kvs_disk_store_stats st;

	kvs_disk_store_stats(g->store, &st);
	return st;
}

/* ---- life ---- */

void disk_rig_init(struct disk_rig *g, uint64_t seed)
{
	memset(g, 0, sizeof(*g));
	fake_init(&g->f, seed);
	kvs_vclock_init(&g->clock, 1000);
	g->page_bytes = RIG_PAGE;
	g->seed = seed;
	g->io = (struct kvs_disk_opts){
		.engine = "virtual",
		.fs = &g->f.fs,
		.depth = 4,
		.clock = &g->clock.clk,
		.seed = seed,
	};
	g->o = (struct kvs_disk_store_opts){
		.dir = "/fake",
		.clock = &g->clock.clk,
		.segment_bytes = 256 << 10,
		.lock_wait = 1,
		.found = found,
		.gone = gone,
		.tell = tell,
		.arg = g,
	};
}

int disk_rig_try_open(struct disk_rig *g, char *err, size_t errlen)
{
	int rc = kvs_disk_create(&g->io, &g->disk, err, errlen);

	assert_int_equal(rc, 0);
	g->o.disk = g->disk;
	g->found = 0;
	memset(g->loc, 0, sizeof(g->loc));
	rc = kvs_disk_store_open(&g->o, &g->store, err, errlen);
	if (rc) {
		kvs_disk_destroy(g->disk);
		g->disk = NULL;
		g->store = NULL;
	}
	return rc;
}

void disk_rig_open(struct disk_rig *g)
{
	char err[512];
	int rc = disk_rig_try_open(g, err, sizeof(err));

	if (rc)
		print_error("open: %d: %s\n", rc, err);
	assert_int_equal(rc, 0);
}

void disk_rig_quiet(struct disk_rig *g)
{
	unsigned int i;

	for (i = 0; i < 100000 &&
		    (kvs_disk_store_busy(g->store) || kvs_disk_busy(g->disk));
	     i++) {
		kvs_disk_store_turn(g->store);
		kvs_vclock_advance(&g->clock, 1000);
	}
	assert_int_equal(kvs_disk_store_busy(g->store), 0);
}

void disk_rig_close(struct disk_rig *g)
{
	unsigned int i;

	for (i = 0; i < 100000 && kvs_disk_store_close(g->store) == -EBUSY;
	     i++) {
		kvs_disk_store_turn(g->store);
		kvs_vclock_advance(&g->clock, 1000);
	}
	assert_true(i < 100000);
	g->store = NULL;
	kvs_disk_destroy(g->disk);
	g->disk = NULL;
}

/* What is under way is over for the system; the objects go the ordinary way,
 * and nothing they still do reaches the files. */
void disk_rig_crash(struct disk_rig *g, bool power)
{
	struct fake_fs *dead = malloc(sizeof(*dead));
	unsigned int i;

	assert_non_null(dead);
	/* a copy to die in: its files are its own */
	*dead = g->f;
	for (i = 0; i < FAKE_FILES; i++) {
		struct fake_file *v = &dead->file[i];

		if (!v->cap)
			continue;
		v->now = malloc(v->cap);
		v->stable = malloc(v->cap);
		v->dirty = malloc(v->cap / FAKE_SECTOR);
		assert_true(v->now && v->stable && v->dirty);
		memcpy(v->now, g->f.file[i].now, v->cap);
		memcpy(v->stable, g->f.file[i].stable, v->cap);
		memcpy(v->dirty, g->f.file[i].dirty, v->cap / FAKE_SECTOR);
	}
	if (power)
		fake_power(dead);
	else
		fake_kill(dead);
	disk_rig_close(g);
	fake_fini(&g->f);
	g->f = *dead;
	free(dead);
}

void disk_rig_fini(struct disk_rig *g)
{
	if (g->store)
		disk_rig_close(g);
	fake_fini(&g->f);
}

/* ---- pages ---- */

static void req_done(struct kvs_disk_req *r, int result)
{
	struct rig_req *q = r->arg;

	assert_false(q->over);
	q->over = true;
	q->result = result;
}

struct rig_req *disk_rig_req(struct disk_rig *g, uint32_t n,
			     unsigned int pieces, unsigned int skew)
{
	struct rig_req *q = calloc(1, sizeof(*q));
	uint32_t at = 0, len = g->page_bytes, i;

	assert_non_null(q);
	assert_true(n < RIG_PAGES && pieces && pieces <= RIG_PIECES);
	q->mem = aligned_alloc(4096, (len + skew + 8191) / 4096 * 4096);
	assert_non_null(q->mem);
	q->n = n;
	q->r = (struct kvs_disk_req){
		.key = disk_rig_key(n),
		.layout = { { 1 } },
		.loc = g->loc[n],
		.iov = q->iov,
		.niov = pieces,
		.len = len,
		.done = req_done,
		.arg = q,
	};
	for (i = 0; i < pieces; i++) {
		uint32_t end = i + 1 == pieces ? len : len / pieces * (i + 1);

		q->iov[i].iov_base = q->mem + skew + at;
		q->iov[i].iov_len = end - at;
		at = end;
	}
	disk_rig_bytes(q->mem + skew, len, n);
	return q;
}

void disk_rig_req_free(struct rig_req *q)
{
	free(q->mem);
	free(q);
}

bool disk_rig_run(struct disk_rig *g, const struct rig_req *q,
		  unsigned int turns)
{
	while (turns-- && !q->over) {
		kvs_disk_store_turn(g->store);
		kvs_vclock_advance(&g->clock, 1000);
	}
	return q->over;
}

int disk_rig_put(struct disk_rig *g, uint32_t n)
{
	struct rig_req *q = disk_rig_req(g, n, 1, 0);
	int rc = kvs_disk_store_put(g->store, &q->r);

	if (!rc) {
		assert_true(disk_rig_run(g, q, 10000));
		rc = q->result;
		if (!rc)
			g->loc[n] = q->r.loc;
	}
	disk_rig_req_free(q);
	return rc;
}

int disk_rig_get(struct disk_rig *g, uint32_t n)
{
	struct rig_req *q = disk_rig_req(g, n, 1, 0);
	int rc;

	memset(q->mem, 0xee, g->page_bytes);
	rc = kvs_disk_store_get(g->store, &q->r);
	if (!rc) {
		assert_true(disk_rig_run(g, q, 10000));
		rc = q->result;
		if (!rc && disk_rig_wrong(q->mem, g->page_bytes, n))
			rc = -EILSEQ;
	}
	disk_rig_req_free(q);
	return rc;
}
