// A TCP or UDP socket of ours over its shadow: what is common to both.
#pragma once

#include <sys/socket.h>

#include "posix/address.h"
#include "posix/file.h"
#include "posix/lease.h"

namespace accel::posix {

/// What a Socket's method answers when the kernel serves the call: it is then made there, without the lock.
constexpr Errno kOnKernel = err(-1);

/// The methods' error kOnKernel means that the kernel serves the call: everything that
/// concerns an undecided socket does, so that the shadow alone holds what was set on it, and it is read from
/// there when the path is decided.
class Socket : public File {
 public:
  Socket(FileKind kind, int fd, int domain) : File(kind), fd_(fd), domain_(domain) {}
  ~Socket() override;

  /// A descriptor of the shadow. Any one that is still open: updated when a dup outlives the first.
  int shadow() const { return fd_; }
  /// `fd`, one of this socket's descriptors, is about to be closed: the shadow must stay reachable by another
  /// one.
  void keep_shadow(int fd);
  int domain() const { return domain_; }  ///< AF_INET or AF_INET6
  bool v6() const { return domain_ == AF_INET6; }

  virtual Result<int> bind(Pass& pass, const sockaddr* address, socklen_t length) = 0;
  virtual Result<int> connect(Pass& pass, const sockaddr* address, socklen_t length) = 0;
  virtual Result<int> listen(Pass& pass, int backlog) = 0;
  virtual Result<int> accept(Pass& pass, sockaddr* address, socklen_t* length, int flags) = 0;
  virtual Result<int> shutdown(Pass& pass, int how) = 0;
  virtual Result<int> getsockname(Pass& pass, sockaddr* address, socklen_t* length) = 0;
  virtual Result<int> getpeername(Pass& pass, sockaddr* address, socklen_t* length) = 0;
  virtual Result<int> getsockopt(Pass& pass, int level, int name, void* value, socklen_t* length) = 0;
  virtual Result<int> setsockopt(Pass& pass, int level, int name, const void* value, socklen_t length) = 0;
  /// shutdown() that holds for what the socket does next: its shadow does not tell of it.
  void note_shut(int how) {
    shut_read_ |= how != SHUT_WR;
    shut_write_ |= how != SHUT_RD;
  }
  void forget_shut() { shut_read_ = shut_write_ = false; }
  /// The shadow took a setsockopt() that it does not tell of later.
  virtual void option_was_set(int /*level*/, int /*name*/, const void* /*value*/, socklen_t /*length*/) {}
  virtual Result<int> ioctl(Pass& pass, unsigned long request, void* argument) = 0;
  virtual Result<ssize_t> recvmsg(Pass& pass, msghdr* message, int flags) = 0;
  virtual Result<ssize_t> sendmsg(Pass& pass, const msghdr* message, int flags) = 0;
  /// As recvmsg(), without a copy. kOnKernel: what comes next lies in no buffer of ours, recvmsg() has it.
  virtual Result<ssize_t> lend(Pass&, LeaseCall&) { return kOnKernel; }
  /// A call has the error but reports something else: the next one does.
  virtual void keep_error(Pass&, Errno) {}

  /// O_NONBLOCK as the shadow has it (it is the truth: shared by dups and by fork); cached, refreshed by
  /// F_SETFL/FIONBIO.
  bool nonblocking = false;
  Duration receive_timeout{0};  ///< SO_RCVTIMEO; 0: none, negative: no wait (kNoWait)
  Duration send_timeout{0};     ///< SO_SNDTIMEO
  static constexpr Duration kNoWait{-1};
  /// A negative timeout was set, which the kernel shows as none.
  bool never_waits() const { return receive_no_wait_ || send_no_wait_; }

  /// The shadow's own close() may wait for the peer.
  virtual bool lingers_in_kernel() const { return false; }

  /// Why the socket must be the kernel's once its path is decided (an option that only the kernel serves);
  /// `accelerated`: no reason.
  Reason veto = Reason::accelerated;
  /// The veto, once it has been asked whether the socket is of the engine's network at all.
  Reason decide_veto(Pass& pass);

