#!/usr/bin/env python3
"""A process ends with open connections: the peers' FINs, which come while the kernel takes the connections over, are not lost.

    last_fin.py mlx5|xdp

The peer's kernel retransmits what was lost, and counts it. A few are the kernel's own: it loses a FIN that comes while close() turns the
socket into a TIME-WAIT one (net/ipv4/tcp_input.c, "we could lose such FIN": 1 of 640 without libaccel)."""
import os
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "lab"), str(TESTS.parent / "model")]
CONNECTIONS, ENDS, KERNELS_OWN = 8, 8, 1
PEER = """
import select, socket, sys
address, connections, ends = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
listener = socket.create_server((address, 7000), backlog=64)
print("ready", flush=True)
for _ in range(ends):
    open_ = [listener.accept()[0] for _ in range(connections)]
    for c in open_: c.sendall(b"go")
    while open_:
        for c in select.select(open_, [], [])[0]:
            if not c.recv(100):
                open_.remove(c)
                c.close()
"""
CALLER = """
import os, socket, sys
open_ = [socket.create_connection((sys.argv[1], 7000)) for _ in range(int(sys.argv[2]))]
for c in open_: c.recv(2)
os._exit(0)
"""
SERVER = """
import os, socket, sys
listener = socket.create_server((sys.argv[1], 7000), backlog=64)
open_ = [listener.accept()[0] for _ in range(int(sys.argv[2]))]
for c in open_: c.sendall(b"go")
for c in open_: c.recv(2)
os._exit(0)
"""
CALLING_PEER = """
import select, socket, sys
open_ = [socket.create_connection((sys.argv[1], 7000)) for _ in range(int(sys.argv[2]))]
for c in open_: c.recv(2)
for c in open_: c.sendall(b"on")
while open_:
    for c in select.select(open_, [], [])[0]:
        if not c.recv(100):
            open_.remove(c)
            c.close()
"""


def ends_as_client(lab):
    peer = lab.far.popen([sys.executable, "-c", PEER, lab.far.address, CONNECTIONS, ENDS], stdout=subprocess.PIPE, text=True)
    assert peer.stdout.readline() == "ready\n"
    for _ in range(ENDS):
        lab.near.run([sys.executable, "-c", CALLER, lab.far.address, CONNECTIONS], accel=True)
    assert peer.wait(30) == 0


def ends_as_server(lab):
    for _ in range(ENDS):
        server = lab.near.popen([sys.executable, "-c", SERVER, lab.near.address, CONNECTIONS], accel=True)
        lab.near.wait_for_listener(7000, server)
        lab.far.run([sys.executable, "-c", CALLING_PEER, lab.near.address, CONNECTIONS])
        assert server.wait(30) == 0


def run(kind):
    if kind == "mlx5":
        from model_lab import ModelLab as Lab
    else:
        from lab import Lab
    with Lab() as lab:
        for role in (ends_as_client, ends_as_server):
            before = lab.far.snmp()["Tcp:RetransSegs"]
            role(lab)
            resent = lab.far.snmp()["Tcp:RetransSegs"] - before
            print(f"{kind}, {role.__name__}: peers of {CONNECTIONS * ENDS} connections retransmitted {resent} times")
            assert resent <= KERNELS_OWN, resent


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    run(sys.argv[1])
