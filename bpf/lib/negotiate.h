/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * negotiate.h - which end of a connection holds its TIME-WAIT (FTY99, Section 3)
 * and what each end does about it at the close. Pure; the model is
 * weir_models::timewait::negotiate.
 *
 * The option goes in five kinds of segment (enum tw_phase). The first three are
 * the paper's. The last two stand in the holder's FIN: the other end forgets
 * the connection only because of them. So it never forgets one of which the
 * holder has no record: a full table, a middlebox that strips options, the end
 * of either weir leave TIME-WAIT as it is in TCP. The end that forgets needs to
 * keep nothing in mind while the connection lasts.
 *
 * The paper's option has the holder's IP address. This one says "the sender" or
 * "the receiver" (enum tw_wire): address translation cannot make it wrong, and
 * it needs 8 bytes for IPv6 too, where 20 are left beside the usual options.
 */
#ifndef WEIR_NEGOTIATE_H
#define WEIR_NEGOTIATE_H

#include "abi/timewait.h"
#include "lib/packet.h"
#include "lib/types.h"

enum tw_phase {
	TW_NO_OPTION,
	TW_OFFER,	/* SYN of the end that opens, and its SYN/ACK if both ends open: whom it would like to hold */
	TW_CHOICE,	/* SYN/ACK of a server: who holds */
	TW_AGREED,	/* the ACK of it: the same */
	TW_WILL_HOLD,	/* FIN of the holder that closes first: the kernel's TIME-WAIT is going to be there */
	TW_HOLDS,	/* FIN of the holder that closes second: it has a record */
};

/* The holder, in the option. */
enum tw_wire { TW_NOBODY, TW_SENDER, TW_RECEIVER };

/* The holder, as one end sees it. */
enum tw_end { TW_NO_END, TW_THIS_END, TW_OTHER_END };

/* Both directions: what is "the sender" to one end is "the other end" to the one that receives it. */
static __always_inline u8 tw_to_wire(u8 end)
{
	return end == TW_THIS_END ? TW_SENDER : end == TW_OTHER_END ? TW_RECEIVER : TW_NOBODY;
}

static __always_inline u8 tw_from_wire(u8 holder)
{
	return holder == TW_SENDER ? TW_OTHER_END : holder == TW_RECEIVER ? TW_THIS_END : TW_NO_END;
}

/* What an end that opens puts in its SYN: itself, if it agrees to that, so that servers have the least load. */
static __always_inline u8 tw_offer(u8 accept)
{
	return accept == ACCEPT_SERVER ? TW_OTHER_END : TW_THIS_END;
}

/* What a server puts in its SYN/ACK if the SYN has an offer. */
static __always_inline u8 tw_choice(u8 holder)
{
	return holder == HOLDER_SERVER ? TW_THIS_END : TW_OTHER_END;
}

/* Whether an end that opens agrees to this holder. Without negotiation TCP is as it always was: all agree to that. */
static __always_inline bool tw_accepts(u8 accept, u8 holder)
{
	if (holder == TW_NO_END)
		return true;
	return accept & (holder == TW_THIS_END ? ACCEPT_CLIENT : ACCEPT_SERVER);
}

/* Table 1: both ends open at once. larger: this end's address is the larger one. */
static __always_inline u8 tw_of_both(u8 mine, u8 theirs, bool larger)
{
	if (mine == TW_NO_END || theirs == TW_NO_END)
		return TW_NO_END;
	if (mine == theirs)
		return mine;
	return larger ? TW_THIS_END : TW_OTHER_END;
}

/*
 * The holder, by the option of a SYN/ACK, or of the ACK of this end's own one if both open. offered: what this
 * end's SYN said.
 */
static __always_inline u8 tw_agreed(const struct syn_options *options, u8 offered, bool larger)
{
	u8 holder = tw_from_wire(options->holder);

	if (options->phase == TW_CHOICE || options->phase == TW_AGREED)
		return holder;
	return options->phase == TW_OFFER ? tw_of_both(offered, holder, larger) : TW_NO_END;
}

