/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * quic_flows.h - what is remembered of connection attempts, let in or refused. Pure:
 * the table and its keys are arguments. weir_models::quic::flows is the same in Rust; a
 * property test holds them equal.
 *
 * Pairs of slots of one cache line each. A client has one of the two of its pair: the
 * one that has its hash, or the one that gives way. A look reads two lines that lie side by
 * side; an LRU hash of the kernel reads about seven, and locks.
 *
 * CPUs share it without a lock. A slot's word is `turn`: the attempt's number, bits of
 * its client's hash, and its fate. Who takes a slot swaps in a word of QUIC_WRITING
 * first and the new word last; nobody waits for a slot that is written. A fate changes
 * by compare and swap, so who has lost the slot meanwhile changes nothing. On arm64
 * what stands beside the word may be read before it: then, once in a long while, the
 * time of an answer is that of the same client's attempt before.
 */
#ifndef WEIR_QUIC_FLOWS_H
#define WEIR_QUIC_FLOWS_H

#include "abi/quic.h"
#include "lib/quic_wait.h"
#include "lib/types.h"

/*
 * What is remembered of a client that was let in outlives by so much what is of a refused one, which may be one of a
 * flood. Whoever was sent a Retry may be made up too, until it comes back.
 */
#define QUIC_KEPT_NS 30000000000ULL
#define QUIC_KEPT_RETRIED_NS 1000000000ULL
/*
 * No refused one takes the slot of one that waits for its answer; and none that of one that has it, for some round
 * trips.
 */
#define QUIC_SPARED_NS QUIC_FORGOTTEN_NS
#define QUIC_SPARED_ANSWERED_NS 500000000ULL

/* What became of an attempt. LATE: the client has repeated its Initial after a time-out. */
enum quic_fate { QUIC_UNDER_WAY, QUIC_LATE, QUIC_ANSWERED, QUIC_RETRIED, QUIC_REFUSED, QUIC_WRITING };
#define QUIC_FATE_BITS 7U

/*
 * An attempt is known by its client, which keeps its address, port and connection ID until it is established, and by
 * whom it has called: a client without an ID of its own may call two servers from one port.
 */
struct quic_client {
	u32 addr[4];		/* big endian; IPv4 as ::ffff:a.b.c.d */
	u32 server;		/* hash of the server's address and network namespace */
	u16 port;		/* big endian */
	u16 server_port;	/* big endian */
	u64 id[3];		/* as of quic_id_read(), with its length in the highest byte */
};
#define QUIC_CLIENT_WORDS (sizeof(struct quic_client) / sizeof(u32))
_Static_assert(QUIC_CLIENT_WORDS == 12, "a hash key has no holes");

/* Of quic_client_hash(). Random, so that nobody outside knows which clients share a pair. */
struct quic_flow_keys {
	u64 word[2][QUIC_CLIENT_WORDS + 1];
};

struct quic_slot {
	u64 client;		/* its hash; 0: none had it yet */
	u64 at_ns;		/* when the attempt was judged */
	u64 turn;		/* as of quic_turn(); atomic */
	struct quic_server server; /* for which it was judged */
	u32 behind;		/* so many were not answered before it */
	u32 first_id;		/* hash of the connection ID that its first packet went to */
	u32 server_id;		/* and of the one that the server has chosen; 0: not known */
	u32 verdict;		/* of a refused one: enum quic_verdict */
	u64 repeated_ns;	/* of a late one: when its client has repeated it */
};
_Static_assert(sizeof(struct quic_slot) == 64, "one cache line");

struct quic_pair {
	struct quic_slot way[2];
};

/* One to one: without it the hashes of any two clients that differ by the same would differ by the same. */
static __always_inline u64 quic_mix(u64 sum)
{
	sum = (sum ^ sum >> 32) * 0x9e3779b97f4a7c15ULL;
	return sum ^ sum >> 32;
}

/*
 * Twice 32 bits of a multilinear hash (Carter, Wegman 1979): of clients that differ, whatever they are, each sum
 * is the same once in 2^32 keys at most. Never 0.
 */
static __always_inline u64 quic_client_hash(const struct quic_client *client,
					    const volatile struct quic_flow_keys *keys)
{
	const u32 *word = (const void *)client;
	u64 high = keys->word[0][QUIC_CLIENT_WORDS], low = keys->word[1][QUIC_CLIENT_WORDS];

#pragma unroll
	for (u32 i = 0; i < QUIC_CLIENT_WORDS; i++) {
		high += keys->word[0][i] * word[i];
		low += keys->word[1][i] * word[i];
	}
	return (quic_mix(high) >> 32 << 32) | quic_mix(low) >> 32 | 1;
}

/* The pair of a client, of so many (a power of two). */
static __always_inline u32 quic_pair_of(u64 client, u32 pairs)
{
	return client >> 32 & (pairs - 1);
}

/* NULL: nothing is remembered of it. */
static __always_inline struct quic_slot *quic_slot_find(struct quic_pair *pair, u64 client)
{
	if (*(volatile u64 *)&pair->way[0].client == client)
		return &pair->way[0];
	return *(volatile u64 *)&pair->way[1].client == client ? &pair->way[1] : NULL;
}

/* number: of the attempt, among those that were let in at its socket; of a refused one 0. */
static __always_inline u64 quic_turn(u64 client, u32 number, enum quic_fate fate)
{
	return (u64)number << 32 | ((u32)client & ~QUIC_FATE_BITS) | fate;
}

