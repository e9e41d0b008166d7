// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * datagrams.bpf.c - a frame around programs that judge datagrams, for measuring.
 *
 * BPF_PROG_TEST_RUN repeats a program on one packet. Each of these programs writes
 * the packet anew first, as that of another client where it is to be, and then
 * calls the program under test: the very one that would be attached, or one that
 * passes every packet, whose time is what the other's is compared with.
 */
#include "lib/kernel.h"
#include "lib/context.bpf.h"

char LICENSE[] SEC("license") = "GPL";

/* Bytes at the packet's beginning that are written anew. Shorter packets are left as they are. */
#define HEAD 128
/* Behind Ethernet's header and twelve bytes of IPv4's: addresses and ports, in the order of a tuple. */
#define ADDRESSES_AT (14 + 12)

/* Set by user space before a run. */
u8 head[HEAD] __attribute__((aligned(8)));
u32 frame_len;
/* Where eight bytes differ from one repetition to the next; 0: nowhere. */
u32 counted_at;
u64 counted;

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} subject SEC(".maps"), nothing SEC(".maps");

static __always_inline int renew(struct __sk_buff *skb)
{
	u32 len = *(volatile u32 *)&frame_len, at = *(volatile u32 *)&counted_at;
	u64 *to, *from = (void *)head;

	if (CTX_LOAD(skb, len) != len && bpf_skb_change_tail(skb, len, 0))
		return -1;
	if (at && at <= HEAD - sizeof(u64))
		*(u64 *)(head + at) = counted++;
	to = skb_start(skb);
	if ((void *)to + HEAD > skb_end(skb))
		return 0;
#pragma unroll
	for (u32 i = 0; i < HEAD / sizeof(u64); i++)
		to[i] = from[i];
	return 0;
}

SEC("tc")
int measure_subject(struct __sk_buff *skb)
{
	if (renew(skb))
		return TC_DROP;
	bpf_tail_call(skb, &subject, 0);
	return TC_DROP;
}

SEC("tc")
int measure_nothing(struct __sk_buff *skb)
{
	if (renew(skb))
		return TC_DROP;
	bpf_tail_call(skb, &nothing, 0);
	return TC_DROP;
}

/* What the kernel's own lookup of the socket takes, which no verdict on a new connection can do without. IPv4. */
SEC("tc")
int measure_lookup(struct __sk_buff *skb)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;

	if (renew(skb) || bpf_skb_load_bytes(skb, ADDRESSES_AT, &tuple.ipv4, sizeof(tuple.ipv4)))
		return TC_DROP;
	sk = bpf_sk_lookup_udp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return TC_DROP;
	bpf_sk_release(sk);
	return PASS;
}

SEC("tc")
int pass(struct __sk_buff *skb)
{
	return PASS;
}
