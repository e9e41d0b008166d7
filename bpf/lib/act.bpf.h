/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * act.bpf.h - carrying a verdict out: answer in place and send it back where
 * the packet came from, and say so.
 */
#ifndef WEIR_ACT_BPF_H
#define WEIR_ACT_BPF_H

#include "abi/guard.h"
#include "lib/arrival.bpf.h"
#include "lib/export.bpf.h"
#include "lib/kernel.h"
#include "lib/reply.h"
#include "lib/sample.bpf.h"
#include "lib/state.bpf.h"

EXPORT_TYPE(struct, guard_event);

/* What each kind of RST says when `reason` is on (RFC 1122, Section 4.2.2.12). REASON_LEN characters each. */
static const char reason_full[REASON_LEN + 1] = "server overloaded: queue is full";
static const char reason_wait[REASON_LEN + 1] = "server overloaded: queue is slow";
static const char reason_fin[REASON_LEN + 1] = "half-closed connections: refused";
static const char reason_rate[REASON_LEN + 1] = "too many connections: over rate.";
static const char reason_held[REASON_LEN + 1] = "server overloaded: class is held";
static const char reason_residence[REASON_LEN + 1] = "server overloaded: requests wait";

static __always_inline const char *reason_for(enum verdict v)
{
	switch (v) {
	case VERDICT_fin_reset:
		return reason_fin;
	case VERDICT_syn_reset_wait:
	case VERDICT_ack_reset_wait:
		return reason_wait;
	case VERDICT_syn_reset_rate:
		return reason_rate;
	case VERDICT_syn_reset_held:
		return reason_held;
	case VERDICT_syn_reset_residence:
		return reason_residence;
	default:
		return reason_full;
	}
}

/* Ends a connection: `seq` as the one who gets it expects it, host order. */
static __always_inline void rst(struct answer *answer, const struct listener_policy *listener, u32 seq)
{
	answer->seq = seq;
	answer->ack = 0;
	answer->flags = FLAG_RST;
	answer->header_len = sizeof(struct tcp);
	answer->reason_len = listener->may & WEIR_MAY_EXPLAIN ? REASON_LEN : 0;
}

static __always_inline u32 answer_len(const struct packet *packet, u32 l3, const struct answer *answer)
{
	return l3 + (packet->v6 ? sizeof(struct ipv6) : sizeof(struct ipv4)) + answer->header_len + answer->reason_len;
}

/*
 * Makes the packet the answer, with the text for this verdict. Returns 0, or
 * -1: then the packet is unchanged but for its tail. Global.
 */
__noinline int answer_skb(struct __sk_buff *skb, const struct packet *packet, struct answer *answer, u32 verdict)
{
	void *data, *data_end;
	u32 len;

	if (!packet || !answer)
		return -1;
	len = answer_len(packet, link_header, answer);
	answer->partial = checksum_state(skb) == CHECKSUM_PARTIAL;
	if (CTX_LOAD(skb, len) != len && bpf_skb_change_tail(skb, len, 0))
		return -1;
	/* A driver may have left the header shared with a clone (tcpdump) or in fragments. */
	if (skb_end(skb) - skb_start(skb) < len && bpf_skb_pull_data(skb, len))
		return -1;
	data = skb_start(skb);
	data_end = skb_end(skb);
	return packet->v6 ? answer_write(data, data_end, link_header, true, answer, reason_for(verdict)) :
			    answer_write(data, data_end, link_header, false, answer, reason_for(verdict));
}

/* The answer to a packet that needs no trace at the server: sent back instead of it. */
static __always_inline int answer_instead(struct __sk_buff *skb, const struct packet *packet, struct answer *answer,
					  enum verdict v)
{
	if (answer_skb(skb, packet, answer, v))
		return PASS;
	return bpf_redirect(CTX_LOAD(skb, ifindex), 0);
}

