// Any bytes as what a parent and the children of its fork() share about their sockets, while another thread
// goes on writing: an owner or a descendant reads and writes nothing else, and each question ends with an
// answer.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "posix/fork_sharing.h"

namespace {

using namespace accel;
using namespace accel::posix;

constexpr size_t kFiles = 8;

class Socket final : public File {
 public:
  Socket() : File(FileKind::kTcp) {}
  uint32_t readiness() override { return 0; }
  int kernel_fd() override { return -1; }
  void on_last_close(Pass*) override {}
};

struct World {
  Socket sockets[kFiles];
  std::unique_ptr<ForkSharing> sharing;
  uint8_t* page = nullptr;
  size_t size = 0;
};

/// The anonymous page that fork sharing has mapped is the process's only one that is shared.
void find_page(World& world) {
  FILE* maps = std::fopen("/proc/self/maps", "r");
  char line[512], kind[8];
  uintptr_t from, to;
  while (std::fgets(line, sizeof line, maps) != nullptr)
    if (std::sscanf(line, "%lx-%lx %4s", &from, &to, kind) == 3 && kind[3] == 's' &&
        std::strstr(line, "/dev/zero")) {
      world.page = reinterpret_cast<uint8_t*>(from);
      world.size = to - from;
    }
  std::fclose(maps);
  if (world.page == nullptr) abort();
}

World* make_world() {
  auto* world = new World;
  std::vector<File*> files;
  for (Socket& socket : world->sockets) files.push_back(&socket);
  world->sharing = ForkSharing::prepare(files, -1);
  if (world->sharing == nullptr) abort();
  find_page(*world);
  return world;
}

void keep_writing(World* world) {
  for (uint32_t n = 0;; ++n) {
    auto* word = reinterpret_cast<uint32_t*>(world->page) + n % (kFiles * 4);
    std::atomic_ref(*word).store((n & 1) != 0 ? n * 2654435761u : n % 7, std::memory_order_relaxed);
  }
}

void owner(ForkSharing& sharing, const File* file, uint8_t choice) {
  (void)sharing.has_descendants(file);
  (void)sharing.has_program(file);
  (void)sharing.take_program_request(file);
  sharing.take_back(file);
  sharing.tell(file, static_cast<SharedState>(choice % 5));
  std::set<File*> wanted;
  sharing.add_wanted((choice & 8) != 0, wanted);
  if (wanted.size() > kFiles) abort();
}

void descendant(ForkSharing& sharing, const File* file, uint8_t choice) {
  (void)sharing.others_have(file);
  sharing.request(file);
  sharing.change_descendants((choice & 1) != 0 ? 1 : -1);
  if ((choice & 2) != 0) sharing.note_program(file);
  const SharedState where = sharing.take(file);
  if (where != SharedState::kKernel && where != SharedState::kLost && where != SharedState::kKept) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static World* const world = make_world();
  static std::once_flag once;
  std::call_once(once, [] { std::thread(keep_writing, world).detach(); });
  if (size < 2) return 0;
  std::memcpy(world->page, data, std::min(size, world->size));
  const File* file = &world->sockets[data[0] % kFiles];
  owner(*world->sharing, file, data[1]);
  descendant(*world->sharing, file, data[1]);
  return 0;
}
