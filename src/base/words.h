// A text's words. std::istringstream would link the whole of libstdc++'s locales, 400 KB of code, into the
// library.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

namespace accel {

/// The words between spaces, tabs and newlines, as views of `text`.
inline std::vector<std::string_view> words_of(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n";
  std::vector<std::string_view> words;
  for (size_t from = 0; (from = text.find_first_not_of(kSpace, from)) != text.npos;) {
    const size_t end = std::min(text.find_first_of(kSpace, from), text.size());
    words.push_back(text.substr(from, end - from));
    from = end;
  }
  return words;
}

}  // namespace accel
