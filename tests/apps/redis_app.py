#!/usr/bin/env python3
"""redis under load: set, get, lrange, mset, pipelining, 200 clients, BGSAVE under load, a restart that finds its data."""
import argparse
import sys

from programs import MODES, Carried, Lab, accelerated_hosts, redis, redis_benchmark, redis_command


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=MODES, default="both")
    parser.add_argument("--requests", type=int, default=20000)
    options = parser.parse_args()
    on_server, on_client = MODES[options.mode]
    n = options.requests
    with Lab() as lab:
        near, far = lab.near, lab.far
        with Carried(*accelerated_hosts(options.mode, near, far)), redis(near, on_server, save=""):
            load = lambda **k: redis_benchmark(far, near.address, on_client, **k)  # noqa: E731
            print("plain", load(tests="set,get,lrange_100,mset", requests=n))
            print("pipelined", load(tests="set,get", requests=n * 10, pipeline=16))
            print("200 clients", load(tests="set,get", requests=n, clients=200))
            print("4 KiB values", load(tests="set,get", requests=n // 2, size=4096))
            assert redis_command(far, near.address, "set", "kept", "value", accel=on_client) == "OK"
            assert "started" in redis_command(far, near.address, "bgsave", accel=on_client)
            print("while saving", load(tests="set,get", requests=n))
            for _ in range(1000):
                if "rdb_bgsave_in_progress:0" in redis_command(far, near.address, "info", "persistence", accel=on_client):
                    break
            info = redis_command(far, near.address, "info", "persistence", accel=on_client)
            assert "rdb_last_bgsave_status:ok" in info, info
        with redis(near, on_server):
            assert redis_command(far, near.address, "get", "kept", accel=on_client) == "value"
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
