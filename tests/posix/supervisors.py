#!/usr/bin/env python3
"""Programs that start others for a listener: supervisors.py kernel|near|far|both|handoff [FILTER]

A table of supervisors, each of which starts workers that accept on its listener or receive on its UDP socket. It has waited on the socket
itself or not; starts a worker by fork(), by fork() and exec, vfork(), posix_spawn() or in its own place; leaves libaccel in the worker's
environment or not; has it give up root (drops), and the socket in a SO_REUSEPORT group, or not; and goes on waiting on the socket meanwhile,
or not. The first caller comes before the worker is there where the supervisor waits for him, a second one is the same worker's, and a third one the next worker's. Nobody may be kept waiting or be reset.
handoff: near, where the kernel cannot take over what has come (as before Linux 6.9): programs with libaccel get it all the same."""
import itertools
import os
import pathlib
import subprocess
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "lab"))
from lab import CommandFailed, Lab  # noqa: E402

# What both programs do for one caller: how a worker waits differs from turn to turn.
SERVE = """
def serve(s, turn):
    if turn % 2: select.select([s], [], [])
    if s.type & 15 == socket.SOCK_DGRAM:
        word, peer = s.recvfrom(100)
        return s.sendto(word.upper(), peer)
    with s.accept()[0] as c: c.sendall(c.recv(100).upper())
"""
DROP = """
def drop():
    os.setgid(65534)
    os.setuid(65534)
"""
WORKER = "import os, select, socket, sys" + SERVE + DROP + """
if "DROPS" in os.environ: drop()
s = socket.socket(fileno=int(sys.argv[1]))
s.settimeout(None)
for turn in range(2): serve(s, turn)
"""
# As systemd starts one: the socket is descriptor 3, and a set is made before anything else.
ACTIVATED = "import os, select, socket, sys" + SERVE + """
assert os.environ["LISTEN_FDS"] == "1"
s = socket.socket(fileno=3)
s.setblocking(False)
waits = select.epoll()
waits.register(3, select.EPOLLIN)
for turn in range(2):
    waits.poll()
    serve(s, 0)
"""
SUPERVISOR = "import os, select, socket, subprocess, sys" + SERVE + DROP + """
port, kind, waits, how, environment, meanwhile = sys.argv[1:7]
how, *special = how.split("+")
s = socket.socket(type=getattr(socket, kind))
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if "group" in special: s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
s.bind(("0.0.0.0", int(port)))
if s.type & 15 == socket.SOCK_STREAM: s.listen()
s.set_inheritable(True)
variables = dict(os.environ) if environment == "kept" else {}
activated = how == "activated"
if activated: variables["LISTEN_FDS"] = "1"
if "drops" in special: variables["DROPS"] = "1"
words = [sys.executable, "-I", "-S", "-c", sys.argv[8 if activated else 7], str(s.fileno())]

def started():
    if how == "spawn": return os.posix_spawn(words[0], words, variables)
    if how == "vfork": return subprocess.Popen(words, env=variables, pass_fds=[s.fileno()]).pid
    child = os.fork()
    if child: return child
    if how == "fork":
        if "drops" in special: drop()
        for turn in range(2): serve(s, turn)
        os._exit(0)
    if activated:
        os.dup2(s.fileno(), 3)
        variables["LISTEN_PID"] = str(os.getpid())
    os.execve(words[0], words, variables)

print("listens", flush=True)
for round in range(2):
    if waits == "waits":
        select.select([s], [], [])
    if how == "in_place": os.execve(words[0], words, variables)
    worker = started()
    while meanwhile == "meanwhile" and os.waitid(os.P_PID, worker, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        select.select([s], [], [], 0.02)
    os.waitpid(worker, 0)
"""
CALLER = """
import socket, sys
for line in sys.stdin:
    kind, host, port, word = line.split()
    with socket.socket(type=getattr(socket, kind)) as s:
        s.settimeout(20)
        try:
            s.connect((host, int(port)))
            s.sendall(word.encode())
            print(s.recv(100).decode(), flush=True)
        except OSError as e:
            print(type(e).__name__, flush=True)
"""


def table():
    kinds, waits, environment, meanwhile = ("SOCK_STREAM", "SOCK_DGRAM"), ("waits", "starts"), ("kept", "cleaned"), ("meanwhile", "idle")
    ways = ("fork", "exec", "vfork", "spawn", "in_place", "activated", "fork+drops", "exec+drops", "fork+drops+group", "exec+drops+group", "exec+group")
    for kind, wait, way, left, then in itertools.product(kinds, waits, ways, environment, meanwhile):
        if way.startswith("fork") and left == "cleaned" or way == "in_place" and then == "meanwhile":
            continue
        if "+" in way and (wait, then) != ("waits", "idle"):
            continue
        yield kind, wait, way, left, then


def run(lab, caller, port, row, accelerated):
    kind, waits, way, _, _ = row
    supervisor = lab.near.popen([sys.executable, "-I", "-S", "-c", SUPERVISOR, str(port), *row, WORKER, ACTIVATED], accelerated, require=False,
                                stdout=subprocess.PIPE, text=True)
    answers = []
    if supervisor.stdout.readline() == "listens\n":
        for turn in range(2 if way == "in_place" else 4):
            caller.stdin.write(f"{kind} {lab.near.address} {port} word{turn}\n")
            caller.stdin.flush()
            answers.append(caller.stdout.readline().strip())
            if answers[-1] != f"WORD{turn}":
                break
    else:
        answers.append("it does not listen")
    right = answers == [f"WORD{turn}" for turn in range(2 if way == "in_place" else 4)]
    if right:
        try:
            right = supervisor.wait(20) == 0
        except subprocess.TimeoutExpired:
            right = False
            answers.append("and it did not end")
    supervisor.kill()
    supervisor.wait()
    for pid in lab.near.enter("ss", "-Hlnp", f"sport = :{port}").split("pid=")[1:]:
        os.kill(int(pid.split(",")[0]), 9)
    if not right:
        print("WRONG:", *row, answers, flush=True)
    return right


def main(mode, only):
    near, far = mode in ("near", "both", "handoff"), mode in ("far", "both")
    with Lab(queues=2) as lab:
        caller = lab.far.popen([sys.executable, "-c", CALLER], far, require=False, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        rows = [row for row in table() if only in " ".join(row)]
        if mode == "handoff":
            lab.near.enter("sysctl", "-qw", "net.ipv4.tcp_syncookies=0")
            rows = [row for row in rows if row[0] == "SOCK_STREAM" and row[2] != "in_place" and row[3] == "kept"]
        before = lab.near.wire_packets(), lab.near.kernel_packets()
        right = [run(lab, caller, 7000 + i, row, near) for i, row in enumerate(rows)]
        wire = lab.near.wire_packets() - before[0]
        kernel = sum(v - before[1][k] for k, v in lab.near.kernel_packets().items())
        print(f"{sum(right)} of {len(rows)} supervisors; {wire} frames, {kernel} of them by the kernel's stack")
        if not all(right):
            raise CommandFailed("callers were not served")
        # Workers that the kernel's path serves are about half of the table, and of the others the first connection.
        assert not near or only or kernel < 0.8 * wire, "nothing was accelerated"


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1], " ".join(sys.argv[2:]))
