// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * bench.bpf.c - the guard's programs with a frame around them for measuring.
 *
 * BPF_PROG_TEST_RUN repeats a program on one packet, and a verdict that
 * answers the packet changes it. So each of these programs first writes the
 * packet anew; `bench_rewrite` does only that, and is what the others'
 * figures are compared with.
 */
#include "guard.bpf.c"
#include "lib/negotiate.h"
#include "lib/quic.h"
#include "lib/quic_flows.h"
#include "lib/residence.h"
#include "lib/timewait.h"

/*
 * The frame to judge and its length; set by user space before a run. Apart from
 * the guard's globals, whose map is the one of a guard that is loaded already.
 */
u8 frame[128] SEC(".bss.bench");
u32 frame_len SEC(".bss.bench");
/* Kernel addresses, as bench_addresses finds them. */
u64 address_of[6] SEC(".bss.bench");

/* What the pure headers take, for the property tests (pure.c). */
EXPORT_TYPE(struct, closing);
EXPORT_TYPE(struct, flow);
EXPORT_TYPE(struct, parking_rule);
EXPORT_TYPE(struct, quic_client);
EXPORT_TYPE(struct, quic_flow_keys);
EXPORT_TYPE(struct, quic_id);
EXPORT_TYPE(struct, quic_packet);
EXPORT_TYPE(struct, quic_pair);
EXPORT_TYPE(struct, talk);
EXPORT_TYPE(struct, time_wait);
EXPORT_TYPE(struct, timewait_record);
EXPORT_TYPE(struct, tw_segment);
EXPORT_TYPE(struct, tw_socket);
EXPORT_TYPE(struct, wait_state);

/* Every measured frame has at least 54 bytes and at most 74: 54 and 20 more. */
static __always_inline int write_frame(void *data, void *data_end)
{
	if (data + 54 > data_end)
		return -1;
	__builtin_memcpy(data, frame, 54);
	if (data + 74 <= data_end)
		__builtin_memcpy(data + 54, frame + 54, 20);
	return 0;
}

static __always_inline int rewrite(struct __sk_buff *skb)
{
	u32 len = *(volatile u32 *)&frame_len;

	if (CTX_LOAD(skb, len) != len && bpf_skb_change_tail(skb, len, 0))
		return -1;
	return write_frame(skb_start(skb), skb_end(skb));
}

SEC("tc")
int bench_empty(struct __sk_buff *skb)
{
	return PASS;
}

SEC("tc")
int bench_rewrite(struct __sk_buff *skb)
{
	return rewrite(skb) ? TC_DROP : PASS;
}

SEC("tc")
int bench_guard(struct __sk_buff *skb)
{
	if (rewrite(skb))
		return TC_DROP;
	return judge_skb(skb);
}

/* What the kernel's own socket lookup takes, which every SYN's verdict needs: the floor of the figures. */
SEC("tc")
int bench_lookup(struct __sk_buff *skb)
{
	struct bpf_sock *sk;
	struct arrival arrival;

	if (rewrite(skb) || !parse_skb(skb, &arrival.packet) || !tuple_of_skb(skb, &arrival))
		return TC_DROP;
	sk = flow_lookup(skb, &arrival.tuple, arrival.packet.v6);
	if (!sk)
		return TC_DROP;
	bpf_sk_release(sk);
	return PASS;
}

static __always_inline int rewrite_xdp(struct xdp_md *xdp)
{
	int len = *(volatile u32 *)&frame_len, grow = len - (int)(xdp_end(xdp) - xdp_start(xdp));

	if (grow && bpf_xdp_adjust_tail(xdp, grow))
		return -1;
	return write_frame(xdp_start(xdp), xdp_end(xdp));
}

SEC("xdp")
int bench_xdp_empty(struct xdp_md *xdp)
{
	return XDP_PASS;
}

SEC("xdp")
int bench_xdp_rewrite(struct xdp_md *xdp)
{
	return rewrite_xdp(xdp) ? XDP_DROP : XDP_PASS;
}

SEC("xdp")
int bench_xdp_guard(struct xdp_md *xdp)
{
	if (rewrite_xdp(xdp))
		return XDP_DROP;
	return judge_xdp(xdp);
}

/* Where the tables lie whose entries are cache lines, and what has a line of its own. */
SEC("syscall")
int bench_addresses(void *ctx)
{
	u32 first = 0;

	address_of[0] = (u64)bpf_map_lookup_elem(&queues, &first);
	address_of[1] = (u64)&taken;
	address_of[2] = (u64)&sources;
	address_of[3] = (u64)&policies[0];
	address_of[4] = (u64)&policies[1];
	address_of[5] = (u64)&shared_samples;
	return 0;
}
