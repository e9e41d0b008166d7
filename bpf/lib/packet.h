/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * packet.h - what the guard reads of a packet. Pure: works on bytes between
 * two pointers, so that the same code runs in tc, in XDP and natively in the
 * property tests against weir-models' `packet` module.
 *
 * Everything that is not a plain, whole TCP header over IPv4 without options
 * or IPv6 without extension headers is "not ours": fragments, VLAN tags, IP
 * options, truncated packets. headers.h looks for SYNs among them.
 */
#ifndef WEIR_PACKET_H
#define WEIR_PACKET_H

#include "lib/types.h"

#define FLAG_FIN 0x01
#define FLAG_SYN 0x02
#define FLAG_RST 0x04
#define FLAG_ACK 0x10

/*
 * Headers as they lie in the frame. Not packed: clang would then read every
 * word byte by byte. IP headers may lie on odd words; BPF and the machines
 * that weir runs on read those as well.
 */
struct ethernet {
	u8 dst[6];
	u8 src[6];
	__be16 proto;
};

struct ipv4 {
	u8 version_ihl;
	u8 tos;
	__be16 total_len;
	__be16 id;
	__be16 frag;
	u8 ttl;
	u8 proto;
	__be16 csum;
	__be32 saddr;
	__be32 daddr;
};

struct ipv6 {
	__be32 version_class_flow;
	__be16 payload_len;
	u8 next;
	u8 hop_limit;
	__be32 saddr[4];
	__be32 daddr[4];
};

struct tcp {
	__be16 sport;
	__be16 dport;
	__be32 seq;
	__be32 ack;
	u8 doff; /* upper four bits: header length in 32-bit words */
	u8 flags;
	__be16 window;
	__be16 csum;
	__be16 urgent;
};

struct udp {
	__be16 sport;
	__be16 dport;
	__be16 len; /* with this header */
	__be16 csum;
};

_Static_assert(sizeof(struct ethernet) == 14 && sizeof(struct ipv4) == 20, "no holes");
_Static_assert(sizeof(struct ipv6) == 40 && sizeof(struct tcp) == 20, "no holes");

/* A plain TCP packet. Ports, seq and ack as they stand in the packet (big endian). */
struct packet {
	u32 l4;		/* offset of the TCP header */
	u32 tcp_len;	/* TCP header and payload, from the IP header's length field */
	__be16 sport;
	__be16 dport;
	u8 v6;
	u8 flags;
	u8 header_len;	/* TCP header with options, 20..60 */
};

/*
 * Reads the packet whose IP header is at data + l3 and whose frame has
 * frame_len bytes (more than data..data_end when it is not linear). proto:
 * ethertype, big endian. Returns 0, or -1 for a packet that is not ours.
 */
static __always_inline int packet_parse(const void *data, const void *data_end, u32 frame_len, u32 l3, __be16 proto,
					struct packet *packet)
{
	const struct tcp *tcp;
	u32 ip_len;

	if (proto == bpf_htons(ETH_P_IP)) {
		const struct ipv4 *ip = data + l3;

		tcp = (const void *)(ip + 1);
		if ((const void *)(tcp + 1) > data_end)
			return -1;
		/* More-fragments or an offset: not a whole TCP segment. DF may be set. */
		if (ip->version_ihl != 0x45 || ip->proto != IPPROTO_TCP ||
		    (ip->frag & bpf_htons(0x3fff)))
			return -1;
		ip_len = bpf_ntohs(ip->total_len);
		packet->v6 = 0;
		packet->l4 = l3 + sizeof(*ip);
		packet->tcp_len = ip_len - sizeof(*ip);
		if (ip_len < sizeof(*ip) + sizeof(*tcp))
			return -1;
	} else if (proto == bpf_htons(ETH_P_IPV6)) {
		const struct ipv6 *ip = data + l3;

		tcp = (const void *)(ip + 1);
		if ((const void *)(tcp + 1) > data_end)
			return -1;
		if ((ip->version_class_flow & bpf_htonl(0xf0000000)) != bpf_htonl(0x60000000) ||
		    ip->next != IPPROTO_TCP)
			return -1;
		packet->tcp_len = bpf_ntohs(ip->payload_len);
		ip_len = packet->tcp_len + sizeof(*ip);
		packet->v6 = 1;
		packet->l4 = l3 + sizeof(*ip);
		if (packet->tcp_len < sizeof(*tcp))
			return -1;
	} else {
		return -1;
	}
	packet->header_len = (tcp->doff >> 4) * 4;
	if (packet->header_len < sizeof(*tcp) || packet->header_len > packet->tcp_len || l3 + ip_len > frame_len)
		return -1;
	packet->sport = tcp->sport;
	packet->dport = tcp->dport;
	packet->flags = tcp->flags;
	return 0;
}

/*
 * Whether a packet may be TCP, as far as its IP header says, which may lie outside of what there is of it in one piece.
 */
static __always_inline bool may_be_tcp(const void *network, const void *data_end, bool v6)
{
	const struct ipv4 *ip4 = network;
	const struct ipv6 *ip6 = network;

	if (v6)
		return (const void *)(ip6 + 1) > data_end || ip6->next == IPPROTO_TCP;
	return (const void *)(ip4 + 1) > data_end || ip4->proto == IPPROTO_TCP;
}

/* Of the flags that steer a handshake SYN alone. Others may be set: PSH, URG, and ECN's CWR and ECE. */
static __always_inline bool is_syn(u8 flags)
{
	return (flags & (FLAG_SYN | FLAG_ACK | FLAG_RST | FLAG_FIN)) == FLAG_SYN;
}

