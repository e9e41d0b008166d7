/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * negotiate.bpf.h - timewait = negotiate (FTY99, Section 3): the ends agree at
 * the handshake which of them remembers the connection once it is closed.
 * negotiate.h decides.
 *
 * The option is written and read by timewait_ops (sock_ops at the root of the
 * cgroups, for the sockets of this network namespace alone):
 *
 *   connect()     a socket whose destination negotiates puts the offer in its SYN
 *   listen()      a listening socket of a listener's port may add options; those
 *                 that listened before get this from timewait_mark
 *   SYN/ACK       with the choice, if the SYN has an offer. The sender of a SYN
 *                 may be made to forget it by cookies, and needs to keep nothing
 *   established   the holder's socket reports its states from now on
 *   close         the holder makes its record before its FIN goes out, says so in
 *                 the FIN, and lets the record begin once the socket is closed
 *
 * What timewait_tc does with packets: forget.bpf.h.
 */
#ifndef WEIR_NEGOTIATE_BPF_H
#define WEIR_NEGOTIATE_BPF_H

#include "lib/ask.bpf.h"
#include "lib/negotiate.h"
#include "lib/timewait.bpf.h"
#include "lib/timewait.h"

#ifndef SOL_TCP
#define SOL_TCP 6
#endif
/* include/uapi/linux/tcp.h */
#ifndef TCP_SAVE_SYN
#define TCP_SAVE_SYN 27
#endif
/* include/uapi/linux/bpf.h. Where bpf_setsockopt() does not know it yet, timewait_mark counts `unmarked`. */
#define TCP_BPF_SOCK_OPS_CB_FLAGS 1008
#define ENOENT 2
/* Of a record whose connection is still closing. */
#define CLOSING (~0ULL)

/*
 * Of a socket that is to hold its connection's TIME-WAIT. The second flag asks
 * to be told of retransmission time-outs, which are rare: together they stand
 * for the agreement. Storage of the socket would take 300 bytes for as long as
 * the connection lasts. Another program that asks for both makes this end hold
 * where its rules negotiate, agreed or not: it has the record that it speaks of.
 */
#define HOLDS (BPF_SOCK_OPS_STATE_CB_FLAG | BPF_SOCK_OPS_RTO_CB_FLAG)

/*
 * Of a listening socket whose application has chosen the holder: HOLDS too if it is the server. A listening socket
 * retransmits nothing; a connection's does not keep the flag.
 */
#define CHOSEN BPF_SOCK_OPS_RETRANS_CB_FLAG

static __always_inline bool holds(u32 flags)
{
	return (flags & HOLDS) == HOLDS;
}

/* Where no application has asked for anything, the flag is another program's. */
static __always_inline bool is_chosen(u32 flags)
{
	return wished && flags & CHOSEN;
}

/* Whether this end's address is the larger one (Table 1). */
static __always_inline bool is_larger(const struct timewait_tuple *tuple)
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		u32 ours = bpf_ntohl(tuple->local[i]), theirs = bpf_ntohl(tuple->remote[i]);

		if (ours != theirs)
			return ours > theirs;
	}
	return false;
}

/*
 * What a table says of a port. The verifier of 6.12 knows nothing of a value whose bytes were swapped: the mask says
 * that it is a port, and the barrier keeps clang from leaving it out.
 */
static __always_inline u16 entry_of(const u16 *table, u32 port)
{
	barrier_var(port);
	return table[port & 0xffff];
}

/* Big endian. The context has it so in its upper half, and the local port in host order. */
static __always_inline __be16 remote_port_of(const struct bpf_sock_ops *ops)
{
	return bpf_htons(bpf_ntohl(CTX_LOAD(ops, remote_port)));
}

/* The connection of a socket, as this end sees it. */
static __always_inline void tuple_of(struct bpf_sock_ops *ops, struct timewait_tuple *tuple)
{
	__builtin_memset(tuple, 0, sizeof(*tuple));
	if (CTX_LOAD(ops, family) == AF_INET6) {
		tuple->local[0] = CTX_LOAD(ops, local_ip6[0]);
		tuple->local[1] = CTX_LOAD(ops, local_ip6[1]);
		tuple->local[2] = CTX_LOAD(ops, local_ip6[2]);
		tuple->local[3] = CTX_LOAD(ops, local_ip6[3]);
		tuple->remote[0] = CTX_LOAD(ops, remote_ip6[0]);
		tuple->remote[1] = CTX_LOAD(ops, remote_ip6[1]);
		tuple->remote[2] = CTX_LOAD(ops, remote_ip6[2]);
		tuple->remote[3] = CTX_LOAD(ops, remote_ip6[3]);
	} else {
		tuple->local[2] = tuple->remote[2] = bpf_htonl(0xffff);
		tuple->local[3] = CTX_LOAD(ops, local_ip4);
		tuple->remote[3] = CTX_LOAD(ops, remote_ip4);
	}
	tuple->local_port = bpf_htons(CTX_LOAD(ops, local_port));
	tuple->remote_port = remote_port_of(ops);
}

