/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/auth_key.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/random.h"

#define KVS_KEY_DIGITS (2 * KVS_AUTH_KEY)

/* A key that somebody forgot to fill in, or made of a habit. */
static bool key_is_weak(const unsigned char key[KVS_AUTH_KEY])
{
	for (unsigned int i = 1; i < KVS_AUTH_KEY; i++)
		if (key[i] != key[0])
			return false;
	return true;
}

static int parse_line(const char *line, size_t len, struct kvs_auth_keys *k,
		      const char **ret_why)
{
	size_t n = 0;

	while (len && (line[len - 1] == '\r' || line[len - 1] == ' ' ||
		       line[len - 1] == '\t'))
		len--;
	if (!len || line[0] == '#')
		return 0;
	if (len != KVS_KEY_DIGITS) {
		*ret_why = "not 64 hexadecimal digits";
		return -EINVAL;
	}
	if (k->n == KVS_AUTH_KEYS_MAX) {
		*ret_why = "a third key; one or two are allowed";
		return -EINVAL;
	}
	if (sodium_hex2bin(k->key[k->n], KVS_AUTH_KEY, line, len, NULL, &n,
			   NULL) ||
	    n != KVS_AUTH_KEY) {
		*ret_why = "not 64 hexadecimal digits";
		return -EINVAL;
	}
	if (key_is_weak(k->key[k->n])) {
		*ret_why = "the same byte over and over is no key";
		return -EINVAL;
	}
	/* an exchange that would exchange nothing */
	if (k->n && !sodium_memcmp(k->key[0], k->key[k->n], KVS_AUTH_KEY)) {
		*ret_why = "the same key as above; two must differ";
		return -EINVAL;
	}
	k->n++;
	return 0;
}

static int parse(const char *path, const char *text, size_t len,
		 struct kvs_auth_keys *k, char *err, size_t errlen)
{
	unsigned int number = 1;
	const char *why = "";
	size_t at = 0;

	for (; at < len; number++) {
		const char *nl = memchr(text + at, '\n', len - at);
		size_t n = nl ? (size_t)(nl - text) - at : len - at;
		int ret = parse_line(text + at, n, k, &why);

		if (ret) {
			snprintf(err, errlen, "key file %s, line %u: %s", path,
				 number, why);
			return ret;
		}
		at += n + 1;
	}
	if (k->n)
		return 0;
	snprintf(err, errlen,
		 "key file %s: no key in it; it must have one or two lines of "
		 "64 hexadecimal digits (kvstagectl genkey makes one)",
		 path);
	return -EINVAL;
}

static int check(const char *path, const struct stat *st, char *err,
		 size_t errlen)
{
	unsigned int mode = (unsigned int)st->st_mode & 07777;

	if (!S_ISREG(st->st_mode)) {
		snprintf(err, errlen, "key file %s: not a regular file", path);
		return -EPERM;
	}
	if (st->st_uid != geteuid() && st->st_uid) {
		int n = snprintf(err, errlen,
				 "key file %s: belongs to user %u; it must "
				 "belong to ",
				 path, (unsigned int)st->st_uid);

		if (n >= 0 && (size_t)n < errlen && geteuid())
			snprintf(err + n, errlen - (size_t)n,
				 "user %u or to root", (unsigned int)geteuid());
		else if (n >= 0 && (size_t)n < errlen)
			snprintf(err + n, errlen - (size_t)n, "root");
		return -EPERM;
	}
	if (mode != 0600 && mode != 0400) {
		snprintf(err, errlen,
			 "key file %s: mode is %04o%s; it must be 0600 or 0400",
			 path, mode,
			 mode & 077 ? ", so that others can get at it" : "");
		return -EPERM;
	}
	if (st->st_size > KVS_AUTH_FILE_MAX) {
		snprintf(err, errlen, "key file %s: has %lld bytes, over %d",
			 path, (long long)st->st_size, KVS_AUTH_FILE_MAX);
		return -EFBIG;
	}
	return 0;
}

/* Up to @cap bytes; it may grow while it is read. */
static ssize_t read_all(int fd, char *buf, size_t cap)
{
	size_t n = 0;

	while (n < cap) {
		ssize_t got = read(fd, buf + n, cap - n);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (!got)
			break;
		n += (size_t)got;
	}
	return (ssize_t)n;
}

