/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * fuzz.c - the pure headers on any bytes, under the address and undefined
 * behaviour sanitizers. Built natively in two ways: with -fsanitize=fuzzer
 * (scripts/fuzz), and with -DREPLAY as a program that takes files
 * (crates/fuzz/src/replay.rs).
 *
 * In BPF the verifier proves that no packet is read beyond its end. It proves
 * nothing about what is computed; these checks do.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pure.c"

#define L3 sizeof(struct ethernet)

#define MUST(holds)                                                             \
	do {                                                                    \
		if (!(holds)) {                                                 \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #holds); \
			abort();                                                \
		}                                                               \
	} while (0)

/* A copy with nothing behind it that may be read. */
static u8 *exactly(const void *from, u32 from_len, u32 len)
{
	u8 *copy = malloc(len ? len : 1);

	MUST(copy);
	memset(copy, 0, len);
	memcpy(copy, from, from_len < len ? from_len : len);
	return copy;
}

static struct syn_options options_of(const u8 *frame, const struct packet *p)
{
	u32 len = p->header_len - sizeof(struct tcp);
	u8 *bytes = exactly(frame + p->l4 + sizeof(struct tcp), len, len);
	struct syn_options o;

	pure_options(bytes, len, &o);
	MUST(o.wscale <= COOKIE_NO_WSCALE && o.sack <= 1 && o.tstamp <= 1);
	free(bytes);
	return o;
}

static void check_cookie(const u8 *frame, const struct packet *p)
{
	struct siphash_key key = { 0x0706050403020100, 0x0f0e0d0c0b0a0908 };
	struct flow f = { .sport = p->sport, .dport = p->dport, .v6 = p->v6 };
	struct syn_options in = options_of(frame, p), out = { 0 };
	u32 isn, cookie;
	u64 now;

	memcpy(&isn, frame + p->l4 + 4, sizeof(isn));
	now = (u64)isn << 24;
	cookie = pure_cookie_make(&f, isn, now, &in, &key);
	MUST(pure_cookie_check(&f, isn, cookie, now, &out, &key));
	MUST(out.wscale == in.wscale && out.sack == in.sack);
	MUST(out.mss <= in.mss || out.mss == mss_choice(p->v6, 0));
}

/* An answer of each kind, in a frame of exactly its length and in one of a byte less. */
static void check_answers(const u8 *frame, u32 size, const struct packet *p)
{
	u8 reason[REASON_LEN] = "no room";
	struct answer answers[] = {
		{ .seq = 1, .flags = FLAG_RST | FLAG_ACK, .header_len = p->header_len },
		{ .seq = 1, .flags = FLAG_RST | FLAG_ACK, .header_len = 20, .reason_len = REASON_LEN },
		{ .seq = 1, .flags = FLAG_SYN | FLAG_ACK, .header_len = SYNACK_HEADER, .partial = 1 },
	};

	for (u32 i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
		u32 len = p->l4 + answers[i].header_len + answers[i].reason_len;
		struct packet back;
		u8 *whole = exactly(frame, size, len);

		MUST(!pure_answer(whole, len, L3, p->v6, &answers[i], reason));
		MUST(!pure_parse(whole, len, L3, p->v6 ? ETH_P_IPV6 : ETH_P_IP, &back));
		MUST(back.sport == p->dport && back.dport == p->sport && back.flags == answers[i].flags);
		free(whole);
		whole = exactly(frame, size, len - 1);
		/* Refused, or at the last option only. */
		pure_answer(whole, len - 1, L3, p->v6, &answers[i], reason);
		free(whole);
	}
}

static void check_frame(const u8 *data, u32 size)
{
	u16 types[] = { ETH_P_IP, ETH_P_IPV6, 0 };

	for (u32 i = 0; i < 3; i++) {
		u8 *frame = exactly(data, size, size);
		struct packet p;

		if (!pure_parse(frame, size, L3, types[i], &p)) {
			MUST(p.header_len >= 20 && p.header_len <= 60 && p.header_len <= p.tcp_len);
			MUST(p.l4 + p.tcp_len <= size);
			check_cookie(frame, &p);
			check_answers(frame, size, &p);
		}
		free(frame);
	}
}

static void check_headers(const u8 *ip, u32 len)
{
	u8 *bytes = exactly(ip, len, HEADERS_MAX);
	struct packet p;
	u32 client;

	for (u8 v6 = 0; v6 <= 1 && len >= sizeof(struct ipv6); v6++) {
		pure_unusual(bytes, v6);
		if (pure_headers(bytes, len, v6, &p) == HEADERS_TCP)
			MUST(p.tcp_len >= 14 && p.tcp_len <= len);
	}
	free(bytes);
	bytes = exactly(ip, len, SEGMENT_HEADERS);
	pure_control(bytes, len < SEGMENT_HEADERS ? len : SEGMENT_HEADERS, &client);
	free(bytes);
}

