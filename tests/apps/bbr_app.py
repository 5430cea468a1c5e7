#!/usr/bin/env python3
"""BBR over a path that loses one frame in fifty (tests/wire), where CUBIC has a quarter of the rate: one bulk flow from near, whose default
net.ipv4.tcp_congestion_control=bbr is, to far. Kernel and libaccel have to do alike."""
import argparse
import pathlib
import sys

from programs import bulk_flow

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "wire"))
from wire_lab import WireLab  # noqa: E402

# The queue has three bandwidth-delay products: the start has 2.89 in flight (kBbr's gain, 2/ln 2), so that one or two would overflow by it.
PATH = "delay=10ms,rate=20m,queue=150k,loss=0.02"
RATE = 20e6 / 8 * 1448 / 1514  # bytes/s of text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="both")
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    with WireLab() as lab:
        if "bbr" not in pathlib.Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split():
            print("this kernel has no bbr")
            return 77
        lab.near.enter("sysctl", "-qw", "net.ipv4.tcp_congestion_control=bbr")
        got, sent, counts = bulk_flow(lab, options.mode, PATH, options.seconds, "default")
    assert sent["algorithm"] == "bbr", sent
    # What the stack has found of the path, and sends by; CUBIC's would be 1.2 / sqrt(0.02) segments a round trip, 0.6 MB/s. The last
    # sample is less where the machine is busy.
    assert 0.6 * RATE < sent["pacing_rate"] < 1.7 * RATE, sent
    assert 0.1 * RATE < sent["delivery_rate"] < 2 * RATE, sent
    assert counts["ab"]["lost"] > 0 and sent["retransmissions"] <= 1.5 * (counts["ab"]["lost"] + counts["ab"]["overflowed"]), (counts, sent)
    assert counts["ab"]["overflowed"] < counts["ab"]["frames"] / 50, counts
    print(f"{options.mode}: {got['bytes'] * 8e-6 / got['seconds']:.1f} Mb/s, {sent}, {counts['ab']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
