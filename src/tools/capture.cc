// accel capture: the frames of accelerated sockets, both ways, as pcapng.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pcap/pcap.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>

#include "engine/tap_ring.h"
#include "tools/page_copy.h"
#include "tools/pcapng.h"
#include "tools/view.h"

namespace accel::tools {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kBetweenLooks = 2ms;
constexpr auto kBetweenNames = 1s;  ///< the sockets' names are asked for anew

volatile sig_atomic_t ended = 0;

uint64_t seconds_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec);
}

/// The protocol and ends of a frame, from the side of this host; "": neither TCP nor UDP, or a later
/// fragment.
struct Ends {
  uint8_t protocol = 0;
  stats::Address source{}, destination{};
};

std::optional<Ends> ends_of(std::span<const uint8_t> frame) {
  const auto word = [&](size_t at) { return static_cast<uint16_t>(frame[at] << 8 | frame[at + 1]); };
  size_t at = 12;
  if (frame.size() < 14) return {};
  uint16_t type = word(at);
  if (type == ETHERTYPE_VLAN && frame.size() >= 18) type = word(at += 4);
  at += 2;
  Ends ends;
  if (type == ETHERTYPE_IP && frame.size() >= at + 20) {
    if ((word(at + 6) & 0x1fff) != 0) return {};
    ends.protocol = frame[at + 9];
    for (auto [address, from] : {std::pair{&ends.source, at + 12}, {&ends.destination, at + 16}}) {
      address->bytes[10] = address->bytes[11] = 0xff;
      std::memcpy(address->bytes + 12, frame.data() + from, 4);
    }
    at += size_t{4} * (frame[at] & 15);
  } else if (type == ETHERTYPE_IPV6 && frame.size() >= at + 40) {
    ends.protocol = frame[at + 6];
    std::memcpy(ends.source.bytes, frame.data() + at + 8, 16);
    std::memcpy(ends.destination.bytes, frame.data() + at + 24, 16);
    at += 40;
  } else {
    return {};
  }
  if ((ends.protocol != IPPROTO_TCP && ends.protocol != IPPROTO_UDP) || frame.size() < at + 4) return {};
  ends.source.port = word(at);
  ends.destination.port = word(at + 2);
  return ends;
}

std::string key_of(uint8_t protocol, const stats::Address& local, const stats::Address& remote) {
  return fmt::format("{} {} {}", protocol, address_text(local), address_text(remote));
}

/// What the comments say of sockets.
class Names {
 public:
  void learn(const ProcessStats& p) {
    names_.clear();
    ports_.clear();
    for (const ShownSocket& s : sockets_of(p)) {
      if (s.kernel) continue;
      const std::string text =
          fmt::format("{} ({}) fd {}, path {}", printable(p.program), p.pid, s.fd, path_name(s.path));
      names_[key_of(s.protocol, s.local, s.remote)] = text;
      if (s.remote.port == 0) ports_[{s.protocol, s.local.port}] = text;
    }
  }
  std::string of(const Ends& ends, bool outgoing) const {
    const stats::Address& local = outgoing ? ends.source : ends.destination;
    const stats::Address& remote = outgoing ? ends.destination : ends.source;
    if (auto found = names_.find(key_of(ends.protocol, local, remote)); found != names_.end())
      return found->second;
    if (auto found = ports_.find({ends.protocol, local.port}); found != ports_.end()) return found->second;
    return "";
  }

 private:
  std::unordered_map<std::string, std::string> names_;
  std::map<std::pair<uint8_t, uint16_t>, std::string> ports_;
};

/// One process's ring. What the process writes is not trusted.
class Tap {
 public:
  explicit Tap(const ProcessStats& p) : pid_(p.pid), program_(printable(p.program)) {
    names_.learn(p);
    for (const stats::PortRow& port : p.ports) devices_[port.ifindex] = port_name(port);
  }
  ~Tap() {
    if (ring_ != nullptr) munmap(ring_, sizeof(tap::Ring));
  }
  Tap(const Tap&) = delete;
  Tap& operator=(const Tap&) = delete;

