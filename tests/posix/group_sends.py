#!/usr/bin/env python3
"""What is sent to a multicast group: group_sends.py kernel|near

Source, device, TTL and traffic class are those that the options say. It leaves by the device's queues while no member on this host is to have
a copy, which kernels before 6.15 do not tell; else the kernel sends it, and the members have it: from the first datagram behind their join."""
import itertools
import os
import pathlib
import platform
import select
import subprocess
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "lab"))
sys.path.insert(0, str(here.parents[1] / "apps"))
from lab import Lab  # noqa: E402
from programs import statistics  # noqa: E402

COUNT, PORT, GROUP4, GROUP6 = 20, 7000, "239.77.0.11", "ff15::7711"
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
# Tells of each datagram: its text, source, TTL and TOS.
FAR = f"""
import socket, struct, sys
family, index = int(sys.argv[1]), socket.if_nametoindex(sys.argv[2])
s = socket.socket(family, socket.SOCK_DGRAM)
s.bind(("", {PORT}))
if family == socket.AF_INET:
    s.setsockopt(0, 35, socket.inet_aton("{GROUP4}") + bytes(4) + struct.pack("i", index))
    s.setsockopt(0, 12, 1), s.setsockopt(0, 13, 1)  # IP_RECVTTL, IP_RECVTOS
else:
    s.setsockopt(41, 20, socket.inet_pton(family, "{GROUP6}") + struct.pack("i", index))
    s.setsockopt(41, 51, 1), s.setsockopt(41, 66, 1)  # IPV6_RECVHOPLIMIT, IPV6_RECVTCLASS
print("joined", flush=True)
while True:
    data, control, _, peer = s.recvmsg(100, 200)
    told = {{name: int.from_bytes(value[:4], "little") for _, name, value in control}}
    print(data.decode(), peer[0], *(told[n] for n in ((2, 1) if family == socket.AF_INET else (52, 67))), flush=True)
"""
# "option LEVEL NAME HEX", "probe", "send N" or "own": what the socket itself has got since.
NEAR = f"""
import socket, sys
family, group = int(sys.argv[1]), sys.argv[2]
s = socket.socket(family, socket.SOCK_DGRAM)
if sys.argv[3] != "unbound": s.bind((sys.argv[3], {PORT}))
s.setblocking(False)
for line in sys.stdin:
    word, *rest = line.split()
    if word == "option":
        s.setsockopt(int(rest[0]), int(rest[1]), bytes.fromhex(rest[2]))
        print("set", flush=True)
    elif word == "probe":
        s.sendto(b"probe", (group, {PORT}))
        print("sent", flush=True)
    elif word == "send":
        for i in range(int(rest[0])): s.sendto(str(i).encode(), (group, {PORT}))
        print("sent", flush=True)
    else:
        got = 0
        try:
            while True: s.recv(100); got += 1
        except BlockingIOError: print(got, flush=True)
"""
# A member on the sender's host, without libaccel: joins, leaves, or tells how many it has got.
MEMBER = f"""
import socket, struct, sys
family, group, index = int(sys.argv[1]), sys.argv[2], struct.pack("i", int(sys.argv[3]))
s = socket.socket(family, socket.SOCK_DGRAM)
s.bind((group, {PORT}))
s.setblocking(False)
level, join, leave, value = ((0, 35, 36, socket.inet_aton(group) + bytes(4) + index) if family == socket.AF_INET else
                             (41, 20, 21, socket.inet_pton(family, group) + index))
for line in sys.stdin:
    if line != "got\\n":
        s.setsockopt(level, join if line == "join\\n" else leave, value)
        print("done", flush=True)
        continue
    got = 0
    try:
        while True: s.recv(100); got += 1
    except BlockingIOError: print(got, flush=True)
"""
# With ACCEL_REQUIRE: the kernel would have to send it.
LOOPING = f"""
import errno, socket, struct, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(0, 32, socket.inet_aton(sys.argv[1]))
s.setsockopt(0, 35, socket.inet_aton(sys.argv[2]) + socket.inet_aton(sys.argv[1]) + bytes(4))
try:
    s.sendto(b"", (sys.argv[2], {PORT}))
except OSError: print("refused")
"""


# Linux tells of members at once, and dumps those of IPv4 groups.
TELLS = tuple(map(int, platform.release().split("-")[0].split(".")[:2])) >= (6, 15)


def number(value):
    return value.to_bytes(4, "little").hex()


class Program:
    def __init__(self, lab, accelerated, text, *words):
        self.process = lab.near.popen([sys.executable, "-c", text, *map(str, words)], accelerated, require=False, **PIPES)

    def ask(self, words):
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def sent(self):
        counters = statistics(self.process.pid).get("counters", {})
        return counters.get("udp_sent", 0), counters.get("udp_sent_by_kernel", 0)


