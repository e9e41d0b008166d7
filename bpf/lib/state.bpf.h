/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * state.bpf.h - the guard's maps and how packets find what concerns them.
 */
#ifndef WEIR_STATE_BPF_H
#define WEIR_STATE_BPF_H

#include "abi/guard.h"
#include "lib/ack_watch.h"
#include "lib/admit.h"
#include "lib/clock.bpf.h"
#include "lib/context.bpf.h"
#include "lib/cookie.h"
#include "lib/kernel.h"
#include "lib/ledger.bpf.h"
#include "lib/listener.bpf.h"
#include "lib/netns.bpf.h"
#include "lib/packet.h"
#include "lib/steady.h"

/* Set by user space before load. */
const volatile struct siphash_key cookie_key = {};
/* Random numbers for source_key(); `fold` is odd. */
struct source_secret {
	u64 start;
	u64 listener;
	u64 word[4];
	u64 fold;
};
const volatile struct source_secret source_secret = {};

/* 1.2 MiB, mapped by user space: one copy in force, the other one being written. */
struct policy policies[2] __attribute__((aligned(64)));
u32 active;

/*
 * ack_watch.h. Set while cookies or handshakes without a sure place may be out; the first ACK after it clears it.
 */
u64 ack_watch_until_ns;
/*
 * weir sends SYN cookies until then. User space renews it each time that it has found nothing behind weir that could
 * drop a SYN: while user space stands still, a firewall may come that it does not see. By the guard's clock, which user
 * space does not have: it writes for how long, and runs cookies_renew.
 */
u64 cookies_until_ns;
u64 cookies_for_ns;

/* User space makes it larger where it guards other namespaces. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WEIR_MAX_LISTENERS);
	__type(key, u32);
	__type(value, struct guard_counters);
} counters SEC(".maps");

/*
 * By a hash of the listening socket, open-addressed; a slot whose socket has closed, or had no SYN for long, is taken
 * over. A power of two of them, as many as user space says before it loads them. What can be mapped begins at a page,
 * so a claim is a cache line. The values of other arrays begin 56 bytes behind one (Linux 6.18). Nobody maps it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, WEIR_MAX_SOCKETS);
	__type(key, u32);
	__type(value, struct listen_state);
} queues SEC(".maps");
/* Of a slot's number. Set before load. */
const volatile u32 queues_mask = WEIR_MAX_SOCKETS - 1;
/* Of sockets that are half as many as the slots, one in 2^16 finds no slot then. */
#define QUEUE_PROBES 16
#define QUEUE_IDLE_NS (30 * SECOND_NS)
/* How many were taken, ever: one that user space does not know may have come. */
u32 queues_taken;

/*
 * What the routing table and the socket table said about a destination in this
 * second: asking them takes 30 and 60 ns.
 */
struct destination {
	u32 addr[4];
	u32 ifindex;
	u32 second;
	__be16 port;
	u8 ours;	/* 1: for this host, not through it */
	u8 pad;
	u32 queue;	/* number of the slot of that socket's queue, if it has one and it is still its own */
	u64 listener;	/* the only listening socket that can be meant; 0: not known */
	u64 netns;	/* in which namespace: addresses and interfaces are numbered anew in each */
};
#define DESTINATION_SLOTS 64

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DESTINATION_SLOTS);
	__type(key, u32);
	__type(value, struct destination);
} destinations SEC(".maps");

/* Sources of SYNs to all listeners, by a hash of the two. */
#define SOURCE_SET_BITS 9
struct source_set sources[1 << SOURCE_SET_BITS] __attribute__((aligned(sizeof(struct source_set))));

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	/*
	 * 3 640 events of 64 bytes and 8 of the ring: what sample_due() lets through between two looks of user space, a
	 * second.
	 */
	__uint(max_entries, 256 * 1024);
} events SEC(".maps");

static __always_inline const struct policy *policy_in_force(void)
{
	return &policies[*(volatile u32 *)&active & 1];
}

static __always_inline bool port_guarded(const struct policy *policy, __be16 port)
{
	const struct port_entry *entry = &policy->ports[port];

	return *(const u64 *)entry != 0;
}

