// Frames written as they stand in a dump.
#pragma once

#include <string_view>
#include <vector>

#include "siw_fallback/bytes.h"

namespace accel::siw::test {

/// Hex digits; blanks are ignored, and 'text' in single quotes is taken as it is.
inline std::vector<uint8_t> hex(std::string_view text) {
  std::vector<uint8_t> out;
  int high = -1;
  bool quoted = false;
  for (char c : text) {
    if (c == '\'') {
      quoted = !quoted;
    } else if (quoted) {
      out.push_back(static_cast<uint8_t>(c));
    } else if (c != ' ') {
      const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
      if (high < 0) {
        high = digit;
      } else {
        out.push_back(static_cast<uint8_t>(high << 4 | digit));
        high = -1;
      }
    }
  }
  return out;
}

inline std::vector<uint8_t> copy(Bytes b) { return {b.begin(), b.end()}; }

}  // namespace accel::siw::test
