#!/usr/bin/env python3
"""TCP over an impaired path (tests/wire): the kernel's, ours as sender, as receiver, at both ends, in turn.

    wire.py [--rows NAME,...] [--rounds N] [--seconds S] [--sides kernel,sender,...] [--congestion cubic|reno|bbr] [--json]
    wire.py --fairness [--rows NAME,...] [--rounds N] [--seconds S] [--skip S] [--mixes mixed,kernel,ours] [--json]

Goodput in Mb/s of one flow; retransmissions in percent of the segments sent; the median time in ms of connections that get 20 KB each,
from connect() to the last byte. The path has a CPU of its own: where it is busy most of the time, it is what is measured.

--fairness: two flows of ours beside two of the kernel's at one bottleneck; beside it, as what CUBIC itself gives, four of the kernel's,
and four of ours. CUBIC needs tens of seconds until flows are even, so what comes before them does not count.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "wire"))
from measure import Carried, report  # noqa: E402
from wire_lab import CPUS_OF_PROGRAMS, WireLab  # noqa: E402

FLOWS = HERE.parent / "tests" / "wire" / "flows.py"
SIDES = {"kernel": (False, False), "sender": (True, False), "receiver": (False, True), "both": (True, True)}
# Before all else of the machine: otherwise its other programs are measured.
PROGRAM = ["taskset", "-c", ",".join(map(str, CPUS_OF_PROGRAMS)), "nice", "-n", "-19", sys.executable, "-B", FLOWS]
PORT = 9400
SHORT_BYTES = 20000


class Row:
    """rate in Mb/s, rtt in ms, queue in bandwidth-delay products, the rest as accel_wire takes it."""

    def __init__(self, rate, rtt, queue=1.0, there="", back=""):
        self.rate, self.rtt = rate, rtt
        product = rate * 1e6 / 8 * rtt / 1e3
        self.queue = max(int(queue * product), 3 * 1514)
        self.there = f"delay={rtt * 500}us,rate={rate}m,queue={self.queue}" + ("," + there if there else "")
        self.back = f"delay={rtt * 500}us" + ("," + back if back else "")


ROWS = {
    "20m-20ms": Row(20, 20),
    "20m-100ms-q4": Row(20, 100, 4),
    "20m-100ms-q0.1": Row(20, 100, 0.1),
    "50m-10ms-q0.5": Row(50, 10, 0.5),
    "100m-1ms": Row(100, 1, 4),
    "100m-20ms": Row(100, 20),
    "100m-20ms-q0.1": Row(100, 20, 0.1),
    "100m-20ms-q4": Row(100, 20, 4),
    "100m-50ms": Row(100, 50),
    "200m-50ms": Row(200, 50),
    "20m-200ms": Row(20, 200),
    "100m-200ms": Row(100, 200),
    "200m-200ms": Row(200, 200),
    "500m-10ms": Row(500, 10),
    "500m-50ms": Row(500, 50),
    "1g-0.2ms": Row(1000, 0.2, 4),
    "1g-10ms": Row(1000, 10),
    "1g-50ms": Row(1000, 50),
    "100m-20ms-loss0.1": Row(100, 20, there="loss=0.001"),
    "100m-20ms-loss1": Row(100, 20, there="loss=0.01"),
    "20m-50ms-loss2": Row(20, 50, there="loss=0.02"),
    "20m-20ms-loss5": Row(20, 20, there="loss=0.05"),
    "100m-20ms-ackloss5": Row(100, 20, back="loss=0.05"),
    "100m-20ms-reorder1": Row(100, 20, there="reorder=0.01,reorder_by=3ms"),
    "100m-20ms-reorder10": Row(100, 20, there="reorder=0.1,reorder_by=3ms"),
    "100m-20ms-reorder1-loss0.5": Row(100, 20, there="reorder=0.01,reorder_by=3ms,loss=0.005"),
    "100m-20ms-jitter5": Row(100, 20, 2, there="jitter=5ms"),
    "100m-20ms-burst": Row(100, 20, there="loss=0.0005,burst=2ms"),
    "100m-20ms-dup1": Row(100, 20, there="duplicate=0.01"),
}


def accelerated(lab, side):
    return [host for host, on in zip(lab.hosts, SIDES[side]) if on]


def start_server(lab, accel, algorithm, port=PORT):
    server = lab.near.popen([*PROGRAM, "serve", lab.near.address, port, algorithm], accel, stdout=subprocess.PIPE, text=True)
    lab.near.wait_for_listener(port, server)
    return server


def once(lab, row, side, options, seed):
    """One flow for so long, then short ones; a dict of figures."""
    lab.impair(row.there, row.back, seed)
    with Carried(*accelerated(lab, side)):
        server = start_server(lab, SIDES[side][0], options.congestion)
        times = json.loads(lab.far.run([*PROGRAM, "short", lab.near.address, PORT, options.shorts, SHORT_BYTES], SIDES[side][1]))["ms"]
        got = json.loads(lab.far.run([*PROGRAM, "bulk", lab.near.address, PORT, options.seconds], SIDES[side][1]))
        sent = json.loads(server.stdout.readline())
    lab.near.stop(server)
    counts = lab.counts()
    return {"goodput": got["bytes"] * 8e-6 / got["seconds"], "resent": 100 * sent["retransmissions"] / max(1, sent["segments"]),
            "short": statistics.median(times), "slow": max(times), "algorithm": sent["algorithm"],
            "dropped": 100 * sum(counts["ab"][k] for k in ("lost", "overflowed")) / max(1, counts["ab"]["frames"]),
            "not_carried": counts["ab"]["not_carried"] + counts["ba"]["not_carried"], "busy": 100 * counts["busy"]}


def measure(options):
    rows = []
    for name in options.rows.split(",") if options.rows else ROWS:
        results = {side: [] for side in options.sides.split(",")}
        with WireLab() as lab:
            for r in range(options.rounds):
                for side in results:
                    results[side].append(once(lab, ROWS[name], side, options, r + 1))
        middle = {side: {k: statistics.median(v[k] for v in all_of) if k != "algorithm" else all_of[0][k] for k in all_of[0]}
                  for side, all_of in results.items()}
        base = middle.get("kernel")
        for side, m in middle.items():
            rows.append({"path": name, "accelerated": side, "congestion": m["algorithm"], "Mb/s": m["goodput"],
                         "x kernel": m["goodput"] / base["goodput"] if base else 0.0, "resent %": m["resent"],
                         "dropped %": m["dropped"], "20 KB ms": m["short"],
                         "x kernel's time": m["short"] / base["short"] if base else 0.0, "slowest": m["slow"],
                         "not carried": m["not_carried"], "wire's CPU %": m["busy"]})
            if not options.json:
                print(json.dumps(rows[-1]), flush=True)
    return rows


def jain(values):
    return sum(values) ** 2 / (len(values) * sum(v * v for v in values))


# Whose flows are at one bottleneck: their senders, accelerated or not. A device of one queue has one process, so that ours alone is one
# server with all flows.
MIXES = {"mixed": (True, False), "kernel": (False, False), "ours": (True,)}
FLOWS_OF_EACH = 2
START_TIME = 1.0  # of four interpreters


def compete(lab, row, mix, options, r):
    """Two flows of each of two senders at one bottleneck: the rates in Mb/s, and what the senders say of themselves. All connect at
    once; who comes first changes from round to round, since for many seconds CUBIC leaves him what he had before the others came."""
    lab.impair(row.there, row.back, r + 1)
    servers = [start_server(lab, accel, options.congestion, PORT + i) for i, accel in enumerate(mix)]
    at = time.monotonic() + START_TIME
    clients = [lab.far.popen([*PROGRAM, "bulk", lab.near.address, PORT + i % len(mix), options.seconds, options.skip,
                              at + 0.001 * ((i + r) % (2 * FLOWS_OF_EACH))], stdout=subprocess.PIPE, text=True)
               for i in range(2 * FLOWS_OF_EACH)]
    got = [json.loads(c.communicate()[0]) for c in clients]
    rates = [8e-6 * g["bytes"] / g["seconds"] for g in got]
    told = [[json.loads(s.stdout.readline()) for _ in range(2 * FLOWS_OF_EACH // len(mix))] for s in servers]
    for s in servers:
        lab.near.stop(s)
    resent = [100 * sum(f["retransmissions"] for f in flows) / max(1, sum(f["segments"] for f in flows)) for flows in told]
    return {"first": sum(rates[0::2]), "second": sum(rates[1::2]), "Jain's index": jain(rates), "resent %": resent[0],
            "second's": resent[-1], "congestion": " / ".join(",".join(sorted({f["algorithm"] for f in flows})) for flows in told),
            "each": [round(r, 1) for r in rates]}


def fairness(options):
    """Two flows of an accelerated sender beside two of the kernel's, and each kind beside its like, in turn."""
    rows = []
    for name in options.rows.split(",") if options.rows else ("20m-20ms", "100m-20ms", "100m-50ms"):
        results = {mix: [] for mix in options.mixes.split(",")}
        for r in range(options.rounds):
            for mix in results:
                with WireLab() as lab:
                    results[mix].append(compete(lab, ROWS[name], MIXES[mix], options, r))
                if options.verbose:
                    print(name, mix, json.dumps(results[mix][-1]), flush=True)
        for mix, all_of in results.items():
            figures = {k: statistics.mean(v[k] for v in all_of) for k in all_of[0] if k not in ("congestion", "each")}
            rows.append({"path": name, "flows": mix, "congestion": all_of[0]["congestion"], **figures,
                         "of the sides": jain([figures["first"], figures["second"]])})
            if not options.json:
                print(json.dumps(rows[-1]), flush=True)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--congestion", default="cubic")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, help="that count; 4, and 40 for --fairness")
    parser.add_argument("--shorts", type=int, default=10)
    parser.add_argument("--fairness", action="store_true")
    parser.add_argument("--skip", type=float, default=20, help="of --fairness: seconds before those that count")
    parser.add_argument("--mixes", default=",".join(MIXES), help="of --fairness")
    parser.add_argument("--verbose", action="store_true", help="of --fairness: each round")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    chosen.seconds = chosen.seconds or (40 if chosen.fairness else 4)
    report("an impaired path", (fairness if chosen.fairness else measure)(chosen), chosen.json)
