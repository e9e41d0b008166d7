/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * quic.h - what weir reads of a QUIC packet, and the Version Negotiation packet
 * that ends an attempt. Pure. weir_models::quic is the same in Rust; a property
 * test holds them equal.
 *
 * Versions 1 (RFC 9000) and 2 (RFC 9369) are known. Of others only what all
 * versions share (RFC 8999) could be read: their packets pass.
 *
 * A client takes a Version Negotiation packet only in answer to its first
 * packets, and gives the attempt up if it lists no version of its own (RFC
 * 9000, Section 6.2). The one made here lists a reserved version, which no
 * client has (Section 6.3). It needs no keys, and is always shorter than what
 * it answers.
 */
#ifndef WEIR_QUIC_H
#define WEIR_QUIC_H

#include "abi/quic.h"
#include "lib/types.h"

#define QUIC_V1 0x00000001
#define QUIC_V2 0x6b3343cf
/* Reserved: all of its bytes are 0x?a. */
#define QUIC_NO_VERSION 0x1a2a3a4a
/* Datagrams with an Initial of a client's are at least so long (Section 14.1). */
#define QUIC_LEAST_INITIAL 1200
/* And its connection ID for the server, until the server has chosen one (Section 7.2). */
#define QUIC_LEAST_FIRST_ID 8
/* So much of a datagram's beginning is read: flags, version and both connection IDs with their lengths. */
#define QUIC_HEAD (1 + 4 + 2 * (1 + WEIR_QUIC_CID_MOST))
/* A copy of that with room to index it by any number of six bits. */
#define QUIC_BUFFER 64
/* Longest Version Negotiation packet. */
#define QUIC_VN_MOST (QUIC_HEAD + 4)
_Static_assert(QUIC_VN_MOST <= QUIC_BUFFER && QUIC_VN_MOST < QUIC_LEAST_INITIAL, "it fits, and amplifies nothing");

enum quic_kind { QUIC_NONE, QUIC_INITIAL, QUIC_ZERO_RTT, QUIC_HANDSHAKE, QUIC_RETRY, QUIC_NEGOTIATION };

/* The head of a long packet; the connection IDs are in the buffer. */
struct quic_packet {
	u8 kind;	/* enum quic_kind */
	u8 to_len;	/* of the destination's connection ID, which begins at QUIC_TO_AT */
	u8 from_len;	/* of the source's, which begins one byte behind its end */
};
#define QUIC_TO_AT 6

static __always_inline u32 quic_from_at(const struct quic_packet *packet)
{
	return QUIC_TO_AT + packet->to_len + 1;
}

/* Of the two bits behind the form bit and the fixed one. */
static __always_inline u8 quic_kind_of(u32 version, u8 type)
{
	/* Version 2 counts from Retry (RFC 9369, Section 3.2), version 1 ends with it (RFC 9000, Section 17.2). */
	if (version == QUIC_V2)
		type = (type + 3) & 3;
	else if (version != QUIC_V1)
		return QUIC_NONE;
	return QUIC_INITIAL + type;
}

/* Whether a datagram begins with a long header, by its first byte: all others are of established connections. */
static __always_inline bool quic_is_long(u8 first)
{
	return first & 0x80;
}

/*
 * Reads a datagram's first packet. head: QUIC_BUFFER bytes, the first QUIC_HEAD of
 * which are the datagram's, or all it has, and the rest 0; len: bytes of the datagram.
 */
static __always_inline void quic_read(const u8 *head, u32 len, struct quic_packet *packet)
{
	u32 version = (u32)head[1] << 24 | (u32)head[2] << 16 | (u32)head[3] << 8 | head[4], end;

	packet->kind = QUIC_NONE;
	packet->to_len = head[5];
	/*
	 * The second bit says nothing: ends that may do so send it as they like, servers from their first packet on
	 * (RFC 9287).
	 */
	if (!quic_is_long(head[0]) || packet->to_len > WEIR_QUIC_CID_MOST)
		return;
	packet->from_len = head[(QUIC_TO_AT + packet->to_len) & (QUIC_BUFFER - 1)];
	end = quic_from_at(packet) + packet->from_len;
	if (packet->from_len > WEIR_QUIC_CID_MOST || end > len)
		return;
	packet->kind = version ? quic_kind_of(version, head[0] >> 4 & 3) : QUIC_NEGOTIATION;
}

/* Whether a client's datagram may begin a connection: the server has not chosen its own connection ID yet. */
static __always_inline bool quic_may_begin(const struct quic_packet *packet, u32 len)
{
	return packet->kind == QUIC_INITIAL && len >= QUIC_LEAST_INITIAL && packet->to_len >= QUIC_LEAST_FIRST_ID;
}

