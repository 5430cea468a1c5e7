/* What packetdrill (github.com/google/packetdrill) asks of a library that it is given by --so_filename: a
   function packetdrill_interface_init(), which fills a table. The order of its rows is packetdrill's. */
#pragma once

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Each function is given `userdata`. Errors are -1 and errno, as of the system calls of these names. */
struct packetdrill_interface {
  void* userdata;
  void (*free)(void*);

  int (*socket)(void*, int domain, int type, int protocol);
  int (*bind)(void*, int, const struct sockaddr*, socklen_t);
  int (*listen)(void*, int, int backlog);
  int (*accept)(void*, int, struct sockaddr*, socklen_t*);
  int (*connect)(void*, int, const struct sockaddr*, socklen_t);

  ssize_t (*read)(void*, int, void*, size_t);
  ssize_t (*readv)(void*, int, const struct iovec*, int);
  ssize_t (*recv)(void*, int, void*, size_t, int flags);
  ssize_t (*recvfrom)(void*, int, void*, size_t, int flags, struct sockaddr*, socklen_t*);
  ssize_t (*recvmsg)(void*, int, struct msghdr*, int flags);

  ssize_t (*write)(void*, int, const void*, size_t);
  ssize_t (*writev)(void*, int, const struct iovec*, int);
  ssize_t (*send)(void*, int, const void*, size_t, int flags);
  ssize_t (*sendto)(void*, int, const void*, size_t, int flags, const struct sockaddr*, socklen_t);
  ssize_t (*sendmsg)(void*, int, const struct msghdr*, int flags);

  int (*fcntl)(void*, int, int command, ...);
  int (*ioctl)(void*, int, unsigned long request, ...);
  int (*close)(void*, int);
  int (*shutdown)(void*, int, int how);
  int (*getsockopt)(void*, int, int level, int name, void*, socklen_t*);
  int (*setsockopt)(void*, int, int level, int name, const void*, socklen_t);
  int (*poll)(void*, struct pollfd*, nfds_t, int timeout_ms);

  /* An IP packet for the stack under test. */
  int (*netdev_send)(void*, const void* packet, size_t);
  /* The next one that leaves it; `size` is the buffer's, then the packet's; 0: none came. `us`: when. */
  int (*netdev_receive)(void*, void* packet, size_t* size, long long* us);

  int (*usleep)(void*, useconds_t);
  int (*gettimeofday)(void*, struct timeval*, struct timezone*);

  int (*epoll_create)(void*, int);
  int (*epoll_ctl)(void*, int epoll, int operation, int, struct epoll_event*);
  int (*epoll_wait)(void*, int epoll, struct epoll_event*, int most, int timeout_ms);
  int (*pipe)(void*, int[2]);
  int (*splice)(void*, int in, off64_t*, int out, off64_t*, size_t, unsigned flags);
};

/* `flags` is what --so_flags says. */
void packetdrill_interface_init(const char* flags, struct packetdrill_interface*);

#ifdef __cplusplus
}
#endif
