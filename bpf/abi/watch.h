/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * watch.h - what watch.bpf.c shares with user space.
 */
#ifndef WEIR_ABI_WATCH_H
#define WEIR_ABI_WATCH_H

#include <linux/types.h>

/* Local addresses, guarded ports and interfaces of which connections are counted; beyond, those that were used last. */
#define WEIR_MAX_ESTABLISHED 1024
/* Bytes of a set of ports, a bit each. */
#define WEIR_PORT_BYTES 8192

/* Where connections came to. */
struct established_key {
	__u32 addr[4];		/* the local address; IPv4 mapped into IPv6 */
	__u32 ifindex;		/* the interface that the handshake's last segment came over */
	__u32 port;		/* local */
};

/* A BPF program that the kernel has. */
struct program_name {
	__u32 id;
	char name[16];		/* ends with NUL */
};

#endif
