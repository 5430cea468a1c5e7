#!/usr/bin/env python3
"""A live connection moves into the kernel (TCP_REPAIR) and neither end notices: what arrives is byte for byte what was sent.

    hand_back.py CASE...     with $ACCEL_BUILD as the build; the server's end is accelerated, the client's is the kernel's
"""
import os
import pathlib
import socket
import subprocess
import sys
import threading

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))
FIRST, ALL, TAIL = 300_000, 2_000_000, 700_000


def data():
    return bytes(i * 31 % 251 for i in range(1 << 16)) * (ALL // (1 << 16) + 1)


def echo(c, limit):
    n = 0
    while n < limit and (d := c.recv(min(65536, limit - n))):
        c.sendall(d)
        n += len(d)
    return n


def serve(case):
    listener = socket.create_server(("::", 7000), family=socket.AF_INET6, dualstack_ipv6=True)
    c, _ = listener.accept()
    if case in ("fork_after_fin", "fork_unread"):
        c.recv(1, socket.MSG_PEEK)
        c.recv(FIRST, socket.MSG_WAITALL | socket.MSG_PEEK)  # all is there, FIN or not
    else:
        assert echo(c, FIRST) == FIRST
    if case.startswith("fork"):
        if os.fork() == 0:
            echo(c, ALL)
            os._exit(0)
        c.close()
        os.wait()
    elif case == "exec":
        os.set_inheritable(c.fileno(), True)
        os.execv(sys.executable, [sys.executable, __file__, "--continue", str(c.fileno())])
    elif case == "exit":  # ends at once: send() has accepted the bytes, so the peer gets them
        c.sendall(data()[:TAIL])
        os._exit(0)
    elif case == "exit_after_fin":
        assert c.recv(1) == b""
        c.sendall(data()[:TAIL])
        os._exit(0)


def call(address, case):
    everything = data()[:ALL]
    c = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    c.settimeout(60)
    if case.startswith("exit"):
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)  # far less than TAIL, and it stays at that
    c.connect((address, 7000))
    want = everything
    if case == "exit":
        want = everything[:FIRST] + everything[:TAIL]
    if case == "exit_after_fin":
        want = everything[:FIRST] + everything[:TAIL]
    if case == "fork_after_fin":
        want = everything[:FIRST]

    def send():
        c.sendall(everything[:FIRST])
        if case in ("fork_after_fin", "exit_after_fin"):
            c.shutdown(socket.SHUT_WR)
        elif case != "exit":
            c.sendall(everything[FIRST:])
            c.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    got = bytearray()
    if case.startswith("exit"):  # most of the tail is still with the server when it ends
        while len(got) < FIRST and (d := c.recv(FIRST - len(got))):
            got += d
        sys.stdin.readline()
    while d := c.recv(65536):
        got += d
    sender.join()
    print("same" if bytes(got) == want else f"{len(got)} bytes of {len(want)}, or others")


def run(case, address):
    from lab import Lab
    with Lab() as lab:
        me = [sys.executable, __file__]
        # Room for all that is sent before anything is read.
        server = lab.near.popen([*me, "--serve", case], accel=True, env={"ACCEL_RECEIVE_BUFFER": "1048576", "ACCEL_SEND_BUFFER": "1048576"})
        lab.near.wait_for_listener(7000, server)
        before = lab.near.kernel_packets()["tcp"]
        client = lab.far.popen([*me, "--call", getattr(lab.near, address), case], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if case.startswith("exit"):
            server.wait(60)
        answer = client.communicate("\n", timeout=100)[0].strip()
        carried = lab.near.kernel_packets()["tcp"] - before
        print(f"{case} ({address}): {answer}, {carried} segments by the kernel")
        # The kernel's part shows that the connection moved at all.
        return answer == "same" and carried > 0


CASES = ("fork", "fork_unread", "fork_after_fin", "exec", "exit", "exit_after_fin")


def main(words):
    if words[0] == "--serve":
        return serve(words[1])
    if words[0] == "--call":
        return call(words[1], words[2])
    if words[0] == "--continue":
        return echo(socket.socket(fileno=int(words[1])), ALL)
    return sys.exit(0 if all([run(case, address) for case in words for address in ("address", "address6")]) else 1)


if __name__ == "__main__":
    main(sys.argv[1:] or list(CASES))
