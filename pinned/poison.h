/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: poison
 *
 * Marks pool memory that the CPU must not touch, so that the address
 * sanitizer reports the load or store that does. Without it these do
 * nothing. Writes by the kernel or a device are not seen by either;
 * kvs_dma_move() is for who plays a device, which may still reach what the
 * CPU must not.
 */
#ifndef KVS_PINNED_POISON_H
#define KVS_PINNED_POISON_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define KVS_POISON_ACTIVE 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KVS_POISON_ACTIVE 1
#endif
#endif

#ifndef KVS_POISON_ACTIVE
#define KVS_POISON_ACTIVE 0
#endif

#if KVS_POISON_ACTIVE
#include <sanitizer/asan_interface.h>
#define KVS_POISON(addr, len) __asan_poison_memory_region((addr), (len))
#define KVS_UNPOISON(addr, len) __asan_unpoison_memory_region((addr), (len))
#define KVS_IS_POISONED(addr) (__asan_address_is_poisoned(addr) != 0)
#else
#define KVS_POISON(addr, len) ((void)(addr), (void)(len))
#define KVS_UNPOISON(addr, len) ((void)(addr), (void)(len))
#define KVS_IS_POISONED(addr) ((void)(addr), false)
#endif

#if KVS_POISON_ACTIVE
/* volatile, or it becomes the memcpy() that is watched */
__attribute__((no_sanitize("address"), noinline, unused)) static void
kvs_dma_move(void *to, const void *from, size_t n)
{
	const volatile char *s = from;
	volatile char *d = to;

	while (n--)
		*d++ = *s++;
}
#else
static inline void kvs_dma_move(void *to, const void *from, size_t n)
{
	memcpy(to, from, n);
}
#endif

#endif /* KVS_PINNED_POISON_H */
