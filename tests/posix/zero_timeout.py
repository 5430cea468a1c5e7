#!/usr/bin/env python3
"""A program that looks without waiting sees all that has come: zero_timeout.py kernel|near

Both ends of a connection are its own, so it knows that what it sent has come; one epoll_wait() tells of both then, as on the kernel."""
import os
import pathlib
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "lab"))
from lab import Loop  # noqa: E402

PROGRAM = """
import select, socket, sys
listener = socket.create_server((sys.argv[1], 0))
near = socket.create_connection(listener.getsockname())
far = listener.accept()[0]
for end in near, far:
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
both = {near.fileno(), far.fileno()}
complete = 0
for _ in range(50):
    with select.epoll() as looks:
        for fd in both:
            looks.register(fd, select.EPOLLIN | select.EPOLLET)
        near.sendall(b"a")
        far.sendall(b"b")
        complete += {fd for fd, _ in looks.poll(0)} == both
    assert near.recv(2) == b"b" and far.recv(2) == b"a"
print(complete)
"""


def main(accelerated):
    with Loop() as lab:
        complete = int(lab.near.run([sys.executable, "-c", PROGRAM, lab.near.address], accelerated))
        print(f"{complete} of 50 looks told of both; {lab.near.kernel_bytes()} bytes by the kernel")
        assert complete > 40, "a busy kernel may bring a frame or two late, not these"
        assert not accelerated or lab.near.kernel_bytes() < lab.near.wire_bytes() / 2


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1] == "near")
