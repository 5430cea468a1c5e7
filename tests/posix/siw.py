#!/usr/bin/env python3
"""Who speaks soft-iWARP with whom, between two namespaces without AF_XDP: rules, plain peers at either end, server-first protocols, peers
that break the rules, fork, exec. Each end is a program that knows nothing of it; the proof is what the library counts.

usage: siw.py peers|policy|limits|process|hostile"""
import concurrent.futures
import inspect
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))
from lab import CommandFailed, Lab, build_dir  # noqa: E402

TAKEN = """import ctypes, errno, os, sys
process = os.pidfd_open(int(sys.argv[1]))
libc = ctypes.CDLL(None, use_errno=True)
got = libc.syscall(438, process, int(sys.argv[2]), 0)  # pidfd_getfd
print('taken' if got >= 0 else errno.errorcode[ctypes.get_errno()])
"""


def takers(lab):
    """A process may take another descriptor of its own connection. Nobody else gets it: not from its owner, and not from a child that has not
    used it yet, which has it all the same when it does."""
    with Server(lab, "taken", "require") as s, concurrent.futures.ThreadPoolExecutor() as threads:
        got = threads.submit(client, lab, "echo", "require")
        owner, child, fd = s.line().split()
        for process in owner, child:
            out = lab.near.run([sys.executable, "-c", TAKEN, process, fd], accel=True, env=settings("require"), require=False, timeout=30)
            expect(out.split() == ["ENOTSUP"], process == child, out)
        s.child.stdin.write("\n")
        s.child.stdin.flush()
        expect(s.line() == "child 0" and got.result() == "got hello", s.counters())


