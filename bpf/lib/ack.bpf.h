/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * ack.bpf.h - the final ACK of a handshake, where it decides: it brings a
 * cookie back, or it meets a queue that has become full. Only while cookies or
 * handshakes without a sure place are out (watch_acks()).
 */
#ifndef WEIR_ACK_BPF_H
#define WEIR_ACK_BPF_H

#include "abi/guard.h"
#include "lib/act.bpf.h"
#include "lib/cookies.bpf.h"
#include "lib/establish.bpf.h"
#include "lib/parking.bpf.h"
#include "lib/police.bpf.h"

extern int bpf_sk_assign_tcp_reqsk(struct __sk_buff *skb, struct sock *sk, struct bpf_tcp_req_attrs *attrs,
				   int attrs__sz) __ksym __weak;

static __always_inline void cookie_attrs(struct bpf_tcp_req_attrs *attrs, const struct syn_options *options)
{
	attrs->mss = options->mss;
	attrs->rcv_wscale = COOKIE_RCV_WSCALE;
	attrs->wscale_ok = options->wscale != COOKIE_NO_WSCALE;
	attrs->snd_wscale = attrs->wscale_ok ? options->wscale : 0;
	if (!attrs->wscale_ok)
		attrs->rcv_wscale = 0;
	attrs->sack_ok = options->sack;
	attrs->tstamp_ok = options->tstamp;
	attrs->rcv_tsval = options->tsval;
	attrs->rcv_tsecr = options->tsecr;
}

/* Timestamps of the ACK itself: it carries them exactly when the SYN/ACK did. */
static __always_inline void ack_timestamps(struct __sk_buff *skb, const struct packet *packet,
					   struct syn_options *options)
{
	struct option_walk *walk = options_of_skb(skb, packet);

	options->tstamp = 0;
	if (!walk)
		return;
	options->tstamp = walk->options.tstamp;
	options->tsval = walk->options.tsval;
	options->tsecr = walk->options.tsecr;
}

static __always_inline void note_refused_ack(struct listen_state *state, const struct listener_policy *listener,
					     const struct arrival *arrival)
{
	count_for(listener, arrival->class, arrival->verdict);
	sample(state, listener, arrival);
}

/*
 * Whether tc filters stand behind weir on this device. One may redirect the packet to where it waits, as into an ifb.
 * The request that a cookie becomes does not hold its listener: that is there for as long as the packet goes on at
 * once. User space looks for them each second, and then no cookie comes this far.
 */
static __always_inline bool has_filters_behind(struct __sk_buff *skb)
{
	struct sk_buff *buffer = bpf_cast_to_kern_ctx(skb);
	const struct bpf_mprog_entry *entry = buffer->dev->tcx_ingress;
	const struct tcx_entry *tcx;
	const void *bundle;

	if (!entry)
		return false;
	bundle = entry->parent;
	if (!bundle)
		return false;
	tcx = bpf_rdonly_cast(bundle - bpf_core_field_offset(struct tcx_entry, bundle),
			      bpf_core_type_id_kernel(struct tcx_entry));
	return tcx->miniq;
}

/* Has the kernel make the connection from this ACK. The caller's claim is settled one way or the other. */
static __always_inline int accept_cookie(struct __sk_buff *skb, const struct listener_policy *listener,
					 const struct arrival *arrival, struct cookie_ack *cookie,
					 struct listen_state *state, struct tcp_sock *tp)
{
	struct bpf_tcp_req_attrs attrs = {};

	ack_timestamps(skb, &arrival->packet, &cookie->options);
	cookie_attrs(&attrs, &cookie->options);
	if (has_filters_behind(skb) || bpf_sk_assign_tcp_reqsk(skb, (struct sock *)tp, &attrs, sizeof(attrs))) {
		claim_cancel(state);
		count_for(listener, arrival->class, VERDICT_cookie_failed);
		return PASS;
	}
	claim_commit_here(state, arrival);
	no_handshake_under_way(state);
	settle(accepted, cookie);
	count_for(listener, arrival->class, VERDICT_cookie_accepted);
	return PASS;
}

