/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * report.bpf.h - the listening sockets of a network namespace, with what no socket
 * diagnostic tells: the half-open connections, and the guard's estimate of the
 * wait.
 *
 * An iterator finds them, in the namespace of the thread that opens it. That
 * takes up to 20 ms where few connections are open: behind the listening sockets
 * the kernel walks its table of all others until it meets one, and an empty table
 * has half a million buckets on a large machine. So look_again reads those that
 * were found at their addresses. Whether there are others sock_diag(7) says, which
 * walks the listening sockets alone; look_again says whether connections have
 * come to others.
 */
#ifndef WEIR_REPORT_BPF_H
#define WEIR_REPORT_BPF_H

#include "abi/guard.h"
#include "lib/admit.h"
#include "lib/export.bpf.h"
#include "lib/kernel.h"
#include "lib/own_filters.bpf.h"
#include "lib/parking.bpf.h"
#include "lib/state.bpf.h"
#include "lib/steered.bpf.h"
#include "lib/waiting.bpf.h"

EXPORT_TYPE(struct, listen_record);
EXPORT_TYPE(struct, look_again);

/* The listening sockets that user space knows. Mapped by it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, WEIR_MAX_KNOWN);
	__type(key, u32);
	__type(value, struct listen_record);
} known_sockets SEC(".maps");

static __always_inline void record_address(struct listen_record *record, const struct sock_common *skc)
{
	record->family = skc->skc_family;
	record->port = skc->skc_num;
	if (record->family == AF_INET6 && bpf_core_field_exists(skc->skc_v6_rcv_saddr)) {
		BPF_CORE_READ_INTO(&record->addr, skc, skc_v6_rcv_saddr.in6_u.u6_addr32);
		record->v6only = BPF_CORE_READ_BITFIELD(skc, skc_ipv6only);
	} else {
		record->addr[2] = bpf_htonl(0xffff);
		record->addr[3] = skc->skc_rcv_saddr;
	}
}

/*
 * SYNs are the guard's own looks at the queue: of a slow server they are far apart, and after the last one none comes.
 * now: read before the queue. Parked connections are left to the SYNs: this runs in a task, which may be kept from
 * running while it sums them up. Global: verified once.
 */
__noinline int record_wait(struct listen_record *record, struct listen_state *state, const struct queue_view *queue,
			   u64 now)
{
	u32 length;

	if (!record || !state || !queue)
		return 0;
	if (!state->group && (s64)(now - state->wait.looked_ns) >= (s64)WAIT_STEP_NS)
		look_at_wait(state, NULL, queue, now);
	length = state->group ? state->wait.length : queue->length;
	record->wait_ns = wait_now(&state->wait, now, length);
	record->service_ns = wait_service(&state->wait);
	record->kept_length = wait_max(state->wait.least, WAIT_LEAST_MIN);
	return 0;
}

/* What there is to say of a listening socket. `record` is all zero. */
static __always_inline void record_socket(struct listen_record *record, const struct tcp_sock *tp)
{
	struct queue_view queue = {};
	struct listen_state *state;
	u64 key = (u64)tp, now = clock_ns();
	u32 *group;

	queue_read(tp, &queue);
	record_address(record, (const struct sock_common *)tp);
	/* Not by is_mptcp(): a value of two ways would have the verifier look at the rest twice. */
	if (bpf_core_field_exists(tp->is_mptcp))
		record->mptcp = tp->is_mptcp;
	record->queue_length = queue.length;
	record->queue_limit = queue.limit;
	record->half_open = queue.half_open;
	group = bpf_map_lookup_elem(&group_of, &key);
	record->parked = group && *group & WEIR_PARKED;
	record->socket = key;
	record->inode = inode_of((const struct sock *)tp);
	record->steered = is_steered(&record->socket);
	record->own_filters = own_filters(&record->socket);
	state = queue_known(&key);
	if (state)
		record_wait(record, state, &queue, now);
}

/*
 * The kernel walks listening sockets first; at the first other one a record with `end`, alone in its
 * read, says so. Parking listeners that hold nothing are left out.
 */
SEC("iter/tcp")
int list_listeners(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct listen_record record = {};
	struct tcp_sock *tp;

	if (!skc)
		return 0;
	if (skc->skc_state != TCP_LISTEN) {
		/* 1 ends this read with what is in it; the next one begins with this socket. */
		if (ctx->meta->seq->count)
			return 1;
		record.end = 1;
		bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
		return 0;
	}
	tp = bpf_skc_to_tcp_sock(skc);
	if (!tp)
		return 0;
	record_socket(&record, tp);
	/* A thousand of them stand ready. */
	if (record.parked && !record.queue_length && !record.half_open)
		return 0;
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}

/*
 * Renews one record; returns whether its socket still listens. Its inode tells whether a socket at the same address is
 * still the same. Global: a turn of a loop (arrival.bpf.h).
 */
__noinline int renew(struct listen_record *known, u64 netns)
{
	struct listen_record record = {};
	const struct sock_common *sk;

	if (!known)
		return 0;
	sk = listens_at(known->socket, known->port);
	if (sk && netns_of_socket(sk) == netns) {
		record_socket(&record, bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct tcp_sock)));
		if (record.inode == known->inode) {
			*known = record;
			return 1;
		}
	}
	known->end = 1;
	return 0;
}

/*
 * Run by user space. A socket that it does not know can only hold connections that have come through the guard if the
 * guard has taken an entry for it; a parking listener, if a connection was sent to one.
 */
SEC("syscall")
int look_again(struct look_again *look)
{
	u32 known = look->known, gone = 0, parked = 0, i;
	u64 netns = look->netns;

	look->taken = *(volatile u32 *)&queues_taken;
	bpf_for(i, 0, WEIR_MAX_GROUPS) {
		const struct parking_group *group = parking_group(i);

		if (group)
			parked += *(volatile u32 *)&group->sent;
	}
	bpf_for(i, 0, WEIR_MAX_KNOWN) {
		struct listen_record *record = bpf_map_lookup_elem(&known_sockets, &i);

		if (i >= known || !record)
			break;
		if (!renew(record, netns))
			gone++;
	}
	look->parked = parked;
	look->gone = gone;
	return 0;
}

#endif
