#!/usr/bin/env python3
"""IPv6 flow labels on the wire: flow_labels.py kernel|near

What near sends is seen in far: automatic labels, none where they are switched off, those that the program chooses. Kernel and libaccel have to
pass alike."""
import collections
import os
import pathlib
import subprocess
import sys
import time

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "apps"))
from programs import Lab, until  # noqa: E402

# Prints of each TCP segment and datagram that comes from near: source port, destination port, label, TCP flags.
TAP = """
import socket, struct
tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x86dd))
tap.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)  # SO_RCVBUFFORCE
print("ready", flush=True)
while True:
    frame, where = tap.recvfrom(65536)
    if where[2] == socket.PACKET_OUTGOING or frame[6] not in (6, 17): continue
    ports = struct.unpack_from("!HH", frame, 40)
    print(*ports, struct.unpack_from("!I", frame)[0] & 0xfffff, frame[53] if frame[6] == 6 else 0, flush=True)
"""
# Closes behind its peer; between "hold" and "close" on its stdin it waits with that.
ECHO = """
import socket, sys, threading
listener = socket.create_server(("::", 7000), family=socket.AF_INET6)
may_close = threading.Event()
may_close.set()
def echo(c):
    with c:
        while b := c.recv(65536): c.sendall(b)
        may_close.wait()
def serve():
    while True: threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()
threading.Thread(target=serve, daemon=True).start()
for word in sys.stdin:
    may_close.clear() if word == "hold\\n" else may_close.set()
    print(word, end="", flush=True)
"""
CLIENT = """
import errno, socket, struct, sys
FLOWLABEL_MGR, FLOWINFO_SEND, AUTOFLOWLABEL, SO_TXREHASH = 32, 33, 70, 74
far = sys.argv[1]

def option(s, name, value, level=socket.IPPROTO_IPV6):
    s.setsockopt(level, name, value)
    return s

def tcp():
    return socket.socket(socket.AF_INET6, socket.SOCK_STREAM)

def connected(s, label=0):
    s.connect((far, 7000, label, 0))
    return s

def exchange(s, n=20):
    for i in range(n):
        s.sendall(b"x" * (i * 200 + 1))
        assert len(s.recv(i * 200 + 1, socket.MSG_WAITALL)) == i * 200 + 1
    return s

def lease(s, label, share):  # IPV6_FL_A_GET, IPV6_FL_F_CREATE
    s.setsockopt(socket.IPPROTO_IPV6, FLOWLABEL_MGR, socket.inet_pton(socket.AF_INET6, far) +
                 struct.pack("!I", label) + struct.pack("=BBHHHI", 0, share, 1, 0, 0, 0))
    return s

def say(name, s):
    print(name, s.getsockname()[1], flush=True)

def done(name, s):
    say(name, s)
    s.close()

def wait_for(word):
    print("until", word, flush=True)
    sys.stdin.readline()

if sys.argv[2:] == ["once"]:
    done("once", exchange(connected(tcp())))
    sys.exit()
kept = [exchange(connected(tcp())) for _ in range(4)]  # at once, so of different ports
for s in kept: done("automatic", s)
done("off", exchange(connected(option(tcp(), AUTOFLOWLABEL, 0))))
s = exchange(connected(tcp()))
option(s, AUTOFLOWLABEL, 0)
done("switched_off", exchange(s))
s = exchange(connected(option(tcp(), FLOWINFO_SEND, 1), 0x12345))
assert s.getpeername()[2] == 0x12345
done("chosen", s)
s = exchange(connected(tcp(), 0x12345))
assert s.getpeername()[2] == 0
done("automatic", s)
s = option(lease(tcp(), 0x23456, 255), FLOWINFO_SEND, 1)  # IPV6_FL_S_ANY
done("leased", exchange(connected(s, 0x23456)))

listener = socket.create_server(("::", 7001), family=socket.AF_INET6)
silent = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
option(silent, AUTOFLOWLABEL, 0).bind(("::", 7002))
silent.listen()
wait_for("connections")
for l in listener, silent:
    c = l.accept()[0]
    while b := c.recv(65536): c.sendall(b)
    c.close()

u = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
u.bind(("::", 6000))
for i in range(3):
    for port in 9, 10: u.sendto(b"x", (far, port))
option(u, AUTOFLOWLABEL, 0).sendto(b"x", (far, 11))
option(u, AUTOFLOWLABEL, 1).connect((far, 12))
for i in range(3): u.send(b"x")
u.connect((far, 13, 0x1234, 0))
u.send(b"x")
option(u, FLOWINFO_SEND, 1).connect((far, 14, 0x1234, 0))
for i in range(3): u.send(b"x")
u.sendto(b"x", (far, 15))
u.sendto(b"x", (far, 16, 0x4321, 0))

late = exchange(connected(option(tcp(), SO_TXREHASH, 1, socket.SOL_SOCKET)))
wait_for("cut")
late.sendall(b"late")
wait_for("mended")
assert late.recv(4, socket.MSG_WAITALL) == b"late"
say("late", late)
closing = [exchange(connected(s)) for s in (tcp(), option(tcp(), AUTOFLOWLABEL, 0))]
wait_for("close")
done("time_wait", closing[0])
done("time_wait_off", closing[1])
wait_for("end")

other = lease(tcp(), 0x34567, 1)  # IPV6_FL_S_EXCL: from now on a label takes a lease
try:
    connected(option(tcp(), FLOWINFO_SEND, 1), 0x11111)
    assert False
except OSError as e:
    assert e.errno == errno.EINVAL, e
s = option(lease(tcp(), 0x23456, 255), FLOWINFO_SEND, 1)
done("leased", exchange(connected(s, 0x23456)))
"""
PEER = """
import socket, sys
for port in 7001, 7002:
    with socket.create_connection((sys.argv[1], port), 30) as c:
        for i in range(20):
            c.sendall(b"y" * 500)
            assert len(c.recv(500, socket.MSG_WAITALL)) == 500
"""
HOLD = """add table inet cut; add chain inet cut in { type filter hook input priority 0; };
add rule inet cut in tcp dport 7000 drop"""

