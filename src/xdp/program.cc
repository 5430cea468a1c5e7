#include "xdp/program.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fcntl.h>
#include <linux/if_link.h>
#include <sys/stat.h>

#include <cstring>
#include <ctime>
#include <map>

#include "base/mutex.h"
#include "xdp/bpf_object.h"
#include "xdp/flow_abi.h"
#include "xdp/flow_object.h"

#define ACCEL_STRING_(x) #x
#define ACCEL_STRING(x) ACCEL_STRING_(x)

namespace accel::xdp {
namespace {

constexpr const char* kProgramName = ACCEL_STRING(ACCEL_XDP_PROGRAM);

/// Attach and detach of other processes settle within microseconds; this is a guard.
constexpr int kJoinAttempts = 500;
constexpr timespec kJoinPause{0, 2'000'000};
/// As often the device had no program, and the kernel took none: nobody comes and goes there.
constexpr int kRefusals = 10;
/// Attempts until a program on the generic hook is taken to stay.
constexpr int kGenericGoes = 50;

std::string explain_load(int error) {
  switch (error) {
    case EPERM:
    case EACCES:
      return "not allowed to load an XDP program: the process needs CAP_BPF and CAP_NET_ADMIN (or "
             "CAP_SYS_ADMIN)";
    case ENOMEM:
      return "no memory for the XDP program's maps (kernels before 5.11 charge RLIMIT_MEMLOCK: raise it)";
    case ENOSYS:
      return "the kernel has no bpf(): it needs CONFIG_BPF_SYSCALL";
    default:
      return std::string(
                 "the kernel refused the XDP program (5.9 or later with CONFIG_XDP_SOCKETS is needed): ") +
             std::strerror(error);
  }
}

}  // namespace

/// One attempt after the other until the program is there or a lasting reason against it is found.
class ProgramFactory {
 public:
  ProgramFactory(const ProgramOptions& options, std::string* why) : options_(options), why_(why) {}

  Result<std::shared_ptr<Program>> run() {
    int refused_in_a_row = 0;
    for (int attempt = 0; attempt < kJoinAttempts; ++attempt, ++attempts_) {
      if (attempt > 2) nanosleep(&kJoinPause, nullptr);
      LIBBPF_OPTS(bpf_xdp_query_opts, query);
      if (int error = -bpf_xdp_query(options_.ifindex, 0, &query); error > 0)
        return fail(error,
                    "cannot ask which XDP program " + options_.netdev + " has: " + std::strerror(error));
      auto program = query.prog_id == 0 ? attach() : share(query);
      // EAGAIN: another process attached or detached between two of our steps; look again.
      if (program || !program.is(EAGAIN)) return program;
      refused_in_a_row = query.prog_id == 0 ? refused_in_a_row + 1 : 0;
      if (refused_in_a_row == kRefusals)
        return fail(
            EEXIST,
            options_.netdev + " can have no XDP program: a device above it (VLAN, macvlan, bridge) has one");
    }
    return fail(EBUSY, "the XDP program of " + options_.netdev +
                           " is not held by a bpf_link, or comes and goes: detach it with `ip link set dev " +
                           options_.netdev + " xdp off`");
  }

 private:
  Errno fail(int error, const std::string& text) {
    if (why_) *why_ = text;
    return err(error);
  }

  Result<std::shared_ptr<Program>> attach() {
    ObjectPtr object;
    if (int error = load(object, true); error != 0) {
      // 5.18 brought frags; without them only MTUs up to a page work.
      if (error != EINVAL || (error = load(object, false)) != 0) return fail(error, explain_load(error));
    }
    const int program_fd = bpf_program__fd(bpf_object__find_program_by_name(object.get(), kProgramName));
    auto program = std::make_shared<Program>();
    LIBBPF_OPTS(bpf_link_create_opts, create);
    int error = EOPNOTSUPP;
    if (!options_.force_generic) {
      create.flags = XDP_FLAGS_DRV_MODE;
      error = link(*program, program_fd, create);
      program->native_ = error == 0;
    }
    if (error != 0 && error != EBUSY && error != EEXIST && error != EPERM && !options_.native_only) {
      create.flags = XDP_FLAGS_SKB_MODE;
      error = link(*program, program_fd, create);
    }
    // EBUSY, EEXIST: somebody attached since we looked.
    if (error == EBUSY || error == EEXIST) return err(EAGAIN);
    if (error == EPERM)
      return fail(error, "not allowed to attach an XDP program: the process needs CAP_NET_ADMIN");
    if (error != 0 && options_.native_only)
      return fail(ENOTUNIQ, "frames come past the generic XDP hook of " + options_.netdev +
                                " (a tc redirect), and its driver takes no program: " + std::strerror(error));
    if (error != 0)
      return fail(error, "cannot attach an XDP program to " + options_.netdev + ": " + std::strerror(error));
    auto map = [&](const char* name) {
      return duplicate(bpf_object__find_map_fd_by_name(object.get(), name));
    };
    program->xsks_ = map("accel_xsks");
    program->owners_ = map("accel_owners");
    program->flows_ = map("accel_flows");
    program->counters_ = map("accel_counters");
    if (!program->xsks_ || !program->owners_ || !program->flows_ || !program->counters_)
      return fail(EMFILE, "no file descriptors left (RLIMIT_NOFILE)");
    bpf_prog_info info{};
    uint32_t length = sizeof(info);
    if (bpf_obj_get_info_by_fd(program_fd, &info, &length) == 0) program->id_ = info.id;
    return program;
  }

