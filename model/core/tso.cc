#include "model/core/tso.h"

#include <algorithm>

#include "model/core/bytes.h"
#include "model/core/frame.h"

namespace model {
namespace {
constexpr uint8_t kFin = 0x01, kPsh = 0x08, kCwr = 0x80;
}

TsoCutter::TsoCutter(std::span<const uint8_t> whole, size_t header, size_t mss)
    : header_(whole.first(header)), payload_(whole.subspan(header)), mss_(mss) {
  if (header < kEthernetHeader + 40 || payload_.empty()) return;
  l3_at_ = kEthernetHeader;
  uint16_t type = load16(header_.data() + 12);
  if (type == kTypeVlan) {
    type = load16(header_.data() + 16);
    l3_at_ += kVlanTag;
  }
  ipv6_ = type == kTypeIpv6;
  if (!ipv6_ && type != kTypeIpv4) return;
  const uint8_t* ip = header_.data() + l3_at_;
  l4_at_ = l3_at_ + (ipv6_ ? 40 : (ip[0] & 15u) * 4);
  if (l4_at_ + 20 > header || ip[ipv6_ ? 6 : 9] != kProtoTcp) return;
  good_ = l4_at_ + (header_[l4_at_ + 12] >> 4) * 4u == header;
}

bool TsoCutter::next(std::vector<uint8_t>& segment) {
  if (done_ == payload_.size()) return false;
  const size_t n = std::min(mss_, payload_.size() - done_);
  const bool first = done_ == 0, last = done_ + n == payload_.size();
  segment.assign(header_.begin(), header_.end());
  segment.insert(segment.end(), payload_.begin() + done_, payload_.begin() + done_ + n);
  uint8_t *ip = segment.data() + l3_at_, *tcp = segment.data() + l4_at_;
  if (ipv6_) {
    store16(ip + 4, static_cast<uint32_t>(segment.size() - l3_at_ - 40));
  } else {
    store16(ip + 2, static_cast<uint32_t>(segment.size() - l3_at_));
    store16(ip + 4, load16(ip + 4) + serial_);
  }
  store32(tcp + 4, load32(tcp + 4) + static_cast<uint32_t>(done_));
  if (!last) tcp[13] &= static_cast<uint8_t>(~(kFin | kPsh));
  if (!first) tcp[13] &= static_cast<uint8_t>(~kCwr);
  done_ += n;
  ++serial_;
  return true;
}

}  // namespace model
