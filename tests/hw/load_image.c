/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/hw/load_image.h"

#ifdef KVS_CUDA_IMAGE
__asm__(".pushsection .rodata\n"
	".balign 64\n"
	".global kvs_hw_load_image\n"
	"kvs_hw_load_image:\n"
	".incbin \"" KVS_CUDA_IMAGE "\"\n"
	"kvs_hw_load_image_end:\n"
	".byte 0\n"
	".balign 8\n"
	".global kvs_hw_load_image_len\n"
	"kvs_hw_load_image_len:\n"
	".quad kvs_hw_load_image_end - kvs_hw_load_image\n"
	".popsection\n");
#else
const unsigned char kvs_hw_load_image[1] = { 0 };
const size_t kvs_hw_load_image_len = 0;
#endif
