/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * steady.h - does a source connect seldom and steadily, as health checks do?
 * Pure. weir_models::steady is the same in Rust.
 *
 * A source is an address at a listener. Time goes in windows of half a second.
 * A source is steady when it came in STEADY_AFTER windows, at most STEADY_GAP
 * windows apart, and at most STEADY_MOST times in each; it is long steady after
 * STEADY_LONG_AFTER. One window with more begins anew.
 *
 * Sources are kept in sets of STEADY_WAYS. A new one looks at one place of its
 * set, by chance. It takes a stale one, and that of a source that is not steady
 * with a chance of one in STEADY_CHANCE: else ordinary clients, who come once,
 * would push every check out before its second time. No one takes the place of
 * a steady one: neither a crowd nor a flood of made-up addresses makes weir
 * forget those.
 *
 * CPUs write an entry as one word, without a lock: the entry is then of one of
 * them, and a connection of the other's is not counted.
 */
#ifndef WEIR_STEADY_H
#define WEIR_STEADY_H

#include "lib/types.h"

/* A window is so many bits of a clock in ns: .54 s. Two checks, at least a second apart, never share one. */
#define STEADY_WINDOW_SHIFT 29
/* A balancer checks each of its backends by itself, and they may be one server. */
#define STEADY_MOST 8
/* 2.3 min: twice the longest usual interval between two checks. */
#define STEADY_GAP 256
/* Load balancers take a server out after three failed checks in a row or more. */
#define STEADY_AFTER 3
#define STEADY_LONG_AFTER 16
/* One cache line. */
#define STEADY_WAYS 8
#define STEADY_CHANCE 8

enum steadiness { STEADY_NOT, STEADY_SHORT, STEADY_LONG };

/* What is known of a source. All zero: free. */
struct source {
	u32 key;	/* hash of its address and the listener */
	u16 window;	/* when it came last; wraps */
	u8 count;	/* how often it came in that window, at most STEADY_MOST + 1 */
	u8 streak;	/* windows in which it came seldom, without a break; at most 255 */
};
_Static_assert(sizeof(struct source) == 8, "one load");

struct source_set {
	struct source source[STEADY_WAYS];
};

static __always_inline u16 steady_window(u64 now_ns)
{
	return now_ns >> STEADY_WINDOW_SHIFT;
}

static __always_inline u16 source_gap(const struct source *source, u16 window)
{
	return window - source->window;
}

/* So long not seen that nothing is known of it any more. */
static __always_inline bool source_stale(const struct source *source, u16 window)
{
	return !source->count || source_gap(source, window) > STEADY_GAP;
}

static __always_inline enum steadiness source_steadiness(const struct source *source)
{
	if (source->streak >= STEADY_LONG_AFTER)
		return STEADY_LONG;
	return source->streak >= STEADY_AFTER ? STEADY_SHORT : STEADY_NOT;
}

static __always_inline struct source source_load(const struct source *from)
{
	u64 word = *(const volatile u64 *)from;

	return *(struct source *)&word;
}

static __always_inline void source_store(struct source *to, struct source source)
{
	*(volatile u64 *)to = *(u64 *)&source;
}

/* The source comes once more. */
static __always_inline struct source source_seen(struct source source, u16 window)
{
	if (source_stale(&source, window)) {
		source.streak = 0;
	} else if (source.window == window) {
		if (source.count >= STEADY_MOST) {
			source.count = STEADY_MOST + 1;
			source.streak = 0;
		} else {
			source.count++;
		}
		return source;
	}
	source.window = window;
	source.count = 1;
	if (source.streak < 255)
		source.streak++;
	return source;
}

/* The place of the source with this key in its set. NULL: it is not there. */
static __always_inline struct source *source_find(struct source_set *set, u32 key)
{
#pragma unroll
	for (int i = 0; i < STEADY_WAYS; i++)
		if (*(volatile u32 *)&set->source[i].key == key)
			return &set->source[i];
	return NULL;
}

/*
 * Notes that the source with this key comes. chance: evenly spread bits, of
 * which this reads the lowest six.
 */
static __always_inline enum steadiness source_note(struct source_set *set, u32 key, u16 window, u32 chance)
{
	struct source *place = source_find(set, key), source;

	if (place) {
		source = source_load(place);
		/* Of a busy one every word is the same until the window ends, so the line stays shared. */
		if (source.window == window && source.count > STEADY_MOST)
			return STEADY_NOT;
	} else {
		place = &set->source[chance / STEADY_CHANCE % STEADY_WAYS];
		source = source_load(place);
		if (!source_stale(&source, window) &&
		    (chance % STEADY_CHANCE || source_steadiness(&source) != STEADY_NOT))
			return STEADY_NOT;
		source = (struct source){};
	}
	source.key = key;
	source = source_seen(source, window);
	source_store(place, source);
	return source_steadiness(&source);
}

#endif
