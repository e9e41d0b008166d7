// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * quic.bpf.c - may one more QUIC connection begin? Attempts are held to what the
 * server answers, as SYNs are to its listen queue.
 *
 * A datagram's way in (quic_in, tc ingress): one array load by destination port;
 * one of the first byte: short headers are of established connections, and end
 * here. Then the beginning of the first packet. An Initial that may begin a
 * connection is judged (quic_wait.h), unless it repeats one that was. A refused
 * one is answered with a Version Negotiation packet, or dropped. What follows it,
 * further Initials and 0-RTT, has the same fate for a moment; then it is judged
 * anew, for the client tries again.
 *
 * The way out (quic_out, tc egress): the first long packet to the client of an
 * attempt is its answer.
 *
 * Everything else passes: unknown versions, Handshake packets, short datagrams,
 * packets of other hosts, VLANs and fragments but the first. A buffer of several
 * datagrams (GRO) is refused only if all in it are of the attempt.
 *
 * State. places, quic_ports: written by user space only. The tables of classes
 * are a guard's (classify.bpf.h, rate.bpf.h). states: forgets what is longest unused
 * (LRU). flows: attempts that were let in or refused (quic_flows.h). counters: per
 * CPU. All of it dies with the process that loaded it: nothing is pinned.
 *
 * Fail open: a failed lookup, a full map, a helper's error: the packet passes.
 */
#include "lib/kernel.h"
#include "abi/guard.h"
#include "abi/quic.h"
#include "lib/classify.bpf.h"
#include "lib/context.bpf.h"
#include "lib/frame.bpf.h"
#include "lib/netns.bpf.h"
#include "lib/packet.h"
#include "lib/quic.h"
#include "lib/quic_arrival.bpf.h"
#include "lib/quic_flows.h"
#include "lib/quic_report.bpf.h"
#include "lib/quic_wait.h"
#include "lib/rate.bpf.h"
#include "lib/reply.h"
#include "lib/route.bpf.h"

char LICENSE[] SEC("license") = "GPL";

/* What follows a refused Initial is refused too for so long. A client repeats its Initial after a second (RFC 9002). */
#define REFUSED_FOR_NS 250000000ULL
/* An attempt that the server has not answered for so long is none any more. */
#define ATTEMPT_FOR_NS 30000000000ULL
/* An Initial that comes again after so long was lost, or its answer was: clients wait a second. */
#define REPEATED_NS 200000000ULL
/* Datagrams that one buffer may hold to be looked at. */
#define SEGMENTS_MOST 8

/* Set before the programs are loaded. */
const volatile struct quic_flow_keys flow_keys = {};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, WEIR_QUIC_PLACES);
	__type(key, struct quic_place);
	__type(value, struct quic_policy);
} places SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, WEIR_QUIC_SOCKETS);
	__type(key, struct quic_server);
	__type(value, struct quic_state);
} states SEC(".maps");

/* Elements of flows; a power of two. Both are set before the programs are loaded. */
const volatile u32 flow_pairs = WEIR_QUIC_FLOWS_LEAST / 2;

/* What can be mapped begins at a page, so a slot is a cache line. Nobody maps it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, WEIR_QUIC_FLOWS_LEAST / 2);
	__type(key, u32);
	__type(value, struct quic_pair);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WEIR_MAX_QUIC);
	__type(key, u32);
	__type(value, struct quic_counters);
} counters SEC(".maps");

/* A datagram while it is judged. */
struct datagram {
	struct bpf_sock_tuple tuple;
	struct quic_client client;
	struct quic_packet packet;
	u8 head[QUIC_BUFFER] __attribute__((aligned(8)));
	u8 scratch[QUIC_BUFFER] __attribute__((aligned(8)));
	u64 flow;		/* hash of its client */
	u32 l4;			/* offset of the UDP header */
	u32 len;		/* bytes behind it, of the first datagram where there are several */
	u32 to_hash;		/* of the destination's connection ID; never 0 */
	u32 from_hash;		/* and of the source's */
	u32 v6;
	u32 at;			/* quic_ports of its port */
	u32 class;		/* slot of its class; WEIR_NO_CLASS: there are no classes */
	u32 copy;		/* of the class tables */
	u64 netns;		/* cookie of the network namespace that it is in */
	u64 now;
	u32 busy;		/* 1: it is in use */
};

