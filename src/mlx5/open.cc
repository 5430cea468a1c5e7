// Opening and closing a port; frames are in direct_port.cc.
#include <fcntl.h>
#include <sched.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/module_fd.h"
#include "mlx5/direct_port.h"
#include "mlx5/module.h"
#include "operators/operators.h"

namespace accel::mlx5 {
namespace {

constexpr uint32_t kSendPieces = 4;
/// ConnectX-4 and 4 Lx, with their VFs, want headers inline, which multi-packet descriptors have not.
constexpr uint32_t kFirstWithoutInlineHeader = 0x1017;  // ConnectX-5

uint32_t random_owner() {
  uint32_t owner = 0;
  while (owner == 0)
    if (getrandom(&owner, sizeof(owner), 0) != sizeof(owner)) owner = 0;
  return owner;
}

bool stop(Evidence& seen, Stage stage, int error) {
  seen.stage = stage;
  seen.error = error != 0 ? error : EIO;
  return false;
}

void load_drivers() {
  (void)ibv_fork_init();
  if (ibv_device** const list = ibv_get_device_list(nullptr)) ibv_free_device_list(list);
}

void make_nonblocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

/// errno of opening the node itself; the rest is the library's or the kernel's later refusal.
Stage stage_of_open(int error) {
  switch (error) {
    case EACCES:
    case EPERM:
    case ENODEV:
    case ENXIO:
    case EIO:
      return Stage::kOpenNode;
    default:
      return Stage::kOpenDevice;
  }
}

/// Where libibverbs may not open the node it looks for another, and what is left in errno is that look's.
int why_not_open(const std::string& node, int error) {
  const Fd fd(::open(node.c_str(), O_RDWR | O_CLOEXEC));
  return fd ? error : errno;
}

/// Which of the device's interrupts wakes the process: they lie on the host's CPUs one after the other as a
/// rule, so it is that of a CPU that the process may run on, and processes that may run on all of them have
/// different ones.
int completion_vector(int vectors) {
  cpu_set_t set;
  if (vectors <= 1 || sched_getaffinity(getpid(), sizeof(set), &set) != 0) return 0;
  int skip = getpid() % std::max(CPU_COUNT(&set), 1);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set) && skip-- == 0) return cpu % vectors;
  return 0;
}

}  // namespace

void Objects::abandon() {
  // The kernel's objects live as long as any descriptor of the parent's context: ours must not keep them.
  if (channel) ::close(channel->fd);
  if (context) {
    ::close(context->async_fd);
    ::close(context->cmd_fd);
  }
  (void)qp.release();
  (void)receiver.release();
  (void)table.release();
  (void)wq.release();
  (void)receive_cq.release();
  (void)send_cq.release();
  (void)channel.release();
  (void)strides_mr.release();
  (void)mr.release();
  (void)pd.release();
  (void)context.release();
}

Result<std::unique_ptr<Mlx5Port>> DirectPort::open(const Mlx5Options& options, FramePool& pool,
                                                   std::unique_ptr<ListenerSharing> sharing, Evidence& seen) {
  try {
    note_descriptor = options.note_descriptor;
    std::unique_ptr<DirectPort> port(new DirectPort(options, pool));
    port->sharing_ = std::move(sharing);
    port->port_ = seen.port;
    if (!port->open_device(seen) || !port->make_queues(seen)) return err(seen.error ? seen.error : ENODEV);
    seen.stage = Stage::kDone;
    return std::unique_ptr<Mlx5Port>(std::move(port));
  } catch (const std::bad_alloc&) {
    stop(seen, Stage::kMakeQueue, ENOMEM);
    return err(ENOMEM);
  }
}

bool DirectPort::open_device(Evidence& seen) {
  // A child must not get copies of pages that the device writes to. Fails when the program used libibverbs
  // before; kernels from 5.12 on copy such pages for the child instead, so that is no error.
  (void)ibv_fork_init();
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  ibv_device* device = nullptr;
  for (int i = 0; list && i < count; ++i)
    if (seen.device == ibv_get_device_name(list[i])) device = list[i];
  seen.listed = device && provider_.find() && provider_.is_supported(device);
  if (seen.listed) verbs_.context.reset(ibv_open_device(device));
  const int error = seen.listed && !verbs_.context ? why_not_open(seen.node, errno) : errno;
  if (list) ibv_free_device_list(list);
  if (!seen.listed) return stop(seen, Stage::kLook, ENODEV);
  if (!verbs_.context) return stop(seen, stage_of_open(error), error);
  // libibverbs takes the lowest numbers, which are the program's, and knows its descriptors by these fields
  // alone.
  raise_descriptor(verbs_.context->cmd_fd);
  raise_descriptor(verbs_.context->async_fd);
  return true;
}

