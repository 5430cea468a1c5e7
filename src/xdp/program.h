// The XDP program of a netdev and its maps, shared by every process that has a port on it.
//
// It is attached by a bpf_link and every process holds a descriptor of that link: the kernel detaches the
// program when the last of them is closed, so also after kill -9. Nothing is pinned in a bpffs. Races between
// processes that come and go are decided by the kernel: of two that attach at once one gets EBUSY and joins,
// and a link that is just dying cannot be joined.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/module_fd.h"
#include "base/result.h"

namespace accel::xdp {

struct ProgramOptions {
  int ifindex = 0;
  std::string netdev;  ///< for messages
  uint32_t flow_table = 0;
  bool force_generic = false;
  bool native_only = false;
};

class Program {
 public:
  /// Attaches the program, or joins the one of ours that is there. Ports of one process on one netdev get one
  /// object.
  static Result<std::shared_ptr<Program>> join(const ProgramOptions& options, std::string* why);

  /// In a forked child: keeps the inherited descriptors for later join()s; see XdpPort::abandon_in_child.
  static void keep_inherited(const std::shared_ptr<Program>& program);
  /// Closes what was kept, but for what a port uses: the process has given up its privilege.
  static void forget_inherited();

  /// Closes all descriptors: whoever has one may write to every process's entries, or detach the program.
  /// It stays attached as long as another process has them (the helper). join() says EPERM from then on.
  void let_go();

  int link() const { return link_.get(); }
  int xsks() const { return xsks_.get(); }
  int owners() const { return owners_.get(); }
  int flows() const { return flows_.get(); }
  int counters() const { return counters_.get(); }
  bool native() const { return native_; }
  uint32_t id() const { return id_; }

 private:
  friend class ProgramFactory;
  Fd link_, xsks_, owners_, flows_, counters_;
  uint32_t id_ = 0;
  bool native_ = false;
};

}  // namespace accel::xdp
