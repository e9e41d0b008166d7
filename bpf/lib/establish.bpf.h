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
#include "lib/gate.h"
#include "lib/group.bpf.h"
#include "lib/ledger.bpf.h"
#include "lib/parking.bpf.h"
#include "lib/police.bpf.h"
#include "lib/retried.bpf.h"
#include "lib/segment_sum.bpf.h"
#include "lib/state.bpf.h"
#include "lib/steered.bpf.h"
#include "lib/takes_place.bpf.h"
#include "lib/waiting.bpf.h"

/* Whether the claims in the view stand between somebody and a place. Global. */
__noinline int claims_matter(const struct listener_policy *listener, const struct queue_view *queue)
{
	struct queue_view bare;

	if (!listener || !queue)
		return 0;
	bare = *queue;
	bare.claims = 0;
	return place_free(listener, &bare) != place_free(listener, queue) ||
	       place_for_cookie(listener, &bare) != place_for_cookie(listener, queue) ||
	       half_reserved(listener, &bare) != half_reserved(listener, queue);
}

/*
 * Takes out the claims of a CPU that the kernel counts by now. Global: before 6.10 the
 * verifier tells two turns of a loop apart by whatever they leave in registers, and this leaves nothing.
 */
__noinline int claim_resolve_of(struct __sk_buff *skb, struct listen_state *state, u32 cpu, u32 limit, u64 now)
{
	struct ledger_look look = {
		.cpu = bpf_get_smp_processor_id(),
		.limit = limit,
		.now = now,
		.tick = tick_ns,
		.found = claim_found,
		.ctx = skb,
	};

	if (state)
		claim_resolve(&look, state, cpu);
	return 0;
}

/* The same of all CPUs. */
__noinline int claims_resolve(struct __sk_buff *skb, struct listen_state *state, u32 limit, u64 now)
{
	u32 i;

	bpf_for(i, 0, nr_cpus)
		claim_resolve_of(skb, state, i, limit, now);
	return 0;
}

static __always_inline void claim_commit_here(struct listen_state *state, const struct arrival *arrival)
{
	claim_commit(state, &arrival->tuple, arrival->packet.v6, bpf_get_smp_processor_id(), arrival->queue.limit,
		     arrival->now, tick_ns);
}

/* claims: of the ledger without the caller's own, read before. */
static __always_inline void view_read(struct listen_state *state, struct arrival *arrival, u64 claims)
{
	arrival->claims = claims;
	arrival->queue.claims = claims;
	arrival->queue.stalled = handshakes_stall(state);
	queue_before(state, arrival->class, &arrival->queue);
}

/* Takes out the claims that the kernel counts by now, and reads again. own: as of view_queue(). */
static __always_inline void view_settled(struct __sk_buff *skb, struct listen_state *state, struct arrival *arrival,
					 u32 own)
{
	claims_resolve(skb, state, arrival->queue.limit, arrival->now);
	view_read(state, arrival, claims_first(state) - own);
}

/*
 * Where they decide about the last places, connections in the hands of other CPUs count as claims: they may be in none
 * of the kernel's counters. Global.
 */
__noinline int hold_back(struct listen_state *state, const struct listener_policy *listener, struct queue_view *queue,
			 u64 now)
{
	u32 more;
	bool free, for_cookie;

	if (!state || !listener || !queue)
		return 0;
	more = uncounted(state, bpf_get_smp_processor_id(), queue->limit, now);
	free = place_free(listener, queue);
	for_cookie = place_for_cookie(listener, queue);
	queue->claims += more;
	if (free == place_free(listener, queue) && for_cookie == place_for_cookie(listener, queue))
		queue->claims -= more;
	return 0;
}

/*
 * Reads the queue, and sees to it that no claim which the kernel counts by now stands between the SYN and a place.
 * claims: as of view_read(). own: 1 if the caller's claim is in state->claims already.
 */
static __always_inline void view_queue(struct __sk_buff *skb, struct listen_state *state,
				       const struct listener_policy *listener, struct arrival *arrival, u64 claims,
				       u32 own)
{
	view_read(state, arrival, claims);
	if (!reserves(listener) || half_empty(&arrival->queue))
		return;
	/* No place is left to hold back: most SYNs of an overload save the call. */
	if (!is_filled(&arrival->queue))
		hold_back(state, listener, &arrival->queue, arrival->now);
	if (!(u32)claims || !claims_matter(listener, &arrival->queue))
		return;
	view_settled(skb, state, arrival, own);
	hold_back(state, listener, &arrival->queue, arrival->now);
}

