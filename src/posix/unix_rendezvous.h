// Unix sockets as a rendezvous of processes with libaccel. Their names are abstract (unix(7)): such a name
// goes with its socket, and belongs to the network namespace.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace accel::posix {

/// The same for every descriptor of a socket, in every process; 0: it is none.
uint64_t cookie_of(int fd);
/// As a part of names; empty: there is none.
std::string cookie_name(int fd);

/// A socket of that name, SOCK_SEQPACKET and non-blocking; -1: none. Its descriptor is one that programs do
/// not expect (keep_private()).
int named_socket(const std::string& name);
/// The same, and it listens.
int listen_by_name(const std::string& name);
/// Its name; empty: it has none.
std::string bound_name(int fd);
/// Of this network namespace, each once. Empty, too, where /proc cannot be read.
std::set<std::string> names_that_begin(const std::string& beginning);
/// Connected to a listener of that name, non-blocking; -1: there is none. Not private: to be closed soon.
int connect_by_name(const std::string& name);
/// Who is at the other end is of this process's user, or root: such a one may send this process any signal.
/// That is not enough to have what is this process's; see is_same_socket().
bool peer_is_trusted(int fd);
/// A peer may ask about the socket `of` if it is trusted (peer_is_trusted()), or is another user's with a
/// descriptor of the socket: a worker that has given up root asks its master.
bool peer_may_ask(int fd, int of);
/// A descriptor that came in a message is of the socket `of` itself: who sent it has that socket. -1: no
/// proof.
bool is_same_socket(int came, int of);
bool peer_is_root(int fd);
/// The number by which /proc tells of a socket; 0: it is none, or there is no such one.
ino_t inode_of(int fd);
ino_t inode_listening_at(const std::string& name);
/// The process has a descriptor of that socket, as far as this one may look (ptrace(2), "Ptrace access
/// mode").
bool process_has_socket(pid_t process, ino_t inode);
/// The peer's process; of a listener's, the one that has called listen().
pid_t peer_process(int fd);
/// One message with a few descriptors; those that come are ones that programs do not expect (move_high()).
/// Empty: there is no more.
bool send_descriptors(int to, std::span<const int> fds);
std::vector<int> receive_descriptors(int from);
/// The message of such a peer, which follows its connect() at once, has arrived, or never will.
bool message_arrived(int fd);

}  // namespace accel::posix
