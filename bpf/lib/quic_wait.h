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
 * numbers, and those after the newest that was answered count as not answered.
 * Those before it without an answer were overtaken. Maybe the server has dropped
 * them, or they were made-up packets, and nobody waits. Or the server answers in
 * another order, as programs in Go do, and they still wait. How many of them wait
 * is judged by what became of overtaken attempts of late.
 *
 * CoDel's idea (RFC 8289), as of wait.h: it refuses once the wait has stood over
 * the target for an interval, and until it was under it for as long. The wait has
 * to be confirmed: the newest answer took long, or none comes. And it refuses
 * while the buffer is fuller than `room`: the packets of established connections
 * have to find a place there. Where one answer takes longer than the target, as
 * few wait as keep the server busy, be it one worker or many. A server that stood
 * still for a moment has longer to work off what came meanwhile.
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
/*
 * Answers for which the wait must be over the target before it counts as standing, and the most time that this makes.
 */
#define QUIC_STANDING_ANSWERS 8
#define QUIC_STANDING_MAX_NS 500000000ULL
_Static_assert(QUIC_STOPPED_NS + QUIC_STANDING_MAX_NS < QUIC_FORGOTTEN_NS, "it stands before those who wait are forgotten");
/* A wait that is too long for any client, however few make it. */
#define QUIC_BEARABLE_NS 1000000000ULL
/*
 * Answers take so much longer, in 1/1024, if others wait before them: below the first a server answers several at a
 * time, and above the second there are more than it takes at a time. One worker's take half as long again.
 */
#define QUIC_PARALLEL_1024 1280
#define QUIC_QUEUES_1024 2048
/* Of the moving means of both, the weight of a new sample: one in 2^4. */
#define QUIC_CROWDED_SHIFT 4
/* An answer with nobody before it counts so many times the mean at most: what is longer is a stop of the server. */
#define QUIC_ALONE_TIMES 4
/*
 * A time without an answer that is so many times as long as usual is a stop of the server, which then has so many times
 * as long to catch up; of no more than an interval, and no more in all.
 */
#define QUIC_STOP_ANSWERS 4
#define QUIC_CATCH_UP 8
#define QUIC_CATCH_UP_MAX_NS 900000000ULL
_Static_assert(QUIC_STOPPED_NS + QUIC_CATCH_UP_MAX_NS < QUIC_FORGOTTEN_NS, "as above");
/* Answers of a sample. */
#define QUIC_SAMPLE_ANSWERS 32
/*
 * An overtaken attempt counts for so many times as long as the newest answer to one took, within these bounds, and for
 * up to twice that.
 */
#define QUIC_OVERTAKEN_TIMES 4
#define QUIC_OVERTAKEN_LEAST_NS 100000000ULL
#define QUIC_OVERTAKEN_MOST_NS 1000000000ULL
/*
 * A server that answers at least TIMES attempts for each one that it does not is trusted. If more attempts wait there
 * than it could have answered since its newest answer, the silence is no stop: a crowd has come, and its first answer
 * takes long. If no answer comes for CROWD_MAX, that was wrong. Trust needs at least LEAST answers. At more than MOST
 * attempts, both counts are halved, so that older ones count less.
 */
#define QUIC_TRUST_TIMES 7
#define QUIC_TRUST_LEAST 16
#define QUIC_TRUST_MOST 256
#define QUIC_DOUBTS 32
#define QUIC_CROWD_MAX_NS 500000000ULL
/*
 * Overtaken attempts that were lost count at most so many times as much as all else that is known of overtaken ones: so
 * a flood is forgotten.
 */
#define QUIC_LOST_TIMES 8
/* An answer to an attempt that is so many numbers behind tells nothing of those overtaken. */
#define QUIC_OLD (1 << 30)
/* The number of an attempt that waits for no answer. */
#define QUIC_NO_NUMBER 0

/*
 * How many attempts were let in after the newest that was answered, without those that were sent a Retry; of these, the
 * share that the server answered of late, since the others are dropped or made up. What another CPU changes meanwhile
 * may make it less than 0.
 */
