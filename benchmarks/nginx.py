#!/usr/bin/env python3
"""nginx + wrk, one worker, 64 keep-alive connections, requests a second: kernel, accelerated server, both ends; interleaved."""
from measure import MODES, Lab, carried, compare, main
from programs import nginx, wrk


def measure(rounds=3, seconds=2):
    def once(side):
        on_server, on_client = MODES[side]
        with Lab() as lab, nginx(lab.near, on_server):
            rate, failed = carried(side, lab, lambda: wrk(lab.far, f"http://{lab.near.address}:8080/", on_client, seconds=seconds))
            assert failed == 0, f"{failed} requests failed"
            return rate
    results = compare(rounds, once)
    return [{"accelerated": side, "requests/s": r, "x kernel": r / results["kernel"]} for side, r in results.items()]


if __name__ == "__main__":
    main("nginx + wrk, one worker, 64 keep-alive connections", measure)
