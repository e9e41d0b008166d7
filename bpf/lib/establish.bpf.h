/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * establish.bpf.h - the SYN: who gets a place in the listen queue, and what the
 * others get. Final ACKs: ack.bpf.h.
 */
#ifndef WEIR_ESTABLISH_BPF_H
#define WEIR_ESTABLISH_BPF_H

#include "abi/guard.h"
#include "lib/act.bpf.h"
#include "lib/admit.h"
#include "lib/arrival.bpf.h"
#include "lib/cookies.bpf.h"
#include "lib/ledger.bpf.h"
#include "lib/police.bpf.h"
#include "lib/state.bpf.h"
#include "lib/waiting.bpf.h"

/* SYNs lost between the XDP front and tc (full receive backlog) stop counting as under way after this. */
#define FRONT_LOST_NS 10000000ULL

static __always_inline void front_reached_tc(struct listen_state *s, const struct listener_policy *l, u64 now)
{
	if (!l->front_xdp)
		return;
	__sync_fetch_and_add(&s->front_seen, 1);
	s->front_seen_ns = now;
}

static __always_inline u64 inflight_behind_front(struct listen_state *s, u64 now)
{
	u64 seen = *(volatile u64 *)&s->front_seen, fronted = *(volatile u64 *)&s->fronted;
	s64 inflight = fronted - seen;

	if (inflight > 0 && now - s->front_seen_ns < FRONT_LOST_NS)
		return inflight;
	if (inflight)
		__sync_val_compare_and_swap(&s->front_seen, seen, fronted);
	return 0;
}

/* Whether the claims in the view stand between somebody and a place. Global. */
__noinline int claims_matter(const struct listener_policy *l, const struct queue_view *q, u32 extra)
{
	struct queue_view bare;

	if (!l || !q)
		return 0;
	bare = *q;
	bare.claims = extra;
	return place_free(l, &bare) != place_free(l, q) ||
	       place_free_of_young(l, &bare) != place_free_of_young(l, q) ||
	       half_reserved(l, &bare) != half_reserved(l, q);
}

/* Takes out the claims that the kernel counts by now. */
static __always_inline int claims_resolve(void *ctx, struct listen_state *s, u64 now)
{
	u32 i;

	if (!s)
		return 0;
	bpf_for(i, 0, nr_cpus)
		claim_resolve(ctx, s, i, now);
	return 0;
}

/* Global, one for each type of context: the verifier wants to know it. */
__noinline int claims_resolve_skb(struct __sk_buff *skb, struct listen_state *s, u64 now)
{
	return claims_resolve(skb, s, now);
}

__noinline int claims_resolve_xdp(struct xdp_md *xdp, struct listen_state *s, u64 now)
{
	return claims_resolve(xdp, s, now);
}

/* own: 1 if the caller's claim is in s->claims already. extra: SYNs under way from the front. */
static __always_inline void view_read(struct listen_state *s, struct arrival *x, u32 own, u32 extra)
{
	x->q.claims = claims_outstanding(s) - own + extra;
	queue_before(s, x->class, &x->q);
}

/* Whether to take out claims that the kernel counts by now, and to read again. */
static __always_inline bool view_in_doubt(const struct listener_policy *l, const struct arrival *x, u32 extra)
{
	return x->q.claims != extra && reserves(l) && !half_empty(&x->q) && claims_matter(l, &x->q, extra);
}

/*
 * Reads the queue, and sees to it that no claim which the kernel counts by now
 * stands between the SYN and a place.
 */
static __always_inline void view_queue(struct __sk_buff *skb, struct listen_state *s,
				       const struct listener_policy *l, struct arrival *x, u32 own)
{
	view_read(s, x, own, 0);
	if (!view_in_doubt(l, x, 0))
		return;
	claims_resolve_skb(skb, s, x->now);
	view_read(s, x, own, 0);
}

/*
 * Follows a lookup to the listening socket behind a TIME-WAIT one, which a new
 * SYN may replace. No cookie then: its final ACK would find the TIME-WAIT one.
 */
static __always_inline struct bpf_sock *listener_behind(void *ctx, struct bpf_sock *sk, struct arrival *x)
{
	struct bpf_sock_tuple any;

	x->time_wait = sk && sk->state == TCP_TIME_WAIT;
	if (!x->time_wait)
		return sk;
	bpf_sk_release(sk);
	any = x->t;
	/* No connection has port 0, so only a listener can match. */
	if (x->p.v6)
		any.ipv6.sport = 0;
	else
		any.ipv4.sport = 0;
	return flow_lookup(ctx, &any, x->p.v6);
}

static __always_inline bool flooded(const struct listen_state *s, u64 now)
{
	return now < s->flood_until_ns;
}

