// What a driver may not do. A violation names the rule, says what was found and shows the bytes; any one
// fails a run.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/core/bytes.h"

namespace model {

struct Violation {
  std::string rule;  // short, fixed: tests compare it
  std::string found;
  std::string bytes;
};

class Checker {
 public:
  /// Called with each violation as it is found (a log file, a test's failure).
  std::function<void(const Violation&)> on_violation;

  void report(std::string rule, std::string found, std::span<const uint8_t> bytes = {}) {
    ++count_;
    Violation v{std::move(rule), std::move(found), hex(bytes)};
    if (on_violation) on_violation(v);
    if (violations_.size() < kKept) violations_.push_back(std::move(v));
  }

  uint64_t count() const { return count_; }
  const std::vector<Violation>& violations() const { return violations_; }
  void forget() {
    violations_.clear();
    count_ = 0;
  }

 private:
  static constexpr size_t kKept = 64;  // one fault repeats at every packet
  std::vector<Violation> violations_;
  uint64_t count_ = 0;
};

}  // namespace model