def run(lab, accelerated, family, bound, options, wanted, by_device, looped=False):
    """`wanted`: source, TTL and TOS of each datagram."""
    group = GROUP4 if family == 2 else GROUP6
    far = lab.far.popen([sys.executable, "-c", FAR, str(family), lab.far.device], False, **PIPES)
    assert far.stdout.readline() == "joined\n"
    near = Program(lab, accelerated, NEAR, family, group, bound)
    for option in options:
        assert near.ask("option " + option) == "set"
    probes = 0  # a link that has just come up may lose the first, on the kernel too
    while probes == 0 or not select.select([far.stdout], [], [], 1)[0]:
        assert near.ask("probe") == "sent"
        probes += 1
    before = near.sent()
    assert near.ask(f"send {COUNT}") == "sent"
    lines = (line.split() for line in iter(far.stdout.readline, ""))
    told = list(itertools.islice((line for line in lines if line[0] != "probe"), COUNT))
    after = near.sent()
    assert told == [[str(i), *map(str, wanted)] for i in range(COUNT)], told[:3]
    if accelerated:
        by_kernel = 0 if by_device or bound == "unbound" else COUNT  # the last has no engine yet, which would count
        assert (after[0] - before[0], after[1] - before[1]) == (COUNT if by_device else 0, by_kernel), (before, after, options)
    got = near.ask("own")
    assert got == str(COUNT + probes if looped else 0), got
    near.process.communicate()
    far.kill()
    far.wait()


def follows(lab, accelerated, family, options, index):
    """A program on the sender's host joins and leaves meanwhile."""
    group = GROUP4 if family == 2 else GROUP6
    far = lab.far.popen([sys.executable, "-c", FAR, str(family), lab.far.device], False, **PIPES)
    assert far.stdout.readline() == "joined\n"
    near, member = Program(lab, accelerated, NEAR, family, group, "unbound"), Program(lab, False, MEMBER, family, group, index)
    for option in options:
        assert near.ask("option " + option) == "set"
    while near.ask("probe") and not select.select([far.stdout], [], [], 1)[0]:
        pass
    for joined in (False, True) * 5:
        assert joined == (member.ask("join" if joined else "got") == "done")
        before = near.sent()
        assert near.ask(f"send {COUNT}") == "sent"
        after = near.sent()
        got = member.ask("got")
        assert got == str(COUNT if joined else 0), (joined, got)
        if accelerated and TELLS:
            by_device, by_kernel = after[0] - before[0], after[1] - before[1]
            assert (by_device, by_kernel) == ((0, COUNT) if joined else (COUNT, 0)), (joined, before, after)
        if joined:
            assert member.ask("leave") == "done"
    wanted = [str(i) for i in range(COUNT)] * 10
    told = (line.split()[0] for line in iter(far.stdout.readline, ""))
    assert list(itertools.islice((word for word in told if word != "probe"), len(wanted))) == wanted
    for program in (near, member):
        program.process.communicate()
    far.kill()
    far.wait()


def main(mode):
    accelerated = mode == "near"
    with Lab() as lab:
        address, address6 = lab.near.address, lab.near.address6
        index = int(lab.near.ip("-o", "link", "show", "dev", lab.near.device).split(":")[0])
        in4, in6 = (f"0 34 {number(0)}", f"41 19 {number(0)}")  # no loop
        by_index = f"0 32 {bytes(8).hex()}{number(index)}"
        by_address = "0 32 " + bytes(map(int, address.split("."))).hex()
        run(lab, accelerated, 2, "0.0.0.0", [in4, by_index], (address, 1, 0), True)
        run(lab, accelerated, 2, "0.0.0.0", [in4, by_address, f"0 33 {number(5)}", f"0 1 {number(0x10)}"], (address, 5, 0x10), True)
        run(lab, accelerated, 2, address, [in4], (address, 1, 0), True)
        run(lab, accelerated, 10, "::", [in6, f"41 17 {number(index)}", f"41 18 {number(7)}", f"41 67 {number(0x20)}"], (address6, 7, 0x20), True)
        run(lab, accelerated, 2, "unbound", [in4, by_index], (address, 1, 0), True)
        run(lab, accelerated, 2, "unbound", [by_index], (address, 1, 0), TELLS)
        run(lab, accelerated, 10, "unbound", [in6, f"41 17 {number(index)}", f"41 18 {number(7)}"], (address6, 7, 0), True)
        joined = "0 35 " + bytes(map(int, GROUP4.split("."))).hex() + bytes(4).hex() + number(index)
        run(lab, accelerated, 2, "0.0.0.0", [joined, by_index], (address, 1, 0), False, looped=True)
        run(lab, accelerated, 2, "0.0.0.0", [joined, in4, by_index], (address, 1, 0), True)
        follows(lab, accelerated, 2, [by_index], index)
        follows(lab, accelerated, 10, [f"41 17 {number(index)}"], index)
        if accelerated:
            said = lab.near.run([sys.executable, "-c", LOOPING, address, GROUP4], True)
            assert "ACCEL_REQUIRE: a socket cannot be accelerated: the kernel serves what is sent to a multicast group that has a member" in said, said
            assert said.splitlines()[-1] == "refused", said


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1])
