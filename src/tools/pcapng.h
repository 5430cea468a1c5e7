// Writes pcapng (draft-ietf-opsawg-pcapng) with nanoseconds, directions and comments.
#pragma once

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

namespace accel::tools {

class Pcapng {
 public:
  /// "-": stdout. good() says whether it could be opened, and written so far.
  Pcapng(const std::string& file, const std::string& application);
  ~Pcapng();
  Pcapng(const Pcapng&) = delete;
  Pcapng& operator=(const Pcapng&) = delete;
  bool good() const { return file_ != nullptr && !failed_; }

  /// Returns its number.
  uint32_t add_interface(const std::string& name, const std::string& description, uint32_t snap);
  struct Frame {
    uint32_t interface = 0;
    uint64_t nanoseconds = 0;
    uint32_t length = 0;  ///< of the whole frame
    bool outgoing = false;
    std::span<const uint8_t> bytes;
  };
  void add_frame(const Frame& frame, const std::string& comment);
  /// At the end: frames that were seen, and that were dropped for want of room.
  void add_statistics(uint32_t interface, uint64_t received, uint64_t dropped, uint64_t nanoseconds);
  void flush();

 private:
  void block(uint32_t type, const std::string& body);

  FILE* file_ = nullptr;
  bool failed_ = false;
  uint32_t interfaces_ = 0;
};

}  // namespace accel::tools
