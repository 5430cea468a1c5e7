// golden_live FILE [record]: posts every request by libmlx5's ibv_post_send and by its ibv_wr_* calls, which
// are code of their own, on whatever device there is (the model), and compares their WQEs with ours; "record"
// writes those of ibv_post_send to FILE, otherwise they must be FILE's.
#include <infiniband/mlx5dv.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>

#include "tests/mlx5/golden.h"

using namespace accel::mlx5;        // NOLINT
using namespace accel::mlx5::test;  // NOLINT

namespace {

[[noreturn]] void stop(const std::string& why) {
  std::fprintf(stderr, "golden_live: %s\n", why.c_str());
  std::exit(1);
}

struct Device {
  ibv_context* context;
  ibv_pd* pd;
  ibv_mr* mr;
  uint32_t header;  ///< bytes of each frame that it wants inline

  explicit Device(uint8_t* memory) {
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    if (count == 0) stop("no RDMA device");
    context = ibv_open_device(list[0]);
    if (!context) stop("cannot open the device");
    pd = ibv_alloc_pd(context);
    mr = ibv_reg_mr(pd, memory, kGoldenBytes, IBV_ACCESS_LOCAL_WRITE);
    if (!mr) stop("cannot register memory");
    ibv_device_attr limits{};
    if (ibv_query_device(context, &limits) != 0) stop("cannot ask the device");
    header = limits.vendor_part_id < 0x1017 ? kHeaderInline : 0;  // ConnectX-5
  }
};

struct Queue {
  ibv_cq* cq;
  ibv_qp* qp;
  ibv_mr* mr;
  ibv_qp_ex* calls = nullptr;  ///< to post by ibv_wr_*
  mlx5dv_qp layout{};

  Queue(const Device& device, bool by_calls) : mr(device.mr) {
    cq = ibv_create_cq(device.context, 64, nullptr, nullptr, 0);
    ibv_qp_init_attr_ex wanted{};
    wanted.qp_type = IBV_QPT_RAW_PACKET;
    wanted.send_cq = wanted.recv_cq = cq;
    wanted.cap = {16, 16, 4, 1, 204};
    wanted.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
    wanted.pd = device.pd;
    wanted.max_tso_header = 128;
    if (by_calls) {
      wanted.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
      wanted.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO;
    }
    qp = ibv_create_qp_ex(device.context, &wanted);
    if (!cq || !qp) stop("cannot make queues");
    if (by_calls) calls = ibv_qp_to_qp_ex(qp);
    for (auto [state, more] :
         {std::pair{IBV_QPS_INIT, int{IBV_QP_PORT}}, {IBV_QPS_RTR, 0}, {IBV_QPS_RTS, 0}}) {
      ibv_qp_attr attr{};
      attr.qp_state = state;
      attr.port_num = 1;
      if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | more) != 0) stop("cannot make the queue ready");
    }
    mlx5dv_obj object{};
    object.qp = {qp, &layout};
    if (mlx5dv_init_obj(&object, MLX5DV_OBJ_QP) != 0) stop("mlx5dv_init_obj");
  }

  SendRing ring() const {
    return {static_cast<uint8_t*>(layout.sq.buf), layout.sq.wqe_cnt, qp->qp_num, mr->lkey};
  }

  void post(const GoldenRequest& request, std::vector<Piece> pieces) const {
    const unsigned flags = (request.signal ? unsigned{IBV_SEND_SIGNALED} : 0) |
                           (request.checksum ? unsigned{IBV_SEND_IP_CSUM} : 0);
    std::vector<ibv_sge> parts;
    ibv_send_wr wr{}, *bad = nullptr;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = flags;
    if (request.kind == GoldenRequest::Kind::kTso) {
      wr.opcode = IBV_WR_TSO;
      wr.tso = {const_cast<uint8_t*>(pieces[0].data), request.header, request.mss};
      pieces[0].data += request.header;
      pieces[0].length -= request.header;
    }
    if (request.kind == GoldenRequest::Kind::kInline) wr.send_flags |= IBV_SEND_INLINE;
    for (const Piece& piece : pieces)
      if (piece.length != 0)
        parts.push_back({reinterpret_cast<uintptr_t>(piece.data), piece.length, mr->lkey});
    wr.sg_list = parts.data();
    wr.num_sge = static_cast<int>(parts.size());
    if (calls) return post_by_calls(request, wr, flags);
    if (const int error = ibv_post_send(qp, &wr, &bad))
      stop(request.name + ": ibv_post_send: " + std::to_string(error));
  }

  void post_by_calls(const GoldenRequest& request, const ibv_send_wr& wr, unsigned flags) const {
    ibv_wr_start(calls);
    calls->wr_flags = flags;
    if (wr.opcode == IBV_WR_TSO)
      ibv_wr_send_tso(calls, wr.tso.hdr, wr.tso.hdr_sz, wr.tso.mss);
    else
      ibv_wr_send(calls);
    const auto count = static_cast<size_t>(wr.num_sge);
    if (request.kind == GoldenRequest::Kind::kInline) {
      std::vector<ibv_data_buf> buffers;
      for (size_t i = 0; i < count; ++i)
        buffers.push_back({reinterpret_cast<void*>(wr.sg_list[i].addr), wr.sg_list[i].length});  // NOLINT
      ibv_wr_set_inline_data_list(calls, count, buffers.data());
    } else {
      ibv_wr_set_sge_list(calls, count, wr.sg_list);
    }
    if (const int error = ibv_wr_complete(calls))
      stop(request.name + ": ibv_wr_complete: " + std::to_string(error));
  }

  void finish(const GoldenRequest& request) const {
    if (!request.signal) return;
    ibv_wc done{};
    int n = 0;
    while ((n = ibv_poll_cq(cq, 1, &done)) == 0) {
    }
    if (n < 0 || done.status != IBV_WC_SUCCESS) stop(request.name + ": " + ibv_wc_status_str(done.status));
  }
};

