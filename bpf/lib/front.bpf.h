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

static __always_inline int front_refuse_syn(struct xdp_md *xdp, const struct syn *x, const struct bpf_sock_tuple *t)
{
	struct xdp_buff *k = bpf_cast_to_kern_ctx(xdp);
	__be32 options[SYNACK_HEADER / 4 - 5] = {};
	const struct packet *p = x->p;
	u32 ack = 0, isn = xdp_seq(xdp, p, &ack), len;
	struct option_walk *w;
	struct answer a = {};

	if (sends_cookie(x->v)) {
		w = option_walk_begin();
		if (!w)
			return XDP_PASS;
		len = options_len(p);
		if (len && !bpf_xdp_load_bytes(xdp, p->l4 + sizeof(struct tcp), w->buf, len))
			w->len = len;
		cookie_answer(&a, options, w, t, p->v6, isn, k->rxq->dev->mtu, x->now);
		watch_acks(x->now);
	} else if (sends_rst(x->v)) {
		rst_to_syn(&a, p, isn, x->l);
	} else {
		return XDP_DROP;
	}
	return xdp_answer(xdp, p, &a, reason_for(x->v), options);
}

/* As view_queue(), without a claim of its own and with those under way to tc. */
static __always_inline void front_view(struct xdp_md *xdp, struct listen_state *s, const struct listener_policy *l,
				       struct queue_view *q, u64 now)
{
	u32 extra = inflight_behind_front(s, now);

	view_read(s, q, 0, extra);
	if (!view_in_doubt(l, q, extra))
		return;
	claims_resolve_xdp(xdp, s, now);
	view_read(s, q, 0, extra);
}

static __always_inline int let_by_front(struct listen_state *s)
{
	__sync_fetch_and_add(&s->fronted, 1);
	return XDP_PASS;
}

static __always_inline void front_judge(struct xdp_md *xdp, struct syn *x, const struct tcp_sock *tp)
{
	bool waiting;

	front_view(xdp, x->s, x->l, &x->q, x->now);
	waiting = waits_too_long(x->s, x->l, &x->q, x->now);
	x->v = syn_verdict(x->l, &x->q, waiting, cookie_possible(x, tp), flooded(x->s, x->now));
}

static __always_inline bool front_lets_by(const struct syn *x)
{
	return x->v == VERDICT_syn_admitted || left_to_kernel(x->v);
}

/* As decide_by_lookup(). */
static __always_inline int front_decide_by_lookup(struct xdp_md *xdp, struct syn *x, struct destination *d,
						  struct bpf_sock_tuple *t)
{
	struct bpf_sock *sk = syn_lookup(xdp, x, t);
	const struct tcp_sock *tp;

	if (!sk)
		return XDP_PASS;
	tp = listener_read(sk);
	if (sk->state != TCP_LISTEN || !syn_found(x, d, tp)) {
		bpf_sk_release(sk);
		/* tc will count it too, if it knows the listener. */
		return x->s ? let_by_front(x->s) : XDP_PASS;
	}
	if (judged_otherwise(x, tp))
		front_judge(xdp, x, tp);
	bpf_sk_release(sk);
	if (front_lets_by(x) || x->l->observe || !xdp_answerable(xdp, x->p, t))
		return let_by_front(x->s);
	note_verdict(x, t);
	count_syn(x, VERDICT_refused_at_xdp);
	return REFUSE;
}

/*
 * Polices a SYN of a limited class and marks it for tc. Where it cannot be
 * marked, tc polices it, so that no token is taken twice.
 */
static __always_inline bool front_over_rate(struct xdp_md *xdp, struct syn *x, const struct bpf_sock_tuple *t)
{
	u32 copy = class_copy(x->l);
	int over;

	if (!class_limited(x->class, copy) || !mark_policed(xdp))
		return false;
	over = police(x->class, copy);
	x->v = rate_verdict(x->l, over);
	return over && xdp_answerable(xdp, x->p, t);
}

static __always_inline int front_decide(struct xdp_md *xdp, struct syn *x, struct destination *d,
					struct bpf_sock_tuple *t)
{
	if (polices(x->l) && !x->l->observe && front_over_rate(xdp, x, t)) {
		count_syn(x, x->v);
		count_syn(x, VERDICT_refused_at_xdp);
		sample_rate(x->l, x->class, x->v, t, x->p->v6, x->now);
		return REFUSE;
	}
	if (syn_recall(x, d)) {
		front_judge(xdp, x, x->known);
		if (front_lets_by(x))
			return let_by_front(x->s);
	}
	return front_decide_by_lookup(xdp, x, d, t);
}

static __always_inline int front_syn(struct xdp_md *xdp, const struct listener_policy *l, const struct packet *p)
{
	struct syn x = { .l = l, .p = p, .now = clock_ns() };
	struct bpf_sock_tuple t;
	struct destination *d;
	int action;

	if (!xdp_tuple(xdp, p, &t))
		return XDP_PASS;
	d = destination_of(xdp, CTX_LOAD(xdp, ingress_ifindex), p, &t, x.now);
	if (!d)
		return XDP_PASS;
	x.class = class_for(l, &t, p->v6);
	judge_as(x.class);
	action = front_decide(xdp, &x, d, &t);
	return action == REFUSE ? front_refuse_syn(xdp, &x, &t) : action;
}

/* Cookies that the front let by once are tc's: their data must not count as under way again. */
static __always_inline int front_cookie_ack(struct xdp_md *xdp, const struct listener_policy *l,
					    const struct packet *p, const struct bpf_sock_tuple *t,
					    const struct tcp_sock *tp, struct listen_state *s, u64 now)
{
	struct answer a = { .flags = FLAG_RST, .header_len = sizeof(struct tcp),
			    .reason_len = l->reason ? REASON_LEN : 0 };
	u32 seq = xdp_seq(xdp, p, &a.seq);
	struct cookie_ack c = cookie_answered(seq, a.seq);
	enum verdict v = VERDICT_ack_reset_full;
	struct queue_view q = {};

	if (settled(let_by, &c) || !cookie_valid(t, p->v6, &c, now))
		return XDP_PASS;
	if (!settled(refused, &c)) {
		judge_as(class_for(l, t, p->v6));
		front_view(xdp, s, l, &q, now);
		v = cookie_ack_verdict(l, &q, waits_too_long(s, l, &q, now));
		if (v == VERDICT_cookie_accepted || !xdp_answerable(xdp, p, t)) {
			settle(let_by, &c);
			return let_by_front(s);
		}
		settle(refused, &c);
		note_refused_ack(s, l, v, t, p->v6, &q, now);
		count_flow(l, t, p->v6, VERDICT_refused_at_xdp);
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
	s = sk->state == TCP_LISTEN ? queue_state_of(tp, now) : NULL;
	action = s ? front_cookie_ack(xdp, l, p, &t, tp, s, now) : XDP_PASS;
	bpf_sk_release(sk);
	return action;
}

#endif
