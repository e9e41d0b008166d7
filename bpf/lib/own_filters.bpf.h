/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * own_filters.bpf.h - what keeps packets of some from one listening socket, and
 * not from others on its address. A parking listener has nothing of it, and a
 * connection that was established there has what that socket had: it would come
 * to a server that others keep it from.
 *
 * Programs at the cgroup of a socket see the packets of its connections (systemd's
 * IPAddressDeny= and RestrictNetworkInterfaces= are such). They are compared with
 * those of the caller's cgroup, which are those of the sockets that it opens: what
 * hangs at a parent of both keeps out here as there.
 *
 * What is read may be freed meanwhile: then it is old, and the next look sees the new.
 */
#ifndef WEIR_OWN_FILTERS_BPF_H
#define WEIR_OWN_FILTERS_BPF_H

#include "abi/guard.h"
#include "lib/kernel.h"

/* include/linux/bpf-cgroup-defs.h: CGROUP_INET_INGRESS and CGROUP_INET_EGRESS, the first of all. */
#define CGROUP_INET_WAYS 2
/* kernel/bpf/cgroup.c: BPF_CGROUP_MAX_PROGS */
#define CGROUP_MAX_PROGRAMS 64

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct bpf_prog_array_item {
	struct bpf_prog *prog;
};

struct bpf_prog_array {
	struct bpf_prog_array_item items[1]; /* and more */
};

struct cgroup_bpf {
	struct bpf_prog_array *effective[CGROUP_INET_WAYS];
};

struct cgroup {
	struct cgroup_bpf bpf;
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

struct task_struct___cgroups {
	struct css_set *cgroups;
};

struct sock_cgroup_data {
	struct cgroup *cgroup;
};

struct sock___filters {
	struct sk_filter *sk_filter;
	struct sock_cgroup_data sk_cgrp_data;
};

#pragma clang attribute pop

static __always_inline u64 program_of(const struct bpf_prog_array *programs, u32 number)
{
	u64 program = 0;

	bpf_probe_read_kernel(&program, sizeof(program),
			      (const void *)programs + bpf_core_field_offset(programs->items) +
				      number * bpf_core_type_size(struct bpf_prog_array_item));
	return program;
}

/* Whether the same programs run in these two lists, in the same order. More than there can be are not the same. */
static __always_inline bool same_programs(const struct bpf_prog_array *one, const struct bpf_prog_array *other)
{
	u32 i;

	if (one == other)
		return true;
	if (!one || !other)
		return false;
	bpf_for(i, 0, CGROUP_MAX_PROGRAMS + 1) {
		u64 program = program_of(one, i);

		if (program != program_of(other, i))
			return false;
		if (!program)
			return true;
	}
	return false;
}

/* Whether the cgroup of a socket has other programs for its packets than the caller's. */
static __always_inline bool cgroup_filters(const struct sock___filters *sk)
{
	struct task_struct___cgroups *task = (void *)bpf_get_current_task();
	struct cgroup *its = NULL, *callers;
	u32 i;

	if (!bpf_core_field_exists(sk->sk_cgrp_data) || !bpf_core_field_exists(its->bpf))
		return false;
	its = BPF_CORE_READ(sk, sk_cgrp_data.cgroup);
	callers = BPF_CORE_READ(task, cgroups, dfl_cgrp);
	if (its == callers || !its || !callers)
		return false;
#pragma unroll
	for (i = 0; i < CGROUP_INET_WAYS; i++)
		if (!same_programs(BPF_CORE_READ(its, bpf.effective[i]), BPF_CORE_READ(callers, bpf.effective[i])))
			return true;
	return false;
}

/*
 * Bits by enum own_filter of the listening socket at this kernel address. In memory: for the verifier a socket is a
 * pointer, and no number to pass. Global: verified once.
 */
__noinline int own_filters(const u64 *socket)
{
	const struct tcp_sock *tp;
	const struct sock___filters *sk;
	u32 found = 0;

	if (!socket)
		return 0;
	tp = (void *)*socket;
	sk = (void *)*socket;
	if (BPF_CORE_READ(sk, sk_filter))
		found |= 1 << OWN_FILTER_PROGRAM;
	if (bpf_core_field_exists(tp->md5sig_info) && BPF_CORE_READ(tp, md5sig_info))
		found |= 1 << OWN_FILTER_MD5;
	if (bpf_core_field_exists(tp->ao_info) && BPF_CORE_READ(tp, ao_info))
		found |= 1 << OWN_FILTER_AO;
	if (cgroup_filters(sk))
		found |= 1 << OWN_FILTER_CGROUP;
	return found;
}

#endif
