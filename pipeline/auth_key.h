/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: key file
 *
 * The secret of a cluster: a text file with one or two keys of 256 bits, a
 * line of 64 hexadecimal digits each; empty lines and lines that begin with #
 * are skipped. A sender uses the first. A daemon accepts both, so that keys
 * can be exchanged while everything runs: the new one goes to the daemons as
 * the second, then to the senders, then the old one is taken out.
 */
#ifndef KVS_PIPELINE_AUTH_KEY_H
#define KVS_PIPELINE_AUTH_KEY_H

#include <stddef.h>

#define KVS_AUTH_KEY 32 /* bytes */
#define KVS_AUTH_KEYS_MAX 2
#define KVS_AUTH_FILE_MAX 4096 /* bytes */
#define KVS_AUTH_PRINT 9 /* bytes, NUL included */
#define KVS_AUTH_PRINTS (KVS_AUTH_KEYS_MAX * (KVS_AUTH_PRINT + 1))

struct kvs_auth_keys {
	unsigned int n;
	unsigned char key[KVS_AUTH_KEYS_MAX][KVS_AUTH_KEY];
};

/**
 * kvs_auth_keys_load() - read a key file
 * @path: a regular file of at most KVS_AUTH_FILE_MAX bytes that belongs to
 *        this process's user or to root, with mode 0600 or 0400; a symbolic
 *        link is followed
 * @ret: written only on success; kvs_auth_keys_clear() when done
 * @err: names the file, what it is and what it must be; never a key
 *
 * Context: reads the file; a FIFO does not block it.
 * Return: 0; -EINVAL content; -EPERM owner, mode or kind; -EFBIG; -ENOSYS
 * libsodium does not work here; what opening the file gave.
 */
int kvs_auth_keys_load(const char *path, struct kvs_auth_keys *ret, char *err,
		       size_t errlen);
void kvs_auth_keys_clear(struct kvs_auth_keys *k);

/*
 * The fingerprint of a key, by which people can tell whether two nodes have
 * the same one: 8 hexadecimal digits, the first of keyed BLAKE2b-256 over a
 * label of 16 bytes that no code has (auth.h). The key cannot be found from
 * it.
 */
void kvs_auth_fingerprint(const unsigned char key[KVS_AUTH_KEY],
			  char ret[KVS_AUTH_PRINT]);
/* Those of all keys, with commas between, for people. */
void kvs_auth_fingerprints(const struct kvs_auth_keys *k,
			   char ret[KVS_AUTH_PRINTS]);

/**
 * kvs_auth_key_create() - a new file with a new key
 * @path: must not exist; is made with mode 0600
 *
 * Return: 0; -EEXIST; what open(), write() and kvs_random_fill() give.
 */
int kvs_auth_key_create(const char *path, char *err, size_t errlen);

#endif /* KVS_PIPELINE_AUTH_KEY_H */
