/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * residence.h - what a connection's own counters say of its requests. Pure; the model is weir_models::talk.
 *
 * TCP keeps, for its timers, when data last came and when it last went. A request is outstanding if the last data came
 * later. Both times are in ticks; within one tick the sequence numbers tell: the client acknowledges an answer with a
 * segment behind its last data, and a request with none.
 */
#ifndef WEIR_RESIDENCE_H
#define WEIR_RESIDENCE_H

#include "abi/residence.h"
#include "lib/types.h"

/* A connection, as struct tcp_sock has it. */
struct talk {
	u32 received;		/* tick at which data last came */
	u32 sent;		/* and went */
	u32 segments_in;	/* segments with data; wraps */
	u32 segments_out;
	u32 rcv_nxt;		/* the next byte expected */
	u32 snd_wl1;		/* first byte of the last segment that brought an acknowledgement */
	u32 write_seq;		/* the next byte that the server writes */
	u32 snd_una;		/* the first that is not acknowledged */
};

/* Answers of more segments say how fast the client reads, not how long the server thought. */
#define ANSWER_SEGMENTS 16

/* Whether the server owes the client an answer that it has not begun. */
static __always_inline bool is_outstanding(const struct talk *talk)
{
	if (!talk->segments_in)
		return false;
	if (!talk->segments_out)
		return true;
	if (talk->received != talk->sent)
		return (s32)(talk->received - talk->sent) > 0;
	return talk->write_seq == talk->snd_una && talk->rcv_nxt != talk->snd_wl1;
}

/* A request of more segments is an upload; one that comes in takes no place in the server yet. */
#define UPLOAD_SEGMENTS 16

/* Whether an outstanding request, whose last segment came so long ago, has not come as a whole yet. */
static __always_inline bool is_arriving(const struct talk *talk, u32 age_ticks, u32 second_ticks)
{
	return (s32)(talk->segments_in - talk->segments_out) >= UPLOAD_SEGMENTS && age_ticks < second_ticks / 4;
}

/*
 * Requests that were answered, at most: each takes a segment one way and one the other. Long requests and long answers
 * are one.
 */
static __always_inline u32 turns_of(const struct talk *talk)
{
	return talk->segments_in < talk->segments_out ? talk->segments_in : talk->segments_out;
}

/* Whether its last answer was short, and is out. */
static __always_inline bool short_answer(const struct talk *talk)
{
	return talk->segments_in && talk->segments_out && talk->segments_out <= ANSWER_SEGMENTS &&
	       (s32)(talk->sent - talk->received) >= 0;
}

/* Later answers may be to what needs none, as a ping is to the answer to the one before. */
#define FIRST_TURNS 4

/* Whether the client has just had a short answer, one of the first on its connection. */
static __always_inline bool first_answer(const struct talk *talk)
{
	return short_answer(talk) && turns_of(talk) <= FIRST_TURNS && !is_outstanding(talk);
}

/* The class of an answer that took so many ticks. */
static __always_inline u32 answer_class(u32 ticks)
{
	u32 class = 0;

#pragma unroll
	for (u32 shift = 16; shift; shift >>= 1) {
		if (((u64)ticks + 1) >> (class + shift))
			class += shift;
	}
	return class < WEIR_ANSWER_CLASSES ? class : WEIR_ANSWER_CLASSES - 1;
}

#endif
