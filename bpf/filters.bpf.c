// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * filters.bpf.c - what the caller's network namespace has that could keep a
 * packet from its socket, or an answer from its client. User space runs it; it
 * meets no packet.
 *
 * Such filters come through many interfaces of the kernel, and to ask one of
 * them loads its module. So this reads what they have left where packets pass:
 * the lists of netfilter's hooks and the counts of IPsec policies. User space
 * then asks those that are there.
 *
 * Conntrack hooks into a namespace when the first rule there needs it (ct
 * state, NAT, ...), and no file says that it did: nf_conntrack_count is 0 on an
 * idle machine. It is known by its last hook, nf_confirm().
 */
#include "abi/filters.h"
#include "lib/kernel.h"

char LICENSE[] SEC("license") = "GPL";

#define BIT(filter) (1U << (filter))

/* include/uapi/linux/netfilter.h */
#define NF_INET_FORWARD 2
#define NF_INET_NUMHOOKS 5
/* NF_IP6_PRI_LAST - 1 and, for IPv4, NF_IP_PRI_CONNTRACK_CONFIRM: behind every other hook. */
#define PRIORITY_CONFIRM 0x7ffffffe
/* net/netfilter/core.c, MAX_HOOK_COUNT */
#define MAX_HOOKS 1024
/* Interfaces whose ingress hooks are looked at. */
#define MAX_DEVICES 4096
/* include/uapi/linux/xfrm.h: XFRM_POLICY_IN, OUT and FWD, and as many for the policies of sockets. */
#define XFRM_POLICY_FWD 2
#define XFRM_POLICY_MAX 3
#define XFRM_USERPOLICY_BLOCK 1

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct nf_hook_entry {
	void *hook;
	void *priv;
};

struct nf_hook_entries {
	u16 num_hook_entries;
	struct nf_hook_entry hooks[];
};

/* include/linux/netfilter.h; the last since 6.4. */
enum nf_hook_ops_type { NF_HOOK_OP_UNDEFINED, NF_HOOK_OP_NF_TABLES, NF_HOOK_OP_BPF };

struct nf_hook_ops {
	enum nf_hook_ops_type hook_ops_type : 8;
	int priority;
};

struct netns_nf {
	struct nf_hook_entries *hooks_ipv4[NF_INET_NUMHOOKS];
	struct nf_hook_entries *hooks_ipv6[NF_INET_NUMHOOKS];
	struct nf_hook_entries *hooks_bridge[NF_INET_NUMHOOKS];
};

struct netns_xfrm {
	unsigned int policy_count[2 * XFRM_POLICY_MAX];
	u8 policy_default[XFRM_POLICY_MAX];
};

/* struct net and struct net_device, with what kernel.h does not need. */
struct net___filters {
	struct netns_nf nf;
	struct netns_xfrm xfrm;
	struct list_head dev_base_head;
};

struct net_device___filters {
	struct list_head dev_list;
	struct nf_hook_entries *nf_hooks_ingress;
};

struct nsproxy {
	struct net___filters *net_ns;
};

struct task_struct {
	struct nsproxy *nsproxy;
};

#pragma clang attribute pop

/* What a hook is, by its description. */
static __always_inline u32 filter_of(const struct nf_hook_ops *ops)
{
	switch (BPF_CORE_READ_BITFIELD_PROBED(ops, hook_ops_type)) {
	case NF_HOOK_OP_UNDEFINED:
		return BPF_CORE_READ(ops, priority) >= PRIORITY_CONFIRM ? BIT(FILTER_CONNTRACK) : 0;
	case NF_HOOK_OP_NF_TABLES:
		return BIT(FILTER_NFTABLES);
	case NF_HOOK_OP_BPF:
		return BIT(FILTER_BPF);
	default:
		return 0;
	}
}

/*
 * What hooks into one place. The hooks' descriptions stand behind the hooks
 * themselves. The list may be freed meanwhile: then this reads old ones, and the
 * next look the new.
 */
