#!/usr/bin/env python3
"""A large transfer each way, equal by sha256: programs are this file itself (a plain Python socket server and client)."""
import argparse
import hashlib
import os
import re
import socket
import struct
import subprocess
import sys

CHUNK = 1 << 18


def blocks(mib, seed):
    state = hashlib.sha256(str(seed).encode()).digest()
    block = b"".join(hashlib.sha256(state + i.to_bytes(4, "big")).digest() for i in range(CHUNK // 32))
    for i in range(mib * (1 << 20) // CHUNK):
        yield i.to_bytes(8, "big") + block[8:]


def send(connection, mib, seed):
    digest = hashlib.sha256()
    for b in blocks(mib, seed):
        digest.update(b)
        connection.sendall(b)
    connection.shutdown(socket.SHUT_WR)
    return digest.hexdigest()


def send_and_leave(connection, mib, seed):
    """The process ends straight after its last send: it closes nothing, and waits for nothing."""
    digest, held = hashlib.sha256(), b""
    for b in blocks(mib, seed):
        connection.sendall(held)
        digest.update(b)
        held = b
    print(digest.hexdigest(), flush=True)
    connection.sendall(held)
    os._exit(0)


def receive(connection):
    digest, count, buffer = hashlib.sha256(), 0, bytearray(CHUNK)
    while n := connection.recv_into(buffer):
        digest.update(memoryview(buffer)[:n])
        count += n
    return digest.hexdigest(), count


def serve(address, port, mib):
    with socket.create_server((address, port)) as listener:
        connection, _ = listener.accept()
        with connection:
            got, count = receive(connection)
            sent = send(connection, mib, 2)
            # The program ends when the peer has all: the kernel sends what a program leaves behind (--leave).
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
        print(got, count, sent, flush=True)


def call(address, port, mib):
    with socket.create_connection((address, port)) as connection:
        sent = send(connection, mib, 1)
        got, count = receive(connection)
    print(sent, count, got, flush=True)


def one_way(options):
    """The program of an end that only sends, and leaves, or only takes."""
    if options.serve:
        with socket.create_server((options.serve, 9000)) as listener:
            connection, _ = listener.accept()
    else:
        connection = socket.create_connection((options.call, 9000))
    if options.role == "leave":
        send_and_leave(connection, options.mib, 3)
    print(*receive(connection), flush=True)


def both_leave(lab, on_server, on_client, mib):
    """Each end in turn sends and is gone."""
    me = ["/usr/bin/python3", "-B", __file__, "--mib", mib, "--role"]
    for server_role, client_role in (("leave", "take"), ("take", "leave")):
        server = lab.near.popen([*me, server_role, "--serve", lab.near.address], on_server, stdout=subprocess.PIPE, text=True)
        lab.near.wait_for_listener(9000, server)
        client = lab.far.run([*me, client_role, "--call", lab.near.address], on_client, timeout=2400).split()
        found = {server_role: server.communicate(timeout=2400)[0].split(), client_role: client}
        assert server.returncode == 0 and found["take"] == [found["leave"][0], str(mib << 20)], found
        print(f"{mib} MiB, the {'server' if server_role == 'leave' else 'client'} gone with the last send: ok", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="both")
    parser.add_argument("--mib", type=int, default=128)
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument("--faults", default="", help="on the model NIC: what it does to frames, e.g. loss=0.005,reorder=0.01")
    parser.add_argument("--serve")
    parser.add_argument("--call")
    parser.add_argument("--leave", action="store_true", help="the senders' processes end straight after their last send")
    parser.add_argument("--role", choices=["leave", "take"])
    options = parser.parse_args()
    if options.role:
        return one_way(options)
    if options.serve:
        return serve(options.serve, 9000, options.mib)
    if options.call:
        return call(options.call, 9000, options.mib)
    from programs import MODES, Carried, Lab, accelerated_hosts
    on_server, on_client = MODES[options.mode]
    with Lab(proved=not options.leave, mtu=options.mtu) as lab, Carried(*accelerated_hosts(options.mode, lab.near, lab.far)):
        lab.near.faults = lab.far.faults = options.faults
        if options.leave:
            return both_leave(lab, on_server, on_client, options.mib)
        me = ["/usr/bin/python3", "-B", __file__, "--mib", options.mib]
        server = lab.near.popen([*me, "--serve", lab.near.address], on_server, stdout=subprocess.PIPE, text=True)
        lab.near.wait_for_listener(9000, server)
        mine = lab.far.run([*me, "--call", lab.near.address], on_client, timeout=2400).split()
        theirs = server.communicate(timeout=60)[0].split()
        for fault in re.findall(r"(\w+)=", options.faults.replace("seed=", "")):
            assert lab.near.counters()[f"faults_{fault}"] > 0, lab.near.counters()
    size = str(options.mib << 20)
    assert mine[1] == size and theirs[1] == size, (mine, theirs)
    assert mine[0] == theirs[0], "there: the bytes differ"
    assert mine[2] == theirs[2], "back: the bytes differ"
    print(f"{options.mib} MiB there and back, equal by sha256: ok")


if __name__ == "__main__":
    sys.exit(main())
