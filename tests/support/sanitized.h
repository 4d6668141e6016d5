/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Whether the address or the thread sanitizer watches this program.  They follow no thread from stack to stack, and
 * have an allocator of their own.
 */
#ifndef MAM_TESTS_SANITIZED_H
#define MAM_TESTS_SANITIZED_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define SANITIZED 0
#endif

#endif
