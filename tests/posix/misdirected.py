#!/usr/bin/env python3
"""Connections whose segments come by other queues from some moment on: misdirected.py kernel|near

The device has four queues; the server is a forked child, which holds one. The client's connections leave its own process for the kernel, which
chooses other queues to send by. What the server has of them goes on, and ends with its end: by FIN and by reset."""
import os
import pathlib
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "lab"))
sys.path.insert(0, str(here.parents[1] / "apps"))
from lab import Lab  # noqa: E402
from programs import accelerated_sockets, descendants, statistics, until  # noqa: E402

CONNECTIONS = 128
SERVER = """
import os, socket, sys, threading
listener = socket.create_server((sys.argv[1], 7000), backlog=200)
if os.fork(): os.wait()
ends = []
def serve(c):
    try:
        while data := c.recv(100): c.sendall(data)
        ends.append("end")
    except ConnectionResetError:
        ends.append("reset")
threads = []
for _ in range(int(sys.argv[2])):
    c = listener.accept()[0]
    threads.append(threading.Thread(target=serve, args=[c]))
    threads[-1].start()
for t in threads: t.join()
with listener.accept()[0] as c: c.sendall(f"{ends.count('end')} {ends.count('reset')}".encode())
"""
CLIENT = """
import socket, struct, sys
address = sys.argv[1], 7000
def ask(c):
    c.sendall(b"hello")
    assert c.recv(5, socket.MSG_WAITALL) == b"hello"
cs = [socket.create_connection(address, 30) for _ in range(int(sys.argv[2]))]
for c in cs: ask(c)
for c in cs: c.setsockopt(socket.SOL_SOCKET, 29, 1)  # SO_TIMESTAMP: the kernel's from here on
print("moved", flush=True)
for c in cs: ask(c)
print("asked", flush=True)
sys.stdin.readline()
for n, c in enumerate(cs):
    if n % 2: c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    c.close()
with socket.create_connection(address, 30) as c: print(c.recv(100).decode(), flush=True)
"""


def main(accelerated):
    with Lab(queues=4) as lab:
        near, far = lab.hosts
        server = near.popen([sys.executable, "-c", SERVER, near.address, str(CONNECTIONS)], accel=accelerated, require=False)
        near.wait_for_listener(7000, server)
        until(lambda: not accelerated or accelerated_sockets(server.pid, 7000), "the child, which waits")
        client = far.popen([sys.executable, "-c", CLIENT, near.address, str(CONNECTIONS)], accel=accelerated, require=False,
                           stdin=-1, stdout=-1, text=True)
        assert [client.stdout.readline(), client.stdout.readline()] == ["moved\n", "asked\n"], client.wait()
        rows = [s for p in descendants(server.pid) for s in statistics(p).get("sockets", [])]
        misdirected = sum(s["reason"] == "misdirected" for s in rows)
        print(f"{misdirected} of {CONNECTIONS} connections misdirected")
        assert misdirected > 0 or not accelerated, sorted(s["reason"] for s in rows)
        assert client.communicate("end\n", timeout=60)[0].split() == [str(CONNECTIONS // 2)] * 2
        near.stop(server)


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1] == "near")
