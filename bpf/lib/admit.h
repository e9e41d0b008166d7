/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * admit.h - is there room for one more connection, and what follows if not?
 * Pure: state and time are arguments. weir-models' `admit` and `wait` modules
 * are the same decisions in Rust; a property test holds them equal.
 *
 * Room (SB06, Section III-B1, reserv): every SYN that is answered holds a
 * place in the listen queue until accept(), an error or a time-out. The
 * kernel counts waiting connections (length) and half-open ones; SYNs that
 * were let in but not yet counted are claims (ledger.h).
 *
 * Wait: wait.h.
 *
 * Stall: a SYN flood's handshakes never end, those of clients do within a round
 * trip. Handshakes stall while they hold half of the places and fewer than a
 * quarter of them end in STALL_NS. Then they are not held against clients that
 * answer. Until that is known a full queue is an overload, and exact.
 */
#ifndef WEIR_ADMIT_H
#define WEIR_ADMIT_H

#include "abi/guard.h"
#include "lib/bucket.h"
#include "lib/types.h"
#include "lib/wait.h"

/* Places that may be promised: the backlog and its overbooking; listen(fd, 0) still holds one. */
static __always_inline u32 places(const struct listener_policy *listener, u32 limit)
{
	u64 all = limit + (((u64)limit * listener->overbook_1024) >> 10);

	return all ? all : 1;
}

/*
 * Whether waiting, half-open and claimed connections together leave a place, with
 * so many more in the accept queue than the backlog. Overbooked or not, the
 * kernel drops a SYN whose SYN queue is full (at most the backlog).
 */
static __always_inline bool place_with_more(const struct listener_policy *listener, const struct queue_view *queue,
					    u32 more)
{
	u32 pending = queue->half_open + queue->claims, limit = queue->limit ? queue->limit : 1;

	return queue->length + pending < places(listener, queue->limit) + more && pending < limit &&
	       queue->length < limit + more;
}

/* reserv: a place is free. */
static __always_inline bool place_free(const struct listener_policy *listener, const struct queue_view *queue)
{
	return place_with_more(listener, queue, 0);
}

/* The kernel's own rule, sk_acceptq_is_full(): default and abort follow it. */
static __always_inline bool kernel_full(const struct queue_view *queue)
{
	return queue->length > queue->limit;
}

/* The accept queue alone leaves no place, neither to a SYN nor to the ACK of a cookie. */
static __always_inline bool is_filled(const struct queue_view *queue)
{
	return queue->length >= (queue->limit ? queue->limit : 1);
}

static __always_inline u32 half_of_places(const struct listener_policy *listener, const struct queue_view *queue)
{
	u32 half = places(listener, queue->limit) / 2;

	return half ? half : 1;
}

/*
 * As place_free(), without the half-open connections that let their first
 * SYN/ACK time out. In a flood of spoofed SYNs those hold every place and
 * never come; a client that answers is younger. While handshakes stall, the
 * younger ones are not held against it either, up to half of the places: the
 * other half is for those that end after all.
 */
static __always_inline bool place_for_cookie(const struct listener_policy *listener, const struct queue_view *queue)
{
	u32 taken = queue->length + queue->claims;

	if (is_filled(queue))
		return false;
	return taken + queue->young < places(listener, queue->limit) ||
	       (queue->stalled && taken < half_of_places(listener, queue));
}

/*
 * The same before the SYN/ACK of the cookie: claims are handshakes too, of which the kernel may take none, and while
 * these stall, or in a flood of such, they are not held against a client either. Its final ACK goes by the rule above.
 */
static __always_inline bool place_for_later(const struct listener_policy *listener, const struct queue_view *queue,
					    bool flooded)
{
	return place_for_cookie(listener, queue) ||
	       ((queue->stalled || flooded) && queue->length < half_of_places(listener, queue) &&
		queue->length < queue->limit);
}

/*
 * no-syn-drop, and reserv in a flood, reserve places for at most half of the
 * queue, and answer the others with cookies: their final ACKs find places even
 * when handshakes under way, of clients far away or spoofed, would hold all.
 */
static __always_inline bool half_reserved(const struct listener_policy *listener, const struct queue_view *queue)
{
	return queue->half_open + queue->claims >= half_of_places(listener, queue);
}

/*
 * Handshakes on a local network end in less. Before it has passed, a flood
 * cannot be told from a burst.
 */
#define STALL_NS 1000000ULL

struct stall_state {
	u64 since_ns;	/* the running look began; 0: handshakes hold less than half of the places */
	u32 ended;	/* handshakes that had ended then, ever; wraps */
	u32 stalled;	/* 1: in the look before hardly any ended */
};

/*
 * One look at the handshakes under way, at a SYN while they hold half of the
 * places or did. ended: handshakes that have ended, ever; wraps. Exclusive access
 * to *stall. After a silence the look has been longer: what stands still is stuck.
 */
static __always_inline void stall_look(struct stall_state *stall, u64 now, const struct queue_view *queue, u32 ended,
				       const struct listener_policy *listener)
{
	u32 quarter = (queue->half_open + queue->claims) / 4;

	if (!half_reserved(listener, queue)) {
		stall->since_ns = 0;
		stall->stalled = 0;
		return;
	}
	/* Signed: as of wait_look(). */
	if (stall->since_ns && (s64)(now - stall->since_ns) < (s64)STALL_NS)
		return;
	if (stall->since_ns)
		stall->stalled = (s32)(ended - stall->ended) < (s32)(quarter ? quarter : 1);
	stall->since_ns = now;
	stall->ended = ended;
}

