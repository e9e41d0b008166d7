/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * act.bpf.h - carrying a verdict out: answer in place and send it back where
 * the packet came from.
 */
#ifndef WEIR_ACT_BPF_H
#define WEIR_ACT_BPF_H

/* Between two sampled events of one queue or class: at most 20 a second. */
#define EVENT_EVERY_NS 50000000ULL
#define FIB_SKIP_NEIGH 4 /* BPF_FIB_LOOKUP_SKIP_NEIGH, since 6.3 */
#define PASS (-1)	/* TCX_NEXT: other programs on this hook have their say */
#define TC_DROP 2	/* TC_ACT_SHOT */

extern void *bpf_cast_to_kern_ctx(void *obj) __ksym;

/* What each kind of RST says when `reason` is on (RFC 1122, Section 4.2.2.12). REASON_LEN characters each. */
static const char reason_full[REASON_LEN + 1] = "server overloaded: queue is full";
static const char reason_wait[REASON_LEN + 1] = "server overloaded: queue is slow";
static const char reason_fin[REASON_LEN + 1] = "half-closed connections: refused";
static const char reason_rate[REASON_LEN + 1] = "too many connections: over rate.";

/* A receive driver may leave headers in fragments; then they are pulled in, once. */
static __always_inline bool pull_headers(struct __sk_buff *skb, u32 l3)
{
	u32 linear = skb_end(skb) - skb_start(skb), want = l3 + sizeof(struct ipv6) + 60;

	if (CTX_LOAD(skb, protocol) != bpf_htons(ETH_P_IP) && CTX_LOAD(skb, protocol) != bpf_htons(ETH_P_IPV6))
		return false;
	if (linear >= want || linear >= CTX_LOAD(skb, len))
		return false;
	return !bpf_skb_pull_data(skb, want < CTX_LOAD(skb, len) ? want : CTX_LOAD(skb, len));
}

static __always_inline u8 checksum_state(struct __sk_buff *skb)
{
	struct sk_buff *k = bpf_cast_to_kern_ctx(skb);

	return BPF_CORE_READ_BITFIELD(k, ip_summed);
}

static __always_inline void tuple_of(struct bpf_sock_tuple *t, const struct packet *p, const void *l3_header)
{
	if (p->v6) {
		const struct ipv6 *ip = l3_header;

		__builtin_memcpy(t->ipv6.saddr, ip->saddr, 16);
		__builtin_memcpy(t->ipv6.daddr, ip->daddr, 16);
		t->ipv6.sport = p->sport;
		t->ipv6.dport = p->dport;
	} else {
		const struct ipv4 *ip = l3_header;

		t->ipv4.saddr = ip->saddr;
		t->ipv4.daddr = ip->daddr;
		t->ipv4.sport = p->sport;
		t->ipv4.dport = p->dport;
	}
}

static __always_inline void flow_of(struct flow *f, const struct bpf_sock_tuple *t, bool v6)
{
	__builtin_memset(f, 0, sizeof(*f));
	f->v6 = v6;
	if (v6) {
		__builtin_memcpy(f->saddr, t->ipv6.saddr, 16);
		__builtin_memcpy(f->daddr, t->ipv6.daddr, 16);
		f->sport = t->ipv6.sport;
		f->dport = t->ipv6.dport;
	} else {
		f->saddr[0] = t->ipv4.saddr;
		f->daddr[0] = t->ipv4.daddr;
		f->sport = t->ipv4.sport;
		f->dport = t->ipv4.dport;
	}
}

static __always_inline bool routed_here(void *ctx, u32 ifindex, const struct bpf_sock_tuple *t, bool v6)
{
	struct bpf_fib_lookup fib = { .ifindex = ifindex, .l4_protocol = IPPROTO_TCP };
	long where;

	if (v6) {
		fib.family = AF_INET6;
		__builtin_memcpy(fib.ipv6_src, t->ipv6.saddr, 16);
		__builtin_memcpy(fib.ipv6_dst, t->ipv6.daddr, 16);
	} else {
		fib.family = AF_INET;
		fib.ipv4_src = t->ipv4.saddr;
		fib.ipv4_dst = t->ipv4.daddr;
	}
	where = bpf_fib_lookup(ctx, &fib, sizeof(fib), FIB_SKIP_NEIGH);
	return where == BPF_FIB_LKUP_RET_NOT_FWDED || where == BPF_FIB_LKUP_RET_FWD_DISABLED;
}

