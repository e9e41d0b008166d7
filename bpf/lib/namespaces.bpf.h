/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * namespaces.bpf.h - the listeners of network namespaces that are not weir's own: containers, pods.
 *
 * They have their own addresses and ports, the same ones as others. So a listener is found by two keys: the cookie of
 * the namespace, then the place in it. The places of a namespace are a map of their own, which user space fills before
 * it takes the place of the one before, and never changes: a packet sees one policy or the other, whole. The kernel
 * frees the old one when no packet has it any more.
 *
 * What comes here is for a port that is guarded in some namespace (port_entry.elsewhere): packets of other ports have
 * their one load, as without other namespaces. Two hash lookups take some 20 ns; of an established connection that is
 * for its FIN.
 *
 * The rest of the guard takes no notice. Sockets are looked up in the namespace of the device, a listening socket has
 * its queue by its kernel address, and a listener its counters by a number that no other has. What is kept by addresses
 * alone has the namespace beside them: destinations (state.bpf.h), cookies (cookies.bpf.h).
 *
 * Not for other namespaces: the XDP front, parking listeners and residence.
 */
#ifndef WEIR_NAMESPACES_BPF_H
#define WEIR_NAMESPACES_BPF_H

#include "abi/guard.h"
#include "lib/arrival.bpf.h"
#include "lib/export.bpf.h"
#include "lib/kernel.h"
#include "lib/netns.bpf.h"
#include "lib/packet.h"

EXPORT_TYPE(struct, listen_place);
EXPORT_TYPE(struct, place_policy);

/* One policy of one namespace. User space makes it as large as it has places. */
struct namespace_places {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct listen_place);
	__type(value, struct place_policy);
};

/* By the namespace's cookie. As many as user space says before it loads them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, u64);
	__array(values, struct namespace_places);
} namespaces SEC(".maps");

static __always_inline bool place_address(struct listen_place *place, bool v6, const void *network, const void *data_end)
{
	const struct ipv6 *ip6 = network;
	const struct ipv4 *ip4 = network;

	if (v6) {
		if ((const void *)(ip6 + 1) > data_end)
			return false;
		__builtin_memcpy(place->addr, ip6->daddr, 16);
	} else {
		if ((const void *)(ip4 + 1) > data_end)
			return false;
		place->addr[3] = ip4->daddr;
	}
	return true;
}

/*
 * The listener of another namespace that the packet is for; an exact address wins. The keys are where the 4-tuple and
 * the time will be: on the stack there is no room for both.
 */
static __always_inline const struct listener_policy *listener_elsewhere(u64 netns, struct arrival *arrival,
									const void *network, const void *data_end)
{
	struct listen_place *place = (void *)&arrival->tuple;
	const struct place_policy *every, *one;
	void *places;

	_Static_assert(sizeof(*place) <= sizeof(arrival->tuple), "the key is in the 4-tuple's place");
	arrival->now = netns;
	places = bpf_map_lookup_elem(&namespaces, &arrival->now);
	if (!places)
		return NULL;
	__builtin_memset(place, 0, sizeof(*place));
	place->addr[2] = arrival->packet.v6 ? 0 : bpf_htonl(0xffff);
	place->port = arrival->packet.dport;
	every = bpf_map_lookup_elem(places, place);
	if (!every)
		return NULL;
	if (every->exact) {
		if (!place_address(place, arrival->packet.v6, network, data_end))
			return NULL;
		one = bpf_map_lookup_elem(places, place);
		if (one)
			return &one->listener;
	}
	return every->guarded ? &every->listener : NULL;
}

/* The listener that the packet is for, whose device is in this namespace. NULL: none is guarded. */
static __always_inline const struct listener_policy *listener_in(u64 netns, const struct policy *policy,
								 struct arrival *arrival, const void *network,
								 const void *data_end)
{
	if (netns == own_netns)
		return listener_of(policy, &arrival->packet, network, data_end);
	return guards_others ? listener_elsewhere(netns, arrival, network, data_end) : NULL;
}

#endif
