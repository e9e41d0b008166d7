/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * police.bpf.h - may this SYN come in at all? Each class has a token bucket
 * (rate.bpf.h).
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
#include "lib/classify.bpf.h"
#include "lib/kernel.h"
#include "lib/rate.bpf.h"
#include "lib/state.bpf.h"

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
