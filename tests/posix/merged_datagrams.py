#!/usr/bin/env python3
"""UDP_GRO: merged_datagrams.py kernel|near

Datagrams of one size that wait together come in one message, which tells their size; what is of another size or source begins the next one.
The kernel merges what its device brings together, so there a datagram may come alone. Accelerated all come merged, as far as there is room."""
import os
import pathlib
import subprocess
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "lab"))
sys.path.insert(0, str(here.parents[1] / "apps"))
from programs import Carried, Lab, accelerated_hosts  # noqa: E402

PORT = 7000
SIZES = [1000] * 9 + [300] + [200] * 3 + [500] + [700] * 100  # 9 and their last, three, a larger one, and more than one message holds
WHOLE = [(9300, 1000), (600, 200), (500, 0), (44800, 700), (25200, 700)]  # bytes, and the size that is told
FAR = f"""
import socket, sys
s = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
for each in s: each.connect((sys.argv[1], {PORT}))
s[0].send(b"first")
sys.stdin.readline()
sent = 0
for size in {SIZES}:
    s[0].send(bytes((sent + i) % 251 for i in range(size)))
    sent += size
s[1].send(b"other")
print("sent", flush=True)
sys.stdin.read()
"""
NEAR = f"""
import socket, struct, sys
UDP_GRO = 104
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
s.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
assert s.getsockopt(socket.IPPROTO_UDP, UDP_GRO) == 1
s.bind((sys.argv[1], {PORT}))
print("bound", flush=True)
assert s.recv(100) == b"first"
print("first", flush=True)
sys.stdin.readline()
seen, came = [], 0
while True:
    data, control, flags, peer = s.recvmsg(65536, 100)
    assert flags == 0, flags
    if data == b"other": break
    assert data == bytes((came + i) % 251 for i in range(len(data))), came
    came += len(data)
    told = [struct.unpack("i", text)[0] for level, kind, text in control if (level, kind) == (socket.IPPROTO_UDP, UDP_GRO)]
    seen.append((len(data), told[0] if told else 0))
print(seen, flush=True)
"""


def main(mode):
    with Lab() as lab:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        near = lab.near.popen([sys.executable, "-c", NEAR, lab.near.address], mode == "near", env={"ACCEL_WAIT_FOR_PORTS": "1"}, **pipes)
        assert near.stdout.readline() == "bound\n"
        with Carried(*accelerated_hosts("server" if mode == "near" else "kernel", lab.near, lab.far), kinds=("udp",)):
            far = lab.far.popen([sys.executable, "-c", FAR, lab.near.address], False, **pipes)
            assert near.stdout.readline() == "first\n"
            far.stdin.write("now\n")
            far.stdin.flush()
            assert far.stdout.readline() == "sent\n"
            seen = eval(near.communicate("now\n")[0])
        far.communicate()
        print(seen)
        assert sum(size for size, _ in seen) == sum(SIZES), seen
        assert all(told == 0 or size > told for size, told in seen), seen
        assert mode == "kernel" or seen == WHOLE, seen


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1])
