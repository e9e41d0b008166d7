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

/* One copy's rules, each to its class's slot. User space makes it as large as they are many. */
struct class_rules_copy {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, WEIR_MAX_RULES);
	__type(key, struct class_tuple);
	__type(value, u32);
};

/* By copy. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 2);
	__type(key, u32);
	__array(values, struct class_rules_copy);
} class_rules SEC(".maps");

/* By copy and slot. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * WEIR_CLASS_SLOTS);
	__type(key, u32);
	__type(value, struct class_policy);
} class_policies SEC(".maps");

union class_words {
	struct class_tuple tuple;
	u64 word[sizeof(struct class_tuple) / sizeof(u64)];
};

/* A connection's tuple, with all bits where a mask has its number. */
static __always_inline void class_tuple_of(struct class_tuple *all, const struct bpf_sock_tuple *tuple, bool v6,
					   u32 listener)
{
	__builtin_memset(all, 0, sizeof(*all));
	if (v6) {
		__builtin_memcpy(all->from, tuple->ipv6.saddr, 16);
		__builtin_memcpy(all->to, tuple->ipv6.daddr, 16);
		all->from_port = tuple->ipv6.sport;
		all->to_port = tuple->ipv6.dport;
	} else {
		all->from[3] = tuple->ipv4.saddr;
		all->to[3] = tuple->ipv4.daddr;
		all->from_port = tuple->ipv4.sport;
		all->to_port = tuple->ipv4.dport;
	}
	all->listener = listener;
	all->mask = 0xffff;
}

/*
 * The slot of the class of a connection to a listener (1 + its counters index;
 * 0: none that is named), by this copy of the tables. Global, so that the
 * verifier looks at the loop once and not on every path that leads here; it
 * looks at each turn, and both families take the same one.
 */
__noinline int class_of(const struct bpf_sock_tuple *tuple, u32 v6, u32 listener, u32 copy)
{
	const struct class_masks *table;
	union class_words all, key;
	u32 count, first;
	void *rules;

	copy &= 1;
	v6 &= 1;
	table = bpf_map_lookup_elem(&class_masks, &copy);
	rules = bpf_map_lookup_elem(&class_rules, &copy);
	if (!table || !rules || !tuple)
		return WEIR_CLASS_OTHER;
	count = table->count[v6];
	first = v6 * WEIR_MAX_MASKS;
	/* Here, and no later by the family: else the verifier follows the loop for each. */
	barrier_var(first);
	class_tuple_of(&all.tuple, tuple, v6, listener);
	for (u32 i = 0; i < WEIR_MAX_MASKS && i < count; i++) {
		const u64 *mask;
		const u32 *slot;
		u32 at = first + i;

		/* Linux 6.8 does not know the bound of the `or` that clang makes of this sum. */
		barrier_var(at);
		if (at >= 2 * WEIR_MAX_MASKS)
			break;
		mask = (const void *)&table->masks[at];
#pragma unroll
		for (u32 w = 0; w < sizeof(key.word) / sizeof(key.word[0]); w++)
			key.word[w] = all.word[w] & mask[w];
		slot = bpf_map_lookup_elem(rules, &key);
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