/* include/net/tcp_states.h */
enum {
	TW_ESTABLISHED = 1, TW_FIN_WAIT1 = 4, TW_FIN_WAIT2 = 5, TW_TIME_WAIT = 6, TW_CLOSE = 7, TW_CLOSE_WAIT = 8,
	TW_LAST_ACK = 9, TW_LISTEN = 10, TW_CLOSING = 11
};

/* The socket for which a segment comes. Host order. */
struct tw_socket {
	u32 rcv_nxt;	/* the next sequence number of the other end */
	u32 window;	/* how many bytes from there on it may send */
	u32 write_seq;	/* the next one of this end, its FIN counted */
	u32 oldest;	/* the lowest number that the other end may acknowledge: older ones are stale or forged */
	u8 state;	/* 0: there is none */
	u8 substate;	/* of a TIME-WAIT socket: TW_FIN_WAIT2 until the other end has closed */
	u8 orphan;	/* 1: no program has it; not of TIME-WAIT sockets */
	u8 holds;	/* 1: this end is the holder */
	u8 mptcp;	/* 1: a subflow of MPTCP */
};

/* A segment of the other end. */
struct tw_segment {
	u32 seq;
	u32 ack;
	u32 data;	/* bytes */
	u8 fin;
	u8 phase;	/* of its option, if that says that its sender holds */
	u8 sealed;	/* 1: a signature covers its header */
	u8 awaited;	/* 1: this connection is among those that are ending here */
	u8 has_ended;	/* 1: it is a FIN that has ended its connection here already */
};

enum tw_step {
	TW_PASS,	/* nothing */
	TW_NOTE,	/* it closes first, and holds: count it */
	TW_ANSWER,	/* acknowledge its FIN once more; there is no socket any more */
	TW_HAND_ON,	/* hand it on, then end a socket that has come meanwhile */
	TW_END,		/* the same, and end the socket */
	TW_END_ORPHAN,	/* the same, and look later whether it has ended: see tw_missed() */
	TW_END_AFTER,	/* hand it on, then end the socket */
	TW_AWAIT,	/* TIME-WAIT comes with a later segment */
};

/* Whether tw_step() may say anything but TW_PASS, whatever the socket. */
static __always_inline bool tw_may_step(const struct tw_segment *segment)
{
	return segment->fin ? segment->phase == TW_HOLDS || segment->phase == TW_WILL_HOLD : segment->awaited;
}

/*
 * Whether the numbers of a segment are those of the connection (RFC 9293, Section
 * 3.10.7.4; RFC 5961, Section 5): its last byte is within the window, and it
 * acknowledges what was sent, not too long ago. Anybody can write the option in a
 * FIN. Who cannot see the connection has to guess both numbers, and who guesses
 * them can have data read from it.
 */
static __always_inline bool tw_is_of(const struct tw_socket *socket, const struct tw_segment *segment)
{
	return segment->seq + segment->data - socket->rcv_nxt <= socket->window &&
	       segment->ack - socket->oldest <= socket->write_seq - socket->oldest;
}

/*
 * What the end does that is to forget. A socket without a program is ended in
 * place of the FIN. One with a program gets the FIN, as the program waits for it.
 */
