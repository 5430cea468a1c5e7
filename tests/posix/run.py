#!/usr/bin/env python3
"""Runs a socket test (tests/posix/*_test.cc) between two namespaces, and proves which path carried it.

    run.py PROGRAM --mode kernel|near|far|both|siw|shm|host [--filter F] [--repeat N] [--queues Q] [--mtu M]

near, far: that end is preloaded with libaccel and ACCEL_REQUIRE=1; both: both. The proof: where an end is accelerated, its kernel stack
carried at most a tenth of the frames that crossed the wire. With --handed-back, for tests whose connections move to the kernel on purpose,
the proof is that the end carried frames of its own at all: how many are left to the kernel depends on the moment. --model: and the NIC's queues,
by their own counters, carried at least eight of ten (20 frames).
siw: both ends are preloaded and must speak iWARP over the kernel's TCP (setting iwarp = require); no connection of the far end may be plain.
shm: both ends are on one host and preloaded, with same_host = auto from the first transfer on. The proof: the far end moved connections into
shared memory. With --each how many is printed for each test. host: the same two ends without libaccel, to compare with.
"""
import argparse
import contextlib
import functools
import json
import os
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))
from lab import CommandFailed, Lab, UpperLab, build_dir, knows_device  # noqa: E402


FIREWALL = """table inet strict {
  chain in { type filter hook input priority 0; ct state invalid counter drop; }
  chain out { type filter hook output priority 0; ct state invalid counter drop; }
}"""
SIW_RULES = """[default]
iwarp = "require"
path = "kernel"
[[application]]
name = "*"
[[application.rule]]  # what tests compare with, in one thread: there connect() would wait for the accept() behind it
address = "127.0.0.0/8"
iwarp = "off"
[[application.rule]]
address = "::1/128"
iwarp = "off"
"""


def siw_settings(lab):
    path = lab.directory / "siw.toml"
    path.write_text(SIW_RULES)
    return {"ACCEL_CONFIG": str(path)}


SHM_ADDRESSES = {"near": ("127.0.0.1", "fd00:5::1"), "far": ("127.0.0.2", "fd00:5::2")}


def shm_environment(lab, end, required):
    """Both ends are in the near host's namespace, each with an address of its own."""
    here, there = SHM_ADDRESSES[end], SHM_ADDRESSES["far" if end == "near" else "near"]
    return {
        "ACCEL_SAME_HOST": "require" if required else "auto",
        "ACCEL_SAME_HOST_AFTER": "0",
        "ACCEL_PATH": "kernel",
        "POSIX_TEST_CONTROL": str(lab.directory / "control"),
        "POSIX_TEST_HERE": here[0],
        "POSIX_TEST_HERE6": here[1],
        "POSIX_TEST_THERE": there[0],
        "POSIX_TEST_THERE6": there[1],
    }


def environment(lab, host, siw, hold_queues=0):
    other = lab.other(host)
    return {
        **(siw_settings(lab) if siw else {}),
        "ACCEL_QUEUES": str(hold_queues),
        "POSIX_TEST_CONTROL": str(lab.directory / "control"),
        "POSIX_TEST_HERE": host.address,
        "POSIX_TEST_HERE6": host.address6,
        "POSIX_TEST_THERE": other.address,
        "POSIX_TEST_THERE6": other.address6,
    }


def refusing(lab):
    page = lab.directory / "refusal"
    page.write_bytes(bytes(4096))
    return {"LD_PRELOAD": str(build_dir() / "lib" / "libaccel-refusing.so"), "ACCEL_TEST_REFUSAL": str(page)}


def prove(host, wire, kernel, handed_back, nic):
    """nic: what the queues of a model NIC carried; None on AF_XDP."""
    carried = sum(kernel.values())
    if handed_back and nic is not None:  # its own count says more than the kernel's, which has what loopback carries, too
        return None if nic >= 20 else f"{host.name}: the NIC's queues carried {nic} of {wire} frames"
    if wire - carried < 20 if handed_back else wire < 20 or carried * 10 > wire:
        return f"{host.name}: the kernel carried {carried} of {wire} frames ({kernel})"
    if nic is not None and nic * 10 < wire * 8:
        return f"{host.name}: the NIC's queues carried {nic} of {wire} frames"
    return None


