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
	struct packet p;
	struct bpf_sock_tuple t;
	u64 now;
	u64 socket;		/* the listening socket that it is judged for; 0: not known yet */
	struct queue_view q;	/* that socket's queue, as it was judged */
	u32 class;		/* slot of its class; WEIR_NO_CLASS: the listener has none */
	u8 verdict;		/* enum verdict */
	u8 mptcp;		/* 1: the socket is an MPTCP listener */
	u8 time_wait;		/* 1: the flow stands in TIME-WAIT here */
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
	struct sk_buff *k = bpf_cast_to_kern_ctx(skb);

	return BPF_CORE_READ_BITFIELD(k, ip_summed);
}

/* Reads the 4-tuple from the headers at `network`. */
static __always_inline bool tuple_read(struct arrival *x, const void *network, const void *data_end)
{
	struct bpf_sock_tuple *t = &x->t;

	if (x->p.v6) {
		const struct ipv6 *ip = network;

		if ((const void *)(ip + 1) > data_end)
			return false;
		__builtin_memcpy(t->ipv6.saddr, ip->saddr, 16);
		__builtin_memcpy(t->ipv6.daddr, ip->daddr, 16);
		t->ipv6.sport = x->p.sport;
		t->ipv6.dport = x->p.dport;
	} else {
		const struct ipv4 *ip = network;

		if ((const void *)(ip + 1) > data_end)
			return false;
		t->ipv4.saddr = ip->saddr;
		t->ipv4.daddr = ip->daddr;
		t->ipv4.sport = x->p.sport;
		t->ipv4.dport = x->p.dport;
	}
	return true;
}

static __always_inline bool tuple_of_skb(struct __sk_buff *skb, struct arrival *x)
{
	return tuple_read(x, skb_start(skb) + link_header, skb_end(skb));
}

static __always_inline bool tuple_of_xdp(struct xdp_md *xdp, struct arrival *x)
{
	return tuple_read(x, xdp_start(xdp) + sizeof(struct ethernet), xdp_end(xdp));
}

static __always_inline void flow_of(struct flow *f, const struct arrival *x)
{
	const struct bpf_sock_tuple *t = &x->t;

	__builtin_memset(f, 0, sizeof(*f));
	f->v6 = x->p.v6;
	if (f->v6) {
		__builtin_memcpy(f->saddr, t->ipv6.saddr, 16);
		__builtin_memcpy(f->daddr, t->ipv6.daddr, 16);
		f->sport = t->ipv6.sport;
		f->dport = t->ipv6.dport;
	} else {
		f->saddr[0] = t->ipv4.saddr;
		f->daddr[0] = t->ipv4.daddr;
		f->sport = t->ipv4.sport;
		f->dport = t->ipv4.dport;
	}
}

static __always_inline bool routed_here(void *ctx, u32 ifindex, const struct arrival *x)
{
	struct bpf_fib_lookup fib = { .ifindex = ifindex, .l4_protocol = IPPROTO_TCP };
	const struct bpf_sock_tuple *t = &x->t;
	long where;

	if (x->p.v6) {
		fib.family = AF_INET6;
		__builtin_memcpy(fib.ipv6_src, t->ipv6.saddr, 16);
		__builtin_memcpy(fib.ipv6_dst, t->ipv6.daddr, 16);
	} else {
		fib.family = AF_INET;
		fib.ipv4_src = t->ipv4.saddr;
		fib.ipv4_dst = t->ipv4.daddr;
	}
	where = bpf_fib_lookup(ctx, &fib, sizeof(fib), FIB_SKIP_NEIGH);
	return where == BPF_FIB_LKUP_RET_NOT_FWDED || where == BPF_FIB_LKUP_RET_FWD_DISABLED;
}

/* Global, one for each type of context: the verifier wants to know it. */
__noinline int routed_here_skb(struct __sk_buff *skb, const struct arrival *x)
{
	return x ? routed_here(skb, CTX_LOAD(skb, ifindex), x) : 0;
}

__noinline int routed_here_xdp(struct xdp_md *xdp, const struct arrival *x)
{
	return x ? routed_here(xdp, CTX_LOAD(xdp, ingress_ifindex), x) : 0;
}

/*
 * What is known about the packet's destination. One that is only forwarded
 * through this host may meet a wildcard listener in the lookup, and is none of
 * our business. NULL: treat it so.
 */
