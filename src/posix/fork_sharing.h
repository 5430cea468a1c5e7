// Fork sharing: what a process and its descendants share about the sockets that one fork() copied
// (posix/process.h): connections, and listeners and UDP sockets that the process had open in its stack.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "posix/file.h"

namespace accel::posix {

/// Where an inherited socket is. A connection's moves from top to bottom only.
enum class SharedState : uint32_t {
  kOwner,      ///< in the stack of the process that forked
  kRequested,  ///< a descendant has requested it
  kKernel,  ///< in the shadow, which all use; the owner has released the queues of a listener or UDP socket
  kLost,    ///< closed, or it could not be moved
  kKept,    ///< a listener or UDP socket that the owner itself waits on; descendants may ask again
};

class ForkSharing {
 public:
  /// In the process that is about to fork, for these files. nullptr: no memory or descriptors. Listeners and
  /// UDP sockets that have released their queues are in the shadow already.
  static std::unique_ptr<ForkSharing> prepare(const std::vector<File*>& files, int owner_wake_fd);
  ~ForkSharing();
  ForkSharing(const ForkSharing&) = delete;
  ForkSharing& operator=(const ForkSharing&) = delete;

  // ---- in the owner ----
  void after_fork_in_owner();
  /// No process that inherited it is left.
  bool has_ended() const;
  bool has_descendants(const File* file) const;
  /// Tells descendants where the connection has gone; the file is forgotten.
  void settle(const File* file, SharedState where);
  /// Tells descendants of a listener or UDP socket, of which there may be more to say later.
  void tell(const File* file, SharedState where);
  /// This process has opened it again: descendants may ask again.
  void take_back(const File* file);
  /// A program that a descendant has started has it.
  bool has_program(const File* file) const;
  /// The request was about such a program. Once.
  bool take_program_request(const File* file);
  /// Adds the files that are requested; with `all` all that have descendants.
  void add_wanted(bool all, std::set<File*>& files) const;

  // ---- in a descendant ----
  void after_fork_in_descendant();
  /// Of another fork of the parent's: not for this process. The object is left alone afterwards.
  void abandon_in_descendant();
  /// Another fork: the new process is a descendant too (+1), or it has failed (-1).
  void change_descendants(int by);
  /// The owner has it open, or another descendant.
  bool others_have(const File* file) const;
  /// Asks the owner to move it.
  void request(const File* file);
  /// The program that exec() is about to start gets it.
  void note_program(const File* file);
  /// The same, and waits until it has done so or is dead.
  SharedState take(const File* file);
  /// This process has closed its last descriptor of it.
  void give_up(const File* file);
  /// The program that exec() starts stays a descendant of what it gets, though it does not know.
  void survive_exec();
  int owner_wake_fd() const { return owner_wake_fd_; }

 private:
  /// Descendants may be of another user, so any value may be in a slot: numbers alone, no bool.
  struct Slot {
    std::atomic<uint32_t> where;
    std::atomic<uint32_t> descendants;      ///< processes but the owner that have the file open
    std::atomic<uint32_t> program;          ///< not 0: one that a descendant has started has it
    std::atomic<uint32_t> program_request;  ///< not 0: kRequested since then
  };
  ForkSharing() = default;
  Slot* slot(const File* file) const;
  bool owner_lives() const;

  Slot* slots_ = nullptr;  ///< MAP_SHARED
  size_t count_ = 0;
  std::unordered_map<const File*, size_t> index_;
  pid_t owner_ = 0;
  int owner_wake_fd_ = -1;
  /// A pipe: descendants hold the writing end, so the owner's reading end hangs up when the last is gone.
  int reading_end_ = -1;
  int writing_end_ = -1;
};

}  // namespace accel::posix
