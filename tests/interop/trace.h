// What passed over one connection, frame by frame, to explain a failure with.
#pragma once

#include <array>
#include <deque>
#include <string>

#include "siw_fallback/fpdu.h"

namespace accel::interop {

class Trace {
 public:
  enum Direction { kOut, kIn };

  void add(Direction d, siw::Bytes bytes);
  /// The last frames, a line each: milliseconds since the first, direction, what it is.
  std::string text() const;
  /// The last bytes of what came in.
  siw::Bytes received() const { return received_; }

 private:
  struct Side {
    bool set_up = false;  // past the MPA frame
    std::vector<uint8_t> mpa;
    siw::FpduParser parser{false};
    uint64_t bytes = 0;
  };

  void line(Direction d, const std::string& what);
  void frame(Direction d, siw::Bytes frame, siw::Bytes ulpdu);
  /// Takes an MPA frame from the front, when it is whole.
  void set_up(Direction d, siw::Bytes& bytes);

  std::array<Side, 2> sides_;
  std::deque<std::string> lines_;
  std::vector<uint8_t> received_;
  int64_t begun_ms_ = -1;
};

int64_t now_ms();

}  // namespace accel::interop
