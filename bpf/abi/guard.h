/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * guard.h - what guard.bpf.c shares with user space.
 *
 * Rust gets all of it at build time: structures from the BTF of the compiled
 * programs (crates/kernel/build/), constants, enumerations and the verdicts
 * from the text of these headers (crates/core/build/). An edit here needs no
 * second one there.
 *
 * GUARD_VERDICTS declares each verdict once, with the line that explains it:
 * enum verdict, struct guard_counters, the Rust enumeration, counter names,
 * metric HELP texts, status columns and `weir explain` come from it. The order
 * is the index into struct guard_counters: append, never reorder.
 */
#ifndef WEIR_ABI_GUARD_H
#define WEIR_ABI_GUARD_H

#include "class.h"
#include "quic.h"

/* Listeners that one network namespace can have under guard. */
#define WEIR_MAX_LISTENERS 256
/* Of the sizes that user space chooses before it loads the programs (struct GuardLimits), the most. */
#define WEIR_MOST_NAMESPACES 4096
#define WEIR_MOST_LISTENERS 8192
#define WEIR_MOST_SOCKETS 16384
/* Slots of the exact-address table: sixteen per listener, so that a seed with short probes exists. */
#define WEIR_EXACT_SLOT_BITS 12
#define WEIR_EXACT_SLOTS (1 << WEIR_EXACT_SLOT_BITS)
/* Longest probe in the exact-address table; the rule compiler searches a seed that keeps it. */
#define WEIR_EXACT_PROBES 4
/* Interfaces that one listener can name. */
#define WEIR_MAX_INTERFACES 8
/* CPUs whose claims are kept apart, each 64 KiB of memory; CPUs above share by modulo (two CPUs then share a slot). */
#define WEIR_MAX_CPUS 128
/* Listening sockets whose admission state is remembered at a time, where user space says nothing else. */
#define WEIR_MAX_SOCKETS 1024
/* Listening sockets that look_again can read; where there are more, each reading walks the kernel's tables. */
#define WEIR_MAX_KNOWN 1024
/*
 * X(name, kind, text). kind: pass (goes on to the server), refuse (turned
 * away), answer (weir itself continued the handshake), note (says how, beside
 * another verdict). In observe mode a refuse or answer verdict counts what
 * enforcement would have done, and the packet passes.
 */
