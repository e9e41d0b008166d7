/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * spa.h - weir's SYN Priority AQM (BHD18, Section V) over one low queue or over flow
 * queues: which packet waits where, leaves next, or is dropped. The models are
 * weir_models::aqm::spa and flows, without marks: a qdisc in BPF cannot write to a
 * packet.
 *
 * It knows packets by their places (places.h). The caller holds the lock of the qdisc.
 */
#ifndef WEIR_SPA_H
#define WEIR_SPA_H

#include "abi/shape.h"
#include "lib/codel.h"
#include "lib/control.h"
#include "lib/places.h"
#include "lib/types.h"

/* Most bytes that the demoted queue saves up of its share, and that it owes. */
#define SPA_CREDIT_MAX 256
/* How many packets one overflow drops at most: looking for the longest queue is dear. */
#define SPA_DROP_BATCH 64
/* Bounds of loops that the verifier asks for, beyond what a run can need: packets, turns of flows. */
#define SPA_MOST_DROPS 16384
#define SPA_MOST_TURNS 262144

/* A packet that comes. */
struct spa_packet {
	u32 len;	/* on the link */
	u32 client;	/* hash of who opens the connection */
	u32 flow;	/* hash of the 5-tuple */
	enum control control;
};

static __always_inline void spa_queue_clear(struct spa_queue *queue)
{
	queue->list.head = SPA_NONE;
	queue->list.tail = SPA_NONE;
	queue->list.packets = 0;
	queue->list.bytes = 0;
	codel_clear(&queue->vars);
}

/* All queues empty; the caller has taken the packets. */
static __always_inline void spa_clear(struct spa *q)
{
	u32 at = 0;

	spa_queue_clear(&q->queue[WEIR_SPA_HIGH]);
	spa_queue_clear(&q->queue[WEIR_SPA_LOW]);
	spa_queue_clear(&q->queue[WEIR_SPA_DEMOTED]);
	q->fresh.head = q->fresh.tail = SPA_NONE;
	q->old.head = q->old.tail = SPA_NONE;
	q->packets = q->bytes = 0;
	q->unused = SPA_NONE;
	q->used = 0;
	q->credit = 0;
	spa_repeat(q->params.flows) {
		struct spa_flow *flow = spa_flow(at++);

		if (!flow)
			break;
		spa_queue_clear(&flow->queue);
		flow->deficit = 0;
		flow->next = SPA_NONE;
		flow->listed = flow->shared = 0;
		flow->tag = 0;
	}
}

/* A place for a packet at the end of a queue; SPA_NONE: all are in use. */
static __noinline u32 spa_push(struct spa *q, struct spa_list *list, u32 len, u64 now_ns)
{
	u32 at = q->unused;
	struct spa_place *place = spa_place(at), *last;

	if (place) {
		q->unused = place->next;
	} else {
		at = q->used;
		if (at >= q->params.places || !(place = spa_place(at)))
			return SPA_NONE;
		q->used++;
	}
	place->enqueued_ns = now_ns;
	place->len = len;
	place->next = SPA_NONE;
	last = list->packets ? spa_place(list->tail) : NULL;
	if (last)
		last->next = at;
	else
		list->head = at;
	list->tail = at;
	list->packets++;
	list->bytes += len;
	q->packets++;
	q->bytes += len;
	return at;
}

/* The place of the first packet, which is given back: the caller takes the packet before the next push. */
static __noinline u32 spa_pop(struct spa *q, struct spa_list *list)
{
	u32 at = list->head;
	struct spa_place *place = spa_place(at);

	if (!list->packets || !place)
		return SPA_NONE;
	list->head = place->next;
	place->next = q->unused;
	q->unused = at;
	list->packets--;
	list->bytes -= place->len;
	q->packets--;
	q->bytes -= place->len;
	return at;
}

/* The first packet, and whether it may be dropped. */
static __always_inline u32 spa_judged(struct spa *q, struct spa_queue *queue, const struct codel_params *params,
				      u64 now_ns, bool *may_drop)
{
	u32 at = spa_pop(q, &queue->list);
	struct spa_place *place = spa_place(at);

	*may_drop = false;
	if (!place) {
		queue->vars.first_above_ns = 0;
		return SPA_NONE;
	}
	*may_drop = codel_should_drop(&queue->vars, params, now_ns, place->enqueued_ns, queue->list.bytes);
	return at;
}

