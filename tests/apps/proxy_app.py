#!/usr/bin/env python3
"""HAProxy (threads) in front of nginx, both accelerated on one host's device and loaded from the other."""
import argparse
import sys

from programs import MODES, Carried, Lab, accelerated_hosts, haproxy_configuration, nginx, server, wrk


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=MODES, default="both")
    parser.add_argument("--seconds", type=int, default=2)
    options = parser.parse_args()
    on_server, on_client = MODES[options.mode]
    with Lab() as lab:
        near, far = lab.near, lab.far
        path = haproxy_configuration(lab.directory, f"""
frontend f
  bind {near.address}:8000
  default_backend b
backend b
  server s {far.address}:8080
""", "nbthread 4\n  maxconn 1000")
        # the proxy on near, its upstream and the load on far
        hosts = accelerated_hosts(options.mode, near, far)
        with nginx(far, on_client), server(near, ["haproxy", "-db", "-f", str(path)], 8000, on_server), Carried(*hosts[:1]) as carried:
            rate, failed = wrk(far, f"http://{near.address}:8000/", False, connections=64, seconds=options.seconds)
            print(f"through HAProxy: {rate:.0f}/s, {failed} failed")
            assert failed == 0 and rate > 50
        print(f"frames (wire, kernel's): {carried.figures}")
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
