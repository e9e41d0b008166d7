/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * front.bpf.h - the XDP front: refuses in the driver what tc would refuse,
 * before receive steering and the queues behind it, and off the server's core.
 *
 * It makes tc's decision, on SYNs and, while cookies are out, on final ACKs.
 * Who is let by counts as under way (fronted - front_seen) until tc sees it;
 * tc then decides with claims, exactly. So the front may err to both sides by
 * what is lost in between, and for FRONT_LOST_NS only.
 */
#ifndef WEIR_FRONT_BPF_H
#define WEIR_FRONT_BPF_H

#include "abi/guard.h"
#include "lib/ack.bpf.h"
#include "lib/act.bpf.h"
#include "lib/cookies.bpf.h"
#include "lib/establish.bpf.h"
#include "lib/police.bpf.h"

static __always_inline int front_refuse_syn(struct xdp_md *xdp, const struct listener_policy *l,
					    const struct arrival *x)
{
	struct xdp_buff *k = bpf_cast_to_kern_ctx(xdp);
	u32 ack = 0, isn = seq_of_xdp(xdp, &x->p, &ack);
	struct answer a = {};

	if (sends_cookie(x->verdict)) {
		struct option_walk *w = options_of_xdp(xdp, &x->p);

		if (!w)
			return XDP_PASS;
		cookie_answer(&a, &w->o, x, isn, k->rxq->dev->mtu);
	} else if (sends_rst(x->verdict)) {
		rst_to_syn(&a, &x->p, isn, l);
	} else {
		return XDP_DROP;
	}
	return answer_xdp(xdp, &x->p, &a, x->verdict);
}

/* As view_queue(), without a claim of its own and with those under way to tc. */
static __always_inline void front_view(struct xdp_md *xdp, struct listen_state *s, const struct listener_policy *l,
				       struct arrival *x)
{
	u32 extra = inflight_behind_front(s, x->now);

	view_read(s, x, 0, extra);
	if (!view_in_doubt(l, x, extra))
		return;
	claims_resolve_xdp(xdp, s, x->now);
	view_read(s, x, 0, extra);
}

static __always_inline int let_by_front(struct listen_state *s)
{
	__sync_fetch_and_add(&s->fronted, 1);
	return XDP_PASS;
}

/* As judge_syn(), without a claim. */
__noinline int front_judge(struct xdp_md *xdp, const struct listener_policy *l, struct listen_state *s,
			   struct arrival *x)
{
	bool waiting;

	if (!l || !s || !x)
		return VERDICT_syn_admitted;
	front_view(xdp, s, l, x);
	waiting = waits_too_long(s, l, &x->q, x->now);
	x->verdict = syn_verdict(l, &x->q, waiting, cookie_possible(x), flooded(s, x->now));
	return x->verdict;
}

static __always_inline bool front_lets_by(enum verdict v)
{
	return v == VERDICT_syn_admitted || left_to_kernel(v);
}

/* As decide_by_lookup(). Returns REFUSE or an action. */
static __always_inline int front_decide_by_lookup(struct xdp_md *xdp, const struct listener_policy *l,
						  struct arrival *x, struct destination *d, struct listen_state **s)
{
	struct bpf_sock *sk = syn_lookup(xdp, x);
	const struct tcp_sock *tp;
	bool other;

	if (!sk)
		return XDP_PASS;
	tp = listener_read(sk);
	if (sk->state != TCP_LISTEN) {
		bpf_sk_release(sk);
		/* tc will count it too, if it knows the listener. */
		return *s ? let_by_front(*s) : XDP_PASS;
	}
	x->mptcp = tp->is_mptcp;
	other = !*s || (u64)tp != x->socket;
	if (other)
		*s = syn_found(x, d, tp);
	if (!*s) {
		bpf_sk_release(sk);
		return XDP_PASS;
	}
	if (other || x->time_wait)
		front_judge(xdp, l, *s, x);
	bpf_sk_release(sk);
	return front_lets_by(x->verdict) || l->observe ? let_by_front(*s) : REFUSE;
}

/*
 * Polices a SYN of a limited class and marks it for tc. Where it cannot be
 * marked, tc polices it, so that no token is taken twice.
 */
