// What a misspelt word may have been meant to be.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace accel {

/// How many letters must be changed, added or taken away (Levenshtein).
size_t edit_distance(std::string_view a, std::string_view b);

/// The one of `words` that `word` resembles most; "" when none is near enough: a change for each three
/// letters.
std::string_view nearest_word(std::string_view word, std::span<const std::string_view> words);

}  // namespace accel
