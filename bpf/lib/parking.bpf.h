/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * parking.bpf.h - the tables of parking listeners, which the guard and
 * queue.bpf.c share: the queue reuses the guard's maps by descriptor.
 */
#ifndef WEIR_PARKING_BPF_H
#define WEIR_PARKING_BPF_H

#include "abi/queue.h"
#include "lib/kernel.h"
#include "lib/listener.bpf.h"

/* Mapped by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, WEIR_MAX_GROUPS);
	__type(key, u32);
	__type(value, struct parking_group);
} parking SEC(".maps");

/* The group of a socket, the server's or a parking listener, by its kernel address. Written by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, WEIR_MAX_GROUPS * (WEIR_MAX_SLOTS + WEIR_MAX_SERVERS));
	__type(key, u64);
	__type(value, u32);
} group_of SEC(".maps");

static __always_inline struct parking_group *parking_group(u32 number)
{
	return bpf_map_lookup_elem(&parking, &number);
}

static __always_inline u32 listener_length(const struct tcp_sock *tp)
{
	return *(volatile u32 *)&((const struct sock *)tp)->sk_ack_backlog;
}

static __always_inline u32 listener_limit(const struct tcp_sock *tp)
{
	return *(volatile u32 *)&((const struct sock *)tp)->sk_max_ack_backlog;
}

static __always_inline u32 listener_half_open(const struct tcp_sock *tp)
{
	return *(volatile int *)&tp->inet_conn.icsk_accept_queue.qlen.counter;
}

/* Of the half-open connections, those whose SYN/ACK was not repeated yet. */
static __always_inline u32 listener_young(const struct tcp_sock *tp)
{
	return *(volatile int *)&tp->inet_conn.icsk_accept_queue.young.counter;
}

/* 1 + the number of the group that a listening socket is of; 0: of none. */
static __always_inline u32 group_with(u64 socket)
{
	const struct sock_common *sk = bpf_rdonly_cast((void *)socket, bpf_core_type_id_kernel(struct sock_common));
	u32 *number;

	if (!BPF_CORE_READ_BITFIELD(sk, skc_reuseport))
		return 0;
	number = bpf_map_lookup_elem(&group_of, &socket);
	return number ? (*number & ~WEIR_PARKED) + 1 : 0;
}

/* By which /proc/PID/fd names the socket; 0: it has none (any more). */
static __always_inline u64 inode_of(const struct sock *sk)
{
	struct socket_alloc *s = (void *)BPF_CORE_READ(sk, sk_socket);

	return s ? BPF_CORE_READ(s, vfs_inode.i_ino) : 0;
}

#endif
