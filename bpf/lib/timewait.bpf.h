/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * timewait.bpf.h - what both ways of moving TIME-WAIT share: rules, records and
 * counters, a segment and the rule that it falls under, and an answer to it.
 */
#ifndef WEIR_TIMEWAIT_BPF_H
#define WEIR_TIMEWAIT_BPF_H

#include "abi/guard.h"
#include "abi/timewait.h"
#include "lib/context.bpf.h"
#include "lib/cookie.h"
#include "lib/frame.bpf.h"
#include "lib/kernel.h"
#include "lib/negotiate.h"
#include "lib/options.bpf.h"
#include "lib/packet.h"
#include "lib/reply.h"

_Static_assert(WEIR_MAX_DESTINATIONS <= WEIR_TIMEWAIT_ASKED && WEIR_TIMEWAIT_ASKED < WEIR_TIMEWAIT_LISTENERS &&
	       WEIR_TIMEWAIT_LISTENERS + WEIR_MAX_LISTENERS <= WEIR_MAX_TIMEWAIT_RULES, "a place for each rule");

/* Of one piece of the headers: link, IPv6, TCP with all options. */
#define HEADERS_COPY 128

struct timewait_rule rules[WEIR_MAX_TIMEWAIT_RULES];
/*
 * By port as it stands in the packet: WEIR_PORT_ bits, and the rule where all addresses have the same. Of servers where
 * a destination has them, and of listeners here.
 */
u16 ports[65536];
u16 own_ports[65536];
/* Cookie of the network namespace whose connections these rules are of. */
u64 netns;
/* Connections that wait for a later segment until they end here, about; set right by user space. */
u32 awaited;
/*
 * recorded, 0: no record was ever made. noted, 0: endings has no entry. Then nobody looks there, which would cost a
 * cache miss at each handshake and close: an end that never holds makes no record. User space sets `noted` back.
 */
u32 recorded;
u32 noted;
/*
 * Listening sockets that timewait_mark could not have negotiate, and those that take MPTCP or TCP Fast Open, which do
 * without. Set to 0 by user space before it runs.
 */
u32 unmarked;
u32 with_mptcp;
u32 with_fast_open;

/* Rules by port and address. */
struct prefix_trie {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, WEIR_MAX_DESTINATION_PREFIXES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct timewait_prefix);
	__type(value, u32);
};

struct prefix_trie prefixes SEC(".maps");
struct prefix_trie own_prefixes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, WEIR_MAX_TIMEWAIT_RECORDS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct timewait_tuple);
	__type(value, struct timewait_record);
} records SEC(".maps");

/* What applications have asked of their sockets (enum timewait_wish). Sockets of which nobody has asked have none. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, u32);
} wishes SEC(".maps");
/* 1: one has. Until then nothing is looked for. User space sets it back when weir ends. */
u32 wished;

/* Connections that user space ends if they are still there in a while. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, WEIR_MAX_TIMEWAIT_ENDINGS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct timewait_tuple);
	__type(value, struct timewait_ending);
} endings SEC(".maps");
/* How many FINs without a socket have got a RST after them. User space sets it back. */
u32 handed_on;

/* Of FINs that have ended connections here (mark_of()); 0: none. */
u64 marks[WEIR_TIMEWAIT_MARKS];
/* Written by user space before anything is attached. */
struct siphash_key marks_key;

/* The oldest first. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, WEIR_MAX_TIMEWAIT_RESETS);
	__type(value, struct timewait_reset);
} resets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WEIR_MAX_TIMEWAIT_RULES);
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

/*
 * A segment of the other end, and which connection it is of. What the functions below work out about it stands here
 * too: on their frames it would take more stack than Linux 6.8 has for three of them.
 */
struct segment {
	struct packet packet;
	struct timewait_tuple tuple;
	struct bpf_sock_tuple lookup;
	u32 seq;	/* host order */
	u32 ack;
	u32 rule;	/* index of the rule */
	__be16 urgent;
	bool own;	/* for a connection that the other end has opened */
	struct tw_socket socket;
	struct tw_segment close;
	struct syn_options options;	/* of a segment at the close */
	struct timewait_reset reset;	/* of it, or of an older one */
	struct answer answer;	/* of begin_answer() */
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
	u16 port = ports[packet->sport] & WEIR_PORT_BITS, own_port = own_ports[packet->dport] & WEIR_PORT_NEGOTIATES;
	u8 flags = packet->flags;

	if (!port && !own_port)
		return false;
	/* A SYN matters to a record. */
	if ((flags & (FLAG_SYN | FLAG_ACK)) == FLAG_SYN && !recorded)
		return false;
	/* Of the segments without data and FIN only those that may end a passive close matter. */
	if (!(flags & (FLAG_SYN | FLAG_FIN | FLAG_RST)) &&
	    (packet->tcp_len != packet->header_len || (!(port & WEIR_PORT_CLIENT_RST) && !awaited)))
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
	segment->urgent = tcp->urgent;
	return true;
}

