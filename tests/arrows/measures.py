#!/usr/bin/env python3
"""Prints the measures of the building, and holds them: measures.py SOURCE_DIR BUILD_DIR STACK_LIBRARY [--trace]

Circles of includes, calls upwards, casts that tell ports apart and dead functions; with --trace the files that a send and a packet enter, too."""
import pathlib
import subprocess
import sys

source, build, library = sys.argv[1:4]
HERE = pathlib.Path(__file__).parent
SKIPPED = 77
failed = False


def show(what, script, *words):
    global failed
    done = subprocess.run([sys.executable, "-B", HERE / script, *words], stdout=subprocess.PIPE, text=True)
    failed |= done.returncode not in (0, SKIPPED)
    print(f"{what}: {done.stdout.strip()}", flush=True)


show("includes in circles", "circles.py", source)
show("layers, calls upwards, kinds of port", "check.py", source, library)
show("dead functions", "dead.py", source, build)
if "--trace" in sys.argv:
    show("files that are entered", "crossed.py", build)
sys.exit(failed)
