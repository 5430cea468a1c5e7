#!/usr/bin/env python3
"""run.py [--queues N] [--mtu N] -- PROGRAM...: builds a lab, runs the program beside it (in this namespace, with the ends' names
and addresses in its environment: tests/xdp/lab_env.h), removes the lab; its status is the program's."""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))
from lab import Lab  # noqa: E402


def environment(lab):
    found = {"ACCEL_LAB_QUEUES": str(lab.queues), "ACCEL_LAB_MTU": str(lab.mtu)}
    for name, host in (("A", lab.near), ("B", lab.far)):
        mac = json.loads(host.ip("-j", "link", "show", "dev", host.device))[0]["address"]
        for key, value in (("NS", host.name), ("DEV", host.device), ("IPV4", host.address), ("IPV6", host.address6), ("MAC", mac)):
            found[f"ACCEL_LAB_{name}_{key}"] = value
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--queues", type=int, default=1)
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument("program", nargs="+")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with Lab(queues=options.queues, mtu=options.mtu) as lab:
        child = subprocess.Popen(options.program, env={**os.environ, **environment(lab)})
        try:
            return child.wait()
        finally:
            child.kill()
            child.wait()


if __name__ == "__main__":
    sys.exit(main())
