// What becomes of a connection in shared memory: its readiness, its end, its way back to the kernel.
#include "posix/shm_socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>

#include <climits>

#include "base/config.h"
#include "base/private_fds.h"
#include "base/real.h"
#include "base/socket_option.h"
#include "engine/stats.h"
#include "posix/epoll_set.h"
#include "posix/kernel_events.h"

namespace accel::posix {
namespace {

/// A ring stays full for so long before the kernel's buffers are used beside it.
constexpr Duration kStalls = 50ms;
/// So long after its last bytes a ring that has grown gives its memory back.
constexpr Duration kRests = 2s;
constexpr uint32_t kIn = EPOLLIN | EPOLLRDNORM, kOut = EPOLLOUT | EPOLLWRNORM;

}  // namespace

ShmSocket::ShmSocket(int fd, const ConnectionNames& names)
    : Socket(FileKind::kShm, fd, int_option(fd, SOL_SOCKET, SO_DOMAIN, AF_INET)),
      names_(names),
      number_(fd),
      link_(static_cast<File*>(this)) {
  link_.tcp = fd;
  choice = {PathKind::kKernel, Reason::same_host_pending, {}};
  refresh_from_shadow();
  low_water_ = static_cast<size_t>(std::max(shadow_option(SOL_SOCKET, SO_RCVLOWAT), 1));
}

ShmSocket::~ShmSocket() = default;

void ShmSocket::shadow_moved() {
  if (stage_ != Stage::kKernel) Engine::get()->links()->move_tcp(link_, shadow());
}

/// Tells the other end that something has changed: bytes for its sleeping reader, room, or a way.
void ShmSocket::ring() {
  if (stage_ != Stage::kOpen || link_.bell < 0)
    return;  // a byte of the meeting means that the memory is mapped
  Engine::get()->counters().add(Counter::shm_bells);
  real.send(link_.bell, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// ---- readiness ----

bool ShmSocket::kernel_is(short events) const {
  const auto asked = static_cast<uint16_t>(events);
  return (kernel_events(shadow(), asked) & asked) != 0;
}

/// The other end's process ended with bytes unread, of which the kernel does not know.
Errno ShmSocket::own_error() const {
  const bool unread = link_.rings && alone_ && fin_ && link_.rings->sender->used() > 0 &&
                      link_.rings->sender->way() != Sends::kKernel;
  const bool broken = link_.rings && (link_.rings->receiver->way() == Receives::kBroken ||
                                      link_.rings->sender->way() == Sends::kBroken);
  return (unread || broken) && !reset_told_ ? err(ECONNRESET) : Errno{};
}

/// What the other end has done meanwhile.
void ShmSocket::look() {
  if (!link_.rings) return;
  const bool was_broken = own_error() != Errno{};
  link_.rings->receiver->look();
  if (link_.rings->sender->look() == Sends::kReturning) (void)return_bytes();
  if (ending_ && link_.rings->sender->way() != Sends::kReturning) {
    ending_ = false;
    real.shutdown(shadow(), SHUT_WR);
  }
  const bool broken =
      link_.rings->receiver->way() == Receives::kBroken || link_.rings->sender->way() == Sends::kBroken;
  if (broken && !was_broken && !lost_) {
    Engine::get()->counters().add(Counter::shm_broken);
    real.shutdown(shadow(), SHUT_RDWR);
    lost_ = true;
  }
}

uint32_t ShmSocket::readiness() {
  if (stage_ == Stage::kKernel) return 0;
  if (link_.rings) link_.rings->receiver->look();  // the kernel's last byte may have been read meanwhile
  constexpr uint32_t kAll = POLLIN | POLLOUT | POLLRDHUP | POLLPRI | POLLRDNORM | POLLWRNORM;
  const bool by_rings = link_.rings && link_.rings->receiver->way() != Receives::kKernel &&
                        link_.rings->sender->way() == Sends::kRing && !lost_ && !fin_ && !alone_;
  uint32_t bits = 0;
  if (!by_rings) {
    bits = kernel_events(shadow(), kAll);
  }
  if (!link_.rings) return bits;
  const shm::Receiver& receiver = *link_.rings->receiver;
  const shm::Sender& sender = *link_.rings->sender;
  if (receiver.way() == Receives::kRing) {
    if (!alone_) bits &= ~kIn;
    if (receiver.available() >= low_water_) bits |= kIn;
  } else if (receiver.way() == Receives::kKernel && receiver.available() > 0 && readable() >= low_water_) {
    bits |= kIn;
  }
  if (receiver.ended() || read_shut_) bits |= kIn | EPOLLRDHUP;
  if (sender.way() == Sends::kRing && !alone_ && !lost_) {
    bits &= ~kOut;
    if (sender.writable()) bits |= kOut;
  } else if (sender.way() == Sends::kReturning) {
    bits &= ~kOut;
  }
  if (ending_) bits |= kOut;
  if (stage_ == Stage::kOpen && (bits & kOut) == 0) wait_for_room();  // as tcp_poll() sets SOCK_NOSPACE
  if (own_error() != Errno{}) bits |= kIn | kOut | EPOLLRDHUP | EPOLLHUP | EPOLLERR;
  return bits;
}

/// Somebody has found no room: he is told as soon as there is some.
void ShmSocket::wait_for_room() {
  told_ &= ~kOut;
  if (stage_ != Stage::kOpen || link_.rings->sender->way() != Sends::kRing) return;
  link_.rings->sender->expect_room();
  Engine& engine = *Engine::get();
  engine.links()->seen(link_);
  if (std::exchange(timed_, Timed::kStall) == Timed::kStall) return;
  taken_at_stall_ = link_.rings->sender->taken();
  engine.links()->set_deadline(link_, engine.pass_began() + kStalls);
}

/// SO_SNDBUF and SO_RCVBUF count the kernel's own memory as well: half of it is for bytes, as with
/// net.ipv4.tcp_adv_win_scale of 1.
void ShmSocket::set_buffers() {
  if (!link_.rings) return;
  const auto half = [this](int option) {
    return static_cast<uint32_t>(std::max(shadow_option(SOL_SOCKET, option), 2)) / 2;
  };
  link_.rings->sender->set_buffer(half(SO_SNDBUF));
  link_.rings->receiver->set_buffer(half(SO_RCVBUF));
}

/// The ring has grown: some time after the last bytes it is to be as small as at first.
void ShmSocket::watch_rest() {
  const shm::Sender& sender = *link_.rings->sender;
  if (timed_ != Timed::kNothing || sender.way() != Sends::kRing || !sender.has_grown()) return;
  timed_ = Timed::kRest;
  sent_at_rest_ = sender.bytes();
  Engine& engine = *Engine::get();
  // At moments that all such connections have in common.
  const Instant at = std::chrono::ceil<std::chrono::seconds>(engine.pass_began() + kRests);
  engine.links()->set_deadline(link_, at);
}

void ShmSocket::see_to_deadline() {
  if (std::exchange(timed_, Timed::kNothing) == Timed::kRest)
    see_to_rest();
  else
    see_to_stall();
}

/// Memory goes back where nothing was sent meanwhile and everything has been taken. What has not been is
/// looked for again with the next bytes.
void ShmSocket::see_to_rest() {
  shm::Sender& sender = *link_.rings->sender;
  if (sender.bytes() != sent_at_rest_) return watch_rest();
  shm::Mapping::give_back(sender.take_spare());
}

/// The time of a wait for room is over. Where the other end has taken nothing meanwhile, what follows goes by
/// the kernel, whose buffers hold more: two ends that write before they read would wait for each other.
void ShmSocket::see_to_stall() {
  shm::Sender& sender = *link_.rings->sender;
  if (sender.way() != Sends::kRing || sender.writable()) return watch_rest();
  if (sender.taken() != taken_at_stall_) return wait_for_room();
  if (!sender.leave()) return;
  Engine::get()->counters().add(Counter::shm_stalls);
  ring();
}

/// What has begun since the last time; `by_kernel`: the kernel tells of something.
uint32_t ShmSocket::edges(bool by_kernel) {
  const uint32_t bits = readiness();
  const uint64_t arrived =
      link_.rings ? link_.rings->receiver->bytes() + link_.rings->receiver->available() : 0;
  const bool more = by_kernel || std::exchange(arrived_, arrived) != arrived;
  arrived_ = arrived;
  const uint32_t fresh = bits & ~std::exchange(told_, bits);
  uint32_t edges = 0;
  if ((bits & kIn) != 0 && more) edges |= kReadable;
  if ((fresh & kOut) != 0) edges |= kWritable;
  if ((fresh & EPOLLRDHUP) != 0) edges |= kReadClosed;
  if ((fresh & EPOLLHUP) != 0) edges |= kHangUp;
  if ((fresh & EPOLLERR) != 0) edges |= kError;
  if ((bits & EPOLLPRI) != 0 && by_kernel) edges |= kUrgent;
  return edges;
}

void ShmSocket::decided(uint32_t) {
  retain();
  const bool tcp = std::exchange(link_.tcp_event, false);
  const bool bell = std::exchange(link_.bell_event, false);
  const bool late = std::exchange(link_.late, false);
  if (tcp) {
    fin_ = fin_ || kernel_is(POLLRDHUP);
    lost_ = lost_ || kernel_is(POLLHUP | POLLERR);
  }
  if (stage_ == Stage::kOpen) {
    if (bell && link_.bell >= 0) {
      char word;  // one for each sleep, as a rule; what is left is told again
      if (real.recv(link_.bell, &word, 1, MSG_DONTWAIT) == 0) {
        alone_ = true;
        drop_bell();
      }
      if (!alone_) Engine::get()->links()->heat(link_);
    }
    look();
    if (late) see_to_deadline();
  } else if (late) {
    Engine::get()->counters().add(Counter::shm_unmet);
    give_up(Reason::same_host_unmet);
  } else if (stage_ != Stage::kKernel) {
    while (see_to_meeting()) {
    }
  }
  // Both directions have gone back to the kernel: nothing keeps the connection.
  const bool over = stage_ == Stage::kOpen && link_.rings->sender->way() == Sends::kKernel && !ending_ &&
                    (link_.rings->receiver->declined() || (alone_ && link_.rings->receiver->left()));
  if (over) (void)to_kernel(Reason::same_host_left);
  if (stage_ != Stage::kKernel) {
    notify(edges(tcp));
    if (link_.rings) link_.note_told();
    if (stage_ == Stage::kOpen && (told_ & kOut) == 0) wait_for_room();
    if (stage_ == Stage::kOpen) Engine::get()->links()->seen(link_);
  }
  release(nullptr);
}

// ---- its end ----

bool ShmSocket::return_bytes() {
  shm::Sender& sender = *link_.rings->sender;
  while (sender.look() == Sends::kReturning) {
    const auto part = sender.unreturned();
    const ssize_t n = real.send(shadow(), part.data(), part.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EAGAIN) return false;
    sender.returned(n < 0 ? part.size() : static_cast<size_t>(n));  // an error: nobody is there to have them
  }
  return true;
}

bool ShmSocket::return_at_once() {
  if (return_bytes()) return true;
  const int most = INT_MAX / 2;
  if (real.setsockopt(shadow(), SOL_SOCKET, SO_SNDBUFFORCE, &most, sizeof most) != 0)
    real.setsockopt(shadow(), SOL_SOCKET, SO_SNDBUF, &most, sizeof most);
  return return_bytes();
}

/// Nothing more is to come of the link.
void ShmSocket::end_link() {
  shm::Poller& poller = *Engine::get()->links();
  drop_bell();
  poller.forget(link_);
  if (!link_.rings) return;
  Counters& counters = Engine::get()->counters();
  if (link_.rings->receiver) counters.add(Counter::shm_bytes_in, link_.rings->receiver->bytes());
  if (link_.rings->sender) counters.add(Counter::shm_bytes_out, link_.rings->sender->bytes());
  link_.rings.reset();
}

/// Both directions go on in the kernel. EOPNOTSUPP: bytes are here that only this process can give out, or
/// take back.
Result<void> ShmSocket::to_kernel(Reason reason) {
  if (stage_ == Stage::kKernel) return {};
  if (stage_ == Stage::kOpen) {
    look();
    if (!return_at_once() || !link_.rings->receiver->decline()) return err(EOPNOTSUPP);
    // The other end may have declined as well. Then its bytes go first, and decided() comes here again.
    if (!link_.rings->sender->leave() && !return_at_once()) return err(EOPNOTSUPP);
    Engine::get()->counters().add(Counter::shm_left);
  } else if (!may_give_up()) {
    return err(EOPNOTSUPP);
  }
  retain();
  leave_table(reason);
  release(nullptr);
  return {};
}

/// The child has no part in what could not leave.
File::Inherited ShmSocket::after_fork_in_child() {
  stage_ = Stage::kKernel;
  if (link_.bell >= 0) close_private(std::exchange(link_.bell, -1));
  return Inherited::kNo;
}

void ShmSocket::on_last_close(Pass* pass) {
  if (stage_ == Stage::kKernel || pass == nullptr) return;
  if (link_.rings) {
    look();
    shm::Receiver& receiver = *link_.rings->receiver;
    const bool unread = receiver.way() != Receives::kEnd && readable() > 0;
    linger how{};
    socklen_t size = sizeof how;
    (void)real.getsockopt(shadow(), SOL_SOCKET, SO_LINGER, &how, &size);
    const auto reset = [&] {
      how = {1, 0};
      real.setsockopt(shadow(), SOL_SOCKET, SO_LINGER, &how, sizeof how);
    };
    if (!return_at_once() || unread) reset();
    // Behind the ring's bytes comes the kernel's reset, or the end. Where the other end has declined the ring
    // meanwhile its bytes go by the kernel.
    const bool resets = how.l_onoff != 0 && how.l_linger == 0;
    const bool ends = resets ? link_.rings->sender->leave() : link_.rings->sender->end();
    if (!ends && !return_at_once()) reset();
    (void)receiver.decline();
  }
  end_link();
  stage_ = Stage::kKernel;
}

Result<int> ShmSocket::connect(Pass& pass, const sockaddr* address, socklen_t length) {
  if (is_unspecified(address, length))
    if (Result<void> r = detach(pass, Reason::same_host_left); !r) return r.error();
  return kOnKernel;
}

Result<int> ShmSocket::shutdown(Pass& pass, int how) {
  if (stage_ == Stage::kKernel) return kOnKernel;
  if (how < SHUT_RD || how > SHUT_RDWR) return err(EINVAL);
  if (stage_ == Stage::kOpen && how != SHUT_RD) {
    look();
    // Bytes that are to be returned go before the kernel's FIN, and this call does not wait.
    ending_ = ending_ || (!link_.rings->sender->end() && !return_at_once());
  }
  const int now = ending_ && how == SHUT_RDWR ? SHUT_RD : how;
  Result<int> r = ending_ && how == SHUT_WR ? Result<int>(0) : from_libc(real.shutdown(shadow(), now));
  if (r && how != SHUT_WR) read_shut_ = true;
  ring();
  notify(kReadable | kWritable | kReadClosed | kHangUp);
  pass.engine().touch();
  return r;
}

}  // namespace accel::posix