static __always_inline u8 tw_step(const struct tw_socket *socket, const struct tw_segment *segment)
{
	bool in_order = segment->seq == socket->rcv_nxt, acked = segment->ack == socket->write_seq;
	bool holds = segment->phase == TW_HOLDS;

	if (!tw_may_step(segment) || socket->mptcp || segment->sealed)
		return TW_PASS;
	if (!segment->fin) {
		if (socket->state != TW_CLOSING || segment->data || !in_order || !acked)
			return TW_PASS;
		return TW_END_AFTER;
	}
	switch (socket->state) {
	case 0:
	case TW_LISTEN:
		/*
		 * Nobody else's FIN is acknowledged: its data may be lost. While the kernel puts a TIME-WAIT socket in
		 * place of one in FIN-WAIT-2, none is found for a moment.
		 */
		if (segment->data)
			return TW_PASS;
		return segment->has_ended ? TW_ANSWER : TW_HAND_ON;
	case TW_ESTABLISHED:
		return in_order && tw_is_of(socket, segment) ? TW_NOTE : TW_PASS;
	case TW_FIN_WAIT1:
	case TW_FIN_WAIT2:
	case TW_CLOSE:	/* since it was found: there is a TIME-WAIT socket in FIN-WAIT-2 in its place */
		/* Both ends think that they hold: then both do. */
		if ((!holds && socket->holds) || !tw_is_of(socket, segment))
			return TW_PASS;
		if (!in_order || (socket->state == TW_FIN_WAIT1 && !acked))
			return TW_AWAIT;
		return socket->orphan && !segment->data ? TW_END_ORPHAN : TW_END_AFTER;
	case TW_TIME_WAIT:
		if (socket->substate == TW_FIN_WAIT2)
			return in_order && !segment->data && tw_is_of(socket, segment) ? TW_END : TW_PASS;
		/* Its FIN once more: the first one found the socket in use. */
		return holds && acked && segment->seq + segment->data + 1 == socket->rcv_nxt ? TW_END_AFTER : TW_PASS;
	}
	return TW_PASS;
}

/*
 * Whether the RST in place of a FIN with this number has missed: the socket waits
 * for that FIN still. While another CPU puts a TIME-WAIT socket in FIN-WAIT-2 in
 * the place of an orphan, the RST is dropped with the orphan. Its FIN has been
 * acknowledged: nobody sends it again.
 */
static __always_inline bool tw_missed(const struct tw_socket *socket, u32 seq)
{
	u8 state = socket->state == TW_TIME_WAIT ? socket->substate : socket->state;

	return (state == TW_FIN_WAIT1 || state == TW_FIN_WAIT2) && socket->rcv_nxt == seq;
}

/* What has become of an answer beside a packet. */
enum tw_answered {
	TW_SENT = 0,	/* it is out, and the packet is as it was */
	TW_UNSENT = -1,	/* it was not sent, and the packet is as it was */
	TW_SPOILT = -2,	/* it may be out, and the packet is spoilt */
};

/*
 * Whether a FIN may go on that was to be acknowledged in a socket's place. Once
 * the ACK may be out the other end does not send the FIN again: the socket that
 * waits for it is one that user space has to end.
 */
static __always_inline bool tw_fin_goes_on(int answered)
{
	return answered == TW_UNSENT;
}

enum tw_hold {
	TW_NO_CHANGE,
	TW_SAY_WILL,	/* closes first: its FIN is to have TW_WILL_HOLD */
	TW_RESERVE,	/* closes second: a record, and TW_HOLDS in its FIN if there is one */
	TW_BEGIN,	/* its record begins */
};

/* What the holder does when its socket changes its state. */
static __always_inline u8 tw_hold(u8 from, u8 to)
{
	if (to == TW_FIN_WAIT1)
		return TW_SAY_WILL;
	if (to == TW_LAST_ACK)
		return TW_RESERVE;
	return from == TW_LAST_ACK ? TW_BEGIN : TW_NO_CHANGE;
}

/*
 * Whether a RST of this end's own, behind the last segment of a connection, ends the socket that it meets: the kernel
 * has all up to the other end's FIN, which has the number before the RST's.
 */
static __always_inline bool tw_ends(const struct tw_socket *socket, u32 seq, u32 ack)
{
	return socket->state == TW_TIME_WAIT && socket->substate == TW_TIME_WAIT && socket->rcv_nxt == seq &&
	       ack - socket->oldest <= socket->write_seq - socket->oldest;
}

/*
 * Whether a RST is not for the holder's socket. After a simultaneous close the
 * other end may have no socket any more while this one waits for the ACK of its
 * FIN: a RST for a stray ACK would end it before its TIME-WAIT.
 */
static __always_inline bool tw_shields(const struct tw_socket *socket)
{
	return socket->state == TW_CLOSING && socket->holds;
}

/* The phase in a segment that the holder sends in this state. */
static __always_inline u8 tw_phase_of(u8 state)
{
	return state == TW_LAST_ACK ? TW_HOLDS : state == TW_FIN_WAIT1 || state == TW_CLOSING ? TW_WILL_HOLD : TW_AGREED;
}

#endif