/* The next packet that CoDel lets through (codel_dequeue()). */
static __noinline u32 spa_codel_pop(struct spa *q, struct spa_queue *queue, const struct codel_params *params,
				    u64 now_ns)
{
	struct codel_vars *vars = &queue->vars;
	bool may_drop;
	u32 at = spa_judged(q, queue, params, now_ns, &may_drop);

	if (at == SPA_NONE || !may_drop) {
		vars->dropping = 0;
		return at;
	}
	if (!vars->dropping) {
		spa_drop_packet(at);
		at = spa_judged(q, queue, params, now_ns, &may_drop);
		codel_begin_dropping(vars, params, now_ns);
		return at;
	}
	spa_repeat(SPA_MOST_DROPS) {
		if (!vars->dropping || now_ns < vars->drop_next_ns)
			break;
		vars->count++;
		codel_newton_step(vars);
		spa_drop_packet(at);
		at = spa_judged(q, queue, params, now_ns, &may_drop);
		if (may_drop)
			vars->drop_next_ns = codel_control_law(vars, vars->drop_next_ns, params->interval_ns);
		else
			vars->dropping = 0;
	}
	return at;
}

/* ---- flow queues with deficit round robin (RFC 8290) ---- */

static __always_inline void spa_turn_push(struct spa_turns *turns, struct spa_flow *flow, u32 at)
{
	struct spa_flow *last = turns->head == SPA_NONE ? NULL : spa_flow(turns->tail);

	flow->next = SPA_NONE;
	if (last)
		last->next = at;
	else
		turns->head = at;
	turns->tail = at;
}

/* The first flow of a list becomes the last of the old ones. */
static __always_inline void spa_requeue(struct spa *q, struct spa_turns *turns, struct spa_flow *flow, u32 at)
{
	turns->head = flow->next;
	spa_turn_push(&q->old, flow, at);
}

/* The next packet of the flow queues (fq_codel_dequeue()). */
static __noinline u32 spa_flows_pop(struct spa *q, u64 now_ns)
{
	spa_repeat(SPA_MOST_TURNS) {
		bool is_fresh = q->fresh.head != SPA_NONE;
		struct spa_turns *turns = is_fresh ? &q->fresh : &q->old;
		u32 index = turns->head, at;
		struct spa_flow *flow = spa_flow(index);
		struct spa_place *place;

		if (!flow)
			return SPA_NONE;
		if (flow->deficit <= 0) {
			flow->deficit += q->params.quantum_bytes;
			spa_requeue(q, turns, flow, index);
			continue;
		}
		at = spa_codel_pop(q, &flow->queue, &q->params.low, now_ns);
		place = spa_place(at);
		if (place) {
			flow->deficit -= place->len;
			return at;
		}
		/* An empty new queue becomes old, so that a flow is not new again with each packet (RFC 8290, 4.2). */
		if (is_fresh && q->old.head != SPA_NONE) {
			spa_requeue(q, turns, flow, index);
		} else {
			flow->listed = 0;
			turns->head = flow->next;
		}
	}
	return SPA_NONE;
}

static __always_inline u32 spa_low_packets(const struct spa *q)
{
	return q->packets - q->queue[WEIR_SPA_HIGH].list.packets - q->queue[WEIR_SPA_DEMOTED].list.packets;
}

/*
 * The queue of a flow that is not at home: that of its set which is its own, or one that
 * no flow uses, the nearest to home. If all are in use it shares the one at home, until all
 * that waits there has left: so it is never reordered.
 */
static __noinline u32 spa_place_in_set(u32 home, u32 hash)
{
	struct spa_flow *flow, *at_home;
	u32 unused = SPA_NONE;

	for (u32 way = WEIR_SPA_WAYS; way-- > 0;) {
		flow = spa_flow(home ^ way);
		if (!flow)
			continue;
		if (flow->tag == hash)
			return home ^ way;
		if (!flow->listed)
			unused = home ^ way;
	}
	at_home = spa_flow(home);
	flow = spa_flow(unused);
	if (!flow || !at_home || (at_home->shared && at_home->queue.list.packets)) {
		if (at_home)
			at_home->shared = 1;
		return home;
	}
	flow->tag = hash;
	flow->shared = 0;
	codel_clear(&flow->queue.vars);
	return unused;
}

