#!/usr/bin/env python3
"""Connections of a process without privilege that go on in the kernel: unprivileged.py listener|active kernel|near

It has given up root with open ports (early_ports) and then listens or connects: what it has is its own by what the kernel lets anybody bind. The
connection goes with exec(), which takes TCP_REPAIR: a privileged request."""
import os
import pathlib
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "lab"))
sys.path.insert(0, str(here.parents[1] / "apps"))
from lab import Lab, until  # noqa: E402
from programs import accelerated_sockets, statistics  # noqa: E402

NEAR = """
import encodings.idna, os, socket, sys  # what another user may not read is loaded now
role, own, other = sys.argv[1:4]
os.setgid(65534)
os.setuid(65534)
if role == "listener":
    listener = socket.create_server((own, 7000))
    c = listener.accept()[0]
else:
    c = socket.create_connection((other, 7001), 30)
for i in range(30): c.sendall(c.recv(1))
sys.stdin.readline()
c.settimeout(None)
for to in 0, 1: os.dup2(c.fileno(), to)
os.execv("/bin/cat", ["cat"])
"""
FAR = """
import socket, sys
role, own, other = sys.argv[1:4]
if role == "listener": c = socket.create_connection((other, 7000), 30)
else:
    listener = socket.create_server((own, 7001))
    print("listens", flush=True)
    c = listener.accept()[0]
def echoed():
    c.sendall(b"x")
    return c.recv(1) == b"x"
assert all(echoed() for i in range(30))
print("talked", flush=True)
assert sys.stdin.readline() == "on\\n"
assert all(echoed() for i in range(30))
c.shutdown(socket.SHUT_WR)
assert c.recv(1) == b""
print("ended", flush=True)
"""


def main(role, accelerated):
    with Lab() as lab:
        near, far = lab.hosts

        def start_near():
            return near.popen([sys.executable, "-c", NEAR, role, near.address, far.address], accel=accelerated, env={"ACCEL_EARLY_PORTS": "1"},
                              stdin=-1, text=True)

        def start_far():
            return far.popen([sys.executable, "-c", FAR, role, far.address, near.address], stdin=-1, stdout=-1, text=True)

        if role == "listener":
            program = start_near()
            near.wait_for_listener(7000, program)
            until(lambda: not accelerated or accelerated_sockets(program.pid, 7000), "the listener")
            peer = start_far()
        else:
            peer = start_far()
            assert peer.stdout.readline() == "listens\n"
            program = start_near()
        assert peer.stdout.readline() == "talked\n"
        if accelerated:
            paths = {(s["path"], s["state"]) for s in statistics(program.pid)["sockets"]}
            assert ("xdp", "established") in paths, paths
        program.stdin.write("exec\n")
        program.stdin.flush()
        until(lambda: pathlib.Path(f"/proc/{program.pid}/comm").read_text() == "cat\n", "cat")
        peer.stdin.write("on\n")
        peer.stdin.flush()
        assert peer.stdout.readline() == "ended\n"
        assert peer.wait(20) == 0 and program.wait(20) == 0


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1], sys.argv[2] == "near")
