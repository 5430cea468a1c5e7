// Part of libaccel-xdp.so: loads and attaches accept.bpf.c.
#include "xdp/accept_queue.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <net/if.h>

#include <cerrno>
#include <cstring>

#include "base/module_fd.h"
#include "xdp/accept_object.h"
#include "xdp/module.h"

namespace accel::xdp {
namespace {

constexpr auto kTcxIngress = static_cast<bpf_attach_type>(46);  // BPF_TCX_INGRESS, linux/bpf.h of 6.6
/// Loopback delivers within the call that sends; a busy CPU may leave it to ksoftirqd.
constexpr int kDeliveredWithin = 200;  // ms

struct ObjectCloser {
  void operator()(bpf_object* o) const { bpf_object__close(o); }
};
struct RingCloser {
  void operator()(ring_buffer* r) const { ring_buffer__free(r); }
};

class LoopbackAcceptQueue final : public AcceptQueue {
 public:
  Result<void> attach(std::string* why) {
    auto fail = [&](int error, const char* what) -> Result<void> {
      if (why != nullptr) *why = std::string(what) + ": " + std::strerror(error);
      return err(error);
    };
    object_.reset(bpf_object__open_mem(kAcceptObject, kAcceptObjectSize, nullptr));
    if (!object_) return fail(errno, "cannot read the program");
    if (int error = -bpf_object__load(object_.get()); error != 0)
      return fail(error, "the kernel has no bpf_sk_assign_tcp_reqsk() (Linux 6.9), or forbids the program");
    const int program = bpf_program__fd(bpf_object__find_program_by_name(object_.get(), "accel_accept"));
    link_ = Fd(bpf_link_create(program, static_cast<int>(if_nametoindex("lo")), kTcxIngress, nullptr));
    if (!link_) return fail(errno, "cannot attach a program to lo (Linux 6.6)");
    requests_ = bpf_object__find_map_fd_by_name(object_.get(), "accel_request");
    const int answers = bpf_object__find_map_fd_by_name(object_.get(), "accel_answers");
    answers_.reset(ring_buffer__new(answers, &LoopbackAcceptQueue::on_answer, this, nullptr));
    return answers_ ? Result<void>() : fail(errno, "cannot read the program's answers");
  }

  Result<void> expect(const Endpoint& local, const Endpoint& peer,
                      const accel_tcp_attributes& attributes) override {
    accel_accept_request request{};
    request.attributes = attributes;
    std::memcpy(request.local, local.address.bytes.data(), sizeof request.local);
    std::memcpy(request.peer, peer.address.bytes.data(), sizeof request.peer);
    request.local_port = htons(local.port);
    request.peer_port = htons(peer.port);
    const uint32_t first = 0;
    answer_ = ETIMEDOUT;
    if (bpf_map_update_elem(requests_, &first, &request, BPF_ANY) != 0) return err(errno);
    return {};
  }

  Result<void> taken() override {
    (void)ring_buffer__poll(answers_.get(), kDeliveredWithin);
    return answer_ == 0 ? Result<void>() : err(answer_);
  }

 private:
  static int on_answer(void* self, void* data, size_t size) {
    int answer = -EBADMSG;
    if (size >= sizeof answer) std::memcpy(&answer, data, sizeof answer);
    static_cast<LoopbackAcceptQueue*>(self)->answer_ = -answer;
    return 0;
  }

  std::unique_ptr<bpf_object, ObjectCloser> object_;
  Fd link_;
  std::unique_ptr<ring_buffer, RingCloser> answers_;
  int requests_ = -1;
  int answer_ = ETIMEDOUT;
};

/// libbpf says on stderr what it misses; here it is an ordinary answer.
class Silence {
 public:
  Silence() : before_(libbpf_set_print(nullptr)) {}
  ~Silence() { libbpf_set_print(before_); }
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;

 private:
  libbpf_print_fn_t before_;
};

}  // namespace

Result<std::unique_ptr<AcceptQueue>> open_accept_queue(std::string* why) {
  const Silence silence;
  auto queue = std::make_unique<LoopbackAcceptQueue>();
  if (Result<void> attached = queue->attach(why); !attached) return attached.error();
  return std::unique_ptr<AcceptQueue>(std::move(queue));
}

}  // namespace accel::xdp
