#!/usr/bin/env python3
"""A transfer each way over a path that loses, reorders, duplicates and corrupts frames (tests/wire), equal by sha256."""
import argparse
import pathlib
import subprocess
import sys

from programs import MODES, Carried, accelerated_hosts

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "wire"))
from wire_lab import WireLab  # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="both")
    parser.add_argument("--mib", type=int, default=3)
    parser.add_argument("--path", default="delay=2ms,loss=0.01,reorder=0.02,reorder_by=1ms,duplicate=0.01,corrupt=0.01")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    on_server, on_client = MODES[options.mode]
    me = ["/usr/bin/python3", "-B", HERE / "transfer_app.py", "--mib", options.mib]
    with WireLab() as lab:
        lab.impair(options.path, options.path, options.seed)
        with Carried(*accelerated_hosts(options.mode, lab.near, lab.far)):
            server = lab.near.popen([*me, "--serve", lab.near.address], on_server, stdout=subprocess.PIPE, text=True)
            lab.near.wait_for_listener(9000, server)
            mine = lab.far.run([*me, "--call", lab.near.address], on_client, timeout=2400).split()
            theirs = server.communicate(timeout=60)[0].split()
        counts = lab.counts()
    size = str(options.mib << 20)
    assert mine[1] == size and theirs[1] == size, (mine, theirs)
    assert mine[0] == theirs[0], "there: the bytes differ"
    assert mine[2] == theirs[2], "back: the bytes differ"
    names = {"loss": "lost", "reorder": "reordered", "duplicate": "duplicated", "corrupt": "corrupted"}
    for word in options.path.split(","):
        fault = names.get(word.partition("=")[0])
        assert fault is None or all(counts[way][fault] > 0 for way in ("ab", "ba")), counts
    print(f"{options.mib} MiB there and back over {options.path}, equal by sha256: ok; {counts}")


if __name__ == "__main__":
    sys.exit(main())
