/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * close.bpf.h - half_close = reset (SB06, Section IV-B1, rst-fin): a client's
 * FIN without data ends the connection both ways.
 *
 * Only in ESTABLISHED and only when nothing before the FIN is missing: a FIN
 * with data, one out of order, and one that answers the server's own FIN pass. So does one of a
 * connection with keys: neither end would hear weir's RST.
 */
#ifndef WEIR_CLOSE_BPF_H
#define WEIR_CLOSE_BPF_H

#include "abi/guard.h"
#include "lib/act.bpf.h"
#include "lib/arrival.bpf.h"
#include "lib/police.bpf.h"
#include "lib/state.bpf.h"

static __always_inline bool may_reset_at(const struct listener_policy *listener, const struct packet *packet)
{
	return listener->half_close == HALF_CLOSE_RESET && !listener->draining &&
	       packet->tcp_len == packet->header_len && (packet->flags & (FLAG_SYN | FLAG_RST | FLAG_ACK)) == FLAG_ACK;
}

__noinline int on_fin(struct __sk_buff *skb, const struct listener_policy *listener, struct arrival *arrival)
{
	struct tcp_sock *tp;
	struct bpf_sock *sk;
	u32 seq, ack = 0;
	bool resets;

	if (!listener || !arrival || !may_reset_at(listener, &arrival->packet) || !tuple_of_skb(skb, arrival))
		return PASS;
	sk = flow_lookup(skb, &arrival->tuple, arrival->packet.v6);
	if (!sk)
		return PASS;
	seq = seq_of_skb(skb, &arrival->packet, &ack);
	tp = sk->state == TCP_ESTABLISHED ? bpf_skc_to_tcp_sock(sk) : NULL;
	resets = tp && tp->rcv_nxt == seq && !is_mptcp(tp) && !is_signed(tp);
	bpf_sk_release(sk);
	if (!resets || !answerable_skb(skb, arrival) || came_by_ipsec(skb))
		return PASS;
	count_for(listener, class_for(listener, arrival), VERDICT_fin_reset);
	if (listener->observe)
		return PASS;
	return reset_both(skb, &arrival->packet, listener, seq, ack, VERDICT_fin_reset);
}

#endif
