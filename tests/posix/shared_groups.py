#!/usr/bin/env python3
"""A multicast group that several programs of a host have joined: shared_groups.py kernel|near

Each has every datagram, with libaccel or without. One that is alone has them by its device. One without libaccel, whose coming nothing
tells, has them from the next look on; with libaccel they say so when they bind."""
import os
import pathlib
import subprocess
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "lab"))
sys.path.insert(0, str(here.parents[1] / "apps"))
from lab import Lab, until  # noqa: E402
from programs import statistics  # noqa: E402

COUNT, PORT, GROUP = 200, 7000, "239.77.0.9"
# Tells how many of COUNT have come, in their order, each time that it is asked.
MEMBER = f"""
import socket, struct, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((sys.argv[2], {PORT}))
s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("{GROUP}") + socket.inet_aton(sys.argv[1]))
s.settimeout(20)
print("joined", flush=True)
for line in sys.stdin:
    wanted = [f"{{line.strip()}} {{i}}" for i in range({COUNT})]
    got = []
    try:
        while len(got) < {COUNT}:
            data = s.recv(100).decode()
            if not data.startswith("probe"): got.append(data)
    except TimeoutError:
        pass
    print(len(got) if got == wanted else f"{{len(got)}} {{got[:3]}} {{got[-3:]}}", flush=True)
"""
# Echoed by the first member's reading, so that no burst is longer than a socket's buffer.
SENDER = f"""
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(sys.argv[1]))
for line in sys.stdin:
    word, count = line.split()
    for i in range(int(count)): s.sendto(f"{{word}} {{i}}".encode(), ("{GROUP}", {PORT}))
    print("sent", flush=True)
"""
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


class Member:
    def __init__(self, host, accelerated, bound="0.0.0.0", environment=None):
        self.process = host.popen([sys.executable, "-c", MEMBER, host.address, bound], accelerated, env=environment, require=False, **PIPES)
        self.accelerated = accelerated
        assert self.process.stdout.readline() == "joined\n"

    def counted(self):
        if not self.accelerated:
            return 0
        until(lambda: "counters" in statistics(self.process.pid), "the process to tell")
        return statistics(self.process.pid)["counters"]["rx_group_datagrams"]

    def reason(self):
        return [(s["path"], s["reason"]) for s in statistics(self.process.pid).get("sockets", []) if s["protocol"] == "udp"]

    def expect(self, word):
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def told(self):
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.communicate()


class Sender:
    def __init__(self, host):
        self.process = host.popen([sys.executable, "-c", SENDER, host.address], False, **PIPES)

    def send(self, word, count=COUNT):
        self.process.stdin.write(f"{word} {count}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "sent\n"


def everybody_has(sender, word, *members):
    for member in members:
        member.expect(word)
    sender.send(word)
    told = [member.told() for member in members]
    assert told == [str(COUNT)] * len(members), (word, told)


def main(mode):
    accelerated = mode == "near"
    with Lab() as lab:
        sender = Sender(lab.far)

        def alone(member):
            """True once the device brings it the group."""
            before = member.counted()
            sender.send("probe", 1)
            return not accelerated or member.counted() > before

        only = Member(lab.near, accelerated, bound=GROUP)  # its process has no other socket
        until(lambda: alone(only), "a socket that is bound to the group to have it by the device")
        everybody_has(sender, "only", only)
        only.end()

        first = Member(lab.near, accelerated)
        until(lambda: alone(first), "the first one to be alone")
        before = first.counted()
        everybody_has(sender, "alone", first)
        by_device = first.counted() - before
        print(f"alone: {by_device} of {COUNT} by the device")
        assert by_device == (COUNT if accelerated else 0)

        plain = Member(lab.near, False)  # nothing tells of it
        until(lambda: not accelerated or ("xdp", "multicast") in first.reason(), "the first one to know of another")
        before = first.counted()
        everybody_has(sender, "beside", first, plain)
        assert first.counted() == before, "by the device, from which the other has nothing"
        plain.end()
        until(lambda: alone(first), "the first one to be alone again")
        everybody_has(sender, "again", first)

        second = Member(lab.near, accelerated)  # says so itself
        everybody_has(sender, "both", first, second)
        bound = Member(lab.near, accelerated, bound=GROUP)
        everybody_has(sender, "three", first, second, bound)
        for member in (second, bound):
            member.end()
        until(lambda: alone(first), "the first one to be alone in the end")
        first.end()

        if accelerated:
            off = Member(lab.near, True, environment={"ACCEL_MULTICAST": "false"})
            everybody_has(sender, "off", off)
            until(lambda: ("xdp", "multicast") in off.reason(), "the reason to be told")
            assert off.counted() == 0
            off.end()
        sender.process.communicate()


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1])
