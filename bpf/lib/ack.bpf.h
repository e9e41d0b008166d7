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

static __always_inline void cookie_attrs(struct bpf_tcp_req_attrs *attrs, const struct syn_options *o)
{
	attrs->mss = o->mss;
	attrs->rcv_wscale = COOKIE_RCV_WSCALE;
	attrs->wscale_ok = o->wscale != COOKIE_NO_WSCALE;
	attrs->snd_wscale = attrs->wscale_ok ? o->wscale : 0;
	if (!attrs->wscale_ok)
		attrs->rcv_wscale = 0;
	attrs->sack_ok = o->sack;
	attrs->tstamp_ok = o->tstamp;
	attrs->rcv_tsval = o->tsval;
	attrs->rcv_tsecr = o->tsecr;
}

/* Timestamps of the ACK itself: it carries them exactly when the SYN/ACK did. */
static __always_inline void ack_timestamps(struct __sk_buff *skb, const struct packet *p, struct syn_options *o)
{
	struct option_walk *w = options_of_skb(skb, p);

	o->tstamp = 0;
	if (!w)
		return;
	o->tstamp = w->o.tstamp;
	o->tsval = w->o.tsval;
	o->tsecr = w->o.tsecr;
}

static __always_inline void note_refused_ack(struct listen_state *s, const struct listener_policy *l,
					     const struct arrival *x)
{
	count_for(l, x->class, x->verdict);
	sample(s, l, x);
}

/* Has the kernel make the connection from this ACK. The caller's claim is settled one way or the other. */
static __always_inline int accept_cookie(struct __sk_buff *skb, const struct listener_policy *l,
					 const struct arrival *x, struct cookie_ack *c, struct listen_state *s,
					 struct tcp_sock *tp)
{
	struct bpf_tcp_req_attrs attrs = {};

	ack_timestamps(skb, &x->p, &c->o);
	cookie_attrs(&attrs, &c->o);
	if (bpf_sk_assign_tcp_reqsk(skb, (struct sock *)tp, &attrs, sizeof(attrs))) {
		claim_cancel(s);
		count_for(l, x->class, VERDICT_cookie_failed);
		return PASS;
	}
	claim_commit(s, &x->t, x->p.v6, x->now);
	settle(accepted, c);
	count_for(l, x->class, VERDICT_cookie_accepted);
	return PASS;
}

/* A valid cookie's ACK that is seen for the first time: the verdict, and a claim if it is accepted. Global. */
__noinline int judge_cookie_ack(struct __sk_buff *skb, const struct listener_policy *l, struct listen_state *s,
				struct arrival *x)
{
	if (!l || !s || !x)
		return VERDICT_cookie_failed;
	front_reached_tc(s, l, x->now);
	claim_begin(s);
	view_queue(skb, s, l, x, 1);
	x->verdict = cookie_ack_verdict(l, &x->q, waits_too_long(s, l, &x->q, x->now));
	if (x->verdict != VERDICT_cookie_accepted) {
		claim_cancel(s);
		note_refused_ack(s, l, x);
	}
	return x->verdict;
}

/* An ACK for which only the listener was found, while cookies are out. Returns PASS or REFUSE. */
static __always_inline int on_cookie_ack(struct __sk_buff *skb, const struct listener_policy *l, struct arrival *x,
					 struct listen_state *s, struct tcp_sock *tp)
{
	u32 ack = 0, seq = seq_of_skb(skb, &x->p, &ack);
	struct cookie_ack c = cookie_answered(seq, ack);

	x->class = class_for(l, x);
	if (!cookie_valid(x, &c)) {
		count_for(l, x->class, VERDICT_cookie_invalid);
		return PASS;
	}
	x->verdict = VERDICT_ack_reset_full;
	if (settled(refused, &c))
		return REFUSE;
	/* Data in the same batch as its final ACK: the stack makes the connection from the ACK, just before. */
	if (settled(accepted, &c)) {
		*settled_slot(accepted, &c) = 0;
		return PASS;
	}
	if (judge_cookie_ack(skb, l, s, x) == VERDICT_cookie_accepted)
		return accept_cookie(skb, l, x, &c, s, tp);
	settle(refused, &c);
	return REFUSE;
}