/*
 * One for each way and CPU: on the stack there is no room for it. It is for one packet at a time: these programs run in
 * softirqs, or where none may come between, and none sends a packet that comes by again before it ends. With
 * PREEMPT_RT one may come between, and passes.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, struct datagram);
} datagrams SEC(".maps");

static __always_inline struct datagram *datagram_of(bool out)
{
	u32 key = out;

	return bpf_map_lookup_elem(&datagrams, &key);
}

/* Whether this packet may have it; then give() is due. Both are of one CPU. */
static __always_inline bool take(struct datagram *d)
{
	if (!d || *(volatile u32 *)&d->busy)
		return false;
	*(volatile u32 *)&d->busy = 1;
	return true;
}

static __always_inline void give(struct datagram *d)
{
	*(volatile u32 *)&d->busy = 0;
}

static __always_inline void count(u32 key, enum quic_verdict v)
{
	u64 *c = bpf_map_lookup_elem(&counters, &key);

	if (c && v < QUIC_VERDICT_COUNT)
		c[v]++;
}

/* Counts for the listener and for the class. */
static __always_inline void count_for(const struct quic_policy *policy, u32 class, enum quic_verdict v)
{
	struct class_state *state;

	barrier_var(v);
	count(policy->counters, v);
	if (class == WEIR_NO_CLASS)
		return;
	state = class_state_of(class);
	if (state && v < QUIC_VERDICT_COUNT)
		__sync_fetch_and_add((u64 *)&state->quic + v, 1);
}

/* Of the server's address and network namespace. */
static __always_inline u32 server_hash(const struct datagram *d, bool out)
{
	u32 hash = d->netns * 0x9e3779b1;

	if (!d->v6)
		return (hash ^ (out ? d->tuple.ipv4.saddr : d->tuple.ipv4.daddr)) * 0x9e3779b1;
#pragma unroll
	for (u32 i = 0; i < 4; i++)
		hash = (hash ^ (out ? d->tuple.ipv6.saddr[i] : d->tuple.ipv6.daddr[i])) * 0x9e3779b1;
	return hash;
}

/* With its length, which is part of an ID. */
static __always_inline void client_id(struct quic_client *client, const struct quic_id *id, u32 len)
{
	client->id[0] = id->word[0];
	client->id[1] = id->word[1];
	client->id[2] = id->word[2] | (u64)len << 56;
}

/*
 * How many bytes the first datagram has: as many as its header says (said), or as there are if these are fewer. An
 * answer is shorter than what came, and anybody can make up a header.
 */
static __always_inline u32 datagram_len(struct __sk_buff *skb, u32 said, u32 l4)
{
	u32 begin = l4 + sizeof(struct udp), len = CTX_LOAD(skb, len), one = CTX_LOAD(skb, gso_size);

	len = len > begin ? len - begin : 0;
	said -= sizeof(struct udp);
	len = said < len ? said : len;
	return one && one < len ? one : len;
}

/*
 * Reads addresses and the first packet. said: as of guarded_len(). out: it is the server's, and the client's ID is
 * where it goes. Global.
 */
