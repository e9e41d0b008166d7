/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * ledger.bpf.h - claims: SYNs that the guard let in and that the kernel does
 * not count yet.
 *
 * tc sees the packets of a receive batch one after the other before the stack
 * sees the first of them, so what the listener's counters say is old by up to
 * a batch per CPU. The ledger closes that gap exactly:
 *
 *   claims    per listening socket, atomic: in its low half an upper bound of
 *             the SYNs that were let in and are not counted by the kernel, in
 *             its high half those that were claims and no longer are.
 *   claim[i]  per CPU: how many it made, how many are known to be delivered,
 *             and the last one's flow. A CPU delivers in order, so when the
 *             last is delivered, all are.
 *
 * A CPU's claims are delivered when a lookup finds a request or connection for
 * the last one; or when the CPU has taken up batch_max packets since, for the
 * receive path holds back no more (net.core.gro_normal_batch); or after
 * CLAIM_EXPIRES_NS (the CPU is idle, and the stack dropped the last one). Those
 * before a mark are delivered when it has taken up batch_max packets since the
 * mark: then the next claim moves it. So a SYN that the stack drops, or whose
 * client is gone at once, blocks a place for some packets. A TIME-WAIT socket that
 * is older than the claim is what the SYN is to replace; a younger one is what a
 * short connection has left.
 *
 * Why it never over-admits: a CPU first adds its claim to `claims`, then reads
 * the kernel's counters. Any other SYN let in before is either still in
 * `claims`, or was taken out of it after the kernel had counted it, so it is
 * in the counters. Counted twice it may be, for a moment; missed, never.
 *
 * On more than WEIR_MAX_CPUS CPUs two share a slot, and this does not hold: each
 * counts the other's packets as its own, and the flow may be of both. Then up to a
 * batch too many of each CPU come in; user space warns (Guard::cpus_share_claims).
 *
 * Delivery is only looked into when claims stand between a SYN and a place:
 * far from the limit a SYN costs two atomic additions, and a refused one none.
 */
#ifndef WEIR_LEDGER_BPF_H
#define WEIR_LEDGER_BPF_H

#include "abi/guard.h"
#include "lib/admit.h"
#include "lib/clock.bpf.h"
#include "lib/kernel.h"

/* Two ticks at HZ = 250: no CPU that runs holds a batch back for so long. */
#define CLAIM_EXPIRES_NS 8000000ULL
/* include/net/tcp.h: TCP_TIMEWAIT_LEN */
#define TIME_WAIT_SECONDS 60

/* One per CPU that makes claims; a cache line of its own. `made` is written last. */
struct claim {
	struct bpf_sock_tuple flow;	/* of the last one */
	u32 packet;	/* `taken` of the CPU when it was made */
	u64 at_ns;
	u8 v6;
	u8 pad[3];
	u32 mark;	/* low halves of two counts: so many were `made` << 16 | when the CPU had taken up so many packets */
	u32 made;
	u32 resolved;
};
_Static_assert(sizeof(struct claim) == 64, "a cache line");

struct listen_state {
	u64 socket;		/* which listening socket it is about; 0: free */
	u64 used_ns;		/* when that had a SYN last, to a second */
	u64 claims;		/* atomic: settled << 32 | outstanding */
	u64 fronted;		/* atomic: SYNs that the XDP front let by, ever */
	u64 front_seen;		/* atomic: of those, how many reached tc */
	u64 front_seen_ns;	/* when the last did */
	u64 event_ns;		/* last sampled event */
	u64 flood_until_ns;	/* until when it counts as flooded */
	u64 steady_next[2];	/* buckets of the steady sources that were let in: short, long (steady.h) */
	u32 wait_busy;		/* 1: a CPU updates `wait` or `stall` */
	u32 group;		/* 1 + its group of parking listeners; 0: connections are not parked */
	struct wait_state wait;
	struct stall_state stall;
	u32 unreserved;		/* of those let in, the ones whose handshake was never under way in the kernel; atomic, wraps */
	u32 pad;
	struct claim claim[WEIR_MAX_CPUS] __attribute__((aligned(sizeof(struct claim))));
};

/* Packets that the receive path may hold back in one batch: the sysctl's value. Set before load. */
const volatile u32 batch_max = 8;

/* Packets to guarded ports that a CPU has taken up at tc; a cache line each. Wraps. */
struct taken {
	u32 packets;
	u32 pad[15];
} taken[WEIR_MAX_CPUS];

static __always_inline u32 claim_slot(u32 cpu)
{
	return cpu % WEIR_MAX_CPUS;
}

/* Looks a flow up in the namespace of the receiving device. Release what it returns. */
static __always_inline struct bpf_sock *flow_lookup(void *ctx, struct bpf_sock_tuple *tuple, bool v6)
{
	return v6 ? bpf_skc_lookup_tcp(ctx, tuple, sizeof(tuple->ipv6), BPF_F_CURRENT_NETNS, 0) :
		    bpf_skc_lookup_tcp(ctx, tuple, sizeof(tuple->ipv4), BPF_F_CURRENT_NETNS, 0);
}

static __always_inline void packet_taken(void)
{
	taken[claim_slot(bpf_get_smp_processor_id())].packets++;
}

