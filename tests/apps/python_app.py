#!/usr/bin/env python3
"""Python's own network tests (libpython3.11-testsuite), preloaded and not: test by test the same.

    python_app.py [--long] [--wire | --shm] [MODULE...]

As they are they talk over 127.0.0.1, which no port serves: that a merely preloaded program behaves as before. --wire: a copy of the suite
that talks with an address of a device instead, by which the program's own frames leave and come back (lab.Loop), so that both ends of its
connections are accelerated; how many bytes each path carried is printed. --shm: over 127.0.0.1 with same_host = auto from the first transfer
on. The program is both ends of its connections, which it moves into shared memory; how many bytes that carried is printed.
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

from programs import Loop, accel_environment, build_dir

PACKAGE = pathlib.Path("/usr/lib/python3.11/test")
SUITE = ["test_socket", "test_selectors", "test_select", "test_epoll", "test_poll", "test_socketserver", "test_smtplib",
         "test_asynchat", "test_urllib2_localnet"]
LONG = ["test_signal", "test_ftplib", "test_xmlrpc", "test_asyncio", "test_httplib", "test_httpservers", "test_ssl",
        "test_multiprocessing_fork", "test_subprocess", "test_threading"]
# No connection at all; and connections that forked children use, which are handed back to the kernel.
UNCONNECTED = ["test_selectors", "test_select", "test_poll", "test_signal", "test_subprocess", "test_threading"]
FORKING = ["test_multiprocessing_fork"]
SHM = ["test_socketserver", "test_httplib", "test_epoll", "test_asynchat", "test_smtplib", "test_urllib2_localnet"]
SHM_LONG = ["test_socket", "test_asyncio", "test_ssl", "test_selectors", "test_httpservers", "test_ftplib", "test_xmlrpc", "test_logging",
            "test_imaplib", "test_poplib", "test_asyncore", "test_multiprocessing_fork", "test_multiprocessing_spawn"]
SHM_SETTINGS = {"ACCEL_SAME_HOST": "auto", "ACCEL_SAME_HOST_AFTER": "0", "ACCEL_PATH": "kernel"}
# Runs the suite as "-m test" does, and says in the end what accel stat knows of the process: to a file, the last word.
TELLING = """
import atexit, os, runpy, subprocess, sys
*words, tool, report = sys.argv[1:]
me = os.getpid()
def tell():
    if os.getpid() == me:
        subprocess.run([tool, "stat", str(me), "--json"], stdout=open(report, "w"), env={})
atexit.register(tell)
sys.argv = ["test", *words]
runpy.run_module("test", run_name="__main__", alter_sys=True)
"""
WIRE = ["test_socketserver", "test_httpservers", "test_epoll", "test_asynchat", "test_smtplib", "test_urllib2_localnet"]


def make_copy(directory, host):
    """The test package as a tree of links; where it names loopback there are copies that name the host's address."""
    subprocess.run(["cp", "-rs", PACKAGE, directory / "test"], check=True)
    for path in (directory / "test").rglob("*.py"):
        text = path.read_text(errors="surrogateescape")
        changed = re.sub(r"""(['"])127\.0\.0\.1\1""", rf"\g<1>{host.address}\1", text)
        changed = re.sub(r"""(['"])::1\1""", rf"\g<1>{host.address6}\1", changed)
        if changed != text:
            path.unlink()
            path.write_text(changed, errors="surrogateescape")
    (directory / "hosts").write_text(f"{host.address} localhost\n{host.address6} localhost\n")


def verdicts(report):
    """What regrtest's --junit-xml says, test by test."""
    found = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        bad = [part.tag for part in case if part.tag in ("error", "failure", "skipped")]
        found[case.get("name")] = bad[0] if bad else "ok"
    return found


# AF_VSOCK needs a hypervisor that answers: on some machines its test waits for ever, preloaded or not.
def run(name, preloaded, lab, shm=False):
    env = accel_environment(SHM_SETTINGS if shm else None, require=False) if preloaded else dict(os.environ)
    resources = ["-u", "network"] if name == "test_socketserver" else []  # it is on loopback all the same
    with tempfile.TemporaryDirectory() as home:
        report = pathlib.Path(home) / "report.xml"
        told = pathlib.Path(home) / "told.json"
        begin, end = (["-c", TELLING], [build_dir().resolve() / "bin" / "accel", told]) if shm else (["-m", "test"], [])
        command = ["/usr/bin/python3", *begin, "-v", "-i", "*VSOCK*", "--junit-xml", str(report), *resources, name, *map(str, end)]
        if lab:
            env["PYTHONPATH"] = str(lab.directory)
            command = ["nsenter", f"--net=/run/netns/{lab.near.name}", "unshare", "-m", "sh", "-c",
                       'mount --bind "$0" /etc/hosts && exec "$@"', str(lab.directory / "hosts"), *command]
        done = subprocess.run(command, env=dict(env, HOME=home, TMPDIR=home), cwd=home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=900)
        counters = {}
        with contextlib.suppress(OSError, ValueError, LookupError):
            counters = json.loads(told.read_text())["processes"][0]["counters"]
        return done.returncode, verdicts(report) if report.exists() else {}, done.stdout, counters


def compare(name, lab, shm=False):
    """Whether the module does the same preloaded; says what differs and what carried its bytes."""
    status, plain, _, _ = run(name, False, lab, shm)
    wire, kernel = (lab.wire_bytes(), lab.kernel_bytes()) if lab else (0, 0)
    status_on, preloaded, output, counters = run(name, True, lab, shm)
    carried = ""
    if shm:
        moved, by_shm = counters.get("shm_opened", 0) // 2, counters.get("shm_bytes_out", 0)
        carried = f"; {moved} connections in shared memory, {by_shm} bytes by it"
    if lab:
        wire, kernel = lab.wire_bytes() - wire, lab.kernel_bytes() - kernel
        carried = f"; {wire} bytes on the wire, {kernel} of them the kernel's"
    different = {t: (plain.get(t), preloaded.get(t)) for t in plain.keys() | preloaded.keys() if plain.get(t) != preloaded.get(t)}
    same = status == status_on and not different and plain
    good = sum(verdict == "ok" for verdict in plain.values())
    print(f"{name}: {good} of {len(plain)} tests pass, " + ("same" if same else f"DIFFERENT {different}, exit {status} / {status_on}") + carried, flush=True)
    if not same:
        print(output[-3000:])
    if shm and name not in UNCONNECTED and counters.get("shm_bytes_out", 0) == 0:
        return False
    return bool(same and (not lab or name in UNCONNECTED or kernel < wire * (2 / 3 if name in FORKING else 1 / 2)))


class WireLab(Loop):
    def __enter__(self):
        super().__enter__()
        make_copy(self.directory, self.near)
        return self

    def wire_bytes(self):
        return sum(end.wire_bytes() for end in self.hosts)

    def kernel_bytes(self):
        return self.near.kernel_bytes()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--wire", action="store_true")
    parser.add_argument("--shm", action="store_true")
    options = parser.parse_args()
    names = options.names or (SHM + SHM_LONG * options.long if options.shm else SUITE + LONG if options.long else WIRE if options.wire else SUITE)
    with WireLab(queues=1) if options.wire else contextlib.nullcontext() as lab:
        return 0 if all([compare(name, lab, options.shm) for name in names]) else 1


if __name__ == "__main__":
    sys.exit(main())
