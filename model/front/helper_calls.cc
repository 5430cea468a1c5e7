#include "model/front/helper_calls.h"

#include <linux/filter.h>
#include <linux/kcmp.h>
#include <linux/seccomp.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstring>
#include <thread>
#include <vector>

#include "model/front/context.h"
#include "model/front/interpose.h"
#include "model/front/privileged.h"
#include "model/front/raw.h"

namespace model {
namespace {

/// Both processes that start the helper are vfork()ed (engine/helper_client.cc).
constexpr int kVfork = CLONE_VM | CLONE_VFORK | CLONE_UNTRACED;

constexpr uint32_t kNumber = offsetof(seccomp_data, nr);
constexpr uint32_t kRequest = offsetof(seccomp_data, args) + sizeof(uint64_t);
sock_filter filter[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kNumber),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kRequest),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(RDMA_VERBS_IOCTL), 0, 1),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};

struct StartState {
  int (*run)(void*);
  void* argument;
  int ends[2];  // the filter's listener comes by them, from the child's descriptors to the model's
};

struct FdMessage {
  char byte = 0;
  iovec vector{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))]{};
  msghdr message{};
  FdMessage() {
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  }
};

/// In the child, with our memory: system calls only.
int begin(void* context) {
  const auto& state = *static_cast<StartState*>(context);
  sock_fprog program{sizeof filter / sizeof *filter, filter};
  const auto listener = static_cast<int>(
      raw::call(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, raw::word(&program)));
  if (listener >= 0) {
    FdMessage m;
    cmsghdr* header = CMSG_FIRSTHDR(&m.message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof listener);
    memcpy(CMSG_DATA(header), &listener, sizeof listener);
    raw::call(SYS_sendmsg, state.ends[0], raw::word(&m.message), 0);
    raw::call(SYS_close, listener);
  }
  return state.run(state.argument);
}

/// What lies at an address of another process, which no privilege of the program's reaches.
bool copy_from(long pid, uint64_t address, void* to, size_t size) {
  const iovec here{to, size}, there{reinterpret_cast<void*>(address), size};
  return privileged_call(SYS_process_vm_readv, pid, raw::word(&here), 1, raw::word(&there), 1) ==
         static_cast<long>(size);
}
bool copy_to(long pid, uint64_t address, const void* from, size_t size) {
  const iovec here{const_cast<void*>(from), size}, there{reinterpret_cast<void*>(address), size};
  return privileged_call(SYS_process_vm_writev, pid, raw::word(&here), 1, raw::word(&there), 1) ==
         static_cast<long>(size);
}

Context* device_of(long pid, long fd) {
  Context* found = nullptr;
  for_each_device([&](int mine, Context* context) {
    const long same =
        privileged_call(SYS_kcmp, raw::call(SYS_getpid), pid, KCMP_FILE, static_cast<long>(mine), fd);
    if (same == 0) found = context;
  });
  return found;
}

/// 0 or an errno value.
int answer(long pid, long fd, uint64_t argument) {
  ib_uverbs_ioctl_hdr head{};
  if (!copy_from(pid, argument, &head, sizeof head)) return EFAULT;
  const size_t size = sizeof head + head.num_attrs * sizeof(ib_uverbs_attr);
  if (head.num_attrs > 16 || head.length != size) return EINVAL;
  alignas(ib_uverbs_ioctl_hdr) uint8_t bytes[sizeof head + 16 * sizeof(ib_uverbs_attr)];
  auto* header = reinterpret_cast<ib_uverbs_ioctl_hdr*>(bytes);
  if (!copy_from(pid, argument, bytes, size)) return EFAULT;
  Context* device = device_of(pid, fd);
  if (device == nullptr) return ENOTTY;
  std::vector<std::vector<uint8_t>> copies(header->num_attrs);
  std::vector<uint64_t> addresses(header->num_attrs);
  for (unsigned i = 0; i < header->num_attrs; ++i) {
    ib_uverbs_attr& a = header->attrs[i];
    if (a.attr_id != UVERBS_ATTR_CORE_OUT && a.len <= sizeof a.data) continue;  // in its place
    addresses[i] = a.data;
    copies[i].resize(a.len);
    if (!copy_from(pid, a.data, copies[i].data(), a.len)) return EFAULT;
    a.data = reinterpret_cast<uint64_t>(copies[i].data());
  }
  if (const int bad = device->invoke(header, has_net_raw(pid)); bad != 0) return bad;
  for (unsigned i = 0; i < header->num_attrs; ++i)
    if (addresses[i] != 0 && !copy_to(pid, addresses[i], copies[i].data(), copies[i].size())) return EFAULT;
  return 0;
}

void serve(int listener) {
  // All signals are blocked since the start, also the one by which libc's setuid() reaches each thread.
  const uint64_t all_but_libcs = ~(uint64_t{3} << 31);
  raw::call(SYS_rt_sigprocmask, SIG_SETMASK, raw::word(&all_but_libcs), 0, sizeof all_but_libcs);
  be_hardware();
  for (;;) {
    pollfd watched{listener, POLLIN, 0};
    if (raw::call(SYS_ppoll, raw::word(&watched), 1, 0, 0) == -EINTR) continue;
    if ((watched.revents & POLLIN) == 0) break;
    seccomp_notif asked{};
    if (raw::call(SYS_ioctl, listener, static_cast<long>(SECCOMP_IOCTL_NOTIF_RECV), raw::word(&asked)) < 0)
      continue;
    seccomp_notif_resp said{};
    said.id = asked.id;
    said.error = -answer(asked.pid, static_cast<int>(asked.data.args[0]), asked.data.args[2]);
    raw::call(SYS_ioctl, listener, static_cast<long>(SECCOMP_IOCTL_NOTIF_SEND), raw::word(&said));
  }
  raw::close(listener);  // the helper has ended
}

}  // namespace

int clone_for_helper(CloneFunction* clone, int (*run)(void*), void* stack, int flags, void* argument) {
  static StartState* starting = nullptr;  // in the memory that all three share
  if (flags != kVfork) return clone(run, stack, flags, argument);
  if (starting != nullptr) {  // the second process, which will be the helper
    starting->run = run;
    starting->argument = argument;
    return clone(&begin, stack, flags, starting);
  }
  keep_privileges();
  StartState state{};
  if (raw::call(SYS_socketpair, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, raw::word(&state.ends[0])) < 0)
    return clone(run, stack, flags, argument);
  starting = &state;
  const int child = clone(run, stack, flags, argument);
  starting = nullptr;
  FdMessage m;
  const long n =
      raw::call(SYS_recvmsg, state.ends[1], raw::word(&m.message), MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  for (const int fd : state.ends) raw::call(SYS_close, fd);
  if (n == 1 && m.message.msg_controllen >= CMSG_LEN(sizeof(int))) {
    int listener = -1;
    memcpy(&listener, CMSG_DATA(reinterpret_cast<cmsghdr*>(m.control)), sizeof listener);
    std::thread(serve, raw::keep(listener)).detach();
  }
  return child;
}

}  // namespace model
