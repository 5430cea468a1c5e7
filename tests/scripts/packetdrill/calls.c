// packetdrill_calls LIBRARY: plays three conversations through packetdrill's interface to LIBRARY, as
// packetdrill does, and calls each of its functions. Exit status 0: all answers were right.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "interface.h"

static struct packetdrill_interface pd;

#define CHECK(condition)                                                                      \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      fprintf(stderr, "%s:%d: %s does not hold (errno %s)\n", __FILE__, __LINE__, #condition, \
              strerror(errno));                                                               \
      exit(1);                                                                                \
    }                                                                                         \
  } while (0)

// ---------------------------------------------------------------- packets

enum { kFin = 1, kSyn = 2, kRst = 4, kPsh = 8, kAck = 16 };

struct segment {
  uint16_t from, to;
  uint32_t seq, ack;
  uint8_t flags;
  size_t length;
  long long us;
};

static int v6;
static const char *own, *peer;

static size_t address(const char* text, uint8_t* out) {
  CHECK(inet_pton(v6 ? AF_INET6 : AF_INET, text, out) == 1);
  return v6 ? 16 : 4;
}

static uint32_t add(uint32_t sum, const uint8_t* p, size_t n) {
  for (size_t i = 0; i < n; ++i) sum += i % 2 ? p[i] : (uint32_t)p[i] << 8;
  return sum;
}

static void put_sum(uint8_t* at, uint32_t sum) {
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  at[0] = (uint8_t)(~sum >> 8);
  at[1] = (uint8_t)~sum;
}

static void put32(uint8_t* at, uint32_t v) {
  const uint32_t wire = htonl(v);
  memcpy(at, &wire, 4);
}

/// From the peer to us.
static void inject(uint16_t from, uint16_t to, uint8_t flags, uint32_t seq, uint32_t ack, size_t length) {
  uint8_t p[2048] = {0}, source[16], destination[16];
  const size_t bytes = address(peer, source), header = v6 ? 40 : 20, tcp_length = 20 + length;
  address(own, destination);
  uint8_t* tcp = p + header;
  tcp[0] = (uint8_t)(from >> 8), tcp[1] = (uint8_t)from, tcp[2] = (uint8_t)(to >> 8), tcp[3] = (uint8_t)to;
  put32(tcp + 4, seq);
  put32(tcp + 8, ack);
  tcp[12] = 5 << 4;
  tcp[13] = flags;
  tcp[14] = 0x80;
  memset(tcp + 20, 'x', length);
  if (v6) {
    p[0] = 0x60;
    p[4] = (uint8_t)(tcp_length >> 8), p[5] = (uint8_t)tcp_length;
    p[6] = IPPROTO_TCP, p[7] = 64;
    memcpy(p + 8, source, 16);
    memcpy(p + 24, destination, 16);
  } else {
    p[0] = 0x45;
    p[2] = (uint8_t)((header + tcp_length) >> 8), p[3] = (uint8_t)(header + tcp_length);
    p[8] = 64, p[9] = IPPROTO_TCP;
    memcpy(p + 12, source, 4);
    memcpy(p + 16, destination, 4);
    put_sum(p + 10, add(0, p, 20));
  }
  put_sum(tcp + 16, add(add(add(IPPROTO_TCP + (uint32_t)tcp_length, source, bytes), destination, bytes), tcp,
                        tcp_length));
  CHECK(pd.netdev_send(pd.userdata, p, header + tcp_length) == 0);
}

static struct segment next_segment(void) {
  uint8_t p[65536], from[16], to[16];
  size_t n = sizeof p;
  struct segment s;
  CHECK(pd.netdev_receive(pd.userdata, p, &n, &s.us) == 0);
  const size_t header = v6 ? 40 : 20, bytes = address(own, from);
  address(peer, to);
  CHECK(n >= header + 20);
  CHECK(p[0] >> 4 == (v6 ? 6 : 4) && memcmp(p + (v6 ? 8 : 12), from, bytes) == 0 &&
        memcmp(p + (v6 ? 24 : 16), to, bytes) == 0);
  const uint8_t* tcp = p + header;
  s.from = (uint16_t)(tcp[0] << 8 | tcp[1]);
  s.to = (uint16_t)(tcp[2] << 8 | tcp[3]);
  memcpy(&s.seq, tcp + 4, 4), memcpy(&s.ack, tcp + 8, 4);
  s.seq = ntohl(s.seq), s.ack = ntohl(s.ack);
  s.flags = tcp[13];
  s.length = n - header - (size_t)(tcp[12] >> 4) * 4;
  return s;
}