static __always_inline u32 quic_newest(const struct quic_state *state)
{
	u32 answered = *(volatile u32 *)&state->answered, excused = *(volatile u32 *)&state->excused;
	s32 newest = *(volatile u32 *)&state->admitted - answered - excused;
	u64 share = state->trust_answered, all = share + state->trust_lost;

	if (newest <= 0)
		return 0;
	if (!state->trust_lost || all < QUIC_TRUST_LEAST)
		return newest;
	return (newest * share + all - 1) / all;
}

/* How many of the overtaken attempts still wait for an answer, judged by what became of such attempts of late. */
static __always_inline u32 quic_still_waiting(const struct quic_state *state)
{
	u64 overtaken = (u64)state->overtaken + state->overtaken_before, answered = state->overtaken_answered;

	return overtaken && answered ? overtaken * answered / (answered + state->overtaken_lost) : 0;
}

/* Attempts that were let in and wait for an answer. */
static __always_inline u32 quic_pending(const struct quic_state *state)
{
	u64 pending = (u64)quic_newest(state) + quic_still_waiting(state);

	return pending < (u32)-1 ? pending : (u32)-1;
}

/* How long the next attempt waits for its answer behind so many others. 0: not known. */
static __always_inline u64 quic_wait_of(const struct quic_state *state, u32 pending)
{
	return pending * state->service_ns;
}

/* So many attempts may wait, whatever the wait. */
static __always_inline u32 quic_least(const struct quic_state *state)
{
	u64 bearable;

	if (state->least <= WEIR_QUIC_LEAST_MIN)
		return WEIR_QUIC_LEAST_MIN;
	/* It may have been learnt when answers were quicker. */
	bearable = state->service_ns ? QUIC_BEARABLE_NS / state->service_ns : state->least;
	if (bearable >= state->least)
		return state->least;
	return bearable > WEIR_QUIC_LEAST_MIN ? bearable : WEIR_QUIC_LEAST_MIN;
}

/*
 * The time per answer of late: the shorter of the two newest times, as a stop makes one of them longer. 0: not known.
 */
static __always_inline u64 quic_pace(const struct quic_state *state)
{
	return state->pace_ns < state->pace_before_ns ? state->pace_ns : state->pace_before_ns;
}

/*
 * Whether more wait than the server, at its pace of late, answers in one and a half times the stop plus the target.
 * Then the stop does not explain that they wait.
 */
static __always_inline bool quic_is_more_than_a_stop(const struct quic_state *state, u32 pending, u64 stop,
						     const struct quic_policy *policy)
{
	return pending * quic_pace(state) > stop + stop / 2 + policy->target_wait_ns;
}

/* Whether the server has answered nearly all attempts of late. */
static __always_inline bool quic_is_trusted(const struct quic_state *state)
{
	return !state->doubts && state->trust_answered >= QUIC_TRUST_LEAST &&
	       state->trust_answered >= QUIC_TRUST_TIMES * (u64)state->trust_lost;
}

/*
 * Whether a crowd waits at a server that has been silent for so long. Some servers answer the first of a crowd late,
 * together with many others. Where not nearly all attempts are answered, perhaps nobody waits: the attempts may be made
 * up.
 */
static __always_inline bool quic_has_crowd(const struct quic_state *state, u32 pending, s64 silent,
					   const struct quic_policy *policy)
{
	return quic_is_trusted(state) && silent >= (s64)policy->target_wait_ns && silent < (s64)QUIC_CROWD_MAX_NS &&
	       (state->standing || quic_is_more_than_a_stop(state, pending, silent, policy));
}

/*
 * How long the newest answer must have taken to confirm the wait: as long as the target. Once the wait stands, half of
 * that is enough, but not less than twice what an answer takes alone: where answers overtake each other, a few quick
 * ones in a row do not mean that the crowd is over.
 */
