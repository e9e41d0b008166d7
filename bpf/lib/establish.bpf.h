/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * establish.bpf.h - the handshake: SYN, and the final ACK where it decides.
 */
#ifndef WEIR_ESTABLISH_BPF_H
#define WEIR_ESTABLISH_BPF_H

/* SYNs lost between the XDP front and tc (full receive backlog) stop counting as under way after this. */
#define FRONT_LOST_NS 10000000ULL
/* Cookies remembered, so that data right behind a final ACK meets the same verdict. */
#define SETTLED_SLOTS 4096

extern int bpf_sk_assign_tcp_reqsk(struct __sk_buff *skb, struct sock *sk, struct bpf_tcp_req_attrs *attrs,
				   int attrs__sz) __ksym __weak;

/* By cookie: ISN and cookie of a handshake that was accepted just now, or refused, or let by at the front. */
u64 accepted[SETTLED_SLOTS];
u64 refused[SETTLED_SLOTS];
u64 let_by[SETTLED_SLOTS];

static __always_inline void front_reached_tc(struct listen_state *s, const struct listener_policy *l, u64 now)
{
	if (!l->front_xdp)
		return;
	__sync_fetch_and_add(&s->front_seen, 1);
	s->front_seen_ns = now;
}

static __always_inline u64 inflight_behind_front(struct listen_state *s, u64 now)
{
	u64 seen = *(volatile u64 *)&s->front_seen, fronted = *(volatile u64 *)&s->fronted;
	s64 inflight = fronted - seen;

	if (inflight > 0 && now - s->front_seen_ns < FRONT_LOST_NS)
		return inflight;
	if (inflight)
		__sync_val_compare_and_swap(&s->front_seen, seen, fronted);
	return 0;
}

/* Whether the claims in the view stand between somebody and a place. Global: verified once. */
__noinline int claims_matter(const struct listener_policy *l, const struct queue_view *q, u32 extra)
{
	struct queue_view bare;

	if (!l || !q)
		return 0;
	bare = *q;
	bare.claims = extra;
	return place_free(l, &bare) != place_free(l, q) ||
	       place_free_of_young(l, &bare) != place_free_of_young(l, q) ||
	       half_reserved(l, &bare) != half_reserved(l, q);
}

/* Takes out the claims that the kernel counts by now. */
static __always_inline int claims_resolve(void *ctx, struct listen_state *s, u64 now)
{
	u32 i;

	if (!s)
		return 0;
	bpf_for(i, 0, nr_cpus)
		claim_resolve(ctx, s, i, now);
	return 0;
}

/* Global: verified once, not on every path to it. The verifier wants the context's type for that. */
__noinline int claims_resolve_skb(struct __sk_buff *skb, struct listen_state *s, u64 now)
{
	return claims_resolve(skb, s, now);
}

__noinline int claims_resolve_xdp(struct xdp_md *xdp, struct listen_state *s, u64 now)
{
	return claims_resolve(xdp, s, now);
}

/* own: 1 if the caller's claim is in s->claims already. extra: SYNs under way from the front. */
static __always_inline void view_read(struct listen_state *s, struct queue_view *q, u32 own, u32 extra)
{
	q->claims = claims_outstanding(s) - own + extra;
	queue_before(s, q);
}

/* Whether to take out claims that the kernel counts by now, and to read again. */
static __always_inline bool view_in_doubt(const struct listener_policy *l, const struct queue_view *q, u32 extra)
{
	return q->claims != extra && reserves(l) && claims_matter(l, q, extra);
}

/*
 * Reads the queue, and sees to it that no claim which the kernel counts by now
 * stands between the SYN and a place.
 */
static __always_inline void view_queue(struct __sk_buff *skb, struct listen_state *s,
				       const struct listener_policy *l, struct queue_view *q, u32 own, u64 now)
{
	view_read(s, q, own, 0);
	if (!view_in_doubt(l, q, 0))
		return;
	claims_resolve_skb(skb, s, now);
	view_read(s, q, own, 0);
}

