/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * ledger.h - claims: SYNs that the guard let in and that the kernel does not
 * count yet. In BPF ledger.bpf.h has what it needs of the kernel; natively
 * (bpf/tests/ledger.c) threads are the CPUs.
 *
 * tc sees the packets of a receive batch one after the other before the stack
 * sees the first of them, so what the listener's counters say is old by up to
 * a batch per CPU. The ledger closes that gap:
 *
 *   claims    per listening socket, atomic: in its low half an upper bound of
 *             the SYNs that were let in and are not counted by the kernel, in
 *             its high half those that were claims and no longer are.
 *   claim[i]  per CPU: how many it made, how many are known to be delivered,
 *             and the last one's flow. A CPU delivers in order, so when the
 *             last is delivered, all are. And a mark: how many it had made
 *             when it had taken up so many packets.
 *
 * A CPU's claims are delivered when a lookup finds a request or connection for
 * the last one; or when the CPU has taken up claim_batch() packets since, for the
 * receive path holds back no more; or after claim_expires_ns() (the CPU is idle, and
 * the stack dropped the last one). Those before a mark are delivered when it has taken
 * up a batch of packets since the mark, or when the mark is that old: then the next
 * claim moves it. So a SYN that the stack drops, or whose client is gone at once, blocks
 * a place for some packets, and for twice claim_expires_ns() at most however many come.
 *
 * Why it does not over-admit: a CPU first adds its claim to `claims`, then reads
 * the kernel's counters, half-open connections first and waiting ones after. Any
 * other SYN let in before is either still in `claims`, or was taken out of it when
 * the kernel had counted it. Counted twice it may be, for a moment. Missed are only:
 *   - one that the kernel has put where lookups find it, and counts next
 *     (inet_csk_reqsk_queue_hash_add());
 *   - one whose final ACK has come: the kernel takes it out of the one counter, then
 *     puts it into the other (inet_csk_complete_hashdance()).
 * A CPU does one of these at a time, and none while it runs the guard. So one place is
 * held back for each other CPU that let SYNs in within CLAIM_RECENT_NS: uncounted().
 * Receive steering sends all packets of a connection to one CPU.
 *
 * By how much it can be wrong: docs/limits-details.md.
 *
 * Delivery is only looked into when claims stand between a SYN and a place:
 * far from the limit a SYN costs one atomic addition, or two where a claim has no
 * single writer or order is weak, and a refused one none.
 */
#ifndef WEIR_LEDGER_H
#define WEIR_LEDGER_H

#include <linux/bpf.h>

#include "abi/guard.h"
#include "lib/admit.h"
#include "lib/types.h"

#ifdef __bpf__
#define LEDGER_SETTING const volatile
#define LEDGER_GET(x) (*(volatile __typeof__(x) *)&(x))
#define LEDGER_SET(x, to) (*(volatile __typeof__(x) *)&(x) = (to))
#define ledger_repeat(i, times) bpf_for(i, 0, times)
#else
#define LEDGER_SETTING static
#define LEDGER_GET(x) __atomic_load_n(&(x), __ATOMIC_RELAXED)
#define LEDGER_SET(x, to) __atomic_store_n(&(x), to, __ATOMIC_RELAXED)
#define ledger_repeat(i, times) for (i = 0; i < (times); i++)
#endif

/* Packets that the receive path may hold back in one batch: the sysctl's value. Set before load, as the two below. */
LEDGER_SETTING u32 batch_max = 8;
/* One more than the highest number that a CPU may have, and WEIR_MAX_CPUS at most: numbers may have gaps. */
LEDGER_SETTING u32 nr_cpus = 1;
/* 1: loads and stores of this machine may pass each other (arm64). */
LEDGER_SETTING u8 weakly_ordered = 1;
/*
 * 1: a claim may be written by two at once: on more CPUs than WEIR_MAX_CPUS, or where softirqs are preempted
 * (PREEMPT_RT).
 */
LEDGER_SETTING u8 claims_shared = 1;

