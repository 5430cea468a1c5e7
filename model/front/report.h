// What a run leaves behind: FOLDER/violations.PID, a line each, and FOLDER/counters.PID, a mapped file of
// 32-byte records (name in 24 bytes, value as a native 64-bit word) that survives kill -9. run.py's reader is
// model_lab.py.
#pragma once

#include <cstdint>

#include "model/core/checker.h"
#include "model/core/counters.h"

namespace model {

class Report {
 public:
  /// number: of this context within the process.
  explicit Report(unsigned number);
  ~Report();
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  void violation(const Violation& v);
  void publish(const Counters& counters);

 private:
  int violations_ = -1;
  uint8_t* counters_ = nullptr;
  size_t size_ = 0;
};

}  // namespace model
