#include "mlx5/cqe.h"

namespace accel::mlx5 {

const char* syndrome_text(uint8_t syndrome) {
  switch (syndrome) {
    case MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR:
      return "frame longer than its buffer or the port's MTU";
    case MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR:
      return "descriptor refused";
    case MLX5_CQE_SYNDROME_LOCAL_PROT_ERR:
    case MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR:
      return "memory key or address not allowed";
    case MLX5_CQE_SYNDROME_WR_FLUSH_ERR:
      return "flushed after an earlier error";
    default:
      return "unknown";
  }
}

}  // namespace accel::mlx5
