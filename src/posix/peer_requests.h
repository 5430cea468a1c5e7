// Requests between processes with libaccel. Each process that has an engine has a request socket, a Unix
// socket named after the process, at which its request thread answers. Requests are about a descriptor that
// another process takes (posix/pidfd_getfd.h), a UDP port that both have (posix/udp_port_owners.h), or a
// program of a SO_REUSEPORT group (posix/reuseport_programs.h).
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

#include "base/ip.h"

namespace accel::posix {

struct PeerRequest {
  enum class About : uint32_t { kDescriptor, kUdpPort, kGroup } about;
  int fd = -1;          ///< kDescriptor: its number in the process that receives the request; -1: find it
  uint64_t cookie = 0;  ///< by this
  Protocol protocol{};  ///< kGroup
  Endpoint local;       ///< kGroup, and of kUdpPort the port
};

/// The request socket of this process; -1: there can be none.
int open_request_socket();
/// What the request thread watches: the request socket, and accepted peers that have not sent anything yet.
/// Returns the longest that it may sleep, in milliseconds; -1: any time. On the request thread, as the next.
int add_request_sockets(int request_socket, std::vector<pollfd>& watched);
/// The answer to the asking process; 0: there is nothing to say. `trusted`: peer_is_trusted(). `proof`: the
/// descriptor that it has sent, or -1.
using RequestAnswerer = int (*)(const PeerRequest& request, bool trusted, int proof);
/// Without a Guard: accepts peers, and answers requests that have arrived. Never waits.
void serve_peer_requests(int request_socket, std::span<const pollfd> watched, RequestAnswerer answer_to);
/// In the child of a fork(): they are the parent's.
void forget_peers();

/// The socket's name. `process` is the directory of a process in /proc, `number` its own number within its
/// namespace.
std::string request_socket_name(const std::string& process, pid_t number);
/// Sends one request, with a descriptor that shows what the sender has (-1: none). False: it could not be
/// sent.
bool send_request(int request_socket, const PeerRequest& request, int proof);
/// Sends it to all others of this network namespace, and waits until they have done what it takes. Without a
/// Guard: they may be about to send one to this process.
void request_of_all(const PeerRequest& request);

}  // namespace accel::posix
