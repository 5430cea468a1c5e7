"""A lab (tests/lab/lab.py) whose two netdevs are the ports of a model mlx5 NIC.

    with ModelLab() as lab:
        lab.near.popen(["sockperf", "server", ...], accel=True)   # libaccel and the model
        lab.far.run(["ibv_devinfo"], model=True)                  # the model alone

On leaving, any violation that the model reported fails the test. `lab.near.counters()` sums what the models of that host counted.
"""
import json
import pathlib
import struct
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "lab"))
import lab as base  # noqa: E402
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import sysfs  # noqa: E402


class ViolationFound(AssertionError):
    """The device model saw a descriptor or ordering rule broken."""


def model_library():
    return str(base.build_dir() / "lib" / "libmlx5_model.so")


class NotCarried(AssertionError):
    """The kernel's stack carried what the NIC's queues should have."""


class ModelHost(base.Host):
    """A host whose programs may be started on the model: model=True, or accel=True for libaccel and the model together."""

    faults = ""
    part = "1017"
    _model = False
    _kinds = frozenset()  # of the programs started: accelerated or not

    @property
    def folder(self):
        return self.lab.directory / f"model{self.number}"

    def prepare(self):
        link = json.loads(self.ip("-j", "link", "show", "dev", self.device))[0]
        self.mac = link["address"]
        sysfs.write(self.folder / "sys", self.device, link["ifindex"], self.mac, self.part)
        (self.folder / "report").mkdir(parents=True)
        (self.folder / "report" / "control").write_bytes(bytes(4096))
        self._cable_before = self.cable_bytes()

    def model_environment(self, extra=None, accel=False):
        """What a program needs to find the model: also for a program started by hand in the namespace."""
        preload = [base.library()] if accel else []
        found = {
            "SYSFS_PATH": str(self.folder / "sys"),
            "MLX5_MODEL_NETDEV": self.device,
            "MLX5_MODEL_REPORT": str(self.folder / "report"),
            "MLX5_MODEL_PART": self.part,
            "LD_PRELOAD": ":".join(preload + [model_library()]),
            "ACCEL_FIREWALL": "ignore",  # the model takes frames from the kernel by rules of nf_tables, which are a packet filter's to us
        }
        if self.faults:
            found["MLX5_MODEL_FAULTS"] = self.faults
        found.update(extra or {})
        return found

    def popen(self, command, accel=False, env=None, require="mlx5", model=False, **options):
        model = model or self._model
        self._kinds |= {accel}
        if not (accel or model):
            return super().popen(command, env=env, **options)
        variables = self.model_environment(env, accel)
        if accel:
            variables.setdefault("ACCEL_CONFIG", "/dev/null")
            variables.setdefault("ACCEL_WAIT_FOR_PORTS", "1")  # also where nothing is required: the path does not depend on the moment
            if require:
                variables.setdefault("ACCEL_REQUIRE", str(require) if isinstance(require, str) else "1")
        return super().popen(command, env=variables, **options)

    def run(self, command, accel=False, env=None, require="mlx5", model=False, timeout=120, check=True):
        """As lab.Host.run; its call of popen() comes back here, so what it does not know goes by the object."""
        self._model = model
        try:
            return super().run(command, accel, env, require, timeout, check)
        finally:
            self._model = False

    def _control(self, word, value=None):
        """Sets a word of the control page (front/control.h), or adds one."""
        with open(self.folder / "report" / "control", "r+b") as page:
            page.seek(word * 4)
            now = struct.unpack("=I", page.read(4))[0]
            page.seek(word * 4)
            page.write(struct.pack("=I", now + 1 if value is None else value))

    def remove_device(self):
        """The NIC is gone, for every program of this host."""
        self._control(0, 1)

    def return_device(self):
        """A new one is in its place."""
        self._control(0, 0)

    def stall(self, on):
        """Completions are held back while on."""
        self._control(1, int(on))

    def fail_send(self):
        """The next send descriptor of every queue pair ends in an error completion."""
        self._control(2)

    def fail_receive(self):
        self._control(3)

    def xdp_left(self, timeout=10):
        """As lab.Host's; and rules that take frames from the kernel for a process that is gone."""
        end = time.monotonic() + timeout
        while "table" in (found := self.enter("nft", "list", "ruleset")) and time.monotonic() < end:
            time.sleep(0.02)
        return super().xdp_left(timeout) or "table" in found

    def counters(self, pid="*"):
        """Name: sum over all contexts of all processes so far, or of one."""
        sums = {}
        for path in (self.folder / "report").glob(f"counters.{pid}.*"):
            data = path.read_bytes()
            for at in range(0, len(data) - 31, 32):
                name = data[at : at + 24].rstrip(b"\0").decode()
                sums[name] = sums.get(name, 0) + struct.unpack_from("=Q", data, at + 24)[0]
        return sums

    def nic_packets(self):
        """Frames that the NIC's queues carried, in + out."""
        now = self.counters()
        return now.get("rx_packets", 0) + now.get("tx_packets", 0)

    def cable_bytes(self):
        """In and out of the device."""
        stats = json.loads(self.ip("-s", "-j", "link", "show", "dev", self.device))[0]["stats64"]
        return stats["rx"]["bytes"] + stats["tx"]["bytes"]

    def not_carried(self):
        """What was on the cable and not the NIC's, where every program of the host was accelerated: ARP, segments for a process that was
        killed, which the kernel answers with a reset each, and little more. What a queue had no descriptor for is the NIC's loss."""
        if self._kinds != {True}:
            return None
        now = self.counters()
        cable, lost = self.cable_bytes() - self._cable_before, now["rx_bytes_lost"]
        nic = now["rx_bytes"] + now["tx_bytes"] + lost
        refused = self.snmp()["Tcp:OutRsts"]
        print(f"{self.name}: {nic} of {cable} bytes on the cable were the NIC's, {lost} of them lost at a full queue, {refused} segments came for nobody")
        if cable - nic <= 20000 + cable // 200 + refused * 1600:
            return None
        return f"{self.name}: the kernel's stack carried {cable - nic} of {cable} bytes"

    def violations(self):
        found = []
        for path in sorted((self.folder / "report").glob("violations.*")):
            found += [f"{self.name} {path.name}: {line}" for line in path.read_text().splitlines()]
        return found


class ModelLab(base.Lab):
    """near and far with a model NIC each. proved: on leaving, the NIC of a host whose programs were all accelerated must have carried
    every byte. part: the NIC, by its PCI device (MLX5_MODEL_PART)."""

    def __init__(self, proved=False, part="1017", **options):
        super().__init__(**options)
        self._proved = proved
        near, far = self.hosts
        self.near, self.far = ModelHost(self, near.name, 1), ModelHost(self, far.name, 2)
        self.hosts = (self.near, self.far)
        self.near.part = self.far.part = part

    def __enter__(self):
        super().__enter__()
        try:
            for host in self.hosts:
                host.prepare()
        except BaseException:
            super().__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *failure):
        for host in self.hosts:
            host.stop_all()
        found = [v for host in self.hosts for v in host.violations()] if self._directory else []
        prove = self._proved and failure[0] is None
        carried = [text for host in self.hosts if (text := host.not_carried())] if prove else []
        super().__exit__(*failure)
        if carried:
            raise NotCarried("\n".join(carried))
        if found:
            raise ViolationFound("\n".join(found[:20]))
