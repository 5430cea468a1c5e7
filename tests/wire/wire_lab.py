"""Two hosts of the lab with an impaired path between them: accel_wire in a namespace of its own forwards what they send.

    with WireLab() as lab:
        lab.impair("delay=10ms,loss=0.01", "delay=10ms")   # near to far, far to near
        ...
        counts = lab.counts()                              # what it did since, and it stops
"""
import json
import os
import pathlib
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))
from lab import Host, Lab, _namespace_table, _remove_namespace, build_dir, cpu_seconds, sh  # noqa: E402


# The path has a CPU of its own where there are several: at real-time priority it would keep others from theirs for milliseconds.
CPUS = sorted(os.sched_getaffinity(0))
CPU_OF_THE_WIRE = CPUS[-1]
CPUS_OF_PROGRAMS = CPUS[:-1] or CPUS


class WireLab(Lab):
    def __init__(self, queues=1, mtu=1500):
        super().__init__(queues, mtu)
        self.middle = Host(self, self.near.name[:-1] + "m", 3)
        self._wire = None

    def _lay_cable(self, here, there):
        with _namespace_table():
            sh("ip", "netns", "add", self.middle.name)
        self.middle.enter("sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1", "net.ipv6.conf.all.disable_ipv6=1")
        q = ["numtxqueues", str(self.queues), "numrxqueues", str(self.queues)]
        for host, device, port in ((self.near, here, "left"), (self.far, there, "right")):
            host.ip("link", "add", device, *q, "type", "veth", "peer", "name", port, "netns", self.middle.name)
            self.middle.as_a_wire(port, self.mtu)
            self.middle.ip("link", "set", port, "up", "txqueuelen", "10000")

    def _bring_up(self):
        super()._bring_up()
        self.impair("", "")

    def impair(self, there, back, seed=1):
        """Starts anew with these impairments; see Impairment of path.h."""
        if self._wire:
            self.counts()
        words = ["taskset", "-c", str(CPU_OF_THE_WIRE), build_dir() / "bin" / "accel_wire", "left", "right", "--seed", seed, "--ab", there, "--ba", back]
        self._wire = self.middle.popen(words, stdout=subprocess.PIPE, text=True)
        assert self._wire.stdout.readline() == "ready\n"
        self._began = time.monotonic()

    def counts(self):
        """Of each direction, "ab" and "ba", and "busy", the share of its time that the path had the CPU; it carries nothing from now on."""
        busy = cpu_seconds(self._wire.pid) / (time.monotonic() - self._began)
        self._wire.terminate()
        out, _ = self._wire.communicate(timeout=20)
        self._wire = None
        return {**json.loads(out), "busy": busy}

    def __exit__(self, *what):
        super().__exit__(*what)
        self.middle.stop_all()
        if pathlib.Path("/run/netns", self.middle.name).exists():
            _remove_namespace(self.middle.name)