static __always_inline void set_flags(struct bpf_sock_ops *ops, u32 add, u32 remove)
{
	bpf_sock_ops_cb_flags_set(ops, (CTX_LOAD(ops, bpf_sock_ops_cb_flags) & ~remove) | add);
}

static __always_inline struct tcp_sock *tcp_of(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;

	return sk ? bpf_skc_to_tcp_sock(sk) : NULL;
}

/* The rule of a socket's connection if it negotiates; -1: none. */
static __always_inline s32 negotiates(s32 rule)
{
	return rule >= 0 && rule_at(rule)->timewait == TIMEWAIT_NEGOTIATE ? rule : -1;
}

static __always_inline s32 rule_of_server(const struct timewait_tuple *tuple)
{
	u16 entry = entry_of(ports, tuple->remote_port);

	if (!(entry & WEIR_PORT_NEGOTIATES))
		return -1;
	return negotiates(rule_of(&prefixes, entry, tuple->remote_port, tuple->remote));
}

static __always_inline s32 rule_of_listener(const struct timewait_tuple *tuple)
{
	u16 entry = entry_of(own_ports, tuple->local_port);

	if (!(entry & WEIR_PORT_NEGOTIATES))
		return -1;
	return negotiates(rule_of(&own_prefixes, entry, tuple->local_port, tuple->local));
}

/* The rule of a connection that an application has opened, which may have asked for negotiation where no rule does. */
static __always_inline s32 rule_of_opened(const struct timewait_tuple *tuple)
{
	s32 rule = rule_of_server(tuple);

	return rule < 0 && wished ? WEIR_TIMEWAIT_ASKED : rule;
}

/*
 * The rule of a socket that has sent its SYN or its SYN/ACK; -1: its options are another program's, which may have set
 * the same flag.
 */
static __always_inline s32 rule_of_socket(struct bpf_sock_ops *ops, u32 flags)
{
	struct timewait_tuple tuple;
	s32 rule;

	tuple_of(ops, &tuple);
	rule = rule_of_listener(&tuple);
	if (rule < 0)
		rule = rule_of_server(&tuple);
	if (rule < 0 && wished && (holds(flags) || wish_of(ops) > WISH_OFF))
		rule = WEIR_TIMEWAIT_ASKED;
	return rule;
}

/* Flags of the listening socket to which a SYN came; 0 also where a SYN cookie is sent. */
static __always_inline u32 flags_of_listener(struct bpf_sock_ops *ops)
{
	struct bpf_sock_ops_kern *kernel;
	const struct request_sock *request;
	const struct tcp_sock *listener;

	if (!wished)
		return 0;
	kernel = bpf_cast_to_kern_ctx(ops);
	request = bpf_rdonly_cast(kernel->sk, bpf_core_type_id_kernel(struct request_sock));
	listener = bpf_rdonly_cast(request->__req_common.skc_listener, bpf_core_type_id_kernel(struct tcp_sock));
	return listener->bpf_sock_ops_cb_flags;
}

/* The rule of a connection to a listening socket with these flags. */
static __always_inline s32 rule_of_accepted(const struct timewait_tuple *tuple, u32 flags)
{
	s32 rule = rule_of_listener(tuple);

	return rule < 0 && is_chosen(flags) ? WEIR_TIMEWAIT_ASKED : rule;
}

/* The holder that such a listening socket chooses. */
static __always_inline u8 choice_by(u32 flags, s32 rule)
{
	if (is_chosen(flags))
		return tw_choice(holds(flags) ? HOLDER_SERVER : HOLDER_CLIENT);
	return tw_choice(rule_at(rule)->holder);
}

/*
 * Reads the option of a segment: the one at hand, or with BPF_LOAD_HDR_OPT_TCP_SYN the SYN. Phase 0: it has none.
 * Returns a negative error then; -ENOENT: the SYN is not known any more.
 */
