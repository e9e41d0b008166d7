/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * front.bpf.h - the XDP front: refuses in the driver what tc would refuse,
 * before receive steering and the queues behind it, and off the server's core.
 *
 * It makes tc's decision, on SYNs and, while cookies are out, on final ACKs.
 * Who is let by counts as under way (fronted - front_seen) until tc sees it;
 * tc then decides with claims, exactly. So the front may err to both sides by
 * what is lost in between, and for FRONT_LOST_NS only.
 */
#ifndef WEIR_FRONT_BPF_H
#define WEIR_FRONT_BPF_H

#define FRONT_L3 ((u32)sizeof(struct ethernet))

static __always_inline bool xdp_tuple(struct xdp_md *xdp, const struct packet *p, struct bpf_sock_tuple *t)
{
	void *data = xdp_start(xdp), *data_end = xdp_end(xdp);

	__builtin_memset(t, 0, sizeof(*t));
	if (p->v6) {
		if (data + FRONT_L3 + sizeof(struct ipv6) > data_end)
			return false;
	} else if (data + FRONT_L3 + sizeof(struct ipv4) > data_end) {
		return false;
	}
	tuple_of(t, p, data + FRONT_L3);
	return true;
}

static __always_inline u32 xdp_seq(struct xdp_md *xdp, const struct packet *p, u32 *ack)
{
	void *data = xdp_start(xdp), *data_end = xdp_end(xdp);

	return p->v6 ? tcp_seq(data, data_end, FRONT_L3, true, ack) :
		       tcp_seq(data, data_end, FRONT_L3, false, ack);
}

/* Sound headers, and addresses that can be ends: then weir may answer. */
static __always_inline bool xdp_answerable(struct xdp_md *xdp, const struct packet *p,
					   const struct bpf_sock_tuple *t)
{
	/* A packet from this machine may carry the pseudo-header's sum only (veth). */
	return sound(p, xdp_start(xdp), xdp_end(xdp), FRONT_L3, false, true) && endpoints(t, p->v6);
}

static __always_inline int xdp_answer(struct xdp_md *xdp, const struct packet *p, const struct answer *a,
				      const void *reason, const __be32 *options)
{
	int grow = (int)answer_len(p, FRONT_L3, a) - (int)(xdp_end(xdp) - xdp_start(xdp));

	if (grow && bpf_xdp_adjust_tail(xdp, grow))
		return XDP_PASS;
	if (p->v6 ? answer_write(xdp_start(xdp), xdp_end(xdp), FRONT_L3, true, a, reason, options) :
		    answer_write(xdp_start(xdp), xdp_end(xdp), FRONT_L3, false, a, reason, options))
		return XDP_PASS;
	return XDP_TX;
}

static __always_inline int front_refuse_syn(struct xdp_md *xdp, const struct listener_policy *l,
					    const struct packet *p, const struct bpf_sock_tuple *t,
					    enum verdict v, u64 now)
{
	struct xdp_buff *k = bpf_cast_to_kern_ctx(xdp);
	__be32 options[SYNACK_HEADER / 4 - 5] = {};
	u32 ack = 0, isn = xdp_seq(xdp, p, &ack), len;
	struct option_walk w = {};
	struct answer a = {};

	if (sends_cookie(v)) {
		len = p->header_len - sizeof(struct tcp);
		if (len && len <= TCP_OPTIONS_MAX &&
		    !bpf_xdp_load_bytes(xdp, p->l4 + sizeof(struct tcp), w.buf, len))
			w.len = len;
		cookie_answer(&a, options, &w, t, p->v6, isn, k->rxq->dev->mtu, now);
		watch_acks(now);
	} else if (sends_rst(v)) {
		rst_to_syn(&a, p, isn, l);
	} else {
		return XDP_DROP;
	}
	return xdp_answer(xdp, p, &a, reason_for(v), options);
}

/* As view_queue(), without a claim of its own and with those under way to tc. */
static __always_inline void front_view(struct xdp_md *xdp, struct listen_state *s, const struct tcp_sock *tp,
				       const struct listener_policy *l, struct queue_view *q, u64 now)
{
	u32 extra = inflight_behind_front(s, now);

	view_read(s, tp, q, 0, extra);
	if (q->claims == extra || !reserves(l) || !claims_matter(l, q, extra))
		return;
	claims_resolve_xdp(xdp, s, now);
	view_read(s, tp, q, 0, extra);
}

static __always_inline int let_by_front(struct listen_state *s)
{
	__sync_fetch_and_add(&s->fronted, 1);
	return XDP_PASS;
}

static __always_inline enum verdict front_judge(struct xdp_md *xdp, struct listen_state *s,
						const struct tcp_sock *tp, const struct listener_policy *l,
						struct queue_view *q, bool time_wait, u64 now)
{
	bool cookies = !tp->is_mptcp && !time_wait && policy_in_force()->cookies;

