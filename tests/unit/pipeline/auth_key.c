/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: a key file is one or two keys of 64 hexadecimal digits in a regular
 * file of bounded size that nobody else can read or write; anything else is
 * refused with a message that names the file, what it is and what it must be,
 * and never a key, and leaves the keys that were; the fingerprints of keys are
 * those of another library; a new file has the right mode whatever the umask,
 * another key each time, and never takes the place of one that is there.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/random.h"
#include "pipeline/auth_key.h"

#define K1 "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
#define K2 "A0A1A2A3A4A5A6A7A8A9AAABACADAEAFb0b1b2b3b4b5b6b7b8b9babbbcbdbebf"

static char dir[] = "/tmp/kvs-auth-key-XXXXXX";
static char path[64];
static char err[512];
static struct kvs_auth_keys keys;

static int setup(void **state)
{
	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/key", dir);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	(void)unlink(path);
	return rmdir(dir);
}

static void put(const void *text, size_t len, mode_t mode)
{
	FILE *f;

	(void)unlink(path);
	f = fopen(path, "we");
	assert_non_null(f);
	assert_int_equal(fwrite(text, 1, len, f), len);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(chmod(path, mode), 0);
}

/* The message names the file, and no key. */
static int load(void)
{
	int ret;

	memset(&keys, 0x5a, sizeof(keys));
	err[0] = '\0';
	ret = kvs_auth_keys_load(path, &keys, err, sizeof(err));
	if (!ret)
		return 0;
	assert_non_null(strstr(err, path));
	assert_null(strstr(err, "0001020304"));
	assert_int_equal(keys.key[0][0], 0x5a);
	return ret;
}

static void good(void **state)
{
	static const struct {
		const char *text;
		unsigned int n;
	} t[] = {
		{ K1 "\n", 1 },
		{ K1, 1 },
		{ K1 "\n" K2 "\n", 2 },
		{ "# of cluster 7\n\n" K1 "\r\n  \n" K2, 2 },
		{ "#" K2 "\n" K1 " \t\n", 1 },
	};

	(void)state;
	for (size_t i = 0; i < KVS_ARRAY_SIZE(t); i++) {
		put(t[i].text, strlen(t[i].text), i % 2 ? 0600 : 0400);
		if (load())
			fail_msg("%zu: %s", i, err);
		assert_int_equal(keys.n, t[i].n);
		for (unsigned int b = 0; b < KVS_AUTH_KEY; b++) {
			assert_int_equal(keys.key[0][b], b);
			if (t[i].n == 2)
				assert_int_equal(keys.key[1][b], 0xa0 + b);
		}
	}
	kvs_auth_keys_clear(&keys);
	assert_int_equal(keys.n, 0);
	assert_int_equal(keys.key[0][5], 0);
}

static void fingerprints(void **state)
{
	char print[KVS_AUTH_PRINT], all[KVS_AUTH_PRINTS];

	(void)state;
	put(K1 "\n" K2 "\n", 130, 0600);
	assert_int_equal(load(), 0);
	kvs_auth_fingerprint(keys.key[0], print);
	assert_string_equal(print, "1cde043b");
	kvs_auth_fingerprint(keys.key[1], print);
	assert_string_equal(print, "78b95366");
	kvs_auth_fingerprints(&keys, all);
	assert_string_equal(all, "1cde043b, 78b95366");
	keys.n = 1;
	kvs_auth_fingerprints(&keys, all);
	assert_string_equal(all, "1cde043b");
	keys.n = 0;
	kvs_auth_fingerprints(&keys, all);
	assert_string_equal(all, "");
}

static void bad_content(void **state)
{
	static const struct {
		const char *text, *part;
	} t[] = {
		{ "", "no key in it" },
		{ "# nothing\n\n", "kvstagectl genkey" },
		{ K1 "0\n", "line 1: not 64" },
		{ "\n000102\n", "line 2: not 64" },
		{ K1 "\n" K2 "\n# two\n" K1 "\n", "line 4: a third key" },
		{ K1 "\n" K1 "\n", "line 2: the same key" },
		{ "# old\n" K1 "\n# new\n" K1, "line 4: the same key" },
		{ "g" K1, "line 1: not 64" },
		{ " " K1 "\n", "line 1: not 64" },
		{ "zz0102030405060708090a0b0c0d0e0f"
		  "101112131415161718191a1b1c1d1e1f\n",
		  "line 1: not 64" },
		{ "00010203 05060708090a0b0c0d0e0f0"
		  "101112131415161718191a1b1c1d1e1f\n",
		  "line 1: not 64" },
		{ "00000000000000000000000000000000"
		  "00000000000000000000000000000000\n",
		  "no key" },
		{ K1 "\nffffffffffffffffffffffffffffffff"
		     "ffffffffffffffffffffffffffffffff\n",
		  "line 2: the same byte" },
	};
	char nul[70];

	(void)state;
	for (size_t i = 0; i < KVS_ARRAY_SIZE(t); i++) {
		put(t[i].text, strlen(t[i].text), 0600);
		if (load() != -EINVAL || !strstr(err, t[i].part))
			fail_msg("%zu: \"%s\", wanted \"%s\"", i, err,
				 t[i].part);
	}
	/* a NUL within a line ends nothing */
	memset(nul, 0, sizeof(nul));
	memcpy(nul, K1, 64);
	put(nul, sizeof(nul), 0600);
	assert_int_equal(load(), -EINVAL);
	nul[20] = '\0';
	put(nul, 64, 0600);
	assert_int_equal(load(), -EINVAL);
}