/*
 * Follows a lookup to the listening socket behind a TIME-WAIT one, which a new
 * SYN may replace. No cookie then: its final ACK would find the TIME-WAIT one.
 */
static __always_inline struct bpf_sock *listener_behind(void *ctx, struct bpf_sock *sk, struct bpf_sock_tuple *t,
							bool v6, bool *time_wait)
{
	struct bpf_sock_tuple any = *t;

	*time_wait = sk && sk->state == TCP_TIME_WAIT;
	if (!*time_wait)
		return sk;
	bpf_sk_release(sk);
	/* No connection has port 0, so only a listener can match. */
	if (v6)
		any.ipv6.sport = 0;
	else
		any.ipv4.sport = 0;
	return flow_lookup(ctx, &any, v6);
}

struct option_walk {
	u8 buf[OPTION_BUFFER];
	u32 len;
	struct syn_options o;
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
static __always_inline u32 options_len(const struct packet *p)
{
	u32 len = p->header_len - sizeof(struct tcp);

	barrier_var(len);
	if (len > TCP_OPTIONS_MAX)
		return 0;
	barrier_var(len);
	return len;
}

/* Without options yet. */
static __always_inline struct option_walk *option_walk_begin(void)
{
	u32 key = 0;
	struct option_walk *w = bpf_map_lookup_elem(&option_walks, &key);

	if (w)
		w->len = 0;
	return w;
}

/* Global, so that the verifier looks at it once and not on every path that leads here. */
__noinline int walk_options(struct option_walk *w)
{
	u32 at = 0, i;

	if (!w)
		return 0;
	__builtin_memset(&w->o, 0, sizeof(w->o));
	w->o.wscale = COOKIE_NO_WSCALE;
	bpf_for(i, 0, TCP_OPTIONS_MAX) {
		if (at >= w->len || at >= TCP_OPTIONS_MAX)
			break;
		at = option_step(w->buf, at, w->len, &w->o);
	}
	return 0;
}

/* What this namespace's sysctls let the connection use of what the client offered. */
static __always_inline void agree_options(struct syn_options *o, const struct policy *policy)
{
	o->sack &= policy->tcp_sack;
	o->tstamp &= policy->tcp_tstamp;
	if (!policy->tcp_wscale)
		o->wscale = COOKIE_NO_WSCALE;
}

#define OPTION_PAD 0x01010101 /* four NOPs */

static __always_inline void synack_options(__be32 *to, const struct syn_options *o, u32 mtu, bool v6, u64 now)
{
	u32 mss = mtu - (v6 ? 60 : 40);

	if (mss > 0xffff)
		mss = 0xffff;
	to[0] = bpf_htonl(0x02040000 | mss);
	to[1] = o->sack ? bpf_htonl(0x01010402) : OPTION_PAD;
	to[2] = to[3] = to[4] = OPTION_PAD;
	if (o->tstamp) {
		to[1] = o->sack ? bpf_htonl(0x0402080a) : bpf_htonl(0x0101080a);
		to[2] = bpf_htonl(now / 1000000);
		to[3] = bpf_htonl(o->tsval);
	}
	if (o->wscale != COOKIE_NO_WSCALE)
		to[4] = bpf_htonl(0x01030300 | COOKIE_RCV_WSCALE);
}

/* The cookie's SYN/ACK: sequence number and options. w holds the client's options. */
static __always_inline void cookie_answer(struct answer *a, __be32 *options, struct option_walk *w,
					  const struct bpf_sock_tuple *t, bool v6, u32 isn, u32 mtu, u64 now)
{
	struct siphash_key key = { cookie_key.k0, cookie_key.k1 };
	struct flow f;

	walk_options(w);
	agree_options(&w->o, policy_in_force());
	flow_of(&f, t, v6);
	a->seq = cookie_make(&f, isn, now, &w->o, &key);
	a->ack = isn + 1;
	a->flags = FLAG_SYN | FLAG_ACK;
	a->header_len = SYNACK_HEADER;
	synack_options(options, &w->o, mtu, v6, now);
}

static __always_inline int send_cookie(struct __sk_buff *skb, const struct packet *p, u32 l3,
				       const struct bpf_sock_tuple *t, u32 isn, u64 now)
{
	struct sk_buff *k = bpf_cast_to_kern_ctx(skb);
	u32 len = options_len(p);
	__be32 options[SYNACK_HEADER / 4 - 5];
	struct option_walk *w = option_walk_begin();
	struct answer a = {};

	if (!w)
		return PASS;
	if (len && !bpf_skb_load_bytes(skb, p->l4 + sizeof(struct tcp), w->buf, len))
		w->len = len;
	cookie_answer(&a, options, w, t, p->v6, isn, k->dev->mtu, now);
	watch_acks(now);
	return answer_instead(skb, p, l3, &a, NULL, options);
}

static __always_inline bool flooded(const struct listen_state *s, u64 now)
{
	return now < s->flood_until_ns;
}

static __always_inline void note_flood(struct listen_state *s, enum verdict v, u64 now)
{
	if (v == VERDICT_cookie_sent_flood && now + FLOOD_NS - s->flood_until_ns > SECOND_NS)
		s->flood_until_ns = now + FLOOD_NS;
}

static __always_inline bool sends_cookie(enum verdict v)
{
	return v == VERDICT_cookie_sent || v == VERDICT_cookie_sent_flood;
}

static __always_inline bool sends_rst(enum verdict v)
{
	return v == VERDICT_syn_reset_full || v == VERDICT_syn_reset_wait || v == VERDICT_syn_reset_rate;
}

static __always_inline bool left_to_kernel(enum verdict v)
{
	return v == VERDICT_syn_left || v == VERDICT_syn_left_flood;
}

static __always_inline bool lacks_mptcp_cookie(const struct listener_policy *l, bool mptcp, enum verdict v)
{
	return mptcp && l->establish == ESTABLISH_NO_SYN_DROP && v != VERDICT_syn_admitted;
}

/* In observe mode the SYN went to the kernel; whether it was let in there is the kernel's rule. */
static __always_inline void account_passed(struct listen_state *s, const struct queue_view *q)
{
	if (!kernel_full(q))
		claim_not_needed(s);
}

static __always_inline u32 tcp_seq(void *data, void *data_end, u32 l3, bool v6, u32 *ack)
{
	struct tcp *tcp = data + l3 + (v6 ? sizeof(struct ipv6) : sizeof(struct ipv4));

	if ((void *)(tcp + 1) > data_end)
		return 0;
	*ack = bpf_ntohl(tcp->ack);
	return bpf_ntohl(tcp->seq);
}

static __always_inline u32 skb_seq(struct __sk_buff *skb, const struct packet *p, u32 l3, u32 *ack)
{
	void *data = skb_start(skb), *data_end = skb_end(skb);

	return p->v6 ? tcp_seq(data, data_end, l3, true, ack) : tcp_seq(data, data_end, l3, false, ack);
}

static __always_inline bool skb_tuple(struct __sk_buff *skb, const struct packet *p, u32 l3,
				      struct bpf_sock_tuple *t)
{
	void *data = skb_start(skb), *data_end = skb_end(skb);

