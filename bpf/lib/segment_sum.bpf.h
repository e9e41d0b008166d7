/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * segment_sum.bpf.h - the sum over a whole segment, data and all: of a SYN that
 * brings data (TCP Fast Open) and is about to hold a place of a queue that is not
 * half empty. frame.bpf.h sums headers only.
 */
#ifndef WEIR_SEGMENT_SUM_BPF_H
#define WEIR_SEGMENT_SUM_BPF_H

#include "lib/arrival.bpf.h"

#define SUM_STEP 64

/*
 * Adds the bytes of the segment from `at` on to *sum, SUM_STEP of them at most. Global: a turn of a loop
 * (arrival.bpf.h).
 */
__noinline int sum_step(struct __sk_buff *skb, const struct packet *packet, u32 at, u32 *sum)
{
	u8 bytes[SUM_STEP] = {};
	u32 left;

	if (!packet || !sum)
		return 0;
	left = packet->tcp_len - at;
	if (left > SUM_STEP)
		left = SUM_STEP;
	/* Apart from the other bound: as in headers_find(). */
	barrier_var(left);
	if (!left || left > SUM_STEP || bpf_skb_load_bytes(skb, packet->l4 + at, bytes, left))
		return 0;
	*sum = bpf_csum_diff(NULL, 0, (void *)bytes, sizeof(bytes), *sum);
	return 0;
}

static __always_inline u16 pseudo_sum(const struct arrival *arrival)
{
	const struct bpf_sock_tuple *tuple = &arrival->tuple;
	u64 addresses = arrival->packet.v6 ? csum_words(tuple->ipv6.saddr, 4) + csum_words(tuple->ipv6.daddr, 4) :
					     (u64)tuple->ipv4.saddr + tuple->ipv4.daddr;

	return csum_fold(addresses + bpf_htonl(arrival->packet.tcp_len) + bpf_htonl(IPPROTO_TCP));
}

/* Whether the sum of a segment with data is right, which sound() does not say. */
static __always_inline bool data_sound(struct __sk_buff *skb, const struct arrival *arrival)
{
	u32 len = arrival->packet.tcp_len, sum, i;
	u8 state = checksum_state(skb);

	if (len == arrival->packet.header_len || state == CHECKSUM_UNNECESSARY || state == CHECKSUM_PARTIAL)
		return true;
	sum = pseudo_sum(arrival);
	bpf_for(i, 0, (len + SUM_STEP - 1) / SUM_STEP)
		sum_step(skb, &arrival->packet, i * SUM_STEP, &sum);
	return csum_fold(sum) == 0xffff;
}

#endif
