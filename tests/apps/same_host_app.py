#!/usr/bin/env python3
"""Programs that talk over 127.0.0.1, both ends preloaded with same_host = auto: what they answer is right, and how much of it shared memory
carried is printed.

    same_host_app.py [PROGRAM...]     redis replication nginx haproxy memcached postgresql node java
"""
import argparse
import contextlib
import subprocess
import sys

import clients_app
import java_app
import memcached_app
import postgresql_app
from programs import CommandFailed, Lab, descendants, haproxy_configuration, nginx, redis, redis_benchmark, redis_command, server, statistics, until, wrk
from lab import Host

SETTINGS = {"ACCEL_SAME_HOST": "auto", "ACCEL_SAME_HOST_AFTER": "8", "ACCEL_PATH": "kernel"}


class OneHost:
    """A host of the lab as programs see it that use loopback alone. All of them are preloaded, or none."""

    address = "127.0.0.1"

    def __init__(self, host, preloaded=True, settings=None):
        self._host, self.preloaded, self._settings = host, preloaded, SETTINGS if settings is None else settings

    def __getattr__(self, name):
        return getattr(self._host, name)

    def popen(self, command, accel=False, env=None, require=False, **options):
        return self._host.popen(command, self.preloaded, {**(self._settings if self.preloaded else {}), **(env or {})}, False, **options)

    def run(self, *words, **options):
        return Host.run(self, *words, **options)


def carried(*servers):
    """(connections, bytes) by shared memory in these processes and all below them."""
    counters = [statistics(pid).get("counters", {}) for child in servers for pid in descendants(child.pid)]
    sockets = [s for child in servers for pid in descendants(child.pid) for s in statistics(pid).get("sockets", []) if s["path"] == "shm"]
    moved = sum(c.get("shm_opened", 0) for c in counters)
    past = sum(c.get("shm_bytes_in", 0) + c.get("shm_bytes_out", 0) for c in counters)
    assert not any(c.get("shm_broken", 0) for c in counters), counters
    return moved, past + sum(s["rx_bytes"] + s["tx_bytes"] for s in sockets)


def of_redis(host):
    with redis(host, False) as child:
        for what in ({"tests": "set,get,lrange_100,mset"}, {"pipeline": 16}, {"clients": 200}, {"size": 40000, "requests": 5000}):
            redis_benchmark(host, host.address, False, **{"requests": 20000, **what})
        value = "0123456789" * 20000
        assert redis_command(host, host.address, "set", "large", value[:100000]) == "OK"
        assert redis_command(host, host.address, "get", "large") == value[:100000]
        assert "started" in redis_command(host, host.address, "bgsave")  # a fork, with the load's connections
        redis_benchmark(host, host.address, False, requests=20000)
        until(lambda: "rdb_bgsave_in_progress:0" in redis_command(host, host.address, "info", "persistence"), "the end of saving")
        assert "rdb_last_bgsave_status:ok" in redis_command(host, host.address, "info", "persistence")
        return carried(child)


def of_replication(host):
    persistent = ["--appendonly", "yes", "--enable-debug-command", "yes"]

    def same():
        return redis_command(host, host.address, "debug", "digest") == redis_command(host, host.address, "debug", "digest", port=6380)
    with redis(host, False, arguments=persistent) as master, contextlib.ExitStack() as replica:
        replicate = [*persistent, "--replicaof", f"{host.address} 6379"]
        copy = replica.enter_context(redis(host, False, port=6380, arguments=replicate))
        until(lambda: "master_link_status:up" in redis_command(host, host.address, "info", "replication", port=6380), "a replica in step")
        redis_command(host, host.address, "eval", "for i=1,20000 do redis.call('set','k'..i,string.rep(i,20)) end", "0")
        until(same, "equal data")
        redis_benchmark(host, host.address, False, tests="set", requests=50000)
        until(same, "equal data behind a load")
        before = carried(master, copy)
        replica.close()
        redis_command(host, host.address, "eval", "for i=1,5000 do redis.call('set','later'..i,i) end", "0")
        replica.enter_context(redis(host, False, port=6380, arguments=replicate))
        until(same, "equal data after the replica's restart")
        return before