	__builtin_memset(t, 0, sizeof(*t));
	if (data + l3 + (p->v6 ? sizeof(struct ipv6) : sizeof(struct ipv4)) > data_end)
		return false;
	if (p->v6) {
		if (data + l3 + sizeof(struct ipv6) > data_end)
			return false;
	} else if (data + l3 + sizeof(struct ipv4) > data_end) {
		return false;
	}
	tuple_of(t, p, data + l3);
	return true;
}

/*
 * A SYN's RST acknowledges it: seq 0, ack past the SYN and its data (RFC 9293,
 * Section 3.10.7.1). It keeps the SYN's length where it can: cutting a packet
 * takes longer than all the rest.
 */
static __always_inline void rst_to_syn(struct answer *a, const struct packet *p, u32 isn,
				       const struct listener_policy *l)
{
	u32 payload = p->tcp_len - p->header_len;

	a->seq = 0;
	a->ack = isn + 1 + payload;
	a->flags = FLAG_RST | FLAG_ACK;
	a->header_len = payload || l->reason ? sizeof(struct tcp) : p->header_len;
	a->reason_len = l->reason ? REASON_LEN : 0;
}

/* A SYN while it is judged. */
struct syn {
	const struct listener_policy *l;
	const struct packet *p;
	u64 now;
	const struct tcp_sock *known;	/* the listening socket that this second's lookup found; NULL: not known */
	struct listen_state *s;		/* of the socket that it is judged for; NULL: not judged */
	struct queue_view q;		/* that socket's queue, as it was judged */
	enum verdict v;
	u32 class;			/* slot of its class; WEIR_NO_CLASS: the listener has none */
	bool mptcp;
	bool time_wait;			/* its flow stands in TIME-WAIT here */
};

/* Whether the listening socket of its destination is known without a lookup. */
static __always_inline bool syn_recall(struct syn *x, const struct destination *d)
{
	x->known = listener_remembered(d);
	x->s = x->known ? queue_state((u64)x->known, x->now) : NULL;
	return x->s;
}

/* The socket to which the kernel would give the SYN. Release what it returns. */
static __always_inline struct bpf_sock *syn_lookup(void *ctx, struct syn *x, struct bpf_sock_tuple *t)
{
	return listener_behind(ctx, flow_lookup(ctx, t, x->p->v6), t, x->p->v6, &x->time_wait);
}

/* The lookup found this listening socket. Returns false when there is no slot for its queue. */
static __always_inline bool syn_found(struct syn *x, struct destination *d, const struct tcp_sock *tp)
{
	x->mptcp = tp->is_mptcp;
	if (tp != x->known) {
		listener_remember(d, tp);
		x->s = queue_state_of(tp, x->now);
	}
	return x->s;
}

/* What syn_recall() allowed to say without the lookup does not hold: another socket, or no cookie. */
static __always_inline bool judged_otherwise(const struct syn *x, const struct tcp_sock *tp)
{
	return tp != x->known || x->time_wait;
}

static __always_inline bool cookie_possible(const struct syn *x, const struct tcp_sock *tp)
{
	return !tp->is_mptcp && !x->time_wait && policy_in_force()->cookies;
}

static __always_inline void count_syn(const struct syn *x, enum verdict v)
{
	count_for(x->l, x->class, v);
}

/* Counts a SYN that is not admitted. */
static __always_inline void note_verdict(struct syn *x, const struct bpf_sock_tuple *t)
{
	count_syn(x, x->v);
	note_flood(x->s, x->v, x->now);
	if (lacks_mptcp_cookie(x->l, x->mptcp, x->v))
		count_syn(x, VERDICT_fallback_mptcp);
	if (!left_to_kernel(x->v))
		sample(x->s, x->l, x->class, x->v, t, x->p->v6, &x->q, x->now);
}

static __always_inline int refuse_syn(struct __sk_buff *skb, const struct syn *x, u32 l3,
				      const struct bpf_sock_tuple *t)
{
	struct answer a = {};
	u32 ack = 0, isn = skb_seq(skb, x->p, l3, &ack);

	if (sends_cookie(x->v))
		return send_cookie(skb, x->p, l3, t, isn, x->now);
	if (!sends_rst(x->v))
		return TC_DROP;
	rst_to_syn(&a, x->p, isn, x->l);
	return answer_instead(skb, x->p, l3, &a, reason_for(x->v), NULL);
}

/*
 * The verdict on a SYN for this listening socket. When it is "admitted", a
 * claim is made: then no other CPU can take the same place.
 */
static __always_inline void judge_syn(struct __sk_buff *skb, struct syn *x, const struct tcp_sock *tp)
{
	bool cookies = cookie_possible(x, tp), waiting;
	const struct listener_policy *l = x->l;
	struct listen_state *s = x->s;

	view_queue(skb, s, l, &x->q, 0, x->now);
	waiting = waits_too_long(s, l, &x->q, x->now);
	x->v = syn_verdict(l, &x->q, waiting, cookies, flooded(s, x->now));
	if (x->v != VERDICT_syn_admitted)
		return;
	claim_begin(s);
	view_queue(skb, s, l, &x->q, 1, x->now);
	waiting = wait_refuses(&s->wait, x->now, x->q.length, l->target_wait_ns);
	x->v = syn_verdict(l, &x->q, waiting, cookies, flooded(s, x->now));
	if (x->v != VERDICT_syn_admitted)
		claim_cancel(s);
}

static __always_inline int admit_syn(const struct syn *x, const struct bpf_sock_tuple *t)
{
	claim_commit(x->s, t, x->p->v6, x->now);
	if (!reserves(x->l) || x->l->overbook_1024)
		watch_acks(x->now);
	count_syn(x, VERDICT_syn_admitted);
	return PASS;
}

/* No action of tc or XDP: the SYN is to be refused, as its verdict says. */
#define REFUSE (-2)

static __always_inline int turn_away(struct __sk_buff *skb, struct syn *x, u32 l3, const struct bpf_sock_tuple *t)
{
	if (!sound_skb(skb, x->p, l3) || !endpoints(t, x->p->v6))
		return PASS;
	note_verdict(x, t);
	if (x->l->observe || left_to_kernel(x->v)) {
		account_passed(x->s, &x->q);
		return PASS;
	}
	return REFUSE;
}

static __always_inline int pass_syn(const struct syn *x, enum verdict v)
{
	count_syn(x, v);
	return PASS;
}

/* A SYN over its class's rate. In observe mode the kernel gets it, as account_passed() says. */
static __always_inline int turn_away_by_rate(struct __sk_buff *skb, struct syn *x, u32 l3, struct destination *d,
					     const struct bpf_sock_tuple *t)
{
	if (!sound_skb(skb, x->p, l3) || !endpoints(t, x->p->v6))
		return PASS;
	count_syn(x, x->v);
	sample_rate(x->l, x->class, x->v, t, x->p->v6, x->now);
	if (!x->l->observe)
		return REFUSE;
	if (syn_recall(x, d)) {
		queue_read(x->known, &x->q);
		account_passed(x->s, &x->q);
	}
	return PASS;
}

/* Nobody is refused before it is known that no handshake or connection is meant. */
static __always_inline int decide_by_lookup(struct __sk_buff *skb, struct syn *x, u32 l3, struct destination *d,
					    struct bpf_sock_tuple *t)
{
	struct bpf_sock *sk = syn_lookup(skb, x, t);
	const struct tcp_sock *tp;

