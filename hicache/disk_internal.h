/* SPDX-License-Identifier: Apache-2.0 */
/* Between disk_io.c and the engines. */
#ifndef KVS_HICACHE_DISK_INTERNAL_H
#define KVS_HICACHE_DISK_INTERNAL_H

#include "hicache/disk_io.h"

#define KVS_DISK_ATTEMPT_MAX (1ULL << 30) /* bytes asked for at once */

/*
 * One transfer that is in the engine's hands. A slot is used again once its
 * result is back; until then the vector in it stays.
 */
struct kvs_disk_slot {
	struct kvs_list node; /* free list, or the engine's */
	struct kvs_disk_io *io;
	uint64_t off;
	uint64_t len;
	unsigned int niov;
	struct iovec iov[KVS_DISK_IOV_MAX];
	/* the engine's */
	ssize_t result;
	uint64_t due; /* ns */
};

/**
 * struct kvs_disk_engine - how bytes are moved
 * @init: make @d->engine; 0, or -errno with a message
 * @fini: nothing is in its hands
 * @submit: take a slot; kvs_disk_complete() comes from inside @turn
 * @turn: hand over, and complete what has ended
 * @flush: hand over what was submitted since, and complete what is known to
 *	have ended; NULL: that needs no call
 * @fd: see kvs_disk_fd()
 * @due: see kvs_disk_due(); NULL: never
 * @map: see kvs_disk_map(); NULL: -EOPNOTSUPP
 * @file_add: register; sets @f->index. NULL: not
 * @file_del: undo
 */
struct kvs_disk_engine {
	const char *name;
	int (*init)(struct kvs_disk *d, const struct kvs_disk_opts *o,
		    char *err, size_t errlen);
	void (*fini)(struct kvs_disk *d);
	void (*submit)(struct kvs_disk *d, struct kvs_disk_slot *s);
	void (*turn)(struct kvs_disk *d);
	void (*flush)(struct kvs_disk *d);
	int (*fd)(const struct kvs_disk *d);
	uint64_t (*due)(const struct kvs_disk *d);
	int (*map)(struct kvs_disk *d, void *base, uint64_t len);
	void (*file_add)(struct kvs_disk *d, struct kvs_disk_file *f);
	void (*file_del)(struct kvs_disk *d, struct kvs_disk_file *f);
};

extern const struct kvs_disk_engine kvs_disk_uring;
extern const struct kvs_disk_engine kvs_disk_plain;
extern const struct kvs_disk_engine kvs_disk_virtual;

struct kvs_disk {
	const struct kvs_disk_engine *ops;
	void *engine; /* its own */
	struct kvs_fs *fs;
	unsigned int depth;
	struct kvs_disk_slot *slots; /* depth of them */
	struct kvs_list free; /* slots */
	struct kvs_list reads; /* transfers that wait for a slot */
	struct kvs_list writes; /* and syncs */
	struct kvs_list ended; /* transfers whose ->done is to be called */
	unsigned int busy;
	unsigned int streak; /* reads begun while a write waited */
	struct kvs_disk_stats stats;
	ssize_t (*result)(void *arg, enum kvs_disk_op op, ssize_t result);
	void *result_arg;
};

/* What the system said of a slot: bytes, or -errno. */
void kvs_disk_complete(struct kvs_disk *d, struct kvs_disk_slot *s,
		       ssize_t result);

/* Do it by the table of calls, in this thread. Return: bytes or -errno. */
ssize_t kvs_disk_call(struct kvs_fs *fs, const struct kvs_disk_slot *s);

#endif /* KVS_HICACHE_DISK_INTERNAL_H */