/// Posts them all; returns what libmlx5 wrote. Differences are told, and counted.
std::string post_all(const Queue& queue, uint8_t* memory, uint32_t header, int& differences) {
  const SendRing like = queue.ring();
  std::ostringstream seen;
  seen << "# What libmlx5's ibv_post_send wrote (golden_live.cc, rdma-core 44, on the model). Name, index, "
          "bytes.\n"
       << "ring " << like.blocks << ' ' << like.qpn << ' ' << like.lkey << ' ' << header << '\n';
  uint16_t index = 0;
  for (const GoldenRequest& request : golden_requests()) {
    uint32_t count = 0;
    std::string ours = our_bytes(like, index, memory, request, header, &count);
    // The immediate value, which none of these has: ibv_wr_* leave what lay there.
    if (queue.calls) ours.replace(24, 8, "--------");
    queue.post(request, golden_pieces(memory, request));
    const std::string theirs = masked(like.start, like.blocks, index, ours);
    seen << request.name << '\t' << index << '\t' << theirs << '\n';
    if (theirs != ours) {
      ++differences;
      std::cout << request.name << (queue.calls ? " by ibv_wr_*" : "") << " at " << index << "\n  libmlx5 "
                << theirs << "\n  ours    " << ours << '\n';
    }
    queue.finish(request);
    index = static_cast<uint16_t>(index + blocks_of(count));
  }
  return seen.str();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) stop("golden_live FILE [record]");
  uint8_t* memory = golden_memory();
  if (memory == MAP_FAILED) stop("the frames' address is taken");
  const Device device(memory);
  int differences = 0;
  const std::string seen = post_all(Queue(device, false), memory, device.header, differences);
  (void)post_all(Queue(device, true), memory, device.header, differences);
  if (argc > 2) {
    std::ofstream(argv[1]) << seen;
  } else {
    std::stringstream recorded;
    recorded << std::ifstream(argv[1]).rdbuf();
    if (recorded.str() != seen) stop("libmlx5 no longer writes what is recorded");
  }
  std::cout << golden_requests().size() << " requests by each way, " << differences << " differ\n";
  return differences == 0 ? 0 : 1;
}
