#!/usr/bin/env python3
"""Random sequences of socket calls, once on the kernel and once accelerated: results, errno, readiness and bytes must agree.

    differential.py [--sequences N] [--seed S] [--seconds T] [--kinds K,K|options] [--kernel]     S..S+N-1

posix_differential (differential/) plays them, here in two processes with a pair of hosts each: one plain, one preloaded. A sequence follows
from its seed alone. What the scheduler may change between two runs is taken out by playing a differing sequence again, at once and when all
others are through: a difference counts when it is there every time; its seed and both transcripts are printed. --kernel plays both plain,
which shows what the kernel itself does not do alike each time. The preloaded end must have carried all it could: counters prove it. Where
not all sequences are played, since the time is over or too many differ, the test fails.
"""
import argparse
import json
import os
import pathlib
import re
import select
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "apps"))
from programs import ON_MODEL, CommandFailed, Lab, PlainLab, build_dir  # noqa: E402

KINDS = "tcp_connect,tcp_accept,tcp_fresh,udp_connected,udp_bound,udp_fresh"
OPTION_SEQUENCES = 101 * 5 * 14 * 2  # option numbers, levels, states, families
OPTIONS = "options"  # in place of kinds: every option in every state (differential/option_sweep.h), some of which only the kernel has
AGAIN = 4  # times that a differing sequence is played again
CHUNK = 500


class Side:
    """One pair of hosts and the process that plays sequences there."""

    def __init__(self, lab, accelerated, kinds):
        self.lab, self.accelerated, self.waiting = lab, accelerated, b""
        for host in lab.hosts:
            # What the kernel does seldom, or remembers of earlier connections, would make a sequence depend on others.
            host.enter("sysctl", "-qw", "net.ipv4.icmp_ratelimit=0", "net.ipv6.icmp.ratelimit=0", "net.ipv4.tcp_no_metrics_save=1")
            host.enter("sysctl", "-qw", "net.ipv4.icmp_msgs_per_sec=1000000", "net.ipv4.icmp_msgs_burst=1000000", check=False)
        # The far end acknowledges each segment at once. Else Nagle's last bytes wait for it now and then: how many it acknowledges at once
        # depends on the memory that frames take, another behind AF_XDP.
        for address in lab.near.address, lab.near.address6:
            lab.far.ip("route", "add", address, "dev", lab.far.device, "quickack", "1")
        words = [build_dir() / "bin" / "posix_differential", f"/run/netns/{lab.far.name}", lab.near.address, lab.far.address,
                 lab.near.address6, lab.far.address6, kinds]
        self.child = lab.near.popen(words, accel=accelerated, require=kinds != OPTIONS, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, first, count, leaving=0):
        self.child.stdin.write(f"{first} {count} {leaving}\n".encode())
        self.child.stdin.flush()

    def transcript(self):
        while b"\n" not in self.waiting:
            if not select.select([self.child.stdout], [], [], 60)[0]:
                raise CommandFailed(f"{self}: no answer for 60 s")
            more = os.read(self.child.stdout.fileno(), 1 << 20)
            if not more:
                raise CommandFailed(f"{self}: ended, status {self.child.wait()}")
            self.waiting += more
        line, self.waiting = self.waiting.split(b"\n", 1)
        return line

    def __str__(self):
        return "libaccel" if self.accelerated else "kernel"

    def counters(self):
        words = [build_dir() / "bin" / "accel", "stat", str(self.child.pid), "--json"]
        return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)["processes"][0]["counters"]


def prove(side, kernels, options):
    """Every socket that left its host was libaccel's to its end, or moved for an option's sake. The kernel answers with resets what no socket
    is there for."""
    c = side.counters()
    taken, left = c.get("sockets_accelerated", 0), c.get("sockets_kernel", 0) + c.get("handed_back", 0)
    frames = c.get("rx_frames", 0) + c.get("tx_frames", 0)
    print(f"{side}: {taken} sockets accelerated, {left} not; {frames} frames, and {kernels} TCP segments in the kernel's stack")
    if ON_MODEL and side.lab.near.nic_packets() < frames:
        return f"the NIC's queues carried {side.lab.near.nic_packets()} of them"
    if options:
        return "the kernel had the greater part" if taken < 10 * left else None
    return "the kernel took part" if taken == 0 or left > 0 or kernels * 50 > frames + 1000 else None


