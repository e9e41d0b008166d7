/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * classify.bpf.h - which class a connection is of: the most specific rule that
 * fits (docs/design/classes.md). One hash lookup a mask, however many rules
 * there are; the masks stand most specific first, so the first hit decides.
 *
 * The tables are maps and not globals, so that another object uses the same
 * ones: it includes this file and reuses the maps by descriptor. User space
 * writes the copy that is not in force and then says which one is.
 */
#ifndef WEIR_CLASSIFY_BPF_H
#define WEIR_CLASSIFY_BPF_H

#include "abi/class.h"
#include "lib/kernel.h"

_Static_assert(WEIR_MAX_MASKS < WEIR_CLASS_COPY, "a mask's number and the copy share a word");

/* Which copy is in force; for programs that have no listener_policy to tell them. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} class_active SEC(".maps");

/* By copy. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, struct class_masks);
} class_masks SEC(".maps");

/* Both copies' rules, each to its class's slot. Without preallocation: most have few rules. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 2 * WEIR_MAX_RULES);
	__type(key, struct class_tuple);
	__type(value, u32);
} class_rules SEC(".maps");

/* By copy and slot. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * WEIR_CLASS_SLOTS);
	__type(key, u32);
	__type(value, struct class_policy);
} class_policies SEC(".maps");

/* A connection's tuple AND a mask, the two together: the caller's stack has no room for both apart. */
static __always_inline void class_key(struct class_tuple *key, const struct bpf_sock_tuple *tuple, bool v6,
				      u32 listener, const struct class_tuple *mask)
{
	if (v6) {
		for (int i = 0; i < 4; i++) {
			key->from[i] = tuple->ipv6.saddr[i] & mask->from[i];
			key->to[i] = tuple->ipv6.daddr[i] & mask->to[i];
		}
		key->from_port = tuple->ipv6.sport & mask->from_port;
		key->to_port = tuple->ipv6.dport & mask->to_port;
	} else {
		key->from[3] = tuple->ipv4.saddr & mask->from[3];
		key->to[3] = tuple->ipv4.daddr & mask->to[3];
		key->from_port = tuple->ipv4.sport & mask->from_port;
		key->to_port = tuple->ipv4.dport & mask->to_port;
	}
	key->listener = listener & mask->listener;
	key->mask = mask->mask;
}

/*
 * The slot of the class of a connection to a listener (1 + its counters index;
 * 0: none that is named), by this copy of the tables. Global, so that the
 * verifier looks at the loop once and not on every path that leads here.
 */
__noinline int class_of(const struct bpf_sock_tuple *tuple, u32 v6, u32 listener, u32 copy)
{
	const struct class_masks *table;
	struct class_tuple key = {};

	copy &= 1;
	v6 &= 1;
	table = bpf_map_lookup_elem(&class_masks, &copy);
	if (!table || !tuple)
		return WEIR_CLASS_OTHER;
	for (u32 i = 0; i < WEIR_MAX_MASKS && i < table->count[v6]; i++) {
		const u32 *slot;
		u32 at = v6 * WEIR_MAX_MASKS + i;

		/* Linux 6.8 does not know the bound of the `or` that clang makes of this sum. */
		barrier_var(at);
		if (at >= 2 * WEIR_MAX_MASKS)
			break;
		/* Else clang keeps the whole tuple in registers across the loop, that is, on the stack. */
		barrier_var(tuple);
		class_key(&key, tuple, v6, listener, &table->masks[at]);
		slot = bpf_map_lookup_elem(&class_rules, &key);
		if (slot)
			return *slot < WEIR_CLASS_SLOTS ? *slot : WEIR_CLASS_OTHER;
	}
	return WEIR_CLASS_OTHER;
}

/* What is done with the class in this slot. NULL: no such slot. */
static __always_inline const struct class_policy *class_policy_of(u32 class, u32 copy)
{
	u32 key = (copy & 1) * WEIR_CLASS_SLOTS + class;

	return class < WEIR_CLASS_SLOTS ? bpf_map_lookup_elem(&class_policies, &key) : NULL;
}

#endif