PORT = 7000
# The ends of a conversation: each reports on stdout, a line a fact.
SERVERS = {
    "echo": "c, _ = s.accept()\nd = c.recv(100)\nc.sendall(d)\nprint('got', d.decode(), flush=True)\nc.recv(1)",
    "banner": "c, _ = s.accept()\nc.sendall(b'220 hello')\nprint('got', c.recv(100).decode(), flush=True)",
    "greets": "c, _ = s.accept()\nc.sendall(b'220 hello')\nc.recv(100)",
    "ends": "for _ in range(30):\n  c, _ = s.accept()\n  while c.recv(9): pass\n  c.close()\nprint('done', flush=True)",
    "error": "c, _ = s.accept()\ntry:\n  d = c.recv(100)\n  print('got', d.decode(), flush=True)\n  d = c.recv(100)\n"
             "  print('then', d, flush=True)\nexcept OSError as e: print('error', errno.errorcode[e.errno], flush=True)",
    "forks": "c, _ = s.accept()\nd = c.recv(100)\n"
             "if os.fork() == 0:\n  c.sendall(b'child ' + d)\n  c.recv(1)\n  os._exit(0)\nc.close()\nos.wait()\nprint('done', flush=True)",
    "forks_twice": "c, _ = s.accept()\nd = c.recv(100)\n"  # the first child has no engine
                   "if os.fork() == 0:\n  if os.fork() == 0:\n    c.sendall(b'grandchild ' + d)\n    c.recv(1)\n    os._exit(0)\n"
                   "  os._exit(os.waitstatus_to_exitcode(os.wait()[1]))\nc.close()\nprint('done', os.wait()[1], flush=True)",
    "taken": "import ctypes\nc, _ = s.accept()\nown = ctypes.CDLL(None).syscall(438, os.pidfd_open(os.getpid()), c.fileno(), 0)\n"
             "d = os.read(own, 100)\nos.close(own)\nr, w = os.pipe()\nchild = os.fork()\n"
             "if child == 0:\n  os.close(w)\n  os.read(r, 1)\n  c.sendall(d)\n  c.recv(1)\n  os._exit(0)\n"
             "print(os.getpid(), child, c.fileno(), flush=True)\nsys.stdin.readline()\nos.close(w)\nprint('child', os.wait()[1], flush=True)",
    "keeps": "k = []\nwhile True:\n  c, _ = s.accept()\n  k.append(c)\n  try: c.sendall(c.recv(9))\n  except OSError: pass",
    "large": "import hashlib\nc, _ = s.accept()\nd = b''\nwhile len(d) < 1000000: d += c.recv(70000)\nc.sendall(d)\n"
             "print(hashlib.sha256(d).hexdigest(), flush=True)\nc.recv(1)",
    "late": "c, _ = s.accept()\nprint('got', c.recv(99).decode(), flush=True)\nsys.stdin.readline()\nfailed = ''\n"
            "try: c.sendall(b'too late')\nexcept OSError as e: failed = 'error ' + errno.errorcode[e.errno]\n"
            "try:\n  while d := c.recv(99): print('got', d.decode(), flush=True)\n"
            "except OSError as e: failed = 'error ' + errno.errorcode[e.errno]\nprint(failed.replace('error EPIPE', '') or 'end', flush=True)",
    "closes": "for how in range(-1, 3):\n  c, _ = s.accept()\n  if how >= 0: c.shutdown(how)\n"
              "  if how in (0, 2):\n    p = select.poll()\n    p.register(c, select.POLLRDHUP)\n"
              "    print('read', c.recv(9), p.poll(0)[0][1] & select.POLLRDHUP, flush=True)\n"
              "  if how > 0:\n    try: c.send(b'x')\n    except OSError as e: print('write', errno.errorcode[e.errno], flush=True)\n"
              "  if how == 0: c.send(b'x')\n  if how == 1: print('got', c.recv(9), flush=True)\n  c.close()\nprint('done', flush=True)",
    "leaves": "c, _ = s.accept()\nos.close(s.detach())\nsys.exit()",
    "plain": "while True:\n  c, _ = s.accept()\n  c.close()",
    # A plain one's ways with words that it does not know; it tells who greets it how many connections came.
    "puzzled": "import struct\nk, n = [], 0\nwhile True:\n  c, _ = s.accept()\n  n += 1\n  k.append(c)\n  if c.recv(100) == b'hello':\n"
               "    c.sendall(b'%d' % n)\n    continue\n  how = os.environ['HOW']\n  if how == 'answers': c.sendall(b'500 what?\\r\\n')\n"
               "  if how == 'resets': c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))\n"
               "  if how in ('resets', 'closes'): c.close()",
    "pends": "import collections\nk, poll, seen = {}, select.poll(), collections.Counter()\n"
             "while len(k) < 258:\n  c, _ = s.accept()\n  k[c.fileno()] = c\n  poll.register(c, select.POLLIN)\n"
             "while k:\n  for fd, _ in poll.poll():\n    try: seen[k[fd].recv(99).decode()] += 1\n"
             "    except OSError as e: seen[errno.errorcode[e.errno]] += 1\n    poll.unregister(fd)\n    del k[fd]\n"
             "print(sorted(seen.items()), flush=True)",
    "silent": "c, _ = s.accept()\nr = select.select([c], [], [], 3)[0]\nprint('got', c.recv(100).decode() if r else 'nothing', flush=True)\n"
              "c.sendall(b'late')\nc.recv(1)",
}
LISTEN = ("import errno, os, select, socket, sys\ns = socket.socket()\ns.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
          "s.bind((sys.argv[1], int(sys.argv[2])))\ns.listen(5)\n")