	if (!sk)
		return pass_syn(x, VERDICT_syn_unheard);
	tp = listener_read(sk);
	if (sk->state != TCP_LISTEN) {
		bpf_sk_release(sk);
		return pass_syn(x, VERDICT_syn_repeated);
	}
	if (!syn_found(x, d, tp)) {
		bpf_sk_release(sk);
		return pass_syn(x, VERDICT_syn_unjudged);
	}
	if (tp != x->known)
		front_reached_tc(x->s, x->l, x->now);
	if (judged_otherwise(x, tp))
		judge_syn(skb, x, tp);
	bpf_sk_release(sk);
	return x->v == VERDICT_syn_admitted ? admit_syn(x, t) : turn_away(skb, x, l3, t);
}

static __always_inline int judge(struct __sk_buff *skb, struct syn *x, u32 l3, struct destination *d,
				 struct bpf_sock_tuple *t)
{
	if (polices(x->l) && !policed_at_front(x->l, skb)) {
		int over = police(x->class, class_copy(x->l));

		if (over) {
			x->v = rate_verdict(x->l, over);
			return turn_away_by_rate(skb, x, l3, d, t);
		}
	}
	if (syn_recall(x, d)) {
		front_reached_tc(x->s, x->l, x->now);
		judge_syn(skb, x, x->known);
		if (x->v == VERDICT_syn_admitted)
			return admit_syn(x, t);
	}
	return decide_by_lookup(skb, x, l3, d, t);
}

static __always_inline int on_syn(struct __sk_buff *skb, const struct listener_policy *l, const struct packet *p,
				  u32 l3)
{
	struct syn x = { .l = l, .p = p, .now = clock_ns() };
	struct bpf_sock_tuple t;
	struct destination *d;
	int action;

	if (!skb_tuple(skb, p, l3, &t))
		return PASS;
	d = destination_of(skb, CTX_LOAD(skb, ifindex), p, &t, x.now);
	if (!d)
		return PASS;
	x.class = class_for(l, &t, p->v6);
	judge_as(x.class);
	action = judge(skb, &x, l3, d, &t);
	return action == REFUSE ? refuse_syn(skb, &x, l3, &t) : action;
}

static __always_inline void cookie_attrs(struct bpf_tcp_req_attrs *attrs, const struct syn_options *o)
{
	attrs->mss = o->mss;
	attrs->rcv_wscale = COOKIE_RCV_WSCALE;
	attrs->wscale_ok = o->wscale != COOKIE_NO_WSCALE;
	attrs->snd_wscale = attrs->wscale_ok ? o->wscale : 0;
	if (!attrs->wscale_ok)
		attrs->rcv_wscale = 0;
	attrs->sack_ok = o->sack;
	attrs->tstamp_ok = o->tstamp;
	attrs->rcv_tsval = o->tsval;
	attrs->rcv_tsecr = o->tsecr;
}

/* Timestamps of the ACK itself: it carries them exactly when the SYN/ACK did. */
static __always_inline void ack_timestamps(struct __sk_buff *skb, const struct packet *p, struct syn_options *o)
{
	u32 len = options_len(p);
	struct option_walk *w = option_walk_begin();

	o->tstamp = 0;
	if (!w || !len || bpf_skb_load_bytes(skb, p->l4 + sizeof(struct tcp), w->buf, len))
		return;
	w->len = len;
	walk_options(w);
	o->tstamp = w->o.tstamp;
	o->tsval = w->o.tsval;
	o->tsecr = w->o.tsecr;
}

/* What a final ACK says of the cookie that it answers. */
struct cookie_ack {
	u32 isn;
	u32 cookie;
	struct syn_options o;
};

/* seq, ack: of the ACK, host order. */
static __always_inline struct cookie_ack cookie_answered(u32 seq, u32 ack)
{
	struct cookie_ack c = { .isn = seq - 1, .cookie = ack - 1 };

	return c;
}

static __always_inline bool cookie_valid(const struct bpf_sock_tuple *t, bool v6, struct cookie_ack *c, u64 now)
{
	struct siphash_key key = { cookie_key.k0, cookie_key.k1 };
	struct flow f;

	flow_of(&f, t, v6);
	return cookie_check(&f, c->isn, c->cookie, now, &c->o, &key);
}

static __always_inline u64 *settled_slot(u64 *table, const struct cookie_ack *c)
{
	return &table[c->cookie >> 8 & (SETTLED_SLOTS - 1)];
}

static __always_inline bool settled(u64 *table, const struct cookie_ack *c)
{
	return *settled_slot(table, c) == ((u64)c->isn << 32 | c->cookie);
}

static __always_inline void settle(u64 *table, const struct cookie_ack *c)
{
	*settled_slot(table, c) = (u64)c->isn << 32 | c->cookie;
}

static __always_inline void note_refused_ack(struct listen_state *s, const struct listener_policy *l, enum verdict v,
					     const struct bpf_sock_tuple *t, bool v6, const struct queue_view *q,
					     u64 now)
{
	u32 class = class_for(l, t, v6);

	count_for(l, class, v);
	sample(s, l, class, v, t, v6, q, now);
}

static __always_inline int refuse_ack(struct __sk_buff *skb, const struct listener_policy *l,
				      const struct packet *p, u32 l3, u32 ack, enum verdict v)
{
	struct answer a = { .seq = ack, .flags = FLAG_RST, .header_len = sizeof(struct tcp),
			    .reason_len = l->reason ? REASON_LEN : 0 };

	return answer_instead(skb, p, l3, &a, reason_for(v), NULL);
}

/* Has the kernel make the connection from this ACK. The caller's claim is settled one way or the other. */
static __always_inline int accept_cookie(struct __sk_buff *skb, const struct listener_policy *l,
					 const struct packet *p, const struct bpf_sock_tuple *t,
					 struct cookie_ack *c, struct listen_state *s, struct tcp_sock *tp, u64 now)
{
	struct bpf_tcp_req_attrs attrs = {};

