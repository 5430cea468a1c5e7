#!/usr/bin/env python3
"""What a port costs, and whom, in a process that does not wait for its port: first_calls.py kernel|near

A listener and a UDP socket serve from their first call on, by the kernel until their device's port is open, and lose nothing in between; a
connect() waits neither for a port nor for the engine, and a program that lives has its later connections accelerated. It may end, fork, filter its
system calls or name descriptors at any moment meanwhile. Descriptor numbers that the program has closed are its next ones, whatever is opened. A process without a queue keeps no frames, and one with a queue few until
it needs them."""
import os
import pathlib
import re
import subprocess
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "lab"))
sys.path.insert(0, str(here.parents[1] / "apps"))
from lab import Lab, until  # noqa: E402
from programs import accelerated_sockets, statistics  # noqa: E402

SERVER = """
import socket, sys, threading
listener = socket.create_server(("0.0.0.0", int(sys.argv[1])), backlog=1000)
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind((sys.argv[2], int(sys.argv[1])))
def echo():
    while True:
        data, peer = datagrams.recvfrom(100)
        datagrams.sendto(data, peer)
threading.Thread(target=echo, daemon=True).start()
while True:
    with listener.accept()[0] as c: c.sendall(c.recv(100))
"""
CLIENT = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 10) as c:
    c.sendall(b"hello")
    assert c.recv(100, socket.MSG_WAITALL) == b"hello"
"""
MANY = """
import socket, sys
at = (sys.argv[1], int(sys.argv[2]))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.settimeout(10)
for i in range(int(sys.argv[3])):
    with socket.create_connection(at, 10) as c:
        c.sendall(b"hello")
        assert c.recv(100, socket.MSG_WAITALL) == b"hello"
    udp.sendto(b"%d" % i, at)
    assert udp.recv(100) == b"%d" % i
"""
# Connects, and does something else some milliseconds later.
NEXT = """
import ctypes, os, socket, struct, sys, time
at, what, moment = (sys.argv[1], int(sys.argv[2])), sys.argv[3], int(sys.argv[4])
def talk():
    with socket.create_connection(at, 10) as c:
        c.sendall(b"hello")
        assert c.recv(100, socket.MSG_WAITALL) == b"hello"
def name_numbers():
    for end in [time.monotonic() + 0.2]:
        while time.monotonic() < end:
            os.close(0)
            given = os.open("/dev/null", os.O_RDONLY)
            assert given == 0, given
talk()
time.sleep(moment / 1000)
if what == "fork":
    child = os.fork()
    talk()
    if child == 0: os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
elif what == "filter":  # that allows everything
    libc = ctypes.CDLL(None, use_errno=True)
    program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7fff0000))
    pointer = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 1, ctypes.addressof(program)))
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(pointer), 0, 0) == 0, ctypes.get_errno()
    assert len(os.listdir("/proc/self/task")) == 1
    talk()
elif what == "numbers":
    name_numbers()
    talk()
"""
# Opens connections until told to end; the first is there before a port can be.
LIVES = """
import socket, sys
at = (sys.argv[1], int(sys.argv[2]))
held = socket.create_connection(at, 10)
print("first", flush=True)
for line in sys.stdin:
    held = socket.create_connection(at, 10)
    print("next", flush=True)
