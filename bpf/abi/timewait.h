/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * timewait.h - what timewait.bpf.c shares with user space.
 */
#ifndef WEIR_ABI_TIMEWAIT_H
#define WEIR_ABI_TIMEWAIT_H

#include <linux/types.h>

/* Destinations that one network namespace can have */
#define WEIR_MAX_DESTINATIONS 64
/* Prefixes of all destinations together */
#define WEIR_MAX_DESTINATION_PREFIXES 4096
/* Records of closed connections at a time. Without a free one, the server keeps its TIME-WAIT */
#define WEIR_MAX_TIMEWAIT_RECORDS 262144
/* Kernel memory of one record, in bytes: 48 of the hash table, key and value, and what the allocator rounds up */
#define WEIR_TIMEWAIT_RECORD_BYTES 128

/* What is done about TIME-WAIT on the connections of a destination. */
enum timewait { TIMEWAIT_OFF, TIMEWAIT_CLIENT_RST };

/* One destination. Written by user space. */
struct timewait_rule {
	__u64 length_ns;	/* how long a record stays: 2 MSL */
	__u32 timewait;		/* enum timewait */
	__u32 held;		/* its records, as of the last timewait_sweep */
};

/* Key of the prefixes of destinations, as a longest-prefix-match trie wants it. */
struct timewait_prefix {
	__u32 bits;		/* that count: 32, and those of the prefix; IPv4 as ::ffff:a.b.c.d */
	__u16 port;		/* big endian; 0: every port */
	__u16 pad;
	__u32 addr[4];		/* big endian */
};

/* A connection, as this end sees it. */
struct timewait_tuple {
	__u32 local[4];		/* big endian; IPv4 as ::ffff:a.b.c.d */
	__u32 remote[4];
	__u16 local_port;	/* big endian */
	__u16 remote_port;
	__u32 pad;
};
_Static_assert(sizeof(struct timewait_tuple) == 40, "no holes");

/* What stands for TIME-WAIT here. */
struct timewait_record {
	__u64 until_ns;		/* CLOCK_MONOTONIC: when it ends */
	__u32 sent;		/* no segment that this end sent had a later timestamp */
	__u32 received;		/* the last timestamp of the other end */
	__u16 rule;		/* index of its destination */
	__u8 stamped;		/* 1: the connection had timestamps */
	__u8 pad[5];
};
_Static_assert(sizeof(struct timewait_record) == 24, "no holes");

/* Per CPU and destination; monotonic since the destination is known. */
struct timewait_counters {
	__u64 swapped;		/* connections whose TIME-WAIT the server dropped for a record here */
	__u64 reused;		/* records that gave way to a new connection, by its timestamps */
	__u64 refused;		/* new connections that were reset because of a record */
	__u64 fallback;		/* connections whose TIME-WAIT stayed at the server for want of a record */
};

#endif