#define GUARD_VERDICTS(X) \
	X(syn_admitted, pass, "weir let the SYN in: the listen queue has room. A retransmission counts again") \
	X(syn_repeated, pass, "weir passed a SYN of a connection that the kernel has already: a retransmission, or an old duplicate") \
	X(syn_unheard, pass, "weir passed the SYN: no socket listens on the guarded address at the moment. The kernel answers") \
	X(syn_left, pass, "weir left the SYN to the kernel, which drops it: the listen queue is full (establish = default or abort, reject_syn = drop)") \
	X(syn_dropped_full, refuse, "weir dropped the SYN: every place in the listen queue is taken or reserved") \
	X(syn_reset_full, refuse, "weir answered the SYN with a RST: every place in the listen queue is taken or reserved") \
	X(syn_dropped_wait, refuse, "weir dropped the SYN: connections wait in the listen queue for longer than target_wait") \
	X(syn_reset_wait, refuse, "weir answered the SYN with a RST: connections wait in the listen queue for longer than target_wait") \
	X(cookie_sent, answer, "weir answered the SYN with a SYN cookie: the listen queue has no room now. weir decides again at the final ACK (establish = no-syn-drop)") \
	X(cookie_sent_flood, answer, "weir answered the SYN with a SYN cookie: half-open connections hold most places, as in a SYN flood (establish = reserv)") \
	X(cookie_accepted, answer, "weir handed the connection to the server: its final ACK brought a valid cookie back") \
	X(cookie_invalid, pass, "weir passed an ACK that has no connection and no valid cookie. The kernel resets it") \
	X(cookie_failed, pass, "weir passed a final ACK with a valid cookie, because the kernel did not take the connection. The kernel resets it") \
	X(ack_reset_full, refuse, "weir reset the connection at the final ACK of its handshake: the listen queue was full") \
	X(ack_reset_wait, refuse, "weir reset the connection at the final ACK of its handshake: the wait in the listen queue was over target_wait") \
	X(fin_reset, refuse, "weir reset the connection at the client's FIN: the listener does not serve half-closed connections (half_close = reset)") \
	X(fallback_mptcp, note, "of the refused SYNs, those on an MPTCP listener, where no-syn-drop cannot send a cookie") \
	X(refused_at_xdp, note, "of the refused and answered SYNs and final ACKs, those that the XDP front handled, before the kernel's receive queues") \
	X(syn_left_flood, pass, "weir left the SYN to the kernel, which sends its own SYN cookie: half-open connections hold most places, and weir cannot send a cookie here (a firewall, MPTCP listener, kernel before 6.9)") \
	X(syn_unjudged, pass, "weir passed the SYN without a verdict: more listening sockets are busy than weir can remember, or a program of the server's own chooses the socket in its SO_REUSEPORT group") \
	X(syn_dropped_rate, refuse, "weir dropped the SYN: its class is over its rate (over_rate = drop)") \
	X(syn_reset_rate, refuse, "weir answered the SYN with a RST: its class is over its rate (over_rate = rst)") \
	X(queue_reset_full, refuse, "weir reset a connection that waited for accept(): the queue is full, and a connection of higher priority takes its place (queue = priority)") \
	X(queue_reset_limit, refuse, "weir reset a connection that waited for accept(): more of its class waited than queue_limit allows (queue = priority)") \
	X(syn_time_wait, pass, "weir let the SYN in where others get a SYN cookie: its port is in TIME-WAIT at the server, so the client is real") \
	X(syn_dropped_held, refuse, "weir dropped the SYN: the controller holds its class at controlled_rate (reject_syn = drop)") \
	X(syn_reset_held, refuse, "weir answered the SYN with a RST: the controller holds its class at controlled_rate (reject_syn = rst)") \
	X(syn_not_plain, pass, "weir passed a SYN with IP options or extension headers, or in fragments: its class's rate let it in, and weir did not compare it with the queue") \
	X(syn_in_fragments, pass, "weir passed the first fragment of a TCP segment without a verdict: its flags are in another fragment, so it may be a SYN") \
	X(syn_steady, pass, "weir let the SYN in where it refuses others: its source connects seldom and steadily, as health checks do (health_checks = true)") \
	X(syn_join, pass, "weir passed the SYN where it refuses others: it adds a path to an MPTCP connection that is established (MP_JOIN), and takes no place among those that wait for accept()") \
	X(syn_retried, note, "of the SYNs that weir judged in observe mode, those that repeat one that it would have refused: the kernel dropped it. Under enforcement its client would have had its answer") \
	X(syn_dropped_residence, refuse, "weir dropped the SYN: the server has more requests than it answers within residence (reject_syn = drop)") \
	X(syn_reset_residence, refuse, "weir answered the SYN with a RST: the server has more requests than it answers within residence (reject_syn = rst)")

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
/*
 * Bits of listener_policy.may.
 */
/* The XDP front refuses its SYNs. */
#define WEIR_MAY_REFUSE_AT_XDP 1
/* There is a text in its RSTs. */
#define WEIR_MAY_EXPLAIN 2
/* SYNs of steady sources are let in where others are refused (lib/steady.h). */
#define WEIR_MAY_SPARE_STEADY 4
/* BPF SYN cookies work in its network namespace (kernel 6.9, tcp_syncookies >= 1). */
#define WEIR_MAY_SEND_COOKIES 8
/* Of its network namespace: tcp_window_scaling, tcp_sack, tcp_timestamps. */
#define WEIR_MAY_SCALE_WINDOWS 16
#define WEIR_MAY_SACK 32
#define WEIR_MAY_STAMP 64
/* It refuses SYNs while its server has more requests than it answers in time (struct residence_gate). */
#define WEIR_MAY_REFUSE_FOR_RESIDENCE 128

