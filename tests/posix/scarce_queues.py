#!/usr/bin/env python3
"""More servers than queues: scarce_queues.py kernel|near

The device has one queue, which a first server holds. A second one's listener, its own or one that its child inherited and has given up root
with, serves through the kernel meanwhile; once the first server has ended, what connects to it next is accelerated."""
import os
import pathlib
import signal
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "lab"))
sys.path.insert(0, str(here.parents[1] / "apps"))
from lab import Lab  # noqa: E402
from programs import accelerated_sockets, descendants, statistics, until  # noqa: E402

SERVER = """
import os, socket, sys
listener = socket.create_server(("0.0.0.0", int(sys.argv[1])))
child = os.fork() if sys.argv[2] != "own" else 0
if child: os.waitpid(child, 0)
if sys.argv[2] == "nobody's": os.setuid(65534)
while True:
    with listener.accept()[0] as c: c.sendall(c.recv(100))
"""
CLIENT = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 10) as c:
    c.sendall(b"hello")
    assert c.recv(100, socket.MSG_WAITALL) == b"hello"
"""


def second_server(near, far, accelerated, port, how):
    servers = []

    def start(port, how):
        servers.append(near.popen([sys.executable, "-c", SERVER, str(port), how], accel=accelerated, require=False))
        near.wait_for_listener(port, servers[-1])
        return servers[-1]

    def ask(port):
        far.run([sys.executable, "-c", CLIENT, near.address, str(port)], False)
        return True

    def opened(server):
        return sum(statistics(p).get("counters", {}).get("tcp_passive_opens", 0) for p in descendants(server.pid))

    try:
        first = start(port, "own")
        ask(port)
        second = start(port + 1, how)
        ask(port + 1)
        if accelerated:
            assert opened(first) == 1 and opened(second) == 0, (opened(first), opened(second))
            rows = [s for p in descendants(second.pid) for s in statistics(p)["sockets"] if s["local"].endswith(f":{port + 1}")]
            assert {s["path"] for s in rows} == {"kernel"} and "no_queue" in {s["reason"] for s in rows}, rows
        near.stop(first)
        until(lambda: ask(port + 1) and (not accelerated or accelerated_sockets(second.pid, port + 1)), "a queue for the second server")
        before = opened(second)
        ask(port + 1)
        assert opened(second) == before + accelerated, (before, opened(second))
    finally:
        for server in servers:
            for pid in descendants(server.pid)[1:]:
                os.kill(pid, signal.SIGTERM)
                until(lambda: not pathlib.Path(f"/proc/{pid}").exists(), "the end of the child, which gives its queue back")
            near.stop(server)


def main(accelerated):
    with Lab() as lab:
        second_server(*lab.hosts, accelerated, 7000, "own")
        second_server(*lab.hosts, accelerated, 7100, "forked")
        second_server(*lab.hosts, accelerated, 7200, "nobody's")


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1] == "near")
