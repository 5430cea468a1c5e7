#!/usr/bin/env python3
"""What it costs to look: accel stat, live, at a server with 10 000 idle connections and one that works.

The server's requests a second are counted while nobody looks and while accel stat shows it anew each second on a terminal of its own; the share of a
processor that accel stat takes meanwhile is of its own CPU time."""
import json
import os
import pty
import subprocess
import threading
import time

from curves import LOAD, PORT, echo_server, held
from measure import Lab, build_dir, carried, compare, main
from lab import cpu_seconds

HELD, ACTIVE, SECONDS = 10000, 16, 4


class Terminal:
    """A program on a terminal of its own, which somebody reads."""

    def __init__(self, command):
        ours, its = pty.openpty()
        self.child = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env={**os.environ, "TERM": "xterm"})
        os.close(its)
        self.shown = 0
        self.file = os.fdopen(ours, "rb", buffering=0)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        try:
            while data := self.file.read(65536):
                self.shown += len(data)
        except OSError:  # EIO: the other end is closed
            pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.terminate()
        self.child.wait(10)
        self.reader.join()
        self.file.close()
        assert self.shown > 0, "accel stat showed nothing"


def measure(rounds=3):
    def once(observed):
        with Lab() as lab, echo_server(lab, True) as child, held(lab, HELD):
            def ask():
                return json.loads(lab.far.run([LOAD, "ask", lab.near.address, PORT, ACTIVE, SECONDS]))["rate"] / 1e3
            share = 0.0
            if observed == "accel stat":
                with Terminal([build_dir() / "bin" / "accel", "stat", str(child.pid)]) as stat:
                    before, began = cpu_seconds(stat.child.pid), time.monotonic()
                    rate = carried("server", lab, ask)
                    share = (cpu_seconds(stat.child.pid) - before) / (time.monotonic() - began) * 100
            else:
                rate = carried("server", lab, ask)
            return {"k/s": rate, "accel stat's CPU %": share}
    return [{"observed by": by, **found} for by, found in compare(rounds, once, ("nobody", "accel stat")).items()]


if __name__ == "__main__":
    main(f"A server with {HELD:,} idle and {ACTIVE} busy connections, looked at", measure)
