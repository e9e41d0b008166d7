/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * frame.bpf.h - a packet as a device hands it on: its link header, whether its
 * headers lie in one piece, and whether their sums are right.
 */
#ifndef WEIR_FRAME_BPF_H
#define WEIR_FRAME_BPF_H

#include "lib/context.bpf.h"
#include "lib/kernel.h"
#include "lib/packet.h"
#include "lib/reply.h"

/* 0 on devices without one: tun, wireguard, ipip, ppp. Set before load. The XDP front is for Ethernet only. */
const volatile u32 link_header = sizeof(struct ethernet);

/* In a VLAN: not for this device. Number 0 is none, only a priority (IEEE 802.1Q). */
static __always_inline bool in_vlan(struct __sk_buff *skb)
{
	return CTX_LOAD(skb, vlan_present) && (CTX_LOAD(skb, vlan_tci) & 0xfff);
}

/* A receive driver may leave headers in fragments; then those of TCP are pulled in, once. */
static __always_inline bool pull_headers(struct __sk_buff *skb)
{
	u32 linear = skb_end(skb) - skb_start(skb), want = link_header + sizeof(struct ipv6) + 60;

	if (CTX_LOAD(skb, protocol) != bpf_htons(ETH_P_IP) && CTX_LOAD(skb, protocol) != bpf_htons(ETH_P_IPV6))
		return false;
	if (linear >= want || linear >= CTX_LOAD(skb, len))
		return false;
	/* Copying the head of a datagram, and owning it, would cost more than all the rest. */
	if (!may_be_tcp(skb_start(skb) + link_header, skb_end(skb), CTX_LOAD(skb, protocol) == bpf_htons(ETH_P_IPV6)))
		return false;
	return !bpf_skb_pull_data(skb, want < CTX_LOAD(skb, len) ? want : CTX_LOAD(skb, len));
}

/*
 * IPsec has decrypted or checked it, and handed it on as if the device had
 * received it so. An answer that is sent back there would leave unprotected.
 */
static __always_inline bool came_by_ipsec(struct __sk_buff *skb)
{
	struct sk_buff *buffer = bpf_cast_to_kern_ctx(skb);

	if (!bpf_core_field_exists(buffer->active_extensions) ||
	    !bpf_core_enum_value_exists(enum skb_ext_id, SKB_EXT_SEC_PATH))
		return false;
	return buffer->active_extensions >> bpf_core_enum_value(enum skb_ext_id, SKB_EXT_SEC_PATH) & 1;
}

static __always_inline u8 checksum_state(struct __sk_buff *skb)
{
	struct sk_buff *buffer = bpf_cast_to_kern_ctx(skb);

	return BPF_CORE_READ_BITFIELD(buffer, ip_summed);
}

/*
 * Whether the sum over the TCP header, its options and the pseudo-header is right. pseudo: the sum of the last of
 * these. may_be_partial: the field may also have that sum alone, as where the kernel says CHECKSUM_PARTIAL; XDP is not
 * told.
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

/*
 * Whether the kernel would have taken this packet, as far as the sums of its headers say. Others are its to drop.
 * summed: the sum of TCP is known to be right. may_be_partial: as above.
 */
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

#endif
