#!/usr/bin/env python3
"""sockperf ping-pong, 64 B, median one way in µs: kernel, accelerated server, both ends; interleaved. Blocking sockets."""
from measure import MODES, Lab, carried, compare, main
from programs import sockperf, sockperf_server


def measure(rounds=3, seconds=1):
    rows = []
    for tcp in (True, False):
        def once(side, tcp=tcp):
            on_server, on_client = MODES[side]
            with Lab() as lab, sockperf_server(lab.near, on_server, tcp):
                return carried(side, lab, lambda: sockperf(lab.far, lab.near.address, on_client, tcp, seconds=seconds))
        results = compare(rounds, once)
        rows += [{"protocol": "tcp" if tcp else "udp", "accelerated": side, "us one way": r, "x as fast": results["kernel"] / r}
                 for side, r in results.items()]
    return rows


if __name__ == "__main__":
    main("sockperf ping-pong, 64 B, blocking", measure)
