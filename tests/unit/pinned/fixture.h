/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tree of small files below a temporary directory: the /proc and /sys of a
 * machine that does not exist.
 */
#ifndef KVS_TESTS_PINNED_FIXTURE_H
#define KVS_TESTS_PINNED_FIXTURE_H

struct fixture {
	char root[64];
};

/* Every one of them ends the program when it fails. */
void fixture_init(struct fixture *f);
/* Writes a file at an absolute path below the root, making its folders. */
void fixture_file(const struct fixture *f, const char *path, const char *text);
void fixture_dir(const struct fixture *f, const char *path);
void fixture_fini(struct fixture *f);

#endif /* KVS_TESTS_PINNED_FIXTURE_H */
