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

static __always_inline void front_reached_tc(struct listen_state *state, const struct listener_policy *listener,
					     u64 now)
{
	if (!listener->front_xdp)
		return;
	__sync_fetch_and_add(&state->front_seen, 1);
	state->front_seen_ns = now;
}

static __always_inline u64 inflight_behind_front(struct listen_state *state, u64 now)
{
	u64 seen = *(volatile u64 *)&state->front_seen, fronted = *(volatile u64 *)&state->fronted;
	s64 inflight = fronted - seen;

	if (inflight > 0 && now - state->front_seen_ns < FRONT_LOST_NS)
		return inflight;
	if (inflight)
		__sync_val_compare_and_swap(&state->front_seen, seen, fronted);
	return 0;
}

/* Whether the claims in the view stand between somebody and a place. Global. */
__noinline int claims_matter(const struct listener_policy *listener, const struct queue_view *queue, u32 extra)
{
	struct queue_view bare;

	if (!listener || !queue)
		return 0;
	bare = *queue;
	bare.claims = extra;
	return place_free(listener, &bare) != place_free(listener, queue) ||
	       place_for_cookie(listener, &bare) != place_for_cookie(listener, queue) ||
	       half_reserved(listener, &bare) != half_reserved(listener, queue);
}

/*
 * Takes out the claims of a CPU that the kernel counts by now. Global, one for each
 * type of context: the verifier wants to know it. Before 6.10 it tells two turns of
 * a loop apart by whatever they leave in registers, and this leaves nothing.
 */
__noinline int claim_resolve_skb(struct __sk_buff *skb, struct listen_state *state, u32 cpu, u64 now)
{
	if (state)
		claim_resolve(skb, state, cpu, now);
	return 0;
}

__noinline int claim_resolve_xdp(struct xdp_md *xdp, struct listen_state *state, u32 cpu, u64 now)
{
	if (state)
		claim_resolve(xdp, state, cpu, now);
	return 0;
}

/* The same of all CPUs. */
__noinline int claims_resolve_skb(struct __sk_buff *skb, struct listen_state *state, u64 now)
{
	u32 i;

	bpf_for(i, 0, nr_cpus)
		claim_resolve_skb(skb, state, i, now);
	return 0;
}

__noinline int claims_resolve_xdp(struct xdp_md *xdp, struct listen_state *state, u64 now)
{
	u32 i;

	bpf_for(i, 0, nr_cpus)
		claim_resolve_xdp(xdp, state, i, now);
	return 0;
}

/* own: 1 if the caller's claim is in state->claims already. extra: SYNs under way from the front. */
static __always_inline void view_read(struct listen_state *state, struct arrival *arrival, u32 own, u32 extra)
{
	arrival->queue.claims = claims_outstanding(state) - own + extra;
	arrival->queue.stalled = state->stall.stalled;
	queue_before(state, arrival->class, &arrival->queue);
}

/* Whether to take out claims that the kernel counts by now, and to read again. */
static __always_inline bool view_in_doubt(const struct listener_policy *listener, const struct arrival *arrival,
					  u32 extra)
{
	return arrival->queue.claims != extra && reserves(listener) && !half_empty(&arrival->queue) &&
	       claims_matter(listener, &arrival->queue, extra);
}

/*
 * Reads the queue, and sees to it that no claim which the kernel counts by now
 * stands between the SYN and a place.
 */
static __always_inline void view_queue(struct __sk_buff *skb, struct listen_state *state,
				       const struct listener_policy *listener, struct arrival *arrival, u32 own)
{
	view_read(state, arrival, own, 0);
	if (!view_in_doubt(listener, arrival, 0))
		return;
	claims_resolve_skb(skb, state, arrival->now);
	view_read(state, arrival, own, 0);
}

/* The TIME-WAIT socket at this kernel address, as it is now. */
static __always_inline struct time_wait time_wait_read(u64 address)
{
	const struct tcp_timewait_sock *tw =
		bpf_rdonly_cast((void *)address, bpf_core_type_id_kernel(struct tcp_timewait_sock));
	struct time_wait old = {
		.rcv_nxt = tw->tw_sk.__tw_common.skc_tw_rcv_nxt,
		.ts_recent = tw->tw_ts_recent,
		.stamped = tw->tw_ts_recent_stamp != 0,
		.fin_wait2 = tw->tw_sk.tw_substate != TCP_TIME_WAIT,
	};

	return old;
}

