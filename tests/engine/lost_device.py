#!/usr/bin/env python3
"""The device goes while a program waits on its connections, by epoll, in recv() and in the accept queue: lost_device.py mlx5|xdp

mlx5: the model NIC is removed, its netdev stays: all three go on in the kernel. xdp: the netdev is deleted, and its address with it: nothing can
go on, and whoever waits hears ENETDOWN. Either way the listener serves on."""
import os
import pathlib
import re
import subprocess
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[2] / "model"))
sys.path.insert(0, str(here.parents[1] / "lab"))
from lab import Lab, until  # noqa: E402
from model_lab import ModelLab  # noqa: E402

SERVER = """
import errno, select, socket, sys, threading
listener = socket.create_server(("0.0.0.0", 7000))
print("listening", flush=True)
watched, blocked = listener.accept()[0], listener.accept()[0]
poller = select.epoll()
poller.register(watched, select.EPOLLIN)

def echo(name, c, wait):
    try:
        while wait() and (b := c.recv(65536)):
            c.sendall(b)
        said = "closed"
    except OSError as e:
        said = errno.errorcode[e.errno]
    sys.stdout.write(f"{name} {said}\\n")
    sys.stdout.flush()

threads = [threading.Thread(target=echo, args=("watched", watched, poller.poll)),
           threading.Thread(target=echo, args=("blocked", blocked, lambda: True))]
for t in threads: t.start()
sys.stdin.readline()
for t in threads if sys.argv[1] == "xdp" else (): t.join()
c, peer = listener.accept()
echo(peer[0], c, lambda: True)
for t in threads: t.join()
"""
CLIENT = """
import socket, sys
def trip(c, n):
    for i in range(n):
        b = bytes([i]) * 30000
        c.sendall(b)
        if c.recv(len(b), socket.MSG_WAITALL) != b: sys.exit("other bytes")
connections = [socket.create_connection((sys.argv[1], 7000)) for _ in range(3)]
for c in connections[:2]: trip(c, 5)
connections[2].sendall(b"early")
print("ready", flush=True)
sys.stdin.readline()
if connections[2].recv(5, socket.MSG_WAITALL) != b"early": sys.exit("the bytes before")
for c in connections: trip(c, 20)
"""
CONNECTING = """
import errno, select, socket, sys, threading
address = (sys.argv[1], 7009)
def say(how, error):  # one write: two threads do
    sys.stdout.write(f"{how} {errno.errorcode[error]}\\n")
    sys.stdout.flush()
def block():
    say("blocking", socket.socket().connect_ex(address))
s = socket.socket(); s.setblocking(False)
assert s.connect_ex(address) == errno.EINPROGRESS
t = threading.Thread(target=block); t.start()
p = select.poll(); p.register(s, select.POLLOUT)
p.poll(20000)
say("polled", s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
t.join()
"""


def start(lab, kind, require):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    server = lab.near.popen([sys.executable, "-c", SERVER, kind], accel=True, require=require, **pipes)
    assert server.stdout.readline() == "listening\n"
    client = lab.far.popen([sys.executable, "-c", CLIENT, lab.near.address], **pipes)
    assert client.stdout.readline() == "ready\n"
    return server, client


def done(child, said):
    found = child.communicate(timeout=30)[0]
    assert child.returncode == 0 and sorted(found.split("\n")) == sorted(said.split("\n")), (child.returncode, found)


def mlx5():
    with ModelLab() as lab:
        server, client = start(lab, "mlx5", "mlx5")
        assert lab.near.counters()["rx_bytes"] > 300000, lab.near.counters()
        lab.near.remove_device()
        server.stdin.write("\n")
        server.stdin.flush()
        done(client, "")
        done(server, f"{lab.far.address} closed\nwatched closed\nblocked closed\n")


def xdp():
    with Lab() as lab:
        server, client = start(lab, "xdp", "xdp")
        lab.near.ip("link", "del", lab.near.device)
        assert sorted([server.stdout.readline(), server.stdout.readline()]) == ["blocked ENETDOWN\n", "watched ENETDOWN\n"]
        lab.near.stop(client)
        server.stdin.write("\n")
        server.stdin.flush()
        local = "import socket; c = socket.create_connection(('127.0.0.1', 7000)); c.sendall(b'x'); print(c.recv(1))"
        assert lab.near.run([sys.executable, "-c", local], timeout=30) == "b'x'\n"
        done(server, "127.0.0.1 closed\n")
    with Lab() as lab:  # handshakes under way
        lab.far.enter("nft", "add table inet t; add chain inet t c { type filter hook input priority 0; }; "
                      "add rule inet t c tcp dport 7009 counter drop")
        child = lab.near.popen([sys.executable, "-c", CONNECTING, lab.far.address], accel=True, require="xdp",
                               stdout=subprocess.PIPE, text=True)
        until(lambda: int(re.search(r"packets (\d+)", lab.far.enter("nft", "list", "ruleset"))[1]) >= 2, "two SYNs")
        lab.near.ip("link", "del", lab.near.device)
        done(child, "blocking ENETUNREACH\npolled ENETUNREACH\n")


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    globals()[sys.argv[1]]()