/* What one listener is to do. Written by user space, read-only in BPF. */
struct listener_policy {
	__u64 target_wait_ns;	/* admit = wait: 1 ms .. 10 s */
	__u64 interval_ns;	/* how long the wait must stand over the target before it refuses */
	__u16 overbook_1024;	/* overbook in 1/1024 of the backlog, 0 .. 16 * 1024 */
	__u16 least_length;	/* admit = wait refuses from so many waiting connections on; 0: as few as keep the server busy */
	__u16 counters;		/* index of its counters: below WEIR_MAX_LISTENERS in weir's own namespace, from there on in others */
	__u16 owner;		/* by which rules of classes know it; 0: no rule names it */
	__u8 establish;		/* enum establish */
	__u8 reject_syn;	/* enum reject */
	__u8 admit;		/* enum admit */
	__u8 half_close;	/* enum half_close */
	__u8 observe;		/* 1: count only */
	__u8 may;		/* WEIR_MAY_ bits */
	__u8 draining;		/* 1: being taken off: admit all, cookies already sent stay valid */
	__u8 classes;		/* 0: no class is of it; else 1 + the copy of the class tables in force */
	__u32 ifindex[WEIR_MAX_INTERFACES]; /* its interfaces, then 0; all 0: every interface */
};
_Static_assert(sizeof(struct listener_policy) == 64, "one cache line");
_Static_assert(WEIR_MAX_LISTENERS + WEIR_MOST_LISTENERS < 65536, "counters and owner have two bytes");

/*
 * Which listener guards a port: 0 none, else 1 + index into listeners.
 * One load decides for every packet of every unguarded port.
 */
struct port_entry {
	__u16 any4;		/* listener on 0.0.0.0 (or on all addresses) */
	__u16 any6;		/* listener on :: (or on all addresses) */
	__u16 exact;		/* 1: the exact-address table has entries for this port */
	__u16 elsewhere;	/* 1: a listener of another network namespace is on this port */
};
_Static_assert(sizeof(struct port_entry) == 8, "one load");

/* A listener on one address; IPv4 as ::ffff:a.b.c.d. listener 0: empty slot. */
struct exact_entry {
	__u32 addr[4];		/* big endian */
	__u16 port;		/* big endian */
	__u16 listener;		/* 1 + index into listeners; above WEIR_MAX_LISTENERS: none, and the packet passes */
};
_Static_assert(sizeof(struct exact_entry) == 20, "packed by its fields");

/* The whole policy of weir's own namespace. Two of them exist; `active` says which one is in force. */
struct policy {
	struct port_entry ports[65536];	/* index: destination port as it stands in the packet (big endian) */
	struct listener_policy listeners[WEIR_MAX_LISTENERS];
	struct exact_entry exact[WEIR_EXACT_SLOTS];
	__u32 exact_seed;
	__u32 generation;	/* number of this policy, counted by user space */
	__u32 pad[14];
};
_Static_assert(sizeof(struct policy) % 64 == 0, "a listener_policy of either copy is one cache line");

/* Where a listener of another namespace is; on every address it is on 0.0.0.0 (IPv4 as ::ffff:a.b.c.d) or ::. */
struct listen_place {
	__u32 addr[4];		/* big endian */
	__u16 port;		/* big endian */
	__u16 pad;
};
_Static_assert(sizeof(struct listen_place) == 20, "a hash key has no holes");

/* What holds there. */
struct place_policy {
	struct listener_policy listener;
	__u32 guarded;		/* 0: there is no listener here */
	__u32 exact;		/* of a place on every address. 1: there are places on one address and this port */
};
_Static_assert(sizeof(struct place_policy) == 72, "no holes");