__noinline int datagram_read(struct __sk_buff *skb, struct datagram *d, u32 said, bool out)
{
	void *end = skb_end(skb), *network = skb_start(skb) + link_header;
	struct quic_client *client;
	struct quic_id to, from;
	struct udp *udp;
	u32 take;

	if (!d)
		return 0;
	client = &d->client;
	d->v6 = said >> 31;
	d->at = said >> SAID_AT_SHIFT;
	if (d->v6) {
		const struct ipv6 *ip = network;

		udp = (void *)(ip + 1);
		if ((void *)(udp + 1) > end)
			return 0;
		__builtin_memcpy(d->tuple.ipv6.saddr, ip->saddr, 16);
		__builtin_memcpy(d->tuple.ipv6.daddr, ip->daddr, 16);
		d->tuple.ipv6.sport = udp->sport;
		d->tuple.ipv6.dport = udp->dport;
		__builtin_memcpy(client->addr, out ? ip->daddr : ip->saddr, 16);
		d->l4 = link_header + sizeof(*ip);
	} else {
		const struct ipv4 *ip = network;

		udp = (void *)(ip + 1);
		if ((void *)(udp + 1) > end || (!out && !ipv4_header_sound(ip)))
			return 0;
		d->tuple.ipv4.saddr = ip->saddr;
		d->tuple.ipv4.daddr = ip->daddr;
		d->tuple.ipv4.sport = udp->sport;
		d->tuple.ipv4.dport = udp->dport;
		client->addr[0] = client->addr[1] = 0;
		client->addr[2] = bpf_htonl(0xffff);
		client->addr[3] = out ? ip->daddr : ip->saddr;
		d->l4 = link_header + sizeof(*ip);
	}
	d->netns = netns_of_skb(skb);
	client->server = server_hash(d, out);
	client->port = out ? udp->dport : udp->sport;
	client->server_port = out ? udp->sport : udp->dport;
	d->len = datagram_len(skb, said & SAID_LEN, d->l4);
	take = d->len < QUIC_HEAD ? d->len : QUIC_HEAD;
	__builtin_memset(d->head, 0, sizeof(d->head));
	if (take < QUIC_TO_AT + 1 || bpf_skb_load_bytes(skb, d->l4 + sizeof(*udp), d->head, take))
		return 0;
	quic_read(d->head, d->len, &d->packet);
	if (d->packet.kind == QUIC_NONE)
		return 0;
	quic_id_read(&to, d->head, QUIC_TO_AT, d->packet.to_len);
	quic_id_read(&from, d->head, quic_from_at(&d->packet), d->packet.from_len);
	d->to_hash = quic_id_hash(&to);
	d->from_hash = quic_id_hash(&from);
	client_id(client, out ? &to : &from, out ? d->packet.to_len : d->packet.from_len);
	d->flow = quic_client_hash(client, &flow_keys);
	return 1;
}

/* What holds at an address and a port. NULL: nothing. Of two the one on this address. */
static __always_inline const struct quic_policy *policy_at(struct quic_place *place, const struct datagram *d)
{
	const struct quic_policy *exact = NULL;

	__builtin_memset(place, 0, sizeof(*place));
	place->netns = d->netns;
	place->port = d->client.server_port;
	if (!d->v6)
		place->addr[2] = bpf_htonl(0xffff);
	if (d->at & WEIR_QUIC_AT_ONE) {
		if (d->v6)
			__builtin_memcpy(place->addr, d->tuple.ipv6.daddr, 16);
		else
			place->addr[3] = d->tuple.ipv4.daddr;
		exact = bpf_map_lookup_elem(&places, place);
	}
	if (exact || !(d->at & WEIR_QUIC_AT_EVERY))
		return exact;
	if (d->v6)
		__builtin_memset(place->addr, 0, 16);
	else
		place->addr[3] = 0;
	return bpf_map_lookup_elem(&places, place);
}

static __always_inline bool on_interface(const struct quic_policy *policy, u32 ifindex)
{
	if (!policy->ifindex[0])
		return true;
#pragma unroll
	for (int i = 0; i < WEIR_QUIC_INTERFACES; i++)
		if (policy->ifindex[i] == ifindex)
			return true;
	return false;
}

static __always_inline bool endpoints(const struct datagram *d)
{
	const struct bpf_sock_tuple *tuple = &d->tuple;

	return d->v6 ? endpoint6(tuple->ipv6.saddr) && endpoint6(tuple->ipv6.daddr) :
		       endpoint4(tuple->ipv4.saddr) && endpoint4(tuple->ipv4.daddr);
}

/* Whether another datagram of the buffer, at this offset, is of the same attempt. Global: a turn of a loop. */
__noinline int is_same_attempt(struct __sk_buff *skb, struct datagram *d, u32 at)
{
	struct quic_packet packet;
	struct quic_id from;
	u64 *word;

	if (!d)
		return 0;
	word = (void *)d->scratch;
#pragma unroll
	for (u32 i = 0; i < QUIC_BUFFER / 8; i++)
		word[i] = 0;
	if (bpf_skb_load_bytes(skb, at, d->scratch, QUIC_HEAD))
		return 0;
	quic_read(d->scratch, QUIC_LEAST_INITIAL, &packet);
	if ((packet.kind != QUIC_INITIAL && packet.kind != QUIC_ZERO_RTT) || packet.from_len != d->packet.from_len)
		return 0;
	quic_id_read(&from, d->scratch, quic_from_at(&packet), packet.from_len);
	return quic_id_hash(&from) == d->from_hash;
}

