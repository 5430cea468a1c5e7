#!/usr/bin/env python3
"""kill -9 of either end: the other sees the end or a reset, never a hang, and the namespace has no XDP state left after each."""
import argparse
import signal
import subprocess
import sys

from programs import MODES, Lab

PEER = r"""
import socket, sys
role, address = sys.argv[1:]
if role == "serve":
    with socket.create_server((address, 7000)) as listener:
        c, _ = listener.accept()
else:
    c = socket.create_connection((address, 7000))
c.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a peer that had nothing to say just then hears of it by this
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
n = 0
try:
    while True:
        if role == "call":
            c.sendall(b"x" * 1000)
        data = c.recv(1000)
        if not data:
            break
        if role == "serve":
            c.sendall(data)
        n += 1
        if n == 20:
            print("moving", flush=True)
    print("end", flush=True)
except OSError as e:
    print(type(e).__name__, flush=True)
"""


def once(lab, on_server, on_client, kill_server):
    words = ["/usr/bin/python3", "-c", PEER]
    server = lab.near.popen([*words, "serve", lab.near.address], on_server, stdout=subprocess.PIPE, text=True)
    lab.near.wait_for_listener(7000, server)
    client = lab.far.popen([*words, "call", lab.near.address], on_client, stdout=subprocess.PIPE, text=True)
    assert client.stdout.readline() == "moving\n"
    victim, other = (server, client) if kill_server else (client, server)
    victim.send_signal(signal.SIGKILL)
    victim.wait(20)
    text, _ = other.communicate(timeout=60)
    assert text.split()[-1] in ("end", "ConnectionResetError", "BrokenPipeError"), text
    victim.stdout.close()
    for host in lab.hosts:
        assert not host.xdp_left(), f"{host.name}: an XDP program stayed after kill -9"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=MODES, default="both")
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    with Lab() as lab:
        for kill_server in (True, False):
            for _ in range(options.times):
                once(lab, *MODES[options.mode], kill_server)
            print(f"{options.times} x kill -9 of the {'server' if kill_server else 'client'}: ok", flush=True)


if __name__ == "__main__":
    sys.exit(main())