  int load(ObjectPtr& object, bool frags) {
    LIBBPF_OPTS(bpf_object_open_opts, open);
    open.object_name = "accel";
    object.reset(bpf_object__open_mem(kFlowObject, kFlowObjectSize, &open));
    if (!object) return errno;
    bpf_program* program = bpf_object__find_program_by_name(object.get(), kProgramName);
    bpf_map* flows = bpf_object__find_map_by_name(object.get(), "accel_flows");
    if (!program || !flows) return ENOENT;
    if (!frags) bpf_program__set_flags(program, bpf_program__flags(program) & ~uint32_t{BPF_F_XDP_HAS_FRAGS});
    bpf_map__set_max_entries(flows, options_.flow_table);
    return -bpf_object__load(object.get());
  }

  int link(Program& program, int program_fd, const bpf_link_create_opts& create) {
    const int fd = bpf_link_create(program_fd, options_.ifindex, BPF_XDP, &create);
    if (fd < 0) return -fd;
    program.link_ = high(Fd(fd));
    return 0;
  }

  Result<std::shared_ptr<Program>> share(const bpf_xdp_query_opts& query) {
    Fd fd(bpf_prog_get_fd_by_id(query.prog_id));
    if (!fd) return cannot_share(errno);
    bpf_prog_info info{};
    uint32_t map_ids[16];
    uint32_t length = sizeof(info);
    info.map_ids = reinterpret_cast<uintptr_t>(map_ids);
    info.nr_map_ids = 16;
    if (bpf_obj_get_info_by_fd(fd.get(), &info, &length) != 0) return cannot_share(errno);
    if (std::strncmp(info.name, kProgramName, sizeof(info.name)) != 0) return foreign(info);

    auto program = std::make_shared<Program>();
    program->id_ = info.id;
    program->native_ = query.attach_mode == XDP_ATTACHED_DRV;
    // It may be that of a port or process that has just ended.
    if (options_.native_only && !program->native_ && attempts_ < kGenericGoes) return err(EAGAIN);
    if (options_.native_only && !program->native_)
      return fail(ENOTUNIQ,
                  options_.netdev +
                      " has the XDP program on its generic hook, for other processes, and frames come past "
                      "that (a tc redirect): restart them");
    for (uint32_t i = 0; i < info.nr_map_ids && i < 16; ++i)
      if (auto taken = take_map(*program, map_ids[i]); !taken) return taken.error();
    if (!program->xsks_ || !program->owners_ || !program->flows_ || !program->counters_) return foreign(info);
    if (auto held = hold_link(*program); !held) return held.error();
    return program;
  }

  /// ENOENT is a race with a process that leaves.
  Errno cannot_share(int error) {
    if (error == ENOENT) return err(EAGAIN);
    if (error == EPERM)
      return fail(
          error,
          options_.netdev +
              " already has an XDP program; to join it (if it is another process's libaccel) this one needs "
              "CAP_SYS_ADMIN, or must be a child of that process");
    return fail(error,
                "cannot look into the XDP program of " + options_.netdev + ": " + std::strerror(error));
  }

