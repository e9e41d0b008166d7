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

/* NOP, NOP, and timestamps with their length, as Linux writes them. */
#define STAMPS bpf_htonl(0x0101080a)
#define STAMPS_LEN 12

/*
 * What walk_options() would find, in a fraction of its time, where there are timestamps and the option of TIME-WAIT
 * negotiation, as Linux and weir write them. Returns false where there is anything else.
 */
static __always_inline bool usual_options(struct option_walk *walk)
{
	const __be32 *word = (const void *)walk->buf;
	const u8 *option = walk->buf + STAMPS_LEN;

	if (walk->len != STAMPS_LEN + TW_OPTION_LEN || word[0] != STAMPS ||
	    word[3] != bpf_htonl((u32)TW_OPTION_KIND << 24 | TW_OPTION_LEN << 16 | TW_EXID >> 16) ||
	    *(const __be16 *)(option + 4) != bpf_htons(TW_EXID & 0xffff))
		return false;
	__builtin_memset(&walk->options, 0, sizeof(walk->options));
	walk->options.wscale = COOKIE_NO_WSCALE;
	walk->options.tstamp = 1;
	walk->options.tsval = bpf_ntohl(word[1]);
	walk->options.tsecr = bpf_ntohl(word[2]);
	walk->options.phase = option[6];
	walk->options.holder = option[7];
	return true;
}

/*
 * A packet's options, not looked at yet; none if they cannot be read. NULL is for the verifier: the map has its one
 * value.
 */
static __always_inline struct option_walk *load_options(struct __sk_buff *skb, const struct packet *packet)
{
	u32 key = 0, len = options_len(packet);
	struct option_walk *walk = bpf_map_lookup_elem(&option_walks, &key);

	if (!walk)
		return NULL;
	walk->len = 0;
	if (len && !bpf_skb_load_bytes(skb, packet->l4 + sizeof(struct tcp), walk->buf, len))
		walk->len = len;
	return walk;
}

/* The options of a packet; those of none if they cannot be read. NULL: as above. */
static __always_inline struct option_walk *options_of_skb(struct __sk_buff *skb, const struct packet *packet)
{
	struct option_walk *walk = load_options(skb, packet);

	if (walk)
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
