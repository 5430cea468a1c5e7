#include "model/front/context.h"

#include <infiniband/mlx5dv.h>
#include <netinet/in.h>
#include <rdma/ib_user_verbs.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>

#include "model/front/environment.h"
#include "model/front/privileged.h"
#include "model/front/raw.h"

namespace model {
namespace {

std::atomic<unsigned> contexts{0};

constexpr char kWantsHeaders[] = "1013";  // ConnectX-4

DeviceLimits limits_of(const Environment& e) {
  DeviceLimits limits;
  if (e.part == kWantsHeaders) limits.min_inline = 18;  // Ethernet with a VLAN tag
  if (!e.rules.empty()) limits.rules = strtoul(e.rules.c_str(), nullptr, 10);
  limits.real_time = e.clock == "real";
  return limits;
}

constexpr size_t kDoorbellArm = 0x20;
constexpr size_t kBlueFlameFirst = 0x800, kBlueFlameLast = 0xc00, kBlueFlameHalf = kBlueFieldBytes;
constexpr unsigned kFramesPerTurn = 128;
constexpr uint64_t kLookEvery = 10'000'000;
constexpr uint64_t kWait = 20'000, kWaitIdle = 100'000, kWaitUnused = 1'000'000, kIdleAfter = 200'000'000;

uint64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

}  // namespace

Context::Context() : device_(checker_, *this, limits_of(environment())), report_(contexts++) {
  checker_.on_violation = [this](const Violation& v) {
    ++device_.counters().violations;
    report_.violation(v);
  };
}

Context::~Context() {
  if (abandoned_) return;
  stop_ = true;
  if (engine_.joinable()) engine_.join();
  device_.counters().tap_drops += port_.lost();
  device_.close();
  report_.publish(device_.counters());
  for (auto& [fd, channel] : channels_) raw::close(channel.write);
  for (const UarPage& u : uars_) {
    if (u.mine != nullptr) raw::munmap(u.mine, kPage);
  }
  if (clock_memory_ != nullptr) raw::munmap(clock_memory_, 2 * kPage);
  if (uar_memory_ >= 0) raw::close(uar_memory_);
  if (async_write_ >= 0) raw::close(async_write_);
  for (const int fd : {asking_, kernel4_, kernel6_})
    if (fd >= 0) raw::close(fd);
}

void Context::abandon() {
  abandoned_ = true;
  steals_.close();
  claims_.abandon();
  shared_.close();
  port_.close();
  for (auto& [fd, channel] : channels_) raw::close(channel.write);
  if (async_write_ >= 0) raw::close(async_write_);
}

int Context::start() {
  if (started_) return EINVAL;
  uar_memory_ = raw::keep(static_cast<int>(raw::call(SYS_memfd_create, raw::word("mlx5-uar"), MFD_CLOEXEC)));
  if (uar_memory_ < 0) return -uar_memory_;
  raw::call(SYS_ftruncate, uar_memory_, kPages * kPage);
  void* clock = raw::mmap(2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, uar_memory_, kClockInfoPage * kPage);
  if (raw::failed(clock)) return ENOMEM;
  clock_memory_ = static_cast<uint8_t*>(clock);
  clock_.place(clock_memory_, clock_memory_ + kPage);
  clock_.tick(now());
  clock_.set_parameters(now());
  keep_privileges();
  // Without the privilege for packet sockets the device can be asked, but nothing goes in or out: as a NIC
  // without a cable.
  steals_open_ = steals_.open(environment().netdev).ok();
  if (auto port = PacketPort::open(environment().netdev, steals_.mark())) port_ = std::move(*port);
  shared_.open();
  asking_ = raw::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  kernel4_ = raw::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW);
  kernel6_ = raw::socket(AF_INET6, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW);
  const Netdev dev = ask_netdev(asking_);
  device_.set_mtu(dev.mtu);
  carrier_ = dev.running;
  asked_ = control_.read();
  asked_.removed = asked_.stalled = 0;
  if (auto faults = parse_faults(environment().faults)) {
    if (!environment().faults.empty()) device_.set_faults(*faults);
  } else {
    checker_.report("faults", "MLX5_MODEL_FAULTS is not understood: " + environment().faults);
  }
  ++device_.counters().contexts;
  started_ = true;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the application's signals are its own threads'
  engine_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return 0;
}

void Context::run() {
  be_hardware();
  uint64_t busy = now();
  unsigned without_rest = 0;
  while (!stop_) {
    bool worked, unused;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      worked = turn();
      unused = stolen_.empty();
    }
    const uint64_t time = now();
    if (worked) busy = time;
    while (waiting_ != 0 && !stop_) raw::sleep(kWait);       // a control call has the device
    const uint64_t share = kWait * (1 + sharing_contexts_);  // of few CPUs
    pollfd port{port_.fd(), POLLIN, 0};
    const bool idle = time - busy > kIdleAfter;
    // Every process on the netdev has such a thread: those without a rule must not take the CPUs from the
    // rest.
    const int ready = raw::poll(&port, 1, !idle ? share : unused ? kWaitUnused : kWaitIdle + share);
    // A port that is always ready must not keep the applications, whose priority is lower, off the CPU.
    without_rest = ready > 0 ? without_rest + 1 : 0;
    if (without_rest > 16 / (1 + sharing_contexts_)) {
      raw::sleep(share);
      without_rest = 0;
    }
  }
}

