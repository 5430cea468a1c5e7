#!/usr/bin/env python3
"""Bursts on two devices of one process: two_devices.py kernel|near

Two cables join near and far. near's process is stopped while far sends as many frames on each device as a queue has receive buffers, less a few.
Nothing is lost: the second device has buffers of its own. Then each device carries as many answers. The second device goes, another one takes its
place, and takes a burst with the buffers of the one before."""
import os
import pathlib
import signal
import subprocess
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "lab"))
sys.path.insert(0, str(here.parents[1] / "apps"))
from lab import Lab, until  # noqa: E402
from programs import statistics  # noqa: E402

BURST = 480
SECOND = "10.78.0.{}"
NEAR = """
import errno, socket, sys, time
SO_RCVBUFFORCE, BURST, addresses = 33, int(sys.argv[1]), sys.argv[2:]
def bound_in_time(address):  # it hears of a new device a little later: ACCEL_REQUIRE refuses until then
    for end in [time.monotonic() + 20]:
        while True:
            try: return bound(address)
            except OSError as e:
                if e.errno != errno.EPROTONOSUPPORT or time.monotonic() > end: raise
def bound(address):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
    s.bind((address, 7000))
    s.settimeout(10)
    return s
def take(s):
    try:
        for i in range(BURST):
            _, sender = s.recvfrom(100)
            s.sendto(b"answer", sender)
    except TimeoutError:
        return i
    return BURST
sockets = [bound(a) for a in addresses]
print("bound", flush=True)
for line in sys.stdin:
    if line == "close\\n":
        sockets.pop().close()
        print("closed", flush=True)
    elif line == "bind\\n":
        sockets.append(bound_in_time(addresses[1]))
        print("bound", flush=True)
    else:
        print(*map(take, sockets), flush=True)
"""
FAR = """
import socket, sys
SO_RCVBUFFORCE, BURST, addresses = 33, int(sys.argv[1]), sys.argv[2:]
for line in sys.stdin:
    sockets = []
    for address in addresses:
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        s.connect((address, 7000))
        s.settimeout(10)
        sockets.append(s)
        for i in range(BURST): s.send(b"question")
    print("sent", flush=True)
    sys.stdin.readline()
    for s in sockets:
        for i in range(BURST): s.recv(100)
    print("answered", flush=True)
"""


def second_cable(lab):
    near, far = lab.hosts
    near.ip("link", "add", "veth3", "type", "veth", "peer", "name", "veth4", "netns", far.name)
    for host, device, number in ((near, "veth3", 1), (far, "veth4", 2)):
        host.as_a_wire(device, lab.mtu)
        host.ip("addr", "add", SECOND.format(number) + "/24", "dev", device)
        host.ip("link", "set", device, "up")
    near.enter("ping", "-q", "-c1", "-W5", SECOND.format(2))


class Talker:
    def __init__(self, host, program, addresses, accel=False):
        self.child = host.popen([sys.executable, "-c", program, str(BURST), *addresses], accel=accel, stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)

    def say(self, word):
        self.child.stdin.write(word + "\n")
        self.child.stdin.flush()

    def expect(self, words):
        assert (line := self.child.stdout.readline().strip()) == words, (line, words)


def main(accelerated):
    with Lab() as lab:
        second_cable(lab)
        addresses = [lab.near.address, SECOND.format(1)]
        near, far = Talker(lab.near, NEAR, addresses, accelerated), Talker(lab.far, FAR, addresses)
        near.expect("bound")
        for round_number in range(2):
            if accelerated:
                paths = [s["path"] for s in statistics(near.child.pid)["sockets"] if s["local"].endswith(":7000")]
                assert paths == ["xdp", "xdp"], paths
            before = lab.near.kernel_packets()["udp"]
            near.child.send_signal(signal.SIGSTOP)
            until(lambda: pathlib.Path(f"/proc/{near.child.pid}/stat").read_text().split()[2] == "T", "the process is stopped")
            far.say("send")
            far.expect("sent")
            near.child.send_signal(signal.SIGCONT)
            near.say("take")
            near.expect(f"{BURST} {BURST}")
            far.say("answers")
            far.expect("answered")
            if accelerated:
                counters = statistics(near.child.pid)["counters"]
                lost = {k: v for k, v in counters.items() if k in ("xdp_rx_no_buffer", "xdp_rx_ring_full") and v}
                assert not lost, lost
                carried = lab.near.kernel_packets()["udp"] - before
                assert carried < BURST // 10, f"the kernel carried {carried} datagrams"
            if round_number == 0:
                near.say("close")
                near.expect("closed")
                lab.near.ip("link", "del", "veth3")
                second_cable(lab)
                near.say("bind")
                near.expect("bound")


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1] == "near")
