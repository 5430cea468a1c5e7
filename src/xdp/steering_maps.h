/* The maps that flow.bpf.c reads and writer.bpf.c changes: one of each kind for a netdev. The loader of
 * writer.bpf.c puts flow.bpf.c's own in their places. C, for BPF programs alone. */
#pragma once

#include <bpf/bpf_helpers.h>
#include <linux/bpf.h>

#include "xdp/flow_abi.h"

// queue -> the port that holds it, 0 for none. May be stale after a kill: accel_xsks tells whether the port
// lives, because the kernel empties a socket's slot when the socket goes.
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