static void others_may_not(void **state)
{
	static const mode_t modes[] = { 0640,  0604,  0620,  0602,  0610, 0601,
					0666,  0444,  0777,  04644, 0700, 0500,
					04600, 02600, 01600, 0000,  0200 };
	char part[16];

	(void)state;
	for (size_t i = 0; i < KVS_ARRAY_SIZE(modes); i++) {
		put(K1, 64, modes[i]);
		assert_int_equal(load(), -EPERM);
		snprintf(part, sizeof(part), "%04o", (unsigned int)modes[i]);
		assert_non_null(strstr(err, part));
		assert_non_null(strstr(err, "0600 or 0400"));
		assert_int_equal(!!strstr(err, "others can get at it"),
				 !!(modes[i] & 077));
	}
	put(K1, 64, 0600);
	assert_int_equal(load(), 0);
	if (geteuid()) {
		print_message("# owner not tested: not root\n");
		return;
	}
	/* not even root takes the file of somebody else: he knows the key */
	assert_int_equal(chown(path, 12345, 12345), 0);
	assert_int_equal(load(), -EPERM);
	assert_non_null(strstr(err, "user 12345"));
	assert_non_null(strstr(err, "must belong to root"));
}

static void not_a_file(void **state)
{
	char link[80], text[KVS_AUTH_FILE_MAX + 2];

	(void)state;
	assert_int_equal(kvs_auth_keys_load("", &keys, err, sizeof(err)),
			 -ENOENT);
	assert_string_equal(err, "key file: its name is empty");
	(void)unlink(path);
	assert_int_equal(load(), -ENOENT);
	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_equal(load(), -EPERM);
	assert_non_null(strstr(err, "not a regular file"));
	assert_int_equal(rmdir(path), 0);
	/* nobody writes into it, and nothing waits for that */
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(load(), -EPERM);
	assert_int_equal(unlink(path), 0);

	memset(text, '#', sizeof(text));
	put(text, sizeof(text), 0600);
	assert_int_equal(load(), -EFBIG);
	memset(text, '\n', sizeof(text));
	for (unsigned int i = 0; i < 64; i++)
		text[i] = K1[i];
	put(text, KVS_AUTH_FILE_MAX, 0600);
	assert_int_equal(load(), 0);

	/* as secrets are mounted: what counts is what it points to */
	put(K1, 64, 0600);
	snprintf(link, sizeof(link), "%s.data", path);
	assert_int_equal(rename(path, link), 0);
	assert_int_equal(symlink(link, path), 0);
	assert_int_equal(load(), 0);
	assert_int_equal(chmod(link, 0644), 0);
	assert_int_equal(load(), -EPERM);
	assert_int_equal(unlink(link), 0);
	assert_int_equal(load(), -ENOENT);
}

static int no_random(void *arg, void *buf, size_t len)
{
	(void)arg;
	(void)buf;
	(void)len;
	return -ENOSYS;
}

static void made(void **state)
{
	mode_t masks[] = { 0, 022, 077 };
	struct kvs_auth_keys before = { 0 };
	struct stat st;

	(void)state;
	for (size_t i = 0; i < KVS_ARRAY_SIZE(masks); i++) {
		mode_t was = umask(masks[i]);

		(void)unlink(path);
		assert_int_equal(kvs_auth_key_create(path, err, sizeof(err)),
				 0);
		umask(was);
		assert_int_equal(stat(path, &st), 0);
		assert_int_equal(st.st_mode & 07777, 0600);
		assert_int_equal(st.st_size, 65);
		assert_int_equal(load(), 0);
		assert_int_equal(keys.n, 1);
		assert_memory_not_equal(keys.key[0], before.key[0],
					KVS_AUTH_KEY);
		before = keys;
	}
	/* never overwritten */
	assert_int_equal(kvs_auth_key_create(path, err, sizeof(err)), -EEXIST);
	assert_non_null(strstr(err, path));
	assert_int_equal(load(), 0);
	assert_memory_equal(keys.key[0], before.key[0], KVS_AUTH_KEY);
	/* no half file is left */
	assert_int_equal(unlink(path), 0);
	kvs_random_use(no_random, NULL);
	assert_int_equal(kvs_auth_key_create(path, err, sizeof(err)), -ENOSYS);
	kvs_random_use(NULL, NULL);
	assert_int_not_equal(access(path, F_OK), 0);
	/* nor behind a link */
	assert_int_equal(symlink("elsewhere", path), 0);
	assert_int_equal(kvs_auth_key_create(path, err, sizeof(err)), -EEXIST);
	assert_int_equal(unlink(path), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(good),
		cmocka_unit_test(bad_content),
		cmocka_unit_test(others_may_not),
		cmocka_unit_test(not_a_file),
		cmocka_unit_test(made),
		cmocka_unit_test(fingerprints),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
