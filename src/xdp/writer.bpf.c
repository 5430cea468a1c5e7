// Writes to the maps of flow.bpf.c for one port whose process has given up its privilege. Whoever has a
// descriptor of a map may write all of it, but a program (BPF_PROG_TYPE_SYSCALL) can be run without the
// descriptors of its maps and looks at each change: the entry must be the port's own, or free, and its local
// end one of accel_ends. docs/security.md, "The steering maps".
//
// Loaded by FlowWriter, once for each port; it takes privilege to load and none to run.
#include <linux/bpf.h>
#include <linux/errno.h>

#include <bpf/bpf_helpers.h>

#include "xdp/steering_maps.h"

char LICENSE[] SEC("license") = "GPL";

// The port's own.
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct accel_port);
} accel_ports SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, ACCEL_XDP_MAX_ENDS);
  __type(key, struct accel_flow_key);
  __type(value, __u32);
} accel_ends SEC(".maps");

static __always_inline int holds(__u32 queue, __u32 owner) {
  const __u32* holder = bpf_map_lookup_elem(&accel_owners, &queue);
  return holder && *holder == owner;
}

static __always_inline int names_local_end(const struct accel_flow_key* key) {
  for (int i = 0; i < (int)sizeof(key->remote); ++i)
    if (key->remote[i]) return 0;
  return key->remote_port == 0;
}

static __always_inline void forget_remote(struct accel_flow_key* key) {
  key->remote_port = 0;
  __builtin_memset(key->remote, 0, sizeof(key->remote));
}

// The connection, or its local end.
static __always_inline int has_end_of(const struct accel_flow_key* key) {
  struct accel_flow_key end = *key;
  end.queue = 0;
  if (bpf_map_lookup_elem(&accel_ends, &end)) return 1;
  forget_remote(&end);
  return bpf_map_lookup_elem(&accel_ends, &end) != 0;
}

static __always_inline int add_end(const struct accel_port* port, struct accel_flow_key* key) {
  const __u32 there = 1;
  if (port->sealed || !names_local_end(key)) return -EPERM;
  key->queue = 0;
  return (int)bpf_map_update_elem(&accel_ends, key, &there, BPF_ANY);
}

static __always_inline int add(const struct accel_port* port, const struct accel_flow_key* key, __u16 queue) {
  const struct accel_flow_value value = {.owner = port->owner, .home = queue};
  if (!holds(queue, port->owner)) return -EPERM;
  if (key->queue != (names_local_end(key) ? queue : ACCEL_XDP_CONNECTED)) return -EINVAL;
  struct accel_flow_value* present = bpf_map_lookup_elem(&accel_flows, key);
  const int is_ours = present && present->owner == port->owner;
  if (!is_ours && !has_end_of(key)) return -EPERM;
  if (present && !is_ours && !present->in_time_wait && holds(present->home, present->owner)) return -EEXIST;
  return (int)bpf_map_update_elem(&accel_flows, key, &value, BPF_ANY);
}

static __always_inline int remove_entry(const struct accel_port* port, struct accel_flow_key* key) {
  struct accel_flow_value* present = bpf_map_lookup_elem(&accel_flows, key);
  if (present && present->owner == port->owner) bpf_map_delete_elem(&accel_flows, key);
  return 0;
}

static __always_inline int remove_end(struct accel_flow_key* key) {
  key->queue = 0;
  bpf_map_delete_elem(&accel_ends, key);
  return 0;
}

static __always_inline int mark(const struct accel_port* port, const struct accel_flow_key* key, __u16 how) {
  struct accel_flow_value* present = bpf_map_lookup_elem(&accel_flows, key);
  if (!present || present->owner != port->owner) return -ENOENT;
  present->in_time_wait = how;
  return 0;
}

static __always_inline int read_entry(const struct accel_port* port, const struct accel_flow_key* key,
                                      struct accel_request* request) {
  const struct accel_flow_value* present = bpf_map_lookup_elem(&accel_flows, key);
  if (!present || present->owner != port->owner) return -ENOENT;
  request->value.owner = present->owner;
  request->value.home = present->home;
  request->value.in_time_wait = present->in_time_wait;
  request->value.misdirected_seq = present->misdirected_seq;
  request->value.misdirected_ack = present->misdirected_ack;
  request->value.misdirected = present->misdirected;
  return 0;
}

static __always_inline int disclaim(const struct accel_port* port, __u32 queue) {
  const __u32 nobody = 0;
  if (!holds(queue, port->owner)) return -EPERM;
  return (int)bpf_map_update_elem(&accel_owners, &queue, &nobody, BPF_ANY);
}

struct sum {
  __u32 which;
  __u32 unused;
  __u64 total;
};

static long add_cpu(__u32 cpu, struct sum* sum) {
  __u32 which = sum->which;
  const __u64* value = bpf_map_lookup_percpu_elem(&accel_counters, &which, cpu);
  if (!value) return 1;  // no CPU has that number, nor a higher one
  sum->total += *value;
  return 0;
}

static __always_inline int count(struct accel_request* request) {
  struct sum sum = {.which = request->queue};
  bpf_loop(1 << 13, add_cpu, &sum, 0);
  request->counter = sum.total;
  return 0;
}

SEC("syscall")
int accel_writer(struct accel_request* request) {
  const __u32 first = 0;
  struct accel_port* port = bpf_map_lookup_elem(&accel_ports, &first);
  struct accel_flow_key key = request->key;
  if (!port) return -ENOENT;
  switch (request->operation) {
    case ACCEL_ADD_END:
      return add_end(port, &key);
    case ACCEL_SEAL:
      port->sealed = 1;
      return 0;
    case ACCEL_ADD:
      return add(port, &key, request->queue);
    case ACCEL_REMOVE_ENTRY:
      return remove_entry(port, &key);
    case ACCEL_REMOVE:
      remove_entry(port, &key);
      return remove_end(&key);
    case ACCEL_MARK:
      return mark(port, &key, request->mark);
    case ACCEL_READ:
      return read_entry(port, &key, request);
    case ACCEL_DISCLAIM:
      return disclaim(port, request->queue);
    case ACCEL_COUNT:
      return count(request);
  }
  return -EINVAL;
}
