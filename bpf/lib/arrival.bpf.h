/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * arrival.bpf.h - a packet while it is judged, and what is known of it before
 * any socket is looked at: addresses, whether it is for this host, its sums.
 *
 * How the programs are cut. The verifier follows every path, and walks inlined
 * code again on each way that leads there. What several ways lead to is
 * therefore a global function (`__noinline` and not static): verified once, for
 * any arguments. It takes scalars, the context and pointers to memory. A
 * pointer that it reads from memory is a number to the verifier, so struct
 * arrival holds none; and what it writes to memory tells no two ways apart
 * later. A call takes 1 to 2 ns, and more where returns are made safe against
 * Spectre, so a SYN that is admitted meets few: what decides whether a rare one is
 * needed stands before it.
 * crates/kernel/tests/verifier.rs bounds what the verifier has to do. docs/kernels-details.md
 * lists what older verifiers do not see.
 *
 * Linux before 6.10 tells two turns of a bpf_for() loop apart by whatever they
 * leave in registers and on the stack: a body with branches is a function. Linux
 * before 6.9 takes each frame for a multiple of 32 bytes, and all frames on a way
 * for at most 512 together: what is rare and needs many registers is a function
 * too, beside the deepest way. That is now guard_tc, on_syn, judge_syn,
 * claims_resolve, claim_resolve_of: 480.
 *
 * What is kept per CPU over a call (destinations, option_walks, header_buffers; segments and headers_copies of
 * timewait) is for one packet at a time: these programs run in softirqs, of which a CPU handles one at a time. On
 * PREEMPT_RT, where tasks may preempt a softirq, a per-CPU lock sees to that; docs/limits-details.md has the kernels
 * without it. No program sends a packet that comes in again before it ends: a redirected one is queued (netif_rx()).
 */
#ifndef WEIR_ARRIVAL_BPF_H
#define WEIR_ARRIVAL_BPF_H

#include "abi/guard.h"
#include "lib/admit.h"
#include "lib/cookie.h"
#include "lib/frame.bpf.h"
#include "lib/kernel.h"
#include "lib/packet.h"
#include "lib/reply.h"
#include "lib/route.bpf.h"
#include "lib/state.bpf.h"

struct arrival {
	struct packet packet;
	struct bpf_sock_tuple tuple;
	u32 hash;		/* by which the kernel files its 4-tuple; known if it takes the place of a TIME-WAIT socket */
	u64 now;
	u64 socket;		/* the listening socket that it is judged for; 0: not known yet */
	struct queue_view queue;	/* that socket's queue, as it was judged */
	u64 claims;		/* of its ledger, read before the queue */
	u32 class;		/* slot of its class; WEIR_NO_CLASS: the listener has none */
	u8 verdict;		/* enum verdict */
	u8 mptcp;		/* 1: the socket is an MPTCP listener */
	u8 time_wait : 1;	/* 1: it takes the place of a TIME-WAIT socket */
	u8 retried : 1;		/* 1: in observe mode, it repeats a SYN that would have been refused (retried.bpf.h) */
	u8 steady;		/* enum steadiness of its source */
};

/* Reads the 4-tuple from the headers at `network`. */
static __always_inline bool tuple_read(struct arrival *arrival, const void *network, const void *data_end)
{
	struct bpf_sock_tuple *tuple = &arrival->tuple;

	if (arrival->packet.v6) {
		const struct ipv6 *ip = network;

		if ((const void *)(ip + 1) > data_end)
			return false;
		__builtin_memcpy(tuple->ipv6.saddr, ip->saddr, 16);
		__builtin_memcpy(tuple->ipv6.daddr, ip->daddr, 16);
		tuple->ipv6.sport = arrival->packet.sport;
		tuple->ipv6.dport = arrival->packet.dport;
	} else {
		const struct ipv4 *ip = network;

		if ((const void *)(ip + 1) > data_end)
			return false;
		tuple->ipv4.saddr = ip->saddr;
		tuple->ipv4.daddr = ip->daddr;
		tuple->ipv4.sport = arrival->packet.sport;
		tuple->ipv4.dport = arrival->packet.dport;
	}
	return true;
}

static __always_inline bool tuple_of_skb(struct __sk_buff *skb, struct arrival *arrival)
{
	return tuple_read(arrival, skb_start(skb) + link_header, skb_end(skb));
}