/* NAPI_POLL_WEIGHT: a driver that hands over lists (netif_receive_skb_list()) has at most so many packets in one. */
#define CLAIM_BATCH_MOST 64
/* No CPU that runs holds a batch back for so long; a virtual one may not run meanwhile. */
#define CLAIM_EXPIRES_NS 8000000ULL
#define CLAIM_EXPIRES_LATE_NS 100000000ULL
/* A CPU that let no SYN in for so long has none of this socket's handshakes (tcp_synack_retries 5: 63 s). */
#define CLAIM_RECENT_NS 64000000000ULL
/* Of the places, those that may be held back for what other CPUs have in their hands: an eighth. */
#define CLAIM_HELD_BACK_SHIFT 3

/* One per CPU that makes claims; a cache line of its own. `made` is written last. */
struct claim {
	struct bpf_sock_tuple flow;	/* of the last one */
	u32 packet;	/* `taken` of the CPU when it was made */
	u64 at_ns;
	u8 v6;
	u8 writing;	/* 1: `flow` is neither the last one's nor the next one's */
	u16 mark_at;	/* mark_time() of the mark or of a later one: written before it, read after it */
	u32 mark;	/* low halves of two counts: so many were `made` << 16 | when the CPU had taken up so many packets */
	u32 made;
	u32 resolved;
};
_Static_assert(sizeof(struct claim) == 64, "a cache line");

struct listen_state {
	u64 socket;		/* which listening socket it is about; 0: free */
	u64 used_ns;		/* when that had a SYN last, to a second */
	u64 claims;		/* atomic: settled << 32 | outstanding */
	u64 event_ns;		/* last sampled event */
	u64 flood_until_ns;	/* until when it counts as flooded */
	u64 steady_next[2];	/* buckets of the steady sources that were let in: short, long (steady.h) */
	u32 wait_busy;		/* 1: a CPU updates `wait` or `stall` */
	u32 group;		/* 1 + its group of parking listeners; 0: connections are not parked */
	struct wait_state wait;
	struct stall_state stall;
	struct stall_state claims_stall;	/* the same of claims alone, which end when they are found */
	u32 unreserved;		/* of those let in, the ones whose handshake was never under way in the kernel; atomic, wraps */
	u32 in_vain;		/* of the settled claims, those whose connection no lookup found; atomic, wraps */
	u32 newcomers;		/* CPUs that let a SYN in and had not for CLAIM_RECENT_NS; atomic, wraps */
	u64 recent;		/* CPUs that let a SYN in within CLAIM_RECENT_NS, and as of when: recent_stamp() << 8 */
	struct claim claim[WEIR_MAX_CPUS] __attribute__((aligned(sizeof(struct claim))));
};

/* Packets to guarded ports that a CPU has taken up at tc; a cache line each. Wraps. */
struct taken {
	u32 packets;
	u32 pad;
	u64 fence;
	u64 pad2[6];
} taken[WEIR_MAX_CPUS] __attribute__((aligned(64)));

static __always_inline u32 claim_slot(u32 cpu)
{
	return cpu % WEIR_MAX_CPUS;
}

/* What other CPUs see of the loads and stores before it, they see before those after it. `cpu`: the caller's. */
static __always_inline void in_order(u32 cpu)
{
	if (weakly_ordered)
		ORDERED(__sync_fetch_and_add(&taken[claim_slot(cpu)].fence, 0));
	else
		__asm__ volatile("" ::: "memory");
}

static __always_inline u32 packets_taken(u32 cpu)
{
	return LEDGER_GET(taken[claim_slot(cpu)].packets);
}

/*
 * Whether the claims that CPUs may leave behind hold a quarter of so many places at most, with batches of so many
 * packets.
 */
static __always_inline bool claims_fit(u32 limit, u32 batch)
{
	return limit / 8 >= batch * nr_cpus;
}

/*
 * Packets after which those before them are delivered. A long batch leaves more claims behind: it is for queues where
 * that does not matter.
 */
static __always_inline u32 claim_batch(u32 limit)
{
	return batch_max < CLAIM_BATCH_MOST && claims_fit(limit, CLAIM_BATCH_MOST) ? CLAIM_BATCH_MOST : batch_max;
}

/* The same by time, in ticks of so many ns: the first of them may be over at once. */
static __always_inline u64 claim_expires_ns(u32 limit, u32 tick)
{
	return (claims_fit(limit, batch_max) ? CLAIM_EXPIRES_LATE_NS : CLAIM_EXPIRES_NS) + tick;
}

