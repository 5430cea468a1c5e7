#!/usr/bin/env python3
"""What libaccel adds to nc, which listens, and to curl, which fetches a small page and ends: memory and descriptors, beside the same on the kernel.
Settings are the defaults. docs/compatibility.md says what is paid for what."""
import subprocess
import sys

from programs import Lab, accelerated_sockets, footprint, until

DEFAULTS = {"ACCEL_WAIT_FOR_PORTS": "0"}
PORT = 7000
# A page, once a line has come by standard input.
PAGES = """
import socket, sys
with socket.create_server((sys.argv[1], 8000)) as listener, listener.accept()[0] as c:
    c.recv(65536)
    print("held", flush=True)
    sys.stdin.readline()
    c.sendall(b"HTTP/1.0 200 OK\\r\\nContent-Length: 6\\r\\n\\r\\nsmall\\n")
"""


def listener(accelerated):
    """At rest, and after it has read a connection's bytes."""
    with Lab() as lab:
        server = lab.near.popen(["nc", "-l", "-k", lab.near.address, PORT], accelerated, DEFAULTS, require=False, stdout=subprocess.PIPE)
        lab.near.wait_for_listener(PORT, server)
        until(lambda: not accelerated or accelerated_sockets(server.pid, PORT), "an accelerated listener")
        rests = footprint(lab.near)
        sent = b"x" * 60000
        client = lab.far.popen(["nc", "-N", lab.near.address, PORT], stdin=subprocess.PIPE)
        client.stdin.write(sent)
        client.stdin.close()
        assert server.stdout.read(len(sent)) == sent  # before the client's end: a pipe may hold less
        client.wait(20)
        return rests, footprint(lab.near)


def client(accelerated):
    with Lab() as lab:
        pages = lab.near.popen([sys.executable, "-c", PAGES, lab.near.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        lab.near.wait_for_listener(8000, pages)
        curl = lab.far.popen(["curl", "-sS", f"http://{lab.near.address}:8000/"], accelerated, DEFAULTS, require=False, stdout=subprocess.PIPE, text=True)
        assert pages.stdout.readline() == "held\n"
        found = footprint(lab.far)
        pages.communicate("\n", timeout=20)
        page, _ = curl.communicate(timeout=20)
        assert page == "small\n" and curl.returncode == 0, page
        return found


def added(what, kernel, ours, memory, descriptors):
    mib, fds = ours["PSS MiB"] - kernel["PSS MiB"], ours["descriptors"] - kernel["descriptors"]
    print(f"{what}: {mib:.2f} MiB and {fds} descriptors more than on the kernel", flush=True)
    assert mib <= memory and fds <= descriptors, (kernel, ours)


def main():
    kernel, ours = listener(False), listener(True)
    added("a listener at rest", kernel[0], ours[0], 4, 28)
    added("a listener that has served", kernel[1], ours[1], 4, 28)
    added("a short client", client(False), client(True), 3, 12)


if __name__ == "__main__":
    main()
