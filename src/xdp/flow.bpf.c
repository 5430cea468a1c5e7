// The XDP program of a netdev: hands the frames of steered flows to the AF_XDP socket of the queue they arrived on, and
// leaves everything else to the kernel (DESIGN 5). One program and one set of maps per netdev, shared by all processes.
//
// A frame is taken when its 5-tuple is in `flows`, or else its 3-tuple is: for TCP only a plain SYN, for UDP any datagram.
// Fragments, protocols other than TCP and UDP, IPv6 extension headers and what a VLAN has belong to the kernel: a VLAN's
// device has a program of its own, behind the kernel's taking off the tag.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "xdp/flow_abi.h"

char LICENSE[] SEC("license") = "GPL";

struct {
  __uint(type, BPF_MAP_TYPE_XSKMAP);
  __uint(max_entries, ACCEL_XDP_MAX_QUEUES);
  __type(key, __u32);
  __type(value, __u32);
} accel_xsks SEC(".maps");

// queue -> the port that holds it, 0 for none. May be stale after a kill: accel_xsks tells whether the port lives,
// because the kernel empties a socket's slot when the socket goes.
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, ACCEL_XDP_MAX_QUEUES);
  __type(key, __u32);
  __type(value, __u32);
} accel_owners SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, 131072);  // the loader sets its own
  __type(key, struct accel_flow_key);
  __type(value, struct accel_flow_value);
} accel_flows SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, ACCEL_XDP_COUNTERS);
  __type(key, __u32);
  __type(value, __u64);
} accel_counters SEC(".maps");

struct vlan_header {
  __be16 tci;
  __be16 type;
};

// RFC 792, RFC 4443: the same eight bytes before the quoted packet. (linux/icmp.h drags libc's headers in.)
struct icmp_header {
  __u8 type;
  __u8 code;
  __be16 checksum;
  __be32 rest;
};
enum { ICMP4_UNREACHABLE = 3, ICMP4_TIME_EXCEEDED = 11, ICMP6_UNREACHABLE = 1, ICMP6_TIME_EXCEEDED = 3 };

static __always_inline void count(__u32 which) {
  __u64 *value = bpf_map_lookup_elem(&accel_counters, &which);
  if (value) ++*value;
}

static __always_inline int holds(__u32 queue, __u32 owner) {
  __u32 *holder = bpf_map_lookup_elem(&accel_owners, &queue);
  return holder && *holder == owner;
}

static __always_inline int take(struct xdp_md *ctx) {
  count(ACCEL_XDP_REDIRECTED);
  // The flags are the action for an empty slot: a dead owner's frames go to the kernel.
  return bpf_redirect_map(&accel_xsks, ctx->rx_queue_index, XDP_PASS);
}

static __always_inline void note_stray(struct accel_flow_value *flow, const struct tcphdr *tcp) {
  flow->stray_seq = bpf_ntohl(tcp->seq);
  flow->stray_ack = bpf_ntohl(tcp->ack_seq);
  flow->stray = ACCEL_XDP_STRAYED | ((const __u8 *)tcp)[13];
}

// Whether a key without remote may take the frame: never; as what opens a conversation; or where the listener
// has sent SYN cookies, one of which the frame's ACK may bring back.
enum unconnected { UNCONNECTED_NO, UNCONNECTED_OPENS, UNCONNECTED_ACK };

// `unconnected`: a key without remote may take the frame. `mismatch`: what to do with a frame of a living owner that came
// in on a queue which is not the owner's; `tcp`: its owner is to know of it
// (SocketPort::strayed()).
static __always_inline int steer(struct xdp_md *ctx, struct accel_flow_key *key, int unconnected, int mismatch,
                                 const struct tcphdr *tcp) {
  struct accel_flow_value *flow;

  key->queue = ACCEL_XDP_CONNECTED;
  flow = bpf_map_lookup_elem(&accel_flows, key);
  if (flow) {
    __u32 home = flow->home;
    if (holds(ctx->rx_queue_index, flow->owner)) return take(ctx);
    if (!holds(home, flow->owner) || !bpf_map_lookup_elem(&accel_xsks, &home)) return XDP_PASS;
    if (!flow->resting || key->protocol != IPPROTO_TCP || unconnected != UNCONNECTED_OPENS) {
      // The kernel would reset the connection, which lives. The sender will send again: to its owner, which has the
      // connection moved to the kernel when it learns that it strays.
      if (tcp) note_stray(flow, tcp);
      if (mismatch == XDP_DROP) count(ACCEL_XDP_DROPPED_OTHER_QUEUE);
      return mismatch;
    }
    bpf_map_delete_elem(&accel_flows, key);
  }
  if (!unconnected) return XDP_PASS;
  key->queue = ctx->rx_queue_index;
  key->remote_port = 0;
  __builtin_memset(key->remote, 0, sizeof(key->remote));
  flow = bpf_map_lookup_elem(&accel_flows, key);
  if (!flow || !holds(ctx->rx_queue_index, flow->owner)) return XDP_PASS;
  if (unconnected == UNCONNECTED_ACK && flow->resting != ACCEL_XDP_TAKES_ACKS) return XDP_PASS;
  return take(ctx);
}

static __always_inline void set_v4(__u8 *to, const void *address) {
  to[10] = to[11] = 0xff;
  __builtin_memcpy(to + 12, address, 4);
}

