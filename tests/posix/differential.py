#!/usr/bin/env python3
"""Random sequences of socket calls, once on the kernel and once accelerated: results, errno, readiness and bytes must agree.

    differential.py [--sequences N] [--seed S] [--kinds K,K]     S..S+N-1; a difference prints its seed and both transcripts

The near end makes the calls, in one namespace, as two processes: one plain, one preloaded. The far end, always on the kernel, does what
the near end's script says. A sequence follows from its seed alone. What the scheduler may change between two runs is taken out by running
a differing sequence again: a difference counts when it is there every time.
"""
import argparse
import ctypes
import errno
import fcntl
import json
import os
import pathlib
import random
import select
import socket
import struct
import subprocess
import sys
import termios
import time
import zlib

sys.dont_write_bytecode = True
KINDS = ["tcp_connect", "tcp_accept", "tcp_fresh", "udp_connected", "udp_bound"]
MSG = {"DONTWAIT": socket.MSG_DONTWAIT, "PEEK": socket.MSG_PEEK, "TRUNC": socket.MSG_TRUNC, "OOB": socket.MSG_OOB,
       "WAITALL": socket.MSG_WAITALL, "ERRQUEUE": socket.MSG_ERRQUEUE}
libc = ctypes.CDLL(None, use_errno=True)


def shown(call, *arguments):
    """A call's result as it can be compared."""
    try:
        value = call(*arguments)
    except socket.timeout:
        return "timeout"
    except OSError as e:
        return errno.errorcode.get(e.errno, str(e.errno))
    if isinstance(value, (bytes, bytearray)):
        return [len(value), zlib.crc32(value)]
    return value


def pattern(n, start):
    return bytes((start + i * 7) & 0xff for i in range(n))


# ---- the far end ----

class Peer:
    """What the script may ask of the far end; one at a time."""

    def __init__(self, address):
        self.address, self.sock, self.listener, self.sent, self.deaf = address, None, None, 0, False

    def make(self, kind):
        self.forget()
        if kind.startswith("tcp"):
            self.listener = socket.create_server((self.address, 0))
            return self.listener.getsockname()[1]
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind((self.address, 0))
        self.sock.settimeout(0.03)
        return self.sock.getsockname()[1]

    def accept(self):
        self.listener.settimeout(5)
        self.sock, name = self.listener.accept()
        return self.ready("accepted")

    def call(self, host, port):
        if self.sock is None:
            self.sock = socket.socket()
        self.sock.settimeout(5)
        self.sock.connect((host, port))
        return self.ready("connected")

    def ready(self, word):
        self.sock.settimeout(0.03)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # when it sends must not depend on the near end's ACKs
        return word

    def send(self, n, oob, to=None):
        data = pattern(n, self.sent)
        self.sent += n
        if to:
            return shown(self.sock.sendto, data, tuple(to))
        return shown(self.sock.send, data, socket.MSG_OOB if oob else 0)

    def drain(self):
        """Everything that comes until it is quiet."""
        if self.deaf:  # recv() says "end" at once, also while more comes
            time.sleep(0.05)
        if self.sock is None:
            return "none"
        if self.sock.type == socket.SOCK_DGRAM:
            parts = []
            while True:
                part = shown(self.sock.recv, 65536)
                if part == "timeout" or len(parts) > 100:
                    return parts
                parts.append(part)
        got = b""
        while True:
            try:
                part = self.sock.recv(65536)
            except socket.timeout:
                return [len(got), zlib.crc32(got)]
            except OSError as e:
                return [len(got), zlib.crc32(got), errno.errorcode[e.errno]]
            if not part:
                return [len(got), zlib.crc32(got), "end"]
            got += part

    def shutdown(self, how):
        self.deaf |= how != socket.SHUT_WR
        return shown(self.sock.shutdown, how)

    def close(self, reset):
        if self.sock is None:
            return None
        if reset and self.sock.type == socket.SOCK_STREAM:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()
        self.sock = None
        return None

    def forget(self):
        for s in (self.sock, self.listener):
            if s is not None:
                s.close()
        self.sock = self.listener = None
        self.sent, self.deaf = 0, False
        return None


def far(path, address):
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    control.bind(path)
    control.listen()
    print("ready", flush=True)
    poller = select.poll()
    poller.register(control, select.POLLIN)
    clients = {}
    while True:
        for fd, _ in poller.poll():
            if fd == control.fileno():
                c = control.accept()[0]
                clients[c.fileno()] = (c, c.makefile("rw"), Peer(address))
                poller.register(c, select.POLLIN)
                continue
            c, stream, peer = clients[fd]
            line = stream.readline()
            if not line:
                poller.unregister(fd)
                peer.forget()
                del clients[fd]
                continue
            name, *arguments = json.loads(line)
            try:
                answer = getattr(peer, name)(*arguments)
            except (OSError, AttributeError) as e:
                answer = f"far: {type(e).__name__}"
            stream.write(json.dumps(answer) + "\n")
            stream.flush()


