// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * residence.bpf.c - the requests that a server has and has not answered: how many there are, how old they are, and how
 * many it answers. A server that accepts at once and then waits for something else has its queue there.
 *
 * No packet pays for it. residence_pass walks the sockets when user space reads its iterator. residence_state runs when
 * a TCP socket of this machine changes its state, and keeps what a connection takes with it as it ends: so a request of
 * a connection that came and went between two passes counts too.
 *
 * A socket is of the port that it has itself. So of a connection within this machine, from a proxy to its upstream, the
 * server's end counts and the proxy's does not.
 *
 * Loaded only where a listener has the setting.
 */
#include "lib/kernel.h"
#include "abi/residence.h"
#include "lib/clock.bpf.h"
#include "lib/export.bpf.h"
#include "lib/listener.bpf.h"
#include "lib/residence.h"
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "GPL";

EXPORT_TYPE(struct, residence_request);

#define TCP_SYN_RECV 3
#define TCP_FIN_WAIT1 4

/* 1 + the place of each port that is watched; 0: it is not. Written by user space. */
u8 places[65536];
struct residence_ended ended[WEIR_MAX_RESIDENCES];
struct residence_found found[WEIR_MAX_RESIDENCES];
/* When this pass began, and the one before; ticks. */
u32 began, began_before;

/* Whether the server may still owe this connection an answer. */
static __always_inline bool stands(int state)
{
	return state == TCP_ESTABLISHED || state == TCP_CLOSE_WAIT;
}

static __always_inline void talk_read(const struct tcp_sock *tp, struct talk *talk)
{
	talk->received = tp->inet_conn.icsk_ack.lrcvtime;
	talk->sent = tp->lsndtime;
	talk->segments_in = tp->data_segs_in;
	talk->segments_out = tp->data_segs_out;
	talk->rcv_nxt = tp->rcv_nxt;
	talk->snd_wl1 = tp->snd_wl1;
	talk->write_seq = tp->write_seq;
	talk->snd_una = tp->snd_una;
}

/*
 * A socket that a RST has closed has no skc_num any more. Before Linux 6.18 the verifier knew no bounds of a swapped
 * number.
 */
static __always_inline u32 port_of(const struct tcp_sock *tp)
{
	u32 port = bpf_ntohs(tp->inet_conn.icsk_inet.inet_sport);

	barrier_var(port);
	return port & 0xffff;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(residence_state, const struct sock *sk, int old, int new)
{
	struct residence_ended *of;
	const struct tcp_sock *tp;
	struct talk talk;
	u32 place, class;

	if (stands(old) == stands(new) || !in_own_namespace(&sk->__sk_common))
		return 0;
	tp = bpf_skc_to_tcp_sock((void *)sk);
	if (!tp)
		return 0;
	place = places[port_of(tp)];
	if (!place || place > WEIR_MAX_RESIDENCES)
		return 0;
	of = &ended[place - 1];
	if (stands(new)) {
		/* Of connections that this end opened the state before is another. */
		if (old == TCP_SYN_RECV)
			__sync_fetch_and_add(&of->opened, 1);
		return 0;
	}
	talk_read(tp, &talk);
	/* The client has closed it, and the server too now; or one of them has reset it. */
	if (is_outstanding(&talk) && new != TCP_FIN_WAIT1)
		__sync_fetch_and_add(&of->given_up, 1);
	__sync_fetch_and_add(&of->turns, turns_of(&talk));
	if (!short_answer(&talk))
		return 0;
	class = answer_class(talk.sent - talk.received);
	__sync_fetch_and_add(&of->answers[class], 1);
	/* A connection that was kept open says by its end nothing of the server now. */
	if ((u32)bpf_jiffies64() - talk.sent < ticks_per_second())
		__sync_fetch_and_add(&of->latest[class], 1);
	return 0;
}

SEC("iter/tcp")
int residence_pass(struct bpf_iter__tcp *ctx)
{
	struct residence_request request = {};
	struct sock_common *skc = ctx->sk_common;
	struct residence_found *of;
	struct tcp_sock *tp;
	struct talk talk;
	u32 place;

	if (!ctx->meta->seq_num) {
		began_before = began;
		began = bpf_jiffies64();
	}
	if (!skc || !(stands(skc->skc_state) || skc->skc_state == TCP_NEW_SYN_RECV || skc->skc_state == TCP_LISTEN))
		return 0;
	place = places[skc->skc_num];
	if (!place || place > WEIR_MAX_RESIDENCES)
		return 0;
	of = &found[place - 1];
	if (skc->skc_state == TCP_NEW_SYN_RECV) {
		of->fresh++;
		return 0;
	}
	if (skc->skc_state == TCP_LISTEN) {
		of->listening++;
		return 0;
	}
	tp = bpf_skc_to_tcp_sock(skc);
	if (!tp)
		return 0;
	talk_read(tp, &talk);
	of->connections++;
	of->turns += turns_of(&talk);
	request.age_ticks = (u32)bpf_jiffies64() - talk.received;
	if (!talk.segments_in && request.age_ticks < ticks_per_second())
		of->fresh++;
	if (first_answer(&talk) && (s32)(talk.sent - began_before) >= 0)
		of->first[answer_class(talk.sent - talk.received)]++;
	if (!is_outstanding(&talk) || is_arriving(&talk, request.age_ticks, ticks_per_second()))
		return 0;
	request.port = place - 1;
	/* accept() gives a connection its struct socket. */
	request.queued = !((struct sock *)tp)->sk_socket;
	bpf_seq_write(ctx->meta->seq, &request, sizeof(request));
	return 0;
}
