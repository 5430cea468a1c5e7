#!/usr/bin/env python3
"""Python's own test suite (libpython3.11-testsuite) preloaded: test by test the same as without. Loopback is the kernel's, so this proves
that a merely preloaded program behaves as before."""
import argparse
import os
import re
import subprocess
import sys
import tempfile

from programs import accel_environment

SUITE = ["test_socket", "test_selectors", "test_select", "test_epoll", "test_poll", "test_socketserver", "test_ftplib",
         "test_smtplib", "test_asynchat", "test_urllib2_localnet"]
LONG = ["test_signal", "test_xmlrpc", "test_asyncio", "test_httplib", "test_httpservers", "test_ssl",
        "test_multiprocessing_fork", "test_subprocess", "test_threading"]


# AF_VSOCK needs a hypervisor that answers: on some machines its test waits for ever, preloaded or not.
def run(name, env):
    with tempfile.TemporaryDirectory() as home:
        resources = ["-u", "network"] if name == "test_socketserver" else []  # it is on loopback all the same
        done = subprocess.run(["/usr/bin/python3", "-m", "test", "-v", "-i", "*VSOCK*", *resources, name], env=dict(env, HOME=home, TMPDIR=home), cwd=home,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900)
    results = {}
    for test, verdict in re.findall(r"^(test\w+ \([\w.]+\))[^\n]*?\.\.\. (?:[^\n]*?)(ok|FAIL|ERROR|skipped [^\n]*|expected failure)$", done.stdout, re.M):
        results[test] = verdict.split(" ")[0]
    return done.returncode, results, done.stdout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--long", action="store_true")
    options = parser.parse_args()
    bad = 0
    for name in options.names or (SUITE + LONG if options.long else SUITE):
        status, plain, _ = run(name, dict(os.environ))
        status_on, preloaded, output = run(name, accel_environment(require=False))
        different = {t: (plain.get(t), preloaded.get(t)) for t in plain.keys() | preloaded.keys() if plain.get(t) != preloaded.get(t)}
        # a test that fails or passes differently by chance is told apart by running it again, both ways
        same = status == status_on and not different and plain
        bad += not same
        print(f"{name}: {len(plain)} tests, " + ("same" if same else f"DIFFERENT {different}, exit {status} / {status_on}"), flush=True)
        if not same:
            print(output[-3000:])
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
