"""Every `accel` command of the documents is run, on a server that is accelerated: options exist, and what is promised is printed."""
import argparse
import os
import pathlib
import re
import shlex
import subprocess
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/tools"))
from lab_test import CLIENT, SERVER, Program, expect  # noqa: E402
from lab import Lab  # noqa: E402

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands():
    """(document, line) of each: in a fenced block, or between backquotes."""
    for document in DOCUMENTS:
        fenced = False
        for line in document.read_text().splitlines():
            if line.startswith("```"):
                fenced = not fenced
            found = [line.split(" #")[0]] if fenced else re.findall(r"`(accel [^`]+)`", line)
            for text in found:
                if text.strip().startswith("accel ") and "NAME" not in text:
                    yield document, text.strip()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    parser.add_argument("--build", required=True)
    options = parser.parse_args()
    os.environ["LAB_BUILD"] = options.build
    ran = 0
    with Lab() as lab:
        server = Program(lab.near, SERVER, lab.near.address, True)
        client = Program(lab.far, CLIENT, lab.near.address, False)
        scratch = lab.directory
        vma, opf, capture = scratch / "libvma.conf", scratch / "latency.opf", scratch / "a.pcapng"
        vma.write_text("use os tcp_server *:5001\n")
        opf.write_text("onload_set EF_POLL_USEC 100000\n")
        for document, text in commands():
            words = shlex.split(text.split(" > ")[0])
            here = {"PID": str(server.pid), "FD": str(server.fds[0]), "eth0": lab.near.device, "/etc/libvma.conf": str(vma), "latency.opf": str(opf),
                    "127.0.0.1:9477": "127.0.0.1:0", "FILE.pcapng": str(capture), "FILE": str(capture), "/tmp/a.pcapng": str(capture),
                    "COMMAND": "true", "[ARGUMENT...]": ""}
            if words[1] == "stat":
                here["nginx"] = "python3*"
            words = [here.get(w, w) for w in words[1:] if here.get(w, w)]
            if len(words) == 1 and words[0] not in ("check", "stat", "ss", "metrics"):  # only named: it exists
                words.append("--help")
            elif words[0] == "run":  # its options; the program is not this test's matter
                words = words[:words.index("--") + 1] + ["true"] if "--" in words else words + ["--", "true"]
            elif words[0] == "capture":
                words += ["--seconds", "0.2"] if "-w" in words else ["-w", str(capture), "--seconds", "0.2"]
            if words[:2] == ["metrics", "--listen"]:
                words = ["metrics"]
            if words[0] == "stat" and len(words) == 1:
                words.append("--once")
            done = subprocess.run([options.tool, *words], text=True, capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
            fine = (0, 1) if words[0] in ("check", "stat") else (0,)
            expect(done.returncode in fine, f"{document.name}: {text}: {words}: exit {done.returncode}\n{done.stdout[-500:]}{done.stderr}")
            ran += 1
        client.child.kill()
    expect(ran > 20, "commands found:", ran)
    # What the documents link to is there.
    for document in DOCUMENTS:
        for target in re.findall(r"\]\((?!http)([^)#]+)", document.read_text()):
            expect((document.parent / target).exists(), document.name, "links to", target)


if __name__ == "__main__":
    main()
