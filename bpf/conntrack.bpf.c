// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * conntrack.bpf.c - whether conntrack follows the connections of the caller's
 * network namespace. User space runs it; it meets no packet.
 *
 * Conntrack hooks into a namespace when the first rule there needs it (ct
 * state, NAT, ...), and no file says that it did: nf_conntrack_count is 0 on an
 * idle machine. So this looks for its last hook, nf_confirm(), in the list that
 * packets for local sockets pass.
 */
#include "lib/kernel.h"

char LICENSE[] SEC("license") = "GPL";

/* include/uapi/linux/netfilter.h: packets for a socket of this host. */
#define NF_INET_LOCAL_IN 1
#define NF_INET_NUMHOOKS 5
/* NF_IP6_PRI_LAST - 1 and, for IPv4, NF_IP_PRI_CONNTRACK_CONFIRM: behind every other hook. */
#define PRIORITY_CONFIRM 0x7ffffffe
/* net/netfilter/core.c, MAX_HOOK_COUNT */
#define MAX_HOOKS 1024

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct nf_hook_entry {
	void *hook;
	void *priv;
};

struct nf_hook_entries {
	u16 num_hook_entries;
	struct nf_hook_entry hooks[];
};

/* NF_HOOK_OP_UNDEFINED: neither a chain of nftables nor a BPF program, which may have any priority. */
enum nf_hook_ops_type { NF_HOOK_OP_UNDEFINED };

struct nf_hook_ops {
	enum nf_hook_ops_type hook_ops_type : 8;
	int priority;
};

struct netns_nf {
	struct nf_hook_entries *hooks_ipv4[NF_INET_NUMHOOKS];
	struct nf_hook_entries *hooks_ipv6[NF_INET_NUMHOOKS];
};

/* struct net, with what kernel.h does not need. */
struct net___hooks {
	struct netns_nf nf;
};

struct nsproxy {
	struct net___hooks *net_ns;
};

struct task_struct {
	struct nsproxy *nsproxy;
};

#pragma clang attribute pop

static __always_inline bool is_confirm(const struct nf_hook_ops *ops)
{
	return BPF_CORE_READ(ops, priority) >= PRIORITY_CONFIRM &&
	       BPF_CORE_READ_BITFIELD_PROBED(ops, hook_ops_type) == NF_HOOK_OP_UNDEFINED;
}

/*
 * The hooks' descriptions stand behind the hooks themselves. The list may be
 * freed meanwhile: then this reads old ones, and the next look the new.
 */
static __always_inline bool has_confirm(const struct nf_hook_entries *entries)
{
	const struct nf_hook_ops *const *all, *ops = NULL;
	u32 i, count;

	if (!entries)
		return false;
	count = BPF_CORE_READ(entries, num_hook_entries);
	all = (void *)entries + bpf_core_field_offset(entries->hooks) +
	      count * bpf_core_type_size(struct nf_hook_entry);
	bpf_for(i, 0, count < MAX_HOOKS ? count : MAX_HOOKS) {
		if (!bpf_probe_read_kernel(&ops, sizeof(ops), all + i) && is_confirm(ops))
			return true;
	}
	return false;
}

/* Returns 1: it does. 0: it does not, or this kernel has no netfilter. */
SEC("syscall")
int conntrack_follows(void *ctx)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct net___hooks *net = BPF_CORE_READ(task, nsproxy, net_ns);

	if (!bpf_core_field_exists(net->nf))
		return 0;
	return has_confirm(BPF_CORE_READ(net, nf.hooks_ipv4[NF_INET_LOCAL_IN])) ||
	       has_confirm(BPF_CORE_READ(net, nf.hooks_ipv6[NF_INET_LOCAL_IN]));
}
