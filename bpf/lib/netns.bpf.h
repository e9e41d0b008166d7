/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * netns.bpf.h - which network namespace a packet or a socket is in.
 *
 * A namespace is known by its cookie, a number that the kernel gives to no other one until the machine stops; the
 * number of its inode is soon another's. A packet is in the namespace that its device is in now: a program stays on a
 * device that is moved to another namespace.
 */
#ifndef WEIR_NETNS_BPF_H
#define WEIR_NETNS_BPF_H

#include "lib/kernel.h"

/* Cookie of weir's own network namespace. Set before load. */
const volatile u64 own_netns = 0;
/*
 * 1: other namespaces may be guarded too (namespaces.bpf.h); else the verifier leaves out what is for them. Set before
 * load.
 */
const volatile u8 guards_others = 0;

/* The cookie; of the only one where the kernel has but one. */
static __always_inline u64 netns_of_device(const struct net_device *device)
{
	return bpf_core_field_exists(device->nd_net.net) ? device->nd_net.net->net_cookie : own_netns;
}

static __always_inline u64 netns_of_skb(struct __sk_buff *skb)
{
	struct sk_buff *buffer = bpf_cast_to_kern_ctx(skb);

	return netns_of_device(buffer->dev);
}

static __always_inline u64 netns_of_xdp(struct xdp_md *xdp)
{
	struct xdp_buff *buffer = bpf_cast_to_kern_ctx(xdp);

	return netns_of_device(buffer->rxq->dev);
}

static __always_inline u64 netns_of_socket(const struct sock_common *sk)
{
	const struct net *net = namespace_of(sk);

	return net ? net->net_cookie : own_netns;
}

#endif