/* A valid cookie's ACK that is seen for the first time: the verdict, and a claim if it is accepted. Global. */
__noinline int judge_cookie_ack(struct __sk_buff *skb, const struct listener_policy *listener,
				struct listen_state *state, struct arrival *arrival)
{
	if (!listener || !state || !arrival)
		return VERDICT_cookie_failed;
	view_queue(skb, state, listener, arrival, claim_begin(state), 1);
	arrival->verdict = listener->observe ?
				   VERDICT_cookie_accepted :
				   cookie_ack_verdict(listener, &arrival->queue,
						      waits_too_long(state, listener, &arrival->queue, arrival->now));
	if (arrival->verdict != VERDICT_cookie_accepted) {
		claim_cancel(state);
		note_refused_ack(state, listener, arrival);
	}
	return arrival->verdict;
}

/* An ACK for which only the listener was found, while cookies are out. Returns PASS or REFUSE. */
static __always_inline int on_cookie_ack(struct __sk_buff *skb, const struct listener_policy *listener,
					 struct arrival *arrival, struct listen_state *state, struct tcp_sock *tp)
{
	u32 ack = 0, seq = seq_of_skb(skb, &arrival->packet, &ack);
	struct cookie_ack cookie = cookie_answered(seq, ack);

	arrival->class = class_for(listener, arrival);
	if (!cookie_valid(listener, arrival, &cookie)) {
		/* While weir observes, the kernel sends cookies of its own, and takes them. */
		if (!listener->observe)
			count_for(listener, arrival->class, VERDICT_cookie_invalid);
		return PASS;
	}
	arrival->verdict = VERDICT_ack_reset_full;
	if (settled(refused, &cookie))
		return listener->observe ? PASS : REFUSE;
	/*
	 * Data in the same batch as its final ACK: the stack makes the connection from the ACK, just before. Once: what
	 * comes later with these numbers finds the connection, or is judged anew.
	 */
	if (settled(accepted, &cookie)) {
		*settled_slot(accepted, &cookie) = 0;
		return PASS;
	}
	if (judge_cookie_ack(skb, listener, state, arrival) == VERDICT_cookie_accepted)
		return accept_cookie(skb, listener, arrival, &cookie, state, tp);
	settle(refused, &cookie);
	return REFUSE;
}

/* Whether an ACK with these numbers is the one that the half-open connection waits for. */
static __always_inline bool request_ended_by(struct bpf_sock *sk, u32 seq, u32 ack)
{
	const struct tcp_request_sock *request = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct tcp_request_sock));

	return seq == request->rcv_isn + 1 && ack == request->snt_isn + 1;
}

/*
 * The final ACK of a handshake that the kernel holds: abort, and reserv with overbooking. That of a new path of an
 * MPTCP connection is left to the kernel: the client repeats it when it is dropped. Releases sk.
 */
static __always_inline int on_request_ack(struct __sk_buff *skb, const struct listener_policy *listener,
					  struct arrival *arrival, struct bpf_sock *sk)
{
	struct bpf_sock *listening = bpf_get_listener_sock(sk);
	struct tcp_sock *tp = listening ? bpf_skc_to_tcp_sock(listening) : NULL;
	struct listen_state *state;
	bool ends_handshake;
	u32 ack = 0, seq;

	if (!tp || listener->establish == ESTABLISH_DEFAULT || listener->draining) {
		bpf_sk_release(sk);
		return PASS;
	}
	arrival->mptcp = is_mptcp(tp);
	queue_read(tp, &arrival->queue);
	/* Only where it decides: nothing else here needs a slot. */
	state = kernel_full(&arrival->queue) ? queue_state_of(tp, arrival->now) : NULL;
	seq = seq_of_skb(skb, &arrival->packet, &ack);
	ends_handshake = request_ended_by(sk, seq, ack);
	bpf_sk_release(sk);
	if (!state || !ends_handshake || (arrival->mptcp && adds_path_skb(skb, arrival)))
		return PASS;
	arrival->class = class_for(listener, arrival);
	arrival->verdict = VERDICT_ack_reset_full;
	note_refused_ack(state, listener, arrival);
	if (listener->observe)
		return PASS;
	return reset_both(skb, &arrival->packet, listener, seq, ack, VERDICT_ack_reset_full);
}

/*
 * Whether the kernel says that the ACK brings one of its own SYN cookies back. A kernel that has none is not asked, and
 * one whose IPv6 is a module cannot say so of that. Global: it is rare, and beside the deepest way.
 */
