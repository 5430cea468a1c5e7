// The XDP program of a netdev: hands the frames of steered flows to the AF_XDP socket of the queue they
// arrived on, and leaves everything else to the kernel. One program and one set of maps per
// netdev, shared by all processes.
//
// A frame is taken when its 5-tuple is in `flows`, or else its 3-tuple is: for TCP only a plain SYN, for UDP
// any datagram. Protocols other than TCP and UDP and what a VLAN has belong to the kernel: a VLAN's device
// has a program of its own, behind the kernel's taking off the tag.
//
// Fragments, and packets with extension headers, are the kernel's where they are datagrams or SYNs, since it
// has a socket for them too. Of a connection of ours it would answer with a reset. Of fragments the first
// fragment, which has the ports, tells whose the packet is, and the later ones follow it (accel_fragmented).
// A later one that comes before the first is passed on, since it may be anybody's. When its first turns out
// to be ours the packet is lost, and the connection is noted as misdirected: it is handed back to the kernel,
// for which the order does not matter.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "xdp/steering_maps.h"

char LICENSE[] SEC("license") = "GPL";

struct {
  __uint(type, BPF_MAP_TYPE_XSKMAP);
  __uint(max_entries, ACCEL_XDP_MAX_QUEUES);
  __type(key, __u32);
  __type(value, __u32);
} accel_xsks SEC(".maps");

enum { FRAGMENTS_OURS = 1, FRAGMENTS_OF_KERNEL, FRAGMENTS_BEFORE_FIRST };
#define FRAGMENTS_LIVE 30000000000ull  // ns: net.ipv4.ipfrag_time

struct fragments {
  __u64 since;
  __u64 whose;
};

// LRU: peers choose the keys.
struct {
  __uint(type, BPF_MAP_TYPE_LRU_HASH);
  __uint(max_entries, ACCEL_XDP_MAX_FRAGMENTED);
  __type(key, struct accel_fragment_key);
  __type(value, struct fragments);
} accel_fragmented SEC(".maps");

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

enum { FLAG_FIN = 1, FLAG_SYN = 2, FLAG_RST = 4, FLAG_ACK = 16 };

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

// The verifier lets only CAP_PERFMON add a variable to a packet pointer, since the addition could be
// speculated upon (kernel/bpf/verifier.c, sanitize_ptr_alu()). So each length of an IPv4 header has a
// constant and a branch of its own. Assembly, or else the compiler makes a multiplication of them.
static __always_inline void* behind_ipv4(const struct iphdr* ip) {
  void* at = (void*)ip;
  switch (ip->ihl) {
    case 5:
      asm volatile("%0 += 20" : "+r"(at));
      break;
    case 6:
      asm volatile("%0 += 24" : "+r"(at));
      break;
    case 7:
      asm volatile("%0 += 28" : "+r"(at));
      break;
    case 8:
      asm volatile("%0 += 32" : "+r"(at));
      break;
    case 9:
      asm volatile("%0 += 36" : "+r"(at));
      break;
    case 10:
      asm volatile("%0 += 40" : "+r"(at));
      break;
    case 11:
      asm volatile("%0 += 44" : "+r"(at));
      break;
    case 12:
      asm volatile("%0 += 48" : "+r"(at));
      break;
    case 13:
      asm volatile("%0 += 52" : "+r"(at));
      break;
    case 14:
      asm volatile("%0 += 56" : "+r"(at));
      break;
    case 15:
      asm volatile("%0 += 60" : "+r"(at));
      break;
  }
  return at;
}

// `type`: of what begins there; 0: nothing for us.
static __always_inline void* network_header(struct xdp_md* ctx, __be16* type) {
  void* end = (void*)(long)ctx->data_end;
  struct ethhdr* eth = (void*)(long)ctx->data;
  struct vlan_header* vlan = (void*)(eth + 1);
  *type = 0;
  if ((void*)(eth + 1) > end) return eth;
  if (eth->h_proto != bpf_htons(ETH_P_8021Q)) {
    *type = eth->h_proto;
    return eth + 1;
  }
  if ((void*)(vlan + 1) > end || vlan->tci & bpf_htons(0xfff)) return eth;  // VLAN 0: a priority only
  *type = vlan->type;
  return vlan + 1;
}

