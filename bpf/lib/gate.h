/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * gate.h - how many connections may come to a server that queues inside, until user space has looked at its requests
 * again. Pure but for the atomics; the model is weir_models::gate.
 *
 * At each pass over the sockets user space says how many there is room for. From then on each answer makes room for one
 * more; how many those are, the server's rate says. A gate that is not renewed lets all in.
 */
#ifndef WEIR_GATE_H
#define WEIR_GATE_H

#include "abi/guard.h"
#include "lib/types.h"

#define GATE_RATE_SHIFT 40

/* So many may have come by now. */
static __always_inline s64 gate_allows(const struct residence_gate *gate, u64 now_ns)
{
	u64 since = gate->since_ns, elapsed = now_ns > since ? now_ns - since : 0;

	return gate->room + (s64)(elapsed * gate->rate >> GATE_RATE_SHIFT);
}

/* Whether a connection may come in at now_ns, CLOCK_MONOTONIC. Then it has its place. */
static __always_inline bool gate_lets_in(struct residence_gate *gate, u64 now_ns)
{
	s64 allowed, taken;

	if (now_ns >= gate->until_ns)
		return true;
	allowed = gate_allows(gate, now_ns);
	taken = *(volatile s64 *)&gate->taken;
	/* While nobody came, places were not saved up. */
	if (allowed - taken > (s64)gate->burst)
		__sync_val_compare_and_swap(&gate->taken, taken, allowed - (s64)gate->burst);
	taken = __sync_fetch_and_add(&gate->taken, 1);
	if (taken < allowed)
		return true;
	__sync_fetch_and_add(&gate->taken, -1);
	return false;
}

#endif
