// What a process and its descendants share about the sockets that one fork() copied (posix/process.h):
// connections, and listeners and UDP sockets that the process had open in its stack.
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
enum class Whereabouts : uint32_t {
  kOwner,    ///< in the stack of the process that forked
  kClaimed,  ///< an heir wants it
  kKernel,   ///< in the shadow: everybody uses that; a listener or UDP socket rests in the owner
  kLost,     ///< closed, or it could not be moved
  kKept,     ///< a listener or UDP socket that the owner itself waits on; heirs may ask again
};

class Heritage {
 public:
  /// In the process that is about to fork, for these files. nullptr: no memory or descriptors.
  /// Listeners and UDP sockets that rest are in the shadow already.
  static std::unique_ptr<Heritage> prepare(const std::vector<File*>& files, int owner_wake_fd);
  ~Heritage();
  Heritage(const Heritage&) = delete;
  Heritage& operator=(const Heritage&) = delete;

  // ---- in the owner ----
  void after_fork_in_owner();
  /// No process that inherited it is left.
  bool extinct() const;
  bool has_heirs(const File* file) const;
  /// Tells heirs where the connection has gone; the file is forgotten.
  void settle(const File* file, Whereabouts where);
  /// Tells heirs of a listener or UDP socket, of which there may be more to say later.
  void tell(const File* file, Whereabouts where);
  /// This process has opened it again: heirs may ask again.
  void take_back(const File* file);
  /// A program that an heir has started has it.
  bool has_program(const File* file) const;
  /// Such a one is what the claim was about. Once.
  bool take_program_claim(const File* file);
  /// Adds the files that are claimed; all that have heirs with `all`.
  void add_wanted(bool all, std::set<File*>& files) const;

  // ---- in an heir ----
  void after_fork_in_heir();
  /// Of another fork of the parent's: not for this process. The object is left alone afterwards.
  void abandon_in_heir();
  /// Another fork: the new process is an heir too (+1), or it has failed (-1).
  void change_heirs(int by);
  /// The owner has it open, or another heir.
  bool others_have(const File* file) const;
  /// Asks the owner to move it.
  void ask(const File* file);
  /// The program that exec() is about to start gets it.
  void note_program(const File* file);
  /// The same, and waits until it has done so or is dead.
  Whereabouts claim(const File* file);
  /// This process has closed its last descriptor of it.
  void renounce(const File* file);
  /// The program that exec() starts stays an heir of what it gets, though it does not know.
  void survive_exec();
  int owner_wake_fd() const { return owner_wake_fd_; }

 private:
  /// Heirs may be of another user, so any value may be in a slot: numbers alone, no bool.
  struct Slot {
    std::atomic<uint32_t> where;
    std::atomic<uint32_t> heirs;          ///< processes but the owner that have the file open
    std::atomic<uint32_t> program;        ///< not 0: one that an heir has started has it
    std::atomic<uint32_t> program_claim;  ///< not 0: kClaimed since then
  };
  Heritage() = default;
  Slot* slot(const File* file) const;
  bool owner_lives() const;

  Slot* slots_ = nullptr;  ///< MAP_SHARED
  size_t count_ = 0;
  std::unordered_map<const File*, size_t> index_;
  pid_t owner_ = 0;
  int owner_wake_fd_ = -1;
  /// A pipe: heirs hold the writing end, so the owner's reading end hangs up when the last is gone.
  int reading_end_ = -1;
  int writing_end_ = -1;
};

}  // namespace accel::posix