/* seq, walk: the SYN's sequence number and its options; walk NULL: they cannot be read. */
static __always_inline bool replaces(u64 time_wait, u32 seq, const struct option_walk *walk)
{
	struct time_wait old = time_wait_read(time_wait);

	return walk && time_wait_yields(&old, seq, &walk->options);
}

/*
 * Whether the SYN takes the place of the TIME-WAIT socket arrival->socket. Global,
 * one for each type of context: the verifier wants to know it.
 */
__noinline int replaces_skb(struct __sk_buff *skb, const struct arrival *arrival)
{
	u32 ack = 0;

	return arrival && replaces(arrival->socket, seq_of_skb(skb, &arrival->packet, &ack),
				   options_of_skb(skb, &arrival->packet));
}

__noinline int replaces_xdp(struct xdp_md *xdp, const struct arrival *arrival)
{
	u32 ack = 0;

	return arrival && replaces(arrival->socket, seq_of_xdp(xdp, &arrival->packet, &ack),
				   options_of_xdp(xdp, &arrival->packet));
}

/* Whether the lookup has met a TIME-WAIT socket whose place the SYN takes. */
static __always_inline bool takes_place_of(void *ctx, bool at_xdp, const struct bpf_sock *sk, struct arrival *arrival)
{
	u64 judged = arrival->socket;
	bool takes;

	if (!sk || sk->state != TCP_TIME_WAIT)
		return false;
	arrival->socket = (u64)sk;
	takes = at_xdp ? replaces_xdp(ctx, arrival) : replaces_skb(ctx, arrival);
	arrival->socket = judged;
	return takes;
}

/* The listening socket for the packet's destination. Release what it returns. */
static __always_inline struct bpf_sock *listener_lookup(void *ctx, const struct arrival *arrival)
{
	struct bpf_sock_tuple any = arrival->tuple;

	/* No connection has port 0, so only a listener can match. */
	if (arrival->packet.v6)
		any.ipv6.sport = 0;
	else
		any.ipv4.sport = 0;
	return flow_lookup(ctx, &any, arrival->packet.v6);
}

/* Follows a lookup to the listening socket behind a TIME-WAIT one, if the SYN takes its place. */
static __always_inline struct bpf_sock *listener_behind(void *ctx, bool at_xdp, struct bpf_sock *sk,
							struct arrival *arrival)
{
	arrival->time_wait = takes_place_of(ctx, at_xdp, sk, arrival);
	if (!arrival->time_wait)
		return sk;
	bpf_sk_release(sk);
	return listener_lookup(ctx, arrival);
}

static __always_inline bool flooded(const struct listen_state *state, u64 now)
{
	return now < state->flood_until_ns;
}

static __always_inline void note_flood(struct listen_state *state, enum verdict v, u64 now)
{
	if (v == VERDICT_cookie_sent_flood && now + FLOOD_NS - state->flood_until_ns > SECOND_NS)
		state->flood_until_ns = now + FLOOD_NS;
}

static __always_inline bool sends_cookie(enum verdict v)
{
	return v == VERDICT_cookie_sent || v == VERDICT_cookie_sent_flood;
}

static __always_inline bool sends_rst(enum verdict v)
{
	return v == VERDICT_syn_reset_full || v == VERDICT_syn_reset_wait || v == VERDICT_syn_reset_rate ||
	       v == VERDICT_syn_reset_held;
}

/* Whether the SYN goes to the server: with a place for it, or to be decided at its final ACK. */
static __always_inline bool lets_in(enum verdict v)
{
	return v == VERDICT_syn_admitted || v == VERDICT_syn_time_wait || v == VERDICT_syn_steady;
}

/* One bit for each verdict of GUARD_VERDICTS whose packet goes on: what no list names is passed, never dropped. */
#define BIT_pass(name) | 1ULL << VERDICT_##name
#define BIT_refuse(name)
#define BIT_answer(name)
#define BIT_note(name)
#define X(name, kind, text) BIT_##kind(name)
static const u64 passes = 0 GUARD_VERDICTS(X);
#undef X
_Static_assert(VERDICT_COUNT <= 64, "one bit for each verdict");

/* Whether the packet goes on to the kernel. */
static __always_inline bool goes_on(enum verdict v)
{
	return passes >> (v & 63) & 1;
}

static __always_inline bool lacks_mptcp_cookie(const struct listener_policy *listener, const struct arrival *arrival)
{
	return arrival->mptcp && listener->establish == ESTABLISH_NO_SYN_DROP;
}