def show(seed, a, b):
    print(f"seed {seed}:")
    a, b = (x.decode().split("\t")[1:-1] for x in (a, b))
    for x, y in zip(a, b):
        print(f"    {x}" if x == y else f"  - {x}\n  + {y}")
    sys.stdout.flush()


def leaving(transcript):
    """Which of the times that data came to what MSG_MORE held back let that go (Sequence::follow_kernel), as bits."""
    held = re.findall(rb"\theld (\d+) = (\d+)", transcript)
    return sum(1 << n for n, (before, after) in enumerate(held) if int(after) < int(before))


def agree(seed, kernel, other):
    """Plays a sequence again, the other end after the kernel, whose memory decides when held bytes leave. Whether both gave the same transcript
    in one of several tries, else the last pair; whether the kernel let some go."""
    for _ in range(AGAIN):
        kernel.ask(seed, 1)
        a = kernel.transcript()
        other.ask(seed, 1, leaving(a))
        b = other.transcript()
        if a == b:
            return None, leaving(a) != 0
    return (a, b), False


def compare(kernel, other, options):
    """Returns how many were played, how many differ, how many differed in the first try only, how many by the kernel's memory only."""
    end = time.monotonic() + options.seconds
    played = different = passing = followed = 0
    stubborn = []
    while played < options.sequences and len(stubborn) < options.stop_after and time.monotonic() < end:
        first, count = options.seed + played, min(CHUNK, options.sequences - played)
        for side in (kernel, other):
            side.ask(first, count)
        doubtful = [seed for seed in range(first, first + count) if kernel.transcript() != other.transcript()]
        for seed in doubtful:
            pair, let_go = agree(seed, kernel, other)
            if pair:
                stubborn.append(seed)
            elif let_go:
                followed += 1
            else:
                passing += 1
        played += count
    for seed in stubborn:
        pair, _ = agree(seed, kernel, other)
        if pair:
            different += 1
            show(seed, *pair)
        else:
            passing += 1
    return played, different, passing, followed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sequences", type=int, default=int(os.environ.get("DIFFERENTIAL_SEQUENCES", 100_000)))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=int(os.environ.get("DIFFERENTIAL_SECONDS", 600)))
    parser.add_argument("--kinds", default=KINDS)
    parser.add_argument("--stop-after", type=int, default=10)
    parser.add_argument("--kernel", action="store_true")
    parser.add_argument("--build")
    options = parser.parse_args()
    if options.kinds == OPTIONS:
        options.seed, options.sequences = 0, OPTION_SEQUENCES
    if options.build:
        os.environ["LAB_BUILD"] = options.build
    with PlainLab() as plain_lab, Lab(proved=False) as other_lab:
        kernel, other = Side(plain_lab, False, options.kinds), Side(other_lab, not options.kernel, options.kinds)
        before = other_lab.near.kernel_packets()["tcp"]
        began = time.monotonic()
        played, different, passing, followed = compare(kernel, other, options)
        rate = played / (time.monotonic() - began)
        print(f"{played} sequences from seed {options.seed}, {rate:.0f} a second: {different} differ, {passing} not every time, "
              f"{followed} by the kernel's memory")
        unproved = None if options.kernel else prove(other, other_lab.near.kernel_packets()["tcp"] - before, options.kinds == OPTIONS)
    if unproved:
        print("NOT PROVED:", unproved)
    missing = options.sequences - played
    if missing:
        print(f"NOT PLAYED: {missing} of {options.sequences} sequences")
    return 1 if different or unproved or missing else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CommandFailed as failure:
        sys.exit(str(failure))
