/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claim: a process that writes pages to the disk tier, reads and drops them,
 * is killed (SIGKILL) at any moment, 100 times, with io_uring and without,
 * with either durability. Whatever the next one finds is byte-exact, every
 * page that was acknowledged is there, no start fails, and no file has to be
 * set aside. What a start costs is printed per GiB of pages.
 * KVS_TEST_SEED replays the choices, not the moments; KVS_TEST_ROUNDS makes
 * more.
 */
#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "hicache/disk_store.h"
#include "lib/rng.h"
#include "lib/units.h"
#include "tests/unit/pinned/seed.h"

#define ROUNDS 100u
#define LIFE_MAX (120 * KVS_NSEC_PER_MSEC) /* of one process */
#define PAGE 65536u
#define PAGES (1u << 18) /* a page put after that is not begun */
#define UNDER_WAY 24u
#define KEEP 1000u /* newest pages that are not dropped between rounds */

enum fate {
	FATE_NONE, /* not put, or not acknowledged */
	FATE_KEPT, /* acknowledged */
	FATE_DROPPED,
};

/* Outlives the process. */
struct shared {
	_Atomic uint32_t next; /* page that was never put */
	_Atomic uint8_t fate[PAGES];
	_Atomic uint64_t served;
	char complaint[256];
};

static struct shared *sh;
static kvs_disk_loc where[PAGES];
static char dir[64];

static struct kvs_key key_of(uint32_t n)
{
	struct kvs_key k = { { 0 } };

	memcpy(k.b, &n, sizeof(n));
	return k;
}

static void fill(void *to, uint32_t n)
{
	uint64_t *p = to;
	uint32_t i;

	for (i = 0; i < PAGE / 8; i++)
		p[i] = kvs_mix64((uint64_t)n << 32 | i);
}

static bool exact(const void *bytes, uint32_t n)
{
	const uint64_t *p = bytes;
	uint32_t i;

	for (i = 0; i < PAGE / 8; i++) {
		if (p[i] != kvs_mix64((uint64_t)n << 32 | i))
			return false;
	}
	return true;
}

/* ---- a store, in either process ---- */

struct node {
	struct kvs_disk *disk;
	struct kvs_disk_store *store;
	uint32_t found;
};

static void found(void *arg, const struct kvs_key *key,
		  const struct kvs_fingerprint *layout, uint32_t page_bytes,
		  kvs_disk_loc loc)
{
	struct node *v = arg;
	uint32_t n;

	(void)layout;
	(void)page_bytes;
	memcpy(&n, key->b, sizeof(n));
	if (n < PAGES)
		where[n] = loc;
	v->found++;
}

static void quiet(void *arg, const char *line)
{
	(void)arg;
	(void)line;
}

static int start(struct node *v, const char *engine,
		 enum kvs_durability durability, char *err, size_t errlen)
{
	struct kvs_disk_opts io = {
		.engine = engine,
		.depth = 8,
		.files = 16,
	};
	struct kvs_disk_store_opts o = {
		.dir = dir,
		.durability = durability,
		.segment_bytes = 8 << 20,
		.files = 16,
		.found = found,
		.tell = quiet,
		.arg = v,
	};
	int rc = kvs_disk_create(&io, &v->disk, err, errlen);

	if (rc)
		return rc;
	v->found = 0;
	memset(where, 0, sizeof(where));
	o.disk = v->disk;
	return kvs_disk_store_open(&o, &v->store, err, errlen);
}

static void stop(struct node *v)
{
	while (kvs_disk_store_close(v->store) == -EBUSY) {
		kvs_disk_store_turn(v->store);
		kvs_disk_wait(v->disk, KVS_NSEC_PER_SEC);
	}
	kvs_disk_destroy(v->disk);
}

/* ---- the process that is killed ---- */

struct job {
	struct kvs_disk_req r;
	struct iovec iov[2];
	unsigned char *mem;
	uint32_t n;
	bool busy;
	bool get;
};

