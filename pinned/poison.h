/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: poison
 *
 * Marks pool memory that the CPU must not touch, so that the address
 * sanitizer reports the load or store that does. Without it these do
 * nothing. Writes by the kernel or a device are not seen by either.
 */
#ifndef KVS_PINNED_POISON_H
#define KVS_PINNED_POISON_H

#include <stdbool.h>
#include <stddef.h>

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

#endif /* KVS_PINNED_POISON_H */