/*
 * In observe mode, or left to it, the SYN went to the kernel; whether it was let
 * in there is the kernel's rule. With a full SYN queue the kernel sends a cookie.
 */
static __always_inline void account_passed(struct listen_state *state, const struct queue_view *queue)
{
	if (kernel_full(queue))
		return;
	claim_not_needed(state);
	if (queue->half_open >= queue->limit)
		no_handshake_under_way(state);
}

/*
 * A SYN's RST acknowledges it: seq 0, ack past the SYN and its data (RFC 9293,
 * Section 3.10.7.1). It keeps the SYN's length where it can: cutting a packet
 * takes longer than all the rest.
 */
static __always_inline void rst_to_syn(struct answer *answer, const struct packet *packet, u32 isn,
				       const struct listener_policy *listener)
{
	u32 payload = packet->tcp_len - packet->header_len;

	rst(answer, listener, 0);
	answer->ack = isn + 1 + payload;
	answer->flags = FLAG_RST | FLAG_ACK;
	if (!payload && !listener->reason)
		answer->header_len = packet->header_len;
}

/*
 * The state of the listening socket that this second's lookup found for the
 * destination. NULL: none is known without a lookup.
 */
static __always_inline struct listen_state *syn_recall(struct arrival *arrival, const struct destination *destination)
{
	const struct tcp_sock *tp = listener_remembered(destination);

	arrival->socket = (u64)tp;
	return tp ? queue_state(&arrival->socket, arrival->now) : NULL;
}

/* The socket to which the kernel would give the SYN. Release what it returns. */
static __always_inline struct bpf_sock *syn_lookup(void *ctx, bool at_xdp, struct arrival *arrival)
{
	return listener_behind(ctx, at_xdp, flow_lookup(ctx, &arrival->tuple, arrival->packet.v6), arrival);
}

/* The lookup found another listening socket. NULL: there is no slot for its queue. */
static __always_inline struct listen_state *syn_found(struct arrival *arrival, struct destination *destination,
						      const struct tcp_sock *tp)
{
	listener_remember(destination, tp);
	arrival->socket = (u64)tp;
	return queue_state_of(tp, arrival->now);
}

/*
 * A SYN that the front may have let by ends at tc before its queue is known: it is no longer under way. Looks for the
 * queue as the front did. Global: it is rare, and its registers would be on the stack of on_syn(), which before Linux
 * 6.9 has no room for them.
 */
__noinline int front_ended(struct __sk_buff *skb, const struct listener_policy *listener, struct arrival *arrival,
			   const struct destination *destination)
{
	struct listen_state *state;
	struct bpf_sock *sk;

	if (!listener || !arrival || !destination || !listener->front_xdp)
		return 0;
	state = syn_recall(arrival, destination);
	if (!state) {
		sk = syn_lookup(skb, false, arrival);
		if (sk && sk->state != TCP_LISTEN) {
			bpf_sk_release(sk);
			sk = listener_lookup(skb, arrival);
		}
		if (!sk)
			return 0;
		if (sk->state == TCP_LISTEN)
			state = queue_state_of(listener_read(sk), arrival->now);
		bpf_sk_release(sk);
	}
	if (state)
		front_reached_tc(state, listener, arrival->now);
	return 0;
}

static __always_inline bool cookie_possible(const struct arrival *arrival)
{
	const struct tcp_sock *tp = bpf_rdonly_cast((void *)arrival->socket, bpf_core_type_id_kernel(struct tcp_sock));

	return !tp->is_mptcp && policy_in_force()->cookies;
}

/* The verdict on a SYN that finds arrival->queue. */
static __always_inline enum verdict verdict_on(const struct listener_policy *listener, const struct arrival *arrival,
					       bool waiting, bool cookies, bool flooded)
{
	if (arrival->time_wait)
		return time_wait_verdict(listener, &arrival->queue, waiting, flooded);
	return syn_verdict(listener, &arrival->queue, waiting, cookies, flooded);
}

/*
 * The verdict on a SYN for the socket arrival->socket. When it is let in, a claim
 * is made: then no other CPU can take the same place. Global.
 */
__noinline int judge_syn(struct __sk_buff *skb, const struct listener_policy *listener, struct listen_state *state,
			 struct arrival *arrival)
{
	bool cookies, waiting;