/// One turn of the hardware: frames in, doorbells, descriptors out.
bool Context::turn() {
  bool worked = false;
  const uint64_t time = now();
  follow_control();
  if (time >= next_look_) {
    next_look_ = time + kLookEvery;
    look_around();
  }
  worked |= receive(kFramesPerTurn);
  worked |= take_writes();
  while (device_.step(now())) worked = true;
  clock_.tick(now());
  publish();
  return worked;
}

void Context::settle() {
  if (!owned() || !started_) return;
  const Call one(*this);
  const Quiet quiet(*this);
  while (turn()) {
  }
}

void Context::publish() {
  device_.count_gauges();
  report_.publish(device_.counters());
}

/// Frames that have come, `most` of them.
bool Context::receive(unsigned most) {
  for (unsigned i = 0; i < most; ++i) {
    const auto frame = port_.receive();
    if (frame.empty()) return i != 0;
    if (shared_.changed()) follow_others();
    if (device_.removed() || device_.steers(frame))
      device_.rx(frame, now());
    else
      give_to_kernel(frame);
  }
  return true;
}

void Context::give_to_kernel(std::span<const uint8_t> frame) {
  const Parsed p = parse(frame);
  if (p.l3 == L3::kNone) return;
  const uint8_t* packet = frame.data() + p.l3_at;
  sockaddr_in to4{};
  sockaddr_in6 to6{};
  to4.sin_family = AF_INET;
  to6.sin6_family = AF_INET6;
  memcpy(&to4.sin_addr, packet + 16, 4);
  memcpy(&to6.sin6_addr, packet + 24, 16);
  const bool v4 = p.l3 == L3::kIpv4;
  raw::call(SYS_sendto, v4 ? kernel4_ : kernel6_, raw::word(packet), p.end - p.l3_at, MSG_DONTWAIT,
            v4 ? raw::word(&to4) : raw::word(&to6), v4 ? sizeof to4 : sizeof to6);
}

void Context::follow_others() {
  device_.set_others(shared_.others());
  sharing_contexts_ = shared_.sharing_contexts();
}

/// What changes outside: the carrier, the MTU, frames that the tap lost.
void Context::look_around() {
  device_.counters().tap_drops += port_.lost();
  follow_others();  // one may have ended
  clock_.set_parameters(now());
  const Netdev dev = ask_netdev(asking_);
  device_.set_mtu(dev.mtu);
  if (dev.running == carrier_) return;
  carrier_ = dev.running;
  async_event(carrier_ ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, 1);
}

void Context::follow_control() {
  const ControlPage page = control_.read();
  if (page.removed != 0 && asked_.removed == 0) {
    device_.remove();
    // What it steered stays lost, as with the netdev of a NIC that was pulled, until the program gives the
    // rule or the file up: the kernel would else answer for connections that it does not have yet.
    async_event(IBV_EVENT_DEVICE_FATAL, 0);
  }
  device_.stall_completions(page.stalled != 0);
  if (page.send_errors != asked_.send_errors) device_.inject_errors(MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, true);
  if (page.receive_errors != asked_.receive_errors)
    device_.inject_errors(MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, false);
  asked_ = page;
}

void Context::async_event(uint32_t type, uint64_t element) {
  const ib_uverbs_async_event_desc event{element, type, 0};
  ++device_.counters().async_events;
  raw::write(async_write_, &event, sizeof event);
}

bool Context::take_writes() {
  bool found = false;
  for (uint32_t i = 0; i < kUars; ++i) {
    if (uars_[i].used) found |= scan(i);
  }
  return found;
}

bool Context::scan(uint32_t uar) {
  bool found = false;
  auto* page = uars_[uar].mine;
  auto* arm = reinterpret_cast<uint64_t*>(page + kDoorbellArm);
  if (__atomic_load_n(arm, __ATOMIC_RELAXED) != 0) {
    device_.arm_written(uar, be64toh(__atomic_exchange_n(arm, 0, __ATOMIC_ACQ_REL)));
    found = true;
  }
  for (size_t at = kBlueFlameFirst; at < kBlueFlameLast; at += kBlueFlameHalf) {
    auto* reg = reinterpret_cast<uint64_t*>(page + at);
    if (__atomic_load_n(reg, __ATOMIC_RELAXED) == 0) continue;
    take_doorbell(uar, at);
    found = true;
  }
  return found;
}