def prove_siw(pid):
    """What the far end counts: it plays a part in every test."""
    output = subprocess.run([build_dir() / "bin" / "accel", "stat", str(pid), "--json"], capture_output=True, text=True).stdout
    counters = json.loads(output)["processes"][0]["counters"]
    made = counters.get("iwarp_accepted", 0) + counters.get("iwarp_connected", 0)
    print(f"far: {made} iWARP connections")
    if made == 0 or counters.get("iwarp_plain_accepted", 0):
        return f"far: {counters}"
    return None


def counter_of(pid, name):
    output = subprocess.run([build_dir() / "bin" / "accel", "stat", str(pid), "--json"], capture_output=True, text=True).stdout
    processes = json.loads(output)["processes"] if output else []
    return processes[0]["counters"].get(name, 0) if processes else 0


def prove_counter(pid, name):
    """Of the far end: `name` happened in this run."""
    count = counter_of(pid, name)
    print(f"far: {name} {count}")
    return None if count > 0 else f"far: {name} is 0"


def tests_of(program, pattern):
    """Names of the tests, as --gtest_filter takes them."""
    listing = subprocess.run([program, f"--gtest_filter={pattern}", "--gtest_list_tests"], check=True, capture_output=True,
                             text=True, env={**os.environ, "POSIX_TEST_CONTROL": "-"}).stdout
    names, suite = [], ""
    for line in listing.splitlines():
        if line.startswith("  "):
            names.append(suite + line.split("#")[0].strip())
        elif line.split("#")[0].strip().endswith("."):
            suite = line.split("#")[0].strip()
    return names


