#!/usr/bin/env python3
"""libaccel at both ends on model NICs, and what the model alone can do to them: accel.py TEST

Each moves megabytes by TCP and compares digests; the counters must show that the NICs' queues carried them."""
import ctypes
import hashlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "apps"))
from gate import check  # noqa: E402
from model_lab import ModelLab  # noqa: E402
from programs import descendants, nginx, statistics  # noqa: E402

RECEIVER = """
import hashlib, socket, sys
s = socket.create_server((sys.argv[1], 7000)); c, _ = s.accept(); d = hashlib.sha256()
while True:
    b = c.recv(1 << 16)
    if not b: break
    d.update(b)
print(d.hexdigest())
"""
SENDER = """
import hashlib, random, select, socket, sys
c = socket.create_connection((sys.argv[1], 7000)); r = random.Random(7); d = hashlib.sha256()
least = int(sys.argv[2])
while least > 0 or not select.select([sys.stdin], [], [], 0)[0]:
    b = r.randbytes(1 << 20); d.update(b); c.sendall(b); least -= 1
c.shutdown(socket.SHUT_WR)
c.recv(1)  # until all has arrived: the kernel would send what is left as this program ends, of a paced connection as a rule
print(d.hexdigest())
"""


def transfer(megabytes=16, faults="", meanwhile=None, env=None, part="1017", prepare=None):
    """Sends from far to near until meanwhile() is over, megabytes at least. Returns both hosts' counters."""
    with ModelLab(part=part) as lab:
        near, far = lab.hosts
        near.faults = far.faults = faults
        for host in lab.hosts if prepare else ():
            prepare(host)
        receiver = near.popen([sys.executable, "-c", RECEIVER, near.address], accel=True, env=env, stdout=subprocess.PIPE, text=True)
        near.wait_for_listener(7000, receiver)
        sender = far.popen([sys.executable, "-c", SENDER, near.address, megabytes], accel=True, env=env,
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if meanwhile:
            meanwhile(lab, receiver)
        try:
            sent, _ = sender.communicate(timeout=150)
            received, _ = receiver.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not done: near {near.counters()} far {far.counters()}") from None
        check(sender.returncode == 0 and receiver.returncode == 0, (sender.returncode, receiver.returncode))
        check(sent == received, f"another digest: {sent}{received}")
        for host in lab.hosts:  # the kernel was told each queue's true state
            check(host.counters()["stale_moves"] == host.counters()["kernel_warnings"] == 0, host.counters())
        return near.counters(), far.counters()


def until(host, counter, value):
    end = time.monotonic() + 60
    while host.counters().get(counter, 0) < value:
        check(time.monotonic() < end, host.counters())
        time.sleep(0.005)


def plain():
    """What the device offers is used: segmentation, descriptors by BlueField, checksums filled in."""
    near, far = transfer()
    check(near["rx_bytes"] > 16 << 20 and far["tx_bytes"] > 16 << 20, (near, far))
    check(far["tx_tso"] > 100 and far["tx_packets"] > 4 * far["tx_tso"], far)
    for end in (near, far):
        check(end["blueflame"] > 0, end)
        check(end["tx_checksums"] >= 0.9 * end["tx_packets"], end)  # but ARP's
        check(end["flows_tagged"] == end["flows"] > 1, end)


def segmented():
    """Without segmentation by the device segments go several to a descriptor, or each by its own."""
    _, far = transfer(4, env={"ACCEL_TSO": "0"})
    check(far["tx_tso"] == 0 and far["tx_multi_packet"] > 20 and far["tx_packets"] > 2 * far["tx_multi_packet"], far)
    check(far["tx_checksums"] >= 1.9 * far["tx_packets"], far)  # IP's and TCP's
    _, far = transfer(4, env={"ACCEL_TSO": "0", "ACCEL_MLX5_MULTI_PACKET": "0"})
    check(far["tx_tso"] == 0 and far["tx_multi_packet"] == 0, far)
    check(far["tx_wqes"] >= far["tx_packets"], far)


def lossy():
    near, _ = transfer(faults="loss=0.005,reorder=0.01,duplicate=0.002,corrupt=0.002,delay=0.005:300us,seed=5")
    check(near["faults_loss"] > 0 and near["faults_reorder"] > 0 and near["rx_bytes"] > 16 << 20, near)


def overrun():
    near, _ = transfer(faults="overrun=0.005,stall=50ms:5ms", meanwhile=lambda lab, receiver: until(lab.near, "rx_posted", 4096 - 64))
    check(near["faults_overrun"] > 0 and near["faults_stall"] > 0, near)
    check(0 < near["rx_drops_told"] <= near["rx_out_of_buffer"], near)  # by which the queue has grown


def errors():
    """Error completions on both queues of both ends, counted for `accel stat`; the connection goes on."""

    def meanwhile(lab, receiver):
        for _ in range(3):
            start = lab.near.counters().get("rx_bytes", 0)
            until(lab.near, "rx_bytes", start + (2 << 20))
            lab.near.fail_receive()
            lab.far.fail_send()
        end = time.monotonic() + 20
        while statistics(receiver.pid).get("counters", {}).get("mlx5_recoveries", 0) < 1:
            check(time.monotonic() < end, "accel stat does not know of them")

    near, far = transfer(meanwhile=meanwhile)
    check(near["error_cqes"] > 0 and far["error_cqes"] > 0, (near, far))


def link():
    """The cable is pulled and put back."""

    def meanwhile(lab, _):
        until(lab.near, "rx_bytes", 2 << 20)
        lab.near.ip("link", "set", lab.near.device, "down")
        until(lab.near, "async_events", 1)
        lab.near.ip("link", "set", lab.near.device, "up")
        until(lab.near, "async_events", 2)

    transfer(meanwhile=meanwhile)


def removal():
    """The NIC goes; the connection goes on in the kernel."""

    def meanwhile(lab, _):
        until(lab.near, "rx_bytes", 2 << 20)
        lab.near.remove_device()

    near, _ = transfer(meanwhile=meanwhile, env={"ACCEL_REQUIRE": "0"})
    check(near["rx_bytes"] < 16 << 20, near)


def compressed():
    near, _ = transfer(env={"ACCEL_MLX5_CQE_COMPRESSION": "1"})
    check(near["cqes_compressed"] > 0, near)


def vectors():
    """The device's interrupt is that of a CPU that the process may run on; those of processes that may run on all of them differ."""
    cpus = sorted(os.sched_getaffinity(0))
    with ModelLab() as lab:
        def vector_of(command):
            program = lab.near.popen([*command, sys.executable, "-c", BINDS, lab.near.address], accel=True, stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, text=True)
            check(program.stdout.readline() == "bound\n", command)
            found = lab.near.counters(program.pid)["event_vectors"]
            program.communicate("\n", timeout=20)
            check(program.returncode == 0, program.returncode)
            return program.pid, found
        for cpu in cpus:
            _, found = vector_of(["taskset", "-c", cpu])
            check(found == cpu % 4, (cpu, found))
        for _ in range(6):
            pid, found = vector_of([])
            check(found == cpus[pid % len(cpus)] % 4, (pid, cpus, found))


BINDS = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((sys.argv[1], 7006))
print("bound", flush=True)
sys.stdin.readline()
"""


def wakes():
    """A thread that sleeps takes the events it was woken by: else every later sleep ends at once."""
    near, far = transfer(4, env={"ACCEL_SPIN": "0"})
    check(near["arms"] > 0 and near["events"] > 0, near)
    for end in (near, far):
        check(end["arms_ignored"] <= end["events"] + 2, end)


ECHO = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((sys.argv[1], 7005))
print("ready", flush=True)
while (got := s.recvfrom(100))[0] != b"end": s.sendto(*got)
"""
BURSTS = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect((sys.argv[1], 7005)); s.settimeout(20)
burst = int(sys.argv[2])
for first in range(0, 400, burst):
    for i in range(burst): s.send(b"%d" % (first + i))
    for i in range(burst): assert s.recv(100) == b"%d" % (first + i)
s.send(b"end")
"""


def moderated():
    """With moderation a sleeper is woken for every so many frames, or when the time is over; without, for each."""
    def events(burst, env):
        with ModelLab() as lab:
            echo = lab.near.popen([sys.executable, "-c", ECHO, lab.near.address], accel=True, stdout=subprocess.PIPE, text=True,
                                  env={"ACCEL_SPIN": "0", **env})
            check(echo.stdout.readline() == "ready\n", "no echo")
            lab.far.run([sys.executable, "-c", BURSTS, lab.near.address, burst])
            check(echo.wait(20) == 0, echo.returncode)
            return lab.near.counters()["events"]

    wanted = {"ACCEL_MLX5_MODERATION_COUNT": "8", "ACCEL_MLX5_MODERATION_USEC": "60000"}  # the device can 4095
    alone, together = events(1, {}), events(8, wanted)
    print(f"wake-ups for 400 frames: {alone} without, {together} with moderation")
    check(0 < together <= 100 and alone >= 2 * together, (alone, together))
    events(8, {**wanted, "MLX5_MODEL_REFUSE": "modify_cq:EOPNOTSUPP"})  # on mlx5 all the same


SHARES = 32  # src/mlx5/shares.h
FROM_EACH_SHARE = """
import socket, sys
for i in range(32):
    with socket.create_connection((sys.argv[1], 8080), 30, (sys.argv[2], int(sys.argv[3]) + 2 * i)) as c:
        c.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
        got = b""
        while b := c.recv(4096): got += b
        assert b"hello from nginx" in got, got
"""


def workers():
    """Of root, and as they are by default: rules are made by privileged requests then."""
    for user in ("root", "www-data"):
        divide(user)


def divide(user):
    """nginx's four workers divide the source ports of their one address: each has its connections, the kernel none; and again when one was
    killed and another started in its place."""
    with ModelLab() as lab, nginx(lab.near, True, workers=4, user=user) as master:
        near, far = lab.hosts

        def by_worker():
            return {p: statistics(p).get("counters", {}) for p in descendants(master.pid)[1:]}

        def accepted():
            return {p: found.get("tcp_passive_opens", 0) for p, found in by_worker().items()}

        def shares():
            """The first one had all before it gave."""
            return [(found.get("mlx5_shares_taken", 0) - found.get("mlx5_shares_given", 0)) % SHARES for found in by_worker().values()]

        def load(first_port):
            end = time.monotonic() + 20
            while (found := shares()) != [SHARES // 4] * 4:
                check(time.monotonic() < end, found)
                time.sleep(0.02)
            before, kernel = accepted(), near.enter("nstat", "-asz", "TcpPassiveOpens")
            far.run([sys.executable, "-c", FROM_EACH_SHARE, near.address, far.address, first_port])
            new = {p: n - before.get(p, 0) for p, n in accepted().items()}
            check(len(new) == 4 and sum(new.values()) == SHARES and min(new.values()) > 0, new)
            check(near.enter("nstat", "-asz", "TcpPassiveOpens") == kernel, "the kernel accepted")
            return new

        print(load(40000))
        made = near.counters()
        # By their tags the device tells equal rules of two processes apart; one a process tries whether there is steering.
        check(made["flows_tagged"] >= max(made["flows"] - made["contexts"], SHARES), made)
        victim = descendants(master.pid)[1]
        os.kill(victim, 9)
        end = time.monotonic() + 20
        while len(found := descendants(master.pid)) != 5 or victim in found:
            check(time.monotonic() < end, "no other worker was started")
            time.sleep(0.02)
        print(load(41000))


REFUSED = """
import errno, socket, sys
for address in sys.argv[1:]:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as s:
        s.settimeout(20)
        print(errno.errorcode.get(s.connect_ex((address, 7001))))
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(20)
        s.connect((address, 7002))
        for n in range(3):
            s.setblocking(False) if n == 2 else None
            try:
                if n < 2: s.send(b"x")
                print("got", s.recv(1))
            except OSError as e:
                print(errno.errorcode.get(e.errno))
"""
# What goes by is quoted back as too big for a router that is not there; says the connection's path MTU before and after.
PATH_MTU = """
import socket, struct, sys
TCP_INFO, PMTU = 11, 24 + 36
def pmtu(s): return struct.unpack_from("=I", s.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 104), PMTU)[0]
s = socket.create_connection((sys.argv[1], 7003), 30)
print(pmtu(s))
s.sendall(bytes(100000)); s.shutdown(socket.SHUT_WR)
print(s.recv(100))
print(pmtu(s))
"""
ROUTER = """
import socket, struct, sys, threading
me, mac = sys.argv[1], sys.argv[2]
def total(b): return sum(struct.unpack(f"!{len(b) // 2}H", b))
def check(b):
    n = total(b + bytes(len(b) % 2)); n = (n >> 16) + (n & 0xffff); return ~(n + (n >> 16)) & 0xffff
tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800)); tap.bind((sys.argv[3], 0))
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
server = socket.create_server((me, 7003))
def route():
    while True:
        f = tap.recv(65536)
        if f[23] != 6 or f[36:38] != struct.pack("!H", 7003) or len(f) < 1500: continue
        quoted = f[14:14 + 28]
        m = struct.pack("!BBHHH", 3, 4, 0, 0, 900) + quoted
        raw.sendto(m[:2] + struct.pack("!H", check(m)) + m[4:], (socket.inet_ntoa(f[26:30]), 0))
        return
threading.Thread(target=route, daemon=True).start()
print("ready", flush=True)
c, _ = server.accept()
n = 0
while b := c.recv(1 << 16): n += len(b)
c.sendall(str(n).encode())
"""


def taps(pid):
    """The packet sockets with a ring of a process: whether each is spared what its netdev sends."""
    packet, version, ignore_outgoing = 263, 10, 23
    process = os.pidfd_open(pid)
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        if not os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:"):
            continue
        copy = ctypes.CDLL(None, use_errno=True).syscall(438, process, int(fd), 0)  # pidfd_getfd()
        check(copy >= 0, os.strerror(ctypes.get_errno()))
        with socket.socket(fileno=copy) as s:
            if s.family == socket.AF_PACKET and s.getsockopt(packet, version) == 1:
                found.append(s.getsockopt(packet, ignore_outgoing))
    os.close(process)
    return found


def icmp():
    """What ICMP errors say comes to connections on the model as it does in the kernel: refusal, and a path's MTU."""
    with ModelLab() as lab:
        near, far = lab.hosts
        program = near.popen([sys.executable, "-c", BINDS, near.address], accel=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        check(program.stdout.readline() == "bound\n", "not bound")
        check(taps(program.pid) == [1], "the kernel looks at what is sent, too")
        program.communicate("\n", timeout=20)
        # What does not fit the path never arrives, so it is in flight when the router speaks.
        far.enter("nft", "add table inet t; add chain inet t c { type filter hook input priority 0; }; "
                  "add rule inet t c tcp dport 7001 reject with icmpx port-unreachable; add rule inet t c tcp dport 7003 ip length > 900 drop")
        said = [near.run([sys.executable, "-c", REFUSED, far.address, far.address6], accel=accel) for accel in (False, True)]
        check(said[0] == said[1] and said[0].startswith("ECONNREFUSED\nECONNREFUSED\n"), said)
        for accel in (False, True):
            router = far.popen([sys.executable, "-c", ROUTER, far.address, far.mac, far.device], stdout=subprocess.PIPE, text=True)
            check(router.stdout.readline() == "ready\n", "no router")
            said = near.run([sys.executable, "-c", PATH_MTU, far.address], accel=accel).split()
            check(said == ["1500", "b'100000'", "900"], (accel, said))
            check(router.wait(20) == 0, router.returncode)
            near.ip("route", "flush", "cache")  # the kernel heard of it too


DESCRIPTORS = """
import hashlib, os, socket, sys
c = socket.create_connection((sys.argv[1], 7000))
def of_verbs(fd):  # the model has others for a moment: a rule is a descriptor there
    try: return is_kept(fd)
    except FileNotFoundError: return False
def is_kept(fd):
    target = os.readlink(f"/proc/self/fd/{fd}")  # the model's device file is /dev/null, its events are pipes
    flags = next(int(line.split()[1], 8) for line in open(f"/proc/self/fdinfo/{fd}") if line.startswith("flags"))
    return target == "/dev/null" or (target.startswith("pipe:") and flags & os.O_ACCMODE == os.O_RDONLY)
found = [fd for fd in range(3, 1024) if os.path.lexists(f"/proc/self/fd/{fd}") and of_verbs(fd)]
for fd in found:
    try:
        os.close(fd)
        print("closed", fd)
    except OSError as e:
        print(e.errno)
c.sendall(b"x")
"""


def descriptors():
    """The device's file, its events and its completions are not the program's to close."""
    with ModelLab() as lab:
        receiver = lab.far.popen([sys.executable, "-c", RECEIVER, lab.far.address], stdout=subprocess.PIPE, text=True)
        lab.far.wait_for_listener(7000, receiver)
        said = lab.near.run([sys.executable, "-c", DESCRIPTORS, lab.far.address], accel=True).split()
        check(said == ["9"] * 3, said)
        check(receiver.communicate(timeout=20)[0].strip() == hashlib.sha256(b"x").hexdigest(), "the byte did not come")


STAMPS = """
import select, socket, struct, sys, time
TIMESTAMPING, TIMESTAMPING_NEW, RX_HARDWARE, RX_SOFTWARE, SOFTWARE, RAW_HARDWARE, RX_FILTER = 37, 65, 4, 8, 16, 64, 1 << 17
EPOCH = 10 ** 18  # model/front/clock.h
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((sys.argv[1], 7005))
def stamps(option, flags):
    s.setsockopt(socket.SOL_SOCKET, option, flags)
    before = [time.clock_gettime_ns(c) for c in (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC)]
    s.send(b"x")
    assert select.select([s], [], [], 20)[0]
    after = [time.clock_gettime_ns(c) for c in (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC)]
    _, control, _, _ = s.recvmsg(100, 200)
    if not control: return None
    (_, kind, data), = control
    assert kind == option, control
    t = struct.unpack("=6q", data)
    software, unused, hardware = (t[i] * 10**9 + t[i + 1] for i in (0, 2, 4))
    assert unused == 0, t
    if software: assert before[0] - 1000 < software < after[0] + 1000, (before, software, after)
    if hardware: assert before[1] - 100 < hardware - EPOCH < after[1] + 100, (before, hardware, after)
    return bool(software), bool(hardware)
both = RX_HARDWARE | RX_SOFTWARE | SOFTWARE | RAW_HARDWARE
for flags in (both, RX_HARDWARE | RAW_HARDWARE, RAW_HARDWARE, RAW_HARDWARE | RX_FILTER, RX_HARDWARE | SOFTWARE | RX_FILTER):
    print(stamps(TIMESTAMPING, flags))
print(stamps(TIMESTAMPING_NEW, both))
s.send(b"end")
"""


def stamps():
    """SO_TIMESTAMPING tells the device's time of each datagram's arrival, be its clock a counter or the time of day. Compressed completions
    have none: then the kernel serves."""
    def run(compressed, clock=""):
        with ModelLab() as lab:
            near, far = lab.hosts
            echo = far.popen([sys.executable, "-c", ECHO, far.address], stdout=subprocess.PIPE, text=True)
            check(echo.stdout.readline() == "ready\n", "no echo")
            said = near.run([sys.executable, "-c", STAMPS, far.address], accel=True,
                            env={"ACCEL_MLX5_CQE_COMPRESSION": compressed, "MLX5_MODEL_CLOCK": clock})
            check(echo.wait(20) == 0, echo.returncode)
            return said.splitlines(), near.counters().get("rx_packets", 0)

    for clock in ("", "real"):
        found = run("0", clock)
        check(found == (["(True, True)", *["(False, True)"] * 2, *["None"] * 2, "(True, True)"], 6), (clock, found))
    said, by_the_device = run("1")
    check(by_the_device == 0 and not any(line.endswith("True)") for line in said), (said, by_the_device))


# The connection goes to the kernel under the listener's rule, so its frames come to the NIC and are given back.
GIVES_UP_ROOT = """
import os, socket, sys
s = socket.create_server((sys.argv[1], 7005))
os.setgid(65534); os.setuid(65534)
print("ready", flush=True)
c, _ = s.accept()
c.recv(1)
a, b = socket.socketpair()
socket.send_fds(a, [b"x"], [c.fileno()])
d = socket.socket(fileno=socket.recv_fds(b, 1, 1)[1][0]); c.close()
d.settimeout(20); d.send(b"h")
while b := d.recv(100): d.send(b)
sys.stdin.readline()
"""
ASKS = """
import socket, sys
s = socket.create_connection((sys.argv[1], 7005), 20); s.send(b"h")
for i in range(6):
    assert s.recv(10)
    if i < 5: s.send(b"ping")
"""


def privilege():
    """What a listener's rule brings and is the kernel's is given to it by a process that has given up root before."""
    with ModelLab() as lab:
        server = lab.near.popen([sys.executable, "-c", GIVES_UP_ROOT, lab.near.address], accel=True, stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)
        check(server.stdout.readline() == "ready\n", "no server")
        lab.far.run([sys.executable, "-c", ASKS, lab.near.address])
        end = time.monotonic() + 20
        while (found := statistics(server.pid).get("counters", {})).get("mlx5_to_kernel", 0) < 5:
            check(time.monotonic() < end, found)
        check(found["mlx5_to_kernel_failed"] == 0, found)
        server.communicate("\n", timeout=20)
        check(server.returncode == 0, server.returncode)


SENDS_ONLY = """
import select, socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect((sys.argv[1], 7005))
while not select.select([sys.stdin], [], [], 0.001)[0]:
    try: s.send(b"x")
    except ConnectionRefusedError: pass  # nobody listens there
"""


def sender():
    """A program that only sends keeps its port over as many errors as come: what was sent between them tells that the queue works."""
    with ModelLab() as lab:
        program = lab.near.popen([sys.executable, "-c", SENDS_ONLY, lab.far.address], accel=True, stdin=subprocess.PIPE, text=True)
        for errors in range(12):
            until(lab.near, "tx_packets", lab.near.counters().get("tx_packets", 0) + 100)
            lab.near.fail_send()
            until(lab.near, "error_cqes", errors + 1)
        until(lab.near, "tx_packets", lab.near.counters()["tx_packets"] + 100)
        found = statistics(program.pid)["counters"]
        check(found["mlx5_recoveries"] == 12, found)
        program.communicate("\n", timeout=20)
        check(program.returncode == 0 and lab.near.counters()["contexts"] == 1, (program.returncode, lab.near.counters()))


ASK_ONCE = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect((sys.argv[1], 7005)); s.settimeout(20)
s.send(b"x"); assert s.recv(10) == b"x"
"""


def reopened():
    """A port that is lost is closed: its slot and its buffers are the next one's, as often as the device goes and comes."""
    with ModelLab() as lab:
        near, far = lab.hosts
        echo = near.popen([sys.executable, "-c", ECHO, near.address], accel=True, require=False, stdout=subprocess.PIPE, text=True)
        check(echo.stdout.readline() == "ready\n", "no echo")
        for times in range(12):
            until(near, "steal_rules", 3 * (times + 1))  # one tries whether there is steering, one is the socket's
            got = near.counters()["rx_packets"]
            far.run([sys.executable, "-c", ASK_ONCE, near.address])
            check(near.counters()["rx_packets"] == got + 1, (times, near.counters()))
            near.remove_device()
            end = time.monotonic() + 20
            while statistics(echo.pid).get("counters", {}).get("port_errors", 0) <= times:
                check(time.monotonic() < end, "the device is still there")
            near.return_device()
            near.ip("link", "set", near.device, "down")
            near.ip("link", "set", near.device, "up")


LONG = """
import select, socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect((sys.argv[1], 7005))
c = socket.create_connection((sys.argv[1], 7005))
s.send(b"x"); s.recv(100); c.send(b"x"); c.recv(1)
print("ready", flush=True)
sys.stdin.readline()
for i in range(12):  # the port may not be open anew yet
    s.send(bytes(8000))
while s.send(b"again") and not (select.select([s], [], [], 1)[0] and s.recv(100) == b"5"): pass
while select.select([s], [], [], 0.2)[0]: s.recv(100)
print("again", flush=True)
sys.stdin.readline()
for i in range(12):
    s.send(bytes(8000)); s.settimeout(20); assert s.recv(100) == b"8000"
c.send(b"y"); assert c.recv(1) == b"y"
s.send(b"end")
"""
LENGTHS = """
import socket, sys, threading
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((sys.argv[1], 7005))
l = socket.create_server((sys.argv[1], 7005))
print("ready", flush=True)
def echo():
    c, _ = l.accept()
    while b := c.recv(100): c.send(b)
threading.Thread(target=echo).start()
while (got := s.recvfrom(65536))[0] != b"end": s.sendto(b"%d" % len(got[0]), got[1])
"""


def mtu():
    """The MTU grows while a port is open: what is too long for its buffers is lost, and nothing else; then the port is opened anew."""
    with ModelLab() as lab:
        near, far = lab.hosts
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        echo = near.popen([sys.executable, "-c", LENGTHS, near.address], accel=True, **pipes)
        check(echo.stdout.readline() == "ready\n", "no echo")
        sender = far.popen([sys.executable, "-c", LONG, near.address], **pipes)
        check(sender.stdout.readline() == "ready\n", "no sender")
        for host in lab.hosts:
            host.ip("link", "set", host.device, "mtu", "9000")

        def go_on():
            sender.stdin.write("\n")
            sender.stdin.flush()

        go_on()
        check(sender.stdout.readline() == "again\n", "deaf")
        until(near, "flows", 6)  # one tries whether there is steering
        before = near.counters()["rx_bytes"]
        go_on()
        sender.communicate(timeout=60)
        check(sender.returncode == 0, sender.returncode)
        found = statistics(echo.pid).get("counters", {})
        check(near.counters()["left"] == 0, near.counters())  # of the port that was closed
        check(near.counters()["rx_bytes"] - before >= 12 * 8000 and found.get("mlx5_recoveries", 0) == 0, (near.counters(), found))
        check(echo.wait(20) == 0, echo.returncode)


def headers():
    """A ConnectX-4 wants each frame's headers within its descriptor, which those of several frames have not: libaccel knows it by its number."""
    for env in {}, {"ACCEL_TSO": "0"}:
        for end in transfer(4, env=env, part="1013"):
            check(end["tx_multi_packet"] == 0 and end["error_cqes"] == 0, end)


def function():
    """A virtual function of a ConnectX-5 is what its physical one is."""
    _, far = transfer(4, env={"ACCEL_TSO": "0"}, part="1018")
    check(far["tx_multi_packet"] > 20, far)


def bond():
    """The NIC has made one RDMA device of a bond's members (RoCE LAG): the PCI device has them, its port's GIDs are the bond's."""
    def prepare(host):
        classes = host.folder / "sys" / "class"
        shutil.rmtree(classes / "net" / host.device)
        for number, member in enumerate(("p0", "p1")):
            (classes / "net" / member / "device").mkdir(parents=True)
            (classes / "net" / member / "device" / "driver").symlink_to("../../drivers/mlx5_core")
            (classes / "infiniband/mlx5_0/device/net" / member).mkdir()
            (classes / "infiniband/mlx5_0/device/net" / member / "ifindex").write_text(f"{1000 + number}\n")
        shutil.rmtree(classes / "infiniband/mlx5_0/device/net" / host.device)
        (classes / "net" / host.device / "bonding").mkdir(parents=True)
        (classes / "net" / host.device / "bonding" / "slaves").write_text("p0 p1\n")

    near, far = transfer(4, prepare=prepare)
    check(near["rx_bytes"] > 4 << 20 and far["tx_bytes"] > 4 << 20, (near, far))


PLAIN_ECHOES = """
import socket, sys, threading
def echo(c):
    with c:
        while b := c.recv(65536): c.sendall(b)
for port in 7100, 7101:
    s = socket.create_server((sys.argv[1], port), backlog=64)
    def serve(s=s):
        while True: threading.Thread(target=echo, args=(s.accept()[0],), daemon=True).start()
    threading.Thread(target=serve).start()
print("ready", flush=True)
"""
MANY = """
import random, socket, sys
address, count, ports = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
connections = [socket.create_connection((address, 7100 + i % ports), 60) for i in range(count)]
r = random.Random(count)
for _ in range(5):
    sent = [r.randbytes(20000) for c in connections]
    for c, b in zip(connections, sent): c.sendall(b)
    for c, b in zip(connections, sent):
        got = b""
        while len(got) < len(b):
            more = c.recv(65536)
            assert more
            got += more
        assert got == b
print("equal", flush=True)
sys.stdin.readline()
"""


def wide():
    """Where the NIC has room for few rules one brings what comes from a remote end, and connections are told apart: with losses, and beside
    others' connections to the same ends, which are the kernel's."""
    with ModelLab() as lab:
        near, far = lab.hosts
        near.faults = "loss=0.005,reorder=0.005,seed=3"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        servers = far.popen([sys.executable, "-c", PLAIN_ECHOES, far.address], **pipes)
        check(servers.stdout.readline() == "ready\n", "no servers")
        room, count = 6, 40
        first = near.popen([sys.executable, "-c", MANY, far.address, count, 2], accel=True, env={"MLX5_MODEL_RULES": room}, **pipes)
        check(first.stdout.readline() == "equal\n", near.counters())
        mine = near.counters(first.pid)
        # Two rules that keep the driver's tables (StandingRules): of these one has given its place to a connection.
        check(mine["rules"] == room + 2 + 1 and mine["flows"] == room + 2 + 2, mine)
        check(mine["rx_bytes"] > count * 5 * 20000 and mine["faults_loss"] > 0, mine)
        found = statistics(first.pid)["counters"]
        check(found["sockets_accelerated"] == count and found.get("mlx5_to_kernel", 0) == 0, found)

        near.run([sys.executable, "-c", MANY, far.address, 3, 2])
        given = statistics(first.pid)["counters"]["mlx5_to_kernel"]
        check(given > 3 * 5 * 20000 // 1500, given)
        # Another accelerated process is refused the same wide rule (EEXIST), so its connections are the kernel's, too.
        second = near.popen([sys.executable, "-c", MANY, far.address, 3, 2], accel=True, require=False, env={"MLX5_MODEL_RULES": room}, **pipes)
        check(second.stdout.readline() == "equal\n", near.counters(second.pid))
        theirs = near.counters(second.pid)
        check(theirs.get("rules", 0) == 1 and theirs.get("rx_packets", 0) == 0, theirs)
        for child in first, second:
            child.communicate("\n", timeout=30)
            check(child.returncode == 0, child.returncode)
        check(near.counters(first.pid)["rules"] == 1, near.counters(first.pid))


CHURN = """
import socket, sys
for i in range(int(sys.argv[2])):
    with socket.create_connection((sys.argv[1], 7007), 20) as c:
        c.sendall(b"x"); assert c.recv(1) == b"x"
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
"""
ANSWERS = """
import socket, sys
s = socket.create_server((sys.argv[1], 7007)); print("ready", flush=True)
while True:
    c, _ = s.accept(); c.sendall(c.recv(1)); c.close()
"""


def tables():
    """The flow tables of the kernel's driver are made once, however many connections come and go."""
    with ModelLab() as lab:
        near, far = lab.hosts
        answers = far.popen([sys.executable, "-c", ANSWERS, far.address], stdout=subprocess.PIPE, text=True)
        check(answers.stdout.readline() == "ready\n", "no server")
        near.run([sys.executable, "-c", CHURN, far.address, 60], accel=True)
        found = near.counters()
        check(found["flows"] >= 60 and found["flow_tables"] == 1, found)


ENDS = """
import socket, sys
address, here = sys.argv[1:]
s = socket.create_server((here, 7006)); u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind((here, 7006))
with socket.create_connection((address, 7000), 30) as c:
    c.sendall(b"x" * 100000); c.shutdown(socket.SHUT_WR)
    while c.recv(1 << 16): pass
print("moved", flush=True)
sys.stdin.readline()
"""


def ends():
    """What programs leave on the NIC: those that end no rule and no object but the port's own, those that are killed nothing."""
    with ModelLab() as lab:
        near, far = lab.hosts
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        for turn in range(40):
            receiver = far.popen([sys.executable, "-c", RECEIVER, far.address], accel=True, stdout=subprocess.PIPE, text=True)
            far.wait_for_listener(7000, receiver)
            program = near.popen([sys.executable, "-c", ENDS, far.address, near.address], accel=True, **pipes)
            check(program.stdout.readline() == "moved\n", turn)
            check(near.counters(program.pid)["rules"] >= 2, near.counters(program.pid))
            if turn % 2:
                near.stop(program, signal.SIGKILL)
            else:
                program.communicate("\n", timeout=30)
                check(program.returncode == 0, program.returncode)
            check(receiver.wait(30) == 0, receiver.returncode)
            # Of connections, of TCP's and of UDP's local ends each one that keeps the driver's table.
            for kinds, end in [(2, far.counters(receiver.pid))] + ([] if turn % 2 else [(3, near.counters(program.pid))]):
                check(end["rules"] == kinds, (turn, end))
                # Domain, memory region, two completion queues, a receive queue with its table and pair, and a queue pair for sending, which
                # go with the process.
                check(end["contexts"] == 1 and end["left"] == 0 and end["objects"] == 8, (turn, end))
        for host in lab.hosts:
            check(not host.xdp_left(), f"{host.name}: rules are left")
            claims = [line for line in host.enter("cat", "/proc/net/unix").splitlines() if "@mlx5-model/" in line]
            check(not claims, claims)


SUMS = """
import socket, struct, sys
here, there, mac, their_mac, device = sys.argv[1:]
def sum_of(b):
    n = sum(struct.unpack(f"!{(len(b) + 1) // 2}H", b + bytes(len(b) % 2)))
    while n >> 16: n = (n >> 16) + (n & 0xffff)
    return ~n & 0xffff
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind((device, 0))
def send(payload, wrong):
    a, b = socket.inet_aton(here), socket.inet_aton(there)
    udp = struct.pack("!HHHH", 7009, 7008, 8 + len(payload), 0) + payload
    udp = udp[:6] + struct.pack("!H", sum_of(a + b + struct.pack("!HH", 17, len(udp)) + udp) ^ wrong) + udp[8:]
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0) + a + b
    ip = ip[:10] + struct.pack("!H", sum_of(ip)) + ip[12:]
    s.send(b"".join(bytes.fromhex(m.replace(":", "")) for m in (their_mac, mac)) + b"\\x08\\x00" + ip + udp)
send(b"right", 0)
send(b"wrong", 0x1111)
send(b"end", 0)
"""
TAKES_ALL = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((sys.argv[1], 7008)); s.settimeout(20)
print("ready", flush=True)
got = []
while not got or got[-1] != "end": got.append(s.recv(100).decode())
print(*got, flush=True)
sys.stdin.readline()
"""


def verdicts():
    """What the device has verified is not added up again: it may say so of a wrong checksum. One that it does not vouch for is dropped."""
    for faults in "", "vouch=1":
        with ModelLab() as lab:
            near, far = lab.hosts
            near.faults = faults
            receiver = near.popen([sys.executable, "-c", TAKES_ALL, near.address], accel=True, stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
            check(receiver.stdout.readline() == "ready\n", "no receiver")
            far.run([sys.executable, "-c", SUMS, far.address, near.address, far.mac, near.mac, far.device])
            got = receiver.stdout.readline().split()
            check(got == (["right", "wrong", "end"] if faults else ["right", "end"]), (faults, got))
            dropped = statistics(receiver.pid)["counters"]["drop_udp_checksum"]
            check(dropped == (0 if faults else 1) and near.counters()["rx_bad_checksum"] == 1, (faults, dropped, near.counters()))
            receiver.communicate("\n", timeout=20)


TO_OTHERS = """
import socket, struct, sys
here, there, device, *macs = sys.argv[1:]
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind((device, 0))
a, b = socket.inet_aton(here), socket.inet_aton(there)
def sum_of(b):
    n = sum(struct.unpack(f"!{len(b) // 2}H", b))
    while n >> 16: n = (n >> 16) + (n & 0xffff)
    return ~n & 0xffff
tcp = struct.pack("!HHIIBBHHH", 7009, 7008, 1, 1, 5 << 4, 0x10, 1000, 0, 0)
tcp = tcp[:16] + struct.pack("!H", sum_of(a + b + struct.pack("!HH", 6, len(tcp)) + tcp)) + tcp[18:]
ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 1, 0, 64, 6, 0) + a + b
ip = ip[:10] + struct.pack("!H", sum_of(ip)) + ip[12:]
for mac in macs: s.send(bytes.fromhex(mac.replace(":", "")) + b"\\x02\\0\\0\\0\\0\\x09\\x08\\0" + ip + tcp)
"""
LISTENS = """
import select, socket, sys
s = socket.create_server((sys.argv[1], 7008))
select.select([s], [], [], 0.01)
print("ready", flush=True)
select.select([s, sys.stdin], [], [])
"""


def other_hosts():
    """What a promiscuous netdev hears for another host of the same IP address is not given to the kernel, which would answer with a reset."""
    with ModelLab() as lab:
        near, far = lab.hosts
        server = near.popen([sys.executable, "-c", LISTENS, near.address], accel=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        check(server.stdout.readline() == "ready\n", "no server")
        far.run([sys.executable, "-c", TO_OTHERS, far.address, near.address, far.device, "02:00:00:00:00:77", "ff:ff:ff:ff:ff:ff", near.mac])
        end = time.monotonic() + 20
        while (found := statistics(server.pid).get("counters", {})).get("mlx5_to_kernel", 0) < 1:
            check(time.monotonic() < end, found)
        check(found["mlx5_to_kernel"] == 1 and found["drop_other_host"] == 2, found)
        check(near.snmp()["Tcp:OutRsts"] == 1, near.snmp())
        server.communicate("\n", timeout=20)


LIBRARIES = """
import re, socket, sys
def there():
    found = re.findall(r"/(libibverbs|libmlx5\\.so|libmlx5-rdmav|libaccel-mlx5)", open("/proc/self/maps").read())
    print(*sorted(set(found)), sep=",")
there()
local = socket.create_server(("127.0.0.1", 0))
with socket.create_connection(local.getsockname()) as c: c.send(b"x")
a, b = socket.socketpair()
there()
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect((sys.argv[1], 9))
there()
"""


def libraries():
    """libibverbs and the device's library come into a program with the first socket that needs them."""
    with ModelLab() as lab:
        said = lab.near.run([sys.executable, "-c", LIBRARIES, lab.far.address], accel=True, require=False,
                            env={"ACCEL_WAIT_FOR_PORTS": "1"}).splitlines()
        check(said[:2] == ["", ""] and "libibverbs" in said[2] and "libaccel-mlx5" in said[2], said)


STRIDES = """
import os, socket, sys
def shared():
    sizes = [int(end, 16) - int(start, 16) for line in open("/proc/self/maps") if "rw-s" in line and "/dev/zero" in line
             for start, end in [line.split()[0].split("-")]]
    return [n for n in sizes if n >= 1 << 20]
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect((sys.argv[1], 9))
print(len(shared()), flush=True)
if os.fork() == 0:
    print(len(shared()), flush=True)
    os._exit(0)
os.wait()
"""


def strides():
    """A child has neither the pool's frames nor the striding queue's buffers."""
    with ModelLab() as lab:
        said = lab.near.run([sys.executable, "-c", STRIDES, lab.far.address], accel=True, env={"ACCEL_MLX5_STRIDING_RQ": "1", "ACCEL_HUGE_PAGES": "0"})
        check(said.split() == ["2", "0"], said)


MEMBER = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("", 7007))
s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("239.1.2.3") + socket.inet_aton(sys.argv[1]))
s.setsockopt(socket.IPPROTO_IP, 49, 0)  # IP_MULTICAST_ALL
print("ready", flush=True)
got = []
while (word := s.recv(100)) != b"end": got.append(word.decode())
print(*sorted(got))
"""
SPEAKER = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(sys.argv[1]))
for what in sys.argv[2:]:
    to, word = what.split("=")
    s.sendto(word.encode(), (to, 7007))
"""