static __always_inline u64 claims_now(struct listen_state *state)
{
	return LEDGER_GET(state->claims);
}

/* The same, before all that is read after it. */
static __always_inline u64 claims_first(struct listen_state *state)
{
	return ORDERED(__sync_fetch_and_add(&state->claims, 0));
}

/* Of `claims`, connections let in, ever; wraps. */
static __always_inline u32 let_in_of(u64 claims)
{
	return (claims >> 32) + claims;
}

static __always_inline u32 claims_ever(struct listen_state *state)
{
	return let_in_of(claims_now(state));
}

/* Puts one claim into the bound, before the kernel's counters are read. Returns `claims` without it. */
static __always_inline u64 claim_begin(struct listen_state *state)
{
	return ORDERED(__sync_fetch_and_add(&state->claims, 1));
}

/*
 * The claims of a queue that was read after `seen`, as of `now`, both `claims`: those that were let in since are all in
 * it, whatever the kernel counts of them by now. So the queue looks no emptier than if it were read again.
 */
static __always_inline u32 claims_since(u32 known, u64 seen, u64 now)
{
	return known + let_in_of(now) - let_in_of(seen);
}

static __always_inline void claim_cancel(struct listen_state *state)
{
	__sync_fetch_and_add(&state->claims, -1);
}

/* So many connections that were let in have not been seen in the kernel: it may have dropped them. */
static __always_inline void claims_in_vain(struct listen_state *state, u32 n)
{
	__sync_fetch_and_add(&state->in_vain, n);
}

/* A connection that the kernel may have let in although the guard would not (observe mode). Nobody looks for it. */
static __always_inline void claim_not_needed(struct listen_state *state)
{
	__sync_fetch_and_add(&state->claims, 1ULL << 32);
	claims_in_vain(state, 1);
}

/*
 * Takes the claims from resolved to delivered out of the bound; another CPU may have done so. found: a lookup has found
 * the last of them.
 */
static __always_inline void claim_settle(struct listen_state *state, struct claim *claim, u32 resolved, u32 delivered,
					 bool found)
{
	u64 n = (u32)(delivered - resolved);

	/* Read after `delivered`, `resolved` may be past it. */
	if ((s32)n <= 0)
		return;
	if (__sync_val_compare_and_swap(&claim->resolved, resolved, delivered) != resolved)
		return;
	__sync_fetch_and_add(&state->claims, (n << 32) - n);
	if (!found)
		claims_in_vain(state, n);
}

/* The time of a mark, to about 1 ms; wraps after a minute. */
static __always_inline u16 mark_time(u64 now)
{
	return now >> 20;
}

/* Whether a mark is so many ns old. One of half a minute and more may look young. */
static __always_inline bool mark_is_old(u16 at, u64 now, u64 ns)
{
	return (s16)(mark_time(now) - at) > (s32)(ns >> 20) + 1;
}

/* The claims up to the mark are delivered. */
static __always_inline void claim_settle_marked(struct listen_state *state, struct claim *claim, u32 mark)
{
	u32 made = LEDGER_GET(claim->made), resolved = LEDGER_GET(claim->resolved);
	u32 marked = (u16)((mark >> 16) - resolved);

	/* An old mark is before what is resolved already. */
	if (marked && marked <= made - resolved)
		claim_settle(state, claim, resolved, resolved + marked, false);
}

/* Who looks into the claims, and how. */
struct ledger_look {
	u32 cpu;
	u32 limit;	/* the backlog */
	u64 now;
	u32 tick;	/* of that clock, ns */
	/* Whether a lookup finds more than the listening socket for the claim's flow. */
	bool (*found)(void *ctx, struct claim *claim);
	void *ctx;
};

/* Whether the last claim of `cpu` was delivered long ago, found or not. */
static __always_inline bool claim_over(const struct ledger_look *look, struct claim *claim, u32 cpu)
{
	u32 packet = LEDGER_GET(claim->packet);
	u64 at_ns = LEDGER_GET(claim->at_ns);

	/* Signed: what is read of another CPU may be younger than the caller's time, and older than the claim. */
	return (s64)(look->now - at_ns) >= (s64)claim_expires_ns(look->limit, look->tick) ||
	       (s32)(packets_taken(cpu) - packet) >= (s32)claim_batch(look->limit);
}

