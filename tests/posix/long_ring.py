#!/usr/bin/env python3
"""What comes to a datagram socket while its program does not look: long_ring.py kernel|near

After much traffic in small bursts, with few buffers in use, a stopped program finds all that its buffer has room for. The profile
market-data's ring keeps that many buffers."""
import os
import pathlib
import signal
import subprocess
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "lab"))
sys.path.insert(0, str(here.parents[1] / "apps"))
from programs import Carried, Lab, accelerated_hosts, statistics  # noqa: E402

PORT, SMALL, ROUNDS, LARGE = 7000, 32, 600, 4000  # ROUNDS * SMALL: more than kFillEpoch of xdp/socket_port.cc
# Answers each SMALL datagrams, then tells how many of LARGE have come, in their order.
NEAR = f"""
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
s.bind((sys.argv[1], {PORT}))
print("bound", flush=True)
for _ in range({ROUNDS}):
    for _ in range({SMALL}): peer = s.recvfrom(100)[1]
    s.sendto(b"go on", peer)
s.settimeout(5)
got = 0
try:
    while got < {LARGE}:
        if s.recv(100) != str(got).encode(): break
        got += 1
except TimeoutError: pass
print(got, flush=True)
sys.stdin.read()
"""
FAR = f"""
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((sys.argv[1], {PORT}))
for _ in range({ROUNDS}):
    for _ in range({SMALL}): s.send(b"small")
    s.recv(100)
print("ready", flush=True)
sys.stdin.readline()
for i in range({LARGE}): s.send(str(i).encode())
"""
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


def main(mode):
    with Lab() as lab, Carried(*accelerated_hosts("server" if mode == "near" else "kernel", lab.near, lab.far), kinds=("udp",)):
        near = lab.near.popen([sys.executable, "-c", NEAR, lab.near.address], mode == "near", {"ACCEL_PROFILE": "market-data"}, **PIPES)
        assert near.stdout.readline() == "bound\n"
        far = lab.far.popen([sys.executable, "-c", FAR, lab.near.address], False, **PIPES)
        assert far.stdout.readline() == "ready\n"
        near.send_signal(signal.SIGSTOP)
        far.communicate("now\n")
        near.send_signal(signal.SIGCONT)
        told = near.stdout.readline()
        counters = {k: v for k, v in statistics(near.pid).get("counters", {}).items() if k.startswith("xdp_rx_") and v}
        near.communicate()
        print(f"{told.strip()} of {LARGE}, {counters}")
        assert told == f"{LARGE}\n", counters


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1])