static long long now(void) {
  struct timeval t;
  CHECK(pd.gettimeofday(pd.userdata, &t, NULL) == 0);
  return t.tv_sec * 1000000LL + t.tv_usec;
}

struct name {
  struct sockaddr_storage raw;
  socklen_t length;
};

static struct name name_of(const char* text, uint16_t port) {
  struct name out = {0};
  if (v6) {
    struct sockaddr_in6* in = (struct sockaddr_in6*)&out.raw;
    in->sin6_family = AF_INET6, in->sin6_port = htons(port);
    address(text, (uint8_t*)&in->sin6_addr);
    out.length = sizeof *in;
  } else {
    struct sockaddr_in* in = (struct sockaddr_in*)&out.raw;
    in->sin_family = AF_INET, in->sin_port = htons(port);
    address(text, (uint8_t*)&in->sin_addr);
    out.length = sizeof *in;
  }
  return out;
}
#define RAW(name) (const struct sockaddr*)&(name).raw, (name).length

// ---------------------------------------------------------------- a server

struct sleeper {
  int fd;
  _Atomic pid_t thread;
  ssize_t result;
  long long at;
};

/// What packetdrill does with a call that sleeps: a thread of its own, which asks for the time when it is
/// over.
static void* read_asleep(void* argument) {
  struct sleeper* s = argument;
  char buffer[100];
  s->thread = gettid();
  s->result = pd.read(pd.userdata, s->fd, buffer, sizeof buffer);
  s->at = now();
  return NULL;
}

static int accepted(int listener, uint32_t* iss) {
  inject(40000, 8080, kSyn, 1000, 0, 0);
  const struct segment s = next_segment();
  CHECK(s.flags == (kSyn | kAck) && s.ack == 1001 && s.from == 8080 && s.to == 40000);
  *iss = s.seq;
  inject(40000, 8080, kAck, 1001, s.seq + 1, 0);
  struct sockaddr_storage from;
  socklen_t length = sizeof from;
  const int fd = pd.accept(pd.userdata, listener, (struct sockaddr*)&from, &length);
  CHECK(fd >= 0);
  const struct name expected = name_of(peer, 40000);
  CHECK(length == expected.length && memcmp(&from, &expected.raw, length) == 0);
  return fd;
}

