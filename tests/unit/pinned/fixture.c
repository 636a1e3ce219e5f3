/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/pinned/fixture.h"

#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void die(const char *what)
{
	perror(what);
	abort();
}

void fixture_init(struct fixture *f)
{
	snprintf(f->root, sizeof(f->root), "/tmp/kvs-fixture-XXXXXX");
	if (!mkdtemp(f->root))
		die("mkdtemp");
}

/* Makes the folders of @full below the root; the last part is a file. */
static void make_parents(const struct fixture *f, char *full)
{
	char *p = full + strlen(f->root) + 1;

	while ((p = strchr(p, '/'))) {
		*p = '\0';
		if (mkdir(full, 0755) < 0 && errno != EEXIST)
			die(full);
		*p++ = '/';
	}
}

static void full_path(const struct fixture *f, const char *path, char *full)
{
	int n = snprintf(full, PATH_MAX, "%s%s", f->root, path);

	if (n < 0 || n >= PATH_MAX || path[0] != '/')
		die("fixture path");
	make_parents(f, full);
}

void fixture_file(const struct fixture *f, const char *path, const char *text)
{
	char full[PATH_MAX];
	FILE *out;

	full_path(f, path, full);
	out = fopen(full, "w");
	if (!out || fputs(text, out) < 0 || fclose(out))
		die(full);
}

void fixture_dir(const struct fixture *f, const char *path)
{
	char full[PATH_MAX];

	full_path(f, path, full);
	if (mkdir(full, 0755) < 0 && errno != EEXIST)
		die(full);
}

static int remove_one(const char *path, const struct stat *st, int type,
		      struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

void fixture_fini(struct fixture *f)
{
	if (nftw(f->root, remove_one, 16, FTW_DEPTH | FTW_PHYS) < 0)
		die(f->root);
}
