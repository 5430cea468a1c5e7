#!/usr/bin/env python3
"""Datagrams of one sendmmsg(): message_batches.py kernel|near

All arrive, in their order, and recvmmsg() gives the answers likewise. Accelerated they go to the device in few bursts, and an error in
the middle ends the call with the number of those before it."""
import os
import pathlib
import subprocess
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "lab"))
sys.path.insert(0, str(here.parents[1] / "apps"))
from programs import Carried, Lab, accelerated_hosts, statistics  # noqa: E402

COUNT, PORT, MOST_BURSTS = 96, 7000, 4
FAR = f"""
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], {PORT}))
print("bound", flush=True)
for _ in range(3):
    got = [s.recvfrom(100) for _ in range({COUNT})]
    for data, peer in got: s.sendto(data, peer)
    print([data.decode() for data, _ in got] == [str(i) for i in range({COUNT})], flush=True)
sys.stdin.read()
"""
# Each line of stdin is a round; the first has an engine and a port opened. The second message of the last call cannot be read.
NEAR = f"""
import ctypes, errno, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
class Vector(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
class Header(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("name_size", ctypes.c_uint), ("vector", ctypes.POINTER(Vector)), ("vectors", ctypes.c_size_t),
                ("control", ctypes.c_void_p), ("control_size", ctypes.c_size_t), ("flags", ctypes.c_int)]
class Message(ctypes.Structure): _fields_ = [("header", Header), ("size", ctypes.c_uint)]
def messages(texts):
    all = (Message * len(texts))()
    keep = []
    for m, text in zip(all, texts):
        buffer = ctypes.create_string_buffer(text, len(text))
        vector = Vector(ctypes.addressof(buffer), len(text))
        keep += [buffer, vector]
        m.header.vector, m.header.vectors = ctypes.pointer(vector), 1
    return all, keep
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((sys.argv[1], {PORT}))
texts = [str(i).encode() for i in range({COUNT})]
for _ in sys.stdin:
    out, kept_out = messages(texts)
    sent = libc.sendmmsg(s.fileno(), out, {COUNT}, 0)
    into, kept_in = messages([b" " * 100] * {COUNT})
    got = libc.recvmmsg(s.fileno(), into, {COUNT}, 0, None)
    same = [ctypes.string_at(m.header.vector[0].base, m.size) for m in into] == texts
    print(sent, got, same, all(m.size == len(t) for m, t in zip(out, texts)), flush=True)
out, kept = messages(texts[:4])
out[2].header.vector[0].base = 8
print(libc.sendmmsg(s.fileno(), out, 4, 0), flush=True)
print(libc.recvmmsg(s.fileno(), messages([b" "] * 4)[0], 4, socket.MSG_DONTWAIT, None), errno.errorcode[ctypes.get_errno()], flush=True)
"""


def main(mode):
    with Lab() as lab:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        far = lab.far.popen([sys.executable, "-c", FAR, lab.far.address], False, **pipes)
        assert far.stdout.readline() == "bound\n"
        near = lab.near.popen([sys.executable, "-c", NEAR, lab.far.address], mode == "near", **pipes)
        bursts = []
        with Carried(*accelerated_hosts("server" if mode == "near" else "kernel", lab.near, lab.far), kinds=("udp",)):
            for _ in range(3):
                before = statistics(near.pid).get("counters", {}).get("tx_bursts", 0)
                near.stdin.write("again\n")
                near.stdin.flush()
                told = near.stdout.readline()
                assert told == f"{COUNT} {COUNT} True True\n", told
                assert far.stdout.readline() == "True\n"
                bursts.append(statistics(near.pid).get("counters", {}).get("tx_bursts", 0) - before)
        rest = near.communicate()[0].splitlines()
        far.communicate()
        print(f"bursts of {COUNT} datagrams: {bursts}; then {rest}")
        assert rest == ["2", "-1 EAGAIN"], rest
        assert mode == "kernel" or 0 < bursts[-1] <= MOST_BURSTS, bursts


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1])
