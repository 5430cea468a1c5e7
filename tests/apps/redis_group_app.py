#!/usr/bin/env python3
"""redis servers that talk to each other between two accelerated hosts: replication, with a restart of the replica and of the master from its
append-only file; a cluster of three masters that serves every slot, and one that moves."""
import argparse
import contextlib
import re
import sys

from programs import MODES, CommandFailed, Lab, redis, redis_command, statistics, until


def digest(host, target, port=6379):
    return redis_command(host, target, "debug", "digest", port=port)


def carried(child, other):
    """Bytes that the server's stack carries on its connections with the other host."""
    return sum(s["rx_bytes"] + s["tx_bytes"] for s in statistics(child.pid).get("sockets", [])
               if s["path"] == "xdp" and s["remote"].startswith(other.address + ":"))


def replication(lab, on):
    near, far = lab.near, lab.far
    persistent = ["--appendonly", "yes", "--enable-debug-command", "yes"]

    def same():
        return digest(far, near.address) == digest(near, far.address)
    with redis(near, on[0], arguments=persistent) as master, contextlib.ExitStack() as replica:
        replicate = [*persistent, "--replicaof", f"{near.address} 6379"]
        copy = replica.enter_context(redis(far, on[1], arguments=replicate))
        until(lambda: "master_link_status:up" in redis_command(far, far.address, "info", "replication"), "a replica in step")
        redis_command(far, near.address, "eval", "for i=1,20000 do redis.call('set','k'..i,string.rep(i,20)) end", "0")
        until(same, "equal data")
        for child, other, accel in ((master, far, on[0]), (copy, near, on[1])):
            assert not accel or carried(child, other) > 100000, f"{child.args[-5:]}: {carried(child, other)} bytes accelerated"
        replica.close()
        redis_command(far, near.address, "eval", "for i=1,5000 do redis.call('set','later'..i,i) end", "0")
        replica.enter_context(redis(far, on[1], arguments=replicate))
        until(same, "equal data after the replica's restart")
        kept = digest(far, near.address)
        print("replication: ok", flush=True)
    with redis(near, on[0], arguments=persistent):
        until(lambda: digest(far, near.address) == kept, "the append-only file's data")
    print("append-only file: ok", flush=True)


def cluster(lab, on):
    near, far = lab.near, lab.far
    arguments = ["--cluster-enabled", "yes"]
    # Two nodes of one host talk by its own address, which is the kernel's; an accelerated one needs all queues of its device.
    nodes = [(near, 7001, on[0]), (near, 7002, False), (far, 7003, on[1])]
    children = {}
    with contextlib.ExitStack() as stack:
        for host, port, accel in nodes:
            children[port] = stack.enter_context(redis(host, accel, port=port, arguments=arguments, env={"ACCEL_REQUIRE": "off"}))
        addresses = [f"{host.address}:{port}" for host, port, _ in nodes]
        far.run(["redis-cli", "--cluster", "create", *addresses, "--cluster-yes"])
        for host, port, _ in nodes:
            until(lambda h=host, p=port: "cluster_state:ok" in redis_command(near, h.address, "cluster", "info", port=p), "a cluster that is ok")
        for i in range(60):
            assert redis_command(near, far.address, "-c", "set", f"key{i}", f"value{i}", port=7003).endswith("OK")
        for i in range(60):
            assert redis_command(far, near.address, "-c", "get", f"key{i}", port=7001).endswith(f"value{i}")
        ids = [redis_command(near, host.address, "cluster", "myid", port=port) for host, port, _ in nodes]
        far.run(["redis-cli", "--cluster", "reshard", addresses[0], "--cluster-from", ids[0], "--cluster-to", ids[2], "--cluster-slots", "100",
                 "--cluster-yes"])
        check = until(lambda: (text := far.run(["redis-cli", "--cluster", "check", addresses[1]], check=False)) and "All 16384 slots covered" in text
                      and text, "slots covered")
        for port, other, accel in ((7001, far, on[0]), (7003, near, on[1])):
            assert not accel or carried(children[port], other) > 2000, f"{port}: {carried(children[port], other)} bytes accelerated"
        assert len(re.findall(r"M: [0-9a-f]{40} ", check)) == 3, check
        for i in range(60):
            assert redis_command(near, near.address, "-c", "get", f"key{i}", port=7002).endswith(f"value{i}")
    print("cluster of three: ok", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=MODES, default="both")
    options = parser.parse_args()
    on = MODES[options.mode]
    with Lab() as lab:
        replication(lab, on)
        cluster(lab, on)
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
