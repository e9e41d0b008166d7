// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * qdisc.bpf.c - the queueing discipline of `weir shape --backend bpf`: SPA (spa.h) and
 * a shaper of its own, as the root qdisc of one interface (struct_ops, Linux 6.16).
 *
 * The kernel calls enqueue, dequeue and reset under the lock of the qdisc. Each load
 * of this object is one qdisc with a kind of its own, and for one interface.
 */
#include "lib/kernel.h"
#include <bpf/bpf_tracing.h>
#include "lib/spa.h"

char LICENSE[] SEC("license") = "GPL";

/* include/linux/netdevice.h */
enum { NET_XMIT_SUCCESS, NET_XMIT_DROP };

#define EBUSY 16

/* net/sched/bpf_qdisc.c; libbpf compares its members. */
struct bpf_sk_buff_ptr {
	struct sk_buff *skb;
};

struct netlink_ext_ack;
struct nlattr;

extern int bpf_dynptr_from_skb(struct __sk_buff *skb, u64 flags, struct bpf_dynptr *packet) __ksym;
extern u32 bpf_skb_get_hash(struct sk_buff *skb) __ksym;
extern void bpf_qdisc_skb_drop(struct sk_buff *skb, struct bpf_sk_buff_ptr *to_free) __ksym;
extern void bpf_qdisc_watchdog_schedule(struct Qdisc *sch, u64 expire_ns, u64 slack_ns) __ksym;
extern void bpf_qdisc_bstats_update(struct Qdisc *sch, const struct sk_buff *skb) __ksym;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct spa);
} weir_spa_state SEC(".maps");

static __always_inline struct spa *state(void)
{
	u32 only = 0;

	return bpf_map_lookup_elem(&weir_spa_state, &only);
}

/* As the link counts it, with the headers of each segment of a GSO packet (qdisc_pkt_len()). */
static __always_inline u32 link_len(const struct sk_buff *skb)
{
	return ((const struct qdisc_skb_cb *)skb->cb)->pkt_len;
}

/* The headers from that of IP on; how many bytes of them the packet has. */
static __always_inline u32 load_headers(struct sk_buff *skb, u8 *bytes)
{
	/* __dev_queue_xmit() has set the latter to where the packet begins. */
	u32 at = (u16)(skb->network_header - skb->mac_header);
	struct bpf_dynptr packet;

	if (bpf_dynptr_from_skb((struct __sk_buff *)skb, 0, &packet))
		return 0;
	if (!bpf_dynptr_read(bytes, SEGMENT_HEADERS, &packet, at, 0))
		return SEGMENT_HEADERS;
	if (!bpf_dynptr_read(bytes, sizeof(struct ipv6) + sizeof(struct tcp), &packet, at, 0))
		return sizeof(struct ipv6) + sizeof(struct tcp);
	if (!bpf_dynptr_read(bytes, sizeof(struct ipv4) + sizeof(struct tcp), &packet, at, 0))
		return sizeof(struct ipv4) + sizeof(struct tcp);
	return 0;
}

static __always_inline void describe(struct spa *q, struct sk_buff *skb, struct spa_packet *packet)
{
	u8 bytes[SEGMENT_HEADERS] __attribute__((aligned(8))) = {};
	struct segment segment;

	packet->len = link_len(skb);
	packet->client = 0;
	packet->flow = q->params.flows ? bpf_skb_get_hash(skb) : 0;
	packet->control = CONTROL_NONE;
	/* Frames with another protocol inside (VLAN tags that are not offloaded, PPPoE) have no IP header here. */
	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return;
	if (!segment_read(bytes, load_headers(skb, bytes), q->params.limit.seed, &segment))
		return;
	packet->control = control_of(segment.flags, segment.payload);
	packet->client = segment.client;
}

/* Tells the kernel of what changed. The kernel itself counts a packet that the device did not take. */
static __always_inline void account(struct Qdisc *sch, const struct spa *q, u32 packets, u32 bytes, u32 dropped)
{
	sch->q.qlen += q->packets - packets;
	sch->qstats.backlog += q->bytes - bytes;
	sch->qstats.drops += dropped;
}

