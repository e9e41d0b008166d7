/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * group.bpf.h - which socket of an SO_REUSEPORT group the kernel gives a SYN that
 * takes the place of a TIME-WAIT socket.
 *
 * The kernel chooses by a hash of the 4-tuple, inet_ehashfn(), with a secret of its own.
 * A lookup with the SYN's 4-tuple finds the TIME-WAIT socket, and the listening one behind it
 * is looked up with the client's port as 0 (listener_lookup()), so it is any of the group.
 *
 * - A group on all addresses: the kernel puts the address 0 into the hash, and so does
 *   a lookup for that address (any_lookup()).
 * - A group on one address: the kernel has filed the TIME-WAIT socket by the same hash,
 *   which stands in it, and the choice is made again here, as
 *   reuseport_select_sock_by_hash() makes it.
 */
#ifndef WEIR_GROUP_BPF_H
#define WEIR_GROUP_BPF_H

#include "lib/kernel.h"

static __always_inline bool in_group(const struct sock_common *sk)
{
	return BPF_CORE_READ_BITFIELD(sk, skc_reuseport);
}

/* On all addresses; of an IPv6 socket on one address this field is 127.0.0.6. */
static __always_inline bool on_all_addresses(const struct sock_common *sk)
{
	return !sk->skc_rcv_saddr;
}

/* Whether another socket on all addresses may be the one for the client. */
static __always_inline bool chosen_by_client(const struct bpf_sock *listening)
{
	const struct sock_common *sk = bpf_rdonly_cast(listening, bpf_core_type_id_kernel(struct sock_common));

	return in_group(sk) && on_all_addresses(sk);
}

/*
 * Puts the socket that the kernel chooses for this hash in the place of a socket of
 * its group on one address. Where sockets choose by the CPU (SO_INCOMING_CPU) it stays: it was
 * looked up on the CPU that takes up the SYN. In memory: for the verifier a
 * socket is a pointer, and no number to calculate with. Global: it is rare.
 */
__noinline int choose_in_group(u64 *socket, u32 hash)
{
	const struct sock_reuseport *group;
	const struct hlist_head *chosen;
	const struct sock *sk;
	u64 found, at;
	u32 sockets;

	if (!socket)
		return 0;
	found = *socket;
	sk = bpf_rdonly_cast((void *)found, bpf_core_type_id_kernel(struct sock));
	if (!in_group(&sk->__sk_common) || on_all_addresses(&sk->__sk_common))
		return 0;
	group = sk->sk_reuseport_cb;
	sockets = group ? group->num_socks : 0;
	if (!sockets || group->incoming_cpu)
		return 0;
	*(volatile u64 *)socket = (u64)group;
	at = *(volatile u64 *)socket + bpf_core_field_offset(struct sock_reuseport, socks) +
	     ((u64)hash * sockets >> 32) * sizeof(struct sock *);
	chosen = bpf_rdonly_cast((void *)at, bpf_core_type_id_kernel(struct hlist_head));
	*(volatile u64 *)socket = (u64)chosen->first;
	if (!*(volatile u64 *)socket)
		*socket = found;
	return 0;
}

#endif
