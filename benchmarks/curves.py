#!/usr/bin/env python3
"""What plots show: the distribution of round trips, throughput against the size of writes, requests and CPU against connections, and what an
idle connection costs. Kernel, accelerated server, both ends; interleaved.

CPU is of the whole machine, since the kernel's protocol runs in interrupts and in the other end's system calls; a machine with other work shows
that, too. Polling is counted as work."""
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys

from measure import MODES, Lab, build_dir, carried, compare, report
from programs import server

TOOL, LOAD = build_dir() / "bin" / "netload", build_dir() / "bin" / "thread_load"
SIZES = (64, 512, 4096, 65536)
CONNECTIONS = (1, 16, 128, 1024)
IDLE = 2000
PORT = 9200
# Opens so many connections, says so, and ends with its input.
HOLDER = """
import resource, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = [socket.create_connection((sys.argv[1], int(sys.argv[2]))) for _ in range(int(sys.argv[3]))]
print("held", flush=True)
sys.stdin.read()
"""


def busy_seconds():
    """Of all processors together, since the start."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def echo_server(lab, accelerated):
    """An epoll server of one thread."""
    return server(lab.near, list(map(str, [LOAD, "echo", lab.near.address, PORT, 1, "group"])), PORT, accelerated)


def rows_along(column, values, rounds, once):
    """once(value, side) -> dict of figures. A row for each value and side."""
    return [{column: value, "accelerated": side, **figures} for value in values
            for side, figures in compare(rounds, lambda side, value=value: once(value, side)).items()]


def distribution(rounds=3, count=20000):
    def once(protocol, side):
        on_server, on_client = MODES[side]
        with Lab() as lab:
            child = lab.near.popen([TOOL, "echo", protocol, lab.near.address, PORT, 64], on_server)
            lab.near.wait_for_listener(PORT, child, kind=protocol[0])
            said = carried(side, lab, lambda: lab.far.run([TOOL, "pingpong", protocol, lab.near.address, PORT, 64, count], on_client))
            return {f"{share:g}": us for share, us in json.loads(said.strip().splitlines()[-1])["shares_us"]}
    return rows_along("protocol", ("tcp", "udp"), rounds, once)


def sizes(rounds=3, seconds=1):
    def once(size, side):
        on_sink, on_source = MODES[side]
        with Lab() as lab:
            sink = lab.near.popen([TOOL, "sink", "tcp", lab.near.address, PORT], on_sink, stdout=subprocess.PIPE, text=True)
            lab.near.wait_for_listener(PORT, sink)

            def run():
                before = busy_seconds()
                lab.far.run([TOOL, "source", "tcp", lab.near.address, PORT, size, seconds], on_source)
                done = json.loads(sink.communicate(timeout=60)[0])
                bits = done["bits_per_second"]
                return {"Gb/s": bits / 1e9, "CPU ns a KiB": (busy_seconds() - before) * 1e9 / (bits * seconds / 8 / 1024)}
            return carried(side, lab, run)
    return rows_along("bytes", SIZES, rounds, once)


def connections(rounds=3, seconds=1):
    def once(count, side):
        on_server, on_client = MODES[side]
        with Lab() as lab, echo_server(lab, on_server):
            def run():
                before = busy_seconds()
                rate = json.loads(lab.far.run([LOAD, "ask", lab.near.address, PORT, count, seconds], on_client))["rate"]
                return {"k/s": rate / 1e3, "CPU us a request": (busy_seconds() - before) * 1e6 / (rate * seconds)}
            return carried(side, lab, run)
    return rows_along("connections", CONNECTIONS, rounds, once)


@contextlib.contextmanager
def held(lab, count):
    """So many idle connections from the far host to the server."""
    holder = lab.far.popen([sys.executable, "-c", HOLDER, lab.near.address, PORT, count], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    yield
    holder.stdin.close()
    holder.wait(60)


def memory_of(pid):
    """KiB of the process (proportional set size), and of the kernel (slab and socket buffers)."""
    own = int(re.search(r"^Pss: +(\d+)", pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)[1])
    slab = int(re.search(r"^Slab: +(\d+)", pathlib.Path("/proc/meminfo").read_text(), re.M)[1])
    return own, slab


def idle(rounds=3):
    """Both ends are this machine's, so the kernel's figure is of both; the client is the kernel's in either row."""
    def once(side):
        with Lab() as lab, echo_server(lab, side == "server") as child:
            before = memory_of(child.pid)
            with held(lab, IDLE):
                after = memory_of(child.pid)
            return {"process KiB": (after[0] - before[0]) / IDLE, "kernel KiB, both ends": (after[1] - before[1]) / IDLE}
    return [{"accelerated": side, **found} for side, found in compare(rounds, once, ("kernel", "server")).items()]


if __name__ == "__main__":
    for title, rows in (("round trips, 64 B, us by share", distribution()), ("one TCP stream by the size of writes", sizes()),
                        ("64 B requests by connections, one thread", connections()), ("an idle connection", idle())):
        report(title, rows)
