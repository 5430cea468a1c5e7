// A kernel's answers about its rules, in a file: sizes and bytes.
#pragma once

#include <fstream>
#include <string>

#include "firewall/legacy_parse.h"
#include "firewall/nft_parse.h"

namespace accel::firewall::test {

struct Recording {
  Bytes nft;
  std::vector<LegacyTable> legacy;

  Ruleset rules() const {
    Ruleset all;
    parse_nft(nft, all);
    for (const LegacyTable& t : legacy) parse_legacy(t, all);
    return all;
  }
  bool write(const std::string& path) const {
    std::ofstream out(path, std::ios::binary);
    put(out, nft);
    for (const LegacyTable& t : legacy) {
      put(out, {t.name.begin(), t.name.end()});
      const auto* head = reinterpret_cast<const uint8_t*>(t.first.data());
      put(out, {head, head + sizeof t.first});
      put(out, {static_cast<uint8_t>(t.v4), static_cast<uint8_t>(t.hooks)});
      put(out, t.entries);
    }
    return out.good();
  }
  bool read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    if (!get(in, nft)) return false;
    for (Bytes name; get(in, name);) {
      LegacyTable t;
      Bytes first, flags;
      if (!get(in, first) || first.size() != sizeof t.first || !get(in, flags) || flags.size() != 2 ||
          !get(in, t.entries))
        return false;
      t.name.assign(name.begin(), name.end());
      std::memcpy(t.first.data(), first.data(), first.size());
      t.v4 = flags[0] != 0;
      t.hooks = flags[1];
      legacy.push_back(std::move(t));
    }
    return true;
  }

 private:
  static void put(std::ofstream& out, const Bytes& bytes) {
    const auto size = static_cast<uint32_t>(bytes.size());
    out.write(reinterpret_cast<const char*>(&size), sizeof size);
    out.write(reinterpret_cast<const char*>(bytes.data()), size);
  }
  static bool get(std::ifstream& in, Bytes& bytes) {
    uint32_t size = 0;
    if (!in.read(reinterpret_cast<char*>(&size), sizeof size) || size > 1 << 24) return false;
    bytes.resize(size);
    return static_cast<bool>(in.read(reinterpret_cast<char*>(bytes.data()), size));
  }
};

}  // namespace accel::firewall::test
