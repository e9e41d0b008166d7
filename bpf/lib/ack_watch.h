/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * ack_watch.h - until when ACKs are looked at. All CPUs share the one time, each
 * ACK reads it, and few write it. 0: ACKs are not looked at.
 */
#ifndef WEIR_ACK_WATCH_H
#define WEIR_ACK_WATCH_H

#include "lib/cookie.h"
#include "lib/types.h"

/* What another CPU does in the midst of it, in bpf/tests/ack_watch.c. */
#ifndef ACK_WATCH_MEANWHILE
#define ACK_WATCH_MEANWHILE()
#endif

/* As long as a cookie is good, or the kernel repeats a SYN/ACK (tcp_synack_retries 5: 63 s). */
#define ACK_WATCH_NS (2ULL << COOKIE_EPOCH_SHIFT)
/* The shared line is written once in this time at most. */
#define ACK_WATCH_RENEW_NS 1000000000ULL

/* A handshake goes out that its final ACK will decide. */
static __always_inline void ack_watch_begin(u64 *until_ns, u64 now)
{
	if (now + ACK_WATCH_NS - *(volatile u64 *)until_ns > ACK_WATCH_RENEW_NS)
		*(volatile u64 *)until_ns = now + ACK_WATCH_NS;
}

/* Whether no such handshake can be out any more. Who sees it first ends the watch, unless it has begun anew by then. */
static __always_inline bool ack_watch_over(u64 *until_ns, u64 now)
{
	u64 until = *(volatile u64 *)until_ns;

	if (now < until)
		return false;
	ACK_WATCH_MEANWHILE();
	__sync_val_compare_and_swap(until_ns, until, 0);
	return true;
}

#endif
