/* libaccel's own calls, for programs that want more than the socket API has. C99 and C++; docs/api.md has an
 * example.
 *
 * A program needs no library to link with: every function is a weak symbol, NULL unless the program runs with
 * libaccel (LD_PRELOAD, accel run). So each use asks first: if (accel_query) ...  The code has to be
 * position-independent, which is the compilers' default.
 *
 * Functions return -1 and set errno as POSIX calls do. Success leaves errno as it was. Any thread may call
 * them. A pointer that leads nowhere is EFAULT. Structures begin with their size, so that they may grow. */
#ifndef ACCEL_H
#define ACCEL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef ACCEL_BUILD /* libaccel itself */
#define ACCEL_API __attribute__((visibility("default")))
#else
#define ACCEL_API __attribute__((weak))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what carries a descriptor ---- */

enum accel_path {
  ACCEL_PATH_UNDECIDED = 0, /* the next call, a port that is being opened, or an iWARP peer decides */
  ACCEL_PATH_KERNEL = 1,
  ACCEL_PATH_XDP = 2,  /* libaccel's stack on AF_XDP queues */
  ACCEL_PATH_MLX5 = 3, /* libaccel's stack on mlx5 queues */
  ACCEL_PATH_IWARP = 4,
  ACCEL_PATH_SHM = 5 /* shared memory, the peer is on this host */
};

enum accel_info_flag {
  ACCEL_INFO_LISTENS = 1, /* a TCP socket that listens on libaccel's stack */
  ACCEL_INFO_LEASES = 2   /* accel_recv_lease() has buffers to lend of it */
};

struct accel_info {
  uint32_t size;         /* in: sizeof(struct accel_info); out: bytes that are filled */
  uint32_t path;         /* enum accel_path */
  int32_t ifindex;       /* of the device whose queues carry it; 0: none, or several (a listener's) */
  uint32_t flags;        /* enum accel_info_flag, or-ed */
  const char* path_name; /* "kernel", "xdp", ...; lives as long as the process, as do the next two */
  const char* reason;    /* why it is on its path: a name of docs/reasons.md, "accelerated", or "unknown" */
  const char* text;      /* the same as a sentence */
  char detail[96];       /* what the reason is about (a socket option, a filter's rule); "": nothing */
};

/* Tells what carries `fd` at this moment, and why. Any descriptor has an answer: a file or a Unix socket is
 * the kernel's, with the reason not_internet. The call decides nothing and takes nothing from other
 * processes.
 *
 * Returns 0. Errors:
 *   EBADF   there is no such descriptor
 *   EINVAL  info->size is less than that of the first version
 *   EFAULT
 *   EAGAIN  the caller is a signal's handler that has interrupted libaccel */
ACCEL_API int accel_query(int fd, struct accel_info* info);

/* ---- receiving without a copy ---- */

/* Received bytes in the buffers that brought them, the program's until accel_release(). */
struct accel_lease {
  uint32_t size;  /* in: sizeof(struct accel_lease); out: bytes that are filled */
  uint32_t count; /* out: entries of the vector that are filled; with EMSGSIZE how many it takes */
  uint64_t id;    /* out: for accel_release(); 0: there is nothing to release */
};

/* Receives without a copy. The first lease->count entries of `vector` point to the bytes; at most 1024 of its
 * `room` are used.
 *   A UDP socket gives the next datagram, whole, with the sender as recvfrom() gives it; `from` may be NULL.
 *   A TCP socket gives what has come, as far as the vector goes; *from_length becomes 0.
 * The bytes are received: recv() does not see them again, and TCP's window opens. The program may change
 * them. The call blocks as recv() does (O_NONBLOCK, SO_RCVTIMEO, SO_RCVLOWAT, signals), and is a cancellation
 * point. `flags` is 0 or MSG_DONTWAIT.
 *
 * A lease outlives its socket and a move of it to the kernel. It ends with accel_release(), exec or the
 * process. The leases of a process hold at most an eighth of its frames (setting frames; 8 MiB by default). A
 * forked child has none, and must not read its parent's.
 *
 * Returns bytes; 0 with a lease->id of 0 is the end of the stream. An error leaves what has come to the next
 * call, and lease->id is 0:
 *   EOPNOTSUPP  the next bytes lie in no buffer of libaccel's, and recv() has them: the path is the kernel's,
 *               shared memory or iWARP, a datagram has come by the kernel, or TCP's urgent data is next
 *   ENOBUFS     so many leases are out
 *   EMSGSIZE    the datagram lies in lease->count buffers, more than `room`
 *   EAGAIN      nothing has come, or the time is over
 *   EINTR       a signal's handler has run
 *   ENOTSOCK, EBADF
 *   EINVAL      flags, a `room` of 0, lease->size
 *   EFAULT
 *   others      the socket's error, as recv() tells it */
ACCEL_API ssize_t accel_recv_lease(int fd, struct accel_lease* lease, struct iovec* vector, size_t room,
                                   int flags, struct sockaddr* from, socklen_t* from_length);

/* Gives the buffers back; the program must not read them any more. Any thread may do so, in any order of
 * leases.
 *
 * Returns 0, for an id of 0 too. Errors:
 *   EINVAL  this process has no such lease, or has released it
 *   EAGAIN  as accel_query() */
ACCEL_API int accel_release(uint64_t id);

/* ---- how the calling thread waits ---- */

#define ACCEL_SPIN_DEFAULT (-1)   /* as the setting spin says: adapted to how often polling is answered */
#define ACCEL_SPIN_MOST (1000000) /* microseconds */

/* Sets how long the calling thread's waits poll accelerated sockets before they sleep: ACCEL_SPIN_DEFAULT, 0
 * (not at all), or up to ACCEL_SPIN_MOST microseconds, which are not adapted. It holds for recv(), accept(),
 * connect(), send(), poll(), select(), epoll_wait() and their kin, from the next wait on, until it is set
 * again or the thread ends. A forked child's thread keeps it. One thread of a process polls at a time:
 * another one sleeps meanwhile, and is woken by it. Threads beyond a twentieth of RLIMIT_NOFILE sleep, too:
 * libaccel has no descriptors for them.
 *
 * Returns 0. Errors: EINVAL. */
ACCEL_API int accel_set_thread_spin(int microseconds);

/* Returns what accel_set_thread_spin() has set in the calling thread; ACCEL_SPIN_DEFAULT from the start. */
ACCEL_API int accel_thread_spin(void);

/* ---- with libaccel or without ---- */

#ifndef ACCEL_BUILD

/* The program runs with a libaccel that has these calls. */
static inline int accel_is_present(void) { return accel_query != NULL; }

/* 1: a path of libaccel's carries `fd`. 0: the kernel does, it is not decided, or there is no such
 * descriptor. */
static inline int accel_is_accelerated(int fd) {
  struct accel_info info;
  info.size = sizeof info;
  return accel_query != NULL && accel_query(fd, &info) == 0 && info.path > ACCEL_PATH_KERNEL;
}
#endif

#ifdef __cplusplus
}
#endif

#endif /* ACCEL_H */
