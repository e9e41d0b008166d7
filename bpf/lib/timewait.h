/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * timewait.h - when this end takes a connection's TIME-WAIT, and when it gives
 * way to a new connection. Pure; the model is weir_models::timewait.
 */
#ifndef WEIR_TIMEWAIT_H
#define WEIR_TIMEWAIT_H

#include "abi/timewait.h"
#include "lib/packet.h"
#include "lib/types.h"

/* include/net/tcp_states.h */
#define STATE_SYN_SENT 2
#define STATE_SYN_RECV 3
#define STATE_LAST_ACK 9

/* The socket for which a segment comes. Host order. */
struct closing {
	u32 write_seq;	/* the next sequence number of this end, its FIN counted */
	u32 rcv_nxt;	/* the next one of the other end */
	u8 state;
	u8 mptcp;	/* 1: a subflow of MPTCP, whose closing is not TCP's */
};

/*
 * Whether an ACK without data ends a passive close (FTY99, Section 4.1: the arc
 * from LAST-ACK): the other end has closed first, this end has closed too, and
 * the other end has all, its FIN included. It is in TIME-WAIT by now. snd_nxt
 * would not do in place of write_seq: it lags while the FIN is being sent.
 */
static __always_inline bool ends_passive_close(const struct closing *closing, u32 seq, u32 ack)
{
	return closing->state == STATE_LAST_ACK && !closing->mptcp && ack == closing->write_seq &&
	       seq == closing->rcv_nxt;
}

/*
 * Whether a SYN/ACK that acknowledges this number is for a socket that opens a connection: the number is that behind
 * its SYN, or behind data of it (TCP Fast Open). In SYN-RECEIVED if both ends open. snd_nxt would not do in place of
 * write_seq: it lags while the SYN is being sent.
 */
static __always_inline bool opens(u8 state, u32 snd_una, u32 write_seq, u32 ack)
{
	return (state == STATE_SYN_SENT || state == STATE_SYN_RECV) && (s32)(ack - snd_una) > 0 &&
	       (s32)(ack - write_seq) <= 0;
}

/* include/net/tcp.h: PAWS lets a segment through whose timestamp is older than the last one by so much. */
#define TCP_PAWS_WINDOW 1

/*
 * Whether PAWS (RFC 7323, Section 5) of a connection that begins with timestamp new drops all segments with
 * timestamps up to old: tcp_paws_check(), for which 0 is no timestamp.
 */
static __always_inline bool paws_drops(u32 old, u32 new)
{
	return new && (s32)(new - old) > TCP_PAWS_WINDOW;
}

/*
 * Whether a new connection of the same 4-tuple may begin before the record ends. seq, ack, options: of the other
 * end's SYN/ACK. In each direction old duplicates are dropped for their sequence numbers, if the new ones begin
 * behind them (RFC 1122, Section 4.2.2.13), or by PAWS for their timestamps (RFC 6191).
 */
static __always_inline bool record_yields(const struct timewait_record *record, u32 seq, u32 ack,
					  const struct syn_options *options)
{
	bool stamped = record->stamped && options->tstamp;

	return ((s32)(seq - record->rcv_nxt) > 0 || (stamped && paws_drops(record->received, options->tsval))) &&
	       ((s32)(ack - record->snd_nxt) > 0 || (stamped && paws_drops(record->sent, options->tsecr)));
}

/*
 * Whether a record of a listener's connection yields to a SYN: where the kernel's TIME-WAIT does, but not to a
 * timestamp alone by which PAWS would let old duplicates through. The kernel yields to that.
 */
static __always_inline bool record_yields_to_syn(const struct time_wait *old, u32 seq,
						 const struct syn_options *options)
{
	return time_wait_yields(old, seq, options) &&
	       ((s32)(seq - old->rcv_nxt) > 0 || paws_drops(old->ts_recent, options->tsval));
}

/* TCP has given up nearly every connection that has been closing for so long (tcp_retries2: 15 min). */
#define TW_CLOSING_MOST_S 1200
#define TW_SECOND_NS 1000000000ULL

/*
 * Whether a record seems to wait for the end of a connection that has ended: weir was not told of it, as another sock_ops
 * program had the socket tell nothing any more. Of a peer that is very slow it may be wrong.
 */
static __always_inline bool record_hangs(u32 closing_s, u64 now_ns)
{
	return (s32)((u32)(now_ns / TW_SECOND_NS) - closing_s) > TW_CLOSING_MOST_S;
}

#endif
