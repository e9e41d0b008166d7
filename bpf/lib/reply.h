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

static __always_inline void swap_ethernet(struct ethernet *eth)
{
	struct ethernet old = *eth;

	__builtin_memcpy(eth->dst, old.src, 6);
	__builtin_memcpy(eth->src, old.dst, 6);
}

/* Turns the IPv4 header around; returns the sum of its pseudo-header. */
static __always_inline u64 turn_ipv4(struct ipv4 *ip, u32 tcp_len)
{
	__be32 client = ip->saddr;

	ip->saddr = ip->daddr;
	ip->daddr = client;
	ip->tos = 0;
	ip->total_len = bpf_htons(sizeof(*ip) + tcp_len);
	ip->id = 0;
	ip->frag = bpf_htons(0x4000); /* don't fragment; id 0 is then allowed (RFC 6864, Section 4.1) */
	ip->ttl = TTL;
	ip->csum = 0;
	ip->csum = ~csum_fold(csum_words(ip, 5));
	return csum_words(&ip->saddr, 2) + bpf_htonl(IPPROTO_TCP << 16 | tcp_len);
}

static __always_inline u64 turn_ipv6(struct ipv6 *ip, u32 tcp_len)
{
	__be32 client[4];

	__builtin_memcpy(client, ip->saddr, 16);
	__builtin_memcpy(ip->saddr, ip->daddr, 16);
	__builtin_memcpy(ip->daddr, client, 16);
	ip->version_class_flow = bpf_htonl(0x60000000);
	ip->payload_len = bpf_htons(tcp_len);
	ip->hop_limit = TTL;
	return csum_words(ip->saddr, 8) + bpf_htonl(tcp_len) + bpf_htonl(IPPROTO_TCP);
}

static __always_inline void turn_tcp(struct tcp *tcp, const struct answer *a)
{
	__be16 client = tcp->sport;

	tcp->sport = tcp->dport;
	tcp->dport = client;
	tcp->seq = bpf_htonl(a->seq);
	tcp->ack = bpf_htonl(a->ack);
	tcp->doff = a->header_len << 2;
	tcp->flags = a->flags;
	tcp->window = 0;
	tcp->urgent = 0;
	tcp->csum = 0;
}

static __always_inline void set_checksum(struct tcp *tcp, u64 pseudo, u64 body, bool partial)
{
	tcp->csum = partial ? csum_fold(pseudo) : ~csum_fold(pseudo + body);
}

/*
 * Writes the answer over the packet at data, whose frame has been cut or
 * stretched to l3 + IP header + a->header_len + a->reason_len. l3 is a
 * constant. reason: REASON_LEN bytes. options: five words that follow a
 * SYN/ACK's header. Returns -1 when the frame is shorter than that.
 */
static __always_inline int answer_write(void *data, void *data_end, u32 l3, bool v6, const struct answer *a,
					const void *reason, const __be32 *options)
{
	struct tcp *tcp = data + l3 + (v6 ? sizeof(struct ipv6) : sizeof(struct ipv4));
	u32 tcp_len = a->header_len + a->reason_len;
	u64 pseudo, body;

	if ((void *)(tcp + 1) > data_end)
		return -1;
	if (l3)
		swap_ethernet(data);
	pseudo = v6 ? turn_ipv6(data + l3, tcp_len) : turn_ipv4(data + l3, tcp_len);
	turn_tcp(tcp, a);
	if (a->flags & FLAG_SYN) {
		__be32 *to = (void *)(tcp + 1);

		if ((void *)(to + 5) > data_end)
			return -1;
		tcp->window = bpf_htons(COOKIE_WINDOW);
#pragma unroll
		for (int i = 0; i < 5; i++)
			to[i] = options[i];
		body = csum_words(tcp, 10);
	} else if (a->reason_len) {
		void *to = tcp + 1;

		if (to + REASON_LEN > data_end)
			return -1;
		__builtin_memcpy(to, reason, REASON_LEN);
		body = csum_words(tcp, (sizeof(*tcp) + REASON_LEN) / 4);
	} else {
		__be32 *pad = (void *)(tcp + 1);

		/* Zero is "end of options", and adds nothing to the sum. */
#pragma unroll
		for (u32 i = 0; i < TCP_OPTIONS_MAX / 4; i++) {
			if (sizeof(*tcp) + i * 4 >= a->header_len)
				break;
			if ((void *)(pad + i + 1) > data_end)
				return -1;
			pad[i] = 0;
		}
		body = csum_words(tcp, 5);
	}
	set_checksum(tcp, pseudo, body, a->partial);
	return 0;
}

static __always_inline bool ipv4_header_sound(const struct ipv4 *ip)
{
	return csum_fold(csum_words(ip, 5)) == 0xffff;
}

#endif
