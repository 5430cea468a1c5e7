// What this process publishes about itself (stats_page.h). Nothing here fails: where there is no page
// (setting stats, no memory), calls do nothing.
#pragma once

#include <optional>
#include <string>
#include <unordered_set>

#include "base/config.h"
#include "base/instant.h"
#include "base/ip.h"
#include "engine/pass.h"
#include "engine/path.h"
#include "engine/stats_page.h"

namespace accel::stats {

/// Makes the page unless there is one. Engine::open calls it, note_kernel too. Thread-safe; a fork's child
/// gets its own.
void open();

/// Behind the last answer, which readers find without asking.
void close();

/// In a fork's child: the page is the parent's. Called for every kind of fork; more than once does no harm.
void after_fork_in_child();

/// The helper runs (then `why` is nullptr), or why it does not.
void note_helper(int pid, const char* why);

/// A reader waits for an answer: one load. For housekeeping's tick.
bool requested();

/// One answer to the readers: the layer above names its sockets to it, each once.
class Writer {
 public:
  Writer(Pass& pass, Instant now);
  /// There is a page to write to; else nothing is to be called.
  bool wanted() const { return page_ != nullptr; }
  /// Adds the connections without an owner; the readers have it then.
  void finish();
  /// What is known of a TCP connection; `fd` -1 when the program has closed it.
  void tcp(Stack& stack, const TcpConn& conn, int fd, const PathChoice& choice, Instant now);
  void listener(Stack& stack, const TcpListener& listener, int fd, const PathChoice& choice,
                const Endpoint& local);
  void udp(Stack& stack, const UdpPcb& pcb, const StackSocket& traffic, int fd, const PathChoice& choice,
           const Endpoint& local, const Endpoint& remote);
  /// A socket that is neither (undecided), or anything else.
  void add(const SocketRow& row);

 private:
  void add_unnamed();
  Pass& pass_;
  Page* page_;
  Instant now_;
  uint64_t asked_ = 0, sequence_ = 0;
  std::unordered_set<const TcpConn*> named_;
};

/// The socket `fd` was left to the kernel, and why. One fstat; async-signal-safe once there is a page.
void note_kernel(int fd, Reason reason, uint8_t detail = 0);
/// The note of note_kernel() about the socket that `fd` is now, by this descriptor or another below `limit`.
struct KernelNote {
  Reason reason;
  uint8_t detail;
};
std::optional<KernelNote> kernel_note(int fd, int limit);
/// It is not the kernel's any more.
void forget_kernel(int fd);
/// Reasons that are about something with a name of its own: a packet filter's rule, or a socket option.
constexpr bool has_detail(Reason reason) { return reason == Reason::firewall || reason == Reason::option; }
/// Text of what a reason is about, kept once. Its number for PathChoice::detail; 0: no page, or
/// no room. Under the engine's lock.
uint8_t note_detail(const char* text);
/// The text of a number of note_detail(); "": none.
std::string detail_text(uint8_t number);

/// For tests and Writer: this process's page, or nullptr.
Page* page();

}  // namespace accel::stats
