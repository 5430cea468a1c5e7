#include "model/core/toeplitz.h"

#include <rdma/mlx5-abi.h>

#include <vector>

#include "model/core/bytes.h"

namespace model {

uint32_t toeplitz(std::span<const uint8_t> frame, const Parsed& p, uint32_t fields,
                  std::span<const uint8_t> key) {
  std::vector<uint8_t> input;
  const auto add = [&](size_t at, size_t n) {
    input.insert(input.end(), frame.data() + at, frame.data() + at + n);
  };
  const bool v4 = p.l3 == L3::kIpv4, v6 = p.l3 == L3::kIpv6;
  if (v4 && (fields & MLX5_RX_HASH_SRC_IPV4) != 0) add(p.l3_at + 12, 4);
  if (v4 && (fields & MLX5_RX_HASH_DST_IPV4) != 0) add(p.l3_at + 16, 4);
  if (v6 && (fields & MLX5_RX_HASH_SRC_IPV6) != 0) add(p.l3_at + 8, 16);
  if (v6 && (fields & MLX5_RX_HASH_DST_IPV6) != 0) add(p.l3_at + 24, 16);
  const uint32_t source = p.l4 == L4::kTcp ? MLX5_RX_HASH_SRC_PORT_TCP : MLX5_RX_HASH_SRC_PORT_UDP;
  const uint32_t destination = p.l4 == L4::kTcp ? MLX5_RX_HASH_DST_PORT_TCP : MLX5_RX_HASH_DST_PORT_UDP;
  if (p.l4 != L4::kNone && (fields & source) != 0) add(p.l4_at, 2);
  if (p.l4 != L4::kNone && (fields & destination) != 0) add(p.l4_at + 2, 2);
  if (key.size() < input.size() + 4) return 0;
  uint32_t hash = 0, window = load32(key.data());
  for (size_t i = 0; i < input.size(); ++i) {
    for (int bit = 7; bit >= 0; --bit) {
      if ((input[i] >> bit & 1) != 0) hash ^= window;
      window = window << 1 | (key[i + 4] >> bit & 1);
    }
  }
  return hash;
}

}  // namespace model
