#!/usr/bin/env python3
"""A listener's handshakes under way when one of its processes leaves: late_ack.py kernel|near

Two processes listen on one socket. A peer's last ACK, and all that it sends after, does not arrive until the process that has the handshake
has closed the listener: the other one accepts the connection, as the kernel's queue would have it. Once more when the SYN-ACK has been sent again.
And a process alone that shuts its listener down, and listens by it again, accepts it.
"""
import os
import pathlib
import re
import subprocess
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "apps"))
from programs import ON_MODEL, Lab, accelerated_sockets, statistics, until  # noqa: E402

PORT = 7000
CLIENT_PORT = 40000  # AF_XDP: the device has one queue; mlx5: of a share that the first process keeps when the second comes
# poll, select, epoll_wait, pselect6, ppoll, epoll_pwait, epoll_pwait2 of x86-64.
WAITS = {"7", "23", "232", "270", "271", "281", "441"}
SERVER = f"""
import os, select, socket, sys
listener = socket.create_server(("0.0.0.0", {PORT}))
ready, go = os.pipe()
if os.fork():
    select.select([listener], [], [], 0.01)  # takes the queue
    os.write(go, b"x")
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]: pass  # and keeps it, since it waits
    sys.stdin.readline()
    listener.close()
    print("closed", flush=True)
    sys.stdin.readline()
else:
    os.read(ready, 1)
    while open(f"/proc/{{os.getppid()}}/syscall").read().split()[0] not in {WAITS}: pass  # asleep on a lock it would give the queue away
    with listener.accept()[0] as c: c.sendall(c.recv(100))
    print("served", flush=True)
"""
ALONE = f"""
import socket, sys
listener = socket.create_server(("0.0.0.0", {PORT}))
sys.stdin.readline()
listener.shutdown(socket.SHUT_RDWR)
listener.listen()
print("listens again", flush=True)
with listener.accept()[0] as c: c.sendall(c.recv(100))
print("served", flush=True)
sys.stdin.readline()
"""
CLIENT = f"""
import socket, sys
with socket.create_connection((sys.argv[1], {PORT}), 20, ("", {CLIENT_PORT})) as c:
    c.sendall(b"hello")
    assert c.recv(100, socket.MSG_WAITALL) == b"hello"
"""
HOLD = f"""add table inet late; add chain inet late out {{ type filter hook output priority 0; }};
add rule inet late out tcp dport {PORT} tcp flags & (syn|ack) == ack counter drop;
add chain inet late in {{ type filter hook input priority 0; }};
add rule inet late in tcp sport {PORT} tcp flags & (syn|ack) == syn|ack counter"""


def seen(far, chain):
    return int(re.search(r"packets (\d+)", far.enter("nft", "list", "chain", "inet", "late", chain))[1])


def counter(server, name):
    return statistics(server.pid).get("counters", {}).get(name, 0)


def alone(accelerated):
    with Lab(proved=False) as lab:
        near, far = lab.hosts
        server = near.popen([sys.executable, "-c", ALONE], accel=accelerated, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        near.wait_for_listener(PORT, server)
        far.enter("nft", HOLD)
        client = far.popen([sys.executable, "-c", CLIENT, near.address])
        until(lambda: seen(far, "out") > 0, "the last ACK")
        print(file=server.stdin, flush=True)
        assert server.stdout.readline() == "listens again\n"
        far.enter("nft", "delete", "table", "inet", "late")
        assert client.wait(30) == 0
        assert server.stdout.readline() == "served\n"
        assert counter(server, "tcp_passive_opens") == accelerated, counter(server, "tcp_passive_opens")
        print(file=server.stdin, flush=True)
        assert server.wait(30) == 0


def main(accelerated, sent_again):
    with Lab(proved=False) as lab:
        near, far = lab.hosts
        server = near.popen([sys.executable, "-c", SERVER], accel=accelerated, require=False, stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)
        near.wait_for_listener(PORT, server)
        if accelerated:
            until(lambda: accelerated_sockets(server.pid, PORT) == 1 + ON_MODEL, "the queue of the first process, or of each")
        far.enter("nft", HOLD)
        client = far.popen([sys.executable, "-c", CLIENT, near.address])

        until(lambda: seen(far, "out") > 0, "the last ACK")
        if sent_again:
            until(lambda: seen(far, "in") > 1, "the second SYN-ACK")
        before = counter(server, "handed_back")
        print(file=server.stdin, flush=True)
        assert server.stdout.readline() == "closed\n"
        assert counter(server, "handed_back") == before + accelerated, (before, counter(server, "handed_back"))
        far.enter("nft", "delete", "table", "inet", "late")
        assert client.wait(30) == 0
        assert server.stdout.readline() == "served\n"
        print(file=server.stdin, flush=True)
        assert server.wait(30) == 0


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    for again in (False, True):
        main(sys.argv[1] == "near", again)
    alone(sys.argv[1] == "near")
