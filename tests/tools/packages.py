#!/usr/bin/env python3
"""The .deb files: made, judged by lintian, installed into a clean Debian 12 (debootstrap), redis accelerated from there with its drop-in's settings,
removed. Skipped (77) where debootstrap or lintian is not installed or no mirror answers."""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/lab"))
from lab import Lab, sh  # noqa: E402

PACKAGES = ["libaccel", "libaccel-dev", "libaccel-mlx5", "libaccel-tools"]
MIRROR = "http://deb.debian.org/debian"


def expect(condition, *what):
    if not condition:
        sys.exit("FAILED: " + " ".join(str(w) for w in what))


def make(build):
    """The .deb files, of a build of the product alone with the options that the build under test has."""
    cache = (pathlib.Path(os.environ["LAB_BUILD"]) / "CMakeCache.txt").read_text()
    options = [f"-D{name}={value}" for name, value in re.findall(r"^(CMAKE_CXX?_COMPILER(?:_LAUNCHER)?|CMAKE_C_COMPILER_LAUNCHER):\w+=(.+)$", cache, re.M)]
    sh("cmake", "-G", "Ninja", "-S", ROOT, "-B", build, "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DACCEL_TESTS=OFF", "-DCMAKE_INSTALL_PREFIX=/usr", *options)
    for old in build.glob("*.deb"):
        old.unlink()
    sh("ninja", "-C", build, "package")
    expect(not list((build / "bin").glob("posix_*")), "ACCEL_TESTS=OFF has built tests")
    files = sorted(build.glob("*.deb"), key=lambda f: f.name.split("_")[0])
    expect([f.name.split("_")[0] for f in files] == PACKAGES, files)
    return files


def depends(file):
    text = sh("dpkg-deb", "-f", file, "Depends")
    return {entry.split("(")[0].strip() for entry in text.split(",")}


def test_dependencies(build, files):
    """What is loaded at its first use is not in the libraries' headers; the package depends on it all the same."""
    late = re.findall(r'_LIBRARY\("(.+?)"\)', (build / "src/preload/accel-delay/delay.def").read_text())
    expect(len(late) >= 5, late)
    names = depends(files[0])
    for soname in late:
        owners = {line.split(":")[0] for line in sh("dpkg", "-S", f"*/{soname}").splitlines() if line.endswith(f"-linux-gnu/{soname}")}
        expect(owners & names, soname, "is of", owners, "but the package depends on", names)
    expect({"libxdp1", "libbpf1"} <= names and {"libibverbs1", "ibverbs-providers"} <= depends(files[2]), names)
    expect({"libfmt9", "libaccel"} <= depends(files[3]), depends(files[3]))


def test_lintian(files):
    done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error,warning", *files], text=True, capture_output=True)
    expect(done.returncode == 0 and not done.stdout.strip(), done.stdout, done.stderr)


class Tree:
    """A clean Debian. The caller's mount namespace is private, so that what is mounted goes with the process."""

    def __init__(self, root, files):
        self.root = root
        done = subprocess.run(["debootstrap", "--variant=minbase", "bookworm", root, MIRROR], text=True, capture_output=True)
        if done.returncode:
            print("skipped: debootstrap:", done.stdout[-300:], done.stderr[-300:])
            sys.exit(77)
        for kind, place in (("proc", "proc"), ("sysfs", "sys")):
            sh("mount", "-t", kind, kind, root / place)
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
        policy = root / "usr/sbin/policy-rc.d"
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
        (root / "debs").mkdir()
        for file in files:
            shutil.copy(file, root / "debs")

    def run(self, *words, check=True):
        return sh("chroot", self.root, "env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", *words, check=check)

    def files_of_ours(self):
        found = self.run("find", "/usr", "/etc", "/var/lib/systemd", "-xdev", "-name", "*accel*", check=False).split()
        return sorted(f for f in found if "iaccel" not in f)


