// Cuts one TSO descriptor's bytes into frames, as the NIC does: lengths, IP identification, sequence numbers
// and flags of each.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace model {

class TsoCutter {
 public:
  /// whole: `header` bytes of Ethernet, IP and TCP, then the payload. Both must outlive the cutter.
  TsoCutter(std::span<const uint8_t> whole, size_t header, size_t mss);

  /// False: the header is not exactly Ethernet + IP + TCP, or there is no payload.
  bool good() const { return good_; }
  /// The next segment, checksums not yet filled; false after the last.
  bool next(std::vector<uint8_t>& segment);

 private:
  std::span<const uint8_t> header_, payload_;
  size_t mss_, done_ = 0;
  size_t l3_at_ = 0, l4_at_ = 0;
  bool ipv6_ = false, good_ = false;
  uint16_t serial_ = 0;
};

}  // namespace model