/// Takes one doorbell. A driver that copied the descriptor wrote bytes behind the first eight: they are
/// cleared, so that later plain doorbells are told from copies.
void Context::take_doorbell(uint32_t uar, size_t at) {
  constexpr size_t kBlock = 64, kUnit = 16;
  uint8_t* reg = uars_[uar].mine + at;
  std::array<uint8_t, kBlueFieldBytes>& before = uars_[uar].before[(at - kBlueFlameFirst) / kBlueFlameHalf];
  auto* word = reinterpret_cast<uint64_t*>(reg);
  uint64_t value = __atomic_load_n(word, __ATOMIC_ACQUIRE);
  std::array<uint8_t, kBlueFieldBytes> bytes;
  memcpy(bytes.data() + 8, reg + 8, bytes.size() - 8);
  memset(reg + 8, 0, bytes.size() - 8);
  // Rung again meanwhile: of the newer one only the first word is sure.
  const bool alone = __atomic_compare_exchange_n(word, &value, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  if (!alone) value = __atomic_exchange_n(word, 0, __ATOMIC_ACQ_REL);
  memcpy(bytes.data(), &value, 8);
  const bool copied = alone && std::any_of(bytes.begin() + 8, bytes.end(), [](uint8_t b) { return b != 0; });
  const size_t units = load32(bytes.data() + 4) & 0x3f;  // the control segment's ds
  const size_t whole = std::min((units * kUnit + kBlock - 1) / kBlock * kBlock, bytes.size());
  device_.doorbell({uar, {bytes.data(), copied ? std::max(whole, kBlock) : 8}, true, before});
  device_.announced_block(value, before);
}

void Context::transmit(std::span<const uint8_t> frame) { port_.transmit(frame); }

void Context::completion_event(const CompletionQueue& cq) {
  const auto found = cqs_.find(cq.number);
  if (found == cqs_.end()) return;
  const auto channel = channels_.find(found->second.channel);
  if (channel == channels_.end()) return;
  const ib_uverbs_comp_event_desc event{found->second.user_handle};
  if (raw::write(channel->second.write, &event, sizeof event) == sizeof event)
    ++channel->second.written[cq.number];
}

/// Events of this queue that the driver has not read: taken out of the pipe, the others put back.
uint32_t Context::take_back(Channel& channel, const Cq& cq) {
  uint32_t mine = 0;
  std::vector<ib_uverbs_comp_event_desc> others;
  ib_uverbs_comp_event_desc event;
  const long flags = raw::call(SYS_fcntl, channel.read, F_GETFL);
  raw::call(SYS_fcntl, channel.read, F_SETFL, flags | O_NONBLOCK);
  while (raw::read(channel.read, &event, sizeof event) == sizeof event) {
    if (event.cq_handle == cq.user_handle) {
      ++mine;
    } else {
      others.push_back(event);
    }
  }
  raw::call(SYS_fcntl, channel.read, F_SETFL, flags);
  for (const auto& e : others) raw::write(channel.write, &e, sizeof e);
  return mine;
}

void Context::closed(int fd) {
  // A forked child may close before its atfork handlers have come to ours; the locks may be held in its copy.
  if (!owned()) return;
  const Call one(*this);
  const Quiet quiet(*this);
  const auto found = channels_.find(fd);
  if (found == channels_.end()) return;
  raw::close(found->second.write);
  channels_.erase(found);
}

void Context::renumbered(int from, int to) {
  if (!owned()) return;
  const Call one(*this);
  const Quiet quiet(*this);
  auto channel = channels_.extract(from);
  if (channel.empty()) return;
  channel.key() = channel.mapped().read = to;
  channels_.insert(std::move(channel));
  for (auto& [number, cq] : cqs_)
    if (cq.channel == from) cq.channel = to;
}

accel::Result<uint64_t> Context::steal(const Stolen& what) {
  const std::lock_guard<std::mutex> lock(steals_mutex_);
  if (!steals_open_) return uint64_t{0};
  auto rule = steals_.add(what.compares, what.ether_type, what.order);
  if (rule) ++device_.counters().steal_rules;
  return rule;
}

void Context::give_back(const Taken& taken) {
  const std::lock_guard<std::mutex> lock(steals_mutex_);
  if (steals_open_) steals_.remove(taken.steal_rule, taken.order);
}

int Context::allocate_uar(uint32_t& index) {
  const Quiet quiet(*this);
  for (index = 0; index < kUars && uars_[index].used; ++index) {
  }
  if (index == kUars) return ENOMEM;
  if (uars_[index].mine == nullptr) {
    void* p =
        raw::mmap(kPage, PROT_READ | PROT_WRITE, MAP_SHARED, uar_memory_, static_cast<off_t>(index * kPage));
    if (raw::failed(p)) return ENOMEM;
    uars_[index].mine = static_cast<uint8_t*>(p);
  }
  memset(uars_[index].mine, 0, kPage);
  uars_[index].used = true;
  return 0;
}

}  // namespace model
