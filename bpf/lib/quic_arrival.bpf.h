/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * quic_arrival.bpf.h - which datagrams quic.bpf.c looks into: those of guarded ports that begin with a long packet. All
 * others cost no more than this.
 */
#ifndef WEIR_QUIC_ARRIVAL_BPF_H
#define WEIR_QUIC_ARRIVAL_BPF_H

#include "abi/quic.h"
#include "lib/context.bpf.h"
#include "lib/frame.bpf.h"
#include "lib/kernel.h"
#include "lib/packet.h"
#include "lib/quic.h"

/* By port as it stands in the packet: WEIR_QUIC_AT_EVERY, WEIR_QUIC_AT_ONE; 0: not guarded. */
u8 quic_ports[65536];

/* Whether a long packet comes first. Behind the headers there may be nothing in one piece (UDP_SEGMENT). */
static __always_inline bool begins_long(struct __sk_buff *skb, const void *first, u32 at)
{
	u8 byte = 0;

	if (first + 1 <= skb_end(skb))
		byte = *(const u8 *)first;
	else if (bpf_skb_load_bytes(skb, at, &byte, 1))
		return false;
	return quic_is_long(byte);
}

/*
 * The length by the UDP header, if the port on this side is guarded and a long packet comes first; else 0. Above the
 * length is what quic_ports says of the port; the highest bit: IPv6. out: the datagram leaves.
 */
#define SAID_LEN 0xffffU
#define SAID_AT_SHIFT 16
#define SAID_V6 (1U << 31)
static __always_inline u32 guarded_len(struct __sk_buff *skb, bool out)
{
	void *end = skb_end(skb), *network = skb_start(skb) + link_header;
	u32 v6 = 0, len, guarded, at = link_header + sizeof(struct udp);
	const struct udp *udp;

	if (CTX_LOAD(skb, protocol) == bpf_htons(ETH_P_IP)) {
		const struct ipv4 *ip = network;

		udp = (const void *)(ip + 1);
		at += sizeof(*ip);
		if ((const void *)(udp + 1) > end)
			return 0;
		/* The first of several fragments has all that is read here. */
		if (ip->version_ihl != 0x45 || ip->proto != IPPROTO_UDP || (ip->frag & bpf_htons(0x1fff)))
			return 0;
	} else if (CTX_LOAD(skb, protocol) == bpf_htons(ETH_P_IPV6)) {
		const struct ipv6 *ip = network;

		udp = (const void *)(ip + 1);
		at += sizeof(*ip);
		if ((const void *)(udp + 1) > end)
			return 0;
		if ((ip->version_class_flow & bpf_htonl(0xf0000000)) != bpf_htonl(0x60000000) || ip->next != IPPROTO_UDP)
			return 0;
		v6 = SAID_V6;
	} else {
		return 0;
	}
	len = bpf_ntohs(udp->len);
	guarded = quic_ports[out ? udp->sport : udp->dport];
	if (!guarded || len <= sizeof(*udp))
		return 0;
	return begins_long(skb, udp + 1, at) ? len | guarded << SAID_AT_SHIFT | v6 : 0;
}

/* A driver may have left the headers of a datagram in fragments. Of other packets they stay there. */
static __always_inline bool pull_datagram(struct __sk_buff *skb)
{
	bool v6 = CTX_LOAD(skb, protocol) == bpf_htons(ETH_P_IPV6);
	u32 want = link_header + (v6 ? sizeof(struct ipv6) : sizeof(struct ipv4)) + sizeof(struct udp);
	u8 protocol = 0;

	if (skb_end(skb) - skb_start(skb) >= want || CTX_LOAD(skb, len) < want)
		return false;
	if (bpf_skb_load_bytes(skb, link_header + (v6 ? __builtin_offsetof(struct ipv6, next) : __builtin_offsetof(struct ipv4, proto)),
			       &protocol, 1))
		return false;
	return protocol == IPPROTO_UDP && !bpf_skb_pull_data(skb, want);
}

#endif
