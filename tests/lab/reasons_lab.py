#!/usr/bin/env python3
"""Each reason for a path is what it says: reasons_lab.py

A row for each REASON of src/engine/reasons.def: a set-up, and what a program then does with a socket. `accel stat` must give the reason,
and the message of ACCEL_REQUIRE its text, or nothing where the kernel's path is what was asked for. Reasons that no machine can be brought
to in a test have the name of the test that shows them, or why there is none."""
import json
import os
import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True
here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parent))
from lab import ROOT, Lab, build_dir, library  # noqa: E402

REASONS = dict(re.findall(r'^REASON\((\w+), "((?:[^"\\]|\\.)*)"\)', (ROOT / "src/engine/reasons.def").read_text(), re.M))

# Makes the sockets that `body` says, tells the number of `s`, waits until it is looked at.
PROGRAM = """
import ctypes, os, signal, socket, struct, sys
near, far = sys.argv[1:3]
A, S, D = socket.AF_INET, socket.SOCK_STREAM, socket.SOCK_DGRAM
def listen(address=near, **options):
    s = socket.socket(A, S)
    for level, name, value in options.get("set", ()): s.setsockopt(level, name, value)
    s.bind((address, 0)); s.listen()
    return s
{body}
print("ready", s.fileno(), flush=True)
sys.stdin.read()
"""
CONNECT = "s = socket.create_connection((far, 7000), 20)"
LISTEN = "s = listen()"
JOIN = ("s = socket.socket(A, D)\ns.bind(('', 0))\n"
        "s.setsockopt(0, 35, socket.inet_aton('239.1.1.1') + socket.inet_aton(near))")
# Gives itself a filter of system calls and executes the rest of its arguments: socket(AF_XDP) fails with EAFNOSUPPORT, as by systemd's
# RestrictAddressFamilies=, or bpf(2) ends the process.
FILTERED = """
import ctypes, os, struct, sys
def instruction(code, jt, jf, k): return struct.pack("HBBI", code, jt, jf, k)
load_number, load_first = instruction(0x20, 0, 0, 0), instruction(0x20, 0, 0, 16)
allow = instruction(0x06, 0, 0, 0x7fff0000)
if sys.argv[1] == "no_xdp":
    program = [load_number, instruction(0x15, 0, 3, {socket}), load_first, instruction(0x15, 0, 1, 44),
               instruction(0x06, 0, 0, 0x50000 | 97), allow]
else:
    program = [load_number, instruction(0x15, 0, 1, {bpf}), instruction(0x06, 0, 0, 0x80000000), allow]
code = ctypes.create_string_buffer(b"".join(program))
class Program(ctypes.Structure): _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
libc = ctypes.CDLL(None, use_errno=True)
filter = Program(len(program), ctypes.addressof(code))
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(filter), 0, 0): sys.exit(os.strerror(ctypes.get_errno()))
os.environ["LD_PRELOAD"] = sys.argv[2]
os.execv(sys.argv[3], sys.argv[3:])
""".format(socket=41, bpf=321) if os.uname().machine == "x86_64" else None
PEER = """
import socket
l = socket.create_server(("0.0.0.0", 7000))
held = []
print("ready", flush=True)
while True: held.append(l.accept()[0])
"""


class Row:
    """body: what makes `s`. asked: the kernel's path is what was asked for, so ACCEL_REQUIRE has nothing to say. prepare: called with
    the lab, may return what to do afterwards. command: words before the program. required: whether to look at
    ACCEL_REQUIRE, which says nothing of what becomes the kernel's later on. about: what the reason names."""

    def __init__(self, body, env=None, config=None, asked=False, prepare=None, command=(), path="kernel", required=True, queues=1,
                 filtered=None, shown=True, about=None):
        self.body, self.env, self.config, self.asked, self.filtered = body, env or {}, config, asked, filtered
        self.about = about
        self.prepare, self.command, self.path, self.required, self.queues, self.shown = prepare, command, path, required, queues, shown


