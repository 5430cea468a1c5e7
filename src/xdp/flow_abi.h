/* What the XDP program and the processes that share it agree on. C, because flow.bpf.c includes it.
 * Whoever changes a layout here changes ACCEL_XDP_PROGRAM as well: processes recognise each other's program
 * by it. */
#pragma once

#include <linux/types.h>

#define ACCEL_XDP_PROGRAM accel_steer_5 /* at most 15 characters (BPF_OBJ_NAME_LEN) */
#define ACCEL_XDP_MAX_QUEUES 256
/* accel_flow_key.queue of a connected key: matches on every queue. */
#define ACCEL_XDP_CONNECTED 0xffff

/* Ports and addresses in network byte order, IPv4 addresses mapped (RFC 4291 section 2.5.5.2).
 * With remote all zero the key is a listener's or a bound UDP socket's, and holds for one receive queue only:
 * several processes share a local port by an entry for each queue, so that no entry has two writers. */
struct accel_flow_key {
  __u8 protocol;
  __u8 zero;
  __u16 local_port;
  __u16 remote_port;
  __u16 queue;
  __u8 local[16];
  __u8 remote[16];
};

struct accel_flow_value {
  __u32 owner; /* random, never 0: the port that steered it */
  __u16 home;  /* a queue that the owner holds as long as it lives */
  /* Of a connected key 1: in TIME-WAIT. A SYN on another owner's queue frees the tuple, as it would on one
   * host's kernel. Of a listener's ACCEL_XDP_TAKES_ACKS: it has sent SYN cookies. */
  __u16 in_time_wait;
  /* The last TCP segment without SYN that came on a queue which the owner does not hold, and was dropped:
   * numbers in host byte order, and its flags (TH_*) with ACCEL_XDP_MISDIRECTED. */
  __u32 misdirected_seq;
  __u32 misdirected_ack;
  __u32 misdirected;
};
#define ACCEL_XDP_MISDIRECTED 0x100
#define ACCEL_XDP_TAKES_ACKS 2

/* What fragments of one packet have in common (RFC 791, RFC 8200). The protocol of IPv6 is 0: only the first
 * fragment has it for sure. */
struct accel_fragment_key {
  __u8 source[16];
  __u8 destination[16];
  __u32 id;
  __u32 protocol;
};
#define ACCEL_XDP_MAX_FRAGMENTED 4096

enum accel_xdp_counter {
  ACCEL_XDP_REDIRECTED,
  ACCEL_XDP_DROPPED_OTHER_QUEUE, /* connected flow on a queue that its owner does not hold */
  ACCEL_XDP_PASSED,              /* to the kernel */
  ACCEL_XDP_COUNTERS
};

/* A change of the maps that writer.bpf.c makes for one port, whose process has given up its privilege.
 * The program's answer is a negative errno value or 0. */
enum accel_operation {
  ACCEL_ADD_END,     /* before ACCEL_SEAL: `key` is a local end that the port has; remote is zero */
  ACCEL_SEAL,        /* from here on ACCEL_ADD is for local ends only that the port has; for good */
  ACCEL_ADD,         /* the entry of `key`, home `queue`: EPERM, EEXIST as FlowMap::add(), E2BIG, ENOMEM */
  ACCEL_REMOVE,      /* the port's entry of `key`, and the local end or connection of accel_ends */
  ACCEL_MARK,        /* accel_flow_value.in_time_wait of the port's entry becomes `mark` */
  ACCEL_READ,        /* the port's entry of `key` into `value` */
  ACCEL_DISCLAIM,    /* `queue` is nobody's */
  ACCEL_COUNT,       /* `counter` is the sum, over the CPUs, of the one that `queue` says */
  ACCEL_REMOVE_ENTRY /* ACCEL_REMOVE, but accel_ends stays as it is */
};

struct accel_request {
  __u32 operation;
  __u16 queue;
  __u16 mark;
  struct accel_flow_key key;
  struct accel_flow_value value;
  __u64 counter;
};

/* The writer's own. */
struct accel_port {
  __u32 owner;
  __u32 sealed;
};

/* Keys of accel_ends: accel_flow_key with queue 0. With remote all zero a local end, else one connection
 * from a local end. Written by ACCEL_ADD_END and, once the port is sealed, by the helper alone. */
#define ACCEL_XDP_MAX_ENDS 16384
