#!/usr/bin/env python3
"""The model is gated by programs that know nothing of it, as Debian packages them: gate.py
devices|devinfo|lat|bw|shared|killed|refused"""
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from model_lab import ModelLab  # noqa: E402


def check(holds, said):
    if not holds:
        raise AssertionError(said)


def devices():
    with ModelLab() as lab:
        found = lab.near.run(["ibv_devices"], model=True)
        check("mlx5_0" in found and "506b4b0300a1b200" in found, found)


def devinfo():
    with ModelLab() as lab:
        found = lab.near.run(["ibv_devinfo", "-v"], model=True)
        for line in ("PORT_ACTIVE (4)", "SUPPORT_RAW_PACKET", "max_tso:\t\t\t262144", "link_layer:\t\tEthernet", "RoCE v2"):
            check(line in found, f"{line!r} is not in\n{found}")
        lab.near.ip("link", "set", lab.near.device, "down")
        check("PORT_DOWN (1)" in lab.near.run(["ibv_devinfo"], model=True), "a netdev that is down")


def wait_for_receiver(host, child, descriptors, timeout=30):
    """Until its model has a rule and all descriptors for frames: it posts one at a time."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        now = host.counters()
        if now.get("flows") and now.get("rx_posted", 0) >= descriptors:
            return
        check(child.poll() is None, "the server ended early")
        time.sleep(0.02)
    raise AssertionError(f"the server does not receive: {host.counters()}")


def perftest(name, *options):
    """One program as server and client; returns both hosts' counters."""
    with ModelLab() as lab:
        near, far = lab.hosts
        common = [name, "-d", "mlx5_0", *options]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        server = near.popen([*common, "--server", "-B", near.mac, "-E", far.mac], model=True, **pipes)
        wait_for_receiver(near, server, descriptors=256)
        client = far.popen([*common, "--client", "-B", far.mac, "-E", near.mac], model=True, **pipes)
        try:
            said = client.communicate(timeout=120)[0] + server.communicate(timeout=60)[0]
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{name}: not done; server {near.counters()} client {far.counters()}") from None
        check(client.returncode == 0 and server.returncode == 0, said)
        return near.counters(), far.counters()


ADDRESSED = ["-j", "10.77.0.2", "-J", "10.77.0.1", "-k", "7777", "-K", "7778"]


def lat():
    for options in (["-s", "64"], ["-s", "1400"], ["-s", "256", *ADDRESSED]):
        for end in perftest("raw_ethernet_lat", "-n", "500", *options):
            check(end["tx_packets"] == 500 and end["rx_packets"] == 500 and end["blueflame"] > 0, end)


def bw():
    # As many descriptors as frames: the program has no flow control, and a NIC drops what finds none.
    for size in ("64", "1500"):
        server, client = perftest("raw_ethernet_bw", "-n", "500", "-r", "512", "-s", size)
        check(client["tx_packets"] == 500 and server["rx_packets"] == 500, (server, client))


def shared():
    """Two programs on one NIC, each with frames of its own."""
    with ModelLab() as lab:
        near, far = lab.hosts
        ends = []
        for port in ("7001", "7002"):
            common = ["raw_ethernet_lat", "-d", "mlx5_0", "-n", "300", "-s", "128", "-j", "10.77.0.2", "-J", "10.77.0.1", "-k", port, "-K", port]
            server = near.popen([*common, "--server", "-B", near.mac, "-E", far.mac], model=True, stdout=subprocess.DEVNULL)
            ends.append((server, [*common, "--client", "-B", far.mac, "-E", near.mac]))
        end = time.monotonic() + 30
        while near.counters().get("rx_posted", 0) < 2 * 256:
            check(time.monotonic() < end, near.counters())
            time.sleep(0.02)
        clients = [far.popen(words, model=True, stdout=subprocess.DEVNULL) for _, words in ends]
        for child in clients + [server for server, _ in ends]:
            check(child.wait(timeout=120) == 0, f"{child.args}: {child.returncode}")
        check(near.counters()["rx_packets"] == 600 and far.counters()["rx_packets"] == 600, (near.counters(), far.counters()))


def killed():
    """A program that dies leaves no rule behind that would keep frames from the kernel."""
    with ModelLab() as lab:
        near, far = lab.hosts
        for _ in range(20):
            before = near.counters().get("flows", 0)
            server = near.popen(["raw_ethernet_lat", "-d", "mlx5_0", "--server", "-B", near.mac, "-E", far.mac], model=True,
                                stdout=subprocess.DEVNULL)
            end = time.monotonic() + 30
            while near.counters().get("flows", 0) == before:
                check(time.monotonic() < end and server.poll() is None, near.counters())
                time.sleep(0.005)
            near.stop(server, signal.SIGKILL)
        end = time.monotonic() + 10
        while "table" in near.enter("nft", "list", "ruleset"):  # the kernel removes it after the socket
            check(time.monotonic() < end, near.enter("nft", "list", "ruleset"))
            time.sleep(0.02)
        far.enter("ping", "-q", "-c1", "-W5", near.address)


def refused():
    """What the kernel may deny reaches the program as the kernel's errors do."""
    with ModelLab() as lab:
        for what, said in (
            ("open:ENOENT", "Failed to open device"),
            ("get_context:EPERM", "Failed to open device"),
            ("query_port:EIO", "Failed to query port"),
        ):
            found = lab.near.run(["ibv_devinfo"], model=True, env={"MLX5_MODEL_REFUSE": what}, check=False)
            check(said in found, f"{what}: {found}")
        words = ["raw_ethernet_lat", "-d", "mlx5_0", "--server", "-B", lab.near.mac, "-E", lab.far.mac]
        for what, said in (("reg_mr:ENOMEM", "MR"), ("create_qp:EPERM", "QP"), ("create_flow:ENOSPC", "No space left on device")):
            found = lab.near.run(words, model=True, env={"MLX5_MODEL_REFUSE": what}, check=False, timeout=30)
            check(said in found, f"{what}: {found}")


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    globals()[sys.argv[1]]()
