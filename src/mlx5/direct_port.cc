#include "mlx5/direct_port.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/counters.h"

namespace accel::mlx5 {
namespace {

constexpr size_t kBurst = 64;
/// A program that never sleeps on the device's events looks for them, and for what other processes say, now
/// and then. A poll that brings frames takes longer than one in vain.
constexpr uint32_t kPollsPerLook = 4096, kBusyPoll = 16;
/// A queue that fails again and again without a frame of its own between is broken.
constexpr uint32_t kMaxErrorsInRow = 8;

}  // namespace

// --- receiving ---

size_t DirectPort::rx_burst(std::span<Packet*> out) {
  if (!alive()) return 0;
  std::array<Received, kBurst> got;
  size_t n = 0;
  const size_t taken = receive_->receive(std::span(got).first(std::min(kBurst, out.size())));
  if (taken != 0) {
    receive_errors_in_row_ = 0;
    n = keep_ours({got.data(), taken}, out);
    receive_->refill(refill_batch_);
  } else {
    if (send_.busy()) send_.reclaim();
    if (receive_->posted() == 0) receive_->refill(1);
  }
  if ((polls_ += taken != 0 ? kBusyPoll : 1) >= kPollsPerLook) {
    polls_ = 0;
    read_device_events();
    serve_sharing();
  }
  if (receive_->error() || send_.error()) recover();
  if (icmp_.ready()) n += take_icmp(out.subspan(n));
  return n;
}

/// Unless the device tells the time of day, the kernel's driver keeps what turns the device's cycles into its
/// time, in a page that libmlx5 maps.
int64_t DirectPort::time_of(uint64_t stamp) const {
  constexpr int64_t kNsASecond = 1'000'000'000;
  mlx5dv_clock_info clock{};
  if (stamp != 0 && real_time_)
    return static_cast<int64_t>(stamp >> 32) * kNsASecond + static_cast<uint32_t>(stamp);
  if (stamp == 0 || !has_clock_ || provider_.get_clock_info(verbs_.context.get(), &clock) != 0) return 0;
  return static_cast<int64_t>(mlx5dv_ts_to_ns(&clock, stamp));
}

size_t DirectPort::take_icmp(std::span<Packet*> out) {
  size_t n = 0;
  while (n < out.size() && icmp_.ready()) {
    Packet* frame = icmp_.take(pool_, stats_.rx_refused);
    if (frame)
      out[n++] = frame;
    else if (icmp_.ready() && pool_.available() == 0)
      break;
  }
  return n;
}

size_t DirectPort::keep_ours(std::span<const Received> got, std::span<Packet*> out) {
  size_t n = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (i + 1 < got.size()) __builtin_prefetch(got[i + 1].frame->data());
    if (flows_->is_ours(*got[i].frame, got[i].flow_tag)) {
      out[n++] = got[i].frame;
      continue;
    }
    // The kernel would take for its own what a promiscuous netdev hears.
    if (std::memcmp(got[i].frame->data(), info_.mac.data(), info_.mac.size()) != 0)
      ++stats_.other_host;
    else
      ++(inlet_.give(*got[i].frame) ? stats_.to_kernel : stats_.to_kernel_failed);
    FramePool::release(got[i].frame);
  }
  return n;
}

bool DirectPort::arm() {
  if (!alive()) return true;
  receive_->refill(1);
  if (send_.busy()) send_.reclaim();
  if (receive_->error() || send_.error()) recover();
  if (receive_->ready() || icmp_.ready()) return false;
  take_events();  // one of an earlier sleep would end this one at once
  if (!alive()) return true;
  // A completion that comes in between raises the event at once: the device compares with our index.
  arm_completions(receive_cq_record_, cq_uar_, cqn_, arm_sequence_, receive_->consumer());
  return !receive_->ready() && !icmp_.ready();
}

void DirectPort::take_events() {
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  unsigned events = 0;
  while (ibv_get_cq_event(verbs_.channel.get(), &cq, &context) == 0) ++events;
  if (events != 0) {
    // The device ignores an arming with a sequence number that it has answered.
    arm_sequence_ += events;
    ibv_ack_cq_events(verbs_.receive_cq.get(), events);
  }
  read_device_events();
  serve_sharing();
}

// --- sending ---

size_t DirectPort::tx_burst(std::span<Packet* const> frames) {
  if (!alive()) {
    // A dead device drops, as a pulled cable does; the engine moves the sockets to the kernel.
    for (Packet* p : frames) FramePool::release(p);
    return frames.size();
  }
  const size_t taken = send_.post(frames);
  if (send_.error()) recover();
  return taken;
}

// --- steering ---

Result<void> DirectPort::steer(const FlowKey& key, bool shared) {
  if (!alive() || !flows_) return err(EIO);
  return flows_->add(key, shared);
}

