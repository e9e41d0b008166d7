/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * quic.h - what quic.bpf.c shares with user space.
 *
 * QUIC_VERDICTS declares each verdict once, as GUARD_VERDICTS does for SYNs:
 * counters, metrics, status and `weir explain` come from it. Append, never
 * reorder.
 */
#ifndef WEIR_ABI_QUIC_H
#define WEIR_ABI_QUIC_H

#include <linux/types.h>

/* QUIC listeners that one network namespace can have. */
#define WEIR_MAX_QUIC 64
/* Addresses and ports of QUIC listeners, over all network namespaces. */
#define WEIR_QUIC_PLACES 32768
/*
 * Connection attempts that are remembered at a time, those that were let in and those that were refused: so many for each CPU
 * that there may be, within these bounds; a power of two. The least are 1 MiB, so that a look finds them in a cache.
 */
#define WEIR_QUIC_FLOWS_PER_CPU 4096
#define WEIR_QUIC_FLOWS_LEAST 16384
#define WEIR_QUIC_FLOWS_MOST 262144
/* Sockets of QUIC servers that are remembered at a time. Each CPU has 128 places of them in its hands (LRU). */
#define WEIR_QUIC_SOCKETS 8192
/* Connection IDs are at most so long, in versions 1 and 2 (RFC 9000, Section 17.2). */
#define WEIR_QUIC_CID_MOST 20
/* Interfaces that one QUIC listener can name. */
#define WEIR_QUIC_INTERFACES 8
/* So long after the last answer, attempts that wait for one are forgotten: every restriction expires. */
#define WEIR_QUIC_FORGOTTEN_MS 2000
/*
 * Fewest and most attempts that may wait where one answer takes longer than the target; and the most at a server that answers
 * several at a time.
 */
#define WEIR_QUIC_LEAST_MIN 2
#define WEIR_QUIC_LEAST_MAX 16
#define WEIR_QUIC_LEAST_PARALLEL 256
/* What quic_ports says of a port, bits: a listener has it on every address of a family, and on one address. */
#define WEIR_QUIC_AT_EVERY 1
#define WEIR_QUIC_AT_ONE 2
/* Rules of classes know QUIC listeners by numbers from this one on (class_tuple.listener); those of listeners are lower. */
#define WEIR_QUIC_OWNER 0x8000

/* X(name, kind, text), as in guard.h. The kinds: pass, refuse, note. */
#define QUIC_VERDICTS(X) \
	X(quic_admitted, pass, "weir let the connection attempt in: the server answers others in time. A repeated Initial counts no second time") \
	X(quic_floor, pass, "weir let the connection attempt in although others are refused: a share of what the server can do is kept for new connections (floor)") \
	X(quic_unheard, pass, "weir passed the Initial: no server has a UDP socket at the guarded address at the moment") \
	X(quic_unjudged, pass, "weir passed the Initial without a verdict: packets of other connections are in the same buffer, or more sockets are busy than weir can remember") \
	X(quic_vn_wait, refuse, "weir answered the Initial with a Version Negotiation packet: the server takes longer than target_wait to answer new connections (refuse = vn)") \
	X(quic_dropped_wait, refuse, "weir dropped the Initial: the server takes longer than target_wait to answer new connections (refuse = drop)") \
	X(quic_vn_room, refuse, "weir answered the Initial with a Version Negotiation packet: the receive buffer of the server's socket is fuller than room (refuse = vn)") \
	X(quic_dropped_room, refuse, "weir dropped the Initial: the receive buffer of the server's socket is fuller than room (refuse = drop)") \
	X(quic_refused_again, note, "beside the refused attempts: further packets of them, which weir refused too. In observe mode they passed") \
	X(quic_answered, note, "of the attempts that weir let in, those that the server has answered") \
	X(quic_vn_rate, refuse, "weir answered the Initial with a Version Negotiation packet: its class is over its rate (over_rate = rst)") \
	X(quic_dropped_rate, refuse, "weir dropped the Initial: its class is over its rate (over_rate = drop)") \
	X(quic_vn_held, refuse, "weir answered the Initial with a Version Negotiation packet: its class is over the rate that the controller has set (refuse = vn)") \
	X(quic_dropped_held, refuse, "weir dropped the Initial: its class is over the rate that the controller has set (refuse = drop)")

enum quic_verdict {
#define X(name, kind, text) VERDICT_##name,
	QUIC_VERDICTS(X)
#undef X
	QUIC_VERDICT_COUNT,
};

/* Per CPU and listener; monotonic since the listener was first guarded. */
struct quic_counters {
#define X(name, kind, text) __u64 name;
	QUIC_VERDICTS(X)
#undef X
};
_Static_assert(sizeof(struct quic_counters) == 8 * QUIC_VERDICT_COUNT, "one u64 per verdict");

enum quic_refuse { QUIC_REFUSE_DROP, QUIC_REFUSE_VN };

