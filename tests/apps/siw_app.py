#!/usr/bin/env python3
"""redis and sockperf over soft-iWARP: both ends preloaded with iwarp = require, no AF_XDP. Proved by the servers' counters: every
connection is iWARP and none is plain."""
import os
import sys

from programs import Lab, redis, redis_benchmark, redis_command, sockperf, sockperf_server, statistics


def prove(child, least):
    counters = statistics(child.pid)["counters"]
    made, plain = counters.get("iwarp_accepted", 0), counters.get("iwarp_plain_accepted", 0)
    print(f"{made} iWARP connections, {plain} plain")
    assert made >= least and plain == 0, counters
    faults = {k: v for k, v in counters.items() if v and k.startswith(("iwarp_fpdu", "iwarp_ddp", "iwarp_rdmap", "iwarp_rs", "iwarp_mpa"))}
    assert not faults, faults


def main():
    os.environ.update(ACCEL_IWARP="require", ACCEL_PATH="kernel")  # of every preloaded program
    with Lab() as lab:
        near, far = lab.near, lab.far
        with redis(near, True) as child:
            load = lambda **k: redis_benchmark(far, near.address, True, **k)  # noqa: E731
            print("plain", load(tests="set,get,lrange_100,mset", requests=20000))
            print("pipelined", load(tests="set,get", requests=100000, pipeline=16))
            print("200 clients", load(tests="set,get", requests=20000, clients=200))
            print("4 KiB values", load(tests="set,get", requests=10000, size=4096))
            assert redis_command(far, near.address, "set", "kept", "value", accel=True) == "OK"
            assert "started" in redis_command(far, near.address, "bgsave", accel=True)  # a fork with connections
            print("while saving", load(tests="set,get", requests=20000))
            assert redis_command(far, near.address, "get", "kept", accel=True) == "value"
            prove(child, 4 * 50 + 2 * 50 + 2 * 200 + 2 * 50)
        for port, size in enumerate((14, 1472, 60000), start=11111):  # sockperf cannot bind a port with a connection in TIME-WAIT
            with sockperf_server(near, True, True, port) as child:
                median = sockperf(far, near.address, True, True, size=size, seconds=1, port=port, data_integrity=True)
                print(f"{size} B: {median} us one way")
                prove(child, 1)
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