bool DirectPort::make_queues(Evidence& seen) {
  ibv_context* context = verbs_.context.get();
  ibv_device_attr_ex limits{};
  if (const int error = ibv_query_device_ex(context, nullptr, &limits))
    return stop(seen, Stage::kOpenDevice, error);
  mlx5dv_context abilities{};
  // What is not asked for stays zero.
  abilities.comp_mask = MLX5DV_CONTEXT_MASK_CQE_COMPRESION | MLX5DV_CONTEXT_MASK_STRIDING_RQ;
  if (const int error = provider_.query_device(context, &abilities))
    return stop(seen, Stage::kOpenDevice, error);
  make_nonblocking(context->async_fd);

  verbs_.pd.reset(ibv_alloc_pd(context));
  if (!verbs_.pd) return stop(seen, Stage::kOpenDevice, errno);
  seen.memory = pool_.region().size();
  const int access = IBV_ACCESS_LOCAL_WRITE;  // an int: the macro mixes two enumerations else
  verbs_.mr.reset(ibv_reg_mr(verbs_.pd.get(), pool_.region().data(), pool_.region().size(), access));
  if (!verbs_.mr) return stop(seen, Stage::kRegisterMemory, errno);

  if (options_.striding) choose_strides(abilities);
  if (!make_completions(seen, abilities)) return false;
  moderate(limits.cq_mod_caps);
  if (!make_receive_queue() || !make_send_queue()) return stop(seen, Stage::kMakeQueue, errno);
  if (!adopt_queues(limits, abilities)) return stop(seen, Stage::kMakeQueue, errno);
  if (const int error = start_receiving()) return stop(seen, Stage::kMakeQueue, error);
  if (const int error = start_sending()) return stop(seen, Stage::kMakeQueue, error);
  rules_.emplace(verbs_.receiver.get(), port_, options_.make_rule);
  const uint32_t owner = random_owner();
  standing_.emplace(*rules_, owner);
  if (const auto begun = standing_->begin(); !begun)
    return stop(seen, Stage::kSteer, static_cast<int>(begun.error()));
  flows_.emplace(*standing_, owner, sharing_.get(), options_.kernel_has);
  describe(limits);
  note_descriptors(true);
  inlet_.open();
  if (!icmp_.open(options_.ifindex))
    report(options_.netdev + ": ICMP errors do not come to connections: " + std::strerror(errno));
  fds_ = {verbs_.channel->fd, context->async_fd};
  for (const int fd : {icmp_.fd(), sharing_ ? sharing_->event_fd() : -1})
    if (fd >= 0) fds_.push_back(fd);
  receive_->refill(1);
  // The pool's buffers are in other ports' queues: this one would hear nothing, and its rules take it all.
  return receive_->posted() != 0 || stop(seen, Stage::kMakeQueue, ENOMEM);
}

bool DirectPort::make_completions(Evidence& seen, const mlx5dv_context& abilities) {
  ibv_context* context = verbs_.context.get();
  verbs_.channel.reset(ibv_create_comp_channel(context));
  if (!verbs_.channel) return stop(seen, Stage::kMakeQueue, errno);
  raise_descriptor(verbs_.channel->fd);
  make_nonblocking(verbs_.channel->fd);
  verbs_.send_cq.reset(ibv_create_cq(context, static_cast<int>(options_.tx_ring), nullptr, nullptr, 0));
  if (!verbs_.send_cq) return stop(seen, Stage::kMakeQueue, errno);

  const bool striding = strides_.stride != 0;
  const uint32_t entries = striding ? striding_entries() * strides_.strides : ring_entries();
  const uint32_t formats = abilities.cqe_comp_caps.supported_format;
  const uint32_t format = striding                               ? MLX5DV_CQE_RES_FORMAT_CSUM_STRIDX
                          : formats & MLX5DV_CQE_RES_FORMAT_HASH ? MLX5DV_CQE_RES_FORMAT_HASH
                                                                 : MLX5DV_CQE_RES_FORMAT_CSUM;
  ibv_cq_init_attr_ex wanted{};
  wanted.cqe = entries;
  wanted.channel = verbs_.channel.get();
  wanted.comp_vector = static_cast<uint32_t>(completion_vector(context->num_comp_vectors));
  wanted.wc_flags = IBV_WC_STANDARD_FLAGS;
  if (options_.cqe_compression && abilities.cqe_comp_caps.max_num != 0 && (formats & format) != 0) {
    mlx5dv_cq_init_attr compressed{};
    compressed.comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE;
    compressed.cqe_comp_res_format = static_cast<uint8_t>(format);
    if (ibv_cq_ex* cq = provider_.create_cq(context, &wanted, &compressed))
      verbs_.receive_cq.reset(ibv_cq_ex_to_cq(cq));
    compressed_ = verbs_.receive_cq != nullptr;
  }
  // A device whose clock is the time of day may count nothing else. The kernel's driver has such stamps, too.
  if (!verbs_.receive_cq && (abilities.flags & MLX5DV_CONTEXT_FLAGS_REAL_TIME_TS) != 0) {
    wanted.wc_flags |= IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
    if (ibv_cq_ex* cq = ibv_create_cq_ex(context, &wanted)) verbs_.receive_cq.reset(ibv_cq_ex_to_cq(cq));
    real_time_ = verbs_.receive_cq != nullptr;
  }
  if (!verbs_.receive_cq)
    verbs_.receive_cq.reset(ibv_create_cq(context, static_cast<int>(entries), nullptr, verbs_.channel.get(),
                                          static_cast<int>(wanted.comp_vector)));
  if (!verbs_.receive_cq) return stop(seen, Stage::kMakeQueue, errno);
  return true;
}

