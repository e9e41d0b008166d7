/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * police.bpf.h - may this SYN come in at all? Each class has a token bucket
 * (bucket.h) with the operator's rate and burst; the controller may set a lower
 * rate, which expires by itself.
 *
 * Asked for each SYN to a guarded address of this host, before anything about
 * the listening socket is looked up. tc takes the token. The XDP front refuses
 * those that find none, and takes none. Who is to be refused is looked up first: a
 * SYN that repeats one whose handshake the kernel holds takes a token too, but is not
 * refused for want of one.
 */
#ifndef WEIR_POLICE_BPF_H
#define WEIR_POLICE_BPF_H

#include "abi/guard.h"
#include "lib/act.bpf.h"
#include "lib/arrival.bpf.h"
#include "lib/bucket.h"
#include "lib/classify.bpf.h"
#include "lib/kernel.h"
#include "lib/state.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_CLASS_SLOTS);
	__type(key, u32);
	__type(value, struct class_limit);
} class_limits SEC(".maps");

EXPORT_TYPE(struct, class_state);

/* What classes have used and met: an array in pieces, for 4.3 MB are too much where there are few classes. */
struct class_states_piece {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_CLASS_PIECE);
	__type(key, u32);
	__type(value, struct class_state);
};

/* User space makes a piece when a class gets a slot in it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WEIR_CLASS_PIECES);
	__type(key, u32);
	__array(values, struct class_states_piece);
} class_states SEC(".maps");

/* NULL: there is no class in this slot. */
static __always_inline struct class_state *class_state_of(u32 class)
{
	u32 number = class / WEIR_CLASS_PIECE, slot = class % WEIR_CLASS_PIECE;
	void *piece = bpf_map_lookup_elem(&class_states, &number);

	return piece ? bpf_map_lookup_elem(piece, &slot) : NULL;
}

static __always_inline u32 class_copy(const struct listener_policy *listener)
{
	return listener->classes - 1;
}

/* The class of a connection to this listener; WEIR_NO_CLASS, without a lookup, if there are none. */
static __always_inline u32 class_for(const struct listener_policy *listener, const struct arrival *arrival)
{
	if (!listener->classes)
		return WEIR_NO_CLASS;
	return class_of(&arrival->tuple, arrival->packet.v6, listener->owner, class_copy(listener));
}

/* Counts for the listener and for the class. */
static __always_inline void count_for(const struct listener_policy *listener, u32 class, enum verdict v)
{
	struct class_state *state;

	/* Else clang loads it twice, and the verifier does not see that it was in range the second time. */
	barrier_var(v);
	count(listener, v);
	if (class == WEIR_NO_CLASS || v >= VERDICT_COUNT)
		return;
	state = class_state_of(class);
	if (state)
		__sync_fetch_and_add((u64 *)&state->counters + v, 1);
}

static __always_inline bool polices(const struct listener_policy *listener)
{
	return listener->classes && !listener->draining;
}

/* Of the operator's limit and the controller's the lower rate; NULL: neither. */
static __always_inline const struct bucket_limit *limit_of(const struct class_policy *policy,
							   const struct class_limit *controlled, u64 now_ns)
{
	if (controlled->limit.interval > policy->limit.interval && now_ns < controlled->until_ns)
		return &controlled->limit;
	return policy->limit.interval ? &policy->limit : NULL;
}

/* Whether this bucket has a token; then it is taken. Global, as class_of(). */
__noinline int take_token(u64 *next, u64 now_ns, u64 interval, u64 tolerance)
{
	struct bucket_limit limit = { .interval = interval, .tolerance = tolerance };

	return !next || bucket_take(next, now_ns, &limit);
}

enum police { POLICE_PASS, POLICE_DROP, POLICE_RST, POLICE_HELD };

/*
 * May a SYN of this class come in? takes: then it has its token. What is over the controller's rate gets what the
 * listener gives to those that it cannot serve (reject_syn): nobody has said over_rate of a class without a rate.
 * Global, as class_of().
 */
__noinline int police(u32 class, u32 copy, u32 takes)
{
	const struct class_policy *policy = class_policy_of(class, copy);
	const struct class_limit *controlled = bpf_map_lookup_elem(&class_limits, &class);
	struct class_state *state = class_state_of(class);
	const struct bucket_limit *limit;
	u64 now;

	if (!policy || !controlled || !state || !(policy->limit.interval | controlled->limit.interval))
		return POLICE_PASS;
	now = bpf_ktime_get_ns();
	limit = limit_of(policy, controlled, now);
	if (!limit || (takes ? take_token(&state->next, now, limit->interval, limit->tolerance) :
			       bucket_has(&state->next, now, limit)))
		return POLICE_PASS;
	if (limit != &policy->limit)
		return POLICE_HELD;
	return policy->over_rate == OVER_RATE_RST ? POLICE_RST : POLICE_DROP;
}

static __always_inline enum verdict rate_verdict(const struct listener_policy *listener, int police)
{
	if (police == POLICE_HELD)
		return listener->reject_syn == REJECT_RST ? VERDICT_syn_reset_held : VERDICT_syn_dropped_held;
	return police == POLICE_RST ? VERDICT_syn_reset_rate : VERDICT_syn_dropped_rate;
}

/* As sample(), of what its class's rate refuses, before any queue is looked at. */
static __always_inline void sample_rate(const struct listener_policy *listener, const struct arrival *arrival)
{
	u32 class = arrival->class;
	struct class_state *state = class_state_of(class);
	struct guard_event *event;

	if (!state || !sample_due(&state->event_ns, arrival->now))
		return;
	event = event_begin(listener, arrival);
	if (event)
		bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

#endif
