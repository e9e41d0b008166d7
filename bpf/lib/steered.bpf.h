/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * steered.bpf.h - SO_REUSEPORT groups in which a program of the server's own
 * chooses the socket (SO_ATTACH_REUSEPORT_CBPF or _EBPF).
 *
 * Such a program looks at the packet. A lookup from BPF has none to give it, and the
 * kernel then chooses by a hash: what it finds is any socket of the group, whose
 * queue says nothing of the one that will get the SYN.
 */
#ifndef WEIR_STEERED_BPF_H
#define WEIR_STEERED_BPF_H

#include "lib/kernel.h"

static __always_inline const struct sock_reuseport *group_of_socket(u64 socket)
{
	const struct sock *sk = bpf_rdonly_cast((void *)socket, bpf_core_type_id_kernel(struct sock));

	return sk->sk_reuseport_cb;
}

/* As is_steered(). Global: verified once. */
__noinline int group_is_steered(const u64 *socket)
{
	const char ours[] = "queue_steer";
	const struct sock_reuseport *group;
	const struct bpf_prog *program;

	if (!socket)
		return 0;
	group = group_of_socket(*socket);
	if (!group)
		return 0;
	program = group->prog;
	if (!program)
		return 0;
#pragma unroll
	for (u32 i = 0; i < sizeof(ours); i++)
		if (program->aux->name[i] != ours[i])
			return 1;
	return 0;
}

/*
 * Whether a program that is not weir's chooses among the group of the listening socket at this kernel address. In
 * memory: for the verifier a socket is a pointer, and no number to pass. Most are of no group, and save the call.
 */
static __always_inline bool is_steered(const u64 *socket)
{
	return group_of_socket(*socket) && group_is_steered(socket);
}

#endif
