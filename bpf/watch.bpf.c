// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * watch.bpf.c - whether weir sees what it guards: the connections that are
 * established with guarded ports, whoever saw their SYNs; and the names of BPF
 * programs, so that a message can say who stands before weir.
 *
 * watch_established runs when a TCP socket of this machine changes its state:
 * some times in a connection's life, never for a SYN that gets no further.
 * Where the kernel has no such hook, weir does not know whether SYNs pass it
 * by, and does all else.
 */
#include "abi/watch.h"
#include "lib/export.bpf.h"
#include "lib/kernel.h"
#include "lib/listener.bpf.h"
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "GPL";

EXPORT_TYPE(struct, program_name);

#define TCP_SYN_RECV 3

/* The guarded ports, a bit each. Written by user space. */
u8 ports[WEIR_PORT_BYTES];

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, WEIR_MAX_ESTABLISHED);
	__type(key, struct established_key);
	__type(value, u64);
} established SEC(".maps");

static __always_inline bool guarded(u16 port)
{
	return ports[port >> 3 & (WEIR_PORT_BYTES - 1)] & 1 << (port & 7);
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(watch_established, const struct sock *sk, int old, int new)
{
	const struct sock_common *skc = &sk->__sk_common;
	struct established_key key = {};
	u64 *count, one = 1;

	if (old != TCP_SYN_RECV || new != TCP_ESTABLISHED)
		return 0;
	key.port = skc->skc_num;
	if (!guarded(key.port) || !in_own_namespace(skc))
		return 0;
	key.ifindex = sk->sk_rx_dst_ifindex;
	if (skc->skc_family == AF_INET6 && bpf_core_field_exists(skc->skc_v6_rcv_saddr)) {
		BPF_CORE_READ_INTO(&key.addr, skc, skc_v6_rcv_saddr.in6_u.u6_addr32);
	} else {
		key.addr[2] = bpf_htonl(0xffff);
		key.addr[3] = skc->skc_rcv_saddr;
	}
	count = bpf_map_lookup_elem(&established, &key);
	if (count)
		__sync_fetch_and_add(count, 1);
	else
		bpf_map_update_elem(&established, &key, &one, BPF_NOEXIST);
	return 0;
}

SEC("iter/bpf_prog")
int watch_programs(struct bpf_iter__bpf_prog *ctx)
{
	struct bpf_prog *prog = ctx->prog;
	struct program_name program = {};

	if (!prog)
		return 0;
	/* Read by a helper: the compiler would read ctx->prog anew, which the verifier has not seen compared. */
	program.id = BPF_CORE_READ(prog, aux, id);
	BPF_CORE_READ_INTO(&program.name, prog, aux, name);
	bpf_seq_write(ctx->meta->seq, &program, sizeof(program));
	return 0;
}
