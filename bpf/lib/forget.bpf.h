/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * forget.bpf.h - timewait = negotiate: what the end that is to forget does with
 * packets. negotiate.h decides; negotiate.bpf.h agrees with the other end.
 *
 * timewait_tc, at tc ingress, refuses a holder to which a destination does not
 * agree, and ends the sockets of the end that is to forget:
 *
 *   without a program   the FIN is acknowledged here, and becomes a RST. Another CPU
 *                       may work on the same socket, and the RST be lost: a later
 *                       close looks whether it has ended (resets)
 *   with a program      the FIN goes on, and a RST for this end alone after it: it
 *                       passes only if it finds the socket in TIME-WAIT by then
 *
 * A FIN that has ended its connection leaves a mark (marks): it is acknowledged once more if it comes again. No other
 * FIN is acknowledged without a socket.
 *
 * User space ends what they have missed (endings).
 */
#ifndef WEIR_FORGET_BPF_H
#define WEIR_FORGET_BPF_H

#include "lib/negotiate.bpf.h"

/* include/net/sock.h: no program has the socket */
#define SOCK_DEAD 0
/* In the urgent pointer of a RST of this file's own, which has no URG: on its second way through timewait_tc. */
#define OWN_RST bpf_htons(0x5457)
#define FLAG_URG 0x20

/* How old an ACK may be at a TIME-WAIT socket, which does not know the other end's window: by one without scale. */
#define UNSCALED_WINDOW 65535

/* What the other end may send from rcv_nxt on (tcp_receive_window()). */
static __always_inline u32 window_of(const struct tcp_sock *tp)
{
	s32 left = tp->rcv_wup + tp->rcv_wnd - tp->rcv_nxt;

	return left > 0 ? left : 0;
}

/* Reads a socket of any kind; returns the latest timestamp that it can have sent. */
static __always_inline u32 read_socket(struct sock_common *sk, struct tw_socket *socket)
{
	struct tcp_timewait_sock *remembered;
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);

	if (tp) {
		struct sock_common *common = (struct sock_common *)tp;

		/*
		 * Not one that is in close(): what comes meanwhile is dropped with it if a TIME-WAIT socket takes its
		 * place, and the other end is to send its FIN again. In this order: after close() such a socket has the
		 * state CLOSE.
		 */
		socket->orphan = common->skc_flags >> SOCK_DEAD & 1;
		barrier();
		if (((struct sock *)tp)->sk_lock.owned)
			socket->orphan = 0;
		barrier();
		socket->state = common->skc_state;
		socket->rcv_nxt = tp->rcv_nxt;
		socket->window = window_of(tp);
		socket->write_seq = tp->write_seq;
		socket->oldest = tp->snd_una - tp->max_window;
		socket->mptcp = is_mptcp(tp);
		socket->holds = holds(tp->bpf_sock_ops_cb_flags);
		return last_sent(tp);
	}
	remembered = bpf_skc_to_tcp_timewait_sock(sk);
	if (remembered) {
		socket->state = TCP_TIME_WAIT;
		socket->substate = remembered->tw_sk.tw_substate;
		socket->rcv_nxt = remembered->tw_sk.__tw_common.skc_tw_rcv_nxt;
		socket->window = remembered->tw_rcv_wnd;
		socket->write_seq = remembered->tw_sk.__tw_common.skc_tw_snd_nxt;
		socket->oldest = socket->write_seq - UNSCALED_WINDOW;
		return 0;
	}
	/* A handshake whose last ACK has not come: the FIN is for the socket that it is to become. */
	socket->state = TCP_NEW_SYN_RECV;
	return 0;
}

/* The holders to which the end agrees that a SYN/ACK is for. */
static __always_inline u8 accept_of(struct __sk_buff *skb, struct segment *segment)
{
	u8 accept = rule_at(segment->rule)->accept;
	struct sock_common *sk;
	u32 *wish;

	if (!wished)
		return accept;
	sk = socket_of(skb, segment);
	if (!sk)
		return accept;
	wish = bpf_sk_storage_get(&wishes, sk, NULL, 0);
	if (wish)
		accept = accept_by(*wish, accept);
	bpf_sk_release((struct bpf_sock *)sk);
	return accept;
}

