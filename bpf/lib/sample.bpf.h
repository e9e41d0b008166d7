/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * sample.bpf.h - which refusals are told to user space, one by one: all of them
 * while there are few, and of a flood so many that reading them costs little.
 */
#ifndef WEIR_SAMPLE_BPF_H
#define WEIR_SAMPLE_BPF_H

#include "lib/kernel.h"

/* Between two sampled events of one queue, class or socket that are its own: 20 a second. */
#define EVENT_EVERY_NS 50000000ULL
/* Between two that all of them share: 1000 a second, and 1000 at once after a pause. */
#define EVENT_SHARED_EVERY_NS 1000000ULL
#define EVENT_SHARED_BURST_NS (1000 * EVENT_SHARED_EVERY_NS)
/* How often a CPU tries for one that others want too. One of them has it each time. */
#define EVENT_TRIES 16

/*
 * When the next sample that all share is due. Every refusal reads it, and few write
 * it: it has a cache line of its own.
 */
struct shared_samples {
	u64 next_ns;
	u64 pad[7];
} shared_samples __attribute__((aligned(64)));

/*
 * Takes one of the samples that all share, if one is due. Global: a turn of a loop must not multiply the paths before
 * it.
 */
__noinline int shared_sample_due(u64 now)
{
	u32 i;

	/* A CPU that is faster has this one, and there may be another. */
	bpf_for(i, 0, EVENT_TRIES) {
		u64 due = *(volatile u64 *)&shared_samples.next_ns;
		u64 at = due + EVENT_SHARED_BURST_NS > now ? due : now - EVENT_SHARED_BURST_NS;

		if (at > now)
			return 0;
		if (__sync_val_compare_and_swap(&shared_samples.next_ns, due, at + EVENT_SHARED_EVERY_NS) == due)
			return 1;
	}
	return 0;
}

/*
 * Whether a refusal is to be sampled. `own` is when its queue, class or socket last had a sample of its own: so a flood
 * at one does not take the samples of another. Below 1000 refusals a second each is sampled, whichever CPUs refuse at
 * once.
 */
static __always_inline bool sample_due(u64 *own, u64 now)
{
	if (now - *own >= EVENT_EVERY_NS) {
		*own = now;
		return true;
	}
	/*
	 * Most refusals of a flood end here: a loop costs 18 ns, also one that is left at once, and the call is saved.
	 */
	return *(volatile u64 *)&shared_samples.next_ns <= now && shared_sample_due(now);
}

#endif
