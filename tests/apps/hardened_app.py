#!/usr/bin/env python3
"""Servers under what systemd takes from them: hardened_app.py kernel|server

Debian's units of redis-server, memcached and postgresql (a cluster of its own, by pg_ctlcluster), with the drop-ins of config/systemd. systemd does not run here; what it would do is done from
the same files: user, ambient and bounding set, no_new_privs, RLIMIT_MEMLOCK, a filter of system calls (SystemCallFilter= by
`systemd-analyze syscall-filter`, RestrictAddressFamilies=, MemoryDenyWriteExecute=, RestrictNamespaces=), a read-only root without
executables but for ExecPaths=. Not done: PrivateDevices=, ProtectProc=, PrivateUsers= (the drop-in turns it off). Each server is accelerated
with its drop-in, and serves by the kernel without. Least privilege as such: another user with the three capabilities and 8 MiB."""
import json
import os
import pathlib
import pwd
import re
import shutil
import subprocess
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "lab"))
from programs import Lab, accelerated_sockets, build_dir, until  # noqa: E402

UNITS = pathlib.Path("/lib/systemd/system")
DROP_INS = here.parents[2] / "config" / "systemd"
NUMBERS = pathlib.Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16, "AF_PACKET": 17, "AF_XDP": 44}

# Puts the filter on itself, then becomes the program. Its words: the filter as JSON, an environment as JSON, the program's.
CONFINED = """
import ctypes, json, os, struct, sys
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, KILL, EPERM, EAFNOSUPPORT, ENOSYS = 0x7fff0000, 0x80000000, 0x50001, 0x50061, 0x50026
f = json.loads(sys.argv[1])
code = [(LOAD, 0, 0, 0)]
nr = f["numbers"]
def argument(n): return (LOAD, 0, 0, 16 + 8 * n)
def when(call, *checks):
    code.extend([(EQUAL, 0, len(checks) + 1, nr[call]), *checks, (LOAD, 0, 0, 0)])
if f["families"] is not None:
    known = f["families"]
    when("socket", argument(0), *[(EQUAL, len(known) - i, 0, family) for i, family in enumerate(known)], (RETURN, 0, 0, EAFNOSUPPORT))
if f["no_executable_data"]:
    when("mmap", argument(2), (0x54, 0, 0, 6), (EQUAL, 0, 1, 6), (RETURN, 0, 0, EPERM))
    when("mprotect", argument(2), (ANY_BIT, 0, 1, 4), (RETURN, 0, 0, EPERM))
if f["no_namespaces"]:
    when("clone", argument(0), (ANY_BIT, 0, 1, 0x7e020000), (RETURN, 0, 0, EPERM))
    for call, answer in (("clone3", ENOSYS), ("unshare", EPERM), ("setns", EPERM)): code.extend([(EQUAL, 0, 1, nr[call]), (RETURN, 0, 0, answer)])
if f["allowed"] is not None:
    for number in f["allowed"]: code.extend([(EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)])
    code.append((RETURN, 0, 0, KILL))
code.append((RETURN, 0, 0, ALLOW))
program = b"".join(struct.pack("HBBI", *word) for word in code)
class Prog(ctypes.Structure): _fields_ = [("n", ctypes.c_ushort), ("code", ctypes.c_char_p)]
libc = ctypes.CDLL(None, use_errno=True)
filtered = f["families"] is not None or f["allowed"] is not None or f["no_namespaces"] or f["no_executable_data"]
if filtered and libc.prctl(22, 2, ctypes.byref(Prog(len(code), program)), 0, 0) != 0: sys.exit("no filter: %d" % ctypes.get_errno())
os.execve(sys.argv[3], sys.argv[3:], {**os.environ, **json.loads(sys.argv[2])})
"""


def service(*files):
    """The [Service] section's assignments, in order."""
    found = []
    for file in files:
        section = ""
        for line in file.read_text().splitlines():
            if line.startswith("["):
                section = line
            elif section == "[Service]" and "=" in line and not line.lstrip().startswith("#"):
                found.append(tuple(line.split("=", 1)))
    return found


def words(settings, name):
    """All words of a setting; an empty assignment forgets those before it. None: it is not set."""
    values = [value for key, value in settings if key == name]
    if not values:
        return None
    result = []
    for value in values:
        result = result + value.split() if value.split() else []
    return result


def is_on(settings, name):
    return [value for key, value in settings if key == name][-1:] in (["true"], ["yes"])


