/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: cuda_rig
 *
 * A CUDA device over the double of the driver, memory on both sides, and
 * copies of random runs with what they must come to.
 */
#ifndef KVS_TESTS_CUDA_RIG_H
#define KVS_TESTS_CUDA_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "gpu/device.h"
#include "lib/rng.h"
#include "tests/fake_cuda/fake_cuda.h"

#define RIG_HOST (1u << 20) /* bytes */
#define RIG_DEV (2u << 20)
#define RIG_RUNS 8
#define RIG_LISTS 64

struct cuda_rig {
	struct kvs_rng rng;
	struct kvs_device *d;
	struct fake_cuda_config config;
	struct kvs_device_opts o;
	uint8_t *host; /* RIG_HOST, aligned to 4096 */
	uint8_t *host_want;
	uint8_t *dev;
	uint8_t *dev_want;
	uint64_t registered; /* bytes of host */
};

/* One copy, in memory of its own. */
struct cuda_copy {
	struct kvs_copy c;
	struct kvs_copy_run run[RIG_RUNS];
	struct kvs_copy_shape shape[RIG_RUNS];
	uint32_t pages[RIG_RUNS][RIG_LISTS];
};

/* Of KVS_TEST_SEED, or 1; printed. */
void rig_seed(struct cuda_rig *g);
/* Options with small rings: slots of 64 KiB. The double is reset. */
void rig_init(struct cuda_rig *g, enum kvs_copy_way way);
/* Open, and register all but the last quarter of the host side. */
void rig_open(struct cuda_rig *g);
/* Nothing may be alive in the double then. */
void rig_close(struct cuda_rig *g);
void rig_free(struct cuda_rig *g);
void rig_alive(unsigned int n);

/* Random runs into bands of device memory, so that copies do not overlap: band
 * @b of @n. And apply them to what is wanted. */
void rig_copy(struct cuda_rig *g, struct cuda_copy *c, enum kvs_copy_dir dir,
	      unsigned int b, unsigned int n);
void rig_want(struct cuda_rig *g, const struct cuda_copy *c);
/* Wait. Return: its status. */
int rig_wait(struct cuda_rig *g, const struct cuda_copy *c);
/* Random bytes on both sides. */
void rig_fill(struct cuda_rig *g);
void rig_check(struct cuda_rig *g);

#endif /* KVS_TESTS_CUDA_RIG_H */