  /// "": frames come; else why not.
  std::string begin(uint32_t snap) {
    if (std::string refused = send_wish(pid_, fmt::format("capture={}", snap)); !refused.empty())
      return refused;
    for (int fd : descriptors_named(pid_, tap::kTapName)) {
      const int opened = open(fmt::format("/proc/{}/fd/{}", pid_, fd).c_str(), O_RDWR | O_CLOEXEC);
      if (opened < 0) continue;
      struct stat facts {};
      const int seals = fcntl(opened, F_GET_SEALS);
      void* memory = MAP_FAILED;
      if (fstat(opened, &facts) == 0 && facts.st_size == sizeof(tap::Ring) && seals >= 0 &&
          (seals & F_SEAL_SHRINK))
        memory = mmap(nullptr, sizeof(tap::Ring), PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
      close(opened);
      if (memory == MAP_FAILED) continue;
      ring_ = static_cast<tap::Ring*>(memory);
      if (once(ring_->magic) == tap::kMagic) return "";
    }
    return "its ring cannot be opened";
  }
  void end() { (void)send_wish(pid_, "capture=0"); }

  template <class Take>
  void read(Take take) {
    ring_->reader.store(seconds_now(), std::memory_order_relaxed);
    uint64_t tail = tail_;
    const uint64_t head = ring_->head.load(std::memory_order_acquire);
    while (head - tail >= sizeof(tap::Record) && head - tail <= tap::kRingBytes) {
      const uint64_t at = tail % tap::kRingBytes, to_end = tap::kRingBytes - at;
      tap::Record record;
      if (to_end >= sizeof record) std::memcpy(&record, ring_->data + at, sizeof record);
      if (to_end < sizeof record || record.skip != 0) {
        tail += to_end;
        continue;
      }
      const uint64_t room = tap::room_of(record.captured);
      if (record.captured > tap::kMostBytes || room > to_end || room > head - tail) {
        tail = head;  // not a record: the process has spoilt its ring
        break;
      }
      bytes_.assign(ring_->data + at + sizeof record, ring_->data + at + sizeof record + record.captured);
      take(*this, record, std::span<const uint8_t>(bytes_));
      tail += room;
    }
    if (head - tail > tap::kRingBytes) tail = head;
    tail_ = tail;
    ring_->tail.store(tail, std::memory_order_release);
  }
  uint64_t dropped() const { return ring_->dropped.load(std::memory_order_relaxed); }
  int pid() const { return pid_; }
  const std::string& program() const { return program_; }
  Names& names() { return names_; }
  std::string device(uint32_t ifindex) const {
    auto found = devices_.find(ifindex);
    return found == devices_.end() ? fmt::format("device {}", ifindex) : found->second;
  }
  std::map<std::pair<uint32_t, uint8_t>, uint32_t> interfaces;  ///< of the file, by device and path

 private:
  int pid_;
  std::string program_;
  tap::Ring* ring_ = nullptr;
  uint64_t tail_ = 0;
  std::vector<uint8_t> bytes_;
  Names names_;
  std::map<uint32_t, std::string> devices_;
};

class Filter {
 public:
  ~Filter() {
    if (compiled_) pcap_freecode(&program_);
  }
  /// "": compiled; else what is wrong.
  std::string compile(const std::string& text) {
    pcap_t* handle = pcap_open_dead(DLT_EN10MB, tap::kMostBytes);
    compiled_ = pcap_compile(handle, &program_, text.c_str(), 1, PCAP_NETMASK_UNKNOWN) == 0;
    const std::string wrong = compiled_ ? "" : pcap_geterr(handle);
    pcap_close(handle);
    return wrong;
  }
  bool takes(std::span<const uint8_t> bytes, uint32_t length) const {
    pcap_pkthdr header{};
    header.caplen = static_cast<uint32_t>(bytes.size());
    header.len = length;
    return !compiled_ || pcap_offline_filter(&program_, &header, bytes.data()) != 0;
  }