/* Whether all datagrams of the buffer are of the attempt. How many there are tun and virtio do not say. */
static __always_inline bool is_alone(struct __sk_buff *skb, struct datagram *d)
{
	u32 size = CTX_LOAD(skb, gso_size), begin = d->l4 + sizeof(struct udp), len = CTX_LOAD(skb, len), i;

	if (!size || len <= begin + size)
		return true;
	if (len - begin > SEGMENTS_MOST * size)
		return false;
	bpf_for(i, 1, SEGMENTS_MOST) {
		if (begin + i * size >= len)
			break;
		if (!is_same_attempt(skb, d, begin + i * size))
			return false;
	}
	return true;
}

/* Turns the headers around, for an answer of QUIC_BUFFER bytes that are 0 behind its end. v6 is a constant. */
static __always_inline int turn(void *data, void *data_end, bool v6, bool partial, const u8 *answer, u32 len)
{
	__be32 *word = data + link_header + (v6 ? sizeof(struct ipv6) : sizeof(struct ipv4));
	u32 udp_len = sizeof(struct udp) + len;
	u64 pseudo, body;
	u16 sum;

	if ((void *)(word + 2) > data_end)
		return -1;
	if (link_header)
		swap_ethernet(data);
	pseudo = v6 ? turn_ipv6(data + link_header, udp_len, IPPROTO_UDP) :
		      turn_ipv4(data + link_header, udp_len, IPPROTO_UDP);
	word[0] = word[0] << 16 | word[0] >> 16;
	word[1] = bpf_htonl(udp_len << 16);
	body = (u64)word[0] + word[1] + csum_words(answer, QUIC_BUFFER / 4);
	sum = partial ? csum_fold(pseudo) : ~csum_fold(pseudo + body);
	/* 0 is no sum. */
	((struct udp *)word)->csum = sum ? sum : 0xffff;
	return 0;
}

/* Makes the packet the answer, and sends it back where it came from. Global. */
__noinline int send_negotiation(struct __sk_buff *skb, struct datagram *d)
{
	u32 len, at;
	bool partial;
	u8 *answer;

	if (!d)
		return TC_DROP;
	answer = d->scratch;
	len = quic_refuse(answer, d->head, &d->packet, bpf_get_prandom_u32());
	at = link_header + (d->v6 ? sizeof(struct ipv6) : sizeof(struct ipv4)) + sizeof(struct udp);
	if (len > QUIC_VN_MOST || bpf_skb_change_tail(skb, at + len, 0))
		return TC_DROP;
	partial = checksum_state(skb) == CHECKSUM_PARTIAL;
	if (d->v6 ? turn(skb_start(skb), skb_end(skb), true, partial, answer, len) :
		    turn(skb_start(skb), skb_end(skb), false, partial, answer, len))
		return TC_DROP;
	if (bpf_skb_store_bytes(skb, at, answer, len, 0))
		return TC_DROP;
	return bpf_redirect(CTX_LOAD(skb, ifindex), 0);
}

static __always_inline int refuse(struct __sk_buff *skb, struct datagram *d, enum quic_verdict v)
{
	/* Only an Initial is answered, and never by more than it is long. */
	if (!quic_answers(v) || d->packet.kind != QUIC_INITIAL || d->len < QUIC_LEAST_INITIAL)
		return TC_DROP;
	return send_negotiation(skb, d);
}

/* Not on the stack, of which four calls have 512 bytes. */
static const struct quic_state nothing_known;

/* Begins with a server. Before its times are there, another CPU may take it for one that has long been silent. */
__noinline int state_begin(const struct quic_server *server, u64 now)
{
	struct quic_state *state;

	if (!server || bpf_map_update_elem(&states, server, &nothing_known, BPF_NOEXIST))
		return 0;
	state = bpf_map_lookup_elem(&states, server);
	if (state) {
		state->silent_ns = now;
		state->born_ns = now;
	}
	return 1;
}

static __always_inline struct quic_state *state_of(const struct quic_server *server, u64 now)
{
	struct quic_state *state = bpf_map_lookup_elem(&states, server);

	if (state)
		return state;
	state_begin(server, now);
	return bpf_map_lookup_elem(&states, server);
}

/* The inode of a socket. By a cast: sk_socket may be NULL, and then this reads 0. */
static __always_inline u32 inode_of(const struct sock *socket)
{
	const struct socket_alloc *alloc = bpf_rdonly_cast((void *)socket->sk_socket, bpf_core_type_id_kernel(struct socket_alloc));

	return alloc->vfs_inode.i_ino;
}

