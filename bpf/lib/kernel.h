/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * kernel.h - the few kernel structures that weir reads, by name.
 *
 * Only the fields that are read are declared; preserve_access_index lets
 * libbpf find their real offsets in the running kernel's BTF (CO-RE). So a
 * build needs no vmlinux.h and no running kernel.
 */
#ifndef WEIR_KERNEL_H
#define WEIR_KERNEL_H

#include <linux/types.h>
#include <linux/bpf.h>
#include <linux/version.h>
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 4, 0)
/* The build machine's headers may be older than the kernel that runs the programs. */
struct bpf_iter_num {
	__u64 __opaque[1];
} __attribute__((aligned(8)));
#endif
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s16 s16;
typedef __s32 s32;
typedef __s64 s64;
typedef _Bool bool;
#define true 1
#define false 0
#ifndef NULL
#define NULL ((void *)0)
#endif

#define AF_INET 2
#define AF_INET6 10
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86DD
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17

/* include/net/tcp_states.h */
enum {
	TCP_ESTABLISHED = 1,
	TCP_TIME_WAIT = 6,
	TCP_CLOSE = 7,
	TCP_CLOSE_WAIT = 8,
	TCP_LISTEN = 10,
	TCP_NEW_SYN_RECV = 12,
};

/* include/linux/skbuff.h: who has summed what */
enum { CHECKSUM_NONE, CHECKSUM_UNNECESSARY, CHECKSUM_COMPLETE, CHECKSUM_PARTIAL };

/* include/linux/skbuff.h: bits of active_extensions. The real number is found at load, as offsets are. */
enum skb_ext_id { SKB_EXT_SEC_PATH = 1 };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	int counter;
} atomic_t;

struct in6_addr {
	union {
		__be32 u6_addr32[4];
	} in6_u;
};

struct ns_common {
	unsigned int inum;
};

struct netns_ipv4 {
	u8 sysctl_tcp_rfc1337;
};

struct net {
	struct ns_common ns;
	u64 net_cookie;
	struct netns_ipv4 ipv4;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	__be32 skc_rcv_saddr;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	unsigned char skc_reuseport : 1;
	unsigned char skc_ipv6only : 1;
	struct in6_addr skc_v6_rcv_saddr;
	possible_net_t skc_net;
	unsigned long skc_flags;
	unsigned int skc_hash;
	u32 skc_tw_rcv_nxt;
	u32 skc_tw_snd_nxt;
	struct sock *skc_listener;
};

struct request_sock {
	struct sock_common __req_common;
};

struct bpf_sock_ops_kern {
	struct sock *sk;
};

struct bpf_prog_aux {
	u32 id;
	char name[16];
};

struct bpf_prog {
	struct bpf_prog_aux *aux;
};

struct sock_reuseport {
	u16 num_socks;
	unsigned int incoming_cpu;
	struct bpf_prog *prog;
	struct sock *socks[];
};

/* A structure of one pointer: group.bpf.h reads any pointer in memory as one. */
struct hlist_head {
	struct hlist_node *first;
};

struct inode {
	unsigned long i_ino;
};

struct socket {
	int state;
	struct sock *sk;
};

struct socket_alloc {
	struct inode vfs_inode;
};

struct sock {
	struct sock_common __sk_common;
	struct {
		atomic_t rmem_alloc;
	} sk_backlog;
	int sk_rcvbuf;
	struct sock_reuseport *sk_reuseport_cb;
	struct socket *sk_socket;
	u32 sk_ack_backlog;
	u32 sk_max_ack_backlog;
	int sk_rx_dst_ifindex;
	int sk_wmem_queued;
	u16 sk_protocol;
	int sk_sndbuf;
	struct {
		int owned;
	} sk_lock;
};

struct fastopen_queue {
	int max_qlen;
};

struct request_sock_queue {
	atomic_t qlen;
	atomic_t young;
	struct fastopen_queue fastopenq;
};

struct inet_sock {
	__be16 inet_sport;
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	struct request_sock_queue icsk_accept_queue;
	struct {
		u32 lrcvtime;
	} icsk_ack;
};

struct tcp_options_received {
	u32 ts_recent;
	u16 saw_tstamp : 1, tstamp_ok : 1;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u32 rcv_nxt;
	u32 rcv_wup;
	u32 rcv_wnd;
	u32 copied_seq;
	u32 write_seq;
	u32 snd_una;
	u32 snd_wl1;
	u32 lsndtime;
	u32 data_segs_in;
	u32 data_segs_out;
	u32 max_window;
	u32 tsoffset;
	u64 tcp_mstamp;
	struct tcp_options_received rx_opt;
	u8 tcp_usec_ts : 1;
	u8 save_syn : 2;
	u8 bpf_sock_ops_cb_flags;
	bool is_mptcp;
	struct tcp_md5sig_info *md5sig_info;
	struct tcp_ao_info *ao_info;
};

