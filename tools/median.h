/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TOOLS_MEDIAN_H
#define KVS_TOOLS_MEDIAN_H

#include <stddef.h>

/* Median of @n > 0 values, which are sorted; of an even number the mean of
 * the two in the middle. */
double kvs_median(double *v, size_t n);

#endif /* KVS_TOOLS_MEDIAN_H */
