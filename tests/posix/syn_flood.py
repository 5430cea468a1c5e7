#!/usr/bin/env python3
"""A listener whose backlog is full of handshakes that nobody ends: syn_flood.py kernel|near

A peer that comes then connects by a SYN cookie (RFC 4987), and its bytes go both ways. A connection of the same listener that the kernel has,
since a child uses it, goes on meanwhile: its ACKs come to the process as well, which gives them to the kernel.
"""
import os
import pathlib
import socket
import struct
import subprocess
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "apps"))
from programs import Lab, statistics, until  # noqa: E402

PORT = 7000
FIRST, HANDSHAKES = 20000, 300  # the flood's ports; more than the 65 handshakes that a short backlog keeps
SERVER = f"""
import os, socket, sys

def echo(c):
    while data := c.recv(65536): c.sendall(data)

listener = socket.create_server(("0.0.0.0", {PORT}), backlog=8)
c, _ = listener.accept()
if os.fork() == 0:
    listener.close()
    echo(c)
    os._exit(0)
c.close()
while True:
    c, _ = listener.accept()
    echo(c)
    c.close()
"""
CLIENT = f"""
import socket, sys

def ask(c, n):
    data = os_bytes(n)
    c.sendall(data)
    got = b""
    while len(got) < n: got += c.recv(n - len(got))
    assert got == data

def os_bytes(n):
    import os
    return os.urandom(n)

held = socket.create_connection((sys.argv[1], {PORT}), 20)
ask(held, 1000)
print("held", flush=True)
sys.stdin.readline()
c = socket.create_connection((sys.argv[1], {PORT}), 20)
for _ in range(20):
    ask(c, 50000)
    ask(held, 3000)
print("done", flush=True)
"""


def syn(source, destination, port):
    """An IPv4 packet; the kernel fills in the IP header's checksum and length (raw(7), IP_HDRINCL)."""
    tcp = struct.pack("!HHIIBBHHH", port, PORT, 1000 + port, 0, 5 << 4, 2, 65535, 0, 0)
    pseudo = socket.inet_aton(source) + socket.inet_aton(destination) + struct.pack("!BBH", 0, 6, len(tcp))
    total = sum(struct.unpack(f"!{(len(pseudo) + len(tcp)) // 2}H", pseudo + tcp))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    tcp = tcp[:16] + struct.pack("!H", ~total & 0xffff) + tcp[18:]
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 0, 0, 0, 64, 6, 0, socket.inet_aton(source), socket.inet_aton(destination))
    return ip + tcp


def flood(source, destination):
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
        for i in range(HANDSHAKES):
            raw.sendto(syn(source, destination, FIRST + i), (destination, 0))


def counter(server, name):
    return statistics(server.pid).get("counters", {}).get(name, 0)


def main(accelerated):
    with Lab(proved=False) as lab:
        near, far = lab.hosts
        # The flood's peers stay silent: no reset ends their handshakes.
        far.enter("nft", f"add table inet quiet; add chain inet quiet in {{ type filter hook input priority 0; }}; "
                         f"add rule inet quiet in tcp dport {FIRST}-{FIRST + HANDSHAKES} drop")
        server = near.popen([sys.executable, "-c", SERVER], accel=accelerated, require=False)
        near.wait_for_listener(PORT, server)
        client = far.popen([sys.executable, "-c", CLIENT, near.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert client.stdout.readline() == "held\n"
        far.run([sys.executable, "-B", str(here), "flood", far.address, near.address])
        if accelerated:
            until(lambda: counter(server, "tcp_cookies_sent") > 0, "a cookie")
        before = counter(server, "tcp_to_kernel")
        print(file=client.stdin, flush=True)
        assert client.stdout.readline() == "done\n"
        assert client.wait(30) == 0
        if accelerated:
            assert counter(server, "tcp_cookies_accepted") == 1, counter(server, "tcp_cookies_accepted")
            assert counter(server, "tcp_to_kernel") == before, "ACKs of the kernel's connection came by the process"
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    if sys.argv[1] == "flood":
        flood(*sys.argv[2:])
        sys.exit()
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1] == "near")
