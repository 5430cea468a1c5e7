// What a peer did wrong: a named reason for each, and the Terminate that answers it.
#pragma once

#include <cstdint>
#include <string_view>

namespace accel::siw {

enum class Violation : uint8_t {
  none,
#define VIOLATION(name, layer, type, code, help) name,
#include "siw_fallback/violations.def"
#undef VIOLATION
};

constexpr std::string_view name_of(Violation v) {
  switch (v) {
    case Violation::none:
      return "none";
#define VIOLATION(name, layer, type, code, help) \
  case Violation::name:                          \
    return #name;
#include "siw_fallback/violations.def"
#undef VIOLATION
  }
  return "?";
}

/// The head of a Terminate's control word (RFC 5040 §4.8).
struct TerminateCode {
  uint8_t layer, type, code;
  bool operator==(const TerminateCode&) const = default;
};

constexpr TerminateCode terminate_code(Violation v) {
  switch (v) {
    case Violation::none:
      break;
#define VIOLATION(name, layer, type, code, help) \
  case Violation::name:                          \
    return {layer, type, code};
#include "siw_fallback/violations.def"
#undef VIOLATION
  }
  return {0, 2, 0xff};
}

}  // namespace accel::siw