void DirectPort::unsteer(const FlowKey& key) {
  if (flows_) flows_->remove(key);
}

void DirectPort::take_acks(const FlowKey& key, bool on) {
  if (flows_) flows_->take_acks(key, on);
}

void DirectPort::user_changed() {
  if (sharing_ && !rules_barred()) sharing_->user_changed();
}

/// What is barred keeps: its events stay, and a group that waits for the user asks again by itself.
void DirectPort::serve_sharing() {
  if (!rules_barred()) flows_->serve();
}

// --- errors ---

void DirectPort::report(const std::string& text) const {
  if (options_.report) options_.report(text.c_str());
}

void DirectPort::fail(const std::string& why) {
  if (failure_.empty()) failure_ = why;
}

/// An error completion has stopped a queue. It begins anew; the other one goes on, and rules stay.
void DirectPort::recover() {
  if (send_.error()) recover_sending();
  if (alive() && receive_->error()) recover_receiving();
}

std::string DirectPort::text_of(const char* what, const Completion& cause) const {
  char text[200];
  std::snprintf(text, sizeof(text), "%s: %s error, syndrome 0x%02x (%s), vendor 0x%02x",
                options_.netdev.c_str(), what, cause.syndrome, syndrome_text(cause.syndrome),
                cause.vendor_syndrome);
  return text;
}

void DirectPort::recover_sending() {
  const std::string text = text_of("send", *send_.error());
  ++stats_.recoveries;
  if (send_.works()) send_errors_in_row_ = 0;
  if (++send_errors_in_row_ > kMaxErrorsInRow) return fail(text + ", again and again");
  const bool headers = send_.demand_headers();
  int error = stop_sending();
  if (error == 0) error = start_sending();
  if (error != 0) return fail(text + "; the queue cannot be reset: " + std::strerror(error));
  report(text + ": queue reset, connections go on by retransmission" +
         (headers ? "; headers go within descriptors from now on, as the device seems to want" : ""));
}

void DirectPort::recover_receiving() {
  const std::string text = text_of("receive", *receive_->error());
  ++stats_.recoveries;
  if (++receive_errors_in_row_ > kMaxErrorsInRow) return fail(text + ", again and again");
  int error = stop_receiving();
  if (error == 0) error = start_receiving();
  if (error != 0) return fail(text + "; the queue cannot be reset: " + std::strerror(error));
  receive_->refill(1);
  report(text + ": queue reset, connections go on by retransmission");
}

void DirectPort::read_device_events() {
  ibv_async_event event{};
  while (ibv_get_async_event(verbs_.context.get(), &event) == 0) {
    switch (event.event_type) {
      case IBV_EVENT_DEVICE_FATAL:
        fail("the device " + std::string(ibv_get_device_name(verbs_.context->device)) +
             " was removed or failed");
        break;
      case IBV_EVENT_CQ_ERR:
        fail("a completion queue has overrun");
        break;
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_ACCESS_ERR:
      case IBV_EVENT_WQ_FATAL:
        fail("the queue pair has failed");
        break;
      default:
        break;  // the link's state comes by netlink
    }
    ibv_ack_async_event(&event);
  }
}

Mlx5Stats DirectPort::stats() const {
  Mlx5Stats now = stats_;
  now.rx_refused += receive_->refused();
  now.rx_no_buffer = receive_->empty();
  now.tx_refused = send_.refused();
  now.rules = (flows_ ? flows_->rules() : 0) + (standing_ ? standing_->rules() : 0);
  now.shares_taken = flows_ ? flows_->shares_taken() : 0;
  now.shares_given = flows_ ? flows_->shares_given() : 0;
  return now;
}

void DirectPort::count(Counters& to) {
  const Mlx5Stats now = stats();
  const Mlx5Stats before = std::exchange(counted_, now);
  to.add(Counter::mlx5_recoveries, now.recoveries - before.recoveries);
  to.add(Counter::mlx5_to_kernel, now.to_kernel - before.to_kernel);
  to.add(Counter::drop_other_host, now.other_host - before.other_host);
  to.add(Counter::mlx5_to_kernel_failed, now.to_kernel_failed - before.to_kernel_failed);
  to.add(Counter::mlx5_rx_refused, now.rx_refused - before.rx_refused);
  to.add(Counter::mlx5_rx_no_buffer, now.rx_no_buffer - before.rx_no_buffer);
  to.add(Counter::mlx5_tx_refused, now.tx_refused - before.tx_refused);
  to.add(Counter::mlx5_shares_taken, now.shares_taken - before.shares_taken);
  to.add(Counter::mlx5_shares_given, now.shares_given - before.shares_given);
}

}  // namespace accel::mlx5
