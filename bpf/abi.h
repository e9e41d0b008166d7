/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * abi.h - the only structures that the kernel half (bpf/) and the user-space
 * half (crates/) share.
 *
 * Each verdict is declared once, in GUARD_VERDICTS, with the one line that
 * explains it. crates/core/build.rs reads that list and makes from it the Rust
 * enum, the counter names, the metric HELP texts, the status columns and
 * `weir explain`; the BPF programs make from it enum verdict. The order is
 * the index into struct guard_counters; append, never reorder.
 */
#ifndef WEIR_ABI_H
#define WEIR_ABI_H

/* Listeners that one network namespace can have under guard. */
#define WEIR_MAX_LISTENERS 256
/* Slots of the exact-address table: sixteen per listener, so that a seed with short probes exists. */
#define WEIR_EXACT_SLOT_BITS 12
#define WEIR_EXACT_SLOTS (1 << WEIR_EXACT_SLOT_BITS)
/* Longest probe in the exact-address table; the rule compiler searches a seed that keeps it. */
#define WEIR_EXACT_PROBES 4
/* Interfaces that one listener can name. */
#define WEIR_MAX_INTERFACES 8
/* CPUs whose claims are kept apart; CPUs above share by modulo (two CPUs then share a slot). */
#define WEIR_MAX_CPUS 128
/* Listening sockets whose admission state is remembered at a time. */
#define WEIR_MAX_SOCKETS 512
/* Classes in one network namespace, without `other`, which has slot 0. */
#define WEIR_MAX_CLASSES 16384
/* Distinct masks of all rules: each is a lookup for a SYN that fits none before it. */
#define WEIR_MAX_MASKS 64
/* Rules of all classes; a class with lists has one for each pair of prefixes. */
#define WEIR_MAX_RULES 65536

/*
 * X(name, kind, text). kind: pass (goes on to the server), refuse (turned
 * away), answer (weir itself continued the handshake), note (says how, beside
 * another verdict). In observe mode a refuse or answer verdict counts what
 * enforcement would have done, and the packet passes.
 */
#define GUARD_VERDICTS(X) \
	X(syn_admitted, pass, "SYN passed to the server: there is room in its listen queue; a retransmission counts again") \
	X(syn_repeated, pass, "SYN of a handshake that is already under way (a retransmission), without room for another: passed") \
	X(syn_unheard, pass, "SYN for a guarded address where no socket listens at the moment: passed, the kernel answers") \
	X(syn_left, pass, "SYN that found the listen queue full and was left to the kernel, which drops it (establish = default or abort, reject_syn = drop)") \
	X(syn_dropped_full, refuse, "SYN dropped: every place in the listen queue is taken or reserved") \
	X(syn_reset_full, refuse, "SYN answered with RST: every place in the listen queue is taken or reserved") \
	X(syn_dropped_wait, refuse, "SYN dropped: connections have been waiting in the listen queue for longer than target_wait") \
	X(syn_reset_wait, refuse, "SYN answered with RST: connections have been waiting in the listen queue for longer than target_wait") \
	X(cookie_sent, answer, "SYN answered with a SYN cookie: no room now, decided again at the final ACK (establish = no-syn-drop)") \
	X(cookie_sent_flood, answer, "SYN answered with a SYN cookie: half-open connections hold most places, as in a SYN flood (establish = reserv)") \
	X(cookie_accepted, answer, "final ACK with a valid cookie: the connection was handed to the server") \
	X(cookie_invalid, pass, "ACK without a connection and without a valid cookie: passed, the kernel resets it") \
	X(cookie_failed, pass, "final ACK with a valid cookie that the kernel did not take: passed, the kernel resets it") \
	X(ack_reset_full, refuse, "connection reset at the final ACK of its handshake: the listen queue was full") \
	X(ack_reset_wait, refuse, "connection reset at the final ACK of its handshake: the listen queue's wait was over target_wait") \
	X(fin_reset, refuse, "connection reset at the client's FIN: half-closed connections are not served (half_close = reset)") \
	X(fallback_mptcp, note, "of the refused SYNs, those that no-syn-drop would have answered with a cookie, but cannot on an MPTCP listener") \
	X(refused_at_xdp, note, "of the SYNs and final ACKs refused or answered, those that the XDP front dealt with, before the kernel's receive queues") \
	X(syn_left_flood, pass, "SYN left to the kernel, which answers with its own SYN cookie: half-open connections hold most places and weir can send none here (MPTCP listener, kernel before 6.9)") \
	X(syn_unjudged, pass, "SYN passed without a verdict: more listening sockets are busy than weir remembers queues of") \
	X(syn_dropped_rate, refuse, "SYN dropped: its class is over its rate (over_rate = drop)") \
	X(syn_reset_rate, refuse, "SYN answered with RST: its class is over its rate (over_rate = rst)") \
	X(queue_reset_full, refuse, "connection reset while it waited for accept(): the queue is full, and one of higher priority has its place (queue = priority)") \
	X(queue_reset_limit, refuse, "connection reset while it waited for accept(): more of its class waited than its queue_limit (queue = priority)")

