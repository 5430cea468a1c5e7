#!/usr/bin/env python3
"""The table against the libraries as built: symbols_test.py TABLE HEADER INTERCEPTED LIBRARY [ARCHIVE...]
Exports are the table's, each of libc's with libc's name, and the functions of include/accel.h; everything peers intercept has a row; and no layer calls a wrapper by
its plain name (it must go by base/real.h)."""
import re
import subprocess
import sys

table, header, intercepted, library, archives = *sys.argv[1:5], sys.argv[5:]
rows = {kind: set() for kind in ("FD_CALL", "CALL", "HAND", "ALIAS", "HAND_ALIAS", "KERNEL")}
for kind, rest in re.findall(r"^(FD_CALL|CALL|HAND_ALIAS|HAND|ALIAS|KERNEL)\(([^\n]*)", open(table).read(), re.M):
    names = re.findall(r"\w+", rest.split(",")[1 if kind in ("FD_CALL", "CALL") else 0])
    rows[kind].add(names[0])
wrapped = set().union(*(names for kind, names in rows.items() if kind != "KERNEL"))

own = set(re.findall(r"^ACCEL_API\b[^;{]*?\b(accel_\w+)\(", open(header).read(), re.M))

def defined(path):
    lines = subprocess.run(["nm", "-D", "--defined-only", path], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [line.split()[1:] for line in lines.splitlines()]

symbols = [(kind, name) for kind, name in defined(library) if kind != "A"]  # A: the version nodes
exported = {name.split("@")[0] for _, name in symbols}
faults = [f"in {header}, but not exported: {name}" for name in sorted(own - exported)]
faults += [f"exported, but not in the table: {name}" for name in sorted(exported - wrapped - own)]
faults += [f"in the table, but not exported: {name}" for name in sorted(wrapped - exported)]
faults += [f"both wrapped and left to the kernel: {name}" for name in sorted(wrapped & rows["KERNEL"])]

libc = subprocess.run(["ldd", library], stdout=subprocess.PIPE, text=True, check=True).stdout
libc = re.search(r"libc\.so\.6 => (\S+)", libc).group(1)
theirs = {}
for _, name in defined(libc):
    plain, _, version = name.partition("@")
    theirs.setdefault(plain, set()).add(version.strip("@"))
others = {name for name in wrapped if name.startswith("io_uring")} | {"io_submit"}  # liburing's and libaio's
faults += [f"not libc's: {name}" for name in sorted(wrapped - set(theirs) - others)]

# Without a version a wrapper answers for all of them: right where libc has one function of that name.
for name in sorted(wrapped & set(theirs)):
    versions = {v for v in theirs[name] if v != "GLIBC_PRIVATE"}
    ours = {n.split("@", 1)[1].strip("@") for _, n in symbols if n.split("@")[0] == name and "@" in n}
    # Moved from another library, or the same but for what runs before it. (lio_listio of before 2.4 notifies otherwise.)
    same = {"forkpty", "quick_exit", "pthread_cancel", "dlopen", "dlsym"} | {f"{name}{bits}" for name in ("aio_read", "aio_write", "lio_listio") for bits in ("", "64")}
    if len(versions) > 1 and ours != versions and name not in same:
        faults.append(f"{name}: libc has the versions {sorted(versions)}, we have {sorted(ours)}")

known = wrapped | rows["KERNEL"]
for line in open(intercepted):
    name = line.strip()
    if name and not name.startswith("#") and name not in known:
        faults.append(f"intercepted by peers or called by programs, without a row: {name}")

if archives:
    asked = subprocess.run(["nm", "-u", "-A", "--format=posix", *archives], stdout=subprocess.PIPE, text=True).stdout
    for line in asked.splitlines():
        where, _, name = line.split(" ")[0].rpartition(":")[0], None, line.split()[1] if len(line.split()) > 1 else ""
        if name in wrapped and name not in ("dlopen", "dlsym"):  # which go behind us by themselves
            faults.append(f"{where} calls {name}() by its plain name, which is our wrapper: use real.{name}()")

print("\n".join(faults) if faults else f"{len(wrapped)} symbols exported and {len(own)} of the library's own, {len(rows['KERNEL'])} left to the kernel, all accounted for")
sys.exit(bool(faults))