static __always_inline void set_v4(__u8* to, const void* address) {
  to[10] = to[11] = 0xff;
  __builtin_memcpy(to + 12, address, 4);
}

// What the headers say of a frame. One steer() behind all of them keeps the program short: the kernel's
// verifier and compiler run in the first call of a process that needs the device.
struct frame {
  struct accel_flow_key key;
  __u32 seq, ack;  // TCP's
  __u8 flags;      // TCP's
  __u8 v4;
  __u8 quoted;     // by an ICMP error: the frame is not the flow's own
};

// Each parse function: 0 when the frame is none of those that can be steered.
static __always_inline int parse_tcp(struct frame* f, void* l4, void* end) {
  struct tcphdr* tcp = l4;
  if ((void*)(tcp + 1) > end) return 0;
  f->key.local_port = tcp->dest;
  f->key.remote_port = tcp->source;
  f->seq = tcp->seq;
  f->ack = tcp->ack_seq;
  f->flags = ((const __u8*)tcp)[13];
  return 1;
}

static __always_inline int parse_udp(struct frame* f, void* l4, void* end) {
  struct udphdr* udp = l4;
  if ((void*)(udp + 1) > end) return 0;
  f->key.local_port = udp->dest;
  f->key.remote_port = udp->source;
  return 1;
}

static __always_inline int parse_l4(struct frame* f, __u8 protocol, void* l4, void* end) {
  f->key.protocol = protocol;
  if (protocol == IPPROTO_TCP) return parse_tcp(f, l4, end);
  if (protocol == IPPROTO_UDP) return parse_udp(f, l4, end);
  return 0;
}

// The packet that an ICMP error quotes was sent by us: its source is our local end. Two ports is all that RFC
// 792 promises.
static __always_inline int parse_quoted(struct frame* f, __u8 protocol, void* l4, void* end) {
  __be16* ports = l4;
  if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) return 0;
  if ((void*)(ports + 2) > end) return 0;
  f->key.protocol = protocol;
  f->key.local_port = ports[0];
  f->key.remote_port = ports[1];
  f->quoted = 1;
  return 1;
}

static __always_inline int parse_icmp4(struct frame* f, void* l4, void* end) {
  struct icmp_header* icmp = l4;
  struct iphdr* ip = (void*)(icmp + 1);
  if ((void*)(ip + 1) > end) return 0;
  if (icmp->type != ICMP4_UNREACHABLE && icmp->type != ICMP4_TIME_EXCEEDED) return 0;
  // Packets of ours have no options: sockets that want them are the kernel's.
  if (ip->version != 4 || ip->ihl != 5 || ip->frag_off & bpf_htons(0x1fff)) return 0;
  set_v4(f->key.local, &ip->saddr);
  set_v4(f->key.remote, &ip->daddr);
  return parse_quoted(f, ip->protocol, ip + 1, end);
}

static __always_inline int parse_icmp6(struct frame* f, void* l4, void* end) {
  struct icmp_header* icmp = l4;
  struct ipv6hdr* ip = (void*)(icmp + 1);
  if ((void*)(ip + 1) > end) return 0;
  if (icmp->type < ICMP6_UNREACHABLE || icmp->type > ICMP6_TIME_EXCEEDED) return 0;
  __builtin_memcpy(f->key.local, &ip->saddr, 16);
  __builtin_memcpy(f->key.remote, &ip->daddr, 16);
  return parse_quoted(f, ip->nexthdr, ip + 1, end);
}

// Not to be steered by what has been parsed of it: see steer_rare().
enum { RARE = 2 };

static __always_inline int parse_v4(struct frame* f, void* l3, void* end) {
  struct iphdr* ip = l3;
  if ((void*)(ip + 1) > end || ip->version != 4 || ip->ihl < 5) return 0;
  if (ip->frag_off & bpf_htons(0x3fff))
    return ip->protocol == IPPROTO_TCP ? RARE : 0;  // more fragments, or an offset
  void* l4 = behind_ipv4(ip);
  if (ip->protocol == IPPROTO_ICMP) return parse_icmp4(f, l4, end);
  set_v4(f->key.local, &ip->daddr);
  set_v4(f->key.remote, &ip->saddr);
  f->v4 = 1;
  return parse_l4(f, ip->protocol, l4, end);
}

