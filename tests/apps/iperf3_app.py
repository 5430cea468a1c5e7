#!/usr/bin/env python3
"""iperf3: one stream, four at once, reverse, UDP."""
import argparse
import sys

from programs import MODES, Lab, iperf3, server


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=MODES, default="both")
    options = parser.parse_args()
    on_server, on_client = MODES[options.mode]
    with Lab() as lab:
        for arguments in ([], ["-P", "4"], ["-R"], ["-P", "4", "-R"], ["-u", "-b", "100M"]):
            # a server for each: one that has just told its client the results may still be busy with that run
            with server(lab.near, ["iperf3", "-s", "-B", lab.near.address], 5201, on_server):
                rate = iperf3(lab.far, lab.near.address, on_client, arguments, seconds=1)
            print(f"iperf3 {' '.join(arguments)}: {rate / 1e9:.2f} Gb/s", flush=True)
            assert rate > 1e6
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
