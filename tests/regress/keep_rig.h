/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon core with a cache and an offload pool, the library's engine and a
 * soft device, all in this process: talks whose blocks know their own bytes.
 */
#ifndef KVS_TESTS_KEEP_RIG_H
#define KVS_TESTS_KEEP_RIG_H

#include "kvstage/cache.h"
#include "kvstage/device.h"
#include "tests/regress/service_rig.h"

#define KP_PAGE_SIZE 4u /* tokens; and of a block of the cache */
#define KP_BUFFERS 4u /* of two layers */
#define KP_ITEM 1024u
#define KP_DEVICE_PAGES 128u
#define KP_PAGES_MAX 64u /* of a talk */
#define KP_BYTES(pages) ((uint64_t)(pages)*KP_BUFFERS * KP_ITEM)

struct kp {
	struct rig r;
	struct kvs_engine *e;
	struct kvs_device *d;
	void *dev[KP_BUFFERS];
	void *first_of; /* of a pool that is page first */
	const uint64_t *strides; /* of it; else NULL */
	struct kvs_rng rng;
};

/* Blocks of a talk, and where they are on the device. */
struct kp_talk {
	uint32_t id; /* what its bytes and names are made from */
	uint32_t n;
	uint32_t pages[KP_PAGES_MAX];
	uint8_t hashes[KP_PAGES_MAX][16];
	kvs_handle h;
};

/* A daemon with an offload pool of @offload, 64K of which are the reserve, an
 * engine and a device with @plan (NULL: no faults); @page_first: its pages lie
 * one behind the other, each with all its layers. */
void kp_start(struct kp *k, const char *offload,
	      const struct kvs_soft_plan *plan, bool page_first);
/* Detach, and wait until all memory is free. */
void kp_stop(struct kp *k);
/* Engine and device alone. @space: NULL: nothing is cached. */
void kp_attach(struct kp *k, const char *socket, const char *space);
void kp_device(struct kp *k, const struct kvs_soft_plan *plan, bool page_first);
/* A new one, at places that were drawn. */
void kp_talk(struct kp *k, struct kp_talk *t, uint32_t id, uint32_t n);
/* Draw others. */
void kp_place(struct kp *k, struct kp_talk *t);
/* Its pages get the bytes of talk @id. */
void kp_fill_as(struct kp *k, const struct kp_talk *t, uint32_t id);
/* Bytes at its places that are not its own. */
uint64_t kp_wrong(struct kp *k, const struct kp_talk *t);
/* progress(), and its status. */
enum kvs_status kp_status(struct kp *k, kvs_handle *h, int *ret_err);
/* Until the status is @want, or more, and no copy is live; of one below SEALING
 * the copy is not waited for. FAILED fails the test. */
void kp_wait_for(struct kp *k, kvs_handle *h, enum kvs_status want);
/* Until FAILED with @err and no copy live; then release it. */
void kp_wait_failed(struct kp *k, kvs_handle *h, int err);
/* What the library is asked with. */
struct kvs_offload kp_request(struct kp *k, const struct kp_talk *t);
struct kvs_commit kp_places(struct kp *k, const struct kp_talk *t);
struct kvs_cache_query kp_query(const struct kp_talk *t);
/* kvs_offload() of it. */
void kp_leave(struct kp *k, struct kp_talk *t);
/* kvs_engine_cached(), in blocks, when it is known. */
uint32_t kp_cached(struct kp *k, const kvs_handle *h);
/* Blocks of it that are cached. */
uint32_t kp_found(struct kp *k, const struct kp_talk *t);
/* All of it is pinned, and READY; its pages are elsewhere from now on. */
void kp_pin(struct kp *k, struct kp_talk *t);
void kp_recall(struct kp *k, struct kp_talk *t);
/* Both, and it is as it was. */
void kp_back(struct kp *k, struct kp_talk *t);
/* Bytes of the offload pool in a state, now. */
uint64_t kp_bytes(struct kp *k, enum kvs_extent_state st);

#endif /* KVS_TESTS_KEEP_RIG_H */
