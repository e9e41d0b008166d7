// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * options.bpf.c - somebody else's program: it writes a header option of its own into
 * each segment of the connections of one port, and counts them.
 */
#include "lib/kernel.h"

char LICENSE[] SEC("license") = "GPL";

/* RFC 6994: an experiment's option. */
#define OPTION_KIND 254
#define OPTION_LEN 4

/* Host order. Set before load. */
const volatile u32 port;
u32 options_written;

static __always_inline void write_option(struct bpf_sock_ops *ops)
{
	u8 option[OPTION_LEN] = { OPTION_KIND, OPTION_LEN, 0xeb, 0x9f };

	if (!bpf_store_hdr_opt(ops, option, sizeof(option), 0))
		__sync_fetch_and_add(&options_written, 1);
}

SEC("sockops")
int write_options(struct bpf_sock_ops *ops)
{
	if (ops->local_port != port && bpf_ntohl(ops->remote_port) != port)
		return 1;
	switch (ops->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		bpf_reserve_hdr_opt(ops, OPTION_LEN, 0);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		write_option(ops);
		break;
	}
	return 1;
}