def multicast():
    """Every process that joined a group has each of its datagrams, accelerated or not, and none of a group that nobody joined. They come by
    the kernel, since a rule would take them from the others; what is sent to the socket alone comes by the NIC."""
    with ModelLab() as lab:
        near, far = lab.hosts
        for accel in False, True:
            before = near.counters().get("rx_packets", 0)
            members = [near.popen([sys.executable, "-c", MEMBER, near.address], accel=on, require=False, stdout=subprocess.PIPE, text=True) for on in (False, accel)]
            for member in members:
                check(member.stdout.readline() == "ready\n", "no member")
            words = [f"{group}={group[-1]}-{i:02}" for i in range(20) for group in ("239.1.2.3", "239.1.2.4")]
            far.run([sys.executable, "-c", SPEAKER, far.address, *words])
            if accel:
                far.run([sys.executable, "-c", SPEAKER, far.address, *[f"{near.address}=alone"] * 5])
                until(near, "rx_packets", before + 5)
            far.run([sys.executable, "-c", SPEAKER, far.address, "239.1.2.3=end"])
            heard = [f"3-{i:02}" for i in range(20)]
            said = [member.communicate(timeout=30)[0].split() for member in members]
            check(said == [heard, heard + ["alone"] * 5 if accel else heard], said)
            check(near.counters().get("rx_packets", 0) - before == (5 if accel else 0), near.counters())


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    globals()[sys.argv[1]]()