# ---- the near end ----

def options(tcp):
    s, t, i = socket.SOL_SOCKET, socket.IPPROTO_TCP, socket.IPPROTO_IP
    both = [(s, socket.SO_KEEPALIVE), (s, socket.SO_REUSEADDR), (s, socket.SO_BROADCAST), (s, socket.SO_ERROR), (s, socket.SO_TYPE),
            (s, socket.SO_ACCEPTCONN), (s, socket.SO_OOBINLINE), (s, socket.SO_RCVLOWAT), (s, socket.SO_DOMAIN),
            (s, socket.SO_PROTOCOL), (s, socket.SO_PRIORITY), (i, socket.IP_TOS), (i, socket.IP_TTL), (s, 9999),
            (i, 14), (777, 1)]
    if not tcp:
        return both + [(i, 8), (i, 13), (i, 12), (socket.IPPROTO_UDP, 1), (s, 29), (s, 35)]
    return both + [(t, socket.TCP_NODELAY), (t, socket.TCP_CORK), (t, socket.TCP_KEEPIDLE), (t, socket.TCP_KEEPINTVL),
                   (t, socket.TCP_KEEPCNT), (t, socket.TCP_SYNCNT), (t, socket.TCP_LINGER2), (t, socket.TCP_DEFER_ACCEPT),
                   (t, socket.TCP_USER_TIMEOUT), (t, socket.TCP_NOTSENT_LOWAT), (t, 9999)]


