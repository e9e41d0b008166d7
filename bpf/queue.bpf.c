// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * queue.bpf.c - who is accepted first (queue = "priority"), for servers that
 * know nothing of it.
 *
 * Beside the server's listening socket stand parking listeners on the same
 * address, in one SO_REUSEPORT group. While the server's own queue is short, a
 * new connection goes straight there, if it is to be before all that wait. Else
 * it is sent to a free parking listener, where it completes its handshake and
 * waits. User space, which sees these become readable, releases the best one
 * whenever the server's queue is short: it shuts that parking listener down,
 * and the kernel migrates the connection that waits in it to the server's
 * (listener migration, 5.14).
 *
 *   queue_steer   runs for each new connection and each migration: which
 *                 socket of the group gets it
 *   queue_watch   tells when a socket of the namespace begins or ceases to
 *                 listen, and the kernel address of our own
 *   queue_bind4, queue_bind6
 *                 run for each bind(): a server that is gone and comes back
 *                 at once gets SO_REUSEPORT too, or the parking listeners that
 *                 user space has not closed yet would hold its port
 *   queue_look    run by user space: what waits in the server's queues. User
 *                 space must not keep descriptors of the server's sockets: they
 *                 would go on listening after the server has closed them
 *
 * Who dies, when: a group's program lives as long as the sockets of the
 * group. When user space is killed, the kernel closes the parking listeners,
 * and queue_steer sends what is in them to the server. Selecting a socket that
 * is gone fails, and then the server's is selected.
 *
 * Fail open: whatever is not known goes to the server's socket.
 */
#include "abi/queue.h"
#include "lib/kernel.h"
#include "lib/classify.bpf.h"
#include "lib/export.bpf.h"
#include "lib/own_filters.bpf.h"
#include "lib/packet.h"
#include "lib/parking.bpf.h"
#include "lib/steer.h"
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "GPL";

EXPORT_TYPE(struct, listen_event);

#define NO_SLOT WEIR_MAX_SLOTS
/* asm-generic/socket.h */
#define SOL_SOCKET 1
#define SO_REUSEPORT 15
/*
 * How long connections are parked after the server's queue was seen full: until user space has seen
 * the first of them and says itself how long.
 */
#define PARK_NS 10000000ULL

/* Of the network namespace. Set before load. */
const volatile u64 namespace_cookie = 0;

/*
 * Inode of the socket that user space is about to make listen, what group_of is
 * to say of it, and then its kernel address; 0: it could not be entered.
 */
u64 opening_inode;
u32 opening_group;
u64 opened_socket;

struct {
	__uint(type, BPF_MAP_TYPE_REUSEPORT_SOCKARRAY);
	__uint(max_entries, WEIR_MAX_GROUPS * WEIR_MAX_SERVERS);
	__type(key, u32);
	__type(value, u64);
} server_socks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_REUSEPORT_SOCKARRAY);
	__uint(max_entries, WEIR_MAX_GROUPS * WEIR_MAX_SLOTS);
	__type(key, u32);
	__type(value, u64);
} slot_socks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} listen_events SEC(".maps");

/*
 * The server's socket with the shortest queue, young handshakes included; that length, and its limit. Those
 * whose SYN/ACK had to be repeated are mostly a flood's, and never come.
 */
static __always_inline u32 shortest(const struct parking_group *group, u32 *length, u32 *limit)
{
	u32 best = 0, i;

	*length = ~0U;
	*limit = 0;
	bpf_for(i, 0, WEIR_MAX_SERVERS) {
		const struct tcp_sock *tp;
		u32 here;

		if (i >= group->servers)
			break;
		tp = listener_at(group->server[i & (WEIR_MAX_SERVERS - 1)].socket, group->port);
		if (!tp)
			continue;
		here = listener_length(tp) + listener_young(tp);
		if (here < *length) {
			*length = here;
			*limit = listener_limit(tp);
			best = i;
		}
	}
	return best;
}

static __always_inline void to_server(struct sk_reuseport_md *md, u32 group, u32 server)
{
	u32 key = group * WEIR_MAX_SERVERS + server;

	bpf_sk_select_reuseport(md, &server_socks, &key, 0);
}

/*
 * Takes a slot from the ring of free ones. User space gives each back once, and there are no more slots than entries:
 * so the entry stays as it is until its slot is given back, and it is read after the swap, which on arm64 keeps it from
 * being read before the tail.
 */
static __always_inline u32 take_slot(struct parking_group *group)
{
	u32 try;

	bpf_for(try, 0, 4) {
		u32 head = *(volatile u32 *)&group->free_head;

		if (head == *(volatile u32 *)&group->free_tail)
			return NO_SLOT;
		if (__sync_val_compare_and_swap(&group->free_head, head, head + 1) == head)
			return *(volatile u16 *)&group->free[head % WEIR_MAX_SLOTS];
	}
	return NO_SLOT;
}

