// What may kill who tries it: filters of system calls (seccomp(2)). A process of its own does, of which no
// wait() of the program's knows. It shares nothing with its parent but an int, and being killed leaves no
// trace of it, not even a core file.
#pragma once

namespace accel {

struct TrialEnd {
  bool made = false;  ///< there was such a process
  int status = 0;     ///< as wait(2) gives it
  int last = 0;       ///< what body() has left at `at`
};

/// body() makes no calls but bare_syscall(). Where it returns the process ends, by whatever means are left.
TrialEnd try_in_process(void (*body)(volatile int* at, const void* argument), const void* argument);

/// A system call by its number, of which three arguments count.
struct TrialCall {
  long number;
  long arguments[3];
};
/// Whether the kernel takes such a call, as a process of its own tries it. True also where there can be no
/// such process.
bool kernel_takes(const TrialCall& call);

}  // namespace accel
