"""Two hosts on one machine: network namespaces joined by a veth pair, made and removed by the tests.

    with Lab(queues=1, mtu=1500) as lab:
        server = lab.near.popen(["redis-server", ...], accel=True)
        lab.far.run(["redis-benchmark", "-h", lab.near.address, ...])

veth hands over packets whose checksum the sender left to hardware, so checksum and segmentation offloads are turned off at both ends, as a
wire would have it. Names carry the process's pid: labs may run side by side.
"""
import contextlib
import ctypes
import fcntl
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PREFIX = "acl"
SCRATCH = "accel-lab-"
_serial = itertools.count()
# A program's words before it: a user who has what AF_XDP takes, as by systemd's User= and AmbientCapabilities=.
USER = 65534
_CAPABILITIES = "+net_raw,+net_admin,+bpf,+sys_admin"
AS_USER = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", f"--inh-caps={_CAPABILITIES}", f"--ambient-caps={_CAPABILITIES}"]


def build_dir():
    """The build under test: $LAB_BUILD, else build-release."""
    return pathlib.Path(os.environ.get("LAB_BUILD", ROOT / "build-release"))


def library():
    return str(build_dir() / "lib" / "libaccel.so")


def accel_environment(extra=None, require=True):
    """Variables that preload libaccel; `require`: a socket that cannot be accelerated is an error. Otherwise, too, the first call that
    needs a port waits for it, so that the path does not depend on the moment."""
    env = dict(os.environ, LD_PRELOAD=library(), ACCEL_CONFIG="/dev/null", ACCEL_WAIT_FOR_PORTS="1")
    env.pop("LAB_BUILD", None)  # the tests' own
    if require:
        env["ACCEL_REQUIRE"] = "1"
    env.update(extra or {})
    return env


class CommandFailed(AssertionError):
    """A command ended with another status than 0; its output is in the text."""


def sh(*words, check=True):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if check and done.returncode:
        raise CommandFailed(f"{' '.join(words)}: exit {done.returncode}\n{done.stdout}")
    return done.stdout


def until(condition, what, timeout=90):
    """Waits for the condition and returns what it gave."""
    end = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > end:
            raise CommandFailed(f"after {timeout} s still not: {what}")
        time.sleep(0.05)
    return value