static __always_inline bool tuple_of_xdp(struct xdp_md *xdp, struct arrival *arrival)
{
	return tuple_read(arrival, xdp_start(xdp) + sizeof(struct ethernet), xdp_end(xdp));
}

static __always_inline void flow_of(struct flow *flow, const struct listener_policy *listener,
				    const struct arrival *arrival)
{
	const struct bpf_sock_tuple *tuple = &arrival->tuple;

	__builtin_memset(flow, 0, sizeof(*flow));
	flow->v6 = arrival->packet.v6;
	if (guards_others && listener->counters >= WEIR_MAX_LISTENERS)
		flow->elsewhere = listener->counters;
	if (flow->v6) {
		__builtin_memcpy(flow->saddr, tuple->ipv6.saddr, 16);
		__builtin_memcpy(flow->daddr, tuple->ipv6.daddr, 16);
		flow->sport = tuple->ipv6.sport;
		flow->dport = tuple->ipv6.dport;
	} else {
		flow->saddr[0] = tuple->ipv4.saddr;
		flow->daddr[0] = tuple->ipv4.daddr;
		flow->sport = tuple->ipv4.sport;
		flow->dport = tuple->ipv4.dport;
	}
}

/*
 * Where a source is kept, and by what: a hash with a secret of this load. Who knew it could find a few addresses of his
 * own that are kept in the set of another's; connecting steadily they would fill it, and no one takes the place of a
 * steady source. Multiply-shift: two sources share a set by chance only. It is folded before the last product, else one
 * pair that is seen to share a set would tell of others by its difference.
 */
static __always_inline u32 source_key(const struct listener_policy *listener, const struct arrival *arrival)
{
	const struct bpf_sock_tuple *tuple = &arrival->tuple;
	u64 hash = source_secret.start + (2 * listener->counters + arrival->packet.v6) * source_secret.listener;

	if (arrival->packet.v6) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			hash += tuple->ipv6.saddr[i] * source_secret.word[i];
	} else {
		hash += tuple->ipv4.saddr * source_secret.word[0];
	}
	return (hash ^ hash >> 32) * source_secret.fold >> 32;
}

static __always_inline struct source_set *source_set_of(u32 key)
{
	return &sources[key >> (32 - SOURCE_SET_BITS)];
}

/* Notes that the SYN's source comes, and whether it is steady. Every SYN comes by, at tc or, refused, at the front. */
static __always_inline void note_source(const struct listener_policy *listener, struct arrival *arrival)
{
	u32 key;

	arrival->steady = STEADY_NOT;
	if (!(listener->may & WEIR_MAY_SPARE_STEADY))
		return;
	key = source_key(listener, arrival);
	arrival->steady = source_note(source_set_of(key), key, steady_window(arrival->now),
				      bpf_ntohs(arrival->packet.sport) ^ key >> 3);
}

/* The same. Global: the front has two ways here. */
__noinline int note_source_at_front(const struct listener_policy *listener, struct arrival *arrival)
{
	if (listener && arrival)
		note_source(listener, arrival);
	return 0;
}

/* What note_source() would find, without noting it: tc will. Global, as above. */
__noinline int look_at_source(const struct listener_policy *listener, struct arrival *arrival)
{
	struct source *place, source;
	u32 key;

	if (!listener || !arrival)
		return 0;
	arrival->steady = STEADY_NOT;
	if (!(listener->may & WEIR_MAY_SPARE_STEADY))
		return 0;
	key = source_key(listener, arrival);
	place = source_find(source_set_of(key), key);
	if (!place)
		return 0;
	source = source_seen(source_load(place), steady_window(arrival->now));
	arrival->steady = source_steadiness(&source);
	return 0;
}

static __always_inline bool routed_here(void *ctx, u32 ifindex, u64 device, const struct arrival *arrival)
{
	return is_for_host(ctx, ifindex, device, &arrival->tuple, arrival->packet.v6, IPPROTO_TCP);
}

/* Global, one for each type of context: the verifier wants to know it. */
__noinline int routed_here_skb(struct __sk_buff *skb, const struct arrival *arrival)
{
	struct sk_buff *buffer = bpf_cast_to_kern_ctx(skb);

	return arrival ? routed_here(skb, CTX_LOAD(skb, ifindex), (u64)buffer->dev, arrival) : 0;
}

__noinline int routed_here_xdp(struct xdp_md *xdp, const struct arrival *arrival)
{
	struct xdp_buff *buffer = bpf_cast_to_kern_ctx(xdp);

	return arrival ? routed_here(xdp, CTX_LOAD(xdp, ingress_ifindex), (u64)buffer->rxq->dev, arrival) : 0;
}