static __always_inline u64 quic_confirms(const struct quic_state *state, const struct quic_policy *policy)
{
	u64 target = policy->target_wait_ns, anyway = 2 * state->alone_ns;

	if (!state->standing || !state->alone_ns || anyway >= target)
		return target;
	return anyway > target / 2 ? anyway : target / 2;
}

/*
 * Whether the wait is over the target: by the count of those who wait, and confirmed by a long answer or by none. An
 * attempt that is dropped before the server sees it counts but does not wait, and the others have their answers at
 * once.
 */
static __always_inline bool quic_is_over(const struct quic_state *state, u64 now, const struct quic_policy *policy)
{
	s64 silent = now - state->silent_ns;
	u64 longest = state->latency_ns > state->overtaken_latency_ns ? state->latency_ns : state->overtaken_latency_ns;
	u32 pending = quic_pending(state);

	return pending >= quic_least(state) && quic_wait_of(state, pending) >= policy->target_wait_ns &&
	       (longest >= quic_confirms(state, policy) || silent >= (s64)QUIC_STOPPED_NS ||
		quic_has_crowd(state, pending, silent, policy));
}

/* How long the wait must be over the target to stand, or under it to stand no longer. */
static __always_inline u64 quic_interval(const struct quic_state *state, const struct quic_policy *policy)
{
	u64 answers = QUIC_STANDING_ANSWERS * state->service_ns;

	if (answers > QUIC_STANDING_MAX_NS)
		answers = QUIC_STANDING_MAX_NS;
	return answers > policy->interval_ns ? answers : policy->interval_ns;
}

/*
 * How long the wait must be over the target to stand. It is longer after a stop, unless the stop is not why attempts
 * wait: answers take much longer than it, or more attempts wait than it explains.
 */
static __always_inline u64 quic_patience(const struct quic_state *state, const struct quic_policy *policy)
{
	u64 interval = quic_interval(state, policy), stop = state->stop_ns, patience;

	if (state->latency_ns > 2 * stop + policy->target_wait_ns ||
	    (quic_is_trusted(state) && quic_is_more_than_a_stop(state, quic_pending(state), stop, policy)))
		stop = 0;
	if (stop > policy->interval_ns)
		stop = policy->interval_ns;
	patience = policy->interval_ns + QUIC_CATCH_UP * stop;
	if (patience > QUIC_CATCH_UP_MAX_NS)
		patience = QUIC_CATCH_UP_MAX_NS;
	return patience > interval ? patience : interval;
}

/* For how long an overtaken attempt counts; it may be up to twice that. */
static __always_inline u64 quic_overtaken_for(const struct quic_state *state)
{
	u64 latency = state->overtaken_latency_ns;

	if (latency >= QUIC_OVERTAKEN_MOST_NS / QUIC_OVERTAKEN_TIMES)
		return QUIC_OVERTAKEN_MOST_NS;
	latency *= QUIC_OVERTAKEN_TIMES;
	return latency > QUIC_OVERTAKEN_LEAST_NS ? latency : QUIC_OVERTAKEN_LEAST_NS;
}

/* Less by an eighth, rounded up: so at last it is 0. */
static __always_inline u32 quic_less(u32 count)
{
	return count - (count / 8 + !!(count % 8));
}

static __always_inline u32 quic_sum(u32 a, u32 b)
{
	u64 sum = (u64)a + b;

	return sum < (u32)-1 ? sum : (u32)-1;
}

static __always_inline void quic_learn_trust(struct quic_state *state, u32 answered, u32 lost)
{
	state->trust_answered += answered;
	state->doubts -= answered && state->doubts ? 1 : 0;
	state->trust_lost += lost < QUIC_TRUST_MOST ? lost : QUIC_TRUST_MOST;
	if (state->trust_answered + state->trust_lost > QUIC_TRUST_MOST) {
		state->trust_answered /= 2;
		state->trust_lost /= 2;
	}
}

