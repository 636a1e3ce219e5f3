/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two verbs transports of one thread: the near one connects (a sender), the
 * far one adopts and gives the owner (a daemon's node). Over the machine's
 * devices (verbs_real.c), exit 77 where there is none: tests/vm runs these in a
 * machine that has one. Over the double's (verbs_fake.c) everywhere.
 */
#ifndef KVS_TESTS_VERBS_RIG_H
#define KVS_TESTS_VERBS_RIG_H

/* clang-format off: cmocka wants these first */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rdma/verbs.h"

/* One connection as its upper layer sees it. */
struct vside {
	struct kvs_conn *c;
	int opened;
	int frames;
	uint32_t last_len; /* of the last frame */
	uint16_t last_type;
	bool bad; /* a frame's bytes were wrong */
	int payloads;
	unsigned char *mem; /* a payload goes here */
	int closed;
	int err;
	int (*on_frame)(struct vside *s, const struct kvs_frame *f);
	void *arg;
};

struct vrig {
	struct kvs_transport *near;
	struct kvs_transport *far;
	int listener;
	struct kvs_addr addr;
	uint64_t owner; /* of the next pair; 0: stays TCP */
};

struct vpair {
	struct vside near; /* writes */
	struct vside far; /* grants */
};

/* A write, and how it ended. */
struct vwrite {
	struct kvs_tx tx;
	struct iovec iov;
	int done;
	int status;
};

struct vgrant {
	struct kvs_grant *g;
	int opened;
	int open_status;
	int closed;
	int close_status;
	enum kvs_grant_proof proof;
};

/* Skip (77) without a device. Return: is the one in use a soft one. */
bool vrig_main(void);
/* Over the double? It has one process, and places what is posted at once. */
bool vrig_is_double(void);
/* verbs_real.c, verbs_fake.c: before anything else. */
void vrig_world(void);
struct vrig *vrig_new(const struct kvs_verbs_opts *near,
		      const struct kvs_verbs_opts *far);
void vrig_free(struct vrig *r);
/* Memory that is granted from: kinds with a key a connection want it
 * registered once. */
void vrig_pool(struct vrig *r, void *addr, uint64_t len);
/* One whose far side gives keys a connection, for memory registered once: @n
 * bytes of 0xee at *@ret_pool, which outlive the rig; free() them. */
struct vrig *vrig_new_pool(const struct kvs_verbs_opts *far, size_t n,
			   unsigned char **ret_pool);
/* Only the listener of a rig. */
void vrig_listen(struct vrig *r);
/* A connection of both; up, unless the far side has no owner to give. */
void vrig_pair(struct vrig *r, struct vside *near, struct vside *far);
/* The same, with an owner to give. */
void vrig_pair_as(struct vrig *r, struct vpair *p, uint64_t owner);
/* Its halves. */
void vrig_connect(struct vrig *r, struct vside *near);
void vrig_adopt(struct vrig *r, int fd, struct vside *far);
void vrig_poll(struct vrig *r);
uint64_t vrig_now(void);

/* Poll until @cond, at most 30 s. */
#define vrig_until(r, cond)                                    \
	do {                                                   \
		uint64_t until_ = vrig_now() + 30000000000ull; \
		while (!(cond)) {                              \
			assert_true(vrig_now() < until_);      \
			vrig_poll(r);                          \
		}                                              \
	} while (0)
/* Poll for @ns. */
void vrig_for(struct vrig *r, uint64_t ns);

/* A frame whose bytes the other side checks. */
int vside_send(struct vside *s, uint16_t type, uint32_t len);
/* Write @len bytes from @src to @key + @off, with a frame behind. */
int vside_write(struct vside *s, struct vwrite *w, void *src, uint64_t len,
		const struct kvs_grant_key *key, uint64_t off);
int vside_write_v(struct vside *s, struct vwrite *w, const struct iovec *iov,
		  size_t n, const struct kvs_grant_key *key, uint64_t off);
/* The same as a payload, where there is no queue pair. */
int vside_payload(struct vside *s, struct vwrite *w, void *src, uint64_t len);
void vgrant_open(struct vrig *r, struct vgrant *v, uint64_t owner, void *addr,
		 uint64_t len);
/* Those that are begun from here on may not be read. */
void vgrant_write_only(bool yes);
/* Without waiting. */
void vgrant_begin(struct vrig *r, struct vgrant *v, uint64_t owner, void *addr,
		  uint64_t len);
void vgrant_close(struct vrig *r, struct vgrant *v);
/* Of its first byte. */
const struct kvs_grant_key *vgrant_key(const struct vgrant *v);
unsigned char vpattern(uint64_t seed, uint64_t i);
void vfill(void *p, uint64_t seed, size_t n);
bool vmatches(const void *p, uint64_t seed, size_t n);
bool vall(const void *p, unsigned char v, size_t n);
/* Page-aligned memory that is there; free() it. */
unsigned char *vmem(size_t n, unsigned char v);

#endif /* KVS_TESTS_VERBS_RIG_H */
