/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * types.h - what the pure headers take for granted: the kernel's short type
 * names, byte order and protocol numbers. In BPF kernel.h has them; natively
 * (crates/kernel's property tests) they stand here.
 */
#ifndef WEIR_TYPES_H
#define WEIR_TYPES_H

/* Words of packets are hashed as they stand in memory, and user space finds the same places (exact_slot()). */
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "weir is for little-endian machines: x86-64 and arm64"
#endif

#ifdef __bpf__
#include "lib/kernel.h"
#else

#include <linux/types.h>
#include <stddef.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s16 s16;
typedef __s32 s32;
typedef __s64 s64;
typedef _Bool bool;
#define true 1
#define false 0
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#undef __noinline
#define __noinline __attribute__((noinline))
#define bpf_htons(x) ((__be16)__builtin_bswap16(x))
#define bpf_ntohs(x) __builtin_bswap16(x)
#define bpf_htonl(x) ((__be32)__builtin_bswap32(x))
#define bpf_ntohl(x) __builtin_bswap32(x)
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86DD
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17

#endif

/*
 * An atomic operation that orders what stands before it and after it. arm64 does that for atomics with a result, and
 * clang takes away a result that nobody uses. Of compare-and-swap and exchange it does not.
 */
#define ORDERED(atomic)                                         \
	({                                                      \
		__typeof__(atomic) __before = (atomic);         \
		__asm__ volatile("" : "+r"(__before)::"memory"); \
		__before;                                       \
	})

#endif
