#!/usr/bin/env python3
"""Says what labs left behind (exit 1), or nothing. `left_behind.py FILE` passes over what FILE, an earlier answer, names already: a run is
answerable for itself, not for one before it that was killed."""
import pathlib
import sys

sys.dont_write_bytecode = True
from lab import left_behind  # noqa: E402

before = pathlib.Path(sys.argv[1]).read_text().splitlines() if len(sys.argv) > 1 else []
found = [what for what in left_behind() if what not in before]
print("\n".join(found), end="\n" if found else "")
sys.exit(1 if found else 0)