def where_it_stands(lab, near, far):
    """Lines that tell what both programs wait for: threads with where they sleep, sockets as libaccel and as the kernel see them."""
    for child in (near, far):
        for task in sorted(pathlib.Path(f"/proc/{child.pid}/task").iterdir()):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                yield " ".join([task.name] + [(task / name).read_text().strip() for name in ("comm", "wchan", "syscall")])
        yield subprocess.run([build_dir() / "bin" / "accel", "stat", "--once", str(child.pid)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True).stdout
    for host in lab.hosts:
        yield host.enter("ss", "-tanie")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--mode", choices=["kernel", "near", "far", "both", "siw", "shm", "host"], default="kernel")
    parser.add_argument("--build")
    parser.add_argument("--filter", default="*")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--queues", type=int, default=1)
    parser.add_argument("--hold-queues", type=int, default=0, help="near's processes hold so many each; 0: all that are free")
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument("--timeout", type=int, default=280)
    parser.add_argument("--handed-back", action="store_true", help="connections are handed back to the kernel on purpose")
    parser.add_argument("--upper", help="the addresses are on devices above the cable: vlan, macvlan, bond, bond_vlan")
    parser.add_argument("--model", action="store_true", help="the accelerated ends have a model mlx5 NIC (model/) instead of AF_XDP")
    parser.add_argument("--not-required", action="store_true", help="some sockets are the kernel's on purpose: ACCEL_REQUIRE is not set")
    parser.add_argument("--refusing", action="store_true", help="near has libaccel-refusing.so, which refuses memory where the test says so")
    parser.add_argument("--firewall", action="store_true", help="both hosts drop what their connection tracking finds invalid")
    parser.add_argument("--each", action="store_true", help="a process for each test: its children find the device's queues free")
    parser.add_argument("--required", action="store_true", help="with shm: a connection's first transfer waits until it is in shared memory")
    parser.add_argument("--far-counts", help="a counter of the far end that is above 0 in the end, where that end is accelerated")
    options = parser.parse_args()
    if options.build:
        os.environ["LAB_BUILD"] = options.build
    near_accelerated = options.mode in ("near", "both")
    far_accelerated = options.mode in ("far", "both")
    siw = options.mode == "siw"
    shm = options.mode == "shm"
    one_host = options.mode in ("shm", "host")
    if options.model:
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "model"))
        from model_lab import ModelLab
    kind = ModelLab if options.model else Lab
    if options.upper:
        if unknown := [k for k in options.upper.split("_") if not knows_device(k)]:
            print(f"skipped: this kernel has no {unknown[0]} devices")
            return 77
        kind = functools.partial(UpperLab, options.upper)
    with kind(queues=options.queues, mtu=options.mtu) as lab:
        for host in lab.hosts:
            host.enter("sysctl", "-qw", "net.ipv4.icmp_ratelimit=0", "net.ipv6.icmp.ratelimit=0")  # so that tests may be repeated
            if options.firewall:
                host.enter("nft", FIREWALL)
        before = {h: (h.wire_packets(), h.kernel_packets()) for h in lab.hosts}
        require = {"require": False} if siw or shm or options.not_required else {}
        if one_host:
            for _, address in SHM_ADDRESSES.values():
                lab.near.enter("ip", "address", "add", f"{address}/128", "dev", "lo", "nodad")
        far_environment = shm_environment(lab, "far", options.required) if one_host else environment(lab, lab.far, siw)
        near_environment = shm_environment(lab, "near", options.required) if one_host else environment(lab, lab.near, siw, options.hold_queues)
        far_host = lab.near if one_host else lab.far
        far = far_host.popen([options.program, "--far"], accel=far_accelerated or siw or shm, env=far_environment, **require,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if far.stdout.readline() != "ready\n":
            print("far did not start")
            return 1
        status = moved = 0
        for name in tests_of(options.program, options.filter) if options.each else [options.filter]:
            near = lab.near.popen([options.program, f"--gtest_filter={name}", f"--gtest_repeat={options.repeat}",
                                   "--gtest_throw_on_failure=0"],
                                  accel=near_accelerated or siw or shm,
                                  env=near_environment | (refusing(lab) if options.refusing else {}), **require)
            try:
                ended = near.wait(options.timeout)
            except subprocess.TimeoutExpired:
                print(f"{name}: not done after {options.timeout} s", *where_it_stands(lab, near, far), sep="\n")
                near.kill()
                ended = 1
            if ended < 0:
                print(f"{name}: ended by signal {-ended}")
            if shm and options.each:
                moved, before_it = counter_of(far.pid, "shm_opened"), moved
                print(f"{name}: {moved - before_it} connections in shared memory{', FAILED' if ended else ''}", flush=True)
            status = status or ended
        problems = []
        if shm and status == 0 and (problem := prove_counter(far.pid, "shm_opened")):
            problems.append(problem)
        if siw and status == 0 and (problem := prove_siw(far.pid)):
            problems.append(problem)
        if far_accelerated and options.far_counts and status == 0 and (problem := prove_counter(far.pid, options.far_counts)):
            problems.append(problem)
        for host, accelerated in ((lab.near, near_accelerated), (lab.far, far_accelerated)):
            wire = host.wire_packets() - before[host][0]
            kernel = {k: v - before[host][1][k] for k, v in host.kernel_packets().items()}
            nic = host.nic_packets() if options.model else None
            if status == 0 and accelerated and (problem := prove(host, wire, kernel, options.handed_back, nic)):
                problems.append(problem)
            print(f"{host.name}: {'accelerated' if accelerated else 'kernel'}, {wire} frames on the wire, kernel's stack {kernel}"
                  + (f", the NIC's queues {nic}" if nic else ""))
        far.stdin.close()
        try:
            if (ended := far.wait(20)) != 0:
                problems.append(f"far ended with {ended}")
        except subprocess.TimeoutExpired:
            problems.append("far did not end")
        for problem in problems:
            print("NOT PROVED:", problem)
        return status or (1 if problems else 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CommandFailed as failure:
        sys.exit(str(failure))
