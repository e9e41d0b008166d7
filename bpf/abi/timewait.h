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
/* Entries in the table of rules: those of destinations, and from the second constant on those of listeners */
#define WEIR_MAX_TIMEWAIT_RULES 512
#define WEIR_TIMEWAIT_LISTENERS 256
/* The rule of sockets whose application asks to negotiate where no rule does: behind those of destinations */
#define WEIR_TIMEWAIT_ASKED 255
/* Records of closed connections at a time. Without a free one, the server keeps its TIME-WAIT */
#define WEIR_MAX_TIMEWAIT_RECORDS 262144
/* FINs without a socket that get a RST after them, between two looks of user space: anybody can send such */
#define WEIR_MAX_TIMEWAIT_HANDED_ON 256
/* Kernel memory of one record, in bytes: 48 of the hash table, key and value, and what the allocator rounds up */
#define WEIR_TIMEWAIT_RECORD_BYTES 128

/* Closes by negotiation that are under way at the end that is to forget, at a time. Without a free entry it remembers */
#define WEIR_MAX_TIMEWAIT_ENDINGS 65536
/* Of them, about, that wait for a later segment, which may never come: the rest is for those that end at once */
#define WEIR_MAX_TIMEWAIT_AWAITED 32768

/* Marks of FINs that ended connections here, of 8 bytes. A later one takes the place of an older one */
#define WEIR_TIMEWAIT_MARKS 32768

/* Sockets that got a RST in place of a FIN not long ago, at a time. Without a free entry they get the FIN, and a RST after it */
#define WEIR_MAX_TIMEWAIT_RESETS 1024
/* How old a RST in place of a FIN is before its socket is looked for once more, in ns: other CPUs are through by then */
#define WEIR_TIMEWAIT_RESET_NS 10000000

/* What is done about TIME-WAIT on the connections of a destination or a listener. */
enum timewait { TIMEWAIT_OFF, TIMEWAIT_CLIENT_RST, TIMEWAIT_NEGOTIATE };

/* Which end a listener chooses to hold TIME-WAIT. */
enum timewait_holder { HOLDER_CLIENT, HOLDER_SERVER };

/* Which holders a destination agrees to: a bit each. */
enum timewait_accept { ACCEPT_NONE, ACCEPT_CLIENT, ACCEPT_SERVER, ACCEPT_ANY };

/* setsockopt() of an application for one socket: the level, which is "WEIR" */
#define WEIR_SOL 0x57454952
/* The option: an int of enum timewait_wish */
#define WEIR_SO_TIMEWAIT 1

/*
 * What it asks: as the rules say; no negotiation; negotiation whatever the rules say, with any holder (of a listening
 * socket: the client), or with this one.
 */
enum timewait_wish { WISH_RULES, WISH_OFF, WISH_ANY, WISH_CLIENT, WISH_SERVER };

/* One destination or listener. Written by user space. */
struct timewait_rule {
	__u64 length_ns;	/* how long a record stays: 2 MSL */
	__u32 held;		/* its records, as of the last timewait_sweep */
	__u8 timewait;		/* enum timewait */
	__u8 holder;		/* enum timewait_holder; of a listener */
	__u8 accept;		/* enum timewait_accept; of a destination */
	__u8 pad;
};

/* Bit of a port: a destination with it swaps by RST */
#define WEIR_PORT_CLIENT_RST 1
/* Bit of a port: a destination or a listener with it negotiates */
#define WEIR_PORT_NEGOTIATES 2
/* Bit of a local port: a listener with it is to hold TIME-WAIT itself */
#define WEIR_PORT_HOLDS 4
/* Bit of a local port: a listener with it has negotiated, and does no more */
#define WEIR_PORT_NEGOTIATED 8
/* Bit of a local port: a listener with it was to hold TIME-WAIT itself, and is no more */
#define WEIR_PORT_HELD 16
/* All of these */
#define WEIR_PORT_BITS 31
/* Bit of a port: there are prefixes with this very port */
#define WEIR_PORT_HAS_PREFIXES 32
/* From this bit on: 1 and the index of the rule that the port has at every address; 0: the prefixes tell */
#define WEIR_PORT_RULE_SHIFT 6
_Static_assert(WEIR_MAX_TIMEWAIT_RULES < 1 << (16 - WEIR_PORT_RULE_SHIFT), "a rule's index fits beside the bits");

/* Key of the prefixes of destinations and of listeners' addresses, as a longest-prefix-match trie wants it. */
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
	__u64 until_ns;		/* CLOCK_MONOTONIC: when it ends; the highest value: its connection is still closing */
	__u32 sent;		/* no segment that this end sent had a later timestamp */
	__u32 received;		/* the last timestamp of the other end */
	__u32 snd_nxt;		/* the next sequence number of this end, its FIN counted; host order */
	__u32 rcv_nxt;		/* the next one of the other end */
	__u16 rule;		/* index of its rule */
	__u8 stamped;		/* 1: the connection had timestamps */
	__u8 put_off;		/* 1: a SYN was put off for it */
	__u32 closing_s;	/* CLOCK_MONOTONIC, s: since when its connection has been closing */
};
_Static_assert(sizeof(struct timewait_record) == 32, "no holes");

/* A connection that is to be forgotten here, because the other end holds its TIME-WAIT, and is not yet. */
struct timewait_ending {
	__u64 since_ns;		/* CLOCK_MONOTONIC */
	__u16 rule;		/* index of its rule */
	__u8 answered;		/* 1: the other end's FIN was acknowledged here, and is counted; no socket has had it */
	__u8 pad[5];
};
_Static_assert(sizeof(struct timewait_ending) == 16, "no holes");

/* A socket that got a RST in place of a FIN. */
struct timewait_reset {
	struct timewait_tuple tuple;
	__u64 since_ns;		/* CLOCK_MONOTONIC */
	__u32 seq;		/* of the FIN; host order */
	__u16 rule;		/* index of its rule */
	__u16 pad;
};
_Static_assert(sizeof(struct timewait_reset) == 56, "no holes");

/* Per CPU and rule; monotonic since the destination or listener is known. */
struct timewait_counters {
	__u64 swapped;		/* connections whose TIME-WAIT the server dropped for a record here */
	__u64 avoided;		/* connections that would be in TIME-WAIT here, had the other end not agreed to hold it */
	__u64 held_by_peer;	/* connections whose TIME-WAIT the other end holds by agreement */
	__u64 reused;		/* records that gave way to a new connection, by its sequence numbers or timestamps */
	__u64 refused;		/* SYN/ACKs that were turned away because of a record, or of a holder that is not agreed to */
	__u64 fallback;		/* connections without agreement, or for which a table had no room: as without weir */
};

#endif
