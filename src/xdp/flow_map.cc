#include "xdp/flow_map.h"

#include <arpa/inet.h>
#include <bpf/libbpf.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "xdp/map_calls.h"
#include "xdp/socket.h"

namespace accel::xdp {
namespace {

accel_flow_key wire_key(const FlowKey& key) {
  accel_flow_key k{};
  k.protocol = static_cast<uint8_t>(key.protocol);
  k.local_port = htons(key.local.port);
  std::memcpy(k.local, key.local.address.bytes.data(), 16);
  k.queue = ACCEL_XDP_CONNECTED;
  if (key.is_connected()) {
    k.remote_port = htons(key.remote.port);
    std::memcpy(k.remote, key.remote.address.bytes.data(), 16);
  }
  return k;
}

}  // namespace

FlowMap::FlowMap(std::shared_ptr<Program> program, int ifindex, uint32_t owner)
    : program_(std::move(program)),
      ifindex_(ifindex),
      owner_(owner),
      of_cpus_(static_cast<size_t>(std::max(libbpf_num_possible_cpus(), 1))) {}

Result<void> FlowMap::claim(uint32_t queue, int socket) {
  // From here the dead owner's entries match no queue's owner, so that its flows cannot come to our socket.
  if (int error = map_update(program_->owners(), queue, owner_, BPF_ANY); error != 0) return err(error);
  const auto fd = static_cast<uint32_t>(socket);
  if (int error = map_update(program_->xsks(), queue, fd, BPF_ANY); error != 0) return err(error);
  return {};
}

void FlowMap::disclaim(uint32_t queue) {
  const uint32_t nobody = 0;
  // Its place in accel_xsks is empty with the socket's close.
  if (sealed_) return (void)writer_->run(ACCEL_DISCLAIM, {}, queue);
  map_delete(program_->xsks(), queue);
  map_update(program_->owners(), queue, nobody, BPF_ANY);
}

/// visit(key, value). Another process's deletes may send get_next_key back to the start; the table's size
/// bounds the walk all the same.
template <class F>
void FlowMap::for_each_entry(F visit) const {
  accel_flow_key key{}, next{};
  accel_flow_value value{};
  bool more = map_next_key(program_->flows(), static_cast<const accel_flow_key*>(nullptr), next) == 0;
  for (uint32_t steps = 0; more && steps < 4'000'000; ++steps) {
    key = next;
    if (map_lookup(program_->flows(), key, value) == 0) visit(key, value);
    more = map_next_key(program_->flows(), &key, next) == 0;
  }
}

template <class Stale>
void FlowMap::remove_if(Stale stale) {
  std::vector<accel_flow_key> found;
  for_each_entry([&](const accel_flow_key& key, const accel_flow_value& value) {
    if (stale(value)) found.push_back(key);
  });
  accel_flow_value value{};
  // A living owner may have taken such a tuple anew meanwhile: each is looked at again, and what had changed
  // even then goes back.
  for (const auto& k : found) {
    if (map_lookup(program_->flows(), k, value) != 0 || !stale(value)) continue;
    const int error = map_take(program_->flows(), k, value);
    if (error == 0 && !stale(value)) map_update(program_->flows(), k, value, BPF_NOEXIST);
    if (error != 0 && error != ENOENT) map_delete(program_->flows(), k);  // kernels before 5.14
  }
}

uint32_t FlowMap::holder(uint32_t queue) const {
  uint32_t owner = 0;
  map_lookup(program_->owners(), queue, owner);
  return owner;
}

/// A socket that is not bound takes the place if it is free, and leaves it with its own close. A frame that
/// comes for the dead port between is dropped. Anything but success proves nothing.
bool FlowMap::in_use(uint32_t queue) const {
  const Fd probe(socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0));
  if (!probe) return false;  // no AF_XDP here at all: whoever makes a socket to use finds out why
  const auto fd = static_cast<uint32_t>(probe.get());
  return map_update(program_->xsks(), queue, fd, BPF_NOEXIST) == EEXIST;
}

void FlowMap::purge() {
  if (sealed_) return;
  // owners[] may name a dead port whose queue nobody took since.
  std::vector<uint32_t> dead;
  for (uint32_t queue = 0; queue < ACCEL_XDP_MAX_QUEUES; ++queue) {
    const uint32_t owner = holder(queue);
    if (owner != 0 && owner != owner_ && !queue_is_bound(ifindex_, queue)) dead.push_back(owner);
  }
  // A port claims its home before it steers, so asking after having read the entry never condemns a new port.
  remove_if([&](const accel_flow_value& v) {
    return holder(v.home) != v.owner || std::find(dead.begin(), dead.end(), v.owner) != dead.end();
  });
}

void FlowMap::remove_all() {
  if (sealed_) return;  // they match no queue's owner, and go with the next purge()
  remove_if([&](const accel_flow_value& v) { return v.owner == owner_; });
}

bool FlowMap::lives(const accel_flow_value& value) const {
  return holder(value.home) == value.owner && (value.owner == owner_ || queue_is_bound(ifindex_, value.home));
}

Result<void> FlowMap::make_writer(std::string* why) {
  auto writer = FlowWriter::load(*program_, owner_, why);
  if (!writer) return writer.error();
  writer_.emplace(std::move(*writer));
  return {};
}

