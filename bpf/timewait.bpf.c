// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * timewait.bpf.c - which end of a connection remembers it once it is closed
 * (FTY99), for connections that this machine opens.
 *
 * timewait = client-rst (Section 4.1, close_swap). The server has closed first
 * and is in TIME-WAIT as soon as it acknowledges this end's FIN. On that ACK:
 *
 *   1. a record of the 4-tuple is made here, for 2 MSL;
 *   2. the server gets a RST, which takes its TIME-WAIT away. Its sequence
 *      number is exactly the next one; it has no timestamp, which a RST need
 *      not have (RFC 7323, Section 3.2), so PAWS does not drop it;
 *   3. the ACK goes on to this end's stack, which closes as ever.
 *
 * Without a free record nothing is sent: the server's own TIME-WAIT stays. If
 * the RST is lost, both ends remember, as after a simultaneous close.
 *
 * While a record stands, a SYN/ACK for its 4-tuple ends the attempt at both
 * ends, unless timestamps prove that no old duplicate can pass for a new
 * segment (lib/timewait.h). No data has gone either way until then. The record
 * answers a repeated FIN, as TIME-WAIT does.
 *
 * A packet's way (tc ingress): parse; one array load by source port; most
 * segments with data end here. Then the destination by address, and a socket.
 *
 * Who dies, when: all goes with the process that loaded it. Records too:
 * nothing is pinned.
 *
 * Fail open: what cannot be read, found or stored leaves the packet as it is.
 */
#include "abi/timewait.h"
#include "lib/context.bpf.h"
#include "lib/frame.bpf.h"
#include "lib/kernel.h"
#include "lib/options.bpf.h"
#include "lib/packet.h"
#include "lib/reply.h"
#include "lib/timewait.h"

char LICENSE[] SEC("license") = "GPL";

#define PASS (-1)	/* TCX_NEXT: other programs on this hook have their say */
#define TC_DROP 2	/* TC_ACT_SHOT */

/* Of one piece of the headers: link, IPv6, TCP with all options. */
#define HEADERS_COPY 128

struct timewait_rule rules[WEIR_MAX_DESTINATIONS];
/* By port as it stands in the packet: 1 where a destination has it. */
u8 ports[65536];

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, WEIR_MAX_DESTINATION_PREFIXES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct timewait_prefix);
	__type(value, u32);
} prefixes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, WEIR_MAX_TIMEWAIT_RECORDS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct timewait_tuple);
	__type(value, struct timewait_record);
} records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WEIR_MAX_DESTINATIONS);
	__type(key, u32);
	__type(value, struct timewait_counters);
} counters SEC(".maps");

struct headers_copy {
	u8 bytes[HEADERS_COPY];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct headers_copy);
} headers_copies SEC(".maps");

#define COUNT(rule, field)                                                             \
	({                                                                             \
		u32 __key = (rule);                                                    \
		struct timewait_counters *__c = bpf_map_lookup_elem(&counters, &__key); \
                                                                                       \
		if (__c)                                                               \
			__c->field++;                                                  \
	})

/* A segment of the other end, and which connection it is of. */
struct segment {
	struct packet packet;
	struct timewait_tuple tuple;
	struct bpf_sock_tuple lookup;
	u32 seq;	/* host order */
	u32 ack;
	u32 rule;	/* index of the destination */
};

/* Not on the stack: that has no room for it beside all else that a packet's way needs. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct segment);
} segments SEC(".maps");

static __always_inline bool parse(struct __sk_buff *skb, struct packet *packet)
{
	return !packet_parse(skb_start(skb), skb_end(skb), CTX_LOAD(skb, len), link_header, CTX_LOAD(skb, protocol),
			     packet);
}

/* Whether a packet may be one for this file: of a handshake or a close, and for this host. */
static __always_inline bool may_concern(struct __sk_buff *skb, const struct packet *packet)
{
	u8 flags = packet->flags;

	if (!ports[packet->sport] || (flags & FLAG_RST) || !(flags & FLAG_ACK))
		return false;
	if (!(flags & (FLAG_SYN | FLAG_FIN)) && packet->tcp_len != packet->header_len)
		return false;
	return !in_vlan(skb) && CTX_LOAD(skb, pkt_type) == PACKET_HOST;
}

