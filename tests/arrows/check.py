#!/usr/bin/env python3
"""Holds the include arrows between src's layers, the calls that go upwards (docs/design/upcalls.md), the purity of the stack's library
(no clock, socket, thread or allocation hook among the symbols it asks for), and that nobody asks what kind a port is.  check.py SOURCE-DIR LIBRARY"""
import pathlib
import re
import subprocess
import sys

# folder: the folders it may include from beside itself and base.
STACK = {"stack"}
PORTS = {"mlx5", "xdp", "siw_fallback", "shm"}
MAY = {
    "base": set(),
    "operators": set(),
    "helper": STACK | {"xdp"},
    "stack": set(),
    "firewall": set(),
    "mlx5": STACK | {"operators"},
    "xdp": STACK | {"operators"},
    "siw_fallback": STACK,
    "shm": STACK,
    "engine": STACK | PORTS | {"helper", "firewall"},
    "posix": STACK | PORTS | {"engine"},
    "preload": STACK | PORTS | {"engine", "posix", "operators"},
    "tools": {"engine", "mlx5", "firewall"},
}
# Ports and channels see the stack only through these.
STACK_FOR_PORTS = {"stack/port.h", "stack/packet.h", "stack/frame_pool.h"}
# The layers above see connections and listeners through their calls, and no field of theirs.
TCP_FOR_ABOVE = "stack/tcp/tcp.h"
# What the layers above the engine implement for it. No function is left below to be called later.
ABOVE = {"posix", "preload"}
UPCALLS = {"notify", "abandoned"}

# What the stack's objects may ask of others: the C++ runtime's memory and containers, libc's memory functions.
PURE = re.compile(
    r"^(_Zn[wa][mj].*|_Zd[la]Pv.*|_ZSt.*|_ZNSt.*|_ZNKSt.*|_ZT[VISv]?.*|__cxa_.*|__gxx_personality_v0|_Unwind_Resume"
    r"|__dso_handle|_GLOBAL_OFFSET_TABLE_|__cpu_model|__cpu_indicator_init|__stack_chk_fail|__popcountdi2"
    r"|mem(cpy|set|move|cmp|chr)|__mem(cpy|set|move)_chk|bcmp|strlen|cbrtf?|ceilf?|lround|__ubsan_.*|__asan_.*|__tsan_.*"
    r"|__sanitizer_.*|__sancov_.*|__start___sancov.*|__stop___sancov.*|__gcov.*|llvm_.*|DW\.ref\..*)$")


def include_faults(root):
    for path in sorted((root / "src").rglob("*")):
        if path.suffix not in {".h", ".cc", ".c", ".def"}:
            continue
        layer = path.relative_to(root / "src").parts[0]
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not found:
                continue
            target = found.group(1)
            where = f"{path.relative_to(root)}:{number}: {layer} includes {target}"
            if "/" not in target:
                if not (path.parent / target).exists():
                    continue  # generated
                yield f"{where}: write includes from src/"
                continue
            to = target.split("/")[0]
            if to not in MAY or to in {layer, "base"}:
                continue
            if layer not in MAY:
                yield f"{where}: the folder {layer} has no place among the layers"
            elif to not in MAY[layer]:
                yield f"{where}: against the arrows"
            elif layer in PORTS and to == "stack" and target not in STACK_FOR_PORTS:
                yield f"{where}: ports see only {', '.join(sorted(STACK_FOR_PORTS))}"
            elif layer in {"engine", "posix", "preload", "tools"} and target.startswith("stack/tcp/") and target != TCP_FOR_ABOVE:
                yield f"{where}: TCP is seen by {TCP_FOR_ABOVE} alone"
            elif layer == "helper" and to != "base" and not (target.startswith("stack/wire/") or target == "xdp/flow_abi.h"):
                yield f"{where}: the helper links nothing, and sees only the wire's structures"


def hook_faults(root):
    """Calls upwards: an interface of a lower layer that a higher one implements, and setters of hooks."""
    headers = {str(p.relative_to(root / "src")): p.read_text() for p in sorted((root / "src").rglob("*.h"))}
    interfaces = {}
    for name, text in headers.items():
        if name.split("/")[0] in ABOVE:
            continue
        for found in re.finditer(r"^class (\w+)[^;{]*\{(.*?)^\};", text, re.M | re.S):
            interfaces[found.group(1)] = set(re.findall(r"virtual [^;(]*?(\w+)\(", found.group(2)))
    for path in sorted(p for layer in ABOVE for p in (root / "src" / layer).glob("*") if p.suffix in {".h", ".cc"}):
        for base in re.findall(r"^(?:class|struct) \w+(?: final)? : public (\w+)", path.read_text(), re.M):
            if interfaces.get(base) and base != "Upcalls":
                yield f"{path.relative_to(root)}: {base} of a lower layer is implemented here: a call upwards"
    for name in sorted(interfaces["Upcalls"] ^ UPCALLS):
        yield f"src/engine/upcalls.h: {name}: the calls upwards are {', '.join(sorted(UPCALLS))}"
    for name, text in headers.items():
        for hook in sorted(set(re.findall(r"void (set_\w+)\([^)]*\(\*", text))):
            yield f"src/{name}: {hook}: a hook"


# The kinds of port are opened here alone. Everybody else sees the faces of stack/port.h.
OPENER = "engine/ports.cc"


def port_faults(root):
    """No cast tells ports apart, and no layer above them knows their classes."""
    for folder in ("engine", "posix", "preload"):
        for path in sorted((root / "src" / folder).rglob("*")):
            if path.suffix not in {".h", ".cc"}:
                continue
            name = str(path.relative_to(root / "src"))
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if "dynamic_cast" in line:
                    yield f"{path.relative_to(root)}:{number}: dynamic_cast"
                if re.search(r"\b(XdpPort|Mlx5Port)\b", line.split("//")[0]) and name != OPENER:
                    yield f"{path.relative_to(root)}:{number}: knows a kind of port"


def purity_faults(library):
    def names(which):
        out = subprocess.run(["nm", which, "--format=posix", library], capture_output=True, text=True, check=True).stdout
        return {line.split()[0] for line in out.splitlines() if line and not line.endswith(":")}

    for name in sorted(names("-u") - names("--defined-only")):
        if not PURE.match(name):
            yield f"{library} asks for {name}: the stack is pure"
        elif "chrono" in name and "now" in name:
            yield f"{library} reads a clock: {name}"
        elif re.search(r"thread|mutex|condition_variable|random_device", name):
            yield f"{library} is not single-threaded and deterministic: {name}"


def main():
    root, library = pathlib.Path(sys.argv[1]), sys.argv[2]
    faults = [*include_faults(root), *hook_faults(root), *port_faults(root), *purity_faults(library)]
    print("\n".join(faults) if faults else "arrows hold")
    return 1 if faults else 0


sys.exit(main())
