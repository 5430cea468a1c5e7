#!/usr/bin/env python3
"""memcached with 4 threads, 32 clients at once, TCP and UDP; every value read back."""
import argparse
import subprocess
import sys

from programs import MODES, ON_MODEL, Lab, server

CLIENT = r"""
import socket, sys, threading
address = sys.argv[1]
def talk(number):
    with socket.create_connection((address, 11211)) as s:
        f = s.makefile("rb")
        for i in range(100):
            key, value = f"k{number}-{i}", (f"{number}:{i};" * (1 + i * 7)).encode()
            s.sendall(f"set {key} 0 0 {len(value)}\r\n".encode() + value + b"\r\n")
            assert f.readline() == b"STORED\r\n"
            s.sendall(f"get {key}\r\n".encode())
            head = f.readline().split()
            assert head[0] == b"VALUE" and int(head[3]) == len(value), head
            assert f.read(len(value) + 2) == value + b"\r\n" and f.readline() == b"END\r\n"
            done[number] += 1
done = [0] * 32
threads = [threading.Thread(target=talk, args=(n,)) for n in range(32)]
[t.start() for t in threads]
[t.join() for t in threads]
assert done == [100] * 32, done
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.settimeout(20)
u.connect((address, 11211))
u.send(b"\x00\x07\x00\x00\x00\x01\x00\x00get k3-5\r\n")
reply = u.recv(2000)
assert reply[:2] == b"\x00\x07" and b"VALUE k3-5" in reply, reply
print("3200 values and a datagram")
"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=MODES, default="both")
    options = parser.parse_args()
    on_server, on_client = MODES[options.mode]
    with Lab() as lab:
        # It gives up root before it makes its sockets; an mlx5 rule takes the privilege whenever it is made.
        command = ["memcached", "-u", "root" if ON_MODEL else "memcache", "-t", "4", "-l", lab.near.address, "-p", "11211", "-U", "11211"]
        with server(lab.near, command, 11211, on_server, env={"ACCEL_EARLY_PORTS": "true"} if on_server else None):
            print(lab.far.run(["/usr/bin/python3", "-c", CLIENT, lab.near.address], on_client).strip())
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