CLIENTS = {
    "echo": "c.sendall(b'hello')\nprint('got', c.recv(100).decode())",
    "banner": "print('got', c.recv(100).decode())\nc.sendall(b'thanks')",
    "ends": "for n in range(30):\n  c.sendall(b'x')\n  c.close()\n"
            "  if n < 29: c = socket.create_connection((sys.argv[1], int(sys.argv[2])))",
    "system": "c.sendall(b'hel')\nos.system('true')\nos.system('true')\nc.sendall(b'lo')\nprint('got', c.recv(100).decode())",
    "many": "k = []\ndef one():\n  try:\n    c = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n    c.sendall(b'x')\n"
            "    k.append(c)\n    print('ok' if c.recv(9) == b'x' else 'end')\n  except OSError as e: print(errno.errorcode[e.errno])\n"
            "c.sendall(b'x')\nprint('ok' if c.recv(9) == b'x' else 'end')\nfor _ in range(5): one()",
    "large": "import hashlib, threading\nd = os.urandom(1000000)\nt = threading.Thread(target=c.sendall, args=(d,))\nt.start()\nb = b''\n"
             "while len(b) < len(d): b += c.recv(70000)\nt.join()\nprint(hashlib.sha256(b).hexdigest() if b == d else 'different')",
    "ended": "print('end' if c.recv(9) == b'' else 'more')\nc.close()\nc = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
             "print('got', c.recv(9), c.recv(9))\nc.close()\nc = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
             "r = c.recv(9)\nc.send(b'hi')\nprint('end' if r == b'' else 'more')\nc.close()\n"
             "c = socket.create_connection((sys.argv[1], int(sys.argv[2])))\nprint('end' if c.recv(9) == b'' else 'more')",
    "waits": "print('got', c.recv(100).decode())",
}
CONNECT = ("import errno, os, socket, sys, time\nt = time.monotonic()\ntry:\n  c = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
           "except OSError as e:\n  print('connect', errno.errorcode.get(e.errno, e))\n  sys.exit()\n")


def expect(truth, *what):
    if not truth:
        raise CommandFailed(f"line {sys._getframe(1).f_lineno}: " + " ".join(map(str, what)))


def settings(iwarp):
    return {"ACCEL_IWARP": iwarp, "ACCEL_PATH": "kernel"}