/* Finds the socket that the datagram is for, and how full it is. False: there is none, or one that is connected. */
static __always_inline bool socket_of(struct __sk_buff *skb, struct datagram *d, struct quic_server *server, u32 *buffer, u32 *limit)
{
	u32 size = d->v6 ? sizeof(d->tuple.ipv6) : sizeof(d->tuple.ipv4);
	struct bpf_sock *sk = bpf_sk_lookup_udp(skb, &d->tuple, size, BPF_F_CURRENT_NETNS, 0);
	const struct sock *socket;

	if (!sk)
		return false;
	socket = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct sock));
	/* UDP has two states: this one is of sockets without a peer. */
	if (socket->__sk_common.skc_state == TCP_CLOSE) {
		*buffer = *(volatile int *)&socket->sk_backlog.rmem_alloc.counter;
		*limit = *(volatile int *)&socket->sk_rcvbuf;
		server->socket = (u64)socket;
		server->inode = inode_of(socket);
	}
	bpf_sk_release(sk);
	return server->socket;
}

/* The pair of slots of its client. NULL is for the verifier. */
static __always_inline struct quic_pair *pair_of(const struct datagram *d)
{
	u32 key = quic_pair_of(d->flow, flow_pairs);

	return bpf_map_lookup_elem(&flows, &key);
}

/* What is remembered of its client. NULL: nothing. */
static __always_inline struct quic_slot *slot_of(const struct datagram *d)
{
	struct quic_pair *pair = pair_of(d);

	return pair ? quic_slot_find(pair, d->flow) : NULL;
}

/* Of one that is let in and not remembered the answer is not seen. Global. */
__noinline int remember(const struct datagram *d, const struct quic_slot *what)
{
	struct quic_pair *pair = d && what ? pair_of(d) : NULL;

	return pair ? quic_slot_write(pair, d->flow, d->now, what) : 0;
}

/* An attempt is let in; in observe mode whatever its verdict. */
static __always_inline void begin(struct __sk_buff *skb, struct quic_state *state, const struct datagram *d,
				  struct quic_slot *attempt)
{
	struct sk_buff *packet = bpf_cast_to_kern_ctx(skb);
	u32 truesize = bpf_core_type_exists(struct udp_prod_queue) ? packet->truesize : 0;

	attempt->behind = quic_pending(state);
	if (quic_is_lost(state, truesize))
		attempt->turn = quic_turn(d->flow, quic_lose(state, d->now), QUIC_LATE);
	else
		attempt->turn = quic_turn(d->flow, quic_let_in(state, d->now), QUIC_UNDER_WAY);
	remember(d, attempt);
}

/* Which copy of the class tables is in force. */
static __always_inline u32 class_copy(void)
{
	const u32 *copy = bpf_map_lookup_elem(&class_active, &(u32){ 0 });

	return copy ? *copy : 0;
}

/*
 * Finds the class of an attempt. Returns its priority. Without any class nothing is counted for `other`: all CPUs would
 * write to the same place.
 */
static __always_inline u32 class_in(const struct quic_policy *policy, struct datagram *d)
{
	u32 copy = class_copy() & 1;
	const struct class_masks *table = bpf_map_lookup_elem(&class_masks, &copy);
	const struct class_policy *class;

	d->copy = copy;
	d->class = WEIR_NO_CLASS;
	if (!table || !table->count[d->v6 & 1])
		return WEIR_PRIORITIES;
	d->class = class_of(&d->tuple, d->v6, policy->owner, copy);
	class = class_policy_of(d->class, copy);
	return class && class->priority ? class->priority : WEIR_PRIORITIES;
}

/*
 * What the rate of its class says of an attempt, which then has its token. Who only observes takes none: the class may
 * be that of SYNs whose verdicts are carried out.
 */
static __always_inline enum quic_verdict rate_verdict(const struct quic_policy *policy, const struct datagram *d)
{
	u32 class = d->class == WEIR_NO_CLASS ? WEIR_CLASS_OTHER : d->class;
	int police_says = police(class, d->copy, !policy->observe);

	if (police_says == POLICE_PASS)
		return VERDICT_quic_admitted;
	if (police_says == POLICE_HELD)
		return policy->refuse == QUIC_REFUSE_VN ? VERDICT_quic_vn_held : VERDICT_quic_dropped_held;
	return police_says == POLICE_RST ? VERDICT_quic_vn_rate : VERDICT_quic_dropped_rate;
}