static __always_inline int steer_tcp(struct xdp_md *ctx, struct accel_flow_key *key, void *l4, void *end) {
  struct tcphdr *tcp = l4;
  if ((void *)(tcp + 1) > end) return XDP_PASS;
  key->local_port = tcp->dest;
  key->remote_port = tcp->source;
  int unconnected = UNCONNECTED_NO;
  if (tcp->syn && !tcp->ack && !tcp->rst && !tcp->fin)
    unconnected = UNCONNECTED_OPENS;
  else if (tcp->ack && !tcp->syn && !tcp->rst)
    unconnected = UNCONNECTED_ACK;
  return steer(ctx, key, unconnected, XDP_DROP, tcp->syn ? 0 : tcp);
}

static __always_inline int steer_udp(struct xdp_md *ctx, struct accel_flow_key *key, void *l4, void *end) {
  struct udphdr *udp = l4;
  if ((void *)(udp + 1) > end) return XDP_PASS;
  key->local_port = udp->dest;
  key->remote_port = udp->source;
  return steer(ctx, key, 1, XDP_DROP, 0);
}

// The packet that an ICMP error quotes was sent by us: its source is our local end. Two ports is all that RFC 792 promises.
static __always_inline int steer_quoted(struct xdp_md *ctx, struct accel_flow_key *key, void *l4, void *end) {
  __be16 *ports = l4;
  if ((void *)(ports + 2) > end) return XDP_PASS;
  key->local_port = ports[0];
  key->remote_port = ports[1];
  return steer(ctx, key, key->protocol == IPPROTO_UDP, XDP_PASS, 0);
}

static __always_inline int steer_icmp4(struct xdp_md *ctx, struct accel_flow_key *key, void *l4, void *end) {
  struct icmp_header *icmp = l4;
  struct iphdr *ip = (void *)(icmp + 1);
  if ((void *)(ip + 1) > end) return XDP_PASS;
  if (icmp->type != ICMP4_UNREACHABLE && icmp->type != ICMP4_TIME_EXCEEDED) return XDP_PASS;
  if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP) return XDP_PASS;
  if (ip->version != 4 || ip->ihl < 5 || ip->frag_off & bpf_htons(0x1fff)) return XDP_PASS;
  key->protocol = ip->protocol;
  set_v4(key->local, &ip->saddr);
  set_v4(key->remote, &ip->daddr);
  return steer_quoted(ctx, key, (void *)ip + ip->ihl * 4, end);
}

static __always_inline int steer_icmp6(struct xdp_md *ctx, struct accel_flow_key *key, void *l4, void *end) {
  struct icmp_header *icmp = l4;
  struct ipv6hdr *ip = (void *)(icmp + 1);
  if ((void *)(ip + 1) > end) return XDP_PASS;
  if (icmp->type < ICMP6_UNREACHABLE || icmp->type > ICMP6_TIME_EXCEEDED) return XDP_PASS;
  if (ip->nexthdr != IPPROTO_TCP && ip->nexthdr != IPPROTO_UDP) return XDP_PASS;
  key->protocol = ip->nexthdr;
  __builtin_memcpy(key->local, &ip->saddr, 16);
  __builtin_memcpy(key->remote, &ip->daddr, 16);
  return steer_quoted(ctx, key, ip + 1, end);
}

static __always_inline int steer_v4(struct xdp_md *ctx, void *l3, void *end) {
  struct accel_flow_key key = {};
  struct iphdr *ip = l3;
  if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5) return XDP_PASS;
  if (ip->frag_off & bpf_htons(0x3fff)) return XDP_PASS;  // more fragments, or an offset
  void *l4 = l3 + ip->ihl * 4;
  if (ip->protocol == IPPROTO_ICMP) return steer_icmp4(ctx, &key, l4, end);
  key.protocol = ip->protocol;
  set_v4(key.local, &ip->daddr);
  set_v4(key.remote, &ip->saddr);
  if (ip->protocol == IPPROTO_TCP) return steer_tcp(ctx, &key, l4, end);
  if (ip->protocol == IPPROTO_UDP) return steer_udp(ctx, &key, l4, end);
  return XDP_PASS;
}

static __always_inline int steer_v6(struct xdp_md *ctx, void *l3, void *end) {
  struct accel_flow_key key = {};
  struct ipv6hdr *ip = l3;
  if ((void *)(ip + 1) > end || ip->version != 6) return XDP_PASS;
  if (ip->nexthdr == IPPROTO_ICMPV6) return steer_icmp6(ctx, &key, ip + 1, end);
  key.protocol = ip->nexthdr;
  __builtin_memcpy(key.local, &ip->daddr, 16);
  __builtin_memcpy(key.remote, &ip->saddr, 16);
  if (ip->nexthdr == IPPROTO_TCP) return steer_tcp(ctx, &key, ip + 1, end);
  if (ip->nexthdr == IPPROTO_UDP) return steer_udp(ctx, &key, ip + 1, end);
  return XDP_PASS;
}

SEC("xdp.frags")
int ACCEL_XDP_PROGRAM(struct xdp_md *ctx) {
  void *end = (void *)(long)ctx->data_end;
  struct ethhdr *eth = (void *)(long)ctx->data;
  void *l3 = eth + 1;
  if (l3 > end) return XDP_PASS;
  __be16 type = eth->h_proto;
  if (type == bpf_htons(ETH_P_8021Q)) {
    struct vlan_header *vlan = l3;
    if ((void *)(vlan + 1) > end) return XDP_PASS;
    if (vlan->tci & bpf_htons(0xfff)) return XDP_PASS;  // VLAN 0: a priority only
    type = vlan->type;
    l3 = vlan + 1;
  }
  if (type == bpf_htons(ETH_P_IP)) return steer_v4(ctx, l3, end);
  if (type == bpf_htons(ETH_P_IPV6)) return steer_v6(ctx, l3, end);
  return XDP_PASS;
}
