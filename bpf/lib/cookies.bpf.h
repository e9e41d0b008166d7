/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * cookies.bpf.h - SYN cookies (cookie.h) between packets and the kernel: the
 * SYN/ACK that carries one, and the final ACK that brings it back.
 */
#ifndef WEIR_COOKIES_BPF_H
#define WEIR_COOKIES_BPF_H

#include "lib/arrival.bpf.h"
#include "lib/cookie.h"
#include "lib/kernel.h"
#include "lib/options.bpf.h"
#include "lib/packet.h"
#include "lib/reply.h"
#include "lib/state.bpf.h"

/* 1: the kernel has SYN cookies of its own (CONFIG_SYN_COOKIES), and tells programs of them. Set before load. */
const volatile u8 kernel_cookies = 1;
/*
 * 1: the kernel takes weir's cookies over IPv6. bpf_sk_assign_tcp_reqsk() knows IPv6 only where it is built in, and
 * with a module (CONFIG_IPV6=m) the connection would be reset. Set before load.
 */
const volatile u8 cookies_over_v6 = 1;

/* Cookies remembered, so that data right behind a final ACK meets the same verdict. */
#define SETTLED_SLOTS 4096

/* By cookie: ISN and cookie of a handshake that was accepted just now, or refused, or let by at the front. */
u64 accepted[SETTLED_SLOTS];
u64 refused[SETTLED_SLOTS];
u64 let_by[SETTLED_SLOTS];

/* What the namespace's sysctls let the connection use of what the client offered. */
static __always_inline void agree_options(struct syn_options *options, const struct listener_policy *listener)
{
	if (!(listener->may & WEIR_MAY_SACK))
		options->sack = 0;
	if (!(listener->may & WEIR_MAY_STAMP))
		options->tstamp = 0;
	if (!(listener->may & WEIR_MAY_SCALE_WINDOWS))
		options->wscale = COOKIE_NO_WSCALE;
}

#define OPTION_PAD 0x01010101 /* four NOPs */

static __always_inline void synack_options(__be32 *to, const struct syn_options *options, u32 mtu, bool v6, u64 now)
{
	u32 mss = mtu - (v6 ? 60 : 40);

	if (mss > 0xffff)
		mss = 0xffff;
	to[0] = bpf_htonl(0x02040000 | mss);
	to[1] = options->sack ? bpf_htonl(0x01010402) : OPTION_PAD;
	to[2] = to[3] = to[4] = OPTION_PAD;
	if (options->tstamp) {
		to[1] = options->sack ? bpf_htonl(0x0402080a) : bpf_htonl(0x0101080a);
		to[2] = bpf_htonl(now / 1000000);
		to[3] = bpf_htonl(options->tsval);
	}
	if (options->wscale != COOKIE_NO_WSCALE)
		to[4] = bpf_htonl(0x01030300 | COOKIE_RCV_WSCALE);
}

static __always_inline const struct siphash_key *secret(void)
{
	const struct siphash_key *key = (const void *)&cookie_key;

	/* Else clang could take the constant for what it is before the load. */
	barrier_var(key);
	return key;
}

/* The SYN/ACK with the cookie for a SYN with these options; its `ack` is set. Global. */
__noinline int cookie_answer(struct answer *answer, struct syn_options *options, const struct arrival *arrival,
			     const struct listener_policy *listener, u32 mtu)
{
	struct flow flow;

	if (!answer || !options || !arrival || !listener)
		return 0;
	agree_options(options, listener);
	flow_of(&flow, listener, arrival);
	answer->seq = cookie_make(&flow, answer->ack - 1, arrival->now, options, secret());
	answer->flags = FLAG_SYN | FLAG_ACK;
	answer->header_len = SYNACK_HEADER;
	answer->reason_len = 0;
	synack_options(answer->options, options, mtu, arrival->packet.v6, arrival->now);
	watch_acks(arrival->now);
	return 0;
}

/* What a final ACK says of the cookie that it answers. */
struct cookie_ack {
	u32 isn;
	u32 value;
	struct syn_options options;
};

/* seq, ack: of the ACK, host order. */
static __always_inline struct cookie_ack cookie_answered(u32 seq, u32 ack)
{
	struct cookie_ack cookie = { .isn = seq - 1, .value = ack - 1 };

	return cookie;
}

/* Global. */
__noinline int cookie_valid(const struct listener_policy *listener, const struct arrival *arrival,
			    struct cookie_ack *cookie)
{
	struct flow flow;

	if (!listener || !arrival || !cookie)
		return 0;
	flow_of(&flow, listener, arrival);
	return cookie_check(&flow, cookie->isn, cookie->value, arrival->now, &cookie->options, secret());
}

static __always_inline u64 *settled_slot(u64 *table, const struct cookie_ack *cookie)
{
	return &table[cookie->value >> 8 & (SETTLED_SLOTS - 1)];
}

static __always_inline bool settled(u64 *table, const struct cookie_ack *cookie)
{
	return *settled_slot(table, cookie) == ((u64)cookie->isn << 32 | cookie->value);
}

static __always_inline void settle(u64 *table, const struct cookie_ack *cookie)
{
	*settled_slot(table, cookie) = (u64)cookie->isn << 32 | cookie->value;
}

#endif