# Nobody hears the datagrams: an ICMP error would fail the next one, where the rate limit lets it out.
QUIET = """add table inet quiet; add chain inet quiet out { type filter hook output priority 0; };
add rule inet quiet out icmpv6 type destination-unreachable drop"""


class Labels:
    """What the tap has seen, in order: by near's port and far's, of labels and flags."""

    def __init__(self, far):
        self.frames = collections.defaultdict(list)
        self._far = far
        self._out = open(far.lab.directory / "frames", "w+")
        self._tap = far.popen([sys.executable, "-c", TAP], stdout=self._out)
        self._read = open(far.lab.directory / "frames")
        until(self._read.readline, "the tap")
        self._part = ""

    def of(self, near_port, far_port):
        while chunk := self._read.readline():
            self._part += chunk
            if self._part.endswith("\n"):
                source, destination, label, flags = map(int, self._part.split())
                self.frames[source, destination].append((label, flags))
                self._part = ""
        return self.frames[near_port, far_port]

    def only(self, near_port, far_port, least=1):
        until(lambda: len(self.of(near_port, far_port)) >= least, f"frames {near_port} to {far_port}", 10)
        different = set(self.until_fin(near_port, far_port))
        assert len(different) == 1, (near_port, far_port, self.of(near_port, far_port))
        return different.pop()

    def wait_for_fin(self, near_port, far_port):
        until(lambda: any(flags & 1 for _, flags in self.of(near_port, far_port)), f"FIN {near_port} to {far_port}", 20)

    def until_fin(self, near_port, far_port):
        """What follows may be TIME-WAIT's, which has its own test."""
        frames = self.of(near_port, far_port)
        end = next((i + 1 for i, (_, flags) in enumerate(frames) if flags & 1), len(frames))
        return [label for label, _ in frames[:end]]