/* Whether this end agrees to what a SYN/ACK says. */
static __always_inline bool holder_accepted(const struct segment *segment, u8 accept, const struct syn_options *options)
{
	return tw_accepts(accept, tw_agreed(options, tw_offer(accept), is_larger(&segment->tuple)));
}

enum note { NOT_NOTED, NOTED_ANEW, NOTED_BEFORE };

/* Notes that user space is to look after a connection. Where there is no room it is left as it is. */
static __always_inline enum note note_ending(struct segment *segment)
{
	struct timewait_ending ending = { .since_ns = bpf_ktime_get_ns(), .rule = segment->rule };
	enum note note = NOTED_ANEW;

	if (!bpf_map_update_elem(&endings, &segment->tuple, &ending, BPF_NOEXIST)) {
		COUNT(segment->rule, held_by_peer);
	} else if (!bpf_map_update_elem(&endings, &segment->tuple, &ending, BPF_ANY)) {
		note = NOTED_BEFORE;
	} else {
		COUNT(segment->rule, fallback);
		return NOT_NOTED;
	}
	noted = 1;
	return note;
}

/* Notes one that ends with a later segment, which may never come. */
static __always_inline void note_awaited(struct segment *segment)
{
	if (awaited >= WEIR_MAX_TIMEWAIT_AWAITED)
		COUNT(segment->rule, fallback);
	else if (note_ending(segment) == NOTED_ANEW)
		__sync_fetch_and_add(&awaited, 1);
}

/* Takes a connection off that list. Returns whether it was there. */
static __always_inline bool was_noted(struct segment *segment)
{
	return noted && !bpf_map_delete_elem(&endings, &segment->tuple);
}

/* Fills in by which addresses and ports a socket is found. Returns whether it is one of IPv6. */
static __always_inline bool lookup_of(const struct timewait_tuple *tuple, struct bpf_sock_tuple *lookup)
{
	bool v6 = tuple->local[0] || tuple->local[1] || tuple->local[2] != bpf_htonl(0xffff);

	if (v6) {
		__builtin_memcpy(lookup->ipv6.saddr, tuple->remote, 16);
		__builtin_memcpy(lookup->ipv6.daddr, tuple->local, 16);
		lookup->ipv6.sport = tuple->remote_port;
		lookup->ipv6.dport = tuple->local_port;
	} else {
		lookup->ipv4.saddr = tuple->remote[3];
		lookup->ipv4.daddr = tuple->local[3];
		lookup->ipv4.sport = tuple->remote_port;
		lookup->ipv4.dport = tuple->local_port;
	}
	return v6;
}

/*
 * Looks for the socket of the oldest RST in place of a FIN, if that is old enough: one for each that is ended, and user
 * space for those after which none is. Global: verified once.
 */
__noinline int look_for_missed(struct __sk_buff *skb, struct segment *segment)
{
	struct timewait_ending ending = { .answered = 1 };
	struct timewait_reset *reset;
	struct sock_common *sk;

	if (!segment)
		return 0;
	reset = &segment->reset;
	if (bpf_map_peek_elem(&resets, reset) || bpf_ktime_get_ns() - reset->since_ns < WEIR_TIMEWAIT_RESET_NS ||
	    bpf_map_pop_elem(&resets, reset))
		return 0;
	sk = socket_by(skb, &segment->lookup, lookup_of(&reset->tuple, &segment->lookup));
	if (!sk)
		return 0;
	__builtin_memset(&segment->socket, 0, sizeof(segment->socket));
	read_socket(sk, &segment->socket);
	bpf_sk_release((struct bpf_sock *)sk);
	if (!tw_missed(&segment->socket, reset->seq))
		return 0;
	ending.since_ns = reset->since_ns;
	ending.rule = reset->rule;
	bpf_map_update_elem(&endings, &reset->tuple, &ending, BPF_ANY);
	noted = 1;
	return 0;
}

/* Notes a RST in place of this FIN. Returns false if there is no room. */
static __always_inline bool note_reset(struct __sk_buff *skb, struct segment *segment)
{
	struct timewait_reset *reset = &segment->reset;

	look_for_missed(skb, segment);
	reset->tuple = segment->tuple;
	reset->since_ns = bpf_ktime_get_ns();
	reset->seq = segment->seq;
	reset->rule = segment->rule;
	reset->pad = 0;
	return !bpf_map_push_elem(&resets, reset, 0);
}

