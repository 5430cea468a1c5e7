// Names of socket options, for messages and `accel stat`.
#pragma once

namespace accel::posix {

/// An option as the headers spell it ("SO_TIMESTAMP"), or its numbers where it is none of those known here.
struct OptionName {
  OptionName(int level, int name);
  char text[40];
};

}  // namespace accel::posix
