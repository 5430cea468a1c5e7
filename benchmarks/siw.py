#!/usr/bin/env python3
"""soft-iWARP beside plain TCP, both over the kernel: 64 B round trips and bulk, CRC off and on, libaccel at both ends, between two
namespaces and over loopback; rounds are interleaved. It is interoperability: the figures say what it costs.

libaccel polls for a while before it sleeps, so the ratio is to plain TCP whose program polls as well: a sleep costs 3 us where both ends share
a CPU and 35 where the other CPU has to be woken, and which it is, the scheduler decides. Plain TCP as it is stands beside it."""
import json
import subprocess

from measure import Lab, build_dir, compare, main

SIDES = {"plain TCP, polling": None, "plain TCP": None, "iWARP": "false", "iWARP, CRC": "true"}


def environment(side):
    if SIDES[side] is None:
        return {"NETLOAD_SPIN": "1"} if "polling" in side else {}
    return {"ACCEL_IWARP": "require", "ACCEL_PATH": "kernel", "ACCEL_IWARP_CRC": SIDES[side]}


# Both ends require iWARP: there is no plain connection for them, so what runs through is the proof.
def ends(lab, where):
    """(server, client, address)"""
    return (lab.near, lab.near, "127.0.0.1") if where == "loopback" else (lab.near, lab.far, lab.near.address)


def round_trip(where, side, count):
    tool, env = build_dir() / "bin" / "netload", environment(side)
    with Lab() as lab:
        near, far, address = ends(lab, where)
        child = near.popen([tool, "echo", "tcp", address, "9100", 64], SIDES[side] is not None, env, require=False)
        near.wait_for_listener(9100, child)
        output = far.run([tool, "pingpong", "tcp", address, "9100", 64, count], SIDES[side] is not None, env, require=False)
        return json.loads(output.strip().splitlines()[-1])["median_us"]


def bulk(where, side, seconds):
    tool, env = build_dir() / "bin" / "netload", environment(side)
    with Lab(mtu=9000) as lab:
        near, far, address = ends(lab, where)
        sink = near.popen([tool, "sink", "tcp", address, "9200"], SIDES[side] is not None, env, require=False, stdout=subprocess.PIPE, text=True)
        near.wait_for_listener(9200, sink)
        far.run([tool, "source", "tcp", address, "9200", 65536, seconds], SIDES[side] is not None, env, require=False)
        return json.loads(sink.communicate(timeout=60)[0])["bits_per_second"] / 1e9


def measure(rounds=3, seconds=1.5, count=10000):
    rows = []
    for where in ("two namespaces", "loopback"):
        trips = compare(rounds, lambda side, w=where: round_trip(w, side, count), tuple(SIDES))
        rates = compare(rounds, lambda side, w=where: bulk(w, side, seconds), tuple(SIDES))
        rows += [{"where": where, "what": side, "64 B us": trips[side], "x polling": trips[side] / trips["plain TCP, polling"],
                  "bulk Gb/s": rates[side], "bulk x polling": rates[side] / rates["plain TCP, polling"]} for side in SIDES]
    return rows


if __name__ == "__main__":
    main("soft-iWARP over the kernel's TCP", measure)