/* NULL: there is none. */
static __always_inline struct timewait_record *record_of(const struct timewait_tuple *tuple)
{
	return recorded ? bpf_map_lookup_elem(&records, tuple) : NULL;
}

/* Returns false where the table is full. */
static __always_inline bool record_made(const struct timewait_tuple *tuple, const struct timewait_record *record)
{
	if (bpf_map_update_elem(&records, tuple, record, BPF_ANY))
		return false;
	if (!recorded)
		recorded = 1;
	return true;
}

/*
 * Behind a barrier, else clang takes the mask away where it knows that it changes nothing; the verifier does not know.
 */
static __always_inline struct timewait_rule *rule_at(u32 index)
{
	barrier_var(index);
	return &rules[index & (WEIR_MAX_TIMEWAIT_RULES - 1)];
}

/*
 * One with this port before one of all ports, then the longest prefix. entry: what the table of ports says. Returns the
 * rule's index; -1: there is none.
 */
static __always_inline s32 rule_of(void *map, u16 entry, __be16 port, const __be32 *addr)
{
	struct timewait_prefix key = { .bits = 32 + 128, .port = entry & WEIR_PORT_HAS_PREFIXES ? port : 0 };
	u32 index = entry >> WEIR_PORT_RULE_SHIFT, *rule;

	if (index) {
		index--;
	} else {
		__builtin_memcpy(key.addr, addr, 16);
		rule = bpf_map_lookup_elem(map, &key);
		if (!rule && key.port) {
			key.port = 0;
			rule = bpf_map_lookup_elem(map, &key);
		}
		if (!rule)
			return -1;
		index = *rule;
	}
	return rule_at(index)->timewait != TIMEWAIT_OFF ? (s32)index : -1;
}

/* Finds the rule of a segment: that of the listener here, or that of the destination that it comes from. */
static __always_inline bool find_rule(struct segment *segment)
{
	const struct timewait_tuple *tuple = &segment->tuple;
	u16 own = own_ports[tuple->local_port], entry = ports[tuple->remote_port];
	s32 rule = -1;

	segment->own = false;
	if (own & WEIR_PORT_NEGOTIATES) {
		rule = rule_of(&own_prefixes, own, tuple->local_port, tuple->local);
		segment->own = rule >= 0;
	}
	if (rule < 0 && (entry & WEIR_PORT_BITS))
		rule = rule_of(&prefixes, entry, tuple->remote_port, tuple->remote);
	/* Of a socket whose application asked, or of none that matters. */
	if (rule < 0 && wished && ((own | entry) & WEIR_PORT_NEGOTIATES)) {
		segment->own = own & WEIR_PORT_NEGOTIATES;
		rule = WEIR_TIMEWAIT_ASKED;
	}
	segment->rule = rule;
	return rule >= 0;
}

/*
 * What stands for a FIN that has ended its connection here: a keyed hash of all that says which FIN it is. It is not 0.
 * So nobody has another FIN taken for it who has not seen this one. seq: the FIN's own number. Global: verified once.
 */
__noinline u64 mark_of(struct segment *segment, u32 seq)
{
	const struct timewait_tuple *tuple;
	u64 words[6];

	if (!segment)
		return 0;
	tuple = &segment->tuple;
	words[0] = (u64)tuple->local[0] << 32 | tuple->local[1];
	words[1] = (u64)tuple->local[2] << 32 | tuple->local[3];
	words[2] = (u64)tuple->remote[0] << 32 | tuple->remote[1];
	words[3] = (u64)tuple->remote[2] << 32 | tuple->remote[3];
	words[4] = (u64)seq << 32 | (u32)tuple->local_port << 16 | tuple->remote_port;
	words[5] = segment->ack;
	return siphash(words, 6, &marks_key) | 1;
}

/* Not by the lowest bit of a mark, which is always set. */
static __always_inline u64 *place_of(u64 mark)
{
	mark >>= 1;
	barrier_var(mark);
	return &marks[mark & (WEIR_TIMEWAIT_MARKS - 1)];
}

/* Keeps in mind that a FIN with this number has ended its connection. */
static __always_inline void keep_in_mind(struct segment *segment, u32 seq)
{
	u64 mark = mark_of(segment, seq);

	*(volatile u64 *)place_of(mark) = mark;
}

/* Whether a FIN without data has ended its connection here: it comes once more, as its ACK was lost. */
static __always_inline bool has_ended(struct segment *segment)
{
	u64 mark = mark_of(segment, segment->seq);

	return *(volatile u64 *)place_of(mark) == mark;
}

