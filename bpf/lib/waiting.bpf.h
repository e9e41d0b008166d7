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
 * began just before the sums and is not in them is still a claim (ledger.h).
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

static __always_inline void sum_slots(struct parking_group *group, struct parking_sums *to)
{
	u32 i, priority;

	__builtin_memset(to, 0, sizeof(*to));
	to->sent = *(volatile u32 *)&group->sent;
	bpf_for(i, 0, WEIR_MAX_SLOTS) {
		const struct parking_slot *slot = &group->slot[i & (WEIR_MAX_SLOTS - 1)];
		const struct tcp_sock *tp;

		if (i >= group->slots)
			break;
		if (!*(volatile u64 *)&slot->taken_ns)
			continue;
		tp = listener_at(slot->socket, group->port);
		priority = slot->priority;
		if (!tp || priority > WEIR_PRIORITIES)
			continue;
		/* In this order: queue_read(). */
		to->half_open[priority] += listener_half_open(tp);
		to->young[priority] += listener_young(tp);
		in_order_here();
		to->length[priority] += listener_length(tp);
	}
	/*
	 * From 0, not from 1: of a bound on either side clang makes one comparison, from which Linux before 6.15 learns
	 * nothing.
	 */
	bpf_for (priority, 0, WEIR_PRIORITIES) {
		to->length[priority + 1] += to->length[priority];
		to->half_open[priority + 1] += to->half_open[priority];
		to->young[priority + 1] += to->young[priority];
	}
}

/* Global: verified once. */
__noinline int sum_parked(u32 number)
{
	struct parking_group *group = parking_group(number);
	u32 side;

	if (!group || __sync_val_compare_and_swap(&group->summing, 0, 1))
		return 0;
	side = !(group->sums_side & 1);
	sum_slots(group, &group->sums[side]);
	__sync_lock_test_and_set(&group->sums_side, side);
	group->summed_ns = bpf_ktime_get_ns();
	__sync_lock_test_and_set(&group->summing, 0);
	return 0;
}

/* The whole queue of a group before a connection of this priority. Global, as above. */
__noinline int read_parked(u32 number, u32 priority, struct queue_view *queue)
{
	struct parking_group *group = parking_group(number);
	const struct parking_sums *sums;
	u32 i;
	s32 sent;

	if (!group || !queue)
		return 0;
	if (bpf_ktime_get_ns() - *(volatile u64 *)&group->summed_ns >= SUM_NS)
		sum_parked(number);
	if (priority > WEIR_PRIORITIES)
		priority = WEIR_PRIORITIES;
	sums = &group->sums[*(volatile u32 *)&group->sums_side & 1];
	/* Less than nothing where other sums were made meanwhile. */
	sent = *(volatile u32 *)&group->sent - sums->sent;
	if (sent < 0)
		sent = 0;
	queue->length = sums->length[priority];
	queue->half_open = sums->half_open[priority] + sent;
	queue->young = sums->young[priority] + sent;
	queue->limit = 0;
	bpf_for(i, 0, WEIR_MAX_SERVERS) {
		struct queue_view one = {};
		const struct tcp_sock *tp;

		if (i >= group->servers)
			break;
		tp = listener_at(group->server[i & (WEIR_MAX_SERVERS - 1)].socket, group->port);
		if (!tp)
			continue;
		queue_read(tp, &one);
		queue->length += one.length;
		queue->limit += one.limit;
		queue->half_open += one.half_open;
		queue->young += one.young;
	}
	return 0;
}

static __always_inline u32 priority_of(u32 class)
{
	u32 zero = 0, *copy = bpf_map_lookup_elem(&class_active, &zero);
	const struct class_policy *policy = copy ? class_policy_of(class, *copy) : NULL;

	return policy ? policy->priority : WEIR_PRIORITIES;
}

/*
 * What a connection of this class finds before it in the queue that `state` is
 * about. A group without a listening socket has ended since the state was found:
 * then the queue is the socket's own again.
 */
static __always_inline void queue_before(const struct listen_state *state, u32 class, struct queue_view *queue)
{
	if (state->group) {
		read_parked(state->group - 1, priority_of(class), queue);
		if (queue->limit)
			return;
	}
	queue_read(bpf_rdonly_cast((void *)state->socket, bpf_core_type_id_kernel(struct tcp_sock)), queue);
}

/*
 * Puts the server's first socket in the place of a socket of a group. Returns
 * 1 + the number of the group; 0: it is of none. Global, as above.
 */
__noinline int whole_queue(u64 *socket)
{
	struct parking_group *group;
	u32 number, i;

	if (!socket)
		return 0;
	number = group_with(*socket);
	group = number ? parking_group(number - 1) : NULL;
	if (!group)
		return 0;
	bpf_for(i, 0, WEIR_MAX_SERVERS) {
		u64 server = group->server[i & (WEIR_MAX_SERVERS - 1)].socket;

		if (i >= group->servers)
			break;
		if (!server)
			continue;
		*socket = server;
		return number;
	}
	return 0;
}

