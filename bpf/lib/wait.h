/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * wait.h - how long will a connection that comes now wait for accept(), and does
 * the queue stand? Pure: state and time are arguments. weir-models' `wait` is the
 * same in Rust; a property test holds them equal.
 *
 * The wait is length times the time between accepts of a busy server. One
 * estimate serves a worker of 100 000 accepts/s and a pool of 64 that takes ten
 * seconds for each: samples are counted in accepts, not in time, and a pool whose
 * workers finish together is measured over several of its turns.
 *
 * CoDel's idea (RFC 8289) on the listen queue: a burst may fill the queue; only a
 * queue that stands is refused. It stands when the wait was over the target for a
 * whole interval, and eight accepts, without draining by an eighth from its
 * highest mark. A server that stood still for a moment has longer for that: what
 * came meanwhile is no overload. While it stands, a SYN is refused whenever the
 * wait is over the target; it ends when the wait was under the target for as long.
 * Where one service takes longer than the target, as few wait as keep the workers
 * busy.
 */
#ifndef WEIR_WAIT_H
#define WEIR_WAIT_H

#include "abi/guard.h"
#include "lib/types.h"

/* A listening socket's queue as the guard sees it when it decides. */
struct queue_view {
	u32 length;	/* connections waiting for accept() */
	u32 limit;	/* backlog in force */
	u32 half_open;	/* handshakes that the kernel counts */
	u32 young;	/* of those, the ones whose SYN/ACK was not retransmitted yet: under about 1 s old */
	u32 claims;	/* SYNs let in that the kernel does not count yet */
	u32 stalled;	/* 1: its handshakes stall (struct stall_state) */
};

/* How often the estimator looks at most. The clock goes in ticks of 1 to 10 ms. */
#define WAIT_STEP_NS 1000000ULL
/* Least time and accepts of a sample. */
#define WAIT_SAMPLE_MIN_NS 10000000ULL
#define WAIT_SAMPLE_ACCEPTS 6
#define WAIT_SAMPLE_ACCEPTS_MAX 256
/* Turns of a pool whose workers finish together that make a sample, and the most accepts of a turn. */
#define WAIT_SAMPLE_TURNS 6
#define WAIT_TURN_MAX 64
/* So many samples make the estimate. */
#define WAIT_SAMPLES 8
/* A service time above this is a stopped server; keeps length * service below 2^64. */
#define WAIT_SERVICE_MAX_NS 100000000000ULL
/* Accepts for which the wait must be over the target before it counts as standing. */
#define WAIT_STANDING_ACCEPTS 8
/*
 * A server that stood still has so many times as long for it and for catching up, and WAIT_BEARABLE_NS at most; a stop
 * counts as an interval at most.
 */
#define WAIT_CATCH_UP 8
/* A wait over this stands however few accepts the time for it was: no client is kept for so long. */
#define WAIT_BEARABLE_NS 5000000000ULL
/* A queue that is this much shorter than it was drains. */
#define WAIT_DRAINS 4
/* Fewest and most that may wait where one service takes longer than the target. */
#define WAIT_LEAST_MIN 2
#define WAIT_LEAST_MAX 256

struct wait_state {
	u64 looked_ns;		/* last look, 0: never */
	u64 service_ns;		/* time between accepts of a busy server; 0: not known yet */
	u64 sample_ns;		/* the running sample began */
	u64 idle_ns;		/* of it, the time in which the server may have been idle */
	u64 accepted_ns;	/* when a connection was last seen to have been accepted, or the queue to be empty */
	u64 gap_ns;		/* longest time without an accept in the running sample */
	u64 last_gap_ns;	/* the same of the sample before */
	u64 above_ns;		/* since when the wait is over the target; 0: it is not */
	u64 last_above_ns;	/* when it was last seen over the target */
	u32 sample_accepts;	/* accepts until the running sample began, ever; wraps */
	u32 accepts;		/* accepts of the running sample */
	u32 length;		/* at the last look */
	u32 low_mark;		/* shortest queue of the running sample */
	u32 high_mark;		/* longest queue since above_ns */
	u32 samples;		/* that service_ns is the mean of, less than WAIT_SAMPLES */
	u32 turn;		/* accepts of a turn, at most WAIT_TURN_MAX */
	u32 least;		/* so many may wait, however slow the server; 0: WAIT_LEAST_MIN */
	u32 standing;		/* 1: refuse while over the target */
	u32 stop_ms;		/* longest stop of the server that led to this wait over the target, or was in it */
	u32 catching_up;	/* 1: after a stop it has drained, and high_mark is not raised: not by the next stop either */
	u32 pad;
};

