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
 * CPUs share it without a lock. A slot's word is `turn`, an attempt's number and its
 * fate. Who takes a slot swaps it for QUIC_WRITING first and for the new word last;
 * nobody waits for a slot that is written. A fate changes by compare and swap, so who
 * has lost the slot meanwhile changes nothing.
 */
#ifndef WEIR_QUIC_FLOWS_H
#define WEIR_QUIC_FLOWS_H

#include "abi/quic.h"
#include "lib/quic_wait.h"
#include "lib/types.h"

/* What is remembered of a client that was let in outlives by so much what is of a refused one: that may be one of a flood. */
#define QUIC_KEPT_NS 30000000000ULL

/* What became of an attempt. LATE: the client has repeated its Initial after a time-out. */
enum quic_fate { QUIC_UNDER_WAY, QUIC_LATE, QUIC_ANSWERED, QUIC_RETRIED, QUIC_REFUSED, QUIC_WRITING };

/*
 * An attempt is known by its client, which keeps its address, port and connection ID until it is established, and by whom it
 * has called: a client without an ID of its own may call two servers from one port.
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
	u64 turn;		/* its number among those that were let in there << 32 | enum quic_fate; atomic */
	struct quic_server server; /* for which it was judged */
	u32 behind;		/* so many were not answered before it */
	u32 first_id;		/* hash of the connection ID that its first packet went to */
	u32 server_id;		/* and of the one that the server has chosen; 0: not known */
	u32 verdict;		/* of a refused one: enum quic_verdict */
	u64 pad;
};
_Static_assert(sizeof(struct quic_slot) == 64, "one cache line");

struct quic_pair {
	struct quic_slot way[2];
};

/*
 * Twice 32 bits of a multilinear hash (Carter, Wegman 1979; the upper half of sums of products, Dietzfelbinger
 * 1996): for clients that differ, whatever they are, each half is the same once in 2^32 keys. Never 0.
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
	return (high >> 32 << 32) | low >> 32 | 1;
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

static __always_inline u32 quic_turn_number(u64 turn)
{
	return turn >> 32;
}

static __always_inline enum quic_fate quic_turn_fate(u64 turn)
{
	return (u32)turn;
}

static __always_inline u64 quic_turn(u32 number, enum quic_fate fate)
{
	return (u64)number << 32 | fate;
}

/* Of two slots, the one that is remembered less long has the lower one. */
static __always_inline u64 quic_slot_until(const struct quic_slot *slot)
{
	if (!slot->client)
		return 0;
	return slot->at_ns + (quic_turn_fate(slot->turn) == QUIC_REFUSED ? 0 : QUIC_KEPT_NS);
}

/*
 * Takes the client's slot, or the one that gives way. NULL: another CPU is about to write it. Or the attempt was refused, and
 * both of the pair were let in a moment ago: whoever sends many attempts does not make those forgotten.
 */
static __always_inline struct quic_slot *quic_slot_take(struct quic_pair *pair, u64 client, u64 now, bool refused)
{
	struct quic_slot *slot = quic_slot_find(pair, client);
	u64 seen;

	if (!slot) {
		slot = &pair->way[quic_slot_until(&pair->way[1]) < quic_slot_until(&pair->way[0])];
		if (refused && (s64)(quic_slot_until(slot) - now) > (s64)(QUIC_KEPT_NS - QUIC_FORGOTTEN_NS))
			return NULL;
	}
	seen = *(volatile u64 *)&slot->turn;
	if (seen == QUIC_WRITING || __sync_val_compare_and_swap(&slot->turn, seen, QUIC_WRITING) != seen)
		return NULL;
	return slot;
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
	/* Not a store: on arm64 it would not wait for those before it. */
	__sync_lock_test_and_set(&slot->turn, what->turn);
	return true;
}

/*
 * Changes the fate of a client's attempt; turn: as it was read. False: another CPU was first, with this or with the slot. The
 * second look at the client is for CPUs that read the word and the client in another order.
 */
static __always_inline bool quic_slot_turn(struct quic_slot *slot, u64 client, u64 turn, enum quic_fate fate)
{
	u64 next = quic_turn(quic_turn_number(turn), fate);
	volatile u64 *whose = &slot->client;

	return *whose == client && __sync_val_compare_and_swap(&slot->turn, turn, next) == turn && *whose == client;
}

/*
 * The server has sent its first packet, which is none or a Retry. Says what was remembered before, and true, if
 * the attempt waited for it. What is read before the fate changes is of this attempt: who takes the slot
 * swaps the word before, and writes another number.
 */
static __always_inline bool quic_slot_answer(struct quic_slot *slot, u64 client, bool retry, u32 server_id, struct quic_slot *was)
{
	was->turn = *(volatile u64 *)&slot->turn;
	if (quic_turn_fate(was->turn) >= QUIC_ANSWERED)
		return false;
	was->server = slot->server;
	was->at_ns = slot->at_ns;
	was->behind = slot->behind;
	if (!quic_slot_turn(slot, client, was->turn, retry ? QUIC_RETRIED : QUIC_ANSWERED))
		return false;
	/* The server's own ID, to which the client sends from now on. */
	slot->server_id = server_id;
	return true;
}

#endif