static __always_inline void note_flood(struct listen_state *s, enum verdict v, u64 now)
{
	if (v == VERDICT_cookie_sent_flood && now + FLOOD_NS - s->flood_until_ns > SECOND_NS)
		s->flood_until_ns = now + FLOOD_NS;
}

static __always_inline bool sends_cookie(enum verdict v)
{
	return v == VERDICT_cookie_sent || v == VERDICT_cookie_sent_flood;
}

static __always_inline bool sends_rst(enum verdict v)
{
	return v == VERDICT_syn_reset_full || v == VERDICT_syn_reset_wait || v == VERDICT_syn_reset_rate;
}

static __always_inline bool left_to_kernel(enum verdict v)
{
	return v == VERDICT_syn_left || v == VERDICT_syn_left_flood;
}

static __always_inline bool lacks_mptcp_cookie(const struct listener_policy *l, const struct arrival *x)
{
	return x->mptcp && l->establish == ESTABLISH_NO_SYN_DROP && x->verdict != VERDICT_syn_admitted;
}

/* In observe mode the SYN went to the kernel; whether it was let in there is the kernel's rule. */
static __always_inline void account_passed(struct listen_state *s, const struct queue_view *q)
{
	if (!kernel_full(q))
		claim_not_needed(s);
}

/*
 * A SYN's RST acknowledges it: seq 0, ack past the SYN and its data (RFC 9293,
 * Section 3.10.7.1). It keeps the SYN's length where it can: cutting a packet
 * takes longer than all the rest.
 */
static __always_inline void rst_to_syn(struct answer *a, const struct packet *p, u32 isn,
				       const struct listener_policy *l)
{
	u32 payload = p->tcp_len - p->header_len;

	rst(a, l, 0);
	a->ack = isn + 1 + payload;
	a->flags = FLAG_RST | FLAG_ACK;
	if (!payload && !l->reason)
		a->header_len = p->header_len;
}

/*
 * The state of the listening socket that this second's lookup found for the
 * destination. NULL: none is known without a lookup.
 */
static __always_inline struct listen_state *syn_recall(struct arrival *x, const struct destination *d)
{
	const struct tcp_sock *tp = listener_remembered(d);

	x->socket = (u64)tp;
	return tp ? queue_state((u64)tp, x->now) : NULL;
}

/* The socket to which the kernel would give the SYN. Release what it returns. */
static __always_inline struct bpf_sock *syn_lookup(void *ctx, struct arrival *x)
{
	return listener_behind(ctx, flow_lookup(ctx, &x->t, x->p.v6), x);
}

/* The lookup found another listening socket. NULL: there is no slot for its queue. */
static __always_inline struct listen_state *syn_found(struct arrival *x, struct destination *d,
						      const struct tcp_sock *tp)
{
	listener_remember(d, tp);
	x->socket = (u64)tp;
	return queue_state_of(tp, x->now);
}

static __always_inline bool cookie_possible(const struct arrival *x)
{
	const struct tcp_sock *tp = bpf_rdonly_cast((void *)x->socket, bpf_core_type_id_kernel(struct tcp_sock));

	return !tp->is_mptcp && !x->time_wait && policy_in_force()->cookies;
}

/*
 * The verdict on a SYN for the socket x->socket. When it is "admitted", a claim
 * is made: then no other CPU can take the same place. Global.
 */
__noinline int judge_syn(struct __sk_buff *skb, const struct listener_policy *l, struct listen_state *s,
			 struct arrival *x)
{
	bool cookies, waiting;

	if (!l || !s || !x)
		return VERDICT_syn_admitted;
	cookies = cookie_possible(x);
	view_queue(skb, s, l, x, 0);
	waiting = waits_too_long(s, l, &x->q, x->now);
	x->verdict = syn_verdict(l, &x->q, waiting, cookies, flooded(s, x->now));
	if (x->verdict != VERDICT_syn_admitted)
		return x->verdict;
	claim_begin(s);
	view_queue(skb, s, l, x, 1);
	waiting = wait_refuses(&s->wait, x->now, x->q.length, l->target_wait_ns);
	x->verdict = syn_verdict(l, &x->q, waiting, cookies, flooded(s, x->now));
	if (x->verdict != VERDICT_syn_admitted)
		claim_cancel(s);
	return x->verdict;
}

static __always_inline int admit_syn(struct listen_state *s, const struct listener_policy *l, const struct arrival *x)
{
	claim_commit(s, &x->t, x->p.v6, x->now);
	if (!reserves(l) || l->overbook_1024)
		watch_acks(x->now);
	count_for(l, x->class, VERDICT_syn_admitted);
	return PASS;
}

static __always_inline int pass_syn(const struct listener_policy *l, const struct arrival *x, enum verdict v)
{
	count_for(l, x->class, v);
	return PASS;
}