__noinline int brings_kernel_cookie(struct __sk_buff *skb, const struct packet *packet)
{
	void *network = skb_start(skb) + link_header, *data_end = skb_end(skb);
	struct ipv4 *ip4 = network;
	struct ipv6 *ip6 = network;
	struct tcp *tcp;

	if (!packet || !kernel_cookies)
		return false;
	tcp = packet->v6 ? (void *)(ip6 + 1) : (void *)(ip4 + 1);
	if ((void *)(tcp + 1) > data_end)
		return false;
	if (packet->v6)
		return !bpf_tcp_raw_check_syncookie_ipv6((void *)ip6, (void *)tcp);
	return !bpf_tcp_raw_check_syncookie_ipv4((void *)ip4, (void *)tcp);
}

/*
 * Where cookies are the kernel's: an ACK for which only the listener was found,
 * while its queue is full. If it ends the handshake of a kernel's cookie, the
 * kernel would drop it. Any other is left to the kernel, for it may belong to a
 * connection that is not found here: one that DNAT moves to another port, which
 * happens behind weir, or one whose socket another CPU is just putting in the place
 * of its request, or of itself in TIME-WAIT. Data that follows a refused ACK has its
 * numbers: it is refused too, and counts no more. Releases sk. Returns PASS or REFUSE.
 */
static __always_inline int on_listener_ack(struct __sk_buff *skb, const struct listener_policy *listener,
					   struct arrival *arrival, struct bpf_sock *sk)
{
	const struct tcp_sock *tp = listener_read(sk);
	bool full = listener_length(tp) > listener_limit(tp);
	u32 ack = 0, seq = seq_of_skb(skb, &arrival->packet, &ack);
	struct cookie_ack cookie = cookie_answered(seq, ack);

	arrival->mptcp = is_mptcp(tp);
	bpf_sk_release(sk);
	if (!full || listener->draining || is_steered(&arrival->socket) || (arrival->mptcp && adds_path_skb(skb, arrival)) ||
	    !brings_kernel_cookie(skb, &arrival->packet))
		return PASS;
	arrival->verdict = VERDICT_ack_reset_full;
	if (!settled(refused, &cookie))
		count_for(listener, class_for(listener, arrival), arrival->verdict);
	settle(refused, &cookie);
	return listener->observe ? PASS : REFUSE;
}

/* Returns REFUSE or an action. */
static __always_inline int decide_ack(struct __sk_buff *skb, const struct listener_policy *listener,
				      struct arrival *arrival)
{
	struct bpf_sock *sk = flow_lookup(skb, &arrival->tuple, arrival->packet.v6);
	struct listen_state *state;
	struct tcp_sock *tp;
	int action;

	if (!sk)
		return PASS;
	if (sk->state == TCP_NEW_SYN_RECV)
		return on_request_ack(skb, listener, arrival, sk);
	arrival->socket = (u64)sk;
	if (sk->state == TCP_LISTEN && (listener->establish == ESTABLISH_ABORT ||
					(reserves(listener) && !cookie_possible(listener, arrival))))
		return on_listener_ack(skb, listener, arrival, sk);
	/* Of a listener that only observes too: its cookies are of the moment before it did. */
	tp = sk->state == TCP_LISTEN && reserves(listener) ? bpf_skc_to_tcp_sock(sk) : NULL;
	state = tp && bpf_ksym_exists(bpf_sk_assign_tcp_reqsk) ? queue_state_of(tp, arrival->now) : NULL;
	action = state ? on_cookie_ack(skb, listener, arrival, state, tp) : PASS;
	bpf_sk_release(sk);
	return action;
}

/* Global. */
__noinline int on_ack(struct __sk_buff *skb, const struct listener_policy *listener, struct arrival *arrival)
{
	struct answer answer;
	u32 ack = 0;
	int action;

	if (!listener || !arrival)
		return PASS;
	arrival->now = clock_ns();
	/* A damaged or misdirected packet must not end a handshake. */
	if (acks_watch_over(arrival->now) || !tuple_of_skb(skb, arrival) || !answerable_skb(skb, arrival) ||
	    came_by_ipsec(skb) ||
	    !destination_of(skb, false, CTX_LOAD(skb, ifindex), arrival))
		return PASS;
	action = decide_ack(skb, listener, arrival);
	if (action != REFUSE)
		return action;
	seq_of_skb(skb, &arrival->packet, &ack);
	rst(&answer, listener, ack);
	return answer_instead(skb, &arrival->packet, &answer, arrival->verdict);
}

#endif