def run(near, far, accelerated):
    echo = far.popen([sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    far.wait_for_listener(7000, echo)
    labels = Labels(far)
    client = near.popen([sys.executable, "-c", CLIENT, far.address6], accel=accelerated, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                        text=True)
    ports = collections.defaultdict(list)

    def until_it_waits_for(word):
        for line in client.stdout:
            name, value = line.split()
            if name == "until":
                assert value == word, line
                return
            ports[name].append(int(value))
        assert word == "nothing" and client.wait(30) == 0

    def tell(child, word="go"):
        print(word, file=child.stdin, flush=True)

    until_it_waits_for("connections")
    peer = far.popen([sys.executable, "-c", PEER, near.address6])
    tell(client)
    until_it_waits_for("cut")
    far.enter("nft", HOLD)
    tell(client)
    until_it_waits_for("mended")
    time.sleep(2)
    far.enter("nft", "delete", "table", "inet", "cut")
    tell(client)
    until_it_waits_for("close")
    tell(echo, "hold")
    assert echo.stdout.readline() == "hold\n"
    tell(client)
    until_it_waits_for("end")
    for name in "time_wait", "time_wait_off":  # its FIN is through
        until(lambda: any(flags & 1 for _, flags in labels.of(ports[name][0], 7000)), "FIN")
    time.sleep(0.2)
    far.enter("nft", HOLD)
    tell(echo, "close")
    time.sleep(1.5)  # far repeats its FINs
    far.enter("nft", "delete", "table", "inet", "cut")
    tell(client)
    until_it_waits_for("nothing")
    assert peer.wait(30) == 0
    return labels, ports


def check_connections(labels, ports):
    for port in (port for name in ("automatic", "off", "switched_off", "chosen", "leased") for port in ports[name]):
        labels.wait_for_fin(port, 7000)  # the tap is behind on a busy machine
    automatic = {labels.only(port, 7000) for port in ports["automatic"]}
    assert 0 not in automatic and len(automatic) == len(ports["automatic"]) == 5, automatic
    assert labels.only(ports["off"][0], 7000) == 0
    switched = labels.until_fin(ports["switched_off"][0], 7000)
    assert switched[0] != 0 and switched == sorted(switched, reverse=True) and set(switched) == {switched[0], 0}, switched
    assert labels.only(ports["chosen"][0], 7000) == 0x12345
    assert {labels.only(port, 7000) for port in ports["leased"]} == {0x23456} and len(ports["leased"]) == 2


def accepted(labels, port):
    """The labels of what near's listener sent to the one that connected."""
    labels.of(0, 0)
    (to,) = (key[1] for key in labels.frames if key[0] == port)
    return labels.only(port, to, 20)


def check_datagrams(labels):
    one, two = labels.only(6000, 9, 3), labels.only(6000, 10, 3)
    assert one and two and one != two
    assert labels.only(6000, 11) == 0
    assert labels.only(6000, 12, 3) != 0
    assert labels.only(6000, 13) != 0
    assert labels.only(6000, 14, 3) == 0x1234
    assert labels.only(6000, 15) not in (0, 0x1234)
    assert labels.only(6000, 16) == 0x4321


def check_timeouts(labels, port):
    seen = [label for label, _ in labels.of(port, 7000)]
    runs = [label for label, before in zip(seen, [0] + seen) if label != before]
    assert seen[0] == seen[10] and 4 <= len(set(runs)) == len(runs) and 0 not in runs, seen


def check_time_wait(labels, ports):
    def answers(port):
        frames = labels.of(port, 7000)
        fin = max(i for i, (_, flags) in enumerate(frames) if flags & 1)
        assert len(frames) >= fin + 4, frames
        return frames[0][0], [label for label, flags in frames[fin + 1:] if not flags & 4]  # RST: the process has ended
    before, after = answers(ports["time_wait"][0])
    assert set(after) == {before}, (before, after)
    before, after = answers(ports["time_wait_off"][0])  # which are a control socket's, without options
    assert before == 0 and len(set(after)) == 1 and after[0] != 0, after


def main(accelerated):
    with Lab() as lab:
        near, far = lab.hosts
        far.enter("nft", QUIET)
        labels, ports = run(near, far, accelerated)
        check_connections(labels, ports)
        assert accepted(labels, 7001) != 0
        assert accepted(labels, 7002) == 0
        check_datagrams(labels)
        check_timeouts(labels, ports["late"][0])
        check_time_wait(labels, ports)
        near.enter("sysctl", "-qw", "net.ipv6.auto_flowlabels=0")
        name, port = near.run([sys.executable, "-c", CLIENT, far.address6, "once"], accel=accelerated).split()
        assert labels.only(int(port), 7000, 20) == 0


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1] == "near")
