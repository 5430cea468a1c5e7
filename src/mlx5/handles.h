// Ownership of libibverbs' objects, in the order in which they must go.
#pragma once

#include <infiniband/verbs.h>

#include <memory>

namespace accel::mlx5 {

template <auto Destroy>
struct Destroyer {
  template <class T>
  void operator()(T* object) const {
    (void)Destroy(object);
  }
};

using ContextHandle = std::unique_ptr<ibv_context, Destroyer<ibv_close_device>>;
using PdHandle = std::unique_ptr<ibv_pd, Destroyer<ibv_dealloc_pd>>;
using MrHandle = std::unique_ptr<ibv_mr, Destroyer<ibv_dereg_mr>>;
using ChannelHandle = std::unique_ptr<ibv_comp_channel, Destroyer<ibv_destroy_comp_channel>>;
using CqHandle = std::unique_ptr<ibv_cq, Destroyer<ibv_destroy_cq>>;
struct DestroyReceivers {  // their functions are inline ones, no template arguments
  void operator()(ibv_wq* wq) const { (void)ibv_destroy_wq(wq); }
  void operator()(ibv_rwq_ind_table* table) const { (void)ibv_destroy_rwq_ind_table(table); }
};
using WqHandle = std::unique_ptr<ibv_wq, DestroyReceivers>;
using TableHandle = std::unique_ptr<ibv_rwq_ind_table, DestroyReceivers>;
using QpHandle = std::unique_ptr<ibv_qp, Destroyer<ibv_destroy_qp>>;

/// Destroyed from the last member to the first.
struct Objects {
  ContextHandle context;
  PdHandle pd;
  MrHandle mr;
  MrHandle strides_mr;
  ChannelHandle channel;
  CqHandle send_cq, receive_cq;
  WqHandle wq;        // the receive queue,
  TableHandle table;  // a table of it alone,
  QpHandle receiver;  // and what rules lead to, which has no queues itself
  QpHandle qp;        // the send queue

  /// A forked child's: descriptors are closed, nothing else is touched.
  void abandon();
};

}  // namespace accel::mlx5