/* What one listener is to do. Written by user space, read-only in BPF. */
struct quic_policy {
	__u64 target_wait_ns;	/* 1 ms .. 10 s */
	__u64 interval_ns;	/* how long the wait must stand over the target before it refuses */
	__u32 room_1024;	/* share of the receive buffer over which it refuses, 1/1024: 1 .. 1024; 0: not by the buffer */
	__u32 floor_1024;	/* share of the server's answers that new attempts have all the same, 1/1024; 0: none */
	__u16 counters;		/* index of its counters */
	__u8 refuse;		/* enum quic_refuse */
	__u8 observe;		/* 1: count only */
	__u16 owner;		/* by which rules of classes know it */
	__u16 pad;
	__u32 ifindex[WEIR_QUIC_INTERFACES]; /* its interfaces, then 0; all 0: every interface */
};
_Static_assert(sizeof(struct quic_policy) == 64, "one cache line");

/* Where a listener is; on every address it is on 0.0.0.0 (IPv4 as ::ffff:a.b.c.d) or ::. */
struct quic_place {
	__u64 netns;		/* cookie of the network namespace */
	__u32 addr[4];		/* big endian */
	__u16 port;		/* big endian */
	__u16 pad[3];
};
_Static_assert(sizeof(struct quic_place) == 32, "a hash key has no holes");

/* A server's socket, of one listener. The next one at its address has another inode. */
struct quic_server {
	__u64 socket;		/* its kernel address */
	__u32 counters;		/* index of the listener's counters */
	__u32 inode;
};
_Static_assert(sizeof(struct quic_server) == 16, "a hash key has no holes");

/* How a socket's server answers new connections (lib/quic_wait.h). */
struct quic_state {
	__u64 service_ns;	/* from one answer to the next of a busy server, a moving mean; 0: not known */
	__u64 latency_ns;	/* how long the newest answer took */
	__u64 above_ns;		/* since when the wait is over the target; 0: it is not */
	__u64 last_above_ns;	/* when it was last seen over the target */
	__u64 admitted_ns;	/* when an attempt was last let in */
	__u64 silent_ns;	/* since when no answer has come though attempts wait for one */
	__u64 born_ns;		/* when this began */
	__u64 floor_next;	/* when the floor has its next one, 1/16 ns (bucket.h) */
	__u64 event_ns;		/* when a refusal was last sampled for it alone (sample.bpf.h) */
	__u32 admitted;		/* attempts let in, ever; wraps; atomic */
	__u32 answered;		/* the newest of them that the server has answered; wraps */
	__u32 excused;		/* of those after it, the ones that the server has sent a Retry; atomic */
	__u32 standing;		/* 1: refuse while the wait is over the target */
	__u32 buffer;		/* bytes in its receive buffer at the last attempt */
	__u32 buffer_limit;	/* and how many may be there */
	__u64 sample_ns;	/* when this sample of the server's answers began; 0: at the next one */
	__u64 idle_ns;		/* of it, the time in which no attempt waited */
	__u32 answers;		/* of it */
	__u32 low_mark;		/* fewest that waited after one of them */
	__u32 least;		/* so many may wait, however slow the server; 0: WEIR_QUIC_LEAST_MIN */
	__u32 turned_away;	/* 1: an attempt of it was refused for the wait */
	__u64 alone_ns;		/* how long answers take when nobody waits before them, a moving mean; 0: not known */
	__u64 crowded_1024;	/* of that in 1/1024, how long the others take, a moving mean; 0: not known */
	__u64 stop_ns;		/* longest time without an answer that led to this wait over the target; 0: none */
	__u32 unsure;		/* 1: those who waited were forgotten, and no answer has come since; 2: one has */
	__u32 unsure_to;	/* then: up to this number, more may have waited before them than is known */
	__u32 overtaken;	/* attempts that the answer to a later one has overtaken, since overtaken_ns, and that have none */
	__u32 overtaken_before;	/* the same of the time before */
	__u32 overtaken_answered; /* of such attempts, how many were answered after all, of late */
	__u32 overtaken_lost;	/* and how many were not */
	__u64 overtaken_ns;	/* when this time began */
	__u64 overtaken_latency_ns; /* how long the newest answer to one of them took; 0: there was none of late */
	__u32 trust_answered;	/* attempts that were answered of late */
	__u32 trust_lost;	/* and attempts that were not */
	__u32 doubts;		/* so many more have to be answered before the server is trusted */
	__u32 pad;
	__u64 pace_ns;		/* time for each answer while attempts waited, in the newest half of a sample; 0: not known */
	__u64 pace_before_ns;	/* and in the one before */
};
_Static_assert(sizeof(struct quic_state) == 224, "no holes");

/* A refused attempt, sampled: for `weir why`, `weir events` and the log. */
struct quic_event {
	__u32 at_ms;		/* bpf_ktime_get_ns() in ms, the low 32 bits */
	__u32 saddr[4];		/* big endian; IPv4 as ::ffff:a.b.c.d */
	__u32 daddr[4];
	__u16 sport;		/* host order */
	__u16 dport;
	__u16 listener;		/* counters index */
	__u8 verdict;		/* enum quic_verdict */
	__u8 observe;
	__u32 pending;		/* attempts that were let in and not answered */
	__u32 wait_us;		/* how long it would have waited; 0: not known, or none waits */
	__u32 buffer;		/* bytes in the receive buffer, it not among them */
	__u32 buffer_limit;	/* and how many may be there */
	__u32 class;		/* slot of its class */
};
_Static_assert(sizeof(struct quic_event) == 64, "one cache line");

#endif