static __always_inline bool front_over_rate(struct xdp_md *xdp, const struct listener_policy *l, struct arrival *x)
{
	u32 copy = class_copy(l);
	int over;

	if (!polices(l) || l->observe || !class_limited(x->class, copy) || !mark_policed(xdp))
		return false;
	over = police(x->class, copy);
	x->verdict = rate_verdict(l, over);
	return over;
}

/* Refuses a SYN that is over its class's rate (s: NULL), or for its queue. */
static __always_inline int front_turn_away(struct xdp_md *xdp, const struct listener_policy *l, struct arrival *x,
					   struct listen_state *s)
{
	note_refusal(s, l, x);
	count_for(l, x->class, VERDICT_refused_at_xdp);
	return front_refuse_syn(xdp, l, x);
}

/* Global. */
__noinline int front_syn(struct xdp_md *xdp, const struct listener_policy *l, struct arrival *x)
{
	struct listen_state *s = NULL;
	struct destination *d;
	int action;

	if (!l || !x || !tuple_of_xdp(xdp, x))
		return XDP_PASS;
	x->now = clock_ns();
	x->mptcp = x->time_wait = 0;
	d = destination_of(xdp, true, CTX_LOAD(xdp, ingress_ifindex), x);
	if (!d)
		return XDP_PASS;
	x->class = class_for(l, x);
	if (front_over_rate(xdp, l, x) && answerable_xdp(xdp, x))
		return front_turn_away(xdp, l, x, NULL);
	s = syn_recall(x, d);
	if (s && front_lets_by(front_judge(xdp, l, s, x)))
		return let_by_front(s);
	action = front_decide_by_lookup(xdp, l, x, d, &s);
	if (action != REFUSE)
		return action;
	return answerable_xdp(xdp, x) ? front_turn_away(xdp, l, x, s) : let_by_front(s);
}

/* The verdict on the final ACK of a cookie, without a claim. Global. */
__noinline int front_judge_ack(struct xdp_md *xdp, const struct listener_policy *l, struct listen_state *s,
			       struct arrival *x)
{
	if (!l || !s || !x)
		return VERDICT_cookie_accepted;
	front_view(xdp, s, l, x);
	x->verdict = cookie_ack_verdict(l, &x->q, waits_too_long(s, l, &x->q, x->now));
	return x->verdict;
}

/* Cookies that the front let by once are tc's: their data must not count as under way again. */
static __always_inline int front_cookie_ack(struct xdp_md *xdp, const struct listener_policy *l, struct arrival *x,
					    struct listen_state *s)
{
	struct answer a;
	u32 ack = 0, seq = seq_of_xdp(xdp, &x->p, &ack);
	struct cookie_ack c = cookie_answered(seq, ack);

	if (settled(let_by, &c) || !cookie_valid(x, &c))
		return XDP_PASS;
	x->verdict = VERDICT_ack_reset_full;
	if (!settled(refused, &c)) {
		x->class = class_for(l, x);
		if (front_judge_ack(xdp, l, s, x) == VERDICT_cookie_accepted || !answerable_xdp(xdp, x)) {
			settle(let_by, &c);
			return let_by_front(s);
		}
		settle(refused, &c);
		note_refused_ack(s, l, x);
		count_for(l, x->class, VERDICT_refused_at_xdp);
	}
	rst(&a, l, ack);
	return answer_xdp(xdp, &x->p, &a, x->verdict);
}

/* Global. */
__noinline int front_ack(struct xdp_md *xdp, const struct listener_policy *l, struct arrival *x)
{
	struct listen_state *s;
	struct bpf_sock *sk;

	if (!l || !x || !reserves(l) || l->observe || !tuple_of_xdp(xdp, x))
		return XDP_PASS;
	x->now = clock_ns();
	sk = flow_lookup(xdp, &x->t, x->p.v6);
	if (!sk)
		return XDP_PASS;
	s = sk->state == TCP_LISTEN ? queue_state_of(listener_read(sk), x->now) : NULL;
	bpf_sk_release(sk);
	return s ? front_cookie_ack(xdp, l, x, s) : XDP_PASS;
}

#endif
