/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Built where a toolkit is found: does api.h say what cuda.h says? Nothing in
 * here is called.
 */
#include <cuda.h>

#include "gpu/cuda/api.h"

_Static_assert(CUDA_VERSION >= 13000, "the headers of 13.0 or later");
_Static_assert(sizeof(kvs_cuda_ptr) == sizeof(CUdeviceptr), "CUdeviceptr");
_Static_assert(sizeof(CUresult) == sizeof(int), "CUresult");
_Static_assert(sizeof(CUdevice) == sizeof(int), "CUdevice");

#define SAME(a, b) _Static_assert((int)(a) == (int)(b), #b)
SAME(KVS_CUDA_OK, CUDA_SUCCESS);
SAME(KVS_CUDA_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME(KVS_CUDA_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(KVS_CUDA_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME(KVS_CUDA_DEINITIALIZED, CUDA_ERROR_DEINITIALIZED);
SAME(KVS_CUDA_STUB_LIBRARY, CUDA_ERROR_STUB_LIBRARY);
SAME(KVS_CUDA_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(KVS_CUDA_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
SAME(KVS_CUDA_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME(KVS_CUDA_NO_BINARY_FOR_GPU, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME(KVS_CUDA_ECC_UNCORRECTABLE, CUDA_ERROR_ECC_UNCORRECTABLE);
SAME(KVS_CUDA_NVLINK_UNCORRECTABLE, CUDA_ERROR_NVLINK_UNCORRECTABLE);
SAME(KVS_CUDA_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE);
SAME(KVS_CUDA_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
SAME(KVS_CUDA_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(KVS_CUDA_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME(KVS_CUDA_LAUNCH_TIMEOUT, CUDA_ERROR_LAUNCH_TIMEOUT);
SAME(KVS_CUDA_CONTEXT_IS_DESTROYED, CUDA_ERROR_CONTEXT_IS_DESTROYED);
SAME(KVS_CUDA_HOST_ALREADY_REGISTERED,
     CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME(KVS_CUDA_HOST_NOT_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME(KVS_CUDA_HARDWARE_STACK_ERROR, CUDA_ERROR_HARDWARE_STACK_ERROR);
SAME(KVS_CUDA_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED);
SAME(KVS_CUDA_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED);
SAME(KVS_CUDA_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
SAME(KVS_CUDA_UNKNOWN, CUDA_ERROR_UNKNOWN);
SAME(KVS_CUDA_ATTR_HOST_POINTER_IS_DEVICE_POINTER,
     CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
SAME(KVS_CUDA_ATTR_USES_HOST_PAGE_TABLES,
     CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
SAME(KVS_CUDA_ATTR_READ_ONLY_HOST_REGISTER,
     CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
SAME(KVS_CUDA_ATTR_GPU_DIRECT_RDMA,
     CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
SAME(KVS_CUDA_ATTR_DMA_BUF, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
SAME(KVS_CUDA_HANDLE_DMA_BUF_FD, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
SAME(KVS_CUDA_ATTR_HOST_NUMA_ID, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
SAME(KVS_CUDA_REGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
SAME(KVS_CUDA_REGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_DEVICEMAP);
SAME(KVS_CUDA_REGISTER_READ_ONLY, CU_MEMHOSTREGISTER_READ_ONLY);
SAME(KVS_CUDA_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
SAME(KVS_CUDA_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(KVS_CUDA_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
SAME(KVS_CUDA_ORDER_STREAM, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);

SAME(sizeof(struct kvs_cuda_copy_attr), sizeof(CUmemcpyAttributes));
SAME(offsetof(struct kvs_cuda_copy_attr, order),
     offsetof(CUmemcpyAttributes, srcAccessOrder));
SAME(offsetof(struct kvs_cuda_copy_attr, src_type),
     offsetof(CUmemcpyAttributes, srcLocHint.type));
SAME(offsetof(struct kvs_cuda_copy_attr, src_id),
     offsetof(CUmemcpyAttributes, srcLocHint.id));
SAME(offsetof(struct kvs_cuda_copy_attr, dst_type),
     offsetof(CUmemcpyAttributes, dstLocHint.type));
SAME(offsetof(struct kvs_cuda_copy_attr, flags),
     offsetof(CUmemcpyAttributes, flags));

/*
 * As many arguments, of the same sizes: the driver's type is not ours, so each
 * is called with zeros of ours, where a wrong count or a struct does not
 * compile. The compiler sees that it never happens.
 */
#define D(x) ((CUdeviceptr *)(x))
int kvs_cuda_check_api(void);
int kvs_cuda_check_api(void)
{
	volatile int never = 0;
	kvs_cuda_ptr p = 0;
	kvs_cuda_ptr *pp = &p;
	size_t n = 0;
	void *v = NULL;

	if (!never)
		return 0;
	return cuMemcpyBatchAsync(D(pp), D(pp), &n, n, (CUmemcpyAttributes *)v,
				  &n, n, (CUstream)v) +
	       cuMemGetHandleForAddressRange(
		       v, p, n, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0ull) +
	       cuMemcpyAsync(p, p, n, (CUstream)v) + cuMemcpyDtoH(v, p, n) +
	       cuMemHostRegister(v, n, 0u) + cuMemHostUnregister(v) +
	       cuMemHostGetDevicePointer(D(pp), v, 0u) +
	       cuMemHostAlloc(&v, n, 0u) + cuMemFreeHost(v) +
	       cuMemAlloc(D(pp), n) + cuMemFree(p) +
	       cuStreamWaitEvent((CUstream)v, (CUevent)v, 0u) +
	       cuStreamCreateWithPriority((CUstream *)v, 0u, 0) +
	       cuEventCreate((CUevent *)v, 0u) +
	       cuLaunchKernel((CUfunction)v, 1u, 1u, 1u, 1u, 1u, 1u, 0u,
			      (CUstream)v, &v, &v) +
	       cuModuleLoadData((CUmodule *)v, v);
}
