/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * quic_report.bpf.h - tells user space of refused QUIC attempts, one by one, as
 * act.bpf.h does of SYNs: a sample of them, with what the guard saw.
 */
#ifndef WEIR_QUIC_REPORT_BPF_H
#define WEIR_QUIC_REPORT_BPF_H

#include "abi/class.h"
#include "abi/quic.h"
#include "lib/export.bpf.h"
#include "lib/kernel.h"
#include "lib/quic_flows.h"
#include "lib/quic_wait.h"
#include "lib/sample.bpf.h"

EXPORT_TYPE(struct, quic_event);

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	/* 3 640 events of 64 bytes and 8 of the ring: as of the guard's `events` (state.bpf.h). */
	__uint(max_entries, 256 * 1024);
} quic_events SEC(".maps");

/*
 * quic_sample()'s `what`: the verdict, the slot of the class, and that it is IPv6. A global function takes five
 * arguments.
 */
#define QUIC_SAMPLE_CLASS_SHIFT 8
#define QUIC_SAMPLE_V6 (1U << 31)
_Static_assert(QUIC_VERDICT_COUNT <= 1 << QUIC_SAMPLE_CLASS_SHIFT, "a verdict has its bits");
_Static_assert(WEIR_CLASS_SLOTS < 1 << (31 - QUIC_SAMPLE_CLASS_SHIFT), "a class has its bits");

static __always_inline u32 quic_sample_what(enum quic_verdict v, u32 class, bool v6)
{
	/* User space knows no name of a class where there is none. */
	class = class == WEIR_NO_CLASS ? WEIR_CLASS_OTHER : class;
	return v | class << QUIC_SAMPLE_CLASS_SHIFT | (v6 ? QUIC_SAMPLE_V6 : 0);
}

/*
 * Samples a refusal, after it was counted. what: as of quic_sample_what(). Global: one path through it, and
 * a stack of its own.
 */
__noinline int quic_sample(struct quic_state *state, const struct quic_policy *policy, const struct quic_client *client,
			   const struct bpf_sock_tuple *tuple, u32 what)
{
	u64 now = bpf_ktime_get_ns(), wait;
	struct quic_event *event;

	if (!state || !policy || !client || !tuple || !sample_due(&state->event_ns, now))
		return 0;
	event = bpf_ringbuf_reserve(&quic_events, sizeof(*event), 0);
	if (!event)
		return 0;
	__builtin_memcpy(event->saddr, client->addr, sizeof(event->saddr));
	__builtin_memset(event->daddr, 0, sizeof(event->daddr));
	if (what & QUIC_SAMPLE_V6) {
		__builtin_memcpy(event->daddr, tuple->ipv6.daddr, sizeof(event->daddr));
	} else {
		event->daddr[2] = bpf_htonl(0xffff);
		event->daddr[3] = tuple->ipv4.daddr;
	}
	event->at_ms = now / 1000000;
	event->sport = bpf_ntohs(client->port);
	event->dport = bpf_ntohs(client->server_port);
	event->listener = policy->counters;
	event->verdict = what & ((1 << QUIC_SAMPLE_CLASS_SHIFT) - 1);
	event->class = (what & ~QUIC_SAMPLE_V6) >> QUIC_SAMPLE_CLASS_SHIFT;
	event->observe = policy->observe;
	event->pending = quic_pending(state);
	wait = quic_wait_of(state, event->pending) / 1000;
	event->wait_us = wait < (u32)-1 ? wait : (u32)-1;
	event->buffer = state->buffer;
	event->buffer_limit = state->buffer_limit;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	return 1;
}

#endif
