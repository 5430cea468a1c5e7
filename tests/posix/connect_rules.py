#!/usr/bin/env python3
"""Rules of the kernel's for connect() and bind() hold for accelerated programs: connect_rules.py kernel|near

A thread that restricts itself by Landlock is refused what it does not allow, and gets what it allows; a thread without rules is
accelerated. The same for a program that begins under rules, and under a filter of system calls that refuses connect()."""
import errno
import json
import os
import pathlib
import subprocess
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "apps"))
from programs import Lab, echo_server, statistics  # noqa: E402
from lab import library  # noqa: E402

PORT, OTHER_PORT = 7000, 7001
RESTRICT = """
import ctypes, os, socket, struct, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
BIND, CONNECT = 1, 2
def call(*arguments):
    result = libc.syscall(*arguments)
    if result < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def restrict(access, allowed=()):
    # landlock_create_ruleset, landlock_add_rule(LANDLOCK_RULE_NET_PORT), landlock_restrict_self
    rules = call(444, struct.pack("QQ", 0, access), 16, 0)
    for port in allowed: call(445, rules, 2, struct.pack("QQ", access, port), 0)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    call(446, rules, 0)
    os.close(rules)
def refuse_connect():
    def instruction(code, jt, jf, k): return struct.pack("HBBI", code, jt, jf, k)
    program = [instruction(0x20, 0, 0, 0), instruction(0x15, 0, 1, 42), instruction(0x06, 0, 0, 0x50000 | 1), instruction(0x06, 0, 0, 0x7fff0000)]
    code = ctypes.create_string_buffer(b"".join(program))
    class Program(ctypes.Structure): _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
    filter = Program(len(program), ctypes.addressof(code))
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(filter), 0, 0) == 0
"""
PROGRAM = RESTRICT + f"""
import json
results, sockets = {{}}, []
def connect(name, port):
    s = socket.socket()
    sockets.append(s)
    s.settimeout(20)
    results[name] = s.connect_ex((sys.argv[1], port))
    if results[name] == 0:
        s.sendall(name.encode())
        assert s.recv(100) == name.encode()
def run(*calls):
    def all_of_them():
        for f, *arguments in calls: f(*arguments)
    thread = threading.Thread(target=all_of_them)
    thread.start()
    thread.join()
if sys.argv[2] == "inherited":
    run((connect, "inherited", {PORT}))
else:
    run((connect, "before", {PORT}), (restrict, CONNECT), (connect, "refused", {PORT}))
    run((restrict, CONNECT, [{OTHER_PORT}]), (connect, "refused too", {PORT}), (connect, "allowed", {OTHER_PORT}))
    run((restrict, BIND), (connect, "bind", {PORT}))
    run((connect, "after", {PORT}))
print(json.dumps(results), flush=True)
sys.stdin.read()
"""
# Under rules from the start: restricts itself, then executes the rest of its arguments.
UNDER = RESTRICT + """
if sys.argv[1] == "landlock": restrict(CONNECT)
else: refuse_connect()
if sys.argv[2]: os.environ["LD_PRELOAD"] = sys.argv[2]
os.execv(sys.argv[3], sys.argv[3:])
"""
ALLOWED = {"before": 0, "refused": errno.EACCES, "refused too": errno.EACCES, "allowed": 0, "bind": 0, "after": 0}


def results(program):
    return json.loads(program.stdout.readline())


def main(accelerated):
    with Lab(proved=False) as lab:
        near, far = lab.hosts
        echo_server(far, PORT, OTHER_PORT)
        environment = {"ACCEL_WAIT_FOR_PORTS": "1"}  # so that the path is a matter of the rules alone
        options = {"env": environment, "require": False, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        own = near.popen([sys.executable, "-c", PROGRAM, far.address, "own"], accel=accelerated, **options)
        assert (found := results(own)) == ALLOWED, found
        if accelerated:
            told = statistics(own.pid)
            assert told["counters"]["tcp_active_opens"] == 2, "before and after"
            reasons = sorted(s["reason"] for s in told["sockets"] if s["protocol"] == "tcp")
            assert reasons == ["accelerated"] * 2 + ["connect_rules"] * 2, reasons  # those that were refused have no row
        own.communicate()
        for kind, refusal in (("landlock", errno.EACCES), ("filter", errno.EPERM)):
            preload = library() if accelerated else ""
            program = near.popen([sys.executable, "-c", UNDER, kind, preload, sys.executable, "-c", PROGRAM, far.address, "inherited"], **options)
            assert (found := results(program)) == {"inherited": refusal}, (kind, found)
            program.communicate()


def has_rules():
    """Landlock's rules for ports, Linux 6.7."""
    return subprocess.run([sys.executable, "-c", "import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall(444, None, 0, 1) < 4)"]).returncode == 0


if __name__ == "__main__":
    if os.geteuid() != 0 or not has_rules():
        print("needs root, and a kernel with Landlock's rules for ports")
        sys.exit(77)
    main(sys.argv[1] == "near")
