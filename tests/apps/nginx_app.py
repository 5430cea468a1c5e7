#!/usr/bin/env python3
"""nginx under wrk: 1 and 4 workers, keep-alive and a connection a request, a large file, no failed request."""
import argparse
import sys

from programs import MODES, ON_MODEL, Carried, Lab, accelerated_hosts, nginx, wrk


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=MODES, default="both")
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4])
    options = parser.parse_args()
    least = 1 if ON_MODEL else 100  # requests a second: the model is never a measure of speed
    on_server, on_client = MODES[options.mode]
    for workers in options.workers:
        for keepalive in (True, False):
            with Lab(queues=workers) as lab:
                near, far = lab.near, lab.far
                # the client takes every queue of its device, each worker of the server one
                with Carried(*accelerated_hosts(options.mode, near, far)), \
                        nginx(near, on_server, workers=workers, keepalive=keepalive) as child:
                    rate, failed = wrk(far, f"http://{near.address}:8080/", on_client, seconds=options.seconds)
                    print(f"{workers} workers, {'keep-alive' if keepalive else 'closing'}: {rate:.0f}/s, {failed} failed")
                    assert failed == 0 and rate > least, child.log.read_text()[-2000:]
                    (child.directory / "large").write_bytes(bytes(range(256)) * 4096 * 20)
                    got = lab.directory / "got"
                    far.run(["curl", "-sS", "--max-time", "60", "-o", got, f"http://{near.address}:8080/large"], on_client)
                    assert got.read_bytes() == (child.directory / "large").read_bytes(), "the large file differs"
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