	ack_timestamps(skb, p, &c->o);
	cookie_attrs(&attrs, &c->o);
	if (bpf_sk_assign_tcp_reqsk(skb, (struct sock *)tp, &attrs, sizeof(attrs))) {
		claim_cancel(s);
		count_flow(l, t, p->v6, VERDICT_cookie_failed);
		return PASS;
	}
	claim_commit(s, t, p->v6, now);
	settle(accepted, c);
	count_flow(l, t, p->v6, VERDICT_cookie_accepted);
	return PASS;
}

/* A valid cookie's ACK that is seen for the first time. */
static __always_inline int judge_cookie_ack(struct __sk_buff *skb, const struct listener_policy *l,
					    const struct packet *p, u32 l3, const struct bpf_sock_tuple *t,
					    struct cookie_ack *c, struct listen_state *s, struct tcp_sock *tp, u64 now)
{
	struct queue_view q = {};
	enum verdict v;

	front_reached_tc(s, l, now);
	judge_as(class_for(l, t, p->v6));
	claim_begin(s);
	view_queue(skb, s, l, &q, 1, now);
	v = cookie_ack_verdict(l, &q, waits_too_long(s, l, &q, now));
	if (v == VERDICT_cookie_accepted)
		return accept_cookie(skb, l, p, t, c, s, tp, now);
	claim_cancel(s);
	note_refused_ack(s, l, v, t, p->v6, &q, now);
	settle(refused, c);
	return refuse_ack(skb, l, p, l3, c->cookie + 1, v);
}

/* An ACK for which only the listener was found, while cookies are out. */
static __always_inline int on_cookie_ack(struct __sk_buff *skb, const struct listener_policy *l,
					 const struct packet *p, u32 l3, const struct bpf_sock_tuple *t,
					 struct listen_state *s, struct tcp_sock *tp, u64 now)
{
	u32 ack = 0, seq = skb_seq(skb, p, l3, &ack);
	struct cookie_ack c = cookie_answered(seq, ack);

