/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * codel.h - CoDel (RFC 8289) as include/net/codel_impl.h of the kernel has it: when
 * a packet is dropped, but not from which queue. Pure; the model is
 * weir_models::aqm::codel.
 */
#ifndef WEIR_CODEL_H
#define WEIR_CODEL_H

#include "abi/shape.h"
#include "lib/types.h"

/* A pause of so many intervals makes it start anew. */
#define CODEL_FORGET 16

static __always_inline void codel_clear(struct codel_vars *vars)
{
	vars->first_above_ns = 0;
	vars->drop_next_ns = 0;
	vars->count = 0;
	vars->last_count = 0;
	vars->inv_sqrt = 0xffff;
	vars->dropping = 0;
}

/* One step of Newton's method: inv_sqrt = inv_sqrt (3 - count inv_sqrt^2) / 2. */
static __always_inline void codel_newton_step(struct codel_vars *vars)
{
	u64 inv_sqrt = (u64)vars->inv_sqrt << 16;
	u64 value = (3ULL << 32) - vars->count * ((inv_sqrt * inv_sqrt) >> 32);

	/* Two bits less for the product. */
	value = (value >> 2) * inv_sqrt >> (32 - 2 + 1);
	vars->inv_sqrt = value >> 16;
}

/* interval/sqrt(count) after a time. */
static __always_inline u64 codel_control_law(const struct codel_vars *vars, u64 from_ns, u64 interval_ns)
{
	return from_ns + (interval_ns * vars->inv_sqrt >> 16);
}

/* Whether the packet that came at enqueued_ns may be dropped, with so many bytes behind it. */
static __always_inline bool codel_should_drop(struct codel_vars *vars, const struct codel_params *params, u64 now_ns,
					      u64 enqueued_ns, u32 behind_bytes)
{
	u64 delay_ns = now_ns > enqueued_ns ? now_ns - enqueued_ns : 0;

	if (delay_ns < params->target_ns || behind_bytes <= params->mtu_bytes) {
		vars->first_above_ns = 0;
		return false;
	}
	if (!vars->first_above_ns) {
		vars->first_above_ns = now_ns + params->interval_ns;
		return false;
	}
	return now_ns > vars->first_above_ns;
}

/* The first drop after a time without. */
static __always_inline void codel_begin_dropping(struct codel_vars *vars, const struct codel_params *params, u64 now_ns)
{
	u32 delta = vars->count - vars->last_count;

	vars->dropping = 1;
	if (delta > 1 && now_ns - vars->drop_next_ns < CODEL_FORGET * params->interval_ns) {
		vars->count = delta;
		codel_newton_step(vars);
	} else {
		vars->count = 1;
		vars->inv_sqrt = 0xffff;
	}
	vars->last_count = vars->count;
	vars->drop_next_ns = codel_control_law(vars, now_ns, params->interval_ns);
}

#endif
