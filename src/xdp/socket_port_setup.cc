// Opening and closing a port; frames are in socket_port.cc.
#include <bpf/libbpf.h>
#include <poll.h>
#include <sched.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <xdp/libxdp.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <ctime>

#include "operators/operators.h"
#include "xdp/module.h"
#include "xdp/netdev.h"
#include "xdp/socket_port.h"

namespace accel::xdp {
namespace {

/// The kernel frees the queue of a closed socket a moment later (xsk_buff_pool.c, xp_release_deferred): by a
/// kernel thread that waits for a grace period and the lock of all devices, which takes seconds where many
/// network namespaces come and go. Another process's queue_is_bound() has it for a moment.
constexpr timespec kSettlePause{0, 2'000'000};
/// Where the kernel copies frames: buffers of each queue, and those that all share, for sending and for
/// frames that stay with the stack for a while. A device of one queue: 1.5 MiB, or 3 MiB with buffers of
/// 4096 bytes.
constexpr uint32_t kQueueFrames = 512, kSharedFrames = 256;
/// Receive buffers that a queue keeps, however small its bursts.
constexpr uint32_t kFillLeast = 512;
/// A ring as long as this is to hold all that comes while the program does not look: it keeps its buffers.
constexpr uint32_t kLongRing = 8192;
/// RLIMIT_MEMLOCK may allow less, and other ports may have taken the region; with fewer than this the port
/// would only drop.
constexpr uint32_t kLeastFrames = 128;
constexpr int kSettlePasses = 250;
/// Without a queue there is no port at all.
constexpr int kSettlePassesForOne = 2500;

Errno fail(std::string* why, int error, const std::string& text) {
  if (why) *why = text;
  return err(error);
}

/// Both libraries print on stderr, which is the application's. It may use them too, so its callbacks come
/// back.
class Quiet {
 public:
  Quiet() : bpf_(libbpf_set_print(nullptr)), xdp_(libxdp_set_print(nullptr)) {}
  ~Quiet() {
    libbpf_set_print(bpf_);
    libxdp_set_print(xdp_);
  }
  Quiet(const Quiet&) = delete;

