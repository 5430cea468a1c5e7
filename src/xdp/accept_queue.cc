// Part of libaccel-xdp.so: loads and attaches accept.bpf.c.
#include "xdp/accept_queue.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fcntl.h>
#include <net/if.h>

#include <cerrno>
#include <cstring>

#include "xdp/accept_object.h"
#include "xdp/bpf_object.h"
#include "xdp/module.h"

namespace accel::xdp {
namespace {

constexpr auto kTcxIngress = static_cast<bpf_attach_type>(46);  // BPF_TCX_INGRESS, linux/bpf.h of 6.6
/// Loopback delivers within the call that sends; a busy CPU may leave it to ksoftirqd.
constexpr int kDeliveredWithin = 200;  // ms

struct RingCloser {
  void operator()(ring_buffer* r) const { ring_buffer__free(r); }
};

class LoopbackAcceptQueue final : public AcceptQueue {
 public:
  Result<void> load(std::string* why) {
    auto fail = [&](int error, const char* what) -> Result<void> {
      if (why != nullptr) *why = std::string(what) + ": " + std::strerror(error);
      return err(error);
    };
    const ObjectPtr object(bpf_object__open_mem(kAcceptObject, kAcceptObjectSize, nullptr));
    if (!object) return fail(errno, "cannot read the program");
    if (int error = -bpf_object__load(object.get()); error != 0)
      return fail(error, "the kernel has no bpf_sk_assign_tcp_reqsk() (Linux 6.9), or forbids the program");
    program_ = duplicate(bpf_program__fd(bpf_object__find_program_by_name(object.get(), "accel_accept")));
    requests_ = duplicate(bpf_object__find_map_fd_by_name(object.get(), "accel_request"));
    answers_ = duplicate(bpf_object__find_map_fd_by_name(object.get(), "accel_answers"));
    return program_ && requests_ && answers_ ? Result<void>() : fail(EMFILE, "no file descriptors left");
  }

  Result<void> attach() override {
    link_ = Fd(bpf_link_create(program_.get(), static_cast<int>(if_nametoindex("lo")), kTcxIngress, nullptr));
    if (!link_) return err(errno);  // EINVAL: before Linux 6.6
    ring_.reset(ring_buffer__new(answers_.get(), &LoopbackAcceptQueue::on_answer, this, nullptr));
    if (ring_) return {};
    const Errno error = err(errno);
    link_ = Fd();
    return error;
  }

  void detach() override {
    ring_.reset();
    link_ = Fd();
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
    if (bpf_map_update_elem(requests_.get(), &first, &request, BPF_ANY) != 0) return err(errno);
    return {};
  }

  Result<void> taken() override {
    (void)ring_buffer__poll(ring_.get(), kDeliveredWithin);
    return answer_ == 0 ? Result<void>() : err(answer_);
  }

  void abandon_in_child() override {
    for (Fd* fd : {&program_, &requests_, &answers_}) *fd = Fd();
  }

 private:
  static int on_answer(void* self, void* data, size_t size) {
    int answer = -EBADMSG;
    if (size >= sizeof answer) std::memcpy(&answer, data, sizeof answer);
    static_cast<LoopbackAcceptQueue*>(self)->answer_ = -answer;
    return 0;
  }

  Fd program_, requests_, answers_, link_;
  std::unique_ptr<ring_buffer, RingCloser> ring_;
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

Result<std::unique_ptr<AcceptQueue>> open_accept_queue(void (*noted)(int fd, bool open), std::string* why) {
  note_descriptor = noted;
  const Silence silence;
  auto queue = std::make_unique<LoopbackAcceptQueue>();
  if (Result<void> loaded = queue->load(why); !loaded) return loaded.error();
  return std::unique_ptr<AcceptQueue>(std::move(queue));
}

}  // namespace accel::xdp
