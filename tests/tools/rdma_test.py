"""accel check's RDMA devices, on trees of /sys, /dev, /etc and /proc: each device is told apart, each classic failure has its sign and cure."""
import argparse
import json
import os
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tools_test import call, expect  # noqa: E402

PROVIDERS = ("mlx5", "mlx4", "irdma", "efa", "rxe", "siw")
LIBRARIES = "usr/lib/x86_64-linux-gnu"


class Tree:
    """A host where all is well, with the devices that are added."""

    def __init__(self, directory):
        self.root = pathlib.Path(directory)
        self.number = 0
        self.write("proc/modules", "mlx5_ib 1 0 - Live 0x0\nmlx5_core 1 0 - Live 0x0\nib_uverbs 1 0 - Live 0x0\n")
        self.write("proc/devices", "Character devices:\n  1 mem\n231 infiniband_verbs\n")
        self.write("sys/module/ib_core/parameters/netns_mode", "Y\n")
        self.write(f"{LIBRARIES}/libibverbs.so.1", "")
        for provider in PROVIDERS:
            self.write(f"etc/libibverbs.d/{provider}.driver", f"driver {provider}\n")
            self.write(f"{LIBRARIES}/libibverbs/lib{provider}-rdmav34.so", "")

    def write(self, name, text):
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def remove(self, name):
        file = self.root / name
        if file.is_dir() and not file.is_symlink():
            for child in list(file.iterdir()):
                self.remove(child.relative_to(self.root))
            file.rmdir()
        else:
            file.unlink()

    def pci(self, address, driver, device=None, vendor="0x15b3", kind=""):
        place = f"sys/bus/pci/devices/{address}"
        self.write(f"{place}/vendor", vendor + "\n")
        self.write(f"{place}/class", "0x020000\n")
        if driver:
            (self.root / "sys/drivers" / driver).mkdir(parents=True, exist_ok=True)
            os.symlink(f"/sys/drivers/{driver}", self.root / place / "driver")
        if kind == "virtual":
            os.symlink("../0000:00:00.0", self.root / place / "physfn")
            (self.root / "sys/bus/pci/devices/0000:00:00.0").mkdir(parents=True, exist_ok=True)
        if device:
            (self.root / place / "infiniband" / device).mkdir(parents=True)
        return self.root / place

    def device(self, name, below=None, node_type="1: CA", described="", uverbs=True):
        self.write(f"sys/class/infiniband/{name}/node_type", node_type + "\n")
        self.write(f"sys/class/infiniband/{name}/node_desc", described + "\n")
        if below:
            os.symlink(below, self.root / "sys/class/infiniband" / name / "device")
        if uverbs:
            self.write(f"sys/class/infiniband_verbs/uverbs{self.number}/ibdev", name + "\n")
            self.write(f"dev/infiniband/uverbs{self.number}", "")
            self.number += 1


def seen(o, tree, **options):
    done = call(o.tool, "check", "--json", "--root", str(tree.root), **options)
    expect(done.returncode == 0, done)
    rdma = json.loads(done.stdout)["rdma"]
    for device in rdma["devices"]:
        rdma[device["name"]] = device
        rdma["findings"] += device["findings"]
    for f in rdma["findings"]:
        expect(f["level"] == "ok" or f["cure"], f)
    rdma["signs"] = sorted(f["sign"] for f in rdma["findings"])
    return rdma


def with_mlx5(directory):
    tree = Tree(directory)
    tree.device("mlx5_0", tree.pci("0000:01:00.0", "mlx5_core", "mlx5_0"))
    return tree


def test_kinds(o, directory):
    tree = Tree(directory)
    tree.device("mlx5_0", tree.pci("0000:01:00.0", "mlx5_core", "mlx5_0"))
    tree.device("mlx5_1", tree.pci("0000:01:00.2", "mlx5_core", "mlx5_1", kind="virtual"))
    sub = tree.root / "sys/devices/mlx5_core.sf.4"
    sub.mkdir(parents=True)
    (tree.root / "sys/drivers/mlx5_core.sf").mkdir(parents=True)
    os.symlink("/sys/drivers/mlx5_core.sf", sub / "driver")
    tree.device("mlx5_2", sub)
    tree.device("mlx4_0", tree.pci("0000:02:00.0", "mlx4_core", "mlx4_0"))
    tree.device("irdma0", tree.pci("0000:03:00.0", "irdma", "irdma0", "0x8086"))
    tree.device("rdmap0", tree.pci("0000:04:00.0", "efa", "rdmap0", "0x1d0f"))
    tree.device("rxe0")
    tree.device("siw_eth0", node_type="4: RNIC")
    rdma = seen(o, tree)
    kinds = {name: (rdma[name]["driver"], rdma[name]["kind"]) for name in ("mlx5_0", "mlx5_1", "mlx5_2", "mlx4_0", "irdma0", "rdmap0", "rxe0", "siw_eth0")}
    expect(kinds == {"mlx5_0": ("mlx5_core", "physical function"), "mlx5_1": ("mlx5_core", "virtual function"),
                     "mlx5_2": ("mlx5_core", "sub-function"), "mlx4_0": ("mlx4_core", ""), "irdma0": ("irdma", ""), "rdmap0": ("efa", ""),
                     "rxe0": ("rxe", ""), "siw_eth0": ("siw", "")}, kinds)
    expect("raw-packet queues" in rdma["mlx5_2"]["use"] and "soft-iWARP" in rdma["siw_eth0"]["use"] and rdma["rxe0"]["use"].startswith("none"), rdma)
    expect(rdma["signs"] == [] and rdma["mlx5_1"]["uverbs"] == "uverbs1", rdma["findings"])
    text = call(o.tool, "check", "--root", str(tree.root)).stdout
    expect("mlx5_1: mlx5_core, virtual function" in text, text)


