// The processes that listen or receive datagrams at one local end, and who of them has which share
// (shares.h).
//
// Whoever has the local end's name, an abstract Unix socket's, coordinates: the others are connected to it,
// say what they hold, and are told what to hold. All are told what each holds, so that another can take over
// when the coordinator's connection ends. A share is free when its holder has said so, or its process has
// ended: that is known by a pidfd and not by the connection's end, since only then the kernel has surely
// taken away the rules.
//
// Not handled: a member that runs another program (exec) in its place and does not listen there. Its shares
// are the kernel's until that process ends.
#pragma once

#include <sys/types.h>

#include <list>
#include <string>
#include <vector>

#include "mlx5/shares.h"

namespace accel::mlx5 {

class ListenerGroups final : public ListenerSharing {
 public:
  /// `scope`: what the local ends belong to, a netdev's number. `user_changes`: the process is about to
  /// become another user.
  explicit ListenerGroups(int scope, bool (*user_changes)() = nullptr);
  ~ListenerGroups() override;
  ListenerGroups(const ListenerGroups&) = delete;
  ListenerGroups& operator=(const ListenerGroups&) = delete;

  void set_holder(Holder* holder) override { holder_ = holder; }
  bool join(const FlowKey& local) override;
  void set_listening(const FlowKey& local, bool listening) override;
  void leave(const FlowKey& local) override;
  void serve() override;
  void user_changed() override;
  int event_fd() const override { return events_; }
  void abandon() override;

 private:
  /// A message's end that is about a process: what it has, or should have.
  struct Share {
    pid_t pid;
    Shares held;
  };
  /// From member to coordinator.
  struct Report {
    Shares held;
    bool listening;
  };
  /// From coordinator to member: what to hold, and who else holds what (`count` of them).
  struct Orders {
    Shares wanted;
    uint32_t count;
    Share others[kShareCount];
  };
  /// A member, as the coordinator has it.
  struct Member {
    enum State : uint8_t {
      kUnheard,  ///< has not spoken to this coordinator yet, or is ending: keeps what it has, and gets
                 ///< nothing
      kListening,
      kLeaving,
    } state = kUnheard;
    int fd = -1;
    int process = -1;  ///< pidfd
    pid_t pid = 0;
    Shares held = 0;
  };
  struct Group {
    FlowKey local;
    int name_socket = -1;  ///< coordinator: has the name
    int coordinator = -1;  ///< member: the connection to it
    int pause = -1;        ///< timerfd: there is one that does not want us; asked again then
    unsigned unheard = 0;  ///< connections in a row that ended without a word
    unsigned pauses = 0;   ///< in a row
    Shares held = 0;
    bool listening = true;
    std::list<Member> members;  ///< coordinator: the others
    std::vector<Share> others;  ///< member: who holds what
  };

  Group* find(const FlowKey& local);
  void enter(Group& group);
  bool open_name_socket(Group& group);
  bool connect_to_coordinator(Group& group);
  void enter_again(Group& group);
  void admit(Group& group);
  void expect(Group& group, const Share& other);
  void hear_member(Group& group, Member& member);
  void hear_coordinator(Group& group);
  void begin_pause(Group& group);
  void end_pause(Group& group);
  void share_out(Group& group);
  void tell(const Group& group, const Member& member, Shares wanted);
  void report(Group& group);
  void on_event(int fd);
  void forget(Group& group, std::list<Member>::iterator member);
  int watch(int fd);
  void drop(int& fd);
  void close_all(Group& group);

  const int scope_;
  bool (*const user_changes_)();
  int events_ = -1;
  Holder* holder_ = nullptr;
  std::list<Group> groups_;
};

}  // namespace accel::mlx5
