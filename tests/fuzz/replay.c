/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The main() of a fuzz target in a build without libFuzzer: every file of the
 * folder given is one input. Claim: the target survives its corpus; an empty
 * or absent corpus is a failure, for it would claim nothing.
 */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* What libFuzzer calls; each target defines it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REPLAY_MAX_INPUT (16u << 20) /* bytes */

static int replay_file(const char *path)
{
	uint8_t *data;
	struct stat st;
	size_t got;
	FILE *f;

	f = fopen(path, "rb");
	if (!f)
		return -errno;
	if (fstat(fileno(f), &st) || st.st_size > REPLAY_MAX_INPUT) {
		(void)fclose(f);
		return -EFBIG;
	}
	/* Exactly as long as the input, so that ASan sees one byte too far. */
	data = malloc(st.st_size ? (size_t)st.st_size : 1);
	if (!data) {
		(void)fclose(f);
		return -ENOMEM;
	}
	got = fread(data, 1, (size_t)st.st_size, f);
	(void)fclose(f);
	if (got != (size_t)st.st_size) {
		free(data);
		return -EIO;
	}
	LLVMFuzzerTestOneInput(data, got);
	free(data);
	return 0;
}

int main(int argc, char **argv)
{
	struct dirent *e;
	unsigned n = 0;
	char path[4096];
	DIR *d;
	int r;

	if (argc != 2) {
		fprintf(stderr, "usage: %s CORPUS\n", argv[0]);
		return 2;
	}
	d = opendir(argv[1]);
	if (!d) {
		fprintf(stderr, "%s: %s\n", argv[1], strerror(errno));
		return 1;
	}
	while ((e = readdir(d))) {
		if (e->d_name[0] == '.')
			continue;
		r = snprintf(path, sizeof(path), "%s/%s", argv[1], e->d_name);
		if (r < 0 || (size_t)r >= sizeof(path)) {
			fprintf(stderr, "%s: name too long\n", e->d_name);
			closedir(d);
			return 1;
		}
		/* Before the call: what stands last is what it died of. */
		fprintf(stderr, "%s\n", path);
		r = replay_file(path);
		if (r < 0) {
			fprintf(stderr, "%s: %s\n", path, strerror(-r));
			closedir(d);
			return 1;
		}
		n++;
	}
	closedir(d);
	printf("%u inputs replayed\n", n);
	return n ? 0 : 1;
}
