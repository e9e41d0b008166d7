// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * splice.bpf.c - transfer: short messages of a tunnel go from the one socket
 * to the other inside the kernel (sk_skb stream verdict on a sockmap).
 *
 * The program sees each packet that arrived in order on a socket in the map.
 * It redirects the packet to the other socket of the tunnel, whose kworker
 * sends it, or passes it to user space, which reads it with recv(). Once it
 * has passed a byte it passes all that follow, so that they stay in order:
 * user space takes the tunnel back and goes on by itself, until it has received
 * all of them and arms the tunnel again.
 *
 * What the kernel does not care for, and this program does:
 *
 *   no backpressure    a redirected packet is charged to nobody: a receiver that
 *                      stalls would gather its sender's packets without limit.
 *                      WINDOW_BYTES of them go between two looks at the receiver,
 *                      and it is looked at that the last window is in its send
 *                      queue, and that this has room for this window and one more.
 *   ends               a FIN is a packet without bytes, and sending nothing is an
 *                      error that breaks the receiver: dropped here. recv() says
 *                      the end, as ever.
 *   two sockets        cannot come into the map at once: a socket passes until
 *                      user space has armed it, when both are there.
 *   leaving the map    drops the packets that are about to be judged at that moment:
 *                      a socket stays until it is closed. While it is not armed, all
 *                      its packets are passed.
 *   overlapping bytes  a sender that sends again what was lost may join it with what was not,
 *                      and TCP queues such a packet whole. recv() skips what it had before,
 *                      the way to this program does not (tcp_read_skb): cut off here.
 *   many small pages   each page of a packet would be sent as a packet of its own,
 *                      and a byte of it would hold its page for as long as it is
 *                      not acknowledged: packets are made linear, and so copied.
 *
 * State. ways: a line for each socket; abi/splice.h says who writes what. A
 * socket's packets are judged one at a time, under its lock. Nothing is
 * pinned: all of it dies with the process that loaded it.
 */
#include "abi/splice.h"
#include "lib/kernel.h"

char LICENSE[] SEC("license") = "GPL";

/* Longer packets cost more here than through user space: measured, experiments/proxy. */
#define SHORT_BYTES 2048
/* Memory that is redirected between two looks at the receiver: some short packets. */
#define WINDOW_BYTES (16 * 1024)

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, WEIR_SPLICE_SLOTS);
	__type(key, u32);
	__type(value, u64);
} sockets SEC(".maps");

/* A socket's slot by its cookie. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, WEIR_SPLICE_SLOTS);
	__type(key, u64);
	__type(value, u32);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, WEIR_SPLICE_SLOTS);
	__type(key, u32);
	__type(value, struct splice_way);
} ways SEC(".maps");

/* For each thread of the proxy: slots in which something was passed for the first time since they were armed. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WEIR_SPLICE_LANES);
	__type(key, u32);
	__array(
		values, struct {
			__uint(type, BPF_MAP_TYPE_RINGBUF);
			__uint(max_entries, 4096);
		});
} rings SEC(".maps");

/* The most that one call cuts off, and calls for the longest packet (GSO_MAX_SIZE of net/gso.h). */
#define CUT_BYTES 4095
#define MOST_CUTS 129

/*
 * Cuts off the bytes that were judged with an earlier packet, or received before the socket came in.
 * False: the kernel has no memory for that.
 */
static __always_inline bool cut_overlap(struct __sk_buff *skb, struct splice_way *way)
{
	struct sk_buff *packet = bpf_cast_to_kern_ctx(skb);
	u32 seq = BPF_CORE_READ((struct tcp_skb_cb *)packet->cb, seq);
	u32 next = way->next_seq;
	s32 overlap;
	int i;

	if (!way->judged) {
		struct bpf_sock *sk = skb->sk;
		struct tcp_sock *tp = sk ? bpf_skc_to_tcp_sock(sk) : NULL;

		/* All that came before was received: the first byte that nobody has is this packet's. */
		next = tp ? tp->copied_seq : seq;
		way->judged = 1;
	}
	overlap = next - seq;
	way->next_seq = seq + skb->len;
	if (overlap <= 0)
		return true;
	bpf_for(i, 0, MOST_CUTS) {
		s32 cut = overlap < CUT_BYTES ? overlap : CUT_BYTES;

		if (bpf_skb_adjust_room(skb, -cut, BPF_ADJ_ROOM_NET, 0))
			return false;
		overlap -= cut;
		if (!overlap)
			return true;
	}
	return false;
}

