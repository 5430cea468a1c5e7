// The other host's end of a sequence. It lives in the same process, so that no word has to go to and fro: its
// calls are libc's own, past the library, and its sockets are made in the other namespace.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace differential {

/// An address of either family.
struct Name {
  sockaddr_storage storage{};
  socklen_t size = 0;
  sockaddr* raw() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
  uint16_t port() const;
};
Name name(const std::string& address, uint16_t port);

/// The addresses of this host (near) and the other.
struct Hosts {
  std::string near, far, near6, far6;
};

class FarEnd {
 public:
  /// `netns`: the other host's namespace, a file. The addresses are this host's (near) and the other's (far).
  explicit FarEnd(const char* netns);
  FarEnd(const FarEnd&) = delete;

  /// Fresh sockets for a sequence: a listener, or a datagram socket; returns its port.
  uint16_t begin(bool stream, const std::string& address);
  /// Takes the connection that came, if one did.
  std::string accept();
  std::string call(const Name& to);
  std::string send(size_t n, bool urgent, const Name* to);
  std::string shutdown(int how);
  std::string close(bool reset);
  /// Takes all that has come; `settle` waits for what is under way, and is called until nothing more comes.
  template <class F>
  std::string drain(F settle) {
    std::string got = take();
    for (int rounds = 0; rounds < 100; ++rounds) {
      settle();
      std::string more = take();
      if (more.empty()) break;
      got += more;
    }
    return summary(got);
  }
  /// Bytes (of datagrams: the first one's) that have come and were not taken.
  std::string waiting() const;
  void end();

  /// Returns when all frames that were under way between the hosts have come: a datagram goes there and back
  /// behind them, and a model NIC of the near end (model/) has done its work before and after.
  void round_trip();
  /// Where the markers of round_trip() go.
  void connect_markers(const std::string& near, const std::string& far);

  bool has_connection() const { return sock_ >= 0; }
  /// Else what is sent to it is answered by a reset.
  bool takes_data() const { return sock_ >= 0 && shut_ != 3; }

 private:
  int make_socket(int family, int type) const;
  std::string take();
  std::string summary(const std::string& got);
  void close_quietly(int& fd);

  void (*settle_nic_)();
  int own_namespace_ = -1, far_namespace_ = -1;
  int near_marker_ = -1, far_marker_ = -1;
  int listener_ = -1, sock_ = -1;
  bool stream_ = false;
  size_t sent_ = 0;
  int shut_ = 0;           ///< directions, as bits
  std::string ending_;     ///< how the stream ended, so far
  std::string datagrams_;  ///< those taken, each by size and hash
};

}  // namespace differential
