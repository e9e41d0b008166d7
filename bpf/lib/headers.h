/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * headers.h - finds the TCP header that packet.h does not: behind IPv4 options or
 * IPv6 extension headers, or in the first fragment. Pure; the model is
 * weir_models::headers.
 *
 * What the kernel takes for a SYN is one here. Not found are headers that it takes
 * only with IPsec (AH), and what lies behind HEADERS_MAX bytes of extension headers,
 * more than an Ethernet frame holds.
 */
#ifndef WEIR_HEADERS_H
#define WEIR_HEADERS_H

#include "lib/packet.h"
#include "lib/types.h"

#define HEADERS_MAX 2048
/* Each extension header has 8 bytes or more. */
#define HEADERS_STEPS (HEADERS_MAX / 8)

/* IPv6 extension headers (RFC 8200, Section 4). */
#define NEXT_HOP_BY_HOP 0
#define NEXT_ROUTING 43
#define NEXT_FRAGMENT 44
#define NEXT_DESTINATION 60

enum headers {
	HEADERS_OTHER,	/* no TCP header begins in this packet, or the kernel drops it */
	HEADERS_CUT,	/* its ports are here, its flags in another fragment */
	HEADERS_TCP,
};

/* From the IP header to the TCP header; offsets from the IP header. */
struct header_walk {
	u32 at;		/* the next header */
	u32 end;	/* of the packet, by the IP header's length field; at most HEADERS_MAX */
	u8 next;	/* its protocol */
	u8 more;	/* 1: other fragments follow */
	u8 ended;	/* 1: `next` is no extension header, or cannot be read */
};

/* Whether a packet that packet_parse() did not take may be one for this file. ip: its whole IP header. */
static __always_inline bool unusual4(const struct ipv4 *ip)
{
	return ip->proto == IPPROTO_TCP && (ip->version_ihl != 0x45 || (ip->frag & bpf_htons(0x3fff)));
}

static __always_inline bool unusual6(const struct ipv6 *ip)
{
	return ip->next == NEXT_HOP_BY_HOP || ip->next == NEXT_ROUTING || ip->next == NEXT_FRAGMENT ||
	       ip->next == NEXT_DESTINATION;
}

static __always_inline u32 header_byte(const u8 *ip, u32 at)
{
	return ip[at & (HEADERS_MAX - 1)];
}

static __always_inline u32 header_word(const u8 *ip, u32 at)
{
	return header_byte(ip, at) << 8 | header_byte(ip, at + 1);
}

static __always_inline void headers_stop(struct header_walk *walk)
{
	walk->ended = 1;
	walk->next = 0;
}

/* ip: at least HEADERS_MAX bytes, of which the packet has `len`, or more than that. */
static __always_inline void headers_begin(const u8 *ip, u32 len, bool v6, struct header_walk *walk)
{
	u32 fragment = v6 ? 0 : header_word(ip, 6);

	walk->at = v6 ? sizeof(struct ipv6) : (header_byte(ip, 0) & 15) * 4;
	walk->end = v6 ? sizeof(struct ipv6) + header_word(ip, 4) : header_word(ip, 2);
	walk->next = header_byte(ip, v6 ? 6 : 9);
	walk->more = (fragment & 0x2000) != 0;
	walk->ended = !v6;
	if (header_byte(ip, 0) >> 4 != (v6 ? 6 : 4) || walk->end > len || (fragment & 0x1fff) ||
	    (!v6 && walk->at < sizeof(struct ipv4)))
		headers_stop(walk);
	if (walk->end > HEADERS_MAX)
		walk->end = HEADERS_MAX;
}

/* One IPv6 extension header further. at: walk->at, where the caller wants it read from memory. */
static __always_inline void headers_step(const u8 *ip, u32 at, struct header_walk *walk)
{
	u32 next = walk->next, size = 8;

	if (next != NEXT_HOP_BY_HOP && next != NEXT_ROUTING && next != NEXT_FRAGMENT && next != NEXT_DESTINATION) {
		walk->ended = 1;
		return;
	}
	/* Hop-by-hop options stand first or nowhere: ip6_parse_tlv() is for those, the others are dropped. */
	if (at + 8 > walk->end || (next == NEXT_HOP_BY_HOP && at != sizeof(struct ipv6))) {
		headers_stop(walk);
		return;
	}
	if (next == NEXT_FRAGMENT) {
		u32 fragment = header_word(ip, at + 2);

		if (fragment & 0xfff8) {
			headers_stop(walk);
			return;
		}
		walk->more |= fragment & 1;
	} else {
		size = (header_byte(ip, at + 1) + 1) * 8;
	}
	walk->next = header_byte(ip, at);
	walk->at = at + size;
}

/* What was found. The ports, and for HEADERS_TCP the flags, are then in *packet. */
static __always_inline enum headers headers_end(const u8 *ip, bool v6, const struct header_walk *walk,
						struct packet *packet)
{
	u32 at = walk->at, rest = walk->end - at, header_len;

	if (!walk->ended || walk->next != IPPROTO_TCP || at > walk->end || rest < (walk->more ? 4 : sizeof(struct tcp)))
		return HEADERS_OTHER;
	header_len = (header_byte(ip, at + 12) >> 4) * 4;
	/* Of a segment in fragments only the kernel sees whether its header is whole. */
	if (!walk->more && (header_len < sizeof(struct tcp) || header_len > rest))
		return HEADERS_OTHER;
	packet->v6 = v6;
	packet->l4 = 0;
	packet->sport = bpf_htons(header_word(ip, at));
	packet->dport = bpf_htons(header_word(ip, at + 2));
	packet->flags = header_byte(ip, at + 13);
	packet->tcp_len = rest;
	packet->header_len = header_len;
	return rest < 14 ? HEADERS_CUT : HEADERS_TCP;
}

#endif
