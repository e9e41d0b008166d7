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
 * later. A call takes 1 to 2 ns, so a SYN that is admitted meets few.
 * crates/kernel/tests/verifier.rs bounds what the verifier has to do.
 */
#ifndef WEIR_ARRIVAL_BPF_H
#define WEIR_ARRIVAL_BPF_H

#include "abi/guard.h"
#include "lib/admit.h"
#include "lib/cookie.h"
#include "lib/kernel.h"
#include "lib/packet.h"
#include "lib/reply.h"
#include "lib/state.bpf.h"

#define PASS (-1)	/* TCX_NEXT: other programs on this hook have their say */
#define FIB_SKIP_NEIGH 4 /* BPF_FIB_LOOKUP_SKIP_NEIGH, since 6.3 */

/* 0 on devices without one: tun, wireguard, ipip, ppp. Set before load. The XDP front is for Ethernet only. */
const volatile u32 link_header = sizeof(struct ethernet);

struct arrival {
	struct packet packet;
	struct bpf_sock_tuple tuple;
	u64 now;
	u64 socket;		/* the listening socket that it is judged for; 0: not known yet */
	struct queue_view queue;	/* that socket's queue, as it was judged */
	u32 class;		/* slot of its class; WEIR_NO_CLASS: the listener has none */
	u8 verdict;		/* enum verdict */
	u8 mptcp;		/* 1: the socket is an MPTCP listener */
	u8 time_wait;		/* 1: it takes the place of a TIME-WAIT socket */
};

/* A receive driver may leave headers in fragments; then they are pulled in, once. */
static __always_inline bool pull_headers(struct __sk_buff *skb)
{
	u32 linear = skb_end(skb) - skb_start(skb), want = link_header + sizeof(struct ipv6) + 60;

	if (CTX_LOAD(skb, protocol) != bpf_htons(ETH_P_IP) && CTX_LOAD(skb, protocol) != bpf_htons(ETH_P_IPV6))
		return false;
	if (linear >= want || linear >= CTX_LOAD(skb, len))
		return false;
	return !bpf_skb_pull_data(skb, want < CTX_LOAD(skb, len) ? want : CTX_LOAD(skb, len));
}

static __always_inline u8 checksum_state(struct __sk_buff *skb)
{
	struct sk_buff *buffer = bpf_cast_to_kern_ctx(skb);

	return BPF_CORE_READ_BITFIELD(buffer, ip_summed);
}

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

static __always_inline void flow_of(struct flow *flow, const struct arrival *arrival)
{
	const struct bpf_sock_tuple *tuple = &arrival->tuple;

	__builtin_memset(flow, 0, sizeof(*flow));
	flow->v6 = arrival->packet.v6;
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

static __always_inline bool routed_here(void *ctx, u32 ifindex, const struct arrival *arrival)
{
	struct bpf_fib_lookup fib = { .ifindex = ifindex, .l4_protocol = IPPROTO_TCP };
	const struct bpf_sock_tuple *tuple = &arrival->tuple;
	long where;

	if (arrival->packet.v6) {
		fib.family = AF_INET6;
		__builtin_memcpy(fib.ipv6_src, tuple->ipv6.saddr, 16);
		__builtin_memcpy(fib.ipv6_dst, tuple->ipv6.daddr, 16);
	} else {
		fib.family = AF_INET;
		fib.ipv4_src = tuple->ipv4.saddr;
		fib.ipv4_dst = tuple->ipv4.daddr;
	}
	where = bpf_fib_lookup(ctx, &fib, sizeof(fib), FIB_SKIP_NEIGH);
	return where == BPF_FIB_LKUP_RET_NOT_FWDED || where == BPF_FIB_LKUP_RET_FWD_DISABLED;
}

/* Global, one for each type of context: the verifier wants to know it. */
__noinline int routed_here_skb(struct __sk_buff *skb, const struct arrival *arrival)
{
	return arrival ? routed_here(skb, CTX_LOAD(skb, ifindex), arrival) : 0;
}

__noinline int routed_here_xdp(struct xdp_md *xdp, const struct arrival *arrival)
{
	return arrival ? routed_here(xdp, CTX_LOAD(xdp, ingress_ifindex), arrival) : 0;
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

	_Static_assert(DESTINATION_SLOTS == 1 << (32 - 26), "key is in range");
	if (!destination)
		return NULL;
	if (destination->second != second || destination->port != arrival->packet.dport ||
	    destination->ifindex != ifindex || destination->addr[0] != addr[0] || destination->addr[1] != addr[1] ||
	    destination->addr[2] != addr[2] || destination->addr[3] != addr[3]) {
		__builtin_memcpy(destination->addr, addr, 16);
		destination->port = arrival->packet.dport;
		destination->ifindex = ifindex;
		destination->second = second;
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

/*
 * Sum of the TCP header with its options and the pseudo-header. 0xffff: sound.
 * The pseudo-header's sum alone in the field: CHECKSUM_PARTIAL.
 */
static __always_inline bool tcp_sum_sound(const struct packet *packet, const struct tcp *tcp, const void *data_end,
					  u64 pseudo, bool may_be_partial)
{
	const __be32 *option = (const void *)(tcp + 1);
	u64 sum = pseudo;

	if (packet->tcp_len != packet->header_len)
		return true; /* has payload: summing it would cost more than answering it */
	if (may_be_partial && tcp->csum == csum_fold(pseudo))
		return true;
	sum += csum_words(tcp, 5);
#pragma unroll
	for (u32 i = 0; i < TCP_OPTIONS_MAX / 4; i++) {
		if (sizeof(*tcp) + i * 4 >= packet->header_len)
			break;
		if ((const void *)(option + i + 1) > data_end)
			return false;
		sum += option[i];
	}
	return csum_fold(sum) == 0xffff;
}

/* Whether the kernel would have taken this packet: header sums right. Unsound ones are its to drop. */
static __always_inline bool sound(const struct packet *packet, void *network, void *data_end, bool summed,
				  bool may_be_partial)
{
	u64 len = bpf_htonl(packet->tcp_len);

	if (packet->v6) {
		const struct ipv6 *ip = network;
		const struct tcp *tcp = (void *)(ip + 1);

		if ((void *)(tcp + 1) > data_end)
			return false;
		return summed || tcp_sum_sound(packet, tcp, data_end,
					       csum_words(ip->saddr, 8) + len + bpf_htonl(IPPROTO_TCP), may_be_partial);
	}
	const struct ipv4 *ip = network;
	const struct tcp *tcp = (void *)(ip + 1);

	if ((void *)(tcp + 1) > data_end || !ipv4_header_sound(ip))
		return false;
	return summed || tcp_sum_sound(packet, tcp, data_end, csum_words(&ip->saddr, 2) + len + bpf_htonl(IPPROTO_TCP),
				       may_be_partial);
}

/* Sound headers, and addresses that can be ends: then weir may answer. */
static __always_inline bool answerable_skb(struct __sk_buff *skb, const struct arrival *arrival)
{
	u8 state = checksum_state(skb);

	return sound(&arrival->packet, skb_start(skb) + link_header, skb_end(skb),
		     state == CHECKSUM_UNNECESSARY || state == CHECKSUM_PARTIAL, false) &&
	       endpoints(arrival);
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
