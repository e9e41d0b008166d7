/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * act.bpf.h - carrying a verdict out: answer in place and send it back where
 * the packet came from, and say so.
 */
#ifndef WEIR_ACT_BPF_H
#define WEIR_ACT_BPF_H

#include "abi/guard.h"
#include "lib/arrival.bpf.h"
#include "lib/export.bpf.h"
#include "lib/kernel.h"
#include "lib/reply.h"
#include "lib/state.bpf.h"

EXPORT_TYPE(struct, guard_event);

/* Between two sampled events of one queue or class: at most 20 a second. */
#define EVENT_EVERY_NS 50000000ULL
#define TC_DROP 2	/* TC_ACT_SHOT */

/* What each kind of RST says when `reason` is on (RFC 1122, Section 4.2.2.12). REASON_LEN characters each. */
static const char reason_full[REASON_LEN + 1] = "server overloaded: queue is full";
static const char reason_wait[REASON_LEN + 1] = "server overloaded: queue is slow";
static const char reason_fin[REASON_LEN + 1] = "half-closed connections: refused";
static const char reason_rate[REASON_LEN + 1] = "too many connections: over rate.";

static __always_inline const char *reason_for(enum verdict v)
{
	switch (v) {
	case VERDICT_fin_reset:
		return reason_fin;
	case VERDICT_syn_reset_wait:
	case VERDICT_ack_reset_wait:
		return reason_wait;
	case VERDICT_syn_reset_rate:
		return reason_rate;
	default:
		return reason_full;
	}
}

/* Ends a connection: `seq` as the one who gets it expects it, host order. */
static __always_inline void rst(struct answer *a, const struct listener_policy *l, u32 seq)
{
	a->seq = seq;
	a->ack = 0;
	a->flags = FLAG_RST;
	a->header_len = sizeof(struct tcp);
	a->reason_len = l->reason ? REASON_LEN : 0;
}

static __always_inline u32 answer_len(const struct packet *p, u32 l3, const struct answer *a)
{
	return l3 + (p->v6 ? sizeof(struct ipv6) : sizeof(struct ipv4)) + a->header_len + a->reason_len;
}

/*
 * Makes the packet the answer, with the text for this verdict. Returns 0, or
 * -1: then the packet is unchanged but for its tail. Global.
 */
__noinline int answer_skb(struct __sk_buff *skb, const struct packet *p, struct answer *a, u32 verdict)
{
	void *data, *data_end;
	u32 len;

	if (!p || !a)
		return -1;
	len = answer_len(p, link_header, a);
	a->partial = checksum_state(skb) == CHECKSUM_PARTIAL;
	if (CTX_LOAD(skb, len) != len && bpf_skb_change_tail(skb, len, 0))
		return -1;
	/* A driver may have left the header shared with a clone (tcpdump) or in fragments. */
	if (skb_end(skb) - skb_start(skb) < len && bpf_skb_pull_data(skb, len))
		return -1;
	data = skb_start(skb);
	data_end = skb_end(skb);
	return p->v6 ? answer_write(data, data_end, link_header, true, a, reason_for(verdict)) :
		       answer_write(data, data_end, link_header, false, a, reason_for(verdict));
}

/* The answer to a packet that needs no trace at the server: sent back instead of it. */
static __always_inline int answer_instead(struct __sk_buff *skb, const struct packet *p, struct answer *a,
					  enum verdict v)
{
	if (answer_skb(skb, p, a, v))
		return PASS;
	return bpf_redirect(CTX_LOAD(skb, ifindex), 0);
}

/* As answer_skb(), and sends it back. */
__noinline int answer_xdp(struct xdp_md *xdp, const struct packet *p, const struct answer *a, u32 verdict)
{
	const u32 l3 = sizeof(struct ethernet);
	int grow;

	if (!p || !a)
		return XDP_PASS;
	grow = (int)answer_len(p, l3, a) - (int)(xdp_end(xdp) - xdp_start(xdp));
	if (grow && bpf_xdp_adjust_tail(xdp, grow))
		return XDP_PASS;
	if (p->v6 ? answer_write(xdp_start(xdp), xdp_end(xdp), l3, true, a, reason_for(verdict)) :
		    answer_write(xdp_start(xdp), xdp_end(xdp), l3, false, a, reason_for(verdict)))
		return XDP_PASS;
	return XDP_TX;
}

/*
 * Ends a connection that both sides know: a RST to the client, and the packet
 * itself becomes the client's RST to the server. seq and ack as they stand in
 * the client's packet, host order.
 */
static __always_inline int reset_both(struct __sk_buff *skb, const struct packet *p, const struct listener_policy *l,
				      u32 seq, u32 ack, enum verdict v)
{
	struct answer a;

	rst(&a, l, ack);
	if (answer_skb(skb, p, &a, v))
		return PASS;
	bpf_clone_redirect(skb, CTX_LOAD(skb, ifindex), 0);
	a.seq = seq;
	a.reason_len = 0;
	if (answer_skb(skb, p, &a, v))
		return TC_DROP;
	return PASS;
}

/* Fills an event in; the caller has seen to it that there are few. NULL: the ring is full. */
static __always_inline struct guard_event *event_begin(const struct listener_policy *l, const struct arrival *x)
{
	struct guard_event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	const struct bpf_sock_tuple *t = &x->t;

	if (!e)
		return NULL;
	__builtin_memset(e, 0, sizeof(*e));
	if (x->p.v6) {
		__builtin_memcpy(e->saddr, t->ipv6.saddr, 16);
		__builtin_memcpy(e->daddr, t->ipv6.daddr, 16);
	} else {
		e->saddr[2] = e->daddr[2] = bpf_htonl(0xffff);
		e->saddr[3] = t->ipv4.saddr;
		e->daddr[3] = t->ipv4.daddr;
	}
	e->class = x->class;
	e->sport = bpf_ntohs(x->p.sport);
	e->dport = bpf_ntohs(x->p.dport);
	e->listener = l->counters;
	e->verdict = x->verdict;
	e->observe = l->observe;
	return e;
}

/* An example of what the counters count. */
static __always_inline void sample(struct listen_state *s, const struct listener_policy *l, const struct arrival *x)
{
	struct guard_event *e;

	if (x->now - s->event_ns < EVENT_EVERY_NS)
		return;
	s->event_ns = x->now;
	e = event_begin(l, x);
	if (!e)
		return;
	e->queue_length = x->q.length;
	e->queue_limit = x->q.limit;
	e->half_open = x->q.half_open;
	e->wait_us = wait_now(&s->wait, x->q.length) / 1000;
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
}

#endif