/// As far as the device can: a ConnectX' period has 12 bits. Without it wake-ups come at once, and all works.
void DirectPort::moderate(const ibv_cq_moderation_caps& can) {
  if (options_.moderation_count == 0 && options_.moderation_usec == 0) return;
  const uint32_t count = std::max(options_.moderation_count, 1u), usec = options_.moderation_usec;
  ibv_modify_cq_attr wanted{};
  wanted.attr_mask = IBV_CQ_ATTR_MODERATE;
  wanted.moderate.cq_count = std::min(static_cast<uint16_t>(count), can.max_cq_count);
  wanted.moderate.cq_period = std::min(static_cast<uint16_t>(usec), can.max_cq_period);
  const int error = can.max_cq_count == 0 ? EOPNOTSUPP : ibv_modify_cq(verbs_.receive_cq.get(), &wanted);
  if (error != 0)
    report(options_.netdev + ": the device does not moderate wake-ups: " + std::strerror(error));
  else if (wanted.moderate.cq_count != count || wanted.moderate.cq_period != usec)
    report(options_.netdev + ": wake-ups wait for " + std::to_string(wanted.moderate.cq_count) +
           " frames or " + std::to_string(wanted.moderate.cq_period) + " us at most, as the device can");
}

/// A queue pair that receives nothing. As it is reset libmlx5 goes through the completions of both its
/// queues: those of receiving are not among them.
bool DirectPort::make_send_queue() {
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = verbs_.send_cq.get();
  wanted.qp_type = IBV_QPT_RAW_PACKET;
  wanted.cap.max_send_sge = kSendPieces;
  wanted.cap.max_inline_data = options_.inline_bytes;
  // Devices bound the ring's bytes, so how many long descriptors it holds is found by asking.
  for (uint32_t n = options_.tx_ring; n >= 64; n /= 2) {
    wanted.cap.max_send_wr = n;
    ibv_qp_init_attr attempt = wanted;
    verbs_.qp.reset(ibv_create_qp(verbs_.pd.get(), &attempt));
    if (verbs_.qp || (errno != ENOMEM && errno != EINVAL)) break;
  }
  return verbs_.qp != nullptr;
}

