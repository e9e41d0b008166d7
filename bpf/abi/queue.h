/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * queue.h - the tables of queue = "priority": what queue.bpf.c shares with user
 * space, and with the guard, which counts what is parked.
 */
#ifndef WEIR_ABI_QUEUE_H
#define WEIR_ABI_QUEUE_H

#include "class.h"

/*
 * Parking (queue = "priority", queue.bpf.c). A group: the sockets of one address on which a server
 * listens, and the parking listeners beside them. All indices are into these tables.
 */
#define WEIR_MAX_GROUPS 8
/* Sockets of a server in one group: one, or one a worker (SO_REUSEPORT). */
#define WEIR_MAX_SERVERS 64
/* Parking listeners of a group; who finds none free goes to the server. */
#define WEIR_MAX_SLOTS 4096

/* In the value of group_of, beside the number of the group: the socket is a parking listener. */
#define WEIR_PARKED 0x10000

/* A socket on which the server listens. */
struct parking_server {
	__u64 socket;		/* its kernel address; 0: none */
	__u32 length;		/* connections that wait for accept() in it, as of queue_look */
	__u32 limit;		/* its backlog */
	__u32 half_open;
	__u8 listening;		/* 1: it does */
	__u8 own_filters;	/* bits by enum own_filter, as of queue_look with `sweep` */
	__u16 lent;		/* 1: SO_REUSEPORT is weir's, and is to be taken off again */
};

/* A parking listener. Taken by queue_steer, given back by user space. */
struct parking_slot {
	__u64 socket;		/* its kernel address; 0: none */
	__u64 taken_ns;		/* CLOCK_MONOTONIC: when a connection was sent there last; 0: it is free */
	__u32 class;		/* slot of that connection's class */
	__u16 length;		/* connections that wait in it, as of queue_look with `sweep` */
	__u16 half_open;	/* handshakes under way in it, likewise */
	__u8 priority;		/* of the class, 1 .. 64 */
	__u8 pad[7];
};

/* What the slots of a group hold, by priority: entry p counts the priorities 1 to p. Written by the guard. */
struct parking_sums {
	__u32 sent;		/* `sent` of the group when it was begun */
	__u32 length[WEIR_PRIORITIES + 1];
	__u32 half_open[WEIR_PRIORITIES + 1];
	__u32 young[WEIR_PRIORITIES + 1];
};

/* Who goes straight to the server, as of the last look of user space at its queue (lib/steer.h). */
struct parking_rule {
	__u32 depth;		/* connections that the server's queue is to hold; more are parked */
	__u32 before;		/* the highest priority that one who waits counts as by now; 65: nobody waits */
	__u32 top;		/* before those of this priority, or of a higher one, none is to come; 0: of no one */
};

struct parking_group {
	__u64 summed_ns;	/* CLOCK_MONOTONIC: when sums[] was written last */
	__u32 sums_side;	/* which of sums[] is whole */
	__u32 summing;		/* 1: a CPU writes the other one */
	struct parking_sums sums[2];
	__u32 sent;		/* connections sent to slots, ever; wraps */
	__u32 servers;		/* entries of server[] that may be in use */
	__u32 slots;		/* entries of slot[] that may be in use */
	__u16 port;		/* host order */
	__u16 listener;		/* 1 + counters index of the guarded listener */
	struct parking_rule rule;
	__u32 straight;		/* connections sent to the server, ever; wraps */
	__u32 overtook;		/* of these, while others were parked; wraps */
	__u32 waits[WEIR_PRIORITIES]; /* taken slots by the priority of their connection, that of priority 1 first */
	__u64 alive_until_ns;	/* CLOCK_MONOTONIC, renewed by user space: no parking from then on */
	__u64 park_until_ns;	/* until when connections are parked, so that they overtake nobody */
	__u64 heir;		/* cookie of the socket that SO_REUSEPORT was lent to when the server was gone */
	__u32 addr[4];		/* the server's address, big endian; IPv4 as ::ffff:a.b.c.d */
	__u32 free_head;	/* free[]: next to be taken, counted without end */
	__u32 free_tail;	/* next to be given back */
	__u16 free[WEIR_MAX_SLOTS];	/* ring of free slots */
	struct parking_server server[WEIR_MAX_SERVERS];
	struct parking_slot slot[WEIR_MAX_SLOTS];
};
_Static_assert(sizeof(struct parking_slot) == 32 && sizeof(struct parking_server) == 24, "no holes");

/* A socket of the namespace began or ceased to listen. */
struct listen_event {
	__u64 socket;		/* its kernel address */
	__u16 port;		/* host order */
	__u8 listening;		/* 1: began; 0: ceased, and was a server of a group */
	__u8 pad[5];
};
_Static_assert(sizeof(struct listen_event) == 16, "no holes");

/* Argument of queue_look. */
struct look {
	__u32 sweep;		/* 1: also count what each slot holds */
	__u32 pad;
};

#endif
