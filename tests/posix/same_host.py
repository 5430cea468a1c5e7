#!/usr/bin/env python3
"""Two programs of one host in shared memory, as it goes in life: they move there after some exchanges, and back to the kernel as one of them
forks or ends; they stay with the kernel where the other end has no libaccel, or where somebody else has taken the place of the meeting. All bytes
arrive each time, once and in order."""
import os
import pathlib
import signal
import socket
import subprocess
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "lab"))
sys.path.insert(0, str(here.parents[1] / "apps"))
from lab import Lab, until  # noqa: E402
from programs import statistics  # noqa: E402

SETTINGS = {"ACCEL_SAME_HOST": "auto", "ACCEL_SAME_HOST_AFTER": "8"}
# An echo that ends when its peer does. What it is told on the way it does: fork.
SERVER = """
import os, socket, sys
listener = socket.create_server((sys.argv[1], 0))
print(listener.getsockname()[1], flush=True)
c, _ = listener.accept()
while data := c.recv(65536):
    if data.startswith(b"fork"):
        child = os.fork()
        if child == 0: os._exit(0)
        os.waitpid(child, 0)
    c.sendall(data)
"""
# The same, waiting by epoll in a set that its children have as well.
EPOLL_SERVER = SERVER.replace("c, _ = listener.accept()", """c, _ = listener.accept()
import select
waits = select.epoll()
waits.register(c, select.EPOLLIN)
""").replace("while data := c.recv(65536):", "while waits.poll() and (data := c.recv(65536)):")
# Each connection is a child's.
FORKING_SERVER = """
import os, socket, sys
listener = socket.create_server((sys.argv[1], 0))
print(listener.getsockname()[1], flush=True)
c, _ = listener.accept()
if os.fork() == 0:
    listener.close()
    while data := c.recv(65536): c.sendall(data)
    os._exit(0)
c.close()
os.wait()
"""
# Reads commands: "exchange N", "fork", "bulk N"; answers each.
CLIENT = """
import os, socket, sys, threading
c = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20, (sys.argv[1], int(sys.argv[3])))
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
sent = 0
def pattern(size):
    global sent
    sent += size
    return bytes((sent - size + i) * 7 % 251 for i in range(size))
def exchange(data):
    c.sendall(data)
    got = c.recv(len(data), socket.MSG_WAITALL)
    assert got == data, (len(got), len(data))
for line in sys.stdin:
    what, _, number = line.strip().partition(" ")
    if what == "exchange":
        for i in range(int(number)): exchange(pattern(1 + i * 37 % 900))
    if what == "server_forks": exchange(b"fork" + pattern(100))
    if what == "fork":
        child = os.fork()
        if child == 0: os._exit(0)
        os.waitpid(child, 0)
        exchange(pattern(1000))
    if what == "bulk":
        data = pattern(int(number))
        writer = threading.Thread(target=c.sendall, args=(data,))
        writer.start()
        got = b""
        while len(got) < len(data): got += c.recv(1 << 20)
        writer.join()
        assert got == data
    if what == "read_to_end":
        try:
            while c.recv(1 << 20): pass
        except ConnectionResetError: pass
    print("done", flush=True)
"""
# Takes the name of the meeting before its two ends come, and passes descriptors that are no proof.
STRANGER = """
import array, os, socket, sys
name = bytes.fromhex(sys.argv[1])
taken = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
taken.bind(name)
taken.listen()
print("ready", flush=True)
while True:
    peer, _ = taken.accept()
    peer.recvmsg(10, 1000)
    r, w = os.pipe()
    peer.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [r, w]))])
    print("met", flush=True)
"""

# Connections that end while their two ends meet.
ENDS_SERVER = """
import socket, sys, threading
listener = socket.create_server((sys.argv[1], 0), backlog=200)
print(listener.getsockname()[1], flush=True)
def serve(c):
    while data := c.recv(5000): c.sendall(data)
    c.close()
while True: threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
ENDS_CLIENT = """
import random, socket, sys, threading
def one(seed):
    choice = random.Random(seed)
    data = choice.randbytes(choice.randrange(20000, 100000))
    c = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    def write():
        at = 0
        while at < len(data):
            size = choice.choice((10, 1000, 30000))
            c.sendall(data[at:at + size])
            at += size
        c.shutdown(socket.SHUT_WR)
    writer = threading.Thread(target=write)
    writer.start()
    got = b""
    while some := c.recv(20000): got += some
    writer.join()
    c.close()
    if got != data: print(f"{len(got)} of {len(data)} bytes", flush=True)