/* Whether a lookup finds the last claim of a CPU, which was `made` and still is. */
static __always_inline bool claim_is_found(const struct ledger_look *look, struct claim *claim, u32 made)
{
	if (LEDGER_GET(claim->writing))
		return false;
	in_order(look->cpu);
	if (!look->found(look->ctx, claim))
		return false;
	in_order(look->cpu);
	return LEDGER_GET(claim->made) == made && !LEDGER_GET(claim->writing);
}

/* Takes out the claims of `cpu` that the kernel counts by now. */
static __always_inline void claim_resolve(const struct ledger_look *look, struct listen_state *state, u32 cpu)
{
	struct claim *claim = &state->claim[claim_slot(cpu)];
	u32 made = LEDGER_GET(claim->made), mark = LEDGER_GET(claim->mark);

	if (made == LEDGER_GET(claim->resolved))
		return;
	/* `made` first: the flow and packet read later are then of this claim or of a younger one. */
	in_order(look->cpu);
	/* The packets of another CPU may be read as they were before the mark: hence signed. */
	if ((s16)(packets_taken(cpu) - mark) >= (s32)claim_batch(look->limit) ||
	    mark_is_old(LEDGER_GET(claim->mark_at), look->now, claim_expires_ns(look->limit, look->tick)))
		claim_settle_marked(state, claim, mark);
	if (claim_over(look, claim, cpu))
		claim_settle(state, claim, LEDGER_GET(claim->resolved), made, false);
	else if (claim_is_found(look, claim, made))
		claim_settle(state, claim, LEDGER_GET(claim->resolved), made, true);
}

/*
 * Takes out the claims that `cpu` made for a socket, `owner`, which has left its slot or is about to. `own`: the
 * caller's CPU.
 */
static __always_inline void claim_forget(struct listen_state *state, u64 owner, u32 cpu, u32 own)
{
	struct claim *claim = &state->claim[claim_slot(cpu)];
	u32 made = LEDGER_GET(claim->made), resolved = LEDGER_GET(claim->resolved);

	/* `made` first: while the slot is its own, no other socket's claims are among them. */
	in_order(own);
	if (LEDGER_GET(state->socket) == owner)
		claim_settle(state, claim, resolved, made, false);
}

static __always_inline bool claim_is_recent(const struct claim *claim, u64 now)
{
	u64 at_ns = LEDGER_GET(claim->at_ns);

	return at_ns && (s64)(now - at_ns) < (s64)CLAIM_RECENT_NS;
}

static __always_inline void flow_write(struct claim *claim, const struct bpf_sock_tuple *flow, bool v6)
{
#ifdef __bpf__
	if (v6)
		claim->flow.ipv6 = flow->ipv6;
	else
		claim->flow.ipv4 = flow->ipv4;
#else
	for (u32 i = 0; i < sizeof(*flow) / sizeof(u32); i++)
		LEDGER_SET(((u32 *)&claim->flow)[i], ((const u32 *)flow)[i]);
#endif
}

/* The claims since the mark are the ones that the next mark ends. */
static __always_inline void claim_mark(struct claim *claim, u32 made, u32 packets, u32 cpu, u64 now)
{
	LEDGER_SET(claim->mark_at, mark_time(now));
	/* A mark is never read with the time of the one before. */
	in_order(cpu);
	LEDGER_SET(claim->mark, made << 16 | (packets & 0xffff));
}

/* One more; whoever sees the new count sees the new flow. Returns it. */
static __always_inline u32 claim_made(struct claim *claim, u32 cpu)
{
	u32 made;

	if (claims_shared || weakly_ordered)
		return ORDERED(__sync_fetch_and_add(&claim->made, 1)) + 1;
	made = LEDGER_GET(claim->made) + 1;
	in_order(cpu);
	LEDGER_SET(claim->made, made);
	in_order(cpu);
	return made;
}

