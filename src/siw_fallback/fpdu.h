// MPA's framing of the byte stream (RFC 5044 §4): length, ULPDU, pad to four bytes, CRC. Without markers.
#pragma once

#include <array>
#include <vector>

#include "siw_fallback/bytes.h"
#include "siw_fallback/crc32c.h"
#include "siw_fallback/violation.h"

namespace accel::siw {

inline constexpr size_t kFpduLengthSize = 2;
inline constexpr size_t kFpduCrcSize = 4;
inline constexpr size_t kMaxUlpdu = 65535;
inline constexpr size_t kMinUlpdu = 14;  // a tagged segment's header alone
inline constexpr size_t kLongUlpdu = 16 << 10;

constexpr size_t fpdu_pad(size_t ulpdu) { return (4 - (kFpduLengthSize + ulpdu) % 4) % 4; }
constexpr size_t fpdu_size(size_t ulpdu) { return kFpduLengthSize + ulpdu + fpdu_pad(ulpdu) + kFpduCrcSize; }
static_assert(fpdu_size(14) == 20 && fpdu_size(18) == 24 && fpdu_size(22) == 28);

/// What follows a frame's payload: pad and CRC.
struct FpduTail {
  std::array<uint8_t, 3 + kFpduCrcSize> bytes{};
  size_t size = 0;
  constexpr Bytes view() const { return Bytes(bytes).first(size); }
};

/// `head` is the length field and the ULPDU's headers, `payload` the rest. Without CRC the field is there and
/// zero.
FpduTail fpdu_tail(Bytes head, Bytes payload, bool crc);

/// Takes the stream in pieces of any size and gives whole, checked frames. A frame that lies in one piece is
/// not copied.
class FpduParser {
 public:
  explicit FpduParser(bool crc) : crc_(crc) {}

  /// Consumes from the front of `in` at most one frame. `ulpdu` is that frame's content, valid until the next
  /// call or until the piece goes; empty when `in` ended before the frame did.
  Violation take(Bytes& in, Bytes& ulpdu);

  /// To be asked before take(). True once for a long frame that `in` begins and does not end: its length and
  /// a tagged segment's header have been consumed, and are header(). place() may follow then: the payload, of
  /// the size that place_size() says, goes there and take() gives the header alone.
  bool begins_long(Bytes& in);
  Bytes header() const { return Bytes(held_).subspan(kFpduLengthSize, kMinUlpdu); }
  size_t place_size() const { return load_be<uint16_t>(held_, 0) - kMinUlpdu; }
  void place(MutableBytes where);
  /// Where the stream's next bytes belong; landed() of them may be written there instead of given to take().
  MutableBytes landing() const { return place_.subspan(placed_); }
  void landed(size_t n);
  /// The payload of the frame that take() gave, where it was placed.
  Bytes placed() const { return place_; }
  /// The content of the frame that take() gave, copied into one piece where its payload was placed.
  Bytes in_one_piece();

  /// The stream stands between two frames: an end here is a clean end.
  bool between_frames() const { return held_.empty() || taken_; }
  /// The last frame, length to CRC: to be kept when it was bad.
  Bytes frame() const { return frame_; }

 private:
  Violation check(Bytes& ulpdu) const;
  Violation check_placed(Bytes& ulpdu);
  void begin_frame();

  bool crc_;
  bool taken_ = false;         // held_ is a frame that was already given
  std::vector<uint8_t> held_;  // the beginning of a frame whose end has not come
  Bytes frame_;
  MutableBytes place_;
  size_t placed_ = 0;  // bytes there
  Crc32c sum_;         // of a placed frame, so far
};

}  // namespace accel::siw
