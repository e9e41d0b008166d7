/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * reply.h - turns a client's packet into the answer to it, in place: RST or
 * SYN/ACK. Pure: works on bytes; the caller has set the length before.
 *
 * Checksums: a packet that never left this machine carries CHECKSUM_PARTIAL;
 * its checksum field must then hold the sum of the pseudo-header only, for the
 * device completes it on the way out.
 */
#ifndef WEIR_REPLY_H
#define WEIR_REPLY_H

#include "lib/packet.h"
#include "lib/types.h"

#define TTL 64
#define SYNACK_HEADER 40 /* 20 + MSS 4 + SACK, timestamps 12 + window scale 4 */
#define REASON_LEN 32
/* Receive window and its scale in a cookie's SYN/ACK: what Linux offers on a 1500-byte link by default. */
#define COOKIE_WINDOW 64240
#define COOKIE_RCV_WSCALE 7

struct answer {
	u32 seq;	/* host order */
	u32 ack;	/* host order */
	u8 flags;
	u8 partial;	/* 1: CHECKSUM_PARTIAL */
	u8 header_len;	/* 20 or SYNACK_HEADER; a RST without reason: any, the options are zeroed */
	u8 reason_len;	/* 0 or REASON_LEN */
	__be32 options[5];	/* of a SYN/ACK or a bare ACK or RST, as they follow its header; the rest is zero */
};

static __always_inline u16 csum_fold(u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Adds up `words` 32-bit words; words is a constant. */
static __always_inline u64 csum_words(const void *from, u32 words)
{
	const __be32 *w = from;
	u64 sum = 0;

#pragma unroll
	for (u32 i = 0; i < words; i++)
		sum += w[i];
	return sum;
}

/*
 * Headers are written in whole words, and sums are of what was written, not
 * read back: a wide load behind narrow stores waits until they are in the
 * cache: 20 ns of each RST.
 */
static __always_inline void swap_ethernet(struct ethernet *eth)
{
	u16 *half = (void *)eth, d0 = half[0], d1 = half[1], d2 = half[2];

	half[0] = half[3];
	half[1] = half[4];
	half[2] = half[5];
	half[3] = d0;
	half[4] = d1;
	half[5] = d2;
}

/* Turns the IPv4 header around, with so many bytes behind it; returns the sum of its pseudo-header. */
static __always_inline u64 turn_ipv4(struct ipv4 *ip, u32 len, u8 protocol)
{
	__be32 *word = (void *)ip, client = ip->saddr, server = ip->daddr;
	__be32 first = bpf_htonl(0x45000000 | (sizeof(*ip) + len));
	/* Don't fragment; id 0 is then allowed (RFC 6864, Section 4.1). */
	__be32 second = bpf_htonl(0x4000), third = bpf_htonl(TTL << 24 | (u32)protocol << 16);
	u64 addresses = (u64)client + server;

	word[0] = first;
	word[1] = second;
	word[2] = third;
	ip->csum = ~csum_fold(addresses + first + second + third);
	ip->saddr = server;
	ip->daddr = client;
	return addresses + bpf_htonl((u32)protocol << 16 | len);
}

static __always_inline u64 turn_ipv6(struct ipv6 *ip, u32 len, u8 protocol)
{
	__be32 *word = (void *)ip;
	u64 addresses = csum_words(ip->saddr, 8);

	word[0] = bpf_htonl(0x60000000);
	word[1] = bpf_htonl(len << 16 | (u32)protocol << 8 | TTL);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		__be32 client = ip->saddr[i];

		ip->saddr[i] = ip->daddr[i];
		ip->daddr[i] = client;
	}
	return addresses + bpf_htonl(len) + bpf_htonl(protocol);
}

/* Turns the TCP header around, with a checksum of 0; returns its sum. */
static __always_inline u64 turn_tcp(struct tcp *tcp, const struct answer *answer)
{
	__be32 *word = (void *)tcp, ports = word[0] << 16 | word[0] >> 16;
	u32 window = answer->flags & FLAG_SYN ? COOKIE_WINDOW : 0;
	__be32 rest = bpf_htonl((u32)answer->header_len << 26 | answer->flags << 16 | window);
	__be32 seq = bpf_htonl(answer->seq), ack = bpf_htonl(answer->ack);

	word[0] = ports;
	word[1] = seq;
	word[2] = ack;
	word[3] = rest;
	word[4] = 0;
	return (u64)ports + seq + ack + rest;
}

static __always_inline void set_checksum(struct tcp *tcp, u64 pseudo, u64 body, bool partial)
{
	tcp->csum = partial ? csum_fold(pseudo) : ~csum_fold(pseudo + body);
}

/*
 * Writes the answer over the packet at data, whose frame has been cut or
 * stretched to l3 + IP header + answer->header_len + answer->reason_len. l3 is a
 * constant. reason: REASON_LEN bytes. Returns -1 when the frame is shorter
 * than that.
 */
static __always_inline int answer_write(void *data, void *data_end, u32 l3, bool v6, const struct answer *answer,
					const void *reason)
{
	struct tcp *tcp = data + l3 + (v6 ? sizeof(struct ipv6) : sizeof(struct ipv4));
	u32 tcp_len = answer->header_len + answer->reason_len;
	u64 pseudo, body;

	if ((void *)(tcp + 1) > data_end)
		return -1;
	if (l3)
		swap_ethernet(data);
	pseudo = v6 ? turn_ipv6(data + l3, tcp_len, IPPROTO_TCP) : turn_ipv4(data + l3, tcp_len, IPPROTO_TCP);
	body = turn_tcp(tcp, answer);
	if (answer->flags & FLAG_SYN) {
		__be32 *to = (void *)(tcp + 1);

		if ((void *)(to + 5) > data_end)
			return -1;
#pragma unroll
		for (int i = 0; i < 5; i++)
			to[i] = answer->options[i];
		body += csum_words(answer->options, 5);
	} else if (answer->reason_len) {
		void *to = tcp + 1;

		if (to + REASON_LEN > data_end)
			return -1;
		__builtin_memcpy(to, reason, REASON_LEN);
		/* Else clang sums the bytes that it copied, and keeps them on the stack until then. */
		asm volatile("" : "+r"(to) : : "memory");
		body += csum_words(to, REASON_LEN / 4);
	} else {
		__be32 *pad = (void *)(tcp + 1);

		/* Zero is "end of options", and adds nothing to the sum. */
#pragma unroll
		for (u32 i = 0; i < TCP_OPTIONS_MAX / 4; i++) {
			__be32 option = i < 5 ? answer->options[i] : 0;

			if (sizeof(*tcp) + i * 4 >= answer->header_len)
				break;
			if ((void *)(pad + i + 1) > data_end)
				return -1;
			pad[i] = option;
			body += option;
		}
	}
	set_checksum(tcp, pseudo, body, answer->partial);
	return 0;
}

static __always_inline bool ipv4_header_sound(const struct ipv4 *ip)
{
	return csum_fold(csum_words(ip, 5)) == 0xffff;
}

#endif
