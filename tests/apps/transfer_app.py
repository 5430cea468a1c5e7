#!/usr/bin/env python3
"""A large transfer each way, equal by sha256: programs are this file itself (a plain Python socket server and client)."""
import argparse
import hashlib
import re
import socket
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
        print(got, count, sent, flush=True)


def call(address, port, mib):
    with socket.create_connection((address, port)) as connection:
        sent = send(connection, mib, 1)
        got, count = receive(connection)
    print(sent, count, got, flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="both")
    parser.add_argument("--mib", type=int, default=128)
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument("--faults", default="", help="on the model NIC: what it does to frames, e.g. loss=0.005,reorder=0.01")
    parser.add_argument("--serve")
    parser.add_argument("--call")
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve, 9000, options.mib)
    if options.call:
        return call(options.call, 9000, options.mib)
    from programs import MODES, Carried, Lab, accelerated_hosts
    on_server, on_client = MODES[options.mode]
    with Lab(mtu=options.mtu) as lab, Carried(*accelerated_hosts(options.mode, lab.near, lab.far)):
        lab.near.faults = lab.far.faults = options.faults
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
