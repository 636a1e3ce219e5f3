/* SPDX-License-Identifier: Apache-2.0 */
/* No compiler for the kernels was found: copies go piece by piece. */
#include "gpu/cuda/cuda_internal.h"

const unsigned char kvs_cuda_image[1] = { 0 };
const size_t kvs_cuda_image_len = 0;
const char kvs_cuda_image_how[] = "none";
