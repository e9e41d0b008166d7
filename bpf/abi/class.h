/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * class.h - the class tables: what guard.bpf.c and queue.bpf.c share with user
 * space and with each other.
 *
 * User space writes all of it; the programs read. The tables exist twice, and
 * user space writes the copy that is not in force.
 */
#ifndef WEIR_ABI_CLASS_H
#define WEIR_ABI_CLASS_H

#include <linux/types.h>

/* Classes in one network namespace, without `other`, which has slot 0. */
#define WEIR_MAX_CLASSES 16384
/* Distinct masks of all rules: each is a lookup for a SYN that fits none before it. */
#define WEIR_MAX_MASKS 64
/* Rules of all classes; a class with lists has one for each pair of prefixes. */
#define WEIR_MAX_RULES 65536
/* Slot of the connections that no rule fits. */
#define WEIR_CLASS_OTHER 0
/* Slots of classes, with that one. */
#define WEIR_CLASS_SLOTS (WEIR_MAX_CLASSES + 1)
/* Slots whose states are one map (class_states), and how many such maps all slots need. */
#define WEIR_CLASS_PIECE 256
#define WEIR_CLASS_PIECES 65
_Static_assert(WEIR_CLASS_PIECES * WEIR_CLASS_PIECE >= WEIR_CLASS_SLOTS, "each slot is in one");
/* Priorities: 1 is the highest, this one is that of connections without a class. */
#define WEIR_PRIORITIES 64

enum over_rate { OVER_RATE_DROP, OVER_RATE_RST };

/* In place of a slot: no class was looked up. */
#define WEIR_NO_CLASS 0xffffffff

/*
 * The fields by which a connection is of a class. A rule's key is its connections' tuple AND its
 * mask, which has the same fields.
 */
struct class_tuple {
	__u32 from[4];		/* big endian; IPv4 in the last word, the others 0 */
	__u32 to[4];
	__u16 from_port;	/* big endian */
	__u16 to_port;
	__u16 listener;		/* 1 + counters index of the listener, or a number from WEIR_QUIC_OWNER on */
	__u16 mask;		/* number of the mask */
};
_Static_assert(sizeof(struct class_tuple) == 40, "a hash key has no holes");

/* One copy of the masks, most specific first; a mask that fits both families is in both lists. */
struct class_masks {
	__u32 count[2];		/* of IPv4, of IPv6 */
	struct class_tuple masks[2 * WEIR_MAX_MASKS]; /* of IPv4, then of IPv6 */
};
_Static_assert(sizeof(struct class_masks) == 8 + 2 * 40 * WEIR_MAX_MASKS, "no holes");

/* A rate and a burst as the bucket wants them, in 1/16 ns (bucket.h). interval 0: no limit. */
struct bucket_limit {
	__u64 interval;		/* between two connections: 1600 .. 1.6e11 */
	__u64 tolerance;	/* how far ahead of its time a connection may be: (burst - 1) * interval */
};

/* What is done with a class; two of them, as of all that user space swaps. */
struct class_policy {
	struct bucket_limit limit;
	__u8 priority;		/* 1 (highest) .. 63; of `other` 64 */
	__u8 over_rate;		/* enum over_rate */
	__u8 pad[6];
};
_Static_assert(sizeof(struct class_policy) == 24, "no holes");

/* The controller's limit of a class, beside the operator's; the lower rate holds. Written by user space. */
struct class_limit {
	struct bucket_limit limit;
	__u64 until_ns;		/* CLOCK_MONOTONIC; it is no limit from then on */
};
_Static_assert(sizeof(struct class_limit) == 24, "no holes");

#endif