static __always_inline const struct listener_policy *listener_number(const struct policy *policy, u32 number)
{
	if (!number || number > WEIR_MAX_LISTENERS)
		return NULL;
	/* Else clang calculates the address before it asks for 0, and the verifier sees one far behind. */
	barrier_var(number);
	return &policy->listeners[number - 1];
}

/* Mixes an address and a port into a slot of the exact table; weir-core's policy::exact_slot is the same. */
static __always_inline u32 exact_slot(const __be32 *addr, __be16 port, u32 seed)
{
	u32 hash = seed ^ port;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		hash ^= addr[i];
		hash *= 0x9e3779b1; /* 2^32 / golden ratio, odd */
		hash ^= hash >> 15;
	}
	/* Its high bits: an IPv4 address's last octet, the highest byte here, changes no lower ones. */
	return hash >> (32 - WEIR_EXACT_SLOT_BITS);
}

/*
 * The number of the listener with exactly this address and port; 0: none. Words of the address as they stand in the
 * packet, two in each half. Global: what it has in registers would be on the stack of those who ask, and before
 * Linux 6.9 there is no room for that.
 */
__noinline int exact_listener(const struct policy *policy, u64 first, u64 last, u32 dport)
{
	__be32 addr[4] = { first, first >> 32, last, last >> 32 };
	__be16 port = dport;
	u32 slot;

	if (!policy)
		return 0;
	slot = exact_slot(addr, port, policy->exact_seed);

#pragma unroll
	for (u32 i = 0; i < WEIR_EXACT_PROBES; i++) {
		const struct exact_entry *entry = &policy->exact[(slot + i) % WEIR_EXACT_SLOTS];

		if (entry->listener && entry->port == port && entry->addr[0] == addr[0] && entry->addr[1] == addr[1] &&
		    entry->addr[2] == addr[2] && entry->addr[3] == addr[3])
			return entry->listener;
	}
	return 0;
}

/* The listener whose address and port the packet is for; an exact address wins. */
static __always_inline const struct listener_policy *
listener_of(const struct policy *policy, const struct packet *packet, const void *network, const void *data_end)
{
	const struct port_entry *entry = &policy->ports[packet->dport];
	u32 number = packet->v6 ? entry->any6 : entry->any4;

	if (entry->exact) {
		u64 first = 0, last;
		u32 found;

		if (packet->v6) {
			const struct ipv6 *ip = network;

			if ((const void *)(ip + 1) > data_end)
				return NULL;
			first = ip->daddr[0] | (u64)ip->daddr[1] << 32;
			last = ip->daddr[2] | (u64)ip->daddr[3] << 32;
		} else {
			const struct ipv4 *ip = network;

			if ((const void *)(ip + 1) > data_end)
				return NULL;
			last = bpf_htonl(0xffff) | (u64)ip->daddr << 32;
		}
		found = exact_listener(policy, first, last, packet->dport);
		if (found)
			number = found;
	}
	return listener_number(policy, number);
}

static __always_inline bool on_interface(const struct listener_policy *listener, u32 ifindex)
{
	if (!listener->ifindex[0])
		return true;
#pragma unroll
	for (int i = 0; i < WEIR_MAX_INTERFACES; i++)
		if (listener->ifindex[i] == ifindex)
			return true;
	return false;
}

static __always_inline void count(const struct listener_policy *listener, enum verdict v)
{
	u32 key = listener->counters;
	u64 *c = bpf_map_lookup_elem(&counters, &key);

	if (c && v < VERDICT_COUNT)
		c[v]++;
}

static __always_inline u32 queue_number(u64 socket, u32 probe)
{
	/* Sockets are allocated at least 64 bytes apart. */
	u32 hash = (u32)(socket >> 6) * 0x9e3779b1;

	/*
	 * The step differs from socket to socket, else full slots would gather in runs. It is odd, and so comes to
	 * every slot.
	 */
	return ((hash >> 16) + probe * (hash << 1 | 1)) & queues_mask;
}
_Static_assert(WEIR_MOST_SOCKETS <= 1 << 16, "a hash has so many bits");