static __noinline u32 filters_at(u64 place)
{
	const struct nf_hook_entries *entries = NULL;
	const struct nf_hook_ops *const *all, *ops = NULL;
	u32 i, count, found = 0;

	if (bpf_probe_read_kernel(&entries, sizeof(entries), (void *)place) || !entries)
		return 0;
	count = BPF_CORE_READ(entries, num_hook_entries);
	all = (void *)entries + bpf_core_field_offset(entries->hooks) +
	      count * bpf_core_type_size(struct nf_hook_entry);
	bpf_for(i, 0, count < MAX_HOOKS ? count : MAX_HOOKS) {
		if (!bpf_probe_read_kernel(&ops, sizeof(ops), all + i))
			found |= filter_of(ops);
	}
	return found;
}

/* What is on the way to a local socket and back: all places but that of packets that are forwarded. */
static __always_inline u32 filters_of_family(u64 places)
{
	u32 hook, found = 0;

	bpf_for(hook, 0, NF_INET_NUMHOOKS) {
		if (hook != NF_INET_FORWARD)
			found |= filters_at(places + hook * sizeof(void *));
	}
	return found;
}

/* What hooks into the ingress of an interface. The list may change meanwhile, as above. */
static __always_inline u32 filters_at_ingress(struct net___filters *net)
{
	u64 head = (u64)net + bpf_core_field_offset(net->dev_base_head);
	struct net_device___filters *device = NULL;
	u64 next = head;
	u32 i, found = 0;

	if (!bpf_core_field_exists(device->nf_hooks_ingress))
		return 0;
	bpf_for(i, 0, MAX_DEVICES) {
		if (bpf_probe_read_kernel(&next, sizeof(next), (void *)next) || next == head || !next)
			return found;
		found |= filters_at(next - bpf_core_field_offset(device->dev_list) +
				    bpf_core_field_offset(device->nf_hooks_ingress));
	}
	return found | BIT(FILTER_NFTABLES);
}

static __always_inline u32 filters_of_ipsec(struct net___filters *net)
{
	u32 i, count = 0, found = 0;
	u8 by_default = 0;

	if (!bpf_core_field_exists(net->xfrm))
		return 0;
	bpf_for(i, 0, 2 * XFRM_POLICY_MAX) {
		u64 counts = (u64)net + bpf_core_field_offset(net->xfrm.policy_count);

		if (i % XFRM_POLICY_MAX != XFRM_POLICY_FWD &&
		    !bpf_probe_read_kernel(&count, sizeof(count), (void *)(counts + i * sizeof(count))) && count)
			found |= BIT(FILTER_IPSEC);
	}
	if (!bpf_core_field_exists(net->xfrm.policy_default))
		return found;
	bpf_for(i, 0, XFRM_POLICY_FWD) {
		u64 defaults = (u64)net + bpf_core_field_offset(net->xfrm.policy_default);

		if (!bpf_probe_read_kernel(&by_default, sizeof(by_default), (void *)(defaults + i)) &&
		    by_default == XFRM_USERPOLICY_BLOCK)
			found |= BIT(FILTER_IPSEC_BLOCKS);
	}
	return found;
}

/* Returns bits by enum packet_filter; a kernel without netfilter or IPsec has none of theirs. */
SEC("syscall")
int packet_filters(void *ctx)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct net___filters *net = BPF_CORE_READ(task, nsproxy, net_ns);
	u32 found = filters_of_ipsec(net);

	if (!bpf_core_field_exists(net->nf))
		return found;
	found |= filters_of_family((u64)net + bpf_core_field_offset(net->nf.hooks_ipv4));
	found |= filters_of_family((u64)net + bpf_core_field_offset(net->nf.hooks_ipv6));
	/* Conntrack has no last hook there, and br_netfilter has one that stands as late. */
	if (bpf_core_field_exists(net->nf.hooks_bridge))
		found |= filters_of_family((u64)net + bpf_core_field_offset(net->nf.hooks_bridge)) &
			 ~BIT(FILTER_CONNTRACK);
	return found | filters_at_ingress(net);
}
