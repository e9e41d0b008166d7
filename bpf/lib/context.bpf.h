/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * context.bpf.h - what a program reads of its context: the packet's bytes and
 * what the kernel says of it. And what a program may say.
 */
#ifndef WEIR_CONTEXT_BPF_H
#define WEIR_CONTEXT_BPF_H

#include "lib/kernel.h"

/* include/uapi/linux/if_packet.h: a packet for this host, by its link header */
#define PACKET_HOST 0

/* What a program at tc says of a packet. */
#define PASS (-1)	/* TCX_NEXT: other programs on this hook have their say */
#define TC_DROP 2	/* TC_ACT_SHOT */

/*
 * One load of a context field. In C, clang may keep a pointer to the field and
 * load through it twice; the verifier then says "dereference of modified ctx ptr".
 */
#define CTX_LOAD(ctx, field)                                                                     \
	({                                                                                       \
		u64 __value;                                                                     \
		asm volatile("%0 = *(u32 *)(%1 + %2)"                                            \
			     : "=r"(__value)                                                     \
			     : "r"(ctx), "i"(__builtin_offsetof(typeof(*(ctx)), field)));        \
		__value;                                                                         \
	})

static __always_inline void *skb_start(const struct __sk_buff *skb)
{
	return (void *)CTX_LOAD(skb, data);
}

static __always_inline void *skb_end(const struct __sk_buff *skb)
{
	return (void *)CTX_LOAD(skb, data_end);
}

static __always_inline void *xdp_start(const struct xdp_md *xdp)
{
	return (void *)CTX_LOAD(xdp, data);
}

static __always_inline void *xdp_end(const struct xdp_md *xdp)
{
	return (void *)CTX_LOAD(xdp, data_end);
}

#endif