/* Fills in addresses, ports and numbers. */
static __always_inline bool read_segment(struct __sk_buff *skb, struct segment *segment)
{
	void *network = skb_start(skb) + link_header, *data_end = skb_end(skb);
	struct timewait_tuple *tuple = &segment->tuple;
	const struct packet *packet = &segment->packet;
	const struct tcp *tcp;

	__builtin_memset(tuple, 0, sizeof(*tuple));
	__builtin_memset(&segment->lookup, 0, sizeof(segment->lookup));
	if (packet->v6) {
		const struct ipv6 *ip = network;

		tcp = (const void *)(ip + 1);
		if ((const void *)(tcp + 1) > data_end)
			return false;
		__builtin_memcpy(tuple->local, ip->daddr, 16);
		__builtin_memcpy(tuple->remote, ip->saddr, 16);
		__builtin_memcpy(segment->lookup.ipv6.saddr, ip->saddr, 16);
		__builtin_memcpy(segment->lookup.ipv6.daddr, ip->daddr, 16);
		segment->lookup.ipv6.sport = packet->sport;
		segment->lookup.ipv6.dport = packet->dport;
	} else {
		const struct ipv4 *ip = network;

		tcp = (const void *)(ip + 1);
		if ((const void *)(tcp + 1) > data_end)
			return false;
		tuple->local[2] = tuple->remote[2] = bpf_htonl(0xffff);
		tuple->local[3] = ip->daddr;
		tuple->remote[3] = ip->saddr;
		segment->lookup.ipv4.saddr = ip->saddr;
		segment->lookup.ipv4.daddr = ip->daddr;
		segment->lookup.ipv4.sport = packet->sport;
		segment->lookup.ipv4.dport = packet->dport;
	}
	tuple->local_port = packet->dport;
	tuple->remote_port = packet->sport;
	segment->seq = bpf_ntohl(tcp->seq);
	segment->ack = bpf_ntohl(tcp->ack);
	return true;
}

/* Behind a barrier, else clang takes the mask away where it knows that it changes nothing; the verifier does not know. */
static __always_inline struct timewait_rule *rule_at(u32 index)
{
	barrier_var(index);
	return &rules[index & (WEIR_MAX_DESTINATIONS - 1)];
}

/* Finds the destination of the other end: one with its port before one of all ports, then the longest prefix. */
static __always_inline bool find_rule(struct segment *segment)
{
	struct timewait_prefix key = { .bits = 32 + 128, .port = segment->tuple.remote_port };
	u32 *rule;

	__builtin_memcpy(key.addr, segment->tuple.remote, 16);
	rule = bpf_map_lookup_elem(&prefixes, &key);
	if (!rule) {
		key.port = 0;
		rule = bpf_map_lookup_elem(&prefixes, &key);
	}
	if (!rule)
		return false;
	segment->rule = *rule;
	return rule_at(*rule)->timewait != TIMEWAIT_OFF;
}

static __always_inline struct sock_common *socket_of(struct __sk_buff *skb, struct segment *segment)
{
	struct bpf_sock_tuple *tuple = &segment->lookup;
	struct bpf_sock *sk;

	/* The verifier wants a constant for the size. */
	if (segment->packet.v6)
		sk = bpf_skc_lookup_tcp(skb, tuple, sizeof(tuple->ipv6), BPF_F_CURRENT_NETNS, 0);
	else
		sk = bpf_skc_lookup_tcp(skb, tuple, sizeof(tuple->ipv4), BPF_F_CURRENT_NETNS, 0);
	return (struct sock_common *)sk;
}

static __always_inline bool segment_sound(struct __sk_buff *skb, const struct segment *segment)
{
	u8 state = checksum_state(skb);

	return sound(&segment->packet, skb_start(skb) + link_header, skb_end(skb),
		     state == CHECKSUM_UNNECESSARY || state == CHECKSUM_PARTIAL, false);
}

/*
 * Sends an answer to where the packet came from, and leaves the packet as it was. The packet has no data.
 * Options of the answer: none, in as many bytes as the packet has. Returns 0; -1: no answer was sent, and the
 * packet is as it was; -2: the packet is spoilt. Global.
 */
