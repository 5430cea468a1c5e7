#!/usr/bin/env python3
"""Replies that come by another device than the one that connect() sends by: asymmetric.py kernel|near

Two cables join near and far; far answers near's first address through the second cable. connect(), blocking, with poll() and with epoll, works
as on the kernel: the connection is the kernel's then (reason: unanswered), while one that is answered the way it went stays accelerated."""
import json
import os
import pathlib
import subprocess
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "apps"))
from programs import ON_MODEL, Lab, statistics  # noqa: E402

SERVER = """
import socket, threading
listener = socket.create_server(("0.0.0.0", 7000))
def echo(c):
    while b := c.recv(65536): c.sendall(b)
while True: threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()
"""
CLIENT = """
import errno, json, os, select, socket, sys, threading
strays, straight = sys.argv[1:]
kept, failed = [], []

def trip(c):
    c.setblocking(True)
    kept.append(c)
    data = os.urandom(100000)
    threading.Thread(target=c.sendall, args=(data,)).start()
    if c.recv(len(data), socket.MSG_WAITALL) != data: failed.append("other bytes")

def blocking(to):
    trip(socket.create_connection((to, 7000), 10))

def polled(make, writable):
    c = socket.socket()
    c.setblocking(False)
    p = make()
    if make is select.epoll: p.register(c, select.EPOLLOUT | select.EPOLLET)  # before connect(): which says EPOLLOUT | EPOLLHUP
    if c.connect_ex((strays, 7000)) != errno.EINPROGRESS: return failed.append("connect")
    if make is select.poll: p.register(c, writable)
    while c.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) != b"\\1":
        if not p.poll(10000 if make is select.poll else 10): return failed.append(make.__name__)
    if c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR): return failed.append("error")
    trip(c)

threads = [threading.Thread(target=blocking, args=(to,)) for to in (strays, straight)]
threads += [threading.Thread(target=polled, args=(select.poll, select.POLLOUT)), threading.Thread(target=polled, args=(select.epoll, 0))]
for t in threads: t.start()
for t in threads: t.join()
print(json.dumps({"failed": failed, "strays": [c.fileno() for c in kept if c.getpeername()[0] == strays],
                  "straight": [c.fileno() for c in kept if c.getpeername()[0] == straight]}), flush=True)
sys.stdin.readline()
"""


def second_cable(lab):
    near, far = lab.hosts
    near.ip("link", "add", "veth3", "type", "veth", "peer", "name", "veth4", "netns", far.name)
    for host, device, address in ((near, "veth3", "10.78.0.1"), (far, "veth4", "10.78.0.2")):
        host.enter("sysctl", "-qw", *(f"net.ipv4.conf.{d}.rp_filter=0" for d in ("all", host.device, device)))
        host.enter("ethtool", "-K", device, "tx", "off", "rx", "off", "tso", "off", "gso", "off", "gro", "off")
        host.ip("addr", "add", f"{address}/24", "dev", device)
        host.ip("link", "set", device, "up")
    far.ip("route", "add", near.address, "via", "10.78.0.1", "src", far.address)


def main(accelerated):
    with Lab(proved=False) as lab:
        second_cable(lab)
        near, far = lab.hosts
        server = far.popen([sys.executable, "-c", SERVER])
        far.wait_for_listener(7000, server)
        client = near.popen([sys.executable, "-c", CLIENT, far.address, "10.78.0.2"], accel=accelerated, require=False,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        found = json.loads(client.stdout.readline())
        assert not found["failed"] and len(found["strays"]) == 3 and len(found["straight"]) == 1, found
        if accelerated:
            sockets = {s["fd"]: (s["path"], s["reason"]) for s in statistics(client.pid)["sockets"]}
            assert all(sockets[fd] == ("kernel", "unanswered") for fd in found["strays"]), (found, sockets)
            assert sockets[found["straight"][0]] == ("xdp", "accelerated"), (found, sockets)
        client.communicate("\n", timeout=20)
        assert client.returncode == 0
        if accelerated and ON_MODEL:  # whose SYNs far answered elsewhere; the second cable has no NIC
            assert near.nic_packets() >= 3, near.counters()


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1] == "near")