def syscall_numbers():
    return {name: int(n) for name, n in re.findall(r"#define __NR_(\w+) (\d+)", NUMBERS.read_text())}


def system_calls(group):
    if not group.startswith("@"):
        return {group}
    text = subprocess.run(["systemd-analyze", "syscall-filter", group], stdout=subprocess.PIPE, text=True, check=True).stdout
    found = set()
    for line in text.splitlines()[1:]:
        word = line.strip()
        if word and not word.startswith("#"):
            found |= system_calls(word)
    return found


def allowed_calls(settings, numbers):
    allowed = None
    for value in [v for k, v in settings if k == "SystemCallFilter"]:
        takes_away = value.startswith("~")
        calls = set().union(*(system_calls(w) for w in value.lstrip("~").split()))
        if takes_away:
            allowed = (set(numbers) if allowed is None else allowed) - calls
        else:
            allowed = (system_calls("@default") if allowed is None else allowed) | calls
    return None if allowed is None else sorted(numbers[c] for c in allowed if c in numbers)


def confined(settings, program, environment, prepare=()):
    """The words that start `program` as systemd would by these settings, after root's commands `prepare`."""
    numbers = syscall_numbers()
    rules = {
        "numbers": {c: numbers[c] for c in ("socket", "mmap", "mprotect", "clone", "clone3", "unshare", "setns")},
        "families": None if words(settings, "RestrictAddressFamilies") is None else
                    [FAMILIES[f] for f in words(settings, "RestrictAddressFamilies")],
        "no_executable_data": is_on(settings, "MemoryDenyWriteExecute"),
        "no_namespaces": is_on(settings, "RestrictNamespaces"),
        "allowed": allowed_calls(settings, numbers),
    }
    mounts = []
    if is_on(settings, "ProtectSystem") or words(settings, "ProtectSystem"):
        mounts.append("mount -t tmpfs tmpfs /tmp")
        mounts.append("chmod 1777 /tmp")
    library = str(build_dir() / "lib")
    if words(settings, "NoExecPaths"):
        for path in words(settings, "ExecPaths"):
            path = library if path == "/usr/local/lib" else path
            mounts.append(f"mount --bind {path} {path}")
            mounts.append(f"mount -o remount,bind,ro,exec {path}")
        for path in ("/usr/bin/python3", "/usr/bin/setpriv", "/bin"):  # what stands here for systemd itself
            path = os.path.realpath(path)
            mounts.append(f"mount --bind {path} {path}; mount -o remount,bind,ro,exec {path}")
    if words(settings, "ProtectSystem") == ["strict"]:
        mounts.append("mount -o remount,bind,ro" + (",noexec" if words(settings, "NoExecPaths") else "") + " /")
    user = pwd.getpwnam((words(settings, "User") or ["root"])[0])
    capabilities = [c.removeprefix("CAP_").lower() for c in words(settings, "AmbientCapabilities") or []]
    bounding = words(settings, "CapabilityBoundingSet")
    privilege = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--init-groups" if user.pw_uid else "--clear-groups"]
    if bounding is not None:
        privilege.append("--bounding-set=" + ",".join(["-all"] + ["+" + c.removeprefix("CAP_").lower() for c in bounding]))
    if capabilities:
        both = ",".join("+" + c for c in capabilities)
        privilege += [f"--inh-caps={both}", f"--ambient-caps={both}"]
    elif user.pw_uid != 0:
        privilege.append("--inh-caps=-all")
    if is_on(settings, "NoNewPrivileges"):
        privilege.append("--no-new-privs")
    limit = [f"prlimit --memlock={8 << 20}:{8 << 20}"] if words(settings, "LimitMEMLOCK") else []
    script = " && ".join(["mount --make-rprivate /", *prepare, *mounts, "exec " + " ".join(limit + ['"$@"'])])
    start = [os.path.realpath("/usr/bin/python3"), "-c", CONFINED, json.dumps(rules), json.dumps(environment), *program]
    return ["unshare", "-m", "sh", "-c", script, "sh", *privilege, *start]


def serve(lab, settings, program, port, accelerated, require, ask, prepare=()):
    environment = {"ACCEL_CONFIG": "/dev/null"}
    for value in words(settings, "Environment") or []:
        if value.startswith("ACCEL_"):
            environment.update([value.split("=", 1)])
    if accelerated:
        environment["LD_PRELOAD"] = str(build_dir() / "lib" / "libaccel.so")
    if require:
        environment["ACCEL_REQUIRE"] = "1"
    server = lab.near.popen(confined(settings, program, environment, prepare))
    lab.near.wait_for_listener(port, server)
    if require:
        until(lambda: accelerated_sockets(server.pid, port) > 0, "an accelerated listener")
    ask()
    lab.near.stop(server)


