// Protection domains, regions, completion channels and completion queues.
#include <infiniband/verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>

#include <bit>

#include "model/front/commands.h"
#include "model/front/raw.h"

namespace model {
namespace {

constexpr uint32_t kAccessKnown = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                  IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_HUGETLB | IBV_ACCESS_RELAXED_ORDERING;
constexpr size_t kAnswerAddress = 8;  // first in a legacy command, absent from its extended form

/// Every page of the range is there: what registering it would find out by pinning.
bool mapped(uint64_t start, uint64_t length) {
  constexpr uint64_t kPage = 4096;
  const uint64_t from = start & ~(kPage - 1);
  return raw::call(SYS_msync, raw::word(from), raw::word(start + length - from), 1 /* MS_ASYNC */) == 0;
}

}  // namespace

int Commands::alloc_pd(Context& c, Request& r) {
  const Context::Quiet quiet(c);
  ib_uverbs_alloc_pd_resp out{};
  out.pd_handle = c.device_.create_pd();
  memcpy(r.core_answer.data(), &out.pd_handle, sizeof out.pd_handle);
  r.put_driver(mlx5_ib_alloc_pd_resp{out.pd_handle});
  return 0;
}

int Commands::dealloc_pd(Context& c, Request& r) {
  const Context::Quiet quiet(c);
  return error(c.device_.destroy_pd(r.get<ib_uverbs_dealloc_pd>().pd_handle));
}

int Commands::reg_mr(Context& c, Request& r) {
  ib_uverbs_reg_mr in{};
  memcpy(&in, r.core.data(), r.core.size());
  if ((in.access_flags & ~kAccessKnown) != 0) return EOPNOTSUPP;
  if (in.length == 0) return EINVAL;
  if (!mapped(in.start, in.length)) return EFAULT;
  const Context::Quiet quiet(c);
  const auto key = c.device_.create_mr({.pd = in.pd_handle,
                                        .start = in.start,
                                        .length = in.length,
                                        .iova = in.hca_va,
                                        .access = in.access_flags});
  if (!key) return static_cast<int>(key.error());
  const uint32_t out[3] = {*key, *key, *key};  // handle, lkey, rkey
  r.put(out);
  return 0;
}

int Commands::dereg_mr(Context& c, Request& r) {
  const Context::Quiet quiet(c);
  return error(c.device_.destroy_mr(r.get<ib_uverbs_dereg_mr>().mr_handle));
}

int Commands::create_channel(Context& c, Request& r) {
  int fds[2];
  if (const int bad = raw::pipe(fds, O_CLOEXEC); bad < 0) return -bad;
  const int write = raw::keep(fds[1]);
  raw::call(SYS_fcntl, write, F_SETFL, O_NONBLOCK);
  const Context::Quiet quiet(c);
  c.channels_[fds[0]] = Channel{fds[0], write, {}};
  r.put(ib_uverbs_create_comp_channel_resp{static_cast<uint32_t>(fds[0])});
  return 0;
}

int Commands::create_cq(Context& c, Request& r) {
  const auto in = r.get<ib_uverbs_ex_create_cq>(r.extended ? 0 : kAnswerAddress);
  const auto driver = r.get_driver<mlx5_ib_create_cq>();
  if (r.extended && (in.comp_mask != 0 || (in.flags & ~IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION) != 0)) {
    return EOPNOTSUPP;
  }
  const bool real_time = (driver.flags & MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS) != 0;
  if (real_time && !c.device_.limits().real_time) return EOPNOTSUPP;
  if ((driver.flags & ~(MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX | MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS)) != 0)
    return EOPNOTSUPP;
  const uint8_t format = driver.cqe_comp_res_format;
  if (driver.cqe_comp_en != 0 && format != MLX5_IB_CQE_RES_FORMAT_HASH &&
      format != MLX5_IB_CQE_RES_FORMAT_CSUM && format != MLX5_IB_CQE_RES_FORMAT_CSUM_STRIDX) {
    return EOPNOTSUPP;
  }
  if ((driver.flags & MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX) == 0 ||
      driver.uar_page_index >= Context::kUars) {
    return EINVAL;
  }
  if (in.cqe == 0 || in.cqe > 4194303 || in.comp_vector >= kVectors) return EINVAL;
  const Context::Quiet quiet(c);
  if (!c.uars_[driver.uar_page_index].used) return EINVAL;
  if (in.comp_channel >= 0 && !c.channels_.contains(in.comp_channel)) return EINVAL;
  CompletionQueue q;
  q.uar = driver.uar_page_index;
  q.ring = reinterpret_cast<uint8_t*>(driver.buf_addr);
  q.entries = std::bit_ceil(in.cqe + 1);
  q.stride = driver.cqe_size;
  q.compress = driver.cqe_comp_en != 0;
  q.mini_format = format;
  q.record = reinterpret_cast<uint32_t*>(driver.db_addr);
  const auto number = c.device_.create_cq(q);
  if (!number) return static_cast<int>(number.error());
  if (in.comp_channel >= 0) c.device_.counters().event_vectors += in.comp_vector;
  c.cqs_[*number] = {in.user_handle, in.comp_channel};
  ib_uverbs_ex_create_cq_resp out{};
  out.base.cq_handle = *number;
  out.base.cqe = q.entries - 1;
  out.response_length = sizeof out;
  r.put(out);
  r.put_driver(mlx5_ib_create_cq_resp{*number, 0});
  return 0;
}

int Commands::modify_cq(Context& c, Request& r) {
  const auto in = r.get<ib_uverbs_ex_modify_cq>();
  if (in.attr_mask != IBV_CQ_ATTR_MODERATE) return EOPNOTSUPP;
  if (in.attr.cq_period > kMostPeriod) return EINVAL;
  const Context::Quiet quiet(c);
  CompletionQueue* q = c.device_.cq(in.cq_handle);
  if (q == nullptr) return EINVAL;
  q->moderate_count = in.attr.cq_count;
  q->moderate_usec = in.attr.cq_period;
  return 0;
}

/// Reports how many events the driver has read: libibverbs waits until it has acknowledged as many.
int Commands::destroy_cq(Context& c, Request& r) {
  const auto in = r.get<ib_uverbs_destroy_cq>();
  const Context::Quiet quiet(c);
  const auto found = c.cqs_.find(in.cq_handle);
  if (found == c.cqs_.end()) return EINVAL;
  c.take_writes();  // an arm that was rung before is the hardware's by now
  if (const int bad = error(c.device_.destroy_cq(in.cq_handle)); bad != 0) return bad;
  ib_uverbs_destroy_cq_resp out{};
  const auto channel = c.channels_.find(found->second.channel);
  if (channel != c.channels_.end()) {
    out.comp_events_reported =
        channel->second.written[in.cq_handle] - c.take_back(channel->second, found->second);
    channel->second.written.erase(in.cq_handle);
  }
  c.cqs_.erase(found);
  r.put(out);
  return 0;
}

}  // namespace model
