/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * quic_wait.h - may one more QUIC connection begin? Pure: state and time are
 * arguments. weir_models::quic is the same in Rust; a property test holds them
 * equal.
 *
 * A QUIC server has no listen queue. Some let what waits stand in the receive
 * buffer of their socket, others drain it and queue inside. For both the wait is
 * the attempts that were let in and are not answered, times the time for an
 * answer; the first answer to an attempt is seen when it leaves. Attempts have
 * numbers, and those after the newest that was answered count as not answered:
 * one that the server drops, or that was never more than a made-up packet, is
 * forgotten at the next answer.
 *
 * CoDel's idea (RFC 8289), as of wait.h: it refuses once the wait has stood over
 * the target for an interval, and until it was under it for as long; the newest
 * answer has to confirm the wait, or none comes. And it
 * refuses while the buffer is fuller than `room`: the packets of established
 * connections have to find a place there.
 *
 * Established connections alone can keep a server over both. So a share of its
 * answers is for new ones all the same: `floor`.
 */
#ifndef WEIR_QUIC_WAIT_H
#define WEIR_QUIC_WAIT_H

#include "abi/class.h"
#include "abi/quic.h"
#include "lib/bucket.h"
#include "lib/types.h"

#define QUIC_FORGOTTEN_NS (WEIR_QUIC_FORGOTTEN_MS * 1000000ULL)
/* So long without an answer, a server counts as stopped. */
#define QUIC_STOPPED_NS 1000000000ULL
/* An answer that takes longer is none of a busy server's. 2^32 of them stay below 2^64. */
#define QUIC_SERVICE_MAX_NS 4000000000ULL
/* Of the moving mean, the weight of a new sample: one in 2^3. */
#define QUIC_SERVICE_SHIFT 3

/* Attempts that were let in and wait for an answer. What another CPU changes meanwhile may make it less than none. */
static __always_inline u32 quic_pending(const struct quic_state *state)
{
	u32 answered = *(volatile u32 *)&state->answered, excused = *(volatile u32 *)&state->excused;
	s32 pending = *(volatile u32 *)&state->admitted - answered - excused;

	return pending > 0 ? pending : 0;
}

/* How long the next attempt waits for its answer; 0: not known. */
static __always_inline u64 quic_wait_ns(const struct quic_state *state)
{
	return quic_pending(state) * state->service_ns;
}

/*
 * Whether the wait is over the target. It is if the newest answer took as long, or none comes: what is dropped before
 * the server sees it waits for no answer, and the others have theirs at once.
 */
static __always_inline bool quic_is_over(const struct quic_state *state, u64 now, const struct quic_policy *policy)
{
	s64 silent = now - state->silent_ns;

	return quic_wait_ns(state) >= policy->target_wait_ns &&
	       (state->latency_ns >= policy->target_wait_ns || silent >= (s64)QUIC_STOPPED_NS);
}

/* One look, when an attempt comes. Without a lock: of two CPUs at once one has its way. */
static __always_inline void quic_look(struct quic_state *state, u64 now, const struct quic_policy *policy)
{
	u64 above = *(volatile u64 *)&state->above_ns;
	s64 silent = now - state->silent_ns;

	if (silent > (s64)QUIC_FORGOTTEN_NS) {
		state->answered = state->admitted;
		state->excused = 0;
		state->latency_ns = 0;
	}
	if (quic_is_over(state, now, policy)) {
		if (!above)
			state->above_ns = now;
		else if ((s64)(now - above) >= (s64)policy->interval_ns)
			state->standing = 1;
		state->last_above_ns = now;
		return;
	}
	if (!state->standing || (s64)(now - state->last_above_ns) >= (s64)policy->interval_ns) {
		state->standing = 0;
		state->above_ns = 0;
	}
}

/*
 * The wait from which on an attempt of this priority is refused: the target for those without a class, and up to twice as much
 * for the highest. So under an overload of the lower ones the higher ones still get in.
 */
static __always_inline u64 quic_target_ns(const struct quic_policy *policy, u32 priority)
{
	return policy->target_wait_ns + policy->target_wait_ns * (WEIR_PRIORITIES - priority) / WEIR_PRIORITIES;
}