 private:
  libbpf_print_fn_t bpf_;
  libxdp_print_fn_t xdp_;
};

uint32_t random_owner() {
  uint32_t owner = 0;
  while (owner == 0)
    if (getrandom(&owner, sizeof(owner), 0) != sizeof(owner)) owner = 0;
  return owner;
}

}  // namespace

Result<std::unique_ptr<XdpPort>> SocketPort::open(const XdpOptions& options, FramePool& pool,
                                                  std::string* why) {
  try {
    Quiet quiet;
    note_descriptor = options.note_descriptor;
    std::unique_ptr<SocketPort> port(new SocketPort(options, pool));
    if (auto ready = port->set_up(why); !ready) return ready.error();
    return std::unique_ptr<XdpPort>(std::move(port));
  } catch (const std::bad_alloc&) {
    return err(ENOMEM);
  }
}

Result<void> SocketPort::set_up(std::string* why) {
  if (auto planned = plan(why); !planned) return planned;
  auto program = Program::join(
      {info_.ifindex, info_.name, options_.flow_table, options_.force_generic, options_.native_only}, why);
  if (!program) return program.error();
  program_ = *program;
  flows_.emplace(program_, info_.ifindex, random_owner());
  passed_before_ = flows_->counter(ACCEL_XDP_PASSED);
  if (may_be_passed_by_) device_table_ = open_device_table();
  received_before_ = frames_received(device_table_, info_.name).value_or(0);
  if (!options_.even_if_held && all_queues_in_use()) return no_queue(why);
  info_.tso = info_.tso && options_.segmentation && segments_.open(info_.ifindex);
  next_ = std::make_unique<Queue>();
  if (auto registered = register_frames(why); !registered) return registered;
  allow_sends(next_->fd);
  if (options_.without_queue) return hide_rings_from_children(*next_, umem_.rings, why);
  return take_queues(why);
}

/// As many as planned, or as RLIMIT_MEMLOCK allows.
Result<void> SocketPort::register_frames(std::string* why) {
  for (;;) {
    umem_.region = pool_.bytes(frames_);
    auto created = create_umem(umem_, *next_, info_.name, why);
    const uint32_t fewer = frames_.count / 2;
    if (created || !created.is(ENOBUFS) || fewer < kLeastFrames) return created;
    release_frames();
    frames_ = pool_.reserve(fewer);
    if (frames_.count < kLeastFrames) return created;
  }
}

void SocketPort::release_frames() {
  if (std::exchange(has_frames_, false)) pool_.take_back(frames_);
  if (frames_.id != 0) pool_.unreserve(frames_);
  frames_ = {};
}

Result<void> SocketPort::take_queues(std::string* why) {
  if (auto bound = bind_queues(why); !bound) return bound;
  if (frames_.id != 0) pool_.give_to_port(frames_);
  has_frames_ = frames_.id != 0;
  if (pool_.available(frames_) < std::min(kLeastFrames, frames_.count / 2))  // leases and sockets have them
    return fail(why, ENOBUFS, "the program holds the packet buffers of " + info_.name + "'s port");
  divide(info_.queues_held);
  for (auto& queue : queues_) {
    allow_sends(queue->fd);
    if (auto hidden = hide_rings_from_children(*queue, umem_.rings, why); !hidden) return hidden;
    queue->fill_level = frames_.id == 0 ? fill_target_ : std::min(fill_target_, queue_frames_);
    refill(*queue);
    if (auto claimed = claim(*queue); !claimed)
      return fail(why, static_cast<int>(claimed.error()), "cannot enter a socket in the XDP program's map");
  }
  flows_->purge();
  if (info_.zero_copy) {
    info_.tso = false;
    segments_.close();
  }
  return {};
}

Result<void> SocketPort::claim(const Queue& queue) {
  if (!flows_->sealed()) return flows_->claim(queue.id, queue.fd);
  if (options_.claim_queue == nullptr) return err(EPERM);
  return options_.claim_queue(flows_->owner(), queue.id, queue.fd);
}

/// Sizes, and what the kernel is asked for.
Result<void> SocketPort::plan(std::string* why) {
  auto device = describe_netdev(options_.netdev, why);
  if (!device) return device.error();
  info_ = device->info;
  if (options_.copy == XdpCopy::kAuto && !options_.native_only)
    options_.force_generic |= device->generic_is_faster;
  may_be_passed_by_ = device->veth;
  const uint32_t buffer = pool_.buffer_size();
  if (buffer != 2048 && buffer != 4096)
    return fail(why, EINVAL, "AF_XDP needs buffers of 2048 or 4096 bytes");
  if (!std::has_single_bit(options_.rx_ring) || !std::has_single_bit(options_.tx_ring))
    return fail(why, EINVAL, "AF_XDP ring sizes must be powers of two");
  if (options_.copy == XdpCopy::kForceCopy) bind_flags_ |= XDP_COPY;
  if (options_.copy == XdpCopy::kForceZeroCopy) bind_flags_ |= XDP_ZEROCOPY;
  if (info_.mtu > one_buffer()) bind_flags_ |= XDP_USE_SG;

  const uint32_t wanted =
      options_.queues == 0 ? info_.queues_total : std::min(options_.queues, info_.queues_total);
  const bool copied =
      options_.virtual_device || options_.force_generic || options_.copy == XdpCopy::kForceCopy;
  // A longer ring than usual is asked for by who expects such bursts.
  queue_frames_ = options_.rx_ring > XdpOptions{}.rx_ring ? options_.rx_ring : kQueueFrames;
  const uint32_t needed = wanted * queue_frames_ + kSharedFrames;
  frames_ = copied && needed < pool_.size() ? pool_.reserve(needed) : pool_.whole();
  if (frames_.count < std::min(kLeastFrames, pool_.size()))
    return fail(why, ENOBUFS, "the ports of other devices have all packet buffers: raise the setting frames");
  divide(wanted);
  if (fill_target_ < 16) return fail(why, EINVAL, "the frame pool is too small for that many queues");
  umem_.buffer_size = buffer;
  umem_.rings = ring_sizes();
  lent_.resize(pool_.size());
  return {};
}

/// No longer than the UMEM's buffers can fill. A port that gets fewer queues than it asked for gives more of
/// them to each.
RingSizes SocketPort::ring_sizes() const {
  const uint32_t rx = std::min(options_.rx_ring, std::bit_ceil(frames_.count / 4 * 3));
  const uint32_t sent = std::min(options_.tx_ring * 4, std::bit_ceil(frames_.count / 2));
  return {rx, sent, rx, std::min(options_.tx_ring, sent)};
}

/// The UMEM's buffers among receiving and sending.
void SocketPort::divide(uint32_t queues) {
  reserve_ = frames_.count / 8;
  const bool all = frames_.id == 0;
  fill_target_ = std::min(options_.rx_ring, (all ? frames_.count / 2 : frames_.count / 4 * 3) / queues);
  fill_least_ = options_.rx_ring >= kLongRing ? fill_target_ : kFillLeast;
  // In copy mode a completion may wait for the receiver to consume the frame, so a queue may have more frames
  // under way than its ring has descriptors; the completion ring bounds what the kernel accepts.
  tx_limit_ = std::min(options_.tx_ring * 4, frames_.count / 2);
  // Above the reserve by more than a burst, or what the stack keeps would take the place of what the ring is
  // to have.
  move_below_ = all ? 0 : frames_.count / 4;
}

/// The MTU whose frames one buffer holds.
uint32_t SocketPort::one_buffer() const { return pool_.buffer_size() - kBufferOverhead; }

uint32_t SocketPort::mtu_most() const { return (bind_flags_ & XDP_USE_SG) != 0 ? UINT32_MAX : one_buffer(); }

/// Asked before the frames are registered, which takes tens of milliseconds: the children of a server that
/// forks for each peer find it so every time.
bool SocketPort::all_queues_in_use() const {
  for (uint32_t id = 0; id < info_.queues_total; ++id)
    if (!flows_->in_use(id)) return false;
  return true;
}

Errno SocketPort::no_queue(std::string* why) const {
  return fail(
      why, EBUSY,
      "all " + std::to_string(info_.queues_total) + " queues of " + info_.name +
          " are held by other AF_XDP sockets: give the device more (ethtool -L), or fewer to each process");
}

Result<void> SocketPort::bind_queues(std::string* why) {
  const uint32_t wanted =
      options_.queues == 0 ? info_.queues_total : std::min(options_.queues, info_.queues_total);
  std::vector<bool> held(info_.queues_total);
  bool settling = true;
  for (int pass = 0; queues_.size() < wanted && settling; ++pass) {
    if (pass > 0) nanosleep(&kSettlePause, nullptr);
    settling = false;
    for (uint32_t id = 0; id < info_.queues_total && queues_.size() < wanted; ++id) {
      if (held[id]) continue;
      next_->id = id;
      auto bound = bind_one(*next_, why);
      if (bound.is(EBUSY)) {
        const int passes = queues_.empty() ? kSettlePassesForOne : kSettlePasses;
        settling |= pass < passes && !flows_->in_use(id);
        continue;
      }
      if (!bound) return bound;
      held[id] = true;
      queue_ids_.push_back(id);
      fds_.push_back(next_->fd);
      queues_.push_back(std::move(next_));
      next_ = std::make_unique<Queue>();
    }
  }
  if (queues_.empty()) return no_queue(why);
  info_.queues_held = static_cast<uint32_t>(queues_.size());
  info_.told_by_call = true;
  info_.zero_copy = std::all_of(queues_.begin(), queues_.end(), [](auto& q) { return is_zero_copy(*q); });
  return {};
}

Result<void> SocketPort::bind_one(Queue& queue, std::string* why) {
  auto bound = bind_queue(umem_, queue, {info_.name, bind_flags_}, why);
  if (bound.is(EINVAL) && bind_flags_ & XDP_USE_SG)
    return fail(why, EINVAL,
                "the MTU of " + info_.name +
                    " is above what a buffer holds, and the kernel (before 6.6) has no "
                    "multi-buffer AF_XDP: lower the MTU");
  return bound;
}

/// Copy mode charges frames under way to the send buffer; the default would stop us at about a hundred.
void SocketPort::allow_sends(int fd) {
  const auto bytes =
      static_cast<int>(std::min<uint64_t>(uint64_t{tx_limit_} * (umem_.buffer_size + 1024), INT_MAX / 2));
  if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof(bytes)) == 0) return;
  int allowed = 0;
  socklen_t length = sizeof(allowed);
  // Without privilege it could only lower what was allowed with it; the kernel says twice what was asked for.
  if (getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &allowed, &length) == 0 && allowed / 2 < bytes)
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