/* A new period begins. What was overtaken before the one that ends, and has no answer yet, is lost. */
static __always_inline void quic_turn_overtaken(struct quic_state *state)
{
	u32 overtaken = state->overtaken, lost = state->overtaken_before, answered = quic_less(state->overtaken_answered);
	u64 most = QUIC_LOST_TIMES * ((u64)overtaken + lost + answered);

	quic_learn_trust(state, 0, lost);
	lost = quic_sum(quic_less(state->overtaken_lost), lost);
	state->overtaken_answered = answered;
	state->overtaken_lost = lost < most ? lost : most;
	state->overtaken_before = overtaken;
	state->overtaken = 0;
	if (!quic_still_waiting(state))
		state->overtaken_latency_ns = 0;
	/* Numbers wrap. */
	if ((s32)(state->answered - state->unsure_to) > QUIC_OLD)
		state->unsure_to = state->answered - QUIC_OLD;
}

/* Begins a new period when this one is over, and two when it has lasted twice as long. */
static __always_inline void quic_forget_overtaken(struct quic_state *state, u64 now)
{
	u64 began = *(volatile u64 *)&state->overtaken_ns;
	s64 since = now - began, time = quic_overtaken_for(state);

	/* Of two CPUs at once one does. */
	if (since < time || __sync_val_compare_and_swap(&state->overtaken_ns, began, now) != began)
		return;
	quic_turn_overtaken(state);
	if (since / 2 >= time)
		quic_turn_overtaken(state);
}

/* One look, when an attempt comes. Without a lock: of two CPUs at once one has its way. */
static __always_inline void quic_look(struct quic_state *state, u64 now, const struct quic_policy *policy)
{
	u64 above = *(volatile u64 *)&state->above_ns;
	s64 silent = now - state->silent_ns, interval = quic_interval(state, policy), patience;

	quic_forget_overtaken(state, now);
	/* There was no crowd. */
	if (silent >= (s64)QUIC_CROWD_MAX_NS && quic_pending(state) >= quic_least(state))
		state->doubts = QUIC_DOUBTS;
	if (silent > (s64)QUIC_FORGOTTEN_NS) {
		if (quic_pending(state))
			state->unsure = 1;
		state->answered = state->admitted;
		state->excused = 0;
		state->overtaken = 0;
		state->overtaken_before = 0;
		state->latency_ns = 0;
		state->overtaken_latency_ns = 0;
		state->sample_ns = 0;
	}
	if (quic_is_over(state, now, policy)) {
		patience = quic_patience(state, policy);
		/* One that has stopped is soon forgotten, however long the interval. */
		if (silent >= (s64)QUIC_STOPPED_NS && patience > (s64)QUIC_STANDING_MAX_NS)
			patience = QUIC_STANDING_MAX_NS;
		if (!above)
			state->above_ns = now;
		else if ((s64)(now - above) >= patience)
			state->standing = 1;
		state->last_above_ns = now;
		return;
	}
	if (!state->standing || (s64)(now - state->last_above_ns) >= interval) {
		state->standing = 0;
		state->above_ns = 0;
		state->stop_ns = 0;
	}
}

/*
 * A limit of the wait for an attempt of this priority: that for those without a class, and up to twice as much for the
 * highest. So under an overload of the lower ones the higher ones still get in.
 */
static __always_inline u64 quic_of_priority(u64 limit, u32 priority)
{
	return limit + (limit * (WEIR_PRIORITIES - priority) + WEIR_PRIORITIES - 1) / WEIR_PRIORITIES;
}

