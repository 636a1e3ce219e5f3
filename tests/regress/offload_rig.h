/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon core with an offload pool, the library's engine and a soft device,
 * all in this process: requests on the device that know their own bytes.
 */
#ifndef KVS_TESTS_OFFLOAD_RIG_H
#define KVS_TESTS_OFFLOAD_RIG_H

#include "kvstage/cache.h"
#include "kvstage/device.h"
#include "tests/regress/service_rig.h"

#define OF_PAGE_SIZE 4u /* tokens */
#define OF_PAGES 64u /* of the device */
#define OF_STATES 16u
#define OF_BUFFERS 5u /* the last has OF_ITEMS states a request */
#define OF_ITEMS 2u
#define OF_ITEM 1024u
#define OF_POOL "512K" /* receive */

/* A request: where it is on the device, and what its bytes are made from. */
struct of_request {
	uint64_t id;
	uint32_t n_pages;
	uint32_t pages[OF_PAGES];
	uint32_t items[OF_ITEMS];
	kvs_handle h;
};

struct of {
	struct rig r;
	struct kvs_engine *e;
	struct kvs_device *d;
	void *dev[OF_BUFFERS];
	struct kvs_rng rng;
};

/* @offload: pool.offload_size. @plan: of the device; NULL: no faults. */
void of_up(struct of *o, const char *offload, const struct kvs_soft_plan *plan);
/* Detach, and wait until all memory is free. */
void of_down(struct of *o);
/* Engine and device alone, at a daemon that is elsewhere. */
void of_attach(struct of *o, const char *socket,
	       const struct kvs_soft_plan *plan);
/* New places on the device, the states included. */
void of_place(struct of *o, struct of_request *q, uint64_t id, uint32_t pages);
/* Compute it: its bytes lie on the device. */
void of_fill(const struct of *o, const struct of_request *q);
/* Bytes at its places that are not its own. */
uint64_t of_wrong(const struct of *o, const struct of_request *q);
/* kvs_retract() of it, with @written. */
int of_leave(struct of *o, struct of_request *q, int (*written)(void *arg),
	     void *arg);
/* kvs_resume() at its places. */
int of_back(struct of *o, struct of_request *q);
enum kvs_status of_status(struct of *o, struct of_request *q, int *ret_err);
/* progress() until the status is @st; any other end fails the test. */
void of_wait(struct of *o, struct of_request *q, enum kvs_status st);
/* Until FAILED with @err and no copy running; then release it. */
void of_wait_failed(struct of *o, struct of_request *q, int err);
void of_release(struct of *o, struct of_request *q);
/* Bytes of the offload pool in a state, now. */
uint64_t of_bytes(struct of *o, enum kvs_extent_state st);
uint64_t of_count(struct of *o, enum kvs_retract_result res);

#endif /* KVS_TESTS_OFFLOAD_RIG_H */
