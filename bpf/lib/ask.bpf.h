/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * ask.bpf.h - per_socket: an application asks by setsockopt() for one socket of
 * its own whether it negotiates its TIME-WAIT, and with which holder. It stays
 * with the socket (wishes); negotiate.bpf.h does what it says.
 */
#ifndef WEIR_ASK_BPF_H
#define WEIR_ASK_BPF_H

#include "lib/timewait.bpf.h"

/* include/uapi/asm-generic/errno.h */
#define ENOMEM 12
#define EINVAL 22
#define EISCONN 106
/* What the kernel copies of an option for a program, at most. */
#define PAGE 4096

/* What the application of a socket has asked. */
static __always_inline u32 wish_of(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk;
	u32 *wish;

	if (!wished)
		return WISH_RULES;
	sk = ops->sk;
	if (!sk)
		return WISH_RULES;
	wish = bpf_sk_storage_get(&wishes, sk, NULL, 0);
	return wish ? *wish : WISH_RULES;
}

/* The holders to which an end that opens agrees, by what its application has asked. */
static __always_inline u8 accept_by(u32 wish, u8 accept)
{
	switch (wish) {
	case WISH_ANY:
		return ACCEPT_ANY;
	case WISH_CLIENT:
		return ACCEPT_CLIENT;
	case WISH_SERVER:
		return ACCEPT_SERVER;
	}
	return accept;
}

/*
 * An application asks for one socket of its own. Runs at each setsockopt() of the machine: those of others go on as
 * they are.
 */
SEC("cgroup/setsockopt")
int timewait_ask(struct bpf_sockopt *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	u32 *value, *wish;

	if (ctx->level != WEIR_SOL) {
		/* The kernel has copied no more than a page: it is to take the caller's own bytes. */
		if (ctx->optlen > PAGE)
			ctx->optlen = 0;
		return 1;
	}
	/* Also of a subflow of MPTCP, whose protocol is another one: the kernel answers ENOPROTOOPT. */
	if (ctx->optname != WEIR_SO_TIMEWAIT || !sk || sk->protocol != IPPROTO_TCP || bpf_get_netns_cookie(ctx) != netns)
		return 1;
	value = ctx->optval;
	if (ctx->optlen < (int)sizeof(*value) || (void *)(value + 1) > ctx->optval_end || *value > WISH_SERVER) {
		bpf_set_retval(-EINVAL);
		return 0;
	}
	if (sk->state != TCP_CLOSE) {
		bpf_set_retval(-EISCONN);
		return 0;
	}
	wish = bpf_sk_storage_get(&wishes, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!wish) {
		bpf_set_retval(-ENOMEM);
		return 0;
	}
	*wish = *value;
	wished = 1;
	/* It is done: the kernel, which knows no such level, is not asked. */
	ctx->optlen = -1;
	return 1;
}

#endif
