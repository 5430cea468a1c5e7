// The hash that spreads frames over an indirection table (Toeplitz, as Microsoft's RSS specification has it).
#pragma once

#include <cstdint>
#include <span>

#include "model/core/frame.h"

namespace model {

/// fields: mlx5_rx_hash_fields; those that a frame does not have are left out, none at all hash to 0.
uint32_t toeplitz(std::span<const uint8_t> frame, const Parsed& p, uint32_t fields,
                  std::span<const uint8_t> key);

}  // namespace model
