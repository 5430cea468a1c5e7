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
using QpHandle = std::unique_ptr<ibv_qp, Destroyer<ibv_destroy_qp>>;

/// Destroyed from the last member to the first.
struct Objects {
  ContextHandle context;
  PdHandle pd;
  MrHandle mr;
  ChannelHandle channel;
  CqHandle send_cq, receive_cq;
  QpHandle qp;

  /// A forked child's: descriptors are closed, nothing else is touched.
  void abandon();
};

}  // namespace accel::mlx5