	if (!listener || !state || !arrival)
		return VERDICT_syn_admitted;
	cookies = cookie_possible(arrival);
	view_queue(skb, state, listener, arrival, 0);
	judge_handshakes(state, listener, &arrival->queue);
	waiting = waits_too_long(state, listener, &arrival->queue, arrival->now);
	arrival->verdict = verdict_on(listener, arrival, waiting, cookies, flooded(state, arrival->now));
	if (!lets_in(arrival->verdict))
		return arrival->verdict;
	claim_begin(state);
	view_queue(skb, state, listener, arrival, 1);
	waiting = wait_refuses(&state->wait, arrival->now, arrival->queue.length, listener);
	arrival->verdict = verdict_on(listener, arrival, waiting, cookies, flooded(state, arrival->now));
	if (!lets_in(arrival->verdict))
		claim_cancel(state);
	return arrival->verdict;
}

/* Takes a token from what steady sources may have of the server. */
static __always_inline bool steady_token(struct listen_state *state, const struct arrival *arrival)
{
	struct bucket_limit limit = steady_limit(&state->wait);

	return take_token(&state->steady_next[arrival->steady == STEADY_LONG], arrival->now, limit.interval, limit.tolerance);
}

/*
 * Whether the SYN of a steady source comes in all the same. Then a claim is made. Claims that the
 * kernel counts by now must not stand between it and its place. Global.
 */
__noinline int spare_steady(struct __sk_buff *skb, const struct listener_policy *listener, struct listen_state *state,
			    struct arrival *arrival)
{
	if (!listener || !state || !arrival || !turns_away(arrival->verdict))
		return 0;
	claim_begin(state);
	view_read(state, arrival, 1, 0);
	if (arrival->queue.claims) {
		claims_resolve_skb(skb, state, arrival->now);
		view_read(state, arrival, 1, 0);
	}
	if (steady_place(listener, &arrival->queue, state->group) && steady_token(state, arrival)) {
		arrival->verdict = VERDICT_syn_steady;
		return 1;
	}
	claim_cancel(state);
	return 0;
}

static __always_inline int admit_syn(struct listen_state *state, const struct listener_policy *listener,
				     const struct arrival *arrival)
{
	claim_commit(state, &arrival->tuple, arrival->packet.v6, arrival->now);
	if (!reserves(listener) || listener->overbook_1024 || arrival->verdict == VERDICT_syn_time_wait)
		watch_acks(arrival->now);
	count_for(listener, arrival->class, arrival->verdict);
	return PASS;
}

static __always_inline int pass_syn(const struct listener_policy *listener, const struct arrival *arrival,
				    enum verdict v)
{
	count_for(listener, arrival->class, v);
	return PASS;
}

/* No action of tc or XDP: the SYN is to be refused, as its verdict says. */
#define REFUSE (-2)

/*
 * Counts a SYN that is not admitted: for its class's rate, then `state` is
 * NULL, or for the queue.
 */
static __always_inline void note_refusal(struct listen_state *state, const struct listener_policy *listener,
					 const struct arrival *arrival)
{
	count_for(listener, arrival->class, arrival->verdict);
	if (!state) {
		sample_rate(listener, arrival);
		return;
	}
	note_flood(state, arrival->verdict, arrival->now);
	if (lacks_mptcp_cookie(listener, arrival))
		count_for(listener, arrival->class, VERDICT_fallback_mptcp);
	/* A cookie is no refusal: its final ACK decides, and may be one. */
	if (!goes_on(arrival->verdict) && !sends_cookie(arrival->verdict))
		sample(state, listener, arrival);
}

static __always_inline int refuse_syn(struct __sk_buff *skb, const struct listener_policy *listener,
				      const struct arrival *arrival)
{
	struct sk_buff *buffer = bpf_cast_to_kern_ctx(skb);
	u32 ack = 0, isn = seq_of_skb(skb, &arrival->packet, &ack);
	struct answer answer = {};

	if (sends_cookie(arrival->verdict)) {
		struct option_walk *walk = options_of_skb(skb, &arrival->packet);

		if (!walk)
			return PASS;
		cookie_answer(&answer, &walk->options, arrival, isn, buffer->dev->mtu);
	} else if (sends_rst(arrival->verdict)) {
		rst_to_syn(&answer, &arrival->packet, isn, listener);
	} else {
		return TC_DROP;
	}
	return answer_instead(skb, &arrival->packet, &answer, arrival->verdict);
}

/* Whether the SYN is over its class's rate; then with its verdict. */
static __always_inline bool over_rate(struct __sk_buff *skb, const struct listener_policy *listener,
				      struct arrival *arrival)
{
	int over;

