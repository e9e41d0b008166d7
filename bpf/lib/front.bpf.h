/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * front.bpf.h - the XDP front: refuses in the driver what tc would refuse,
 * before receive steering and the queues behind it, and off the server's core.
 *
 * It sees what tc sees, and decides by the same rules, on SYNs and, while
 * cookies are out, on final ACKs. But it only refuses: it counts nobody as let
 * in, takes no token and makes no claim. What it lets by is undecided until tc
 * sees it, and what is lost before that (a full receive backlog, another program
 * or filter) was never counted. It takes claims for none, so it refuses only what
 * tc, which sees no more room, refuses too.
 *
 * It sees no VLAN tag that the device has taken off: user space does not attach it
 * where a VLAN's interface is on the device (crates/weir/src/daemon/attachment.rs).
 */
#ifndef WEIR_FRONT_BPF_H
#define WEIR_FRONT_BPF_H

#include "abi/guard.h"
#include "lib/ack.bpf.h"
#include "lib/act.bpf.h"
#include "lib/cookies.bpf.h"
#include "lib/establish.bpf.h"
#include "lib/police.bpf.h"

static __always_inline int front_refuse_syn(struct xdp_md *xdp, const struct listener_policy *listener,
					    const struct arrival *arrival)
{
	struct xdp_buff *buffer = bpf_cast_to_kern_ctx(xdp);
	u32 ack = 0, isn = seq_of_xdp(xdp, &arrival->packet, &ack);
	struct answer answer = {};

	if (sends_cookie(arrival->verdict)) {
		struct option_walk *walk = options_of_xdp(xdp, &arrival->packet);

		if (!walk)
			return XDP_PASS;
		answer.ack = isn + 1;
		cookie_answer(&answer, &walk->options, arrival, listener, buffer->rxq->dev->mtu);
	} else if (sends_rst(arrival->verdict)) {
		rst_to_syn(&answer, &arrival->packet, isn, listener);
	} else {
		return XDP_DROP;
	}
	return answer_xdp(xdp, &arrival->packet, &answer, arrival->verdict);
}

/* As view_queue(), without the claims: the kernel may count them by now, and tc finds that out. */
static __always_inline void front_view(struct listen_state *state, struct arrival *arrival)
{
	view_read(state, arrival, 0);
}

/* As judge_syn(), without a claim. Global. */
__noinline int front_judge(const struct listener_policy *listener, struct listen_state *state, struct arrival *arrival)
{
	bool waiting;

	if (!listener || !state || !arrival)
		return VERDICT_syn_admitted;
	front_view(state, arrival);
	judge_handshakes(state, listener, &arrival->queue);
	waiting = waits_too_long(state, listener, &arrival->queue, arrival->now);
	arrival->verdict =
		verdict_on(listener, arrival, waiting, cookie_possible(listener, arrival), flooded(state, arrival->now));
	return arrival->verdict;
}

/* Whether tc may let the SYN in because its source is steady. */
static __always_inline bool front_spares(const struct listener_policy *listener, const struct listen_state *state,
					 struct arrival *arrival)
{
	if (!turns_away(arrival->verdict) || !steady_place(listener, &arrival->queue, state->group))
		return false;
	look_at_source(listener, arrival);
	return arrival->steady != STEADY_NOT;
}

/* As decide_by_lookup(). Returns REFUSE or an action. */
static __always_inline int front_decide_by_lookup(struct xdp_md *xdp, const struct listener_policy *listener,
						  struct arrival *arrival, struct destination *destination,
						  struct listen_state **state)
{
	struct bpf_sock *sk = syn_lookup(xdp, true, arrival);
	const struct tcp_sock *tp;
	bool other;

	if (!sk)
		return XDP_PASS;
	tp = listener_chosen(sk, arrival);
	if (sk->state != TCP_LISTEN) {
		bpf_sk_release(sk);
		return XDP_PASS;
	}
	arrival->mptcp = is_mptcp(tp);
	other = !*state || (u64)tp != arrival->socket;
	if (other)
		*state = syn_found(arrival, destination, tp);
	if (!*state || is_steered(&arrival->socket)) {
		bpf_sk_release(sk);
		return XDP_PASS;
	}
	if (other || arrival->time_wait)
		front_judge(listener, *state, arrival);
	bpf_sk_release(sk);
	if (goes_on(arrival->verdict) || listener->observe || front_spares(listener, *state, arrival) ||
	    (arrival->mptcp && adds_path_xdp(xdp, arrival)))
		return XDP_PASS;
	return REFUSE;
}

