#!/usr/bin/env python3
"""run.py PROGRAM [ARGUMENTS]: a test program on near's model, which also opens a plain socket in far's namespace."""
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from model_lab import ModelLab  # noqa: E402

if os.geteuid() != 0:
    print("needs root")
    sys.exit(77)
with ModelLab(part=os.environ.get("MLX5_MODEL_PART", "1017")) as lab:
    where = {"MODEL_FAR_NETNS": f"/run/netns/{lab.far.name}", "MODEL_FAR_DEVICE": lab.far.device}
    sys.exit(lab.near.popen(sys.argv[1:], model=True, env=where).wait())
