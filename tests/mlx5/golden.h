// Send requests of every kind, and the WQEs that our code builds for them. What libmlx5's ibv_post_send
// builds for the same is recorded in golden.txt (golden_live.cc, on the model) and compared with ours without
// a device (golden_test.cc) and with one.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <tuple>
#include <vector>

#include "tests/mlx5/rings.h"

namespace accel::mlx5::test {

/// Frames lie at one address in every run, so that recorded addresses hold.
constexpr uintptr_t kGoldenAddress = 0x200000000000;
constexpr size_t kGoldenBytes = 1 << 20;

struct GoldenRequest {
  std::string name;
  enum class Kind : uint8_t { kAddress, kInline, kTso } kind;
  std::vector<uint32_t> pieces;  ///< lengths; one behind the other, 4 KiB apart
  bool checksum = false;
  uint16_t header = 0, mss = 0;
  bool signal = true;
  enum class Headers : uint8_t { kIpv4, kVlan, kIpv6 } headers = Headers::kIpv4;
};

inline std::vector<GoldenRequest> golden_requests() {
  using Kind = GoldenRequest::Kind;
  using Headers = GoldenRequest::Headers;
  std::vector<GoldenRequest> all = {
      {"address 60", Kind::kAddress, {60}},
      {"address 60 checksum", Kind::kAddress, {60}, true},
      {"address 1514 checksum", Kind::kAddress, {1514}, true},
      {"address three pieces", Kind::kAddress, {100, 200, 300}, true},
      {"tso one piece", Kind::kTso, {3000}, true, 54, 1000},
      {"tso three pieces", Kind::kTso, {1000, 2000, 3000}, true, 54, 1448},
      {"tso timestamps", Kind::kTso, {3000}, true, 66, 1436},
      {"tso header alone in its piece", Kind::kTso, {54, 3000}, true, 54, 1448},
  };
  for (uint32_t n : {60u, 64u, 66u, 75u, 76u, 77u, 98u, 130u, 200u})
    all.push_back({"inline " + std::to_string(n), Kind::kInline, {n}, true});
  all.push_back({"inline two pieces", Kind::kInline, {54, 46}, true});
  // Over the ring's end, at each block of it.
  for (int lap = 0; lap < 40; ++lap) {
    all.push_back({"lap " + std::to_string(lap) + " inline", Kind::kInline, {200}, true});
    all.push_back({"lap " + std::to_string(lap) + " tso", Kind::kTso, {1500, 1500}, true, 54, 700});
    if (lap % 3 == 0) all.push_back({"lap " + std::to_string(lap) + " address", Kind::kAddress, {99}, true});
  }
  all.push_back({"unsignalled address", Kind::kAddress, {1514}, true, 0, 0, false});
  all.push_back({"unsignalled inline", Kind::kInline, {200}, true, 0, 0, false});
  all.push_back({"unsignalled tso", Kind::kTso, {1500, 1500}, true, 54, 700, false});
  all.push_back({"signalled after these", Kind::kAddress, {60}, true});
  for (const auto& [name, headers, length] :
       {std::tuple{"vlan ", Headers::kVlan, uint16_t{58}}, {"ipv6 ", Headers::kIpv6, uint16_t{74}}}) {
    const std::string kind = name;
    all.push_back({kind + "address", Kind::kAddress, {1500}, true, 0, 0, true, headers});
    all.push_back({kind + "inline", Kind::kInline, {150}, true, 0, 0, true, headers});
    all.push_back({kind + "tso", Kind::kTso, {1500, 1500}, true, length, 700, true, headers});
  }
  return all;
}

inline uint8_t* golden_memory() {
  return static_cast<uint8_t*>(mmap(reinterpret_cast<void*>(kGoldenAddress), kGoldenBytes,  // NOLINT
                                    PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
                                    -1, 0));
}

/// Ethernet, IP and TCP headers that a device accepts, in front of counting bytes.
inline void write_golden_headers(std::vector<uint8_t>& frame, const GoldenRequest& request) {
  using Headers = GoldenRequest::Headers;
  std::vector<uint8_t> bytes = {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2};
  const auto add = [&](std::initializer_list<uint8_t> more) { bytes.insert(bytes.end(), more); };
  if (request.headers == Headers::kVlan) add({0x81, 0, 0, 7});
  const bool v6 = request.headers == Headers::kIpv6;
  v6 ? add({0x86, 0xdd}) : add({8, 0});
  const size_t ip = bytes.size();
  if (v6) {
    add({0x60, 0, 0, 0, 0, 0, 6, 64});
    for (const uint8_t last : {1, 2}) add({0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last});
  } else {
    add({0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2});
  }
  const size_t tcp = bytes.size();
  add({0, 9, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, static_cast<uint8_t>((request.header == 66 ? 8 : 5) << 4), 0x10});
  if (request.kind != GoldenRequest::Kind::kTso) {
    const size_t length = frame.size() - (v6 ? tcp : ip);
    bytes[ip + (v6 ? 4 : 2)] = static_cast<uint8_t>(length >> 8);
    bytes[ip + (v6 ? 5 : 3)] = static_cast<uint8_t>(length);
  }
  std::copy(bytes.begin(), bytes.end(), frame.begin());
}

inline std::vector<Piece> golden_pieces(uint8_t* memory, const GoldenRequest& request) {
  std::vector<uint8_t> frame;
  for (uint32_t n : request.pieces) frame.resize(frame.size() + n);
  for (size_t i = 0; i < frame.size(); ++i) frame[i] = static_cast<uint8_t>(i * 7);
  write_golden_headers(frame, request);
  std::vector<Piece> pieces;
  size_t at = 0;
  for (uint32_t n : request.pieces) {
    uint8_t* to = memory + pieces.size() * 4096;
    std::memcpy(to, frame.data() + at, n);
    pieces.push_back({to, n});
    at += n;
  }
  return pieces;
}

/// Our WQE for the request at `index` of a ring like the one described, in hex; bytes that nobody writes, and
/// the device does not read, are "--". `header`: bytes of each frame that the device wants inline. Of one
/// piece there are two ways to write it: "!!" where they differ.
inline std::string our_bytes(const SendRing& like, uint16_t index, uint8_t* memory,
                             const GoldenRequest& request, uint32_t header, uint32_t* octoword_count) {
  auto pieces = golden_pieces(memory, request);
  SendMemory real(like.blocks), filled(like.blocks), other(like.blocks);
  std::fill(other.bytes.begin(), other.bytes.end(), 0x11);
  for (SendMemory* each : {&real, &filled, &other}) {
    // The real one may fill what nobody reads with what lies behind the frame; the other two show what that
    // is.
    for (Piece& piece : pieces) piece.room = each == &real ? 4096 - piece.length : 0;
    each->ring.qpn = like.qpn;
    each->ring.lkey = like.lkey;
    const uint8_t checksum = request.checksum ? kChecksum : kNoChecksum;
    switch (request.kind) {
      case GoldenRequest::Kind::kAddress:
        *octoword_count = each == &real && pieces.size() == 1
                              ? write_send(each->ring, index, pieces[0], checksum, header, request.signal)
                              : write_send(each->ring, index, pieces, checksum, header, request.signal);
        break;
      case GoldenRequest::Kind::kInline:
        *octoword_count = write_inline(each->ring, index, pieces, checksum, header, request.signal);
        break;
      case GoldenRequest::Kind::kTso:
        *octoword_count = write_tso(each->ring, index, pieces, request.header, request.mss, request.signal);
        break;
    }
  }
  std::string out;
  const size_t whole = size_t{like.blocks} * kBlock, from = size_t{index & (like.blocks - 1)} * kBlock;
  for (size_t i = 0; i < size_t{*octoword_count} * kOctoword; ++i) {
    const uint8_t byte = filled.ring.start[(from + i) % whole];
    const uint8_t* ours = &real.ring.start[(from + i) % whole];
    const bool written = byte == other.ring.start[(from + i) % whole];
    out += !written ? "--" : byte == *ours ? hex(ours, 1) : "!!";
  }
  return out;
}

/// The bytes of a real ring, with those blotted out that ours does not write.
inline std::string masked(const uint8_t* ring, uint32_t blocks, uint16_t index, const std::string& mask) {
  std::string out;
  const size_t whole = size_t{blocks} * kBlock, from = size_t{index & (blocks - 1)} * kBlock;
  for (size_t i = 0; i < mask.size() / 2; ++i)
    out += mask[i * 2] == '-' ? "--" : hex(ring + (from + i) % whole, 1);
  return out;
}

}  // namespace accel::mlx5::test