class Server:
    """A server in the near namespace; `iwarp`: its setting, None: not preloaded."""

    def __init__(self, lab, kind, iwarp, before=(), **env):
        self.lab = lab
        command = [*before, sys.executable, "-c", LISTEN + SERVERS[kind] + "\nsys.stdin.readline()", lab.near.address, str(PORT)]
        self.child = lab.near.popen(command, accel=iwarp is not None, env={**settings(iwarp), **env} if iwarp else env, require=False,
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lab.near.wait_for_listener(PORT, self.child)

    def line(self):
        return self.child.stdout.readline().strip()

    def last_line(self):
        """The next that is not the library's."""
        while (line := self.line()).startswith("libaccel"):
            pass
        return line

    def counters(self):
        output = subprocess.run([build_dir() / "bin" / "accel", "stat", str(self.child.pid), "--json"], capture_output=True, text=True)
        return json.loads(output.stdout)["processes"][0]["counters"]

    def await_counter(self, name, value=1):
        """A process publishes its counters now and then."""
        deadline = time.monotonic() + 10
        while (now := self.counters()).get(name, 0) != value:
            expect(time.monotonic() < deadline, name, now)
            time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        self.child.stdin.close()
        self.child.stdout.close()


def client(lab, kind, iwarp, **env):
    return lab.far.run([sys.executable, "-c", CONNECT + CLIENTS[kind], lab.near.address, str(PORT)], accel=iwarp is not None,
                       env={**settings(iwarp), **env} if iwarp else None, require=False, timeout=30).strip()


def both_speak_it(lab):
    for server, caller in (("require", "require"), ("prefer", "require"), ("require", "prefer"), ("prefer", "prefer")):
        with Server(lab, "echo", server) as s:
            expect(client(lab, "echo", caller) == "got hello", server, caller)
            expect(s.line() == "got hello" and s.counters().get("iwarp_accepted") == 1, server, caller, s.counters())
    with Server(lab, "banner", "prefer") as s:  # the server speaks first: its words wait for what the client is
        expect(client(lab, "banner", "require") == "got 220 hello")
        expect(s.line() == "got thanks" and s.counters().get("iwarp_accepted") == 1, s.counters())


def plain_peers(lab):
    with Server(lab, "echo", "prefer") as s:
        expect(client(lab, "echo", None) == "got hello")
        expect(s.line() == "got hello" and s.counters().get("iwarp_plain_accepted") == 1, s.counters())
    with Server(lab, "banner", "prefer") as s:
        expect(client(lab, "banner", None) == "got 220 hello")
        expect(s.line() == "got thanks")
    with Server(lab, "error", "require") as s:
        client(lab, "echo", None, )
        expect(s.line() == "error ECONNRESET" and s.counters().get("iwarp_plain_refused") == 1, s.counters())
    with Server(lab, "error", "prefer") as s:  # who resets before a word is heard
        lab.far.run([sys.executable, "-c", CONNECT + "c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1] + [0] * 7))\nc.close()",
                     lab.near.address, str(PORT)])
        expect(s.line() == "error ECONNRESET", s.counters())
    with Server(lab, "silent", "prefer") as s:  # neither bytes nor time make a silent client plain; our first word does
        expect(client(lab, "waits", None) == "got late")
        expect(s.line() == "got nothing")
    # A client that prefers it: a server that takes the request for garbage, and one that speaks first.
    for kind in ("greets",):
        with Server(lab, kind, None):
            expect(client(lab, "banner", "require") == "connect ECONNREFUSED", kind)
    text = ("import socket, sys, threading\ns = socket.socket()\ns.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
            "s.bind((sys.argv[1], int(sys.argv[2])))\ns.listen(5)\nn = 0\n"
            "while True:\n  c, _ = s.accept()\n  n += 1\n  c.sendall(b'%d' % n)\n  kept = c\n")
    child = lab.near.popen([sys.executable, "-c", text, lab.near.address, str(PORT)])
    lab.near.wait_for_listener(PORT, child)
    twice = (CONNECT + "print('got', c.recv(9).decode())\nc = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
             "print('got', c.recv(9).decode())\n")
    out = lab.far.run([sys.executable, "-c", twice, lab.near.address, str(PORT)], accel=True, env=settings("prefer"), require=False)
    expect(out.split() == ["got", "2", "got", "3"], out)  # one in vain, then plain; then known to be plain
    lab.near.stop(child)


def closed_at_once(lab):
    """A server that closes, shuts down or exits before its peer's first bytes: connect() has been successful, then comes the end."""
    # Not prefer and prefer: a server in no doubt waits; one that prefers takes a caller for plain who is silent for 50 ms.
    for server, caller in (("require", "require"), ("prefer", None)):
        with Server(lab, "closes", server) as s:
            out = client(lab, "ended", caller)
            expect(out.splitlines() == ["end", "got b'x' b''", "end", "end"], server, caller, out)
            lines = [s.line() for _ in range(6)]
            expect(lines == ["read b'' 8192", "write EPIPE", "got b'hi'", "read b'' 8192", "write EPIPE", "done"], server, caller, lines)
            s.await_counter("iwarp_plain_accepted" if caller is None else "iwarp_accepted", 4)
        for _ in range(3):
            with Server(lab, "leaves", server):
                out = lab.far.run([sys.executable, "-c", CONNECT + "print('end' if c.recv(9) == b'' else 'more')", lab.near.address, str(PORT)],
                                  accel=caller is not None, env=settings(caller) if caller else None, require=False, timeout=30).strip()
                expect(out == "end", server, caller, out)


def limits(lab):
    """More connections than their memory allows; rings far smaller than a message."""
    memory = {"ACCEL_IWARP_MEMORY": str(1 << 20), "ACCEL_IWARP_RING": str(128 << 10)}  # with what waits for the socket: four
    with Server(lab, "keeps", "require") as s:
        out = client(lab, "many", "require", **memory)
        expect(out.split() == ["ok"] * 4 + ["ENOBUFS"] * 2, out)
    with Server(lab, "keeps", "require", **memory) as s:
        out = client(lab, "many", "require")
        expect(out.split() == ["ok"] * 4 + ["ECONNREFUSED"] * 2, out)
        expect(s.counters().get("iwarp_memory_limit") == 2, s.counters())
    for crc in "false", "true":
        small = {"ACCEL_IWARP_RING": "4096", "ACCEL_IWARP_CRC": crc}
        with Server(lab, "large", "require", **small) as s:
            expect(client(lab, "large", "require", **small) == s.line(), crc)


def pending(lab):
    """Who begins MPA's request and does not go on: 256 at a time, and five seconds."""
    text = ("import socket, sys\nk = [socket.create_connection((sys.argv[1], int(sys.argv[2]))) for _ in range(258)]\n"
            "for c in k: c.sendall(b'MPA ID Req Frame' if c is k[0] else b'MPA ID')\n"
            "for c in k:\n  try: c.recv(1)\n  except OSError: pass\n")
    with Server(lab, "pends", "prefer") as s:
        child = lab.far.popen([sys.executable, "-c", text, lab.near.address, str(PORT)])
        line = s.line()
        expect(line == "[('ECONNRESET', 3), ('MPA ID', 255)]", line)
        for name, value in ("iwarp_pending_limit", 2), ("iwarp_deadlines", 1), ("iwarp_plain_accepted", 255):
            s.await_counter(name, value)
    child.wait(20)


def fallback(lab):
    """A client that prefers iWARP and a plain server: one connection in vain, however that shows, then plain ones."""
    hello = "c.sendall(b'hello')\nprint('got', c.recv(9).decode())\n"
    for how in "answers", "closes", "resets", "waits":
        with Server(lab, "puzzled", None, HOW=how):
            out = lab.far.run([sys.executable, "-c", (CONNECT + hello) * 2, lab.near.address, str(PORT)], accel=True, env=settings("prefer"),
                              require=False, timeout=30)
            expect(out.split() == ["got", "2", "got", "3"], how, out)


def options_before(lab):
    """What the kernel's TCP alone can do is not left out silently: zero-copy notifications, and data with the SYN, which would be plain."""
    sends = {"fastopen": "print(c.sendto(b'hello', 0x20000000, to))",
             "zerocopy": "c.setsockopt(socket.SOL_SOCKET, 60, 1)\n  c.connect(to)\n  print(c.send(b'hello', 0x4000000))"}
    text = "import errno, socket, sys\nc, to = socket.socket(), (sys.argv[1], int(sys.argv[2]))\ntry:\n  %s\n  c.recv(9)\nexcept OSError as e: print(errno.errorcode[e.errno])"
    for how, send in sends.items():
        for iwarp, told in ("require", "ENOTSUP"), ("prefer", "5"):
            with Server(lab, "echo", "prefer") as s:
                out = lab.far.run([sys.executable, "-c", text % send, lab.near.address, str(PORT)], accel=True, env=settings(iwarp), require=False)
                expect(out.split() == [told], how, iwarp, out)
                if told == "5":
                    s.await_counter("iwarp_plain_accepted")


def of_a_host(lab):
    """`[default] iwarp = "prefer"`: where a port serves, it does; to who may open none, and to loopback, iWARP."""
    path = lab.directory / "host.toml"
    path.write_text("[default]\niwarp = 'prefer'\n")
    env = {"ACCEL_CONFIG": str(path), "ACCEL_IWARP": "", "ACCEL_PATH": ""}
    unprivileged = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"]
    for before, made in ([], 0), (unprivileged, 1):
        with Server(lab, "echo", "prefer", before=before, **env) as s:
            expect(lab.far.run([*before, sys.executable, "-c", CONNECT + CLIENTS["echo"], lab.near.address, str(PORT)], accel=True,
                               env=env, require=False, timeout=30).split("\n")[-2] == "got hello")
            expect(s.last_line() == "got hello")
            s.await_counter("iwarp_accepted", made)


def under_accel_require(lab):
    """ACCEL_REQUIRE: where the peer is plain, `prefer` may not fall back, the first time or later."""
    with Server(lab, "plain", None):
        env = {**settings("prefer"), "ACCEL_REQUIRE": "1"}
        out = lab.far.run([sys.executable, "-c", (CONNECT.replace("sys.exit()", "pass")) * 2, lab.near.address, str(PORT)], accel=True, env=env,
                          require=False, timeout=30)
        lines = [line for line in out.splitlines() if not line.startswith("libaccel:")]
        expect(lines == ["connect EPROTONOSUPPORT"] * 2, out)


def time_wait(lab):
    """Who closes first has it, so a server may be started anew at once, without SO_REUSEADDR."""
    def held():
        return set(lab.near.enter("ss", "-Htan", "state", "time-wait", f"sport = :{PORT}").splitlines())
    before = held()
    with Server(lab, "ends", "require") as s:
        client(lab, "ends", "require")
        expect(s.line() == "done" and s.counters().get("iwarp_accepted") == 30, s.counters())
        expect(held() <= before, held())


def rules(lab):
    """By application, role, address and port; the file's words with line numbers are tests/unit's."""
    path = lab.directory / "rules.toml"
    path.write_text(f"[[application]]\nname = 'python*'\n[[application.rule]]\nrole = 'tcp_server'\nports = {PORT}\npath = 'kernel'\n"
                    f"iwarp = 'require'\n[[application.rule]]\nrole = 'tcp_client'\naddress = '{lab.near.address}'\npath = 'kernel'\n"
                    "iwarp = 'require'\n")
    env = {"ACCEL_CONFIG": str(path), "ACCEL_IWARP": "", "ACCEL_PATH": ""}
    with Server(lab, "echo", "off", **env) as s:
        expect(client(lab, "echo", "off", **env) == "got hello")
        expect(s.line() == "got hello" and s.counters().get("iwarp_accepted") == 1, s.counters())
    path.write_text(path.read_text().replace(f"ports = {PORT}", f"ports = {PORT + 1}"))
    with Server(lab, "echo", "off", **env):
        expect(client(lab, "echo", None) == "got hello")


def over_fork(lab):
    with Server(lab, "forks", "require") as s:
        expect(client(lab, "echo", "require") == "got child hello")
        expect(s.line() == "done", s.counters())
    with Server(lab, "forks_twice", "require") as s:
        expect(client(lab, "echo", "require") == "got grandchild hello")
        expect(s.line() == "done 0", s.counters())
    with Server(lab, "echo", "require") as s:
        out = client(lab, "system", "require")
        expect(out in ("got hel", "got hello"), out)


def raw(lab, send, read=True):
    """What a peer that breaks the rules sends, in the far namespace; what it gets back, in hex."""
    text = ("import socket, sys, time\nc = socket.create_connection((sys.argv[1], int(sys.argv[2])))\nback = b''\n"
            "for part in sys.argv[3].split(','):\n  c.sendall(bytes.fromhex(part))\n  c.settimeout(0.4)\n  try:\n"
            "    while True:\n      d = c.recv(4096)\n      if not d: break\n      back += d\n"
            "  except OSError: pass\nprint(back.hex())")
    return lab.far.run([sys.executable, "-c", text, lab.near.address, str(PORT), ",".join(p.hex() for p in send)]).strip()


HANDOVERS = """import ctypes, socket
def fails(what):
  try: what()
  except OSError as e: return errno.errorcode[e.errno]
def fdopen():
  libc = ctypes.CDLL(None, use_errno=True)
  libc.fdopen.restype = ctypes.c_void_p
  if not libc.fdopen(c.fileno(), b'r'): raise OSError(ctypes.get_errno(), '')
c.set_inheritable(True)
c.sendall(b'hel')
print('fdopen', fails(fdopen))
print('passing', fails(lambda: socket.send_fds(socket.socketpair()[0], [b'x'], [c.fileno()])))
print('exec', fails(lambda: os.execv('/nonexistent', ['x'])), 'inheritable', c.get_inheritable())
print('got', c.recv(100).decode(), flush=True)
next = "import os, sys\\ntry:\\n  os.fstat(int(sys.argv[1]))\\n  print('open')\\nexcept OSError: print('closed')"
os.execv(sys.executable, [sys.executable, '-c', next, str(c.fileno())])
"""


def handovers(lab):
    """What cannot leave the process says so and goes on; the next program does not get it."""
    with Server(lab, "echo", "require") as s:
        out = lab.far.run([sys.executable, "-c", CONNECT + HANDOVERS, lab.near.address, str(PORT)], accel=True, env=settings("require"),
                          require=False, timeout=30)
        expect([line for line in out.splitlines() if not line.startswith("libaccel:")] ==
               ["fdopen ENOTSUP", "passing ENOTSUP", "exec ENOENT inheritable True", "got hel", "closed"], out)
        expect(s.line() == "got hel", s.counters())


def request(flags=0x10, revision=2, private=None):
    data = struct.pack(">BBHHBBQIIQII", 1, 0, 384, 0, 0, 0, 0x10000, 7, 2, 0x20000, 9, 65536) if private is None else private
    enhanced = struct.pack(">HH", 1, 1) if flags & 0x10 else b""
    return b"MPA ID Req Frame" + struct.pack(">BBH", flags, revision, len(data) + len(enhanced)) + enhanced + data


def fpdu(ulpdu):
    return struct.pack(">H", len(ulpdu)) + ulpdu + bytes(-(len(ulpdu) + 2) % 4) + bytes(4)


def hostile_peers(lab):
    tagged = struct.pack(">BBIQ", 0xc1, 0x40, 0x1234, 0x1000) + b"evil"
    for reason, parts in {
        "mpa_revision": [request(revision=1)],
        "mpa_markers": [request(flags=0x90)],
        "mpa_early_data": [request() + b"\0\1"],
        "rs_connection_data": [request(private=b"short")],
        "fpdu_short": [request(), b"\0\1\0\0"],
        "ddp_stag": [request(), fpdu(tagged)],
        "rdmap_opcode": [request(), fpdu(b"\x41\x4f" + bytes(16))],
        "stream_cut": [request(), b"\0\x50\xc1"],
    }.items():
        with Server(lab, "error", "prefer", ACCEL_IWARP_CRC="false") as s:
            raw(lab, parts)
            line = s.line()
            expect(line == "error ECONNRESET", reason, line)
            s.await_counter(f"iwarp_{reason}")
    with Server(lab, "error", "prefer") as s:  # we asked for CRCs: zero is a wrong one
        back = raw(lab, [request(), fpdu(tagged)])
        expect(s.line() == "error ECONNRESET")
        s.await_counter("iwarp_fpdu_crc")
        # The reply, then a Terminate in the RFC's form: untagged, opcode 7, layer MPA, type 0, code CRC.
        expect(bytes.fromhex(back).startswith(b"MPA ID Rep Frame") and "4147" in back and "2002" in back, back)
        expect(s.counters().get("iwarp_accepted") == 1)
    with Server(lab, "error", "prefer", ACCEL_LOG="info") as s:  # the bad frame is told
        raw(lab, [request(), fpdu(tagged)])
        lines = list(iter(s.line, "error ECONNRESET"))
        expect(any(f"wrong CRC: {fpdu(tagged)[:4].hex()}" in line for line in lines), lines)
    with Server(lab, "silent", "prefer") as s:  # the beginning of the key, and then nothing, is plain
        raw(lab, [b"M", b"AIL"])
        expect(s.line() == "got MAIL", "MAIL")


def write(stag, offset, data):
    return fpdu(struct.pack(">BBIQ", 0xc1, 0x40, stag, offset) + data)


def message(number, word):
    return fpdu(struct.pack(">BBIIII", 0x41, 0x43, 0, 0, number, 0) + struct.pack("<I", word))


KICK = write(1, 0, b"")
FIRST_CREDITS = 64  # bytes that we send unasked
REPLY = request().replace(b"Req", b"Rep")
RAW = "\n".join(["import socket, struct, sys", *map(inspect.getsource, (fpdu, write, message)),
                 "def take(n):\n  got = b''\n  while len(got) < n: got += c.recv(n - len(got))\n  return got\n"])
RAW_SERVER = RAW + LISTEN + "c, _ = s.accept()\nc.recv(1000)\nc.sendall(bytes.fromhex(sys.argv[3]))\n"


def wakes(lab, server, program):
    """What a peer that sleeps gets to see of a program, in hex."""
    child = lab.near.popen([sys.executable, "-c", RAW_SERVER + server, lab.near.address, str(PORT), REPLY.hex()], stdout=subprocess.PIPE, text=True)
    lab.near.wait_for_listener(PORT, child)
    lab.far.run([sys.executable, "-c", CONNECT + program, lab.near.address, str(PORT)], accel=True,
                env={**settings("require"), "ACCEL_IWARP_CRC": "false"}, require=False, timeout=30)
    seen = child.stdout.readline().strip()
    child.wait()
    return seen


def sleepy_peers(lab):
    """A kernel's siw may sleep over our first words until more come: empty Writes, also from a program that polls and never waits."""
    polls = ("c.setblocking(False)\nwhile True:\n  try:\n    if not c.recv(1): break\n  except BlockingIOError: pass\n"
             "  except ConnectionResetError: break\n")
    seen = wakes(lab, f"print(take({FIRST_CREDITS + 2 * len(KICK)}).hex(), flush=True)", polls)
    expect(seen[2 * FIRST_CREDITS:] == KICK.hex() * 2, seen)
    # The peer gives credits, which its program does unasked, and sleeps over what comes then.
    want = write(9, 0x20000, b"x") + message(2, 1) + KICK
    wakes(lab, f"take({FIRST_CREDITS})\nc.sendall(message(1, 4 << 29 | 384))\ngot = b''\n"
          f"while not got.endswith(bytes.fromhex('{want.hex()}')): got += take(1)\n",
          "time.sleep(0.3)\nc.sendall(b'x')\ntry: c.recv(1)\nexcept ConnectionResetError: pass\n")


def reset_behind_data(lab):
    """A reset costs nothing of what came before it, even where a send is told of it first; behind the peer's farewell it is no error."""
    text = (RAW + "import fcntl, termios, time\nc = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
            "c.sendall(bytes.fromhex(sys.argv[3]))\n"
            "address, key = struct.unpack('>QI', take(64)[48:60])\nc.sendall(write(key, address, b'first') + message(1, 5))\n"
            "sys.stdin.readline()\nc.sendall(write(key, address + 5, b'second') + message(2, 6) + bytes.fromhex(sys.argv[4]))\n"
            "while any(fcntl.ioctl(c, termios.TIOCOUTQ, bytes(4))): time.sleep(0.01)\n"
            "c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))\n")
    for farewell, end in ((message(3, 7 << 29), "end"), (b"", "error ECONNRESET")):
        with Server(lab, "late", "require", ACCEL_IWARP_CRC="false") as s:
            peer = lab.far.popen([sys.executable, "-c", text, lab.near.address, str(PORT), request().hex(), farewell.hex()], stdin=subprocess.PIPE)
            expect(s.line() == "got first")
            os.kill(s.child.pid, signal.SIGSTOP)
            peer.communicate(b"\n", timeout=20)
            s.child.stdin.write("\n")
            s.child.stdin.flush()
            os.kill(s.child.pid, signal.SIGCONT)
            lines = [s.line(), s.line()]
            expect(lines == ["got second", end], lines)


GROUPS = {"peers": (both_speak_it, plain_peers, closed_at_once), "policy": (rules, fallback, options_before, of_a_host, under_accel_require),
          "limits": (limits, pending),
          "process": (takers, over_fork, handovers, time_wait), "hostile": (hostile_peers, sleepy_peers, reset_behind_data)}


def main():
    with Lab() as lab:
        for test in GROUPS[sys.argv[1]]:
            test(lab)
            print(test.__name__, "ok", flush=True)


if __name__ == "__main__":
    socket.setdefaulttimeout(20)
    try:
        sys.exit(main())
    except CommandFailed as failure:
        sys.exit(str(failure))