/* As answer_skb(), and sends it back. */
__noinline int answer_xdp(struct xdp_md *xdp, const struct packet *packet, const struct answer *answer, u32 verdict)
{
	const u32 l3 = sizeof(struct ethernet);
	int grow;

	if (!packet || !answer)
		return XDP_PASS;
	grow = (int)answer_len(packet, l3, answer) - (int)(xdp_end(xdp) - xdp_start(xdp));
	if (grow && bpf_xdp_adjust_tail(xdp, grow))
		return XDP_PASS;
	if (packet->v6 ? answer_write(xdp_start(xdp), xdp_end(xdp), l3, true, answer, reason_for(verdict)) :
			 answer_write(xdp_start(xdp), xdp_end(xdp), l3, false, answer, reason_for(verdict)))
		return XDP_PASS;
	return XDP_TX;
}

/*
 * Where a device has summed up a packet (CHECKSUM_COMPLETE), the stack checks it by that sum. The packet has become a
 * RST without options, so the sum becomes that of its headers. Global.
 */
__noinline int sum_headers(struct __sk_buff *skb, const struct packet *packet)
{
	struct sk_buff *buffer = bpf_cast_to_kern_ctx(skb);
	void *l3 = skb_start(skb) + link_header;
	const u32 v4 = sizeof(struct ipv4) + sizeof(struct tcp), v6 = sizeof(struct ipv6) + sizeof(struct tcp);

	if (!packet || checksum_state(skb) != CHECKSUM_COMPLETE)
		return 0;
	if (packet->v6 && l3 + v6 <= skb_end(skb))
		bpf_csum_update(skb, bpf_csum_diff(NULL, 0, l3, v6, ~buffer->csum));
	else if (l3 + v4 <= skb_end(skb))
		bpf_csum_update(skb, bpf_csum_diff(NULL, 0, l3, v4, ~buffer->csum));
	return 0;
}

/*
 * Ends a connection that both sides know: a RST to the client, and the packet
 * itself becomes the client's RST to the server. seq and ack as they stand in
 * the client's packet, host order.
 */
static __always_inline int reset_both(struct __sk_buff *skb, const struct packet *packet,
				      const struct listener_policy *listener, u32 seq, u32 ack, enum verdict v)
{
	struct answer answer;

	rst(&answer, listener, ack);
	if (answer_skb(skb, packet, &answer, v))
		return PASS;
	bpf_clone_redirect(skb, CTX_LOAD(skb, ifindex), 0);
	answer.seq = seq;
	answer.reason_len = 0;
	if (answer_skb(skb, packet, &answer, v))
		return TC_DROP;
	sum_headers(skb, packet);
	return PASS;
}

/* Fills an event in; the caller has seen to it that there are few. NULL: the ring is full. */
static __always_inline struct guard_event *event_begin(const struct listener_policy *listener,
						       const struct arrival *arrival)
{
	struct guard_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	const struct bpf_sock_tuple *tuple = &arrival->tuple;

	if (!event)
		return NULL;
	__builtin_memset(event, 0, sizeof(*event));
	if (arrival->packet.v6) {
		__builtin_memcpy(event->saddr, tuple->ipv6.saddr, 16);
		__builtin_memcpy(event->daddr, tuple->ipv6.daddr, 16);
	} else {
		event->saddr[2] = event->daddr[2] = bpf_htonl(0xffff);
		event->saddr[3] = tuple->ipv4.saddr;
		event->daddr[3] = tuple->ipv4.daddr;
	}
	event->class = arrival->class;
	event->at_ms = bpf_ktime_get_ns() / 1000000;
	event->sport = bpf_ntohs(arrival->packet.sport);
	event->dport = bpf_ntohs(arrival->packet.dport);
	event->listener = listener->counters;
	event->verdict = arrival->verdict;
	event->observe = listener->observe;
	return event;
}

/* An example of what the counters count. */
static __always_inline void sample(struct listen_state *state, const struct listener_policy *listener,
				   const struct arrival *arrival)
{
	struct guard_event *event;

	if (!sample_due(&state->event_ns, arrival->now))
		return;
	event = event_begin(listener, arrival);
	if (!event)
		return;
	event->queue_length = arrival->queue.length;
	event->queue_limit = arrival->queue.limit;
	event->half_open = arrival->queue.half_open;
	event->wait_us = wait_now(&state->wait, arrival->now, arrival->queue.length) / 1000;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

#endif