bool DirectPort::adopt_queues(const ibv_device_attr_ex& limits, const mlx5dv_context& abilities) {
  mlx5dv_qp qp{};
  mlx5dv_cq send_cq{}, receive_cq{};
  mlx5dv_obj first{}, second{};
  first.qp = {.in = verbs_.qp.get(), .out = &qp};
  first.cq = {.in = verbs_.send_cq.get(), .out = &send_cq};
  second.cq = {.in = verbs_.receive_cq.get(), .out = &receive_cq};
  int error = provider_.init_obj(&first, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ);
  if (error == 0) error = provider_.init_obj(&second, MLX5DV_OBJ_CQ);
  const bool usable = std::has_single_bit(qp.sq.wqe_cnt) && qp.sq.stride == kBlock;
  if (error != 0 || !usable) {
    errno = error != 0 ? error : EPROTO;
    return false;
  }

  const SendRing send{static_cast<uint8_t*>(qp.sq.buf), qp.sq.wqe_cnt, verbs_.qp->qp_num, verbs_.mr->lkey};
  const DoorbellRecord record(qp.dbrec);
  SendOptions how;
  how.inline_max = options_.inline_bytes;
  how.batch = std::clamp(options_.tx_batch, 1u, send_cq.cqe_cnt / 4);
  how.most = std::min(options_.tx_ring, send_cq.cqe_cnt);
  const bool bare = limits.orig_attr.vendor_part_id >= kFirstWithoutInlineHeader;
  how.header = bare ? 0 : kHeaderInline;
  how.multi_packet = bare && options_.multi_packet && (abilities.flags & MLX5DV_CONTEXT_FLAGS_ENHANCED_MPW);
  send_ = SendQueue(send, {record, BlueField(qp.bf.reg, qp.bf.size)},
                    CompletionReader(send_cq.buf, send_cq.cqe_cnt, send_cq.cqe_size),
                    DoorbellRecord(send_cq.dbrec), how);

  return take_receive_queue(receive_cq);
}

int DirectPort::start_sending() {
  ibv_qp_attr attr{};
  attr.port_num = port_;
  attr.qp_state = IBV_QPS_INIT;
  int error = ibv_modify_qp(verbs_.qp.get(), &attr, IBV_QP_STATE | IBV_QP_PORT);
  for (const ibv_qp_state state : {IBV_QPS_RTR, IBV_QPS_RTS}) {
    attr.qp_state = state;
    if (error == 0) error = ibv_modify_qp(verbs_.qp.get(), &attr, IBV_QP_STATE);
  }
  return error;
}

/// The queue is empty then, as after making it. What the kernel remembers of its state an error has made
/// untrue, and the firmware refuses to move a queue from another state than it is in: asking has the kernel
/// look.
int DirectPort::stop_sending() {
  ibv_qp_attr attr{};
  ibv_qp_init_attr made{};
  (void)ibv_query_qp(verbs_.qp.get(), &attr, IBV_QP_STATE, &made);
  attr = {};
  attr.qp_state = IBV_QPS_RESET;
  const int error = ibv_modify_qp(verbs_.qp.get(), &attr, IBV_QP_STATE);
  if (error == 0) send_.reset();
  return error;
}

void DirectPort::describe(const ibv_device_attr_ex& limits) {
  mlx5dv_clock_info clock{};
  has_clock_ = !compressed_ && (real_time_ || provider_.get_clock_info(verbs_.context.get(), &clock) == 0);
  info_.kernel_has_stamps = !has_clock_;
  info_.name = options_.netdev;
  info_.ifindex = options_.ifindex;
  info_.mac = options_.mac;
  info_.mtu = options_.mtu;
  info_.zero_copy = true;
  info_.vlan_tags = true;
  info_.kernel_sees_errors = true;
  info_.tx_checksum = limits.orig_attr.device_cap_flags & IBV_DEVICE_RAW_IP_CSUM;
  info_.tso = info_.tx_checksum && limits.tso_caps.max_tso != 0 &&
              (limits.tso_caps.supported_qpts & 1u << IBV_QPT_RAW_PACKET);
}

/// Before libibverbs closes them itself.
void DirectPort::note_descriptors(bool open) const {
  for (const int fd : {verbs_.channel->fd, verbs_.context->async_fd, verbs_.context->cmd_fd}) note(fd, open);
}

DirectPort::~DirectPort() {
  if (!verbs_.context) return;
  if (flows_) flows_->clear();
  if (standing_) standing_->clear();
  if (verbs_.qp) (void)stop_sending();  // the device touches no buffer then
  verbs_.qp.reset();
  verbs_.receiver.reset();
  verbs_.table.reset();
  verbs_.wq.reset();
  if (!receive_) return;  // opening stopped before there were queues
  send_.reset();
  receive_->reset();
  note_descriptors(false);
}

void DirectPort::abandon_in_child() {
  if (flows_) flows_->abandon();
  if (standing_) standing_->abandon();
  if (sharing_) sharing_->abandon();
  inlet_.close();
  icmp_.close();
  note_descriptors(false);
  verbs_.abandon();
  (void)
      stride_memory_.release();  // what the kernel kept out of the child's address space is not its to unmap
  fds_.clear();
  failure_ = "the port belongs to the parent process";
}

}  // namespace accel::mlx5

const accel::mlx5::Module accel_mlx5_module = {{accel::mlx5::kModuleAbi, &accel::memory::calls},
                                               &accel::mlx5::DirectPort::open,
                                               &accel::mlx5::load_drivers};