SocketPort::~SocketPort() {
  while (tellers_.load(std::memory_order_acquire) != 0) sched_yield();
  take_back_untold();
  if (flows_) {
    for (auto& queue : queues_) {
      flows_->disclaim(queue->id);
      // What was accepted leaves before the socket goes. In copy mode it has left.
      for (int rounds = 0; rounds < 100 && queue->kick; ++rounds) {
        tell_kernel(*queue);
        poll(nullptr, 0, queue->kick ? 1 : 0);
      }
    }
    flows_->remove_all();
  }
  for (auto& queue : queues_) {
    FramePool::release(queue->chain);
    if (queue->handle) note(queue->fd, false);
    if (queue->handle) xsk_socket__delete(queue->handle);
  }
  if (umem_.handle) {
    note(xsk_umem__fd(umem_.handle), false);
    xsk_umem__delete(umem_.handle);
  }
  for (uint32_t i = 0; i < lent_.size(); ++i)
    if (lent_[i]) {
      pool_.at(i)->more = nullptr;
      FramePool::release(pool_.at(i));
    }
  release_frames();
}

Result<PortRights> SocketPort::entrust(std::string* why) {
  if (!flows_) return err(EIO);
  if (flows_->sealed()) return err(EPERM);
  const Quiet quiet;
  if (flows_->ends() < 0)
    if (auto made = flows_->make_writer(why); !made) return made.error();
  return PortRights{flows_->owner(),
                    info_.ifindex,
                    {program_->link(), program_->xsks(), program_->owners(), flows_->ends()}};
}

