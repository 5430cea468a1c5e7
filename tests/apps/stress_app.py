#!/usr/bin/env python3
"""stress-ng's socket stressors do accelerated what they do without: stress_app.py [--seconds N]

They talk with themselves over loopback, whatever --sock-if says; redirect.c has them talk across a cable (lab.Loop)."""
import argparse
import os
import re
import sys

from programs import Loop, build_dir

STRESSORS = [["--sockabuse", "1"], ["--sock", "1"], ["--sock", "1", "--sock-domain", "ipv6"], ["--sock", "1", "--sock-opts", "sendmsg"],
             ["--sock", "1", "--sock-opts", "sendmmsg"], ["--udp", "1"], ["--udp", "1", "--udp-domain", "ipv6"], ["--sockmany", "1"],
             ["--epoll", "1", "--epoll-domain", "ipv4"], ["--udp-flood", "1", "--udp-flood-domain", "ipv4"]]


def carried(lab):
    """Frames that crossed the cable, and how often the kernel's stack sent or received one."""
    return lab.near.wire_packets(), sum(lab.near.kernel_packets().values())


def stress(lab, stressor, accelerated, seconds):
    """Operations, and the part of the frames' ends that libaccel served."""
    redirect = build_dir() / "lib" / "libredirect.so"
    library = f"{redirect} {build_dir() / 'lib' / 'libaccel.so'}" if accelerated else str(redirect)
    before = carried(lab)
    output = lab.near.run(["env", f"LD_PRELOAD={library}", f"REDIRECT4={lab.near.address}", f"REDIRECT6={lab.near.address6}",
                           "stress-ng", *stressor, "-t", str(seconds), "--verify", "--metrics-brief"], accelerated, require=False)
    frames, kernel = (now - then for now, then in zip(carried(lab), before))
    # ERESTARTSYS: the kernel's recvmmsg() keeps it as the socket's error when a signal comes after the first datagram.
    failed = [line for line in output.splitlines() if "fail:" in line and "errno=512" not in line]
    assert "successful run completed" in output and not failed, output
    return int(re.search(r"metrc: .*\] [\w-]+ +(\d+)", output)[1]), 1 - kernel / (2 * frames)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=3)
    options = parser.parse_args()
    good = True
    with Loop() as lab:
        for stressor in STRESSORS:
            plain, _ = stress(lab, stressor, False, options.seconds)
            done, part = stress(lab, stressor, True, options.seconds)
            print(f"{' '.join(stressor)}: {done} operations, {plain} by the kernel; accelerated {100 * part:.0f} %", flush=True)
            good &= plain > 0 and done > 0 and part > 0.2  # the stressors' children find the device's only queue taken, now and then
    return 0 if good else 1


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    sys.exit(main())
