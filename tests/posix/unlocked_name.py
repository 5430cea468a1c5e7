#!/usr/bin/env python3
"""An accepted connection of IPv6 becomes one of IPv4 (IPV6_ADDRFORM), is disconnected (AF_UNSPEC) and bound anew: unlocked_name.py kernel|near

On the kernel an accepted socket has its local address and port from the connection alone, so disconnecting takes both off. Our connection is the
kernel's from IPV6_ADDRFORM on. TCP_REPAIR gave it its name by bind(), which disconnecting does not take off: bind() fails (EINVAL)."""
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))
from lab import Lab  # noqa: E402

SERVER = """
import ctypes, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
listener = socket.create_server(("::", 7000), family=socket.AF_INET6, dualstack_ipv6=True)
print("listens", flush=True)
connection, _ = listener.accept()
connection.setsockopt(socket.IPPROTO_IPV6, 1, socket.AF_INET)  # IPV6_ADDRFORM
none, any_address = struct.pack("H14x", socket.AF_UNSPEC), struct.pack("H14x", socket.AF_INET)
results = [libc.connect(connection.fileno(), none, 16), libc.bind(connection.fileno(), any_address, 16)]
print("ok" if results == [0, 0] else f"{results} {os.strerror(ctypes.get_errno())}", flush=True)
"""
CLIENT = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 7000))
try: connection.recv(1)
except ConnectionResetError: pass
"""

with Lab() as lab:
    server = lab.near.popen([sys.executable, "-c", SERVER], sys.argv[1] == "near", require=False, stdout=subprocess.PIPE, text=True)
    server.stdout.readline()
    client = lab.far.popen([sys.executable, "-c", CLIENT, lab.near.address])
    said = server.stdout.readline().strip()
    client.wait()
    print(said)
    sys.exit(said != "ok")
