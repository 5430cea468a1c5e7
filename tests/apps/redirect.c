// Preloaded before libaccel by tests of programs that talk to themselves over loopback, which no port serves:
// where they name the wildcard or loopback address, they get REDIRECT4 or REDIRECT6 instead, addresses of
// this host that it sends to across a cable (lab.Loop).
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/// `to`, or its substitute in `room`.
static const struct sockaddr* redirected(const struct sockaddr* to, socklen_t size,
                                         struct sockaddr_storage* room) {
  if (to == NULL || size > sizeof(*room)) return to;
  memcpy(room, to, size);
  const char* host = getenv(to->sa_family == AF_INET6 ? "REDIRECT6" : "REDIRECT4");
  if (to->sa_family == AF_INET && size >= sizeof(struct sockaddr_in)) {
    struct in_addr* address = &((struct sockaddr_in*)room)->sin_addr;
    if (address->s_addr == htonl(INADDR_ANY) || address->s_addr == htonl(INADDR_LOOPBACK))
      inet_pton(AF_INET, host, address);
  } else if (to->sa_family == AF_INET6 && size >= sizeof(struct sockaddr_in6)) {
    struct in6_addr* address = &((struct sockaddr_in6*)room)->sin6_addr;
    if (IN6_IS_ADDR_UNSPECIFIED(address) || IN6_IS_ADDR_LOOPBACK(address)) inet_pton(AF_INET6, host, address);
  }
  return (const struct sockaddr*)room;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int bind(int fd, const struct sockaddr* at, socklen_t size) {
  struct sockaddr_storage room;
  return NEXT(bind)(fd, redirected(at, size, &room), size);
}

int connect(int fd, const struct sockaddr* to, socklen_t size) {
  struct sockaddr_storage room;
  return NEXT(connect)(fd, redirected(to, size, &room), size);
}

ssize_t sendto(int fd, const void* data, size_t length, int flags, const struct sockaddr* to,
               socklen_t size) {
  struct sockaddr_storage room;
  return NEXT(sendto)(fd, data, length, flags, redirected(to, size, &room), size);
}
