#!/usr/bin/env python3
"""Java, server and client: blocking sockets, selectors, datagrams and HTTP (Traffic.java); what comes back is what was sent."""
import argparse
import pathlib
import sys

from programs import MODES, Carried, CommandFailed, Lab, accelerated_hosts, server

TRAFFIC = ["java", "-XX:TieredStopAtLevel=1", pathlib.Path(__file__).with_name("Traffic.java")]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=MODES, default="both")
    options = parser.parse_args()
    on_server, on_client = MODES[options.mode]
    with Lab() as lab:
        near, far = lab.near, lab.far
        words = [near.address, "8200"]
        with server(near, [*TRAFFIC, "serve", *words], 8200, on_server) as child, Carried(*accelerated_hosts(options.mode, near, far)) as carried:
            near.wait_for_listener(8203, child)
            if "done" not in (said := far.run([*TRAFFIC, "call", *words], on_client)):
                raise CommandFailed(said)
        print(f"java: frames (wire, kernel's): {carried.figures}")
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
