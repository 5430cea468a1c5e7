#include "link.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <utility>

namespace accel::interop {
namespace {

constexpr int64_t kPatienceMs = 20000;  // silence after which a peer is lost; TCG is slow
constexpr int kLookMs = 1000, kEarlyLookMs = 100;
constexpr int64_t kKickUntilMs = 5000;

std::string failure(const char* what) { return std::string(what) + ": " + strerror(errno); }

void dump(const std::string& path, siw::Bytes bytes) {
  FILE* f = fopen(path.c_str(), "wb");
  if (!f) return;
  fwrite(bytes.data(), 1, bytes.size(), f);
  fclose(f);
}

}  // namespace

Link::Link(const PeerOptions& options) : options_(options), buffer_(256 << 10) {}

Link::~Link() {
  if (fd_ >= 0) close(fd_);
}

std::string Link::open() {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(options_.port);
  if (inet_pton(AF_INET, options_.address.c_str(), &to.sin_addr) != 1)
    return "not an address: " + options_.address;
  auto* address = reinterpret_cast<sockaddr*>(&to);
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd_ < 0) return failure("socket");
  const int on = 1;
  if (options_.role == siw::Role::kInitiator) {
    if (connect(fd_, address, sizeof to) != 0) return failure("connect");
  } else {
    setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd_, address, sizeof to) != 0 || listen(fd_, 1) != 0) return failure("listen");
    fprintf(stderr, "listening\n");
    const int got = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
    if (got < 0) return failure("accept");
    close(fd_);
    fd_ = got;
  }
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  opened_ms_ = heard_ms_ = now_ms();
  return {};
}

siw::Bytes Link::exchange(siw::Bytes out, size_t& written) {
  written = 0;
  const bool early = now_ms() - opened_ms_ < kKickUntilMs;
  pollfd p{fd_, static_cast<short>(POLLIN | (out.empty() ? 0 : POLLOUT)), 0};
  const int ready = poll(&p, 1, early ? kEarlyLookMs : kLookMs);
  quiet_ = ready == 0;
  timed_out_ = quiet_ && now_ms() - heard_ms_ > kPatienceMs;
  if (ready <= 0) return {};
  if (p.revents & POLLOUT) {
    const ssize_t n = send(fd_, out.data(), out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) written = static_cast<size_t>(n), unkicked_ = !std::exchange(kicking_, false);
    trace_.add(Trace::kOut, out.first(written));
  }
  if (!(p.revents & (POLLIN | POLLHUP | POLLERR))) return {};
  const ssize_t n = recv(fd_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
  if (n < 0 && errno == EAGAIN) return {};
  if (n <= 0) {
    ended_ = true;
    reset_ = n < 0;
    return {};
  }
  heard_ms_ = now_ms();
  const auto in = siw::Bytes(buffer_).first(static_cast<size_t>(n));
  trace_.add(Trace::kIn, in);
  return in;
}

void Link::end_sending() { shutdown(fd_, SHUT_WR); }

bool Link::kick_due(bool heard) {
  const int64_t now = now_ms();
  const bool due = quiet_ && (unkicked_ || !heard) &&
                   now - opened_ms_ < kKickUntilMs + options_.kick_after_ms &&
                   now - heard_ms_ >= options_.kick_after_ms;
  quiet_ = false;
  if (due) kicks_++, kicking_ = true;
  return due;
}

void Link::keep(const siw::Endpoint& endpoint, const std::string& error) const {
  if (options_.keep.empty()) return;
  const std::string name = options_.keep + "/" + std::to_string(getpid());
  const std::string text = error + "\n" + trace_.text();
  dump(name + ".trace", siw::Bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
  fprintf(stderr, "what passed is kept as %s.trace\n", name.c_str());
  if (endpoint.bad_frame().empty()) return;
  dump(name + ".fpdu", endpoint.bad_frame());
  dump(name + ".stream", trace_.received());
  fprintf(stderr, "the bad FPDU as %s.fpdu, what came before it as %s.stream\n", name.c_str(), name.c_str());
}

}  // namespace accel::interop