static __always_inline int parse_v6(struct frame* f, void* l3, void* end) {
  struct ipv6hdr* ip = l3;
  if ((void*)(ip + 1) > end || ip->version != 6) return 0;
  if (ip->nexthdr == IPPROTO_ICMPV6) return parse_icmp6(f, ip + 1, end);
  __builtin_memcpy(f->key.local, &ip->daddr, 16);
  __builtin_memcpy(f->key.remote, &ip->saddr, 16);
  if (ip->nexthdr != IPPROTO_TCP && ip->nexthdr != IPPROTO_UDP) return RARE;
  return parse_l4(f, ip->nexthdr, ip + 1, end);
}

static __always_inline void set_tuple(struct bpf_sock_tuple* tuple, const struct frame* f) {
  if (f->v4) {
    __builtin_memcpy(&tuple->ipv4.saddr, f->key.remote + 12, 4);
    __builtin_memcpy(&tuple->ipv4.daddr, f->key.local + 12, 4);
    tuple->ipv4.sport = f->key.remote_port;
    tuple->ipv4.dport = f->key.local_port;
  } else {
    __builtin_memcpy(tuple->ipv6.saddr, f->key.remote, 16);
    __builtin_memcpy(tuple->ipv6.daddr, f->key.local, 16);
    tuple->ipv6.sport = f->key.remote_port;
    tuple->ipv6.dport = f->key.local_port;
  }
}

enum { STATE_LISTEN = 10 };  // net/tcp_states.h

// Whether the kernel has a connection of that tuple, be it in a handshake or in TIME-WAIT: one that was handed
// back, or that was there before the listener was ours. A SYN that anybody can send must not begin a second
// connection of the tuple. The kernel answers it (RFC 5961 section 4).
static __always_inline int kernel_has(struct xdp_md* ctx, struct bpf_sock_tuple* tuple, int v4) {
  struct bpf_sock* found = v4 ? bpf_skc_lookup_tcp(ctx, tuple, sizeof tuple->ipv4, BPF_F_CURRENT_NETNS, 0)
                              : bpf_skc_lookup_tcp(ctx, tuple, sizeof tuple->ipv6, BPF_F_CURRENT_NETNS, 0);
  int connected;
  if (!found) return 0;
  connected = found->state != STATE_LISTEN;
  bpf_sk_release(found);
  return connected;
}

static __always_inline void note_misdirected(struct accel_flow_value* flow, const struct frame* f) {
  flow->misdirected_seq = bpf_ntohl(f->seq);
  flow->misdirected_ack = bpf_ntohl(f->ack);
  flow->misdirected = ACCEL_XDP_MISDIRECTED | f->flags;
}

static __always_inline int steer(struct xdp_md* ctx, struct frame* f) {
  struct accel_flow_key* key = &f->key;
  struct accel_flow_value* flow;
  const int opens = (f->flags & (FLAG_FIN | FLAG_SYN | FLAG_RST | FLAG_ACK)) == FLAG_SYN;
  // Where the listener has sent SYN cookies, one of which the segment may bring back.
  const int acknowledges = (f->flags & (FLAG_SYN | FLAG_RST | FLAG_ACK)) == FLAG_ACK;

  key->queue = ACCEL_XDP_CONNECTED;
  flow = bpf_map_lookup_elem(&accel_flows, key);
  if (flow) {
    __u32 home = flow->home;
    if (holds(ctx->rx_queue_index, flow->owner)) return take(ctx);
    if (!holds(home, flow->owner) || !bpf_map_lookup_elem(&accel_xsks, &home)) return XDP_PASS;
    if (f->quoted) return XDP_PASS;
    if (!flow->in_time_wait || key->protocol != IPPROTO_TCP || !opens) {
      // The kernel would reset the connection, which lives. The sender will send again: to its owner, which
      // has the connection moved to the kernel when it learns that it is misdirected
      // (SocketPort::misdirected()).
      if (key->protocol == IPPROTO_TCP && !(f->flags & FLAG_SYN)) note_misdirected(flow, f);
      count(ACCEL_XDP_DROPPED_OTHER_QUEUE);
      return XDP_DROP;
    }
    bpf_map_delete_elem(&accel_flows, key);
  }
  if (key->protocol == IPPROTO_TCP && !opens && !acknowledges) return XDP_PASS;
  struct bpf_sock_tuple tuple = {};
  if (key->protocol == IPPROTO_TCP) set_tuple(&tuple, f);
  key->queue = ctx->rx_queue_index;
  key->remote_port = 0;
  __builtin_memset(key->remote, 0, sizeof(key->remote));
  flow = bpf_map_lookup_elem(&accel_flows, key);
  if (!flow || !holds(ctx->rx_queue_index, flow->owner)) return XDP_PASS;
  if (acknowledges && flow->in_time_wait != ACCEL_XDP_TAKES_ACKS) return XDP_PASS;
  if (key->protocol == IPPROTO_TCP && kernel_has(ctx, &tuple, f->v4)) return XDP_PASS;
  return take(ctx);
}

