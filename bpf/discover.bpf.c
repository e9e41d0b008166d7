// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * discover.bpf.c - who listens where: the TCP listeners of all network namespaces of this machine, in one pass, and
 * each that begins or ceases to listen, at that moment.
 *
 * discover_state runs when a TCP socket of this machine changes its state; a packet pays nothing. Of a connection that
 * changes are a few, and here two comparisons. discover_files walks the open files of all processes when user space
 * reads its iterator. Nothing is held of what is found: a namespace ends as if nobody had looked.
 *
 * listen() calls once more change the backlog without a word, and one without bind() before has no port yet. Who wants
 * to know looks at the files again.
 */
#include "lib/kernel.h"
#include "abi/discover.h"
#include "lib/export.bpf.h"
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "GPL";

EXPORT_TYPE(struct, listen_notice);

#define IPPROTO_MPTCP 262

/* What only these programs read of the kernel (lib/kernel.h). */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct file {
	unsigned int f_flags;
};

struct kernfs_node {
	u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

struct task_struct {
	int tgid;
	struct css_set *cgroups;
};

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	struct file *file;
};

#pragma clang attribute pop

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	/* 1 000 notices of 64 bytes. */
	__uint(max_entries, 64 * 1024);
} notices SEC(".maps");

/* Notices that found the ring full. */
u32 lost;

static __always_inline u64 netns_of(const struct sock *sk)
{
	const struct net *net = namespace_of(&sk->__sk_common);

	return net ? net->net_cookie : 0;
}

/* Processes have an MPTCP socket open, and not the one of TCP behind it by which it listens. */
static __always_inline bool is_own_listener(const struct sock *sk)
{
	const struct tcp_sock *tp = bpf_rdonly_cast((void *)sk, bpf_core_type_id_kernel(struct tcp_sock));

	return sk->sk_protocol == IPPROTO_MPTCP || (sk->sk_protocol == IPPROTO_TCP && !is_mptcp(tp));
}

static __always_inline bool by_ip(const struct sock *sk)
{
	return sk->__sk_common.skc_family == AF_INET || sk->__sk_common.skc_family == AF_INET6;
}

/* What there is to say of a socket but its cookie. */
static __always_inline void describe(struct listen_notice *notice, const struct sock *sk, struct task_struct *task)
{
	const struct sock_common *skc = &sk->__sk_common;

	notice->netns = netns_of(sk);
	/* 0: the kernel has no cgroups. */
	notice->cgroup = bpf_core_field_exists(task->cgroups) ? BPF_CORE_READ(task, cgroups, dfl_cgrp, kn, id) : 0;
	notice->pid = BPF_CORE_READ(task, tgid);
	notice->backlog = sk->sk_max_ack_backlog;
	notice->port = skc->skc_num;
	notice->family = skc->skc_family;
	notice->listens = skc->skc_state == TCP_LISTEN;
	if (skc->skc_family == AF_INET6 && bpf_core_field_exists(skc->skc_v6_rcv_saddr)) {
		BPF_CORE_READ_INTO(&notice->addr, skc, skc_v6_rcv_saddr.in6_u.u6_addr32);
	} else {
		notice->addr[2] = bpf_htonl(0xffff);
		notice->addr[3] = skc->skc_rcv_saddr;
	}
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(discover_state, struct sock *sk, int old, int new)
{
	struct listen_notice *notice;

	/*
	 * A new connection begins as a copy of its listening socket, and ceases to be one as SYN_RECV. MPTCP says
	 * LISTEN twice.
	 */
	if (new == old || (new != TCP_LISTEN && (old != TCP_LISTEN || new != TCP_CLOSE)))
		return 0;
	if (!by_ip(sk) || !is_own_listener(sk))
		return 0;
	notice = bpf_ringbuf_reserve(&notices, sizeof(*notice), 0);
	if (!notice) {
		__sync_fetch_and_add(&lost, 1);
		return 0;
	}
	__builtin_memset(notice, 0, sizeof(*notice));
	describe(notice, sk, bpf_get_current_task_btf());
	/* The state itself is written behind this hook. */
	notice->listens = new == TCP_LISTEN;
	notice->socket = bpf_get_socket_cookie(sk);
	bpf_ringbuf_submit(notice, 0);
	return 0;
}

SEC("iter/task_file")
int discover_files(struct bpf_iter__task_file *ctx)
{
	struct listen_notice notice = {};
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct socket *socket;
	struct sock *sk;

	if (!task || !file)
		return 0;
	socket = bpf_sock_from_file(file);
	if (!socket)
		return 0;
	sk = socket->sk;
	if (!sk || sk->__sk_common.skc_state != TCP_LISTEN || !by_ip(sk) ||
	    (sk->sk_protocol != IPPROTO_TCP && sk->sk_protocol != IPPROTO_MPTCP))
		return 0;
	describe(&notice, sk, task);
	notice.socket = bpf_get_socket_cookie(sk);
	bpf_seq_write(ctx->meta->seq, &notice, sizeof(notice));
	return 0;
}