/* So empty that there is a place by any of these rules, with the claims and without. */
static __always_inline bool half_empty(const struct queue_view *queue)
{
	return 2ULL * (queue->length + queue->half_open + queue->claims) + 1 < queue->limit;
}

static __always_inline bool reserves(const struct listener_policy *listener)
{
	return listener->establish == ESTABLISH_RESERV || listener->establish == ESTABLISH_NO_SYN_DROP;
}

/*
 * The verdict on a new SYN. waiting: wait_refuses() said so. cookies: a
 * cookie can be sent (kernel and listener allow it). flooded: half-open
 * connections that never came, or claims of none, held the places within the last FLOOD_NS.
 * Where weir can send no cookie the kernel does, once its SYN queue is full
 * (tcp_syncookies = 1).
 */
#define FLOOD_NS 10000000000ULL

static __always_inline enum verdict syn_verdict(const struct listener_policy *listener, const struct queue_view *queue,
						bool waiting, bool cookies, bool flooded)
{
	bool full = reserves(listener) ? !place_free(listener, queue) : kernel_full(queue);

	waiting = waiting && listener->admit == ADMIT_WAIT && listener->establish != ESTABLISH_DEFAULT;
	if (listener->draining)
		return VERDICT_syn_admitted;
	if (listener->establish == ESTABLISH_NO_SYN_DROP && cookies &&
	    (full || waiting || half_reserved(listener, queue)))
		return VERDICT_cookie_sent;
	if (listener->establish == ESTABLISH_RESERV && cookies && !waiting &&
	    (full || (flooded && half_reserved(listener, queue))) && place_for_later(listener, queue, flooded))
		return VERDICT_cookie_sent_flood;
	if (!full && !waiting)
		return VERDICT_syn_admitted;
	if (reserves(listener) && !cookies && !waiting && place_for_later(listener, queue, flooded))
		return VERDICT_syn_left_flood;
	if (listener->reject_syn == REJECT_RST)
		return full ? VERDICT_syn_reset_full : VERDICT_syn_reset_wait;
	if (full && !reserves(listener))
		return VERDICT_syn_left;
	return full ? VERDICT_syn_dropped_full : VERDICT_syn_dropped_wait;
}

/*
 * The verdict on a SYN that takes the place of a TIME-WAIT socket. No cookie can
 * answer it, because its final ACK would find the TIME-WAIT socket. Where others
 * get a cookie it is let in: the client is real, and the kernel itself takes such
 * a SYN past its limit of half-open connections (tcp_conn_request()). The final
 * ACK decides, as of a cookie (on_request_ack()), but for the wait, which only the
 * SYN can be held against: many such clients would make a queue stand. That SYN is
 * dropped, and so is one to a full accept queue, as by the kernel: the client
 * repeats it.
 */
static __always_inline enum verdict time_wait_verdict(const struct listener_policy *listener,
						      const struct queue_view *queue, bool waiting, bool flooded)
{
	enum verdict v = syn_verdict(listener, queue, waiting, true, flooded);

	if (v != VERDICT_cookie_sent && v != VERDICT_cookie_sent_flood)
		return v;
	if (kernel_full(queue))
		return VERDICT_syn_dropped_full;
	return waiting && listener->admit == ADMIT_WAIT ? VERDICT_syn_dropped_wait : VERDICT_syn_time_wait;
}

/* Whether the verdict turns a SYN away for its queue, at once or at its final ACK. */
static __always_inline bool turns_away(enum verdict v)
{
	return v == VERDICT_syn_reset_full || v == VERDICT_syn_reset_wait || v == VERDICT_syn_dropped_full ||
	       v == VERDICT_syn_dropped_wait || v == VERDICT_syn_reset_residence || v == VERDICT_syn_dropped_residence ||
	       v == VERDICT_cookie_sent;
}

/*
 * Whether there is a place for the SYN of a steady source (steady.h). The kernel
 * holds one connection more than the backlog (sk_acceptq_is_full()), and
 * place_free() gives that place to nobody: it is theirs, however full the queue
 * is. shared: the queue is of several sockets, and the place of any one.
 */
static __always_inline bool steady_place(const struct listener_policy *listener, const struct queue_view *queue,
					 bool shared)
{
	return reserves(listener) ? place_with_more(listener, queue, !shared) : !kernel_full(queue);
}

/*
 * What steady sources may take of the server: of each kind of them (enum
 * steadiness) an eighth of what it accepts, four at once. Of a server that has
 * stopped, as if it accepted one now: one each eight times as long as it has
 * stopped. So most checks of it fail, and a balancer learns of it.
 */
#define STEADY_SHARE 8
#define STEADY_BURST 4

static __always_inline struct bucket_limit steady_limit(const struct wait_state *wait, u64 now)
{
	u64 service = wait_service(wait), stopped = wait_min(wait_stopped(wait, now), WAIT_SERVICE_MAX_NS);
	u64 interval = (wait_max(service, stopped) * STEADY_SHARE) << BUCKET_SHIFT;

	return (struct bucket_limit){ .interval = interval, .tolerance = stopped ? 0 : (STEADY_BURST - 1) * interval };
}

/* The verdict on the final ACK of a handshake that a cookie began: room as for a SYN, flood or not. */
static __always_inline enum verdict cookie_ack_verdict(const struct listener_policy *listener,
						       const struct queue_view *queue, bool waiting)
{
	if (listener->draining)
		return VERDICT_cookie_accepted;
	if (!place_for_cookie(listener, queue))
		return VERDICT_ack_reset_full;
	if (waiting && listener->admit == ADMIT_WAIT)
		return VERDICT_ack_reset_wait;
	return VERDICT_cookie_accepted;
}

#endif