static __always_inline u32 packets_taken(u32 cpu)
{
	return *(volatile u32 *)&taken[claim_slot(cpu)].packets;
}

/* Whether a socket is in TIME-WAIT since this time or later, to a tick. One that is in FIN-WAIT-2 counts as older. */
static __always_inline bool time_wait_since(struct bpf_sock *sk, u64 ns)
{
	const struct inet_timewait_sock *tw = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct inet_timewait_sock));

	return jiffies_ns(tw->tw_timer.expires - TIME_WAIT_SECONDS * ticks_per_second()) >= ns;
}

static __always_inline bool claim_delivered(void *ctx, struct claim *claim, u32 cpu, u64 now)
{
	struct bpf_sock *sk;
	bool found;

	if (now - claim->at_ns >= CLAIM_EXPIRES_NS || packets_taken(cpu) - claim->packet >= batch_max)
		return true;
	/* Read in place: before 6.9 the stack has no room for a copy on this way. */
	sk = flow_lookup(ctx, &claim->flow, claim->v6);
	if (!sk)
		return false;
	found = sk->state != TCP_LISTEN && (sk->state != TCP_TIME_WAIT || time_wait_since(sk, claim->at_ns));
	bpf_sk_release(sk);
	return found;
}

static __always_inline u32 claims_outstanding(struct listen_state *state)
{
	return *(volatile u32 *)&state->claims;
}

/* Connections let in, ever; wraps. */
static __always_inline u32 claims_ever(struct listen_state *state)
{
	u64 claims = *(volatile u64 *)&state->claims;

	return (claims >> 32) + claims;
}

/* Takes the claims from resolved to delivered out of the bound; another CPU may have done so. */
static __always_inline void claim_settle(struct listen_state *state, struct claim *claim, u32 resolved, u32 delivered)
{
	u64 n = (u32)(delivered - resolved);

	/* Read after `delivered`, `resolved` may be past it. */
	if ((s32)n <= 0)
		return;
	if (__sync_val_compare_and_swap(&claim->resolved, resolved, delivered) == resolved)
		__sync_fetch_and_add(&state->claims, (n << 32) - n);
}

/* The claims up to the mark are delivered. */
static __always_inline void claim_settle_marked(struct listen_state *state, struct claim *claim, u32 mark)
{
	u32 made = *(volatile u32 *)&claim->made, resolved = *(volatile u32 *)&claim->resolved;
	u32 marked = (u16)((mark >> 16) - resolved);

	/* An old mark is before what is resolved already. */
	if (marked && marked <= made - resolved)
		claim_settle(state, claim, resolved, resolved + marked);
}

static __always_inline void claim_resolve(void *ctx, struct listen_state *state, u32 cpu, u64 now)
{
	struct claim *claim = &state->claim[claim_slot(cpu)];
	/* `made` first: the flow read later is then of this claim or of a younger one. */
	u32 made = *(volatile u32 *)&claim->made, mark = *(volatile u32 *)&claim->mark;

	if (made == *(volatile u32 *)&claim->resolved)
		return;
	/* The packets of another CPU may be read as they were before the mark: hence signed. */
	if ((s16)(packets_taken(cpu) - mark) >= (s32)batch_max)
		claim_settle_marked(state, claim, mark);
	if (claim_delivered(ctx, claim, cpu, now))
		claim_settle(state, claim, *(volatile u32 *)&claim->resolved, made);
}

/*
 * Handshakes that have ended, ever; wraps. Those that the kernel does not count
 * yet are among them: a few, and fewer once the queue is full.
 */
static __always_inline u32 handshakes_ended(struct listen_state *state, u32 half_open)
{
	return claims_ever(state) - *(volatile u32 *)&state->unreserved - half_open;
}

/* A connection, let in or to be, whose handshake a cookie carries. */
static __always_inline void no_handshake_under_way(struct listen_state *state)
{
	__sync_fetch_and_add(&state->unreserved, 1);
}

/* Puts one claim into the bound, before the kernel's counters are read. Returns the claims of others. */
static __always_inline u32 claim_begin(struct listen_state *state)
{
	return __sync_fetch_and_add(&state->claims, 1);
}

static __always_inline void claim_cancel(struct listen_state *state)
{
	__sync_fetch_and_add(&state->claims, -1);
}

/* A connection that the kernel may have let in although the guard would not (observe mode). */
static __always_inline void claim_not_needed(struct listen_state *state)
{
	__sync_fetch_and_add(&state->claims, 1ULL << 32);
}

/* The claim holds: the SYN goes to the stack on this CPU. */
static __always_inline void claim_commit(struct listen_state *state, const struct bpf_sock_tuple *flow, bool v6, u64 now)
{
	u32 slot = claim_slot(bpf_get_smp_processor_id());
	struct claim *claim = &state->claim[slot];
	u32 packets = taken[slot].packets, mark = claim->mark, made;

	claim->flow = *flow;
	claim->packet = packets;
	claim->v6 = v6;
	claim->at_ns = now;
	/* Atomic for its barrier: whoever sees the new count sees the new flow. */
	made = __sync_fetch_and_add(&claim->made, 1) + 1;
	if ((u16)(packets - mark) < batch_max)
		return;
	claim_settle_marked(state, claim, mark);
	*(volatile u32 *)&claim->mark = made << 16 | (packets & 0xffff);
}

#endif
