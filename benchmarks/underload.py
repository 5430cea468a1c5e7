#!/usr/bin/env python3
"""sockperf under load, 64 B: percentiles of the latency one way in µs while messages come at shares of the kernel's own maximum rate; kernel,
accelerated server, both ends; interleaved. Blocking sockets.

The maximum is found anew at the start of each round: messages a second that the kernel's server took as the client sent without a pause. Each
load has as many answers a second, a tenth of that maximum, so that equally many latencies are behind each percentile."""
import re

from measure import MODES, SIDES, CommandFailed, Lab, carried, main, median
from programs import sockperf_server

LOADS = (10, 30, 50, 70, 90)  # % of the maximum
SHARES = ("50", "99", "99.9", "99.99")
ANSWERED = 10  # a message in so many has an answer at the maximum


def under_load(side, tcp, rate, every, seconds):
    """sockperf's figures for `rate` messages a second ("max": as many as it can), each `every`th of which is answered."""
    on_server, on_client = MODES[side]
    with Lab() as lab, sockperf_server(lab.near, on_server, tcp):
        command = ["sockperf", "under-load", "-i", lab.near.address, "-p", "11111", "-m", "64", "-t", str(seconds), "--mps", str(rate),
                   "--reply-every", str(every), *(["--tcp"] if tcp else [])]
        return figures(carried(side, lab, lambda: lab.far.run(command, on_client)))


def figures(said):
    """Percentiles that at least one observation is beyond; a run that was overwhelmed may have none."""
    sent = re.search(r"\[Total Run\] RunTime=([\d.]+) sec;.* SentMessages=(\d+)", said)
    if not sent:
        raise CommandFailed(f"sockperf did not say what it sent:\n{said}")
    found = {"sent/s": int(sent[2]) / float(sent[1])}
    found["observations"] = observations = int((re.search(r"Total (\d+) observations", said) or ["", 0])[1])
    dropped = re.search(r"# dropped messages = (\d+)", said)
    if dropped:
        found["lost %"] = 100 * int(dropped[1]) / max(1, int(dropped[1]) + observations)
    for share in SHARES:
        if observations * (100 - float(share)) >= 100:
            found[f"p{share} us"] = float(re.search(rf"percentile {float(share):.3f} = +([\d.]+)", said)[1])
    return found


def kernels_maximum(tcp, seconds):
    found = under_load("kernel", tcp, "max", ANSWERED, seconds)
    return found["sent/s"] * (1 - found.get("lost %", 0) / 100)


def measure(rounds=3, seconds=2):
    rows = {}
    for _ in range(rounds):
        for tcp in (True, False):
            most = kernels_maximum(tcp, 1)
            for load in LOADS:
                for side in SIDES:
                    found = under_load(side, tcp, round(most * load / 100), load * ANSWERED // 100, seconds)
                    rows.setdefault(("tcp" if tcp else "udp", load, side), []).append(found)
    return [{"protocol": protocol, "load %": load, "accelerated": side, **median(found)} for (protocol, load, side), found in rows.items()]


if __name__ == "__main__":
    main("sockperf under load, 64 B, blocking", measure)
