/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * pure.c - the guard's pure headers, compiled natively, so that property tests
 * can hold them against weir-models millions of times a second.
 */
#include "lib/packet.h"
#include "lib/admit.h"
#include "lib/cookie.h"
#include "lib/reply.h"
#include "lib/bucket.h"
#include "lib/gate.h"
#include "lib/residence.h"
#include "lib/steady.h"
#include "lib/steer.h"
#include "lib/headers.h"
#include "lib/negotiate.h"
#include "lib/timewait.h"
#include "lib/control.h"
#include "lib/spa.h"
#include "lib/quic.h"
#include "lib/quic_flows.h"
#include "lib/quic_wait.h"

int pure_parse(const u8 *frame, u32 len, u32 l3, u16 ethertype, struct packet *p)
{
	return packet_parse(frame, frame + len, len, l3, bpf_htons(ethertype), p);
}

/* len: what of the frame lies in one piece. */
u8 pure_may_be_tcp(const u8 *frame, u32 len, u32 l3, u8 v6)
{
	return may_be_tcp(frame + l3, frame + len, v6);
}

/* bytes: SEGMENT_HEADERS of them. Returns enum control. */
u8 pure_control(const u8 *bytes, u32 len, u32 *client)
{
	struct segment segment;

	if (!segment_read(bytes, len, 0, &segment))
		return CONTROL_NONE;
	*client = segment.client;
	return control_of(segment.flags, segment.payload);
}

u8 pure_limit_admits(const struct shape_params *params, u64 *client_due, u64 *all_due, u64 now_ns, u32 len)
{
	return limit_admits(params, client_due, all_due, now_ns, len);
}

/* ip: HEADERS_MAX bytes, of which the packet has len. Returns enum headers. */
int pure_headers(const u8 *ip, u32 len, u8 v6, struct packet *p)
{
	struct header_walk walk;

	headers_begin(ip, len, v6, &walk);
	for (u32 i = 0; i < HEADERS_STEPS && !walk.ended; i++)
		headers_step(ip, walk.at, &walk);
	return headers_end(ip, v6, &walk, p);
}

u8 pure_outstanding(const struct talk *talk)
{
	return is_outstanding(talk);
}

u8 pure_arriving(const struct talk *talk, u32 age_ticks, u32 second_ticks)
{
	return is_arriving(talk, age_ticks, second_ticks);
}

u32 pure_turns(const struct talk *talk)
{
	return turns_of(talk);
}

u8 pure_first_answer(const struct talk *talk)
{
	return first_answer(talk);
}

u8 pure_short_answer(const struct talk *talk)
{
	return short_answer(talk);
}

u32 pure_answer_class(u32 ticks)
{
	return answer_class(ticks);
}

u8 pure_gate_lets_in(struct residence_gate *gate, u64 now_ns)
{
	return gate_lets_in(gate, now_ns);
}

u8 pure_unusual(const u8 *ip, u8 v6)
{
	return v6 ? unusual6((const void *)ip) : unusual4((const void *)ip);
}

u8 pure_bucket_take(u64 *next, u64 now_ns, const struct bucket_limit *limit)
{
	return bucket_take(next, now_ns, limit);
}

u8 pure_bucket_has(const u64 *next, u64 now_ns, const struct bucket_limit *limit)
{
	return bucket_has(next, now_ns, limit);
}

u8 pure_straight_for_all(const struct parking_rule *r, u32 length, u8 all_park)
{
	return straight_for_all(r, length, all_park);
}

u8 pure_straight_as_next(const struct parking_rule *r, u32 length, u32 limit, u32 priority, u32 best_parked)
{
	return straight_as_next(r, length, limit, priority, best_parked);
}

u8 pure_syn_verdict(const struct listener_policy *l, const struct queue_view *q, u8 waiting, u8 cookies,
		    u8 flooded)
{
	return syn_verdict(l, q, waiting, cookies, flooded);
}

u8 pure_time_wait_verdict(const struct listener_policy *l, const struct queue_view *q, u8 waiting, u8 flooded)
{
	return time_wait_verdict(l, q, waiting, flooded);
}

u8 pure_time_wait_yields(const struct time_wait *old, u32 seq, const struct syn_options *o)
{
	return time_wait_yields(old, seq, o);
}

u8 pure_tw_opens(u8 state, u32 snd_una, u32 write_seq, u32 ack)
{
	return opens(state, snd_una, write_seq, ack);
}