for begin in range(0, 640, 8):
    all = [threading.Thread(target=one, args=(begin + i,)) for i in range(8)]
    for t in all: t.start()
    for t in all: t.join()
print("done", flush=True)
"""

# Lets no descriptor be opened as its connections meet.
LIMITED_CLIENT = """
import resource, socket, sys, time
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
for i in range(10):
    c = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    time.sleep(0.02)  # the server waits, by the library
    c.sendall(b"a")
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    time.sleep(0.2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert c.recv(1) == b"a"
    c.close()
print("done", flush=True)
sys.stdin.read()
"""

# One of two ends. argv: an address, a port or "listen". settle() exchanges bytes until the one that has connected is told to go on, by a line.
ONE_END = """
import select, socket, sys
connects = sys.argv[2].isdigit()
def opened(option):
    s = socket.socket()
    if option: s.setsockopt(socket.SOL_SOCKET, option, 8192)
    if connects:
        s.connect((sys.argv[1], int(sys.argv[2])))
        return s
    s.bind((sys.argv[1], 0))
    s.listen()
    print(s.getsockname()[1], flush=True)
    return s.accept()[0]
def settle(c):
    last = False
    while not last:
        if connects:
            last = bool(select.select([sys.stdin], [], [], 0)[0])
            c.sendall(b"z" if last else b"a")
            assert c.recv(1) in b"az"
        else:
            word = c.recv(1)
            last = word == b"z"
            c.sendall(word)
    if connects: sys.stdin.readline()
"""
# Both ends write a megabyte before they read, as long as the kernel's buffers have room for it. argv[3]: how.
WRITES_FIRST = ONE_END + """
c = opened(None)
settle(c)
def write(data):
    if sys.argv[3] == "blocking": return c.sendall(data)
    waits = select.poll()
    waits.register(c, select.POLLOUT)
    while data:
        waits.poll()
        data = data[c.send(data, socket.MSG_DONTWAIT):]
def read(size):
    got = b""
    while len(got) < size: got += c.recv(size - len(got))
    return got
data = bytes(i * 7 % 251 for i in range(1000000))
for _ in range(2):
    write(data)
    assert read(len(data)) == data
print("done", flush=True)
sys.stdin.read()
"""

# How much an end takes that nobody reads, with small buffers at both ends.
FILLS = ONE_END + """
c = opened(socket.SO_SNDBUF if connects else socket.SO_RCVBUF)
settle(c)
if connects:
    sent = 0
    try:
        while True: sent += c.send(bytes(1000), socket.MSG_DONTWAIT)
    except BlockingIOError: print(sent, flush=True)
sys.stdin.read()
"""

# Both ends of a connection, whose bytes a BPF program hands from one to the other (a sockmap): TCP sees none of them. See bpf(2) and
# linux/bpf.h for the numbers.
SOCKMAP = """
import ctypes, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
MAP_CREATE, MAP_UPDATE, PROG_LOAD, PROG_ATTACH = 0, 2, 5, 8
SOCKMAP, SK_MSG, MSG_VERDICT, MSG_REDIRECT_MAP, INGRESS = 15, 16, 7, 60, 1
def bpf(command, attributes):
    data = ctypes.create_string_buffer(attributes.ljust(128, bytes(1)), 128)
    result = libc.syscall(280 if os.uname().machine == "aarch64" else 321, command, data, 128)
    if result < 0: raise OSError(ctypes.get_errno(), f"bpf {command}")
    return result
def sockmap(): return bpf(MAP_CREATE, struct.pack("IIII", SOCKMAP, 4, 4, 2))
def instruction(code, dst=0, src=0, value=0): return struct.pack("<BBhi", code, dst | src << 4, 0, value)
def program(map_fd, key):
    code = [instruction(0x18, 2, 1, map_fd), instruction(0), instruction(0xb7, 3, value=key), instruction(0xb7, 4, value=INGRESS),
            instruction(0x85, value=MSG_REDIRECT_MAP), instruction(0x95)]
    text, licence = ctypes.create_string_buffer(b"".join(code)), ctypes.create_string_buffer(b"GPL")
    return bpf(PROG_LOAD, struct.pack("IIQQ", SK_MSG, len(code), ctypes.addressof(text), ctypes.addressof(licence)))
def update(map_fd, key, fd):
    k, v = ctypes.create_string_buffer(struct.pack("I", key)), ctypes.create_string_buffer(struct.pack("I", fd))
    bpf(MAP_UPDATE, struct.pack("IIQQQ", map_fd, 0, ctypes.addressof(k), ctypes.addressof(v), 0))
listener = socket.create_server((sys.argv[1], 0))
a = socket.create_connection(listener.getsockname())
b, _ = listener.accept()
a.settimeout(10), b.settimeout(10)
targets = sockmap()
for key, end in enumerate((a, b)):
    own = sockmap()
    bpf(PROG_ATTACH, struct.pack("III", own, program(targets, 1 - key), MSG_VERDICT))
    update(own, 0, end.fileno())
    update(targets, key, end.fileno())
for i in range(100):
    for sends, receives in ((a, b), (b, a)):
        sends.sendall(b"%d" % i)
        assert receives.recv(100) == b"%d" % i
sent = struct.unpack_from("Q", a.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), 200)[0]
print("done", sent, flush=True)
sys.stdin.read()
"""


class Pair:
    """Of a client and its server on the near host; `ends`: which of them have libaccel."""

    def __init__(self, lab, client=True, server=True, port=0, serves=SERVER, as_user=()):
        run = [*as_user, "/usr/bin/python3", "-c"]
        options = {"stdout": subprocess.PIPE, "text": True, "require": False, "env": SETTINGS}
        self.errors = open(lab.directory / "errors", "w+")
        options["stderr"] = self.errors
        self.server = lab.near.popen([*run, serves, "127.0.0.1"], accel=server, **options)
        self.port = int(self.server.stdout.readline())
        self.client = lab.near.popen([*run, CLIENT, "127.0.0.1", self.port, port], accel=client, stdin=subprocess.PIPE, **options)

    def do(self, what):
        self.client.stdin.write(what + "\n")
        self.client.stdin.flush()
        assert self.client.stdout.readline() == "done\n", what

    def path(self):
        rows = [s for s in statistics(self.client.pid)["sockets"] if s["remote"].endswith(f":{self.port}")]
        return rows[0]["path"], rows[0]["reason"]

    def counter(self, name):
        return statistics(self.client.pid)["counters"].get(name, 0)

    def end(self):
        self.client.stdin.close()
        assert self.client.wait(20) == 0
        assert self.server.wait(20) == 0
        self.errors.seek(0)
        said = self.errors.read()
        assert said == "", said


def moves(lab):
    pair = Pair(lab)
    pair.do("exchange 4")
    assert pair.path()[0] == "kernel", pair.path()
    pair.do("exchange 100")
    assert pair.path()[0] == "shm", pair.path()
    pair.do("bulk 3000000")
    pair.do("exchange 100")
    assert pair.path()[0] == "shm", pair.path()
    pair.end()


def moves_without_privilege(lab):
    """Nothing but these connections needs the engine then: sockets that lead out leave it alone."""
    pair = Pair(lab, as_user=["setpriv", "--reuid=daemon", "--regid=daemon", "--clear-groups", "--bounding-set=-all", "--no-new-privs"])
    pair.do("exchange 100")
    assert pair.path()[0] == "shm", pair.path()
    pair.do("bulk 3000000")
    pair.end()


def goes_back(lab, what, serves=SERVER):
    pair = Pair(lab, serves=serves)
    pair.do("exchange 100")
    assert pair.path()[0] == "shm", pair.path()
    pair.do(what)
    pair.do("exchange 4")
    assert pair.path() == ("kernel", "inherited" if what == "fork" else "same_host_left"), pair.path()
    assert pair.counter("shm_left") == 1
    pair.do("bulk 3000000")
    # The child has ended, so each process has the connection alone again.
    for _ in range(20):
        pair.do("exchange 100")
        if pair.path()[0] == "shm":
            break
    assert pair.path()[0] == "shm" and pair.counter("shm_opened") == 2, pair.path()
    pair.do("bulk 3000000")
    pair.end()


def ring_memory(pid):
    """Bytes of the memory that a connection's two ends share."""
    regions = {line.split()[0] for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines() if line.endswith("/memfd:libaccel (deleted)")}
    return sum(os.stat(f"/proc/{pid}/map_files/{region}").st_blocks * 512 for region in regions)