struct timer_list {
	unsigned long expires;
};

struct inet_timewait_sock {
	struct sock_common __tw_common;
	volatile unsigned char tw_substate;
	struct timer_list tw_timer;
};

struct tcp_timewait_sock {
	struct inet_timewait_sock tw_sk;
	u32 tw_rcv_wnd;
	u32 tw_ts_recent;
	int tw_ts_recent_stamp;
};

struct tcp_request_sock {
	u32 rcv_isn;
	u32 snt_isn;
};

struct in_ifaddr {
	struct in_ifaddr *ifa_next;
	__be32 ifa_local;
};

struct in_device {
	struct in_ifaddr *ifa_list;
};

struct list_head {
	struct list_head *next;
};

struct inet6_ifaddr {
	struct in6_addr addr;
	struct list_head if_list;
};

struct inet6_dev {
	struct list_head addr_list;
};

struct net_device {
	unsigned int mtu;
	const unsigned char *dev_addr;
	possible_net_t nd_net;
	struct bpf_mprog_entry *tcx_ingress;
	void *rx_handler;
	struct in_device *ip_ptr;
	struct inet6_dev *ip6_ptr;
};

struct bpf_mprog_bundle {
	u32 count;
};

struct bpf_mprog_entry {
	struct bpf_mprog_bundle *parent;
};

/*
 * What a packet meets at tc ingress of a device: the programs at tcx, then the filters of clsact or an ingress qdisc.
 */
struct tcx_entry {
	struct mini_Qdisc *miniq;
	struct bpf_mprog_bundle bundle;
};

struct xdp_rxq_info {
	struct net_device *dev;
};

struct xdp_buff {
	struct xdp_rxq_info *rxq;
};

/* Since Linux 6.18, of UDP sockets. Only whether there is one is asked (quic.bpf.c: begin()). */
struct udp_prod_queue {
};

struct sk_buff {
	u8 ip_summed : 2;
	__u8 active_extensions;
	__be16 protocol;
	__u16 network_header;
	__u16 mac_header;
	unsigned int truesize;
	struct net_device *dev;
	char cb[48];
	__wsum csum;
};

/* What a qdisc finds in the cb of a packet. */
struct qdisc_skb_cb {
	unsigned int pkt_len;
};

struct qdisc_skb_head {
	__u32 qlen;
};

struct gnet_stats_queue {
	__u32 backlog;
	__u32 drops;
	__u32 overlimits;
};

struct Qdisc {
	u32 limit;
	struct qdisc_skb_head q;
	struct gnet_stats_queue qstats;
};

/* What TCP keeps in the cb of a packet that it has received. */
struct tcp_skb_cb {
	u32 seq;
};

struct seq_file;

struct seq_file {
	unsigned long count;
};

struct bpf_iter_meta {
	struct seq_file *seq;
	u64 seq_num;
};

struct bpf_iter__bpf_prog {
	struct bpf_iter_meta *meta;
	struct bpf_prog *prog;
};

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
};

#pragma clang attribute pop

/*
 * Fields that not every kernel has, by its configuration (MPTCP, IPV6, NET_NS, NETFILTER) or its version. They are
 * asked for first: what a program reads of a field that is not there, the verifier refuses unless it is never reached.
 * crates/kernel/tests/fields.rs takes each of them away.
 */
static __always_inline bool is_mptcp(const struct tcp_sock *tp)
{
	if (!bpf_core_field_exists(tp->is_mptcp))
		return false;
	return tp->is_mptcp;
}

/* Whether a socket has keys of TCP-MD5 or TCP-AO: its peers do not hear what is not signed, as all that weir says. */
static __always_inline bool is_signed(const struct tcp_sock *tp)
{
	if (bpf_core_field_exists(tp->md5sig_info) && tp->md5sig_info)
		return true;
	return bpf_core_field_exists(tp->ao_info) && tp->ao_info;
}

/* The network namespace of a socket. NULL: the kernel knows one only. */
static __always_inline const struct net *namespace_of(const struct sock_common *sk)
{
	return bpf_core_field_exists(sk->skc_net.net) ? sk->skc_net.net : NULL;
}

extern void *bpf_rdonly_cast(const void *obj, u32 btf_id) __ksym;
extern void *bpf_cast_to_kern_ctx(void *obj) __ksym;

/* include/net/tcp.h, since 6.9: what a BPF SYN cookie tells the kernel about the client. */
struct bpf_tcp_req_attrs {
	u32 rcv_tsval;
	u32 rcv_tsecr;
	u16 mss;
	u8 rcv_wscale;
	u8 snd_wscale;
	u8 ecn_ok;
	u8 wscale_ok;
	u8 sack_ok;
	u8 tstamp_ok;
	u8 usec_ts_ok;
	u8 reserved[3];
};

#endif
