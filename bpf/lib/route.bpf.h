/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * route.bpf.h - whether a packet is for this host, or only goes through it. One that is forwarded may meet a wildcard
 * socket in a lookup, and is none of weir's business.
 */
#ifndef WEIR_ROUTE_BPF_H
#define WEIR_ROUTE_BPF_H

#include "lib/device.bpf.h"
#include "lib/kernel.h"

#define FIB_SKIP_NEIGH 4 /* BPF_FIB_LOOKUP_SKIP_NEIGH, since 6.3 */

/*
 * device: the kernel address of the one on which the packet has come. Where that does not forward, the lookup says so
 * and no more: then the kernel drops what is not for this host, but for what a handler takes before (device.bpf.h).
 */
static __always_inline bool is_for_host(void *ctx, u32 ifindex, u64 device, const struct bpf_sock_tuple *tuple, u32 v6,
					u8 protocol)
{
	struct bpf_fib_lookup fib = { .ifindex = ifindex, .l4_protocol = protocol };
	long where;

	if (v6) {
		fib.family = AF_INET6;
		__builtin_memcpy(fib.ipv6_src, tuple->ipv6.saddr, 16);
		__builtin_memcpy(fib.ipv6_dst, tuple->ipv6.daddr, 16);
	} else {
		fib.family = AF_INET;
		fib.ipv4_src = tuple->ipv4.saddr;
		fib.ipv4_dst = tuple->ipv4.daddr;
	}
	where = bpf_fib_lookup(ctx, &fib, sizeof(fib), FIB_SKIP_NEIGH);
	return where == BPF_FIB_LKUP_RET_NOT_FWDED ||
	       (where == BPF_FIB_LKUP_RET_FWD_DISABLED && stays_here(&device, tuple, v6));
}

#endif
