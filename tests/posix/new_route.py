#!/usr/bin/env python3
"""Open connections whose route is changed: new_route.py kernel|near

One that near has opened and one that it has accepted follow their route as on the kernel: to another next hop and to another MTU, past a time in which there
is no route, and by another device (the kernel's from then on, reason: rerouted). Where the own address is gone the process ends without a wait."""
import json
import os
import pathlib
import subprocess
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "apps"))
from programs import Lab, statistics, until  # noqa: E402

BEYOND = "10.8.0.1"  # far's address behind the next hops
FAR = """
import socket, sys, threading
near, beyond = sys.argv[1:]
def echo(c):
    while b := c.recv(65536): c.sendall(b)
listener = socket.create_server((beyond, 7000))
threading.Thread(target=lambda: echo(listener.accept()[0]), daemon=True).start()
print("ready", flush=True)
sys.stdin.readline()
echo(socket.create_connection((near, 7001), source_address=(beyond, 0)))
"""
NEAR = """
import json, os, socket, sys
listener = socket.create_server((sys.argv[1], 7001))
connections = [socket.create_connection((sys.argv[2], 7000))]
print("listens", flush=True)
connections.append(listener.accept()[0])
sent = b""
for line in sys.stdin:
    data = os.urandom(30000)
    sent += data
    for c in connections: c.sendall(data)
    if line == "send\\n":
        print(flush=True)
        continue
    for c in connections: assert c.recv(len(sent), socket.MSG_WAITALL) == sent
    sent = b""
    print(json.dumps({c.fileno(): c.getsockopt(socket.IPPROTO_IP, 14) for c in connections}), flush=True)  # IP_MTU
"""


def prepare(lab):
    """far has two next hops on the cable, each with its own MAC address, and a second cable."""
    near, far = lab.hosts
    near.ip("link", "add", "veth3", "type", "veth", "peer", "name", "veth4", "netns", far.name)
    far.ip("link", "add", "hop", "link", far.device, "type", "macvlan", "mode", "bridge")
    far.ip("addr", "add", f"{BEYOND}/32", "dev", "lo")
    for host, device, address in ((near, "veth3", "10.78.0.1"), (far, "veth4", "10.78.0.2"), (far, "hop", "10.79.0.2")):
        host.ip("addr", "add", f"{address}/24", "dev", device)
        host.ip("link", "set", device, "up")
        host.enter("sysctl", "-qw", *(f"net.ipv4.conf.{d}.rp_filter=0" for d in ("all", host.device, device)))
    near.ip("addr", "add", "10.79.0.1/24", "dev", near.device)
    far.enter("sysctl", "-qw", f"net.ipv4.conf.{far.device}.arp_ignore=1", "net.ipv4.conf.hop.arp_ignore=1")
    near.ip("route", "add", BEYOND, "via", far.address)


class Connections:
    def __init__(self, lab, accelerated):
        self.lab, self.accelerated = lab, accelerated
        near, far = lab.hosts
        self.far = far.popen([sys.executable, "-c", FAR, near.address, BEYOND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.far.stdout.readline() == "ready\n"
        self.near = near.popen([sys.executable, "-c", NEAR, near.address, BEYOND], accel=accelerated, require=False, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
        assert self.near.stdout.readline() == "listens\n"
        print(file=self.far.stdin, flush=True)

    def tell(self, what):
        print(what, file=self.near.stdin, flush=True)
        return self.near.stdout.readline()

    def echoed(self):
        """The MTU of each connection's path."""
        found = json.loads(self.tell("echo"))
        self.fds = found.keys()
        return found

    def send_by(self, device):
        """An echo of both connections leaves by that device of far's, but for what was on its way (the news of a route is)."""
        before = bytes_at(self.lab.far, device)
        self.echoed()
        return bytes_at(self.lab.far, device) - before >= 60000

    def route(self, *words):
        self.lab.near.ip("route", "replace", *words)

    def are(self, *state):
        if not self.accelerated:
            return True
        ours = {s["fd"]: (s["path"], s["reason"]) for s in statistics(self.near.pid)["sockets"]}
        return [ours[int(fd)] for fd in self.fds] == [state] * 2

    def sends_in_vain(self):
        self.tell("send")
        return not self.accelerated or statistics(self.near.pid)["counters"].get("drop_no_way_back", 0) > 0

    def stop(self):
        self.near.stdin.close()
        assert self.near.wait(20) == 0
        self.lab.far.stop(self.far)


def bytes_at(host, device):
    return json.loads(host.run(["ip", "-j", "-s", "link", "show", device]))[0]["stats64"]["rx"]["bytes"]


def follows(lab, accelerated):
    near, far = lab.hosts
    connections = Connections(lab, accelerated)
    assert set(connections.echoed().values()) == {1500}
    assert connections.are("xdp", "accelerated")
    connections.route(BEYOND, "via", "10.79.0.2")
    until(lambda: connections.send_by("hop"), "the new next hop to get both connections' bytes")
    connections.route(BEYOND, "via", "10.79.0.2", "mtu", "1000")
    until(lambda: set(connections.echoed().values()) == {1000}, "the new MTU")
    assert connections.are("xdp", "accelerated")
    connections.route(BEYOND, "via", "10.78.0.2")
    until(lambda: connections.send_by("veth4"), "the other device to send both connections' bytes")
    assert connections.are("kernel", "rerouted")
    connections.stop()


def waits(lab, accelerated):
    """No route for a while: what is sent meanwhile arrives once there is one."""
    connections = Connections(lab, accelerated)
    connections.echoed()
    connections.route("unreachable", BEYOND)
    until(connections.sends_in_vain, "segments to be dropped for want of a route")
    connections.route(BEYOND, "via", lab.far.address)
    connections.echoed()
    assert connections.are("xdp", "accelerated")
    connections.stop()


SINK = """
import socket, sys
listener = socket.create_server((sys.argv[1], 7000))
c = listener.accept()[0]
while c.recv(65536): pass
"""
GONE = """
import socket, sys
far, own = sys.argv[1:]
c = socket.create_connection((far, 7000), source_address=(own, 0))
c.sendall(b"x" * 30000)
print("ready", flush=True)
for line in sys.stdin: c.sendall(b"y")
"""


def ends(lab, accelerated):
    """A process whose connection has lost its own address waits for no acknowledgement of it when it ends."""
    near, far = lab.hosts
    near.ip("addr", "add", "10.78.0.9/32", "dev", near.device)
    far.ip("route", "add", "10.78.0.9", "via", near.address)
    server = far.popen([sys.executable, "-c", SINK, far.address])
    far.wait_for_listener(7000, server)
    client = near.popen([sys.executable, "-c", GONE, far.address, "10.78.0.9"], accel=accelerated, require=accelerated, stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE, text=True)
    assert client.stdout.readline() == "ready\n"
    near.ip("addr", "del", "10.78.0.9/32", "dev", near.device)

    def is_deaf():
        print(file=client.stdin, flush=True)
        return not accelerated or statistics(client.pid)["counters"].get("drop_martian", 0) > 0
    until(is_deaf, "acknowledgements to be dropped")
    client.stdin.close()
    assert client.wait(20) == 0
    far.stop(server)


def main(accelerated):
    for case in (follows, waits, ends):
        with Lab(proved=False) as lab:
            prepare(lab)
            case(lab, accelerated)


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1] == "near")
