#!/usr/bin/env python3
"""Round trips, TCP and UDP, 64 B and 60 kB (TCP), blocking: kernel, accelerated server, both; beside the raw AF_XDP round trip of the run."""
import json
import pathlib
import subprocess

from measure import MODES, Lab, build_dir, carried, compare, main

ROOT = pathlib.Path(__file__).resolve().parents[1]


def round_trip(side, protocol, size, count):
    on_server, on_client = MODES[side]
    tool = build_dir() / "bin" / "netload"
    with Lab() as lab:
        server = lab.near.popen([tool, "echo", protocol, lab.near.address, "9100", size], on_server)
        lab.near.wait_for_listener(9100, server, kind=protocol[0])
        run = lambda: lab.far.run([tool, "pingpong", protocol, lab.near.address, "9100", size, count], on_client)  # noqa: E731
        return json.loads(carried(side, lab, run).strip().splitlines()[-1])["median_us"]


def raw_round_trip():
    words = ["python3", "-B", ROOT / "tests" / "xdp" / "run.py", "--", build_dir() / "bin" / "raw_xdp", "20000", "raw"]
    output = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(output)["raw"]["median"] / 1000


def measure(rounds=3):
    rows = []
    raw = []
    for protocol, size, count in (("tcp", 64, 20000), ("tcp", 60000, 2000), ("udp", 64, 20000)):
        def once(side, protocol=protocol, size=size, count=count):
            if side == "raw":
                raw.append(raw_round_trip())
                return raw[-1]
            return round_trip(side, protocol, size, count)
        results = compare(rounds, once, ("kernel", "server", "both", "raw"))
        for side, value in results.items():
            rows.append({"protocol": protocol, "bytes": size, "accelerated": side, "us": value,
                         "x kernel": results["kernel"] / value, "of raw": value / results["raw"]})
    return rows


if __name__ == "__main__":
    main("round trips, blocking, adaptive spin", measure)