/* Whether an attempt of this priority would wait too long. */
static __always_inline bool quic_is_late(const struct quic_state *state, const struct quic_policy *policy, u32 priority)
{
	u32 pending = quic_pending(state);

	return state->standing && pending >= quic_of_priority(quic_least(state), priority) &&
	       quic_wait_of(state, pending) >= quic_of_priority(policy->target_wait_ns, priority);
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
 * What becomes of an attempt, after quic_look(). priority: of its class, 1 .. WEIR_PRIORITIES. One that the floor lets
 * in has taken its token.
 */
static __always_inline enum quic_verdict quic_judge(struct quic_state *state, u64 now, const struct quic_policy *policy,
						    u32 priority)
{
	bool full = quic_is_full(state, policy, priority);
	bool late = quic_is_late(state, policy, priority);
	struct bucket_limit floor;

	if (!full && !late)
		return VERDICT_quic_admitted;
	if (late && !state->turned_away)
		state->turned_away = 1;
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

/*
 * Whether the socket drops a packet that takes so much memory, as __udp_enqueue_schedule_skb() does: nobody waits then.
 * Before Linux 6.18 the packet did not count: 0. An empty socket takes any.
 */
static __always_inline bool quic_is_lost(const struct quic_state *state, u32 truesize)
{
	return state->buffer && (u64)state->buffer + truesize > state->buffer_limit;
}

/* An attempt is let in after a time in which nobody waited. Another CPU's answer may have come a moment later. */
static __always_inline void quic_ends_idle(struct quic_state *state, u64 now)
{
	s64 idle = now - *(volatile u64 *)&state->silent_ns;

	if (idle <= 0)
		return;
	state->idle_ns += idle;
	state->silent_ns = now;
}

/* The number of an attempt that is let in now. */
static __always_inline u32 quic_let_in(struct quic_state *state, u64 now)
{
	u32 number;

	state->admitted_ns = now;
	if (!quic_pending(state))
		quic_ends_idle(state, now);
	number = __sync_fetch_and_add(&state->admitted, 1) + 1;
	return number != QUIC_NO_NUMBER ? number : __sync_fetch_and_add(&state->admitted, 1) + 1;
}

/* That of one which the socket drops. Its client may repeat it; then it has waited for nothing. */
static __always_inline u32 quic_lose(struct quic_state *state, u64 now)
{
	state->admitted_ns = now;
	return QUIC_NO_NUMBER;
}

/* Half as many again, and no more than so many. */
static __always_inline u32 quic_more(u32 least, u32 most)
{
	u32 more = least + least / 2 + 1;

	return more < most ? more : most;
}

/* How many attempts the server worked on at a time in this sample, if each took as long as alone (Little's law). */
static __always_inline u32 quic_at_a_time(const struct quic_state *state, u64 elapsed)
{
	u64 alone = state->alone_ns < QUIC_SERVICE_MAX_NS ? state->alone_ns : QUIC_SERVICE_MAX_NS;
	u64 many = elapsed ? state->answers * alone / elapsed : 0;

	return many < WEIR_QUIC_LEAST_PARALLEL ? many : WEIR_QUIC_LEAST_PARALLEL;
}

/*
 * As few as keep the server busy: what was there at all times only waits, and where nobody waited although others were
 * turned away, there were too few. A server that answers several at a time has too few as long as nobody waits for
 * another.
 */
static __always_inline u32 quic_least_learnt(const struct quic_state *state, u64 elapsed)
{
	u32 least = quic_least(state), spare = state->low_mark / 2, fewer = least > spare ? least - spare : 0, busy;

	if (state->crowded_1024 && state->crowded_1024 < QUIC_PARALLEL_1024)
		return quic_more(least, WEIR_QUIC_LEAST_PARALLEL);
	if (state->low_mark >= WEIR_QUIC_LEAST_MIN) {
		if (state->crowded_1024 && state->crowded_1024 < QUIC_QUEUES_1024)
			return least;
		busy = quic_at_a_time(state, elapsed);
		busy = busy < least ? busy : least;
		return fewer > busy ? fewer : busy;
	}
	if (state->idle_ns <= elapsed / 16 || least >= WEIR_QUIC_LEAST_MAX)
		return least;
	return quic_more(least, WEIR_QUIC_LEAST_MAX);
}

static __always_inline void quic_learn_least(struct quic_state *state, u64 elapsed)
{
	u64 least = quic_least_learnt(state, elapsed);

	if (least * state->service_ns > QUIC_BEARABLE_NS)
		least = QUIC_BEARABLE_NS / state->service_ns;
	state->least = least;
}

/* Learns the pace, twice in each sample. */
static __always_inline void quic_learn_pace(struct quic_state *state, s64 elapsed)
{
	u64 half = QUIC_SAMPLE_ANSWERS / 2, first = state->answers > half ? half * state->pace_ns : 0;
	s64 busy = elapsed - state->idle_ns - first;

	if (state->answers % half)
		return;
	state->pace_before_ns = state->pace_ns;
	state->pace_ns = busy > 0 ? (u64)busy / half : 0;
	if (!state->pace_before_ns)
		state->pace_before_ns = state->pace_ns;
}

/* An answer has left. */
static __always_inline void quic_learn(struct quic_state *state, u64 now)
{
	u32 pending = quic_newest(state);
	s64 elapsed = now - state->sample_ns;

	if (state->sample_ns && state->answers < QUIC_SAMPLE_ANSWERS) {
		state->answers++;
		if (pending < state->low_mark)
			state->low_mark = pending;
		quic_learn_pace(state, elapsed);
		return;
	}
	/* Of two CPUs at once one learns. */
	if (__sync_lock_test_and_set(&state->turned_away, 0) && state->sample_ns && elapsed > 0)
		quic_learn_least(state, elapsed);
	state->idle_ns = 0;
	state->answers = 0;
	state->low_mark = pending;
	state->sample_ns = now;
}

static __always_inline u64 quic_mean_of_16(u64 known, u64 sample)
{
	u64 mean = known ? known - (known >> QUIC_CROWDED_SHIFT) + (sample >> QUIC_CROWDED_SHIFT) : sample;

	/* 0 stands for none. */
	return mean ? mean : 1;
}

/* An answer took so long, and so many waited before it: do those wait for each other? */
static __always_inline void quic_compare(struct quic_state *state, u64 after_ns, u32 behind)
{
	if (!behind && state->alone_ns && after_ns > QUIC_ALONE_TIMES * state->alone_ns)
		after_ns = QUIC_ALONE_TIMES * state->alone_ns;
	if (!behind)
		state->alone_ns = quic_mean_of_16(state->alone_ns, after_ns);
	else if (state->alone_ns)
		state->crowded_1024 = quic_mean_of_16(state->crowded_1024, (after_ns << 10) / state->alone_ns);
}

/* An answer has left. The time since the one before may have been a stop. */
static __always_inline void quic_ends_silence(struct quic_state *state, u64 now)
{
	s64 silent = now - *(volatile u64 *)&state->silent_ns;

	if (state->service_ns && silent > (s64)(QUIC_STOP_ANSWERS * state->service_ns) && silent > (s64)state->stop_ns)
		state->stop_ns = silent;
	state->silent_ns = now;
}

/* Whether the attempt with this number was let in, ever. One of another life of the state says nothing. */
static __always_inline bool quic_knows(const struct quic_state *state, u32 number)
{
	return number == QUIC_NO_NUMBER || (s32)(state->admitted - number) >= 0;
}

/* Whether it is known how many waited before this attempt: not where some of them were forgotten. */
static __always_inline bool quic_is_sure(struct quic_state *state, u32 number)
{
	if (number == QUIC_NO_NUMBER || (state->unsure && (s32)(state->unsure_to - number) >= 0))
		return false;
	state->unsure = 0;
	return true;
}

/* One overtaken attempt waits no longer. False: none counts as overtaken any more, so it counts as lost, if at all. */
static __always_inline bool quic_take_overtaken(struct quic_state *state)
{
	u32 before = *(volatile u32 *)&state->overtaken_before, overtaken = *(volatile u32 *)&state->overtaken;

	if (before)
		state->overtaken_before = before - 1;
	else if (overtaken)
		state->overtaken = overtaken - 1;
	return before || overtaken;
}

/* An overtaken attempt has its answer. An answer to a forgotten one tells nothing: it may have come in order. */
static __always_inline void quic_answers_overtaken(struct quic_state *state, u32 number, u64 after_ns)
{
	u32 lost = *(volatile u32 *)&state->overtaken_lost;

	if (state->unsure || (s32)(state->unsure_to - number) >= 0)
		return;
	if ((s64)after_ns >= 0)
		state->overtaken_latency_ns = after_ns;
	state->overtaken_answered = quic_sum(state->overtaken_answered, 1);
	if (quic_take_overtaken(state))
		return;
	if (lost)
		state->overtaken_lost = lost - 1;
	lost = *(volatile u32 *)&state->trust_lost;
	if (lost)
		state->trust_lost = lost - 1;
}

/*
 * The attempt with this number has its answer, after so long. It has overtaken earlier ones, or was overtaken itself.
 */
static __always_inline void quic_count_overtaken(struct quic_state *state, u32 number, u64 now, u64 after_ns)
{
	s32 ahead = number - state->answered;
	u32 passed, excused;

	quic_forget_overtaken(state, now);
	quic_learn_trust(state, 1, 0);
	if (number == QUIC_NO_NUMBER)
		return;
	if (ahead > 0) {
		passed = ahead - 1;
		excused = *(volatile u32 *)&state->excused;
		if (passed > excused)
			state->overtaken = quic_sum(state->overtaken, passed - excused);
		state->answered = number;
		/* Which of them came after this one, nobody knows. */
		state->excused = excused > passed ? excused - passed : 0;
	} else {
		quic_answers_overtaken(state, number, after_ns);
	}
}

/* The server has answered the attempt with this number, now and after so long. */
static __always_inline void quic_settle(struct quic_state *state, u32 number, u64 now, u64 after_ns)
{
	quic_ends_silence(state, now);
	if (state->unsure == 1) {
		state->unsure_to = state->admitted;
		state->unsure = 2;
	}
	quic_count_overtaken(state, number, now, after_ns);
	quic_learn(state, now);
}

/*
 * The same, and it tells how fast the server is: the answer took so long, and so many waited before it. That it took so
 * long comes first: a look of another CPU in between sees no stop without the wait that it led to. The first answer of
 * all tells nothing of how long one takes alone: the server may just have begun.
 */
static __always_inline void quic_answer(struct quic_state *state, u32 number, u64 now, u64 after_ns, u32 behind)
{
	u64 sample = after_ns / ((u64)behind + 1), known = state->service_ns;

	if (!quic_knows(state, number))
		return;
	if ((s64)after_ns >= 0)
		state->latency_ns = after_ns;
	quic_settle(state, number, now, after_ns);
	if (after_ns > QUIC_SERVICE_MAX_NS || !quic_is_sure(state, number))
		return;
	if (known)
		sample = known - (known >> QUIC_SERVICE_SHIFT) + (sample >> QUIC_SERVICE_SHIFT);
	/* 0 stands for none. */
	state->service_ns = sample ? sample : 1;
	if (known)
		quic_compare(state, after_ns, behind);
}

/*
 * The same of an attempt that its client had repeated, then: which of its Initials has the answer, nobody knows. It
 * took as long as since then, or longer.
 */
static __always_inline void quic_answer_late(struct quic_state *state, u32 number, u64 now, u64 repeated_ns, u32 behind)
{
	s64 took = repeated_ns ? now - repeated_ns : 0, longest;
	u64 sample;

	if (!quic_knows(state, number))
		return;
	if (took > 0 && (u64)took > state->latency_ns)
		state->latency_ns = took;
	longest = state->overtaken_latency_ns;
	quic_settle(state, number, now, took > longest ? took : longest);
	if (!quic_is_sure(state, number) || took <= 0 || took > (s64)QUIC_SERVICE_MAX_NS || state->service_ns)
		return;
	sample = took / ((u64)behind + 1);
	state->service_ns = sample ? sample : 1;
}

/* The server has sent a Retry: the attempt with this number waits for its client now. */
static __always_inline void quic_excuse(struct quic_state *state, u32 number, u64 now)
{
	state->silent_ns = now;
	if (number == QUIC_NO_NUMBER)
		return;
	if ((s32)(number - state->answered) > 0)
		__sync_fetch_and_add(&state->excused, 1);
	else
		quic_take_overtaken(state);
}

#endif