def cpu_seconds(pid):
    """What a process has used of the processors (proc(5), utime and stime)."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


@contextlib.contextmanager
def _namespace_table():
    """One lab at a time: `ip netns add` of two processes at once may both mount /run/netns, one upon the other."""
    with open(__file__, "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_namespace(name):
    """Finishes, and says so, where `ip netns del` left the name; an error where that cannot be."""
    path = pathlib.Path("/run/netns", name)
    with _namespace_table():
        said = sh("ip", "netns", "del", name, check=False)
        while path.exists() and subprocess.run(["umount", "-l", path], stderr=subprocess.DEVNULL).returncode == 0:
            pass  # one mount for each that another covers
        if path.exists():
            path.unlink()
            print(f"ip netns del {name}: {said.strip()}", file=sys.stderr)


def _end_by_signal(number, _):
    signal.signal(number, signal.SIG_IGN)  # the labs are taken down undisturbed
    sys.exit(128 + number)


class Host:
    """One namespace: `address`, `address6`, `device`."""

    def __init__(self, lab, name, number):
        self.lab, self.name, self.number = lab, name, number
        self.device = f"veth{number}"
        self.address, self.address6 = f"10.77.0.{number}", f"fd77::{number}"
        self._children = []

    def popen(self, command, accel=False, env=None, require=True, **options):
        """Starts a program in the namespace; it is ended with the lab. accel: preloaded with libaccel."""
        variables = accel_environment(env, require) if accel else dict(os.environ, **(env or {}))
        # nsenter itself must not be preloaded: env sets the variables after it.
        assignments = [f"{k}={v}" for k, v in variables.items() if os.environ.get(k) != v]
        words = ["nsenter", f"--net=/run/netns/{self.name}", "env", *assignments, *map(str, command)]
        options.setdefault("stdin", subprocess.DEVNULL)
        child = subprocess.Popen(words, preexec_fn=_die_with_parent, **options)
        self._children.append(child)
        return child

    def run(self, command, accel=False, env=None, require=True, timeout=120, check=True):
        """Runs a program to its end; returns what it wrote (stdout and stderr together)."""
        child = self.popen(command, accel, env, require, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            output, _ = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            output, _ = child.communicate()
            raise CommandFailed(f"{' '.join(map(str, command))}: not done after {timeout} s\n{output}") from None
        if check and child.returncode:
            raise CommandFailed(f"{' '.join(map(str, command))}: exit {child.returncode}\n{output}")
        return output

    def stop(self, child, how=signal.SIGTERM, timeout=20):
        """Ends a program that popen() started and waits for it; returns its status."""
        if child.poll() is None:
            child.send_signal(how)
        try:
            return child.wait(timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise CommandFailed(f"{child.args}: did not end on {how!r} within {timeout} s") from None

    def stop_all(self):
        for child in self._children:
            if child.poll() is None:
                child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout, child.stderr):
                if pipe:
                    pipe.close()
        self._children.clear()
        if os.path.exists(f"/run/netns/{self.name}"):  # what they have left: children of their own, of a test that failed
            for pid in sh("ip", "netns", "pids", self.name).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)

    def ip(self, *words, check=True):
        return sh("ip", "-n", self.name, *words, check=check)

    def enter(self, *words, check=True):
        return sh("nsenter", f"--net=/run/netns/{self.name}", *words, check=check)

    def bring_up(self, mtu):
        self.as_a_wire(self.device, mtu)
        self.give_addresses()

    def as_a_wire(self, device, mtu):
        self.ip("link", "set", device, "mtu", str(mtu))
        self.enter("ethtool", "-K", device, "tx", "off", "rx", "off", "tso", "off", "gso", "off", "gro", "off")

    def give_addresses(self):
        self.ip("addr", "add", f"{self.address}/24", "dev", self.device)
        self.ip("addr", "add", f"{self.address6}/64", "dev", self.device, "nodad")
        self.ip("link", "set", self.device, "up")

    def wait_for_listener(self, port, child=None, timeout=30, kind="t"):
        """Waits until something listens on a port (the shadow does, accelerated or not)."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if child is not None and child.poll() is not None:
                raise CommandFailed(f"{child.args} ended with {child.returncode} before it listened on {port}")
            if self.enter("ss", "-Hln" + kind, f"sport = :{port}").strip():
                return
            time.sleep(0.02)
        raise CommandFailed(f"nothing listened on port {port} within {timeout} s")

    def snmp(self):
        """The kernel's own stack's counters (/proc/net/snmp, snmp6), as "Tcp:InSegs" and "Udp6InDatagrams"."""
        lines = self.enter("cat", "/proc/net/snmp", "/proc/net/snmp6").splitlines()
        values = {}
        for head, row in zip(lines, lines[1:]):
            for protocol in ("Tcp:", "Udp:"):
                if head.startswith(protocol) and row.startswith(protocol) and not head.split()[1].lstrip("-").isdigit():
                    values.update({protocol + k: int(v) for k, v in zip(head.split()[1:], row.split()[1:])})
        for line in lines:
            if line.startswith("Udp6"):
                key, number = line.split()
                values[key] = int(number)
        return values

    def kernel_packets(self):
        """What the kernel's own stack carried: TCP segments in + out, UDP datagrams in + out, both families."""
        values = self.snmp()
        return {
            "tcp": values["Tcp:InSegs"] + values["Tcp:OutSegs"],
            "udp": values["Udp:InDatagrams"] + values["Udp:OutDatagrams"] + values["Udp6InDatagrams"] + values["Udp6OutDatagrams"],
        }

    def wire_packets(self):
        """Frames that crossed the device, in + out."""
        stats = json.loads(self.ip("-s", "-j", "link", "show", "dev", self.device))[0]["stats64"]
        return stats["rx"]["packets"] + stats["tx"]["packets"]

    def wire_bytes(self):
        """Bytes that the device received."""
        return json.loads(self.ip("-s", "-j", "link", "show", "dev", self.device))[0]["stats64"]["rx"]["bytes"]

    def kernel_bytes(self):
        """IP bytes that the kernel's own stack received but over loopback."""
        values = dict(line.split() for line in self.enter("cat", "/proc/net/snmp6").splitlines())
        head, row = (line.split() for line in self.enter("cat", "/proc/net/netstat").splitlines() if line.startswith("IpExt:"))
        loopback = json.loads(self.ip("-s", "-j", "link", "show", "dev", "lo"))[0]["stats64"]["rx"]
        received = int(values["Ip6InOctets"]) + int(row[head.index("InOctets")])
        return received - (loopback["bytes"] - 14 * loopback["packets"])  # lo counts an Ethernet header

    def accelerated(self):
        """Flows and program on the device: True while an XDP program is attached."""
        return '"xdp"' in self.ip("-j", "-d", "link", "show", "dev", self.device)

    def xdp_left(self, timeout=10):
        """Waits for the XDP program to go (the kernel detaches it asynchronously); True when it stayed."""
        end = time.monotonic() + timeout
        while self.accelerated():
            if time.monotonic() > end:
                return True
            time.sleep(0.02)
        return False


