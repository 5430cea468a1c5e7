// A connection whose handshake another stack has made, into the accept queue of the kernel's listener: an ACK of it
// that comes in over loopback gets the request socket that a SYN cookie's ACK would get (Linux 6.9,
// bpf_sk_assign_tcp_reqsk()). Attached to `lo` only while connections move (xdp/accept_queue.cc).
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "xdp/accept_abi.h"

char LICENSE[] SEC("license") = "GPL";

#define TCP_LISTEN 10 /* net/tcp_states.h */
#define NOT_MINE (-1) /* TCX_NEXT: whatever else looks at the packet */
#define DROP 2 /* TCX_DROP: the listener would answer it by a reset, and the peer lose its connection */

// The kernel's names: the verifier compares.
struct sock {
  int unused;
};
struct bpf_tcp_req_attrs {
  struct accel_tcp_attributes values;
};
extern int bpf_sk_assign_tcp_reqsk(struct __sk_buff* skb, struct sock* sk, struct bpf_tcp_req_attrs* attrs,
                                   int attrs__sz) __ksym;

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct accel_accept_request);
} accel_request SEC(".maps");

// The kernel's answer, 0 or a negative errno.
struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, 4096);
} accel_answers SEC(".maps");

static __always_inline int same(const void* a, const void* b) {
  const __u32 *x = a, *y = b;
  return x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && x[3] == y[3];
}

static __always_inline void map_v4(__u8* out, __be32 address) {
  __builtin_memset(out, 0, 10);
  out[10] = out[11] = 0xff;
  __builtin_memcpy(out + 12, &address, 4);
}

/// The length of the tuple that is wanted; 0: another packet.
static __always_inline __u32 match(struct __sk_buff* skb, const struct accel_accept_request* wanted,
                                   struct bpf_sock_tuple* tuple) {
  void* const end = (void*)(long)skb->data_end;
  struct ethhdr* eth = (void*)(long)skb->data;
  __u8 from[16], to[16];
  struct tcphdr* tcp;
  __u32 length;
  if ((void*)(eth + 1) > end) return 0;
  if (eth->h_proto == bpf_htons(ETH_P_IP)) {
    struct iphdr* ip = (void*)(eth + 1);
    tcp = (void*)(ip + 1);
    if ((void*)(tcp + 1) > end || ip->ihl != 5 || ip->protocol != IPPROTO_TCP) return 0;
    map_v4(from, ip->saddr);
    map_v4(to, ip->daddr);
    tuple->ipv4.saddr = ip->saddr;
    tuple->ipv4.daddr = ip->daddr;
    tuple->ipv4.sport = tcp->source;
    tuple->ipv4.dport = tcp->dest;
    length = sizeof tuple->ipv4;
  } else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
    struct ipv6hdr* ip = (void*)(eth + 1);
    tcp = (void*)(ip + 1);
    if ((void*)(tcp + 1) > end || ip->nexthdr != IPPROTO_TCP) return 0;
    __builtin_memcpy(from, &ip->saddr, 16);
    __builtin_memcpy(to, &ip->daddr, 16);
    __builtin_memcpy(tuple->ipv6.saddr, &ip->saddr, 16);
    __builtin_memcpy(tuple->ipv6.daddr, &ip->daddr, 16);
    tuple->ipv6.sport = tcp->source;
    tuple->ipv6.dport = tcp->dest;
    length = sizeof tuple->ipv6;
  } else {
    return 0;
  }
  const int mine = tcp->source == wanted->peer_port && tcp->dest == wanted->local_port &&
                   same(from, wanted->peer) && same(to, wanted->local);
  return mine ? length : 0;
}

SEC("tc")
int accel_accept(struct __sk_buff* skb) {
  const __u32 first = 0;
  const struct accel_accept_request* wanted = bpf_map_lookup_elem(&accel_request, &first);
  struct bpf_sock_tuple tuple = {};
  __u32 length;
  int answer = -2;  // ENOENT: no listener
  if (!wanted || (length = match(skb, wanted, &tuple)) == 0) return NOT_MINE;
  struct bpf_sock* found = length == sizeof tuple.ipv4
                               ? bpf_skc_lookup_tcp(skb, &tuple, sizeof tuple.ipv4, BPF_F_CURRENT_NETNS, 0)
                               : bpf_skc_lookup_tcp(skb, &tuple, sizeof tuple.ipv6, BPF_F_CURRENT_NETNS, 0);
  if (found) {
    if (found->state == TCP_LISTEN) {
      struct sock* listener = (struct sock*)bpf_skc_to_tcp_sock(found);
      struct bpf_tcp_req_attrs attributes = {wanted->attributes};
      if (listener) answer = bpf_sk_assign_tcp_reqsk(skb, listener, &attributes, sizeof attributes);
    } else {
      answer = 1;  // the connection is there: this is a later segment of it
    }
    bpf_sk_release(found);
  }
  if (answer <= 0) bpf_ringbuf_output(&accel_answers, &answer, sizeof answer, 0);
  return answer < 0 ? DROP : NOT_MINE;
}