def test_none(o, directory):
    tree = Tree(directory)
    tree.remove("etc")
    tree.remove("usr")
    tree.pci("0000:05:00.0", "ice", vendor="0x8086")
    expect(seen(o, tree)["signs"] == [], "a host without RDMA lacks nothing")


def failure(sign, cure, change):
    def test(o, directory):
        tree = with_mlx5(directory)
        change(tree)
        rdma = seen(o, tree)
        expect(rdma["signs"] == [sign], sign, rdma["findings"])
        expect(any(cure in f["cure"] for f in rdma["findings"]), cure, rdma["findings"])
    return test


def move(tree, old, new):
    (tree.root / new).parent.mkdir(parents=True, exist_ok=True)
    (tree.root / old).rename(tree.root / new)


def no_device(tree, modules):
    tree.remove("sys/class/infiniband/mlx5_0/device")
    tree.remove("sys/class/infiniband")
    tree.remove("sys/class/infiniband_verbs")
    tree.remove("sys/bus/pci/devices/0000:01:00.0/infiniband")
    tree.write("proc/modules", modules)


def number_taken(tree):
    tree.remove("sys/class/infiniband_verbs")
    tree.write("proc/devices", "Character devices:\n231 other_driver\n")


def in_container(tree):
    tree.remove("dev")
    tree.write("run/.containerenv", "")


FAILURES = [
    failure("no_provider", "apt-get install ibverbs-providers", lambda t: t.remove("etc/libibverbs.d/mlx5.driver")),
    failure("no_provider_library", "--reinstall ibverbs-providers", lambda t: t.remove(f"{LIBRARIES}/libibverbs/libmlx5-rdmav34.so")),
    failure("foreign_configuration", "/etc/libibverbs.d", lambda t: move(t, "etc/libibverbs.d", "usr/local/etc/libibverbs.d")),
    failure("library_path", "ldconfig", lambda t: move(t, f"{LIBRARIES}/libibverbs.so.1", "usr/local/lib/libibverbs.so.1")),
    failure("no_library", "libibverbs1", lambda t: t.remove(f"{LIBRARIES}/libibverbs.so.1")),
    failure("module_missing", "modprobe mlx5_ib", lambda t: no_device(t, "mlx5_core 1 0 - Live 0x0\nib_uverbs 1 0 - Live 0x0\n")),
    failure("uverbs_missing", "modprobe ib_uverbs", lambda t: (t.remove("sys/class/infiniband_verbs"), t.write("proc/modules", "mlx5_core 1\nmlx5_ib 1\n"))),
    failure("number_taken", "unload other_driver", number_taken),
    failure("no_device_file", "udevadm trigger", lambda t: t.remove("dev")),
    failure("container_devices", "--device=/dev/infiniband/uverbs0", in_container),
]


def test_failures(o, directory):
    for number, test in enumerate(FAILURES):
        place = os.path.join(directory, str(number))
        os.mkdir(place)
        test(o, place)


def test_refused(o, directory):
    for number, (file, text) in enumerate((("sys/kernel/security/lockdown", "none [integrity] confidentiality\n"),
                                           ("sys/module/module/parameters/sig_enforce", "Y\n"))):
        place = os.path.join(directory, str(number))
        os.mkdir(place)
        tree = with_mlx5(place)
        no_device(tree, "mlx5_core 1\nib_uverbs 1\n")
        tree.write(file, text)
        rdma = seen(o, tree)
        expect(rdma["signs"] == ["module_refused"] and "sign it" in rdma["findings"][0]["cure"], rdma["findings"])


def test_namespaces(o, directory):
    tree = with_mlx5(directory)
    tree.write("sys/module/ib_core/parameters/netns_mode", "N\n")
    rdma = seen(o, tree)
    expect(rdma["findings"] == [{"level": "ok", "what": "RDMA network namespaces are in exclusive mode", "cure": "", "sign": "namespaces_exclusive"}], rdma)
    tree.remove("sys/class/infiniband/mlx5_0/device")
    tree.remove("sys/class/infiniband")
    tree.remove("sys/class/infiniband_verbs")
    rdma = seen(o, tree)
    expect(rdma["signs"] == ["namespaces_exclusive"] and "set netns shared" in rdma["findings"][0]["cure"], rdma)


def test_rights(o, directory):
    if os.geteuid() != 0:
        return
    tree = with_mlx5(directory)
    os.chmod(directory, 0o755)
    os.chmod(tree.root / "dev/infiniband/uverbs0", 0o600)
    done = call("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", o.tool, "check", "--json", "--root", directory)
    if done.returncode == 127:  # the build tree may be closed to other users
        return
    findings = json.loads(done.stdout)["rdma"]["devices"][0]["findings"]
    expect([f["sign"] for f in findings] == ["device_rights"] and "group rdma" in findings[0]["cure"], findings)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    options = parser.parse_args()
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            with tempfile.TemporaryDirectory() as scratch:
                test(options, scratch)