/* No action of tc or XDP: the SYN is to be refused, as its verdict says. */
#define REFUSE (-2)

/*
 * Counts a SYN that is not admitted: for its class's rate, then `s` is NULL, or
 * for the queue.
 */
static __always_inline void note_refusal(struct listen_state *s, const struct listener_policy *l,
					 const struct arrival *x)
{
	count_for(l, x->class, x->verdict);
	if (!s) {
		sample_rate(l, x);
		return;
	}
	note_flood(s, x->verdict, x->now);
	if (lacks_mptcp_cookie(l, x))
		count_for(l, x->class, VERDICT_fallback_mptcp);
	if (!left_to_kernel(x->verdict))
		sample(s, l, x);
}

static __always_inline int refuse_syn(struct __sk_buff *skb, const struct listener_policy *l, const struct arrival *x)
{
	struct sk_buff *k = bpf_cast_to_kern_ctx(skb);
	u32 ack = 0, isn = seq_of_skb(skb, &x->p, &ack);
	struct answer a = {};

	if (sends_cookie(x->verdict)) {
		struct option_walk *w = options_of_skb(skb, &x->p);

		if (!w)
			return PASS;
		cookie_answer(&a, &w->o, x, isn, k->dev->mtu);
	} else if (sends_rst(x->verdict)) {
		rst_to_syn(&a, &x->p, isn, l);
	} else {
		return TC_DROP;
	}
	return answer_instead(skb, &x->p, &a, x->verdict);
}

/* Whether the SYN is over its class's rate; then with its verdict. */
static __always_inline bool over_rate(struct __sk_buff *skb, const struct listener_policy *l, struct arrival *x)
{
	int over;

	if (!polices(l) || policed_at_front(l, skb))
		return false;
	over = police(x->class, class_copy(l));
	x->verdict = rate_verdict(l, over);
	return over;
}

/*
 * Judges a SYN for the socket that a lookup finds, unless *s was judged for the
 * same one. Nobody is refused before it is known that no handshake or
 * connection is meant. Returns PASS or REFUSE.
 */
static __always_inline int decide_by_lookup(struct __sk_buff *skb, const struct listener_policy *l,
					    struct arrival *x, struct destination *d, struct listen_state **s)
{
	struct bpf_sock *sk = syn_lookup(skb, x);
	const struct tcp_sock *tp;
	bool other;

	if (!sk)
		return pass_syn(l, x, VERDICT_syn_unheard);
	tp = listener_read(sk);
	if (sk->state != TCP_LISTEN) {
		bpf_sk_release(sk);
		return pass_syn(l, x, VERDICT_syn_repeated);
	}
	x->mptcp = tp->is_mptcp;
	other = !*s || (u64)tp != x->socket;
	if (other)
		*s = syn_found(x, d, tp);
	if (!*s) {
		bpf_sk_release(sk);
		return pass_syn(l, x, VERDICT_syn_unjudged);
	}
	if (other)
		front_reached_tc(*s, l, x->now);
	if (other || x->time_wait)
		judge_syn(skb, l, *s, x);
	bpf_sk_release(sk);
	return x->verdict == VERDICT_syn_admitted ? admit_syn(*s, l, x) : REFUSE;
}

/* The SYN is over its class's rate (s: NULL) or its queue is full. */
static __always_inline int turn_away(struct __sk_buff *skb, const struct listener_policy *l, struct arrival *x,
				     const struct destination *d, struct listen_state *s)
{
	if (!answerable_skb(skb, x))
		return PASS;
	note_refusal(s, l, x);
	if (!l->observe && !left_to_kernel(x->verdict))
		return refuse_syn(skb, l, x);
	if (!s) {
		s = syn_recall(x, d);
		if (!s)
			return PASS;
		queue_before(s, x->class, &x->q);
	}
	account_passed(s, &x->q);
	return PASS;
}

/* Global. */
__noinline int on_syn(struct __sk_buff *skb, const struct listener_policy *l, struct arrival *x)
{
	struct listen_state *s = NULL;
	struct destination *d;

	if (!l || !x || !tuple_of_skb(skb, x))
		return PASS;
	x->now = clock_ns();
	x->mptcp = x->time_wait = 0;
	d = destination_of(skb, false, CTX_LOAD(skb, ifindex), x);
	if (!d)
		return PASS;
	x->class = class_for(l, x);
	if (over_rate(skb, l, x))
		return turn_away(skb, l, x, d, NULL);
	s = syn_recall(x, d);
	if (s) {
		front_reached_tc(s, l, x->now);
		if (judge_syn(skb, l, s, x) == VERDICT_syn_admitted)
			return admit_syn(s, l, x);
	}
	if (decide_by_lookup(skb, l, x, d, &s) == PASS)
		return PASS;
	return turn_away(skb, l, x, d, s);
}

#endif
