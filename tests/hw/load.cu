/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kernel that is bound by memory, as attention over a long context is: reads
 * n pieces of 16 bytes, adds them up, writes one in 16. Compiled as
 * gpu/cuda/scatter.cu is.
 */
#ifdef __clang__
#define __global__ __attribute__((global))
typedef unsigned int piece __attribute__((vector_size(16)));
#define KVS_THREAD                                                        \
	(__nvvm_read_ptx_sreg_ctaid_x() * __nvvm_read_ptx_sreg_ntid_x() + \
	 __nvvm_read_ptx_sreg_tid_x())
#define KVS_THREADS \
	(__nvvm_read_ptx_sreg_nctaid_x() * __nvvm_read_ptx_sreg_ntid_x())
#define FIRST(p) ((p)[0])
#else
typedef uint4 piece;
#define KVS_THREAD (blockIdx.x * blockDim.x + threadIdx.x)
#define KVS_THREADS (gridDim.x * blockDim.x)
#define FIRST(p) ((p).x)
#endif

struct load {
	piece *p;
	unsigned long n;
	unsigned int rounds;
};

extern "C" __global__ void kvs_hw_load(struct load l)
{
	unsigned int sum = 0;
	unsigned int r;
	unsigned long i;

	for (r = 0; r < l.rounds; r++)
		for (i = KVS_THREAD; i < l.n; i += KVS_THREADS) {
			piece v = l.p[i];

			sum += FIRST(v);
			if (!(i & 15))
				l.p[i] = v;
		}
	/* the sum is wanted, as far as the compiler knows */
	if (sum == 0x12345678)
		l.p[0] = l.p[1];
}
