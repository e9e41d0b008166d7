/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * places.h - where the packets of the qdisc wait: an array of places, linked by their
 * indices. In BPF a place owns its packet, and the arrays are maps of the object.
 * Natively (crates/kernel's property tests) a packet is a number.
 *
 * A look-up is NULL for an index outside its array; spa.h keeps no such index but SPA_NONE.
 */
#ifndef WEIR_PLACES_H
#define WEIR_PLACES_H

#include "abi/shape.h"
#include "lib/types.h"

#define SPA_NONE ((u32)WEIR_SPA_NONE)

struct spa_place {
	u64 enqueued_ns;
	u32 len;
	u32 next;	/* place, of the queue or of the places that were given back */
};

#ifdef __bpf__

extern void bpf_kfree_skb(struct sk_buff *skb) __ksym;

struct packet_place {
	struct sk_buff __kptr *skb;
	struct spa_place place;
};

/* User space sets the sizes of these two. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct packet_place);
} weir_spa_places SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct spa_flow);
} weir_spa_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_SHAPE_KINDS * WEIR_SHAPE_SOURCES);
	__type(key, u32);
	__type(value, u64);
} weir_spa_due SEC(".maps");

static __always_inline struct spa_place *spa_place(u32 at)
{
	struct packet_place *of_packet = bpf_map_lookup_elem(&weir_spa_places, &at);

	return of_packet ? &of_packet->place : NULL;
}

static __always_inline struct spa_flow *spa_flow(u32 at)
{
	return bpf_map_lookup_elem(&weir_spa_flows, &at);
}

/* When the bucket of a client has its next byte due. */
static __always_inline u64 *spa_client_due(u32 at)
{
	return bpf_map_lookup_elem(&weir_spa_due, &at);
}

static __always_inline struct sk_buff *spa_take_packet(u32 at)
{
	struct packet_place *place = bpf_map_lookup_elem(&weir_spa_places, &at);

	return place ? bpf_kptr_xchg(&place->skb, NULL) : NULL;
}

static __noinline int spa_drop_packet(u32 at)
{
	struct sk_buff *skb = spa_take_packet(at);

	if (skb)
		bpf_kfree_skb(skb);
	return 0;
}

#define spa_repeat(times) bpf_repeat(times)

#else

#define SPA_MOST_PLACES 16384
#define SPA_MOST_FLOWS 1024

static _Thread_local struct spa_place spa_places[SPA_MOST_PLACES];
static _Thread_local struct spa_flow spa_flows[SPA_MOST_FLOWS];
static _Thread_local u64 spa_due[WEIR_SHAPE_KINDS * WEIR_SHAPE_SOURCES];
static _Thread_local u32 spa_packets[SPA_MOST_PLACES];
/* Packets that were dropped and not yet asked for. */
static _Thread_local u32 spa_dropped[SPA_MOST_PLACES];
static _Thread_local u32 spa_dropped_count;

static inline struct spa_place *spa_place(u32 at)
{
	return at < SPA_MOST_PLACES ? &spa_places[at] : NULL;
}

static inline struct spa_flow *spa_flow(u32 at)
{
	return at < SPA_MOST_FLOWS ? &spa_flows[at] : NULL;
}

static inline u64 *spa_client_due(u32 at)
{
	return at < WEIR_SHAPE_KINDS * WEIR_SHAPE_SOURCES ? &spa_due[at] : NULL;
}

static inline int spa_drop_packet(u32 at)
{
	if (spa_dropped_count < SPA_MOST_PLACES)
		spa_dropped[spa_dropped_count++] = spa_packets[at];
	return 0;
}

#define spa_repeat(times) for (u32 spa_step = 0; spa_step < (times); spa_step++)

#endif
#endif