static __always_inline u64 wait_max(u64 a, u64 b)
{
	return a > b ? a : b;
}

static __always_inline u64 wait_min(u64 a, u64 b)
{
	return a < b ? a : b;
}

/*
 * `a - b`, or 0 if that is negative, of what is below 2^63. Without a branch: each would double what the verifier
 * follows of what comes after.
 */
static __always_inline u64 wait_more(u64 a, u64 b)
{
	s64 more = (s64)(a - b);

	return (u64)(more & ~(more >> 63));
}

/* Time from `then` to `now`; 0 if another CPU's clock was ahead. */
static __always_inline u64 wait_since(u64 now, u64 then)
{
	return now > then ? now - then : 0;
}

/*
 * Time between accepts: the estimate, or before there is one what the running sample of a busy server says; 0: not
 * known. An idle server's accepts are as far apart as its clients.
 */
static __always_inline u64 wait_service(const struct wait_state *wait)
{
	u64 elapsed = wait_since(wait->looked_ns, wait->sample_ns);

	if (wait->service_ns || !wait->accepts || wait->idle_ns > elapsed / 2)
		return wait->service_ns;
	/* Until the last accept: the time since is the wait's, if the server has stopped. */
	return wait_min(wait_since(wait->accepted_ns, wait->sample_ns) / wait->accepts, WAIT_SERVICE_MAX_NS);
}

/* A server that accepts nothing for longer than it has before has stopped: the time since, else 0. */
static __always_inline u64 wait_stopped(const struct wait_state *wait, u64 now)
{
	u64 since = wait_since(now, wait->accepted_ns);
	u64 known = wait_service(wait);

	known += wait_more(wait->gap_ns, known);
	known += wait_more(wait->last_gap_ns, known);
	return wait->looked_ns && since > 2 * known ? since : 0;
}

/* The wait of a connection that finds so many before it. The time for which the server has stopped counts too. */
static __always_inline u64 wait_now(const struct wait_state *wait, u64 now, u32 length)
{
	if (!length)
		return 0;
	return length * wait_service(wait) + wait_stopped(wait, now);
}

/* So many may wait, whatever the wait. */
static __always_inline u32 wait_least(const struct wait_state *wait, const struct listener_policy *listener)
{
	return wait_max(wait_max(wait->least, WAIT_LEAST_MIN), listener->least_length);
}

/* Whether a queue of this length, in which one waits so long, is over the target. */
static __always_inline bool wait_over(const struct wait_state *wait, u64 waits, u32 length,
				      const struct listener_policy *listener)
{
	return length >= wait_least(wait, listener) && waits >= listener->target_wait_ns;
}

static __always_inline void wait_begin_sample(struct wait_state *wait, u64 now, u32 accepts, u32 length)
{
	wait->sample_ns = now;
	wait->sample_accepts = accepts;
	wait->low_mark = length;
	wait->accepts = 0;
	wait->idle_ns = 0;
	wait->gap_ns = 0;
}

/* A pool whose workers finish together accepts in turns: as many, at the mean rate, as its longest gap lasts. */
static __always_inline void wait_learn_turn(struct wait_state *wait, u64 sample)
{
	wait->turn = wait_max(wait_min(wait->gap_ns / sample, WAIT_TURN_MAX), wait->turn - wait->turn / 4);
}

/*
 * The mean of the last WAIT_SAMPLES since the server's speed has changed. Of the
 * first sample after such a change a part is from before, and its gap no turn.
 */
