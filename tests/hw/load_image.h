/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_HW_LOAD_IMAGE_H
#define KVS_TESTS_HW_LOAD_IMAGE_H

#include <stddef.h>

/* load.cu, compiled; no bytes: by nothing. */
extern const unsigned char kvs_hw_load_image[];
extern const size_t kvs_hw_load_image_len;

#endif /* KVS_TESTS_HW_LOAD_IMAGE_H */