static void receive_calls(int fd, uint32_t iss) {
  char a[4], b[4];
  const struct iovec parts[] = {{a, sizeof a}, {b, sizeof b}};
  inject(40000, 8080, kAck | kPsh, 1001, iss + 1, 30);
  CHECK(next_segment().ack == 1031);
  int unread = 0, error = -1;
  CHECK(pd.ioctl(pd.userdata, fd, SIOCINQ, &unread) == 0 && unread == 30);
  CHECK(pd.readv(pd.userdata, fd, parts, 2) == 8 && a[0] == 'x' && b[3] == 'x');
  CHECK(pd.recv(pd.userdata, fd, a, 4, MSG_PEEK) == 4);
  CHECK(pd.recv(pd.userdata, fd, a, 4, 0) == 4);
  CHECK(pd.recvfrom(pd.userdata, fd, a, 4, 0, NULL, NULL) == 4);
  struct msghdr m = {.msg_iov = (struct iovec*)parts, .msg_iovlen = 2};
  CHECK(pd.recvmsg(pd.userdata, fd, &m, 0) == 8);
  CHECK(pd.read(pd.userdata, fd, a, 4) == 4);
  CHECK(pd.recv(pd.userdata, fd, a, 4, MSG_DONTWAIT) == 2);
  CHECK(pd.recv(pd.userdata, fd, a, 4, MSG_DONTWAIT) == -1 && errno == EAGAIN);
  socklen_t length = sizeof error;
  CHECK(pd.getsockopt(pd.userdata, fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0);
}

static void send_calls(int fd, uint32_t iss) {
  const struct iovec parts[] = {{"ab", 2}, {"cde", 3}};
  const struct msghdr m = {.msg_iov = (struct iovec*)parts, .msg_iovlen = 2};
  const int on = 1;
  CHECK(pd.setsockopt(pd.userdata, fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
  CHECK(pd.write(pd.userdata, fd, "0123456789", 10) == 10);
  CHECK(pd.writev(pd.userdata, fd, parts, 2) == 5);
  CHECK(pd.send(pd.userdata, fd, "q", 1, 0) == 1);
  CHECK(pd.sendto(pd.userdata, fd, "rs", 2, 0, NULL, 0) == 2);
  CHECK(pd.sendmsg(pd.userdata, fd, &m, 0) == 5);
  const size_t lengths[] = {10, 5, 1, 2, 5};
  uint32_t seq = iss + 1;
  for (int i = 0; i < 5; ++i) {
    const struct segment s = next_segment();
    CHECK(s.seq == seq && s.length == lengths[i] && s.flags == (kAck | kPsh));
    seq += (uint32_t)s.length;
  }
  struct tcp_info info = {0};
  socklen_t length = sizeof info;
  CHECK(pd.getsockopt(pd.userdata, fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0);
  CHECK(length > 0 && info.tcpi_state == 1 && info.tcpi_unacked == 5 && info.tcpi_snd_mss > 0);
  inject(40000, 8080, kAck, 1031, seq, 0);
  CHECK(pd.getsockopt(pd.userdata, fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_unacked == 0);
}

/// As packetdrill finds out that a call sleeps.
static void await_sleep(struct sleeper* s) {
  char path[64], line[256], state = 0;
  while (s->thread == 0) sched_yield();
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)s->thread);
  while (state != 'S') {
    FILE* f = fopen(path, "r");
    CHECK(f && fgets(line, sizeof line, f));
    fclose(f);
    CHECK(sscanf(strrchr(line, ')'), ") %c", &state) == 1);
    sched_yield();
  }
}

/// Its ACK comes 100 ms after it began to wait, and not before.
static void sleeping_read(int fd, uint32_t iss) {
  struct sleeper s = {.fd = fd};
  pthread_t thread;
  const long long begun = now();
  CHECK(pthread_create(&thread, NULL, read_asleep, &s) == 0);
  await_sleep(&s);
  CHECK(pd.usleep(pd.userdata, 100000) == 0);
  inject(40000, 8080, kAck | kPsh, 1031, iss + 24, 7);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(s.result == 7 && s.at >= begun + 100000 && s.at < begun + 101000);
  const struct segment ack = next_segment();
  CHECK(ack.ack == 1038 && ack.us >= begun + 100000 && ack.us < begun + 141000);
}

static void readiness(int fd, uint32_t iss) {
  struct pollfd p = {.fd = fd, .events = POLLIN | POLLOUT};
  CHECK(pd.poll(pd.userdata, &p, 1, 0) == 1 && p.revents == POLLOUT);
  const int set = pd.epoll_create(pd.userdata, 1);
  struct epoll_event event = {.events = EPOLLIN, .data.u64 = 77}, got;
  CHECK(set >= 0 && pd.epoll_ctl(pd.userdata, set, EPOLL_CTL_ADD, fd, &event) == 0);
  CHECK(pd.epoll_ctl(pd.userdata, set, EPOLL_CTL_ADD, fd, &event) == -1 && errno == EEXIST);
  CHECK(pd.epoll_wait(pd.userdata, set, &got, 1, 0) == 0);
  inject(40000, 8080, kAck | kPsh, 1038, iss + 24, 3);
  CHECK(pd.epoll_wait(pd.userdata, set, &got, 1, 0) == 1 && got.events == EPOLLIN && got.data.u64 == 77);
  event.events |= EPOLLET;
  CHECK(pd.epoll_ctl(pd.userdata, set, EPOLL_CTL_MOD, fd, &event) == -1 && errno == EINVAL);
  CHECK(pd.epoll_ctl(pd.userdata, set, EPOLL_CTL_DEL, fd, NULL) == 0);
  CHECK(pd.epoll_wait(pd.userdata, set, &got, 1, 0) == 0);
  CHECK(pd.close(pd.userdata, set) == 0);
  CHECK(next_segment().ack == 1041);
  char rest[3];
  CHECK(pd.read(pd.userdata, fd, rest, 3) == 3);
}

static void serve(void) {
  const int listener = pd.socket(pd.userdata, v6 ? AF_INET6 : AF_INET, SOCK_STREAM, IPPROTO_TCP);
  const struct name at = name_of(own, 8080);
  CHECK(listener >= 0 && pd.bind(pd.userdata, listener, RAW(at)) == 0 &&
        pd.listen(pd.userdata, listener, 1) == 0);
  CHECK(pd.fcntl(pd.userdata, listener, F_GETFL) == O_RDWR);
  CHECK(pd.fcntl(pd.userdata, listener, F_SETFL, O_RDWR | O_NONBLOCK) == 0);
  CHECK(pd.fcntl(pd.userdata, listener, F_GETFL) == (O_RDWR | O_NONBLOCK));
  CHECK(pd.accept(pd.userdata, listener, NULL, NULL) == -1 && errno == EAGAIN);
  uint32_t iss;
  const int fd = accepted(listener, &iss);
  receive_calls(fd, iss);
  send_calls(fd, iss);
  sleeping_read(fd, iss);
  readiness(fd, iss);
  CHECK(pd.shutdown(pd.userdata, fd, SHUT_WR) == 0);
  const struct segment fin = next_segment();
  CHECK(fin.flags == (kFin | kAck) && fin.seq == iss + 24);
  // 200 ms and more later it is sent again.
  const struct segment again = next_segment();
  CHECK(again.flags == (kFin | kAck) && again.us >= fin.us + 200000 && again.us < fin.us + 1000000);
  CHECK(pd.close(pd.userdata, fd) == 0 && pd.close(pd.userdata, listener) == 0);
  CHECK(pd.close(pd.userdata, fd) == -1 && errno == EBADF);
}

// ---------------------------------------------------------------- a client

static void connect_out(void) {
  const int fd = pd.socket(pd.userdata, v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  const struct name to = name_of(peer, 80);
  CHECK(fd >= 0 && pd.connect(pd.userdata, fd, RAW(to)) == -1 && errno == EINPROGRESS);
  const struct segment syn = next_segment();
  CHECK(syn.flags == kSyn && syn.to == 80);
  inject(80, syn.from, kRst | kAck, 0, syn.seq + 1, 0);
  CHECK(pd.connect(pd.userdata, fd, RAW(to)) == -1 && errno == ECONNREFUSED);
  CHECK(pd.close(pd.userdata, fd) == 0);
}

static void refusals(void) {
  int ends[2];
  CHECK(pd.socket(pd.userdata, AF_INET, SOCK_DGRAM, 0) == -1 && errno == EPROTONOSUPPORT);
  CHECK(pd.pipe(pd.userdata, ends) == -1 && errno == ENOSYS);
  CHECK(pd.splice(pd.userdata, 0, NULL, 1, NULL, 1, 0) == -1 && errno == ENOSYS);
  CHECK(pd.listen(pd.userdata, 12345, 1) == -1 && errno == EBADF);
  uint8_t packet[2048] = {0};
  CHECK(pd.netdev_send(pd.userdata, packet, sizeof packet) == -1 && errno == EMSGSIZE);
  // Nothing is to leave: a minute of virtual time passes.
  size_t n = sizeof packet;
  long long us = 0;
  const long long before = now();
  CHECK(pd.netdev_receive(pd.userdata, packet, &n, &us) == 0 && n == 0 && us >= before + 60000000);
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) fprintf(stderr, "%s\n", dlerror());
  CHECK(library);
  void (*init)(const char*, struct packetdrill_interface*) = NULL;
  *(void**)&init = dlsym(library, "packetdrill_interface_init");
  CHECK(init);
  for (v6 = 0; v6 < 2; ++v6) {
    own = v6 ? "fd3d:fa7b:d17d::7" : "192.168.5.5";
    peer = v6 ? "2001:db8::1" : "192.0.2.1";
    char flags[100];
    snprintf(flags, sizeof flags, "local=%s,net.ipv4.tcp_timestamps=0", own);
    init(flags, &pd);
    refusals();
    serve();
    connect_out();
    pd.free(pd.userdata);
  }
  return 0;
}