def test_tree(root, files):
    tree = Tree(root, files)
    before = tree.files_of_ours()
    tree.run("apt-get", "update")
    tree.run("apt-get", "install", "-y", "--no-install-recommends", "redis-server", "iproute2", *(f"/debs/{f.name}" for f in files))
    expect("0 not fully installed" not in tree.run("dpkg", "--audit"), "dpkg --audit")
    expect(tree.run("accel", "--version").strip(), "no version")
    multiarch = tree.run("dpkg-architecture", "-qDEB_HOST_MULTIARCH", check=False).strip() or "x86_64-linux-gnu"
    if "not found" in multiarch or "No such" in multiarch:
        multiarch = f"{os.uname().machine}-linux-gnu"
    for file in ("etc/libaccel.toml", "usr/share/bash-completion/completions/accel", "usr/share/zsh/vendor-completions/_accel",
                 "usr/share/libaccel/profiles/nginx.toml", "usr/share/libaccel/libaccel.schema.json",
                 f"usr/lib/{multiarch}/pkgconfig/libaccel.pc", f"usr/lib/{multiarch}/libaccel-mlx5.so"):
        expect((root / file).is_file(), file, "is not installed")
    for package in PACKAGES:  # minbase leaves documents where they are
        expect((root / "usr/share/doc" / package / "copyright").is_file(), package, "has no copyright file")
    expect("/etc/libaccel.toml" in tree.run("dpkg-query", "-W", "-f", "${Conffiles}", "libaccel"), "no conffile")
    missing = tree.run("sh", "-c", f"ldd /usr/bin/accel /usr/lib/{multiarch}/libaccel*.so | grep 'not found' || true")
    expect(not missing, missing)
    json.loads(tree.run("accel", "check", "--json", check=False))
    redis(tree, multiarch)
    tree.run("apt-get", "remove", "-y", *PACKAGES)
    expect(tree.files_of_ours() == sorted(before + ["/etc/libaccel.toml"]), tree.files_of_ours())
    tree.run("dpkg", "--purge", *PACKAGES)
    expect(tree.files_of_ours() == before, tree.files_of_ours())


def redis(tree, multiarch):
    """redis-server of the tree, as its unit with the drop-in starts it, is accelerated; the kernel's stack carries nothing of it."""
    drop_in = (tree.root / "usr/share/doc/libaccel/examples/systemd/redis-server.conf").read_text()
    library = re.search(r"^Environment=LD_PRELOAD=(.+)$", drop_in, re.M).group(1)
    expect(library == f"/usr/lib/{multiarch}/libaccel.so", library)
    capabilities = re.search(r"^AmbientCapabilities=(.+)$", drop_in, re.M).group(1)
    caps = ",".join("+" + c.removeprefix("CAP_").lower() for c in capabilities.split())
    with Lab() as lab:
        server = lab.near.popen(["chroot", tree.root, "setpriv", "--reuid=redis", "--regid=redis", "--init-groups", f"--inh-caps={caps}",
                                 f"--ambient-caps={caps}", "env", f"LD_PRELOAD={library}", "redis-server", "--bind", lab.near.address,
                                 "--protected-mode", "no", "--save", "", "--dir", "/var/lib/redis"], stdout=subprocess.DEVNULL)
        lab.near.wait_for_listener(6379, server)
        seen = lambda: json.loads(lab.near.run(["chroot", tree.root, "accel", "stat", str(server.pid), "--json"]))["processes"][0]
        from lab import until
        until(lambda: any(s["path"] == "xdp" and s.get("state") == "listen" for s in seen()["sockets"]), "the listener is accelerated")
        before = lab.near.kernel_packets()["tcp"]
        out = lab.far.run(["chroot", tree.root, "redis-benchmark", "-h", lab.near.address, "-n", "20000", "-c", "20", "-t", "set,get", "-q"])
        expect("GET:" in out, out)
        counters = seen()["counters"]
        expect(counters["tcp_passive_opens"] >= 40 and counters["rx_frames"] > 10000, counters)
        expect(lab.near.kernel_packets()["tcp"] - before < 50, "the kernel's stack carried redis")
        lab.near.stop(server)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="where the packages are built")
    options = parser.parse_args()
    for tool in ("debootstrap", "lintian"):
        if not shutil.which(tool):
            print(f"skipped: {tool} is not installed")
            sys.exit(77)
    if os.environ.get("ACCEL_OWN_MOUNTS") != "1":  # again, in a mount namespace of its own
        os.environ["ACCEL_OWN_MOUNTS"] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, "-B", *sys.argv])
    files = make(options.build)
    test_dependencies(options.build, files)
    test_lintian(files)
    root = pathlib.Path(tempfile.mkdtemp(prefix="accel-debian-"))
    root.chmod(0o755)  # redis has a user of its own
    try:
        test_tree(root, files)
    finally:
        sh("umount", root / "sys", root / "proc", check=False)
        if not any(os.path.ismount(root / place) for place in ("sys", "proc")):
            shutil.rmtree(root, ignore_errors=True)
    print("installed, used and removed:", *PACKAGES)


if __name__ == "__main__":
    main()
