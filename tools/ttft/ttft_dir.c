/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The folder that kvstage-bench report draws. What an earlier run, or its
 * report, left there goes before anything is written; results.jsonl comes last,
 * so where it is, all is there.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/assert.h"
#include "tools/ttft/ttft_stat.h"

static int close_file(FILE *f)
{
	bool bad = ferror(f);

	if (fclose(f))
		return -errno;
	return bad ? -EIO : 0;
}

static int open_in(const char *dir, const struct ttft_run *r, const char *what,
		   FILE **ret)
{
	char path[4096];
	int n;

	n = snprintf(path, sizeof(path), "%s/%s-%s%s-%.4f.tsv", dir, what,
		     ttft_mode_name[r->mode], r->half ? "-half" : "", r->abort);
	if (n < 0 || (size_t)n >= sizeof(path))
		return -ENAMETOOLONG;
	*ret = fopen(path, "we");
	return *ret ? 0 : -errno;
}

static int write_requests(const struct ttft_set *s, size_t k, const char *dir)
{
	const struct ttft_run *r = s->run[k];
	unsigned char *common = ttft_common(s, k);
	FILE *f;
	int ret = common ? open_in(dir, r, "requests", &f) : -ENOMEM;

	if (ret) {
		free(common);
		return ret;
	}
	fprintf(f, "# request arrival_s ttft_s e2e_s admission_wait_s "
		   "compared\n");
	for (size_t i = 0; i < s->p->n; i++) {
		const struct ttft_req *q = &s->p->v[i];
		const struct ttft_rec *c = &r->rec[i];
		uint64_t granted = atomic_load(&c->granted);

		if (c->end != TTFT_DONE)
			continue;
		fprintf(f, "%zu\t%.3f\t%.6f\t%.6f\t%.6f\t%u\n", i,
			(double)q->at / 1e9, (double)(c->first - q->at) / 1e9,
			(double)(c->last - q->at) / 1e9,
			granted > q->at ? (double)(granted - q->at) / 1e9 : 0,
			common[i]);
	}
	free(common);
	return close_file(f);
}

static int write_samples(const struct ttft_run *r, const char *dir)
{
	FILE *f;
	int ret = open_in(dir, r, "samples", &f);

	if (ret)
		return ret;
	fprintf(f, "# second held_device_bytes held_host_bytes "
		   "device_use host_used_bytes queue batch\n");
	for (uint32_t i = 0; i < r->n_samples; i++) {
		const struct ttft_sample *x = &r->sample[i];

		fprintf(f,
			"%.1f\t%.0f\t%.0f\t%.4f\t%.0f\t%" PRIu32 "\t%" PRIu32
			"\n",
			i + 0.5, (double)x->held_device, (double)x->held_host,
			(double)x->use_device, (double)x->use_host, x->queue,
			x->batch);
	}
	return close_file(f);
}

/* ---- what is there already --------------------------------------------- */

static bool is_ours(const char *name)
{
	static const char *const ours[] = {
		"results.jsonl", "requests-*.tsv", "samples-*.tsv",
		"report.html",	 "ttft_cdf.png",   "held.png",
		"queue.png",	 "ttft_abort.png",
	};

	for (size_t i = 0; i < KVS_ARRAY_SIZE(ours); i++)
		if (!fnmatch(ours[i], name, 0))
			return true;
	return false;
}

static int clear_one(int dir, const char *name, bool go)
{
	struct stat st;

	if (!fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW)) {
		if (S_ISDIR(st.st_mode))
			return -EISDIR;
		if (!go || !unlinkat(dir, name, 0))
			return 0;
	}
	/* somebody else has removed it */
	return errno == ENOENT ? 0 : -errno;
}

/* Can, or with @go does, all that is ours leave @dir? @name: what cannot. */
static int clear(const char *dir, bool go, char *name, size_t len)
{
	struct dirent *e;
	DIR *d = opendir(dir);
	int r = 0;

	*name = '\0';
	if (!d)
		return -errno;
	while (!r && (e = readdir(d))) {
		if (!is_ours(e->d_name))
			continue;
		r = clear_one(dirfd(d), e->d_name, go);
		if (r)
			snprintf(name, len, "/%s", e->d_name);
	}
	(void)closedir(d);
	return r;
}

int ttft_dir(const char *dir, char *name, size_t len)
{
	struct stat st;

	*name = '\0';
	/* with what is written into it, as open_in() has room for */
	if (strlen(dir) > 4000)
		return -ENAMETOOLONG;
	if (mkdir(dir, 0777) && errno != EEXIST)
		return -errno;
	if (stat(dir, &st))
		return -errno;
	if (!S_ISDIR(st.st_mode))
		return -ENOTDIR;
	if (access(dir, W_OK | X_OK))
		return -errno;
	return clear(dir, false, name, len);
}

int ttft_write_dir(const struct ttft_set *s, const char *dir, char *name,
		   size_t len)
{
	char path[4096];
	FILE *f;
	int r = clear(dir, true, name, len);

	for (size_t k = 0; k < s->n && !r; k++) {
		if (!ttft_begun(s->run[k]))
			continue;
		r = write_requests(s, k, dir);
		if (!r)
			r = write_samples(s->run[k], dir);
	}
	if (r)
		return r;
	snprintf(path, sizeof(path), "%s/results.jsonl", dir);
	f = fopen(path, "we");
	if (!f)
		return -errno;
	r = ttft_print_json(s, f);
	if (r)
		(void)fclose(f);
	else
		r = close_file(f);
	/* half of it would pass for all */
	if (r)
		(void)unlink(path);
	return r;
}