/* Acknowledges the FIN that a segment without data has, from what stands in it. Returns as answer_beside(). */
static __always_inline int acknowledge_fin(struct __sk_buff *skb, struct segment *segment)
{
	const struct syn_options *options = &segment->options;
	struct answer *answer = begin_answer(segment, FLAG_ACK, segment->ack, segment->seq + 1);

	if (options->tstamp) {
		/* What it has last seen of this end, and its own. */
		answer->options[0] = STAMPS;
		answer->options[1] = bpf_htonl(options->tsecr);
		answer->options[2] = bpf_htonl(options->tsval);
	}
	return answer_beside(skb, segment);
}

/* What hand_on() changes in a TCP header. Big endian. */
struct header_fields {
	__be32 seq;
	__be16 urgent;
	u8 flags;
};

static __always_inline void rewrite(struct __sk_buff *skb, u32 l4, const struct header_fields *from,
				    const struct header_fields *to)
{
	rewrite_flags(skb, l4, from->flags, to->flags);
	bpf_l4_csum_replace(skb, l4 + 16, from->seq, to->seq, 4);
	bpf_l4_csum_replace(skb, l4 + 16, from->urgent, to->urgent, 2);
	bpf_skb_store_bytes(skb, l4 + 4, &to->seq, 4, 0);
	bpf_skb_store_bytes(skb, l4 + 18, &to->urgent, 2, 0);
}

/* Hands a segment on, and a RST after it. */
static __always_inline int hand_on(struct __sk_buff *skb, struct segment *segment)
{
	u32 data = segment->packet.tcp_len - segment->packet.header_len;
	u8 flags = segment->packet.flags;
	struct header_fields handed_on = {
		.seq = bpf_htonl(segment->seq), .urgent = segment->urgent, .flags = flags
	};
	struct header_fields rst = {
		.seq = bpf_htonl(segment->seq + data + (flags & FLAG_FIN ? 1 : 0)),
		.urgent = OWN_RST,
		.flags = (flags & ~FLAG_FIN) | FLAG_RST,
	};

	rewrite(skb, segment->packet.l4, &handed_on, &rst);
	bpf_clone_redirect(skb, CTX_LOAD(skb, ifindex), BPF_F_INGRESS);
	rewrite(skb, segment->packet.l4, &rst, &handed_on);
	return PASS;
}

/* The same. Global: verified once. */
__noinline int hand_on_and_end(struct __sk_buff *skb, struct segment *segment)
{
	return segment ? hand_on(skb, segment) : PASS;
}

/* For a socket that is there, which user space ends if the RST does not. */
static __always_inline int end_after(struct __sk_buff *skb, struct segment *segment)
{
	if ((segment->packet.flags & FLAG_URG) || note_ending(segment) == NOT_NOTED)
		return PASS;
	return hand_on_and_end(skb, segment);
}

/* For one that may come. */
static __always_inline int end_what_comes(struct __sk_buff *skb, struct segment *segment)
{
	if ((segment->packet.flags & FLAG_URG) || handed_on >= WEIR_MAX_TIMEWAIT_HANDED_ON)
		return PASS;
	__sync_fetch_and_add(&handed_on, 1);
	return hand_on_and_end(skb, segment);
}

/* What a segment says at the close of a connection whose rule negotiates. Returns false if it cannot be read. */
static __always_inline bool read_close(struct __sk_buff *skb, struct segment *segment)
{
	struct option_walk *walk = load_options(skb, &segment->packet);
	struct syn_options *options = &segment->options;
	struct tw_segment *close = &segment->close;

	if (!walk)
		return false;
	if (!usual_options(walk))
		walk_options(walk);
	*options = walk->options;
	close->seq = segment->seq;
	close->ack = segment->ack;
	close->data = segment->packet.tcp_len - segment->packet.header_len;
	close->fin = !!(segment->packet.flags & FLAG_FIN);
	close->phase = options->holder == TW_SENDER ? options->phase : TW_NO_OPTION;
	close->sealed = options->sealed;
	close->awaited = !close->fin && noted && bpf_map_lookup_elem(&endings, &segment->tuple);
	return true;
}