static __always_inline int load_option(struct bpf_sock_ops *ops, u64 which, struct syn_options *options)
{
	u8 option[TW_OPTION_LEN] = {
		TW_OPTION_KIND, 6, TW_EXID >> 24, TW_EXID >> 16 & 0xff, TW_EXID >> 8 & 0xff, TW_EXID & 0xff
	};

	int loaded = bpf_load_hdr_opt(ops, option, sizeof(option), which);

	options->phase = options->holder = 0;
	if (loaded == TW_OPTION_LEN) {
		options->phase = option[6];
		options->holder = option[7];
	}
	return loaded;
}

/* Has timewait_tc look at the packets of a port of which no rule says so. Until user space writes the table anew. */
static __always_inline void let_by(u16 *table, u32 port)
{
	barrier_var(port);
	table[port & 0xffff] |= WEIR_PORT_NEGOTIATES;
}

static __always_inline void on_connect(struct bpf_sock_ops *ops)
{
	u32 wish = wish_of(ops);
	struct timewait_tuple tuple;
	struct tcp_sock *tp;

	if (wish == WISH_OFF)
		return;
	tuple_of(ops, &tuple);
	if (rule_of_server(&tuple) < 0) {
		if (wish == WISH_RULES)
			return;
		let_by(ports, tuple.remote_port);
	}
	tp = tcp_of(ops);
	if (tp && !is_mptcp(tp))
		set_flags(ops, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG, 0);
}

/* The flags that a listening socket is to have, by what its application has asked and by its port. */
static __always_inline u32 flags_by(u32 wish, u16 bits)
{
	switch (wish) {
	case WISH_RULES:
		return bits & WEIR_PORT_NEGOTIATES ? BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG : 0;
	case WISH_OFF:
		return 0;
	case WISH_SERVER:
		return BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG | CHOSEN | HOLDS;
	}
	return BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG | CHOSEN;
}

static __always_inline void on_listen(struct bpf_sock_ops *ops)
{
	u32 port = bpf_htons(CTX_LOAD(ops, local_port)), wish = wish_of(ops), flags;
	u16 bits = entry_of(own_ports, port);
	struct tcp_sock *tp;
	int one = 1;

	flags = flags_by(wish, bits);
	if (!flags)
		return;
	if (flags & CHOSEN)
		let_by(own_ports, port);
	set_flags(ops, flags, 0);
	/* For on_accepted(). The holder alone needs to know for sure. */
	if (!holds(flags) && (flags & CHOSEN || !(bits & WEIR_PORT_HOLDS)))
		return;
	tp = tcp_of(ops);
	if (tp && !BPF_CORE_READ_BITFIELD(tp, save_syn))
		bpf_setsockopt(ops, SOL_TCP, TCP_SAVE_SYN, &one, sizeof(one));
}

/* How long the options of a segment are to be. */
static __always_inline void on_length(struct bpf_sock_ops *ops)
{
	struct timewait_tuple tuple;
	struct syn_options options;
	int loaded;

	/* The SYN/ACK of a listening socket: an answer to those who ask. */
	if (!CTX_LOAD(ops, is_fullsock)) {
		tuple_of(ops, &tuple);
		if (rule_of_accepted(&tuple, flags_of_listener(ops)) < 0)
			return;
		loaded = load_option(ops, BPF_LOAD_HDR_OPT_TCP_SYN, &options);
		/* Of one that is sent once more the SYN is not kept: a client that did not ask overlooks the option. */
		if (options.phase != TW_OFFER && loaded != -ENOENT)
			return;
	} else if (rule_of_socket(ops, CTX_LOAD(ops, bpf_sock_ops_cb_flags)) < 0) {
		return;
	}
	bpf_reserve_hdr_opt(ops, TW_OPTION_LEN, 0);
}

static __always_inline void store_option(struct bpf_sock_ops *ops, u8 phase, u8 end)
{
	u8 option[TW_OPTION_LEN] = {
		TW_OPTION_KIND, TW_OPTION_LEN, TW_EXID >> 24, TW_EXID >> 16 & 0xff, TW_EXID >> 8 & 0xff, TW_EXID & 0xff,
		phase, tw_to_wire(end)
	};

	bpf_store_hdr_opt(ops, option, sizeof(option), 0);
}