def _unused_tag():
    """A killed run may have left namespaces that bear the process number which is ours now."""
    for serial in _serial:
        tag = f"{PREFIX}{os.getpid()}x{serial}"
        if not any(os.path.exists(f"/run/netns/{tag}{end}") for end in "nf"):
            return tag


class Lab:
    """near and far, joined by one cable."""

    def __init__(self, queues=1, mtu=1500):
        self.queues, self.mtu = queues, mtu
        tag = _unused_tag()
        self.near, self.far = Host(self, tag + "n", 1), Host(self, tag + "f", 2)
        self.hosts = (self.near, self.far)
        self._directory = None

    @property
    def directory(self):
        """A scratch folder that goes with the lab."""
        if self._directory is None:
            self._directory = tempfile.mkdtemp(prefix=f"{SCRATCH}{os.getpid()}-")
        return pathlib.Path(self._directory)

    def other(self, host):
        return self.far if host is self.near else self.near

    def __enter__(self):
        for number in (signal.SIGTERM, signal.SIGHUP):  # an end by signal leaves nothing behind either
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _end_by_signal)
        try:
            self._make()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _make(self):
        near, far = self.hosts
        for host in self.hosts:
            with _namespace_table():
                sh("ip", "netns", "add", host.name)
            host.enter("sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0", "net.ipv6.conf.all.accept_dad=0",
                       "net.ipv6.conf.default.router_solicitations=0")
            # A device with RSS keeps a connection's frames on one queue; veth's queue is the sender's choice, which it changes with
            # every timeout (kernels before 5.18 cannot be told not to).
            host.enter("sysctl", "-qw", "net.core.txrehash=0", check=False)
            host.ip("link", "set", "lo", "up")
        self._lay_cable(near.device, far.device)
        self._bring_up()
        # NAPI at both ends from the start, so that the first XDP program does not change the cable under a measurement.
        for host in self.hosts:
            host.enter("ping", "-q", "-c1", "-W5", self.other(host).address)

    def _lay_cable(self, here, there):
        near, far = self.hosts
        q = ["numtxqueues", str(self.queues), "numrxqueues", str(self.queues)]
        near.ip("link", "add", here, *q, "type", "veth", "peer", "name", there, *q, "netns", far.name)

    def _bring_up(self):
        for host in self.hosts:
            host.bring_up(self.mtu)

    def __exit__(self, *_):
        for host in self.hosts:
            with contextlib.suppress(Exception):
                host.stop_all()
        for host in self.hosts:
            if os.path.exists(f"/run/netns/{host.name}"):
                _remove_namespace(host.name)
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)


def knows_device(kind):
    """Whether this kernel has devices of that kind, as `ip link add type` names it."""
    words = {"vlan": ["link", "lo", "name", "probe", "type", "vlan", "id", "1"], "bond": ["name", "probe", "type", "bond"],
             "macvlan": ["link", "lo", "name", "probe", "type", "macvlan"]}[kind]
    return "Unknown device type" not in sh("unshare", "-n", "ip", "link", "add", *words, check=False)


