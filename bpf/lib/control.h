/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * control.h - which packets are control segments, and which of these may overtake
 * data (BHD18, Section V). Pure; the models are weir_models::aqm::control and
 * weir_models::aqm::limit.
 */
#ifndef WEIR_CONTROL_H
#define WEIR_CONTROL_H

#include "abi/shape.h"
#include "lib/packet.h"
#include "lib/types.h"

enum control {
	CONTROL_NONE,	/* data, a bare ACK, a RST, or a SYN or FIN with payload */
	CONTROL_SYN,	/* opens a connection */
	CONTROL_SYN_ACK, /* accepts one */
	CONTROL_FIN,	/* closes one direction */
};

/*
 * A SYN or FIN that carries payload is as slow as any data: a sender could else have
 * the high queue for its whole transfer.
 */
static __always_inline enum control control_of(u8 flags, u32 payload_bytes)
{
	if (payload_bytes)
		return CONTROL_NONE;
	switch (flags & (FLAG_SYN | FLAG_FIN | FLAG_RST)) {
	case FLAG_SYN:
		return flags & FLAG_ACK ? CONTROL_SYN_ACK : CONTROL_SYN;
	case FLAG_FIN:
		return CONTROL_FIN;
	default:
		return CONTROL_NONE;
	}
}

/* What control_of() needs to know, and whose segment it is. */
struct segment {
	u32 client;	/* hash of who opens the connection: IPv4 address, or /64 of IPv6 */
	u32 payload;
	u8 flags;
};

/* Room for an IP header with options and the first bytes of a TCP header. */
#define SEGMENT_HEADERS 80

static __always_inline u32 mix(u32 word, u32 seed)
{
	word = (word ^ seed) * 0x9e3779b1;
	word = (word ^ word >> 15) * 0x85ebca77;
	return word ^ word >> 13;
}

static __always_inline u32 mix_prefix(const __be32 *address, u32 seed)
{
	return mix(address[1], mix(address[0], seed));
}

/*
 * Reads a TCP segment from its IP header on. bytes: SEGMENT_HEADERS of them, of which
 * len are the packet's. False for everything else: other protocols, fragments, IPv6
 * extension headers, packets that are cut. They are no control segments.
 */
static __always_inline bool segment_read(const u8 *bytes, u32 len, u32 seed, struct segment *segment)
{
	u32 l4, ip_len, data_offset;
	const struct tcp *tcp;
	bool v6, reply;

	if (len < sizeof(struct ipv4) + sizeof(struct tcp))
		return false;
	v6 = bytes[0] >> 4 == 6;
	if (v6) {
		const struct ipv6 *ip = (const void *)bytes;

		if (len < sizeof(*ip) + sizeof(*tcp) || ip->next != IPPROTO_TCP)
			return false;
		l4 = sizeof(*ip);
		ip_len = l4 + bpf_ntohs(ip->payload_len);
	} else {
		const struct ipv4 *ip = (const void *)bytes;

		l4 = (bytes[0] & 15) * 4;
		if (bytes[0] >> 4 != 4 || l4 < sizeof(*ip) || ip->proto != IPPROTO_TCP ||
		    (ip->frag & bpf_htons(0x3fff)))
			return false;
		ip_len = bpf_ntohs(ip->total_len);
	}
	if (l4 + sizeof(*tcp) > len || l4 + sizeof(*tcp) > SEGMENT_HEADERS)
		return false;
	data_offset = (bytes[l4 + 12] >> 4) * 4;
	segment->flags = bytes[l4 + 13];
	if (data_offset < sizeof(*tcp) || l4 + data_offset > ip_len)
		return false;
	segment->payload = ip_len - l4 - data_offset;
	/* Who opens the connection gets the answer, too. */
	reply = segment->flags & FLAG_ACK;
	if (v6) {
		const struct ipv6 *ip = (const void *)bytes;

		segment->client = mix_prefix(reply ? ip->daddr : ip->saddr, seed);
	} else {
		const struct ipv4 *ip = (const void *)bytes;

		segment->client = mix(reply ? ip->daddr : ip->saddr, seed);
	}
	return true;
}

/* Whether a packet may pass, given when the bucket's next byte is due. Then it has taken its tokens. */
static __always_inline bool byte_rate_take(u64 *due_ns, u64 now_ns, u32 len_bytes, const struct byte_rate *rate)
{
	u64 at = *due_ns > now_ns ? *due_ns : now_ns;

	if (at - now_ns > rate->tolerance_ns)
		return false;
	*due_ns = at + ((len_bytes * rate->ns_per_kib) >> 10);
	return true;
}

/*
 * Which buckets a control segment takes from: a flood of SYNs from forged sources
 * leaves SYN/ACKs theirs.
 */
static __always_inline u32 limit_kind(enum control control)
{
	return control == CONTROL_SYN_ACK;
}

/* Of WEIR_SHAPE_KINDS * WEIR_SHAPE_SOURCES buckets, the client's. */
static __always_inline u32 limit_index(u32 kind, u32 client)
{
	return (kind & (WEIR_SHAPE_KINDS - 1)) * WEIR_SHAPE_SOURCES + (client & (WEIR_SHAPE_SOURCES - 1));
}

/* A client over its share takes no token of the others: the bucket for all is asked last. */
static __always_inline bool limit_admits(const struct shape_params *params, u64 *client_due, u64 *all_due, u64 now_ns,
					 u32 len_bytes)
{
	return byte_rate_take(client_due, now_ns, len_bytes, &params->source) &&
	       byte_rate_take(all_due, now_ns, len_bytes, &params->all);
}

#endif
