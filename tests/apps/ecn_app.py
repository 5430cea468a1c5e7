#!/usr/bin/env python3
"""ECN over a path whose queue marks instead of dropping (tests/wire): one bulk flow from near to far, which asks for ECN as
net.ipv4.tcp_ecn=1 has it; near agrees as the default has it. Kernel and libaccel have to do alike at either end."""
import argparse
import pathlib
import sys

from programs import bulk_flow

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "wire"))
from wire_lab import WireLab  # noqa: E402

ECN, ECN_SEEN = 8, 16  # TCPI_OPT_*
PATH = "delay=10ms,rate=20m,mark=25k"  # half a bandwidth-delay product waits; no queue that drops


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="both")
    parser.add_argument("--seconds", type=float, default=4)
    options = parser.parse_args()
    with WireLab() as lab:
        lab.far.enter("sysctl", "-qw", "net.ipv4.tcp_ecn=1")
        got, sent, counts = bulk_flow(lab, options.mode, PATH, options.seconds)
    assert sent["options"] & ECN and got["options"] & ECN, (sent, got)
    assert got["options"] & ECN_SEEN, got
    assert counts["ab"]["marked"] > 0 and counts["ba"]["marked"] == 0, counts
    assert sent["delivered_ce"] > 0, sent
    assert counts["ab"]["overflowed"] == 0 and sent["retransmissions"] == 0, (counts, sent)
    # Without a reduction slow start alone would have left no end of a queue: the window is that of the path and its queue.
    assert sent["cwnd"] * 1448 < 4 * 25_000 + 50_000, sent
    print(f"{options.mode}: {got['bytes'] * 8e-6 / got['seconds']:.1f} Mb/s, {counts['ab']['marked']} marked, {sent}")


if __name__ == "__main__":
    sys.exit(main())
