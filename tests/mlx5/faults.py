#!/usr/bin/env python3
"""libaccel's mlx5 port on the model NIC (tests/model) when things go wrong: faults.py CASE. The model's checker is on throughout.

A case transfers bytes there and back, equal by sha256 (tests/apps/transfer_app.py), with the faults named; or starts a program where a call
is denied, and reads the one line that says why."""
import os
import pathlib
import re
import subprocess
import sys
import time

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "model"))
sys.path.insert(0, str(here.parents[1] / "apps"))
from model_lab import ModelLab  # noqa: E402

TRANSFER = here.parents[1] / "apps" / "transfer_app.py"


def under_way(host, frames=2000, timeout=60):
    end = time.monotonic() + timeout
    while host.counters().get("rx_packets", 0) < frames:
        assert time.monotonic() < end, f"nothing moves: {host.counters()}"
        time.sleep(0.01)


def transfer(mib=16, faults="", env=None, mtu=1500, during=None, patience=100):
    """Both ends accelerated; during(lab) is called under load. Returns both ends' stderr and counters."""
    with ModelLab(mtu=mtu) as lab:
        for host in lab.hosts:
            host.faults = faults
        me = ["/usr/bin/python3", "-B", str(TRANSFER), "--mib", str(mib)]
        errors = [open(lab.directory / f"stderr{i}", "w+") for i in (1, 2)]
        pipes = {"stdout": subprocess.PIPE, "text": True, "env": env}
        server = lab.near.popen([*me, "--serve", lab.near.address], accel=True, stderr=errors[0], **pipes)
        lab.near.wait_for_listener(9000, server)
        client = lab.far.popen([*me, "--call", lab.near.address], accel=True, stderr=errors[1], **pipes)
        if during:
            under_way(lab.near)
            during(lab)
        try:
            mine, theirs = client.communicate(timeout=patience)[0].split(), server.communicate(timeout=patience)[0].split()
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"hangs: {late}\n" + "".join(open(f.name).read() for f in errors)) from None
        said = ""
        for file in errors:
            file.seek(0)
            said += file.read()
        assert client.returncode == 0 and server.returncode == 0, said
        size = str(mib << 20)
        assert mine[1] == size and theirs[1] == size and mine[0] == theirs[0] and mine[2] == theirs[2], (mine, theirs, said)
        print(f"{mib} MiB there and back, equal; faults '{faults}', {env or ''}\n{said}")
        return said, [host.counters() for host in lab.hosts]


def loss():
    _, counters = transfer(faults="loss=0.005,reorder=0.005,duplicate=0.002,corrupt=0.001,seed=7")
    assert all(c["rx_packets"] > 5000 for c in counters), counters


def send_errors():
    said, _ = transfer(faults="send_error=0.002,seed=3")
    assert "send error" in said and "queues reset" in said, said


def receive_errors():
    said, _ = transfer(faults="receive_error=0.001,seed=5")
    assert "receive error" in said and "queues reset" in said, said


def overrun():
    transfer(faults="overrun=0.002,seed=2")


def stall():
    transfer(mib=4, faults="stall=20ms:5ms")


def compression():
    transfer(env={"ACCEL_MLX5_CQE_COMPRESSION": "true"})


def plain_descriptors():
    transfer(env={"ACCEL_MLX5_MULTI_PACKET": "false", "ACCEL_MLX5_INLINE": "0", "ACCEL_MLX5_TX_BATCH": "1"})


def jumbo():
    transfer(mtu=9000)


def full_rule_table():
    """No rule but the first, which tries whether there is steering: the kernel path, without a byte lost."""
    transfer(mib=2, env={"MLX5_MODEL_REFUSE": "create_flow:ENOSPC:1", "ACCEL_REQUIRE": "off"})


def link_down():
    def during(lab):
        lab.near.ip("link", "set", lab.near.device, "down")
        lab.near.ip("link", "set", lab.near.device, "up")
    transfer(mib=64, during=during)


def removal():
    """The device goes under load: the connections go on in the kernel."""
    said, _ = transfer(mib=64, during=lambda lab: lab.near.remove_device())
    assert "port lost" in said and "was removed or failed" in said, said


REFUSALS = {  # what the kernel denies: what the line must say
    "reg_mr:ENOMEM": r"frame memory cannot be registered with mlx5_0",
    "create_qp:EPERM": r"raw-packet queues: CAP_NET_RAW of the host",
    "create_flow:EOPNOTSUPP": r"takes no flow rule.*eswitch",
    "create_cq:ENOMEM": r"queues cannot be made on mlx5_0.*smaller rings",
}


def refusals():
    """Each denial has its line, and the program goes on: on the kernel's path where mlx5 is not required."""
    script = ("import socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
              "s.bind(('{}', 9100)); s.listen(); print('listening')")
    for refuse, wanted in REFUSALS.items():
        with ModelLab() as lab:
            env = {"MLX5_MODEL_REFUSE": refuse, "ACCEL_PATH": "stack"}
            command = ["/usr/bin/python3", "-c", script.format(lab.near.address)]
            for require in ("mlx5", None):
                child = lab.near.popen(command, accel=True, require=require, env=env, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, text=True)
                said = child.communicate(timeout=60)[0]
                print(f"--- {refuse}, required: {require}: {child.returncode}\n{said}")
                if require:
                    assert child.returncode != 0 and re.search(wanted, said), said
                else:
                    assert child.returncode == 0 and "listening" in said, said


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    globals()[sys.argv[1].replace("-", "_")]()
