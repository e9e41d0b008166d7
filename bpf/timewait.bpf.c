// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * timewait.bpf.c - which end of a connection remembers it once it is closed
 * (FTY99).
 *
 * timewait = negotiate (Section 3): lib/negotiate.bpf.h, lib/forget.bpf.h.
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
 * While a record stands, a SYN/ACK for its 4-tuple is not let in, and its
 * sender gets a RST, unless sequence numbers or timestamps prove that no old
 * duplicate can pass for a new segment (lib/timewait.h). This end sends its SYN
 * again. The record answers a repeated FIN, as TIME-WAIT does.
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
#include "lib/forget.bpf.h"
#include "lib/timewait.bpf.h"
#include "lib/timewait.h"

char LICENSE[] SEC("license") = "GPL";

/* The server's ACK of this end's FIN: takes its TIME-WAIT over. */
static __always_inline int take_over(struct __sk_buff *skb, struct segment *segment, u32 sent)
{
	struct option_walk *walk = options_of_skb(skb, &segment->packet);
	struct timewait_record record = { .sent = sent, .rule = segment->rule };
	int done;

	if (!walk)
		return PASS;
	record.until_ns = bpf_ktime_get_ns() + rule_at(segment->rule)->length_ns;
	record.snd_nxt = segment->ack;
	record.rcv_nxt = segment->seq;
	record.received = walk->options.tsval;
	record.stamped = walk->options.tstamp;
	if (!record_made(&segment->tuple, &record)) {
		COUNT(segment->rule, fallback);
		return PASS;
	}
	begin_answer(segment, FLAG_RST, segment->ack, 0);
	done = answer_beside(skb, segment);
	if (done) {
		COUNT(segment->rule, fallback);
		return done == TW_UNSENT ? PASS : TC_DROP;
	}
	COUNT(segment->rule, swapped);
	return PASS;
}

/* Ends an attempt at both ends: the server's SYN/ACK becomes a RST to this end's stack. */
static __always_inline int refuse(struct __sk_buff *skb, struct segment *segment)
{
	begin_answer(segment, FLAG_RST, segment->ack, 0);
	if (answer_beside(skb, segment))
		return TC_DROP;
	COUNT(segment->rule, refused);
	become_rst(skb, segment);
	return PASS;
}

/*
 * Puts an attempt off: the server forgets it, and this end sends its SYN again, until the record has ended at the
 * latest.
 */
static __always_inline int put_off(struct __sk_buff *skb, struct segment *segment)
{
	begin_answer(segment, FLAG_RST, segment->ack, 0);
	answer_beside(skb, segment);
	COUNT(segment->rule, refused);
	return TC_DROP;
}

/* Whether a record stands: its connection has closed, and its time has not ended. */
static __always_inline bool stands(const struct timewait_record *record)
{
	return record && record->until_ns != CLOSING && bpf_ktime_get_ns() < record->until_ns;
}

/*
 * Whether a SYN/ACK is for a connection that this end is opening: it acknowledges the SYN. The kernel takes no other.
 */
static __always_inline bool answers_syn(struct __sk_buff *skb, struct segment *segment)
{
	struct sock_common *sk = socket_of(skb, segment);
	struct tcp_sock *tp;
	bool answers = false;

	if (!sk)
		return false;
	tp = bpf_skc_to_tcp_sock(sk);
	if (tp)
		answers = opens(((struct sock_common *)tp)->skc_state, tp->snd_una, tp->write_seq, segment->ack);
	bpf_sk_release((struct bpf_sock *)sk);
	return answers;
}

/* A SYN/ACK: for a 4-tuple that may have a record, or with a holder that this end does not agree to. Global. */
__noinline int on_synack(struct __sk_buff *skb, struct segment *segment)
{
	struct timewait_record *record;
	struct option_walk *walk;
	bool chooses;
	u8 accept;

	if (!segment)
		return PASS;
	record = record_of(&segment->tuple);
	if (!stands(record))
		record = NULL;
	accept = accept_of(skb, segment);
	chooses = rule_at(segment->rule)->timewait == TIMEWAIT_NEGOTIATE && accept != ACCEPT_ANY;
	if (!record && !chooses)
		return PASS;
	walk = options_of_skb(skb, &segment->packet);
	if (!walk || segment->packet.tcp_len != segment->packet.header_len || !segment_sound(skb, segment) ||
	    !answers_syn(skb, segment))
		return PASS;
	if (record && !record_yields(record, segment->seq, segment->ack, &walk->options))
		return put_off(skb, segment);
	if (chooses && !holder_accepted(segment, accept, &walk->options))
		return refuse(skb, segment);
	if (record) {
		COUNT(segment->rule, reused);
		bpf_map_delete_elem(&records, &segment->tuple);
	}
	return PASS;
}

