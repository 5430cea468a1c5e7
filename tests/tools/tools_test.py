"""The accel command: documents equal the tables, run, check, stat. Needs no network and leaves nothing behind."""
import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile


PROFILES = ("latency", "throughput", "frugal", "nginx", "redis", "haproxy", "memcached", "market-data")


def call(*command, env=None, **options):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ACCEL_") and k != "LD_PRELOAD"}
    clean.update(env or {})
    return subprocess.run(command, env=clean, text=True, capture_output=True, timeout=60, **options)


def expect(condition, *what):
    if not condition:
        sys.exit("FAILED: " + " ".join(str(w) for w in what))


def test_docs(o):
    for what, file in (("settings", "docs/settings.md"), ("counters", "docs/counters.md"), ("reasons", "docs/reasons.md"),
                       ("sample", "config/libaccel.toml"), *((f"{p}.toml", f"config/profiles/{p}.toml") for p in PROFILES)):
        text = open(os.path.join(o.source, file)).read()
        expect(call(o.tool, "docs", what).stdout == text, file, "differs from its table: ninja docs")
    # The sample is understood, as it is and with everything commented in.
    sample = open(os.path.join(o.source, "config/libaccel.toml")).read()
    with tempfile.TemporaryDirectory() as d:
        file = os.path.join(d, "libaccel.toml")
        for text in (sample, re.sub(r"^#(?=\[|\w+ = )", "", sample, flags=re.M)):
            open(file, "w").write(text)
            found = json.loads(call(o.tool, "check", "--json", env={"ACCEL_CONFIG": file}).stdout)["configuration"]
            expect(found == [{"level": "ok", "what": file, "cure": ""}], found)
        for profile in PROFILES:
            file = os.path.join(o.source, f"config/profiles/{profile}.toml")
            found = json.loads(call(o.tool, "check", "--json", env={"ACCEL_CONFIG": file}).stdout)["configuration"]
            expect(found == [{"level": "ok", "what": file, "cure": ""}], found)
        expect(text != sample and "\nspin = 100\n" in text and "\n[[application.rule]]" in text, "nothing was commented in")


def test_run(o):
    show = ("sh", "-c", 'echo "$LD_PRELOAD|$ACCEL_PROFILE|$ACCEL_REQUIRE|$ACCEL_CONFIG|$1"', "sh")
    with tempfile.TemporaryDirectory() as d:
        tool = os.path.join(d, "bin/accel")
        library = os.path.join(d, "lib/libaccel.so")
        os.mkdir(os.path.join(d, "bin"))
        shutil.copy(o.tool, tool)
        missing = call(tool, "run", "--", "true")
        expect(os.path.exists("/usr/local/lib/libaccel.so") or missing.returncode == 2, missing)
        os.mkdir(os.path.join(d, "lib"))
        shutil.copy(o.library, library)
        out = call(tool, "run", "--", *show, "--require")
        expect(out.stdout == f"{library}||||--require\n", out)
        out = call(tool, "run", *show, "--", env={"LD_PRELOAD": o.library, "ASAN_OPTIONS": "verify_asan_link_order=0"})
        expect(out.stdout == f"{library}:{o.library}||||--\n", out)
        open(os.path.join(d, "c.toml"), "w").close()
        out = call(tool, "run", "--profile", "latency", "--require", "--config", "c.toml", "--", *show, cwd=d)
        expect(out.stdout == f"{library}|latency|1|{d}/c.toml|\n", out)
        expect(call(tool, "run", "--", "sh", "-c", "exit 7").returncode == 7)
        expect(call(tool, "run", "--", "/nonexistent").returncode == 127)
        expect(call(tool, "run", "--", "/").returncode == 126)
        static = call(tool, "run", "--require", "--", o.static)
        expect(static.returncode == 2 and "linked statically" in static.stderr, static)
        expect("linked statically" in call(tool, "run", "--", o.static).stderr)
        for wrong in (("run",), ("run", "--"), ("run", "--profile", "x", "--", "true"), ("run", "--config", "/none", "true"), ()):
            expect(call(tool, *wrong).returncode not in (0, 1), wrong)


