// A host whose one device is a port in memory; at its other end lives a second stack, the far host.
#pragma once

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/ports.h"
#include "engine/process.h"

namespace accel::test {

inline IpAddress v4(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  return IpAddress::v4(uint32_t{a} << 24 | uint32_t{b} << 16 | uint32_t{c} << 8 | d);
}
inline const IpAddress kNear = v4(10, 99, 0, 1);
inline const IpAddress kFar = v4(10, 99, 0, 2);
constexpr MacAddress kNearMac{2, 0, 0, 0, 0, 1};
constexpr MacAddress kFarMac{2, 0, 0, 0, 0, 2};
constexpr Duration kGuard = 20s;

/// A handler of the program's; `restarts`: it has SA_RESTART. The layer above puts off one that interrupts
/// its thread inside the engine (posix/signals.cc), and so does this: it would wait for its own thread's
/// lock.
void run_handler(int number, siginfo_t* info, void* context, bool restarts);

/// Runs a shell command; a test that needs it to work checks the result.
inline bool sh(const std::string& command) { return std::system(command.c_str()) == 0; }

using Frame = std::vector<uint8_t>;

inline Frame bytes_of(const Packet* p) {
  Frame f;
  for (; p; p = p->more) f.insert(f.end(), p->data(), p->data() + p->length);
  return f;
}
inline Packet* packet_of(FramePool& pool, const Frame& f) {
  Packet* p = pool.take();
  if (!p) return nullptr;
  std::copy(f.begin(), f.end(), p->data());
  p->length = static_cast<uint32_t>(f.size());
  return p;
}

/// The far host. It answers within the near host's tx_burst, and by call().
class Far {
 public:
  Far() : memory_(2048 * 4096), pool_(memory_, 4096) {
    StackConfig config;
    config.secret = {11, 12};
    stack_ = std::make_unique<Stack>(config, pool_, counters_);
    Interface info;
    info.mac = kFarMac;
    stack_->set_interface(0, info);
    stack_->set_neighbour(0, kNear, kNearMac);
    stack_->set_routes({{v4(10, 99, 0, 0), 120, 0, {}, 1500}});
  }
  /// The test's hand in the far stack; what it wants to send goes to the near host.
  void call(const std::function<void(Stack&, Instant)>& work) {
    std::lock_guard lock(mutex_);
    work(*stack_, clock_now());
    send_out();
  }
  void receive(const Frame& frame) {
    if (deaf) return;
    std::lock_guard lock(mutex_);
    Packet* p = packet_of(pool_, frame);
    if (!p) return;
    ++frames_received;
    stack_->on_packets({&p, 1}, 0, clock_now());
    send_out();
  }
  std::function<void(Frame)> to_near;
  std::atomic<int> frames_received{0};
  std::atomic<bool> deaf{false};  ///< nothing reaches it
  Route route() const { return {0, kFar, kNear, 1500}; }

