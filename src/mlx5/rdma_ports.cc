#include "mlx5/rdma_ports.h"

#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

namespace accel::mlx5 {
namespace {

/// Calls visit(attribute's type, value) for each attribute of each message; message() before those of each.
template <class Message, class Visit>
void for_each_attribute(std::span<const uint8_t> answer, Message message, Visit visit) {
  while (answer.size() >= sizeof(nlmsghdr)) {
    nlmsghdr header;
    std::memcpy(&header, answer.data(), sizeof(header));
    if (header.nlmsg_len < sizeof(header) || header.nlmsg_len > answer.size()) return;
    message();
    std::span<const uint8_t> rest = answer.subspan(NLMSG_HDRLEN, header.nlmsg_len - NLMSG_HDRLEN);
    while (rest.size() >= sizeof(nlattr)) {
      nlattr attribute;
      std::memcpy(&attribute, rest.data(), sizeof(attribute));
      if (attribute.nla_len < NLA_HDRLEN || attribute.nla_len > rest.size()) break;
      visit(attribute.nla_type & NLA_TYPE_MASK, rest.subspan(NLA_HDRLEN, attribute.nla_len - NLA_HDRLEN));
      rest = rest.subspan(std::min<size_t>(NLA_ALIGN(attribute.nla_len), rest.size()));
    }
    answer = answer.subspan(std::min<size_t>(NLMSG_ALIGN(header.nlmsg_len), answer.size()));
  }
}

bool is_number(std::span<const uint8_t> value) { return value.size() == sizeof(uint32_t); }
uint32_t number(std::span<const uint8_t> value) {
  uint32_t n;
  std::memcpy(&n, value.data(), sizeof(n));
  return n;
}

bool ends(std::span<const uint8_t> part) {
  while (part.size() >= sizeof(nlmsghdr)) {
    nlmsghdr header;
    std::memcpy(&header, part.data(), sizeof(header));
    if (header.nlmsg_type == NLMSG_DONE || header.nlmsg_type == NLMSG_ERROR) return true;
    if (header.nlmsg_len < sizeof(header)) return true;
    part = part.subspan(std::min<size_t>(NLMSG_ALIGN(header.nlmsg_len), part.size()));
  }
  return false;
}

/// A dump, message behind message; as much of it as came.
std::vector<uint8_t> ask(int socket, uint16_t command, const uint32_t* device) {
  struct {
    nlmsghdr header;
    nlattr attribute;
    uint32_t device;
  } request{};
  request.header.nlmsg_len = device != nullptr ? sizeof(request) : sizeof(request.header);
  request.header.nlmsg_type = static_cast<uint16_t>(RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, command));
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  request.attribute = {.nla_len = NLA_HDRLEN + sizeof(uint32_t), .nla_type = RDMA_NLDEV_ATTR_DEV_INDEX};
  if (device != nullptr) request.device = *device;
  std::vector<uint8_t> all;
  if (send(socket, &request, request.header.nlmsg_len, 0) < 0) return all;
  uint8_t part[32768];
  for (;;) {
    const ssize_t n = recv(socket, part, sizeof(part), 0);
    if (n < static_cast<ssize_t>(sizeof(nlmsghdr))) return all;
    all.insert(all.end(), part, part + n);
    if (ends({part, static_cast<size_t>(n)})) return all;
  }
}

}  // namespace

int64_t device_number(std::span<const uint8_t> answer, const std::string& name) {
  int64_t index = -1, found = -1;
  for_each_attribute(
      answer, [&] { index = -1; },
      [&](int type, std::span<const uint8_t> value) {
        if (type == RDMA_NLDEV_ATTR_DEV_INDEX && is_number(value)) index = number(value);
        const std::string_view text(reinterpret_cast<const char*>(value.data()), value.size());
        if (type == RDMA_NLDEV_ATTR_DEV_NAME && text.substr(0, text.find('\0')) == name) found = index;
      });
  return found;
}

uint8_t port_with(std::span<const uint8_t> answer, uint32_t ifindex) {
  uint32_t port = 0;
  uint8_t found = 0;
  for_each_attribute(
      answer, [&] { port = 0; },
      [&](int type, std::span<const uint8_t> value) {
        if (!is_number(value)) return;
        if (type == RDMA_NLDEV_ATTR_PORT_INDEX) port = number(value);
        // A verb's port has 8 bits.
        if (type == RDMA_NLDEV_ATTR_NDEV_INDEX && number(value) == ifindex && port < 256)
          found = static_cast<uint8_t>(port);
      });
  return found;
}

uint8_t ask_for_port(const std::string& device, uint32_t ifindex) {
  const int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA);
  if (fd < 0) return 0;
  uint8_t port = 0;
  const timeval limit{.tv_sec = 1, .tv_usec = 0};  // an answer that is cut short is not waited for
  if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0)
    if (const int64_t index = device_number(ask(fd, RDMA_NLDEV_CMD_GET, nullptr), device); index >= 0) {
      const auto of = static_cast<uint32_t>(index);
      port = port_with(ask(fd, RDMA_NLDEV_CMD_PORT_GET, &of), ifindex);
    }
  close(fd);
  return port;
}

}  // namespace accel::mlx5