/*
 * What is known about the packet's destination. One that is only forwarded
 * through this host may meet a wildcard listener in the lookup, and is none of
 * our business. NULL: treat it so.
 */
static __always_inline struct destination *destination_of(void *ctx, u32 ifindex, const struct packet *p,
							  const struct bpf_sock_tuple *t, u64 now)
{
	u32 addr[4] = { p->v6 ? t->ipv6.daddr[0] : t->ipv4.daddr, p->v6 ? t->ipv6.daddr[1] : 0,
			p->v6 ? t->ipv6.daddr[2] : 0, p->v6 ? t->ipv6.daddr[3] : 0 };
	u32 key = (addr[0] ^ addr[1] ^ addr[2] ^ addr[3] ^ p->dport) * 0x9e3779b1 >> 26, second = now >> 30;
	struct destination *d = bpf_map_lookup_elem(&destinations, &key);

	_Static_assert(DESTINATION_SLOTS == 1 << (32 - 26), "key is in range");
	if (!d)
		return NULL;
	if (d->second != second || d->port != p->dport || d->ifindex != ifindex || d->addr[0] != addr[0] ||
	    d->addr[1] != addr[1] || d->addr[2] != addr[2] || d->addr[3] != addr[3]) {
		__builtin_memcpy(d->addr, addr, 16);
		d->port = p->dport;
		d->ifindex = ifindex;
		d->second = second;
		d->ours = routed_here(ctx, ifindex, t, p->v6);
		d->listener = 0;
	}
	return d->ours ? d : NULL;
}

static __always_inline bool endpoints(const struct bpf_sock_tuple *t, bool v6)
{
	return v6 ? endpoint6(t->ipv6.saddr) && endpoint6(t->ipv6.daddr) :
		    endpoint4(t->ipv4.saddr) && endpoint4(t->ipv4.daddr);
}

/*
 * Sum of the TCP header with its options and the pseudo-header. 0xffff: sound.
 * The pseudo-header's sum alone in the field: CHECKSUM_PARTIAL.
 */
static __always_inline bool tcp_sum_sound(const struct packet *p, const struct tcp *tcp, const void *data_end,
					  u64 pseudo, bool may_be_partial)
{
	const __be32 *option = (const void *)(tcp + 1);
	u64 sum = pseudo;

	if (p->tcp_len != p->header_len)
		return true; /* has payload: summing it would cost more than answering it */
	if (may_be_partial && tcp->csum == csum_fold(pseudo))
		return true;
	sum += csum_words(tcp, 5);
#pragma unroll
	for (u32 i = 0; i < TCP_OPTIONS_MAX / 4; i++) {
		if (sizeof(*tcp) + i * 4 >= p->header_len)
			break;
		if ((const void *)(option + i + 1) > data_end)
			return false;
		sum += option[i];
	}
	return csum_fold(sum) == 0xffff;
}

/* Whether the kernel would have taken this packet: header sums right. Unsound ones are its to drop. */
static __always_inline bool sound(const struct packet *p, void *data, void *data_end, u32 l3, bool summed,
				  bool may_be_partial)
{
	u64 len = bpf_htonl(p->tcp_len);

	if (p->v6) {
		const struct ipv6 *ip = data + l3;
		const struct tcp *tcp = (void *)(ip + 1);

		if ((void *)(tcp + 1) > data_end)
			return false;
		return summed || tcp_sum_sound(p, tcp, data_end,
					       csum_words(ip->saddr, 8) + len + bpf_htonl(IPPROTO_TCP),
					       may_be_partial);
	}
	const struct ipv4 *ip = data + l3;
	const struct tcp *tcp = (void *)(ip + 1);

	if ((void *)(tcp + 1) > data_end || !ipv4_header_sound(ip))
		return false;
	return summed || tcp_sum_sound(p, tcp, data_end,
				       csum_words(&ip->saddr, 2) + len + bpf_htonl(IPPROTO_TCP), may_be_partial);
}

static __always_inline bool sound_skb(struct __sk_buff *skb, const struct packet *p, u32 l3)
{
	u8 state = checksum_state(skb);

	return sound(p, skb_start(skb), skb_end(skb), l3,
		     state == CHECKSUM_UNNECESSARY || state == CHECKSUM_PARTIAL, false);
}

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

