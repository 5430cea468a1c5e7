#!/usr/bin/env python3
"""Programs and drivers of others as gates of the model, built from their sources: outside of CI, by whoever has these.

    peers.py perftest [SOURCE]        raw_ethernet_lat and raw_ethernet_bw of that build, by the gates of gate.py
    peers.py libvma SOURCE            sockperf on libvma.so at both ends, TCP and UDP
    peers.py libxlio SOURCE           the same on libxlio.so
    peers.py FILE.so                  a driver that is built already

SOURCE is an unpacked source package (apt-get source NAME where the system has deb-src lines; Debian 12 has perftest's, the other two are to be
had from their makers). It is copied, so that nothing is written there. Needs root, build-essential, autoconf, automake, libtool and what
`apt-get build-dep NAME` installs. Any violation that the model reports fails the gate, as does a driver whose frames are not the NIC's."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import gate  # noqa: E402
from model_lab import ModelLab, model_library  # noqa: E402

CONFIGURE = {"perftest": [], "libvma": ["--disable-static"], "libxlio": ["--disable-static"]}
# Pages as they come, a few buffers, no thread of the library's own that spins: two stacks and two NICs share a few CPUs here.
SMALL = {
    "VMA_TRACELEVEL": "WARNING", "VMA_MEM_ALLOC_TYPE": "0", "VMA_RX_BUFS": "4096", "VMA_TX_BUFS": "4096", "VMA_RX_WRE": "512", "VMA_TX_WRE": "512",
    "XLIO_TRACELEVEL": "WARNING", "XLIO_MEM_ALLOC_TYPE": "0", "XLIO_MEMORY_LIMIT": "268435456", "XLIO_RX_WRE": "512", "XLIO_TX_WRE": "512",
}


def fetch(name, folder):
    subprocess.run(["apt-get", "source", name], cwd=folder, check=True)
    return next(path for path in folder.iterdir() if path.is_dir())


def build(name, source, folder):
    """The build's folder."""
    tree = folder / "build"
    shutil.copytree(source, tree, symlinks=True)
    if not (tree / "configure").exists():
        subprocess.run(["./autogen.sh"], cwd=tree, check=True)
    subprocess.run(["./configure", "--prefix=/usr", *CONFIGURE[name]], cwd=tree, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["make", f"-j{os.cpu_count()}"], cwd=tree, check=True, stdout=subprocess.DEVNULL)
    return tree


def driver(library):
    """sockperf at both ends on a library that is preloaded in front of the model."""
    with ModelLab() as lab:
        near, far = lab.hosts
        variables = {**SMALL, "LD_PRELOAD": f"{library}:{model_library()}"}
        for protocol in ([], ["--tcp"]):
            before = [host.counters() for host in lab.hosts]
            common = ["-i", near.address, "-p", "11111", *protocol]
            server = near.popen(["sockperf", "server", *common], model=True, env=variables, stdout=subprocess.DEVNULL)
            end = time.monotonic() + 60
            while near.counters().get("flows", 0) == before[0].get("flows", 0):
                gate.check(server.poll() is None and time.monotonic() < end, f"the server has no rule: {near.counters()}")
                time.sleep(0.05)
            far.popen(["sockperf", "ping-pong", *common, "-t", "3", "-m", "64"], model=True, env=variables).wait(120)
            near.stop(server)
            for host, then in zip(lab.hosts, before):
                now = host.counters()
                carried = [now[name] - then.get(name, 0) for name in ("tx_packets", "rx_packets")]
                print(f"{host.name}: {carried[0]} frames sent and {carried[1]} received by the NIC, {' '.join(protocol) or 'UDP'}")
                gate.check(min(carried) > 100, f"{host.name}: the kernel carried it: {now}")


def main():
    if os.geteuid() != 0 or len(sys.argv) < 2:
        sys.exit(__doc__)
    name = sys.argv[1]
    if name.endswith(".so"):
        return driver(pathlib.Path(name).resolve())
    if name not in CONFIGURE:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        folder = pathlib.Path(folder)
        tree = build(name, pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else fetch(name, folder), folder)
        if name != "perftest":
            return driver(next(tree.rglob(f"{name}.so")).resolve())
        os.environ["PATH"] = f"{tree}:{os.environ['PATH']}"
        gate.lat()
        gate.bw()
        gate.shared()


if __name__ == "__main__":
    main()