def test_check(o):
    out = call(o.tool, "check", "--json")
    facts = json.loads(out.stdout)
    expect(out.returncode == (0 if facts["usable"] else 1), out)
    expect("lo" not in [n["name"] for n in facts["nics"]], facts)
    for finding in (f for part in ("kernel", "privilege", "memory", "configuration") for f in facts[part]):
        expect(finding["level"] == "ok" or finding["cure"], finding)
    text = call(o.tool, "check")
    expect(text.returncode == out.returncode and "privilege" in text.stdout, text)
    out = call(o.tool, "check", env={"ACCEL_SPIN": "fast"})
    expect('warning  ACCEL_SPIN: "fast"' in out.stdout and "0-1000000" in out.stdout, out)
    out = call(o.tool, "check", env={"ACCEL_PATH": "fast"})
    expect(out.returncode == 1 and 'LACK     ACCEL_PATH: "fast"' in out.stdout and "auto | stack | kernel" in out.stdout, out)
    if os.geteuid() == 0:
        out = call("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all",
                   o.tool, "check")
        if out.returncode != 127:  # the build tree may be closed to other users
            expect(out.returncode == 1 and "cure: run as root" in out.stdout, out)


def start(o, *arguments):
    process = subprocess.Popen([o.writer, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    tcp, udp, child, port = map(int, process.stdout.readline().split())
    return process, tcp, udp, child, port


def test_stat(o):
    process, tcp, udp, _, port = start(o)
    stat = lambda *a: call(o.tool, "stat", *a)
    try:
        found = json.loads(stat(str(process.pid), "--json").stdout)["processes"]
        expect(len(found) == 1 and found[0]["program"] == "stats_writer" and not found[0]["engine"], found)
        sockets = {s["fd"]: s for s in found[0]["sockets"]}
        expect(set(sockets) == {tcp, udp}, sockets)
        expect(sockets[tcp]["reason"] == "loopback", sockets)
        expect(sockets[tcp]["local"] == f"127.0.0.1:{port}" and sockets[tcp]["state"] == "listen", sockets)
        expect(sockets[udp]["reason"] == "no_route", sockets)
        expect("drop_no_socket" in found[0]["counters"], found)
        everyone = stat()
        expect(everyone.returncode == 0 and f"pid {process.pid}" in everyone.stdout and "loopback" in everyone.stdout, everyone)
        expect(stat(str(os.getpid())).returncode == 1)
        before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
        process.send_signal(signal.SIGKILL)
        process.wait()
        expect(stat(str(process.pid), "--json").returncode == 1)
        expect(not os.path.isdir("/dev/shm") or before == set(os.listdir("/dev/shm")))
    finally:
        process.kill()

    if os.geteuid() == 0:
        process, tcp, udp, _, _ = start(o, "--close")
        found = json.loads(stat(str(process.pid), "--json").stdout)["processes"]
        process.kill()
        expect(len(found) == 1 and {s["fd"] for s in found[0]["sockets"]} == {tcp, udp}, found)

    process, *_ = start(o, "--hostile")
    try:
        for _ in range(6):
            lied = stat(str(process.pid), "--json")
            expect(lied.returncode == 0, lied.returncode)
            found = json.loads(lied.stdout)["processes"][0]
            expect(len(found["ports"]) == 32 and len(found["application"]) == 64 and len(found["sockets"]) <= 65536 + 2, found["application"])
            expect(found["sockets"][0]["path"] == "?" and found["sockets"][0]["reason"] == "unknown", found["sockets"][0])
        process.stdin.close()
        expect(process.wait(timeout=60) == 0)
    finally:
        process.kill()

    process, tcp, udp, child, _ = start(o, "--fork")
    try:
        parent = json.loads(stat(str(process.pid), "--json").stdout)["processes"]
        expect({s["fd"]: s["reason"] for s in parent[0]["sockets"]} == {tcp: "loopback", udp: "no_route"}, parent)
        while stat(str(child)).returncode != 0:  # until it has made its page; ctest's timeout guards
            expect(process.poll() is None, "the child ended")
        inherited = json.loads(stat(str(child), "--json").stdout)["processes"]
        expect({s["fd"]: s["reason"] for s in inherited[0]["sockets"]} == {udp: "inherited"}, inherited)
        os.kill(child, 0)
        process.stdin.close()
        expect(process.wait(timeout=60) == 0)
    finally:
        process.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["docs", "run", "check", "stat"])
    for path in ("tool", "writer", "library", "static", "source"):
        parser.add_argument("--" + path, required=True)
    options = parser.parse_args()
    globals()["test_" + options.part](options)
