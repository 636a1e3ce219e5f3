/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: fake_cuda
 *
 * A double of the CUDA driver: a libcuda.so.1 of our own, with exactly the
 * calls of gpu/cuda/api.h. A program that is linked with it has gpu/cuda find
 * it by the same dlopen() as the real one; other programs, with
 * LD_LIBRARY_PATH.
 *
 * Device memory is ordinary memory. Every stream is a thread that takes its
 * operations in order, at any time after the call, as a GPU would; so the
 * thread sanitizer sees every buffer that is used again too early. Kernels are
 * the body of gpu/scatter.h, run thread by thread, every address of theirs
 * being looked at first: one that is nobody's, or not aligned, is the end of
 * the context, as on a GPU. What a driver refuses is refused: copies that lie
 * in two registrations, registrations that overlap, batches without an
 * attribute.
 *
 * The same words can be given in KVS_FAKE_CUDA, with commas between them, for
 * programs that do not know of the double: devices=0, driver=12040, stub=1,
 * read_only=0, alias=1, register_max=BYTES, register_ns=NS, memory=BYTES,
 * kernels=0,
 * peer_mem=0, dma_buf=0.
 */
#ifndef KVS_TESTS_FAKE_CUDA_H
#define KVS_TESTS_FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)

/**
 * struct fake_cuda_config - what kind of machine it is
 * @devices: there are
 * @driver: version, as 13000
 * @read_only: read-only memory can be registered
 * @alias: the device has other addresses for host memory than the CPU
 * @kernels: modules can be loaded
 * @stub: cuInit() says that it is a stub
 * @register_max: bytes that one registration may have; 0: any
 * @register_ns: each takes so long
 * @memory: bytes of device memory; 0: any
 * @peer_mem: it says that RDMA may read its memory
 * @dma_buf: memory can be exported; a descriptor is one of a memfd whose file
 *           position is where the range begins
 */
struct fake_cuda_config {
	int devices;
	int driver;
	bool read_only;
	bool alias;
	bool kernels;
	bool stub;
	uint64_t register_max;
	uint64_t register_ns;
	uint64_t memory;
	bool peer_mem;
	bool dma_buf;
};

/**
 * struct fake_cuda_counts - so far, and now
 * @copies: pieces the copy engines moved
 * @batches: batch calls
 * @launches: of kernels
 * @blocks_max: largest grid of a launch
 * @streams, @events, @allocations, @registrations, @pinned, @contexts,
 * @modules: alive now
 * @registered_bytes: now
 * @registered_max: largest single registration so far, bytes
 * @unregistered: so far
 * @registering: calls that wait, see fake_cuda_register_only()
 */
struct fake_cuda_counts {
	uint64_t copies;
	uint64_t batches;
	uint64_t launches;
	uint64_t blocks_max;
	uint64_t streams;
	uint64_t events;
	uint64_t allocations;
	uint64_t registrations;
	uint64_t pinned;
	uint64_t contexts;
	uint64_t modules;
	uint64_t registered_bytes;
	uint64_t registered_max;
	uint64_t unregistered;
	uint64_t registering;
};

/* One device, 13.0, all there; or as KVS_FAKE_CUDA has it. */
void fake_cuda_config_init(struct fake_cuda_config *c);
/* A new machine: no faults, no counts. Nothing of the old one may be alive. */
void fake_cuda_reset(const struct fake_cuda_config *c);
void fake_cuda_counts(struct fake_cuda_counts *ret);

/* The @nth call of @name from now on (1: the next) returns @error; names are
 * those of the driver, "cuMemAlloc". Several may be set. */
void fake_cuda_fail(const char *name, uint64_t nth, int error);
/* The @nth copy or launch that a stream comes to from now on is the end of the
 * context, with @error for all calls from then on. */
void fake_cuda_break(uint64_t nth, int error);
/* No faults any more, and the context is as new. */
void fake_cuda_reset_faults(void);
/* Streams stop before their next operation, until it is taken back. */
void fake_cuda_hold(bool hold);
/* Every copy and launch takes this long, ns. */
void fake_cuda_slow(uint64_t ns);
/* So many registrations go on from now on, and the next waits; UINT64_MAX: it
 * does not. */
void fake_cuda_register_only(uint64_t n);
/* Copies of a batch are made in an order drawn by @seed; 0: as given. */
void fake_cuda_shuffle(uint64_t seed);
/* Addresses in the order in which they were unregistered, the first @max. */
size_t fake_cuda_unregistered(uintptr_t *ret, size_t max);

#pragma GCC visibility pop

#endif /* KVS_TESTS_FAKE_CUDA_H */