/*
 * The claim holds: the SYN goes to the stack on this CPU. limit: the backlog that it was held against. tick: of the
 * clock of `now`, ns.
 */
static __always_inline void claim_commit(struct listen_state *state, const struct bpf_sock_tuple *flow, bool v6,
					 u32 cpu, u32 limit, u64 now, u32 tick)
{
	u32 slot = claim_slot(cpu);
	struct claim *claim = &state->claim[slot];
	u32 packets = taken[slot].packets, mark = claim->mark, made;
	bool was_recent = claim_is_recent(claim, now);

	LEDGER_SET(claim->writing, 1);
	in_order(cpu);
	flow_write(claim, flow, v6);
	LEDGER_SET(claim->packet, packets);
	claim->v6 = v6;
	LEDGER_SET(claim->at_ns, now);
	made = claim_made(claim, cpu);
	LEDGER_SET(claim->writing, 0);
	if (!was_recent)
		__sync_fetch_and_add(&state->newcomers, 1);
	if ((u16)(packets - mark) < claim_batch(limit) &&
	    !mark_is_old(claim->mark_at, now, claim_expires_ns(limit, tick)))
		return;
	claim_settle_marked(state, claim, mark);
	claim_mark(claim, made, packets, cpu, now);
}

/* Global: a turn of a loop is to leave nothing in registers (arrival.bpf.h). */
__noinline int recent_add(u32 *recent, struct listen_state *state, u32 cpu, u64 now)
{
	if (recent && state && claim_is_recent(&state->claim[claim_slot(cpu)], now))
		*recent += 1;
	return 0;
}

/* Of a count: the time to about 1 ms, and how many newcomers were known before it. */
static __always_inline u64 recent_stamp(u64 now, u32 newcomers)
{
	return now >> 20 << 16 | (u16)newcomers;
}

/*
 * CPUs that let a SYN in lately. Counted once a tick and when there is a newcomer: a count that began before that one
 * came does not have its stamp, whenever it is written.
 */
static __always_inline u32 count_recent(struct listen_state *state, u32 cpu, u64 now)
{
	u64 stamp = recent_stamp(now, LEDGER_GET(state->newcomers)), known = LEDGER_GET(state->recent);
	u32 recent = 0, i;

	if (known >> 8 == stamp)
		return known & 0xff;
	in_order(cpu);
	ledger_repeat(i, nr_cpus)
		recent_add(&recent, state, i, now);
	LEDGER_SET(state->recent, stamp << 8 | (u8)recent);
	return recent;
}
_Static_assert(WEIR_MAX_CPUS < 256, "a byte has their number");

/*
 * Connections that may be in none of the kernel's counters, and in no claim: one in the hands of each other CPU. Called
 * after `claims` was read.
 */
static __always_inline u32 uncounted(struct listen_state *state, u32 cpu, u32 limit, u64 now)
{
	u32 most = limit >> CLAIM_HELD_BACK_SHIFT, others;

	if (nr_cpus == 1 || !most)
		return 0;
	others = count_recent(state, cpu, now);
	if (others && claim_is_recent(&state->claim[claim_slot(cpu)], now))
		others--;
	return others < most ? others : most;
}

/*
 * Handshakes that have ended, ever; wraps. Those that the kernel does not count
 * yet are among them: a few, and fewer once the queue is full.
 */
static __always_inline u32 handshakes_ended(struct listen_state *state, u32 half_open)
{
	return claims_ever(state) - LEDGER_GET(state->unreserved) - half_open;
}

/* Claims that lookups have found, ever; wraps. While claims hold half of the places, each SYN looks for them. */
static __always_inline u32 claims_found(struct listen_state *state)
{
	return (u32)(LEDGER_GET(state->claims) >> 32) - LEDGER_GET(state->in_vain);
}

/* Whether handshakes stall (admit.h): those under way, or claims of which the kernel seems to take none. */
static __always_inline bool handshakes_stall(const struct listen_state *state)
{
	return state->stall.stalled || state->claims_stall.stalled;
}

/* A connection, let in or to be, whose handshake a cookie carries. */
static __always_inline void no_handshake_under_way(struct listen_state *state)
{
	__sync_fetch_and_add(&state->unreserved, 1);
}

#endif
