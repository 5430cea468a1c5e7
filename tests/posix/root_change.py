#!/usr/bin/env python3
"""Paths that change their meaning before libaccel loads its modules: root_change.py relative|bound|early|hostile|unshare

In each new folder or root there are libraries of the names that libaccel looks for; none of them may run. Where the process had what it needs before,
it is accelerated; else its sockets are the kernel's, and the reason says so."""
import os
import pathlib
import shutil
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "lab"))
sys.path.insert(0, str(here.parents[1] / "apps"))
from lab import Lab, build_dir, library  # noqa: E402
from programs import statistics  # noqa: E402

HOSTILE = sys.argv[2]  # the library that leaves a mark
NAMES = ["libaccel-xdp.so", "libaccel-mlx5.so", "libnl-3.so.200", "libnl-route-3.so.200", "libev.so.4", "libisal.so.2", "libbpf.so.1", "libxdp.so.1",
         "libibverbs.so.1", "libm.so.6"]
SERVER = """
import ctypes, encodings.idna, os, socket, sys  # all that is loaded by path is loaded now
how, address, folder = sys.argv[1:4]
libc = ctypes.CDLL(None, use_errno=True)
def change():
    if how == "relative": os.chdir(folder)
    elif how == "unshare":
        if libc.unshare(0x20000) != 0: raise OSError(ctypes.get_errno())  # CLONE_NEWNS
    else:
        os.chroot(folder)
        os.chdir("/")
if how in ("early", "relative"): change()
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((address, 7000))
if how in ("bound", "unshare"): change()
if how == "early":
    os.setgid(65534)
    os.setuid(65534)
listener.listen()
while True:
    c = listener.accept()[0]
    while data := c.recv(100): c.sendall(data)
    c.close()
"""
HOSTILE_SERVER = """
import _socket, os, sys  # without an epoll set: nothing of libaccel is asked for before
address, folder = sys.argv[2:4]
os.chroot(folder)
os.chdir("/")
listener = _socket.socket()
listener.bind((address, 7000))
listener.listen()
while True:
    fd = listener._accept()[0]
    while data := os.read(fd, 100): os.write(fd, data)
    os.close(fd)
"""
CLIENT = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000), 30) as c:
    for i in range(50):
        c.sendall(b"x")
        assert c.recv(1) == b"x"
"""


def lay_traps(folder):
    """Of every name, in every place where it would be looked for."""
    own = pathlib.Path(library()).resolve().parent
    for place in (".", "lib", str(own).lstrip("/"), "usr/lib", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "lib64"):
        (folder / place).mkdir(parents=True, exist_ok=True)
        for name in NAMES:
            shutil.copy(HOSTILE, folder / place / name)


def main(how):
    with Lab() as lab:
        near, far = lab.hosts
        folder, mark = lab.directory / "root", lab.directory / "mark"
        folder.mkdir()
        if how != "unshare":
            lay_traps(folder)
        env = {"HOSTILE_MARK": str(mark) if how == "relative" else "/hostile-ran"}
        if how == "relative":
            env["LD_PRELOAD"] = "lib/libaccel.so"
        if how == "early":
            env["ACCEL_EARLY_PORTS"] = "1"
        lab.directory.chmod(0o755)
        program = HOSTILE_SERVER if how == "hostile" else SERVER
        server = near.popen([sys.executable, "-c", program, how, near.address, folder], accel=True, env=env, require=how != "hostile", cwd=build_dir())
        near.wait_for_listener(7000, server)
        before = near.kernel_packets()["tcp"]
        far.run([sys.executable, "-c", CLIENT, near.address])
        carried = near.kernel_packets()["tcp"] - before
        told = statistics(server.pid)
        ran = [str(p) for p in (mark, folder / "hostile-ran") if p.exists()]
        assert not ran, f"another's library ran: {ran}"
        if how == "hostile":
            reasons = {s["reason"] for s in told["sockets"]}
            print(f"the kernel carried {carried} segments: {reasons}")
            assert carried > 50 and "root_changed" in reasons, told
        else:
            print(f"the kernel carried {carried} segments")
            assert carried < 50, told
        near.stop(server, timeout=30)


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1])