static __always_inline u32 answer_len(const struct packet *p, u32 l3, const struct answer *a)
{
	return l3 + (p->v6 ? sizeof(struct ipv6) : sizeof(struct ipv4)) + a->header_len + a->reason_len;
}

/* Makes the packet the answer. Returns 0, or -1: then the packet is unchanged but for its tail. */
static __always_inline int answer_skb(struct __sk_buff *skb, const struct packet *p, u32 l3, struct answer *a,
				      const void *reason, const __be32 *options)
{
	u32 len = answer_len(p, l3, a);
	void *data, *data_end;

	a->partial = checksum_state(skb) == CHECKSUM_PARTIAL;
	if (CTX_LOAD(skb, len) != len && bpf_skb_change_tail(skb, len, 0))
		return -1;
	/* A driver may have left the header shared with a clone (tcpdump) or in fragments. */
	if (skb_end(skb) - skb_start(skb) < len && bpf_skb_pull_data(skb, len))
		return -1;
	data = skb_start(skb);
	data_end = skb_end(skb);
	return p->v6 ? answer_write(data, data_end, l3, true, a, reason, options) :
		       answer_write(data, data_end, l3, false, a, reason, options);
}

/* The answer to a packet that needs no trace at the server: sent back instead of it. */
static __always_inline int answer_instead(struct __sk_buff *skb, const struct packet *p, u32 l3,
					  struct answer *a, const void *reason, const __be32 *options)
{
	if (answer_skb(skb, p, l3, a, reason, options))
		return PASS;
	return bpf_redirect(CTX_LOAD(skb, ifindex), 0);
}

/*
 * Ends a connection that both sides know: a RST to the client, and the packet
 * itself becomes the client's RST to the server. seq and ack as they stand in
 * the client's packet, host order.
 */
static __always_inline int reset_both(struct __sk_buff *skb, const struct packet *p, u32 l3, u32 seq, u32 ack,
				      const void *reason, bool say_reason)
{
	struct answer to_client = { .seq = ack, .flags = FLAG_RST, .header_len = sizeof(struct tcp),
				    .reason_len = say_reason ? REASON_LEN : 0 };
	struct answer to_server = { .seq = seq, .flags = FLAG_RST, .header_len = sizeof(struct tcp) };

	if (answer_skb(skb, p, l3, &to_client, reason, NULL))
		return PASS;
	bpf_clone_redirect(skb, CTX_LOAD(skb, ifindex), 0);
	if (answer_skb(skb, p, l3, &to_server, NULL, NULL))
		return TC_DROP;
	return PASS;
}

/* Fills an event in; the caller has seen to it that there are few. NULL: the ring is full. */
static __always_inline struct guard_event *event_begin(const struct listener_policy *l, u32 class, enum verdict v,
						       const struct bpf_sock_tuple *t, bool v6)
{
	struct guard_event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);

	if (!e)
		return NULL;
	__builtin_memset(e, 0, sizeof(*e));
	if (v6) {
		__builtin_memcpy(e->saddr, t->ipv6.saddr, 16);
		__builtin_memcpy(e->daddr, t->ipv6.daddr, 16);
	} else {
		e->saddr[2] = e->daddr[2] = bpf_htonl(0xffff);
		e->saddr[3] = t->ipv4.saddr;
		e->daddr[3] = t->ipv4.daddr;
	}
	e->class = class;
	e->sport = bpf_ntohs(v6 ? t->ipv6.sport : t->ipv4.sport);
	e->dport = bpf_ntohs(v6 ? t->ipv6.dport : t->ipv4.dport);
	e->listener = l->counters;
	e->verdict = v;
	e->observe = l->observe;
	return e;
}

static __always_inline void sample(struct listen_state *s, const struct listener_policy *l, u32 class,
				   enum verdict v, const struct bpf_sock_tuple *t, bool v6,
				   const struct queue_view *q, u64 now)
{
	struct guard_event *e;

	/* These are examples, the counters count. */
	if (now - s->event_ns < EVENT_EVERY_NS)
		return;
	s->event_ns = now;
	e = event_begin(l, class, v, t, v6);
	if (!e)
		return;
	e->queue_length = q->length;
	e->queue_limit = q->limit;
	e->half_open = q->half_open;
	e->wait_us = wait_now(&s->wait, q->length) / 1000;
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
}

#endif
