/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * residence.h - what residence.bpf.c shares with user space.
 */
#ifndef WEIR_ABI_RESIDENCE_H
#define WEIR_ABI_RESIDENCE_H

#include <linux/types.h>

/* Ports whose requests are watched; a port is known by its place among them. */
#define WEIR_MAX_RESIDENCES 64
/* Classes of how long an answer took: the class n begins at 2^n - 1 ticks. */
#define WEIR_ANSWER_CLASSES 20

/* What has become of a port's connections, since it is watched. Counted as they change their state. */
struct residence_ended {
	__u64 opened;		/* connections that were established */
	__u64 turns;		/* requests that were answered, of connections that have ended */
	__u64 given_up;		/* requests without an answer, of connections that ended, and not by the server's doing */
	/* Of connections that ended after a short answer: how long after the last of the request its last segment went out. */
	__u64 answers[WEIR_ANSWER_CLASSES];
	/* Of them, those whose last segment went out within the last second. */
	__u64 latest[WEIR_ANSWER_CLASSES];
};

/* What one pass has found of a port. User space zeroes it before. */
struct residence_found {
	__u64 turns;		/* requests that were answered, of connections that stand */
	__u32 connections;	/* they, also those that wait for accept() */
	__u32 fresh;		/* handshakes under way, and connections younger than a second without a request */
	__u32 listening;	/* sockets that listen */
	__u32 pad;
	/* Of connections that stand: how long after the request an answer went out, one of the first, since the pass before. */
	__u64 first[WEIR_ANSWER_CLASSES];
};
_Static_assert(sizeof(struct residence_found) == 24 + 8 * WEIR_ANSWER_CLASSES, "no holes");

/* A request that no answer has begun to. */
struct residence_request {
	__u32 age_ticks;	/* since the last of it came */
	__u8 port;		/* place of its port */
	__u8 queued;		/* 1: its connection waits for accept() */
	__u16 pad;
};

#endif