enum verdict {
#define X(name, kind, text) VERDICT_##name,
	GUARD_VERDICTS(X)
#undef X
	VERDICT_COUNT,
};

/* Per CPU and listener; monotonic since the listener was first guarded. */
struct guard_counters {
#define X(name, kind, text) __u64 name;
	GUARD_VERDICTS(X)
#undef X
};
_Static_assert(sizeof(struct guard_counters) == 8 * VERDICT_COUNT, "one u64 per verdict");

enum establish { ESTABLISH_DEFAULT, ESTABLISH_ABORT, ESTABLISH_RESERV, ESTABLISH_NO_SYN_DROP };
enum reject { REJECT_DROP, REJECT_RST };
enum admit { ADMIT_QUEUE, ADMIT_WAIT };
enum half_close { HALF_CLOSE_KEEP, HALF_CLOSE_RESET };
enum over_rate { OVER_RATE_DROP, OVER_RATE_RST };

/* What one listener is to do. Written by user space, read-only in BPF. */
struct listener_policy {
	__u64 target_wait_ns;	/* admit = wait: 1 ms .. 10 s */
	__u64 interval_ns;	/* how long the wait must stand over the target before it refuses */
	__u32 overbook_1024;	/* overbook in 1/1024 of the backlog, 0 .. 16 * 1024 */
	__u16 counters;		/* index of its counters, 0 .. WEIR_MAX_LISTENERS - 1 */
	__u8 establish;		/* enum establish */
	__u8 reject_syn;	/* enum reject */
	__u8 admit;		/* enum admit */
	__u8 half_close;	/* enum half_close */
	__u8 observe;		/* 1: count only */
	__u8 reason;		/* 1: put a text into the RST */
	__u8 draining;		/* 1: being taken off: admit all, cookies already sent stay valid */
	__u8 interfaces;	/* used entries of ifindex; 0: every interface */
	__u8 front_xdp;		/* 1: the XDP front refuses its SYNs */
	__u8 classes;		/* 0: no class is of it; else 1 + the copy of the class tables in force */
	__u32 ifindex[WEIR_MAX_INTERFACES];
};
_Static_assert(sizeof(struct listener_policy) == 64, "one cache line");

/*
 * Which listener guards a port: 0 none, else 1 + index into listeners.
 * One load decides for every packet of every unguarded port.
 */
struct port_entry {
	__u16 any4;		/* listener on 0.0.0.0 (or on all addresses) */
	__u16 any6;		/* listener on :: (or on all addresses) */
	__u16 exact;		/* 1: the exact-address table has entries for this port */
	__u16 pad;
};
_Static_assert(sizeof(struct port_entry) == 8, "one load");

/* A listener on one address; IPv4 as ::ffff:a.b.c.d. listener 0: empty slot. */
struct exact_entry {
	__u32 addr[4];		/* big endian */
	__u16 port;		/* big endian */
	__u16 listener;		/* 1 + index into listeners */
};
_Static_assert(sizeof(struct exact_entry) == 20, "packed by its fields");

