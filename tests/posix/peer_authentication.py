#!/usr/bin/env python3
"""Processes that know the names of the sockets of processes with libaccel, and have no right to what they ask for:
peer_authentication.py receiver|root_receiver|worker_receiver|member|sender|silent|silent_senders|marker

receiver: makes a hand-off socket for a server's listener, of the server's own user. Two that have a right to it: root (a master), and a worker that has
the listener, which the socket's maker has no more. member: asks a prefork server for what its processes share.
sender: passes a connection that never came by the listener. silent: many connect to a process's request socket and send nothing.
silent_senders: to a listener's hand-off socket, and where its processes ask for what they share. marker: another user says that a
SO_REUSEPORT group has a program. Each time what the kernel's server would see is what this one sees."""
import array
import contextlib
import ctypes
import os
import pathlib
import re
import signal
import socket
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "lab"))
sys.path.insert(0, str(here.parents[1] / "apps"))
from lab import AS_USER, USER, Lab, until  # noqa: E402
from programs import accelerated_sockets, descendants, statistics  # noqa: E402

SERVER = """
import os, socket, sys
how, address = sys.argv[1:3]
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if how == "marker": listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind((address, 7000))
listener.listen(64)
if "receiver" in how:
    print("listens", flush=True)
    sys.stdin.readline()
    ends = socket.socketpair()
    socket.send_fds(ends[0], [b"x"], [listener.fileno()])  # as one who reloads
    listener.close()
    for end in ends: end.close()
    print("closed", flush=True)
    sys.stdin.readline()
    sys.exit()
if how in ("member", "sender", "silent_senders") and os.fork(): os.wait()
while True:
    print("listens", flush=True)
    c = listener.accept()[0]
    if c.family != socket.AF_INET or c.getpeername()[0] == address: print("another's", flush=True)
    while data := c.recv(100): c.sendall(data)
    c.close()
"""
# without libaccel; says how many connections it got, and answers them
RECEIVER = """
import array, ctypes, os, socket, sys
cookie, user, server, shown, shared = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "shared"
libc = ctypes.CDLL(None, use_errno=True)
listener = libc.syscall(438, libc.syscall(434, server, 0), shown, 0)
assert listener >= 0, os.strerror(ctypes.get_errno())
os.setgroups([])
os.setgid(user)
os.setuid(user)
assert libc.prctl(4, 1, 0, 0, 0) == 0  # PR_SET_DUMPABLE: its user may see its descriptors
handoff = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
name = "\\0accel-listener-" + cookie + "." + str(os.getpid()) + ".0"
handoff.bind(name)
handoff.listen(100)
worker = os.fork()
if worker or not shared: os.close(listener)
if worker:
    handoff.close()
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))
markers = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
markers[0].bind(name + "-" + str(os.getpid()))
markers[1].bind(name + "-" + str(server))
print("ready", flush=True)
sys.stdin.readline()
handoff.setblocking(False)
taken = 0
try:
    while True:
        for _, _, data in handoff.accept()[0].recvmsg(100, 1000)[1]:
            os.write(array.array("i", data)[1], b"x")
            taken += 1
except BlockingIOError:
    print(taken, flush=True)
"""
ECHO = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000), 30) as c:
    for i in range(30):
        c.sendall(b"x")
        assert c.recv(1) == b"x"
    print("talked", flush=True)
    print(c.recv(5, socket.MSG_WAITALL).decode(), flush=True)
"""
WAITING = """
import socket, sys
cs = [socket.create_connection((sys.argv[1], 7000), 30) for _ in range(5)]
for c in cs: c.sendall(b"x")
print("connected", flush=True)
ends = 0
for c in cs:
    c.settimeout(20)
    try: c.recv(1)
    except ConnectionResetError: ends += 1
print(ends, flush=True)
"""
TAKER = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
pidfd = libc.syscall(434, int(sys.argv[1]), 0)
fd = libc.syscall(438, pidfd, int(sys.argv[2]), 0)
assert fd >= 0, os.strerror(ctypes.get_errno())
socket.socket(fileno=fd).sendall(b"taken")
"""