	front_view(xdp, s, tp, l, q, now);
	return syn_verdict(l, q, waits_too_long(s, l, q, now), cookies, flooded(s, now));
}

static __always_inline int front_syn(struct xdp_md *xdp, const struct listener_policy *l, const struct packet *p)
{
	enum verdict v = VERDICT_syn_admitted;
	const struct tcp_sock *tp, *known;
	struct listen_state *s = NULL;
	struct queue_view q = {};
	u64 now = clock_ns();
	struct bpf_sock_tuple t;
	struct destination *d;
	struct bpf_sock *sk;
	bool mptcp, time_wait;

	if (!xdp_tuple(xdp, p, &t))
		return XDP_PASS;
	d = destination_of(xdp, CTX_LOAD(xdp, ingress_ifindex), p, &t, now);
	if (!d)
		return XDP_PASS;
	known = listener_remembered(d);
	if (known)
		s = queue_state((u64)known, now);
	if (s) {
		v = front_judge(xdp, s, known, l, &q, false, now);
		if (v == VERDICT_syn_admitted || left_to_kernel(v))
			return let_by_front(s);
	}
	sk = listener_behind(xdp, flow_lookup(xdp, &t, p->v6), &t, p->v6, &time_wait);
	if (!sk)
		return XDP_PASS;
	if (sk->state != TCP_LISTEN) {
		bpf_sk_release(sk);
		/* tc will count it too, if it knows the listener. */
		return s ? let_by_front(s) : XDP_PASS;
	}
	tp = listener_read(sk);
	s = queue_state((u64)tp, now);
	if (!s) {
		bpf_sk_release(sk);
		return XDP_PASS;
	}
	mptcp = tp->is_mptcp;
	if (tp != known)
		listener_remember(d, tp);
	if (tp != known || time_wait)
		v = front_judge(xdp, s, tp, l, &q, time_wait, now);
	bpf_sk_release(sk);
	if (v == VERDICT_syn_admitted || left_to_kernel(v) || l->observe || !xdp_answerable(xdp, p, &t))
		return let_by_front(s);
	count(l, v);
	note_flood(s, v, now);
	count(l, VERDICT_refused_at_xdp);
	if (lacks_mptcp_cookie(l, mptcp, v))
		count(l, VERDICT_fallback_mptcp);
	sample(s, l, v, &t, p->v6, &q, now);
	return front_refuse_syn(xdp, l, p, &t, v, now);
}

/* Cookies that the front let by once are tc's: their data must not count as under way again. */
static __always_inline int front_cookie_ack(struct xdp_md *xdp, const struct listener_policy *l,
					    const struct packet *p, const struct bpf_sock_tuple *t,
					    const struct tcp_sock *tp, struct listen_state *s, u64 now)
{
	struct answer a = { .flags = FLAG_RST, .header_len = sizeof(struct tcp),
			    .reason_len = l->reason ? REASON_LEN : 0 };
	struct cookie_ack c = {};
	struct queue_view q = {};
	enum verdict v = VERDICT_ack_reset_full;
	u64 fingerprint;

	c.isn = xdp_seq(xdp, p, &a.seq) - 1;
	c.cookie = a.seq - 1;
	fingerprint = (u64)c.isn << 32 | c.cookie;
	if (*settled_slot(let_by, c.cookie) == fingerprint || !cookie_valid(t, p->v6, &c, now))
		return XDP_PASS;
	if (*settled_slot(refused, c.cookie) != fingerprint) {
		front_view(xdp, s, tp, l, &q, now);
		v = cookie_ack_verdict(l, &q, waits_too_long(s, l, &q, now));
		if (v == VERDICT_cookie_accepted || !xdp_answerable(xdp, p, t)) {
			*settled_slot(let_by, c.cookie) = fingerprint;
			return let_by_front(s);
		}
		*settled_slot(refused, c.cookie) = fingerprint;
		count(l, v);
		count(l, VERDICT_refused_at_xdp);
		sample(s, l, v, t, p->v6, &q, now);
	}
	return xdp_answer(xdp, p, &a, reason_for(v), NULL);
}

static __always_inline int front_ack(struct xdp_md *xdp, const struct listener_policy *l, const struct packet *p)
{
	u64 now = clock_ns();
	const struct tcp_sock *tp;
	struct bpf_sock_tuple t;
	struct listen_state *s;
	struct bpf_sock *sk;
	int action;

	if (!reserves(l) || l->observe || !xdp_tuple(xdp, p, &t))
		return XDP_PASS;
	sk = flow_lookup(xdp, &t, p->v6);
	if (!sk)
		return XDP_PASS;
	tp = listener_read(sk);
	s = sk->state == TCP_LISTEN ? queue_state((u64)tp, now) : NULL;
	action = s ? front_cookie_ack(xdp, l, p, &t, tp, s, now) : XDP_PASS;
	bpf_sk_release(sk);
	return action;
}

#endif
