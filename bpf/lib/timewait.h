/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * timewait.h - when this end takes a connection's TIME-WAIT, and when it gives
 * way to a new connection. Pure; the model is weir_core::timewait.
 */
#ifndef WEIR_TIMEWAIT_H
#define WEIR_TIMEWAIT_H

#include "abi/timewait.h"
#include "lib/packet.h"
#include "lib/types.h"

/* include/net/tcp_states.h */
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
 * Whether a new connection of the same 4-tuple may begin before the record ends (RFC 6191). options: of the
 * other end's SYN/ACK. Its timestamp is later than all of the old connection's, and the one that it echoes,
 * of this end's SYN, likewise: then PAWS (RFC 7323, Section 5) drops old duplicates at both ends.
 */
static __always_inline bool record_yields(const struct timewait_record *record, const struct syn_options *options)
{
	return record->stamped && options->tstamp && (s32)(options->tsval - record->received) > 0 &&
	       (s32)(options->tsecr - record->sent) > 0;
}

#endif
