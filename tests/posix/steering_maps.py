#!/usr/bin/env python3
"""A process that has given up root and was broken into, beside others on one device: steering_maps.py hostile|honest|without_helper

hostile: it goes through its descriptors and does by them what the kernel lets it do: writes to each BPF map, detaches each BPF link,
runs each BPF program with requests about others' local ends. A server of the kernel, another accelerated process, and its own
connections must go on. honest: what a process listens on, connects and binds after it has given up root is accelerated as before. without_helper: so it is without a
helper, where the process keeps its descriptors and says so."""
import os
import pathlib
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "lab"))
sys.path.insert(0, str(here.parents[1] / "apps"))
from lab import Lab, until  # noqa: E402
from programs import accelerated_sockets, statistics  # noqa: E402

ECHO = """
import selectors, socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
known = selectors.DefaultSelector()
known.register(listener, 1)
while True:
    for key, _ in known.select():
        if key.fileobj is listener:
            known.register(listener.accept()[0], 1)
            continue
        data = key.fileobj.recv(100)
        if data: key.fileobj.sendall(data)
        else:
            known.unregister(key.fileobj)
            key.fileobj.close()
"""

# The hostile code runs in the process as what was injected would; the rest is the honest program.
HOSTILE = """
import ctypes, encodings.idna, os, socket, struct, sys, threading
own, other, victim_port, peers_port = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
libc = ctypes.CDLL(None, use_errno=True)
SYS_bpf = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
LOOKUP, UPDATE, DELETE, NEXT, RUN, INFO, DETACH = 1, 2, 3, 4, 10, 15, 34

def bpf(command, *fields):
    attributes = b"".join(fields).ljust(128, b"\\0")
    buffer = ctypes.create_string_buffer(attributes, 128)
    r = libc.syscall(SYS_bpf, command, buffer, 128)
    return (0 if r >= 0 else ctypes.get_errno()), buffer.raw

def pointer(buffer): return struct.pack("Q", ctypes.addressof(buffer))
def on_map(command, fd, key, value=None, flags=0):
    second = pointer(value) if value is not None else struct.pack("Q", 0)
    return bpf(command, struct.pack("II", fd, 0), pointer(key), second, struct.pack("Q", flags))[0]

def mapped(address): return b"\\0" * 10 + b"\\xff\\xff" + socket.inet_aton(address)
def flow_key(protocol, port, queue, remote=None, remote_port=0):
    return struct.pack("!BBHH", protocol, 0, port, remote_port) + struct.pack("H", queue) + mapped(own) + (mapped(remote) if remote else b"\\0" * 16)

def keys():
    # Listeners of everybody, a connection of the other process, ends that nobody has.
    for queue in 0, 1, 0xffff:
        for protocol, port in (6, 22), (6, victim_port), (17, 53), (6, 4444):
            yield queue, flow_key(protocol, port, queue)
    for queue in 0, 1:
        yield queue, flow_key(6, victim_port, 0xffff, other, peers_port)
        yield queue, flow_key(6, 22, 0xffff, other, 40000)

def write_to(fd):
    info = ctypes.create_string_buffer(80)
    bpf(INFO, struct.pack("II", fd, 80), pointer(info))
    kind, _, key_size, value_size = struct.unpack_from("IIII", info)
    key, value, after = (ctypes.create_string_buffer(max(n, 256)) for n in (key_size, value_size, key_size))
    done, found, error = 0, [], bpf(NEXT, struct.pack("II", fd, 0), struct.pack("Q", 0), pointer(after))[0]
    while error == 0 and len(found) < 10000:
        found.append(after.raw[:key_size])
        ctypes.memmove(key, after, key_size)
        error = on_map(NEXT, fd, key, after)
    theirs = [k for k in found if key_size == 40 and struct.unpack_from("!H", k, 2)[0] != 7000]
    for raw in theirs if key_size == 40 else found:
        ctypes.memmove(key, raw, key_size)
        if on_map(LOOKUP, fd, key, value) != 0: continue
        done += on_map(UPDATE, fd, key, ctypes.create_string_buffer(b"\\xff" * value_size, 256)) == 0
        done += on_map(DELETE, fd, key) == 0
    return done

def run(fd, operation, queue=0, mark=0, key=b"\\0" * 40):
    request = ctypes.create_string_buffer((struct.pack("IHH", operation, queue, mark) + key).ljust(80, b"\\0"), 80)
    fields = struct.pack("II", fd, 0) + b"\\0" * 32 + struct.pack("II", 80, 0) + pointer(request)
    error, answer = bpf(RUN, fields)
    return (-error if error else struct.unpack_from("i", answer, 4)[0]), request.raw

def run_program(fd):
    done = []
    ADD_END, SEAL, ADD, REMOVE, MARK, READ, DISCLAIM, COUNT = range(8)
    first = run(fd, COUNT)[0]
    assert first == 0, f"the request is not understood: {first}"
    held = [q for q in (0, 1) if run(fd, ADD, q, key=flow_key(6, 7000, q))[0] == 0]
    assert len(held) == 1, held  # its own listener again
    for queue, key in keys():
        for operation in ADD_END, ADD, MARK, READ:
            if run(fd, operation, queue, 1, key)[0] == 0: done.append((operation, queue, key.hex()))
        run(fd, REMOVE, queue, 0, key)
    if run(fd, DISCLAIM, 1 - held[0])[0] == 0: done.append("another's queue")
    return done

def everything():
    done = {}
    for name in os.listdir("/proc/self/fd"):
        try: what = os.readlink("/proc/self/fd/" + name)
        except OSError: continue
        fd = int(name)
        if what == "anon_inode:bpf-map": done[f"map {fd}"] = write_to(fd)
        if what.startswith("anon_inode:bpf") and "link" in what: done[f"link {fd}"] = bpf(DETACH, struct.pack("I", fd))[0] == 0
        if what == "anon_inode:bpf-prog": done[f"program {fd}"] = run_program(fd)
    return done

def serve(listener):
    def echo(c):
        while data := c.recv(100): c.sendall(data)
    while True: threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()

listener = socket.create_server((own, 7000))
os.setgid(65534)
os.setuid(65534)
threading.Thread(target=serve, args=(listener,), daemon=True).start()
print("listens", flush=True)
sys.stdin.readline()
print(everything(), flush=True)
sys.stdin.readline()
"""

