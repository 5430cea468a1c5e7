// Descriptors that came from another process and are of no use any more. To close one may wait, as long as
// that process likes: a file of its own file system, a socket that lingers. So the request thread does it.
#pragma once

namespace accel::posix {

/// Under the lock. The request thread is to be told (request_thread_look_again()).
void close_received(int fd);
/// On the request thread, without the lock.
void close_all_received();

}  // namespace accel::posix
