#!/usr/bin/env python3
"""What being preloaded adds to a process that does nothing with sockets: /bin/true, and a shell script with 1000 children."""
import os
import statistics
import subprocess
import time

from measure import build_dir, main

CHILDREN = 1000
SCRIPT = f"i=0; while [ $i -lt {CHILDREN} ]; do /bin/true; i=$((i+1)); done"


def milliseconds(command, preload):
    environment = {"PATH": os.environ["PATH"]}
    if preload:
        environment["LD_PRELOAD"] = str(build_dir() / "lib" / "libaccel.so")
    start = time.perf_counter()
    subprocess.run(command, env=environment, check=True)
    return (time.perf_counter() - start) * 1e3


def interleaved(command, rounds):
    """Medians without and with; and the median of the differences of neighbours, which a busy machine disturbs least."""
    pairs = [(milliseconds(command, False), milliseconds(command, True)) for _ in range(rounds)]
    return (statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs),
            statistics.median(p[1] - p[0] for p in pairs))


def measure(rounds=3):
    rows = []
    for name, command, runs, processes in (("/bin/true", ["/bin/true"], 200 * rounds, 1),
                                           (f"sh, {CHILDREN} children", ["dash", "-c", SCRIPT], rounds, CHILDREN + 1)):
        without, with_it, added = interleaved(command, runs)
        rows.append({"program": name, "plain ms": without, "preloaded ms": with_it, "added ms a process": added / processes})
    return rows


if __name__ == "__main__":
    main("start of a process", measure)
