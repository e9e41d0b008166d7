/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * device.bpf.h - devices whose packets may not be for this host's stack, though
 * they have its Ethernet address: a handler (rx_handler) takes them behind tc for a
 * container or a virtual machine that shares the device (ipvlan, macvlan and macvtap in
 * mode passthru). Where the host forwards, routing tells whose a packet is. Where it
 * does not, the device's own addresses do.
 */
#ifndef WEIR_DEVICE_BPF_H
#define WEIR_DEVICE_BPF_H

#include "lib/kernel.h"

/* Of a device with more addresses the rest is not looked at, and packets to them pass. */
#define DEVICE_ADDRESSES 64

/* Whether *at is this address; then the next one. Global, as below: a turn of a loop (arrival.bpf.h). */
__noinline int address4_is(u64 *at, __be32 address)
{
	const struct in_ifaddr *own;

	if (!at)
		return 0;
	own = bpf_rdonly_cast((void *)*at, bpf_core_type_id_kernel(struct in_ifaddr));
	*at = (u64)own->ifa_next;
	return own->ifa_local == address;
}

__noinline int address6_is(u64 *at, const struct bpf_sock_tuple *tuple)
{
	const struct inet6_ifaddr *own;
	const __be32 *address;

	if (!at || !tuple || !bpf_core_field_exists(struct inet6_ifaddr, if_list))
		return 0;
	own = bpf_rdonly_cast((void *)(*at - bpf_core_field_offset(struct inet6_ifaddr, if_list)),
			      bpf_core_type_id_kernel(struct inet6_ifaddr));
	address = own->addr.in6_u.u6_addr32;
	*at = (u64)own->if_list.next;
	return address[0] == tuple->ipv6.daddr[0] && address[1] == tuple->ipv6.daddr[1] &&
	       address[2] == tuple->ipv6.daddr[2] && address[3] == tuple->ipv6.daddr[3];
}

static __always_inline bool has_address4(const struct net_device *device, __be32 address)
{
	const struct in_device *settings = device->ip_ptr;
	u64 at = settings ? (u64)settings->ifa_list : 0;
	u32 i;

	bpf_for(i, 0, DEVICE_ADDRESSES) {
		if (!*(volatile u64 *)&at)
			return false;
		if (address4_is(&at, address))
			return true;
	}
	return false;
}

static __always_inline bool has_address6(const struct net_device *device, const struct bpf_sock_tuple *tuple)
{
	const struct inet6_dev *settings = device->ip6_ptr;
	u64 at, end;
	u32 i;

	if (!bpf_core_field_exists(struct inet6_dev, addr_list) || !settings)
		return false;
	end = (u64)settings + bpf_core_field_offset(struct inet6_dev, addr_list);
	at = (u64)settings->addr_list.next;
	bpf_for(i, 0, DEVICE_ADDRESSES) {
		if (*(volatile u64 *)&at == end)
			return false;
		if (address6_is(&at, tuple))
			return true;
	}
	return false;
}

/*
 * Whether a packet that comes in on the device at this kernel address is known to stay with this host. In memory, as of
 * queue_slot(). Global.
 */
__noinline int stays_here(const u64 *address, const struct bpf_sock_tuple *tuple, u32 v6)
{
	const struct net_device *device;

	if (!address || !tuple)
		return 1;
	device = bpf_rdonly_cast((void *)*address, bpf_core_type_id_kernel(struct net_device));
	if (!device->rx_handler)
		return 1;
	return v6 ? has_address6(device, tuple) : has_address4(device, tuple->ipv4.daddr);
}

#endif