	if (!cookie_valid(t, p->v6, &c, now)) {
		count_flow(l, t, p->v6, VERDICT_cookie_invalid);
		return PASS;
	}
	if (settled(refused, &c))
		return refuse_ack(skb, l, p, l3, ack, VERDICT_ack_reset_full);
	/* Data in the same batch as its final ACK: the stack makes the connection from the ACK, just before. */
	if (settled(accepted, &c)) {
		*settled_slot(accepted, &c) = 0;
		return PASS;
	}
	return judge_cookie_ack(skb, l, p, l3, t, &c, s, tp, now);
}

/* Whether an ACK with these numbers is the one that the half-open connection waits for. */
static __always_inline bool request_ended_by(struct bpf_sock *sk, u32 seq, u32 ack)
{
	const struct tcp_request_sock *r = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct tcp_request_sock));

	return seq == r->rcv_isn + 1 && ack == r->snt_isn + 1;
}

/* The final ACK of a handshake that the kernel holds: abort, and reserv with overbooking. Releases sk. */
static __always_inline int on_request_ack(struct __sk_buff *skb, const struct listener_policy *l,
					  const struct packet *p, u32 l3, struct bpf_sock *sk,
					  struct bpf_sock_tuple *t, u64 now)
{
	struct bpf_sock *listener = bpf_get_listener_sock(sk);
	struct tcp_sock *tp = listener ? bpf_skc_to_tcp_sock(listener) : NULL;
	struct listen_state *s = tp ? queue_state((u64)tp, now) : NULL;
	struct queue_view q = {};
	bool ends_handshake;
	u32 ack = 0, seq;

