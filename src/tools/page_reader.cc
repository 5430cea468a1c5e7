#include "tools/page_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <unordered_map>

#include "tools/page_copy.h"
#include "tools/preloading.h"

namespace accel::tools {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using stats::Page;

constexpr auto kPatience = 2s;  ///< housekeeping looks every 500 ms

std::optional<int> number(const std::string& text) {
  int n = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc{} || end != text.data() + text.size() || n < 0) return {};
  return n;
}

/// Descriptor to what /proc says that it is.
std::map<int, std::string> descriptors(int pid) {
  std::map<int, std::string> all;
  std::error_code error;
  for (fs::directory_iterator i(fmt::format("/proc/{}/fd", pid), error), end; !error && i != end;
       i.increment(error)) {
    std::error_code gone;
    auto target = fs::read_symlink(i->path(), gone);
    auto fd = number(i->path().filename().string());
    if (!gone && fd) all[*fd] = target.string();
  }
  return all;
}

/// What /proc says that one is; "": there is none, or it may not be asked.
std::string descriptor(int pid, int fd) {
  char target[PATH_MAX];
  const ssize_t n = readlink(fmt::format("/proc/{}/fd/{}", pid, fd).c_str(), target, sizeof target);
  return n > 0 ? std::string(target, static_cast<size_t>(n)) : std::string();
}

/// The process's id where it lives (a container).
int inner_pid(int pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("NSpid:")) {
      std::istringstream ids(line.substr(6));
      int id = pid;
      while (ids >> id) {
      }
      return id;
    }
  return pid;
}

/// Numbers that private descriptors have, where they are free (base/private_fds.h).
constexpr int kFirstPrivate = 960, kEndPrivate = 1024;

bool is_page(const std::string& what) {
  return what.find(std::string("memfd:") + stats::kStatsName) != std::string::npos;
}

/// Where the page can be opened, as a rule. A look at all descriptors is dear where there are thousands.
std::vector<std::string> usual_places_of_page(int pid) {
  std::vector<std::string> places;
  for (int fd = kFirstPrivate; fd < kEndPrivate; ++fd)
    if (is_page(descriptor(pid, fd))) places.push_back(fmt::format("/proc/{}/fd/{}", pid, fd));
  return places;
}

/// Among all descriptors, or, when the program has closed that (closefrom), among what it has mapped, which
/// takes CAP_CHECKPOINT_RESTORE.
std::vector<std::string> places_of_page(int pid) {
  std::vector<std::string> places;
  for (auto& [fd, what] : descriptors(pid))
    if (is_page(what)) places.push_back(fmt::format("/proc/{}/fd/{}", pid, fd));
  if (!places.empty()) return places;
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  for (std::string line; std::getline(maps, line);)
    if (is_page(line))
      places.push_back(fmt::format("/proc/{}/map_files/{}", pid, line.substr(0, line.find(' '))));
  return places;
}

