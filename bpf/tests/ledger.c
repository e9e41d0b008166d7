/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * ledger.c - the ledger (lib/ledger.h) with threads for CPUs, and a kernel that
 * counts as Linux does. Usage: ledger CPUS PLACES BATCH ROUNDS STANDS ORDERED
 *
 * Each thread takes up batches of SYNs and final ACKs at "tc", and then delivers them. A
 * SYN is put where lookups find it, then counted; a final ACK takes its connection out
 * of the one counter, then puts it into the other. More threads than cores, so some
 * stand still in the midst of any of this. With STANDS = 1 some also stand still with a
 * batch until the clock has gone on by 50 ms. With ORDERED = 1 the machine keeps loads in
 * order, and stores, as x86-64 does, and each thread has its claims for itself.
 *
 * Exit code 0: there were never more connections than places, but for those that
 * docs/limits-details.md allows, and in the end each place was given away. 1: not so.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/ledger.h"

#define MOST_BATCH 64
#define MOST_CPUS WEIR_MAX_CPUS
#define TICK_NS 10000000U /* 100 Hz */
/* Flows whose connections lookups find, by a hash of them. */
#define FLOWS (1 << 20)

static u32 cpus, limit, rounds;
static bool stands;
static struct listen_state state;
/* The kernel's. */
static u32 half_open, waiting;
static u8 found[FLOWS];
/* The test's: connections let in and not yet accepted; the most ever; SYNs let in. */
static u32 promised, most_promised, admitted;
static u64 clock_now = 1ULL << 40;
/* Threads that hold a batch since before the last tick but this many. */
static u64 holds_since[MOST_CPUS];

static bool claim_found(void *ctx, struct claim *claim)
{
	u32 flow = LEDGER_GET(claim->flow.ipv4.saddr);

	/* As in the kernel: who finds it sees what was done before it was put there. */
	return __atomic_load_n(&found[flow % FLOWS], __ATOMIC_ACQUIRE);
}

static void resolve_all(u32 cpu, u64 now)
{
	struct ledger_look look = { .cpu = cpu, .limit = limit, .now = now, .tick = TICK_NS, .found = claim_found };

	for (u32 of = 0; of < cpus; of++)
		claim_resolve(&look, &state, of);
}

static const struct listener_policy listener = { .establish = ESTABLISH_RESERV };

/* As view_read() of establish.bpf.h, with what others may have in their hands. */
static struct queue_view view(u32 cpu, u32 claims, u64 now)
{
	struct queue_view queue = { .limit = limit };

	queue.half_open = LEDGER_GET(half_open);
	in_order(cpu);
	queue.length = LEDGER_GET(waiting);
	queue.claims = claims + uncounted(&state, cpu, limit, now);
	return queue;
}

/*
 * As judge_syn() of establish.bpf.h, for a listener with reserv and no overbooking. There the queue that was seen must be
 * half empty to be enough; the ledger holds to the last place.
 */
static bool claim_place(u32 cpu, u64 now)
{
	u64 seen = claims_now(&state), claims;
	struct queue_view queue;

	in_order(cpu);
	queue = view(cpu, seen, now);
	claims = claim_begin(&state);
	queue.claims = claims_since(queue.claims, seen, claims);
	if (place_free(&listener, &queue))
		return true;
	for (u32 again = 0; again < 2; again++) {
		queue = view(cpu, claims, now);
		if (place_free(&listener, &queue))
			return true;
		resolve_all(cpu, now);
		claims = claims_first(&state) - 1;
	}
	claim_cancel(&state);
	return false;
}

static bool let_in(u32 cpu, u32 flow)
{
	struct bpf_sock_tuple tuple = { .ipv4.saddr = flow };
	u64 now = LEDGER_GET(clock_now);
	u32 sum, most;

	if (!claim_place(cpu, now))
		return false;
	claim_commit(&state, &tuple, false, cpu, limit, now, TICK_NS);
	sum = __sync_add_and_fetch(&promised, 1);
	most = LEDGER_GET(most_promised);
	while (sum > most && !__atomic_compare_exchange_n(&most_promised, &most, sum, false, __ATOMIC_RELAXED,
							  __ATOMIC_RELAXED))
		;
	__sync_fetch_and_add(&admitted, 1);
	return true;
}

static u32 draw(u32 *random)
{
	*random ^= *random << 13;
	*random ^= *random >> 17;
	return *random ^= *random << 5;
}