static __always_inline void wait_learn_service(struct wait_state *wait, u64 sample)
{
	u64 known = wait->service_ns;
	bool changed = sample > known + known / 2 || sample < known - known / 3;

	if (!changed || wait->samples <= 1)
		wait_learn_turn(wait, sample);
	if (changed)
		wait->samples = 0;
	wait->service_ns = (wait->samples * known + sample) / (wait->samples + 1);
	wait->samples = wait_min(wait->samples + 1, WAIT_SAMPLES - 1);
}

/*
 * As few as keep the server busy: what was there at all times only waits, and
 * where it was idle although others were refused, there were too few.
 */
static __always_inline void wait_learn_least(struct wait_state *wait, u64 elapsed)
{
	u32 least = wait_max(wait->least, WAIT_LEAST_MIN);

	if (!wait->standing || wait->last_above_ns < wait->sample_ns)
		return;
	if (wait->low_mark >= 2)
		least -= wait_min(wait->low_mark / 2, least);
	else if (wait->idle_ns > elapsed / 8)
		least = wait_min(least + least / 2 + 1, WAIT_LEAST_MAX);
	wait->least = least;
}

static __always_inline void wait_end_sample(struct wait_state *wait, u64 elapsed)
{
	u64 sample = wait_max(wait_min(elapsed / wait->accepts, WAIT_SERVICE_MAX_NS), 1);

	/*
	 * A server that may have been idle only says that it is no slower: its accepts
	 * follow the arrivals. Without that, what was learnt while it stood still would
	 * stay, and a stop would pass for a turn.
	 */
	if (wait->idle_ns > elapsed / 2) {
		wait->service_ns = wait_min(wait->service_ns, sample);
		wait->turn /= 2;
	} else {
		wait_learn_service(wait, sample);
	}
	wait_learn_least(wait, elapsed);
	wait->last_gap_ns = wait->gap_ns;
}

/*
 * Whether the server was busy since the last look for certain. It was if fewer
 * left than waited at its beginning; and, for a short time, if the queue was empty
 * at neither end.
 */
static __always_inline bool wait_busy(const struct wait_state *wait, u64 step, u32 left, u32 length)
{
	if (!left)
		return wait->length || length;
	return left < wait->length || (left == wait->length && length) ||
	       (wait->length && length && step <= WAIT_SAMPLE_MIN_NS);
}

static __always_inline void wait_add(struct wait_state *wait, u64 now, u32 accepts, u32 length)
{
	u64 step = now - wait->looked_ns, elapsed = now - wait->sample_ns;
	/* One that is let in and that the kernel does not count yet seems accepted; the next ones make up for it. */
	s32 more = (s32)(accepts - wait->sample_accepts - wait->accepts);
	u32 left = more > 0 ? more : 0, enough;

	if (!wait_busy(wait, step, left, length))
		wait->idle_ns += step;
	wait->low_mark = wait_min(wait->low_mark, length);
	wait->accepts += left;
	if (left || !length) {
		wait->gap_ns = wait_max(wait->gap_ns, wait_since(wait->looked_ns, wait->accepted_ns));
		wait->accepted_ns = now;
	}
	enough = wait_max(wait_min(WAIT_SAMPLE_TURNS * wait->turn, WAIT_SAMPLE_ACCEPTS_MAX), WAIT_SAMPLE_ACCEPTS);
	if (!left || elapsed < WAIT_SAMPLE_MIN_NS || wait->accepts < enough)
		return;
	wait_end_sample(wait, elapsed);
	wait_begin_sample(wait, now, accepts, length);
}

/*
 * One look that measures, and judges nothing. admitted: connections let in, ever;
 * it wraps. Those that are no longer in the queue were accepted. A half-open one
 * that expired counts as accepted too: rare, and it only shortens the estimate.
 */
static __always_inline void wait_measure(struct wait_state *wait, u64 now, const struct queue_view *queue, u32 admitted)
{
	u32 accepts = admitted - (queue->length + queue->half_open);

	if (!wait->looked_ns) {
		*wait = (struct wait_state){ .accepted_ns = now };
		wait_begin_sample(wait, now, accepts, queue->length);
	} else {
		wait_add(wait, now, accepts, queue->length);
	}
	wait->looked_ns = now;
	wait->length = queue->length;
}

/*
 * How long the wait must be over the target to stand, if the server goes on accepting, or under it to stand no longer.
 */
