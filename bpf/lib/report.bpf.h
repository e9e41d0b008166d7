/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * report.bpf.h - the listening sockets of the reader's network namespace, with
 * what no socket diagnostic tells: the half-open connections, and the guard's
 * estimate of the wait. An iterator finds them. That takes up to 20 ms where
 * few connections are open: behind the listening sockets the kernel walks its
 * table of all others until it meets one, and an empty table has half a
 * million buckets on a large machine. So look_again reads those that were
 * found at their addresses. Whether there are others sock_diag(7) says, which
 * walks the listening sockets alone; look_again says whether connections have
 * come to others.
 */
#ifndef WEIR_REPORT_BPF_H
#define WEIR_REPORT_BPF_H

#include "abi/guard.h"
#include "lib/admit.h"
#include "lib/export.bpf.h"
#include "lib/kernel.h"
#include "lib/parking.bpf.h"
#include "lib/state.bpf.h"

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
	if (record->family == AF_INET6) {
		BPF_CORE_READ_INTO(&record->addr, skc, skc_v6_rcv_saddr.in6_u.u6_addr32);
		record->v6only = BPF_CORE_READ_BITFIELD(skc, skc_ipv6only);
	} else {
		record->addr[2] = bpf_htonl(0xffff);
		record->addr[3] = skc->skc_rcv_saddr;
	}
}

/* Whether a program that is not weir's chooses the socket of this one's SO_REUSEPORT group. */
static __always_inline bool steered(const struct sock *sk)
{
	char name[16] = {}, ours[] = "queue_steer";
	struct bpf_prog *program = BPF_CORE_READ(sk, sk_reuseport_cb, prog);

	if (!program)
		return false;
	BPF_CORE_READ_INTO(&name, program, aux, name);
#pragma unroll
	for (u32 i = 0; i < sizeof(ours); i++)
		if (name[i] != ours[i])
			return true;
	return false;
}

/* What there is to say of a listening socket. `record` is all zero. */
static __always_inline void record_socket(struct listen_record *record, const struct tcp_sock *tp)
{
	struct queue_view queue = {};
	struct listen_state *state;
	u64 key = (u64)tp;
	u32 *group;

	queue_read(tp, &queue);
	record_address(record, (const struct sock_common *)tp);
	record->mptcp = tp->is_mptcp;
	record->queue_length = queue.length;
	record->queue_limit = queue.limit;
	record->half_open = queue.half_open;
	group = bpf_map_lookup_elem(&group_of, &key);
	record->parked = group && *group & WEIR_PARKED;
	record->socket = key;
	record->inode = inode_of((const struct sock *)tp);
	record->steered = steered((const struct sock *)tp);
	state = queue_known(key);
	if (state)
		record->wait_ns = wait_now(&state->wait, queue.length);
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

/* Renews one record. Its inode tells whether a socket at the same address is still the same. */
static __always_inline bool renew(struct listen_record *known)
{
	const struct tcp_sock *tp = listener_at(known->socket, known->port);
	struct listen_record record = {};

	if (tp)
		record_socket(&record, tp);
	if (tp && record.inode == known->inode) {
		*known = record;
		return true;
	}
	known->end = 1;
	return false;
}

/*
 * Run by user space. A socket that it does not know can only hold connections that have come through the guard if the
 * guard has taken an entry for it; a parking listener, if a connection was sent to one.
 */
SEC("syscall")
int look_again(struct look_again *look)
{
	u32 known = look->known, gone = 0, parked = 0, i;

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
		if (!renew(record))
			gone++;
	}
	look->parked = parked;
	look->gone = gone;
	return 0;
}

#endif