__noinline int answer_beside(struct __sk_buff *skb, const struct packet *packet, const struct answer *wanted)
{
	struct headers_copy *copy;
	struct answer answer;
	void *data, *data_end;
	u32 zero = 0, len;
	int failed;

	if (!packet || !wanted)
		return -1;
	copy = bpf_map_lookup_elem(&headers_copies, &zero);
	len = packet->l4 + packet->header_len;
	barrier_var(len);
	if (!copy || len < sizeof(struct ipv4) + sizeof(struct tcp) || len > HEADERS_COPY)
		return -1;
	barrier_var(len);
	if (bpf_skb_pull_data(skb, len) || bpf_skb_load_bytes(skb, 0, copy->bytes, len))
		return -1;
	answer = (struct answer){ .seq = wanted->seq, .ack = wanted->ack, .flags = wanted->flags };
	answer.header_len = packet->header_len;
	answer.partial = checksum_state(skb) == CHECKSUM_PARTIAL;
	data = skb_start(skb);
	data_end = skb_end(skb);
	failed = packet->v6 ? answer_write(data, data_end, link_header, true, &answer, NULL) :
			      answer_write(data, data_end, link_header, false, &answer, NULL);
	if (!failed)
		bpf_clone_redirect(skb, CTX_LOAD(skb, ifindex), 0);
	if (bpf_skb_store_bytes(skb, 0, copy->bytes, len, 0))
		return -2;
	return failed ? -1 : 0;
}

/* The latest timestamp that this end can have sent: that of its last look at the clock (tcp_time_stamp_ts()). */
static __always_inline u32 last_sent(struct tcp_sock *tp)
{
	u64 now_us = tp->tcp_mstamp;
	bool in_us = false;

	/* Since 6.7. */
	if (bpf_core_field_exists(tp->tcp_usec_ts))
		in_us = BPF_CORE_READ_BITFIELD(tp, tcp_usec_ts);
	return (in_us ? now_us : now_us / 1000) + tp->tsoffset;
}

/* The server's ACK of this end's FIN: takes its TIME-WAIT over. */
static __always_inline int take_over(struct __sk_buff *skb, struct segment *segment, u32 sent)
{
	struct option_walk *walk = options_of_skb(skb, &segment->packet);
	struct timewait_record record = { .sent = sent, .rule = segment->rule };
	struct answer answer = { .seq = segment->ack, .flags = FLAG_RST };
	int done;

	if (!walk)
		return PASS;
	record.until_ns = bpf_ktime_get_ns() + rule_at(segment->rule)->length_ns;
	record.received = walk->options.tsval;
	record.stamped = walk->options.tstamp;
	if (bpf_map_update_elem(&records, &segment->tuple, &record, BPF_ANY)) {
		COUNT(segment->rule, fallback);
		return PASS;
	}
	done = answer_beside(skb, &segment->packet, &answer);
	if (done) {
		COUNT(segment->rule, fallback);
		return done == -1 ? PASS : TC_DROP;
	}
	COUNT(segment->rule, swapped);
	return PASS;
}

/* Ends an attempt at both ends: the server's SYN/ACK becomes a RST to this end's stack. */
static __always_inline int refuse(struct __sk_buff *skb, struct segment *segment)
{
	const u32 l4 = segment->packet.l4;
	struct answer answer = { .seq = segment->ack, .flags = FLAG_RST };
	u8 old = segment->packet.flags, new = (old & ~FLAG_SYN) | FLAG_RST;

	if (answer_beside(skb, &segment->packet, &answer))
		return TC_DROP;
	COUNT(segment->rule, refused);
	bpf_l4_csum_replace(skb, l4 + 16, bpf_htons(old), bpf_htons(new), 2);
	bpf_skb_store_bytes(skb, l4 + 13, &new, 1, BPF_F_RECOMPUTE_CSUM);
	return PASS;
}