static __always_inline bool park(struct sk_reuseport_md *md, struct parking_group *group, u32 number, u32 class,
				 u32 priority, u64 now)
{
	u32 slot = take_slot(group), key;

	if (slot >= WEIR_MAX_SLOTS)
		return false;
	group->slot[slot & (WEIR_MAX_SLOTS - 1)].class = class;
	group->slot[slot & (WEIR_MAX_SLOTS - 1)].priority = priority;
	/* Before taken_ns, by which others know that the slot has these. */
	ORDERED(__sync_fetch_and_add(&group->waits[(priority - 1) & (WEIR_PRIORITIES - 1)], 1));
	*(volatile u64 *)&group->slot[slot & (WEIR_MAX_SLOTS - 1)].taken_ns = now;
	__sync_fetch_and_add(&group->sent, 1);
	key = number * WEIR_MAX_SLOTS + slot;
	return !bpf_sk_select_reuseport(md, &slot_socks, &key, 0);
}

/* The 4-tuple of the packet; of a retransmitted or a cookie's ACK as of a SYN. */
static __always_inline bool tuple_read(struct sk_reuseport_md *md, struct bpf_sock_tuple *tuple, bool *v6)
{
	u16 ports[2];

	__builtin_memset(tuple, 0, sizeof(*tuple));
	*v6 = md->eth_protocol == bpf_htons(ETH_P_IPV6);
	if (bpf_skb_load_bytes(md, 0, ports, sizeof(ports)))
		return false;
	if (*v6) {
		tuple->ipv6.sport = ports[0];
		tuple->ipv6.dport = ports[1];
		return !bpf_skb_load_bytes_relative(md, 8, &tuple->ipv6, 32, BPF_HDR_START_NET);
	}
	tuple->ipv4.sport = ports[0];
	tuple->ipv4.dport = ports[1];
	return !bpf_skb_load_bytes_relative(md, 12, &tuple->ipv4, 8, BPF_HDR_START_NET);
}

static __always_inline u32 class_read(struct sk_reuseport_md *md, const struct parking_group *group, u32 *priority)
{
	u32 zero = 0, *copy = bpf_map_lookup_elem(&class_active, &zero), class;
	const struct class_policy *policy;
	struct bpf_sock_tuple tuple;
	bool v6;

	*priority = WEIR_PRIORITIES;
	if (!copy || !tuple_read(md, &tuple, &v6))
		return WEIR_CLASS_OTHER;
	class = class_of(&tuple, v6, group->listener, *copy);
	policy = class_policy_of(class, *copy);
	if (policy && policy->priority >= 1 && policy->priority <= WEIR_PRIORITIES)
		*priority = policy->priority;
	return class;
}

/* The highest priority of the connections that were sent to slots; 65: none was. */
static __always_inline u32 best_parked(const struct parking_group *group)
{
	u32 i;

	bpf_for(i, 0, WEIR_PRIORITIES) {
		if (*(volatile u32 *)&group->waits[i & (WEIR_PRIORITIES - 1)])
			return i + 1;
	}
	return WEIR_PRIORITIES + 1;
}

/* Other segments may come here too: late ones, and those of nobody. */
static __always_inline bool begins(struct sk_reuseport_md *md)
{
	u8 flags;

	return !bpf_skb_load_bytes(md, 13, &flags, 1) && (flags & (FLAG_SYN | FLAG_ACK | FLAG_RST)) == FLAG_SYN;
}

