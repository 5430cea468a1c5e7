#!/usr/bin/env python3
"""redis-benchmark SET and GET, 50 clients, requests a second: kernel, accelerated server, both ends; interleaved."""
from measure import MODES, Lab, carried, compare, main
from programs import redis, redis_benchmark


def measure(rounds=3, requests=100000):
    def once(side):
        on_server, on_client = MODES[side]
        with Lab() as lab, redis(lab.near, on_server):
            rates = carried(side, lab, lambda: redis_benchmark(lab.far, lab.near.address, on_client, requests=requests))
            return {"set": rates["SET"], "get": rates["GET"]}
    results = compare(rounds, once)
    kernel = results["kernel"]
    return [{"accelerated": side, "set/s": r["set"], "get/s": r["get"], "set x kernel": r["set"] / kernel["set"],
             "get x kernel": r["get"] / kernel["get"]} for side, r in results.items()]


if __name__ == "__main__":
    main("redis-benchmark, 50 clients, 3 B values", measure)