static __always_inline u32 spa_flows_push(struct spa *q, const struct spa_packet *packet, u64 now_ns)
{
	/* The hash's upper bits, scaled: no division. */
	u32 index = (u64)packet->flow * q->params.flows >> 32, at;
	struct spa_flow *flow = spa_flow(index);

	if (flow && flow->tag != packet->flow) {
		index = spa_place_in_set(index, packet->flow);
		flow = spa_flow(index);
	}
	if (!flow)
		return SPA_NONE;
	at = spa_push(q, &flow->queue.list, packet->len, now_ns);
	if (at != SPA_NONE && !flow->listed) {
		flow->listed = 1;
		flow->deficit = spa_low_packets(q) > q->params.crowd_packets ? q->params.crowd_bytes
									      : q->params.fresh_bytes;
		spa_turn_push(&q->fresh, flow, index);
	}
	return at;
}

/* Drops half of the longest flow queue, in bytes, from its head (fq_codel_drop()). */
static __noinline int spa_drop_from_longest(struct spa *q)
{
	u32 longest = 0, most = 0, at = 0, bytes = 0;
	struct spa_flow *flow;

	spa_repeat(q->params.flows) {
		flow = spa_flow(at);
		if (!flow)
			break;
		if (flow->queue.list.bytes >= most) {
			most = flow->queue.list.bytes;
			longest = at;
		}
		at++;
	}
	flow = spa_flow(longest);
	if (!flow)
		return 0;
	spa_repeat(SPA_DROP_BATCH) {
		u32 dropped = spa_pop(q, &flow->queue.list);
		struct spa_place *place = spa_place(dropped);

		if (!place)
			break;
		bytes += place->len;
		q->counts[WEIR_SPA_LOW].dropped_packets++;
		spa_drop_packet(dropped);
		if (bytes >= most / 2)
			break;
	}
	return 0;
}

/* ---- the discipline ---- */

static __always_inline bool spa_admits(struct spa *q, const struct spa_packet *packet, u64 now_ns)
{
	u32 kind = limit_kind(packet->control);
	u64 *due = spa_client_due(limit_index(kind, packet->client));

	if (!q->params.limit.limited || !due)
		return true;
	return limit_admits(&q->params.limit, due, &q->all_due[kind & (WEIR_SHAPE_KINDS - 1)], now_ns, packet->len);
}

static __always_inline u32 spa_level(struct spa *q, const struct spa_packet *packet, u64 now_ns)
{
	if (packet->control == CONTROL_NONE || (packet->control == CONTROL_FIN && !q->params.limit.fin))
		return WEIR_SPA_LOW;
	return spa_admits(q, packet, now_ns) ? WEIR_SPA_HIGH : WEIR_SPA_DEMOTED;
}

/*
 * Where a packet that comes waits; SPA_NONE: it is dropped. Once it is in its place the
 * caller asks spa_trim().
 */
static __always_inline u32 spa_enqueue(struct spa *q, const struct spa_packet *packet, u64 now_ns)
{
	u32 level = spa_level(q, packet, now_ns), room = q->params.room[WEIR_SPA_LOW], at = SPA_NONE;
	struct spa_queue *queue = &q->queue[WEIR_SPA_LOW];
	struct spa_counts *counts = &q->counts[WEIR_SPA_LOW];

	if (level == WEIR_SPA_LOW && q->params.flows)
		return spa_flows_push(q, packet, now_ns);
	if (level == WEIR_SPA_HIGH) {
		queue = &q->queue[WEIR_SPA_HIGH];
		counts = &q->counts[WEIR_SPA_HIGH];
		room = q->params.room[WEIR_SPA_HIGH];
	} else if (level == WEIR_SPA_DEMOTED) {
		queue = &q->queue[WEIR_SPA_DEMOTED];
		counts = &q->counts[WEIR_SPA_DEMOTED];
		room = q->params.room[WEIR_SPA_DEMOTED];
	}
	if (queue->list.packets < room)
		at = spa_push(q, &queue->list, packet->len, now_ns);
	if (at == SPA_NONE)
		counts->dropped_packets++;
	return at;
}