	if (!polices(listener) || policed_at_front(listener, skb))
		return false;
	over = police(arrival->class, class_copy(listener));
	arrival->verdict = rate_verdict(listener, over);
	return over;
}

/*
 * Judges a SYN for the socket that a lookup finds, unless *s was judged for the
 * same one. Nobody is refused before it is known that no handshake or
 * connection is meant. Returns PASS or REFUSE.
 */
static __always_inline int decide_by_lookup(struct __sk_buff *skb, const struct listener_policy *listener,
					    struct arrival *arrival, struct destination *destination,
					    struct listen_state **state)
{
	struct bpf_sock *sk = syn_lookup(skb, false, arrival);
	const struct tcp_sock *tp;
	bool other;

	if (!sk)
		return pass_syn(listener, arrival, VERDICT_syn_unheard);
	tp = listener_read(sk);
	if (sk->state != TCP_LISTEN) {
		bpf_sk_release(sk);
		if (!*state)
			front_ended(skb, listener, arrival, destination);
		return pass_syn(listener, arrival, VERDICT_syn_repeated);
	}
	arrival->mptcp = tp->is_mptcp;
	other = !*state || (u64)tp != arrival->socket;
	if (other)
		*state = syn_found(arrival, destination, tp);
	if (!*state) {
		bpf_sk_release(sk);
		return pass_syn(listener, arrival, VERDICT_syn_unjudged);
	}
	if (other)
		front_reached_tc(*state, listener, arrival->now);
	if (other || arrival->time_wait)
		judge_syn(skb, listener, *state, arrival);
	bpf_sk_release(sk);
	/* Asked here: most SYNs that are refused save the call. */
	if (lets_in(arrival->verdict) ||
	    (arrival->steady != STEADY_NOT && spare_steady(skb, listener, *state, arrival)))
		return admit_syn(*state, listener, arrival);
	return REFUSE;
}

/*
 * A SYN to be refused that goes to the kernel all the same: in observe mode, or as its verdict says. state: as of
 * turn_away(). Global: it is rare, and its registers would be on the stack of on_syn(), which before Linux 6.9 has
 * no room for them.
 */
__noinline int leave_to_kernel(const struct destination *destination, struct listen_state *state,
			       struct arrival *arrival)
{
	if (!destination || !arrival)
		return PASS;
	if (!state) {
		state = syn_recall(arrival, destination);
		if (!state)
			return PASS;
		queue_before(state, arrival->class, &arrival->queue);
	}
	account_passed(state, &arrival->queue);
	if (arrival->verdict == VERDICT_syn_left_flood)
		watch_acks(arrival->now);
	return PASS;
}

/* The SYN is over its class's rate (state: NULL) or its queue is full. */
static __always_inline int turn_away(struct __sk_buff *skb, const struct listener_policy *listener,
				     struct arrival *arrival, const struct destination *destination,
				     struct listen_state *state)
{
	if (!answerable_skb(skb, arrival))
		return PASS;
	note_refusal(state, listener, arrival);
	if (!listener->observe && !goes_on(arrival->verdict))
		return refuse_syn(skb, listener, arrival);
	return leave_to_kernel(destination, state, arrival);
}

/* Global. */
__noinline int on_syn(struct __sk_buff *skb, const struct listener_policy *listener, struct arrival *arrival)
{
	struct listen_state *state = NULL;
	struct destination *destination;

	if (!listener || !arrival || !tuple_of_skb(skb, arrival))
		return PASS;
	arrival->now = clock_ns();
	arrival->mptcp = arrival->time_wait = 0;
	destination = destination_of(skb, false, CTX_LOAD(skb, ifindex), arrival);
	if (!destination)
		return PASS;
	note_source(listener, arrival);
	arrival->class = class_for(listener, arrival);
	if (over_rate(skb, listener, arrival)) {
		front_ended(skb, listener, arrival, destination);
		return turn_away(skb, listener, arrival, destination, NULL);
	}
	state = syn_recall(arrival, destination);
	if (state) {
		front_reached_tc(state, listener, arrival->now);
		if (lets_in(judge_syn(skb, listener, state, arrival)))
			return admit_syn(state, listener, arrival);
	}
	if (decide_by_lookup(skb, listener, arrival, destination, &state) == PASS)
		return PASS;
	return turn_away(skb, listener, arrival, destination, state);
}

#endif