static __always_inline int passed(const struct quic_policy *policy, const struct datagram *d, enum quic_verdict v)
{
	count_for(policy, d->class, v);
	return PASS;
}

/* Global: a stack of its own. */
__noinline int look(struct quic_state *state, u64 now, const struct quic_policy *policy)
{
	if (state && policy)
		quic_look(state, now, policy);
	return 0;
}

/* Judges an attempt. Global. */
__noinline int judge(struct __sk_buff *skb, const struct quic_policy *policy, struct datagram *d)
{
	struct quic_slot attempt = {};
	struct quic_state *state;
	u32 buffer = 0, limit = 0, priority;
	enum quic_verdict v;

	if (!policy || !d)
		return PASS;
	priority = class_in(policy, d);
	attempt.server.counters = policy->counters;
	if (!socket_of(skb, d, &attempt.server, &buffer, &limit))
		return passed(policy, d, VERDICT_quic_unheard);
	state = state_of(&attempt.server, d->now);
	/* What IPsec protects leaves as something else: its answer would not be seen. */
	if (!state || !is_alone(skb, d) || came_by_ipsec(skb))
		return passed(policy, d, VERDICT_quic_unjudged);
	state->buffer = buffer;
	state->buffer_limit = limit;
	look(state, d->now, policy);
	v = quic_judge(state, d->now, policy, priority);
	/* Who is refused anyway takes no token: the client may come by TCP, and needs it there. */
	if (quic_lets_in(v)) {
		enum quic_verdict rate = rate_verdict(policy, d);

		v = quic_lets_in(rate) ? v : rate;
	}
	count_for(policy, d->class, v);
	if (!quic_lets_in(v))
		quic_sample(state, policy, &d->client, &d->tuple, quic_sample_what(v, d->class, d->v6));
	if (quic_lets_in(v) || policy->observe) {
		attempt.first_id = d->to_hash;
		begin(skb, state, d, &attempt);
		return PASS;
	}
	attempt.turn = quic_turn(d->flow, 0, QUIC_REFUSED);
	attempt.verdict = v;
	remember(d, &attempt);
	return refuse(skb, d, v);
}

/*
 * Whether a packet of a client begins another attempt than the one that was let in: it goes to an ID that is neither
 * the first one nor the server's. Clients without an ID of their own (Chromium's) are told apart by port only, and use
 * it again.
 */
static __always_inline bool begins_anew(const struct quic_slot *attempt, const struct datagram *d)
{
	if (d->to_hash == attempt->first_id || d->to_hash == attempt->server_id)
		return false;
	return attempt->server_id || (s64)(d->now - attempt->at_ns) > (s64)ATTEMPT_FOR_NS;
}

/* The server has asked it for its address, and now it is to be answered. Global. */
__noinline int comes_back(struct quic_slot *slot, struct datagram *d, u64 turn)
{
	struct quic_server server;
	struct quic_state *state;

	if (!slot || !d || !quic_turn_swap(slot, turn, quic_turn_with(turn, QUIC_WRITING)))
		return PASS;
	server = slot->server;
	state = bpf_map_lookup_elem(&states, &server);
	if (state) {
		slot->behind = quic_pending(state);
		slot->at_ns = d->now;
		turn = quic_turn(d->flow, quic_let_in(state, d->now), QUIC_UNDER_WAY);
	}
	quic_slot_publish(slot, turn);
	return PASS;
}

/* A packet of an attempt that was let in; turn: its word. */
static __always_inline int goes_on(struct quic_slot *slot, struct datagram *d, u64 turn)
{
	enum quic_fate fate = quic_turn_fate(turn);

	if (d->packet.kind != QUIC_INITIAL)
		return PASS;
	if (fate == QUIC_UNDER_WAY && (s64)(d->now - slot->at_ns) > (s64)REPEATED_NS) {
		/* In a slot that another one has taken it does no harm: it counts from the first repeat on. */
		slot->repeated_ns = d->now;
		quic_turn_swap(slot, turn, quic_turn_with(turn, QUIC_LATE));
	}
	/*
	 * Its hello may have more datagrams, for each of which the server may send a Retry. The client goes by the
	 * first one.
	 */
	if (fate == QUIC_RETRIED && d->to_hash == slot->server_id)
		return comes_back(slot, d, turn);
	return PASS;
}

/* A further packet of a client that was refused a moment ago. */
static __always_inline int refuse_again(struct __sk_buff *skb, struct datagram *d, const struct quic_policy *policy,
					struct quic_slot *slot, u64 turn)
{
	u32 verdict = slot->verdict;