static __always_inline u64 wait_interval(const struct wait_state *wait, const struct listener_policy *listener)
{
	return wait_max(listener->interval_ns, WAIT_STANDING_ACCEPTS * wait_service(wait));
}

/* Whether the queue is shorter by so much than it was that it drains. */
static __always_inline bool wait_drains(const struct wait_state *wait, u32 length)
{
	u32 by = wait_max(wait->high_mark / 8, WAIT_DRAINS);

	return wait->high_mark > by && length < wait->high_mark - by;
}

/*
 * By how much the time now without an accept, or the longest of the samples at hand, is longer than two turns of the
 * pool's; in ms, at most some 49 days.
 */
static __always_inline u32 wait_stop_ms(const struct wait_state *wait, u64 now)
{
	u64 gap = wait->gap_ns + wait_more(wait->last_gap_ns, wait->gap_ns);

	gap += wait_more(wait_since(now, wait->accepted_ns), gap);
	return wait_more(gap, 2 * wait->turn * wait->service_ns) / 1000000;
}

/* How long the wait must be over the target to stand, however many accepts that is. */
static __always_inline u64 wait_patience(const struct wait_state *wait, const struct listener_policy *listener)
{
	u64 stop = 1000000ULL * wait->stop_ms, interval = listener->interval_ns, catch_up;

	stop -= wait_more(stop, interval);
	catch_up = WAIT_CATCH_UP * stop;
	catch_up -= wait_more(catch_up, WAIT_BEARABLE_NS);
	return interval + wait_more(catch_up, interval);
}

static __always_inline void wait_judge(struct wait_state *wait, u64 now, u32 length,
				       const struct listener_policy *listener)
{
	u64 interval = wait_interval(wait, listener), waits = wait_now(wait, now, length), above, before;
	bool over = wait_over(wait, waits, length, listener);
	/* However seldom somebody looks: it was over the target in between too if nothing was accepted. */
	bool stood = over && wait->accepted_ns <= wait->last_above_ns;

	/* wait_refuses() of another CPU may have written a later time. */
	if (wait->above_ns && !stood && wait_since(now, wait->last_above_ns) >= interval) {
		wait->standing = 0;
		wait->above_ns = 0;
	}
	if (!over) {
		if (!wait->standing)
			wait->above_ns = 0;
		return;
	}
	wait->last_above_ns = now;
	before = wait->above_ns ? wait->stop_ms : 0;
	wait->stop_ms = before + wait_more(wait_stop_ms(wait, now), before);
	if (!wait->above_ns || (!wait->standing && wait_drains(wait, length))) {
		wait->catching_up = wait->above_ns && wait->stop_ms;
		wait->above_ns = now;
		wait->high_mark = length;
	}
	if (!wait->catching_up)
		wait->high_mark = wait_max(wait->high_mark, length);
	above = now - wait->above_ns;
	if (above >= wait_patience(wait, listener) && (above >= interval || waits >= WAIT_BEARABLE_NS))
		wait->standing = 1;
}

/* Whether `now` was before the last look: of a CPU that was kept from running. Such a look is none. */
static __always_inline bool wait_is_past(const struct wait_state *wait, u64 now)
{
	return wait->looked_ns && (s64)(now - wait->looked_ns) < 0;
}

/* One look at the queue. Call with exclusive access to *wait, at most every WAIT_STEP_NS. */
static __always_inline void wait_look(struct wait_state *wait, u64 now, const struct queue_view *queue, u32 admitted,
				      const struct listener_policy *listener)
{
	if (wait_is_past(wait, now))
		return;
	wait_measure(wait, now, queue, admitted);
	wait_judge(wait, now, queue->length, listener);
}

/*
 * Whether a new connection is refused for the wait before it. A refusal says that
 * the wait is over the target: held there, the queue may be below it at every look.
 */
static __always_inline bool wait_refuses(struct wait_state *wait, u64 now, u32 length,
					 const struct listener_policy *listener)
{
	if (!wait->standing || !wait_over(wait, wait_now(wait, now, length), length, listener))
		return false;
	if (wait->last_above_ns != now)
		wait->last_above_ns = now;
	return true;
}

#endif
