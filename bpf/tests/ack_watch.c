/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * ack_watch.c - the watch of ACKs (lib/ack_watch.h) on two CPUs: as one finds it
 * over, the other begins it anew.
 *
 * Exit code 0: it is on then, and ends when it is over again. 1: not so.
 */
#include <stdio.h>

#include "lib/types.h"

static void other_cpu(void);
#define ACK_WATCH_MEANWHILE() other_cpu()
#include "lib/ack_watch.h"

#define NOW (1ULL << 40)

static u64 until_ns;
static bool has_syn;

static void other_cpu(void)
{
	if (has_syn)
		ack_watch_begin(&until_ns, NOW);
}

int main(void)
{
	until_ns = NOW - 1;
	has_syn = true;
	ack_watch_over(&until_ns, NOW);
	if (until_ns != NOW + ACK_WATCH_NS) {
		fprintf(stderr, "the new watch was ended\n");
		return 1;
	}
	has_syn = false;
	if (ack_watch_over(&until_ns, until_ns - 1) || !ack_watch_over(&until_ns, until_ns) || until_ns) {
		fprintf(stderr, "it does not end when it is over\n");
		return 1;
	}
	return 0;
}
