#!/usr/bin/env python3
"""Tuples of connections that the kernel has: used_tuples.py kernel|near

A server forks for each connection, which is the kernel's from then on. A SYN of that tuple, from who pretends to be the peer, gets the
kernel's challenge ACK, and the connection goes on (RFC 5961 section 4). Where the kernel has a TIME-WAIT of the tuple a new connection is
served at once. And a client that binds with SO_REUSEADDR to the port of another program's connection cannot have its peer too."""
import errno
import os
import pathlib
import subprocess
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "lab"))
sys.path.insert(0, str(here.parents[1] / "apps"))
from programs import Lab, accelerated_sockets, echo_server, statistics, until  # noqa: E402
from raw_peer import ACK, RST, SYN, TCP, Wire, ip, segment_of, tcp  # noqa: E402

PORT, OTHER_PORT, CLIENT_PORT = 7000, 7001, 40000
SERVER = f"""
import os, signal, socket, sys, threading
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def serve(address):
    listener = socket.create_server((address, {PORT}), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            try:
                while data := connection.recv(100):
                    connection.sendall(data)
                    if data == b"end": break
            except ConnectionResetError: pass  # the client has been ended
            os._exit(0)
        connection.close()
for address in sys.argv[1:]: threading.Thread(target=serve, args=[address]).start()
"""
# Each line of stdin: connect to that port, or else say that; the answer goes to stdout.
CLIENT = f"""
import socket, sys
here, there = sys.argv[1:]
def fresh():
    s = socket.socket(socket.AF_INET6 if ":" in here else socket.AF_INET)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((here, {CLIENT_PORT}))
    s.settimeout(20)
    return s
s = fresh()
for line in map(str.strip, sys.stdin):
    try:
        if line == "close":
            assert s.recv(1) == b""
            s.close()
            s = fresh()
            print("closed", flush=True)
        elif line.isdigit():
            s.connect((there, int(line)))
            print("connected", flush=True)
        else:
            s.sendall(line.encode())
            print(s.recv(100).decode(), flush=True)
    except OSError as e:
        print("failed", e.errno, flush=True)
"""


class Client:
    def __init__(self, host, here, there, accelerated=False):
        self.child = host.popen([sys.executable, "-c", CLIENT, here, there], accel=accelerated, stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)

    def ask(self, line):
        print(line, file=self.child.stdin, flush=True)
        return self.child.stdout.readline().strip()

    def end(self):
        self.child.stdin.close()
        assert self.child.wait(20) == 0


def opens(server):
    return statistics(server.pid)["counters"]["tcp_passive_opens"]


def answer_to_syn(near, far, client, server):
    """The first segment that near sends to the connection after a SYN that is not the client's."""
    wire = Wire(far, near)
    wire.send(ip(client, server, TCP, tcp(client, server, (CLIENT_PORT, PORT), 12345, 0, SYN)))
    return wire.wait(lambda f: (s := segment_of(f)) and s.source == server and s.ports == [PORT, CLIENT_PORT] and s, "answer to the SYN")


def accepted(near, far, accelerated):
    server = near.popen([sys.executable, "-c", SERVER, near.address, near.address6], accel=accelerated)
    for host_address in (near.address, near.address6):
        near.wait_for_listener(PORT, server)
    if accelerated:
        until(lambda: accelerated_sockets(server.pid, PORT) == 2, "two accelerated listeners")
    for begun, (here, there) in enumerate(((far.address, near.address), (far.address6, near.address6))):
        end = f"[{here}]" if ":" in here else here
        client = Client(far, here, there)
        assert client.ask(str(PORT)) == "connected"
        assert client.ask("one") == "one"
        if accelerated:
            counters = statistics(server.pid)["counters"]
            assert counters["tcp_passive_opens"] == counters["handed_back"] == begun + 1, counters
        answer = answer_to_syn(near, far, here, there)
        assert answer.flags & (SYN | RST | ACK) == ACK, (here, answer.flags)
        assert client.ask("two") == "two"
        assert client.ask("end") == "end"  # the server closes first, so TIME-WAIT is near's
        assert client.ask("close") == "closed"
        until(lambda: not far.enter("ss", "-Htan", "src", f"{end}:{CLIENT_PORT}"), "the last ACK, to the client's FIN")
        assert (answer := client.ask(str(PORT))) == "connected", answer
        assert client.ask("three") == "three"
        if accelerated:
            assert opens(server) == begun + 1, "of a tuple that the kernel has"
        client.end()
    near.stop(server)


def opened(near, far, accelerated):
    echo_server(far, PORT, OTHER_PORT)
    first = Client(near, near.address, far.address)
    assert first.ask(str(PORT)) == "connected"
    second = Client(near, near.address, far.address, accelerated)
    assert second.ask(str(PORT)) == f"failed {errno.EADDRNOTAVAIL}"
    assert first.ask("mine") == "mine"
    assert second.ask(str(OTHER_PORT)) == "connected"
    assert second.ask("other") == "other" and first.ask("still") == "still"
    if accelerated:
        assert statistics(second.child.pid)["counters"]["tcp_active_opens"] == 1


def main(accelerated):
    for part in (accepted, opened):
        with Lab(proved=False) as lab:
            part(*lab.hosts, accelerated)


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1] == "near")