def rests_small(lab):
    """The kept part of each ring is 16 KiB, beside one page that both have; a ring has 128 KiB."""
    pair = Pair(lab)
    for _ in range(2):
        pair.do("exchange 100")
        pair.do("bulk 3000000")
        assert pair.path()[0] == "shm", pair.path()
        assert ring_memory(pair.client.pid) > 200000, ring_memory(pair.client.pid)
        until(lambda: ring_memory(pair.client.pid) <= 2 * 16384 + 4096, "both rings have given back what the bulk took", 20)
    pair.do("exchange 100")
    pair.end()


def moves_in_a_child(lab):
    pair = Pair(lab, serves=FORKING_SERVER)
    pair.do("exchange 100")
    assert pair.path()[0] == "shm", pair.path()
    pair.do("bulk 3000000")
    assert pair.path()[0] == "shm" and pair.counter("shm_left") == 0, pair.path()
    pair.end()


def unmet(lab):
    pair = Pair(lab, server=False)
    pair.do("exchange 100")
    until(lambda: pair.counter("shm_unmet") == 1, "it has waited long enough")
    assert pair.path() == ("kernel", "same_host_unmet"), pair.path()
    pair.do("exchange 100")
    pair.end()


def killed(lab):
    pair = Pair(lab)
    pair.do("exchange 100")
    assert pair.path()[0] == "shm", pair.path()
    pair.server.send_signal(signal.SIGKILL)
    pair.server.wait()
    pair.do("read_to_end")
    pair.client.stdin.close()
    assert pair.client.wait(20) == 0


