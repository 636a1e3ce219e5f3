/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: api
 *
 * The part of the CUDA driver's binary interface that kvstage uses, declared
 * here, so that no toolkit is needed to build it: the driver is opened at run
 * time (driver.h). Where a toolkit is found at build time, check_api.c compares
 * every line with its headers. tests/fake_cuda implements the same list.
 */
#ifndef KVS_GPU_CUDA_API_H
#define KVS_GPU_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

#define KVS_CUDA_LIBRARY "libcuda.so.1"

/* What a call returns; those we tell apart. */
enum {
	KVS_CUDA_OK = 0,
	KVS_CUDA_INVALID_VALUE = 1,
	KVS_CUDA_OUT_OF_MEMORY = 2,
	KVS_CUDA_NOT_INITIALIZED = 3,
	KVS_CUDA_DEINITIALIZED = 4,
	KVS_CUDA_STUB_LIBRARY = 34,
	KVS_CUDA_NO_DEVICE = 100,
	KVS_CUDA_INVALID_DEVICE = 101,
	KVS_CUDA_INVALID_CONTEXT = 201,
	KVS_CUDA_NO_BINARY_FOR_GPU = 209,
	KVS_CUDA_ECC_UNCORRECTABLE = 214,
	KVS_CUDA_NVLINK_UNCORRECTABLE = 220,
	KVS_CUDA_INVALID_HANDLE = 400,
	KVS_CUDA_NOT_FOUND = 500,
	KVS_CUDA_NOT_READY = 600,
	KVS_CUDA_ILLEGAL_ADDRESS = 700,
	KVS_CUDA_LAUNCH_TIMEOUT = 702,
	KVS_CUDA_CONTEXT_IS_DESTROYED = 709,
	KVS_CUDA_HOST_ALREADY_REGISTERED = 712,
	KVS_CUDA_HOST_NOT_REGISTERED = 713,
	KVS_CUDA_HARDWARE_STACK_ERROR = 714,
	KVS_CUDA_LAUNCH_FAILED = 719,
	KVS_CUDA_NOT_PERMITTED = 800,
	KVS_CUDA_NOT_SUPPORTED = 801,
	KVS_CUDA_UNKNOWN = 999,
};

/* device attributes */
enum {
	KVS_CUDA_ATTR_HOST_POINTER_IS_DEVICE_POINTER = 91,
	KVS_CUDA_ATTR_USES_HOST_PAGE_TABLES = 100,
	KVS_CUDA_ATTR_READ_ONLY_HOST_REGISTER = 113,
	KVS_CUDA_ATTR_GPU_DIRECT_RDMA = 116,
	KVS_CUDA_ATTR_DMA_BUF = 124,
	KVS_CUDA_ATTR_HOST_NUMA_ID = 134,
};

#define KVS_CUDA_REGISTER_PORTABLE 0x1u
#define KVS_CUDA_REGISTER_DEVICEMAP 0x2u
#define KVS_CUDA_REGISTER_READ_ONLY 0x8u
#define KVS_CUDA_HOST_PORTABLE 0x1u
#define KVS_CUDA_STREAM_NON_BLOCKING 0x1u
#define KVS_CUDA_EVENT_DISABLE_TIMING 0x2u
#define KVS_CUDA_HANDLE_DMA_BUF_FD 1
#define KVS_CUDA_ORDER_STREAM 1 /* a source is read in stream order */

typedef uint64_t kvs_cuda_ptr; /* CUdeviceptr */

/* Opaque handles of the driver; struct tags of ours. */
typedef struct kvs_cuda_ctx *kvs_cuda_ctx;
typedef struct kvs_cuda_stream *kvs_cuda_stream;
typedef struct kvs_cuda_event *kvs_cuda_event;
typedef struct kvs_cuda_module *kvs_cuda_module;
typedef struct kvs_cuda_func *kvs_cuda_func;

/* CUmemcpyAttributes */
struct kvs_cuda_copy_attr {
	int order;
	int src_type, src_id;
	int dst_type, dst_id;
	unsigned int flags;
};

/*
 * X(name here, symbol, version of the interface, arguments). The two forms of
 * the batch copy have the same symbol: 13.0 took an argument out.
 */
