/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: assertions
 *
 * Two grades and a way out:
 *   KVS_ASSERT(x)   must not happen, cheap; kept in release builds.
 *   KVS_DASSERT(x)  costly check; only without NDEBUG.
 *   KVS_WARN_ONCE(x, fmt...)  true when x; logs once; the caller takes the
 *                   safe exit.
 * Never on anything a peer, an engine, a disk or an operator sent.
 *
 * Long-lived objects begin with a magic number, cleared on free:
 *   struct foo { uint32_t magic; ... };  KVS_CHECK_MAGIC(f, FOO_MAGIC);
 */
#ifndef KVS_LIB_ASSERT_H
#define KVS_LIB_ASSERT_H

#include <stdbool.h>
#include <stddef.h>

#define KVS_ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define kvs_container_of(ptr, type, member) \
	((type *)((char *)(ptr)-offsetof(type, member)))

/**
 * kvs_assert_fail() - print expression and place to stderr, then abort()
 */
_Noreturn void kvs_assert_fail(const char *expr, const char *file, int line,
			       const char *func);

/**
 * kvs_warn_once() - log a warning the first time @once is seen false
 * @once: flag of the call site
 * @file: source file
 * @line: source line
 * @fmt: printf format
 *
 * Context: any thread; of threads that race for one call site one logs.
 */
void kvs_warn_once(bool *once, const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

#define KVS_ASSERT(x)               \
	(__builtin_expect(!!(x), 1) \
		 ? (void)0          \
		 : kvs_assert_fail(#x, __FILE__, __LINE__, __func__))

#ifdef NDEBUG
#define KVS_DASSERT(x) ((void)sizeof(!!(x)))
#else
#define KVS_DASSERT(x) KVS_ASSERT(x)
#endif

#define KVS_WARN_ONCE(x, ...)                                           \
	({                                                              \
		static bool kvs_warned_;                                \
		bool kvs_hit_ = !!(x);                                  \
		if (__builtin_expect(kvs_hit_, 0))                      \
			kvs_warn_once(&kvs_warned_, __FILE__, __LINE__, \
				      __VA_ARGS__);                     \
		kvs_hit_;                                               \
	})

#define KVS_CHECK_MAGIC(obj, m) KVS_ASSERT((obj) && (obj)->magic == (m))

#endif /* KVS_LIB_ASSERT_H */