/* Whether an ACK with these numbers is the one that the half-open connection waits for. */
static __always_inline bool request_ended_by(struct bpf_sock *sk, u32 seq, u32 ack)
{
	const struct tcp_request_sock *r = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct tcp_request_sock));

	return seq == r->rcv_isn + 1 && ack == r->snt_isn + 1;
}

/* The final ACK of a handshake that the kernel holds: abort, and reserv with overbooking. Releases sk. */
static __always_inline int on_request_ack(struct __sk_buff *skb, const struct listener_policy *l, struct arrival *x,
					  struct bpf_sock *sk)
{
	struct bpf_sock *listener = bpf_get_listener_sock(sk);
	struct tcp_sock *tp = listener ? bpf_skc_to_tcp_sock(listener) : NULL;
	struct listen_state *s = tp ? queue_state((u64)tp, x->now) : NULL;
	bool ends_handshake;
	u32 ack = 0, seq;

	if (!s || l->establish == ESTABLISH_DEFAULT || l->draining) {
		bpf_sk_release(sk);
		return PASS;
	}
	queue_read(tp, &x->q);
	seq = seq_of_skb(skb, &x->p, &ack);
	ends_handshake = request_ended_by(sk, seq, ack);
	bpf_sk_release(sk);
	if (!kernel_full(&x->q) || !ends_handshake)
		return PASS;
	x->class = class_for(l, x);
	x->verdict = VERDICT_ack_reset_full;
	note_refused_ack(s, l, x);
	if (l->observe)
		return PASS;
	return reset_both(skb, &x->p, l, seq, ack, VERDICT_ack_reset_full);
}

/*
 * abort: an ACK for which only the listener was found, while its queue is full.
 * If it ends the handshake of a kernel's cookie, the kernel would drop it; if
 * not, the kernel would reset it too. Releases sk. Returns PASS or REFUSE.
 */
static __always_inline int on_listener_ack(const struct listener_policy *l, struct arrival *x, struct bpf_sock *sk)
{
	const struct tcp_sock *tp = listener_read(sk);
	bool full = listener_length(tp) > listener_limit(tp);

	bpf_sk_release(sk);
	if (!full || l->draining)
		return PASS;
	x->verdict = VERDICT_ack_reset_full;
	count_for(l, class_for(l, x), x->verdict);
	return l->observe ? PASS : REFUSE;
}

/* Returns REFUSE or an action. */
static __always_inline int decide_ack(struct __sk_buff *skb, const struct listener_policy *l, struct arrival *x)
{
	struct bpf_sock *sk = flow_lookup(skb, &x->t, x->p.v6);
	struct listen_state *s;
	struct tcp_sock *tp;
	int action;

	if (!sk)
		return PASS;
	if (sk->state == TCP_NEW_SYN_RECV)
		return on_request_ack(skb, l, x, sk);
	if (sk->state == TCP_LISTEN && l->establish == ESTABLISH_ABORT)
		return on_listener_ack(l, x, sk);
	tp = sk->state == TCP_LISTEN && reserves(l) && !l->observe ? bpf_skc_to_tcp_sock(sk) : NULL;
	s = tp && bpf_ksym_exists(bpf_sk_assign_tcp_reqsk) ? queue_state_of(tp, x->now) : NULL;
	action = s ? on_cookie_ack(skb, l, x, s, tp) : PASS;
	bpf_sk_release(sk);
	return action;
}

/* Global. */
__noinline int on_ack(struct __sk_buff *skb, const struct listener_policy *l, struct arrival *x)
{
	struct answer a;
	u32 ack = 0;
	int action;

	if (!l || !x)
		return PASS;
	x->now = clock_ns();
	/* A damaged or misdirected packet must not end a handshake. */
	if (ack_watch_over(x->now) || !tuple_of_skb(skb, x) || !answerable_skb(skb, x) ||
	    !destination_of(skb, false, CTX_LOAD(skb, ifindex), x))
		return PASS;
	action = decide_ack(skb, l, x);
	if (action != REFUSE)
		return action;
	seq_of_skb(skb, &x->p, &ack);
	rst(&a, l, ack);
	return answer_instead(skb, &x->p, &a, x->verdict);
}

#endif
