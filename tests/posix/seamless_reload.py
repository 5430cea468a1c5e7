#!/usr/bin/env python3
"""Listeners that one server passes to the next, as HAProxy's seamless reload does: seamless_reload.py kernel|near [times]

A server passes its listening socket by SCM_RIGHTS to the next server and ends when that one accepts; every other one accepts no more from the
moment on that it passed it. Clients all the while open a connection a request: none fails, and the next server's connections are accelerated.
Once more with workers: each server is the child of a master that closes the listener, and gives up root, or both are a user's with capabilities.
Once more with a UDP socket."""
import os
import pathlib
import signal
import subprocess
import sys
import time

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "apps"))
sys.path.insert(0, str(here.parents[1] / "lab"))
from lab import AS_USER  # noqa: E402
from programs import ON_MODEL, Lab, accelerated_sockets, descendants, statistics, until  # noqa: E402

# what comes by a queue that nobody holds is the kernel's
ONE_QUEUE = {"ACCEL_QUEUES": "1"}
# serves (kind, port, own Unix socket, the former server's socket or "", "accepts" until the end or not, "alone", "drops": a worker that gives up root, "worker")
# until the next server says that it serves
SERVER = """
import os, select, socket, sys
kind, port, own, before, until_the_end, who = sys.argv[1:]
def drop():
    os.setgid(65534)
    os.setuid(65534)
old = None
if before:
    old = socket.socket(socket.AF_UNIX)
    old.connect(before)
    served = socket.socket(fileno=socket.recv_fds(old, 1, 1)[1][0])
    assert served.getsockname()[1] == int(port)
elif kind == "tcp":
    served = socket.create_server(("0.0.0.0", int(port)), backlog=200)
else:
    served = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    served.bind(("0.0.0.0", int(port)))
served.setblocking(False)
if who != "alone":
    worker = os.fork()
    if worker:
        served.close()
        if old: old.close()
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))
    if who == "drops": drop()
handover = socket.socket(socket.AF_UNIX)
handover.bind(own)
handover.listen()
watched = [served, handover]
select.select(watched, [], [], 0.01)
if old: old.send(b"I serve")
while True:
    for ready in select.select(watched, [], [])[0]:
        try:
            if ready is served and kind == "udp":
                served.sendto(*served.recvfrom(100))
            elif ready is served:
                with served.accept()[0] as c: c.sendall(c.recv(100))
            elif ready is handover:
                way = handover.accept()[0]
                watched.append(way)
                socket.send_fds(way, [b"x"], [served.fileno()])
                if until_the_end != "accepts": watched.remove(served)
            elif ready in watched:
                sys.exit()
        except BlockingIOError:
            pass
"""
# asks and asks until its standard input ends; says how often it was answered
CLIENT = """
import socket, sys, threading
kind, to = sys.argv[1], (sys.argv[2], int(sys.argv[3]))
going, answered = True, []
def ask():
    if kind == "udp":
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as c:
            c.connect(to)
            c.settimeout(60)
            while going:
                c.send(b"hello")
                assert c.recv(100) == b"hello"
                answered.append(1)
    while going:
        with socket.create_connection(to, 60) as c:
            c.settimeout(60)
            c.sendall(b"hello")
            assert c.recv(100, socket.MSG_WAITALL) == b"hello"
            answered.append(1)
threads = [threading.Thread(target=ask) for _ in range(int(sys.argv[4]))]
for t in threads: t.start()
sys.stdin.read()
going = False
for t in threads: t.join()
print(len(answered))
"""


def reload(lab, accelerated, kind, port, times, who="alone"):
    near, far = lab.hosts
    handovers = [str(lab.directory / f"{port}-{i}") for i in range(times + 1)]

    def start(i):
        return near.popen([*(AS_USER if who == "worker" else []), sys.executable, "-c", SERVER, kind, str(port), handovers[i], handovers[i - 1] if i else "",
                           "accepts" if i % 2 or kind == "udp" else "", who], accel=accelerated, env=ONE_QUEUE)

    def serves(server):
        return not accelerated or accelerated_sockets(server.pid, port) == 1

    def opened(server):
        return sum(statistics(pid).get("counters", {}).get("tcp_passive_opens", 0) for pid in descendants(server.pid))

    server = start(0)
    near.wait_for_listener(port, server, kind=kind[0])
    until(lambda: serves(server), "the first server")
    client = far.popen([sys.executable, "-c", CLIENT, kind, near.address, str(port), "8"],
                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for i in range(1, times + 1):
        old, server = server, start(i)
        assert old.wait(90) == 0
        until(lambda: serves(server), "the next server's acceleration")
        if accelerated and kind == "tcp":
            until(lambda: opened(server) > 0, "a connection of the next server's own")
        time.sleep(0.05)
    client.stdin.close()
    output = client.stdout.read()
    client.wait()
    for pid in descendants(server.pid)[:0:-1]:
        os.kill(pid, signal.SIGKILL)
    near.stop(server, signal.SIGKILL)
    assert output.strip().isdigit() and int(output) > 20 * times, output
    print(f"{kind}, {who}: {times} servers, {output.strip()} answers, none missing", flush=True)


def main(accelerated, times):
    with Lab(proved=False, queues=2) as lab:  # an old and a new server have a queue each
        lab.directory.chmod(0o777)
        for i, who in enumerate(("alone", "drops", "worker")):
            reload(lab, accelerated, "tcp", 7000 + i, times, who)
        reload(lab, accelerated, "udp", 7100, times)
        if accelerated and ON_MODEL:
            print(f"{lab.near.nic_packets()} of {lab.near.wire_packets()} frames by the NIC's queues")
            assert lab.near.nic_packets() > lab.near.wire_packets() / 2


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1] == "near", int(sys.argv[2]) if len(sys.argv) > 2 else 4)
