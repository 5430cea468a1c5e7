#!/usr/bin/env python3
"""What a UDP socket sends looks the same on the wire, by the kernel and accelerated: sent_datagrams.py [--show] [--filter WORD]

A program in near does each case twice, plain and preloaded, and far writes down the IP headers that arrive: lengths, DF and fragments,
TTL, traffic class, source, and of what kind the IDs are. Results and errno must agree too. A case that is to be accelerated must have left
past the kernel's stack; its counter proves it.
"""
import argparse
import ipaddress
import json
import os
import pathlib
import socket
import struct
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "apps"))
from programs import ON_MODEL, CommandFailed, Lab, PlainLab  # noqa: E402

PORT, MARK_PORT = 9000, 9001
SECOND, SECOND6 = "10.77.0.3", "fd77::3"  # of near as well
ELSEWHERE, ELSEWHERE6 = "10.78.0.1", "fd78::1"  # near's, on its loopback device
MAPPED = "::ffff:"
MODES = {"DONT": 0, "WANT": 1, "DO": 2, "PROBE": 3, "INTERFACE": 4, "OMIT": 5}
IP, IPV6, UDP = socket.IPPROTO_IP, socket.IPPROTO_IPV6, socket.IPPROTO_UDP
IP_TOS, IP_TTL, IP_PKTINFO, IP_MTU_DISCOVER = 1, 2, 8, 10
IPV6_MTU_DISCOVER, IPV6_MTU, IPV6_PKTINFO, IPV6_HOPLIMIT, IPV6_TCLASS = 23, 24, 50, 52, 67
UDP_SEGMENT = 103

# Reads a case a line, does it, says what became of it.
PROGRAM = """
import ctypes, errno, json, socket, sys
settle_nic = getattr(ctypes.CDLL(None), "mlx5_model_settle", lambda: None)
def result(call):
    try:
        return call()
    except OSError as e:
        return errno.errorcode[e.errno]
for line in sys.stdin:
    case = json.loads(line)
    answers = []
    with socket.socket(socket.AF_INET6 if case["v6"] else socket.AF_INET, socket.SOCK_DGRAM) as s:
        def set_options():
            for level, name, value in case["options"]:
                answers.append(result(lambda: s.setsockopt(level, name, value)))
        if not case["late"]:
            set_options()
        s.bind((case["bind"], 0))
        if case["late"]:
            set_options()
        if case["connected"]:
            s.connect(tuple(case["to"]))
        control = [(level, kind, bytes.fromhex(data)) for level, kind, data in case["control"]]
        for size in case["sizes"]:
            to = None if case["connected"] else tuple(case["to"])
            answers.append(result(lambda: s.sendmsg([b"x" * size], control, 0, to)))
    settle_nic()
    print(json.dumps(answers), flush=True)
"""

# For each line says how many datagrams the kernel has sent, and sends one of its own, which arrives behind all that has been sent.
MARKER = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    for line in sys.stdin:
        with open("/proc/net/snmp") as v4, open("/proc/net/snmp6") as v6:
            heads, values = [row.split() for row in v4 if row.startswith("Udp:")]
            sent6 = [int(row.split()[1]) for row in v6 if row.startswith("Udp6OutDatagrams")]
        print(int(values[heads.index("OutDatagrams")]) + sum(sent6), flush=True)
        s.sendto(b"", (sys.argv[1], int(sys.argv[2])))
