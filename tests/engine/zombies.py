#!/usr/bin/env python3
"""Programs in a pid namespace whose process 1 is no init: zombies.py server|init

Its process 1 runs a few accelerated programs, one after the other. server: it waits for these alone; the first program's helper stays a zombie, and
once it has been one for a while no other is started. init: it waits for all, and each program has one."""
import os
import pathlib
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "lab"))
from lab import Lab, build_dir  # noqa: E402

PROGRAMS = 4
PROCESS_1 = """
import json, os, subprocess, sys, time
kind, address, accel, library = sys.argv[1:5]
PROGRAM = '''
import socket, subprocess, sys
listener = socket.create_server((sys.argv[1], 7000))
listener.settimeout(0.01)
try: listener.accept()
except TimeoutError: pass
print("listens", flush=True)
sys.stdin.readline()
'''
def zombies():
    found = []
    for p in filter(str.isdigit, os.listdir("/proc")):
        try: stat = open(f"/proc/{p}/stat").read()
        except OSError: continue
        if "(guard-" in stat and ") Z" in stat: found.append(p)
    return found
def guards():
    found = 0
    for p in filter(str.isdigit, os.listdir("/proc")):
        try: found += open(f"/proc/{p}/comm").read().startswith(("accel-guard", "guard-"))
        except OSError: pass
    return found
with_helper = ended = 0
for _ in range(int(sys.argv[5])):
    environment = dict(os.environ, LD_PRELOAD=library, ACCEL_CONFIG="/dev/null", ACCEL_REQUIRE="1")
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, address], env=environment, stdin=-1, stdout=-1, text=True)
    assert child.stdout.readline() == "listens\\n"
    told = json.loads(subprocess.run([accel, "stat", str(child.pid), "--json"], stdout=-1).stdout)["processes"][0]
    assert any(s["path"] == "xdp" for s in told["sockets"]), told["sockets"]
    with_helper += told["helper"] != 0
    assert (told["helper"] != 0) != bool(told["no_helper"]), told["no_helper"]
    before = guards()
    child.stdin.close()
    child.wait()
    while guards() - len(zombies()) > 0: time.sleep(0.01)
    ended = ended or time.clock_gettime(time.CLOCK_BOOTTIME)
    while kind == "init" and guards() > 0: os.waitpid(-1, 0)
    while kind == "server" and time.clock_gettime(time.CLOCK_BOOTTIME) < ended + 12: time.sleep(0.1)  # so long a zombie counts for nothing
print(with_helper, len(zombies()))
"""


def main(kind):
    with Lab() as lab:
        words = lab.near.run(["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", PROCESS_1, kind, lab.near.address,
                              build_dir() / "bin" / "accel", build_dir() / "lib" / "libaccel.so", str(PROGRAMS)])
        print(words)
        helpers, zombies = map(int, words.splitlines()[-1].split())
        assert (helpers, zombies) == {"server": (1, 1), "init": (PROGRAMS, 0)}[kind]


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1])
