#!/usr/bin/env python3
"""Datagrams of 64 B to a multicast group: what members receive a second in sum, and what they lose; kernel, accelerated receiver, both ends; interleaved.

The members are the sockets of one process, or processes of a socket each, whose groups libaccel leaves to the kernel. The sender is the other
host's, at a fixed rate and as fast as it can. Counters prove which path carried them, either way."""
import contextlib

from datagrams import PORT, SIZE, figures, rates, tool
from measure import MODES, SIDES, Lab, carried, compare, main

GROUP = "239.77.0.1"
RATES = {"20 k/s": 20000, "full rate": 0}
SOCKETS = (1, 2, 4, 8)
PROCESSES = 8


def group_of(lab, processes, sockets, accelerated):
    """Members of the group. More than one process: the group is the kernel's, which no ACCEL_REQUIRE forbids then."""
    words = "receive", lab.near.address, PORT, 1, GROUP, sockets
    return [tool(lab.near, accelerated, *words, require=processes == 1) for _ in range(processes)]


def once(side, processes, sockets, rate, seconds):
    on_receiver, on_sender = MODES[side]
    with Lab() as lab, contextlib.ExitStack() as ending:
        members = [ending.enter_context(each) for each in group_of(lab, processes, sockets, on_receiver)]

        def run():
            before = lab.near.kernel_packets()["udp"]
            with tool(lab.far, on_sender, "send", lab.far.address, GROUP, PORT, 1, SIZE, seconds, rate) as sender:
                sent, found = figures(sender), [figures(each) for each in members]
            total = {key: sum(each[key] for each in found) for key in found[0]}
            kernels = lab.near.kernel_packets()["udp"] - before
            assert processes == 1 or kernels >= total["messages"], f"of {total['messages']} datagrams the kernel carried {kernels}"
            return rates(sent, total, processes * sockets)
        return run() if processes > 1 else carried(side, lab, run)


def measure(rounds=3, seconds=1):
    rows = []
    groups = [(f"{n} socket{'s' * (n > 1)}", 1, n, SIDES) for n in SOCKETS] + [(f"{PROCESSES} processes", PROCESSES, 1, SIDES[:2])]
    for members, processes, sockets, sides in groups:
        for load, rate in RATES.items():
            results = compare(rounds, lambda side, p=processes, s=sockets, r=rate: once(side, p, s, r, seconds), sides)
            rows += [{"members": members, "load": load, "accelerated": side, **found, "x kernel": found["k/s"] / results["kernel"]["k/s"]}
                     for side, found in results.items()]
    return rows


if __name__ == "__main__":
    main("datagrams of 64 B to a multicast group", measure)