static __always_inline struct sock_common *socket_by(struct __sk_buff *skb, struct bpf_sock_tuple *tuple, bool v6)
{
	struct bpf_sock *sk;

	/* The verifier wants a constant for the size. */
	if (v6)
		sk = bpf_skc_lookup_tcp(skb, tuple, sizeof(tuple->ipv6), BPF_F_CURRENT_NETNS, 0);
	else
		sk = bpf_skc_lookup_tcp(skb, tuple, sizeof(tuple->ipv4), BPF_F_CURRENT_NETNS, 0);
	return (struct sock_common *)sk;
}

static __always_inline struct sock_common *socket_of(struct __sk_buff *skb, struct segment *segment)
{
	return socket_by(skb, &segment->lookup, segment->packet.v6);
}

static __always_inline bool segment_sound(struct __sk_buff *skb, const struct segment *segment)
{
	u8 state = checksum_state(skb);

	return sound(&segment->packet, skb_start(skb) + link_header, skb_end(skb),
		     state == CHECKSUM_UNNECESSARY || state == CHECKSUM_PARTIAL, false);
}

static __always_inline struct answer *begin_answer(struct segment *segment, u8 flags, u32 seq, u32 ack)
{
	struct answer *answer = &segment->answer;

	__builtin_memset(answer, 0, sizeof(*answer));
	answer->flags = flags;
	answer->seq = seq;
	answer->ack = ack;
	return answer;
}

/*
 * Sends segment->answer to where the packet came from, and leaves the packet as it was. The packet has no data. Options
 * of the answer: those that stand in it, in as many bytes as the packet has. Returns one of enum tw_answered. Global.
 *
 * skb->csum, where a device has summed up the packet (CHECKSUM_COMPLETE), is right again with the packet. The answer
 * keeps it: over IPv4 both have the same sum, over IPv6 not, as the hop limit differs. On the way out nobody looks at
 * it, and at the far end of a veth the kernel sums up what does not agree.
 */
__noinline int answer_beside(struct __sk_buff *skb, struct segment *segment)
{
	const struct packet *packet;
	struct headers_copy *copy;
	struct answer answer;
	void *data, *data_end;
	u32 zero = 0, len;
	int failed;

	if (!segment)
		return TW_UNSENT;
	packet = &segment->packet;
	copy = bpf_map_lookup_elem(&headers_copies, &zero);
	len = packet->l4 + packet->header_len;
	barrier_var(len);
	if (!copy || len < sizeof(struct ipv4) + sizeof(struct tcp) || len > HEADERS_COPY)
		return TW_UNSENT;
	barrier_var(len);
	if (bpf_skb_pull_data(skb, len) || bpf_skb_load_bytes(skb, 0, copy->bytes, len))
		return TW_UNSENT;
	__builtin_memcpy(&answer, &segment->answer, sizeof(answer));
	/* Known here, so that clang leaves out what writes others. */
	answer.flags &= ~FLAG_SYN;
	answer.reason_len = 0;
	answer.header_len = packet->header_len;
	answer.partial = checksum_state(skb) == CHECKSUM_PARTIAL;
	data = skb_start(skb);
	data_end = skb_end(skb);
	failed = packet->v6 ? answer_write(data, data_end, link_header, true, &answer, NULL) :
			      answer_write(data, data_end, link_header, false, &answer, NULL);
	if (!failed)
		bpf_clone_redirect(skb, CTX_LOAD(skb, ifindex), 0);
	if (bpf_skb_store_bytes(skb, 0, copy->bytes, len, 0))
		return TW_SPOILT;
	return failed ? TW_UNSENT : TW_SENT;
}

/* Whether a segment has no options but timestamps: most have not. */
static __always_inline bool only_stamps(struct __sk_buff *skb, const struct packet *packet)
{
	u32 at = packet->l4 + sizeof(struct tcp);
	__be32 first = 0;

	if (packet->header_len == sizeof(struct tcp))
		return true;
	return packet->header_len == sizeof(struct tcp) + 12 && !bpf_skb_load_bytes(skb, at, &first, sizeof(first)) &&
	       first == STAMPS;
}

/*
 * The checksum field takes up the difference: the sum of all bytes stays as it is, and so does skb->csum where a device
 * has summed them up (CHECKSUM_COMPLETE).
 */
static __always_inline void rewrite_flags(struct __sk_buff *skb, u32 l4, u8 from, u8 to)
{
	bpf_l4_csum_replace(skb, l4 + 16, bpf_htons(from), bpf_htons(to), 2);
	bpf_skb_store_bytes(skb, l4 + 13, &to, 1, 0);
}

/* Makes a RST for this end's stack of a segment. */
static __always_inline void become_rst(struct __sk_buff *skb, const struct segment *segment)
{
	u8 flags = segment->packet.flags;

	rewrite_flags(skb, segment->packet.l4, flags, (flags & ~(FLAG_FIN | FLAG_SYN)) | FLAG_RST);
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

#endif