static __always_inline u32 quic_turn_number(u64 turn)
{
	return turn >> 32;
}

static __always_inline enum quic_fate quic_turn_fate(u64 turn)
{
	return (u32)turn & QUIC_FATE_BITS;
}

static __always_inline u64 quic_turn_with(u64 turn, enum quic_fate fate)
{
	return (turn & ~(u64)QUIC_FATE_BITS) | fate;
}

/* The word of a slot that was found for the client. Is the slot another one's by now, it says QUIC_WRITING. */
static __always_inline u64 quic_turn_of(const struct quic_slot *slot, u64 client)
{
	u64 turn = *(volatile u64 *)&slot->turn;

	return ((u32)turn ^ (u32)client) & ~QUIC_FATE_BITS ? QUIC_WRITING : turn;
}

/* turn: as it was read. False: another CPU was first. */
static __always_inline bool quic_turn_swap(struct quic_slot *slot, u64 turn, u64 next)
{
	return __sync_val_compare_and_swap(&slot->turn, turn, next) == turn;
}

/* Whether the slot still has this word: then what was read of it before belongs to it. */
static __always_inline bool quic_turn_stays(struct quic_slot *slot, u64 turn)
{
	return quic_turn_swap(slot, turn, turn);
}

/* Of two slots, the one that is remembered less long has the lower one. */
static __always_inline u64 quic_slot_until(const struct quic_slot *slot, u64 turn)
{
	enum quic_fate fate = quic_turn_fate(turn);

	if (!slot->client)
		return 0;
	return slot->at_ns + (fate == QUIC_REFUSED ? 0 : fate == QUIC_RETRIED ? QUIC_KEPT_RETRIED_NS : QUIC_KEPT_NS);
}

/* Whether a refused attempt may take the slot. */
static __always_inline bool quic_slot_yields(const struct quic_slot *slot, u64 turn, u64 now)
{
	enum quic_fate fate = quic_turn_fate(turn);
	u64 spared = fate == QUIC_ANSWERED || fate == QUIC_RETRIED ? QUIC_SPARED_ANSWERED_NS : QUIC_SPARED_NS;

	return !slot->client || fate == QUIC_REFUSED || (s64)(now - slot->at_ns) >= (s64)spared;
}

/*
 * Takes the client's slot, or the one that gives way. NULL: another CPU writes it. Or the attempt was refused, and both
 * of the pair were let in a moment ago: whoever sends many attempts does not make those forgotten.
 */
static __always_inline struct quic_slot *quic_slot_take(struct quic_pair *pair, u64 client, u64 now, bool refused)
{
	/* Read before the choice: one that comes into the slot after it keeps the slot. */
	u64 first = *(volatile u64 *)&pair->way[0].turn, second = *(volatile u64 *)&pair->way[1].turn, turn;
	struct quic_slot *slot = quic_slot_find(pair, client);
	bool own = slot;

	if (!own)
		slot = &pair->way[quic_slot_until(&pair->way[1], second) < quic_slot_until(&pair->way[0], first)];
	turn = slot == &pair->way[0] ? first : second;
	if (refused && !own && !quic_slot_yields(slot, turn, now))
		return NULL;
	if (quic_turn_fate(turn) == QUIC_WRITING || !quic_turn_swap(slot, turn, quic_turn(client, 0, QUIC_WRITING)))
		return NULL;
	return slot;
}

/*
 * Gives the slot its word, after all else was written. Not by a store: on arm64 it would not wait for those before it.
 */
static __always_inline void quic_slot_publish(struct quic_slot *slot, u64 turn)
{
	__sync_lock_test_and_set(&slot->turn, turn);
}

/* Remembers a client's attempt: `what` but for the client and the time. False: there is no slot for it. */
static __always_inline bool quic_slot_write(struct quic_pair *pair, u64 client, u64 now, const struct quic_slot *what)
{
	struct quic_slot *slot = quic_slot_take(pair, client, now, quic_turn_fate(what->turn) == QUIC_REFUSED);

	if (!slot)
		return false;
	slot->client = client;
	slot->at_ns = now;
	slot->server = what->server;
	slot->behind = what->behind;
	slot->first_id = what->first_id;
	slot->server_id = what->server_id;
	slot->verdict = what->verdict;
	slot->repeated_ns = 0;
	quic_slot_publish(slot, what->turn);
	return true;
}

/*
 * The server has sent its first packet, which is none or a Retry. Says what was remembered before, and true, if
 * the attempt waited for it.
 */
static __always_inline bool quic_slot_answer(struct quic_slot *slot, u64 client, bool retry, u32 server_id, struct quic_slot *was)
{
	bool changed = false;

	/* Once more, if the client has repeated its Initial in this moment (QUIC_LATE). */
#pragma unroll
	for (u32 i = 0; i < 2 && !changed; i++) {
		was->turn = quic_turn_of(slot, client);
		if (quic_turn_fate(was->turn) >= QUIC_ANSWERED)
			return false;
		was->server = slot->server;
		was->at_ns = slot->at_ns;
		was->behind = slot->behind;
		was->repeated_ns = slot->repeated_ns;
		changed = quic_turn_swap(slot, was->turn, quic_turn_with(was->turn, retry ? QUIC_RETRIED : QUIC_ANSWERED));
	}
	/*
	 * The server's own ID, to which the client sends from now on. In a slot that another one has taken it does no
	 * harm.
	 */
	if (changed)
		slot->server_id = server_id;
	return changed;
}

#endif
