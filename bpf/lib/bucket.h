/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * bucket.h - the token bucket of a class, as one word: the virtual scheduling
 * form of the GCRA (ITU-T I.371, Annex A). Pure but for the compare-and-swap.
 *
 * `next` is when the next connection is due if all come evenly. One may be
 * ahead of that by `tolerance`, which is a burst less one: so after a pause of
 * any length exactly `burst` pass at once, and then one each `interval`. What
 * is refused changes nothing, so refusals cost those that come later nothing.
 *
 * The limit may change between two connections, and `next` is what the old one
 * left: one connection a second leaves it a second ahead. What is further ahead
 * than this limit can have made it is cut to a bucket with one token left, or a
 * class whose rate was raised to thousands would be shut for that second.
 *
 * Unit: 1/16 ns, so that ten million a second are exact to 1/1600. Clock:
 * bpf_ktime_get_ns(). The guard's own (clock.bpf.h) goes in ticks of 1 to 10 ms,
 * and what comes at a tick would be a burst; for the few steady sources and paths
 * of MPTCP it will do.
 */
#ifndef WEIR_BUCKET_H
#define WEIR_BUCKET_H

#include "abi/class.h"
#include "lib/types.h"

#define BUCKET_SHIFT 4
/*
 * Each lost swap is another CPU's connection. One that loses all of them, among
 * so many CPUs at one instant, passes: what cannot be decided does.
 */
#define BUCKET_TRIES 32
/*
 * A CPU that was kept from running between reading the clock and the swap sees
 * the tokens of others too far ahead, by so much at most: 10 ms.
 */
#define BUCKET_STALE (10000000ULL << BUCKET_SHIFT)

/* Whether a connection may come in at now_ns. Then it has taken its token. */
static __always_inline bool bucket_take(u64 *next, u64 now_ns, const struct bucket_limit *limit)
{
	u64 now = now_ns << BUCKET_SHIFT, due = *(volatile u64 *)next;

	for (u32 i = 0; i < BUCKET_TRIES; i++) {
		u64 at = due > now ? due : now, seen;

		if (at - now > limit->tolerance) {
			if (at - now - limit->tolerance <= limit->interval + BUCKET_STALE)
				return false;
			at = now + limit->tolerance;
		}
		seen = __sync_val_compare_and_swap(next, due, at + limit->interval);
		if (seen == due)
			return true;
		due = seen;
	}
	return true;
}

/* Whether a connection might come in at now_ns. It takes no token. */
static __always_inline bool bucket_has(const u64 *next, u64 now_ns, const struct bucket_limit *limit)
{
	u64 now = now_ns << BUCKET_SHIFT, due = *(const volatile u64 *)next, ahead = due > now ? due - now : 0;

	return ahead <= limit->tolerance || ahead - limit->tolerance > limit->interval + BUCKET_STALE;
}

#endif
