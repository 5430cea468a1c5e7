#!/usr/bin/env python3
"""Counts the source files that a send and a packet enter: crossed.py BUILD_DIR (root, gdb)

A program with libaccel plays ping-pong with another, and gdb steps through one call of TcpSocket::sendmsg and one of Stack::on_packets, to the
end of the poll that it belongs to. Copies of inlined functions count for the file that has them."""
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve()
SKIPPED = 77
BEGINS = {"send": "accel::posix::TcpSocket::sendmsg", "packet": "accel::Stack::on_packets"}
BEFORE = 400  # the connection has found its pace
MOST_STEPS = 50_000


def step_through(gdb, way):
    """Within gdb."""
    for word in ("pagination off", "confirm off", "breakpoint pending on", "debuginfod enabled off"):
        gdb.execute(f"set {word}")
    begin = gdb.Breakpoint(BEGINS[way])
    begin.ignore_count = BEFORE
    gdb.execute("run", to_string=True)
    begin.enabled = False
    gdb.execute("set scheduler-locking on")
    # To the end of the wrapper, which is the program's next instruction, or of Process::poll.
    frame, end, files = gdb.selected_frame(), None, set()
    while frame is not None:
        found = frame.find_sal().symtab
        inside = found is not None and "/src/" in found.filename
        if end is None:
            files.add(found.filename if found else "")
            if way == "send" and not inside:
                end = int(frame.read_register("sp"))
            elif way == "packet" and (frame.name() or "").endswith("::poll"):
                end = int(frame.older().read_register("sp"))
        frame = frame.older()
    for _ in range(MOST_STEPS):
        now = gdb.selected_frame()
        if end is not None and int(now.read_register("sp")) >= end:
            break
        found = gdb.find_pc_line(now.pc()).symtab
        files.add(found.filename if found else "")
        gdb.execute("stepi", to_string=True)
    own = {file.split("/src/")[1] for file in files if "/src/" in file}
    print("CROSSED", *sorted(own))
    gdb.execute("kill", to_string=True)


def traced(way, lab, tool, environment):
    words = [f"{k}={v}" for k, v in environment.items() if os.environ.get(k) != v]
    output = lab.far.run(["gdb", "-batch", "-ex", f"set exec-wrapper env {' '.join(words)}", "-x", HERE, "--args", tool, "pingpong", "tcp",
                          lab.near.address, "9100", "64", "20000"], env={"CROSSED_WAY": way}, timeout=300, check=False)
    lines = [line for line in output.splitlines() if line.startswith("CROSSED ")]
    if not lines:
        sys.exit(f"{way}: gdb did not come to its end:\n{output[-2000:]}")
    return lines[-1].split()[1:]


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    if shutil.which("gdb") is None or os.geteuid() != 0:
        print("not traced: this takes gdb, and root")
        return SKIPPED
    os.environ["LAB_BUILD"] = str(build)
    sys.path.insert(0, str(HERE.parents[1] / "lab"))
    from lab import Lab, accel_environment
    tool = build / "bin" / "netload"
    for way in BEGINS:
        with Lab() as lab:
            server = lab.near.popen([tool, "echo", "tcp", lab.near.address, "9100", "64"], True)
            lab.near.wait_for_listener(9100, server)
            files = traced(way, lab, tool, accel_environment())
        sources = [file for file in files if file.endswith(".cc")]
        print(f"a {way}: {len(sources)} sources ({', '.join(sources)}), {len(files) - len(sources)} headers")
    return 0


try:
    import gdb as debugger
except ImportError:
    sys.exit(main())
step_through(debugger, os.environ["CROSSED_WAY"])
