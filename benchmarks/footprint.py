#!/usr/bin/env python3
"""What libaccel adds to a program with one listener (nc), and to a client that ends soon (curl of a small page): memory, descriptors,
threads, processes and the time to start, each beside the same on the kernel, in turns. Settings are the defaults."""
import pathlib
import subprocess
import sys
import time

from measure import Lab, main, median

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "apps"))
from programs import accelerated_sockets, footprint, until  # noqa: E402

DEFAULTS = {"ACCEL_WAIT_FOR_PORTS": "0"}
# Connects until somebody listens; when that was, by the clock that all processes share.
PROBE = """
import socket, sys, time
while True:
    s = socket.socket()
    if s.connect_ex((sys.argv[1], 7000)) == 0: break
print(time.monotonic())
"""
# A page at once, or, at /held, once a line has come by standard input.
PAGES = """
import socket, sys
listener = socket.create_server((sys.argv[1], 8000))
print("listens", flush=True)
while True:
    with listener.accept()[0] as c:
        if b"/held" in c.recv(65536): print("held", flush=True); sys.stdin.readline()
        c.sendall(b"HTTP/1.0 200 OK\\r\\nContent-Length: 6\\r\\n\\r\\nsmall\\n")
"""


def listener(accelerated):
    with Lab() as lab:
        probe = lab.far.popen([sys.executable, "-c", PROBE, lab.near.address], stdout=subprocess.PIPE, text=True)
        time.sleep(0.3)  # no event says that it is under way; later it would find the listener at its first try, and show it so
        begun = time.monotonic()
        server = lab.near.popen(["nc", "-l", "-k", lab.near.address, "7000"], accelerated, DEFAULTS, require=False)
        answered = float(probe.stdout.readline())
        if accelerated:
            until(lambda: accelerated_sockets(server.pid, 7000), "an accelerated listener")
        return {"start ms": (answered - begun) * 1e3, **footprint(lab.near)}


def client(accelerated):
    with Lab() as lab:
        pages = lab.near.popen([sys.executable, "-c", PAGES, lab.near.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        pages.stdout.readline()
        url = f"http://{lab.near.address}:8000/"
        begun = time.monotonic()
        lab.far.run(["curl", "-sS", url], accelerated, DEFAULTS, require=False)
        seconds = time.monotonic() - begun
        held = lab.far.popen(["curl", "-sS", url + "held"], accelerated, DEFAULTS, require=False, stdout=subprocess.DEVNULL)
        pages.stdout.readline()
        found = footprint(lab.far)
        pages.stdin.write("\n")
        pages.stdin.flush()
        held.wait(20)
        return {"start ms": seconds * 1e3, **found}


def measure(rounds=5):
    rows = []
    for name, once in (("nc -l -k", listener), ("curl, whole run", client)):
        found = {False: [], True: []}
        for _ in range(rounds):
            for accelerated in (False, True):
                found[accelerated].append(once(accelerated))
        kernel, ours = median(found[False]), median(found[True])
        rows += [{"program": name, "path": path, **figures} for path, figures in (("kernel", kernel), ("libaccel", ours))]
        rows.append({"program": name, "path": "added", **{k: ours[k] - kernel[k] for k in ours}})
    return rows


if __name__ == "__main__":
    main("a listener and a short client", measure)