def of_nginx(host):
    with nginx(host, False, workers=2, body="x" * 30000) as child:
        for connections in (1, 32):
            rate, failed = wrk(host, f"http://{host.address}:8080/", False, connections=connections, seconds=2)
            assert failed == 0 and rate > 50, (rate, failed)
        seen = carried(child)
        old = set(descendants(child.pid)[1:])
        child.send_signal(1)  # new workers; the old ones end, with what connections have no request under way
        until(lambda: len(descendants(child.pid)) == 3 and not old & set(descendants(child.pid)), "new workers alone")
        rate, failed = wrk(host, f"http://{host.address}:8080/", False, connections=32, seconds=2)
        assert failed == 0 and rate > 50, (rate, failed)
        return seen


@contextlib.contextmanager
def haproxy_and_nginx(host, settings="", **configuration):
    """(nginx, HAProxy before it on port 8000)."""
    path = haproxy_configuration(host.lab.directory, f"""
frontend f
  bind {host.address}:8000
  default_backend b
backend b
  server s {host.address}:8080
""", settings)
    with nginx(host, False, **configuration) as upstream, server(host, ["haproxy", "-db", "-f", str(path)], 8000, False) as proxy:
        yield upstream, proxy


def of_haproxy(host):
    with haproxy_and_nginx(host, "nbthread 4\n  maxconn 1000", body="y" * 5000) as programs:
        rate, failed = wrk(host, f"http://{host.address}:8000/", False, connections=64, seconds=3)
        assert failed == 0 and rate > 50, (rate, failed)
        return carried(*programs)


def of_memcached(host):
    command = ["memcached", "-u", "root", "-t", "4", "-l", host.address, "-p", "11211", "-U", "11211"]
    with server(host, command, 11211, False) as child:
        assert "3200 values" in host.run(["/usr/bin/python3", "-c", memcached_app.CLIENT, host.address])
        return carried(child)


def of_postgresql(host):
    with postgresql_app.postgresql(host, False) as child:
        ask = lambda *words: postgresql_app.pgbench(host, host.address, False, *words)  # noqa: E731
        ask("-i", "-s", "1", "-q")
        assert ask("-c", "8", "-j", "2", "-t", "100") + ask("-c", "4", "-C", "-n", "-t", "50") == 1000
        # A process for each connection, which tells as long as it lives.
        load = host.popen([postgresql_app.BINARIES / "pgbench", "-h", host.address, "-p", str(postgresql_app.PORT), "-U", "postgres", "-n", "-S", "-c", "4",
                           "-T", "8", "postgres"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        seen = until(lambda: carried(child) if carried(child)[0] >= 4 else None, "four connections of children in shared memory", 30)
        said = load.communicate(timeout=60)[0]
        assert load.returncode == 0 and "number of failed transactions: 0" in said, said
        large = postgresql_app.psql(host, host.address, False, "select repeat('0123456789', 1000000)")
        assert large == "0123456789" * 1000000, len(large)
        return seen


def of_node(host):
    with server(host, ["node", "-e", clients_app.NODE_SERVER, host.address], 8100, False) as child:
        if "done" not in (said := host.run(["node", "-e", clients_app.NODE_CLIENT, host.address])):
            raise CommandFailed(said)
        return carried(child)


def of_java(host):
    words = [host.address, "8200"]
    with server(host, [*java_app.TRAFFIC, "serve", *words], 8200, False) as child:
        host.wait_for_listener(8203, child)
        if "done" not in (said := host.run([*java_app.TRAFFIC, "call", *words])):
            raise CommandFailed(said)
        return carried(child)


ALL = {name[3:]: function for name, function in globals().items() if name.startswith("of_")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="PROGRAM")
    for name in parser.parse_args().names or ALL:
        with Lab() as lab:
            moved, size = ALL[name](OneHost(lab.near))
        print(f"{name}: ok, {moved} connections of the server in shared memory, {size} bytes by it", flush=True)
        assert moved > 0


if __name__ == "__main__":
    sys.exit(main())