class UpperLab(Lab):
    """near and far have their addresses on devices above the cable: vlan, macvlan, bond (active-backup, over two cables), or bond_vlan."""

    VLAN = 5

    def __init__(self, upper, queues=1, mtu=1500):
        super().__init__(queues, mtu)
        self.kinds = upper.split("_")

    def _bring_up(self):
        cables = [[host.device for host in self.hosts]]
        if "bond" in self.kinds:
            cables.append([host.device + "b" for host in self.hosts])
            self._lay_cable(*cables[1])
        for host, devices in zip(self.hosts, zip(*cables)):
            for device in devices:
                host.as_a_wire(device, self.mtu)
            host.enter("sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1")  # the cable must not answer for the macvlan's address
            for kind in self.kinds:
                self._stack_upon(host, kind, devices)
            host.give_addresses()

    def _stack_upon(self, host, kind, lower):
        if kind == "bond":
            host.device = f"bond{host.number}"
            host.ip("link", "add", host.device, "type", "bond", "mode", "active-backup", "miimon", "100")
            for device in lower:
                host.ip("link", "set", device, "master", host.device)
        else:
            how = ["vlan", "id", str(self.VLAN)] if kind == "vlan" else ["macvlan", "mode", "private"]
            below, host.device = host.device, f"{kind}{host.number}"
            host.ip("link", "set", below, "up")
            host.ip("link", "add", "link", below, "name", host.device, "type", *how)


class Loop(Lab):
    """One host with two devices, joined by a cable: near and far are one namespace, and what it sends to its own addresses crosses the
    cable, since rules before table local say so. A program that talks with itself is accelerated there as with others."""

    def __init__(self, queues=1, mtu=1500):
        super().__init__(queues, mtu)
        self.far.name = self.near.name

    def _make(self):
        host = self.near
        with _namespace_table():
            sh("ip", "netns", "add", host.name)
        host.enter("sysctl", "-qw", *(f"net.ipv4.conf.{which}.{what}" for which in ("all", "default")
                                      for what in ("rp_filter=0", "accept_local=1")), "net.ipv6.conf.default.accept_dad=0")
        host.ip("link", "set", "lo", "up")
        q = ["numtxqueues", str(self.queues), "numrxqueues", str(self.queues)]
        host.ip("link", "add", self.near.device, *q, "type", "veth", "peer", "name", self.far.device, *q)
        for family in ("-4", "-6"):
            host.ip(family, "rule", "add", "pref", "100", "lookup", "local")
            host.ip(family, "rule", "del", "pref", "0")
        for end in self.hosts:
            end.bring_up(self.mtu)
        for end in self.hosts:
            other, table = self.other(end), str(1000 + end.number)
            mac = json.loads(host.ip("-j", "link", "show", "dev", other.device))[0]["address"]
            for to, source in ((other.address, end.address), (other.address6, end.address6)):
                family = "-6" if ":" in to else "-4"
                host.ip(family, "rule", "add", "pref", "10", "iif", "lo", "to", to, "lookup", table)
                host.ip(family, "route", "add", to, "dev", end.device, "src", source, "table", table)
                host.ip("neigh", "replace", to, "lladdr", mac, "nud", "permanent", "dev", end.device)


def left_behind():
    """Namespaces and scratch folders of dead labs, XDP programs on devices of this namespace."""
    found = []
    for kind, folder, name in (("namespace", "/run/netns", rf"{PREFIX}(\d+)x"), ("folder", tempfile.gettempdir(), rf"{SCRATCH}(\d+)-")):
        for entry in os.listdir(folder) if os.path.isdir(folder) else ():
            process = re.match(name, entry)
            if process and not os.path.exists(f"/proc/{process[1]}"):
                found.append(f"{kind} {folder}/{entry}")
    if '"xdp"' in sh("ip", "-j", "-d", "link", "show", check=False):
        found.append("an XDP program on a device of this host")
    return found
