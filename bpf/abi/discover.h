/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * discover.h - what discover.bpf.c shares with user space.
 */
#ifndef WEIR_ABI_DISCOVER_H
#define WEIR_ABI_DISCOVER_H

#include <linux/types.h>

/* A socket that listens, or one that has just ceased to. */
struct listen_notice {
	__u64 netns;		/* cookie of its network namespace; 0: the kernel knows one only */
	__u64 socket;		/* its own cookie (SO_COOKIE) */
	__u64 cgroup;		/* id of its process's cgroup in the unified hierarchy */
	__u32 addr[4];		/* local address, big endian; IPv4 as ::ffff:a.b.c.d */
	__u32 pid;		/* its process, as the initial pid namespace numbers it */
	__u32 backlog;		/* in force (min of listen() and somaxconn) */
	__u16 port;		/* host order; 0: listen() chooses one, which is not known yet */
	__u8 family;		/* AF_INET or AF_INET6 */
	__u8 listens;		/* 0: it has ceased to; then pid, cgroup and backlog are not its own */
	__u32 pad;
};
_Static_assert(sizeof(struct listen_notice) == 56, "no holes");

#endif