/* Drops packets if flow queues hold too many. */
static __always_inline void spa_trim(struct spa *q)
{
	if (q->params.flows && spa_low_packets(q) > q->params.room[WEIR_SPA_LOW])
		spa_drop_from_longest(q);
}

/* Which queue sends next. The low one is asked also when it is empty: its empty flows then lose their turns. */
static __always_inline u32 spa_next_level(const struct spa *q)
{
	if (q->queue[WEIR_SPA_HIGH].list.packets)
		return WEIR_SPA_HIGH;
	if (q->queue[WEIR_SPA_DEMOTED].list.packets && (!spa_low_packets(q) || q->credit > 0))
		return WEIR_SPA_DEMOTED;
	return WEIR_SPA_LOW;
}

/* What the demoted queue may send, after a packet of this queue left. */
static __always_inline s32 spa_credit_after(s32 credit, u32 level, u32 len, u32 demoted_log)
{
	if (level == WEIR_SPA_LOW) {
		credit += len >> demoted_log;
		return credit < SPA_CREDIT_MAX ? credit : SPA_CREDIT_MAX;
	}
	if (level == WEIR_SPA_DEMOTED) {
		/* What it sends while nothing else waits is not held against it. */
		credit -= len;
		return credit > -SPA_CREDIT_MAX ? credit : -SPA_CREDIT_MAX;
	}
	return credit;
}

static __always_inline void spa_count(struct spa_counts *counts, u32 dropped, u32 sent_bytes)
{
	counts->dropped_packets += dropped;
	if (sent_bytes) {
		counts->sent_packets++;
		counts->sent_bytes += sent_bytes;
	}
}

/* The place of the packet that leaves next; SPA_NONE: none waits. */
static __always_inline u32 spa_dequeue(struct spa *q, u64 now_ns)
{
	/* A queue may drop its last packet and have none to send: then the next one is asked. */
	spa_repeat(WEIR_SPA_QUEUES + 1) {
		u32 level = spa_next_level(q), before = q->packets, at, len, gone;
		bool demoted = q->queue[WEIR_SPA_DEMOTED].list.packets;
		struct spa_place *place;

		if (level == WEIR_SPA_HIGH)
			at = spa_codel_pop(q, &q->queue[WEIR_SPA_HIGH], &q->params.high, now_ns);
		else if (level == WEIR_SPA_DEMOTED)
			at = spa_codel_pop(q, &q->queue[WEIR_SPA_DEMOTED], &q->params.high, now_ns);
		else if (q->params.flows)
			at = spa_flows_pop(q, now_ns);
		else
			at = spa_codel_pop(q, &q->queue[WEIR_SPA_LOW], &q->params.low, now_ns);
		place = spa_place(at);
		len = place ? place->len : 0;
		gone = before - q->packets - (place ? 1 : 0);
		if (level == WEIR_SPA_HIGH)
			spa_count(&q->counts[WEIR_SPA_HIGH], gone, len);
		else if (level == WEIR_SPA_DEMOTED)
			spa_count(&q->counts[WEIR_SPA_DEMOTED], gone, len);
		else
			spa_count(&q->counts[WEIR_SPA_LOW], gone, len);
		if (!place) {
			if (!q->packets)
				return SPA_NONE;
			continue;
		}
		if (demoted)
			q->credit = spa_credit_after(q->credit, level, len, q->params.demoted_log);
		return at;
	}
	return SPA_NONE;
}

/* ---- the link ---- */

/*
 * Whether what leaves next does not wait for the packet that is being sent: a control
 * segment within the limit. Its time on the link counts all the same; so data waits.
 */
static __always_inline bool spa_may_overtake(const struct spa *q)
{
	return q->params.limit.limited && q->queue[WEIR_SPA_HIGH].list.packets;
}

/* When the link is free after a packet that begins to leave at now_ns. */
static __always_inline u64 spa_free_after(const struct spa *q, u64 now_ns, u32 len)
{
	u64 from_ns = now_ns > q->params.lag_ns ? now_ns - q->params.lag_ns : 0;

	if (q->free_ns > from_ns)
		from_ns = q->free_ns;
	return from_ns + (len * q->params.ns_per_mib >> 20);
}

#endif
