// TCP options: a pure parser and the writers (RFC 9293 section 3.2, RFC 7323, RFC 2018).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>

namespace accel {

struct SackBlock {
  uint32_t begin = 0;
  uint32_t end = 0;  ///< one past the last
  constexpr bool operator==(const SackBlock&) const = default;
};

struct TcpOptions {
  uint16_t mss = 0;  ///< 0: not given
  uint8_t wscale = 0;
  bool has_wscale = false;
  bool sack_permitted = false;
  bool has_timestamps = false;
  uint8_t sack_count = 0;
  uint32_t tsval = 0;
  uint32_t tsecr = 0;
  std::array<SackBlock, 4> sack{};
};

namespace option {
constexpr uint8_t kEnd = 0, kNop = 1, kMss = 2, kWindowScale = 3, kSackPermitted = 4, kSack = 5,
                  kTimestamps = 8, kFastOpen = 34, kExperiment = 254;
constexpr uint16_t kFastOpenMagic = 0xf989;  ///< of kExperiment: RFC 7413 appendix B
constexpr uint32_t kTimestampsLength = 12;   ///< two NOPs and the option
}  // namespace option

constexpr uint32_t load_be32(const uint8_t* p) {
  if (!std::is_constant_evaluated()) {
    uint32_t v;
    std::memcpy(&v, p, 4);
    return __builtin_bswap32(v);
  }
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | p[3];
}
constexpr void store_be32(uint8_t* p, uint32_t v) {
  if (!std::is_constant_evaluated()) {
    v = __builtin_bswap32(v);
    std::memcpy(p, &v, 4);
    return;
  }
  p[0] = static_cast<uint8_t>(v >> 24);
  p[1] = static_cast<uint8_t>(v >> 16);
  p[2] = static_cast<uint8_t>(v >> 8);
  p[3] = static_cast<uint8_t>(v);
}
constexpr void store_be16(uint8_t* p, uint32_t v) {
  p[0] = static_cast<uint8_t>(v >> 8);
  p[1] = static_cast<uint8_t>(v);
}

/// One option of a length that fits; false: its length is wrong for its kind.
constexpr bool parse_option(uint8_t kind, std::span<const uint8_t> body, TcpOptions& out) {
  switch (kind) {
    case option::kMss:
      if (body.size() != 2) return false;
      out.mss = static_cast<uint16_t>(body[0] << 8 | body[1]);
      return true;
    case option::kWindowScale:
      if (body.size() != 1) return false;
      out.has_wscale = true;
      out.wscale = body[0] > 14 ? 14 : body[0];  // RFC 7323 section 2.3
      return true;
    case option::kSackPermitted:
      if (!body.empty()) return false;
      out.sack_permitted = true;
      return true;
    case option::kTimestamps:
      if (body.size() != 8) return false;
      out.has_timestamps = true;
      out.tsval = load_be32(&body[0]);
      out.tsecr = load_be32(&body[4]);
      return true;
    case option::kSack:
      if (body.empty() || body.size() % 8 != 0 || body.size() > 32) return false;
      out.sack_count = static_cast<uint8_t>(body.size() / 8);
      for (size_t i = 0; i < out.sack_count; ++i)
        out.sack[i] = {load_be32(&body[8 * i]), load_be32(&body[8 * i + 4])};
      return true;
    default:
      return true;  // unknown kinds are skipped by their length (RFC 9293, MUST-6)
  }
}

/// Into `out`, which is fresh. False: malformed (RFC 9293, MUST-7: never crash, never loop).
constexpr bool parse_options(std::span<const uint8_t> bytes, TcpOptions& out) {
  if (bytes.size() == option::kTimestampsLength && bytes[0] == option::kNop && bytes[1] == option::kNop &&
      bytes[2] == option::kTimestamps && bytes[3] == 10) {  // what almost every segment has
    out.has_timestamps = true;
    out.tsval = load_be32(&bytes[4]);
    out.tsecr = load_be32(&bytes[8]);
    return true;
  }
  size_t i = 0;
  while (i < bytes.size()) {
    uint8_t kind = bytes[i];
    if (kind == option::kEnd) break;
    if (kind == option::kNop) {
      ++i;
      continue;
    }
    if (i + 1 >= bytes.size()) return false;
    size_t length = bytes[i + 1];
    if (length < 2 || i + length > bytes.size()) return false;
    if (!parse_option(kind, bytes.subspan(i + 2, length - 2), out)) return false;
    i += length;
  }
  return true;
}

constexpr std::optional<TcpOptions> parse_options(std::span<const uint8_t> bytes) {
  TcpOptions out;
  if (!parse_options(bytes, out)) return std::nullopt;
  return out;
}

/// Of TCP Fast Open (RFC 7413). `length`: bytes of the cookie, 0: it asks for one, -1: there is no option.
struct FastOpenCookie {
  int8_t length = -1;
  bool experimental = false;
  std::array<uint8_t, 16> bytes{};
  std::span<const uint8_t> value() const { return {bytes.data(), static_cast<size_t>(length)}; }
};

/// tcp_parse_fastopen_option() of a segment's options, which parse_options() has found good.
constexpr FastOpenCookie find_fast_open(std::span<const uint8_t> options) {
  FastOpenCookie out;
  for (size_t i = 0; i + 1 < options.size();) {
    const uint8_t kind = options[i];
    if (kind == option::kEnd) break;
    if (kind == option::kNop) {
      ++i;
      continue;
    }
    const size_t length = options[i + 1];
    if (length < 2 || i + length > options.size()) break;
    const auto body = options.subspan(i + 2, length - 2);
    i += length;
    const bool experiment =
        kind == option::kExperiment && body.size() >= 2 && (body[0] << 8 | body[1]) == option::kFastOpenMagic;
    if (kind != option::kFastOpen && !experiment) continue;
    const auto cookie = body.subspan(experiment ? 2 : 0);
    if (cookie.size() % 2 != 0) continue;
    out = {};
    out.experimental = experiment;
    if (!cookie.empty() && (cookie.size() < 4 || cookie.size() > out.bytes.size())) continue;
    out.length = static_cast<int8_t>(cookie.size());
    for (size_t k = 0; k < cookie.size(); ++k) out.bytes[k] = cookie[k];
  }
  return out;
}

/// Two NOPs and timestamps: option::kTimestampsLength bytes.
inline uint32_t put_timestamps(uint8_t* p, uint32_t tsval, uint32_t tsecr) {
  p[0] = p[1] = option::kNop;
  p[2] = option::kTimestamps;
  p[3] = 10;
  store_be32(p + 4, tsval);
  store_be32(p + 8, tsecr);
  return option::kTimestampsLength;
}

/// Two NOPs and the blocks: 4 + 8 n bytes; 0 for none.
inline uint32_t put_sack(uint8_t* p, std::span<const SackBlock> blocks) {
  if (blocks.empty()) return 0;
  p[0] = p[1] = option::kNop;
  p[2] = option::kSack;
  p[3] = static_cast<uint8_t>(2 + 8 * blocks.size());
  uint8_t* at = p + 4;
  for (const SackBlock& b : blocks) {
    store_be32(at, b.begin);
    store_be32(at + 4, b.end);
    at += 8;
  }
  return static_cast<uint32_t>(at - p);
}

/// What a SYN offers or a SYN-ACK agrees to; at most 40 bytes, a multiple of 4.
struct SynOptions {
  uint16_t mss = 0;
  bool sack_permitted = false;
  bool timestamps = false;
  bool has_wscale = false;
  uint8_t wscale = 0;
  uint32_t tsval = 0;
  uint32_t tsecr = 0;
  FastOpenCookie fast_open;
};

inline uint32_t put_fast_open(uint8_t* p, const FastOpenCookie& cookie) {
  uint8_t* at = p;
  const auto value = cookie.value();
  at[0] = cookie.experimental ? option::kExperiment : option::kFastOpen;
  at[1] = static_cast<uint8_t>((cookie.experimental ? 4 : 2) + value.size());
  at += 2;
  if (cookie.experimental) {
    store_be16(at, option::kFastOpenMagic);
    at += 2;
  }
  at = std::copy(value.begin(), value.end(), at);
  while ((at - p) % 4 != 0) *at++ = option::kNop;
  return static_cast<uint32_t>(at - p);
}

inline uint32_t put_syn_options(uint8_t* p, const SynOptions& o) {
  uint8_t* at = p;
  at[0] = option::kMss;
  at[1] = 4;
  store_be16(at + 2, o.mss);
  at += 4;
  if (o.timestamps) {
    uint32_t n = put_timestamps(at, o.tsval, o.tsecr);
    if (o.sack_permitted) {  // in place of the NOPs
      at[0] = option::kSackPermitted;
      at[1] = 2;
    }
    at += n;
  } else if (o.sack_permitted) {
    at[0] = at[1] = option::kNop;
    at[2] = option::kSackPermitted;
    at[3] = 2;
    at += 4;
  }
  if (o.has_wscale) {
    at[0] = option::kNop;
    at[1] = option::kWindowScale;
    at[2] = 3;
    at[3] = o.wscale;
    at += 4;
  }
  if (o.fast_open.length >= 0) at += put_fast_open(at, o.fast_open);
  return static_cast<uint32_t>(at - p);
}

}  // namespace accel