/*
 * The slot of the whole queue that a listening socket is a part of, by the rules of queue_slot(). Puts the server's
 * first socket in the place of a socket of a group: only weir's own namespace has parking listeners. Global, as above.
 */
__noinline int whole_queue_slot(u64 *socket, u64 now)
{
	const struct sock_common *sk;
	struct listen_state *state;
	u32 group, slot;

	if (!socket)
		return 0;
	sk = bpf_rdonly_cast((void *)*socket, bpf_core_type_id_kernel(struct sock_common));
	group = !guards_others || netns_of_socket(sk) == own_netns ? whole_queue(socket) : 0;
	slot = queue_slot(socket, now);
	state = slot ? queue_numbered(slot - 1) : NULL;
	if (!state)
		return 0;
	state->group = group;
	return slot;
}

/* The whole queue that a listening socket is a part of; NULL: there is no slot for it. */
static __always_inline struct listen_state *queue_state_of(const struct tcp_sock *tp, u64 now)
{
	u64 socket = (u64)tp;
	u32 slot = whole_queue_slot(&socket, now);

	return slot ? queue_numbered(slot - 1) : NULL;
}

/*
 * All that waits, where `before` is what one connection finds before it. A group may have ended, as in queue_before().
 */
static __always_inline void whole_queue_before(const struct listen_state *state, const struct queue_view *before,
					       struct queue_view *all)
{
	*all = *before;
	if (!state->group)
		return;
	read_parked(state->group - 1, WEIR_PRIORITIES, all);
	if (!all->limit)
		*all = *before;
}

/* The two parts of a look. Global, each by itself: together they need more of the stack than there is before 6.9. */
__noinline int measure_wait(struct listen_state *state, const struct queue_view *all, u64 now)
{
	if (state && all)
		wait_measure(&state->wait, now, all, claims_ever(state));
	return 0;
}

__noinline int judge_wait(struct listen_state *state, const struct listener_policy *listener, u32 length, u64 now)
{
	if (state && listener)
		wait_judge(&state->wait, now, length, listener);
	return 0;
}

/*
 * One look at the wait in the whole queue; `before` is what a connection finds before it. NULL for `listener`: it
 * measures, and judges nothing. Global, as above.
 */
__noinline int look_at_wait(struct listen_state *state, const struct listener_policy *listener,
			    const struct queue_view *before, u64 now)
{
	struct queue_view all;

	if (!state || !before || __sync_val_compare_and_swap(&state->wait_busy, 0, 1))
		return 0;
	whole_queue_before(state, before, &all);
	if (!wait_is_past(&state->wait, now)) {
		measure_wait(state, &all, now);
		judge_wait(state, listener, all.length, now);
	}
	/* An exchange: what was written above is seen by whoever takes it next. */
	__sync_lock_test_and_set(&state->wait_busy, 0);
	return 0;
}

/* One look at the handshakes under way in the whole queue; `before` as above. Global, as above. */
__noinline int look_at_handshakes(struct listen_state *state, const struct listener_policy *listener,
				  const struct queue_view *before, u64 now)
{
	struct queue_view all;

	if (!state || !listener || !before || __sync_val_compare_and_swap(&state->wait_busy, 0, 1))
		return 0;
	whole_queue_before(state, before, &all);
	stall_look(&state->stall, now, &all, handshakes_ended(state, all.half_open), listener);
	all.half_open = 0;
	stall_look(&state->claims_stall, now, &all, claims_found(state), listener);
	if (state->claims_stall.stalled)
		state->flood_until_ns = clock_ns() + FLOOD_NS;
	__sync_lock_test_and_set(&state->wait_busy, 0);
	return 0;
}

/*
 * Says in *queue whether handshakes stall. The clock is finer than the guard's,
 * and dearer: it is read only while they hold half of the places.
 */
static __always_inline void judge_handshakes(struct listen_state *state, const struct listener_policy *listener,
					     struct queue_view *queue)
{
	bool half = half_reserved(listener, queue);
	u64 now;

	if (!reserves(listener) || (!half && !state->stall.since_ns))
		return;
	now = bpf_ktime_get_ns();
	if (half && (s64)(now - state->stall.since_ns) < (s64)STALL_NS)
		return;
	look_at_handshakes(state, listener, queue, now);
	queue->stalled = handshakes_stall(state);
}

/* Lets one CPU at a time, and at most every WAIT_STEP_NS, look at the queue. Returns whether the wait refuses. */
static __always_inline bool waits_too_long(struct listen_state *state, const struct listener_policy *listener,
					   const struct queue_view *queue, u64 now)
{
	if ((s64)(now - state->wait.looked_ns) >= (s64)WAIT_STEP_NS)
		look_at_wait(state, listener, queue, now);
	return wait_refuses(&state->wait, now, queue->length, listener);
}

#endif