/* Whether the SYN's class has no token; then with its verdict. tc takes the token of a SYN that comes in. */
static __always_inline bool front_over_rate(const struct listener_policy *listener, struct arrival *arrival)
{
	int over;

	if (!polices(listener) || listener->observe)
		return false;
	over = police(arrival->class, class_copy(listener), false);
	arrival->verdict = rate_verdict(listener, over);
	return over;
}

/* Refuses a SYN that is over its class's rate (state: NULL), or for its queue. */
static __always_inline int front_turn_away(struct xdp_md *xdp, const struct listener_policy *listener,
					   struct arrival *arrival, struct listen_state *state)
{
	/* tc does not see it. */
	note_source_at_front(listener, arrival);
	note_refusal(state, listener, arrival);
	count_for(listener, arrival->class, VERDICT_refused_at_xdp);
	return front_refuse_syn(xdp, listener, arrival);
}

/* Global. */
__noinline int front_syn(struct xdp_md *xdp, const struct listener_policy *listener, struct arrival *arrival)
{
	struct listen_state *state = NULL;
	struct destination *destination;
	int action;

	if (!listener || !arrival || !tuple_of_xdp(xdp, arrival))
		return XDP_PASS;
	arrival->now = clock_ns();
	arrival->mptcp = arrival->time_wait = arrival->retried = 0;
	destination = destination_of(xdp, true, CTX_LOAD(xdp, ingress_ifindex), arrival);
	if (!destination)
		return XDP_PASS;
	arrival->class = class_for(listener, arrival);
	if (front_over_rate(listener, arrival) && answerable_xdp(xdp, arrival))
		return is_held_xdp(xdp, arrival) ? XDP_PASS : front_turn_away(xdp, listener, arrival, NULL);
	state = syn_recall(arrival, destination);
	if (state && goes_on(front_judge(listener, state, arrival)))
		return XDP_PASS;
	action = front_decide_by_lookup(xdp, listener, arrival, destination, &state);
	if (action != REFUSE)
		return action;
	return answerable_xdp(xdp, arrival) ? front_turn_away(xdp, listener, arrival, state) : XDP_PASS;
}

/* The verdict on the final ACK of a cookie, without a claim. Global. */
__noinline int front_judge_ack(const struct listener_policy *listener, struct listen_state *state,
			       struct arrival *arrival)
{
	if (!listener || !state || !arrival)
		return VERDICT_cookie_accepted;
	front_view(state, arrival);
	arrival->verdict = cookie_ack_verdict(listener, &arrival->queue,
					      waits_too_long(state, listener, &arrival->queue, arrival->now));
	return arrival->verdict;
}

/* Cookies that the front let by once are tc's: it may have accepted one whose data comes now. */
static __always_inline int front_cookie_ack(struct xdp_md *xdp, const struct listener_policy *listener,
					    struct arrival *arrival, struct listen_state *state)
{
	struct answer answer;
	u32 ack = 0, seq = seq_of_xdp(xdp, &arrival->packet, &ack);
	struct cookie_ack cookie = cookie_answered(seq, ack);

	if (settled(let_by, &cookie) || !cookie_valid(listener, arrival, &cookie))
		return XDP_PASS;
	arrival->verdict = VERDICT_ack_reset_full;
	if (!settled(refused, &cookie)) {
		arrival->class = class_for(listener, arrival);
		if (front_judge_ack(listener, state, arrival) == VERDICT_cookie_accepted ||
		    !answerable_xdp(xdp, arrival)) {
			settle(let_by, &cookie);
			return XDP_PASS;
		}
		settle(refused, &cookie);
		note_refused_ack(state, listener, arrival);
		count_for(listener, arrival->class, VERDICT_refused_at_xdp);
	}
	rst(&answer, listener, ack);
	return answer_xdp(xdp, &arrival->packet, &answer, arrival->verdict);
}

/* Global. */
__noinline int front_ack(struct xdp_md *xdp, const struct listener_policy *listener, struct arrival *arrival)
{
	struct listen_state *state;
	struct bpf_sock *sk;

	if (!listener || !arrival || !reserves(listener) || listener->observe || !tuple_of_xdp(xdp, arrival))
		return XDP_PASS;
	arrival->now = clock_ns();
	sk = flow_lookup(xdp, &arrival->tuple, arrival->packet.v6);
	if (!sk)
		return XDP_PASS;
	state = sk->state == TCP_LISTEN ? queue_state_of(listener_read(sk), arrival->now) : NULL;
	bpf_sk_release(sk);
	return state ? front_cookie_ack(xdp, listener, arrival, state) : XDP_PASS;
}

#endif