u8 pure_ends_passive_close(const struct closing *closing, u32 seq, u32 ack)
{
	return ends_passive_close(closing, seq, ack);
}

u8 pure_record_yields_to_syn(const struct time_wait *old, u32 seq, const struct syn_options *o)
{
	return record_yields_to_syn(old, seq, o);
}

u8 pure_record_yields(const struct timewait_record *record, u32 seq, u32 ack, const struct syn_options *o)
{
	return record_yields(record, seq, ack, o);
}

u8 pure_record_hangs(u32 closing_s, u64 now_ns)
{
	return record_hangs(closing_s, now_ns);
}

u8 pure_tw_offer(u8 accept)
{
	return tw_to_wire(tw_offer(accept));
}

u8 pure_tw_choice(u8 holder)
{
	return tw_to_wire(tw_choice(holder));
}

u8 pure_tw_accepts(u8 accept, const struct syn_options *o, u8 larger)
{
	return tw_accepts(accept, tw_agreed(o, tw_offer(accept), larger));
}

u8 pure_tw_agreed(u8 accept, const struct syn_options *o, u8 larger)
{
	return tw_agreed(o, tw_offer(accept), larger);
}

u8 pure_tw_may_step(const struct tw_segment *segment)
{
	return tw_may_step(segment);
}

u8 pure_tw_step(const struct tw_socket *socket, const struct tw_segment *segment)
{
	return tw_step(socket, segment);
}

u8 pure_tw_ends(const struct tw_socket *socket, u32 seq, u32 ack)
{
	return tw_ends(socket, seq, ack);
}

u8 pure_tw_missed(const struct tw_socket *socket, u32 seq)
{
	return tw_missed(socket, seq);
}

u8 pure_tw_fin_goes_on(int answered)
{
	return tw_fin_goes_on(answered);
}

u8 pure_tw_hold(u8 from, u8 to)
{
	return tw_hold(from, to);
}

u8 pure_tw_shields(const struct tw_socket *socket)
{
	return tw_shields(socket);
}

u8 pure_tw_phase_of(u8 state)
{
	return tw_phase_of(state);
}

u8 pure_steady_place(const struct listener_policy *l, const struct queue_view *q, u8 shared)
{
	return steady_place(l, q, shared);
}

void pure_steady_limit(const struct wait_state *w, u64 now, struct bucket_limit *limit)
{
	*limit = steady_limit(w, now);
}

u8 pure_source_note(struct source_set *set, u32 key, u16 window, u32 chance)
{
	return source_note(set, key, window, chance);
}

u8 pure_half_empty(const struct queue_view *q)
{
	return half_empty(q);
}

u8 pure_is_filled(const struct queue_view *q)
{
	return is_filled(q);
}

u8 pure_cookie_ack_verdict(const struct listener_policy *l, const struct queue_view *q, u8 waiting)
{
	return cookie_ack_verdict(l, q, waiting);
}

void pure_wait_look(struct wait_state *w, u64 now, const struct queue_view *q, u32 admitted,
		    const struct listener_policy *l)
{
	wait_look(w, now, q, admitted, l);
}

void pure_stall_look(struct stall_state *s, u64 now, const struct queue_view *q, u32 ended,
		     const struct listener_policy *l)
{
	stall_look(s, now, q, ended, l);
}

u8 pure_wait_refuses(struct wait_state *w, u64 now, u32 length, const struct listener_policy *l)
{
	return wait_refuses(w, now, length, l);
}

u32 pure_cookie_make(const struct flow *f, u32 isn, u64 now_ns, const struct syn_options *o,
		     const struct siphash_key *key)
{
	return cookie_make(f, isn, now_ns, o, key);
}

u8 pure_cookie_check(const struct flow *f, u32 isn, u32 cookie, u64 now_ns, struct syn_options *o,
		     const struct siphash_key *key)
{
	return cookie_check(f, isn, cookie, now_ns, o, key);
}

void pure_options(const u8 *buf, u32 len, struct syn_options *o)
{
	u8 padded[64] = { 0 };

	for (u32 i = 0; i < len && i < sizeof(padded); i++)
		padded[i] = buf[i];
	*o = (struct syn_options){ .wscale = COOKIE_NO_WSCALE };
	for (u32 at = 0; at < len && at < TCP_OPTIONS_MAX;)
		at = option_step(padded, at, len, o);
}

/* Turns the frame into the answer; the frame has the answer's length already. */
int pure_answer(u8 *frame, u32 len, u32 l3, u8 v6, const struct answer *a, const u8 *reason)
{
	return answer_write(frame, frame + len, l3, v6, a, reason);
}