"""

# Says the IP header, and of IPv6 the fragment header, of every UDP packet that comes.
WATCHER = """
import socket, sys
sinks = []
for port in sys.argv[1:]:
    sinks.append(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
    sinks[-1].bind(("::", int(port)))
tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
print("ready", flush=True)
while True:
    packet, (_, _, kind, _, _) = tap.recvfrom(65535)
    if kind != socket.PACKET_OUTGOING and packet[0] >> 4 == 4 and packet[9] == 17:
        print(packet[:28].hex(), flush=True)
    elif kind != socket.PACKET_OUTGOING and packet[0] >> 4 == 6 and packet[6] in (17, 44):
        print(packet[:48].hex(), flush=True)
"""


def header(packet):
    """What is to agree, and the ID (None: IPv6's fragments have theirs by another rule)."""
    if packet[0] >> 4 == 4:
        total, number, fragment = struct.unpack_from("!HHH", packet, 2)
        flags = "DF " * bool(fragment & 0x4000) + "MF " * bool(fragment & 0x2000)
        return f"{total}@{8 * (fragment & 0x1fff)} {flags}tos {packet[1]} ttl {packet[8]} from {ipaddress.ip_address(packet[12:16])}", number
    flow, length = struct.unpack_from("!IH", packet, 0)
    offset = struct.unpack_from("!H", packet, 42)[0] if packet[6] == 44 else 0
    return f"{40 + length}@{offset & ~7}{' MF' * (offset & 1)} tos {flow >> 20 & 255} ttl {packet[7]} from {ipaddress.ip_address(packet[8:24])}", None


def kind_of(numbers):
    """Of the IDs of datagrams. (The kernel counts a segmented send for one, so the next one has the same IDs again.)"""
    if len(numbers) < 2 or None in numbers:  # 0 is any counter's once a round
        return ""
    return "ids" if any(numbers) else "ids 0"


class Case:
    def __init__(self, name, to="v4", options=(), control=(), connected=False, sizes=(100, 100, 100), bind=None, late=False, ours=True):
        self.name, self.to, self.options, self.control, self.connected = name, to, options, control, connected
        self.sizes, self.bind, self.late, self.ours = sizes, bind, late, ours

    def line(self, far):
        to = {"v4": far.address, "v6": far.address6, "mapped": MAPPED + far.address}[self.to]
        v6 = self.to != "v4"
        return json.dumps({"v6": v6, "to": [to, PORT], "options": self.options, "connected": self.connected, "sizes": self.sizes,
                           "bind": self.bind or ("::" if v6 else "0.0.0.0"), "late": self.late,
                           "control": [(level, kind, data.hex()) for level, kind, data in self.control]})


def number(value):
    return struct.pack("i", value)


def pktinfo(source="0.0.0.0", ifindex=0, header_destination="0.0.0.0"):
    return IP, IP_PKTINFO, struct.pack("i4s4s", ifindex, socket.inet_aton(source), socket.inet_aton(header_destination))


def pktinfo6(source="::", ifindex=0):
    return IPV6, IPV6_PKTINFO, socket.inet_pton(socket.AF_INET6, source) + struct.pack("i", ifindex)


def mtu_cases():
    for to in ("v4", "v6", "mapped"):
        option = (IPV6, IPV6_MTU_DISCOVER) if to == "v6" else (IP, IP_MTU_DISCOVER)
        most = 1452 if to == "v6" else 1472
        for connected in (False, True):
            which = f"{to} {'connected' if connected else 'unconnected'}"
            for late in (False, True):
                for mode, value in MODES.items():
                    yield Case(f"{which} {mode}{' late' * late}", to, [(*option, value)], connected=connected, sizes=[100, 100, most], late=late)
            yield Case(f"{which} by default", to, connected=connected, sizes=[0, 100, most])
            for mode, value in MODES.items():
                yield Case(f"{which} {mode} too long", to, [(*option, value)], connected=connected, sizes=[most + 1, 4000], ours=False)


def segment_cases():
    for to in ("v4", "v6", "mapped"):
        option = (IPV6, IPV6_MTU_DISCOVER) if to == "v6" else (IP, IP_MTU_DISCOVER)
        most = 1452 if to == "v6" else 1472
        for connected in (False, True):
            which = f"{to} {'connected' if connected else 'unconnected'}"
            for mode, value in MODES.items():
                mtu = (*option, value)
                for size in (10, 100, 250, 1000, most, 5000, 60000):
                    for segment in (100, 1000, most):
                        if size <= 60 * segment:
                            yield Case(f"{which} {mode} {size} bytes in segments of {segment}", to, [mtu, (UDP, UDP_SEGMENT, segment)],
                                       connected=connected, sizes=[size])
            yield Case(f"{which} segments by control", to, control=[(UDP, UDP_SEGMENT, struct.pack("H", 300))], connected=connected, sizes=[1000, 300, 200])
            yield Case(f"{which} no segments by control", to, [(UDP, UDP_SEGMENT, 300)], [(UDP, UDP_SEGMENT, struct.pack("H", 0))],
                       connected=connected, sizes=[1000])
            yield Case(f"{which} too many segments", to, [(UDP, UDP_SEGMENT, 1)], connected=connected, sizes=[1000], ours=False)
            yield Case(f"{which} segments too long", to, [(UDP, UDP_SEGMENT, most + 1)], connected=connected, sizes=[10, most + 1, 4000], ours=False)
            yield Case(f"{which} segment of a wrong size", to, control=[(UDP, UDP_SEGMENT, number(300))], connected=connected, sizes=[1000], ours=False)


def control_cases():
    for connected in (False, True):
        for to in ("v4", "mapped"):
            which = f"{to} {'connected' if connected else 'unconnected'}"
            def case(name, *control, ours=True, **more):
                return Case(f"{which} {name}", to, control=control, connected=connected, ours=ours, **more)
            yield case("source", pktinfo(SECOND))
            yield case("source and device", pktinfo(SECOND, 2))
            yield case("device", pktinfo(ifindex=2))
            yield case("source of another device", pktinfo(ELSEWHERE))
            yield case("nothing of PKTINFO", pktinfo())
            yield case("header's destination is of no account", pktinfo(header_destination=SECOND))
            yield case("foreign source", pktinfo("10.99.9.9"), ours=False)
            yield case("loopback's source", pktinfo("127.0.0.1"), ours=False)
            yield case("multicast source", pktinfo("224.0.0.1"), ours=False)
            yield case("device that is not", pktinfo(SECOND, 77), ours=False)
            yield case("loopback device", pktinfo(SECOND, 1), ours=False)
            yield case("short PKTINFO", (IP, IP_PKTINFO, bytes(8)), ours=False)
            yield case("long PKTINFO", (IP, IP_PKTINFO, bytes(16)), ours=False)
            yield case("two PKTINFO", pktinfo(SECOND), pktinfo(ELSEWHERE, 2))
            yield case("two PKTINFO, the last without", pktinfo(SECOND, 2), pktinfo())
            yield case("TOS as int", (IP, IP_TOS, number(0x28)))
            yield case("TOS as byte", (IP, IP_TOS, b"\x10"))
            yield case("TOS 0", (IP, IP_TOS, number(0)), options=[(IP, IP_TOS, 0x28)])
            yield case("TOS with ECN", (IP, IP_TOS, number(0x2b)))
            yield case("TOS too large", (IP, IP_TOS, number(256)), ours=False)
            yield case("TOS negative", (IP, IP_TOS, number(-1)), ours=False)
            yield case("TOS of three bytes", (IP, IP_TOS, bytes(3)), ours=False)
            yield case("TTL", (IP, IP_TTL, number(7)))
            yield case("TTL 0", (IP, IP_TTL, number(0)), ours=False)
            yield case("TTL 256", (IP, IP_TTL, number(256)), ours=False)
            yield case("TTL as byte", (IP, IP_TTL, b"\x07"), ours=False)
            yield case("all", pktinfo(SECOND, 2), (IP, IP_TOS, number(0x30)), (IP, IP_TTL, number(9)), (UDP, UDP_SEGMENT, struct.pack("H", 40)))
            yield case("unknown", (IP, 99, number(1)), ours=False)
            yield case("unknown level", (99, 1, number(1)), ours=False)
            yield case("mark", (socket.SOL_SOCKET, 36, number(1)), ours=False)
            yield case("of IPv6", (IPV6, IPV6_TCLASS, number(0x30)), ours=False)
            yield case("source of IPv6", pktinfo6(SECOND6), ours=False)
            yield case("mapped source", pktinfo6(MAPPED + SECOND), ours=to == "mapped")
            yield case("mapped source and device", pktinfo6(MAPPED + SECOND, 2), ours=to == "mapped")
            yield case("unspecified IPv6 source", pktinfo6(), ours=False)
            yield case("source where bound", pktinfo(SECOND), bind=(MAPPED if to == "mapped" else "") + "10.77.0.1")
            yield case("no source where bound", pktinfo(), bind=(MAPPED if to == "mapped" else "") + SECOND)
            yield case("TTL where bound", (IP, IP_TTL, number(7)), bind=(MAPPED if to == "mapped" else "") + SECOND)
            for mode, value in MODES.items():
                yield case(f"source, {mode}", pktinfo(SECOND), options=[(IP, IP_MTU_DISCOVER, value)], sizes=[100, 100, 1472])
        which = f"v6 {'connected' if connected else 'unconnected'}"
        def case6(name, *control, ours=True, **more):
            return Case(f"{which} {name}", "v6", control=control, connected=connected, ours=ours, **more)
        yield case6("source", pktinfo6(SECOND6))
        yield case6("source and device", pktinfo6(SECOND6, 2))
        yield case6("device", pktinfo6(ifindex=2))
        yield case6("source of another device", pktinfo6(ELSEWHERE6))
        yield case6("source of another device and device", pktinfo6(ELSEWHERE6, 2))
        yield case6("nothing of PKTINFO", pktinfo6())
        yield case6("foreign source", pktinfo6("fd99::9"), ours=False)
        yield case6("loopback's source", pktinfo6("::1"), ours=False)
        yield case6("mapped source", pktinfo6(MAPPED + SECOND), ours=False)
        yield case6("multicast source", pktinfo6("ff02::1"), ours=False)
        yield case6("device that is not", pktinfo6(SECOND6, 77), ours=False)
        yield case6("loopback device", pktinfo6(SECOND6, 1), ours=False)
        yield case6("short PKTINFO", (IPV6, IPV6_PKTINFO, bytes(16)), ours=False)
        yield case6("long PKTINFO", (IPV6, IPV6_PKTINFO, bytes(24)), ours=False)
        yield case6("two PKTINFO", pktinfo6(SECOND6, 2), pktinfo6(SECOND6, 1), ours=False)
        yield case6("TCLASS", (IPV6, IPV6_TCLASS, number(0x30)))
        yield case6("TCLASS 0", (IPV6, IPV6_TCLASS, number(0)), options=[(IPV6, IPV6_TCLASS, 0x28)])
        yield case6("TCLASS -1", (IPV6, IPV6_TCLASS, number(-1)), options=[(IPV6, IPV6_TCLASS, 0x28)], ours=False)
        yield case6("TCLASS too large", (IPV6, IPV6_TCLASS, number(256)), ours=False)
        yield case6("TCLASS as byte", (IPV6, IPV6_TCLASS, b"\x10"), ours=False)
        yield case6("HOPLIMIT", (IPV6, IPV6_HOPLIMIT, number(7)))
        yield case6("HOPLIMIT 0", (IPV6, IPV6_HOPLIMIT, number(0)), ours=False)
        yield case6("HOPLIMIT -1", (IPV6, IPV6_HOPLIMIT, number(-1)), options=[(IPV6, 16, 9)], ours=False)
        yield case6("HOPLIMIT 256", (IPV6, IPV6_HOPLIMIT, number(256)), ours=False)
        yield case6("all", pktinfo6(SECOND6, 2), (IPV6, IPV6_TCLASS, number(0x30)), (IPV6, IPV6_HOPLIMIT, number(9)),
                    (UDP, UDP_SEGMENT, struct.pack("H", 40)))
        yield case6("of IPv4", (IP, IP_TTL, number(9)), ours=False)
        yield case6("unknown", (IPV6, 99, number(1)), ours=False)
        yield case6("source where bound", pktinfo6(SECOND6), bind="fd77::1")
        yield case6("no source where bound", pktinfo6(), bind=SECOND6)


def limit_cases():
    """IPV6_MTU."""
    for connected in (False, True):
        which = f"v6 {'connected' if connected else 'unconnected'}"
        for late in (False, True):
            for mode in ("WANT", "DO", "OMIT"):
                options = [(IPV6, IPV6_MTU, 1280), (IPV6, IPV6_MTU_DISCOVER, MODES[mode])]
                yield Case(f"{which} {mode} at most 1280{' late' * late}", "v6", options, connected=connected, sizes=[100, 1232], late=late)
                yield Case(f"{which} {mode} over 1280{' late' * late}", "v6", options, connected=connected, sizes=[1233], late=late, ours=False)
        yield Case(f"{which} limit taken back", "v6", [(IPV6, IPV6_MTU, 1280), (IPV6, IPV6_MTU, 0)], connected=connected, sizes=[1452])
        yield Case(f"{which} limit too small", "v6", [(IPV6, IPV6_MTU, 1279)], connected=connected, sizes=[1452])


def route_cases():
    """far is reached by a route of MTU 1400, or with `locked` to it."""
    for to in ("v4", "v6", "mapped"):
        option = (IPV6, IPV6_MTU_DISCOVER) if to == "v6" else (IP, IP_MTU_DISCOVER)
        head = 48 if to == "v6" else 28
        for connected in (False, True):
            which = f"{to} {'connected' if connected else 'unconnected'}"
            for mode, value in MODES.items():
                mtu = (*option, value)
                yield Case(f"{which} {mode} within", to, [mtu], connected=connected, sizes=[100, 1400 - head])
                yield Case(f"{which} {mode} between", to, [mtu], connected=connected, sizes=[1401 - head, 1500 - head],
                           ours=mode in ("PROBE", "INTERFACE", "OMIT"))
                for size in (500, 4000):
                    yield Case(f"{which} {mode} {size} in segments", to, [mtu, (UDP, UDP_SEGMENT, 400)], connected=connected, sizes=[size])


class Side:
    def __init__(self, lab, accelerated):
        self.far = lab.far
        for device, addresses in ((lab.near.device, (SECOND + "/24", SECOND6 + "/64")), ("lo", (ELSEWHERE + "/32", ELSEWHERE6 + "/128"))):
            for address in addresses:
                lab.near.ip("addr", "add", address, "dev", device, *(["nodad"] if ":" in address else []))
        for host in lab.hosts:
            assert f'"ifindex":{2}' in host.ip("-j", "link", "show", "dev", host.device).replace(" ", "")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.watcher = lab.far.popen([sys.executable, "-c", WATCHER, str(PORT), str(MARK_PORT)], **pipes)
        assert self.watcher.stdout.readline() == "ready\n"
        self.marker = lab.near.popen([sys.executable, "-c", MARKER, lab.far.address, str(MARK_PORT)], **pipes)
        lab.near.enter("ping", "-q", "-c1", "-W5", lab.far.address6)  # so that nothing waits for a neighbour
        self.kernels = int(self.tell(self.marker, "").stdout.readline())
        list(self.until_mark())
        self.program = lab.near.popen([sys.executable, "-c", PROGRAM], accel=accelerated, **pipes)

    def do(self, case):
        """What became of it, and how many datagrams of it the kernel sent."""
        answer = self.tell(self.program, case.line(self.far)).stdout.readline()
        if not answer:
            raise CommandFailed(f"{case.name}: the program ended, {self.program.wait()}")
        before, self.kernels = self.kernels, int(self.tell(self.marker, "").stdout.readline())
        carried = self.kernels - before - 1  # less the mark before
        headers = [header(packet) for packet in self.until_mark()]
        first = [n for text, n in headers if "@0 " in text]
        if carried == 0 and any(first) and None not in first and len(set(first)) < len(first):
            headers.append((f"the same ID twice: {first}", 0))
        return {"answers": json.loads(answer), "packets": [text for text, _ in headers], "ids": kind_of(first)}, carried

    @staticmethod
    def tell(child, line):
        child.stdin.write(line + "\n")
        child.stdin.flush()
        return child

    def until_mark(self):
        while line := self.watcher.stdout.readline():
            packet = bytes.fromhex(line)
            if packet[0] >> 4 == 4 and packet[2:4] == b"\0\x1c" and struct.unpack_from("!H", packet, 22)[0] == MARK_PORT:
                return
            yield packet
        raise CommandFailed(f"the watcher ended, {self.watcher.wait()}")


def play(cases, kernel, ours, show):
    wrong = 0
    for case in cases:
        expected, _ = kernel.do(case)
        if show:
            print(f"{case.name}: {json.dumps(expected)}")
        if ours is None:
            continue
        found, carried = ours.do(case)
        if found != expected:
            print(f"{case.name}:\n  kernel      {json.dumps(expected)}\n  accelerated {json.dumps(found)}")
            wrong += 1
        elif case.ours and carried:
            print(f"{case.name}: the kernel sent {carried}")
            wrong += 1
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build")
    parser.add_argument("--show", action="store_true", help="what the kernel sends, alone")
    parser.add_argument("--filter", default="")
    options = parser.parse_args()
    if options.build:
        os.environ["LAB_BUILD"] = options.build
    suites = [("", [*mtu_cases(), *segment_cases(), *control_cases(), *limit_cases()]), ("mtu 1400", list(route_cases())),
              ("mtu lock 1400", list(route_cases()))]
    played = wrong = 0
    for route, cases in suites:
        cases = [c for c in cases if options.filter in c.name]
        with PlainLab() as plain, Lab(proved=False) as preloaded:
            for lab in (plain, preloaded):
                for address, length in ((lab.far.address, 32), (lab.far.address6, 128)):
                    if route:
                        lab.near.ip("route", "add", f"{address}/{length}", "dev", lab.near.device, *route.split())
            print(f"-- {route or 'plain route'}", flush=True)
            wrong += play(cases, Side(plain, False), None if options.show else Side(preloaded, True), options.show)
            played += len(cases)
            if ON_MODEL and not options.show:
                print(f"{preloaded.near.nic_packets()} frames by the NIC's queues")
                assert preloaded.near.nic_packets() > len(cases), preloaded.near.counters()
    print(f"{played} cases, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    try:
        sys.exit(main())
    except CommandFailed as failure:
        sys.exit(str(failure))
