/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * shape.h - what shape.bpf.c and qdisc.bpf.c share with user space.
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

/* What follows is of the qdisc; the models are weir_models::aqm::codel, flows and spa. Times in ns, lengths in bytes. */

/* No place, no flow. */
#define WEIR_SPA_NONE 0xffffffff
/* Bytes of a qdisc's kind, with the NUL (IFNAMSIZ). */
#define WEIR_SPA_KIND 16

/* The queues, in the order in which they are served. */
#define WEIR_SPA_HIGH 0
#define WEIR_SPA_LOW 1
#define WEIR_SPA_DEMOTED 2
#define WEIR_SPA_QUEUES 3

struct codel_params {
	__u64 target_ns;
	__u64 interval_ns;
	__u32 mtu_bytes;	/* with at most so many behind it a packet is never dropped */
	__u32 reserved;
};

/* Only user space changes these, and only before the qdisc is on an interface. */
struct spa_params {
	struct shape_params limit;	/* its classes are not used */
	struct codel_params high;	/* of the high queue and of the demoted one */
	struct codel_params low;
	__u64 rate_bytes_per_s;		/* of the link */
	__u64 ns_per_mib;		/* time that 2^20 bytes take on the link */
	__u64 lag_ns;			/* a wake-up that is late by so much costs no rate */
	__u32 room[WEIR_SPA_QUEUES];	/* packets that a queue holds */
	__u32 places;			/* packets that all of them hold */
	__u32 flows;			/* flow queues, a multiple of WEIR_SPA_WAYS; 0: one low queue */
	__u32 quantum_bytes;		/* that a flow may send in its turn */
	__u32 fresh_bytes;		/* that a new flow may send before it is old */
	__u32 crowd_packets;		/* with more in all flow queues together they are crowded */
	__u32 crowd_bytes;		/* that a flow may send before it is old, if it is new while they are */
	__u32 demoted_log;		/* the demoted queue sends 1 byte for 2^demoted_log bytes of data */
};

struct codel_vars {
	__u64 first_above_ns;	/* when the delay will have been over the target for an interval; 0: it is not over it */
	__u64 drop_next_ns;
	__u32 count;		/* drops since dropping began */
	__u32 last_count;	/* count when dropping began last */
	__u16 inv_sqrt;		/* 1/sqrt(count) in units of 2^-16 */
	__u16 dropping;		/* 1: it drops */
	__u32 reserved;
};

/* Packets in the order in which they came: places, linked. */
struct spa_list {
	__u32 head;
	__u32 tail;
	__u32 packets;
	__u32 bytes;
};

struct spa_queue {
	struct spa_list list;
	struct codel_vars vars;
};

/* Flow queues of a set, of which a flow has any that no other uses. A power of two. */
#define WEIR_SPA_WAYS 8

struct spa_flow {
	struct spa_queue queue;
	__s32 deficit;		/* bytes that it may still send in its turn */
	__u32 next;		/* flow, in the order of turns */
	__u16 listed;		/* 1: it has a turn */
	__u16 shared;		/* 1: another flow has come to share it; of no meaning while it is empty */
	__u32 tag;		/* hash of the flow whose queue it is, or was last */
};

struct spa_turns {
	__u32 head;
	__u32 tail;
};

/* Since the qdisc was made. */
struct spa_counts {
	__u64 sent_packets;
	__u64 sent_bytes;
	__u64 dropped_packets;
};

/* A qdisc: the value of its map. */
struct spa {
	struct spa_params params;
	char kind[WEIR_SPA_KIND];	/* as `tc qdisc` shows it */
	char discipline[WEIR_SPA_KIND];
	__u64 owner;			/* the kernel's qdisc; 0: it is on no interface */
	__u64 free_ns;			/* when the link has sent all that left */
	__u64 all_due[WEIR_SHAPE_KINDS];
	struct spa_counts counts[WEIR_SPA_QUEUES];
	struct spa_queue queue[WEIR_SPA_QUEUES];	/* with flow queues the low one is empty */
	struct spa_turns fresh;		/* flows that have just got their first packet */
	struct spa_turns old;
	__u32 packets;			/* that wait in all queues */
	__u32 bytes;
	__u32 unused;			/* first of the places that were given back */
	__u32 used;			/* places that were ever in use */
	__s32 credit;			/* bytes that the demoted queue may send before data */
	__u32 ops_id;			/* map with the registration */
};
_Static_assert(sizeof(struct spa_params) == 168 && sizeof(struct spa) == 488, "no holes");
_Static_assert(sizeof(struct spa_flow) == 64, "no holes");

#endif
