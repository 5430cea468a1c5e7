#!/usr/bin/env python3
"""SO_ZEROCOPY: zerocopy.py kernel|near

The option alone changes nothing (gRPC sets it on every listener): connections are accelerated, and MSG_ZEROCOPY without text does
nothing. A send of text with MSG_ZEROCOPY goes to the kernel with its connection, which tells of the completion on the error queue; without
SO_ZEROCOPY it is a send like any other."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "apps"))
from programs import Lab, statistics, until  # noqa: E402

SERVER = """
import select, socket, struct, sys
SO_ZEROCOPY, MSG_ZEROCOPY = 60, 0x4000000
listener = socket.create_server((sys.argv[1], 7000))
listener.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
for wants in (1, 0):
    c = listener.accept()[0]
    print(c.getsockopt(socket.SOL_SOCKET, SO_ZEROCOPY), flush=True)
    if not wants: c.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 0)
    c.sendall(c.recv(100))
    c.send(b"", MSG_ZEROCOPY)
    c.sendall(c.recv(100))
    sys.stdin.readline()
    print(c.send(b"x" * 30000, MSG_ZEROCOPY), flush=True)
    if wants:
        poll = select.poll(); poll.register(c, 0)
        print(poll.poll(20000)[0][1] == select.POLLERR, flush=True)
        data, control, flags, name = c.recvmsg(100, 100, socket.MSG_ERRQUEUE)
        error, origin, kind, code, pad, first, last = struct.unpack("IBBBBII", control[0][2][:16])
        print(len(data), control[0][:2], error, origin, first, last, flush=True)
    sys.stdin.readline()
    c.close()
"""
CLIENT = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000)) as c:
    for i in range(2):
        c.sendall(b"hello")
        assert c.recv(5, socket.MSG_WAITALL) == b"hello"
    print("asked", flush=True)
    print(c.recv(30000, socket.MSG_WAITALL) == b"x" * 30000, flush=True)
    print(c.recv(1), flush=True)
"""


def connection_paths(server):
    return [s["path"] for s in statistics(server.pid).get("sockets", []) if s["state"] == "established"]


def main(accelerated):
    with Lab() as lab:
        pipes = {"stdin": -1, "stdout": -1, "text": True}
        server = lab.near.popen([sys.executable, "-c", SERVER, lab.near.address], accel=accelerated, require=False, **pipes)
        lab.near.wait_for_listener(7000, server)

        def say():
            server.stdin.write("\n")
            server.stdin.flush()

        for wants in True, False:
            client = lab.far.popen([sys.executable, "-c", CLIENT, lab.near.address], **pipes)
            assert client.stdout.readline() == "asked\n" and server.stdout.readline() == "1\n"
            if accelerated:
                assert connection_paths(server) == ["xdp"], statistics(server.pid)
            say()
            assert server.stdout.readline() == "30000\n" and client.stdout.readline() == "True\n"
            if wants:
                told = [server.stdout.readline() for _ in range(2)]
                assert told == ["True\n", "0 (0, 11) 0 5 0 0\n"], told  # SOL_IP, IP_RECVERR; SO_EE_ORIGIN_ZEROCOPY, the first send
            if accelerated:
                assert statistics(server.pid)["counters"].get("handed_back", 0) == 1, statistics(server.pid)
                assert wants or connection_paths(server) == ["xdp"], statistics(server.pid)
            say()
            assert client.stdout.readline() == "b''\n"
        assert server.wait(20) == 0


if __name__ == "__main__":
    main(sys.argv[1] == "near")