static void accept_one(void)
{
	u32 length = LEDGER_GET(waiting);

	while (length) {
		if (__atomic_compare_exchange_n(&waiting, &length, length - 1, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
			__sync_fetch_and_sub(&promised, 1);
			return;
		}
	}
}

/* A batch: SYNs, and final ACKs of this CPU's handshakes. */
static void one_batch(u32 cpu, u32 *flow, u32 *handshakes, u32 *random)
{
	u32 syns[MOST_BATCH], number = 0, acks = 0, packets = 1 + draw(random) % batch_max;

	LEDGER_SET(holds_since[cpu], LEDGER_GET(clock_now));
	for (u32 i = 0; i < packets; i++) {
		LEDGER_SET(taken[cpu].packets, taken[cpu].packets + 1);
		if (*handshakes > acks && draw(random) % 2) {
			acks++;
			continue;
		}
		*flow += MOST_CPUS;
		if (let_in(cpu, *flow))
			syns[number++] = *flow;
	}
	if (stands && number && draw(random) % 64 == 0) {
		u64 began = LEDGER_GET(clock_now);

		while (LEDGER_GET(clock_now) - began < 50000000)
			sched_yield();
	}
	for (u32 i = 0; i < number; i++) {
		__atomic_store_n(&found[syns[i] % FLOWS], 1, __ATOMIC_RELEASE);
		if (draw(random) % 16 == 0)
			sched_yield();
		__sync_fetch_and_add(&half_open, 1);
	}
	for (u32 i = 0; i < acks; i++) {
		__sync_fetch_and_sub(&half_open, 1);
		if (draw(random) % 16 == 0)
			sched_yield();
		__sync_fetch_and_add(&waiting, 1);
	}
	*handshakes += number - acks;
	LEDGER_SET(holds_since[cpu], 0);
}

static void *run_cpu(void *number)
{
	u32 cpu = (u32)(size_t)number, flow = cpu, handshakes = 0, random = 2463534242U + cpu;

	for (u32 i = 0; i < rounds; i++) {
		one_batch(cpu, &flow, &handshakes, &random);
		if (draw(&random) % 2)
			accept_one();
		if (draw(&random) % 4 == 0)
			sched_yield();
	}
	return NULL;
}

/* A CPU that runs is done with a batch before the second tick; one that stands still may take five more. */
static bool may_tick(void)
{
	u64 now = LEDGER_GET(clock_now), most = stands ? 60000000 : 0;

	for (u32 i = 0; i < cpus; i++) {
		u64 since = LEDGER_GET(holds_since[i]);

		if (since && now - since > most)
			return false;
	}
	return true;
}

static bool over;

static void *run_clock(void *unused)
{
	while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) {
		if (may_tick())
			__sync_fetch_and_add(&clock_now, TICK_NS);
		sched_yield();
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[MOST_CPUS], clock;
	u32 held_back;

	if (argc != 7)
		return 2;
	cpus = nr_cpus = atoi(argv[1]);
	limit = atoi(argv[2]);
	batch_max = atoi(argv[3]);
	rounds = atoi(argv[4]);
	stands = atoi(argv[5]);
	weakly_ordered = claims_shared = !atoi(argv[6]);
	/* Each decision looks at all claims: those that were let in long ago are found or over. */
	pthread_create(&clock, NULL, run_clock, NULL);
	for (u32 i = 0; i < cpus; i++)
		pthread_create(&threads[i], NULL, run_cpu, (void *)(size_t)i);
	for (u32 i = 0; i < cpus; i++)
		pthread_join(threads[i], NULL);
	__atomic_store_n(&over, true, __ATOMIC_RELEASE);
	pthread_join(clock, NULL);
	held_back = cpus - 1 < limit >> CLAIM_HELD_BACK_SHIFT ? cpus - 1 : limit >> CLAIM_HELD_BACK_SHIFT;
	printf("%u CPUs, %u places: %u let in, %u at most at once, %u held back at most\n", cpus, limit, admitted,
	       most_promised, held_back);
	if (most_promised > limit + (cpus - 1 - held_back))
		return 1;
	/* Alone, and with all claims settled, one CPU finds every place but those that are held back. */
	resolve_all(0, clock_now);
	while (let_in(0, 1)) {
		__sync_fetch_and_add(&half_open, 1);
		__sync_fetch_and_add(&taken[0].packets, batch_max);
	}
	printf("%u in the end\n", promised);
	return promised < limit - held_back;
}