/*
 * Whether the queue that was seen is still half empty at the claim, made when the ledger had these claims. Then it has
 * a place by any rule, as it had, and need not be read again.
 */
static __always_inline bool still_half_empty(struct arrival *arrival, u64 claims)
{
	arrival->queue.claims = claims_since(arrival->queue.claims, arrival->claims, claims);
	return half_empty(&arrival->queue);
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

/* The socket for the packet's source of those that listen on all addresses. Release what it returns. */
static __always_inline struct bpf_sock *any_lookup(void *ctx, const struct arrival *arrival)
{
	struct bpf_sock_tuple any = arrival->tuple;

	/* No connection has the address 0, so again only a listener can match. */
	if (arrival->packet.v6)
		__builtin_memset(any.ipv6.daddr, 0, sizeof(any.ipv6.daddr));
	else
		any.ipv4.daddr = 0;
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
	sk = listener_lookup(ctx, arrival);
	if (!sk || !chosen_by_client(sk))
		return sk;
	bpf_sk_release(sk);
	return any_lookup(ctx, arrival);
}

/* The listening socket that a lookup has met, or another of its group that the kernel chooses. */
static __always_inline const struct tcp_sock *listener_chosen(struct bpf_sock *sk, struct arrival *arrival)
{
	u64 judged = arrival->socket;
	const struct tcp_sock *tp;

	if (!arrival->time_wait)
		return listener_read(sk);
	arrival->socket = (u64)sk;
	choose_in_group(&arrival->socket, arrival->hash);
	tp = listener_beside(sk, arrival->socket, bpf_ntohs(arrival->packet.dport));
	arrival->socket = judged;
	return tp ? tp : listener_read(sk);
}

static __always_inline bool flooded(const struct listen_state *state, u64 now)
{
	return now < state->flood_until_ns;
}

/* Once a second at most: all CPUs read the line. */
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
	       v == VERDICT_syn_reset_held || v == VERDICT_syn_reset_residence;
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
 * A SYN went to the kernel that weir would have refused, or has left to it. By the
 * kernel's rule it may be let in there: then it counts as a connection, from which
 * the estimate of the wait takes the accepts. With a full SYN queue the kernel
 * sends a cookie, and no handshake is under way.
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
 * takes longer than all the rest. Of the SYN's options nothing is left: a client whose port
 * was in TIME-WAIT would take its own timestamps for old ones, and not hear the RST.
 */
static __always_inline void rst_to_syn(struct answer *answer, const struct packet *packet, u32 isn,
				       const struct listener_policy *listener)
{
	u32 payload = packet->tcp_len - packet->header_len;

	rst(answer, listener, 0);
	answer->ack = isn + 1 + payload;
	answer->flags = FLAG_RST | FLAG_ACK;
	if (!payload && !(listener->may & WEIR_MAY_EXPLAIN))
		answer->header_len = packet->header_len;
}

/*
 * The state of the listening socket that this second's lookup found for the
 * destination. NULL: none is known without a lookup.
 */
static __always_inline struct listen_state *syn_recall(struct arrival *arrival, struct destination *destination)
{
	const struct tcp_sock *tp = listener_remembered(destination);

	arrival->socket = (u64)tp;
	return tp ? queue_remembered(destination, &arrival->socket, arrival->now) : NULL;
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

static __always_inline bool cookie_possible(const struct listener_policy *listener, const struct arrival *arrival)
{
	const struct tcp_sock *tp = bpf_rdonly_cast((void *)arrival->socket, bpf_core_type_id_kernel(struct tcp_sock));

	if (!cookies_over_v6 && arrival->packet.v6)
		return false;
	/* The bit, or 0: no branch (cookies_hold()). */
	return !is_mptcp(tp) && listener->may & WEIR_MAY_SEND_COOKIES * cookies_hold(arrival->now);
}

/* The verdict on a SYN that finds arrival->queue. */
static __always_inline enum verdict verdict_on(const struct listener_policy *listener, const struct arrival *arrival,
					       bool waiting, bool cookies, bool flooded)
{
	if (arrival->time_wait)
		return time_wait_verdict(listener, &arrival->queue, waiting, flooded);
	return syn_verdict(listener, &arrival->queue, waiting, cookies, flooded);
}

/* By the listener's counters index. Mapped by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, WEIR_MAX_LISTENERS);
	__type(key, u32);
	__type(value, struct residence_gate);
} gates SEC(".maps");

/* As gate_refuses(). Global: what it has in registers would be on the stack of judge_syn(). */
__noinline int gate_is_shut(const struct listener_policy *listener)
{
	struct residence_gate *gate;
	u32 key;

	if (!listener)
		return 0;
	key = listener->counters;
	gate = bpf_map_lookup_elem(&gates, &key);
	if (!gate || !*(volatile u64 *)&gate->until_ns || listener->draining)
		return 0;
	return !gate_lets_in(gate, bpf_ktime_get_ns());
}

/* Whether a SYN that is let in goes to a server that has more requests than it answers in time. */
static __always_inline bool gate_refuses(const struct listener_policy *listener)
{
	return listener->may & WEIR_MAY_REFUSE_FOR_RESIDENCE && gate_is_shut(listener);
}

static __always_inline enum verdict residence_verdict(const struct listener_policy *listener)
{
	return listener->reject_syn == REJECT_RST ? VERDICT_syn_reset_residence : VERDICT_syn_dropped_residence;
}

/*
 * The verdict on a SYN for the socket arrival->socket. When it is let in, a claim
 * is made: then no other CPU can take the same place. Global.
 */
__noinline int judge_syn(struct __sk_buff *skb, const struct listener_policy *listener, struct listen_state *state,
			 struct arrival *arrival)
{
	bool cookies, waiting;
	u64 claims;

	if (!listener || !state || !arrival)
		return VERDICT_syn_admitted;
	cookies = cookie_possible(listener, arrival);
	claims = claims_now(state);
	in_order_here();
	view_queue(skb, state, listener, arrival, claims, 0);
	judge_handshakes(state, listener, &arrival->queue);
	waiting = waits_too_long(state, listener, &arrival->queue, arrival->now);
	arrival->verdict = verdict_on(listener, arrival, waiting, cookies, flooded(state, arrival->now));
	if (!lets_in(arrival->verdict))
		return arrival->verdict;
	claims = claim_begin(state);
	if (!still_half_empty(arrival, claims)) {
		view_queue(skb, state, listener, arrival, claims, 1);
		waiting = wait_refuses(&state->wait, arrival->now, arrival->queue.length, listener);
		arrival->verdict = verdict_on(listener, arrival, waiting, cookies, flooded(state, arrival->now));
	}
	if (lets_in(arrival->verdict) && gate_refuses(listener))
		arrival->verdict = residence_verdict(listener);
	if (!lets_in(arrival->verdict))
		claim_cancel(state);
	return arrival->verdict;
}

/* Takes a token from what steady sources may have of the server. Global, for the verifier. */
__noinline int steady_token(struct listen_state *state, const struct arrival *arrival)
{
	struct bucket_limit limit;

	if (!state || !arrival)
		return 0;
	limit = steady_limit(&state->wait, arrival->now);
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
	view_read(state, arrival, claim_begin(state));
	if (arrival->queue.claims)
		view_settled(skb, state, arrival, 1);
	arrival->queue.claims += uncounted(state, bpf_get_smp_processor_id(), arrival->queue.limit, arrival->now);
	if (steady_place(listener, &arrival->queue, state->group) && steady_token(state, arrival)) {
		arrival->verdict = VERDICT_syn_steady;
		return 1;
	}
	claim_cancel(state);
	return 0;
}

/*
 * Whether a handshake adds a path to an MPTCP connection. Global, one for each type of context: the verifier wants to
 * know it.
 */
__noinline int adds_path_skb(struct __sk_buff *skb, const struct arrival *arrival)
{
	const struct option_walk *walk = arrival ? options_of_skb(skb, &arrival->packet) : NULL;

	return walk && walk->options.join;
}

__noinline int adds_path_xdp(struct xdp_md *xdp, const struct arrival *arrival)
{
	const struct option_walk *walk = arrival ? options_of_xdp(xdp, &arrival->packet) : NULL;

	return walk && walk->options.join;
}

/* Paths a second that come in where others are refused, at all listeners together. */
#define PATHS_PER_SECOND 1000
#define PATH_INTERVAL ((SECOND_NS / PATHS_PER_SECOND) << BUCKET_SHIFT)
u64 path_next;

/*
 * Whether a SYN that is to be refused goes to the kernel as a new path of an MPTCP connection (MP_JOIN). The connection
 * is established and may have lost its other paths; the new one is never accepted, so it takes no place from anybody.
 * The kernel resets one whose token no connection has, and keeps nothing of it. That costs more than a refusal of
 * weir's: a flood of those beyond the bucket is refused like any other.
 */
static __always_inline bool passes_as_path(struct __sk_buff *skb, const struct arrival *arrival)
{
	return arrival->mptcp && !goes_on(arrival->verdict) && adds_path_skb(skb, arrival) &&
	       take_token(&path_next, arrival->now, PATH_INTERVAL, (PATHS_PER_SECOND - 1) * PATH_INTERVAL);
}

/* Global: in line it would be in two places. */
__noinline int count_one_retried(const struct listener_policy *listener, const struct arrival *arrival)
{
	if (listener && arrival)
		count_for(listener, arrival->class, VERDICT_syn_retried);
	return 0;
}

static __always_inline void count_retried(const struct listener_policy *listener, const struct arrival *arrival)
{
	if (arrival->retried)
		count_one_retried(listener, arrival);
}

/*
 * Whether the kernel takes the SYN, as far as its bytes say. Else its claim would hold a place for nobody until it is
 * over. In a half-empty queue it may. Global: its registers are not to be on the stack of on_syn().
 */
__noinline int kernel_takes(struct __sk_buff *skb, const struct arrival *arrival)
{
	return arrival && answerable(skb, arrival) && data_sound(skb, arrival);
}

static __always_inline int admit_syn(struct __sk_buff *skb, struct listen_state *state,
				     const struct listener_policy *listener, const struct arrival *arrival)
{
	if (!half_empty(&arrival->queue) && !kernel_takes(skb, arrival)) {
		claim_cancel(state);
		return PASS;
	}
	claim_commit_here(state, arrival);
	if (!reserves(listener) || listener->overbook_1024 || arrival->verdict == VERDICT_syn_time_wait)
		watch_acks(arrival->now);
	count_for(listener, arrival->class, arrival->verdict);
	count_retried(listener, arrival);
	return PASS;
}

static __always_inline int pass_syn(const struct listener_policy *listener, const struct arrival *arrival,
				    enum verdict v)
{
	count_for(listener, arrival->class, v);
	return PASS;
}

/* No actions of tc or XDP: the SYN is to be refused, as its verdict says, or let in. */
#define REFUSE (-2)
#define ADMIT (-3)

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
		answer.ack = isn + 1;
		cookie_answer(&answer, &walk->options, arrival, listener, buffer->dev->mtu);
	} else if (sends_rst(arrival->verdict)) {
		rst_to_syn(&answer, &arrival->packet, isn, listener);
	} else {
		return TC_DROP;
	}
	return answer_instead(skb, &arrival->packet, &answer, arrival->verdict);
}

