/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What sysfs says of a device: its driver and its NUMA node; struct
 * ibv_device names the folder. A soft device has a file "parent" in its place.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fake_verbs/internal.h"

static int put(const char *dir, const char *name, const char *text)
{
	char path[512];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "we");
	if (!f)
		return -errno;
	fputs(text, f);
	return fclose(f) ? -errno : 0;
}

int fv_sysfs_make(struct fv_device *d)
{
	const char *driver = d->s.driver;
	char dir[256], path[512], link[512], text[32];

	if (!fv_w.root[0]) {
		snprintf(fv_w.root, sizeof(fv_w.root),
			 "/tmp/fake_verbs.XXXXXX");
		if (!mkdtemp(fv_w.root))
			return -errno;
	}
	snprintf(dir, sizeof(dir), "%s/%s", fv_w.root, d->name);
	snprintf(d->ibv.ibdev_path, sizeof(d->ibv.ibdev_path), "%s", dir);
	if (mkdir(dir, 0755))
		return -errno;
	if (driver && !strcmp(driver, "rxe"))
		return put(dir, "parent", "lo\n");
	snprintf(path, sizeof(path), "%s/device", dir);
	if (mkdir(path, 0755))
		return -errno;
	snprintf(text, sizeof(text), "%d\n", d->s.numa - 1);
	if (put(path, "numa_node", text))
		return -EIO;
	if (!driver)
		return 0;
	snprintf(path, sizeof(path), "../../bus/pci/drivers/%s", driver);
	snprintf(link, sizeof(link), "%s/device/driver", dir);
	return symlink(path, link) ? -errno : 0;
}

static int remove_one(const char *path, const struct stat *st, int type,
		      struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

void fv_sysfs_remove(void)
{
	if (fv_w.root[0])
		(void)nftw(fv_w.root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
	fv_w.root[0] = '\0';
}
