#!/usr/bin/env python3
"""The device gets another MAC address (a failover): new_address.py kernel|near

A connection goes on, and datagrams and new connections come in, once the peer knows the address. On mlx5 the device's rules match it, so the
port is opened anew and the connection goes on in the kernel."""
import os
import pathlib
import subprocess
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "apps"))
from programs import ON_MODEL, Lab, accelerated_sockets, statistics, until  # noqa: E402

PORT = 7000
NEW = "02:00:00:00:00:99"
SERVER = f"""
import selectors, socket
listener = socket.create_server(("0.0.0.0", {PORT}))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("0.0.0.0", {PORT}))
s = selectors.DefaultSelector()
for fd in listener, datagrams: s.register(fd, selectors.EVENT_READ)
while True:
    for key, _ in s.select():
        if key.fileobj is listener:
            s.register(listener.accept()[0], selectors.EVENT_READ)
        elif key.fileobj is datagrams:
            datagrams.sendto(*datagrams.recvfrom(100))
        elif b := key.fileobj.recv(100):
            key.fileobj.sendall(b)
        else:
            s.unregister(key.fileobj)
            key.fileobj.close()
"""
CLIENT = f"""
import socket, sys
def echoed(c):
    for i in range(20):
        c.sendall(b"%02d" % i)
        assert c.recv(2, socket.MSG_WAITALL) == b"%02d" % i
def connected():
    return socket.create_connection((sys.argv[1], {PORT}), 20)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.connect((sys.argv[1], {PORT}))
u.settimeout(20)
def all_ways():
    echoed(old)
    with connected() as new: echoed(new)
    u.send(b"x")
    assert u.recv(10) == b"x"
old = connected()
all_ways()
print("ready", flush=True)
sys.stdin.readline()
all_ways()
"""


def main(accelerated):
    with Lab(proved=False) as lab:
        near, far = lab.hosts
        server = near.popen([sys.executable, "-c", SERVER], accel=accelerated)

        def until_steered():
            near.wait_for_listener(PORT, server)
            if accelerated:
                until(lambda: accelerated_sockets(server.pid, PORT) == 2, "listener and datagrams accelerated")

        def counter(name):
            return statistics(server.pid).get("counters", {}).get(name, 0)
        until_steered()
        client = far.popen([sys.executable, "-c", CLIENT, near.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert client.stdout.readline() == "ready\n"
        near.ip("link", "set", near.device, "address", NEW)
        if accelerated and ON_MODEL:  # meanwhile frames to the new one are nobody's
            until(lambda: counter("port_errors") == 1, "the port that matches the old address to be lost")
        far.ip("neigh", "replace", near.address, "lladdr", NEW, "dev", far.device)
        until_steered()
        before = counter("rx_frames")
        client.communicate("\n", timeout=60)
        assert client.returncode == 0, client.returncode
        if accelerated:
            assert counter("rx_frames") >= before + 20 + 1, (before, counter("rx_frames"))


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1] == "near")