class Near:
    def __init__(self, path, here, there):
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.control.connect(path)
        self.stream = self.control.makefile("rw")
        self.here, self.there = here, there

    def peer(self, *words):
        self.stream.write(json.dumps(words) + "\n")
        self.stream.flush()
        answer = json.loads(self.stream.readline())
        time.sleep(0.002)
        select.select([self.sock] if self.sock and self.sock.fileno() >= 0 else [], [], [], 0)  # an accelerated end takes in what has come
        return answer

    def play(self, seed, kinds):
        self.random = random.Random(seed)
        self.kind = self.random.choice(kinds)
        self.tcp = self.kind.startswith("tcp")
        self.sent, self.disconnected = 0, False
        self.log = [self.kind]
        self.sock, self.extra = None, []
        try:
            self.begin()
            for _ in range(self.random.randint(3, 18)):
                self.step()
            self.log.append(["final", self.peer("drain")])
            for s in [self.sock, *self.extra]:
                s.close()
            self.log.append(["after close", self.peer("drain")])
        except OSError as e:
            self.log.append(repr(e))
        finally:
            for s in [self.sock, *self.extra]:
                if s is not None:
                    s.close()
            self.peer("forget")
        return self.log

    def begin(self):
        r = self.random
        self.port = self.peer("make", self.kind)
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM if self.tcp else socket.SOCK_DGRAM)
        for _ in range(r.choice([0, 0, 0, 1, 2])):
            self.set_option()
        if self.kind == "tcp_connect":
            self.sock.settimeout(5)
            self.log.append(["connect", shown(self.sock.connect, (self.there, self.port)), self.peer("accept")])
        elif self.kind == "tcp_accept":
            listener = socket.socket()
            listener.bind((self.here, 0))
            self.sock.close()
            self.sock = listener
            for _ in range(r.choice([0, 0, 1, 2])):
                self.set_option()
            listener.listen(8)
            listener.settimeout(5)
            self.log.append(["call", self.peer("call", self.here, listener.getsockname()[1])])
            self.sock, _ = listener.accept()
            self.extra.append(listener)
        elif self.kind == "udp_connected":
            self.log.append(["connect", shown(self.sock.connect, (self.there, self.port))])
        elif self.kind == "udp_bound":
            self.sock.bind((self.here if r.random() < 0.7 else "", 0))
        self.sock.setblocking(False)

    def hide(self, name):
        """Ports differ from run to run."""
        if not isinstance(name, tuple):
            return name
        return [name[0], "0" if name[1] == 0 else "far's" if name[1] == self.port else "some"]

    def set_option(self):
        level, name = self.random.choice(options(self.tcp))
        size = self.random.choice([4, 4, 4, 4, 4, 1, 0, 8])
        value = self.random.choice([0, 1, 1, 2, 5, 100, -1, 5000])
        data = struct.pack("iq", value, 0)[:size]
        self.log.append(["setsockopt", level, name, size, value, shown(self.sock.setsockopt, level, name, data)])

    def get_option(self):
        level, name = self.random.choice(options(self.tcp))
        size = self.random.choice([4, 4, 4, 4, 1, 12])
        self.log.append(["getsockopt", level, name, size, shown(lambda: list(self.sock.getsockopt(level, name, size)))])

    def flags(self, choices):
        names = self.random.choice(choices).split("|")
        return "|".join(names), sum(MSG[n] for n in names if n) | socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL

    def step(self):
        names = ["recv"] * 5 + ["send"] * 4 + ["peer_send"] * 5 + ["drain"] * 2 + ["poll"] * 3 + ["get_option"] * 2 + ["set_option"]
        names += ["name", "ioctl", "recvmsg", "odd", "shutdown", "peer_shutdown", "dup"]
        names += self.random.choice([["peer_close"], []])
        getattr(self, "do_" + self.random.choice(names))()

    do_set_option, do_get_option = set_option, get_option

    def do_recv(self):
        name, flags = self.flags(["", "", "", "PEEK", "TRUNC", "OOB", "WAITALL", "PEEK|TRUNC", "ERRQUEUE"] if self.tcp else
                                 ["", "", "", "PEEK", "TRUNC", "PEEK|TRUNC", "ERRQUEUE"])
        n = self.random.choice([1, 3, 50, 1000, 20000])
        if self.tcp or self.random.random() < 0.5:
            got = shown(self.sock.recv, n, flags)
            # with MSG_TRUNC Python shows bytes that nobody wrote
            self.log.append(["recv", n, name, got[0] if "TRUNC" in name and isinstance(got, list) else got])
        else:
            got = shown(lambda: (lambda data, source: (data[:0] if "TRUNC" in name else data, source))(*self.sock.recvfrom(n, flags)))
            if isinstance(got, tuple):
                got = [len(got[0]), zlib.crc32(got[0]), self.hide(got[1])]
            self.log.append(["recvfrom", n, name, got])

    def do_recvmsg(self):
        sizes = [self.random.choice([0, 1, 10, 300]) for _ in range(self.random.randint(0, 3))]
        room = self.random.choice([0, 10, 200])

        def call():
            buffers = [bytearray(n) for n in sizes]
            n, control, flags, name = self.sock.recvmsg_into(buffers, room, socket.MSG_DONTWAIT)
            kinds = [(level, kind, len(data)) for level, kind, data in control]
            return [n, [zlib.crc32(b) for b in buffers], kinds, flags, self.hide(name) if name else None]
        self.log.append(["recvmsg", sizes, room, shown(call)])

    def do_send(self):
        name, flags = self.flags(["", "", "", "OOB"])
        n = self.random.choice([0, 1, 10, 1400, 5000] if self.tcp else [0, 1, 10, 1400, 1473, 9000, 65507, 65508])
        data = pattern(n, self.sent)
        self.sent += n
        if self.tcp or self.random.random() < 0.4:
            self.log.append(["send", n, name, shown(self.sock.send, data, flags)])
        else:
            self.log.append(["sendto", n, name, shown(self.sock.sendto, data, flags, (self.there, self.port))])
        time.sleep(0.001)

    def do_peer_send(self):
        # Fragments come through the kernel, whatever the path: between them and whole datagrams there is no order.
        n = self.random.choice([1, 10, 200, 1472] + [4000] * self.tcp)
        to = None
        if not self.tcp:
            port = shown(lambda: self.sock.getsockname()[1])
            if not port:
                return
            to = [self.here, port]
        oob = self.tcp and self.random.random() < 0.15
        self.log.append(["peer sends", n, "OOB" if oob else "", self.peer("send", n, oob, to)])

    def do_drain(self):
        self.log.append(["peer got", self.peer("drain")])

    def do_poll(self):
        p = select.poll()
        p.register(self.sock, 0x1 | 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x2000)
        events = [e for _, e in p.poll(0)]
        if self.disconnected and self.tcp:  # Linux counts a disconnected socket's old window as unsent: TCP_NOTSENT_LOWAT
            events = [e & ~(select.POLLOUT | 0x100) for e in events]
        self.log.append(["poll", events])

    def do_name(self):
        if self.disconnected and self.kind == "tcp_accept":  # its shadow never had the listener's address
            return
        self.log.append(["names", self.hide(shown(self.sock.getsockname)), self.hide(shown(self.sock.getpeername))])

    def do_ioctl(self):
        request = self.random.choice([termios.FIONREAD, 0x8905])  # SIOCATMARK
        self.log.append(["ioctl", request, shown(lambda: list(fcntl.ioctl(self.sock, request, b"\0" * 4)))])

    def do_shutdown(self):
        if self.random.random() < 0.5 and self.kind != "tcp_fresh":  # a shutdown before connect() is forgotten
            how = self.random.choice([0, 1, 1, 2, 3])
            self.log.append(["shutdown", how, shown(self.sock.shutdown, how)])
            time.sleep(0.002)

    def do_peer_shutdown(self):
        if self.tcp and self.random.random() < 0.5:
            how = self.random.choice([0, 1, 1, 2])
            self.log.append(["peer shuts down", how, self.peer("shutdown", how)])

    def do_peer_close(self):
        if self.random.random() < 0.5:
            self.log.append(["peer closes", self.peer("close", self.random.random() < 0.4)])

    def do_dup(self):
        other = self.sock.dup()
        self.sock.close()
        self.sock = other
        self.log.append(["dup", other.getblocking()])

    def do_odd(self):
        what = self.random.choice(["bind", "listen", "connect", "disconnect", "accept", "badflags"])
        # A difference that stays: a reset connection may be bound again.
        if what == "bind" and self.kind in ("tcp_accept", "tcp_connect"):
            return
        if what == "bind":
            result = shown(self.sock.bind, (self.here, 0))
        elif what == "listen":
            result = shown(self.sock.listen, 5)
        elif what == "connect":
            result = shown(self.sock.connect, (self.there, self.port))
            time.sleep(0.003)
        elif what == "accept":
            def call():
                s, name = self.sock.accept()
                self.extra.append(s)
                return "accepted"
            result = shown(call)
        elif what == "badflags":
            result = shown(self.sock.recvmsg_into, [bytearray(1)] * 1025, 0, socket.MSG_DONTWAIT)
            result = result if isinstance(result, str) else "data"
        else:
            if self.random.random() < 0.7:
                return
            ctypes.set_errno(0)
            r = libc.connect(self.sock.fileno(), struct.pack("H14x", 0), 16)
            result = errno.errorcode[ctypes.get_errno()] if r else r
            self.disconnected = True
            time.sleep(0.002)
        self.log.append([what, result])


