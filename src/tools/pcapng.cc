#include "tools/pcapng.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace accel::tools {
namespace {

constexpr uint32_t kSection = 0x0a0d0d0a, kInterface = 1, kStatistics = 5, kPacket = 6;
constexpr uint16_t kEnd = 0, kComment = 1, kApplication = 4, kName = 2, kDescription = 3, kResolution = 9,
                   kFlags = 2, kReceived = 4, kDropped = 5;

template <class T>
void put(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void pad(std::string& to) { to.append((4 - to.size() % 4) % 4, '\0'); }

void option(std::string& to, uint16_t code, std::string_view value) {
  value = value.substr(0, 0xffff);
  put(to, code);
  put(to, static_cast<uint16_t>(value.size()));
  to += value;
  pad(to);
}

template <class T>
void number_option(std::string& to, uint16_t code, T value) {
  static_assert(std::is_integral_v<T>);
  option(to, code, std::string_view(reinterpret_cast<const char*>(&value), sizeof value));
}

void end_options(std::string& to) {
  put(to, kEnd);
  put(to, uint16_t{0});
}

void put_time(std::string& to, uint64_t nanoseconds) {
  put(to, static_cast<uint32_t>(nanoseconds >> 32));
  put(to, static_cast<uint32_t>(nanoseconds));
}

}  // namespace

Pcapng::Pcapng(const std::string& file, const std::string& application)
    : file_(file == "-" ? stdout : std::fopen(file.c_str(), "wbe")) {
  if (file_ == nullptr) return;
  std::string body;
  put(body, uint32_t{0x1a2b3c4d});
  put(body, uint16_t{1});
  put(body, uint16_t{0});
  put(body, ~uint64_t{0});  // length: not told
  option(body, kApplication, application);
  end_options(body);
  block(kSection, body);
}

Pcapng::~Pcapng() {
  if (file_ != nullptr && file_ != stdout) std::fclose(file_);
}

void Pcapng::block(uint32_t type, const std::string& body) {
  const auto total = static_cast<uint32_t>(body.size() + 12);
  std::string all;
  all.reserve(total);
  put(all, type);
  put(all, total);
  all += body;
  put(all, total);
  failed_ |= std::fwrite(all.data(), 1, all.size(), file_) != all.size();
}

uint32_t Pcapng::add_interface(const std::string& name, const std::string& description, uint32_t snap) {
  constexpr uint16_t kEthernet = 1;
  std::string body;
  put(body, kEthernet);
  put(body, uint16_t{0});
  put(body, snap);
  option(body, kName, name);
  option(body, kDescription, description);
  number_option(body, kResolution, uint8_t{9});
  end_options(body);
  block(kInterface, body);
  return interfaces_++;
}

void Pcapng::add_frame(const Frame& frame, const std::string& comment) {
  std::string body;
  put(body, frame.interface);
  put_time(body, frame.nanoseconds);
  put(body, static_cast<uint32_t>(frame.bytes.size()));
  put(body, frame.length);
  body.append(reinterpret_cast<const char*>(frame.bytes.data()), frame.bytes.size());
  pad(body);
  if (!comment.empty()) option(body, kComment, comment);
  number_option(body, kFlags, uint32_t{frame.outgoing ? 2U : 1U});
  end_options(body);
  block(kPacket, body);
}

void Pcapng::add_statistics(uint32_t interface, uint64_t received, uint64_t dropped, uint64_t nanoseconds) {
  std::string body;
  put(body, interface);
  put_time(body, nanoseconds);
  number_option(body, kReceived, received);
  number_option(body, kDropped, dropped);
  end_options(body);
  block(kStatistics, body);
}

void Pcapng::flush() { failed_ |= file_ != nullptr && std::fflush(file_) != 0; }

}  // namespace accel::tools