/// A mapped page; the seals promise that it stays as large as it is.
struct Mapping {
  explicit Mapping(int pid, const std::string& place) {
    int opened = ::open(place.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (opened < 0) return;
    struct stat facts {};
    int seals = fcntl(opened, F_GET_SEALS);
    if (fstat(opened, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_size == sizeof(Page) && seals >= 0 &&
        (seals & F_SEAL_SHRINK)) {
      void* memory =
          mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, opened, 0);
      if (memory != MAP_FAILED) page = static_cast<Page*>(memory);
    }
    fd = opened;
    if (page &&
        (once(page->magic) != stats::kMagic || once(page->version) != stats::kVersion ||
         once(page->pid) != inner_pid(pid) || once(page->counters) != static_cast<uint32_t>(Counter::kCount)))
      drop();
  }
  ~Mapping() {
    drop();
    if (fd >= 0) close(fd);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  void drop() {
    if (page) munmap(page, sizeof(Page));
    page = nullptr;
  }
  Page* page = nullptr;
  int fd = -1;
};

struct Candidate {
  ProcessStats result;
  std::unique_ptr<Mapping> mapping;
  uint64_t question = 0;
};

struct KernelEntry {
  uint8_t protocol, state;
  stats::Address local, remote;
};

/// "0100007F:1F90" or 32 digits: words of the address in host order, as the kernel prints them.
bool parse_address(const std::string& text, stats::Address* out) {
  size_t colon = text.find(':');
  if (colon != 8 && colon != 32) return false;
  *out = {};
  auto hex = [](std::string_view digits, uint32_t* value) {
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *value, 16);
    return error == std::errc{} && end == digits.data() + digits.size();
  };
  uint8_t* at = out->bytes + (colon == 8 ? 12 : 0);
  if (colon == 8) out->bytes[10] = out->bytes[11] = 0xff;
  for (size_t i = 0; i < colon; i += 8, at += 4) {
    uint32_t word = 0;
    if (!hex(std::string_view(text).substr(i, 8), &word)) return false;
    std::memcpy(at, &word, 4);
  }
  uint32_t port = 0;
  if (!hex(std::string_view(text).substr(colon + 1), &port)) return false;
  out->port = static_cast<uint16_t>(port);
  return true;
}

/// The kernel's sockets in the process's network namespace, by inode.
std::unordered_map<uint64_t, KernelEntry> kernel_table(int pid) {
  std::unordered_map<uint64_t, KernelEntry> all;
  for (auto [name, protocol] :
       {std::pair{"tcp", IPPROTO_TCP}, {"tcp6", IPPROTO_TCP}, {"udp", IPPROTO_UDP}, {"udp6", IPPROTO_UDP}}) {
    std::ifstream table(fmt::format("/proc/{}/net/{}", pid, name));
    std::string line;
    std::getline(table, line);  // the heading
    while (std::getline(table, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, skipped;
      uint64_t inode = 0;
      fields >> slot >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) fields >> skipped;  // queues, timer, retransmits, uid, timeout
      fields >> inode;
      KernelEntry entry{};
      entry.protocol = static_cast<uint8_t>(protocol);
      entry.state =
          protocol == IPPROTO_TCP ? static_cast<uint8_t>(std::strtoul(state.c_str(), nullptr, 16)) : 0;
      if (fields && parse_address(local, &entry.local) && parse_address(remote, &entry.remote))
        all[inode] = entry;
    }
  }
  return all;
}

/// Descriptors with a note. What has never been written is left out: to read it would make the process's
/// memory larger.
std::vector<int> noted_descriptors(const Mapping& mapping) {
  std::vector<int> all;
  constexpr auto kFirst = static_cast<off_t>(offsetof(Page, note));
  constexpr auto kEnd = static_cast<off_t>(kFirst + sizeof(Page::note));
  constexpr auto kSize = static_cast<off_t>(sizeof(stats::NoteRow));
  for (off_t at = kFirst; at < kEnd;) {
    const off_t data = lseek(mapping.fd, at, SEEK_DATA);
    if (data < 0 || data >= kEnd) break;
    const off_t hole = std::min(lseek(mapping.fd, data, SEEK_HOLE), kEnd);
    if (hole <= data) break;
    for (off_t row = (std::max(data, kFirst) - kFirst) / kSize; kFirst + row * kSize < hole; ++row)
      if (mapping.page->note[row].inode.load(std::memory_order_relaxed) != 0)
        all.push_back(static_cast<int>(row));
    at = hole;
  }
  return all;
}

void add_kernel_sockets(Candidate& c) {
  const Page& page = *c.mapping->page;
  std::optional<std::unordered_map<uint64_t, KernelEntry>> table;
  for (const int fd : noted_descriptors(*c.mapping)) {
    uint64_t inode = 0;
    if (std::sscanf(descriptor(c.result.pid, fd).c_str(), "socket:[%lu]", &inode) != 1) continue;
    const stats::NoteRow& note = page.note[fd];
    if (inode == 0 || note.inode.load(std::memory_order_acquire) != inode) continue;
    KernelSocket socket;
    socket.fd = fd;
    socket.reason = once(note.reason);
    socket.detail = c.result.details[once(note.detail)];
    if (!table) table = kernel_table(c.result.pid);
    if (auto found = table->find(inode); found != table->end()) {
      socket.protocol = found->second.protocol;
      socket.state = found->second.state;
      socket.local = found->second.local;
      socket.remote = found->second.remote;
    }
    c.result.kernel_sockets.push_back(socket);
  }
}

std::optional<Candidate> open_process(int pid) {
  Candidate c;
  c.result.pid = pid;
  for (const auto places : {usual_places_of_page, places_of_page}) {
    for (const std::string& place : places(pid)) {
      c.mapping = std::make_unique<Mapping>(pid, place);
      if (c.mapping->page) break;
    }
    if (c.mapping && c.mapping->page) break;
  }
  if (!c.mapping || !c.mapping->page) return {};
  std::ifstream comm(fmt::format("/proc/{}/comm", pid));
  std::getline(comm, c.result.program);
  copy_facts(*c.mapping->page, c.result);
  return c;
}

bool is_mapped(int pid, std::string_view name) {
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  for (std::string line; std::getline(maps, line);)
    if (line.ends_with(name)) return true;
  return false;
}

std::string program_of(int pid) {
  std::ifstream comm(fmt::format("/proc/{}/comm", pid));
  std::string name;
  std::getline(comm, name);
  return name;
}

/// Its own and its threads' children.
std::vector<int> children_of(int pid) {
  std::vector<int> all;
  std::error_code error;
  for (fs::directory_iterator i(fmt::format("/proc/{}/task", pid), error), end; !error && i != end;
       i.increment(error)) {
    std::ifstream list(i->path() / "children");
    for (int child; list >> child;) all.push_back(child);
  }
  return all;
}

}  // namespace

