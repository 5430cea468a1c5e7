/* What the program of accept.bpf.c and its loader agree on. C, because the program includes it. */
#pragma once

#include <linux/types.h>

/* The kernel's struct bpf_tcp_req_attrs (include/net/tcp.h, Linux 6.9): what the handshake has settled. */
struct accel_tcp_attributes {
  __u32 rcv_tsval; /* TS.Recent */
  __u32 rcv_tsecr; /* our own TSval of now */
  __u16 mss;       /* the peer's */
  __u8 rcv_wscale;
  __u8 snd_wscale;
  __u8 ecn_ok;
  __u8 wscale_ok;
  __u8 sack_ok;
  __u8 tstamp_ok;
  __u8 usec_ts_ok;
  __u8 reserved[3];
};

/* The one connection that the program looks for. Ports in network byte order, IPv4 addresses mapped (RFC 4291
 * section 2.5.5.2); `peer` is where its segments come from. */
struct accel_accept_request {
  struct accel_tcp_attributes attributes;
  __u8 local[16];
  __u8 peer[16];
  __u16 local_port;
  __u16 peer_port;
};