	if (!s || l->establish == ESTABLISH_DEFAULT || l->draining) {
		bpf_sk_release(sk);
		return PASS;
	}
	queue_read(tp, &q);
	seq = skb_seq(skb, p, l3, &ack);
	ends_handshake = request_ended_by(sk, seq, ack);
	bpf_sk_release(sk);
	if (!kernel_full(&q) || !ends_handshake)
		return PASS;
	note_refused_ack(s, l, VERDICT_ack_reset_full, t, p->v6, &q, now);
	if (l->observe)
		return PASS;
	return reset_both(skb, p, l3, seq, ack, reason_full, l->reason);
}

/*
 * abort: an ACK for which only the listener was found, while its queue is full.
 * If it ends the handshake of a kernel's cookie, the kernel would drop it; if
 * not, the kernel would reset it too. Releases sk.
 */
static __always_inline int on_listener_ack(struct __sk_buff *skb, const struct listener_policy *l,
					   const struct packet *p, u32 l3, struct bpf_sock *sk,
					   const struct bpf_sock_tuple *t)
{
	const struct tcp_sock *tp = listener_read(sk);
	bool full = listener_length(tp) > listener_limit(tp);
	u32 ack = 0;

	bpf_sk_release(sk);
	if (!full || l->draining)
		return PASS;
	count_flow(l, t, p->v6, VERDICT_ack_reset_full);
	if (l->observe)
		return PASS;
	skb_seq(skb, p, l3, &ack);
	return refuse_ack(skb, l, p, l3, ack, VERDICT_ack_reset_full);
}

