// The hand on the device while programs run: FOLDER/control, one page of 32-bit words that model_lab.py
// writes and every context of that host looks at. Requests are counts: one more than last seen asks once.
#pragma once

#include <cstdint>

namespace model {

struct ControlPage {
  uint32_t removed;         // 1: the device is gone, for every context there is
  uint32_t stalled;         // 1: completions are held back
  uint32_t send_errors;     // count: the next send descriptor of every queue pair fails
  uint32_t receive_errors;  // count: the next receive descriptor of every queue pair fails
};

class Control {
 public:
  Control();
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  /// What is asked now; zeros without a file.
  ControlPage read() const;

 private:
  const volatile ControlPage* page_ = nullptr;
};

}  // namespace model
