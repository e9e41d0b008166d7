/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * cookie.h - the SYN cookie: a SYN/ACK sequence number that carries what the
 * client offered and proves that we sent it. Pure.
 *
 *   31 .. 8   SipHash-2-4 of addresses, ports, client's ISN, epoch, the low byte and, in
 *             a network namespace that is not weir's own, the number of the listener
 *   7         parity of the epoch
 *   6 .. 5    index into the MSS table
 *   4 .. 1    window scale of the client, 15: none
 *   0         SACK permitted
 *
 * An epoch is 2^36 ns (69 s); a cookie is good in its own and the next one,
 * so for 69 to 137 s: longer than a client repeats its final ACK. A guess
 * succeeds once in 2^24. The kernel's own cookies keep window scale and SACK
 * only with timestamps; these keep them always.
 */
#ifndef WEIR_COOKIE_H
#define WEIR_COOKIE_H

#include "lib/packet.h"
#include "lib/types.h"

#define COOKIE_EPOCH_SHIFT 36
#define COOKIE_NO_WSCALE 15

struct siphash_key {
	u64 k0;
	u64 k1;
};

#define ROTL64(x, b) (((x) << (b)) | ((x) >> (64 - (b))))
#define SIPROUND                        \
	do {                            \
		v0 += v1;               \
		v1 = ROTL64(v1, 13);    \
		v1 ^= v0;               \
		v0 = ROTL64(v0, 32);    \
		v2 += v3;               \
		v3 = ROTL64(v3, 16);    \
		v3 ^= v2;               \
		v0 += v3;               \
		v3 = ROTL64(v3, 21);    \
		v3 ^= v0;               \
		v2 += v1;               \
		v1 = ROTL64(v1, 17);    \
		v1 ^= v2;               \
		v2 = ROTL64(v2, 32);    \
	} while (0)

/* SipHash-2-4 (Aumasson, Bernstein 2012) of `words` 64-bit words; words is a constant. */
static __always_inline u64 siphash(const u64 *m, u32 words, const struct siphash_key *key)
{
	u64 v0 = 0x736f6d6570736575ULL ^ key->k0;
	u64 v1 = 0x646f72616e646f6dULL ^ key->k1;
	u64 v2 = 0x6c7967656e657261ULL ^ key->k0;
	u64 v3 = 0x7465646279746573ULL ^ key->k1;
	u64 last = (u64)words * 8 << 56;

#pragma unroll
	for (u32 i = 0; i < words; i++) {
		v3 ^= m[i];
		SIPROUND;
		SIPROUND;
		v0 ^= m[i];
	}
	v3 ^= last;
	SIPROUND;
	SIPROUND;
	v0 ^= last;
	v2 ^= 0xff;
	SIPROUND;
	SIPROUND;
	SIPROUND;
	SIPROUND;
	return v0 ^ v1 ^ v2 ^ v3;
}

/* The four values of a connection as they stand in its client's packets; IPv4 in addr[0]. */
struct flow {
	__be32 saddr[4];
	__be32 daddr[4];
	__be16 sport;
	__be16 dport;
	u8 v6;
	u16 elsewhere;	/* number of the listener in another namespace; 0: in weir's own */
};

static __always_inline u32 cookie_mac(const struct flow *flow, u32 isn, u64 epoch, u8 low,
				      const struct siphash_key *key)
{
	u64 ports = (u64)flow->sport << 48 | (u64)flow->dport << 32 | isn;
	/* The clock in ns has 64 bits, so the epoch 28. */
	u64 rest = (u64)flow->elsewhere << 48 | epoch << 8 | low;

	if (flow->v6) {
		u64 m[6] = {
			(u64)flow->saddr[0] << 32 | flow->saddr[1],
			(u64)flow->saddr[2] << 32 | flow->saddr[3],
			(u64)flow->daddr[0] << 32 | flow->daddr[1],
			(u64)flow->daddr[2] << 32 | flow->daddr[3],
			ports,
			rest,
		};

		return siphash(m, 6, key) >> 40;
	}
	u64 m[3] = { (u64)flow->saddr[0] << 32 | flow->daddr[0], ports, rest };

	return siphash(m, 3, key) >> 40;
}

/* MSS values that a cookie can carry: the most frequent ones, as net/ipv4/syncookies.c picked them. */
static __always_inline u16 mss_choice(u8 v6, u32 index)
{
	switch (index & 3) {
	case 0:
		return v6 ? 1220 : 536;
	case 1:
		return v6 ? 1360 : 1300;
	case 2:
		return v6 ? 1420 : 1440;
	default:
		return v6 ? 1440 : 1460;
	}
}

/* Index of the largest choice that is not above what the client can take. No option: 536 (RFC 9293, 3.7.1), 1220. */
static __always_inline u32 mss_index(u8 v6, u16 mss)
{
	return (mss >= mss_choice(v6, 1)) + (mss >= mss_choice(v6, 2)) + (mss >= mss_choice(v6, 3));
}

/* The cookie for a SYN with sequence number isn (host order) and these options. */
static __always_inline u32 cookie_make(const struct flow *flow, u32 isn, u64 now_ns, const struct syn_options *options,
				       const struct siphash_key *key)
{
	u64 epoch = now_ns >> COOKIE_EPOCH_SHIFT;
	u8 low = (epoch & 1) << 7 | mss_index(flow->v6, options->mss) << 5 | (options->wscale & 15) << 1 |
		 (options->sack & 1);

	return cookie_mac(flow, isn, epoch, low, key) << 8 | low;
}

/*
 * Whether cookie answers the SYN isn of this flow; then *options gets mss, wscale
 * and sack. Both in host order.
 */
static __always_inline bool cookie_check(const struct flow *flow, u32 isn, u32 cookie, u64 now_ns,
					 struct syn_options *options, const struct siphash_key *key)
{
	u64 epoch = now_ns >> COOKIE_EPOCH_SHIFT;
	u8 low = cookie;

	if ((epoch & 1) != low >> 7)
		epoch--;
	if (cookie_mac(flow, isn, epoch, low, key) != cookie >> 8)
		return false;
	options->mss = mss_choice(flow->v6, low >> 5);
	options->wscale = low >> 1 & 15;
	options->sack = low & 1;
	return true;
}

#endif