def hold_queues(lab):
    holder = lab.near.popen([sys.executable, "-c", PROGRAM.format(body=LISTEN), lab.near.address, lab.far.address], accel=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline().startswith("ready")
    return lambda: lab.near.stop(holder)


def another_device(*words):
    """An address on a device of another kind, to which the route to 10.99.0.2 leads."""
    def prepare(lab):
        lab.near.ip(*words)
        lab.near.ip("link", "set", "other0", "up")
        lab.near.ip("addr", "add", "10.99.0.1/24", "dev", "other0")
        return lambda: lab.near.ip("link", "del", "other0")
    return prepare


def unusual_route(*words):
    def prepare(lab):
        lab.near.ip("route", "add", *words)
        return lambda: lab.near.ip("route", "del", *words)
    return prepare


VETH = ("link", "add", "other0", "type", "veth", "peer", "name", "other1")
TUN = ("tuntap", "add", "dev", "other0", "mode", "tun")
UDP_TO = "s = socket.socket(A, D)\ns.connect(('{to}', 9))"
TCP_TO = ("s = socket.socket(A, S)\ns.setblocking(False)\nerror = s.connect_ex(('{to}', 9))\n"
          "assert error in (0, 115), os.strerror(error)")
UNPRIVILEGED = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all")
RULE = '[[application]]\nname = "*"\n[[application.rule]]\nrole = "tcp_client"\npath = "kernel"\n'

ROWS = {
    "accelerated": Row(CONNECT, path="xdp", asked=True),
    "not_decided": Row("t = listen()\ns = socket.socket(A, S)", asked=True),
    "rule": Row("t = listen()\n" + CONNECT, config=RULE, asked=True),
    "path_setting": Row(CONNECT, env={"ACCEL_PATH": "kernel"}, asked=True),
    "misread": Row(CONNECT, env={"ACCEL_PATH": "sideways"}),
    "device_setting": Row(CONNECT, env={"ACCEL_DEVICES": "other0"}, asked=True, prepare=another_device(*VETH)),
    "no_such_device": Row(CONNECT, env={"ACCEL_DEVICES": "absent*"}),
    "loopback": Row("t = listen()\nl = socket.create_server(('127.0.0.1', 0))\ns = socket.create_connection(l.getsockname())", asked=True),
    "local_address": Row("t = listen()\ns = socket.create_connection(t.getsockname())", asked=True),
    "no_port": Row("t = listen()\n" + TCP_TO.format(to="10.99.0.2"), prepare=another_device(*TUN)),
    "no_queue": Row(CONNECT, prepare=hold_queues),
    "no_privilege": Row(CONNECT, command=UNPRIVILEGED),
    "route_unusual": Row("t = listen()\n" + TCP_TO.format(to="10.98.0.2"), prepare=unusual_route("10.98.0.0/24", "nexthop", "via", "10.77.0.2", "nexthop", "via", "10.77.0.3")),
    "option": Row("t = listen()\ns = socket.socket(A, S)\ns.setsockopt(0, 11, 1)\ns.settimeout(20)\ns.connect((far, 7000))", about="IP_RECVERR"),
    "multicast": Row(JOIN, path="xdp", env={"ACCEL_MULTICAST": "false"}),
    "broadcast": Row("t = listen()\ns = socket.socket(A, D)\ns.setsockopt(1, 6, 1)\ns.connect(('10.77.0.255', 9))"),
    "queues_elsewhere": Row(CONNECT, env={"ACCEL_QUEUES": "1"}, queues=2),
    "accepted_by_kernel": Row("l = listen('0.0.0.0')\nc = socket.create_connection(('127.0.0.1', l.getsockname()[1]))\n"
                              "s = l.accept()[0]", required=False),
    "other_network": Row("t = listen()\nctypes.CDLL(None).unshare(0x40000000)\ns = listen('0.0.0.0')", asked=True),
    "io_uring": Row(CONNECT + "\nlibc = ctypes.CDLL(None)\nring = libc.syscall(425, 4, ctypes.create_string_buffer(120))\n"
                    "assert libc.syscall(427, ring, 2, (ctypes.c_int * 1)(s.fileno()), 1) == 0", required=False),
    "no_xdp": Row(CONNECT, filtered="no_xdp"),
    "filter": Row(CONNECT, filtered="filter", shown=False),
}
# Shown by another test, or not to be had on a machine of a test's.
ELSEWHERE = {
    "not_internet": "tests/preload/routes_test.cc: such sockets never enter the table",
    "no_route": "tests/engine/paths_test.cc: connect() says ENETUNREACH, and the socket stays undecided",
    "port_failed": "tests/engine/main.cc",
    "port_opening": "tests/posix/first_calls.py",
    "redirected": "tests/posix/redirected.py",
    "connect_rules": "tests/posix/connect_rules.py",
    "root_changed": "tests/posix/root_change.py",
    "port_lost": "tests/engine/lost_device.py",
    "firewall": "tests/posix",
    "foreign_wait": "tests/posix/foreign_waits_test.cc",
    "misdirected": "tests/posix/misdirected.py",
    "rerouted": "tests/posix/new_route.py",
    "address_taken": "mlx5: model/",
    "steering_failed": "tests/engine/paths_test.cc",
    "handed_back": "tests/posix/late_ack.py",
    "inherited": "tests/posix/prefork_test.cc",
    "single_thread": "tests/posix/namespaces_test.cc: the process publishes nothing from then on",
    "secure": "tests/preload/harmless_test.py",
    "unanswered": "tests/posix/asymmetric.py",
    "resources": "no test: memory or descriptors at an end",
    "handler": "tests/posix/handlers_test.cc",
    "libraries": "no test: libnl is not installed",
    "disabled": "tests/preload/harmless_test.py: no socket is looked at",
    "duplicate_tuple": "tests/engine/paths_test.cc",
    "same_host": "tests/posix/same_host.py", "same_host_unmet": "tests/posix/same_host.py", "same_host_refused": "tests/posix/same_host.py",
    "same_host_pending": "no test: it lasts until the other end has come", "same_host_left": "tests/posix/same_host.py",
    "iwarp": "tests/posix/siw.py", "iwarp_undecided": "tests/posix/siw.py", "iwarp_plain": "tests/posix/siw.py",
}


def show(lab, name, row):
    """What stat and REQUIRE say; a list of faults."""
    faults, undo = [], None
    try:
        undo = row.prepare(lab) if row.prepare else None
        env = dict(row.env)
        if row.config:
            path = lab.directory / "rules.toml"
            path.write_text(row.config)
            env["ACCEL_CONFIG"] = str(path)
        words = [*row.command, sys.executable, "-c", PROGRAM.format(body=row.body), lab.near.address, lab.far.address]
        if row.filtered:
            words = ["env", "-u", "LD_PRELOAD", sys.executable, "-c", FILTERED, row.filtered, library(), *words]
        for require in (False, True) if row.required else (False,):
            child = lab.near.popen(words, accel=True, require=require, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
            answer = child.stdout.readline().split()
            if not answer:
                said = child.stderr.read()
                if not require:
                    faults.append(f"{name}: the program ended: {said[-400:]}")
                elif row.asked or REASONS[name] + (f": {row.about}" if row.about else "") not in said:
                    faults.append(f"{name}: ACCEL_REQUIRE said {said[-400:]}")
                continue
            stat = subprocess.run([build_dir() / "bin" / "accel", "stat", str(child.pid), "--json"], capture_output=True, text=True)
            found = json.loads(stat.stdout)["processes"]
            sockets = {s["fd"]: s for p in found for s in p["sockets"]}
            mine = sockets.get(int(answer[1]))
            if require and not row.asked:
                faults.append(f"{name}: ACCEL_REQUIRE let it pass")
            if row.shown and (not mine or (mine["path"], mine["reason"]) != (row.path, name)):
                faults.append(f"{name}: accel stat shows {mine and (mine['path'], mine['reason'])}")
            if row.about and mine and mine.get(name) != row.about:
                faults.append(f"{name}: accel stat says that it is about {mine.get(name)}")
            child.stdin.close()
            child.wait(20)
    finally:
        if undo:
            undo()
    return faults


def main():
    faults = [f"{name}: neither shown here nor said where" for name in REASONS if name not in ROWS and name not in ELSEWHERE]
    only = sys.argv[1:]
    for queues in sorted({row.queues for row in ROWS.values()}):
        with Lab(queues=queues) as lab:
            peer = lab.far.popen([sys.executable, "-c", PEER], stdout=subprocess.PIPE, text=True)
            assert peer.stdout.readline() == "ready\n"
            for name, row in ROWS.items():
                if row.queues == queues and (not only or name in only):
                    faults += show(lab, name, row)
    print("\n".join(faults) if faults else f"{len(ROWS)} reasons are so")
    sys.exit(bool(faults))


main()
