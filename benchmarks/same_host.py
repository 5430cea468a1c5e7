#!/usr/bin/env python3
"""Programs of one host over 127.0.0.1: the kernel's loopback beside shared memory (same_host = auto at both ends); interleaved.

No run has a device. A ping-pong is placed three ways: each end on a CPU of its own, both on one, and free. All else is free.
SAME_HOST_LOADS: a part of the loads' names. Connections of one request each end before they are moved, and PostgreSQL's are its children's.
"""
import json
import os
import subprocess

from measure import Lab, build_dir, compare, main
from programs import iperf3, nginx, redis, redis_benchmark, server, until, wrk
import postgresql_app
from same_host_app import OneHost, carried, haproxy_and_nginx

SETTINGS = {"ACCEL_SAME_HOST": "auto", "ACCEL_PATH": "kernel"}
SIDES = ("kernel", "shm")
TOOL = build_dir() / "bin" / "netload"


def moved(host, child):
    """The server's connections were in shared memory, where they should have been."""
    assert not host.preloaded or carried(child)[0] > 0, "no connection in shared memory"


def on(cpu):
    return [] if cpu is None else ["taskset", "-c", cpu]


def of_ping_pong(of_server, of_client):
    """Round trips a second. The server ends with its connection, so it is asked meanwhile."""
    def run(host):
        with server(host, [*on(of_server), TOOL, "echo", "tcp", host.address, "9100", "64"], 9100, False) as child:
            count = 1000000 if host.preloaded else 100000
            client = host.popen([*on(of_client), TOOL, "pingpong", "tcp", host.address, "9100", "64", count], stdout=subprocess.PIPE, text=True)
            until(lambda: not host.preloaded or carried(child)[0] > 0, "a connection in shared memory", 10)
            return 1e6 / json.loads(client.communicate(timeout=60)[0].strip().splitlines()[-1])["median_us"]
    return run


def of_redis(test, **load):
    def run(host):
        with redis(host, False) as child:
            rate = redis_benchmark(host, host.address, False, tests=test, **load)[test.upper()]
            moved(host, child)
            return rate
    return run


def requests(host, port):
    """A second, of 32 clients."""
    rate, failed = wrk(host, f"http://{host.address}:{port}/", False, connections=32, seconds=2)
    assert failed == 0, f"{failed} requests failed"
    return rate


def of_nginx(keepalive):
    def run(host):
        with nginx(host, False, keepalive=keepalive) as child:
            rate = requests(host, 8080)
            if keepalive:
                moved(host, child)
            return rate
    return run


def of_iperf3(streams):
    def run(host):
        with server(host, ["iperf3", "-s", "-p", 5201, "-B", host.address], 5201, False) as child:
            rate = iperf3(host, host.address, False, ["-P", str(streams)], seconds=2)
            moved(host, child)
            return rate
    return run


def of_postgresql(host):
    with postgresql_app.postgresql(host, False):
        postgresql_app.pgbench(host, host.address, False, "-i", "-s", "1", "-q")
        return postgresql_app.pgbench(host, host.address, False, "-n", "-S", "-c", "4", "-T", "2") / 2


def of_chain(host):
    with haproxy_and_nginx(host) as (_, proxy):
        rate = requests(host, 8000)
        moved(host, proxy)
        return rate


LOADS = {
    "ping-pong 64 B, a CPU each, 1/s": of_ping_pong("0", "1"),
    "ping-pong 64 B, one CPU, 1/s": of_ping_pong("0", "0"),
    "ping-pong 64 B, free, 1/s": of_ping_pong(None, None),
    "redis SET, 50 clients, 1/s": of_redis("set"),
    "redis GET, 50 clients, 1/s": of_redis("get"),
    "redis GET, pipeline of 16, 1/s": of_redis("get", pipeline=16, requests=400000),
    "nginx, keep-alive, 32 clients, 1/s": of_nginx(True),
    "nginx, a connection a request, 1/s": of_nginx(False),
    "iperf3, 1 stream, bit/s": of_iperf3(1),
    "iperf3, 4 streams, bit/s": of_iperf3(4),
    "pgbench -S, 4 clients, 1/s": of_postgresql,
    "wrk, HAProxy, nginx, 1/s": of_chain,
}


def measure(rounds=3, wanted=(os.environ.get("SAME_HOST_LOADS", ""),)):
    """`wanted`: parts of the loads' names."""
    rows = []
    for name, load in LOADS.items():
        if not any(part in name for part in wanted):
            continue

        def once(side, load=load):
            with Lab() as lab:
                return load(OneHost(lab.near, side == "shm", SETTINGS))
        results = compare(rounds, once, SIDES)
        rows.append({"load": name, **results, "x kernel": results["shm"] / results["kernel"]})
    return rows


if __name__ == "__main__":
    main("one host, 127.0.0.1, both ends: the kernel's loopback and shared memory", measure)