@contextlib.contextmanager
def network_of(host):
    """This thread is in the host's namespace meanwhile: abstract names belong to it."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    with open(f"/run/netns/{host.name}") as there:
        setns(there.fileno())
    try:
        yield
    finally:
        setns(own)
        os.close(own)


def setns(fd):
    if ctypes.CDLL(None, use_errno=True).setns(fd, 0x40000000) != 0:
        raise OSError(ctypes.get_errno())


def names(beginning):
    with open("/proc/thread-self/net/unix") as table:
        return {m for m in re.findall(r" @(\S+)", table.read()) if m.startswith(beginning)}


def seqpacket():
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def connected_to(name, *fds):
    """A socket that is connected to that name, and has sent such descriptors."""
    s = seqpacket()
    s.settimeout(10)
    s.connect("\0" + name)
    if fds:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            s.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
    return s


def answer(s):
    """Descriptors that came, or none."""
    try:
        _, control, _, _ = s.recvmsg(100, 1000)
    except (ConnectionResetError, BrokenPipeError):
        return 0
    return sum(len(data) // 4 for _, kind, data in control if kind == socket.SCM_RIGHTS)


def refused(server):
    return sum(statistics(p).get("counters", {}).get("peer_requests_refused", 0) for p in descendants(server.pid))


def hand_off_to(lab, server, user, listener):
    """The server closes its listener while five wait and a process of that user has made a hand-off socket: how many connections come there, and
    how many clients are reset. `listener`: "shared" with the child of that process which accepts there, or "closed"."""
    near, far = lab.hosts
    cookie = int(re.search(r"sk:(\w+)", near.enter("ss", "-tlne", "sport = :7000"))[1], 16)
    shown = next(s["fd"] for s in statistics(server.pid)["sockets"] if s["state"].lower().startswith("listen"))
    taker = near.popen([sys.executable, "-c", RECEIVER, f"{cookie:016x}", str(user), str(server.pid), str(shown), listener],
                       False, stdin=-1, stdout=-1, text=True)
    assert taker.stdout.readline() == "ready\n"
    clients = far.popen([sys.executable, "-c", WAITING, near.address], stdout=-1, text=True)
    assert clients.stdout.readline() == "connected\n"
    server.stdin.write("close\n")
    server.stdin.flush()
    assert server.stdout.readline() == "closed\n"
    taken = int(taker.communicate("take\n")[0])
    reset = int(clients.stdout.readline())
    server.stdin.write("end\n")
    server.stdin.flush()
    return taken, reset


def receiver(lab, server):
    assert hand_off_to(lab, server, USER, "closed") == (0, 5), "as the kernel resets what nobody accepts"


def root_receiver(lab, server):
    assert hand_off_to(lab, server, 0, "closed") == (5, 0)


def worker_receiver(lab, server):
    assert hand_off_to(lab, server, USER, "shared") == (5, 0)


def member(lab, server):
    near, far = lab.hosts
    with network_of(near):
        shared = until(lambda: names("accel-group-"), "the name of those who share the listener").pop()
        for fds in ((), (socket.socket().fileno(),)):
            assert answer(connected_to(shared, *fds)) == 0
        until(lambda: refused(server) >= 2, "two who were refused")
    talk(near, far)


def sender(lab, server):
    near, far = lab.hosts
    with network_of(near):
        handoff = until(lambda: {n for n in names("accel-listener-") if "-" not in n[len("accel-listener-"):]}, "a hand-off socket").pop()
        forged, other = socket.socketpair()
        senders = [connected_to(handoff, *fds) for fds in ((forged.fileno(),), (socket.socket().fileno(), forged.fileno()), ())]
        until(lambda: talk(near, far) and refused(server) >= len(senders), "the senders to be refused")
        other.settimeout(0.5)
        forged.close()
        assert other.recv(1) == b"", "somebody has it"


def silent(lab, server):
    near, far = lab.hosts
    client = far.popen([sys.executable, "-c", ECHO, near.address], stdin=-1, stdout=-1, text=True)
    assert client.stdout.readline() == "talked\n"
    connection = next(s["fd"] for s in statistics(server.pid)["sockets"] if s["state"] == "established")
    with network_of(near):
        handoff = next(n for n in names("accel-requests-") if n.endswith(f".{server.pid}"))
        silent_peers = [connected_to(handoff) for _ in range(100)]
    near.run([sys.executable, "-c", TAKER, str(server.pid), str(connection)], accel=True, require=False)
    assert client.stdout.readline() == "taken\n"
    assert statistics(server.pid)["counters"]["handed_back"] == 1
    for one in silent_peers:
        one.close()


def silent_senders(lab, server):
    near, far = lab.hosts
    with network_of(near):
        handoff = until(lambda: {n for n in names("accel-listener-") if "-" not in n[len("accel-listener-"):]}, "a hand-off socket").pop()
        shared = until(lambda: names("accel-group-"), "the name of those who share the listener").pop()
        silent_peers = [connected_to(name) for _ in range(100) for name in (handoff, shared)]
        talk(near, far)
        until(lambda: talk(near, far) and refused(server) > 0, "some to be refused, as there are too many")
        forged, other = socket.socketpair()
        last = connected_to(handoff, forged.fileno())
        until(lambda: talk(near, far) and answer(last) == 0, "one that speaks to be heard")
    for one in (*silent_peers, last, forged, other):
        one.close()


def marker(lab, server):
    """The server listens anew where another user has bound a marker."""
    near, far = lab.hosts
    assert all(s["path"] == "xdp" for s in statistics(server.pid)["sockets"]), statistics(server.pid)["sockets"]
    talk(near, far)


def talk(near, far):
    client = far.popen([sys.executable, "-c", ECHO, near.address], stdin=-1, stdout=-1, text=True)
    assert client.stdout.readline() == "talked\n", client.wait()
    client.kill()
    client.wait()
    return True


def bind_marker(near):
    """As another user. Returns the process that holds it."""
    address = "00" * 10 + "ffff" + "".join(f"{int(n):02x}" for n in near.address.split("."))
    end = os.pipe()
    child = os.fork()
    if child == 0:
        with network_of(near):
            os.setresuid(65534, 65534, 65534)
            s = seqpacket()
            s.bind(f"\0accel-program-tcp-{address}-7000-other")
            os.write(end[1], b"x")
            os.close(end[1])
            signal.pause()
        os._exit(0)
    assert os.read(end[0], 1) == b"x"
    return child


def main(how):
    with Lab() as lab:
        near = lab.near
        other = bind_marker(near) if how == "marker" else None
        server = near.popen([*(AS_USER if "receiver" in how else []), sys.executable, "-c", SERVER, how, near.address], accel=True, stdin=-1, stdout=-1, text=True, require=how not in ("member", "sender", "silent_senders"))
        assert server.stdout.readline() == "listens\n"
        until(lambda: accelerated_sockets(server.pid, 7000), "the listener")
        globals()[how](lab, server)
        if other:
            os.kill(other, 9)
            os.waitpid(other, 0)
        near.stop_all()


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1])
