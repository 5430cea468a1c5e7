// Every option number of every level, got and set with every length in every state of a socket.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "posix/differential/far_end.h"

namespace differential {

class OptionSweep {
 public:
  /// `number` names option, level, state and family, from the lowest digit up.
  OptionSweep(uint64_t number, FarEnd& far, const Hosts& hosts);
  ~OptionSweep();
  OptionSweep(const OptionSweep&) = delete;
  /// The transcript, lines ended by tabs.
  const std::string& play();

 private:
  enum class State : uint8_t {
    kFresh,
    kBound,
    kListening,
    kConnected,
    kAccepted,
    kShutDown,  ///< by this end
    kPeerShutDown,
    kEnded,  ///< by both
    kReset,
    kDisconnected,
    kDatagramFresh,
    kDatagramBound,
    kDatagramConnected,
    kDatagramDisconnected,
    kCount
  };
  static const char* state_name(State state);

  void reach();
  void make();
  std::string bind();
  std::string listen();
  std::string connect();
  std::string accept();
  void settle();
  void get();
  void set(int value);
  void use();
  void set_before();
  std::string got(socklen_t room) const;

  bool hides_value(bool was_connected) const;
  void log(const char* what, const std::string& result);
  const std::string& far_address() const { return six_ ? hosts_.far6 : hosts_.far; }

  FarEnd& far_;
  const Hosts& hosts_;
  State state_;
  bool six_, hides_value_;
  int level_, option_;
  int sock_ = -1;
  uint16_t far_port_ = 0;
  std::string log_;
};

}  // namespace differential
