#!/usr/bin/env python3
"""sockperf --data-integrity, TCP and UDP, at 14, 1472, 8000 and 60000 bytes."""
import argparse
import sys

from programs import MODES, Lab, sockperf, sockperf_server


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=MODES, default="both")
    options = parser.parse_args()
    on_server, on_client = MODES[options.mode]
    with Lab() as lab:
        for tcp in (True, False):
            for size in (14, 1472, 8000, 60000):
                with sockperf_server(lab.near, on_server, tcp):
                    median = sockperf(lab.far, lab.near.address, on_client, tcp, size=size, seconds=1, data_integrity=True)
                print(f"{'tcp' if tcp else 'udp'} {size} B: {median} us one way")
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
