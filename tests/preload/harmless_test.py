#!/usr/bin/env python3
"""A preloaded program that has nothing to do with us runs as before: harmless_test.py LIBRARY EARLY-LIBRARY IDLE STATIC-PROGRAM"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

library, early, idle, static = (str(pathlib.Path(p).resolve()) for p in sys.argv[1:5])
faults = []


def run(command, preload=None, **options):
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"} | options.pop("env", {})
    if preload:
        environment["LD_PRELOAD"] = preload
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, **options)
    return done.returncode, done.stdout, done.stderr


def same(title, command, preload=library, **options):
    with_it, without = run(command, preload, **options), run(command, **options)
    if with_it != without:
        faults.append(f"{title}: {with_it} instead of {without}")


same("true", ["/bin/true"])
same("a shell with children", ["bash", "-c", "for i in 1 2 3; do echo $i | cat; done; (exit 3); echo $?; trap 'echo t' USR1; kill -USR1 $$"])
same("dash, which uses vfork", ["dash", "-c", "for i in 1 2 3; do /bin/echo $i | cat; done; exit 5"])
same("dash's traps, which its vforked children reset",
     ["dash", "-c", "trap 'echo t' USR1; /bin/echo a; kill -USR1 $$; /bin/echo b; kill -USR1 $$; echo c"])
same("python", [sys.executable, "-c", "import socket, subprocess, select; s = socket.socket(); "
                "print(subprocess.run(['echo', 'x'], capture_output=True).stdout, s.getsockname())"])
same("idle: no thread, nothing open", [idle])
same("a static program", [static])
same("LD_BIND_NOW", [idle], env={"LD_BIND_NOW": "1"})
same("ACCEL_DISABLE", [idle], env={"ACCEL_DISABLE": "1"})

code, out, err = run([static], "/nonexistent/libaccel.so")
if code != 0:
    faults.append(f"a missing library ends the program: {code} {err}")
code, out, err = run(["/bin/echo", "x"], "/nonexistent/libaccel.so")
if (code, out) != (0, "x\n"):
    faults.append(f"a missing library disturbs the program: {code} {out} {err}")

# Set-user-id: the dynamic linker takes no library from a path; from its own folders it would, and then the shim stays out.
if os.geteuid() == 0:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        copy = pathlib.Path(folder) / "id"
        shutil.copy("/usr/bin/id", copy)
        copy.chmod(0o4755)
        for preload in (library, None):
            code, out, err = run([str(copy), "-u"], preload, user=65534, group=65534)
            if code != 0 or out.strip() not in ("0", "65534"):  # 65534: mounted nosuid
                faults.append(f"set-user-id with {preload}: {code} {out} {err}")

code, out, err = run(["/bin/true"], f"{library} {early}")
if (code, out) != (0, "constructor served, malloc served, destructor served\n"):
    faults.append(f"early calls: {code} {out} {err}")

print("\n".join(faults) or "harmless")
sys.exit(bool(faults))
