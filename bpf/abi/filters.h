/* SPDX-License-Identifier: GPL-2.0-or-later */
/* filters.h - what filters.bpf.c tells user space. */
#ifndef WEIR_ABI_FILTERS_H
#define WEIR_ABI_FILTERS_H

/*
 * What a network namespace has that may keep a packet from its socket, or an
 * answer from its client: the numbers of bits. NFTABLES: base chains, or more
 * interfaces than were looked at. BPF: a program at a hook of netfilter. IPSEC:
 * policies, of the namespace or of a socket. IPSEC_BLOCKS: what no policy allows
 * is blocked.
 */
enum packet_filter { FILTER_CONNTRACK, FILTER_NFTABLES, FILTER_BPF, FILTER_IPSEC, FILTER_IPSEC_BLOCKS };

#endif
