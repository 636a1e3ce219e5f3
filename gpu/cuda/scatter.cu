/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of gpu/scatter.h. Compiled by nvcc, or, where there is no
 * toolkit, by clang to PTX, which the driver compiles when it loads it: hence
 * no header of CUDA is needed and none is included.
 */
#ifndef __CUDACC__
#define __CUDACC__ /* clang with -nocudainc */
#endif
#ifdef __clang__
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __forceinline__ __inline__ __attribute__((always_inline))
#define KVS_THREAD __nvvm_read_ptx_sreg_tid_x()
#define KVS_BLOCK __nvvm_read_ptx_sreg_ctaid_x()
#define KVS_BLOCK_THREADS __nvvm_read_ptx_sreg_ntid_x()
#define KVS_BLOCKS __nvvm_read_ptx_sreg_nctaid_x()
#define KVS_BOUNDS __attribute__((launch_bounds(512)))
#else
#define KVS_THREAD threadIdx.x
#define KVS_BLOCK blockIdx.x
#define KVS_BLOCK_THREADS blockDim.x
#define KVS_BLOCKS gridDim.x
#define KVS_BOUNDS __launch_bounds__(512)
#endif

#include "gpu/scatter.h"

extern "C" __global__ void KVS_BOUNDS kvs_scatter(struct kvs_scatter_launch l)
{
	kvs_scatter_thread(&l, KVS_BLOCK * KVS_BLOCK_THREADS + KVS_THREAD,
			   KVS_BLOCKS * KVS_BLOCK_THREADS, 0);
}

extern "C" __global__ void KVS_BOUNDS kvs_gather(struct kvs_scatter_launch l)
{
	kvs_scatter_thread(&l, KVS_BLOCK * KVS_BLOCK_THREADS + KVS_THREAD,
			   KVS_BLOCKS * KVS_BLOCK_THREADS, 1);
}