 private:
  bpf_program program_{};
  bool compiled_ = false;
};

/// Those of the process, or with the device; and that device's number.
std::vector<ProcessStats> captured_processes(const std::string& target, uint32_t* ifindex) {
  std::vector<ProcessStats> all = read_processes(pid_of(target));
  std::erase_if(all, [](const ProcessStats& p) { return !p.engine; });
  if (target.empty() || pid_of(target)) return all;
  std::vector<ProcessStats> found;
  for (const ProcessStats& p : all)
    for (const stats::PortRow& port : p.ports)
      if (port_name(port) == target) {
        *ifindex = port.ifindex;
        found.push_back(p);
        break;
      }
  return found.empty() ? chosen_processes(target) : found;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

}  // namespace

int capture(const CaptureOptions& options) {
  Filter filter;
  if (const std::string text = joined(options.filter); !text.empty())
    if (const std::string wrong = filter.compile(text); !wrong.empty()) {
      fmt::print(stderr, "accel capture: {}: {}\n", text, wrong);
      return 2;
    }
  uint32_t only_ifindex = 0;
  const std::vector<ProcessStats> processes = captured_processes(options.target, &only_ifindex);
  if (processes.empty()) return say_nothing_found("capture", options.target);
  std::vector<std::unique_ptr<Tap>> taps;
  for (const ProcessStats& p : processes) {
    auto tap = std::make_unique<Tap>(p);
    if (const std::string refused = tap->begin(options.snap); refused.empty())
      taps.push_back(std::move(tap));
    else
      fmt::print(stderr, "accel capture: process {}: {}\n", p.pid, refused);
  }
  if (taps.empty()) return 1;
  Pcapng file(options.file, fmt::format("accel {}", ACCEL_VERSION));
  if (!file.good()) {
    fmt::print(stderr, "accel capture: {}: {}\n", options.file, std::strerror(errno));
    for (auto& tap : taps) tap->end();
    return 1;
  }
  for (int number : {SIGINT, SIGTERM}) ::signal(number, [](int) { ended = 1; });
  fmt::print(stderr, "accel capture: {} process{}, until Ctrl-C\n", taps.size(),
             taps.size() == 1 ? "" : "es");

  uint64_t written = 0, last = 0;
  const auto take = [&](Tap& tap, const tap::Record& record, std::span<const uint8_t> bytes) {
    if ((only_ifindex != 0 && record.ifindex != only_ifindex) || !filter.takes(bytes, record.length)) return;
    if (options.count != 0 && written >= options.count) return;
    auto [known, fresh] = tap.interfaces.try_emplace({record.ifindex, record.path}, 0);
    if (fresh)
      known->second = file.add_interface(
          tap.device(record.ifindex),
          fmt::format("{} of {} ({})", path_name(record.path), tap.program(), tap.pid()), options.snap);
    std::string comment;
    if (const auto ends = ends_of(bytes)) comment = tap.names().of(*ends, record.outgoing != 0);
    if (record.cut != 0)
      comment += comment.empty() ? "cut into segments by the device" : ", cut into segments by the device";
    file.add_frame({known->second, record.nanoseconds, record.length, record.outgoing != 0, bytes}, comment);
    last = record.nanoseconds;
    ++written;
  };
  const auto began = Clock::now();
  auto names_due = began + kBetweenNames;
  const auto over = [&] {
    return ended != 0 || !file.good() || (options.count != 0 && written >= options.count) ||
           (options.seconds > 0 && Clock::now() - began > std::chrono::duration<double>(options.seconds));
  };
  while (!over()) {
    bool alive = false;
    for (auto& tap : taps) {
      tap->read(take);
      alive |= kill(tap->pid(), 0) == 0 || errno == EPERM;
    }
    if (!alive) break;
    if (Clock::now() >= names_due) {
      for (auto& tap : taps)
        for (const ProcessStats& p : read_processes(tap->pid())) tap->names().learn(p);
      names_due = Clock::now() + kBetweenNames;
    }
    file.flush();
    std::this_thread::sleep_for(kBetweenLooks);
  }
  uint64_t dropped = 0;
  for (auto& tap : taps) {
    tap->end();
    tap->read(take);
    for (auto& [place, interface] : tap->interfaces)
      file.add_statistics(interface, written, tap->dropped(), last);
    dropped += tap->dropped();
  }
  file.flush();
  fmt::print(stderr, "accel capture: {} frames written, {} dropped for want of room\n", written, dropped);
  if (!file.good()) {
    fmt::print(stderr, "accel capture: {} could not be written: {}\n", options.file, std::strerror(errno));
    return 1;
  }
  return 0;
}

}  // namespace accel::tools