static __always_inline void on_write(struct bpf_sock_ops *ops)
{
	u8 flags = CTX_LOAD(ops, skb_tcp_flags), state = CTX_LOAD(ops, state), phase;
	u32 asked = CTX_LOAD(ops, bpf_sock_ops_cb_flags);
	struct timewait_tuple tuple;
	s32 rule;

	if (!CTX_LOAD(ops, is_fullsock)) {
		tuple_of(ops, &tuple);
		asked = flags_of_listener(ops);
		rule = rule_of_accepted(&tuple, asked);
		if (rule >= 0)
			store_option(ops, TW_CHOICE, choice_by(asked, rule));
		return;
	}
	if (flags & FLAG_SYN) {
		tuple_of(ops, &tuple);
		rule = rule_of_opened(&tuple);
		if (rule >= 0)
			store_option(ops, TW_OFFER, tw_offer(accept_by(wish_of(ops), rule_at(rule)->accept)));
		return;
	}
	if (rule_of_socket(ops, asked) < 0)
		return;
	phase = holds(asked) ? tw_phase_of(state) : TW_AGREED;
	/* One segment confirms the choice; the holder's FIN is the next one with an option. */
	if (phase == TW_AGREED)
		set_flags(ops, 0, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
	store_option(ops, phase, holds(asked) ? TW_THIS_END : TW_OTHER_END);
}

/* The SYN/ACK has come. */
static __always_inline void on_opened(struct bpf_sock_ops *ops)
{
	struct timewait_tuple tuple;
	struct syn_options options;
	u8 end, accept;
	s32 rule;

	if (!(CTX_LOAD(ops, bpf_sock_ops_cb_flags) & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG))
		return;
	tuple_of(ops, &tuple);
	rule = rule_of_opened(&tuple);
	if (rule < 0)
		return;
	load_option(ops, 0, &options);
	accept = accept_by(wish_of(ops), rule_at(rule)->accept);
	end = tw_agreed(&options, tw_offer(accept), is_larger(&tuple));
	/* timewait_tc has seen to that, but where it is not attached. */
	if (end == TW_NO_END || !tw_accepts(accept, end)) {
		set_flags(ops, 0, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
		COUNT(rule, fallback);
	} else if (end == TW_THIS_END) {
		set_flags(ops, HOLDS, 0);
	}
}

/* The final ACK has come, or in its place a segment with data. */
static __always_inline void on_accepted(struct bpf_sock_ops *ops)
{
	u32 flags = CTX_LOAD(ops, bpf_sock_ops_cb_flags);
	struct timewait_tuple tuple;
	struct syn_options options;
	s32 rule;
	u8 choice;

	if (!(flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG))
		return;
	tuple_of(ops, &tuple);
	rule = rule_of_accepted(&tuple, flags);
	if (rule < 0)
		return;
	/* Of the listening socket. */
	set_flags(ops, 0, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG | (is_chosen(flags) ? CHOSEN | HOLDS : 0));
	choice = choice_by(flags, rule);
	load_option(ops, 0, &options);
	/* If the ACK was lost, the SYN has said that the other end can. */
	if (options.phase != TW_AGREED || tw_from_wire(options.holder) != choice) {
		load_option(ops, BPF_LOAD_HDR_OPT_TCP_SYN, &options);
		/* TCP Fast Open: no SYN/ACK with a choice goes out. */
		if (options.phase != TW_OFFER || (CTX_LOAD(ops, skb_tcp_flags) & FLAG_SYN)) {
			COUNT(rule, fallback);
			return;
		}
	}
	if (choice == TW_THIS_END)
		set_flags(ops, HOLDS, 0);
}

static __always_inline void fill_record(struct timewait_record *record, struct tcp_sock *tp)
{
	record->sent = last_sent(tp);
	record->received = tp->rx_opt.ts_recent;
	record->stamped = BPF_CORE_READ_BITFIELD(tp, rx_opt.tstamp_ok);
	record->snd_nxt = tp->write_seq;
	record->rcv_nxt = tp->rcv_nxt;
}

/* The holder's socket changes its state. */
static __always_inline void on_state(struct bpf_sock_ops *ops)
{
	u8 hold = tw_hold(CTX_LOAD(ops, args[0]), CTX_LOAD(ops, args[1]));
	struct timewait_record record = { .until_ns = CLOSING }, *known;
	struct timewait_tuple tuple;
	struct tcp_sock *tp;
	s32 rule;

	if (hold == TW_NO_CHANGE || !holds(CTX_LOAD(ops, bpf_sock_ops_cb_flags)))
		return;
	tuple_of(ops, &tuple);
	rule = rule_of_listener(&tuple);
	if (rule < 0)
		rule = rule_of_opened(&tuple);
	tp = tcp_of(ops);
	if (rule < 0 || !tp)
		return;
	record.rule = rule;
	if (hold == TW_BEGIN) {
		/*
		 * Only one that its FIN has spoken of: without it the other end is in TIME-WAIT, and fallback has it.
		 */
		known = record_of(&tuple);
		if (!known)
			return;
		fill_record(known, tp);
		known->rule = rule;
		/* Last: from then on it stands. */
		barrier();
		known->until_ns = bpf_ktime_get_ns() + rule_at(rule)->length_ns;
		return;
	}
	if (hold == TW_RESERVE) {
		fill_record(&record, tp);
		record.closing_s = bpf_ktime_get_ns() / TW_SECOND_NS;
		if (!record_made(&tuple, &record)) {
			COUNT(rule, fallback);
			return;
		}
	}
	set_flags(ops, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG, 0);
}

/* Most questions of the kernel are none of these, several for each connection of the machine: they end here. */
static __always_inline bool of_interest(const struct bpf_sock_ops *ops, u32 op)
{
	switch (op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		return wished || (entry_of(ports, remote_port_of(ops)) & WEIR_PORT_NEGOTIATES);
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		return true;
	/* Of connections here they matter only if this end has asked for something before. */
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		return CTX_LOAD(ops, bpf_sock_ops_cb_flags) & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
	case BPF_SOCK_OPS_STATE_CB:
		return tw_hold(CTX_LOAD(ops, args[0]), CTX_LOAD(ops, args[1])) != TW_NO_CHANGE;
	}
	return false;
}

SEC("sockops")
int timewait_ops(struct bpf_sock_ops *ops)
{
	u32 op = CTX_LOAD(ops, op);

	if (!of_interest(ops, op) || bpf_get_netns_cookie(ops) != netns)
		return 1;
	switch (op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		on_connect(ops);
		break;
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
		on_listen(ops);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		on_length(ops);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		on_write(ops);
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		on_opened(ops);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		on_accepted(ops);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		on_state(ops);
		break;
	}
	return 1;
}

/*
 * Run by user space when listeners have changed: sets and clears the flag of
 * listening sockets, which the kernel walks first, and has it keep their SYNs
 * where this end is to hold. A program may have asked for that itself; then it
 * stays. A byte, alone in its read, says that they are through.
 */
SEC("iter/tcp")
int timewait_mark(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct tcp_sock *tp;
	int flags, wanted, save;
	u32 *wish = NULL, own;
	u8 saves, end = 1;
	u16 bits;

	if (!skc)
		return 0;
	if (skc->skc_state != TCP_LISTEN) {
		bpf_seq_write(ctx->meta->seq, &end, sizeof(end));
		return 0;
	}
	bits = entry_of(own_ports, bpf_htons(skc->skc_num)) & WEIR_PORT_BITS;
	tp = bpf_skc_to_tcp_sock(skc);
	if (!tp)
		return 0;
	if (wished)
		wish = bpf_sk_storage_get(&wishes, tp, NULL, 0);
	own = flags_by(wish ? *wish : WISH_RULES, bits);
	flags = tp->bpf_sock_ops_cb_flags;
	if (!bits && !own && !is_chosen(flags))
		return 0;
	if (own & CHOSEN)
		let_by(own_ports, bpf_htons(skc->skc_num));
	wanted = flags & ~(BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG | (is_chosen(flags) ? CHOSEN | HOLDS : 0));
	wanted |= own;
	if (wanted != flags && bpf_setsockopt(tp, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &wanted, sizeof(wanted)) && own)
		unmarked++;
	if (own) {
		with_mptcp += is_mptcp(tp);
		with_fast_open += tp->inet_conn.icsk_accept_queue.fastopenq.max_qlen > 0;
	}
	save = own & CHOSEN ? holds(own) : own && (bits & WEIR_PORT_HOLDS);
	saves = BPF_CORE_READ_BITFIELD(tp, save_syn);
	if ((save && !saves) || ((bits & WEIR_PORT_HELD) && saves == 1))
		bpf_setsockopt(tp, SOL_TCP, TCP_SAVE_SYN, &save, sizeof(save));
	return 0;
}

#endif