/* A SYN for a 4-tuple that may have a record of a listener's connection. Global. */
__noinline int on_syn(struct __sk_buff *skb, struct segment *segment)
{
	struct timewait_record *record;
	struct option_walk *walk;
	struct time_wait old = {};

	if (!segment)
		return PASS;
	record = record_of(&segment->tuple);
	if (!stands(record))
		return PASS;
	walk = options_of_skb(skb, &segment->packet);
	if (!walk || !segment_sound(skb, segment))
		return PASS;
	old.rcv_nxt = record->rcv_nxt;
	old.ts_recent = record->received;
	old.stamped = record->stamped;
	if (record_yields_to_syn(&old, segment->seq, &walk->options)) {
		COUNT(segment->rule, reused);
		bpf_map_delete_elem(&records, &segment->tuple);
		return PASS;
	}
	/* A SYN with data (TCP Fast Open) has none to answer in. */
	if (segment->packet.tcp_len == segment->packet.header_len) {
		record->put_off = 1;
		begin_answer(segment, FLAG_ACK, record->snd_nxt, record->rcv_nxt);
		answer_beside(skb, segment);
	}
	COUNT(segment->rule, refused);
	return TC_DROP;
}

/*
 * A FIN for which there is no socket: acknowledged once more if it is that of a record, and by what the record knows.
 */
static __always_inline bool answered_from_record(struct __sk_buff *skb, struct segment *segment)
{
	struct timewait_record *record = record_of(&segment->tuple);
	u32 data = segment->packet.tcp_len - segment->packet.header_len;

	if (data || !stands(record) || segment->seq + 1 != record->rcv_nxt || !segment_sound(skb, segment))
		return false;
	begin_answer(segment, FLAG_ACK, record->snd_nxt, record->rcv_nxt);
	answer_beside(skb, segment);
	return true;
}

/* Global: verified once. */
__noinline int on_close(struct __sk_buff *skb, struct segment *segment)
{
	struct closing closing = {};
	struct tw_socket *socket;
	struct sock_common *sk;
	bool fin, negotiates, read = false;
	u32 sent = 0;

	if (!segment)
		return PASS;
	socket = &segment->socket;
	fin = segment->packet.flags & FLAG_FIN;
	negotiates = rule_at(segment->rule)->timewait == TIMEWAIT_NEGOTIATE;
	if (negotiates) {
		read = !(fin && only_stamps(skb, &segment->packet)) && read_close(skb, segment);
		/* Most FINs of an end that holds no record. */
		if (!(read && tw_may_step(&segment->close)) && !(fin && recorded))
			return PASS;
	}
	__builtin_memset(socket, 0, sizeof(*socket));
	sk = socket_of(skb, segment);
	if (sk) {
		sent = read_socket(sk, socket);
		bpf_sk_release((struct bpf_sock *)sk);
	}
	if (fin && (!socket->state || socket->state == TCP_LISTEN) && answered_from_record(skb, segment))
		return TC_DROP;
	if (negotiates)
		return read ? on_agreed_close(skb, segment) : PASS;
	closing.state = socket->state;
	closing.write_seq = socket->write_seq;
	closing.rcv_nxt = socket->rcv_nxt;
	closing.mptcp = socket->mptcp;
	if (fin || !ends_passive_close(&closing, segment->seq, segment->ack) || !segment_sound(skb, segment))
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
	/* An answer to what IPsec has decrypted would leave in plaintext. */
	if (!read_segment(skb, segment) || !find_rule(segment) || came_by_ipsec(skb))
		return PASS;
	if (packet.flags & FLAG_RST)
		return on_rst(skb, segment);
	if (!(packet.flags & FLAG_SYN))
		return on_close(skb, segment);
	if (packet.flags & FLAG_ACK)
		return on_synack(skb, segment);
	return segment->own ? on_syn(skb, segment) : PASS;
}

struct sweep {
	u64 now;
	/* The table was more than half full at the sweep before: then records that hang go. */
	bool crowded;
	u32 held[WEIR_MAX_TIMEWAIT_RULES];
};
/* In memory of its own: it is too large for the stack. One sweep runs at a time. */
struct sweep sweep;

static long sweep_one(void *map, struct timewait_tuple *tuple, struct timewait_record *record, void *unused)
{
	/* Without its rule on_state() does not let it begin. */
	bool abandoned = record->until_ns == CLOSING && (rule_at(record->rule)->timewait != TIMEWAIT_NEGOTIATE ||
							 (sweep.crowded && record_hangs(record->closing_s, sweep.now)));

	if (abandoned || record->until_ns <= sweep.now)
		bpf_map_delete_elem(map, tuple);
	else if (record->rule < WEIR_MAX_TIMEWAIT_RULES)
		sweep.held[record->rule]++;
	return 0;
}

/* Run by user space: takes away records that have ended, and counts the others. */
SEC("syscall")
int timewait_sweep(void *ctx)
{
	u32 i;

	/* The table has a bucket for each record that it may have: milliseconds, also if it is empty. */
	if (!recorded)
		return 0;
	bpf_for(i, 0, WEIR_MAX_TIMEWAIT_RULES)
		sweep.held[i & (WEIR_MAX_TIMEWAIT_RULES - 1)] = 0;
	sweep.now = bpf_ktime_get_ns();
	sweep.crowded = bpf_for_each_map_elem(&records, sweep_one, NULL, 0) > WEIR_MAX_TIMEWAIT_RECORDS / 2;
	bpf_for(i, 0, WEIR_MAX_TIMEWAIT_RULES)
		rule_at(i)->held = sweep.held[i & (WEIR_MAX_TIMEWAIT_RULES - 1)];
	return 0;
}
