// How a sequence's transcript shows what calls gave: results by value, errors by name, bytes by length and
// hash.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>

namespace differential {

inline std::string error_name(int number) {
  const char* name = strerrorname_np(number);
  return name ? name : std::to_string(number);
}

/// A call's return value, or errno's name.
inline std::string shown(long result) { return result < 0 ? error_name(errno) : std::to_string(result); }

/// FNV-1a.
inline std::string hash(std::string_view bytes) {
  uint32_t h = 2166136261u;
  for (char c : bytes) h = (h ^ static_cast<uint8_t>(c)) * 16777619u;
  return std::to_string(bytes.size()) + ":" + std::to_string(h);
}

inline std::string hash(const void* data, size_t n) {
  return hash(std::string_view(static_cast<const char*>(data), n));
}

/// Small values, byte by byte.
inline std::string bytes(const void* data, size_t n) {
  std::string text;
  for (size_t i = 0; i < n; ++i)
    text += (i ? "," : "") + std::to_string(static_cast<const uint8_t*>(data)[i]);
  return text;
}

/// One line of a transcript: words, then "= result".
inline std::string line(std::initializer_list<std::string_view> words, std::string_view result) {
  std::string text;
  for (std::string_view word : words) (text += word) += ' ';
  return (text += "= ") += result;
}

/// The byte at each place of a stream that one end sends: where a byte is missing or twice, hashes differ.
inline std::string pattern(size_t n, size_t start) {
  std::string data(n, 0);
  for (size_t i = 0; i < n; ++i) data[i] = static_cast<char>((start + i) * 7 + ((start + i) >> 8));
  return data;
}

}  // namespace differential