  Errno foreign(const bpf_prog_info& info) {
    const std::string name(info.name, strnlen(info.name, sizeof(info.name)));
    const bool ours = name.rfind("accel_steer_", 0) == 0;
    return fail(EEXIST, options_.netdev + " has the XDP program '" + name + "' (id " +
                            std::to_string(info.id) +
                            (ours ? ") of another version of libaccel: restart the processes that use it"
                                  : ") of somebody else: detach it with `ip link set dev " + options_.netdev +
                                        " xdp off`, or stop its owner"));
  }

  Result<void> take_map(Program& program, uint32_t id) {
    Fd fd(bpf_map_get_fd_by_id(id));
    bpf_map_info info{};
    uint32_t length = sizeof(info);
    if (!fd || bpf_obj_get_info_by_fd(fd.get(), &info, &length) != 0) return cannot_share(errno);
    auto is = [&](const char* name, bpf_map_type type, size_t key, size_t value) {
      return std::strncmp(info.name, name, sizeof(info.name)) == 0 && info.type == type &&
             info.key_size == key && info.value_size == value;
    };
    if (is("accel_xsks", BPF_MAP_TYPE_XSKMAP, 4, 4))
      program.xsks_ = high(std::move(fd));
    else if (is("accel_owners", BPF_MAP_TYPE_ARRAY, 4, 4))
      program.owners_ = high(std::move(fd));
    else if (is("accel_flows", BPF_MAP_TYPE_HASH, sizeof(accel_flow_key), sizeof(accel_flow_value)))
      program.flows_ = high(std::move(fd));
    else if (is("accel_counters", BPF_MAP_TYPE_PERCPU_ARRAY, 4, 8))
      program.counters_ = high(std::move(fd));
    return {};
  }

  Result<void> hold_link(Program& program) {
    for (uint32_t id = 0; bpf_link_get_next_id(id, &id) == 0;) {
      Fd fd(bpf_link_get_fd_by_id(id));
      bpf_link_info info{};
      uint32_t length = sizeof(info);
      if (!fd || bpf_obj_get_info_by_fd(fd.get(), &info, &length) != 0) continue;
      if (info.type != BPF_LINK_TYPE_XDP || info.prog_id != program.id_) continue;
      program.link_ = high(std::move(fd));
      return {};
    }
    return err(EAGAIN);
  }

  const ProgramOptions& options_;
  std::string* why_;
  int attempts_ = 0;
};

namespace {

/// Programs that this process holds already. Never destroyed: ports may outlive static destruction.
struct Registry {
  using Key = std::pair<uint64_t, int>;  ///< network namespace, ifindex
  Mutex mutex;
  std::map<Key, std::weak_ptr<Program>> held ACCEL_GUARDED_BY(mutex);
  std::map<Key, std::shared_ptr<Program>> inherited ACCEL_GUARDED_BY(mutex);
};

Registry& registry() {
  static Registry* r = new Registry;
  return *r;
}

uint64_t network_namespace() {
  struct stat s {};
  return stat("/proc/thread-self/ns/net", &s) == 0 ? s.st_ino : 0;
}

/// An inherited or held program may have been detached meanwhile (the netdev is gone, its index used again).
bool still_attached(const Program& program, int ifindex) {
  LIBBPF_OPTS(bpf_xdp_query_opts, query);
  return bpf_xdp_query(ifindex, 0, &query) == 0 && query.prog_id == program.id();
}

}  // namespace

Result<std::shared_ptr<Program>> Program::join(const ProgramOptions& options, std::string* why) {
  Registry& r = registry();
  const MutexLock lock(r.mutex);
  const Registry::Key key{network_namespace(), options.ifindex};
  auto known = r.held[key].lock();
  if (known && known->link() < 0) {
    if (why) *why = "not allowed to open another port: the process has given up its privilege";
    return err(EPERM);
  }
  if (known && still_attached(*known, options.ifindex) && (known->native() || !options.native_only))
    return known;
  r.inherited.erase(key);
  auto program = ProgramFactory(options, why).run();
  if (program) r.held[key] = *program;
  return program;
}

void Program::keep_inherited(const std::shared_ptr<Program>& program) {
  Registry& r = registry();
  const MutexLock lock(r.mutex);
  for (auto& [key, held] : r.held)
    if (held.lock() == program) r.inherited[key] = program;
}

void Program::forget_inherited() {
  Registry& r = registry();
  const MutexLock lock(r.mutex);
  r.inherited.clear();
}

void Program::let_go() {
  for (Fd* fd : {&link_, &xsks_, &owners_, &flows_, &counters_}) *fd = Fd();
}

}  // namespace accel::xdp
