// System calls of scripts: their arguments read, their answers compared.
#pragma once

#include <map>
#include <string>

#include "script.h"
#include "world.h"

namespace accel::scripts {

/// Which descriptor of the world a script's number stands for, and the streams' positions.
struct Descriptors {
  std::map<int64_t, int> live;
  std::map<int64_t, uint64_t> written, read;  ///< bytes of the streams so far
  std::map<int64_t, bool> reads_out_of_band;  ///< so that read() leaves bytes of the stream out
};

/// Throws ScriptError.
Operation operation_of(const Call& call, Descriptors& fds);
/// What differs from the script, or nothing. New descriptors are noted.
std::string difference(const Call& call, const Operation& operation, const Answer& answer, Descriptors& fds);

}  // namespace accel::scripts
