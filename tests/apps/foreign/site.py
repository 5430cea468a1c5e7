"""What every row of tests/apps/foreign is made of: Program, the row, and Site, the two hosts that its functions see."""
import contextlib
import dataclasses
import json
import os
import pathlib
import pwd
import shutil
import subprocess
import sys
import typing

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from programs import CommandFailed, accelerated_sockets, descendants, statistics, until  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
RUNTIMES = ROOT / "build-runtimes" / "node_modules"  # scripts/install_packages runtimes
PAGE = "".join(f"line {i} of a page that takes some segments\n" for i in range(2000))

# Values of server_kernel where libaccel knows none of the sockets.
OWN_CALLS = "its runtime makes system calls of its own"
CLEARS = "it clears its environment of LD_PRELOAD"


@dataclasses.dataclass(frozen=True)
class Program:
    """A foreign program. `start` writes its configuration and gives the words that run it in the foreground; `ask` has clients use it and
    returns what they got, as text without times or random names: under libaccel it must be the kernel's to the letter."""
    name: str
    package: str  # the Debian package, or folder of npm's, that has its version
    port: int
    start: typing.Callable
    ask: typing.Callable
    needs: tuple = ()  # other programs, which are found by PATH
    transport: str = "t"  # what it listens with, as ss calls it: t or u
    workers: int = 1  # processes that accept; the devices have a queue for each
    environment: tuple = ()  # of the accelerated server, as ("NAME=value", ...)
    server_kernel: str = ""  # a reason of reasons.def, OWN_CALLS or CLEARS: the server's frames are the kernel's by right, and the test holds it
    client_kernel: str = ""  # why the client's are; in words, since clients have ended when it is looked for
    server_share: float = 0.9  # of the frames at an accelerated end, that libaccel must carry at least
    client_share: float = 0.9
    defect: str = ""  # what is not as on the kernel: the row is expected to fail, and fails the test once it does not


