/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * shape.h - what shape.bpf.c shares with user space.
 */
#ifndef WEIR_ABI_SHAPE_H
#define WEIR_ABI_SHAPE_H

#include <linux/types.h>

/* Clients with a bucket of their own before the high queue, for each kind; those with the same index share one. A power of two. */
#define WEIR_SHAPE_SOURCES 256
/* Kinds of control segments with buckets apart: SYN and FIN; SYN/ACK. */
#define WEIR_SHAPE_KINDS 2

/* A token bucket of bytes. */
struct byte_rate {
	__u64 ns_per_kib;	/* time that 1024 bytes take at the rate */
	__u64 tolerance_ns;	/* how far ahead of the rate it may be */
};

/* Fixed while the program is loaded. */
struct shape_params {
	struct byte_rate source;	/* of one client, for each kind */
	struct byte_rate all;		/* of all of them together, for each kind */
	__u32 high;			/* class for control segments */
	__u32 low;			/* class for the rest */
	__u32 demoted;			/* class for control segments over the limit */
	__u32 seed;			/* of the clients' buckets: nobody outside can choose whose to share */
	__u32 fin;			/* 1: FIN is high as well */
	__u32 limited;			/* 0: every control segment is high */
};
_Static_assert(sizeof(struct shape_params) == 56, "no holes");

#endif
