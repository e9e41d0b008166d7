// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * shape.bpf.c - the classifier of `weir shape`: sends control segments to the high
 * class of an HTB, everything else to the low one (BHD18, Section V).
 *
 * A filter of the root qdisc, which calls it under its lock: the buckets are written
 * without atomics. It reads from the network header on, so that it works behind any
 * link header, VLAN tag or none.
 */
#include "lib/kernel.h"
#include "lib/control.h"

char LICENSE[] SEC("license") = "GPL";

const volatile struct shape_params params;

/* When the buckets of all clients together have their next byte due. */
u64 all_due[WEIR_SHAPE_KINDS];

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_SHAPE_KINDS * WEIR_SHAPE_SOURCES);
	__type(key, u32);
	__type(value, u64);
} client_due SEC(".maps");

static __always_inline bool admits(const struct shape_params *limit, enum control control, u32 client, u32 len)
{
	u32 kind = limit_kind(control), index = limit_index(kind, client);
	u64 *due = bpf_map_lookup_elem(&client_due, &index);

	/* Never without one: the index is in the array. */
	return !due || limit_admits(limit, due, &all_due[kind], bpf_ktime_get_ns(), len);
}

/* The whole header if it is there, else as much as the shortest TCP segment has. */
static __always_inline u32 load_headers(struct __sk_buff *skb, u8 *bytes)
{
	if (!bpf_skb_load_bytes_relative(skb, 0, bytes, SEGMENT_HEADERS, BPF_HDR_START_NET))
		return SEGMENT_HEADERS;
	if (!bpf_skb_load_bytes_relative(skb, 0, bytes, sizeof(struct ipv6) + sizeof(struct tcp), BPF_HDR_START_NET))
		return sizeof(struct ipv6) + sizeof(struct tcp);
	if (!bpf_skb_load_bytes_relative(skb, 0, bytes, sizeof(struct ipv4) + sizeof(struct tcp), BPF_HDR_START_NET))
		return sizeof(struct ipv4) + sizeof(struct tcp);
	return 0;
}

/* Returns the class. */
SEC("tc")
int shape_classify(struct __sk_buff *skb)
{
	struct shape_params fixed = params;
	u8 bytes[SEGMENT_HEADERS] __attribute__((aligned(4))) = {};
	struct segment segment;
	enum control control;

	/* Frames with another protocol inside (VLAN tags that are not offloaded, PPPoE) have no IP header here. */
	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return fixed.low;
	if (!segment_read(bytes, load_headers(skb, bytes), fixed.seed, &segment))
		return fixed.low;
	control = control_of(segment.flags, segment.payload);
	if (control == CONTROL_NONE || (control == CONTROL_FIN && !fixed.fin))
		return fixed.low;
	if (fixed.limited && !admits(&fixed, control, segment.client, skb->len))
		return fixed.demoted;
	return fixed.high;
}