class Site:
    """near serves, far asks. `on`: (server, client), which of them is preloaded."""

    def __init__(self, lab, program, on):
        self.lab, self.program, self.on = lab, program, on
        self.address, self.port = lab.near.address, program.port
        lab.directory.chmod(0o755)
        self.directory = lab.directory / program.name
        self.directory.mkdir()
        self.shares_queue = False  # a client that stays has the far device's queue
        self.reasons_seen = set()

    def file(self, name, content, mode=0o644):
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.write_bytes if isinstance(content, bytes) else path.write_text)(content)
        path.chmod(mode)
        return path

    def folder(self, name, user="root", mode=0o755):
        path = self.directory / name
        path.mkdir(parents=True)
        path.chmod(mode)
        entry = pwd.getpwnam(user)
        os.chown(path, entry.pw_uid, entry.pw_gid)
        return path

    def give_to(self, user):
        """The whole folder."""
        entry = pwd.getpwnam(user)
        for path in (self.directory, *self.directory.rglob("*")):
            os.chown(path, entry.pw_uid, entry.pw_gid)

    @staticmethod
    def as_user(user, words, workers=1):
        """The words that run it as a service's user with what libaccel needs, as systemd does by AmbientCapabilities=. Several workers that
        are each other's siblings join one XDP program, for which the kernel wants CAP_SYS_ADMIN."""
        needed = "+net_raw,+net_admin,+bpf,+net_bind_service" + (",+sys_admin" if workers > 1 else "")
        return ["setpriv", f"--reuid={user}", f"--regid={pwd.getpwnam(user).pw_gid}", "--init-groups", f"--inh-caps={needed}",
                f"--ambient-caps={needed}", *words]

    def serve(self):
        """Starts the program; it listens when this returns."""
        words = self.program.start(self)
        self.log = self.directory / "output"
        environment = dict(word.split("=", 1) for word in self.program.environment) if self.on[0] else {}
        with open(self.log, "w") as out:
            self.server = self.lab.near.popen(words, self.on[0], environment, require=False, stdout=out, stderr=subprocess.STDOUT,
                                              cwd=self.directory)
        self.lab.near.wait_for_listener(self.port, self.server, kind=self.program.transport, timeout=300)
        if self.on[0] and not self.program.server_kernel:  # workers that come later take what came before from the kernel
            until(lambda: accelerated_sockets(self.server.pid, self.port) >= self.program.workers or self.server.poll() is not None,
                  f"{self.program.workers} accelerated listeners", timeout=60)

    def beside(self, host, words, port=None, accel=False, kind="t", environment=None, **options):
        """Another program that the row needs, ended with the lab."""
        environment = environment if accel else None
        self.shares_queue |= accel and host is self.lab.far
        with open(self.directory / f"beside-{pathlib.Path(words[0]).name}", "a") as out:
            options = {"stdout": out, "stderr": subprocess.STDOUT, **options}
            child = host.popen(words, accel, environment, require=False, cwd=self.directory, **options)
        if port:
            host.wait_for_listener(port, child, kind=kind)
        return child

    def client(self, *words, text=None, check=True, timeout=120, environment=None):
        """Runs a client to its end, `text` being its standard input; what it wrote. The device's queue is free again some time after the client
        before has ended: the kernel takes AF_XDP sockets and programs off behind it."""
        if self.on[1] and not self.shares_queue:
            self.lab.far.xdp_left()
        child = self.lab.far.popen(words, self.on[1], environment, require=False, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, cwd=self.directory)
        try:
            output, _ = child.communicate((text or "").encode(), timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            output, _ = child.communicate()
            raise CommandFailed(f"{words}: not done after {timeout} s\n{output[-2000:]}") from None
        if check and child.returncode:
            raise CommandFailed(f"{words}: exit {child.returncode}\n{output[-2000:]}")
        return output.decode(errors="replace")

    def python(self, script, *words, **options):
        return self.client("/usr/bin/python3", "-c", script, self.address, str(self.port), *words, **options)

    def processes(self):
        """`accel stat` of the server and all below it."""
        return [s for s in map(statistics, descendants(self.server.pid)) if s]

    def outputs(self):
        """What the programs have written."""
        return [p for p in self.directory.glob("*") if p.name == "output" or p.name == "log" or p.name.startswith("beside-") if p.is_file()]

    def look(self):
        """Adds the reasons that the server's sockets have now to `reasons_seen`. A row whose processes are short-lived calls it while one
        is there; foreign_app.py calls it at the end."""
        if self.on[0]:
            self.reasons_seen |= self.reasons()

    def reasons(self):
        """Of its Internet sockets, and whether a connection has been handed back by a process that lives."""
        found = {s["reason"] for p in self.processes() for s in p.get("sockets", [])}
        if any(p.get("counters", {}).get("handed_back", 0) for p in self.processes()):
            found.add("handed_back")
        return found


def frames(host):
    """(frames on the wire, segments and datagrams that the kernel's stack carried beyond loopback)."""
    kernel = host.kernel_packets()
    loopback = json.loads(host.ip("-s", "-j", "link", "show", "dev", "lo"))[0]["stats64"]["rx"]["packets"]
    return host.wire_packets(), kernel["tcp"] + kernel["udp"] - 2 * loopback


def missing(program):
    """What of it this machine does not have, or None."""
    if not version(program):
        return program.package
    return next((word for word in program.needs if not shutil.which(word, path=os.environ["PATH"] + ":/usr/sbin:/sbin")), None)


def version(program):
    if "/" in program.package:
        with contextlib.suppress(OSError, ValueError):
            return json.loads((RUNTIMES / program.package.removeprefix("npm/") / "package.json").read_text())["version"]
        return None
    done = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Abbrev}${Version}", program.package], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)
    return done.stdout[2:].strip() if done.stdout.startswith("ii") else None


__all__ = ["CLEARS", "OWN_CALLS", "PAGE", "RUNTIMES", "CommandFailed", "Program", "Site", "frames", "missing", "until", "version"]