/* Ends the socket in place of the FIN. */
static __always_inline int end_instead(struct __sk_buff *skb, struct segment *segment, bool orphan)
{
	int done;

	if (!segment_sound(skb, segment))
		return PASS;
	if (orphan && !note_reset(skb, segment))
		return end_after(skb, segment);
	done = acknowledge_fin(skb, segment);
	if (tw_fin_goes_on(done))
		return PASS;
	if (done) {
		note_ending(segment);
		return TC_DROP;
	}
	/* One that was noted is counted already. */
	if (!was_noted(segment))
		COUNT(segment->rule, held_by_peer);
	COUNT(segment->rule, avoided);
	keep_in_mind(segment, segment->seq);
	become_rst(skb, segment);
	return PASS;
}

/* A segment at the close of a connection whose rule negotiates. */
static __always_inline int on_agreed_close(struct __sk_buff *skb, struct segment *segment)
{
	bool without_socket = !segment->socket.state || segment->socket.state == TCP_LISTEN;
	u8 step;

	segment->close.has_ended = without_socket && tw_may_step(&segment->close) && has_ended(segment);
	step = tw_step(&segment->socket, &segment->close);
	switch (step) {
	case TW_NOTE:
		COUNT(segment->rule, held_by_peer);
		return PASS;
	case TW_ANSWER:
		if (!segment_sound(skb, segment) || tw_fin_goes_on(acknowledge_fin(skb, segment)))
			return PASS;
		return TC_DROP;
	case TW_HAND_ON:
		return end_what_comes(skb, segment);
	case TW_END:
	case TW_END_ORPHAN:
		return end_instead(skb, segment, step == TW_END_ORPHAN);
	case TW_END_AFTER:
		return end_after(skb, segment);
	case TW_AWAIT:
		note_awaited(segment);
		return PASS;
	}
	return PASS;
}

/* Whether TIME-WAIT does not end by a RST here: net.ipv4.tcp_rfc1337. */
static __always_inline bool is_protected(struct __sk_buff *skb)
{
	struct sk_buff *buffer = bpf_cast_to_kern_ctx(skb);
	const struct net_device *dev = buffer->dev;

	return bpf_core_field_exists(dev->nd_net.net) && dev->nd_net.net->ipv4.sysctl_tcp_rfc1337;
}

/*
 * A client whose SYN was put off answers the old connection's ACK with a RST, and the kernel's TIME-WAIT ends. So does
 * a record. RSTs for anything else end none (RFC 1337).
 */
static __always_inline void end_put_off(struct segment *segment)
{
	struct timewait_record *record = record_of(&segment->tuple);

	if (!record || !record->put_off || record->until_ns == CLOSING || record->rcv_nxt != segment->seq)
		return;
	if (!bpf_map_delete_elem(&records, &segment->tuple))
		COUNT(segment->rule, reused);
}

/* One of hand_on_and_end() passes if the socket that it is to end is in TIME-WAIT. Global: verified once. */
__noinline int on_rst(struct __sk_buff *skb, struct segment *segment)
{
	struct tw_socket socket = {};
	struct sock_common *sk;
	bool own;

	if (!segment || rule_at(segment->rule)->timewait != TIMEWAIT_NEGOTIATE)
		return PASS;
	own = segment->urgent == OWN_RST && !(segment->packet.flags & FLAG_URG);
	sk = socket_of(skb, segment);
	if (sk) {
		read_socket(sk, &socket);
		bpf_sk_release((struct bpf_sock *)sk);
	}
	if (!own) {
		if (recorded && (!sk || socket.state == TCP_LISTEN) && !is_protected(skb) && segment_sound(skb, segment))
			end_put_off(segment);
		return tw_shields(&socket) ? TC_DROP : PASS;
	}
	if (!tw_ends(&socket, segment->seq, segment->ack) || is_protected(skb) || !segment_sound(skb, segment))
		return TC_DROP;
	if (was_noted(segment))
		COUNT(segment->rule, avoided);
	keep_in_mind(segment, segment->seq - 1);
	return PASS;
}

#endif
