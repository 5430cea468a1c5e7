// A host: one stack with listeners and UDP sockets, as the fuzzers feed it; and the fuzzers' choices.
#pragma once

#include <algorithm>
#include <array>
#include <memory>

#include "stack/stack.h"
#include "stack/udp.h"

namespace accel::fuzz {

/// The fuzzer's choices, taken from the front; zeros when there are no more.
struct Input {
  const uint8_t* data;
  size_t size;
  uint8_t byte() { return size ? (--size, *data++) : 0; }
  uint16_t word() { return static_cast<uint16_t>(byte() << 8 | byte()); }
};

struct World {
  static constexpr uint32_t kFrames = 64, kBuffer = 2048;

  /// `host` and `peer` end their MAC addresses 02:00:00:00:00:xx; whatever the stack asks for is the peer.
  explicit World(uint8_t host = 1, uint8_t peer = 2) : peer_mac{2, 0, 0, 0, 0, peer} {
    Interface i;
    i.mac = {2, 0, 0, 0, 0, host};
    stack->set_interface(0, i);
    // Every unicast source is one that can be answered.
    stack->set_routes({{IpAddress::any_v4(), 96, 0, {}, 1500}, {IpAddress::any_v6(), 0, 0, {}, 1500}});
    (void)stack->tcp().listen({IpAddress::any_v6(), 80}, false, false, 8, {}, &owner);
    (void)stack->udp().open({IpAddress::any_v6(), 53}, {}, false, &owner);
  }
  ~World() {
    stack.reset();
    if (pool.available() != pool.size()) __builtin_trap();  // a frame was lost or given back twice
  }

  /// A frame in as many buffers as it takes.
  void receive(const uint8_t* data, size_t size, bool vouched) {
    Packet* first = nullptr;
    Packet* last = nullptr;
    for (size_t at = 0; at < size;) {
      Packet* p = pool.take();
      if (!p) return FramePool::release(first);
      const size_t n = std::min<size_t>(size - at, p->tailroom());
      std::memcpy(p->data(), data + at, n);
      p->length = static_cast<uint32_t>(n);
      at += n;
      (last ? last->more : first) = p;
      last = p;
    }
    if (!first) return;
    first->checksum_good = vouched;
    stack->on_packets({&first, 1}, 0, now);
  }
  void pass(Duration later) {
    now += later;
    stack->on_deadlines(now);
    stack->flush(now);
    for (const auto& wanted : stack->take_unresolved())
      stack->set_neighbour(wanted.interface, wanted.address, peer_mac);
    while (StackSocket* s = stack->take_ready()) s->edges = 0;
    stack->flow_changes().clear();
  }

  int owner = 0;
  Instant now = Instant{} + 1000s;
  Counters counters;
  const MacAddress peer_mac;
  std::array<uint8_t, size_t{kFrames} * kBuffer> memory{};
  FramePool pool{memory, kBuffer};
  std::unique_ptr<Stack> stack = std::make_unique<Stack>(StackConfig{}, pool, counters);
};

}  // namespace accel::fuzz