static int load_fd(int fd, const char *path, struct kvs_auth_keys *k, char *err,
		   size_t errlen)
{
	char text[KVS_AUTH_FILE_MAX + 1];
	struct stat st;
	ssize_t n;
	int ret;

	/* of what is open, not of what the name means by now */
	if (fstat(fd, &st)) {
		ret = -errno;
		snprintf(err, errlen, "key file %s: %s", path, strerror(-ret));
		return ret;
	}
	ret = check(path, &st, err, errlen);
	if (ret)
		return ret;
	n = read_all(fd, text, sizeof(text));
	if (n < 0 || n > KVS_AUTH_FILE_MAX) {
		ret = n < 0 ? (int)n : -EFBIG;
		snprintf(err, errlen, "key file %s: cannot read: %s", path,
			 strerror(-ret));
	} else {
		ret = parse(path, text, (size_t)n, k, err, errlen);
	}
	sodium_memzero(text, sizeof(text));
	return ret;
}

int kvs_auth_keys_load(const char *path, struct kvs_auth_keys *ret, char *err,
		       size_t errlen)
{
	struct kvs_auth_keys k = { 0 };
	int fd, res;

	if (sodium_init() < 0) {
		snprintf(err, errlen, "libsodium does not work here");
		return -ENOSYS;
	}
	if (!*path) {
		snprintf(err, errlen, "key file: its name is empty");
		return -ENOENT;
	}
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0) {
		res = -errno;
		snprintf(err, errlen, "key file %s: cannot open: %s", path,
			 strerror(-res));
		return res;
	}
	res = load_fd(fd, path, &k, err, errlen);
	close(fd);
	if (!res)
		*ret = k;
	kvs_auth_keys_clear(&k);
	return res;
}

void kvs_auth_keys_clear(struct kvs_auth_keys *k)
{
	sodium_memzero(k, sizeof(*k));
}

void kvs_auth_fingerprint(const unsigned char key[KVS_AUTH_KEY],
			  char ret[KVS_AUTH_PRINT])
{
	static const unsigned char label[16] = "kvstage1 key";
	unsigned char hash[crypto_generichash_BYTES];

	crypto_generichash(hash, sizeof(hash), label, sizeof(label), key,
			   KVS_AUTH_KEY);
	sodium_bin2hex(ret, KVS_AUTH_PRINT, hash, KVS_AUTH_PRINT / 2);
	sodium_memzero(hash, sizeof(hash));
}

void kvs_auth_fingerprints(const struct kvs_auth_keys *k,
			   char ret[KVS_AUTH_PRINTS])
{
	char name[KVS_AUTH_PRINT];
	size_t n = 0;

	ret[0] = '\0';
	for (unsigned int i = 0; i < k->n; i++) {
		kvs_auth_fingerprint(k->key[i], name);
		n += (size_t)snprintf(ret + n, KVS_AUTH_PRINTS - n, "%s%s",
				      i ? ", " : "", name);
	}
}

static int write_key(int fd)
{
	unsigned char key[KVS_AUTH_KEY];
	char text[KVS_KEY_DIGITS + 1];
	size_t done = 0;
	ssize_t n;
	int ret;

	ret = kvs_random_fill(key, sizeof(key));
	if (ret)
		return ret;
	sodium_bin2hex(text, sizeof(text), key, sizeof(key));
	text[KVS_KEY_DIGITS] = '\n';
	while (!ret && done < sizeof(text)) {
		n = write(fd, text + done, sizeof(text) - done);
		if (n < 0 && errno != EINTR)
			ret = -errno;
		else if (n > 0)
			done += (size_t)n;
	}
	if (!ret && fsync(fd) && errno != EINVAL)
		ret = -errno;
	sodium_memzero(key, sizeof(key));
	sodium_memzero(text, sizeof(text));
	return ret;
}

int kvs_auth_key_create(const char *path, char *err, size_t errlen)
{
	int fd, ret = 0;

	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
		  0600);
	if (fd < 0) {
		ret = -errno;
		snprintf(err, errlen, "key file %s: %s%s", path, strerror(-ret),
			 ret == -EEXIST ? "; a key is never overwritten" : "");
		return ret;
	}
	ret = write_key(fd);
	if (close(fd) && !ret)
		ret = -errno;
	if (ret) {
		(void)unlink(path);
		snprintf(err, errlen, "key file %s: cannot write: %s", path,
			 strerror(-ret));
	}
	return ret;
}