void SocketPort::seal() {
  if (!flows_ || flows_->ends() < 0) return;
  flows_->seal();
  Program::forget_inherited();
  program_->let_go();
}

void SocketPort::abandon_in_child() {
  // libxdp's delete functions would unmap rings that this child does not have (MADV_DONTFORK): only close.
  for (auto& queue : queues_) {
    note(queue->fd, false);
    ::close(queue->fd);
    queue->handle = nullptr;
    FramePool::release(queue->chain);
    queue->chain = nullptr;
  }
  telling_ = kNobody;  // threads of the parent's
  tellers_ = 0;
  segments_.close();
  // The UMEM's descriptor is the first socket's, closed above if there is one.
  if (queues_.empty() && umem_.handle) {
    note(xsk_umem__fd(umem_.handle), false);
    ::close(xsk_umem__fd(umem_.handle));
  }
  umem_.handle = nullptr;
  queues_.clear();
  fds_.clear();
  flows_.reset();
  if (program_->link() >= 0) Program::keep_inherited(program_);
  failure_ = "the port belongs to the parent process";
}

}  // namespace accel::xdp

const accel::xdp::Module accel_xdp_module = {{accel::xdp::kModuleAbi, &accel::memory::calls},
                                             &accel::xdp::SocketPort::open,
                                             &accel::xdp::open_accept_queue,
                                             &accel::xdp::Program::forget_inherited};
