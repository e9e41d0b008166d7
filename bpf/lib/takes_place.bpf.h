/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * takes_place.bpf.h - does a SYN take the place of a TIME-WAIT socket with its 4-tuple?
 *
 * The kernel gives such a SYN to the listening socket (tcp_timewait_state_process()), so weir judges it by the queue of
 * that. time_wait_yields() has the rule.
 */
#ifndef WEIR_TAKES_PLACE_BPF_H
#define WEIR_TAKES_PLACE_BPF_H

#include "lib/arrival.bpf.h"
#include "lib/options.bpf.h"
#include "lib/packet.h"

/* The TIME-WAIT socket at this kernel address, as it is now. */
static __always_inline struct time_wait time_wait_read(u64 address)
{
	const struct tcp_timewait_sock *tw =
		bpf_rdonly_cast((void *)address, bpf_core_type_id_kernel(struct tcp_timewait_sock));
	struct time_wait old = {
		.rcv_nxt = tw->tw_sk.__tw_common.skc_tw_rcv_nxt,
		.ts_recent = tw->tw_ts_recent,
		.stamped = tw->tw_ts_recent_stamp != 0,
		.fin_wait2 = tw->tw_sk.tw_substate != TCP_TIME_WAIT,
	};

	return old;
}

/* By which the kernel files the 4-tuple of the socket at this kernel address. */
static __always_inline u32 hash_of(u64 address)
{
	const struct sock_common *sk = bpf_rdonly_cast((void *)address, bpf_core_type_id_kernel(struct sock_common));

	return sk->skc_hash;
}

/* seq, walk: the SYN's sequence number and its options; walk NULL: they cannot be read. */
static __always_inline bool replaces(u64 time_wait, u32 seq, const struct option_walk *walk)
{
	struct time_wait old = time_wait_read(time_wait);

	return walk && time_wait_yields(&old, seq, &walk->options);
}

/*
 * Whether the SYN takes the place of the TIME-WAIT socket arrival->socket. Global,
 * one for each type of context: the verifier wants to know it.
 */
__noinline int replaces_skb(struct __sk_buff *skb, const struct arrival *arrival)
{
	u32 ack = 0;

	return arrival && replaces(arrival->socket, seq_of_skb(skb, &arrival->packet, &ack),
				   options_of_skb(skb, &arrival->packet));
}

__noinline int replaces_xdp(struct xdp_md *xdp, const struct arrival *arrival)
{
	u32 ack = 0;

	return arrival && replaces(arrival->socket, seq_of_xdp(xdp, &arrival->packet, &ack),
				   options_of_xdp(xdp, &arrival->packet));
}

/* Whether the lookup has met a TIME-WAIT socket whose place the SYN takes. */
static __always_inline bool takes_place_of(void *ctx, bool at_xdp, const struct bpf_sock *sk, struct arrival *arrival)
{
	u64 judged = arrival->socket;
	bool takes;

	if (!sk || sk->state != TCP_TIME_WAIT)
		return false;
	arrival->socket = (u64)sk;
	takes = at_xdp ? replaces_xdp(ctx, arrival) : replaces_skb(ctx, arrival);
	arrival->socket = judged;
	if (takes)
		arrival->hash = hash_of((u64)sk);
	return takes;
}

#endif /* WEIR_TAKES_PLACE_BPF_H */