SEC("struct_ops/qdisc_enqueue")
int BPF_PROG(qdisc_enqueue, struct sk_buff *skb, struct Qdisc *sch, struct bpf_sk_buff_ptr *to_free)
{
	struct spa *q = state();
	struct spa_packet packet;
	struct packet_place *place;
	u32 at, packets, bytes;

	if (!q)
		goto drop;
	packets = q->packets;
	bytes = q->bytes;
	describe(q, skb, &packet);
	at = spa_enqueue(q, &packet, bpf_ktime_get_ns());
	place = bpf_map_lookup_elem(&weir_spa_places, &at);
	if (!place)
		goto drop;
	skb = bpf_kptr_xchg(&place->skb, skb);
	/* Never: who takes a place back takes its packet. */
	if (skb)
		bpf_kfree_skb(skb);
	spa_trim(q);
	account(sch, q, packets, bytes, packets + 1 - q->packets);
	return NET_XMIT_SUCCESS;
drop:
	bpf_qdisc_skb_drop(skb, to_free);
	sch->qstats.drops++;
	return NET_XMIT_DROP;
}

SEC("struct_ops/qdisc_dequeue")
struct sk_buff *BPF_PROG(qdisc_dequeue, struct Qdisc *sch)
{
	struct spa *q = state();
	u32 at, packets, bytes;
	struct sk_buff *skb;
	u64 now_ns;

	if (!q)
		return NULL;
	now_ns = bpf_ktime_get_ns();
	if (now_ns < q->free_ns && !spa_may_overtake(q)) {
		if (q->packets) {
			bpf_qdisc_watchdog_schedule(sch, q->free_ns, 0);
			sch->qstats.overlimits++;
		}
		return NULL;
	}
	packets = q->packets;
	bytes = q->bytes;
	at = spa_dequeue(q, now_ns);
	skb = spa_take_packet(at);
	if (!skb) {
		account(sch, q, packets, bytes, packets - q->packets);
		return NULL;
	}
	account(sch, q, packets, bytes, packets - q->packets - 1);
	q->free_ns = spa_free_after(q, now_ns, link_len(skb));
	bpf_qdisc_bstats_update(sch, skb);
	return skb;
}

static __noinline int drop_all(struct spa *q)
{
	u32 at = 0;

	bpf_repeat(q->used)
		spa_drop_packet(at++);
	spa_clear(q);
	return 0;
}

SEC("struct_ops/qdisc_init")
int BPF_PROG(qdisc_init, struct Qdisc *sch, struct nlattr *opt, struct netlink_ext_ack *extack)
{
	struct spa *q = state();

	if (!q || q->owner)
		return -EBUSY;
	q->owner = (u64)sch;
	spa_clear(q);
	sch->limit = q->params.places;
	return 0;
}

SEC("struct_ops/qdisc_reset")
void BPF_PROG(qdisc_reset, struct Qdisc *sch)
{
	struct spa *q = state();

	if (q && q->owner == (u64)sch)
		drop_all(q);
}

/* The kernel calls this also after an init that failed. */
SEC("struct_ops/qdisc_destroy")
void BPF_PROG(qdisc_destroy, struct Qdisc *sch)
{
	struct spa *q = state();

	if (!q || q->owner != (u64)sch)
		return;
	drop_all(q);
	q->owner = 0;
}

/* include/net/sch_generic.h: the members that are set; libbpf finds them by their names. */
struct Qdisc_ops {
	char id[WEIR_SPA_KIND];
	int (*enqueue)(struct sk_buff *skb, struct Qdisc *sch, struct sk_buff **to_free);
	struct sk_buff *(*dequeue)(struct Qdisc *sch);
	int (*init)(struct Qdisc *sch, struct nlattr *arg, struct netlink_ext_ack *extack);
	void (*reset)(struct Qdisc *sch);
	void (*destroy)(struct Qdisc *sch);
};

/* User space writes the kind into id. */
SEC(".struct_ops")
struct Qdisc_ops weir_spa = {
	.id = "weir",
	.enqueue = (void *)qdisc_enqueue,
	.dequeue = (void *)qdisc_dequeue,
	.init = (void *)qdisc_init,
	.reset = (void *)qdisc_reset,
	.destroy = (void *)qdisc_destroy,
};