/* The receive buffer is fuller than the policy says; the highest priority has half of the rest too. */
static __always_inline bool quic_is_full(const struct quic_state *state, const struct quic_policy *policy, u32 priority)
{
	u32 room = policy->room_1024;

	room += (1024 - room) * (WEIR_PRIORITIES - priority) / (2 * WEIR_PRIORITIES);
	return policy->room_1024 && (u64)state->buffer << 10 > (u64)state->buffer_limit * room;
}

/* What new attempts have of the server's answers while others are refused: one at once. */
static __always_inline struct bucket_limit quic_floor(const struct quic_state *state, const struct quic_policy *policy)
{
	u64 service = state->service_ns ? state->service_ns : policy->target_wait_ns;
	u64 interval = policy->floor_1024 ? ((service << 10) / policy->floor_1024) << BUCKET_SHIFT : 0;

	return (struct bucket_limit){ .interval = interval, .tolerance = 0 };
}

/*
 * What becomes of an attempt, after quic_look(). priority: of its class, 1 .. WEIR_PRIORITIES. One that the floor lets in has
 * taken its token.
 */
static __always_inline enum quic_verdict quic_judge(struct quic_state *state, u64 now, const struct quic_policy *policy,
						    u32 priority)
{
	bool full = quic_is_full(state, policy, priority);
	bool late = state->standing && quic_wait_ns(state) >= quic_target_ns(policy, priority);
	struct bucket_limit floor;

	if (!full && !late)
		return VERDICT_quic_admitted;
	floor = quic_floor(state, policy);
	if (floor.interval && bucket_take(&state->floor_next, now, &floor))
		return VERDICT_quic_floor;
	if (full)
		return policy->refuse == QUIC_REFUSE_VN ? VERDICT_quic_vn_room : VERDICT_quic_dropped_room;
	return policy->refuse == QUIC_REFUSE_VN ? VERDICT_quic_vn_wait : VERDICT_quic_dropped_wait;
}

/* Whether the client of a refused attempt gets an answer. */
static __always_inline bool quic_answers(enum quic_verdict v)
{
	return v == VERDICT_quic_vn_wait || v == VERDICT_quic_vn_room || v == VERDICT_quic_vn_rate ||
	       v == VERDICT_quic_vn_held;
}

/* Whether the attempt goes on to the server. */
static __always_inline bool quic_lets_in(enum quic_verdict v)
{
	return v == VERDICT_quic_admitted || v == VERDICT_quic_floor;
}

/* The number of an attempt that is let in now. */
static __always_inline u32 quic_let_in(struct quic_state *state, u64 now)
{
	if (!quic_pending(state))
		state->silent_ns = now;
	state->admitted_ns = now;
	return __sync_fetch_and_add(&state->admitted, 1) + 1;
}

/* The server has answered the attempt with this number, now. One of another life of the state says nothing. */
static __always_inline void quic_settle(struct quic_state *state, u32 number, u64 now)
{
	if ((s32)(state->admitted - number) < 0)
		return;
	state->silent_ns = now;
	if ((s32)(number - state->answered) > 0) {
		state->answered = number;
		state->excused = 0;
	}
}

/* The same, and it tells how fast the server is: the answer took so long, and so many waited before it. */
static __always_inline void quic_answer(struct quic_state *state, u32 number, u64 now, u64 after_ns, u32 behind)
{
	u64 sample = after_ns / ((u64)behind + 1), known = state->service_ns;

	quic_settle(state, number, now);
	if (after_ns > QUIC_SERVICE_MAX_NS)
		return;
	if (known)
		sample = known - (known >> QUIC_SERVICE_SHIFT) + (sample >> QUIC_SERVICE_SHIFT);
	/* 0 stands for none. */
	state->service_ns = sample ? sample : 1;
	state->latency_ns = after_ns;
}

/* The server has sent a Retry: the attempt waits for its client now. */
static __always_inline void quic_excuse(struct quic_state *state, u64 now)
{
	state->silent_ns = now;
	__sync_fetch_and_add(&state->excused, 1);
}

#endif