  PathChoice choice;  ///< the path and why, for `accel stat`
  virtual Endpoint local_endpoint() const = 0;
  virtual Endpoint remote_endpoint() const = 0;

  /// Decided: the kernel's, with nothing of it in the stack (`pass` may be nullptr then). It leaves the table
  /// and the answer is kOnKernel; or EPROTONOSUPPORT, where the setting `require` forbids that, and it stays
  /// undecided.
  Errno detach_undecided(Pass* pass, Reason reason);
  /// EPROTONOSUPPORT, and the reason on stderr, where the setting `require` forbids the kernel's path.
  static Result<void> may_use_kernel(Reason reason, const char* detail = "");
  /// Whether the setting `require` is content with `choice`; if not, what detach_undecided() answers.
  Result<void> check_required();
  /// Only the kernel serves `what` the program has asked for: the name of a socket option, of a flag of a
  /// call, or of another kind of call. Reason::option shows it.
  void veto_for(const char* what);
  static constexpr char kControlMessage[] = "a control message of sendmsg()";  ///< for veto_for()
  /// The same, at once.
  Result<void> detach_for(Pass& pass, const char* what);

  /// The shadow's own name; port 0: not bound.
  Endpoint shadow_name() const;
  /// An int option of the shadow; `otherwise` when it has none such.
  int shadow_option(int level, int name, int otherwise = 0) const;
  Duration shadow_timeout(int name) const;  ///< SO_RCVTIMEO or SO_SNDTIMEO
  void set_shadow_timeout(int name, Duration timeout) const { set_timeout_of(fd_, name, timeout); }
  static Duration timeout_of(int fd, int name);  ///< a negative one shows as none
  static void set_timeout_of(int fd, int name, Duration timeout);
  /// The shadow took SO_RCVTIMEO or SO_SNDTIMEO: a negative one it shows as none.
  void timeout_was_set(int name, const void* value);
  /// A connection's are its listener's.
  void inherit_timeouts(Duration receive, Duration send);
  /// Reads nonblocking and the timeouts from the shadow.
  void refresh_from_shadow();
  void refresh_nonblocking();
  /// A call that may wait is about to. O_NONBLOCK is the file's: another process may have set it meanwhile.
  bool may_wait() {
    if (elsewhere_too) refresh_nonblocking();
    return !nonblocking;
  }
  /// What selection needs of the shadow's options.
  FlowRequest flow_request(Role role, const Endpoint& local, const Endpoint& remote) const;

  /// Gives the socket up to the kernel for good: it leaves the table, its shadow serves. Live connections are
  /// handed back first (errors as Engine::hand_back, socket untouched).
  virtual Result<void> detach(Pass& pass, Reason reason) = 0;

 protected:
  /// What `reason` is about, for stats::note_kernel().
  uint8_t detail_of(Reason reason) const { return reason == Reason::option ? unserved_ : choice.detail; }

  bool shut_read_ = false, shut_write_ = false;  ///< note_shut()

 private:
  /// The connection's bytes are the shadow's: a call that blocks while the last descriptor is closed needs
  /// it.
  virtual bool carried_by_shadow() const { return false; }
  /// shadow() is another descriptor now; the former is open still.
  virtual void shadow_moved() {}
  int fd_;
  int domain_;
  bool receive_no_wait_ = false, send_no_wait_ = false;  ///< a negative timeout was set
  bool network_asked_ = false;
  uint8_t unserved_ = 0;     ///< veto_for()'s, by stats::note_detail()
  bool private_fd_ = false;  ///< fd_ is a duplicate of our own, which the program does not know
};

/// Other than `accelerated`: why sockets made from now on do not enter the table (posix/retire.cc).
extern std::atomic<Reason> sockets_stay_on_kernel;
inline bool sockets_stay() {
  return sockets_stay_on_kernel.load(std::memory_order_relaxed) != Reason::accelerated;
}

/// A TCP socket that has neither connected nor listened.
bool undecided(const File& file);

/// Socket behind a descriptor, or nullptr (not ours, or a set). Under a Pass.
Socket* find_socket(int fd);

}  // namespace accel::posix