PYTHON_SERVER = """
import socket
listener = socket.create_server(("0.0.0.0", 7000))
while True:
    with listener.accept()[0] as c: c.sendall(c.recv(100))
"""
CLIENT = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 10) as c:
    c.sendall(sys.argv[3].encode().decode("unicode_escape").encode())
    got = c.recv(1000)
    assert got.startswith(sys.argv[4].encode()), got
"""


def serve_postgresql(lab, accelerated):
    """A cluster in this machine's place for them, which others do not see."""
    unit = UNITS / "postgresql@.service"
    versions = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not unit.exists() or not versions:
        print("postgresql is not installed")
        return
    version, port = versions[-1].parts[-3], 5433
    places = ("/etc/postgresql", "/var/lib/postgresql", "/var/log/postgresql", "/run/postgresql")
    prepare = [f"mount -t tmpfs tmpfs {p} && chown postgres: {p}" for p in places]
    prepare += [f"pg_createcluster -p {port} {version} lab -- -A trust --no-sync >&2",
                f"echo 'host all all 0.0.0.0/0 trust' >> /etc/postgresql/{version}/lab/pg_hba.conf",
                f"echo \"listen_addresses = '{lab.near.address}'\" >> /etc/postgresql/{version}/lab/postgresql.conf"]

    # pg_ctlcluster gives the server these variables alone.
    variables = {"ACCEL_CONFIG": "/dev/null", "ACCEL_REQUIRE": "1", "LD_PRELOAD": build_dir() / "lib" / "libaccel.so"} if accelerated else {}
    with_library = [f"echo \"{k} = '{v}'\" >> /etc/postgresql/{version}/lab/environment" for k, v in variables.items()]

    def ask():
        asked = [versions[-1].parent / "psql", "-h", lab.near.address, "-p", str(port), "-U", "postgres", "-Atc", "select 6 * 7", "postgres"]
        until(lambda: lab.far.run(asked, check=False).strip() == "42", "an answer")

    program = ["/usr/bin/pg_ctlcluster", "--skip-systemctl-redirect", "--foreground", version, "lab", "start"]
    serve(lab, service(unit), program, port, accelerated, False, ask, prepare)
    serve(lab, service(unit, DROP_INS / "postgresql@.conf"), program, port, accelerated, accelerated, ask, prepare + with_library)


def main(accelerated):
    with Lab() as lab:
        def asks(port, line, answer):
            return lambda: lab.far.run([sys.executable, "-c", CLIENT, lab.near.address, port, line, answer])

        least = [("User", "nobody"), ("AmbientCapabilities", "CAP_NET_RAW CAP_NET_ADMIN CAP_BPF"),
                 ("CapabilityBoundingSet", "CAP_NET_RAW CAP_NET_ADMIN CAP_BPF"), ("NoNewPrivileges", "true"), ("LimitMEMLOCK", "8M")]
        python = os.path.realpath("/usr/bin/python3")
        serve(lab, least, [python, "-c", PYTHON_SERVER], 7000, accelerated, accelerated, asks(7000, "hello", "hello"))
        programs = {
            "redis-server": (["/usr/bin/redis-server", "--port", "6379", "--bind", lab.near.address, "--dir", "/tmp", "--protected-mode", "no",
                              "--save", ""], 6379, "PING\\r\\n", "+PONG"),
            "memcached": (["/usr/bin/memcached", "-u", "memcache", "-p", "11211", "-l", lab.near.address], 11211, "version\\r\\n", "VERSION"),
        }
        for name, (program, port, line, answer) in programs.items():
            unit = UNITS / f"{name}.service"
            if not unit.exists() or not shutil.which(program[0]):
                print(f"{name} is not installed")
                continue
            serve(lab, service(unit), program, port, accelerated, False, asks(port, line, answer))
            serve(lab, service(unit, DROP_INS / f"{name}.conf"), program, port, accelerated, accelerated, asks(port, line, answer))
        serve_postgresql(lab, accelerated)


if __name__ == "__main__":
    if os.geteuid() != 0 or not shutil.which("systemd-analyze") or not NUMBERS.exists() or os.uname().machine != "x86_64":
        print("needs root, systemd-analyze and the kernel's headers of x86-64")
        sys.exit(77)
    main(sys.argv[1] == "server")