static _Noreturn void complain(const char *what, uint32_t n, int rc)
{
	snprintf(sh->complaint, sizeof(sh->complaint), "page %u: %s: %d", n,
		 what, rc);
	_exit(1);
}

static void job_done(struct kvs_disk_req *r, int result)
{
	struct job *j = r->arg;

	j->busy = false;
	if (result)
		complain(j->get ? "get" : "put", j->n, result);
	if (!j->get) {
		where[j->n] = r->loc;
		atomic_store(&sh->fate[j->n], FATE_KEPT);
	} else if (!exact(j->mem + 4096 - (r->niov > 1 ? 8 : 0), j->n)) {
		complain("other bytes", j->n, 0);
	} else {
		atomic_fetch_add(&sh->served, 1);
	}
}

static void begin(struct node *v, struct job *j, struct kvs_rng *rng)
{
	uint32_t next = atomic_load(&sh->next), n;
	uint64_t what = kvs_rng_below(rng, 10);
	unsigned char *at;
	int rc;

	if (next > PAGES)
		next = PAGES;
	n = next ? (uint32_t)kvs_rng_below(rng, next) : 0;
	if (what == 0 && where[n] && !j->busy) {
		atomic_store(&sh->fate[n], FATE_DROPPED);
		kvs_disk_store_drop(v->store, where[n]);
		where[n] = 0;
		return;
	}
	j->get = what < 4 && where[n];
	if (!j->get)
		n = atomic_fetch_add(&sh->next, 1);
	if (n >= PAGES)
		return;
	j->n = n;
	/* aligned, or in two pieces that are not */
	at = j->mem + 4096;
	j->r = (struct kvs_disk_req){
		.key = key_of(n),
		.layout = { { 1 } },
		.loc = where[n],
		.iov = j->iov,
		.niov = 1,
		.len = PAGE,
		.done = job_done,
		.arg = j,
	};
	j->iov[0] = (struct iovec){ at, PAGE };
	if (kvs_rng_below(rng, 4) == 0) {
		at -= 8;
		j->r.niov = 2;
		j->iov[0] = (struct iovec){ at, 1000 };
		j->iov[1] = (struct iovec){ at + 1000, PAGE - 1000 };
	}
	if (!j->get)
		fill(at, n);
	rc = j->get ? kvs_disk_store_get(v->store, &j->r)
		    : kvs_disk_store_put(v->store, &j->r);
	if (rc)
		complain(j->get ? "get refused" : "put refused", n, rc);
	j->busy = true;
}

static _Noreturn void live(const char *engine, enum kvs_durability durability,
			   uint64_t seed)
{
	static struct job jobs[UNDER_WAY];
	struct kvs_rng rng;
	struct node v;
	char err[512];
	unsigned int i;
	int rc;

	kvs_rng_init(&rng, seed);
	for (i = 0; i < UNDER_WAY; i++) {
		jobs[i].mem = aligned_alloc(4096, PAGE + 8192);
		if (!jobs[i].mem)
			complain("memory", 0, -ENOMEM);
	}
	rc = start(&v, engine, durability, err, sizeof(err));
	if (rc)
		complain(err, 0, rc);
	for (;;) {
		for (i = 0; i < UNDER_WAY; i++) {
			if (!jobs[i].busy)
				begin(&v, &jobs[i], &rng);
		}
		kvs_disk_store_turn(v.store);
		kvs_disk_wait(v.disk, KVS_NSEC_PER_SEC);
	}
}

/* ---- the one that looks afterwards ---- */

static bool got;
static int got_result;

static void look_done(struct kvs_disk_req *r, int result)
{
	(void)r;
	got = true;
	got_result = result;
}

static void look_at(struct node *v, uint32_t n, unsigned char *mem)
{
	struct iovec iov = { mem, PAGE };
	struct kvs_disk_req r = {
		.key = key_of(n),
		.loc = where[n],
		.iov = &iov,
		.niov = 1,
		.len = PAGE,
		.done = look_done,
	};

	got = false;
	assert_int_equal(kvs_disk_store_get(v->store, &r), 0);
	while (!got) {
		kvs_disk_store_turn(v->store);
		if (!got)
			kvs_disk_wait(v->disk, KVS_NSEC_PER_SEC);
	}
	assert_int_equal(got_result, 0);
	assert_true(exact(mem, n));
}