struct fragment {
  struct accel_fragment_key packet;
  __u8 is_one, later;
};

// Of IPv4's first fragment only TCP's ports are there for sure; of IPv6's the header is, or the kernel drops
// it (RFC 8200 section 4.5).
static __always_inline int parse_fragment(struct frame* f, struct fragment* fragment, __u32 id, int later,
                                          void* l4, void* end) {
  struct tcphdr* tcp = l4;
  fragment->is_one = 1;
  fragment->later = later != 0;
  fragment->packet.id = id;
  if (later || parse_l4(f, IPPROTO_TCP, l4, end)) return 1;
  if (!fragment->packet.protocol || (void*)&tcp->seq > end) return 0;
  f->key.local_port = tcp->dest;
  f->key.remote_port = tcp->source;
  return 1;
}

static __always_inline int parse_fragment4(struct frame* f, struct fragment* fragment, void* l3, void* end) {
  struct iphdr* ip = l3;
  if ((void*)(ip + 1) > end || ip->version != 4 || ip->ihl != 5) return 0;
  set_v4(f->key.local, &ip->daddr);
  set_v4(f->key.remote, &ip->saddr);
  set_v4(fragment->packet.source, &ip->saddr);
  set_v4(fragment->packet.destination, &ip->daddr);
  fragment->packet.protocol = IPPROTO_TCP;
  return parse_fragment(f, fragment, ip->id, ip->frag_off & bpf_htons(0x1fff), ip + 1, end);
}

// RFC 8200 section 4. (linux/ipv6.h has no fragment header.)
struct extension_header {
  __u8 next;
  __u8 length;   // in units of 8 bytes, the first not counted
  __be16 where;  // a fragment's offset, and whether there are more
  __be32 id;
};
#define EXTENSION_UNITS 8  // with the transport's header

// Each step has a constant for its place, as behind_ipv4() has.
static __always_inline int parse_extended6(struct frame* f, struct fragment* fragment, void* l3, void* end) {
  struct ipv6hdr* ip = l3;
  struct extension_header* header = (void*)(ip + 1);
  __u32 at = 0;
  if ((void*)(ip + 1) > end || ip->version != 6) return 0;
  __builtin_memcpy(f->key.local, &ip->daddr, 16);
  __builtin_memcpy(f->key.remote, &ip->saddr, 16);
  __builtin_memcpy(fragment->packet.source, &ip->saddr, 16);
  __builtin_memcpy(fragment->packet.destination, &ip->daddr, 16);
  __u8 next = ip->nexthdr;
#pragma unroll
  for (__u32 unit = 0; unit < EXTENSION_UNITS; ++unit, ++header) {
    if (at != unit) continue;
    if ((void*)(header + 1) > end) return 0;
    if (next == IPPROTO_TCP) return parse_l4(f, next, header, end);
    if (next == IPPROTO_FRAGMENT) {
      const __be16 where = header->where;
      if (where & bpf_htons(0xfff9))
        return header->next == IPPROTO_TCP &&
               parse_fragment(f, fragment, header->id, where & bpf_htons(0xfff8), header + 1, end);
      at = unit + 1;  // RFC 6946: a fragment that is the whole packet
    } else if (next == IPPROTO_DSTOPTS || next == IPPROTO_ROUTING || (next == IPPROTO_HOPOPTS && unit == 0)) {
      at = unit + 1 + header->length;
    } else {
      return 0;
    }
    next = header->next;
  }
  return 0;
}

