/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * clock.bpf.h - the guard's clock.
 */
#ifndef WEIR_CLOCK_BPF_H
#define WEIR_CLOCK_BPF_H

#include "lib/kernel.h"

#define SECOND_NS 1000000000ULL

/* Set by user space before load. */
const volatile u32 tick_ns = 4000000;

/*
 * Ticks of 1 to 10 ms, in ns. It is at about 2^32 ticks when the machine starts
 * (jiffies_64), and is compared with itself only. One load, where the kernel's coarse
 * clock is a call of 20 ns.
 */
static __always_inline u64 clock_ns(void)
{
	return bpf_jiffies64() * tick_ns;
}

/* A time of the kernel's, in jiffies, by this clock. */
static __always_inline u64 jiffies_ns(unsigned long jiffies)
{
	return (u64)jiffies * tick_ns;
}

/* Whole ticks of a second. */
static __always_inline u32 ticks_per_second(void)
{
	return SECOND_NS / tick_ns;
}

#endif