/* The whole policy of a namespace. Two of them exist; `active` says which one is in force. */
struct policy {
	struct port_entry ports[65536];	/* index: destination port as it stands in the packet (big endian) */
	struct listener_policy listeners[WEIR_MAX_LISTENERS];
	struct exact_entry exact[WEIR_EXACT_SLOTS];
	__u32 exact_seed;
	__u8 cookies;		/* 1: BPF SYN cookies work here (kernel 6.9, tcp_syncookies >= 1) */
	__u8 tcp_wscale;	/* the namespace's tcp_window_scaling, tcp_sack, tcp_timestamps */
	__u8 tcp_sack;
	__u8 tcp_tstamp;
	__u32 generation;	/* number of this policy, counted by user space */
};

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
	__u16 listener;		/* 1 + counters index of the listener */
	__u16 mask;		/* number of the mask, WEIR_CLASS_COPY beside it */
};
_Static_assert(sizeof(struct class_tuple) == 40, "a hash key has no holes");
/* Bit of class_tuple.mask: which of the two copies of the tables. */
#define WEIR_CLASS_COPY 0x8000

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

/* What a class has used and met, by slot; user space zeroes it before the slot is given to a class. */
struct class_state {
	__u64 next;		/* when the next connection is due, 1/16 ns (bucket.h) */
	__u64 event_ns;		/* last sampled event, the guard's clock */
	struct guard_counters counters;	/* atomic */
};
_Static_assert(sizeof(struct class_state) == 16 + 8 * VERDICT_COUNT, "no holes");

/* One listening socket, as the iterator program reports it. */
struct listen_record {
	__u32 addr[4];		/* big endian; IPv4 as ::ffff:a.b.c.d */
	__u16 port;		/* host order */
	__u8 family;		/* AF_INET or AF_INET6 */
	__u8 mptcp;		/* 1: an MPTCP listener */
	__u8 v6only;		/* 1: IPv6 socket that takes no IPv4 */
	__u8 end;		/* 1: no record, the listeners are all read */
	__u8 parked;		/* 1: a parking listener of this weir */
	__u8 steered;		/* 1: its SO_REUSEPORT group has a BPF program that is not weir's */
	__u32 queue_length;	/* connections waiting for accept() */
	__u32 queue_limit;	/* the backlog in force (min of listen() and somaxconn) */
	__u32 half_open;	/* handshakes under way */
	__u32 pad2;
	__u64 wait_ns;		/* the guard's estimate of the wait in the queue; 0: not known */
	__u64 socket;		/* its kernel address */
	__u64 inode;		/* by which /proc/PID/fd names it */
};
_Static_assert(sizeof(struct listen_record) == 64, "no holes");

/* A refusal, sampled for `weir protect --verbose` and the log. */
struct guard_event {
	__u32 class;		/* slot of its class; WEIR_NO_CLASS: the listener has none */
	__u32 pad;
	__u32 saddr[4];		/* big endian; IPv4 as ::ffff:a.b.c.d */
	__u32 daddr[4];
	__u16 sport;		/* host order */
	__u16 dport;
	__u16 listener;		/* counters index */
	__u8 verdict;		/* enum verdict */
	__u8 observe;
	__u32 queue_length;
	__u32 half_open;
	__u32 queue_limit;
	__u32 wait_us;
};
_Static_assert(sizeof(struct guard_event) == 64, "one cache line");

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

/*
 * Parking (queue = "priority", queue.bpf.c). A group: the sockets of one address on which a server
 * listens, and the parking listeners beside them. All indices are into these tables.
 */
#define WEIR_MAX_GROUPS 8
/* Sockets of a server in one group: one, or one a worker (SO_REUSEPORT). */
#define WEIR_MAX_SERVERS 64
/* Parking listeners of a group; who finds none free goes to the server. */
#define WEIR_MAX_SLOTS 4096

/* Priorities: 1 is the highest, this one that of connections without a class. */
#define WEIR_PRIORITIES 64

/* In the value of group_of, beside the number of the group: the socket is a parking listener. */
#define WEIR_PARKED 0x10000

/* A socket on which the server listens. */
struct parking_server {
	__u64 socket;		/* its kernel address; 0: none */
	__u32 length;		/* connections that wait for accept() in it, as of queue_look */
	__u32 limit;		/* its backlog */
	__u32 half_open;
	__u16 listening;	/* 1: it does */
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
	__u32 servers;		/* used entries of server[] */
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
