// A TCP connection between two processes of this host, which share memory for its bytes, or are about to. The
// kernel's connection stays below it: its names, options, errors and end are the connection's. See
// docs/design/same_host.md.
#pragma once

#include "posix/shm_meeting.h"
#include "posix/socket.h"
#include "shm/poller.h"

namespace accel::posix {

class ShmSocket final : public Socket {
 public:
  /// `fd`: the kernel serves it, and it is a connection.
  ShmSocket(int fd, const ConnectionNames& names);
  ~ShmSocket() override;
  /// It is in the table. The file may be gone afterwards.
  void begin(Pass& pass);

  // shm_socket.cc
  uint32_t readiness() override;
  int kernel_fd() override { return stage_ == Stage::kKernel ? shadow() : -1; }
  void on_last_close(Pass* pass) override;
  bool carries_connection() const override { return stage_ != Stage::kKernel; }
  Inherited after_fork_in_child() override;
  void decided(uint32_t edges) override;
  Result<void> detach(Pass& pass, Reason reason) override;
  Result<int> bind(Pass&, const sockaddr*, socklen_t) override { return kOnKernel; }
  Result<int> connect(Pass& pass, const sockaddr* address, socklen_t length) override;
  Result<int> listen(Pass&, int) override { return kOnKernel; }
  Result<int> accept(Pass&, sockaddr*, socklen_t*, int) override { return kOnKernel; }
  Result<int> shutdown(Pass& pass, int how) override;
  Result<int> getsockname(Pass&, sockaddr*, socklen_t*) override { return kOnKernel; }
  Result<int> getpeername(Pass&, sockaddr*, socklen_t*) override { return kOnKernel; }
  Endpoint local_endpoint() const override { return names_.local; }
  Endpoint remote_endpoint() const override { return names_.remote; }
  bool lingers_in_kernel() const override { return true; }

  // shm_options.cc
  Result<int> getsockopt(Pass&, int level, int name, void* value, socklen_t* length) override;
  Result<int> setsockopt(Pass& pass, int level, int name, const void* value, socklen_t length) override;
  void option_was_set(int level, int name, const void* value, socklen_t length) override;
  Result<int> ioctl(Pass& pass, unsigned long request, void* argument) override;
  Result<int> map_received(void* value, socklen_t* length);
  Result<int> connection_info(void* value, socklen_t* length);

  // shm_transfer.cc
  Result<ssize_t> recvmsg(Pass& pass, msghdr* message, int flags) override;
  Result<ssize_t> sendmsg(Pass& pass, const msghdr* message, int flags) override;

  /// The host's packet filters have changed.
  void follow_filters(Pass& pass);

  /// For `accel stat`.
  bool is_open() const { return stage_ == Stage::kOpen; }
  const shm::Link& link() const { return link_; }

 private:
  /// Of the meeting; what each stage waits for.
  enum class Stage : uint8_t {
    kAlone,     ///< calls of the kernel's that are under way, or a name
    kListens,   ///< the other end, at the name
    kAccepted,  ///< its proof
    kOffered,   ///< its word that it has the memory
    kJoined,    ///< its proof, and the memory
    kOpen,      ///< nothing: bytes may go by the rings
    kKernel,    ///< it has left the table
  };
  using Receives = shm::Receiver::Way;
  using Sends = shm::Sender::Way;

  // shm_socket.cc
  void leave_table(Reason reason);
  void stay_candidate();
  Result<void> to_kernel(Reason reason);
  void ring();
  void look();
  uint32_t edges(bool by_kernel);
  void wait_for_room();
  void watch_rest();
  void see_to_deadline();
  void see_to_stall();
  void see_to_rest();
  void set_buffers();
  bool kernel_is(short events) const;
  Errno own_error() const;
  /// What shutdown(), close() and a way back to the kernel begin with: bytes that the other end did not take
  /// go by the kernel. False: it takes no more now.
  bool return_bytes();
  /// The same, where nobody will come again: the kernel's buffer is made as large as it may be.
  bool return_at_once();
  void end_link();

  // shm_steps.cc
  void meet();
  bool see_to_meeting();
  bool hear();
  bool offer();
  bool take_offer();
  bool open_rings();
  void give_up(Reason reason);
  bool may_give_up();
  bool refuse();
  void set_bell(int fd);
  void drop_bell();

  // shm_transfer.cc
  Result<void> settle(Pass& pass);
  Result<size_t> take(msghdr& message, size_t size, size_t got, int flags);
  std::optional<Result<size_t>> take_from_kernel(msghdr& message, size_t size, size_t got, int flags);
  Result<size_t> take_from_ring(msghdr& message, size_t size, size_t got, int flags);
  size_t copy_of_ring(msghdr& message, size_t size, size_t skip, int flags);
  bool may_be_more(size_t seen);
  Result<size_t> put(const msghdr& message, size_t size, size_t done, int flags);
  Result<size_t> put_into_ring(const msghdr& message, size_t done);
  size_t readable() const;

  void shadow_moved() override;
  bool carried_by_shadow() const override { return stage_ != Stage::kKernel; }

  const ConnectionNames names_;
  const int number_;  ///< by which it was a candidate
  shm::Link link_;
  Stage stage_ = Stage::kAlone;
  bool lost_ = false;     ///< the kernel's connection has failed, or both its directions have ended
  bool fin_ = false;      ///< the kernel tells that the other end has ended
  bool alone_ = false;    ///< the other end of the bell has gone
  bool ending_ = false;   ///< shutdown() of writing, once the bytes have been returned
  uint32_t told_ = 0;     ///< readiness, as told last
  uint64_t arrived_ = 0;  ///< bytes that had come into the ring then
  bool read_shut_ = false;
  bool reset_told_ = false;
  size_t low_water_ = 1;  ///< SO_RCVLOWAT
  /// The purpose of the link's deadline once the link is open.
  enum class Timed : uint8_t { kNothing, kStall, kRest };
  Timed timed_ = Timed::kNothing;
  uint64_t taken_at_stall_ = 0;  ///< bytes that the other end had taken as that began
  uint64_t sent_at_rest_ = 0;    ///< bytes that had been sent as that began
};

}  // namespace accel::posix
