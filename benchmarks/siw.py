#!/usr/bin/env python3
"""soft-iWARP beside plain TCP, both over the kernel: 64 B round trips and bulk, CRC off and on, libaccel at both ends, between two
namespaces and over loopback. It is interoperability: the figures say what it costs.

libaccel polls for a while before it sleeps, so the ratio is to plain TCP whose program polls as well: a sleep costs 3 us where both ends share
a CPU and 35 where the other CPU has to be woken, and which it is, the scheduler decides. For the same reason each end has its CPU. Plain TCP as
it is stands beside it. Rounds are interleaved; a ratio is the median of the ratios within each round, since a round trip's time drifts more
than the ratio does."""
import json
import os
import statistics
import subprocess

from measure import Lab, build_dir, main

SIDES = {"plain TCP, polling": None, "plain TCP": None, "iWARP": "false", "iWARP, CRC": "true"}
BASE = "plain TCP, polling"
CPUS = sorted(os.sched_getaffinity(0))


def environment(side):
    if SIDES[side] is None:
        return {"NETLOAD_SPIN": "1"} if "polling" in side else {}
    return {"ACCEL_IWARP": "require", "ACCEL_PATH": "kernel", "ACCEL_IWARP_CRC": SIDES[side]}


class Ends:
    """The program at both ends. Both require iWARP: there is no plain connection for them, so what runs through is the proof."""

    def __init__(self, lab, where):
        self._near, self._far = lab.near, lab.near if where == "loopback" else lab.far
        self._address = "127.0.0.1" if where == "loopback" else lab.near.address
        self._port = 9100

    def _words(self, cpu, what, *numbers):
        return list(map(str, ["taskset", "-c", cpu, build_dir() / "bin" / "netload", what, "tcp", self._address, self._port, *numbers]))

    def run(self, side, server, client, *numbers):
        """(what the server printed, what the client printed)"""
        self._port += 1  # the one before may be in TIME-WAIT
        accel, env = SIDES[side] is not None, environment(side)
        child = self._near.popen(self._words(CPUS[0], server, 64), accel, env, require=False, stdout=subprocess.PIPE, text=True)
        self._near.wait_for_listener(self._port, child)
        said = self._far.run(self._words(CPUS[-1], client, *numbers), accel, env, require=False)
        return child.communicate(timeout=60)[0], said


def round_trip(ends, side, count):
    return json.loads(ends.run(side, "echo", "pingpong", 64, count)[1].strip().splitlines()[-1])["median_us"]


def bulk(ends, side, seconds):
    return json.loads(ends.run(side, "sink", "source", 65536, seconds)[0])["bits_per_second"] / 1e9


def compare(rounds, once):
    """side -> (median, median of the ratios to BASE within each round). Round 0 warms up."""
    found = [{side: once(side) for side in SIDES} for _ in range(rounds + 1)][1:]
    return {side: (statistics.median(f[side] for f in found), statistics.median(f[side] / f[BASE] for f in found)) for side in SIDES}


def measure(rounds=5, seconds=0.5, count=10000):
    rows = []
    for where in ("two namespaces", "loopback"):
        with Lab() as lab:
            ends = Ends(lab, where)
            trips = compare(rounds, lambda side, e=ends: round_trip(e, side, count))
        with Lab(mtu=9000) as lab:
            ends = Ends(lab, where)
            rates = compare(rounds, lambda side, e=ends: bulk(e, side, seconds))
        rows += [{"where": where, "what": side, "64 B us": trips[side][0], "x polling": trips[side][1], "bulk Gb/s": rates[side][0],
                  "bulk x polling": rates[side][1]} for side in SIDES]
    return rows


if __name__ == "__main__":
    main("soft-iWARP over the kernel's TCP", measure)