	if (!quic_turn_stays(slot, turn) || !is_alone(skb, d))
		return PASS;
	count(policy->counters, VERDICT_quic_refused_again);
	return policy->observe ? PASS : refuse(skb, d, verdict);
}

/*
 * Whether this follows an Initial that was refused a moment ago. Signed: another CPU may have judged it a moment later.
 */
static __always_inline bool follows_refusal(const struct quic_slot *slot, const struct datagram *d)
{
	return (s64)(d->now - slot->at_ns) <= (s64)REFUSED_FOR_NS;
}

/* Global. */
__noinline int on_long(struct __sk_buff *skb, u32 said)
{
	struct sk_buff *buffer = bpf_cast_to_kern_ctx(skb);
	struct datagram *d = datagram_of(false);
	const struct quic_policy *policy;
	struct quic_place place;
	struct quic_slot *slot;
	bool begins, refused;
	u64 turn;

	if (!d || !datagram_read(skb, d, said, false))
		return PASS;
	begins = quic_may_begin(&d->packet, d->len);
	if (!begins && d->packet.kind != QUIC_INITIAL && d->packet.kind != QUIC_ZERO_RTT)
		return PASS;
	policy = policy_at(&place, d);
	if (!policy || !on_interface(policy, CTX_LOAD(skb, ifindex)) || !endpoints(d))
		return PASS;
	d->now = bpf_ktime_get_ns();
	slot = slot_of(d);
	if (slot) {
		turn = quic_turn_of(slot, d->flow);
		/* Another CPU judges this client, or has just given its slot away. */
		if (quic_turn_fate(turn) == QUIC_WRITING)
			return PASS;
		refused = quic_turn_fate(turn) == QUIC_REFUSED;
		if (refused && follows_refusal(slot, d))
			return refuse_again(skb, d, policy, slot, turn);
		if (!refused && !(begins && begins_anew(slot, d)))
			return goes_on(slot, d, turn);
	}
	if (!begins || !is_for_host(skb, CTX_LOAD(skb, ifindex), (u64)buffer->dev, &d->tuple, d->v6, IPPROTO_UDP))
		return PASS;
	return judge(skb, policy, d);
}

/* For devices without a link header it is loaded again, with link_header = 0. */
SEC("tc")
int quic_in(struct __sk_buff *skb)
{
	u32 said = guarded_len(skb, false);
	struct datagram *d;
	int action;

	if (!said && pull_datagram(skb))
		said = guarded_len(skb, false);
	if (!said || in_vlan(skb) || CTX_LOAD(skb, pkt_type) != PACKET_HOST)
		return PASS;
	d = datagram_of(false);
	if (!take(d))
		return PASS;
	action = on_long(skb, said);
	give(d);
	return action;
}

/* The server's first packet to the client of an attempt. Global. */
__noinline int on_answer(struct __sk_buff *skb, u32 said)
{
	struct datagram *d = datagram_of(true);
	struct quic_slot was = {}, *slot;
	struct quic_state *state;
	u32 number;
	u64 now;
	bool retry;

	if (!d || !datagram_read(skb, d, said, true))
		return 0;
	slot = slot_of(d);
	retry = d->packet.kind == QUIC_RETRY || d->packet.kind == QUIC_NEGOTIATION;
	if (!slot || !quic_slot_answer(slot, d->flow, retry, d->from_hash, &was))
		return 0;
	state = bpf_map_lookup_elem(&states, &was.server);
	/* One that was let in before the state began has another number. */
	if (!state || (s64)(was.at_ns - state->born_ns) < 0)
		return 0;
	now = bpf_ktime_get_ns();
	number = quic_turn_number(was.turn);
	if (retry) {
		quic_excuse(state, number, now);
		return 0;
	}
	if (quic_turn_fate(was.turn) == QUIC_LATE)
		quic_answer_late(state, number, now, was.repeated_ns, was.behind);
	else
		quic_answer(state, number, now, now - was.at_ns, was.behind);
	count(was.server.counters, VERDICT_quic_answered);
	return 0;
}

SEC("tc")
int quic_out(struct __sk_buff *skb)
{
	u32 said = guarded_len(skb, true);
	struct datagram *d = said ? datagram_of(true) : NULL;

	if (take(d)) {
		on_answer(skb, said);
		give(d);
	}
	return PASS;
}
