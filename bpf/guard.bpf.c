// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * guard.bpf.c - police, establish and close: whose SYN may come in at all, who
 * gets a place in the listen queue, and what the others are told.
 *
 * A packet's way (tc ingress, tcx; every step may say "pass"):
 *   1. parse: only whole, plain TCP (packet.h); of the others SYNs are policed
 *      (unusual.bpf.h)
 *   2. one array load by destination port: not guarded -> pass. So does what is
 *      in a VLAN, for another host, or on an interface that is not named
 *   3. SYN            -> on_syn():  police.bpf.h, if its class has a rate; then
 *                         admit.h decides from the listener's own counters
 *      FIN            -> on_fin():  half_close = reset only
 *      ACK            -> on_ack():  only while one may decide (ack_watch.h)
 *      anything else  -> pass; data of established connections ends here
 *
 * The XDP front (front = xdp) makes the same decision on SYNs and final ACKs in
 * the driver, refuses there, and leaves admission to tc.
 *
 * State. policies[] and active: written by user space only; two copies, so
 * that a packet sees the old policy or the new one, whole. queues: one entry a
 * listening socket, written here (ledger.h says who may). counters: per CPU.
 * Class tables: two copies too, and the policy says which one it goes with.
 * Other network namespaces than weir's own: namespaces.bpf.h.
 * All of it dies with the process that loaded it: nothing is pinned.
 *
 * Fail open: a failed lookup, an unknown socket, a full map, a helper's error:
 * the packet passes.
 */
#include "lib/kernel.h"
#include "abi/guard.h"
#include "lib/packet.h"
#include "lib/admit.h"
#include "lib/cookie.h"
#include "lib/reply.h"
#include "lib/ledger.bpf.h"
#include "lib/state.bpf.h"
#include "lib/parking.bpf.h"
#include "lib/arrival.bpf.h"
#include "lib/act.bpf.h"
#include "lib/namespaces.bpf.h"
#include "lib/bucket.h"
#include "lib/classify.bpf.h"
#include "lib/waiting.bpf.h"
#include "lib/police.bpf.h"
#include "lib/cookies.bpf.h"
#include "lib/establish.bpf.h"
#include "lib/ack.bpf.h"
#include "lib/front.bpf.h"
#include "lib/close.bpf.h"
#include "lib/report.bpf.h"
#include "lib/unusual.bpf.h"

char LICENSE[] SEC("license") = "GPL";

static __always_inline bool parse_skb(struct __sk_buff *skb, struct packet *packet)
{
	return !packet_parse(skb_start(skb), skb_end(skb), CTX_LOAD(skb, len), link_header, CTX_LOAD(skb, protocol),
			     packet);
}

static __always_inline int judge_skb(struct __sk_buff *skb)
{
	const struct listener_policy *listener;
	const struct policy *policy;
	struct arrival arrival;
	u64 netns;
	u8 flags;

	if (!parse_skb(skb, &arrival.packet) && (!pull_headers(skb) || !parse_skb(skb, &arrival.packet)))
		return may_be_unusual(skb) ? on_unusual(skb, &arrival) : PASS;
	policy = policy_in_force();
	if (!port_guarded(policy, arrival.packet.dport))
		return PASS;
	packet_taken();
	flags = arrival.packet.flags;
	if (is_plain_ack(flags) && !acks_watched())
		return PASS;
	if (in_vlan(skb) || CTX_LOAD(skb, pkt_type) != PACKET_HOST)
		return PASS;
	/* Before listener_in() gets the packet's bounds: the call in this would have them kept on the stack. */
	netns = netns_of_skb(skb);
	listener = listener_in(netns, policy, &arrival, skb_start(skb) + link_header, skb_end(skb));
	if (!listener || !on_interface(listener, CTX_LOAD(skb, ifindex)))
		return PASS;
	if (is_syn(flags))
		return on_syn(skb, listener, &arrival);
	if (flags & FLAG_FIN)
		return on_fin(skb, listener, &arrival);
	if (is_plain_ack(flags))
		return on_ack(skb, listener, &arrival);
	return PASS;
}

/* For devices without a link header it is loaded again, with link_header = 0. */
SEC("tc")
int guard_tc(struct __sk_buff *skb)
{
	return judge_skb(skb);
}

/* Whether the frame is for this device: one in promiscuous mode, or below a bridge, sees those of others too. */
static __always_inline bool to_this_device(struct xdp_md *xdp, const struct ethernet *eth)
{
	struct xdp_buff *buffer = bpf_cast_to_kern_ctx(xdp);
	const struct in6_addr *own =
		bpf_rdonly_cast((void *)buffer->rxq->dev->dev_addr, bpf_core_type_id_kernel(struct in6_addr));

	/* Read as a structure of 16 bytes, of which 6 are the address: dev_addr has room for 32 (MAX_ADDR_LEN). */
	return !__builtin_memcmp(eth->dst, own, sizeof(eth->dst));
}

static __always_inline int judge_xdp(struct xdp_md *xdp)
{
	void *data = xdp_start(xdp), *data_end = xdp_end(xdp);
	const struct listener_policy *listener;
	const struct ethernet *eth = data;
	const struct policy *policy;
	struct arrival arrival;
	u8 flags;

	if ((void *)(eth + 1) > data_end)
		return XDP_PASS;
	if (packet_parse(data, data_end, data_end - data, sizeof(*eth), eth->proto, &arrival.packet))
		return XDP_PASS;
	policy = policy_in_force();
	if (!port_guarded(policy, arrival.packet.dport))
		return XDP_PASS;
	flags = arrival.packet.flags;
	if (!is_syn(flags) && !(is_plain_ack(flags) && acks_watched()))
		return XDP_PASS;
	if (netns_of_xdp(xdp) != own_netns)
		return XDP_PASS;
	listener = listener_of(policy, &arrival.packet, eth + 1, data_end);
	if (!listener || !(listener->may & WEIR_MAY_REFUSE_AT_XDP) ||
	    !on_interface(listener, CTX_LOAD(xdp, ingress_ifindex)) || !to_this_device(xdp, eth))
		return XDP_PASS;
	return is_syn(flags) ? front_syn(xdp, listener, &arrival) : front_ack(xdp, listener, &arrival);
}

/* SYNs and ACKs are in one buffer; packets of several (frags, with a large MTU) have data, and pass. */
SEC("xdp.frags")
int guard_xdp(struct xdp_md *xdp)
{
	return judge_xdp(xdp);
}

/* Run by user space, each time that it has found nothing behind weir that drops SYNs: see cookies_until_ns. */
SEC("syscall")
int cookies_renew(void *ctx)
{
	cookies_until_ns = clock_ns() + *(volatile u64 *)&cookies_for_ns;
	return 0;
}
