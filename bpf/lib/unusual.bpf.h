/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * unusual.bpf.h - SYNs with IP options or extension headers, and in fragments. They
 * take a token of their class's bucket like any other; else a client would evade its
 * rate by four bytes of padding. weir answers none of them and holds none against the
 * queue: what is over its rate is dropped, the others pass.
 *
 * They are rare, and few of their instructions are followed in a row: one global
 * function, and bytes in memory of its own.
 */
#ifndef WEIR_UNUSUAL_BPF_H
#define WEIR_UNUSUAL_BPF_H

#include "abi/guard.h"
#include "lib/act.bpf.h"
#include "lib/arrival.bpf.h"
#include "lib/establish.bpf.h"
#include "lib/headers.h"
#include "lib/namespaces.bpf.h"
#include "lib/police.bpf.h"
#include "lib/state.bpf.h"

struct header_buffer {
	u8 bytes[HEADERS_MAX];
	struct header_walk walk;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct header_buffer);
} header_buffers SEC(".maps");

/* Whether on_unusual() has to look at a packet that packet_parse() did not take. */
static __always_inline bool may_be_unusual(struct __sk_buff *skb)
{
	const void *network = skb_start(skb) + link_header, *end = skb_end(skb);
	const struct ipv4 *ip4 = network;
	const struct ipv6 *ip6 = network;

	if (CTX_LOAD(skb, protocol) == bpf_htons(ETH_P_IP))
		return (const void *)(ip4 + 1) <= end && unusual4(ip4);
	return CTX_LOAD(skb, protocol) == bpf_htons(ETH_P_IPV6) && (const void *)(ip6 + 1) <= end && unusual6(ip6);
}

/* Global: verified once. Returns enum headers. */
__noinline int headers_find(struct __sk_buff *skb, struct header_buffer *buffer, struct packet *packet)
{
	u32 len = CTX_LOAD(skb, len) - link_header, bytes = len, i;
	bool v6 = CTX_LOAD(skb, protocol) == bpf_htons(ETH_P_IPV6);

	if (!buffer || !packet)
		return HEADERS_OTHER;
	if (bytes > HEADERS_MAX)
		bytes = HEADERS_MAX;
	/*
	 * Apart from the other bound: clang makes one comparison of the two, from which Linux before 6.15 learns
	 * neither.
	 */
	barrier_var(bytes);
	if (bytes < sizeof(struct ipv4))
		return HEADERS_OTHER;
	barrier_var(bytes);
	if (bytes > HEADERS_MAX || bpf_skb_load_bytes(skb, link_header, buffer->bytes, bytes))
		return HEADERS_OTHER;
	headers_begin(buffer->bytes, len, v6, &buffer->walk);
	bpf_for(i, 0, HEADERS_STEPS) {
		if (*(volatile u8 *)&buffer->walk.ended)
			break;
		headers_step(buffer->bytes, *(volatile u32 *)&buffer->walk.at, &buffer->walk);
	}
	return headers_end(buffer->bytes, v6, &buffer->walk, packet);
}

/* Global. */
__noinline int on_unusual(struct __sk_buff *skb, struct arrival *arrival)
{
	const struct policy *policy = policy_in_force();
	const struct listener_policy *listener;
	struct header_buffer *buffer;
	u32 key = 0;
	int found;

	buffer = bpf_map_lookup_elem(&header_buffers, &key);
	if (!buffer || !arrival)
		return PASS;
	found = headers_find(skb, buffer, &arrival->packet);
	if (found == HEADERS_OTHER || (found == HEADERS_TCP && !is_syn(arrival->packet.flags)))
		return PASS;
	if (!port_guarded(policy, arrival->packet.dport) || in_vlan(skb) || CTX_LOAD(skb, pkt_type) != PACKET_HOST)
		return PASS;
	listener = listener_in(netns_of_skb(skb), policy, arrival, buffer->bytes, buffer->bytes + HEADERS_MAX);
	if (!listener || !on_interface(listener, CTX_LOAD(skb, ifindex)) ||
	    !tuple_read(arrival, buffer->bytes, buffer->bytes + HEADERS_MAX))
		return PASS;
	arrival->now = clock_ns();
	if (!destination_of(skb, false, CTX_LOAD(skb, ifindex), arrival))
		return PASS;
	arrival->class = class_for(listener, arrival);
	if (found == HEADERS_CUT)
		return pass_syn(listener, arrival, VERDICT_syn_in_fragments);
	if (!over_rate(listener, arrival))
		return pass_syn(listener, arrival, VERDICT_syn_not_plain);
	if (is_held_skb(skb, arrival))
		return pass_syn(listener, arrival, VERDICT_syn_repeated);
	/* An answer would need the same headers. */
	arrival->verdict = without_answer(arrival->verdict);
	note_refusal(NULL, listener, arrival);
	return listener->observe ? PASS : TC_DROP;
}

#endif