static __always_inline struct listen_state *queue_numbered(u32 number)
{
	return bpf_map_lookup_elem(&queues, &number);
}

/* 1 + the number of the slot that a listening socket has; 0: none. Global: several ways lead here. */
__noinline int queue_find(const u64 *socket)
{
	if (!socket)
		return 0;
#pragma unroll
	for (u32 i = 0; i < QUEUE_PROBES; i++) {
		u32 number = queue_number(*socket, i);
		struct listen_state *state = queue_numbered(number);

		if (state && state->socket == *socket)
			return number + 1;
	}
	return 0;
}

static __always_inline struct listen_state *queue_known(const u64 *socket)
{
	u32 found = queue_find(socket);

	return found ? queue_numbered(found - 1) : NULL;
}

/*
 * Whether the socket that has a slot needs it no more. One that has closed does not, though its last SYN came a moment
 * ago: a server that is started again and again would else take the slots of half a minute, and at last find none. Its
 * memory may be another's by now (listener.bpf.h); then, by chance, the slot stays busy until it is idle.
 */
static __always_inline bool queue_is_left(const struct listen_state *state, u64 owner, u64 now)
{
	const struct sock_common *sk = bpf_rdonly_cast((void *)owner, bpf_core_type_id_kernel(struct sock_common));

	/* Signed: another CPU may have used it a tick later than `now`. */
	return (s64)(now - state->used_ns) >= (s64)QUEUE_IDLE_NS || sk->skc_state != TCP_LISTEN;
}

/* As claim_forget(). Global: a turn of a loop is to leave nothing in registers (arrival.bpf.h). */
__noinline int queue_forget_claims(struct listen_state *state, u64 owner, u32 cpu)
{
	if (state)
		claim_forget(state, owner, cpu, bpf_get_smp_processor_id());
	return 0;
}

/*
 * Takes the slot that a listening socket comes to at this probe, unless that is busy. What was let in for the socket
 * that had it holds no place of this one's. Returns 1 + its number, or 0. Global, as above.
 */
__noinline int queue_try(const u64 *socket, u32 probe, u64 now)
{
	struct listen_state *state;
	u64 owner, winner;
	u32 number, i;

	if (!socket)
		return 0;
	number = queue_number(*socket, probe);
	state = queue_numbered(number);
	if (!state)
		return 0;
	owner = state->socket;
	/* Another CPU was first a moment ago: one socket has one slot. */
	if (owner == *socket)
		return number + 1;
	if (owner && !queue_is_left(state, owner, now))
		return 0;
	bpf_for(i, 0, nr_cpus)
		queue_forget_claims(state, owner, i);
	winner = __sync_val_compare_and_swap(&state->socket, owner, *socket);
	if (winner != owner)
		return winner == *socket ? number + 1 : 0;
	__sync_fetch_and_add(&queues_taken, 1);
	state->used_ns = now;
	state->group = 0;
	state->flood_until_ns = 0;
	state->steady_next[0] = state->steady_next[1] = 0;
	state->wait.service_ns = 0;
	state->wait.looked_ns = 0;
	state->stall.since_ns = state->stall.stalled = 0;
	state->claims_stall.since_ns = state->claims_stall.stalled = 0;
	return number + 1;
}

/*
 * Takes a slot for a listening socket that has none. Returns 1 + its number; 0: all busy. Global: it is rare, and its
 * registers would be on the stack of those who ask, which before Linux 6.9 has no room for them.
 */
__noinline int queue_take(const u64 *socket, u64 now)
{
	u32 i;

	bpf_for(i, 0, QUEUE_PROBES) {
		u32 slot = queue_try(socket, i, now);

		if (slot)
			return slot;
	}
	return 0;
}

static __always_inline void queue_used(struct listen_state *state, u64 now)
{
	if (now - state->used_ns > SECOND_NS)
		state->used_ns = now;
}