#define KVS_CUDA_CALLS(X)                                                      \
	X(error_name, cuGetErrorName, 6000, (int error, const char **ret))     \
	X(device_count, cuDeviceGetCount, 2000, (int *ret))                    \
	X(device_get, cuDeviceGet, 2000, (int *ret, int ordinal))              \
	X(device_name, cuDeviceGetName, 2000, (char *name, int len, int dev))  \
	X(device_attr, cuDeviceGetAttribute, 2000,                             \
	  (int *ret, int attr, int dev))                                       \
	X(device_bus, cuDeviceGetPCIBusId, 4010, (char *id, int len, int dev)) \
	X(ctx_retain, cuDevicePrimaryCtxRetain, 7000,                          \
	  (kvs_cuda_ctx * ret, int dev))                                       \
	X(ctx_release, cuDevicePrimaryCtxRelease, 11000, (int dev))            \
	X(ctx_push, cuCtxPushCurrent, 4000, (kvs_cuda_ctx ctx))                \
	X(ctx_pop, cuCtxPopCurrent, 4000, (kvs_cuda_ctx * ret))                \
	X(priority_range, cuCtxGetStreamPriorityRange, 5050,                   \
	  (int *least, int *greatest))                                         \
	X(stream_create, cuStreamCreateWithPriority, 5050,                     \
	  (kvs_cuda_stream * ret, unsigned int flags, int priority))           \
	X(stream_destroy, cuStreamDestroy, 4000, (kvs_cuda_stream stream))     \
	X(stream_wait, cuStreamWaitEvent, 3020,                                \
	  (kvs_cuda_stream stream, kvs_cuda_event event, unsigned int flags))  \
	X(event_create, cuEventCreate, 2000,                                   \
	  (kvs_cuda_event * ret, unsigned int flags))                          \
	X(event_destroy, cuEventDestroy, 4000, (kvs_cuda_event event))         \
	X(event_record, cuEventRecord, 2000,                                   \
	  (kvs_cuda_event event, kvs_cuda_stream stream))                      \
	X(event_query, cuEventQuery, 2000, (kvs_cuda_event event))             \
	X(mem_alloc, cuMemAlloc, 3020, (kvs_cuda_ptr * ret, size_t len))       \
	X(mem_free, cuMemFree, 3020, (kvs_cuda_ptr p))                         \
	X(host_alloc, cuMemHostAlloc, 2020,                                    \
	  (void **ret, size_t len, unsigned int flags))                        \
	X(host_free, cuMemFreeHost, 2000, (void *p))                           \
	X(host_register, cuMemHostRegister, 6050,                              \
	  (void *p, size_t len, unsigned int flags))                           \
	X(host_unregister, cuMemHostUnregister, 4000, (void *p))               \
	X(host_pointer, cuMemHostGetDevicePointer, 3020,                       \
	  (kvs_cuda_ptr * ret, void *p, unsigned int flags))                   \
	X(copy, cuMemcpyAsync, 4000,                                           \
	  (kvs_cuda_ptr dst, kvs_cuda_ptr src, size_t len,                     \
	   kvs_cuda_stream stream))                                            \
	X(copy_to_host, cuMemcpyDtoH, 3020,                                    \
	  (void *dst, kvs_cuda_ptr src, size_t len))                           \
	X(module_load, cuModuleLoadData, 2000,                                 \
	  (kvs_cuda_module * ret, const void *image))                          \
	X(module_unload, cuModuleUnload, 2000, (kvs_cuda_module module))       \
	X(module_func, cuModuleGetFunction, 2000,                              \
	  (kvs_cuda_func * ret, kvs_cuda_module module, const char *name))     \
	X(launch, cuLaunchKernel, 4000,                                        \
	  (kvs_cuda_func f, unsigned int grid_x, unsigned int grid_y,          \
	   unsigned int grid_z, unsigned int block_x, unsigned int block_y,    \
	   unsigned int block_z, unsigned int shared, kvs_cuda_stream stream,  \
	   void **args, void **extra))

/* Those that a driver may lack: NULL then. */
#define KVS_CUDA_MAYBE_CALLS(X)                                            \
	X(range_handle, cuMemGetHandleForAddressRange, 11070,              \
	  (void *ret, kvs_cuda_ptr p, size_t len, int type,                \
	   unsigned long long flags))                                      \
	X(copy_batch, cuMemcpyBatchAsync, 13000,                           \
	  (kvs_cuda_ptr * dst, kvs_cuda_ptr * src, size_t * len, size_t n, \
	   struct kvs_cuda_copy_attr * attrs, size_t * attr_at,            \
	   size_t n_attrs, kvs_cuda_stream stream))                        \
	X(copy_batch_12, cuMemcpyBatchAsync, 12080,                        \
	  (kvs_cuda_ptr * dst, kvs_cuda_ptr * src, size_t * len, size_t n, \
	   struct kvs_cuda_copy_attr * attrs, size_t * attr_at,            \
	   size_t n_attrs, size_t * ret_failed, kvs_cuda_stream stream))

/* Found by dlsym(): they find the others. */
#define KVS_CUDA_FIRST_CALLS(X)                                         \
	X(init, cuInit, 2000, (unsigned int flags))                     \
	X(driver_version, cuDriverGetVersion, 2020, (int *ret))         \
	X(find, cuGetProcAddress_v2, 12000,                             \
	  (const char *symbol, void **ret, int version, uint64_t flags, \
	   int *ret_status))

struct kvs_cuda_api {
#define KVS_CUDA_MEMBER(name, symbol, version, args) int(*name) args;
	KVS_CUDA_FIRST_CALLS(KVS_CUDA_MEMBER)
	KVS_CUDA_CALLS(KVS_CUDA_MEMBER)
	KVS_CUDA_MAYBE_CALLS(KVS_CUDA_MEMBER)
#undef KVS_CUDA_MEMBER
	int version; /* of the driver, as 13000 */
};

#endif /* KVS_GPU_CUDA_API_H */
