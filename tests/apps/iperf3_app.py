#!/usr/bin/env python3
"""iperf3: one stream, four at once, reverse, UDP."""
import argparse
import sys

from programs import MODES, ON_MODEL, Lab, iperf3, server, until


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=MODES, default="both")
    options = parser.parse_args()
    on_server, on_client = MODES[options.mode]
    with Lab() as lab:
        # What a sender has not sent when it ends is the kernel's to send: little, so that the NIC's part can be proved.
        buffer = ["-w", "256K"] if ON_MODEL else []
        for arguments in ([], ["-P", "4"], ["-R"], ["-P", "4", "-R"], ["-u", "-b", "100M"]):
            # a server for each: one that has just told its client the results may still be busy with that run
            with server(lab.near, ["iperf3", "-s", "-B", lab.near.address], 5201, on_server):
                rate = iperf3(lab.far, lab.near.address, on_client, [*arguments, *buffer], seconds=1)
                # Of a kernel client that is gone the kernel may still be sending (big: not yet TIME-WAIT).
                until(lambda: not lab.far.enter("ss", "-Htn", "state", "big", "dport = :5201").strip(), "the client's connections have ended")
            print(f"iperf3 {' '.join(arguments)}: {rate / 1e9:.2f} Gb/s", flush=True)
            assert rate > 0
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
