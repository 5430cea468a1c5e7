#!/usr/bin/env python3
"""ECN over a path whose queue marks instead of dropping (tests/wire): one bulk flow from near to far, which asks for ECN as
net.ipv4.tcp_ecn=1 has it; near agrees as the default has it. Kernel and libaccel have to do alike at either end."""
import argparse
import json
import pathlib
import subprocess
import sys

from programs import MODES, Carried, accelerated_hosts

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "wire"))
from wire_lab import WireLab  # noqa: E402

ECN, ECN_SEEN = 8, 16  # TCPI_OPT_*
PATH = "delay=10ms,rate=20m,mark=25k"  # half a bandwidth-delay product waits; no queue that drops


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="both")
    parser.add_argument("--seconds", type=float, default=4)
    options = parser.parse_args()
    on_server, on_client = MODES[options.mode]
    flows = [sys.executable, "-B", HERE.parent / "wire" / "flows.py"]
    with WireLab() as lab:
        lab.far.enter("sysctl", "-qw", "net.ipv4.tcp_ecn=1")
        lab.impair(PATH, "delay=10ms")
        with Carried(*accelerated_hosts(options.mode, lab.near, lab.far)):
            server = lab.near.popen([*flows, "serve", lab.near.address, 9400], on_server, stdout=subprocess.PIPE, text=True)
            lab.near.wait_for_listener(9400, server)
            got = json.loads(lab.far.run([*flows, "bulk", lab.near.address, 9400, options.seconds], on_client))
            sent = json.loads(server.stdout.readline())
        lab.near.stop(server)
        counts = lab.counts()
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
