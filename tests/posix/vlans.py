#!/usr/bin/env python3
"""A cable's own addresses and those of VLANs upon it, in use at once: no socket has another's connections or datagrams.

    vlans.py kernel|near|both|model|model_near

Each of near's sockets is bound to one of its addresses, and the far end's programs speak to all of them at once, by the same port. model,
model_near: both ends, or near, have a model mlx5 NIC. Where this kernel has no VLAN devices `model` does with devices that only look like some
(disguised_vlan.cc); the NICs' frames bear the tags all the same.
"""
import json
import os
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lab"))
sys.path.insert(0, str(HERE.parents[1] / "model"))
from lab import Lab, build_dir, knows_device  # noqa: E402
from model_lab import ModelLab  # noqa: E402

VLANS = {5: "10.77.5", 6: "10.77.6"}
# Answers each connection, and each datagram, with the address that it came to.
SERVER = """
import select, socket, sys
tcp = {socket.create_server((a, 7000)): a for a in sys.argv[1:]}
udp = {}
for a in sys.argv[1:]:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((a, 7000))
    udp[s] = a
print("ready", flush=True)
while True:
    for s in select.select([*tcp, *udp, sys.stdin], [], [])[0]:
        if s is sys.stdin: sys.exit()
        if s in tcp:
            c, _ = s.accept()
            c.sendall(tcp[s].encode() + c.recv(100000) * 1000)
            c.close()
        else:
            data, peer = s.recvfrom(2000)
            s.sendto(udp[s].encode() + data, peer)
"""
CLIENT = """
import socket, sys
for turn in range(5):
    connections = [socket.create_connection((a, 7000), 20) for a in sys.argv[1:]]
    for c in connections: c.sendall(b"x" * 30)
    for a, c in zip(sys.argv[1:], connections):
        got = b""
        while piece := c.recv(100000): got += piece
        assert got == a.encode() + b"x" * 30000, (a, got[:40], len(got))
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for a in sys.argv[1:]]
    for s, a in zip(sockets, sys.argv[1:]):
        s.settimeout(20)
        s.connect((a, 7000))
        s.send(b"y")
    for s, a in zip(sockets, sys.argv[1:]):
        got = s.recv(100)
        assert got == a.encode() + b"y", (a, got)
print("done")
"""
# Connects where nobody listens.
REFUSED = """
import socket, sys
try: socket.create_connection((sys.argv[2], 7999), 20, (sys.argv[1], 0))
except ConnectionRefusedError: print("refused", flush=True)
sys.stdin.read()
"""
# Answers the first SYN to that port with an ICMP error that bears the tag. Arguments: device, tag.
UNREACHABLE = """
import socket, struct, sys
def sum16(b):
    n = sum(struct.unpack(f"!{len(b) // 2}H", b))
    while n >> 16: n = (n & 0xffff) + (n >> 16)
    return struct.pack("!H", ~n & 0xffff)
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind((sys.argv[1], 0))
print("ready", flush=True)
while True:
    syn = s.recv(2048)
    if syn[12:14] == b"\\x08\\x00" and syn[23] == 6 and syn[36:38] == struct.pack("!H", 7999): break
icmp = struct.pack("!BBHI", 3, 3, 0, 0) + syn[14:42]
icmp = icmp[:2] + sum16(icmp) + icmp[4:]
ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(icmp), 1, 0, 64, 1, 0) + syn[30:34] + syn[26:30]
ip = ip[:10] + sum16(ip) + ip[12:]
s.send(syn[6:12] + syn[:6] + struct.pack("!HHH", 0x8100, int(sys.argv[2]), 0x0800) + ip + icmp)
"""
# Tagged frames that cross the device, by tag: the kernel takes a tag out and keeps it beside the frame.
SNIFFER = """
import collections, socket, struct, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind((sys.argv[1], 0))
s.setsockopt(263, 8, 1)  # SOL_PACKET, PACKET_AUXDATA
s.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)  # SO_RCVBUFFORCE
print("ready", flush=True)
seen = collections.Counter()
while True:
    data, aux, *_ = s.recvmsg(2048, 256)
    if data[12:14] == b"\\x88\\xb5": break
    if data[12:14] == b"\\x81\\x00": tag = struct.unpack("!H", data[14:16])[0]  # ours, on their way out
    else:
        status, *_, tag, _ = struct.unpack("=IIIHHHH", aux[0][2][:20])
        if not status & 16: continue  # TP_STATUS_VLAN_VALID
    seen[tag & 0xfff] += 1
print(dict(seen))
"""


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def statistics(pid):
    output = subprocess.run([build_dir() / "bin" / "accel", "stat", str(pid), "--json"], capture_output=True, text=True).stdout
    return json.loads(output)["processes"][0]


