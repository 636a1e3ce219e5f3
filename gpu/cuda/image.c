/* SPDX-License-Identifier: Apache-2.0 */
/* The compiled kernels, as the driver takes them; PTX is text with a NUL. */
#include "gpu/cuda/cuda_internal.h"

__asm__(".pushsection .rodata\n"
	".balign 64\n"
	".global kvs_cuda_image\n"
	".hidden kvs_cuda_image\n"
	".type kvs_cuda_image, %object\n"
	"kvs_cuda_image:\n"
	".incbin \"" KVS_CUDA_IMAGE "\"\n"
	"kvs_cuda_image_end:\n"
	".byte 0\n"
	".size kvs_cuda_image, . - kvs_cuda_image\n"
	".balign 8\n"
	".global kvs_cuda_image_len\n"
	".hidden kvs_cuda_image_len\n"
	".type kvs_cuda_image_len, %object\n"
	"kvs_cuda_image_len:\n"
	".quad kvs_cuda_image_end - kvs_cuda_image\n"
	".size kvs_cuda_image_len, 8\n"
	".popsection\n");

const char kvs_cuda_image_how[] = KVS_CUDA_HOW;