Sight look_for(int pid) {
  std::error_code error;
  if (!fs::exists(fmt::format("/proc/{}", pid), error)) return Sight::kNoProcess;
  if (access(fmt::format("/proc/{}/fd", pid).c_str(), R_OK | X_OK) != 0 ||
      !std::ifstream(fmt::format("/proc/{}/maps", pid)))
    return Sight::kForeign;
  fs::directory_iterator probe(fmt::format("/proc/{}/fd", pid), error);
  if (error) return error.value() == ENOENT ? Sight::kNoProcess : Sight::kForeign;
  if (open_process(pid)) return Sight::kPage;
  return is_mapped(pid, "/libaccel.so") ? Sight::kNoSocket : Sight::kNoLibaccel;
}

std::string text_of(Sight sight, int pid) {
  switch (sight) {
    case Sight::kNoProcess:
      return fmt::format("process {} does not exist", pid);
    case Sight::kForeign:
      return fmt::format("process {} is another user's: run as that user, or as root", pid);
    case Sight::kNoSocket:
      return fmt::format(
          "process {} has libaccel, but no Internet socket of it was made yet (or the setting stats is off)",
          pid);
    case Sight::kNoLibaccel:
      return fmt::format("process {} runs without libaccel: {}", pid, why_not_preloaded(pid));
    case Sight::kPage:
      break;
  }
  return fmt::format("process {} uses libaccel", pid);
}

std::vector<PlainChild> plain_children(int pid) {
  std::vector<PlainChild> all;
  for (int child : children_of(pid)) {
    const std::string program = program_of(child);
    if (program.empty() || program == "accel-guard" || look_for(child) == Sight::kPage) continue;
    const Sight sight = look_for(child);
    if (sight == Sight::kNoProcess) continue;
    all.push_back({child, program,
                   sight == Sight::kForeign    ? "another user's"
                   : sight == Sight::kNoSocket ? "libaccel is in it; it has made no Internet socket"
                                               : "without libaccel: " + why_not_preloaded(child)});
  }
  return all;
}

std::vector<int> descriptors_named(int pid, const std::string& name) {
  std::vector<int> found;
  for (const auto& [fd, what] : descriptors(pid))
    if (what.find("memfd:" + name) != std::string::npos) found.push_back(fd);
  return found;
}

std::string send_wish(int pid, const std::string& text) {
  auto process = open_process(pid);
  if (!process) return text_of(look_for(pid), pid);
  if (!process->result.engine) return "nothing is accelerated in the process yet: set it for its start";
  Page& page = *process->mapping->page;
  if (text.size() >= sizeof page.wish.text) return "too long";
  if (flock(process->mapping->fd, LOCK_EX) != 0) return std::strerror(errno);  // goes with the descriptor
  std::memset(page.wish.text, 0, sizeof page.wish.text);
  std::memcpy(page.wish.text, text.data(), text.size());
  const uint64_t wish = page.wish.asked.fetch_add(1) + 1;
  page.asked.fetch_add(1);  // housekeeping looks
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (page.wish.answered.load(std::memory_order_acquire) != wish) {
    if (std::chrono::steady_clock::now() > deadline)
      return "the process does not answer: it is stopped, or busy";
    std::this_thread::sleep_for(2ms);
  }
  char answer[sizeof page.wish.answer];
  std::memcpy(answer, page.wish.answer, sizeof answer);
  return {answer, strnlen(answer, sizeof answer)};
}

std::vector<ProcessStats> read_processes(std::optional<int> pid) {
  std::vector<Candidate> found;
  std::vector<int> pids;
  std::error_code error;
  if (pid)
    pids.push_back(*pid);
  else
    for (fs::directory_iterator i("/proc", error), end; !error && i != end; i.increment(error))
      if (auto n = number(i->path().filename().string())) pids.push_back(*n);
  std::sort(pids.begin(), pids.end());
  for (int p : pids)
    if (auto c = open_process(p)) found.push_back(std::move(*c));

  // All are asked at once, then waited for together.
  for (Candidate& c : found)
    if (c.result.engine) c.question = c.mapping->page->asked.fetch_add(1) + 1;
  auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::vector<ProcessStats> results;
  for (Candidate& c : found) {
    const Page& page = *c.mapping->page;
    auto answered = [&] { return static_cast<int64_t>(page.answered.load() - c.question) >= 0; };
    while (c.result.engine && !answered() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(2ms);
    c.result.answered = !c.result.engine || answered();
    if (!c.result.answered && descriptors(c.result.pid).empty()) continue;  // it has ended meanwhile
    if (!copy_answer(page, c.result)) c.result.answered = false;
    copy_details(page, c.result);
    add_kernel_sockets(c);
    results.push_back(std::move(c.result));
  }
  return results;
}

}  // namespace accel::tools