/* ---- the qdisc; its packets are numbers, and each thread has one ---- */

static _Thread_local struct spa spa;

void pure_spa_begin(const struct spa_params *params)
{
	spa = (struct spa){ .params = *params };
	for (u32 i = 0; i < WEIR_SHAPE_KINDS * WEIR_SHAPE_SOURCES; i++)
		spa_due[i] = 0;
	spa_dropped_count = 0;
	spa_clear(&spa);
}

void pure_spa_enqueue(u32 number, u8 control, u32 client, u32 flow, u32 len, u64 now_ns)
{
	struct spa_packet packet = { .len = len, .client = client, .flow = flow, .control = control };
	u32 at = spa_enqueue(&spa, &packet, now_ns);

	if (at == SPA_NONE) {
		spa_dropped[spa_dropped_count++] = number;
		return;
	}
	spa_packets[at] = number;
	spa_trim(&spa);
}

/* The packet that leaves; ~0: none. */
u32 pure_spa_dequeue(u64 now_ns)
{
	u32 at = spa_dequeue(&spa, now_ns);

	return at == SPA_NONE ? SPA_NONE : spa_packets[at];
}

/* A packet that was dropped since, the latest first; ~0: no other. */
u32 pure_spa_dropped(void)
{
	return spa_dropped_count ? spa_dropped[--spa_dropped_count] : SPA_NONE;
}

/* What the queues hold, and what they have counted. */
void pure_spa_state(struct spa *copy)
{
	*copy = spa;
}

/* head: QUIC_BUFFER bytes. */
void pure_quic_read(const u8 *head, u32 len, struct quic_packet *packet)
{
	quic_read(head, len, packet);
}

u8 pure_quic_may_begin(const struct quic_packet *packet, u32 len)
{
	return quic_may_begin(packet, len);
}

/* to: QUIC_BUFFER bytes. */
u32 pure_quic_refuse(u8 *to, const u8 *head, const struct quic_packet *packet, u8 chance)
{
	return quic_refuse(to, head, packet, chance);
}

/* id: as many bytes as a quic_id has. Returns its hash. */
u32 pure_quic_id(struct quic_id *id, const u8 *head, u32 at, u32 len)
{
	quic_id_read(id, head, at, len);
	return quic_id_hash(id);
}

u64 pure_quic_client_hash(const struct quic_client *client, const struct quic_flow_keys *keys)
{
	return quic_client_hash(client, keys);
}

u32 pure_quic_pair_of(u64 client, u32 pairs)
{
	return quic_pair_of(client, pairs);
}

/* The way that has the client, or -1. */
s32 pure_quic_slot_find(struct quic_pair *pair, u64 client)
{
	struct quic_slot *slot = quic_slot_find(pair, client);

	return slot ? slot - pair->way : -1;
}

u8 pure_quic_slot_write(struct quic_pair *pair, u64 client, u64 now, const struct quic_slot *what)
{
	return quic_slot_write(pair, client, now, what);
}

u8 pure_quic_slot_answer(struct quic_pair *pair, u64 client, u8 retry, u32 server_id, struct quic_slot *was)
{
	struct quic_slot *slot = quic_slot_find(pair, client);

	return slot && quic_slot_answer(slot, client, retry, server_id, was);
}

void pure_quic_look(struct quic_state *state, u64 now, const struct quic_policy *policy)
{
	quic_look(state, now, policy);
}

u8 pure_quic_judge(struct quic_state *state, u64 now, const struct quic_policy *policy, u32 priority)
{
	return quic_judge(state, now, policy, priority);
}

u32 pure_quic_let_in(struct quic_state *state, u64 now)
{
	return quic_let_in(state, now);
}

void pure_quic_answer(struct quic_state *state, u32 number, u64 now, u64 after_ns, u32 behind)
{
	quic_answer(state, number, now, after_ns, behind);
}

void pure_quic_answer_late(struct quic_state *state, u32 number, u64 now, u64 repeated_ns, u32 behind)
{
	quic_answer_late(state, number, now, repeated_ns, behind);
}

bool pure_quic_is_lost(const struct quic_state *state, u32 truesize)
{
	return quic_is_lost(state, truesize);
}

u32 pure_quic_lose(struct quic_state *state, u64 now)
{
	return quic_lose(state, now);
}

void pure_quic_excuse(struct quic_state *state, u32 number, u64 now)
{
	quic_excuse(state, number, now);
}