def ports_of(pid):
    return {p["name"] for p in statistics(pid)["ports"]}


def mac_of(host):
    return json.loads(host.ip("-j", "link", "show", "dev", host.device))[0]["address"]


def an_error_comes_by_a_vlan(near, far, accelerated, env, real):
    """An ICMP error that bears the tag reaches the connection. Of a disguised VLAN the far kernel sends none, nor a reset."""
    vlan, net = next(iter(VLANS.items()))
    if not real:
        answerer = far.popen([sys.executable, "-c", UNREACHABLE, far.device, vlan], stdout=subprocess.PIPE, text=True)
        check(answerer.stdout.readline() == "ready\n", "nobody answers")
    child = near.popen([sys.executable, "-c", REFUSED, f"{net}.{near.number}", f"{net}.{far.number}"], accel=accelerated, env=env,
                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    check(child.stdout.readline() == "refused\n", "the error did not come")
    if not real:
        counters = statistics(child.pid)["counters"]
        check(counters.get("icmp_errors") == 1, counters)
    child.stdin.close()
    check(child.wait(20) == 0, child.returncode)


def add_vlan(lab, number, net, real):
    """At both ends. Not real: a cable of its own, in disguise."""
    names = [f"{host.device}.{number}" for host in lab.hosts]
    if not real:
        lab._lay_cable(*names)
    for host, name in zip(lab.hosts, names):
        if real:
            host.ip("link", "add", "link", host.device, "name", name, "type", "vlan", "id", str(number))
        else:
            host.as_a_wire(name, 1500)
            host.ip("link", "set", name, "address", mac_of(host))
        host.ip("addr", "add", f"{net}.{host.number}/24", "dev", name)
        host.ip("link", "set", name, "up")


def main(mode):
    real = knows_device("vlan")
    if not real and mode != "model":
        print("skipped: this kernel has no vlan devices")
        return 77
    model = mode.startswith("model")
    with (ModelLab if model else Lab)() as lab:
        for vlan, net in VLANS.items():
            add_vlan(lab, vlan, net, real)
        near, far = lab.hosts
        accelerated = {"kernel": (), "near": (near,), "model_near": (near,)}.get(mode, lab.hosts)

        def env(host):
            if real:
                return None
            preload = host.model_environment(accel=True)["LD_PRELOAD"]
            return {"LD_PRELOAD": f"{preload}:{build_dir()}/lib/libdisguised_vlan.so"}

        addresses = [near.address, *(f"{net}.{near.number}" for net in VLANS.values())]
        before = {host: host.kernel_packets() for host in lab.hosts}
        sniffer = near.popen([sys.executable, "-c", SNIFFER, near.device], stdout=subprocess.PIPE, text=True)
        check(sniffer.stdout.readline() == "ready\n", "no sniffer")
        server = near.popen([sys.executable, "-c", SERVER, *addresses], accel=near in accelerated, env=env(near),
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        check(server.stdout.readline() == "ready\n", "the server did not start")
        said = far.run([sys.executable, "-c", CLIENT, *addresses], accel=far in accelerated, env=env(far), timeout=60)
        check(said.strip().endswith("done"), said)
        if near in accelerated:
            print(ports := ports_of(server.pid))
            check(ports == {near.device, *(f"{near.device}.{v}" for v in VLANS)}, ports)
        far.enter(sys.executable, "-c", f"""
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(("{far.device}", 0)); s.send(bytes(12) + b"\\x88\\xb5" + bytes(50))""")
        print("tagged frames:", tags := eval(sniffer.communicate(timeout=20)[0]))
        check(set(tags) == set(VLANS) and min(tags.values()) >= 25, tags)
        for host in lab.hosts:
            now = {k: v - before[host][k] for k, v in host.kernel_packets().items()}
            print(host.name, host.wire_packets(), now)
            check(host not in accelerated or now["tcp"] < 100 and now["udp"] < 30, now)
        an_error_comes_by_a_vlan(near, far, near in accelerated, env(near) if near in accelerated else None, real)
        server.stdin.close()
        check(server.wait(20) == 0, server.returncode)
    return 0


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    sys.exit(main(sys.argv[1]))