def near(path, here, there, kinds):
    player = Near(path, here, there)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(player.play(int(line), kinds)), flush=True)


# ---- the comparison ----

def ask(child, seed):
    child.stdin.write(f"{seed}\n")
    child.stdin.flush()
    readable, _, _ = select.select([child.stdout], [], [], 60)
    if not readable:
        return "hangs"
    line = child.stdout.readline()
    return json.loads(line) if line else "died"


def compare(lab, first, count, kinds, stop_after):
    path = str(lab.directory / "control")
    this = [sys.executable, "-B", __file__]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    agent = lab.far.popen([*this, "--far", path, lab.far.address], **pipes)
    agent.stdout.readline()
    words = [*this, "--near", path, lab.near.address, lab.far.address, "--kinds", ",".join(kinds)]
    plain = lab.near.popen(words, **pipes)
    ours = lab.near.popen(words, accel=True, **pipes)
    for child in (plain, ours):
        child.stdout.readline()
    different = 0
    for seed in range(first, first + count):
        for attempt in range(4):
            a, b = ask(plain, seed), ask(ours, seed)
            if a == b or isinstance(b, str):
                break
        if a == b:
            continue
        different += 1
        print(f"seed {seed}: {a[0] if a else a}")
        if isinstance(a, str) or isinstance(b, str):
            print(f"  kernel {a}\n  libaccel {b}")
            return different
        for x, y in zip(a, b):
            print(f"    {x}" if x == y else f"  - {x}\n  + {y}")
        if different >= stop_after:
            break
        sys.stdout.flush()
    return different


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sequences", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--stop-after", type=int, default=10)
    parser.add_argument("--build")
    parser.add_argument("--near", nargs=3)
    parser.add_argument("--far", nargs=2)
    arguments = parser.parse_args()
    kinds = arguments.kinds.split(",")
    if arguments.far:
        return far(*arguments.far)
    if arguments.near:
        return near(*arguments.near, kinds)
    if arguments.build:
        os.environ["LAB_BUILD"] = arguments.build
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))
    from lab import Lab
    with Lab() as lab:
        different = compare(lab, arguments.seed, arguments.sequences, kinds, arguments.stop_after)
    print(f"{arguments.sequences} sequences from seed {arguments.seed}: {different} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