/* A SYN/ACK for a 4-tuple that may have a record. */
static __always_inline int on_synack(struct __sk_buff *skb, struct segment *segment)
{
	struct timewait_record *record = bpf_map_lookup_elem(&records, &segment->tuple);
	struct option_walk *walk;
	bool yields;

	if (!record)
		return PASS;
	if (bpf_ktime_get_ns() < record->until_ns) {
		walk = options_of_skb(skb, &segment->packet);
		if (!walk || segment->packet.tcp_len != segment->packet.header_len || !segment_sound(skb, segment))
			return PASS;
		yields = record_yields(record, &walk->options);
		if (!yields)
			return refuse(skb, segment);
		COUNT(segment->rule, reused);
	}
	bpf_map_delete_elem(&records, &segment->tuple);
	return PASS;
}

/* A FIN for which there is no socket: acknowledged once more if there is a record. */
static __always_inline int on_stray_fin(struct __sk_buff *skb, struct segment *segment)
{
	struct timewait_record *record = bpf_map_lookup_elem(&records, &segment->tuple);
	u32 data = segment->packet.tcp_len - segment->packet.header_len;
	struct answer answer = { .seq = segment->ack, .ack = segment->seq + 1, .flags = FLAG_ACK };

	if (!record || data || bpf_ktime_get_ns() >= record->until_ns || !segment_sound(skb, segment))
		return PASS;
	answer_beside(skb, &segment->packet, &answer);
	return TC_DROP;
}

/* Global: verified once. */
__noinline int on_close(struct __sk_buff *skb, struct segment *segment)
{
	struct closing closing = {};
	struct sock_common *sk;
	struct tcp_sock *tp;
	u32 sent = 0;

	if (!segment)
		return PASS;
	sk = socket_of(skb, segment);
	if (!sk)
		return segment->packet.flags & FLAG_FIN ? on_stray_fin(skb, segment) : PASS;
	tp = bpf_skc_to_tcp_sock(sk);
	if (tp) {
		closing.state = ((struct sock_common *)tp)->skc_state;
		closing.write_seq = tp->write_seq;
		closing.rcv_nxt = tp->rcv_nxt;
		closing.mptcp = tp->is_mptcp;
		sent = last_sent(tp);
	}
	bpf_sk_release((struct bpf_sock *)sk);
	if ((segment->packet.flags & FLAG_FIN) || !ends_passive_close(&closing, segment->seq, segment->ack) ||
	    !segment_sound(skb, segment))
		return PASS;
	return take_over(skb, segment, sent);
}

/* For devices without a link header it is loaded again, with link_header = 0. */
SEC("tc")
int timewait_tc(struct __sk_buff *skb)
{
	struct segment *segment;
	struct packet packet;
	u32 zero = 0;

	if (!parse(skb, &packet) && (!pull_headers(skb) || !parse(skb, &packet)))
		return PASS;
	if (!may_concern(skb, &packet))
		return PASS;
	segment = bpf_map_lookup_elem(&segments, &zero);
	if (!segment)
		return PASS;
	segment->packet = packet;
	if (!read_segment(skb, segment) || !find_rule(segment))
		return PASS;
	return packet.flags & FLAG_SYN ? on_synack(skb, segment) : on_close(skb, segment);
}

struct sweep {
	u64 now;
	u32 held[WEIR_MAX_DESTINATIONS];
};
/* In memory of its own: it is too large for the stack. One sweep runs at a time. */
struct sweep sweep;

static long sweep_one(void *map, struct timewait_tuple *tuple, struct timewait_record *record, void *unused)
{
	if (record->until_ns <= sweep.now)
		bpf_map_delete_elem(map, tuple);
	else if (record->rule < WEIR_MAX_DESTINATIONS)
		sweep.held[record->rule]++;
	return 0;
}

/* Run by user space: takes away records that have ended, and counts the others. */
SEC("syscall")
int timewait_sweep(void *ctx)
{
	u32 i;

	__builtin_memset(sweep.held, 0, sizeof(sweep.held));
	sweep.now = bpf_ktime_get_ns();
	bpf_for_each_map_elem(&records, sweep_one, NULL, 0);
	bpf_for(i, 0, WEIR_MAX_DESTINATIONS)
		rule_at(i)->held = sweep.held[i & (WEIR_MAX_DESTINATIONS - 1)];
	return 0;
}
