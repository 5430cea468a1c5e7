#include "posix/detach.h"

#include <vector>

#include "posix/epoll_set.h"
#include "posix/socket.h"

namespace accel::posix {
namespace {

/// The real set becomes all there is to it.
bool detach_set(Pass* pass, EpollSet& set, Reason reason) {
  bool all = true;
  set.passed_on = true;
  std::vector<File*> members;
  set.for_each_item([&](EpollItem& item) {
    item.file->retain();
    members.push_back(item.file);
  });
  for (File* member : members) {
    const bool left = detach(pass, member, reason);
    all = all && left;
    // A nested set, and a socket that is nobody's yet, are still ours; this membership is not.
    for (EpollItem *item = member->watches, *next; left && item != nullptr; item = next) {
      next = item->next_of_file;
      if (item->set == &set) set.end(*item, true);
    }
    member->release(pass);
  }
  return all;
}

}  // namespace

bool detach(Pass* pass, File* file, Reason reason) {
  if (file->kind() == FileKind::kEpoll) return detach_set(pass, *static_cast<EpollSet*>(file), reason);
  auto* socket = static_cast<Socket*>(file);
  if (pass != nullptr) return socket->detach(*pass, reason).ok();
  fds.forget(file);  // without an engine it is undecided
  return true;
}

}  // namespace accel::posix
