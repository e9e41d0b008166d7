/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * splice.h - what splice.bpf.c shares with user space.
 */
#ifndef WEIR_ABI_SPLICE_H
#define WEIR_ABI_SPLICE_H

#include <linux/types.h>

/* Sockets that can be redirected at a time, two for each tunnel. */
#define WEIR_SPLICE_SLOTS 32768
/* Threads of a proxy that can redirect. */
#define WEIR_SPLICE_LANES 256

/*
 * One way of a tunnel, from the socket in this slot to the one in slot ^ 1. User space zeroes it before
 * the socket is in the map and writes `received`, `looked` and `told` before it arms; `armed` and `lane`
 * are its own. All else is the verdict program's.
 */
struct splice_way {
	__u64 redirected;	/* bytes handed to the other socket's queue of redirected packets */
	__u64 passed;		/* bytes left to user space, which is to read them with recv() */
	__u64 received;		/* of these, what user space had received when it armed */
	__u32 goal;		/* the other's write_seq once all that was redirected is in its send queue */
	__u32 mark;		/* goal when the other was last looked at */
	__u32 since_mark;	/* memory (truesize) of what was redirected since */
	__u32 looked;		/* 1: goal and mark are valid */
	__u32 armed;		/* 1: redirect, until more is passed than was received */
	__u32 lane;		/* whom to tell when something is passed: index into the rings */
	__u32 told;		/* 1: it was told since it was armed */
	__u32 next_seq;		/* sequence number of the byte that is to be judged next */
	__u32 judged;		/* 1: next_seq is valid */
	__u32 broken;		/* 1: a packet was lost for want of memory; nothing goes on any more */
};
_Static_assert(sizeof(struct splice_way) == 64, "one cache line");

#endif
