// The channels of a process: one epoll descriptor for their sockets, their deadlines, what they may use, and
// which destinations speak plain TCP. No thread: whoever holds the engine's lock calls poll().
#pragma once

#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/counters.h"
#include "base/ip.h"
#include "base/result.h"
#include "siw_fallback/channel.h"

namespace accel::siw {

inline constexpr size_t kReadBuffer = 256 << 10;

struct ReactorOptions {
  bool crc = true;
  size_t ring = 128 << 10;
  size_t memory = size_t{1} << 30;
};

class Reactor {
 public:
  static Result<std::unique_ptr<Reactor>> open(Counters& counters, const ReactorOptions& options);
  ~Reactor();
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  /// Readable when poll() has something to do.
  int fd() const { return fd_; }
  /// Progress of every channel whose socket has something or whose deadline is over.
  void poll(Instant now);
  /// Not to be left to the next wait: a deadline is over, or bytes wait for a socket to take them.
  bool due(Instant now) const;
  Instant next_deadline() const { return deadlines_.empty() ? kNever : deadlines_.begin()->first; }
  /// The next channel with edges, or nullptr.
  Channel* take_ready();

  /// Channels that a program or poll() has to do with. 0: nobody needs to poll.
  size_t channels() const { return channels_; }
  /// Nothing waits here for a socket to take it, or for the acknowledgement of a peer whose connection was
  /// closed.
  bool all_delivered() const;
  /// Every peer of a closed connection has ended as well.
  bool all_over() const;
  /// Takes over a closed channel and its descriptor, a private one, until the peer has ended too; then closes
  /// the descriptor.
  void adopt(std::unique_ptr<Channel> channel);

  /// A destination that spoke plain TCP within the last ten minutes.
  bool known_plain(const accel::Endpoint& destination, Instant now);
  void remember_plain(const accel::Endpoint& destination, Instant now);

  /// In a forked child: nothing here is this process's. Descriptors are closed, nothing is freed.
  void abandon_in_child();

 private:
  friend class Channel;
  Reactor(int fd, Counters& counters, const ReactorOptions& options);

  bool watch(Channel& channel);
  void unwatch(Channel& channel);
  void set_output_watch(Channel& channel, bool wanted);
  void schedule(Channel& channel, Instant from, Instant to);
  void ready(Channel& channel);
  bool reserve(size_t bytes);
  void release(size_t bytes) { reserved_ -= bytes; }
  bool begin_pending();
  void end_pending() { --pending_; }
  void bury_orphans();

  int fd_;
  Counters& counters_;
  ReactorOptions options_;
  size_t channels_ = 0, pending_ = 0, reserved_ = 0;
  Channel* newest_ = nullptr;  ///< of the channels, while it is watched
  std::set<std::pair<Instant, Channel*>> deadlines_;
  std::vector<Channel*> ready_;
  std::set<Channel*> blocked_;                     ///< with bytes that their sockets have not taken
  std::vector<std::unique_ptr<Channel>> orphans_;  ///< of these, closed by the program
  std::map<accel::Endpoint, Instant> plain_;       ///< until when
  std::vector<uint8_t> buffer_;  ///< kReadBuffer bytes: what a read brings, until the channel's Conn has it
};

}  // namespace accel::siw