LATER = """
import encodings.idna, os, socket, sys
own, other = sys.argv[1:3]
first = socket.create_server((own, 80))
print("root", flush=True)
sys.stdin.readline()
os.setgid(65534)
os.setuid(65534)
print("dropped", flush=True)
sys.stdin.readline()
opened = [socket.create_connection((other, 7001), 30) for i in range(20)]
for c in opened:
    c.sendall(b"x")
    assert c.recv(1) == b"x"
for c in opened[1:]: c.close()
listener = socket.create_server((own, 7000))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind((own, 7000))
print("listens", flush=True)
a = listener.accept()[0]
b = first.accept()[0]
for s in a, b:
    for i in range(30): s.sendall(s.recv(1))
for i in range(30): datagrams.sendto(*datagrams.recvfrom(1))
print("talked", flush=True)
sys.stdin.readline()
"""


def connection(host, to, port):
    """A client of the kernel's in the host; call it for one round trip."""
    child = host.popen([sys.executable, "-c", f"""
import socket, sys
c = socket.create_connection(({to!r}, {port}), 30)
print(c.getsockname()[1], flush=True)
for line in sys.stdin:
    c.sendall(b"x")
    assert c.recv(1) == b"x"
    print("ok", flush=True)
"""], stdin=-1, stdout=-1, text=True)
    local = int(child.stdout.readline())

    def trip(times=1):
        for _ in range(times):
            child.stdin.write("trip\n")
            child.stdin.flush()
            assert child.stdout.readline() == "ok\n"
    trip.port = local
    return trip


