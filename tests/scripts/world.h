// What a script is played on: the pure core in virtual time, or the kernel's TCP in real time.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "script.h"
#include "wire.h"

namespace accel::scripts {

/// What a system call gave.
struct Answer {
  int64_t value = 0;
  int error = 0;        ///< errno's value where `value` is -1
  int64_t out = 0;      ///< what it wrote: an option's value, poll()'s revents
  Bytes read;           ///< what it read
  bool peeked = false;  ///< and left there
  Endpoint peer{};      ///< of an accepted connection, on the core

  static Answer failed(int number) { return {-1, number, 0, {}, false, {}}; }
};

/// A system call of a socket, its arguments told apart. Descriptors are a world's own.
struct Operation {
  enum class Kind : uint8_t {
    kSocket,
    kBind,
    kListen,
    kAccept,
    kConnect,
    kRead,
    kWrite,
    kShutdown,
    kClose,
    kSetOption,
    kGetOption,
    kNonblocking,
    kPoll,
    kIoctl
  };
  Kind kind{};
  int fd = -1;
  int64_t number = 0;  ///< port, backlog, how, request, events; whether O_NONBLOCK is on; socket()'s type
  uint32_t flags = 0;  ///< MSG_*; SOCK_NONBLOCK of accept4()
  int level = 0, name = 0;
  int64_t second = 0;  ///< SO_LINGER's time; a timeout in ms
  std::string text;    ///< TCP_CONGESTION's value
  Bytes bytes;         ///< to be written
  size_t size = 0;     ///< to be read
};

/// An operation that goes on until its answer is there.
struct Pending {
  std::optional<Answer> answer;
  Duration returned{0};
};

class World {
 public:
  explicit World(const Addresses& ends) : addresses(ends) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  virtual ~World() = default;
  virtual Duration now() = 0;
  /// Lets time pass up to `until`, or until one more segment has left or an operation has returned.
  virtual void run(Duration until) = 0;
  virtual void inject(const Bytes& packet) = 0;
  /// What does not return at once has no answer yet.
  virtual std::shared_ptr<Pending> start(Operation operation) = 0;
  /// A field of the connection's TCP_INFO.
  virtual std::optional<int64_t> info(int fd, const std::string& field) = 0;
  /// False: it has no such setting.
  virtual bool set_sysctl(const std::string& name, const std::string& value) = 0;
  /// The metrics of the route to the peer, as ip-route(8) writes them: "initcwnd 4 rto_min 300ms". Once,
  /// before any call. False: it has no such metric.
  virtual bool set_route(const std::string& metrics) = 0;
  /// How far a time may be from the script's, where it asks to wait so long.
  virtual Duration early() const = 0;
  virtual Duration late(Duration waited) const = 0;
  /// After so long a call that should not sleep is taken to do so.
  virtual Duration patience() const = 0;
  /// The machine was too busy to play the script as it is written: what differs says nothing.
  virtual bool disturbed() const { return false; }

  Addresses addresses;
  std::deque<Segment> sent;
};

std::unique_ptr<World> make_core_world(const Addresses& ends, uint32_t mtu);
/// In a network namespace of its own, which this makes of the calling process'.
std::unique_ptr<World> make_kernel_world(const Addresses& ends);

}  // namespace accel::scripts