struct total {
	uint64_t served, pages, bytes, ns, acknowledged;
};

static void look(const char *engine, enum kvs_durability durability,
		 struct total *t)
{
	uint32_t next = atomic_load(&sh->next), n, lost = 0;
	unsigned char *mem = aligned_alloc(4096, PAGE);
	struct kvs_disk_store_stats st;
	struct node v;
	char err[512];
	int rc;

	assert_non_null(mem);
	rc = start(&v, engine, durability, err, sizeof(err));
	if (rc)
		print_error("%s\n", err);
	assert_int_equal(rc, 0);
	for (n = 0; n < next && n < PAGES; n++) {
		if (where[n]) {
			look_at(&v, n, mem);
			t->served++;
		}
		t->acknowledged += atomic_load(&sh->fate[n]) == FATE_KEPT;
		if (atomic_load(&sh->fate[n]) == FATE_KEPT && !where[n]) {
			print_error("page %u was acknowledged\n", n);
			lost++;
		}
		/* room on the disk of the test */
		if (where[n] && n + KEEP < next) {
			atomic_store(&sh->fate[n], FATE_DROPPED);
			kvs_disk_store_drop(v.store, where[n]);
		}
	}
	assert_int_equal(lost, 0);
	kvs_disk_store_stats(v.store, &st);
	assert_int_equal(st.damaged + st.short_reads + st.entries_damaged, 0);
	assert_int_equal(st.aside, 0);
	t->pages += st.recovered_pages;
	t->bytes += st.recovered_bytes;
	t->ns += st.recovery_ns;
	stop(&v);
	free(mem);
}

static int remove_one(const char *path, const struct stat *st, int type,
		      struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static void killed(void **state)
{
	const char *s = getenv("KVS_TEST_ROUNDS");
	uint64_t rounds = ROUNDS, round, life;
	struct total t = { 0 };
	struct kvs_rng rng;
	char a[KVS_UNITS_BUF];
	int status;
	pid_t pid;

	(void)state;
	if (s && (kvs_parse_u64(s, &rounds) || !rounds))
		rounds = ROUNDS;
	seed_rng(&rng);
	snprintf(dir, sizeof(dir), "/tmp/kvs-crash-XXXXXX");
	assert_non_null(mkdtemp(dir));
	for (round = 0; round < rounds; round++) {
		const char *engine = kvs_rng_below(&rng, 2) ? "auto" : "plain";
		enum kvs_durability durability = kvs_rng_below(&rng, 4) == 0;
		uint64_t seed = kvs_rng_next(&rng);

		life = kvs_rng_below(&rng, LIFE_MAX);
		fflush(NULL);
		pid = fork();
		assert_true(pid >= 0);
		if (!pid)
			live(engine, durability, seed);
		/* not for something to happen: this is what is random */
		nanosleep(&(struct timespec){ 0, (long)life }, NULL);
		kill(pid, SIGKILL);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (!WIFSIGNALED(status))
			print_error("round %llu: %s\n",
				    (unsigned long long)round, sh->complaint);
		assert_true(WIFSIGNALED(status));
		look(engine, durability, &t);
	}
	nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	print_message(
		"%llu rounds: %u pages put, %llu found and served, %llu read "
		"while written, all exact; 0 of %llu acknowledged lost\n",
		(unsigned long long)rounds, atomic_load(&sh->next),
		(unsigned long long)t.served,
		(unsigned long long)atomic_load(&sh->served),
		(unsigned long long)t.acknowledged);
	assert_true(t.bytes > 0);
	print_message("recovery: %s a GiB of pages of 64 KiB\n",
		      kvs_format_duration(
			      (uint64_t)((double)t.ns /
					 ((double)t.bytes / (double)(1 << 30))),
			      a));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(killed),
	};

	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE,
		  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (sh == MAP_FAILED)
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
