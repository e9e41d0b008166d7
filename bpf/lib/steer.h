/* SPDX-License-Identifier: GPL-2.0-or-later OR Apache-2.0 */
/*
 * steer.h - whether a new connection goes straight to the server's queue or is
 * parked (queue = "priority"). Pure. The model is weir_models::steer.
 */
#ifndef WEIR_STEER_H
#define WEIR_STEER_H

#include "abi/queue.h"
#include "lib/types.h"

/*
 * For any connection, so that its class need not be looked up. all_park: others
 * wait, and it might overtake them.
 */
static __always_inline bool straight_for_all(const struct parking_rule *rule, u32 length, bool all_park)
{
	return length < rule->depth && !all_park;
}

/*
 * For one of this priority: would it be the next of all that are parked, it
 * need not be parked, as long as the server's queue has room for it. That is
 * the depth, since who is there is before all that come; and its whole limit
 * for one before whom none is to come. best_parked: the highest priority of
 * those that are sent to parking listeners; 65: none is.
 */
static __always_inline bool straight_as_next(const struct parking_rule *rule, u32 length, u32 limit, u32 priority,
					     u32 best_parked)
{
	u32 room = priority <= rule->top ? limit : rule->depth;

	return length < room && priority < rule->before && priority < best_parked;
}

#endif