void FlowMap::seal() {
  if (sealed_ || !writer_) return;
  for_each_entry([&](const accel_flow_key& key, const accel_flow_value& value) {
    if (value.owner == owner_ && key.queue != ACCEL_XDP_CONNECTED) (void)writer_->run(ACCEL_ADD_END, key);
  });
  (void)writer_->run(ACCEL_SEAL);
  writer_->close_ends_map();
  sealed_ = true;
}

Result<void> FlowMap::insert(const accel_flow_key& key, uint32_t home) {
  if (sealed_) {
    const auto added = writer_->run(ACCEL_ADD, key, home);
    if (added.is(E2BIG) || added.is(ENOMEM)) return err(ENOSPC);
    return added;
  }
  const accel_flow_value value{owner_, static_cast<uint16_t>(home), 0, 0, 0, 0};
  int error = map_update(program_->flows(), key, value, BPF_NOEXIST);
  if (error == EEXIST) {
    accel_flow_value present{};
    if (map_lookup(program_->flows(), key, present) == 0 && present.owner != owner_ &&
        present.in_time_wait == 0 && lives(present))
      return err(EEXIST);
    error = map_update(program_->flows(), key, value, BPF_ANY);
  }
  if (error == 0) return {};
  return err(error == E2BIG ? ENOSPC : error == ENOMEM ? ENOSPC : EIO);
}

Result<void> FlowMap::add(const FlowKey& key, std::span<const uint32_t> queues) {
  accel_flow_key k = wire_key(key);
  if (key.is_connected()) {
    if (!time_wait_.empty()) time_wait_.erase(key);
    return insert(k, queues.front());
  }
  for (uint32_t queue : queues) {
    k.queue = static_cast<uint16_t>(queue);
    if (auto inserted = insert(k, queue); !inserted) {
      remove(key, queues);
      return inserted;
    }
  }
  return {};
}

void FlowMap::mark(const accel_flow_key& key, uint16_t how) {
  accel_request request{};
  request.key = key;
  request.mark = how;
  (void)writer_->run(ACCEL_MARK, request);
}

void FlowMap::enter_time_wait(const FlowKey& key, std::span<const uint32_t> queues) {
  const accel_flow_key k = wire_key(key);
  const accel_flow_value value{owner_, static_cast<uint16_t>(queues.front()), 1, 0, 0, 0};
  time_wait_.insert(key);
  if (sealed_) return mark(k, 1);
  map_update(program_->flows(), k, value, BPF_EXIST);
}

void FlowMap::take_acks(const FlowKey& key, std::span<const uint32_t> queues, bool on) {
  accel_flow_key k = wire_key(key);
  const uint16_t how = on ? ACCEL_XDP_TAKES_ACKS : 0;
  for (uint32_t queue : queues) {
    k.queue = static_cast<uint16_t>(queue);
    if (sealed_) {
      mark(k, how);
      continue;
    }
    const accel_flow_value value{owner_, static_cast<uint16_t>(queue), how, 0, 0, 0};
    accel_flow_value present{};
    if (map_lookup(program_->flows(), k, present) == 0 && present.owner == owner_)
      map_update(program_->flows(), k, value, BPF_EXIST);
  }
}

void FlowMap::remove(const FlowKey& key, std::span<const uint32_t> queues, accel_operation how) {
  accel_flow_key k = wire_key(key);
  // Another owner's connection may be in the place of one in TIME-WAIT.
  const bool surely_ours = time_wait_.empty() || time_wait_.erase(key) == 0;
  auto remove_ours = [&] {
    accel_flow_value present{};
    if (sealed_) return (void)writer_->run(how, k);
    // One call instead of two, for each connection that ends; kernels before 5.14 have it for other map types
    // only. Another port's entry, which only a caller's mistake reaches, goes back at once.
    const int error = surely_ours ? map_take(program_->flows(), k, present) : EBUSY;
    if (error == 0) {
      if (present.owner != owner_) map_update(program_->flows(), k, present, BPF_NOEXIST);
    } else if (error != ENOENT && map_lookup(program_->flows(), k, present) == 0 && present.owner == owner_) {
      map_delete(program_->flows(), k);
    }
  };
  if (key.is_connected()) return remove_ours();
  for (uint32_t queue : queues) {
    k.queue = static_cast<uint16_t>(queue);
    remove_ours();
  }
}

std::optional<MisdirectedSegment> FlowMap::misdirected(const FlowKey& key) const {
  const accel_flow_key k = wire_key(key);
  accel_request request{};
  request.key = k;
  accel_flow_value& present = request.value;
  const bool found =
      sealed_ ? bool(writer_->run(ACCEL_READ, request)) : map_lookup(program_->flows(), k, present) == 0;
  if (!found || present.owner != owner_ || present.misdirected == 0) return std::nullopt;
  return MisdirectedSegment{present.misdirected_seq, present.misdirected_ack,
                            static_cast<uint8_t>(present.misdirected)};
}

uint64_t FlowMap::counter(accel_xdp_counter which) const {
  if (sealed_) {
    accel_request request{};
    request.queue = static_cast<uint16_t>(which);
    return writer_->run(ACCEL_COUNT, request) ? request.counter : 0;
  }
  const uint32_t index = which;
  if (map_lookup(program_->counters(), index, std::span(of_cpus_)) != 0) return 0;
  return std::accumulate(of_cpus_.begin(), of_cpus_.end(), uint64_t{0});
}

}  // namespace accel::xdp
