// Elements of BPF maps, as bpf(2) has them. A program that serves connections uses nothing else of BPF, so
// the pages of libbpf are not needed once a port is open; nor is errno touched.
#pragma once

#include <linux/bpf.h>

#include <cstdint>
#include <span>

#include "base/bare_syscall.h"

namespace accel::xdp {

/// Each returns 0 or an errno value.
inline int map_call(bpf_cmd command, int map, const void* key, const void* value, uint64_t flags = BPF_ANY) {
  bpf_attr a{};
  a.map_fd = static_cast<uint32_t>(map);
  a.key = reinterpret_cast<uintptr_t>(key);
  a.value = reinterpret_cast<uintptr_t>(value);
  a.flags = flags;
  return static_cast<int>(-bare_syscall(SYS_bpf, command, reinterpret_cast<long>(&a), sizeof(a)));
}

template <class K, class V>
int map_update(int map, const K& key, const V& value, uint64_t flags) {
  return map_call(BPF_MAP_UPDATE_ELEM, map, &key, &value, flags);
}
template <class K, class V>
int map_lookup(int map, const K& key, V& value) {
  return map_call(BPF_MAP_LOOKUP_ELEM, map, &key, &value);
}
/// Of a map that has a value for each possible CPU.
template <class K>
int map_lookup(int map, const K& key, std::span<uint64_t> values) {
  return map_call(BPF_MAP_LOOKUP_ELEM, map, &key, values.data());
}
template <class K, class V>
int map_take(int map, const K& key, V& value) {
  return map_call(BPF_MAP_LOOKUP_AND_DELETE_ELEM, map, &key, &value);
}
template <class K>
int map_delete(int map, const K& key) {
  return map_call(BPF_MAP_DELETE_ELEM, map, &key, nullptr);
}
/// `key`: nullptr for the first.
template <class K>
int map_next_key(int map, const K* key, K& next) {
  return map_call(BPF_MAP_GET_NEXT_KEY, map, key, &next);
}

}  // namespace accel::xdp