static __always_inline bool is_plain_ack(u8 flags)
{
	return (flags & (FLAG_SYN | FLAG_ACK | FLAG_RST | FLAG_FIN)) == FLAG_ACK;
}

/*
 * Whether an address can be one end of a connection. The kernel drops packets
 * from or to the others as martians (ip_route_input_slow(), ip6_rcv_core()):
 * 0.0.0.0, 255.255.255.255, :: and multicast. Theirs is not for weir to answer.
 * The rest of 0/8 and 240/4 is reserved, and to the kernel as any other.
 */
static __always_inline bool endpoint4(__be32 addr)
{
	u32 host = bpf_ntohl(addr);

	return host != 0 && host != 0xffffffff && host >> 28 != 14;
}

static __always_inline bool endpoint6(const __be32 *addr)
{
	if ((addr[0] & bpf_htonl(0xff000000)) == bpf_htonl(0xff000000))
		return false;
	return addr[0] | addr[1] | addr[2] | addr[3];
}

/* TCP options that a handshake needs. */
struct syn_options {
	u16 mss;	/* 0: not given */
	u8 wscale;	/* 0..14; 15: not given */
	u8 sack;	/* 1: SACK permitted */
	u8 tstamp;	/* 1: timestamps given */
	u32 tsval;	/* host order */
	u32 tsecr;
	u8 phase;	/* enum tw_phase; 0: no option of TIME-WAIT negotiation */
	u8 holder;	/* enum tw_wire, if there is one */
	u8 join;	/* 1: the handshake adds a path to an MPTCP connection (MP_JOIN: RFC 8684, Section 3.2) */
	u8 sealed;	/* 1: a signature covers the header (RFC 2385, RFC 5925) */
};

/*
 * The option of TIME-WAIT negotiation: an experimental one with a 32-bit ExID
 * (RFC 6994), "TWNG"; then a byte each for enum tw_phase and enum tw_wire.
 */
#define TW_OPTION_KIND 253
#define TW_OPTION_LEN 8
#define TW_EXID 0x54574e47

/* RFC 8684, Section 3: the option, and of its subtypes, the upper four bits of its third byte, one. */
#define MPTCP_OPTION_KIND 30
#define MPTCP_JOIN 1

/* A TIME-WAIT socket, as the kernel looks at it when a SYN comes for it. Host order. */
struct time_wait {
	u32 rcv_nxt;	/* the next sequence number of the old connection */
	u32 ts_recent;	/* the last timestamp of its client */
	u8 stamped;	/* 1: it had timestamps */
	u8 fin_wait2;	/* 1: its client has not closed yet */
};

/*
 * Whether the kernel lets a SYN with this sequence number and these options take
 * the place of the socket: tcp_timewait_state_process(). If not, it answers for
 * the old connection, and no listening socket sees the SYN.
 */
static __always_inline bool time_wait_yields(const struct time_wait *old, u32 seq, const struct syn_options *options)
{
	if (old->fin_wait2)
		return false;
	if (old->stamped && options->tstamp) {
		s32 newer = options->tsval - old->ts_recent;

		if (newer > 0)
			return true;
		/* PAWS (RFC 7323, Section 5); a timestamp of 0 was none (tcp_paws_check()). */
		if (newer < 0 && old->ts_recent)
			return false;
	}
	return (s32)(seq - old->rcv_nxt) > 0;
}

#define TCP_OPTIONS_MAX 40
#define OPTION_BUFFER 64

/* One step of the option walk: at *at in buf[0..len), returns the next offset or len to end. */
static __always_inline u32 option_step(const u8 *buf, u32 at, u32 len, struct syn_options *options)
{
	u8 kind = buf[at & 63], size;

	if (kind == 0)
		return len;
	if (kind == 1)
		return at + 1;
	if (at + 2 > len)
		return len;
	size = buf[(at + 1) & 63];
	if (size < 2 || at + size > len)
		return len;
	if (kind == 2 && size == 4) {
		options->mss = buf[(at + 2) & 63] << 8 | buf[(at + 3) & 63];
	} else if (kind == 3 && size == 3) {
		u8 shift = buf[(at + 2) & 63];

		options->wscale = shift > 14 ? 14 : shift; /* RFC 7323, Section 2.3 */
	} else if (kind == 4 && size == 2) {
		options->sack = 1;
	} else if (kind == 8 && size == 10) {
		options->tstamp = 1;
		options->tsval = (u32)buf[(at + 2) & 63] << 24 | (u32)buf[(at + 3) & 63] << 16 |
				 (u32)buf[(at + 4) & 63] << 8 | buf[(at + 5) & 63];
		options->tsecr = (u32)buf[(at + 6) & 63] << 24 | (u32)buf[(at + 7) & 63] << 16 |
				 (u32)buf[(at + 8) & 63] << 8 | buf[(at + 9) & 63];
	} else if (kind == TW_OPTION_KIND && size == TW_OPTION_LEN) {
		u32 exid = (u32)buf[(at + 2) & 63] << 24 | (u32)buf[(at + 3) & 63] << 16 |
			   (u32)buf[(at + 4) & 63] << 8 | buf[(at + 5) & 63];

		if (exid == TW_EXID) {
			options->phase = buf[(at + 6) & 63];
			options->holder = buf[(at + 7) & 63];
		}
	} else if (kind == MPTCP_OPTION_KIND && size > 2) {
		options->join |= buf[(at + 2) & 63] >> 4 == MPTCP_JOIN;
	} else if (kind == 19 || kind == 29) {
		options->sealed = 1;
	}
	return at + size;
}

#endif
