// What can go wrong on purpose: at the wire, and in the device. Random by a seed, so that a run can be had
// again.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/core/counters.h"

namespace model {

/// Probabilities are per frame received, or per descriptor.
struct FaultSpec {
  double loss = 0, duplicate = 0, reorder = 0, corrupt = 0;
  double delay = 0;
  uint64_t delay_ns = 0;
  double overrun = 0;                         // a frame finds no receive descriptor
  double send_error = 0;                      // a send descriptor ends in an error completion
  double receive_error = 0;                   // a receive descriptor does
  double vouch = 0;                           // a frame's checksums are said to be good, whatever they are
  uint64_t stall_every_ns = 0, stall_ns = 0;  // completions are held back for a while, again and again
  uint64_t seed = 1;
};

/// "loss=0.005,reorder=0.01,delay=0.01:500us,stall=1s:20ms,seed=7"; EINVAL for what it does not know.
accel::Result<FaultSpec> parse_faults(const std::string& text);

/// The receiving side of the wire.
class Impairment {
 public:
  using Sink = std::function<void(std::span<const uint8_t>)>;

  Impairment(const FaultSpec& spec, Counters& counters)
      : spec_(spec), counters_(counters), random_(spec.seed) {}

  void pass(std::span<const uint8_t> frame, uint64_t now, const Sink& sink);
  /// Delivers frames whose time has come.
  void due(uint64_t now, const Sink& sink);
  bool chance(double p) { return p > 0 && std::uniform_real_distribution<>(0, 1)(random_) < p; }

 private:
  struct Held {
    uint64_t until;
    std::vector<uint8_t> frame;
  };
  FaultSpec spec_;
  Counters& counters_;
  std::mt19937_64 random_;
  std::vector<Held> held_;                       // delayed
  std::vector<std::vector<uint8_t>> overtaken_;  // wait for the next frame, which goes first
  uint64_t overtaken_since_ = 0;
};

}  // namespace model
