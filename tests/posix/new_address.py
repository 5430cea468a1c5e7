#!/usr/bin/env python3
"""The device gets another MAC address (a failover): new_address.py kernel|near

Under load: the peers are told at once (gratuitous ARP), and what they send on reaches the port that the connection has. New connections and
datagrams come in as before."""
import os
import pathlib
import subprocess
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "apps"))
from programs import Lab, accelerated_sockets, statistics, until  # noqa: E402

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
        elif b := key.fileobj.recv(65536):
            key.fileobj.sendall(b)
        else:
            s.unregister(key.fileobj)
            key.fileobj.close()
"""
CLIENT = f"""
import select, socket, sys
def echoed(c):
    for i in range(20):
        c.sendall(b"%02d" % i * 10000)
        got = b""
        while len(got) < 20000: got += c.recv(20000) or sys.exit("the connection has ended")
        assert got == b"%02d" % i * 10000
def connected():
    return socket.create_connection((sys.argv[1], {PORT}), 20)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.connect((sys.argv[1], {PORT}))
u.settimeout(1)
def all_ways():
    echoed(old)
    with connected() as new: echoed(new)
    for i in range(20):  # one may come before the port knows its new address
        u.send(b"x")
        try: return u.recv(10)
        except TimeoutError: pass
    sys.exit("no datagram")
old = connected()
all_ways()
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]: all_ways()
all_ways()
"""


def main(accelerated):
    with Lab(proved=False) as lab:
        near, far = lab.hosts
        server = near.popen([sys.executable, "-c", SERVER], accel=accelerated)
        near.wait_for_listener(PORT, server)
        if accelerated:
            until(lambda: accelerated_sockets(server.pid, PORT) == 2, "listener and datagrams accelerated")

        def counter(name):
            return statistics(server.pid).get("counters", {}).get(name, 0)
        near.enter("sysctl", "-qw", f"net.ipv4.conf.{near.device}.arp_notify=1")
        client = far.popen([sys.executable, "-c", CLIENT, near.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert client.stdout.readline() == "ready\n"
        near.ip("link", "set", near.device, "address", NEW)
        until(lambda: NEW in far.ip("neigh"), "the peer's notice")
        before = counter("rx_frames")
        client.communicate("\n", timeout=60)
        assert client.returncode == 0, client.returncode
        if accelerated:
            assert counter("rx_frames") > before + 500, (before, counter("rx_frames"))
            assert counter("port_errors") == counter("handed_back") == 0


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1] == "near")
