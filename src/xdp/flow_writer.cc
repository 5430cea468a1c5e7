#include "xdp/flow_writer.h"

#include <bpf/bpf.h>

#include <cstring>

#include "xdp/bpf_object.h"
#include "xdp/writer_object.h"

namespace accel::xdp {
Result<FlowWriter> FlowWriter::load(const Program& maps, uint32_t owner, std::string* why) {
  const auto fail = [&](int error, const char* what) {
    if (why) *why = std::string(what) + ": " + std::strerror(error);
    return err(error);
  };
  LIBBPF_OPTS(bpf_object_open_opts, open);
  open.object_name = "accel";
  const ObjectPtr object(bpf_object__open_mem(kWriterObject, kWriterObjectSize, &open));
  if (!object) return fail(errno, "cannot read the program that writes to steering maps");
  const auto map = [&](const char* name) { return bpf_object__find_map_by_name(object.get(), name); };
  const std::pair<const char*, int> shared[] = {
      {"accel_owners", maps.owners()}, {"accel_flows", maps.flows()}, {"accel_counters", maps.counters()}};
  for (const auto& [name, fd] : shared)
    if (int error = -bpf_map__reuse_fd(map(name), fd); error != 0) return fail(error, name);
  if (int error = -bpf_object__load(object.get()); error != 0)
    return fail(error, "the kernel refused the program that writes to steering maps (Linux 6.1, CAP_BPF)");
  const uint32_t first = 0;
  const accel_port port{owner, 0};
  if (int error = -bpf_map_update_elem(bpf_map__fd(map("accel_ports")), &first, &port, BPF_ANY); error != 0)
    return fail(error, "accel_ports");
  FlowWriter writer;
  writer.program_ =
      duplicate(bpf_program__fd(bpf_object__find_program_by_name(object.get(), "accel_writer")));
  writer.ends_ = duplicate(bpf_map__fd(map("accel_ends")));
  if (!writer.program_ || !writer.ends_) return fail(EMFILE, "no file descriptors left (RLIMIT_NOFILE)");
  return writer;
}

Result<void> FlowWriter::run(accel_operation operation, accel_request& request) const {
  request.operation = operation;
  LIBBPF_OPTS(bpf_test_run_opts, options);
  options.ctx_in = &request;
  options.ctx_size_in = sizeof request;
  if (int error = -bpf_prog_test_run_opts(program_.get(), &options); error > 0) return err(error);
  const auto answer = static_cast<int32_t>(options.retval);
  if (answer < 0) return err(-answer);
  return {};
}

Result<void> FlowWriter::run(accel_operation operation, const accel_flow_key& key, uint32_t queue) const {
  accel_request request{};
  request.key = key;
  request.queue = static_cast<uint16_t>(queue);
  return run(operation, request);
}

}  // namespace accel::xdp