static __always_inline struct destination *destination_of(void *ctx, bool at_xdp, u32 ifindex, const struct arrival *x)
{
	const struct bpf_sock_tuple *t = &x->t;
	bool v6 = x->p.v6;
	u32 addr[4] = { v6 ? t->ipv6.daddr[0] : t->ipv4.daddr, v6 ? t->ipv6.daddr[1] : 0,
			v6 ? t->ipv6.daddr[2] : 0, v6 ? t->ipv6.daddr[3] : 0 };
	u32 key = (addr[0] ^ addr[1] ^ addr[2] ^ addr[3] ^ x->p.dport) * 0x9e3779b1 >> 26, second = x->now >> 30;
	struct destination *d = bpf_map_lookup_elem(&destinations, &key);

	_Static_assert(DESTINATION_SLOTS == 1 << (32 - 26), "key is in range");
	if (!d)
		return NULL;
	if (d->second != second || d->port != x->p.dport || d->ifindex != ifindex || d->addr[0] != addr[0] ||
	    d->addr[1] != addr[1] || d->addr[2] != addr[2] || d->addr[3] != addr[3]) {
		__builtin_memcpy(d->addr, addr, 16);
		d->port = x->p.dport;
		d->ifindex = ifindex;
		d->second = second;
		d->ours = at_xdp ? routed_here_xdp(ctx, x) : routed_here_skb(ctx, x);
		d->listener = 0;
	}
	return d->ours ? d : NULL;
}

static __always_inline bool endpoints(const struct arrival *x)
{
	const struct bpf_sock_tuple *t = &x->t;

	return x->p.v6 ? endpoint6(t->ipv6.saddr) && endpoint6(t->ipv6.daddr) :
			 endpoint4(t->ipv4.saddr) && endpoint4(t->ipv4.daddr);
}

/*
 * Sum of the TCP header with its options and the pseudo-header. 0xffff: sound.
 * The pseudo-header's sum alone in the field: CHECKSUM_PARTIAL.
 */
static __always_inline bool tcp_sum_sound(const struct packet *p, const struct tcp *tcp, const void *data_end,
					  u64 pseudo, bool may_be_partial)
{
	const __be32 *option = (const void *)(tcp + 1);
	u64 sum = pseudo;

	if (p->tcp_len != p->header_len)
		return true; /* has payload: summing it would cost more than answering it */
	if (may_be_partial && tcp->csum == csum_fold(pseudo))
		return true;
	sum += csum_words(tcp, 5);
#pragma unroll
	for (u32 i = 0; i < TCP_OPTIONS_MAX / 4; i++) {
		if (sizeof(*tcp) + i * 4 >= p->header_len)
			break;
		if ((const void *)(option + i + 1) > data_end)
			return false;
		sum += option[i];
	}
	return csum_fold(sum) == 0xffff;
}

/* Whether the kernel would have taken this packet: header sums right. Unsound ones are its to drop. */
static __always_inline bool sound(const struct packet *p, void *network, void *data_end, bool summed,
				  bool may_be_partial)
{
	u64 len = bpf_htonl(p->tcp_len);

	if (p->v6) {
		const struct ipv6 *ip = network;
		const struct tcp *tcp = (void *)(ip + 1);

		if ((void *)(tcp + 1) > data_end)
			return false;
		return summed || tcp_sum_sound(p, tcp, data_end,
					       csum_words(ip->saddr, 8) + len + bpf_htonl(IPPROTO_TCP),
					       may_be_partial);
	}
	const struct ipv4 *ip = network;
	const struct tcp *tcp = (void *)(ip + 1);

	if ((void *)(tcp + 1) > data_end || !ipv4_header_sound(ip))
		return false;
	return summed || tcp_sum_sound(p, tcp, data_end,
				       csum_words(&ip->saddr, 2) + len + bpf_htonl(IPPROTO_TCP), may_be_partial);
}

/* Sound headers, and addresses that can be ends: then weir may answer. */
static __always_inline bool answerable_skb(struct __sk_buff *skb, const struct arrival *x)
{
	u8 state = checksum_state(skb);

	return sound(&x->p, skb_start(skb) + link_header, skb_end(skb),
		     state == CHECKSUM_UNNECESSARY || state == CHECKSUM_PARTIAL, false) &&
	       endpoints(x);
}

static __always_inline bool answerable_xdp(struct xdp_md *xdp, const struct arrival *x)
{
	/* A packet from this machine may carry the pseudo-header's sum only (veth). */
	return sound(&x->p, xdp_start(xdp) + sizeof(struct ethernet), xdp_end(xdp), false, true) && endpoints(x);
}

static __always_inline u32 tcp_seq(const struct packet *p, void *network, void *data_end, u32 *ack)
{
	struct tcp *tcp = network + (p->v6 ? sizeof(struct ipv6) : sizeof(struct ipv4));

	if ((void *)(tcp + 1) > data_end)
		return 0;
	*ack = bpf_ntohl(tcp->ack);
	return bpf_ntohl(tcp->seq);
}

/* Sequence and acknowledgement number, host order. */
static __always_inline u32 seq_of_skb(struct __sk_buff *skb, const struct packet *p, u32 *ack)
{
	return tcp_seq(p, skb_start(skb) + link_header, skb_end(skb), ack);
}

static __always_inline u32 seq_of_xdp(struct xdp_md *xdp, const struct packet *p, u32 *ack)
{
	return tcp_seq(p, xdp_start(xdp) + sizeof(struct ethernet), xdp_end(xdp), ack);
}

#endif