/* Whether the receiver has sent the last window and has room for this one and the next. */
static __always_inline bool receiver_keeps_up(struct splice_way *way, u32 other)
{
	struct bpf_sock *sk = bpf_map_lookup_elem(&sockets, &other);
	bool keeps_up = false;
	struct tcp_sock *tp;
	u32 write_seq;

	if (!sk)
		return false;
	tp = bpf_skc_to_tcp_sock(sk);
	if (tp) {
		struct sock *receiver = (struct sock *)tp;

		write_seq = tp->write_seq;
		if (!way->looked) {
			/* User space, the only other writer, has nothing in hand while it is armed. */
			way->looked = 1;
			way->goal = way->mark = write_seq;
		}
		keeps_up = (s32)(write_seq - way->mark) >= 0 &&
			   receiver->sk_wmem_queued + 2 * WINDOW_BYTES <= receiver->sk_sndbuf;
	}
	bpf_sk_release(sk);
	if (keeps_up) {
		way->mark = way->goal;
		way->since_mark = 0;
	}
	return keeps_up;
}

/* Whether this packet can go to the other socket; if so, it is counted as gone. */
static __always_inline bool redirect(struct __sk_buff *skb, struct splice_way *way, u32 other)
{
	struct sk_buff *packet = bpf_cast_to_kern_ctx(skb);
	u32 length = skb->len;

	if (!way->armed || way->passed != way->received || length > SHORT_BYTES)
		return false;
	if ((!way->looked || way->since_mark >= WINDOW_BYTES) && !receiver_keeps_up(way, other))
		return false;
	if ((u64)skb->data_end - (u64)skb->data < length && bpf_skb_pull_data(skb, length))
		return false;
	if (bpf_sk_redirect_map(skb, &sockets, other, 0) != SK_PASS)
		return false;
	way->since_mark += packet->truesize;
	way->goal += length;
	way->redirected += length;
	return true;
}

/* User space reads this packet and all that follow. It is told once: it takes the tunnel back. */
static __always_inline void pass(struct __sk_buff *skb, struct splice_way *way, u32 slot)
{
	u32 lane = way->lane;
	void *ring;

	way->passed += skb->len;
	if (!way->armed || way->told)
		return;
	ring = bpf_map_lookup_elem(&rings, &lane);
	if (ring && !bpf_ringbuf_output(ring, &slot, sizeof(slot), 0))
		way->told = 1;
}

SEC("sk_skb/stream_verdict")
int splice_verdict(struct __sk_buff *skb)
{
	struct splice_way *way;
	u64 cookie;
	u32 *slot;

	if (!skb->len)
		return SK_DROP;
	cookie = bpf_get_socket_cookie(skb);
	slot = bpf_map_lookup_elem(&slots, &cookie);
	if (!slot)
		return SK_PASS;
	way = bpf_map_lookup_elem(&ways, slot);
	if (!way)
		return SK_PASS;
	if (way->broken)
		return SK_DROP;
	if (!cut_overlap(skb, way)) {
		/* What is missing never comes: user space, which is told, ends the tunnel. */
		way->broken = 1;
		pass(skb, way, *slot);
		return SK_DROP;
	}
	/* The end, sent again with bytes that all came before. */
	if (!skb->len)
		return SK_DROP;
	if (!redirect(skb, way, *slot ^ 1))
		pass(skb, way, *slot);
	return SK_PASS;
}
