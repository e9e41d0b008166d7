/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * rate.bpf.h - how many connections of a class may come. Each class has a token
 * bucket (bucket.h) with the operator's rate and burst; the controller may set a
 * lower rate, which expires by itself.
 *
 * The tables are maps and not globals, as those of classify.bpf.h: a class has one
 * bucket for its connections over TCP and over QUIC.
 */
#ifndef WEIR_RATE_BPF_H
#define WEIR_RATE_BPF_H

#include "abi/guard.h"
#include "lib/bucket.h"
#include "lib/classify.bpf.h"
#include "lib/export.bpf.h"
#include "lib/kernel.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_CLASS_SLOTS);
	__type(key, u32);
	__type(value, struct class_limit);
} class_limits SEC(".maps");

EXPORT_TYPE(struct, class_state);

/* What classes have used and met: an array in pieces, for 9 MB are too much where there are few classes. */
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

/* DROP, RST: over the operator's rate, by the class's over_rate. HELD: over the controller's rate. */
enum police { POLICE_PASS, POLICE_DROP, POLICE_RST, POLICE_HELD };

/*
 * May a connection of this class come in? takes: then it has its token. What is over the controller's rate gets what
 * the listener gives to those that it cannot serve: nobody has said over_rate of a class without a rate. Global, as
 * class_of().
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

#endif
