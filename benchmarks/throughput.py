#!/usr/bin/env python3
"""Bulk TCP at MTU 1500 and 9000 and 64 B UDP messages: kernel, accelerated receiver, accelerated sender, both; offloads off."""
import json
import subprocess

from measure import Lab, build_dir, carried, compare, main

SIDES = {"kernel": "kernel", "into server": "server", "out of server": "client", "both": "both"}
ENDS = {"kernel": (False, False), "server": (True, False), "client": (False, True), "both": (True, True)}


def flow(side, protocol, size, mtu, seconds):
    on_sink, on_source = ENDS[SIDES[side]]
    tool = build_dir() / "bin" / "netload"
    with Lab(mtu=mtu) as lab:
        sink = lab.near.popen([tool, "sink", protocol, lab.near.address, "9200"], on_sink, stdout=subprocess.PIPE, text=True)
        lab.near.wait_for_listener(9200, sink, kind=protocol[0])

        def run():
            lab.far.run([tool, "source", protocol, lab.near.address, "9200", size, seconds], on_source)
            return json.loads(sink.communicate(timeout=60)[0])
        result = carried(SIDES[side], lab, run)
        return result["bits_per_second"] / 1e9 if protocol == "tcp" else result["messages_per_second"] / 1e3


def measure(rounds=3):
    rows = []
    for protocol, size, mtu, unit in (("tcp", 65536, 1500, "Gb/s"), ("tcp", 65536, 9000, "Gb/s"), ("udp", 64, 1500, "k/s")):
        results = compare(rounds, lambda side, p=protocol, s=size, m=mtu: flow(side, p, s, m, 1.5), tuple(SIDES))
        rows += [{"what": f"{protocol} {size} B, MTU {mtu}", "accelerated": side, "rate": value, "unit": unit,
                  "x kernel": value / results["kernel"]} for side, value in results.items()]
    return rows


if __name__ == "__main__":
    main("throughput", measure)