static __always_inline int on_ack(struct __sk_buff *skb, const struct listener_policy *l, const struct packet *p,
				  u32 l3)
{
	u64 now = clock_ns();
	struct bpf_sock_tuple t;
	struct listen_state *s;
	struct tcp_sock *tp;
	struct bpf_sock *sk;
	int action;

	/* A damaged or misdirected packet must not end a handshake. */
	if (ack_watch_over(now) || !skb_tuple(skb, p, l3, &t) || !sound_skb(skb, p, l3) || !endpoints(&t, p->v6) ||
	    !destination_of(skb, CTX_LOAD(skb, ifindex), p, &t, now))
		return PASS;
	sk = flow_lookup(skb, &t, p->v6);
	if (!sk)
		return PASS;
	if (sk->state == TCP_NEW_SYN_RECV)
		return on_request_ack(skb, l, p, l3, sk, &t, now);
	if (sk->state == TCP_LISTEN && l->establish == ESTABLISH_ABORT)
		return on_listener_ack(skb, l, p, l3, sk, &t);
	tp = sk->state == TCP_LISTEN && reserves(l) && !l->observe ? bpf_skc_to_tcp_sock(sk) : NULL;
	s = tp && bpf_ksym_exists(bpf_sk_assign_tcp_reqsk) ? queue_state_of(tp, now) : NULL;
	action = s ? on_cookie_ack(skb, l, p, l3, &t, s, tp, now) : PASS;
	bpf_sk_release(sk);
	return action;
}

#endif