"""
NO_WAIT = {"ACCEL_WAIT_FOR_PORTS": "0"}


def frames_held(child):
    """KiB of the shared mapping that frames live in."""
    return int(re.search(r"RssShmem:\s+(\d+)", pathlib.Path(f"/proc/{child.pid}/status").read_text()).group(1))


def start(near, accelerated, port):
    server = near.popen([sys.executable, "-c", SERVER, port, near.address], accel=accelerated, env=NO_WAIT, require=False)
    near.wait_for_listener(port, server)
    near.wait_for_listener(port, server, kind="u")
    return server


def serves_meanwhile(near, far, accelerated):
    server = start(near, accelerated, 7000)
    far.run([sys.executable, "-c", MANY, near.address, 7000, 300])  # from before the port is there to long after
    if accelerated:
        until(lambda: accelerated_sockets(server.pid, 7000) == 2, "the listener and the UDP socket to be accelerated")
        before = statistics(server.pid)["counters"]
        far.run([sys.executable, "-c", MANY, near.address, 7000, 20])
        after = statistics(server.pid)["counters"]
        assert after["tcp_passive_opens"] - before.get("tcp_passive_opens", 0) == 20, (before, after)
        assert after.get("udp_sent_by_kernel", 0) == before.get("udp_sent_by_kernel", 0), (before, after)
        assert frames_held(server) <= 2560, f"{frames_held(server)} KiB of frames for a server that is hardly used"
    near.stop(server)


def connect_waits_for_no_port(near, far, accelerated):
    server = far.popen([sys.executable, "-c", SERVER, 7001, far.address])
    far.wait_for_listener(7001, server)
    trace = near.lab.directory / "calls"
    near.run(["strace", "-f", "-o", trace, "-e", "trace=bpf,setsockopt,socket,clone3", "-E", "LD_PRELOAD=" + (os.environ["PRELOADED"] if accelerated else ""),
              sys.executable, "-c", CLIENT, far.address, 7001], env=NO_WAIT)
    # By the thread that connects. Another may have begun it: on a busy machine no program's life is short.
    lines = trace.read_text().splitlines()
    calls = [line for line in lines if line.split()[0] == lines[0].split()[0]]
    opening = ("BPF_PROG_LOAD", "BPF_MAP_CREATE", "BPF_LINK_CREATE", "XDP_UMEM_REG", "AF_NETLINK")
    assert not any(call in line for line in calls for call in opening), calls
    far.stop(server)


def engine_comes_at_any_moment(near, far, accelerated):
    """Of what the client does next: while the thread sleeps, opens the engine, has opened it."""
    server = far.popen([sys.executable, "-c", SERVER, 7003, far.address])
    far.wait_for_listener(7003, server)
    for what in ("exit", "fork", "filter", "numbers"):
        for moment in range(0, 60, 5 if what != "numbers" else 20):
            near.run([sys.executable, "-c", NEXT, far.address, 7003, what, moment], accel=accelerated, env=NO_WAIT, require=False)
    far.stop(server)


def living_client_has_one(near, far, accelerated):
    server = far.popen([sys.executable, "-c", LIVING_SERVER, 7002, far.address])
    far.wait_for_listener(7002, server)
    client = near.popen([sys.executable, "-c", LIVES, far.address, 7002], accel=accelerated, env=NO_WAIT, require=False,
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert client.stdout.readline() == "first\n"

    def opened():
        client.stdin.write("\n")
        client.stdin.flush()
        assert client.stdout.readline() == "next\n"
        return not accelerated or statistics(client.pid)["counters"].get("tcp_active_opens", 0) > 0

    until(opened, "an accelerated connection of a client that lives")
    if accelerated:
        assert statistics(client.pid)["ports"], "no port"
    near.stop(client)
    far.stop(server)


def one_queue_for_many(near, far, accelerated):
    servers = [near.popen([sys.executable, "-c", SERVER, 7100 + i, near.address], accel=accelerated, env=NO_WAIT, require=False) for i in range(8)]
    for i, server in enumerate(servers):
        near.wait_for_listener(7100 + i, server)
    settled = {"accelerated", "no_queue"}
    for i, server in enumerate(servers if accelerated else []):
        until(lambda: all(s["reason"] in settled for s in statistics(server.pid)["sockets"]), "the port to be there, or not")
    if accelerated:
        held = [frames_held(server) for server in servers]
        assert sum(h > 1024 for h in held) == 1 and max(held) <= 2560, held
    for i, server in enumerate(servers):
        far.run([sys.executable, "-c", CLIENT, near.address, 7100 + i])
        near.stop(server)


# Daemons close and open standard streams once they listen. This one does so for as long as a port may take.
DAEMON = """
import os, socket, sys, time
source, sink = os.pipe()
listener = socket.create_server((sys.argv[2], int(sys.argv[1])))
end = time.monotonic() + 0.3
while time.monotonic() < end:
    os.close(0)
    given = os.open("/dev/null", os.O_RDONLY)
    assert given == 0, given
    number = os.dup(sink)
    os.close(number)
    os.dup2(sink, number)
    os.write(number, b"x")
    assert os.read(source, 1) == b"x"
    os.close(number)
print("settled", flush=True)
while True:
    with listener.accept()[0] as c: c.sendall(c.recv(100))
"""


def numbers_are_the_programs(near, far, accelerated):
    daemon = near.popen([sys.executable, "-c", DAEMON, 7300, near.address], accel=accelerated, env=NO_WAIT, require=False,
                        stdout=subprocess.PIPE, text=True)
    assert daemon.stdout.readline() == "settled\n", daemon.wait()
    if accelerated:
        until(lambda: accelerated_sockets(daemon.pid, 7300) == 1, "the listener to be accelerated")
    far.run([sys.executable, "-c", CLIENT, near.address, 7300])
    near.stop(daemon)


LIVING_SERVER = """
import socket, sys
listener = socket.create_server((sys.argv[2], int(sys.argv[1])))
held = []
while True: held.append(listener.accept()[0])
"""


def main(accelerated):
    with Lab() as lab:
        os.environ["PRELOADED"] = str(pathlib.Path(os.environ["LAB_BUILD"]) / "lib" / "libaccel.so")
        serves_meanwhile(*lab.hosts, accelerated)
        numbers_are_the_programs(*lab.hosts, accelerated)
        connect_waits_for_no_port(*lab.hosts, accelerated)
        engine_comes_at_any_moment(*lab.hosts, accelerated)
        living_client_has_one(*lab.hosts, accelerated)
        one_queue_for_many(*lab.hosts, accelerated)


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1] == "near")