/*
 * Eight bytes from anywhere. In BPF clang would take a word of unknown alignment apart into bytes; the kernel reads it
 * at once, but for those of the stack.
 */
static __always_inline u64 load64(const u8 *at)
{
	u64 word;

#ifdef __bpf__
	__asm__ volatile("%0 = *(u64 *)(%1 + 0)" : "=r"(word) : "r"(at) : "memory");
#else
	__builtin_memcpy(&word, at, sizeof(word));
#endif
	return word;
}

static __always_inline void store64(u8 *at, u64 word)
{
#ifdef __bpf__
	__asm__ volatile("*(u64 *)(%0 + 0) = %1" : : "r"(at), "r"(word) : "memory");
#else
	__builtin_memcpy(at, &word, sizeof(word));
#endif
}

/* A connection ID, and 0 behind it. */
struct quic_id {
	u64 word[3];
};
_Static_assert(WEIR_QUIC_CID_MOST <= sizeof(struct quic_id), "it has room");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a word's first byte is its lowest");
/* IDs begin at most here: in 31, for a mask. */
#define QUIC_ID_AT_MOST 31
_Static_assert(QUIC_TO_AT + WEIR_QUIC_CID_MOST + 1 <= QUIC_ID_AT_MOST &&
		       QUIC_ID_AT_MOST + sizeof(struct quic_id) <= QUIC_BUFFER, "it lies in the buffer");

/*
 * The first `bytes` bytes of a word; 0 or less: none. Without a branch: each would double what the verifier follows of
 * the rest.
 */
static __always_inline u64 first_bytes(s32 bytes)
{
	u64 all;

	__asm__ volatile("" : "+r"(bytes));
	bytes &= ~(bytes >> 31);
	all = (s64)((7 - bytes) >> 31);
	return ((1ULL << ((u32)bytes * 8 & 63)) - 1) | all;
}

/* Reads the ID of `len` bytes that begins at head[at]. head: as of quic_read(); not on the stack of a BPF program. */
static __always_inline void quic_id_read(struct quic_id *id, const u8 *head, u32 at, u32 len)
{
	head += at & QUIC_ID_AT_MOST;
#pragma unroll
	for (u32 i = 0; i < 3; i++)
		id->word[i] = load64(head + 8 * i) & first_bytes((s32)len - 8 * (s32)i);
}

/* Writes it to to[at], and 0 behind it, as many bytes as a quic_id has. */
static __always_inline void quic_id_write(u8 *to, u32 at, const struct quic_id *id)
{
	to += at & QUIC_ID_AT_MOST;
#pragma unroll
	for (u32 i = 0; i < 3; i++)
		store64(to + 8 * i, id->word[i]);
}

/* Never 0. Two of one client hardly have the same; then one is taken for the other. */
static __always_inline u32 quic_id_hash(const struct quic_id *id)
{
	u64 hash = 0;

#pragma unroll
	for (u32 i = 0; i < 3; i++)
		hash = (hash ^ hash >> 32 ^ id->word[i]) * 0x9e3779b97f4a7c15ULL;
	return hash >> 32 ?: 1;
}

/*
 * Writes the answer to this packet to `to`: QUIC_BUFFER bytes, 0 where the answer has ended. head: as of
 * quic_id_read(). chance: seven bits that mean nothing. Returns its length.
 */
static __always_inline u32 quic_refuse(u8 *to, const u8 *head, const struct quic_packet *packet, u8 chance)
{
	u32 at = QUIC_TO_AT + packet->from_len;
	struct quic_id id;

#pragma unroll
	for (u32 i = 0; i < QUIC_BUFFER; i += 8)
		store64(to + i, 0);
	/* The second bit is to be set: who shares the port with other protocols goes by it (Section 17.2.1). */
	to[0] = 0xc0 | (chance & 0x3f);
	to[5] = packet->from_len;
	/* From front to back: the zeros behind each give way to the next. */
	quic_id_read(&id, head, quic_from_at(packet), packet->from_len);
	quic_id_write(to, QUIC_TO_AT, &id);
	to[at & (QUIC_BUFFER - 1)] = packet->to_len;
	quic_id_read(&id, head, QUIC_TO_AT, packet->to_len);
	quic_id_write(to, at + 1, &id);
	at += 1 + packet->to_len;
#pragma unroll
	for (u32 i = 0; i < 4; i++)
		to[(at + i) & (QUIC_BUFFER - 1)] = QUIC_NO_VERSION >> (24 - 8 * i);
	return at + 4;
}

#endif