/* Whether a lookup has found a handshake or a connection. Releases it. */
static __always_inline bool is_held(struct bpf_sock *sk)
{
	bool held;

	if (!sk)
		return false;
	held = sk->state != TCP_LISTEN && sk->state != TCP_TIME_WAIT;
	bpf_sk_release(sk);
	return held;
}

/* Whether the SYN is over its class's rate; then with its verdict. */
static __always_inline bool over_rate(const struct listener_policy *listener, struct arrival *arrival)
{
	int over;

	if (!polices(listener))
		return false;
	over = police(arrival->class, class_copy(listener), true);
	arrival->verdict = rate_verdict(listener, over);
	return over;
}

/*
 * Whether the kernel holds a handshake or a connection of this 4-tuple: then the SYN repeats one that was let in, whose
 * SYN/ACK was lost, and its class's rate has counted it. A TIME-WAIT socket is no sign of that: the SYN may be to take
 * its place. Global, one for each type of context: the verifier wants to know it.
 */
__noinline int is_held_skb(struct __sk_buff *skb, struct arrival *arrival)
{
	return arrival && is_held(flow_lookup(skb, &arrival->tuple, arrival->packet.v6));
}

__noinline int is_held_xdp(struct xdp_md *xdp, struct arrival *arrival)
{
	return arrival && is_held(flow_lookup(xdp, &arrival->tuple, arrival->packet.v6));
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
	tp = listener_chosen(sk, arrival);
	if (sk->state != TCP_LISTEN) {
		bpf_sk_release(sk);
		return pass_syn(listener, arrival, VERDICT_syn_repeated);
	}
	arrival->mptcp = is_mptcp(tp);
	other = !*state || (u64)tp != arrival->socket;
	if (other)
		*state = syn_found(arrival, destination, tp);
	/* Not its queue will have the SYN of a group that is steered. */
	if (!*state || is_steered(&arrival->socket)) {
		bpf_sk_release(sk);
		return pass_syn(listener, arrival, VERDICT_syn_unjudged);
	}
	if (other || arrival->time_wait)
		judge_syn(skb, listener, *state, arrival);
	bpf_sk_release(sk);
	if (passes_as_path(skb, arrival))
		return pass_syn(listener, arrival, VERDICT_syn_join);
	/* Asked here: most SYNs that are refused save the call. */
	if (lets_in(arrival->verdict) ||
	    (arrival->steady != STEADY_NOT && spare_steady(skb, listener, *state, arrival)))
		return ADMIT;
	return REFUSE;
}

