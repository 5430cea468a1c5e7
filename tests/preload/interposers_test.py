#!/usr/bin/env python3
"""libaccel beside other preloaded libraries, in either order: interposers_test.py LIBRARY PROGRAM BY-NUMBER BY-NAME [OTHER...]

An interposer in front of libaccel sees each call of the program's once; one behind it sees each call that reaches the kernel, and what
it calls itself is the kernel's. OTHER: libraries of this machine's (jemalloc, eatmydata, faketime); with those the program works."""
import os
import shutil
import subprocess
import sys
import tempfile

library, program, by_number, by_name, *others = (os.path.abspath(p) for p in sys.argv[1:])
faults = []


def run(*preload):
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "LD_PRELOAD": " ".join(preload)}
    try:
        done = subprocess.run([program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        faults.append(f"{preload}: not done after a minute")
        return {}
    if done.returncode != 0 or done.stderr:
        faults.append(f"{preload}: exit {done.returncode}, {done.stderr[:300]}")
        return {}
    return {words[0]: (int(words[1]), int(words[2])) for words in (line.split() for line in done.stdout.splitlines())}


for shim in by_number, by_name:
    alone = run(shim)
    for function, (made, seen) in alone.items():
        if function != "execve" and seen < made:
            faults.append(f"{shim} alone: {function} called {made} times, {seen} seen")
    for function, (_, seen) in run(shim, library).items():
        if seen != alone[function][1]:
            faults.append(f"{shim} in front: {function} {seen} times instead of {alone[function][1]}")
    for function, (made, seen) in run(library, shim).items():
        if function not in ("execve", "read", "write", "epoll_wait") and seen == 0:  # as recv(), send() and epoll_pwait2()
            faults.append(f"{shim} behind: {function} was skipped")
run(by_number, library, by_name)
run(by_name, library, by_number)
with tempfile.TemporaryDirectory() as folder:
    others.append(shutil.copy(library, os.path.join(folder, "another.so")))  # a second accelerator
    for other in others:
        run(other, library)
        run(library, other)
print("\n".join(faults) if faults else f"two interposers and {len(others)} other libraries, in either order")
sys.exit(bool(faults))
