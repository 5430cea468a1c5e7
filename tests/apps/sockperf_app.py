#!/usr/bin/env python3
"""sockperf --data-integrity, TCP and UDP: ping-pong at 14, 1472, 8000 and 60000 bytes; under-load and throughput, for which
Debian's 3.7 has no check of the data."""
import argparse
import sys

from programs import MODES, Lab, sockperf, sockperf_server, sockperf_throughput, until_read


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=MODES, default="both")
    parser.add_argument("--under-load", action="store_true", help="as well, and throughput")
    options = parser.parse_args()
    on_server, on_client = MODES[options.mode]
    for tcp, sizes in ((True, (14, 1472, 8000, 60000)), (False, (14, 1472)), (False, (8000, 60000))):
        fragments = not tcp and sizes[0] > 1472  # which are the kernel's
        with Lab(proved=not fragments) as lab:
            for size in sizes:
                with sockperf_server(lab.near, on_server, tcp):
                    median = sockperf(lab.far, lab.near.address, on_client, tcp, size=size, seconds=1, data_integrity=True)
                print(f"{'tcp' if tcp else 'udp'} {size} B: {median} us one way")
            if not options.under_load or fragments:
                continue
            with sockperf_server(lab.near, on_server, tcp):
                median = sockperf(lab.far, lab.near.address, on_client, tcp, size=1000, seconds=1, mode="under-load")
            print(f"{'tcp' if tcp else 'udp'} under load: {median} us one way")
            with sockperf_server(lab.near, on_server, tcp) as server:
                rate = sockperf_throughput(lab.far, lab.near.address, on_client, tcp)
                until_read(server)  # what came after its end would be the kernel's
            print(f"{'tcp' if tcp else 'udp'} throughput: {rate} messages/s")
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