def betrayed(lab):
    """The stranger is of the same user, so it is told; it cannot prove."""
    own = 41234
    listening = lab.near.popen([sys.executable, "-c", SERVER, "127.0.0.1"], accel=True, env=SETTINGS, require=False, stdout=subprocess.PIPE, text=True)
    port = int(listening.stdout.readline())
    ends = sorted([own, port])
    name = b"\x00accel-shm-1-"
    for end in ends:
        name += (socket.inet_aton("127.0.0.1") + end.to_bytes(2, "big")).hex().encode()
    stranger = lab.near.popen([sys.executable, "-c", STRANGER, name.hex()], stdout=subprocess.PIPE, text=True)
    assert stranger.stdout.readline() == "ready\n"
    client = lab.near.popen([sys.executable, "-c", CLIENT, "127.0.0.1", port, own], accel=True, env=SETTINGS, require=False,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for _ in range(2):
        client.stdin.write("exchange 100\n")
        client.stdin.flush()
        assert client.stdout.readline() == "done\n"
    assert stranger.stdout.readline() == "met\n"
    until(lambda: statistics(client.pid)["counters"].get("shm_refused", 0) == 1, "the stranger is refused")
    assert statistics(client.pid)["counters"].get("shm_opened", 0) == 0
    assert [s["reason"] for s in statistics(client.pid)["sockets"] if s["remote"].endswith(f":{port}")] == ["same_host_refused"]
    lab.near.stop(stranger)  # which has kept the duplicates of both ends, and with them the connection
    client.stdin.close()
    assert client.wait(20) == 0 and listening.wait(20) == 0


def end_in_the_meeting(lab):
    """One that shuts down before the memory is there stays with the kernel, and the other end knows."""
    options = {"accel": True, "require": False, "env": {**SETTINGS, "ACCEL_SAME_HOST_AFTER": "4"}, "stdout": subprocess.PIPE, "text": True}
    server = lab.near.popen([sys.executable, "-c", ENDS_SERVER, "127.0.0.1"], **options)
    client = lab.near.popen([sys.executable, "-c", ENDS_CLIENT, "127.0.0.1", server.stdout.readline().strip()], **options)
    said = client.communicate(timeout=100)[0]
    counters = statistics(server.pid)["counters"]
    lab.near.stop(server)
    assert said == "done\n", said
    assert counters.get("shm_opened", 0) > 20 and counters.get("shm_refused", 0) > 20, counters


OPTIONS = {"require": False, "env": SETTINGS, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


def two_ends(lab, accel, program, *words):
    """(the one that listens, the one that has connected to it), behind settle(): accelerated both are in shared memory."""
    run = [sys.executable, "-c", program, "127.0.0.1"]
    server = lab.near.popen([*run, "listen", *words], accel=accel, **OPTIONS)
    client = lab.near.popen([*run, server.stdout.readline().strip(), *words], accel=accel, **OPTIONS)
    if accel:
        until(lambda: all(statistics(end.pid).get("counters", {}).get("shm_opened", 0) == 1 for end in (server, client)), "both in shared memory")
    client.stdin.write("go on\n")
    client.stdin.flush()
    return server, client


def end(*programs):
    for program in programs:
        program.stdin.close()
        assert program.wait(20) == 0


def writes_before_it_reads(lab, accel, way):
    """More than the rings hold: what follows goes by the kernel, as before."""
    ends = two_ends(lab, accel, WRITES_FIRST, way)
    for program in ends:
        assert program.stdout.readline() == "done\n"
    if accel:
        counters = [statistics(program.pid)["counters"] for program in ends]
        assert all(c.get("shm_opened", 0) == 1 and c.get("shm_broken", 0) == 0 for c in counters), counters
        assert sum(c.get("shm_stalls", 0) for c in counters) >= 1, counters
    end(*ends)


def fills_small_buffers(lab, accel):
    server, client = two_ends(lab, accel, FILLS)
    sent = int(client.stdout.readline())
    assert 8192 <= sent < 65536, sent
    if accel:
        assert statistics(client.pid)["counters"].get("shm_opened", 0) == 1
    end(client, server)


def heeds_filters(lab):
    """A rule that might drop what the connection sends moves it back, and keeps the next one with the kernel."""
    pair = Pair(lab)
    pair.do("exchange 100")
    assert pair.path()[0] == "shm", pair.path()
    lab.near.run(["nft", "add table inet loopback; add chain inet loopback out { type filter hook output priority 0; }; "
                  "add rule inet loopback out oif lo tcp dport 1024-65535 meta length 20000 drop"])
    until(lambda: pair.path()[0] == "kernel", "a connection that the rules see")  # either end may be the first to hear of them
    pair.do("exchange 300")
    assert pair.path() == ("kernel", "firewall"), pair.path()
    pair.end()
    pair = Pair(lab)
    pair.do("exchange 100")
    assert pair.path() == ("kernel", "firewall"), pair.path()
    pair.end()
    lab.near.run(["nft", "delete table inet loopback"])


def stays_in_a_sockmap(lab):
    program = lab.near.popen([sys.executable, "-c", SOCKMAP, "127.0.0.1"], accel=True, **OPTIONS)
    assert program.stdout.readline() == "done 0\n"
    counters = statistics(program.pid).get("counters", {})
    assert counters.get("shm_opened", 0) == 0, counters
    end(program)


def meets_without_descriptors(lab):
    """What it waits for then is not asked by poll(2), which refuses: the library would look for it without end."""
    options = {"accel": True, "require": False, "env": {**SETTINGS, "ACCEL_SAME_HOST_AFTER": "0"}, "stdout": subprocess.PIPE, "text": True}
    server = lab.near.popen([sys.executable, "-c", ENDS_SERVER, "127.0.0.1"], **options)
    client = lab.near.popen([sys.executable, "-c", LIMITED_CLIENT, "127.0.0.1", server.stdout.readline().strip()], stdin=subprocess.PIPE, **options)
    assert client.stdout.readline() == "done\n"
    counters = statistics(client.pid)["counters"]
    client.stdin.close()
    assert client.wait(20) == 0
    lab.near.stop(server)
    assert counters.get("housekeeping_polls", 0) < 2000, counters


def main():
    with Lab() as lab:
        moves(lab)
        moves_without_privilege(lab)
        rests_small(lab)
        for what in ("fork", "server_forks"):
            goes_back(lab, what)
        goes_back(lab, "server_forks", EPOLL_SERVER)
        moves_in_a_child(lab)
        killed(lab)
        unmet(lab)
        betrayed(lab)
        for accel in (False, True):
            fills_small_buffers(lab, accel)
            for way in ("blocking", "nonblocking"):
                writes_before_it_reads(lab, accel, way)
        stays_in_a_sockmap(lab)
        heeds_filters(lab)
        end_in_the_meeting(lab)
        meets_without_descriptors(lab)
    print("in shared memory, back and there again, in a child, unmet, killed, betrayed, and ended as they met, and with full rings: all bytes arrived")


if __name__ == "__main__":
    main()
