#!/usr/bin/env python3
"""The example of docs/api.md: api_example.py ROOT LIBRARY CC CXX
It compiles without a warning, links without the library, and runs with it and without it. The header is C++ too."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

root, library, cc, cxx = pathlib.Path(sys.argv[1]), *sys.argv[2:]
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-I", root / "include"]


def run(*words, **environment):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **environment})
    if done.returncode != 0:
        sys.exit(f"{words}: {done.returncode}\n{done.stdout}")
    return done.stdout


def expect(got, wanted):
    if not re.fullmatch(wanted, got):
        sys.exit(f"got {got!r} instead of {wanted!r}")


with tempfile.TemporaryDirectory() as folder:
    example, header, program = (pathlib.Path(folder) / name for name in ("example.c", "header.cc", "example"))
    example.write_text(re.search(r"(?ms)^```c\n(.*?)^```$", (root / "docs/api.md").read_text())[1])
    header.write_text("#include <accel.h>\nint main() { return accel_is_present() + accel_is_accelerated(0); }\n")
    for way in ([], ["-O2", "-fPIE", "-pie"]):
        run(cc, "-std=c99", *STRICT, *way, example, "-o", program)
        expect(run(program), "5 bytes\nwithout libaccel\n")
        expect(run(program, LD_PRELOAD=library), r"5 bytes\nkernel: .+\n")
        expect(run(program, LD_PRELOAD=library, ACCEL_DISABLE="1"), "5 bytes\nkernel: libaccel is off in this process\n")
    for standard in ("c++98", "c++20"):
        run(cxx, f"-std={standard}", *STRICT, "-Wno-long-long", header, "-o", program)
        run(program)
