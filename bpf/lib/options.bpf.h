/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * options.bpf.h - the TCP options of a packet.
 */
#ifndef WEIR_OPTIONS_BPF_H
#define WEIR_OPTIONS_BPF_H

#include "lib/cookie.h"
#include "lib/kernel.h"
#include "lib/packet.h"

struct option_walk {
	u8 buf[OPTION_BUFFER];
	u32 len;
	u32 at;		/* of walk_options(): in a register, the verifier would walk every offset */
	struct syn_options options;
};

/* Not on the stack: that has no room for it beside all else that a packet's way needs. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct option_walk);
} option_walks SEC(".maps");

/*
 * Length of a packet's options; 0 also if it is none that can be. Behind each
 * test stands a barrier, else clang makes one of both, with a register that the
 * verifier knows nothing of: "R4 invalid zero-sized read: u64=[0,4294967292]".
 */
static __always_inline u32 options_len(const struct packet *packet)
{
	u32 len = packet->header_len - sizeof(struct tcp);

	barrier_var(len);
	if (len > TCP_OPTIONS_MAX)
		return 0;
	barrier_var(len);
	return len;
}

/* Global. */
__noinline int walk_options(struct option_walk *walk)
{
	u32 i;

	if (!walk)
		return 0;
	walk->at = 0;
	__builtin_memset(&walk->options, 0, sizeof(walk->options));
	walk->options.wscale = COOKIE_NO_WSCALE;
	bpf_for(i, 0, TCP_OPTIONS_MAX) {
		u32 at = *(volatile u32 *)&walk->at;

		if (at >= walk->len || at >= TCP_OPTIONS_MAX)
			break;
		*(volatile u32 *)&walk->at = option_step(walk->buf, at, walk->len, &walk->options);
	}
	return 0;
}

/* The options of a packet; those of none if they cannot be read. NULL: no memory. */
static __always_inline struct option_walk *options_of_skb(struct __sk_buff *skb, const struct packet *packet)
{
	u32 key = 0, len = options_len(packet);
	struct option_walk *walk = bpf_map_lookup_elem(&option_walks, &key);

	if (!walk)
		return NULL;
	walk->len = 0;
	if (len && !bpf_skb_load_bytes(skb, packet->l4 + sizeof(struct tcp), walk->buf, len))
		walk->len = len;
	walk_options(walk);
	return walk;
}

static __always_inline struct option_walk *options_of_xdp(struct xdp_md *xdp, const struct packet *packet)
{
	u32 key = 0, len = options_len(packet);
	struct option_walk *walk = bpf_map_lookup_elem(&option_walks, &key);

	if (!walk)
		return NULL;
	walk->len = 0;
	if (len && !bpf_xdp_load_bytes(xdp, packet->l4 + sizeof(struct tcp), walk->buf, len))
		walk->len = len;
	walk_options(walk);
	return walk;
}

#endif
