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

static __always_inline void record_address(struct listen_record *r, const struct sock_common *skc)
{
	r->family = skc->skc_family;
	r->port = skc->skc_num;
	if (r->family == AF_INET6) {
		BPF_CORE_READ_INTO(&r->addr, skc, skc_v6_rcv_saddr.in6_u.u6_addr32);
		r->v6only = BPF_CORE_READ_BITFIELD(skc, skc_ipv6only);
	} else {
		r->addr[2] = bpf_htonl(0xffff);
		r->addr[3] = skc->skc_rcv_saddr;
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
	struct listen_record r = {};
	struct listen_state *s;
	struct queue_view q = {};
	struct tcp_sock *tp;
	u32 *group;
	u64 key;

	if (!skc)
		return 0;
	if (skc->skc_state != TCP_LISTEN) {
		/* 1 ends this read with what is in it; the next one begins with this socket. */
		if (ctx->meta->seq->count)
			return 1;
		r.end = 1;
		bpf_seq_write(ctx->meta->seq, &r, sizeof(r));
		return 0;
	}
	tp = bpf_skc_to_tcp_sock(skc);
	if (!tp)
		return 0;
	key = (u64)tp;
	queue_read(tp, &q);
	record_address(&r, skc);
	r.mptcp = tp->is_mptcp;
	r.queue_length = q.length;
	r.queue_limit = q.limit;
	r.half_open = q.half_open;
	group = bpf_map_lookup_elem(&group_of, &key);
	r.parked = group && *group & WEIR_PARKED;
	/* A thousand of them stand ready. */
	if (r.parked && !q.length && !q.half_open)
		return 0;
	r.socket = key;
	r.inode = inode_of((const struct sock *)tp);
	r.steered = steered((const struct sock *)tp);
	s = queue_known(key);
	if (s)
		r.wait_ns = wait_now(&s->wait, q.length);
	bpf_seq_write(ctx->meta->seq, &r, sizeof(r));
	return 0;
}

#endif
