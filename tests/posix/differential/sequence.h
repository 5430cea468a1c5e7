// One random sequence of socket calls at the near end, and what they gave.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "posix/differential/far_end.h"

namespace differential {

/// Where a sequence begins.
enum class Kind : uint8_t { kTcpConnect, kTcpAccept, kTcpFresh, kUdpConnected, kUdpBound, kUdpFresh, kCount };
const char* kind_name(Kind kind);

class Sequence {
 public:
  /// `leaving`: bit n is set where the data that come to what MSG_MORE holds back the nth time let it go.
  Sequence(uint64_t seed, FarEnd& far, const Hosts& hosts, const std::vector<Kind>& kinds, uint64_t leaving);
  ~Sequence();
  Sequence(const Sequence&) = delete;
  /// Plays it; returns the transcript, lines ended by tabs. It follows from the seed and `leaving` alone.
  const std::string& play();

 private:
  struct Step {
    int weight;
    void (Sequence::*play)();
  };
  static const Step kSteps[];

  // begin.cc
  void begin();
  void begin_connect();
  void begin_accept();
  // transfer.cc
  void receive();
  void receive_message();
  void send();
  void send_message();
  // vectors.cc
  void read_vector();
  void write_vector();
  void receive_messages();
  void send_messages();
  void wait_to_receive();
  template <class Call>
  std::string with_pipe(Call call);
  // readiness.cc
  void ready_by_poll();
  void ready_by_ppoll();
  void ready_by_select();
  void ready_by_epoll();
  void change_watch();
  void watch(int fd);
  template <class Call>
  std::string with_signal(Call call);
  // descriptors.cc
  void duplicate();
  void close_one();
  // state.cc
  void names();
  void count_bytes();
  void shut_down();
  void bind();
  void listen();
  void connect();
  void disconnect();
  void accept();
  void too_many_buffers();
  // options.cc
  void set_option();
  void get_option();
  void set_linger();
  void set_wide_option();
  // the far end's steps, sequence.cc
  void far_sends();
  void far_drains();
  void far_shuts_down();
  void far_closes();
  void far_calls();

  void log(std::initializer_list<std::string_view> words, std::string_view result);
  /// The same, of a call that may have sent: when all has come, how much waits at the far end.
  void log_sent(std::initializer_list<std::string_view> words, std::string_view result);
  /// Waits until what was sent has come, at both ends, and its answers too.
  void settle();
  /// Bytes that were not sent since the last send had MSG_MORE.
  int held_bytes() const;
  void follow_kernel(int held);

  uint32_t below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  bool chance(uint32_t percent) { return below(100) < percent; }
  template <class T>
  const T& any(const std::vector<T>& of) {
    return of[below(static_cast<uint32_t>(of.size()))];
  }
  /// A name without its port, which is another in each run.
  std::string hidden(long result, const Name& n) const;
  const std::string& near() const { return six_ ? hosts_.near6 : hosts_.near; }
  const std::string& far_address() const { return six_ ? hosts_.far6 : hosts_.far; }

  std::mt19937_64 random_;
  FarEnd& far_;
  const Hosts& hosts_;
  Kind kind_;
  bool stream_, six_;
  int sock_ = -1, set_ = -1;
  std::vector<int> extra_;
  std::vector<int> twins_;  ///< further descriptors of sock_'s socket
  uint16_t far_port_ = 0;
  size_t sent_ = 0;
  bool held_ = false;  ///< the last send had MSG_MORE
  uint64_t leaving_;
  uint32_t times_held_ = 0;  ///< that plain data came to held bytes
  std::string log_;
};

}  // namespace differential