def by_queue_of(far, near, port, program):
    """A connection of the kernel's in far that the program accepts by its queue: its tuple decides which that is."""
    for _ in range(64):
        trip = connection(far, near.address, port)
        trip()
        if any(s["path"] == "xdp" and s["remote"].endswith(f":{trip.port}") for s in statistics(program.pid)["sockets"]):
            return trip
    raise AssertionError("no connection came by the queue")


def hostile():
    with Lab(queues=2) as lab:
        near, far = lab.hosts
        one_queue = {"ACCEL_QUEUES": "1"}
        victim = near.popen([sys.executable, "-c", ECHO, near.address, "8000"], accel=True, env=one_queue)
        near.wait_for_listener(8000, victim)
        until(lambda: accelerated_sockets(victim.pid, 8000), "the victim's listener")
        kernels = near.popen([sys.executable, "-c", ECHO, near.address, "22"])
        near.wait_for_listener(22, kernels)
        to_victim, to_kernel = by_queue_of(far, near, 8000, victim), connection(far, near.address, 22)
        program = near.popen([sys.executable, "-c", HOSTILE, near.address, far.address, "8000", str(to_victim.port)], accel=True,
                             env=one_queue, stdin=-1, stdout=-1, text=True)
        assert program.stdout.readline() == "listens\n"
        until(lambda: accelerated_sockets(program.pid, 7000), "the program's listener")
        own = by_queue_of(far, near, 7000, program)
        program.stdin.write("break in\n")
        program.stdin.flush()
        done = eval(program.stdout.readline())
        assert any(name.startswith("program") for name in done), done
        assert not any(done.values()), done
        assert not any(name.startswith(("map", "link")) for name in done), done
        for trip in to_victim, to_kernel, own:
            trip(5)
        for port in 8000, 22:  # new ones too, by either queue
            for _ in range(4):
                connection(far, near.address, port)()
        kinds = {s["path"] for s in statistics(victim.pid)["sockets"] if s["remote"].endswith(f":{to_victim.port}")}
        assert kinds == {"xdp"}, kinds


def later(with_helper):
    with Lab() as lab:
        near, far = lab.hosts
        peer = far.popen([sys.executable, "-c", ECHO, far.address, "7001"])
        far.wait_for_listener(7001, peer)
        program = near.popen([sys.executable, "-c", LATER, near.address, far.address], accel=True, stdin=-1, stdout=-1, stderr=-1, text=True,
                             env={} if with_helper else {"ACCEL_HELPER": "0"})
        assert program.stdout.readline() == "root\n"
        until(lambda: with_helper or accelerated_sockets(program.pid, 80), "the first listener")
        program.stdin.write("drop\n")
        program.stdin.flush()
        assert program.stdout.readline() == "dropped\n"
        until(lambda: accelerated_sockets(program.pid, 80), "the first listener")
        left = [os.readlink(f"/proc/{program.pid}/fd/{n}") for n in os.listdir(f"/proc/{program.pid}/fd")]
        assert with_helper != ("anon_inode:bpf-map" in left) and with_helper != any("bpf" in x and "link" in x for x in left), left
        program.stdin.write("go\n")
        program.stdin.flush()
        assert program.stdout.readline() == "listens\n"
        trips = [connection(far, near.address, port) for port in (7000, 80)]
        for trip in trips:
            trip(30)
        far.run([sys.executable, "-c", f"""
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(({near.address!r}, 7000))
s.settimeout(30)
for i in range(30):
    s.send(b"x")
    assert s.recv(1) == b"x"
"""])
        assert program.stdout.readline() == "talked\n"
        found = [(s["path"], s.get("state", "-")) for s in statistics(program.pid)["sockets"]]
        assert sum(path == "xdp" and state == "established" for path, state in found) == 3, found
        assert sum(path == "xdp" and state == "listen" for path, state in found) == 2, found
        assert "kernel" not in {path for path, _ in found}, found
        said = program.communicate("end\n", timeout=30)[1].splitlines()
        assert len(said) == (0 if with_helper else 1) and all("can still write to the steering maps" in line for line in said), said


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    {"hostile": hostile, "honest": lambda: later(True), "without_helper": lambda: later(False)}[sys.argv[1]]()
