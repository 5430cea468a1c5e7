#include "tests/firewall/cases.h"

namespace accel::firewall::test {
namespace {

constexpr Protocol kUdp = Protocol::kUdp;
constexpr const char* kV6 = "fd07::1";

Question from(Question q, const std::string& peer, uint16_t port) {
  q.remote = {address(peer), port};
  return q;
}

Question reachable(Question q) {
  q.peer_by_device = true;
  return q;
}

Question opened(Question q) {
  q.established = true;
  return q;
}

Question marked(Question q, uint32_t mark) {
  q.mark = mark;
  return q;
}

Question routed_by_mark(Question q) {
  q.marks_route = true;
  return q;
}

std::vector<Case> docker() {
  return {
      {"a listener on a port that no container has", listen(80), nullptr},
      {"a listener on a container's port", listen(8080), "nat/DOCKER"},
      {"a UDP socket", listen(8080, kUdp), nullptr},
      {"a client", connect("192.0.2.1", 443), nullptr},
      {"a client to a container's port elsewhere", connect("192.0.2.1", 8080), nullptr},
      {"a UDP client", connect("192.0.2.1", 53, kUdp), nullptr},
      {"over IPv6", listen(8080, Protocol::kTcp, kV6), nullptr},
  };
}

std::vector<Case> ufw() {
  return {
      {"an allowed port", listen(22), nullptr},
      {"a port of a list", listen(443), nullptr},
      {"a port that is not allowed", listen(81), ""},
      {"a port that some peers may use", listen(5432), ""},
      {"one of these peers", from(listen(5432), "10.9.3.4", 40000), nullptr},
      {"another peer", from(listen(5432), "10.8.3.4", 40000), ""},
      {"an allowed UDP port", listen(51820, kUdp), nullptr},
      {"a client", connect("192.0.2.1", 443), nullptr},
      {"a UDP client: an answer after a long silence is refused", connect("192.0.2.1", 53, kUdp), ""},
      {"an open connection to a port closed since", opened(listen(81)), nullptr},
  };
}

std::vector<Case> ufw6() {
  return {
      {"an allowed port", listen(22, Protocol::kTcp, kV6), nullptr},
      {"a port of a list", listen(80, Protocol::kTcp, kV6), nullptr},
      {"a port that is not allowed", listen(81, Protocol::kTcp, kV6), "filter/INPUT"},
      {"a client", connect("2001:db8::1", 443), nullptr},
      {"IPv4 is not its", listen(81), nullptr},
  };
}

std::vector<Case> firewalld() {
  return {
      {"an allowed port", listen(22), nullptr},
      {"a port that is not allowed", listen(80), "firewalld/filter_IN_public"},
      {"a client", connect("192.0.2.1", 443), nullptr},
      {"a UDP client", connect("192.0.2.1", 53, kUdp), "firewalld/filter_IN_public"},
      {"IPv6, any peer: its reverse path is not known", listen(22, Protocol::kTcp, kV6), "filter_PREROUTING"},
      {"IPv6, with the default route by the device", reachable(listen(22, Protocol::kTcp, kV6)), nullptr},
      {"an IPv6 client", connect("2001:db8::1", 443), nullptr},
      {"an IPv6 client to where nothing may go", connect("2002:a9fe::1", 443), "filter_OUTPUT"},
  };
}

std::vector<Case> kube() {
  return {
      {"a service", connect("10.96.0.10", 443), "KUBE-"},
      {"another port of its address", connect("10.96.0.10", 80), nullptr},
      {"a service without endpoints", connect("10.96.0.20", 80), "filter/KUBE-SERVICES"},
      {"a host", connect("10.7.0.9", 443), nullptr},
      {"a listener", listen(6443), nullptr},
      {"a listener on a node port", listen(30443), "KUBE-"},
      {"a UDP socket", listen(8472, kUdp), nullptr},
      {"a marked socket", marked(connect("10.7.0.9", 443), 0x4000), "nat/KUBE-POSTROUTING"},
  };
}

std::vector<Case> kube_nft() {
  return {
      {"a service", connect("10.96.0.10", 443), "kube-proxy/"},
      {"another port of its address", connect("10.96.0.10", 80), "kube-proxy/cluster-ips-check"},
      {"a service without endpoints", connect("10.96.0.20", 80), "kube-proxy/reject-chain"},
      {"a host", connect("10.7.0.9", 443), nullptr},
      {"a listener", listen(6443), nullptr},
      {"a listener on a node port", listen(30443), "kube-proxy/"},
      {"a UDP socket", listen(8472, kUdp), nullptr},
      {"a marked socket", marked(connect("10.7.0.9", 443), 0x4000), "kube-proxy/masquerading"},
  };
}

std::vector<Case> hand() {
  return {
      {"a port of a set", listen(443), nullptr},
      {"a port of a range", listen(8055), nullptr},
      {"a port beyond the range", listen(8100), "filter/input: its policy drops"},
      {"a port for some peers", listen(5432), "policy"},
      {"a peer of the interval", from(listen(5432), "192.0.2.31", 40000), nullptr},
      {"a peer behind the interval", from(listen(5432), "192.0.2.32", 40000), "policy"},
      {"a limited port", listen(22), "policy"},
      {"a logged port", listen(9100), "logs"},
      {"a port whose peers packets ban", listen(25), "may drop"},
      {"a device's prefix", listen(2049), nullptr},
      {"two ways, of which one ends in the policy", listen(3306), "policy"},
      {"the way that is accepted", from(listen(3306), "10.9.0.1", 40000), nullptr},
      {"untracked datagrams", listen(53, kUdp), nullptr},
      {"tracked datagrams", listen(514, kUdp), nullptr},
      {"datagrams that are not allowed", listen(515, kUdp), "policy"},
      {"a client", connect("192.0.2.1", 443), nullptr},
      {"a client of a refused network", connect("198.51.100.7", 443), "filter/output"},
      {"a mail client", connect("192.0.2.1", 25), "rejects"},
      {"a mail client to the relay", connect("10.7.0.25", 25), nullptr},
      {"a listener whose answers are dropped", listen(8070), "filter/output"},
      {"a marked client", marked(connect("192.0.2.1", 443), 7), "filter/output"},
      {"a client that rules mark", connect("192.0.2.1", 4433), nullptr},
      {"the same where marks decide routes", routed_by_mark(connect("192.0.2.1", 4433)), "mark"},
      {"a redirected client", connect("192.0.2.1", 8888), "translates"},
      {"dropped by the device's hook", listen(6666), "edge/in"},
      {"the hook of another device",
       [] {
         Question q = listen(8080);
         q.device = {8, "ens5"};
         return q;
       }(),
       nullptr},
      {"an open connection", opened(listen(8100)), nullptr},
      {"an open connection to where no new one may lead", opened(connect("198.51.100.7", 443)), nullptr},
  };
}

std::vector<Case> stateless() {
  return {
      {"a listener of which some peers get no answer", listen(80), "plain/output"},
      {"a peer that gets one", from(listen(80), "192.0.2.1", 40000), nullptr},
      {"a peer that may not come", from(listen(443), "203.0.113.9", 40000), "plain/input"},
      {"over IPv6", listen(80, Protocol::kTcp, kV6), nullptr},
      {"a client", connect("192.0.2.1", 443), nullptr},
      {"an open connection that packets may no longer take", opened(connect("198.51.100.7", 443)),
       "plain/output"},
      {"the answers of an open connection are dropped", opened(from(listen(443), "203.0.113.9", 40000)),
       "plain/input"},
  };
}

}  // namespace

const std::vector<RuleFile>& rule_files() {
  static const std::vector<RuleFile> all = {
      {"docker", "iptables-nft-restore", "docker.save", docker()},
      {"docker_legacy", "iptables-legacy-restore", "docker.save", docker()},
      {"ufw", "iptables-nft-restore", "ufw.save", ufw()},
      {"ufw_legacy", "iptables-legacy-restore", "ufw.save", ufw()},
      {"ufw6", "ip6tables-nft-restore", "ufw6.save", ufw6()},
      {"ufw6_legacy", "ip6tables-legacy-restore", "ufw6.save", ufw6()},
      {"firewalld", "nft -f -", "firewalld.nft", firewalld()},
      {"kube", "iptables-nft-restore", "kube.save", kube()},
      {"kube_legacy", "iptables-legacy-restore", "kube.save", kube()},
      {"kube_nft", "nft -f -", "kube.nft", kube_nft()},
      {"hand", "nft -f -", "hand.nft", hand()},
      {"stateless", "nft -f -", "stateless.nft", stateless()},
  };
  return all;
}

}  // namespace accel::firewall::test
