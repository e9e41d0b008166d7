/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * report.bpf.h - an iterator over the listening sockets of the reader's
 * network namespace, with what no socket diagnostic tells: the half-open
 * connections, and the guard's estimate of the wait.
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

/*
 * The kernel walks listening sockets first; at the first other one a record with `end`, alone in its
 * read, says so. Parking listeners that hold nothing are left out.
 */
SEC("iter/tcp")
int list_listeners(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct listen_record record = {};
	struct listen_state *state;
	struct queue_view queue = {};
	struct tcp_sock *tp;
	u32 *group;
	u64 key;

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
	key = (u64)tp;
	queue_read(tp, &queue);
	record_address(&record, skc);
	record.mptcp = tp->is_mptcp;
	record.queue_length = queue.length;
	record.queue_limit = queue.limit;
	record.half_open = queue.half_open;
	group = bpf_map_lookup_elem(&group_of, &key);
	record.parked = group && *group & WEIR_PARKED;
	/* A thousand of them stand ready. */
	if (record.parked && !queue.length && !queue.half_open)
		return 0;
	record.socket = key;
	record.inode = inode_of((const struct sock *)tp);
	record.steered = steered((const struct sock *)tp);
	state = queue_known(key);
	if (state)
		record.wait_ns = wait_now(&state->wait, queue.length);
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}

#endif