/* Decisions over any state: nothing overflows where C does not define it. */
static void check_decisions(const u8 *data, u32 size)
{
	struct {
		struct listener_policy listener;
		struct queue_view queue;
		struct wait_state wait;
		struct stall_state stall;
		struct source_set sources;
		struct bucket_limit limit;
		struct shape_params shape;
		struct time_wait old;
		struct timewait_record record;
		struct closing closing;
		u64 now, next, due[2];
		u32 words[4];
	} any;

	memset(&any, 0, sizeof(any));
	memcpy(&any, data, size < sizeof(any) ? size : sizeof(any));
	struct syn_options o = { .tstamp = any.words[0] & 1, .tsval = any.words[1], .tsecr = any.words[2] };

	for (u8 flags = 0; flags < 8; flags++) {
		u8 waiting = flags & 1, cookies = flags >> 1 & 1, flooded = flags >> 2;

		MUST(pure_syn_verdict(&any.listener, &any.queue, waiting, cookies, flooded) < VERDICT_COUNT);
		MUST(pure_time_wait_verdict(&any.listener, &any.queue, waiting, flooded) < VERDICT_COUNT);
		MUST(pure_cookie_ack_verdict(&any.listener, &any.queue, waiting) < VERDICT_COUNT);
		pure_steady_place(&any.listener, &any.queue, waiting);
	}
	pure_half_empty(&any.queue);
	pure_is_filled(&any.queue);
	for (u32 i = 0; i < 4; i++) {
		pure_wait_look(&any.wait, any.now, &any.queue, any.words[i], &any.listener);
		pure_wait_refuses(&any.wait, any.now, any.queue.length, &any.listener);
		pure_steady_limit(&any.wait, any.now, &any.limit);
		pure_stall_look(&any.stall, any.now, &any.queue, any.words[i], &any.listener);
		pure_source_note(&any.sources, any.words[i], any.now, any.words[3]);
		pure_bucket_take(&any.next, any.now, &any.limit);
		pure_limit_admits(&any.shape, &any.due[0], &any.due[1], any.now, any.words[i]);
		pure_time_wait_yields(&any.old, any.words[i], &o);
		pure_record_yields_to_syn(&any.old, any.words[i], &o);
		pure_record_yields(&any.record, any.words[i], any.words[0], &o);
		pure_ends_passive_close(&any.closing, any.words[i], any.words[3]);
		any.now += any.words[i];
	}
}

/* A datagram, and the state of a socket, of any bytes. */
static void check_quic(const u8 *data, u32 size)
{
	u8 *head = exactly(data, size < QUIC_HEAD ? size : QUIC_HEAD, QUIC_BUFFER), *to = exactly(data, 0, QUIC_BUFFER);
	struct quic_packet packet;
	struct {
		struct quic_state state;
		struct quic_policy policy;
		u64 now, after;
		u32 words[2];
	} any;

	pure_quic_read(head, size, &packet);
	if (packet.kind != QUIC_NONE) {
		u32 len = pure_quic_refuse(to, head, &packet, size);

		MUST(len == 7u + packet.to_len + packet.from_len + 4 && len <= QUIC_VN_MOST);
		MUST(!pure_quic_may_begin(&packet, size) || len < size);
		pure_quic_read(to, len, &packet);
		MUST(packet.kind == QUIC_NEGOTIATION);
	}
	free(head);
	free(to);
	memset(&any, 0, sizeof(any));
	memcpy(&any, data, size < sizeof(any) ? size : sizeof(any));
	pure_quic_look(&any.state, any.now, &any.policy);
	MUST(pure_quic_judge(&any.state, any.now, &any.policy, 1 + any.words[0] % WEIR_PRIORITIES) < QUIC_VERDICT_COUNT);
	pure_quic_let_in(&any.state, any.now);
	pure_quic_answer(&any.state, any.words[0], any.now, any.after, any.words[1]);
	pure_quic_lose(&any.state, any.now);
	pure_quic_excuse(&any.state, any.words[0], any.now);
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	if (size > 4096)
		return 0;
	check_frame(data, size);
	if (size > L3)
		check_headers(data + L3, size - L3);
	check_decisions(data, size);
	check_quic(data, size);
	return 0;
}

#ifdef REPLAY
/* Each file as it is, cut at each place, and with each of its bytes changed. */
int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		static u8 bytes[4096];
		FILE *file = fopen(argv[i], "rb");
		u32 size;

		MUST(file);
		size = fread(bytes, 1, sizeof(bytes), file);
		fclose(file);
		fprintf(stderr, "%s\n", argv[i]);
		LLVMFuzzerTestOneInput(bytes, size);
		for (u32 at = 0; at < size; at++) {
			LLVMFuzzerTestOneInput(bytes, at);
			bytes[at] ^= 1 << at % 8;
			LLVMFuzzerTestOneInput(bytes, size);
			bytes[at] ^= 1 << at % 8;
		}
	}
	return 0;
}
#endif
