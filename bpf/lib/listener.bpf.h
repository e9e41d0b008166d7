/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * listener.bpf.h - listening sockets of which only the address is known.
 *
 * The socket may have been freed since. For a grace period of RCU its memory then
 * stays that of TCP sockets (SLAB_TYPESAFE_BY_RCU): what is read is old, or another
 * socket's, perhaps one of another network namespace that listens on the same port:
 * containers do. The state, the port and the namespace tell. After that the page
 * may be anybody's, and these can be right by chance. Then what is read is wrong,
 * and no more than that: a load that faults reads 0, and nothing is written there.
 * So what it says may let a SYN in, or be shown. No refusal may be built on it: that
 * looks the socket up first. (The sum over a group, waiting.bpf.h, is of sockets that
 * weir holds, and of servers until weir hears that they have closed.)
 */
#ifndef WEIR_LISTENER_BPF_H
#define WEIR_LISTENER_BPF_H

#include "lib/kernel.h"

/* Of the network namespace; 0: the kernel has but one. Set before load. */
const volatile u32 namespace_inum = 0;

static __always_inline bool in_own_namespace(const struct sock_common *sk)
{
	const struct net *net = namespace_of(sk);

	return !net || net->ns.inum == namespace_inum;
}

/* NULL: none listens there on this port of any namespace. */
static __always_inline const struct sock_common *listens_at(u64 address, u16 port)
{
	const struct sock_common *sk = bpf_rdonly_cast((void *)address, bpf_core_type_id_kernel(struct sock_common));

	return address && sk->skc_state == TCP_LISTEN && sk->skc_num == port ? sk : NULL;
}

/* NULL: none listens there on this port of weir's namespace. */
static __always_inline const struct tcp_sock *listener_at(u64 address, u16 port)
{
	const struct sock_common *sk = listens_at(address, port);

	if (!sk || !in_own_namespace(sk))
		return NULL;
	return bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct tcp_sock));
}

#endif