 private:
  void send_out() {
    stack_->on_deadlines(clock_now());
    stack_->flush(clock_now());
    stack_->flow_changes().clear();
    while (Packet* p = stack_->tx_queue(0).pop_front()) {
      if (to_near) to_near(bytes_of(p));
      FramePool::release(p);
    }
  }
  std::mutex mutex_;
  std::vector<uint8_t> memory_;
  FramePool pool_;
  Counters counters_;
  std::unique_ptr<Stack> stack_;
};

/// The near host's port.
class MemoryPort : public Port, public FlowSteering, public PortLife {
 public:
  MemoryPort(FramePool& pool, Far& far, std::string name, int ifindex) : pool_(pool), far_(far) {
    info_.name = std::move(name);
    info_.ifindex = ifindex;
    info_.mac = kNearMac;
    event_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    far_.to_near = [this](Frame f) {
      std::lock_guard lock(mutex_);
      arrived_.push_back(std::move(f));
      const uint64_t one = 1;
      if (armed_) (void)!write(event_, &one, sizeof(one));
      armed_ = false;
    };
  }
  ~MemoryPort() override { close(event_); }
  void abandon_in_child() override {}
  size_t rx_burst(std::span<Packet*> out) override {
    if (untold_.exchange(false)) send_held();
    std::lock_guard lock(mutex_);
    size_t n = 0;
    while (n < out.size() && !arrived_.empty()) {
      out[n++] = packet_of(pool_, arrived_.front());
      arrived_.pop_front();
    }
    while (floods && n < out.size()) out[n++] = packet_of(pool_, Frame(60));
    uint64_t count;
    if (n > 0) (void)!read(event_, &count, sizeof(count));
    return n;
  }
  size_t tx_burst(std::span<Packet* const> frames) override {
    for (Packet* p : frames) {
      {
        std::lock_guard lock(mutex_);
        held_.push_back(bytes_of(p));
      }
      FramePool::release(p);
    }
    if (!deferring_) send_held();
    return frames.size();
  }
  void defer_telling(bool on) override { deferring_ = on && on_tell; }
  bool begin_telling() override {
    std::lock_guard lock(mutex_);
    return !held_.empty();
  }
  bool tell() override {
    const bool all = on_tell();
    if (all)
      send_held();
    else
      untold_ = true;
    return all;
  }
  /// Frames that are nobody's come without end.
  std::atomic<bool> floods{false};
  /// Called by tell(), which with it is possible; false: the frames stay where they are.
  std::function<bool()> on_tell;
  std::span<const int> poll_fds() const override { return {&event_, 1}; }
  bool arm() override {
    std::lock_guard lock(mutex_);
    armed_ = true;
    return arrived_.empty() && !floods;
  }
  /// Another to sleep on, the one before is closed: as where a queue is given up and taken anew.
  void change_descriptor() {
    std::lock_guard lock(mutex_);
    const int fresh = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    close(event_);
    event_ = fresh;
  }
  const PortInfo& info() const override { return info_; }
  Result<void> steer(const FlowKey& key) override {
    std::lock_guard lock(mutex_);
    steered_.insert(key);
    return {};
  }
  void unsteer(const FlowKey& key) override {
    std::lock_guard lock(mutex_);
    steered_.erase(key);
  }
  bool steers(const FlowKey& key) {
    std::lock_guard lock(mutex_);
    return steered_.contains(key);
  }
  size_t steered() {
    std::lock_guard lock(mutex_);
    return steered_.size();
  }

 private:
  void send_held() {
    std::deque<Frame> frames;
    {
      std::lock_guard lock(mutex_);
      frames.swap(held_);
    }
    for (const Frame& frame : frames) far_.receive(frame);
  }
  FramePool& pool_;
  Far& far_;
  PortInfo info_;
  bool deferring_ = false;
  std::atomic<bool> untold_{false};
  std::deque<Frame> held_;  ///< taken by tx_burst, not told of
  std::mutex mutex_;
  std::deque<Frame> arrived_;
  std::set<FlowKey> steered_;
  bool armed_ = false;
  int event_ = -1;
};

/// The process's engine, opened once, with the far host behind device "near0".
struct World {
  Far far;
  MemoryPort* port = nullptr;
  Engine* engine = nullptr;
};
World& world();

/// Waits until `condition` holds, in passes of this thread. False: not within kGuard.
template <class F>
bool wait_for(F condition) {
  Engine& engine = *world().engine;
  Pass pass{engine};
  WaitRequest request;
  request.condition = [](void* f) { return (*static_cast<F*>(f))(); };
  request.context = &condition;
  request.deadline = pass.now() + kGuard;
  for (;;) {
    const Woke woke = engine.wait(pass, request);
    if (woke == Woke::kReady) return true;
    if (woke == Woke::kDeadline) return false;
  }
}

/// Looks again and again, without a pass, for what another thread brings about.
template <class F>
bool comes_true(F condition) {
  for (Instant end = clock_now() + kGuard; clock_now() < end; usleep(500))
    if (condition()) return true;
  return false;
}

/// A connection to a listener of the far host.
struct Connected {
  TcpConn* near = nullptr;
  TcpConn* far = nullptr;
  Endpoint local;
};
Connected connect(uint16_t port);

}  // namespace accel::test