/* What a listener whose server queues inside lets in until user space looks again (lib/gate.h). Written by it. */
struct residence_gate {
	__u64 until_ns;		/* in force until then, CLOCK_MONOTONIC; 0: it is not */
	__u64 since_ns;		/* when user space looked */
	__s64 room;		/* so many could come then; below 0, so many were to be answered first */
	__u64 rate;		/* and one more for each answer: so many in 2^40 ns, below 2^31 */
	__u64 burst;		/* at most so many at once */
	__s64 taken;		/* let in since; atomic */
};
_Static_assert(sizeof(struct residence_gate) == 48, "no holes");

/* What a class has used and met, by slot; user space zeroes it before the slot is given to a class. */
struct class_state {
	__u64 next;		/* when the next connection is due, 1/16 ns (bucket.h) */
	__u64 event_ns;		/* last sampled event, the guard's clock */
	struct guard_counters counters;	/* atomic */
	struct quic_counters quic;	/* of its attempts over QUIC; atomic */
};
_Static_assert(sizeof(struct class_state) == 16 + 8 * (VERDICT_COUNT + QUIC_VERDICT_COUNT), "no holes");

/*
 * What a listening socket has that keeps packets of some from it, and that no other socket on its address has: the
 * numbers of bits. PROGRAM: SO_ATTACH_FILTER or SO_ATTACH_BPF. MD5, AO: keys of TCP-MD5 and TCP-AO. CGROUP: other
 * programs see its packets than those of sockets of weir's.
 */
enum own_filter { OWN_FILTER_PROGRAM, OWN_FILTER_MD5, OWN_FILTER_AO, OWN_FILTER_CGROUP };

/* One listening socket, as list_listeners reports it and look_again renews it. */
struct listen_record {
	__u32 addr[4];		/* big endian; IPv4 as ::ffff:a.b.c.d */
	__u16 port;		/* host order */
	__u8 family;		/* AF_INET or AF_INET6 */
	__u8 mptcp;		/* 1: an MPTCP listener */
	__u8 v6only;		/* 1: IPv6 socket that takes no IPv4 */
	__u8 end;		/* 1: no record: the listeners are all read, or this one listens no more */
	__u8 parked;		/* 1: a parking listener of this weir */
	__u8 steered;		/* 1: its SO_REUSEPORT group has a BPF program that is not weir's */
	__u32 queue_length;	/* connections waiting for accept() */
	__u32 queue_limit;	/* the backlog in force (min of listen() and somaxconn) */
	__u32 half_open;	/* handshakes under way */
	__u32 kept_length;	/* so many may wait where one service takes longer than the target; 0: not known */
	__u32 own_filters;	/* bits by enum own_filter */
	__u32 pad;
	__u64 wait_ns;		/* the guard's estimate of the wait in the queue; 0: not known */
	__u64 service_ns;	/* and of the time between accepts of the busy server; 0: not known */
	__u64 socket;		/* its kernel address */
	__u64 inode;		/* by which /proc/PID/fd names it */
};
_Static_assert(sizeof(struct listen_record) == 80, "no holes");

/* Argument of look_again. */
struct look_again {
	__u64 netns;		/* in: cookie of the network namespace that these sockets are in */
	__u32 known;		/* in: entries of known_sockets to renew */
	__u32 gone;		/* out: how many of them listen no more */
	__u32 taken;		/* out: entries of queues[] that sockets have taken, ever; wraps */
	__u32 parked;		/* out: connections sent to parking listeners, ever; wraps, and falls with a group */
};

/* A refusal, sampled: for `weir why`, `weir events` and the log. */
struct guard_event {
	__u32 class;		/* slot of its class; WEIR_NO_CLASS: the listener has none */
	__u32 at_ms;		/* bpf_ktime_get_ns() in ms, the low 32 bits */
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

#endif