// 0: not known.
static __always_inline __u64 owner_of_packet(const struct accel_fragment_key* packet) {
  const struct fragments* known = bpf_map_lookup_elem(&accel_fragmented, packet);
  return known && bpf_ktime_get_ns() - known->since < FRAGMENTS_LIVE ? known->whose : 0;
}

static __always_inline void remember_packet(const struct accel_fragment_key* packet, __u64 whose) {
  const struct fragments now = {bpf_ktime_get_ns(), whose};
  bpf_map_update_elem(&accel_fragmented, packet, &now, BPF_ANY);
}

static __always_inline int steer_later(struct xdp_md* ctx, const struct fragment* fragment, __u64 whose) {
  if (whose == FRAGMENTS_OURS) return take(ctx);
  if (!whose) remember_packet(&fragment->packet, FRAGMENTS_BEFORE_FIRST);
  return XDP_PASS;
}

static __always_inline int steer_connection(struct xdp_md* ctx, struct frame* f,
                                            const struct fragment* fragment, __u64 whose) {
  f->key.queue = ACCEL_XDP_CONNECTED;
  struct accel_flow_value* flow = bpf_map_lookup_elem(&accel_flows, &f->key);
  __u32 home = flow ? flow->home : 0;
  if (!flow || !holds(home, flow->owner) || !bpf_map_lookup_elem(&accel_xsks, &home)) {
    if (fragment->is_one) remember_packet(&fragment->packet, FRAGMENTS_OF_KERNEL);
    return XDP_PASS;
  }
  if (whose != FRAGMENTS_BEFORE_FIRST && holds(ctx->rx_queue_index, flow->owner)) {
    if (fragment->is_one) remember_packet(&fragment->packet, FRAGMENTS_OURS);
    return take(ctx);
  }
  if (f->flags && !(f->flags & FLAG_SYN)) note_misdirected(flow, f);
  count(ACCEL_XDP_DROPPED_OTHER_QUEUE);
  return XDP_DROP;
}

// Fragments and extension headers of TCP. A function of its own, which the verifier looks at once.
__attribute__((noinline)) int accel_steer_rare(struct xdp_md* ctx) {
  void* end = (void*)(long)ctx->data_end;
  struct frame frame = {};
  struct fragment fragment = {};
  int steerable = 0;
  __be16 type;
  void* l3 = network_header(ctx, &type);
  if (type == bpf_htons(ETH_P_IP)) steerable = parse_fragment4(&frame, &fragment, l3, end);
  if (type == bpf_htons(ETH_P_IPV6)) steerable = parse_extended6(&frame, &fragment, l3, end);
  if (!steerable) return XDP_PASS;
  const __u64 whose = fragment.is_one ? owner_of_packet(&fragment.packet) : 0;
  return fragment.later ? steer_later(ctx, &fragment, whose)
                        : steer_connection(ctx, &frame, &fragment, whose);
}

static __always_inline int decide(struct xdp_md* ctx) {
  void* end = (void*)(long)ctx->data_end;
  struct frame frame = {};
  int steerable = 0;
  __be16 type;
  void* l3 = network_header(ctx, &type);
  if (type == bpf_htons(ETH_P_IP)) steerable = parse_v4(&frame, l3, end);
  if (type == bpf_htons(ETH_P_IPV6)) steerable = parse_v6(&frame, l3, end);
  if (steerable == RARE) return accel_steer_rare(ctx);
  return steerable ? steer(ctx, &frame) : XDP_PASS;
}

SEC("xdp.frags")
int ACCEL_XDP_PROGRAM(struct xdp_md* ctx) {
  const int action = decide(ctx);
  if (action == XDP_PASS) count(ACCEL_XDP_PASSED);
  return action;
}