/*
 * Finds or takes a slot for a listening socket: 1 + its number; 0: all busy, and the packet passes. In memory: for the
 * verifier the socket itself is a pointer, and no number to pass.
 */
static __always_inline u32 queue_slot(const u64 *socket, u64 now)
{
	u32 found = queue_find(socket);
	struct listen_state *state;

	if (!found)
		return queue_take(socket, now);
	state = queue_numbered(found - 1);
	if (state)
		queue_used(state, now);
	return found;
}

/*
 * The queue of the listening socket that is remembered for a destination, by the rules of queue_slot(). Where its slot
 * is remembered too, a SYN saves a call. NULL: all are busy.
 */
static __always_inline struct listen_state *queue_remembered(struct destination *destination, const u64 *socket, u64 now)
{
	struct listen_state *state = queue_numbered(destination->queue);
	u32 slot;

	if (state && state->socket == *socket) {
		queue_used(state, now);
		return state;
	}
	slot = queue_slot(socket, now);
	if (!slot)
		return NULL;
	destination->queue = slot - 1;
	return queue_numbered(slot - 1);
}

/* 1 or 0, without a branch: it would double what the verifier follows of a verdict. */
static __always_inline u32 cookies_hold(u64 now)
{
	return (now - *(volatile u64 *)&cookies_until_ns) >> 63;
}

static __always_inline bool acks_watched(void)
{
	return *(volatile u64 *)&ack_watch_until_ns;
}

static __always_inline void watch_acks(u64 now)
{
	ack_watch_begin(&ack_watch_until_ns, now);
}

static __always_inline bool acks_watch_over(u64 now)
{
	return ack_watch_over(&ack_watch_until_ns, now);
}

/* A listening socket's kernel structure, to be read only: unlike bpf_skc_to_tcp_sock() not a call. */
static __always_inline const struct tcp_sock *listener_read(struct bpf_sock *sk)
{
	return bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct tcp_sock));
}

/* The listening socket that a lookup found within this second. It may have been closed since. */
static __always_inline const struct tcp_sock *listener_remembered(const struct destination *destination)
{
	const struct sock_common *sk = listens_at(destination->listener, bpf_ntohs(destination->port));
	bool there = sk && (guards_others ? netns_of_socket(sk) == destination->netns : in_own_namespace(sk));

	return there ? bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct tcp_sock)) : NULL;
}

/* The same of a socket that was found beside one that was looked up. */
static __always_inline const struct tcp_sock *listener_beside(struct bpf_sock *known, u64 socket, u16 port)
{
	const struct sock_common *beside = bpf_rdonly_cast(known, bpf_core_type_id_kernel(struct sock_common));
	const struct sock_common *sk = listens_at(socket, port);

	if (!sk || namespace_of(sk) != namespace_of(beside))
		return NULL;
	return bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct tcp_sock));
}

/*
 * One of an SO_REUSEPORT group is chosen by the client's address too, and one
 * on another port by a program on the sk_lookup hook: these are looked up.
 */
static __always_inline void listener_remember(struct destination *destination, const struct tcp_sock *tp)
{
	const struct sock_common *sk = (const void *)tp;
	bool only = sk->skc_num == bpf_ntohs(destination->port) && !BPF_CORE_READ_BITFIELD(sk, skc_reuseport);

	destination->listener = only ? (u64)tp : 0;
}

/*
 * What the kernel says about a listening socket now. Reads after the caller's claim_begin(), and in the order in which
 * connections pass (ledger.h): one that becomes established meanwhile is counted twice, else it could be missed.
 */
static __always_inline void queue_read(const struct tcp_sock *tp, struct queue_view *queue)
{
	const struct request_sock_queue *requests = &tp->inet_conn.icsk_accept_queue;
	const struct sock *sk = (const void *)tp;

	queue->half_open = *(volatile int *)&requests->qlen.counter;
	queue->young = *(volatile int *)&requests->young.counter;
	in_order_here();
	queue->length = *(volatile u32 *)&sk->sk_ack_backlog;
	queue->limit = *(volatile u32 *)&sk->sk_max_ack_backlog;
}

#endif