SEC("sk_reuseport/migrate")
int queue_steer(struct sk_reuseport_md *md)
{
	u64 socket = (u64)md->sk, now = bpf_ktime_get_ns();
	u32 *entry = bpf_map_lookup_elem(&group_of, &socket), server, length, limit, number, class, priority;
	struct parking_group *group;
	bool others = false;

	if (!entry)
		return SK_PASS;
	number = *entry & ~WEIR_PARKED;
	group = parking_group(number);
	if (!group)
		return SK_PASS;
	server = shortest(group, &length, &limit);
	if (md->migrating_sk || now >= group->alive_until_ns) {
		to_server(md, number, server);
		return SK_PASS;
	}
	if (!straight_for_all(&group->rule, length, now < group->park_until_ns)) {
		u32 best = best_parked(group);

		class = class_read(md, group, &priority);
		if (!straight_as_next(&group->rule, length, limit, priority, best)) {
			if (length >= group->rule.depth)
				group->park_until_ns =
					group->park_until_ns < now + PARK_NS ? now + PARK_NS : group->park_until_ns;
			if (park(md, group, number, class, priority, now))
				return SK_PASS;
		}
		others = best <= WEIR_PRIORITIES;
	}
	if (begins(md)) {
		__sync_fetch_and_add(&group->straight, 1);
		if (others)
			__sync_fetch_and_add(&group->overtook, 1);
	}
	to_server(md, number, server);
	return SK_PASS;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(queue_watch, const struct sock *sk, int old, int new)
{
	const struct net *net = namespace_of(&sk->__sk_common);
	struct listen_event *event;
	u64 key = (u64)sk;
	u32 *known;

	/* A new connection begins as a copy of its listening socket, and ceases to be one as SYN_RECV. */
	if (new != TCP_LISTEN && (old != TCP_LISTEN || new != TCP_CLOSE))
		return 0;
	if (net && net->ns.inum != namespace_inum)
		return 0;
	/*
	 * This is before the kernel enters it among the listening sockets. Were it
	 * found there before it is in group_of, queue_steer would not know it, and
	 * the kernel would choose any socket of the group for the connection.
	 */
	if (new == TCP_LISTEN && opening_inode && inode_of(sk) == opening_inode) {
		if (!bpf_map_update_elem(&group_of, &key, &opening_group, BPF_ANY))
			opened_socket = key;
		return 0;
	}
	known = bpf_map_lookup_elem(&group_of, &key);
	/* Parking listeners cease all the time. One that begins has the address of one that has ceased. */
	if (new != TCP_LISTEN && known && *known & WEIR_PARKED)
		return 0;
	event = bpf_ringbuf_reserve(&listen_events, sizeof(*event), 0);
	if (!event)
		return 0;
	__builtin_memset(event, 0, sizeof(*event));
	event->socket = key;
	event->port = sk->__sk_common.skc_num;
	event->listening = new == TCP_LISTEN;
	bpf_ringbuf_submit(event, 0);
	return 0;
}

static __always_inline bool listens(const struct parking_group *group)
{
	u32 i;

	bpf_for(i, 0, WEIR_MAX_SERVERS) {
		if (i >= group->servers)
			break;
		if (listener_at(group->server[i & (WEIR_MAX_SERVERS - 1)].socket, group->port))
			return true;
	}
	return false;
}

/*
 * Lends SO_REUSEPORT to a socket that is about to be bound to the address of a group whose server is
 * gone. To one of them: that a second one cannot bind is as it was. User space knows it by its cookie
 * when it listens, and takes the option off again.
 */
static __always_inline void lend(struct bpf_sock_addr *ctx, const u32 *addr)
{
	u64 cookie = bpf_get_socket_cookie(ctx);
	u32 i, one = 1;

	if (ctx->protocol != IPPROTO_TCP || bpf_get_netns_cookie(ctx) != namespace_cookie)
		return;
	bpf_for(i, 0, WEIR_MAX_GROUPS) {
		struct parking_group *group = parking_group(i);

		if (!group || !group->servers || group->port != bpf_ntohs(ctx->user_port) || group->heir)
			continue;
		if (group->addr[0] != addr[0] || group->addr[1] != addr[1] || group->addr[2] != addr[2] ||
		    group->addr[3] != addr[3])
			continue;
		if (listens(group) || __sync_val_compare_and_swap(&group->heir, 0, cookie))
			continue;
		bpf_setsockopt(ctx, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
	}
}

SEC("cgroup/bind4")
int queue_bind4(struct bpf_sock_addr *ctx)
{
	u32 addr[4] = { 0, 0, bpf_htonl(0xffff), ctx->user_ip4 };

	lend(ctx, addr);
	return 1;
}

SEC("cgroup/bind6")
int queue_bind6(struct bpf_sock_addr *ctx)
{
	u32 addr[4] = { ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3] };

	lend(ctx, addr);
	return 1;
}

static __always_inline void look_at_servers(struct parking_group *group, bool sweep)
{
	u32 i;

	bpf_for(i, 0, WEIR_MAX_SERVERS) {
		struct parking_server *server = &group->server[i & (WEIR_MAX_SERVERS - 1)];
		const struct tcp_sock *tp;

		if (i >= group->servers)
			break;
		tp = listener_at(server->socket, group->port);
		server->listening = tp != NULL;
		server->length = tp ? listener_length(tp) : 0;
		server->limit = tp ? listener_limit(tp) : 0;
		server->half_open = tp ? listener_half_open(tp) : 0;
		if (tp && sweep)
			server->own_filters = own_filters(&server->socket);
	}
}

static __always_inline void look_at_slots(struct parking_group *group)
{
	u32 i;

	bpf_for(i, 0, WEIR_MAX_SLOTS) {
		struct parking_slot *slot = &group->slot[i & (WEIR_MAX_SLOTS - 1)];
		const struct tcp_sock *tp;

		if (i >= group->slots)
			break;
		tp = listener_at(slot->socket, group->port);
		slot->length = tp ? listener_length(tp) : 0;
		slot->half_open = tp ? listener_half_open(tp) : 0;
	}
}

SEC("syscall")
int queue_look(struct look *look)
{
	u32 sweep = look->sweep, i;

	bpf_for(i, 0, WEIR_MAX_GROUPS) {
		struct parking_group *group = parking_group(i);

		if (!group || !group->servers)
			continue;
		look_at_servers(group, sweep);
		if (sweep)
			look_at_slots(group);
	}
	return 0;
}