/*
 * A SYN to be refused that goes to the kernel all the same: in observe mode, or as its verdict says. state: as of
 * turn_away(). Global: it is rare, and its registers would be on the stack of on_syn(), which before Linux 6.9 has
 * no room for them.
 */
__noinline int leave_to_kernel(struct destination *destination, struct listen_state *state,
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

/* Counts and notes what is left to the kernel, which enforcement would have refused. Global. */
__noinline int note_left(struct __sk_buff *skb, const struct listener_policy *listener, const struct arrival *arrival,
			 bool by_queue)
{
	if (!listener || !arrival)
		return 0;
	/* Of what its rate refuses enforcement would have counted each try: nothing of it depends on the queue. */
	if (by_queue)
		count_retried(listener, arrival);
	if (listener->observe)
		note_retried(skb, listener, arrival);
	return 0;
}

/* What a SYN gets that weir cannot answer. */
static __always_inline enum verdict without_answer(enum verdict v)
{
	switch (v) {
	case VERDICT_syn_reset_full:
		return VERDICT_syn_dropped_full;
	case VERDICT_syn_reset_wait:
		return VERDICT_syn_dropped_wait;
	case VERDICT_syn_reset_rate:
		return VERDICT_syn_dropped_rate;
	case VERDICT_syn_reset_held:
		return VERDICT_syn_dropped_held;
	case VERDICT_syn_reset_residence:
		return VERDICT_syn_dropped_residence;
	case VERDICT_cookie_sent:
	case VERDICT_cookie_sent_flood:
		return VERDICT_syn_left_flood;
	default:
		return v;
	}
}

/* The SYN is over its class's rate (state: NULL) or its queue is full. An unsound one is the kernel's to drop. */
static __always_inline int turn_away(struct __sk_buff *skb, const struct listener_policy *listener,
				     struct arrival *arrival, struct destination *destination,
				     struct listen_state *state)
{
	if (!answerable_skb(skb, arrival))
		return PASS;
	if (came_by_ipsec(skb))
		arrival->verdict = without_answer(arrival->verdict);
	note_refusal(state, listener, arrival);
	if (!listener->observe && !goes_on(arrival->verdict))
		return refuse_syn(skb, listener, arrival);
	note_left(skb, listener, arrival, state != NULL);
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
	arrival->mptcp = arrival->time_wait = arrival->retried = 0;
	destination = destination_of(skb, false, CTX_LOAD(skb, ifindex), arrival);
	if (!destination)
		return PASS;
	note_source(listener, arrival);
	arrival->class = class_for(listener, arrival);
	if (listener->observe)
		find_retried(skb, listener, arrival);
	if (!over_rate(listener, arrival)) {
		int outcome = ADMIT;

		state = syn_recall(arrival, destination);
		if (!state || !lets_in(judge_syn(skb, listener, state, arrival)))
			outcome = decide_by_lookup(skb, listener, arrival, destination, &state);
		if (outcome == ADMIT)
			return admit_syn(skb, state, listener, arrival);
		if (outcome == PASS)
			return PASS;
	} else if (is_held_skb(skb, arrival)) {
		return pass_syn(listener, arrival, VERDICT_syn_repeated);
	}
	return turn_away(skb, listener, arrival, destination, state);
}

#endif