/*
 * What is known about the packet's destination. One that is only forwarded
 * through this host may meet a wildcard listener in the lookup, and is none of
 * our business. NULL: treat it so.
 */
static __always_inline struct destination *destination_of(void *ctx, bool at_xdp, u32 ifindex,
							  const struct arrival *arrival)
{
	const struct bpf_sock_tuple *tuple = &arrival->tuple;
	bool v6 = arrival->packet.v6;
	u32 addr[4] = { v6 ? tuple->ipv6.daddr[0] : tuple->ipv4.daddr, v6 ? tuple->ipv6.daddr[1] : 0,
			v6 ? tuple->ipv6.daddr[2] : 0, v6 ? tuple->ipv6.daddr[3] : 0 };
	u32 key = (addr[0] ^ addr[1] ^ addr[2] ^ addr[3] ^ arrival->packet.dport) * 0x9e3779b1 >> 26,
	    second = arrival->now >> 30;
	struct destination *destination = bpf_map_lookup_elem(&destinations, &key);
	u64 netns = !guards_others || at_xdp ? own_netns : netns_of_skb(ctx);

	_Static_assert(DESTINATION_SLOTS == 1 << (32 - 26), "key is in range");
	if (!destination)
		return NULL;
	if (destination->netns != netns || destination->second != second || destination->port != arrival->packet.dport ||
	    destination->ifindex != ifindex || destination->addr[0] != addr[0] || destination->addr[1] != addr[1] ||
	    destination->addr[2] != addr[2] || destination->addr[3] != addr[3]) {
		__builtin_memcpy(destination->addr, addr, 16);
		destination->port = arrival->packet.dport;
		destination->ifindex = ifindex;
		destination->second = second;
		destination->netns = netns;
		destination->ours = at_xdp ? routed_here_xdp(ctx, arrival) : routed_here_skb(ctx, arrival);
		destination->listener = 0;
	}
	return destination->ours ? destination : NULL;
}

static __always_inline bool endpoints(const struct arrival *arrival)
{
	const struct bpf_sock_tuple *tuple = &arrival->tuple;

	return arrival->packet.v6 ? endpoint6(tuple->ipv6.saddr) && endpoint6(tuple->ipv6.daddr) :
				    endpoint4(tuple->ipv4.saddr) && endpoint4(tuple->ipv4.daddr);
}

/* Sound headers, and addresses that can be ends: then weir may answer. */
static __always_inline bool answerable(struct __sk_buff *skb, const struct arrival *arrival)
{
	u8 state = checksum_state(skb);

	return sound(&arrival->packet, skb_start(skb) + link_header, skb_end(skb),
		     state == CHECKSUM_UNNECESSARY || state == CHECKSUM_PARTIAL, false) &&
	       endpoints(arrival);
}

/* The same. Global: several ways lead here, and on the stack of on_syn() it would need 48 bytes. */
__noinline int answerable_skb(struct __sk_buff *skb, const struct arrival *arrival)
{
	return arrival && answerable(skb, arrival);
}

static __always_inline bool answerable_xdp(struct xdp_md *xdp, const struct arrival *arrival)
{
	/* A packet from this machine may carry the pseudo-header's sum only (veth). */
	return sound(&arrival->packet, xdp_start(xdp) + sizeof(struct ethernet), xdp_end(xdp), false, true) &&
	       endpoints(arrival);
}

static __always_inline u32 tcp_seq(const struct packet *packet, void *network, void *data_end, u32 *ack)
{
	struct tcp *tcp = network + (packet->v6 ? sizeof(struct ipv6) : sizeof(struct ipv4));

	if ((void *)(tcp + 1) > data_end)
		return 0;
	*ack = bpf_ntohl(tcp->ack);
	return bpf_ntohl(tcp->seq);
}

/* Sequence and acknowledgement number, host order. */
static __always_inline u32 seq_of_skb(struct __sk_buff *skb, const struct packet *packet, u32 *ack)
{
	return tcp_seq(packet, skb_start(skb) + link_header, skb_end(skb), ack);
}

static __always_inline u32 seq_of_xdp(struct xdp_md *xdp, const struct packet *packet, u32 *ack)
{
	return tcp_seq(packet, xdp_start(xdp) + sizeof(struct ethernet), xdp_end(xdp), ack);
}

#endif
