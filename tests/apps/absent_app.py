#!/usr/bin/env python3
"""A program that makes no call for a while (--seconds): its connections go on without it.

The server sleeps once its connections are made. Until it is woken its peer on the kernel sees data and FIN acknowledged, keepalives and
probes answered, lost segments sent again, what send() accepted delivered when the window opens, a close carried out; and the server's own
keepalives have found a peer that is dead.
"""
import argparse
import array
import contextlib
import fcntl
import signal
import socket
import struct
import subprocess
import sys
import termios
import time

from programs import Lab, server, statistics

PORT = 7400
ROLES = ["ack", "fin", "alive", "deaf", "full", "lost", "closing", "dead", "control"]
SENT = 10000  # the kernel takes that much before anything is acknowledged
ESTABLISHED, FIN_WAIT2 = 1, 5


def keepalive(s):
    for option, value in ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 2)):
        s.setsockopt(socket.IPPROTO_TCP, option, value)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def fill(s):
    """Writes until nothing more is taken for half a second; how much was."""
    s.settimeout(0.5)
    total = 0
    with contextlib.suppress(TimeoutError):
        while True:
            total += s.send(b"x" * 65536)
    return total


def read(s, size=None):
    """`size` bytes, or all there are."""
    s.settimeout(None)
    total = 0
    while total != size and (data := s.recv(65536 if size is None else min(65536, size - total))):
        total += len(data)
    return total


def sleeper(address):
    class Woken(Exception):
        pass

    def wake(*_):
        raise Woken

    signal.signal(signal.SIGUSR1, wake)
    listener = socket.create_server((address, PORT), backlog=len(ROLES))
    s = {}
    while len(s) < len(ROLES):
        c, _ = listener.accept()
        s[c.recv(16, socket.MSG_WAITALL).decode().strip()] = c
    keepalive(s["dead"])
    s["control"].recv(1)
    s["lost"].sendall(b"x" * SENT)
    s["closing"].sendall(b"x" * SENT)
    s["closing"].close()
    s["control"].sendall(f"{fill(s['full']):16}".encode())
    with contextlib.suppress(Woken):
        time.sleep(3600)
    error = s["dead"].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    s["control"].sendall(f"{error:16}{read(s['deaf']):16}".encode())


def peer(address, seconds, sleeper_pid):
    s = {}
    for role in ROLES:
        s[role] = socket.create_connection((address, PORT))
        s[role].sendall(f"{role:16}".encode())
    number = lambda: int(s["control"].recv(16, socket.MSG_WAITALL))  # noqa: E731
    state = lambda role: struct.unpack_from("B", s[role].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8))[0]  # noqa: E731

    def acknowledged(role):
        waiting = array.array("i", [1])
        fcntl.ioctl(s[role], termios.TIOCOUTQ, waiting)
        return waiting[0] == 0

    def until(what, condition):
        end = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < end, f"{what}: not seen"
            time.sleep(0.01)
        print(f"{what}: seen after {time.monotonic() - began:.1f} s")

    lost, dead = (s[role].getsockname()[1] for role in ("lost", "dead"))
    nft = lambda text: subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)  # noqa: E731
    nft(f"""table ip absent {{
  chain lost {{ type filter hook input priority 0; tcp dport {lost} drop; }}
  chain dead {{ type filter hook input priority 0; tcp dport {dead} drop; }}
}}""")
    s["control"].sendall(b".")
    accepted = number()
    began = time.monotonic()
    keepalive(s["alive"])
    s["ack"].sendall(b"x" * 20000)
    until("data acknowledged", lambda: acknowledged("ack"))
    s["fin"].shutdown(socket.SHUT_WR)
    until("FIN acknowledged", lambda: state("fin") == FIN_WAIT2)
    flooded = fill(s["deaf"])
    assert read(s["closing"]) == SENT
    assert read(s["full"], accepted) == accepted
    print(f"closed and delivered; {accepted} bytes through a full window, {flooded} into one")
    nft("flush chain ip absent lost")
    assert read(s["lost"], SENT) == SENT
    print(f"retransmitted: seen after {time.monotonic() - began:.1f} s")
    time.sleep(max(0, began + seconds - time.monotonic()))
    assert state("alive") == state("deaf") == state("ack") == ESTABLISHED
    s["control"].setblocking(False)
    try:
        raise AssertionError(f"the sleeper woke by itself: {s['control'].recv(16)}")
    except BlockingIOError:
        s["control"].setblocking(True)
    subprocess.run(["kill", "-USR1", str(sleeper_pid)], check=True)
    s["deaf"].settimeout(None)
    s["deaf"].shutdown(socket.SHUT_WR)
    error, taken = number(), number()
    assert error == 110 and taken == flooded, (error, taken, flooded)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["kernel", "server"], default="server")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--part", nargs="+")
    options = parser.parse_args()
    if options.part:
        part, address, *words = options.part
        return sleeper(address) if part == "sleeper" else peer(address, options.seconds, *words)
    with Lab() as lab:
        with server(lab.near, ["/usr/bin/python3", "-Bu", __file__, "--part", "sleeper", lab.near.address], PORT, options.mode == "server") as child:
            print(lab.far.run(["/usr/bin/python3", "-Bu", __file__, "--seconds", options.seconds, "--part", "peer", lab.near.address, child.pid]), end="")
            child.wait(20)
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
