#include "model/front/shared_rules.h"

#include <sys/mman.h>

#include <algorithm>

#include "model/front/environment.h"
#include "model/front/raw.h"

namespace model {
namespace {

constexpr uint32_t kMostOwners = 4096;

/// A lock of the open file (fcntl(2), "open file description locks") on one byte: it goes with the process.
struct flock byte_lock(short type, uint32_t byte) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

long set_lock(int fd, int command, struct flock lock) {
  return raw::call(SYS_fcntl, fd, command, raw::word(&lock));
}

}  // namespace

/// Byte 0 is the table's.
class SharedRules::Locked {
 public:
  enum Use : uint8_t { kRead, kWrite };
  Locked(SharedRules& rules, Use use) : rules_(rules), use_(use) {
    set_lock(rules.fd_, F_OFD_SETLKW, byte_lock(F_WRLCK, 0));
  }
  ~Locked() {
    if (use_ == kWrite) __atomic_add_fetch(&rules_.file_->generation, 1, __ATOMIC_RELEASE);
    set_lock(rules_.fd_, F_OFD_SETLK, byte_lock(F_UNLCK, 0));
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  SharedRules& rules_;
  const Use use_;
};

void SharedRules::open() {
  if (environment().report.empty()) return;
  fd_ = raw::openat((environment().report + "/steering").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
  if (fd_ < 0) return;
  raw::call(SYS_ftruncate, fd_, sizeof(File));
  void* mapped = raw::mmap(sizeof(File), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  for (uint32_t byte = 1; byte < kMostOwners && owner_ == 0; ++byte)
    if (set_lock(fd_, F_OFD_SETLK, byte_lock(F_WRLCK, byte)) == 0) owner_ = byte;
  if (!raw::failed(mapped) && owner_ != 0) {
    file_ = static_cast<File*>(mapped);
    // What a dead context of this number had is not ours.
    const Locked locked(*this, Locked::kWrite);
    for (size_t i = 0; i < file_->used; ++i)
      if (file_->slots[i].owner == owner_) file_->slots[i].owner = 0;
  } else {
    close();
  }
}

void SharedRules::close() {
  if (file_ != nullptr) raw::munmap(file_, sizeof(File));
  file_ = nullptr;
  if (fd_ >= 0) raw::close(fd_);
  fd_ = -1;
}

void SharedRules::add(const FlowRule& rule, uint32_t handle) {
  if (file_ == nullptr) return;
  const Locked locked(*this, Locked::kWrite);
  for (size_t i = 0; i < kSlots; ++i) {
    Slot& slot = file_->slots[i];
    if (slot.owner != 0) continue;
    slot = {owner_, rule};
    if (i >= file_->used) file_->used = i + 1;
    mine_[handle] = i;
    return;
  }
}

void SharedRules::remove(uint32_t handle) {
  const auto slot = mine_.find(handle);
  if (slot == mine_.end() || file_ == nullptr) return;
  const Locked locked(*this, Locked::kWrite);
  file_->slots[slot->second].owner = 0;
  mine_.erase(slot);
}

bool SharedRules::changed() const {
  return file_ != nullptr && __atomic_load_n(&file_->generation, __ATOMIC_ACQUIRE) != seen_;
}

bool SharedRules::lives(uint32_t owner) const {
  struct flock lock = byte_lock(F_WRLCK, owner);
  return raw::call(SYS_fcntl, fd_, F_OFD_GETLK, raw::word(&lock)) == 0 && lock.l_type != F_UNLCK;
}

std::vector<FlowRule> SharedRules::others() {
  std::vector<FlowRule> found;
  if (file_ == nullptr) return found;
  std::map<uint32_t, bool> alive;
  const Locked locked(*this, Locked::kRead);
  for (size_t i = 0; i < file_->used; ++i) {
    const Slot& slot = file_->slots[i];
    if (slot.owner == 0 || slot.owner == owner_) continue;
    const auto [known, is_new] = alive.try_emplace(slot.owner, false);
    if (is_new) known->second = lives(slot.owner);
    if (known->second) found.push_back(slot.rule);
  }
  seen_ = file_->generation;
  sharing_contexts_ = static_cast<unsigned>(
      std::count_if(alive.begin(), alive.end(), [](const auto& a) { return a.second; }));
  return found;
}

}  // namespace model
