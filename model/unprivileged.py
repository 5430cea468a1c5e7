#!/usr/bin/env python3
"""unprivileged.py SCRIPT [ARGUMENTS]: runs it without root, as an ordinary user whose capabilities hold in namespaces of its own only."""
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from model_lab import model_library  # noqa: E402

NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
# Names of network namespaces are kept in /run, which is root's.
OWN = ["unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c", 'mount -t tmpfs none /run && exec "$@"', "sh"]

user = NOBODY if os.geteuid() == 0 else []
if subprocess.run([*user, "test", "-r", model_library()]).returncode:
    user = []  # root's folder: its files are read, and nothing else is left of root
words = [*user, *OWN, "python3", "-B", *sys.argv[1:]]  # the user's: ours may be root's
os.execvp(words[0], words)
