/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * retried.bpf.h - in observe mode: does a SYN repeat one that enforcement would have refused?
 *
 * What the kernel drops, its client repeats after 1 s, and again and again. Enforcement would have told that client at
 * once, so each repeat counts a connection that would not be. User space takes the repeats off where it says what
 * enforcement would refuse (weir_core::forecast).
 *
 * A repeat has the ports, addresses and sequence number of the SYN. A table keeps a fingerprint of those that would
 * have been refused, each in one place, which the next one of that place takes: a repeat after 1 s is found as long as
 * not many more than RETRIED_SLOTS are refused in that time. A repeat that is not found makes the forecast too high.
 */
#ifndef WEIR_RETRIED_BPF_H
#define WEIR_RETRIED_BPF_H

#include "abi/guard.h"
#include "lib/arrival.bpf.h"
#include "lib/state.bpf.h"

/* 256 KiB. */
#define RETRIED_SLOTS (1 << 16)
u32 retried[RETRIED_SLOTS];

/* The upper half says where it is kept, the lower one by what; never 0. */
static __always_inline u64 fingerprint(const struct listener_policy *listener, const struct arrival *arrival, u32 seq)
{
	u64 ports = (u64)arrival->packet.sport << 16 | arrival->packet.dport;
	u64 hash = (u64)source_key(listener, arrival) << 32 | (seq ^ (u32)(ports * 0x9e3779b1));

	hash *= 0x9e3779b97f4a7c15ULL; /* 2^64 / golden ratio, odd */
	return (hash ^ hash >> 32) * 0x9e3779b97f4a7c15ULL | 1;
}

/* Global. */
__noinline int find_retried(struct __sk_buff *skb, const struct listener_policy *listener, struct arrival *arrival)
{
	u32 ack = 0;
	u64 print;

	if (!skb || !listener || !arrival)
		return 0;
	print = fingerprint(listener, arrival, seq_of_skb(skb, &arrival->packet, &ack));
	arrival->retried = retried[print >> 32 & (RETRIED_SLOTS - 1)] == (u32)print;
	return 0;
}

/* Notes a SYN that would have been refused. Global. */
__noinline int note_retried(struct __sk_buff *skb, const struct listener_policy *listener, const struct arrival *arrival)
{
	u32 ack = 0;
	u64 print;

	if (!skb || !listener || !arrival)
		return 0;
	print = fingerprint(listener, arrival, seq_of_skb(skb, &arrival->packet, &ack));
	retried[print >> 32 & (RETRIED_SLOTS - 1)] = print;
	return 0;
}

#endif
