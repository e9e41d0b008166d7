/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * ledger.bpf.h - the ledger (ledger.h) and the kernel: whether a lookup finds the
 * connection of a claim.
 *
 * A TIME-WAIT socket that is older than the claim is what the SYN is to replace; a
 * younger one is what a short connection has left.
 */
#ifndef WEIR_LEDGER_BPF_H
#define WEIR_LEDGER_BPF_H

#include "lib/clock.bpf.h"
#include "lib/kernel.h"
#include "lib/ledger.h"

/* include/net/tcp.h: TCP_TIMEWAIT_LEN */
#define TIME_WAIT_SECONDS 60

/* Looks a flow up in the namespace of the receiving device. Release what it returns. */
static __always_inline struct bpf_sock *flow_lookup(void *ctx, struct bpf_sock_tuple *tuple, bool v6)
{
	return v6 ? bpf_skc_lookup_tcp(ctx, tuple, sizeof(tuple->ipv6), BPF_F_CURRENT_NETNS, 0) :
		    bpf_skc_lookup_tcp(ctx, tuple, sizeof(tuple->ipv4), BPF_F_CURRENT_NETNS, 0);
}

/* in_order(): which CPU this is has to be asked for only where order is weak. */
static __always_inline void in_order_here(void)
{
	if (weakly_ordered)
		in_order(bpf_get_smp_processor_id());
	else
		__asm__ volatile("" ::: "memory");
}

static __always_inline void packet_taken(void)
{
	taken[claim_slot(bpf_get_smp_processor_id())].packets++;
}

/*
 * Whether a socket is in TIME-WAIT since this time or later, to a tick: connections of a local network are often over
 * within one. One that is in FIN-WAIT-2 counts as older.
 */
static __always_inline bool time_wait_since(struct bpf_sock *sk, u64 ns)
{
	const struct inet_timewait_sock *tw = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct inet_timewait_sock));

	return jiffies_ns(tw->tw_timer.expires - TIME_WAIT_SECONDS * ticks_per_second()) >= ns;
}

static __always_inline bool claim_found(void *ctx, struct claim *claim)
{
	/* Read in place: before 6.9 the stack has no room for a copy on this way. */
	struct bpf_sock *sk = flow_lookup(ctx, &claim->flow, claim->v6);
	bool found;

	if (!sk)
		return false;
	found = sk->state != TCP_LISTEN && (sk->state != TCP_TIME_WAIT || time_wait_since(sk, claim->at_ns));
	bpf_sk_release(sk);
	return found;
}

#endif
