/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * waiting.bpf.h - one listen queue, seen whole, where connections are parked
 * before the server: what waits in its own sockets and in the parking
 * listeners together, against the server's backlog.
 *
 * Who has a class counts only the connections that are before it: those of its
 * own and of higher priorities. So a queue that is full of lower ones has room
 * for it; user space then takes the place from the youngest of the lowest.
 *
 * Looking into every parking listener for each SYN would take 30 us. The sums
 * are at most SUM_NS old, and connections sent there since are all counted as
 * handshakes under way: for so long the queue looks fuller than it is, never
 * emptier. A connection is in `sent` before its handshake begins; one that
 * began just before the sums and is not in them is still a claim (ledger.bpf.h).
 */
#ifndef WEIR_WAITING_BPF_H
#define WEIR_WAITING_BPF_H

#include "abi/queue.h"
#include "lib/admit.h"
#include "lib/classify.bpf.h"
#include "lib/kernel.h"
#include "lib/ledger.bpf.h"
#include "lib/parking.bpf.h"
#include "lib/state.bpf.h"

#define SUM_NS 1000000ULL

static __always_inline void sum_slots(struct parking_group *g, struct parking_sums *to)
{
	u32 i, p;

	__builtin_memset(to, 0, sizeof(*to));
	to->sent = *(volatile u32 *)&g->sent;
	bpf_for(i, 0, WEIR_MAX_SLOTS) {
		const struct parking_slot *s = &g->slot[i & (WEIR_MAX_SLOTS - 1)];
		const struct request_sock_queue *r;
		const struct tcp_sock *tp;

		if (i >= g->slots)
			break;
		if (!*(volatile u64 *)&s->taken_ns)
			continue;
		tp = listener_at(s->socket, g->port);
		p = s->priority;
		if (!tp || p > WEIR_PRIORITIES)
			continue;
		r = &tp->inet_conn.icsk_accept_queue;
		to->length[p] += listener_length(tp);
		to->half_open[p] += listener_half_open(tp);
		to->young[p] += *(volatile int *)&r->young.counter;
	}
	bpf_for(p, 1, WEIR_PRIORITIES + 1) {
		if (p > WEIR_PRIORITIES)
			break;
		to->length[p] += to->length[p - 1];
		to->half_open[p] += to->half_open[p - 1];
		to->young[p] += to->young[p - 1];
	}
}

/* Global: verified once. */
__noinline int sum_parked(u32 group)
{
	struct parking_group *g = parking_group(group);
	u32 side;

	if (!g || __sync_val_compare_and_swap(&g->summing, 0, 1))
		return 0;
	side = !(g->sums_side & 1);
	sum_slots(g, &g->sums[side]);
	__sync_lock_test_and_set(&g->sums_side, side);
	g->summed_ns = bpf_ktime_get_ns();
	*(volatile u32 *)&g->summing = 0;
	return 0;
}

/* The whole queue of a group before a connection of this priority. Global, as above. */
__noinline int read_parked(u32 group, u32 priority, struct queue_view *q)
{
	struct parking_group *g = parking_group(group);
	const struct parking_sums *sums;
	u32 i, sent;

	if (!g || !q)
		return 0;
	if (bpf_ktime_get_ns() - *(volatile u64 *)&g->summed_ns >= SUM_NS)
		sum_parked(group);
	if (priority > WEIR_PRIORITIES)
		priority = WEIR_PRIORITIES;
	sums = &g->sums[*(volatile u32 *)&g->sums_side & 1];
	sent = *(volatile u32 *)&g->sent - sums->sent;
	q->length = sums->length[priority];
	q->half_open = sums->half_open[priority] + sent;
	q->young = sums->young[priority] + sent;
	q->limit = 0;
	bpf_for(i, 0, WEIR_MAX_SERVERS) {
		struct queue_view one = {};
		const struct tcp_sock *tp;

		if (i >= g->servers)
			break;
		tp = listener_at(g->server[i & (WEIR_MAX_SERVERS - 1)].socket, g->port);
		if (!tp)
			continue;
		queue_read(tp, &one);
		q->length += one.length;
		q->limit += one.limit;
		q->half_open += one.half_open;
		q->young += one.young;
	}
	return 0;
}

static __always_inline u32 priority_of(u32 class)
{
	u32 zero = 0, *copy = bpf_map_lookup_elem(&class_active, &zero);
	const struct class_policy *policy = copy ? class_policy_of(class, *copy) : NULL;

	return policy ? policy->priority : WEIR_PRIORITIES;
}

/* What a connection of this class finds before it in the queue that `s` is about. */
static __always_inline void queue_before(const struct listen_state *s, u32 class, struct queue_view *q)
{
	if (s->group)
		read_parked(s->group - 1, priority_of(class), q);
	else
		queue_read(bpf_rdonly_cast((void *)s->socket, bpf_core_type_id_kernel(struct tcp_sock)), q);
}

/*
 * Puts the server's first socket in the place of a socket of a group. Returns
 * 1 + the number of the group; 0: it is of none. Global, as above.
 */
__noinline int whole_queue(u64 *socket)
{
	struct parking_group *g;
	u32 group;

	if (!socket)
		return 0;
	group = group_with(*socket);
	g = group ? parking_group(group - 1) : NULL;
	if (!g)
		return 0;
	*socket = g->server[0].socket;
	return group;
}

/* As queue_state(), of the whole queue that a listening socket is a part of. */
static __always_inline struct listen_state *queue_state_of(const struct tcp_sock *tp, u64 now)
{
	u64 socket = (u64)tp;
	u32 group = whole_queue(&socket);
	struct listen_state *s = queue_state(socket, now);

	if (s)
		s->group = group;
	return s;
}

/* One look at the wait in the whole queue; `before` is what a connection finds before it. Global, as above. */
__noinline int look_at_wait(struct listen_state *s, const struct queue_view *before, u64 now, u64 target_ns,
			    u64 interval_ns)
{
	struct queue_view all;

	if (!s || !before || __sync_val_compare_and_swap(&s->wait_busy, 0, 1))
		return 0;
	all = *before;
	if (s->group)
		read_parked(s->group - 1, WEIR_PRIORITIES, &all);
	wait_look(&s->wait, now, &all, claims_ever(s), target_ns, interval_ns);
	*(volatile u32 *)&s->wait_busy = 0;
	return 0;
}

/* Lets one CPU at a time, and at most every WAIT_STEP_NS, look at the queue. Returns whether the wait refuses. */
static __always_inline bool waits_too_long(struct listen_state *s, const struct listener_policy *l,
					   const struct queue_view *q, u64 now)
{
	if (now - s->wait.looked_ns >= WAIT_STEP_NS)
		look_at_wait(s, q, now, l->target_wait_ns, l->interval_ns);
	return wait_refuses(&s->wait, now, q->length, l->target_wait_ns);
}

#endif
